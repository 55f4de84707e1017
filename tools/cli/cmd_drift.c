/* SPDX-License-Identifier: Apache-2.0
 *
 * halyard drift A B MODEL: how far two backends stand apart on a model, readable or as JSON.
 *
 * Thread: main.  Owner: none.
 */
#include "core/base/file.h"
#include "core/text/load.h"
#include "tools/cli/cli.h"
#include "tools/cli/drift.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* What is fed when no --text is given. */
static const char passage[] =
    "The harbour master kept two ledgers. In the first he wrote what the ships had brought: wool, "
    "salt, timber, lamp oil, and once a crate of clocks that all told different times. In the "
    "second he wrote what the weather had taken back. On most evenings the two columns did not "
    "agree, and he would sit by the window with a pencil until they did. A young clerk asked him "
    "why he bothered, since nobody read the second book. \"Because the sea reads it,\" he said. "
    "Years later the clerk, now master herself, found that he had been right in a way: 1847, "
    "1851 and 1863 were the years in which losses ran to more than 12 percent, and in each of "
    "them the breakwater had been repaired in autumn instead of spring. She moved the work to "
    "April, wrote the reason on the first page, and the third ledger, which she had prepared for "
    "the insurers, stayed empty. What follows is a function that adds up a column:\n\n"
    "def total(rows):\n    s = 0\n    for r in rows:\n        s += r.amount\n    return s\n";

/* When it began, and when a line was last written. */
typedef struct watch {
    double begun, said;
    bool terminal;
} watch;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A line that is written over; in a log, one every ten seconds. */
static void progress(void *arg, int32_t done, int32_t n)
{
    watch *w = arg;
    const double t = now(), took = t - w->begun;
    if (!w->terminal && t - w->said < 10.0)
        return;
    w->said = t;
    fprintf(stderr, "%sdrift: %d of %d tokens in %.0f s", w->terminal ? "\r" : "", done, n, took);
    if (done < n)
        fprintf(stderr, ", about %.0f s to go", took / done * (n - done));
    fprintf(stderr, "%s", !w->terminal ? "\n" : done < n ? "\033[K" : "\033[K\n");
    fflush(stderr);
}

/* Ids without a meaning, for models without a vocabulary. */
static hy_status made_up(int32_t n, int32_t vocab, hy_tok_ids *out)
{
    out->ids = malloc(sizeof(int32_t) * (size_t)n);
    if (out->ids == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < (uint32_t)n; i++)
        out->ids[out->n++] = (int32_t)((i * 2654435761u >> 7) % (uint32_t)vocab);
    return HY_OK;
}

static hy_status read_ids(const char *path, const char *text_file, int32_t n, int32_t random,
                          hy_tok_ids *out)
{
    hy_tok *t = NULL;
    hy_buf text;
    if (random > 0)
        return made_up(n, random, out);
    hy_status st = hy_tok_load(path, &t);
    if (st < 0)
        return hy_fail_in(st, "(--random VOCAB needs no vocabulary) ");
    hy_buf_init(&text);
    if (text_file != NULL)
        st = hy_file_read(text_file, 64 << 20, &text);
    else
        hy_buf_puts(&text, passage);
    if (st == HY_OK)
        st = hy_tok_encode(t, hy_buf_str(&text), text.len, HY_TOK_ADD_SPECIAL, 0, out);
    if (st == HY_OK && out->n > (size_t)n)
        out->n = (size_t)n;
    hy_buf_fini(&text);
    hy_tok_destroy(t);
    return st;
}

/* ---- output ---- */

static double mean(double sum, int32_t n)
{
    return n > 0 ? sum / (double)n : 0.0;
}

static json_t *rows_json(hy_drift_rows *r)
{
    return json_pack("{s:i, s:i, s:i, s:{s:f, s:f, s:f}, s:{s:f, s:f}, s:{s:f, s:f}}", "positions",
                     r->n, "same_bits", r->same_bits, "same_top1", r->same_top, "kl", "mean",
                     mean(r->kl_sum, r->n), "p99", hy_drift_percentile(r->kl, r->n, 99), "max",
                     r->kl_max, "logprob", "mean_abs", mean(r->lp_sum, r->n_scored), "max_abs",
                     r->lp_max, "nll", "a", mean(r->nll_a, r->n_scored), "b",
                     mean(r->nll_b, r->n_scored));
}

