/* SPDX-License-Identifier: Apache-2.0
 *
 * halyard-mkmodel: a llama model of a given shape with made-up weights and a made-up vocabulary, as
 * a GGUF file. For machines that have a GPU and no network (tools/gpu-check): speed and agreement
 * of backends depend on shapes and types, not on what a model knows. Deterministic: a value is
 * a function of seed, tensor and index, whatever the number of threads.
 *
 * Thread: main; fillers of disjoint parts of the file.  Owner: main.
 */
#include "core/base/buf.h"
#include "core/base/status.h"
#include "hal/dtype.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_TENSORS = 4096, PART = 1 << 16, UNKNOWN = 2, CONTROL = 3, NORMAL = 1, BYTE = 6 };
enum { T_U32 = 4, T_I32 = 5, T_F32 = 6, T_BOOL = 7, T_STR = 8, T_ARR = 9 };

typedef struct tensor {
    char name[64];
    hy_dtype type;
    int64_t rows, cols;
    float scale; /* of values in -1..1; 0: all ones */
    size_t at, bytes;
} tensor;

typedef struct shape {
    const char *name;
    int32_t layers, dim, ffn, heads, kv_heads, vocab, context;
    bool tied;
} shape;

static const shape shapes[] = {
    {"tiny", 2, 64, 160, 4, 2, 512, 1024, true}, /* for tests of the scripts */
    {"small", 8, 512, 1408, 8, 4, 4096, 4096, true},
    {"1b", 16, 2048, 8192, 32, 8, 128256, 8192, true},
    {"3b", 28, 3072, 8192, 24, 8, 128256, 8192, true},
    {"8b", 32, 4096, 14336, 32, 8, 128256, 8192, false},
};

typedef struct maker {
    shape s;
    hy_dtype type;
    uint64_t seed;
    tensor t[MOST_TENSORS];
    int32_t n;
    hy_buf kv, info;
    uint64_t n_kv;
    char *data; /* the mapped file */
    size_t data_at, total;
    _Atomic int64_t next; /* part of the values, over all tensors */
} maker;

/* ---- GGUF ---- */

static void put(hy_buf *b, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        hy_buf_putc(b, (char)(v >> (8 * i)));
}

static void put_str(hy_buf *b, const char *s)
{
    put(b, strlen(s), 8);
    hy_buf_puts(b, s);
}

static void key(maker *m, const char *name, uint32_t type)
{
    put_str(&m->kv, name);
    put(&m->kv, type, 4);
    m->n_kv++;
}

static void key_u32(maker *m, const char *name, uint32_t v)
{
    key(m, name, T_U32);
    put(&m->kv, v, 4);
}

static void key_f32(maker *m, const char *name, float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    key(m, name, T_F32);
    put(&m->kv, u, 4);
}

static void key_str(maker *m, const char *name, const char *v)
{
    key(m, name, T_STR);
    put_str(&m->kv, v);
}

static void key_array(maker *m, const char *name, uint32_t type)
{
    key(m, name, T_ARR);
    put(&m->kv, type, 4);
    put(&m->kv, (uint64_t)m->s.vocab, 8);
}

/* <unk> <s> </s>, 256 bytes, then a, b, ... z, _a, ... in letters, half of them behind a blank, so
 * that any text can be spelled and any id decoded. */
static void piece(int32_t id, char *out, size_t cap)
{
    char letters[16];
    size_t n = 0;
    static const char *const marks[] = {"<unk>", "<s>", "</s>"};
    if (id < 3) {
        snprintf(out, cap, "%s", marks[id]);
        return;
    }
    if (id < 259) {
        snprintf(out, cap, "<0x%02X>", (unsigned)(id - 3));
        return;
    }
    for (int32_t k = (id - 259) / 2 + 1; k > 0; k = (k - 1) / 26)
        letters[n++] = (char)('a' + (k - 1) % 26);
    letters[n] = '\0';
    snprintf(out, cap, "%s%s", (id - 259) % 2 == 0 ? "" : "\xe2\x96\x81", letters);
}

