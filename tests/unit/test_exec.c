/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor on a tiny model: a sequence that goes wrong fails alone, greedy by the device equals
 * greedy by the sampler, prompt scores do not depend on the turns they are made in, wrong steps are
 * refused, a step allocates nothing, and the stage returns every batch.
 *
 * Thread: one (virtual time).  Owner: each test.
 */
#include "core/base/alloc.h"
#include "core/base/buf.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/base/runtime.h"
#include "core/exec/sample.h"
#include "core/exec/stage.h"
#include "tests/golden/lm.h"
#include "tests/unit/cm.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum { VOCAB = 512, MAX = 16 };

/* A step's arrays, two sequences at most. */
typedef struct step {
    hy_batch b;
    hy_batch_seq seqs[2];
    hy_block_table bt[2];
    int32_t ids[MAX], pos[MAX], seq_row[3];
} step;

static void begin(step *s, const lm *l)
{
    memset(s, 0, sizeof(*s));
    for (int32_t g = 0; g < l->model->n_groups; g++)
        s->bt[g] = (hy_block_table){
            l->tables + (size_t)g * (size_t)l->o.max_seqs * (size_t)l->stride, l->stride};
    s->b = (hy_batch){.n_groups = l->model->n_groups, .bt = s->bt, .seqs = s->seqs};
    s->b.rows = (hy_rows){.ids = s->ids, .pos = s->pos, .seq_row = s->seq_row};
}

static hy_batch_seq *add(step *s, const int32_t *ids, int32_t n, hy_sampler *sampler)
{
    hy_rows *r = &s->b.rows;
    for (int32_t i = 0; i < n; i++) {
        s->ids[r->n + i] = ids[i];
        s->pos[r->n + i] = i;
    }
    r->n += n;
    s->seq_row[++r->n_seqs] = r->n;
    hy_batch_seq *q = &s->seqs[r->n_seqs - 1];
    q->prompt_lp_first = -1;
    q->sample = sampler != NULL;
    q->sampler = sampler;
    return q;
}

static hy_sampler *greedy(int32_t logprobs)
{
    hy_sampling p = {
        .temperature = 0.0f, .top_p = 1.0f, .repetition_penalty = 1.0f, .logprobs = logprobs};
    hy_sampler_opts o = {.params = &p, .vocab = VOCAB};
    hy_sampler *s = NULL;
    assert_int_equal(hy_sampler_create(&o, &s), HY_OK);
    return s;
}

static void open_path(const char *path, int32_t max_logits, lm *l)
{
    lm_opts o = {.act = HY_ACT_F32,
                 .kv = HY_F32,
                 .context = 64,
                 .max_rows = MAX,
                 .max_seqs = 2,
                 .max_logits = max_logits};
    hy_status st = lm_open(path, &o, l);
    if (st < 0)
        print_error("%s\n", hy_fail_text());
    assert_int_equal(st, HY_OK);
}

static void open_tiny(const char *family, int32_t max_logits, lm *l)
{
    char path[1024];
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/%s", lm_source_dir(), family);
    open_path(path, max_logits, l);
}

static const int32_t good[5] = {100, 200, 300, 400, 17}, bad[4] = {9, 5, 5, 77};

static void quiet(void *arg, hy_log_level level, const char *module, const char *text)
{
    (void)module;
    (void)text;
    if (level <= HY_LOG_WARN)
        ++*(int *)arg;
}

