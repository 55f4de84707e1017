/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF reader: values of a right file, and one clear error for every kind of wrong one. Files are
 * copied to exactly sized memory, so that the address sanitizer sees any step over their end.
 *
 * Thread: one.  Owner: each test frees what it makes.
 */
#include "tests/unit/cm.h"
#include "tests/unit/gguf_make.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const uint64_t dims_a[] = {4, 2}, dims_b[] = {32, 3};

/* Two tensors (32 bytes of f32, 3 rows of q8_0) and one key of each kind. */
static void good_file(hy_buf *b)
{
    static const char *const words[] = {"one", "", "three"};
    static const int32_t ints[] = {7, -8};
    static const float floats[] = {0.5f, -2.0f};
    gm_head(b, 3, 2, 14);
    gm_key_str(b, "general.architecture", "llama");
    gm_key_u32(b, "a.u32", 4000000000u);
    gm_key(b, "a.u8", HY_GGUF_U8);
    gm_u(b, 200, 1);
    gm_key(b, "a.i8", HY_GGUF_I8);
    gm_u(b, (uint8_t)-3, 1);
    gm_key(b, "a.u16", HY_GGUF_U16);
    gm_u(b, 65000, 2);
    gm_key(b, "a.i16", HY_GGUF_I16);
    gm_u(b, (uint16_t)-300, 2);
    gm_key(b, "a.u64", HY_GGUF_U64);
    gm_u(b, UINT64_MAX, 8);
    gm_key(b, "a.i64", HY_GGUF_I64);
    gm_u(b, (uint64_t)INT64_MIN, 8);
    gm_key(b, "a.f32", HY_GGUF_F32);
    gm_u(b, 0x3fc00000u, 4); /* 1.5 */
    gm_key(b, "a.f64", HY_GGUF_F64);
    gm_u(b, 0xc004000000000000u, 8); /* -2.5 */
    gm_key_bool(b, "a.bool", true);
    gm_key_strs(b, "a.words", words, 3);
    gm_key_i32s(b, "a.ints", ints, 2);
    gm_key_f32s(b, "a.floats", floats, 2);
    gm_tensor(b, "a.weight", 2, dims_a, HY_F32, 0);
    gm_tensor(b, "b.weight", 2, dims_b, HY_Q8_0, 32);
    gm_pad(b, 32);
    for (int i = 0; i < 32 + 3 * 34; i++)
        hy_buf_putc(b, (char)i);
}

static hy_status open_copy(const void *p, size_t n, hy_gguf **g, char **copy)
{
    *copy = malloc(n != 0 ? n : 1);
    memcpy(*copy, p, n);
    return hy_gguf_open_mem(*copy, n, g);
}

