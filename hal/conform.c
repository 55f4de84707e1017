/* SPDX-License-Identifier: Apache-2.0
 *
 * The conformance suite's frame: sides, cases, the judge, the report, and the support table.
 *
 * Thread: the caller of hy_conform_run.  Owner: a case's memory lives until the next case.
 */
#include "hal/conform_int.h"
#include "core/base/alloc.h"
#include "hal/quant.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define PATTERN 0x7fc0beefu /* a NaN that no op makes */

const hy_dtype cf_weight_types[] = {HY_F32,  HY_F16,  HY_BF16, HY_Q8_0,  HY_Q4_0,
                                    HY_Q4_1, HY_Q5_0, HY_Q5_1, HY_Q2_K,  HY_Q3_K,
                                    HY_Q4_K, HY_Q5_K, HY_Q6_K, HY_IQ4_NL};
const int cf_n_weight_types = HY_COUNTOF(cf_weight_types);

/* ---- memory of a case ---- */

/* An op that failed may have enqueued some of its work: nothing is freed under it. */
static void free_case(cf *c)
{
    const cf_side *sides[] = {&c->dut, &c->ref};
    for (int i = 0; c->mem != NULL && i < 2; i++) {
        if (sides[i]->q != NULL)
            sides[i]->dev->ops->queue_wait(sides[i]->q);
    }
    while (c->mem != NULL) {
        cf_mem *m = c->mem;
        c->mem = m->next;
        if (m->w != NULL)
            m->dev->math->weight_free(m->dev, m->w);
        else if (m->dev != NULL)
            m->dev->ops->free(m->dev, m->p, m->bytes);
        else
            hy_free(m->p);
        hy_free(m);
    }
}

static cf_mem *add_mem(cf *c)
{
    cf_mem *m = hy_calloc(1, sizeof(*m));
    if (m == NULL) {
        c->no_mem = true;
        return NULL;
    }
    m->next = c->mem;
    c->mem = m;
    return m;
}

void *cf_host(cf *c, size_t bytes)
{
    cf_mem *m = add_mem(c);
    if (m == NULL)
        return NULL;
    size_t len = (bytes + 63) / 64 * 64 + 64;
    m->p = hy_aligned_alloc(64, len);
    if (m->p == NULL)
        c->no_mem = true;
    else
        memset(m->p, 0, len);
    return m->p;
}

void *cf_dev(cf *c, cf_side *s, const void *host, size_t bytes)
{
    cf_mem *m = host != NULL ? add_mem(c) : NULL;
    if (m == NULL)
        return NULL;
    m->bytes = bytes != 0 ? bytes : 1;
    hy_status st = s->dev->ops->alloc(s->dev, m->bytes, &m->p);
    if (st == HY_OK) {
        m->dev = s->dev;
        st = s->dev->ops->copy(s->q, m->p, host, bytes);
    }
    if (st != HY_OK) {
        c->no_mem = true;
        return NULL;
    }
    return m->p;
}

bool cf_get(cf *c, cf_side *s, void *host, const void *dev, size_t bytes)
{
    if (host == NULL || dev == NULL)
        return false;
    hy_status st = s->dev->ops->copy(s->q, host, dev, bytes);
    if (st == HY_OK)
        st = s->dev->ops->queue_wait(s->q);
    return cf_ok(c, "copy to the host", st);
}

hy_weight *cf_weight(cf *c, cf_side *s, const hy_weight_src *src)
{
    cf_mem *m = add_mem(c);
    hy_weight *w = NULL;
    if (m == NULL || !cf_ok(c, "prepare_weight", s->dev->math->prepare_weight(s->dev, src, &w)))
        return NULL;
    m->dev = s->dev;
    m->w = w;
    return w;
}

/* ---- inputs ---- */

int cf_below(cf *c, int n)
{
    return (int)hy_rng_below(&c->rng, (uint64_t)n);
}

float cf_normal(cf *c)
{
    double s = 0.0;
    for (int i = 0; i < 6; i++)
        s += hy_rng_f64(&c->rng);
    return (float)((s - 3.0) * 1.41421356);
}

float *cf_rand(cf *c, int64_t n, float scale)
{
    float *p = cf_host(c, (size_t)n * sizeof(float));
    for (int64_t i = 0; p != NULL && i < n; i++)
        p[i] = cf_normal(c) * scale;
    return p;
}

float *cf_out(cf *c, int64_t n)
{
    uint32_t v = PATTERN;
    float *p = cf_host(c, (size_t)n * sizeof(float));
    for (int64_t i = 0; p != NULL && i < n; i++)
        memcpy(&p[i], &v, sizeof(v));
    return p;
}