/* A llama folder whose embedding of token 5 is NaN. */
static void make_nan(char dir[64])
{
    static const char *const files[] = {"config.json", "model.safetensors"};
    char path[1024];
    snprintf(dir, 64, "/tmp/hy-nan-XXXXXX");
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < 2; i++) {
        hy_buf b;
        hy_buf_init(&b);
        snprintf(path, sizeof(path), "%s/tests/golden/tiny/llama/%s", lm_source_dir(), files[i]);
        assert_int_equal(hy_file_read(path, 64 << 20, &b), HY_OK);
        if (i == 1) {
            uint64_t n = 0;
            memcpy(&n, b.data, 8);
            json_t *h = json_loadb(b.data + 8, (size_t)n, 0, NULL);
            json_t *t = json_object_get(h, "model.embed_tokens.weight");
            size_t at =
                (size_t)json_integer_value(json_array_get(json_object_get(t, "data_offsets"), 0));
            for (size_t k = 0; k < 64; k++)
                memcpy(b.data + 8 + n + at + (5 * 64 + k) * 2, "\xc0\x7f", 2);
            json_decref(h);
        }
        snprintf(path, sizeof(path), "%s/%s", dir, files[i]);
        assert_int_equal(hy_file_write(path, b.data, b.len, 0644), HY_OK);
        hy_buf_fini(&b);
    }
}

static void remove_nan(const char *dir)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/config.json", dir);
    unlink(path);
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    unlink(path);
    rmdir(dir);
}

static void nan_pair(lm *l, int32_t logprobs)
{
    step s;
    float alone[VOCAB];
    int warned = 0;
    hy_log_set_sink(quiet, &warned);
    hy_sampler *g = greedy(logprobs), *plain = greedy(-1);
    begin(&s, l);
    hy_batch_seq *q = add(&s, good, 5, plain);
    assert_int_equal(hy_exec_step(l->exec, &s.b), HY_OK);
    int32_t want = q->token;
    memcpy(alone, hy_exec_logits(l->exec, 4), sizeof(alone));
    begin(&s, l);
    q = add(&s, good, 5, plain);
    hy_batch_seq *w = add(&s, bad, 4, g);
    assert_int_equal(hy_exec_step(l->exec, &s.b), HY_OK);
    assert_int_equal(s.b.status, HY_OK);
    assert_int_equal(w->status, HY_E_INVAL);
    assert_int_equal(q->status, HY_OK);
    assert_int_equal(q->token, want);
    assert_memory_equal(hy_exec_logits(l->exec, 4), alone, sizeof(alone));
    assert_true(warned >= 1);
    hy_log_set_sink(NULL, NULL);
    hy_sampler_destroy(g);
    hy_sampler_destroy(plain);
}

static void test_nan(void **state)
{
    (void)state;
    char dir[64];
    lm l;
    make_nan(dir);
    open_path(dir, 0, &l);
    nan_pair(&l, -1); /* by the device's top-1 */
    nan_pair(&l, 3);  /* by the sampler */
    lm_close(&l);
    remove_nan(dir);
}

static void test_greedy_ways(void **state)
{
    (void)state;
    lm l;
    step s;
    open_tiny("gemma3", 0, &l);
    hy_sampler *plain = greedy(-1), *lp = greedy(5);
    assert_true(hy_sampler_is_argmax(plain, 0));
    assert_false(hy_sampler_is_argmax(lp, 0));
    begin(&s, &l);
    hy_batch_seq *a = add(&s, good, 5, plain), *b = add(&s, good, 5, lp);
    assert_int_equal(hy_exec_step(l.exec, &s.b), HY_OK);
    assert_int_equal(a->token, b->token);
    assert_int_equal(a->out.id, a->token);
    assert_int_equal(b->out.n_top, 5);
    assert_int_equal(b->out.top_ids[0], b->token);
    assert_int_equal(b->out.rank, 1);
    const float *v = hy_exec_logits(l.exec, 4);
    assert_int_equal(lm_argmax(v, VOCAB), a->token);
    double want = (double)v[a->token] - lm_lse(v, VOCAB);
    assert_true(fabs((double)b->out.logprob - want) < 1e-5);
    assert_memory_equal(v, hy_exec_logits(l.exec, 9), sizeof(float) * VOCAB);
    assert_null(hy_exec_logits(l.exec, 3));
    hy_sampler_destroy(plain);
    hy_sampler_destroy(lp);
    lm_close(&l);
}

