/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes small GGUF files in memory, right or wrong on purpose.
 *
 * Thread: any.  Owner: the caller frees the buffer.
 */
#ifndef HY_TESTS_GGUF_MAKE_H
#define HY_TESTS_GGUF_MAKE_H

#include "core/base/buf.h"
#include "core/model/gguf.h"

#include <string.h>

static inline void gm_u(hy_buf *b, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        hy_buf_putc(b, (char)(v >> (8 * i)));
}

static inline void gm_str(hy_buf *b, const char *s)
{
    gm_u(b, strlen(s), 8);
    hy_buf_puts(b, s);
}

static inline void gm_head(hy_buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_keys)
{
    hy_buf_puts(b, "GGUF");
    gm_u(b, version, 4);
    gm_u(b, n_tensors, 8);
    gm_u(b, n_keys, 8);
}

static inline void gm_key(hy_buf *b, const char *key, int type)
{
    gm_str(b, key);
    gm_u(b, (uint64_t)type, 4);
}

static inline void gm_key_str(hy_buf *b, const char *key, const char *v)
{
    gm_key(b, key, HY_GGUF_STR);
    gm_str(b, v);
}

static inline void gm_key_u32(hy_buf *b, const char *key, uint32_t v)
{
    gm_key(b, key, HY_GGUF_U32);
    gm_u(b, v, 4);
}

static inline void gm_key_bool(hy_buf *b, const char *key, bool v)
{
    gm_key(b, key, HY_GGUF_BOOL);
    gm_u(b, v, 1);
}

static inline void gm_key_strs(hy_buf *b, const char *key, const char *const *v, size_t n)
{
    gm_key(b, key, HY_GGUF_ARR);
    gm_u(b, HY_GGUF_STR, 4);
    gm_u(b, n, 8);
    for (size_t i = 0; i < n; i++)
        gm_str(b, v[i]);
}

static inline void gm_key_i32s(hy_buf *b, const char *key, const int32_t *v, size_t n)
{
    gm_key(b, key, HY_GGUF_ARR);
    gm_u(b, HY_GGUF_I32, 4);
    gm_u(b, n, 8);
    for (size_t i = 0; i < n; i++)
        gm_u(b, (uint32_t)v[i], 4);
}

static inline void gm_key_f32s(hy_buf *b, const char *key, const float *v, size_t n)
{
    gm_key(b, key, HY_GGUF_ARR);
    gm_u(b, HY_GGUF_F32, 4);
    gm_u(b, n, 8);
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &v[i], 4);
        gm_u(b, u, 4);
    }
}

static inline void gm_tensor(hy_buf *b, const char *name, int n_dims, const uint64_t *dims,
                             uint32_t type, uint64_t offset)
{
    gm_str(b, name);
    gm_u(b, (uint64_t)n_dims, 4);
    for (int i = 0; i < n_dims; i++)
        gm_u(b, dims[i], 8);
    gm_u(b, type, 4);
    gm_u(b, offset, 8);
}

/* Zeros up to a multiple of align. */
static inline void gm_pad(hy_buf *b, size_t align)
{
    while (b->len % align != 0)
        hy_buf_putc(b, 0);
}

#endif
