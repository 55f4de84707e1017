/* SPDX-License-Identifier: Apache-2.0
 *
 * Loading: shards and index, unaligned data, and files that are broken in one place each, which
 * must give one clear error that names the place.
 *
 * Thread: one.  Owner: each test; files live in a temporary folder that teardown removes.
 */
#include "core/base/buf.h"
#include "core/base/file.h"
#include "core/model/gguf.h"
#include "core/model/safetensors.h"
#include "tests/golden/lm.h"
#include "tests/golden/togguf.h"
#include "tests/unit/cm.h"

#include <string.h>
#include <unistd.h>

static char dir[64];

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "/tmp/hy-load-XXXXXX");
    return mkdtemp(dir) != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    static const char *const files[] = {
        "config.json",   "model.safetensors", "model.safetensors.index.json",
        "a.safetensors", "b.safetensors",     "x.gguf"};
    char path[128];
    (void)state;
    for (size_t i = 0; i < HY_COUNTOF(files); i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, files[i]);
        unlink(path);
    }
    return rmdir(dir);
}

static void read_tiny(const char *family, const char *file, hy_buf *out)
{
    char path[1024];
    hy_buf_init(out);
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/%s/%s", lm_source_dir(), family, file);
    assert_int_equal(hy_file_read(path, 64 << 20, out), HY_OK);
}

static void put(const char *file, const void *p, size_t n)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", dir, file);
    assert_int_equal(hy_file_write(path, p, n, 0644), HY_OK);
}

/* Replaces text of the same length, once. */
static void swap(hy_buf *b, const char *from, const char *to)
{
    assert_int_equal(strlen(from), strlen(to));
    char *p = memmem(b->data, b->len, from, strlen(from));
    assert_non_null(p);
    memcpy(p, to, strlen(to));
}

static void folder(const char *family, hy_buf *st)
{
    hy_buf cfg;
    read_tiny(family, "config.json", &cfg);
    put("config.json", cfg.data, cfg.len);
    hy_buf_fini(&cfg);
    put("model.safetensors", st->data, st->len);
}

static const lm_opts f32 = {.act = HY_ACT_F32, .kv = HY_F32};

static void refused(const char *path, hy_status want, const char *text)
{
    lm l;
    hy_status st = lm_open(path, &f32, &l);
    if (st != want || strstr(hy_fail_text(), text) == NULL)
        fail_msg("%s \"%s\", wanted %s with \"%s\"", hy_status_name(st), hy_fail_text(),
                 hy_status_name(want), text);
}

static void broken(const char *from, const char *to, hy_status want, const char *text)
{
    hy_buf st;
    read_tiny("qwen2", "model.safetensors", &st);
    swap(&st, from, to);
    folder("qwen2", &st);
    hy_buf_fini(&st);
    refused(dir, want, text);
}

static void test_broken_tensors(void **state)
{
    (void)state;
    broken("layers.1.mlp.up_proj", "layers.1.mlp.xx_proj", HY_E_FORMAT,
           "model.layers.1.mlp.up_proj.weight is missing");
    broken("layers.2.self_attn.k_proj.bias", "layers.2.self_attn.k_proj.bxxs", HY_E_FORMAT,
           "k_proj.bias is missing");
    broken("\"model.embed_tokens.weight\"", "\"model.embed_tokens.wxxxxx\"", HY_E_FORMAT,
           "embed_tokens.weight is missing");
    broken("\"shape\":[512,64]", "\"shape\":[64,512]", HY_E_FORMAT, "512 rows of 64");
    broken("\"shape\":[64,96]", "\"shape\":[96,64]", HY_E_FORMAT, "down_proj.weight has 96 rows");
    broken("\"shape\":[64,96]", "\"shape\":[64,95]", HY_E_FORMAT, "its shape and type");
    broken("\"dtype\":\"BF16\",\"shape\":[64,96]", "\"dtype\":\"XF16\",\"shape\":[64,96]",
           HY_E_UNSUPPORTED, "XF16");
    broken("\"dtype\":\"BF16\",\"shape\":[64]", "\"dtype\":\"I16\" ,\"shape\":[64]",
           HY_E_UNSUPPORTED, "I16");
    broken("\"data_offsets\":[0,", "\"data_offsets\":[9,", HY_E_FORMAT, "shape and type");
    broken("\"data_offsets\":[0,", "\"data_offsets\":[x,", HY_E_FORMAT, "header");
}