static void add_vocabulary(maker *m)
{
    char text[32];
    key_str(m, "tokenizer.ggml.model", "llama");
    key_array(m, "tokenizer.ggml.tokens", T_STR);
    for (int32_t i = 0; i < m->s.vocab; i++) {
        piece(i, text, sizeof(text));
        put_str(&m->kv, text);
    }
    key_array(m, "tokenizer.ggml.scores", T_F32);
    for (int32_t i = 0; i < m->s.vocab; i++) {
        const float score = i < 259 ? 0.0f : (float)-i;
        uint32_t u;
        memcpy(&u, &score, 4);
        put(&m->kv, u, 4);
    }
    key_array(m, "tokenizer.ggml.token_type", T_I32);
    for (int32_t i = 0; i < m->s.vocab; i++)
        put(&m->kv, i == 0 ? UNKNOWN : i < 3 ? CONTROL : i < 259 ? BYTE : NORMAL, 4);
    key_u32(m, "tokenizer.ggml.bos_token_id", 1);
    key_u32(m, "tokenizer.ggml.eos_token_id", 2);
    key_u32(m, "tokenizer.ggml.unknown_token_id", 0);
    key(m, "tokenizer.ggml.add_bos_token", T_BOOL);
    put(&m->kv, 1, 1);
}

