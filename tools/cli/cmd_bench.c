/* SPDX-License-Identifier: Apache-2.0
 *
 * halyard bench: prefill and decode rates of a model, without server and scheduler: the step
 * runner alone. Prints one JSON line a measurement, so that scripts can compare engines.
 *
 * Thread: main.  Owner: none.
 */
#include "core/exec/exec.h"
#include "core/exec/sample.h"
#include "core/node/device.h"
#include "tools/cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct bench {
    hy_dev *dev;
    hy_model *model;
    hy_exec *exec;
    int32_t seqs, context, blocks_a_seq, chunk;
    int32_t *ids, *pos, *seq_row, *table;
    hy_batch_seq *bseqs;
    hy_block_table *bt;
    hy_sampler **samplers;
} bench;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One step: sequence s adds n tokens behind `past`, for s in [first, first + count). */
static hy_status step(bench *b, int32_t first, int32_t count, int32_t n, int32_t past, bool sample)
{
    int32_t row = 0;
    for (int32_t s = 0; s < count; s++) {
        b->seq_row[s] = row;
        b->bseqs[s] = (hy_batch_seq){.req_id = (uint64_t)(first + s + 1),
                                     .sample = sample,
                                     .prompt_lp_first = -1,
                                     .sampler = b->samplers[first + s],
                                     .out_pos = past};
        for (int32_t i = 0; i < n; i++, row++) {
            b->ids[row] = (int32_t)(((uint32_t)(past + i) * 2654435761u + (uint32_t)(first + s)) %
                                    (uint32_t)(b->model->cfg.vocab - 300)) +
                          200;
            b->pos[row] = past + i;
        }
    }
    b->seq_row[count] = row;
    for (int32_t g = 0; g < b->model->n_groups; g++)
        b->bt[g] = (hy_block_table){b->table + (int64_t)first * b->blocks_a_seq, b->blocks_a_seq};
    hy_batch batch = {
        .rows = {.n = row, .n_seqs = count, .ids = b->ids, .pos = b->pos, .seq_row = b->seq_row},
        .n_groups = b->model->n_groups,
        .bt = b->bt,
        .seqs = b->bseqs};
    HY_TRY(hy_exec_step(b->exec, &batch));
    return batch.status;
}

static hy_status prefill(bench *b, int32_t seq, int32_t n)
{
    for (int32_t past = 0; past < n; past += b->chunk) {
        int32_t part = n - past < b->chunk ? n - past : b->chunk;
        HY_TRY(step(b, seq, 1, part, past, past + part == n));
    }
    return HY_OK;
}