/* No byte may belong to two tensors; empty tensors have none, holes are let pass. */
static void test_places(void **state)
{
    (void)state;
    static const struct {
        const char *b, *c;
        size_t len;
        const char *words; /* NULL: fine */
    } cases[] = {
        {"[8,12]", "[12,12]", 12, NULL},  {"[8,12]", "[8,8]", 12, NULL},
        {"[8,12]", "[0,0]", 12, NULL},    {"[12,16]", "[8,8]", 20, NULL},
        {"[4,8]", "[8,8]", 8, "b"},       {"[0,4]", "[8,8]", 8, "bytes in common"},
        {"[7,11]", "[8,8]", 12, "a and"}, {"[8,12]", "[4,4]", 12, "tensors a and c"},
    };
    for (size_t i = 0; i < HY_COUNTOF(cases); i++) {
        char file[512] = {0};
        int n = snprintf(file + 8, sizeof(file) - 8,
                         "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":%s},"
                         "\"c\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":%s}}",
                         cases[i].b, cases[i].c);
        file[0] = (char)(n & 255);
        file[1] = (char)(n >> 8);
        hy_safetensors *st = NULL;
        hy_status got = hy_safetensors_open_mem(file, 8 + (size_t)n + cases[i].len, &st);
        if (got != (cases[i].words != NULL ? HY_E_FORMAT : HY_OK) ||
            (got < 0 && strstr(hy_fail_text(), cases[i].words) == NULL))
            fail_msg("case %zu: %s \"%s\"", i, hy_status_name(got), got < 0 ? hy_fail_text() : "");
        hy_safetensors_close(st);
    }
}

static void test_truncated_folder(void **state)
{
    (void)state;
    hy_buf st;
    read_tiny("qwen2", "model.safetensors", &st);
    size_t full = st.len;
    for (size_t n = 0; n < full; n += n < 64 ? 7 : 9973) {
        st.len = n;
        folder("qwen2", &st);
        lm l;
        hy_status s = lm_open(dir, &f32, &l);
        assert_true(s == HY_E_FORMAT);
    }
    hy_buf_fini(&st);
    char path[128];
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    unlink(path);
    refused(dir, HY_E_NOTFOUND, "model.safetensors");
    snprintf(path, sizeof(path), "%s/config.json", dir);
    unlink(path);
    refused(dir, HY_E_NOTFOUND, "config.json");
    refused("/nonexistent/model.gguf", HY_E_IO, "/nonexistent/model.gguf");
}

/* Every type number in place of a norm's: refused, or decoded as the other type; never worse. */
static void vector_types(hy_buf *b, const char *path)
{
    static const char name[] = "blk.1.attn_norm.weight";
    uint8_t *p = memmem(b->data, b->len, name, sizeof(name) - 1);
    assert_non_null(p);
    uint8_t *type = p + sizeof(name) - 1 + 4 + 8; /* after the number of dimensions and the one */
    assert_int_equal(*type, HY_F32);
    for (int t = 1; t < 256; t++) {
        *type = (uint8_t)t;
        put("x.gguf", b->data, b->len);
        lm l;
        if (lm_open(path, &f32, &l) >= 0)
            lm_close(&l);
        else /* the file is named once */
            assert_ptr_equal(strstr(hy_fail_text(), path), hy_fail_text() + strlen("model "));
    }
    *type = HY_I8;
    put("x.gguf", b->data, b->len);
    refused(path, HY_E_UNSUPPORTED, "blk.1.attn_norm.weight is a vector of type i8");
    *type = HY_F32;
}