static void add_keys(maker *m)
{
    const shape *s = &m->s;
    char name[64];
    snprintf(name, sizeof(name), "made-up %s", s->name);
    key_str(m, "general.architecture", "llama");
    key_str(m, "general.name", name);
    key_u32(m, "llama.block_count", (uint32_t)s->layers);
    key_u32(m, "llama.context_length", (uint32_t)s->context);
    key_u32(m, "llama.embedding_length", (uint32_t)s->dim);
    key_u32(m, "llama.feed_forward_length", (uint32_t)s->ffn);
    key_u32(m, "llama.attention.head_count", (uint32_t)s->heads);
    key_u32(m, "llama.attention.head_count_kv", (uint32_t)s->kv_heads);
    key_u32(m, "llama.rope.dimension_count", (uint32_t)(s->dim / s->heads));
    key_u32(m, "llama.vocab_size", (uint32_t)s->vocab);
    key_f32(m, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    key_f32(m, "llama.rope.freq_base", 500000.0f);
    add_vocabulary(m);
}

/* ---- tensors ---- */

/* gain: the deviation of what the matrix gives for inputs of deviation 1. */
static void add(maker *m, const char *name, int64_t rows, int64_t cols, float gain)
{
    HY_ASSERT(m->n < MOST_TENSORS);
    tensor *t = &m->t[m->n++];
    snprintf(t->name, sizeof(t->name), "%s", name);
    t->type = rows == 1 ? HY_F32 : m->type;
    t->rows = rows;
    t->cols = cols;
    t->scale = gain * sqrtf(3.0f / (float)cols);
    t->bytes = hy_dtype_row_bytes(t->type, cols) * (size_t)rows;
    t->at = (m->total + 31) / 32 * 32;
    m->total = t->at + t->bytes;
    put_str(&m->info, name);
    put(&m->info, rows == 1 ? 1 : 2, 4);
    put(&m->info, (uint64_t)cols, 8);
    if (rows != 1)
        put(&m->info, (uint64_t)rows, 8);
    put(&m->info, (uint64_t)t->type, 4);
    put(&m->info, t->at, 8);
}

static void add_tensors(maker *m)
{
    const shape *s = &m->s;
    const int64_t dim = s->dim, ffn = s->ffn, kv = (int64_t)s->kv_heads * (s->dim / s->heads);
    char name[64];
    add(m, "token_embd.weight", s->vocab, dim,
        4.0f); /* logits of deviation 4: peaks, as real ones */
    for (int32_t i = 0; i < s->layers; i++) {
        const struct {
            const char *name;
            int64_t rows, cols;
            float gain;
        } parts[] = {{"attn_norm", 1, dim, 0.0f},     {"attn_q", dim, dim, 1.5f},
                     {"attn_k", kv, dim, 1.5f},       {"attn_v", kv, dim, 1.0f},
                     {"attn_output", dim, dim, 1.0f}, {"ffn_norm", 1, dim, 0.0f},
                     {"ffn_gate", ffn, dim, 1.0f},    {"ffn_up", ffn, dim, 1.0f},
                     {"ffn_down", dim, ffn, 1.0f}};
        for (size_t k = 0; k < HY_COUNTOF(parts); k++) {
            snprintf(name, sizeof(name), "blk.%d.%s.weight", i, parts[k].name);
            add(m, name, parts[k].rows, parts[k].cols, parts[k].gain);
        }
    }
    add(m, "output_norm.weight", 1, dim, 0.0f);
    if (!s->tied)
        add(m, "output.weight", s->vocab, dim, 4.0f);
}

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Values [first, first + n) of a tensor, n a multiple of 4 or the tensor's end. */
static void values(const maker *m, const tensor *t, int64_t first, int64_t n, float *out)
{
    const uint64_t base = mix(m->seed * 1000003u + (uint64_t)(t - m->t));
    for (int64_t i = 0; i < n; i += 4) {
        const uint64_t r = mix(base + (uint64_t)(first + i));
        for (int k = 0; k < 4 && i + k < n; k++) {
            const float u = (float)(int16_t)(r >> (16 * k)) / 32768.0f;
            out[i + k] = t->scale != 0.0f ? u * t->scale : 1.0f + 0.1f * u;
        }
    }
}

static void store_q8_0(const float *x, int64_t n, char *out)
{
    for (int64_t i = 0; i < n; i += 32, out += 34) {
        float peak = 0.0f;
        for (int k = 0; k < 32; k++)
            peak = fmaxf(peak, fabsf(x[i + k]));
        const uint16_t d = hy_f32_to_f16(peak / 127.0f);
        const float df = hy_f16_to_f32(d);
        memcpy(out, &d, 2);
        for (int k = 0; k < 32; k++)
            out[2 + k] = (char)(int8_t)fminf(127.0f, rintf(df > 0.0f ? x[i + k] / df : 0.0f));
    }
}

static void store(const tensor *t, int64_t first, const float *x, int64_t n, char *base)
{
    char *out = base + hy_dtype_row_bytes(t->type, first);
    if (t->type == HY_F32) {
        memcpy(out, x, sizeof(float) * (size_t)n);
    } else if (t->type == HY_Q8_0) {
        store_q8_0(x, n, out);
    } else {
        for (int64_t i = 0; i < n; i++) {
            const uint16_t h = t->type == HY_BF16 ? hy_f32_to_bf16(x[i]) : hy_f32_to_f16(x[i]);
            memcpy(out + 2 * i, &h, 2);
        }
    }
}

/* Takes parts until none is left. */
static void *filler(void *arg)
{
    maker *m = arg;
    float *x = malloc(sizeof(float) * PART);
    while (x != NULL) {
        int64_t part = atomic_fetch_add(&m->next, 1);
        int32_t i = 0;
        for (; i < m->n; i++) {
            const int64_t parts = (m->t[i].rows * m->t[i].cols + PART - 1) / PART;
            if (part < parts)
                break;
            part -= parts;
        }
        if (i == m->n)
            break;
        const tensor *t = &m->t[i];
        const int64_t first = part * PART, left = t->rows * t->cols - first;
        const int64_t n = left < PART ? left : PART;
        values(m, t, first, n, x);
        store(t, first, x, n, m->data + m->data_at + t->at);
    }
    free(x);
    return NULL;
}

static void fill(maker *m, int32_t threads)
{
    pthread_t id[64];
    int32_t n = 0;
    while (n < threads - 1 && n < 64 && pthread_create(&id[n], NULL, filler, m) == 0)
        n++;
    filler(m);
    while (n > 0)
        pthread_join(id[--n], NULL);
}

/* ---- the command ---- */

/* What a script needs to judge speeds: bytes that a decode step reads of the weights, and the
 * parameters that a prompt's token meets (no vocabulary: logits are of one row). */
static void print_facts(const maker *m, const char *path, size_t len)
{
    size_t step = 0, body = 0;
    for (int32_t i = 0; i < m->n; i++) {
        const tensor *t = &m->t[i];
        const bool embed = strcmp(t->name, "token_embd.weight") == 0;
        step += embed && !m->s.tied ? 0 : t->bytes;
        body += embed || strcmp(t->name, "output.weight") == 0 ? 0 : (size_t)(t->rows * t->cols);
    }
    printf("{\"file\":\"%s\",\"shape\":\"%s\",\"type\":\"%s\",\"bytes\":%zu,\"step_bytes\":%zu,"
           "\"body_parameters\":%zu}\n",
           path, m->s.name, hy_dtype_name(m->type), len, step, body);
}

static hy_status write_file(maker *m, const char *path, int32_t threads)
{
    hy_buf head;
    hy_buf_init(&head);
    hy_buf_puts(&head, "GGUF");
    put(&head, 3, 4);
    put(&head, (uint64_t)m->n, 8);
    put(&head, m->n_kv, 8);
    hy_buf_add(&head, m->kv.data, m->kv.len);
    hy_buf_add(&head, m->info.data, m->info.len);
    while (head.len % 32 != 0)
        hy_buf_putc(&head, 0);
    m->data_at = head.len;
    const size_t len = m->data_at + m->total;
    const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    hy_status st = HY_OK;
    if (head.failed)
        st = hy_fail(HY_E_NOMEM, "out of memory");
    else if (fd < 0 || posix_fallocate(fd, 0, (off_t)len) != 0)
        st = hy_fail(HY_E_IO, "%s: %zu MB cannot be written there", path, len / 1000000);
    void *p = st == HY_OK ? mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (st == HY_OK && p == MAP_FAILED)
        st = hy_fail(HY_E_SYS, "%s: cannot be mapped", path);
    if (st == HY_OK) {
        m->data = p;
        memcpy(m->data, head.data, head.len);
        fill(m, threads);
        munmap(p, len);
        print_facts(m, path, len);
    }
    if (fd >= 0)
        close(fd);
    hy_buf_fini(&head);
    return st;
}

static int usage(void)
{
    fprintf(stderr, "Usage: halyard-mkmodel FILE.gguf [SHAPE [TYPE [SEED]]]\n\nSHAPE:");
    for (size_t i = 0; i < HY_COUNTOF(shapes); i++)
        fprintf(stderr, " %s", shapes[i].name);
    fprintf(stderr, " (tiny)\nTYPE: bf16 f16 f32 q8_0 (bf16)\n");
    return 2;
}

int main(int argc, char **argv)
{
    static maker m;
    const char *shape_name = argc > 2 ? argv[2] : "tiny", *type = argc > 3 ? argv[3] : "bf16";
    if (argc < 2 || argc > 5 || argv[1][0] == '-')
        return usage();
    for (size_t i = 0; i < HY_COUNTOF(shapes); i++)
        if (strcmp(shapes[i].name, shape_name) == 0)
            m.s = shapes[i];
    if (m.s.name == NULL || hy_dtype_parse(type, &m.type) < 0 ||
        (m.type != HY_BF16 && m.type != HY_F16 && m.type != HY_F32 && m.type != HY_Q8_0))
        return usage();
    m.seed = argc > 4 ? strtoull(argv[4], NULL, 10) : 1;
    hy_buf_init(&m.kv);
    hy_buf_init(&m.info);
    add_keys(&m);
    add_tensors(&m);
    const hy_status st = write_file(&m, argv[1], (int32_t)sysconf(_SC_NPROCESSORS_ONLN));
    if (st < 0)
        fprintf(stderr, "halyard-mkmodel: %s\n", hy_fail_text());
    hy_buf_fini(&m.kv);
    hy_buf_fini(&m.info);
    return st < 0 ? 1 : 0;
}