/* Places of the f16 scales in a block; -1: none. */
static void scale_places(hy_dtype t, int at[2])
{
    at[0] = 0;
    at[1] = -1;
    if (t == HY_Q4_1 || t == HY_Q5_1 || t == HY_Q4_K || t == HY_Q5_K)
        at[1] = 2;
    if (t == HY_Q2_K) {
        at[0] = 80;
        at[1] = 82;
    }
    if (t == HY_Q3_K)
        at[0] = 108;
    if (t == HY_Q6_K)
        at[0] = 208;
}

static void put_f16(uint8_t *p, float f)
{
    uint16_t h = hy_f32_to_f16(f);
    memcpy(p, &h, sizeof(h));
}

static void fill_float(cf *c, hy_dtype t, int64_t n, uint8_t *out)
{
    for (int64_t i = 0; i < n; i++) {
        float f = cf_normal(c);
        uint16_t h = t == HY_F16 ? hy_f32_to_f16(f) : hy_f32_to_bf16(f);
        if (t == HY_F32)
            memcpy(out + 4 * i, &f, sizeof(f));
        else
            memcpy(out + 2 * i, &h, sizeof(h));
    }
}

uint8_t *cf_blocks(cf *c, hy_dtype t, int64_t n, int64_t k)
{
    const hy_quant_info *info = hy_quant_get(t);
    size_t row = hy_dtype_row_bytes(t, k), bytes = hy_dtype_get(t)->bytes;
    uint8_t *p = cf_host(c, row * (size_t)n + 32);
    if (p == NULL)
        return NULL;
    p += 32; /* as little aligned as a tensor in a file */
    if (info == NULL) {
        fill_float(c, t, n * k, p);
        return p;
    }
    float top = fmaxf(-info->code_min, info->code_max) * (info->block == 256 ? 32.0f : 1.0f);
    int at[2];
    scale_places(t, at);
    for (size_t b = 0; b < row * (size_t)n / bytes; b++) {
        uint8_t *block = p + b * bytes;
        for (size_t i = 0; i < bytes; i++)
            block[i] = (uint8_t)hy_rng_u64(&c->rng);
        put_f16(block + at[0], cf_normal(c) * 2.0f / top);
        if (at[1] >= 0)
            put_f16(block + at[1], cf_normal(c) / (info->block == 256 ? 32.0f : 1.0f));
    }
    return p;
}

/* ---- groups and cases ---- */

static void report(cf *c, hy_conform_result r)
{
    hy_conform_item it = {.op = c->op,
                          .what = c->what,
                          .result = r,
                          .cases = c->cases,
                          .worst = c->worst,
                          .text = c->text};
    c->sum.cases += c->cases;
    c->sum.passed += r == HY_CONFORM_PASS;
    c->sum.failed += r == HY_CONFORM_FAIL;
    c->sum.refused += r == HY_CONFORM_REFUSED;
    if (c->cb != NULL)
        c->cb(c->arg, &it);
}

bool cf_group(cf *c, const hy_op_query *q, const char *what, ...)
{
    va_list ap;
    c->op = q->op;
    c->cases = 0;
    c->worst = 0.0;
    c->failed = false;
    c->text[0] = '\0';
    c->shape[0] = '\0';
    va_start(ap, what);
    vsnprintf(c->what, sizeof(c->what), what, ap);
    va_end(ap);
    const hy_conform_opts *o = c->opts;
    if (o->only != NULL && strcmp(o->only, hy_op_name(q->op)) != 0)
        return false;
    if (o->what != NULL && strncmp(o->what, c->what, strlen(o->what)) != 0)
        return false;
    if (c->half != 0 && c->groups++ % 2 != c->half - 1)
        return false;
    if (!c->dut.dev->math->supports(c->dut.dev, q)) {
        report(c, HY_CONFORM_REFUSED);
        return false;
    }
    return true;
}

void cf_group_end(cf *c)
{
    free_case(c);
    report(c, c->failed ? HY_CONFORM_FAIL : HY_CONFORM_PASS);
}

void cf_case(cf *c, const char *fmt, ...)
{
    va_list ap;
    free_case(c);
    c->cases++;
    va_start(ap, fmt);
    vsnprintf(c->shape, sizeof(c->shape), fmt, ap);
    va_end(ap);
}

void cf_bad(cf *c, const char *fmt, ...)
{
    char msg[224];
    va_list ap;
    if (!c->failed) {
        va_start(ap, fmt);
        vsnprintf(msg, sizeof(msg), fmt, ap);
        va_end(ap);
        snprintf(c->text, sizeof(c->text), "%s: %s", c->shape, msg);
    }
    c->failed = true;
}

bool cf_ok(cf *c, const char *what, hy_status st)
{
    if (st == HY_OK)
        return true;
    cf_bad(c, "%s: %s: %.150s", what, hy_status_name(st), hy_fail_text());
    return false;
}

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    return u;
}