static void test_truncated_gguf(void **state)
{
    (void)state;
    char src[1024], path[128];
    hy_buf b;
    hy_buf_init(&b);
    snprintf(src, sizeof(src), "%s/tests/golden/tiny/qwen2", lm_source_dir());
    snprintf(path, sizeof(path), "%s/x.gguf", dir);
    assert_int_equal(togguf(src, "qwen2", "bf16", path), HY_OK);
    assert_int_equal(hy_file_read(path, 64 << 20, &b), HY_OK);
    for (size_t n = 0; n < b.len; n += n < 3000 ? 101 : 9973) {
        put("x.gguf", b.data, n);
        lm l;
        assert_true(lm_open(path, &f32, &l) < 0);
    }
    swap(&b, "qwen2.block_count", "qwen2.block_coxnt");
    put("x.gguf", b.data, b.len);
    refused(path, HY_E_FORMAT, "qwen2.block_count");
    swap(&b, "qwen2.block_coxnt", "qwen2.block_count");
    swap(&b, "blk.1.ffn_up.weight", "blk.1.ffn_xx.weight");
    put("x.gguf", b.data, b.len);
    refused(path, HY_E_FORMAT, "blk.1.ffn_up.weight is missing");
    swap(&b, "blk.1.ffn_xx.weight", "blk.1.ffn_up.weight");
    vector_types(&b, path);
    hy_buf_fini(&b);
}

static void keep(void *arg, int32_t pos, const float *v)
{
    if (pos == 6)
        memcpy(arg, v, sizeof(float) * 512);
}

static void last_logits(float out[512], uint8_t fp[32])
{
    static const int32_t ids[7] = {3, 141, 59, 26, 5, 35, 8};
    lm l;
    hy_status st = lm_open(dir, &f32, &l);
    if (st < 0)
        print_error("%s\n", hy_fail_text());
    assert_int_equal(st, HY_OK);
    memcpy(fp, l.model->fingerprint, 32);
    assert_int_equal(lm_run(&l, 0, ids, 7, 7, 0, keep, out), HY_OK);
    lm_close(&l);
}

/* The header one byte longer, so that every tensor is at an odd address. */
static void test_unaligned(void **state)
{
    (void)state;
    hy_buf st, odd;
    float a[512], b[512];
    uint8_t fa[32], fb[32];
    read_tiny("llama", "model.safetensors", &st);
    folder("llama", &st);
    last_logits(a, fa);
    uint64_t n = 0;
    memcpy(&n, st.data, 8);
    n++;
    hy_buf_init(&odd);
    hy_buf_add(&odd, &n, 8);
    hy_buf_add(&odd, st.data + 8, (size_t)n - 1);
    hy_buf_putc(&odd, ' ');
    hy_buf_add(&odd, st.data + 8 + n - 1, st.len - 8 - (size_t)n + 1);
    put("model.safetensors", odd.data, odd.len);
    last_logits(b, fb);
    assert_memory_equal(a, b, sizeof(a));
    assert_memory_equal(fa, fb, 32);
    hy_buf_fini(&st);
    hy_buf_fini(&odd);
}

/* Part of a safetensors file: the tensors whose names have `mark`, or those that have not. */
static void cut_shard(const hy_buf *st, const char *mark, bool with, const char *file)
{
    uint64_t n = 0;
    memcpy(&n, st->data, 8);
    json_t *h = json_loadb(st->data + 8, (size_t)n, 0, NULL), *v, *part = json_object();
    const char *key;
    json_object_foreach(h, key, v)
    {
        if ((strstr(key, mark) != NULL) == with)
            json_object_set(part, key, v);
    }
    char *text = json_dumps(part, 0);
    hy_buf out;
    hy_buf_init(&out);
    n = strlen(text);
    hy_buf_add(&out, &n, 8);
    hy_buf_puts(&out, text);
    uint64_t data = 0;
    memcpy(&data, st->data, 8);
    hy_buf_add(&out, st->data + 8 + data, st->len - 8 - (size_t)data);
    put(file, out.data, out.len);
    hy_buf_fini(&out);
    free(text);
    json_decref(part);
    json_decref(h);
}

static void put_index(const hy_buf *st, const char *mark, const char *other)
{
    uint64_t n = 0;
    memcpy(&n, st->data, 8);
    json_t *h = json_loadb(st->data + 8, (size_t)n, 0, NULL), *v, *map = json_object();
    const char *key;
    json_object_foreach(h, key, v)
    {
        if (strcmp(key, "__metadata__") != 0)
            json_object_set_new(map, key,
                                json_string(strstr(key, mark) != NULL ? "a.safetensors" : other));
    }
    json_t *root = json_pack("{s:o}", "weight_map", map);
    char *text = json_dumps(root, 0);
    put("model.safetensors.index.json", text, strlen(text));
    free(text);
    json_decref(root);
    json_decref(h);
}