static json_t *side_json(const char *spec, hy_drift_side *s)
{
    json_t *j = json_pack("{s:s, s:s, s:s, s:b, s:f}", "spec", spec, "device", s->device, "isa",
                          s->isa, "exact", s->exact, "seconds", s->seconds);
    if (j != NULL && s->control.n > 0) {
        json_t *c = rows_json(&s->control);
        json_object_set_new(c, "layer_rows_differ", json_integer(s->control_layers));
        json_object_set_new(j, "control", c);
    }
    return j;
}

static json_t *to_json(const hy_drift_opts *o, hy_drift *d)
{
    json_t *layers = json_array();
    for (int32_t i = 0; i < d->n_layers; i++) {
        const hy_drift_layer *l = &d->layers[i];
        json_array_append_new(layers, json_pack("{s:i, s:f, s:f, s:f}", "layer", l->layer,
                                                "relative", hy_drift_relative(l), "max_abs",
                                                l->diff_max, "largest", l->ref_max));
    }
    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:o, s:o, s:o, s:o}", "model", o->path, "about",
                     d->model, "kv_type", hy_conf_str(o->conf, "kv", "type"), "activations",
                     hy_conf_str(o->conf, "engine", "activations"), "tokens", o->n, "a",
                     side_json(o->a, &d->a), "b", side_json(o->b, &d->b), "drift",
                     rows_json(&d->rows), "layers", layers);
}

static void print_control(const char *spec, const hy_drift_side *s)
{
    const hy_drift_rows *r = &s->control;
    if (r->n < 1)
        return;
    const char *cut = s->exact ? ", the prompt cut elsewhere" : "";
    if (r->same_bits == r->n && s->control_layers == 0)
        printf("  %s against itself%s: the same bits\n", spec, cut);
    else
        printf("  %s against itself%s: %d of %d positions with other logits, KL up to %.3g, %d "
               "layer rows with other bits\n",
               spec, cut, r->n - r->same_bits, r->n, r->kl_max, s->control_layers);
}

static void print_rows(hy_drift_rows *r)
{
    printf("  the same bits      %d of %d positions\n", r->same_bits, r->n);
    printf("  the same top 1     %d of %d (%.2f %%)\n", r->same_top, r->n,
           100.0 * mean(r->same_top, r->n));
    printf("  KL in nats         mean %.3g, 99 %% below %.3g, largest %.3g\n",
           mean(r->kl_sum, r->n), hy_drift_percentile(r->kl, r->n, 99), r->kl_max);
    printf("  |log p| of text    mean %.3g, largest %.3g\n", mean(r->lp_sum, r->n_scored),
           r->lp_max);
    printf("  perplexity         %.6g and %.6g\n", exp(mean(r->nll_a, r->n_scored)),
           exp(mean(r->nll_b, r->n_scored)));
}

static void print(const hy_drift_opts *o, hy_drift *d)
{
    printf("%s: %s\n%s: %s\nmodel: %s\n", o->a, d->a.device, o->b, d->b.device, d->model);
    printf("%d tokens, KV %s, activations %s; %.1f and %.1f tokens a second\n\n", o->n,
           hy_conf_str(o->conf, "kv", "type"), hy_conf_str(o->conf, "engine", "activations"),
           o->n / d->a.seconds, o->n / d->b.seconds);
    printf("control\n");
    print_control(o->a, &d->a);
    print_control(o->b, &d->b);
    if (d->a.control.n < 1)
        printf("  none was asked for\n");
    printf("\n%s against %s\n", o->a, o->b);
    print_rows(&d->rows);
    printf("\nresidual stream    relative error  largest error  largest value\n");
    for (int32_t i = 0; i < d->n_layers; i++) {
        const hy_drift_layer *l = &d->layers[i];
        char name[32] = "embedding";
        if (l->layer >= 0)
            snprintf(name, sizeof(name), "layer %d", l->layer);
        printf("  %-15s %15.3g %14.3g %14.3g\n", name, hy_drift_relative(l), l->diff_max,
               l->ref_max);
    }
}