static void judge_one(cf *c, const cf_cmp *j, int64_t r, int64_t i)
{
    float got = j->got[r * j->ld + i];
    long long row = r, col = i;
    if (bits_of(got) == PATTERN)
        cf_bad(c, "[%lld][%lld] was not written", row, col);
    if (j->want != NULL) {
        double want = j->want[r * j->cols + i], bound = j->bound[r * j->cols + i] + CF_TINY;
        if (isnan(want) || isnan((double)got)) {
            if (isnan(want) != isnan((double)got))
                cf_bad(c, "[%lld][%lld] is %g, should be %g", row, col, (double)got, want);
        } else if ((double)got != want) {
            double part = fabs((double)got - want) / bound;
            c->worst = part > c->worst ? part : c->worst;
            if (!(part <= 1.0))
                cf_bad(c, "[%lld][%lld] is %.9g, should be %.9g within %.3g", row, col, (double)got,
                       want, bound);
        }
    }
    if (j->ref != NULL) {
        float ref = j->ref[r * j->ld + i];
        bool both_nan = got != got && ref != ref;
        if (!both_nan && bits_of(got) != bits_of(ref))
            cf_bad(c, "[%lld][%lld] has bits %08x (%.9g), the reference %08x (%.9g)", row, col,
                   bits_of(got), (double)got, bits_of(ref), (double)ref);
    }
}

void cf_judge(cf *c, const cf_cmp *j)
{
    for (int64_t r = 0; r < j->rows; r++) {
        for (int64_t i = 0; i < j->cols; i++)
            judge_one(c, j, r, i);
        for (int64_t i = j->cols; i < j->ld; i++) {
            if (bits_of(j->got[r * j->ld + i]) != PATTERN)
                cf_bad(c, "row %lld: written behind its %lld columns", (long long)r,
                       (long long)j->cols);
        }
    }
}

static hy_status open_side(hy_dev *d, cf_side *s)
{
    s->dev = d;
    return d->ops->queue_create(d, &s->q);
}

hy_status hy_conform_run(hy_dev *d, const hy_conform_opts *o, hy_conform_cb cb, void *arg,
                         hy_conform_sum *sum)
{
    static const hy_conform_opts none;
    cf c = {.opts = o != NULL ? o : &none, .cb = cb, .arg = arg};
    hy_dev_opts ro = {.backend = "cpu", .n_threads = 1, .isa = "scalar"};
    hy_dev_props p;
    hy_dev *ref = NULL;
    HY_TRY(d->ops->props(d, &p));
    if (c.opts->same == NULL)
        HY_TRY(hy_dev_open(&ro, &ref));
    c.quick = c.opts->quick;
    c.half = c.opts->half;
    c.exact = p.exact;
    c.loose = c.opts->fast;
    c.bits = c.opts->same != NULL ||
             (p.exact && strcmp(p.backend, "cpu") == 0 && strcmp(p.isa, "scalar") != 0);
    hy_rng_init(&c.rng, c.opts->seed != 0 ? c.opts->seed : 20260);
    bool guest = false;
    hy_status st = open_side(d, &c.dut);
    if (st == HY_OK)
        st = cf_guest(&c, &guest);
    if (st == HY_OK && !guest)
        st = open_side(ref != NULL ? ref : c.opts->same, &c.ref);
    if (guest) {
        free_case(&c);
    } else if (st == HY_OK) {
        cf_matmul(&c);
        cf_simple(&c);
        cf_cache(&c);
        cf_moe(&c);
        cf_compose(&c);
        c.half = 0;
        cf_device(&c);
        cf_share(&c);
        cf_device_lost(&c);
        if (c.no_mem)
            st = hy_fail(HY_E_NOMEM, "conform: out of memory; the result does not count");
    }
    c.sum.bits = c.bits;
    d->ops->queue_destroy(c.dut.q);
    if (c.ref.dev != NULL)
        c.ref.dev->ops->queue_destroy(c.ref.q);
    hy_dev_close(ref);
    if (sum != NULL)
        *sum = c.sum;
    return st;
}

/* ---- support table ---- */

static const char *yes_no(hy_dev *d, const hy_op_query *q)
{
    if (!d->math->supports(d, q))
        return "no";
    bool composite = q->op >= HY_OP_ATTN_IN || q->op == HY_OP_MOE_FFN;
    return composite && !(d->caps >> q->op & 1) ? "composed" : "yes";
}