static void test_shards(void **state)
{
    (void)state;
    hy_buf st;
    float a[512], b[512];
    uint8_t fa[32], fb[32];
    char path[128];
    read_tiny("llama", "model.safetensors", &st);
    folder("llama", &st);
    last_logits(a, fa);
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    unlink(path);
    cut_shard(&st, "layers.1.", true, "a.safetensors");
    cut_shard(&st, "layers.1.", false, "b.safetensors");
    put_index(&st, "layers.1.", "b.safetensors");
    last_logits(b, fb);
    assert_memory_equal(a, b, sizeof(a));
    assert_memory_equal(fa, fb, 32);
    put_index(&st, "layers.", "b.safetensors"); /* names the wrong shard for none: still found */
    last_logits(b, fb);
    put_index(&st, "layers.1.", "../b.safetensors");
    refused(dir, HY_E_FORMAT, "same folder");
    put_index(&st, "layers.1.", "c.safetensors");
    refused(dir, HY_E_NOTFOUND, "c.safetensors");
    cut_shard(&st, "layers.1.mlp", true, "a.safetensors");
    put_index(&st, "layers.1.", "b.safetensors");
    refused(dir, HY_E_FORMAT, "which lacks it");
    cut_shard(&st, "layers.1.", true, "a.safetensors");
    cut_shard(&st, "no such", false, "b.safetensors"); /* all of them */
    refused(dir, HY_E_FORMAT, "two shards");
    hy_buf_fini(&st);
}

static void test_fingerprint(void **state)
{
    (void)state;
    hy_buf st;
    float a[512];
    uint8_t f1[32], f2[32];
    read_tiny("llama", "model.safetensors", &st);
    folder("llama", &st);
    last_logits(a, f1);
    st.data[st.len - 1] ^= 1; /* the last norm weight */
    folder("llama", &st);
    last_logits(a, f2);
    assert_memory_not_equal(f1, f2, 32);
    hy_buf_fini(&st);
}

/* One bit of a large tensor (128 KiB), wherever it is: another model. */
static void test_fingerprint_sees_every_byte(void **state)
{
    (void)state;
    char src[1024], path[128];
    uint8_t seen[41][32];
    hy_buf b;
    hy_gguf *g = NULL;
    hy_buf_init(&b);
    snprintf(src, sizeof(src), "%s/tests/golden/tiny/llama", lm_source_dir());
    snprintf(path, sizeof(path), "%s/x.gguf", dir);
    assert_int_equal(togguf(src, "llama", "f32", path), HY_OK);
    assert_int_equal(hy_file_read(path, 64 << 20, &b), HY_OK);
    assert_int_equal(hy_gguf_open(path, &g), HY_OK);
    const hy_gguf_tensor *t = NULL;
    for (size_t i = 0; i < hy_gguf_n_tensors(g); i++)
        if (hy_gguf_tensor_at(g, i)->name.len == strlen("token_embd.weight") &&
            memcmp(hy_gguf_tensor_at(g, i)->name.p, "token_embd.weight", 17) == 0)
            t = hy_gguf_tensor_at(g, i);
    assert_non_null(t);
    assert_int_equal(t->bytes, 512 * 64 * 4);
    char *data = memmem(b.data, b.len, t->data, t->bytes);
    const size_t bytes = t->bytes;
    hy_gguf_close(g);
    assert_non_null(data);
    for (size_t i = 0; i < HY_COUNTOF(seen); i++) {
        lm l;
        char *at = data + i * 7919 * 13 % bytes;
        *at ^= i > 0; /* the first is the file as it was */
        put("x.gguf", b.data, b.len);
        assert_int_equal(lm_open(path, &f32, &l), HY_OK);
        memcpy(seen[i], l.model->fingerprint, 32);
        lm_close(&l);
        *at ^= i > 0;
        for (size_t k = 0; k < i; k++)
            assert_memory_not_equal(seen[k], seen[i], 32);
    }
    hy_buf_fini(&b);
}

