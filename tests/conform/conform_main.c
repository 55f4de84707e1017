/* SPDX-License-Identifier: Apache-2.0
 *
 * The HAL's conformance suite as a test: conform_hal [--backend X] [--isa Y] [--threads N]
 * [--op OP] [--what TYPE] [--opt KEY=VALUE]... [--fast] [--same ISA] [--lose LIB] [--quick]
 * [--thin-half 1|2] [-v]. --thin-half: that half of the items is enough with HY_THIN.
 * --same: results must have the bits of the backend opened with that instruction set (or wave).
 * Exits 77 where the device or instruction set is absent.
 *
 * Thread: main.  Owner: the device is closed at the end.
 */
#include "hal/conform.h"
#include "tests/thin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_item(void *arg, const hy_conform_item *it)
{
    static const char *const words[] = {"pass", "FAIL", "refused"};
    const bool *verbose = arg;
    if (it->result == HY_CONFORM_PASS && !*verbose)
        return;
    printf("%-7s %-10s %-22s %4d cases, worst %.3f of bound  %s\n", words[it->result],
           hy_op_name(it->op), it->what, it->cases, it->worst, it->text);
    fflush(stdout);
}

/* The driver's double loses its device when told. */
static bool find_lose(const char *path, hy_conform_opts *c)
{
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *f = lib != NULL ? dlsym(lib, "sim_lose") : NULL;
    memcpy(&c->lose, &f, sizeof(f));
    return f != NULL;
}

int main(int argc, char **argv)
{
    hy_dev_opts o = {.backend = "cpu"};
    hy_conform_opts c = {.again = true};
    hy_conform_sum sum = {0};
    hy_dev *d = NULL;
    hy_dev_props p;
    const char *kv[8] = {NULL}, *same = NULL, *lose = NULL;
    size_t n_kv = 0;
    bool verbose = false;
    for (int i = 1; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--quick") == 0)
            c.quick = true;
        else if (strcmp(argv[i], "-v") == 0)
            verbose = true;
        else if (strcmp(argv[i], "--fast") == 0)
            o.fast = c.fast = true;
        else if (strcmp(argv[i], "--same") == 0)
            same = next, i++;
        else if (strcmp(argv[i], "--backend") == 0)
            o.backend = next, i++;
        else if (strcmp(argv[i], "--isa") == 0)
            o.isa = next, i++;
        else if (strcmp(argv[i], "--threads") == 0)
            o.n_threads = atoi(next), i++;
        else if (strcmp(argv[i], "--thin-half") == 0)
            c.half = test_thin() ? atoi(next) : 0, i++;
        else if (strcmp(argv[i], "--lose") == 0)
            lose = next, i++;
        else if (strcmp(argv[i], "--op") == 0)
            c.only = next, i++;
        else if (strcmp(argv[i], "--what") == 0)
            c.what = next, i++;
        else if (strcmp(argv[i], "--opt") == 0 && n_kv + 1 < HY_COUNTOF(kv))
            kv[n_kv++] = next, o.kv = kv, i++;
        else if (strcmp(argv[i], "--seed") == 0)
            c.seed = strtoull(next, NULL, 10), i++;
        else
            return fprintf(stderr, "unknown option %s\n", argv[i]), 2;
    }
    hy_status st = hy_dev_open(&o, &d);
    if (st == HY_OK && lose != NULL && !find_lose(lose, &c))
        return fprintf(stderr, "%s has no sim_lose\n", lose), 2;
    if (st == HY_E_NOTFOUND || st == HY_E_UNSUPPORTED) {
        printf("skipped: %s\n", hy_fail_text());
        return 77;
    }
    if (st == HY_OK)
        st = d->ops->props(d, &p);
    if (st == HY_OK && same != NULL)
        st = hy_dev_open(
            &(hy_dev_opts){.backend = o.backend, .isa = same, .n_threads = 1, .fast = o.fast},
            &c.same);
    if (st == HY_OK)
        st = hy_conform_run(d, &c, print_item, &verbose, &sum);
    if (st != HY_OK) {
        fprintf(stderr, "%s\n", hy_fail_text());
        return 1;
    }
    printf("%s, %d threads: %d passed, %d failed, %d refused, %d cases%s\n", p.name, p.n_threads,
           sum.passed, sum.failed, sum.refused, sum.cases,
           sum.bits ? ", bits equal to the reference" : "");
    hy_dev_close(d);
    hy_dev_close(c.same);
    return sum.failed != 0;
}