static void test_values(void **state)
{
    (void)state;
    hy_buf b;
    hy_gguf *g = NULL;
    char *copy = NULL;
    uint64_t u = 0;
    int64_t i = 0;
    double d = 0;
    bool t = false;
    hy_str s;
    size_t n = 0;
    hy_gguf_type elem = HY_GGUF_U8;
    hy_buf_init(&b);
    good_file(&b);
    assert_int_equal(open_copy(b.data, b.len, &g, &copy), HY_OK);
    assert_int_equal(hy_gguf_version(g), 3);
    assert_int_equal(hy_gguf_n_keys(g), 14);
    assert_int_equal(hy_gguf_n_tensors(g), 2);
    assert_int_equal(hy_gguf_get_u64(g, "a.u32", &u), HY_OK);
    assert_int_equal(u, 4000000000u);
    assert_int_equal(hy_gguf_get_u64(g, "a.u64", &u), HY_OK);
    assert_true(u == UINT64_MAX);
    assert_int_equal(hy_gguf_get_i64(g, "a.u64", &i), HY_E_FORMAT);
    assert_int_equal(hy_gguf_get_i64(g, "a.i8", &i), HY_OK);
    assert_int_equal(i, -3);
    assert_int_equal(hy_gguf_get_u64(g, "a.i8", &u), HY_E_FORMAT);
    assert_int_equal(hy_gguf_get_i64(g, "a.i16", &i), HY_OK);
    assert_int_equal(i, -300);
    assert_int_equal(hy_gguf_get_i64(g, "a.u8", &i), HY_OK);
    assert_int_equal(i, 200);
    assert_int_equal(hy_gguf_get_i64(g, "a.i64", &i), HY_OK);
    assert_true(i == INT64_MIN);
    assert_int_equal(hy_gguf_get_f64(g, "a.f32", &d), HY_OK);
    assert_true(d == 1.5);
    assert_int_equal(hy_gguf_get_f64(g, "a.f64", &d), HY_OK);
    assert_true(d == -2.5);
    assert_int_equal(hy_gguf_get_f64(g, "a.u16", &d), HY_OK);
    assert_true(d == 65000);
    assert_int_equal(hy_gguf_get_bool(g, "a.bool", &t), HY_OK);
    assert_true(t);
    assert_int_equal(hy_gguf_get_bool(g, "a.u8", &t), HY_E_FORMAT);
    assert_int_equal(hy_gguf_get_u64(g, "a.bool", &u), HY_E_FORMAT);
    assert_int_equal(hy_gguf_get_u64(g, "absent", &u), HY_E_NOTFOUND);
    assert_int_equal(hy_gguf_get_str(g, "general.architecture", &s), HY_OK);
    assert_int_equal(s.len, 5);
    assert_memory_equal(s.p, "llama", 5);
    assert_int_equal(hy_gguf_arr(g, "a.words", &elem, &n), HY_OK);
    assert_int_equal(elem, HY_GGUF_STR);
    assert_int_equal(n, 3);
    assert_int_equal(hy_gguf_arr_str(g, "a.words", 2, &s), HY_OK);
    assert_memory_equal(s.p, "three", 5);
    assert_int_equal(hy_gguf_arr_str(g, "a.words", 3, &s), HY_E_FORMAT);
    assert_int_equal(hy_gguf_arr_i64(g, "a.words", 0, &i), HY_E_FORMAT);
    assert_int_equal(hy_gguf_arr_i64(g, "a.ints", 1, &i), HY_OK);
    assert_int_equal(i, -8);
    assert_int_equal(hy_gguf_arr_f64(g, "a.floats", 1, &d), HY_OK);
    assert_true(d == -2.0);
    hy_gguf_close(g);
    free(copy);
    hy_buf_fini(&b);
}

static void test_tensors(void **state)
{
    (void)state;
    hy_buf b;
    hy_gguf *g = NULL;
    char *copy = NULL;
    hy_buf_init(&b);
    good_file(&b);
    assert_int_equal(open_copy(b.data, b.len, &g, &copy), HY_OK);
    const hy_gguf_tensor *t = hy_gguf_tensor_find(g, "b.weight");
    assert_non_null(t);
    assert_ptr_equal(t, hy_gguf_tensor_at(g, 1));
    assert_null(hy_gguf_tensor_at(g, 2));
    assert_null(hy_gguf_tensor_find(g, "b.weigh"));
    assert_int_equal(t->type, HY_Q8_0);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[0], 32);
    assert_int_equal(t->dims[1], 3);
    assert_int_equal(t->dims[2], 1);
    assert_int_equal(t->bytes, 3 * 34);
    assert_int_equal(((const unsigned char *)t->data)[0], 32);
    assert_ptr_equal((const char *)t->data + t->bytes, copy + b.len);
    hy_gguf_close(g);
    free(copy);
    hy_buf_fini(&b);
}

