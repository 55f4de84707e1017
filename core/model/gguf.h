/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF v2/v3 reader over a read-only mapping. Nothing in the file is trusted: every offset, count,
 * string, type and shape is checked in hy_gguf_open, so the getters cannot run outside the mapping.
 *
 * Thread: any after open (immutable).  Owner: the caller closes; all pointers are borrowed from it.
 * Source: the GGUF specification (ggml/docs/gguf.md).
 */
#ifndef HY_MODEL_GGUF_H
#define HY_MODEL_GGUF_H

#include "core/base/status.h"
#include "hal/dtype.h"

#include <stddef.h>
#include <stdint.h>

typedef enum hy_gguf_type {
    HY_GGUF_U8 = 0,
    HY_GGUF_I8,
    HY_GGUF_U16,
    HY_GGUF_I16,
    HY_GGUF_U32,
    HY_GGUF_I32,
    HY_GGUF_F32,
    HY_GGUF_BOOL,
    HY_GGUF_STR,
    HY_GGUF_ARR,
    HY_GGUF_U64,
    HY_GGUF_I64,
    HY_GGUF_F64,
} hy_gguf_type;

typedef struct hy_str { /* not NUL-terminated */
    const char *p;
    size_t len;
} hy_str;

typedef struct hy_gguf_tensor {
    hy_str name;
    hy_dtype type;
    int n_dims;       /* 1..4 */
    int64_t dims[4];  /* dims[0] is the contiguous one (columns, K); unused are 1 */
    const void *data; /* inside the mapping */
    size_t bytes;
} hy_gguf_tensor;

typedef struct hy_gguf hy_gguf;

/* Errors: HY_E_IO (cannot open or map), HY_E_FORMAT (names what is wrong and where),
 * HY_E_UNSUPPORTED (version, tensor type). */
hy_status hy_gguf_open(const char *path, hy_gguf **out);
/* Same checks on bytes in memory (tests, fuzzing); bytes must outlive the object. */
hy_status hy_gguf_open_mem(const void *bytes, size_t len, hy_gguf **out);
void hy_gguf_close(hy_gguf *g);

uint32_t hy_gguf_version(const hy_gguf *g);
size_t hy_gguf_file_bytes(const hy_gguf *g);
size_t hy_gguf_n_tensors(const hy_gguf *g);
const hy_gguf_tensor *hy_gguf_tensor_at(const hy_gguf *g, size_t i);
/* NULL when absent. */
const hy_gguf_tensor *hy_gguf_tensor_find(const hy_gguf *g, const char *name);

/* Metadata. The getters return HY_E_NOTFOUND when absent and HY_E_FORMAT when the type is another
 * kind (integers of any width convert when in range). */
size_t hy_gguf_n_keys(const hy_gguf *g);
hy_str hy_gguf_key_at(const hy_gguf *g, size_t i, hy_gguf_type *type_out);
hy_status hy_gguf_get_u64(const hy_gguf *g, const char *key, uint64_t *out);
hy_status hy_gguf_get_i64(const hy_gguf *g, const char *key, int64_t *out);
hy_status hy_gguf_get_f64(const hy_gguf *g, const char *key, double *out);
hy_status hy_gguf_get_bool(const hy_gguf *g, const char *key, bool *out);
hy_status hy_gguf_get_str(const hy_gguf *g, const char *key, hy_str *out);
/* Array: element type and count. Elements by index (strings are indexed at open: O(1)). */
hy_status hy_gguf_arr(const hy_gguf *g, const char *key, hy_gguf_type *elem_out, size_t *n_out);
hy_status hy_gguf_arr_str(const hy_gguf *g, const char *key, size_t i, hy_str *out);
hy_status hy_gguf_arr_f64(const hy_gguf *g, const char *key, size_t i, double *out);
hy_status hy_gguf_arr_i64(const hy_gguf *g, const char *key, size_t i, int64_t *out);

/* Tell the kernel that a tensor's file pages are no longer needed (after repacking). */
void hy_gguf_drop_pages(const hy_gguf *g, const hy_gguf_tensor *t);

#endif