static void table_head(hy_dev *const *devs, size_t n, const char *first, hy_buf *out)
{
    hy_dev_props p;
    hy_buf_printf(out, "\n| %s |", first);
    for (size_t i = 0; i < n; i++) {
        if (devs[i]->ops->props(devs[i], &p) == HY_OK)
            hy_buf_printf(out, " %s%s |", p.backend, strcmp(p.isa, "scalar") == 0 ? " scalar" : "");
        else
            hy_buf_puts(out, " ? |");
    }
    hy_buf_puts(out, "\n|---|");
    for (size_t i = 0; i < n; i++)
        hy_buf_puts(out, "---|");
    hy_buf_putc(out, '\n');
}

static void table_row(hy_dev *const *devs, size_t n, const char *name, const hy_op_query *q,
                      hy_buf *out)
{
    hy_buf_printf(out, "| %s |", name);
    for (size_t i = 0; i < n; i++)
        hy_buf_printf(out, " %s |", yes_no(devs[i], q));
    hy_buf_putc(out, '\n');
}

static void table_ops(hy_dev *const *devs, size_t n, hy_buf *out)
{
    hy_op_query q = {.w_type = HY_F16,
                     .kv_type = HY_F16,
                     .kv_value = HY_F16,
                     .k_dim = 64,
                     .v_dim = 64,
                     .block_tokens = 16,
                     .n = 256,
                     .k = 256};
    table_head(devs, n, "op", out);
    for (int op = 0; op < HY_OP_COUNT; op++) {
        q.op = (hy_op)op;
        table_row(devs, n, hy_op_name(q.op), &q, out);
    }
}

static void table_weights(hy_dev *const *devs, size_t n, hy_buf *out)
{
    char name[64];
    table_head(devs, n, "matmul weights, activations", out);
    for (int t = 0; t < cf_n_weight_types; t++) {
        for (int a = HY_ACT_F32; a >= HY_ACT_INT8; a--) {
            if (a == HY_ACT_INT8 && hy_quant_get(cf_weight_types[t]) == NULL)
                continue;
            hy_op_query q = {.op = HY_OP_MATMUL,
                             .w_type = cf_weight_types[t],
                             .act = (hy_act_mode)a,
                             .n = 256,
                             .k = 256};
            snprintf(name, sizeof(name), "%s, %s", hy_dtype_name(q.w_type),
                     a == HY_ACT_INT8 ? "int8" : "f32");
            table_row(devs, n, name, &q, out);
        }
    }
}

static void table_kv(hy_dev *const *devs, size_t n, hy_buf *out)
{
    static const hy_dtype values[] = {HY_F32, HY_F16, HY_BF16, HY_F8_E4M3};
    static const hy_dtype types[] = {HY_F32, HY_F16, HY_BF16, HY_F8_E4M3, HY_I8};
    char name[64];
    table_head(devs, n, "attention: KV value type, storage", out);
    for (size_t v = 0; v < HY_COUNTOF(values); v++) {
        for (size_t t = 0; t < HY_COUNTOF(types); t++) {
            hy_op_query q = {.op = HY_OP_ATTENTION,
                             .kv_type = types[t],
                             .kv_value = values[v],
                             .k_dim = 64,
                             .v_dim = 64,
                             .block_tokens = 16};
            if (hy_dtype_get(types[t])->bytes < hy_dtype_get(values[v])->bytes)
                continue;
            snprintf(name, sizeof(name), "%s, %s", hy_dtype_name(values[v]),
                     hy_dtype_name(types[t]));
            table_row(devs, n, name, &q, out);
        }
    }
}

/* The same for all built-in backends, so that it may be said once. */
static void table_why(hy_buf *out)
{
    hy_buf_puts(
        out,
        "\nWhat is refused, and why:\n\n"
        "- KV stored as another 16-bit type than its values (f16 in bf16, bf16 in f16): it would "
        "not come back\n  unchanged. Storage is the value type, or f32.\n"
        "- KV values of 8 bits: attention reads f32, f16 and bf16. On the wire int8 and f8 are "
        "there (kv_pack).\n"
        "- patch_embed, attn_full, pixel_shuffle: encoders have no backend yet.\n"
        "- Heads wider than 512 on simt (its kernels keep a query in shared memory); blocks of "
        "more than 256 tokens.\n"
        "- Quantised weights whose rows are no multiple of the format's block.\n");
}

hy_status hy_conform_table(hy_dev *const *devs, size_t n, hy_buf *out)
{
    hy_buf_puts(out,
                "# What each backend supports\n\n"
                "Generated from supports(): `halyard conform --table` for one device, the test "
                "`hal_support` with\n`HY_UPDATE=1` for this page. The conformance suite holds "
                "every \"yes\" to account. \"composed\": built from\nprimitives by the HAL.\n");
    table_ops(devs, n, out);
    table_weights(devs, n, out);
    table_kv(devs, n, out);
    table_why(out);
    return out->failed ? hy_fail(HY_E_NOMEM, "no memory for the support table") : HY_OK;
}