/* Everything that the getters can reach. */
static unsigned touch(const hy_gguf *g)
{
    unsigned sum = 0;
    for (size_t i = 0; i < hy_gguf_n_keys(g); i++) {
        hy_gguf_type type, elem;
        hy_str k = hy_gguf_key_at(g, i, &type), s;
        char key[65536 + 1];
        size_t n = 0;
        uint64_t u = 0;
        int64_t v = 0;
        double d = 0;
        bool t = false;
        memcpy(key, k.p, k.len);
        key[k.len] = '\0';
        hy_gguf_get_u64(g, key, &u);
        hy_gguf_get_i64(g, key, &v);
        hy_gguf_get_f64(g, key, &d);
        hy_gguf_get_bool(g, key, &t);
        if (hy_gguf_get_str(g, key, &s) == HY_OK)
            for (size_t j = 0; j < s.len; j++)
                sum += (unsigned char)s.p[j];
        if (hy_gguf_arr(g, key, &elem, &n) == HY_OK) {
            for (size_t j = 0; j < n; j++) {
                hy_gguf_arr_i64(g, key, j, &v);
                hy_gguf_arr_f64(g, key, j, &d);
                if (hy_gguf_arr_str(g, key, j, &s) == HY_OK && s.len > 0)
                    sum += (unsigned char)s.p[s.len - 1];
            }
        }
        sum += (unsigned)u + (unsigned)v;
    }
    for (size_t i = 0; i < hy_gguf_n_tensors(g); i++) {
        const hy_gguf_tensor *t = hy_gguf_tensor_at(g, i);
        for (size_t j = 0; j < t->bytes; j++)
            sum += ((const unsigned char *)t->data)[j];
    }
    return sum;
}

static void test_truncated_everywhere(void **state)
{
    (void)state;
    hy_buf b;
    hy_buf_init(&b);
    good_file(&b);
    for (size_t n = 0; n < b.len; n++) {
        hy_gguf *g = NULL;
        char *copy = NULL;
        assert_int_equal(open_copy(b.data, n, &g, &copy), HY_E_FORMAT);
        assert_true(strlen(hy_fail_text()) > 10);
        assert_null(g);
        free(copy);
    }
    hy_buf_fini(&b);
}