static hy_status write_json(const char *file, const hy_drift_opts *o, hy_drift *d)
{
    json_t *j = to_json(o, d);
    char *text = j != NULL ? json_dumps(j, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : NULL;
    hy_status st = HY_OK;
    json_decref(j);
    if (text == NULL)
        return hy_fail(HY_E_INVAL, "the result is not finite or does not fit into memory");
    if (strcmp(file, "-") == 0)
        printf("%s\n", text);
    else
        st = hy_file_write(file, text, strlen(text), 0644);
    free(text);
    return st;
}

/* What the exit status says: the control holds, and the drift is below the limit. */
static hy_status judge(const hy_drift *d, const hy_drift_opts *o, const char *max_kl)
{
    const hy_drift_side *sides[] = {&d->a, &d->b};
    for (int i = 0; i < 2; i++) {
        const hy_drift_side *s = sides[i];
        if (s->control.n > s->control.same_bits || s->control_layers > 0)
            return hy_fail(HY_E_DEVICE, "control: %s does not agree with itself",
                           i == 0 ? o->a : o->b);
    }
    if (max_kl != NULL && !(d->rows.kl_max <= atof(max_kl)))
        return hy_fail(HY_E_DEVICE, "the largest KL is %.3g, above --max-kl %s", d->rows.kl_max,
                       max_kl);
    return HY_OK;
}

typedef struct args {
    const char *text, *tokens, *chunk, *json, *max_kl, *random;
    bool no_control;
} args;

static hy_status drift(const hy_conf *conf, const hy_cli *cli, const args *a, const char *path)
{
    hy_tok_ids ids = {0};
    hy_drift d = {0};
    int64_t n = 0, chunk = 0, random = 2;
    watch w = {now(), now(), isatty(2) == 1};
    const hy_cli_number numbers[] = {
        {"--tokens", a->tokens, 2, 1 << 20, &n},
        {"--chunk", a->chunk, 1, 4096, &chunk},
        {"--random", a->random != NULL ? a->random : "2", 2, INT32_MAX, &random}};
    HY_TRY(hy_cli_numbers(numbers, HY_COUNTOF(numbers)));
    hy_drift_opts o = {.conf = conf,
                       .a = cli->args[0],
                       .b = cli->args[1],
                       .path = path,
                       .chunk = (int32_t)chunk,
                       .control = !a->no_control,
                       .progress = progress,
                       .arg = &w};
    hy_status st =
        read_ids(path, a->text, (int32_t)n, a->random != NULL ? (int32_t)random : 0, &ids);
    o.ids = ids.ids;
    o.n = (int32_t)ids.n;
    if (st == HY_OK)
        st = hy_drift_run(&o, &d);
    if (st == HY_OK && (a->json == NULL || strcmp(a->json, "-") != 0))
        print(&o, &d);
    if (st == HY_OK && a->json != NULL)
        st = write_json(a->json, &o, &d);
    if (st == HY_OK)
        st = judge(&d, &o, a->max_kl);
    hy_drift_fini(&d);
    hy_tok_ids_fini(&ids);
    return st;
}

int hy_cmd_drift(int argc, char **argv)
{
    args a = {.tokens = "128", .chunk = "32"};
    const hy_cli_opt opts[] = {
        {.name = "--tokens",
         .letter = 'n',
         .arg = "N",
         .value = &a.tokens,
         .help = "of the text (128; simt does some 10 a second)"},
        {.name = "--text", .arg = "FILE", .value = &a.text, .help = "feed this text instead"},
        {.name = "--random",
         .arg = "VOCAB",
         .value = &a.random,
         .help = "feed made-up ids below VOCAB"},
        {.name = "--chunk", .arg = "N", .value = &a.chunk, .help = "tokens of a step (32)"},
        {.name = "--json", .arg = "FILE", .value = &a.json, .help = "write JSON there (-: here)"},
        {.name = "--max-kl",
         .arg = "X",
         .value = &a.max_kl,
         .help = "fail when any position's KL is above X"},
        {.name = "--no-control",
         .flag = &a.no_control,
         .help = "do not run each backend against itself"},
        HY_CLI_THREADS,
    };
    hy_conf *conf = hy_cli_conf();
    hy_cli cli = {.usage = "drift A B MODEL",
                  .about =
                      "Feed the same tokens to a model on backends A and B and measure how far "
                      "they stand\napart: KL, top-1 agreement, error of each layer. A and B are "
                      "what [backend] name\ntakes: cpu, cpu:scalar, simt:64, cuda, cuda:1. "
                      "Exit status 1: a backend does not\nagree with itself, or --max-kl.",
                  .opts = opts,
                  .n_opts = HY_COUNTOF(opts),
                  .conf = conf};
    int rc = hy_cli_parse_n(&cli, argc, argv, 3);
    if (rc < 0) {
        char *path = NULL;
        hy_status st = hy_cli_model_path(conf, cli.args[2], &path);
        if (st == HY_OK)
            st = drift(conf, &cli, &a, path);
        rc = st == HY_OK ? HY_EXIT_OK : hy_cli_fail("drift");
        free(path);
    }
    hy_conf_destroy(conf);
    return rc;
}