/* Scores of good[1..] by `turn` logits rows at once. */
static void prompt_scores(int32_t turn, float out[4], int32_t top[4])
{
    lm l;
    step s;
    open_tiny("qwen3", turn, &l);
    hy_sampler *plain = greedy(-1);
    begin(&s, &l);
    add(&s, bad, 4, plain);
    hy_batch_seq *q = add(&s, good, 5, plain);
    q->prompt_lp_first = 4;
    q->prompt_lp_n = 4;
    q->prompt_lp_top = 2;
    q->targets = good + 1;
    assert_int_equal(hy_exec_step(l.exec, &s.b), HY_OK);
    for (int32_t i = 0; i < 4; i++) {
        assert_int_equal(q->prompt_out[i].id, good[i + 1]);
        assert_int_equal(q->prompt_out[i].n_top, 2);
        out[i] = q->prompt_out[i].logprob;
        top[i] = q->prompt_out[i].top_ids[0];
    }
    hy_sampler_destroy(plain);
    lm_close(&l);
}

static void test_prompt_turns(void **state)
{
    (void)state;
    float a[4], b[4], c[4];
    int32_t ta[4], tb[4], tc[4];
    prompt_scores(16, a, ta);
    prompt_scores(3, b, tb);
    prompt_scores(1, c, tc);
    assert_memory_equal(a, b, sizeof(a));
    assert_memory_equal(a, c, sizeof(a));
    assert_memory_equal(ta, tb, sizeof(ta));
    assert_memory_equal(ta, tc, sizeof(ta));
    for (int i = 0; i < 4; i++)
        assert_true(a[i] < 0.0f && a[i] > -30.0f);
}

static void test_refused(void **state)
{
    (void)state;
    lm l;
    step s;
    open_tiny("qwen2", 0, &l);
    static const struct {
        int32_t id, pos;
        const char *text;
    } bad_rows[] = {
        {VOCAB, 0, "vocabulary"}, {-1, 0, "vocabulary"}, {1, 64, "context"}, {1, -1, "context"}};
    for (size_t i = 0; i < HY_COUNTOF(bad_rows); i++) {
        begin(&s, &l);
        add(&s, good, 1, NULL);
        s.ids[0] = bad_rows[i].id;
        s.pos[0] = bad_rows[i].pos;
        assert_int_equal(hy_exec_step(l.exec, &s.b), HY_E_INVAL);
        assert_int_equal(s.b.status, HY_E_INVAL);
        assert_non_null(strstr(hy_fail_text(), bad_rows[i].text));
    }
    begin(&s, &l); /* no rows: only the connector would be driven */
    assert_int_equal(hy_exec_step(l.exec, &s.b), HY_OK);
    begin(&s, &l);
    hy_batch_seq *q = add(&s, good, 3, NULL);
    q->prompt_lp_first = 2;
    q->prompt_lp_n = 2;
    assert_int_equal(hy_exec_step(l.exec, &s.b), HY_E_INVAL);
    hy_exec *e = NULL;
    int32_t blocks[1] = {4};
    hy_exec_opts o = {.kv_value = HY_Q4_K,
                      .kv_storage = HY_Q4_K,
                      .block_tokens = 16,
                      .n_blocks = blocks,
                      .max_rows = 4,
                      .max_seqs = 1,
                      .max_logits = 1,
                      .context = 64};
    assert_int_equal(hy_exec_create(l.model, &o, &e), HY_E_UNSUPPORTED);
    assert_non_null(strstr(hy_fail_text(), "q4_k"));
    size_t bytes = 0;
    o.kv_value = o.kv_storage = HY_F16;
    assert_int_equal(hy_exec_block_bytes(l.model, 0, &o, &bytes), HY_OK);
    /* 3 layers, K and V, 16 tokens, 2 heads of 16, 2 bytes: the least there can be */
    assert_true(bytes >= 3 * 2 * 16 * 2 * 16 * 2);
    assert_int_equal(hy_exec_block_bytes(l.model, 1, &o, &bytes), HY_E_INVAL);
    lm_close(&l);
}

