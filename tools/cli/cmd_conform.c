/* SPDX-License-Identifier: Apache-2.0
 *
 * halyard conform: runs the conformance suite on one device and prints a line an item.
 *
 * Thread: main.  Owner: none.
 */
#include "core/base/buf.h"
#include "core/base/status.h"
#include "core/node/device.h"
#include "hal/conform.h"
#include "tools/cli/cli.h"

#include <stdio.h>
#include <string.h>

typedef struct report {
    bool verbose;
} report;

static void on_item(void *arg, const hy_conform_item *it)
{
    static const char *const words[] = {"ok", "FAIL", "refused"};
    const report *r = arg;
    if (it->result != HY_CONFORM_FAIL && !r->verbose)
        return;
    printf("%-8s %-14s %-28s", words[it->result], hy_op_name(it->op), it->what);
    if (it->result != HY_CONFORM_REFUSED)
        printf(" %5d cases, worst %.3f of the bound", it->cases, it->worst);
    printf("%s%s\n", it->text[0] != '\0' ? "  " : "", it->text);
}

static int conform(hy_dev *dev, const hy_conform_opts *co, report *r)
{
    hy_dev_props p;
    hy_conform_sum sum = {0};
    memset(&p, 0, sizeof(p));
    dev->ops->props(dev, &p);
    printf("conformance of %s\n", p.name);
    if (hy_conform_run(dev, co, on_item, r, &sum) < 0)
        return hy_cli_fail("conform");
    printf("%d cases%s: %d passed, %d failed, %d refused\n", sum.cases,
           sum.bits ? ", bits equal to the scalar reference" : "", sum.passed, sum.failed,
           sum.refused);
    return sum.failed == 0 ? HY_EXIT_OK : HY_EXIT_FAIL;
}

static int table(hy_dev *dev)
{
    hy_buf b;
    hy_buf_init(&b);
    hy_status st = hy_conform_table(&dev, 1, &b);
    if (st == HY_OK)
        fputs(hy_buf_str(&b), stdout);
    hy_buf_fini(&b);
    return st == HY_OK ? HY_EXIT_OK : hy_cli_fail("conform");
}

/* Bounds are those of the class that the device runs in: [engine] numerics, or `fast` in its name.
 */
static bool is_fast(const hy_conf *conf, const char *name)
{
    return strcmp(hy_conf_str(conf, "engine", "numerics"), "fast") == 0 ||
           strstr(name, ":fast") != NULL || strstr(name, ",fast") != NULL;
}

/* An unknown name would check nothing and pass. */
static hy_status known_op(const char *name)
{
    hy_buf b;
    hy_buf_init(&b);
    bool found = name == NULL;
    for (int op = 0; op < HY_OP_COUNT; op++) {
        found = found || strcmp(name, hy_op_name((hy_op)op)) == 0;
        hy_buf_printf(&b, " %s", hy_op_name((hy_op)op));
    }
    const hy_status st = found ? HY_OK
                               : hy_fail(HY_E_INVAL, "no operation \"%.40s\"; there are:%s", name,
                                         b.failed ? "" : hy_buf_str(&b));
    hy_buf_fini(&b);
    return st;
}

int hy_cmd_conform(int argc, char **argv)
{
    const char *isa = "auto", *only = NULL;
    bool quick = false, want_table = false;
    report r = {0};
    const hy_cli_opt opts[] = {
        {.name = "--backend",
         .letter = 'b',
         .arg = "NAME",
         .conf = "backend.name",
         .help = "backend to check (cpu); simt:64, cuda:1: as [backend] name"},
        {.name = "--isa",
         .arg = "ISA",
         .value = &isa,
         .help = "instruction set of the cpu backend (auto)"},
        {.name = "--op", .arg = "NAME", .value = &only, .help = "one operation only"},
        {.name = "--quick", .letter = 'q', .flag = &quick, .help = "a part of the shapes"},
        {.name = "--verbose",
         .letter = 'v',
         .flag = &r.verbose,
         .help = "also print what passed and what is refused"},
        {.name = "--table",
         .flag = &want_table,
         .help = "print the support table (docs/SUPPORT.md) instead"},
    };
    hy_conf *conf = hy_cli_conf();
    hy_cli cli = {
        .conf = conf,
        .usage = "conform [--backend NAME]",
        .about = "Check every operation of a backend, over types and odd shapes, against double\n"
                 "precision, and bit for bit where the backend promises the cpu's order.",
        .opts = opts,
        .n_opts = HY_COUNTOF(opts)};
    int rc = hy_cli_parse(&cli, argc, argv);
    if (rc < 0) {
        char spec[128];
        hy_dev *dev = NULL;
        const char *name = hy_conf_str(conf, "backend", "name");
        snprintf(spec, sizeof(spec), "%s:%s", name, isa);
        const hy_conform_opts co = {
            .only = only, .quick = quick, .fast = is_fast(conf, name), .again = true};
        if (known_op(only) < 0 ||
            hy_node_open_spec(conf, strcmp(isa, "auto") == 0 ? name : spec, &dev) < 0)
            rc = hy_cli_fail("conform");
        else
            rc = want_table ? table(dev) : conform(dev, &co, &r);
        hy_dev_close(dev);
    }
    hy_conf_destroy(conf);
    return rc;
}