static void test_edited_everywhere(void **state)
{
    (void)state;
    static const unsigned char edits[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
    hy_buf b;
    unsigned opened = 0;
    hy_buf_init(&b);
    good_file(&b);
    for (size_t n = 0; n < b.len; n++) {
        for (size_t e = 0; e < sizeof(edits); e++) {
            hy_gguf *g = NULL;
            char *copy = NULL, old = b.data[n];
            b.data[n] = (char)edits[e];
            hy_status st = open_copy(b.data, b.len, &g, &copy);
            b.data[n] = old;
            assert_true(st == HY_OK || st == HY_E_FORMAT || st == HY_E_UNSUPPORTED);
            if (st == HY_OK) {
                opened++;
                touch(g);
                hy_gguf_close(g);
            }
            free(copy);
        }
    }
    assert_true(opened > 100); /* edits of values and data */
    hy_buf_fini(&b);
}

static void expect(hy_buf *b, hy_status want, const char *words)
{
    hy_gguf *g = NULL;
    char *copy = NULL;
    assert_int_equal(open_copy(b->data, b->len, &g, &copy), want);
    if (words != NULL && strstr(hy_fail_text(), words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", hy_fail_text(), words);
    free(copy);
    hy_buf_clear(b);
}

static void test_bad_headers(void **state)
{
    (void)state;
    hy_buf b;
    hy_buf_init(&b);
    hy_buf_puts(&b, "GGML\3\0\0\0 and more than enough bytes");
    expect(&b, HY_E_FORMAT, "does not begin with");
    gm_head(&b, 1, 0, 0);
    expect(&b, HY_E_UNSUPPORTED, "version 1");
    gm_head(&b, 0x03000000u, 0, 0);
    expect(&b, HY_E_UNSUPPORTED, "big-endian");
    gm_head(&b, 3, UINT64_MAX, 0);
    expect(&b, HY_E_FORMAT, "truncated");
    gm_head(&b, 3, 0, UINT64_MAX / 8);
    expect(&b, HY_E_FORMAT, "truncated");
    gm_head(&b, 2, 0, 0); /* nothing in it is fine */
    hy_gguf *g = NULL;
    assert_int_equal(hy_gguf_open_mem(b.data, b.len, &g), HY_OK);
    hy_gguf_close(g);
    hy_buf_fini(&b);
}

static void test_bad_keys(void **state)
{
    (void)state;
    hy_buf b;
    hy_buf_init(&b);
    gm_head(&b, 3, 0, 1);
    gm_u(&b, UINT64_MAX, 8); /* length of the key */
    hy_buf_puts(&b, "and some bytes");
    expect(&b, HY_E_FORMAT, "length");
    gm_head(&b, 3, 0, 1);
    gm_key(&b, "", HY_GGUF_U32);
    gm_u(&b, 1, 4);
    expect(&b, HY_E_FORMAT, "empty key");
    gm_head(&b, 3, 0, 2);
    gm_key_u32(&b, "twice", 1);
    gm_key_u32(&b, "twice", 1);
    expect(&b, HY_E_FORMAT, "\"twice\" is there twice");
    gm_head(&b, 3, 0, 1);
    gm_key(&b, "k", 13);
    gm_u(&b, 0, 8);
    expect(&b, HY_E_FORMAT, "unknown type 13");
    gm_head(&b, 3, 0, 1);
    gm_key(&b, "k", HY_GGUF_BOOL);
    gm_u(&b, 2, 1);
    expect(&b, HY_E_FORMAT, "boolean");
    gm_head(&b, 3, 0, 1);
    gm_key(&b, "k", HY_GGUF_ARR);
    gm_u(&b, HY_GGUF_ARR, 4);
    gm_u(&b, 1, 8);
    expect(&b, HY_E_UNSUPPORTED, "array of arrays");
    gm_head(&b, 3, 0, 1);
    gm_key(&b, "k", HY_GGUF_ARR);
    gm_u(&b, HY_GGUF_U64, 4);
    gm_u(&b, UINT64_MAX / 8 + 2, 8); /* times 8 wraps to 8 */
    gm_u(&b, 0, 8);
    expect(&b, HY_E_FORMAT, "elements");
    gm_head(&b, 3, 0, 1);
    gm_key(&b, "k\x1b[2J", HY_GGUF_STR + 20); /* no escape reaches a terminal */
    gm_u(&b, 0, 8);
    expect(&b, HY_E_FORMAT, "k?[2J");
    hy_buf_fini(&b);
}

static void one_tensor(hy_buf *b, int n_dims, const uint64_t *dims, uint32_t type, uint64_t offset,
                       size_t data)
{
    gm_head(b, 3, 1, 0);
    gm_tensor(b, "t", n_dims, dims, type, offset);
    gm_pad(b, 32);
    for (size_t i = 0; i < data; i++)
        hy_buf_putc(b, 0);
}

static void test_bad_tensors(void **state)
{
    (void)state;
    static const uint64_t d1[] = {8}, d0[] = {8, 0}, d5[] = {1, 1, 1, 1, 1}, odd[] = {33},
                          huge[] = {1u << 31, 1u << 31, 4}, wrap[] = {4, (uint64_t)1 << 62, 4, 4},
                          neg[] = {UINT64_MAX};
    hy_buf b;
    hy_buf_init(&b);
    one_tensor(&b, 1, d1, HY_F32, 0, 32);
    hy_gguf *g = NULL;
    assert_int_equal(hy_gguf_open_mem(b.data, b.len, &g), HY_OK);
    hy_gguf_close(g);
    hy_buf_clear(&b);
    one_tensor(&b, 0, d1, HY_F32, 0, 32);
    expect(&b, HY_E_FORMAT, "0 dimensions");
    one_tensor(&b, 5, d5, HY_F32, 0, 32);
    expect(&b, HY_E_FORMAT, "5 dimensions");
    one_tensor(&b, 2, d0, HY_F32, 0, 32);
    expect(&b, HY_E_FORMAT, "dimension 1 is 0");
    one_tensor(&b, 1, neg, HY_F32, 0, 32);
    expect(&b, HY_E_FORMAT, "dimension 0");
    one_tensor(&b, 3, huge, HY_F32, 0, 32);
    expect(&b, HY_E_FORMAT, "impossible dimensions");
    one_tensor(&b, 4, wrap, HY_F32, 0, 32);
    expect(&b, HY_E_FORMAT, "impossible dimensions");
    one_tensor(&b, 1, odd, HY_Q4_0, 0, 64);
    expect(&b, HY_E_FORMAT, "whole blocks of 32");
    one_tensor(&b, 1, d1, 4, 0, 32); /* a type that was removed from the format */
    expect(&b, HY_E_UNSUPPORTED, "element type 4");
    one_tensor(&b, 1, d1, HY_F8_E4M3, 0, 32); /* one of ours that no file may hold */
    expect(&b, HY_E_UNSUPPORTED, "element type 64");
    one_tensor(&b, 1, d1, HY_F32, 8, 64);
    expect(&b, HY_E_FORMAT, "not aligned");
    one_tensor(&b, 1, d1, HY_F32, 32, 32);
    expect(&b, HY_E_FORMAT, "truncated");
    one_tensor(&b, 1, d1, HY_F32, UINT64_MAX - 31, 32);
    expect(&b, HY_E_FORMAT, "after the end");
    gm_head(&b, 3, 2, 0);
    gm_tensor(&b, "x", 1, d1, HY_F32, 0);
    gm_tensor(&b, "x", 1, d1, HY_F32, 32);
    expect(&b, HY_E_FORMAT, "there twice");
    gm_head(&b, 3, 2, 0);
    gm_tensor(&b, "x", 2, dims_b, HY_F32, 0);
    gm_tensor(&b, "y", 1, d1, HY_F32, 32);
    gm_pad(&b, 32);
    while (b.len < 1024)
        hy_buf_putc(&b, 0);
    expect(&b, HY_E_FORMAT, "overlap");
    hy_buf_fini(&b);
}

static void test_alignment(void **state)
{
    (void)state;
    static const uint64_t d1[] = {8};
    static const uint32_t bad[] = {0, 3, 48, 1u << 30};
    hy_buf b;
    hy_buf_init(&b);
    for (size_t i = 0; i < HY_COUNTOF(bad); i++) {
        gm_head(&b, 3, 0, 1);
        gm_key_u32(&b, "general.alignment", bad[i]);
        expect(&b, HY_E_FORMAT, "general.alignment");
    }
    gm_head(&b, 3, 0, 1);
    gm_key_str(&b, "general.alignment", "32");
    expect(&b, HY_E_FORMAT, "general.alignment");
    gm_head(&b, 3, 1, 1); /* data begins at the next multiple of 256 */
    gm_key_u32(&b, "general.alignment", 256);
    gm_tensor(&b, "t", 1, d1, HY_F32, 256);
    gm_pad(&b, 256);
    size_t start = b.len;
    for (int i = 0; i < 256 + 32; i++)
        hy_buf_putc(&b, i < 256 ? 0 : 9);
    hy_gguf *g = NULL;
    assert_int_equal(hy_gguf_open_mem(b.data, b.len, &g), HY_OK);
    assert_ptr_equal(hy_gguf_tensor_at(g, 0)->data, b.data + start + 256);
    hy_gguf_close(g);
    hy_buf_fini(&b);
}

static void test_files(void **state)
{
    (void)state;
    char path[] = "/tmp/hy-gguf-XXXXXX";
    hy_gguf *g = NULL;
    hy_buf b;
    assert_int_equal(hy_gguf_open("/nonexistent/file.gguf", &g), HY_E_IO);
    assert_int_equal(hy_gguf_open("/tmp", &g), HY_E_IO);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(hy_gguf_open(path, &g), HY_E_FORMAT); /* empty */
    hy_buf_init(&b);
    good_file(&b);
    assert_int_equal(write(fd, b.data, b.len), (ssize_t)b.len);
    close(fd);
    assert_int_equal(hy_gguf_open(path, &g), HY_OK);
    assert_int_equal(hy_gguf_file_bytes(g), b.len);
    hy_gguf_drop_pages(g, hy_gguf_tensor_at(g, 0));
    touch(g);
    hy_gguf_close(g);
    hy_gguf_close(NULL);
    unlink(path);
    hy_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_truncated_everywhere),
        cmocka_unit_test(test_edited_everywhere),
        cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_bad_keys),
        cmocka_unit_test(test_bad_tensors),
        cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