/* What `halyard inspect` says of a file: the same as loading, without reading weights. */
static void test_check(void **state)
{
    (void)state;
    static const char *const families[] = {"llama", "qwen2", "qwen3", "gemma3", "phi3"};
    char src[1024];
    hy_buf st;
    for (size_t i = 0; i < HY_COUNTOF(families); i++) {
        snprintf(src, sizeof(src), "%s/tests/golden/tiny/%s", lm_source_dir(), families[i]);
        assert_int_equal(hy_model_check(src), HY_OK);
    }
    read_tiny("qwen2", "model.safetensors", &st);
    swap(&st, "layers.1.mlp.up_proj", "layers.1.mlp.xx_proj");
    folder("qwen2", &st);
    assert_int_equal(hy_model_check(dir), HY_E_FORMAT);
    assert_non_null(strstr(hy_fail_text(), "model.layers.1.mlp.up_proj.weight is missing"));
    swap(&st, "layers.1.mlp.xx_proj", "layers.1.mlp.up_proj");
    swap(&st, "\"shape\":[64,96]", "\"shape\":[96,64]");
    folder("qwen2", &st);
    assert_int_equal(hy_model_check(dir), HY_E_FORMAT);
    assert_non_null(strstr(hy_fail_text(), "down_proj.weight has 96 rows"));
    hy_buf_fini(&st);
}

/* A name in a file that would move a terminal or forge a log line. */
static void test_hostile_names(void **state)
{
    (void)state;
    hy_buf st;
    lm l;
    read_tiny("qwen2", "model.safetensors", &st);
    /* in JSON: "\u001b[2Jm" and the like are names of the same length as what they replace */
    swap(&st, "\"model.layers.2.mlp.up_proj.weight\"", "\"\\u001b[2J\\n\\u0085yers.2.up.weight\"");
    folder("qwen2", &st);
    assert_true(lm_open(dir, &f32, &l) < 0);
    for (const char *p = hy_fail_text(); *p != '\0'; p++)
        assert_true((unsigned char)*p >= 0x20 && *p != 0x7f);
    swap(&st, "\"shape\":[64,96]", "\"shape\":[96,64]");
    folder("qwen2", &st);
    assert_true(lm_open(dir, &f32, &l) < 0);
    for (const char *p = hy_fail_text(); *p != '\0'; p++)
        assert_true((unsigned char)*p >= 0x20 && *p != 0x7f);
    hy_buf_fini(&st);
}

static void test_inspect(void **state)
{
    (void)state;
    char src[1024], path[128];
    hy_buf b;
    hy_buf_init(&b);
    snprintf(src, sizeof(src), "%s/tests/golden/tiny/gemma3", lm_source_dir());
    snprintf(path, sizeof(path), "%s/x.gguf", dir);
    assert_int_equal(togguf(src, "gemma3", "bf16", path), HY_OK);
    assert_int_equal(hy_model_inspect(path, true, &b), HY_OK);
    assert_non_null(strstr(hy_buf_str(&b), "gemma3 (GGUF)"));
    assert_non_null(strstr(hy_buf_str(&b), "window      16 tokens in 6 layers"));
    assert_non_null(strstr(hy_buf_str(&b), "blk.6.post_ffw_norm.weight"));
    assert_non_null(strstr(hy_buf_str(&b), "gemma3.attention.head_count_kv = 1"));
    hy_buf_clear(&b);
    assert_int_equal(hy_model_inspect(src, false, &b), HY_OK);
    assert_non_null(strstr(hy_buf_str(&b), "Hugging Face folder"));
    hy_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_broken_tensors, setup, teardown),
        cmocka_unit_test(test_places),
        cmocka_unit_test_setup_teardown(test_truncated_folder, setup, teardown),
        cmocka_unit_test_setup_teardown(test_truncated_gguf, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unaligned, setup, teardown),
        cmocka_unit_test_setup_teardown(test_shards, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fingerprint, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fingerprint_sees_every_byte, setup, teardown),
        cmocka_unit_test_setup_teardown(test_check, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hostile_names, setup, teardown),
        cmocka_unit_test_setup_teardown(test_inspect, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