static hy_status setup(bench *b, const char *path, const hy_conf *conf)
{
    HY_TRY(hy_node_open_device(conf, &b->dev));
    hy_act_mode act =
        strcmp(hy_conf_str(conf, "engine", "activations"), "f32") == 0 ? HY_ACT_F32 : HY_ACT_INT8;
    hy_model_opts mopts = {.act = act};
    HY_TRY(hy_model_load(path, b->dev, &mopts, &b->model));
    hy_dtype kv;
    HY_TRY(hy_dtype_parse(hy_conf_str(conf, "kv", "type"), &kv));
    enum { BLOCK = 16 };
    b->blocks_a_seq = (b->context + BLOCK - 1) / BLOCK;
    int32_t n_blocks[64];
    if (b->model->n_groups > 64)
        return hy_fail(HY_E_LIMIT, "too many cache groups");
    for (int32_t g = 0; g < b->model->n_groups; g++)
        n_blocks[g] = b->blocks_a_seq * b->seqs;
    hy_exec_opts eopts = {.kv_value = kv,
                          .kv_storage = kv,
                          .block_tokens = BLOCK,
                          .n_blocks = n_blocks,
                          .max_rows = b->chunk > b->seqs ? b->chunk : b->seqs,
                          .max_seqs = b->seqs,
                          .max_logits = b->seqs,
                          .context = b->context,
                          .act = act};
    HY_TRY(hy_exec_create(b->model, &eopts, &b->exec));
    size_t rows = (size_t)eopts.max_rows;
    b->ids = calloc(rows, sizeof(int32_t));
    b->pos = calloc(rows, sizeof(int32_t));
    b->seq_row = calloc((size_t)b->seqs + 1, sizeof(int32_t));
    b->bseqs = calloc((size_t)b->seqs, sizeof(*b->bseqs));
    b->bt = calloc((size_t)b->model->n_groups, sizeof(*b->bt));
    b->samplers = calloc((size_t)b->seqs, sizeof(*b->samplers));
    b->table = calloc((size_t)b->seqs * (size_t)b->blocks_a_seq, sizeof(int32_t));
    if (b->ids == NULL || b->pos == NULL || b->seq_row == NULL || b->bseqs == NULL ||
        b->bt == NULL || b->samplers == NULL || b->table == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    for (int32_t i = 0; i < b->seqs * b->blocks_a_seq; i++)
        b->table[i] = i;
    hy_sampling greedy = {.top_p = 1, .repetition_penalty = 1, .logprobs = -1};
    hy_sampler_opts so = {.params = &greedy, .vocab = b->model->cfg.vocab};
    for (int32_t i = 0; i < b->seqs; i++)
        HY_TRY(hy_sampler_create(&so, &b->samplers[i]));
    return HY_OK;
}

static void teardown(bench *b)
{
    for (int32_t i = 0; b->samplers != NULL && i < b->seqs; i++)
        hy_sampler_destroy(b->samplers[i]);
    free(b->samplers);
    free(b->ids);
    free(b->pos);
    free(b->seq_row);
    free(b->bseqs);
    free(b->bt);
    free(b->table);
    hy_exec_destroy(b->exec);
    hy_model_destroy(b->model);
    hy_dev_close(b->dev);
}

static hy_status measure(bench *b, int32_t pp, int32_t tg, int32_t depth, int32_t reps)
{
    HY_TRY(prefill(b, 0, pp > 0 && pp < 32 ? pp : 32)); /* warm */
    for (int32_t r = 0; r < reps; r++) {
        double t = seconds();
        if (pp > 0) {
            HY_TRY(prefill(b, 0, pp));
            t = seconds() - t;
            printf("{\"test\":\"prefill\",\"tokens\":%d,\"tok_s\":%.2f}\n", pp, pp / t);
        }
        if (tg <= 0)
            continue;
        for (int32_t s = 0; s < b->seqs; s++)
            if (depth > 0)
                HY_TRY(prefill(b, s, depth));
        t = seconds();
        for (int32_t i = 0; i < tg; i++)
            HY_TRY(step(b, 0, b->seqs, 1, depth + i, true));
        t = seconds() - t;
        printf("{\"test\":\"decode\",\"depth\":%d,\"streams\":%d,\"tokens\":%d,\"tok_s\":%.2f}\n",
               depth, b->seqs, tg * b->seqs, tg * b->seqs / t);
        fflush(stdout);
    }
    return HY_OK;
}

int hy_cmd_bench(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "link") == 0)
        return hy_cmd_bench_link(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "device") == 0)
        return hy_cmd_bench_device(argc - 1, argv + 1);
    const char *pp = "512", *tg = "64", *depth = "0", *streams = "1", *reps = "1";
    const hy_cli_opt opts[] = {
        {.name = "--prompt",
         .letter = 'p',
         .arg = "N",
         .value = &pp,
         .help = "prefill N tokens (512; 0: skip)"},
        {.name = "--tokens",
         .letter = 'n',
         .arg = "N",
         .value = &tg,
         .help = "decode N tokens a stream (64; 0: skip)"},
        {.name = "--depth",
         .letter = 'd',
         .arg = "N",
         .value = &depth,
         .help = "decode behind N tokens (0)"},
        {.name = "--streams",
         .letter = 's',
         .arg = "N",
         .value = &streams,
         .help = "decode N sequences together (1)"},
        {.name = "--reps", .letter = 'r', .arg = "N", .value = &reps, .help = "repeat N times (1)"},
        HY_CLI_THREADS,
    };
    hy_conf *conf = hy_cli_conf();
    hy_cli cli = {.usage = "bench MODEL",
                  .about = "Time prefill and decode of a model's step runner; one JSON line each.\n"
                           "`halyard bench link` times the links between two processes instead,\n"
                           "`halyard bench device` what the device can do at best.",
                  .opts = opts,
                  .n_opts = HY_COUNTOF(opts),
                  .conf = conf};
    int rc = hy_cli_parse_n(&cli, argc, argv, 1);
    if (rc >= 0) {
        hy_conf_destroy(conf);
        return rc;
    }
    bench b = {.chunk = 512};
    int64_t n_pp = 0, n_tg = 0, n_depth = 0, n_streams = 1, n_reps = 1;
    const hy_cli_number numbers[] = {{"--prompt", pp, 0, 1 << 20, &n_pp},
                                     {"--tokens", tg, 0, 1 << 20, &n_tg},
                                     {"--depth", depth, 0, 1 << 20, &n_depth},
                                     {"--streams", streams, 1, 1024, &n_streams},
                                     {"--reps", reps, 1, 1 << 20, &n_reps}};
    char *path = NULL;
    hy_status st = hy_cli_numbers(numbers, HY_COUNTOF(numbers));
    b.seqs = (int32_t)n_streams;
    b.context = (int32_t)(n_pp > n_depth + n_tg ? n_pp : n_depth + n_tg) + 32;
    if (st == HY_OK)
        st = hy_cli_model_path(conf, cli.args[0], &path);
    if (st == HY_OK)
        st = setup(&b, path, conf);
    if (st == HY_OK)
        st = measure(&b, (int32_t)n_pp, (int32_t)n_tg, (int32_t)n_depth, (int32_t)n_reps);
    rc = st == HY_OK ? HY_EXIT_OK : hy_cli_fail("bench");
    teardown(&b);
    free(path);
    hy_conf_destroy(conf);
    return rc;
}