static void test_no_allocation(void **state)
{
    (void)state;
    lm l;
    step s;
    open_tiny("llama", 0, &l);
    hy_sampler *plain = greedy(-1), *lp = greedy(5);
    for (int i = 0; i < 3; i++) {
        begin(&s, &l);
        add(&s, good, 5, plain);
        add(&s, bad, 4, lp);
        uint64_t before = hy_alloc_count();
        assert_int_equal(hy_exec_step(l.exec, &s.b), HY_OK);
        assert_true(hy_alloc_count() == before);
    }
    assert_true(hy_noalloc_violations() == 0);
    hy_sampler_destroy(plain);
    hy_sampler_destroy(lp);
    lm_close(&l);
}

static void test_fingerprint(void **state)
{
    (void)state;
    uint8_t a[32], b[32];
    lm l;
    open_tiny("llama", 0, &l);
    hy_exec_fingerprint(l.exec, a);
    lm_close(&l);
    lm_opts o = {.act = HY_ACT_F32, .kv = HY_F16, .context = 64};
    char path[1024];
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/llama", lm_source_dir());
    assert_int_equal(lm_open(path, &o, &l), HY_OK);
    hy_exec_fingerprint(l.exec, b);
    assert_memory_not_equal(a, b, 32);
    lm_close(&l);
}

typedef struct sink {
    hy_batch *got[4];
    int n;
} sink;

static hy_status on_done(void *self, hy_msg *msg)
{
    sink *k = self;
    assert_int_equal(msg->kind, HY_MSG_STEP_DONE);
    k->got[k->n++] = msg->data;
    return HY_OK;
}

static void test_stage(void **state)
{
    (void)state;
    static const hy_stage_ops ops = {.on_msg = on_done};
    lm l;
    step s[2];
    sink k = {.n = 0};
    open_tiny("llama", 0, &l);
    hy_sampler *plain = greedy(-1);
    hy_stage *sched = hy_stage_create("sched", &ops, &k, 1, 2);
    hy_exec_stage *x = hy_exec_stage_create(l.exec, 2);
    assert_true(sched != NULL && x != NULL);
    hy_exec_stage_connect(x, sched);
    hy_runtime *rt = hy_runtime_create(HY_RUNTIME_VIRTUAL, 1);
    assert_int_equal(hy_runtime_add(rt, sched), HY_OK);
    assert_int_equal(hy_runtime_add(rt, hy_exec_stage_of(x)), HY_OK);
    assert_int_equal(hy_runtime_start(rt), HY_OK);
    for (int i = 0; i < 2; i++) {
        begin(&s[i], &l);
        add(&s[i], good, 5, plain);
        s[i].b.step = (uint64_t)i;
        hy_msg m = {.kind = HY_MSG_STEP, .data = &s[i].b};
        assert_int_equal(hy_stage_post(hy_exec_stage_of(x), &m), HY_OK);
    }
    assert_int_equal(hy_runtime_run_until_idle(rt, 1000000000), HY_OK);
    assert_int_equal(k.n, 2);
    assert_ptr_equal(k.got[0], &s[0].b);
    assert_ptr_equal(k.got[1], &s[1].b);
    assert_int_equal(s[0].seqs[0].token, s[1].seqs[0].token);
    hy_runtime_stop(rt);
    hy_runtime_destroy(rt);
    hy_exec_stage_destroy(x);
    hy_stage_destroy(sched);
    hy_sampler_destroy(plain);
    lm_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nan),           cmocka_unit_test(test_greedy_ways),
        cmocka_unit_test(test_prompt_turns),  cmocka_unit_test(test_refused),
        cmocka_unit_test(test_no_allocation), cmocka_unit_test(test_fingerprint),
        cmocka_unit_test(test_stage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
