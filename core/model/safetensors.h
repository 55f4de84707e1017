/* SPDX-License-Identifier: Apache-2.0
 *
 * Safetensors reader: one file, or the shards named by model.safetensors.index.json, mapped
 * read-only. Nothing in the files is trusted: header length, JSON, types, shapes and offsets are
 * checked at open, so tensor data cannot lie outside its mapping.
 *
 * Thread: any after open.  Owner: the caller closes; all pointers are borrowed from it.
 * Source: the safetensors format (8-byte header length, JSON header, data).
 */
#ifndef HY_MODEL_SAFETENSORS_H
#define HY_MODEL_SAFETENSORS_H

#include "core/base/status.h"
#include "hal/dtype.h"

#include <stddef.h>
#include <stdint.h>

typedef struct hy_st_tensor {
    const char *name;
    char type_name[12]; /* as in the file: "BF16" */
    int type;           /* hy_dtype, or -1: a type that we cannot compute with */
    int n_dims;         /* 0..8 */
    int64_t dims[8];    /* outermost first, as the file has them */
    const void *data;   /* may be unaligned */
    size_t bytes;
} hy_st_tensor;

typedef struct hy_safetensors hy_safetensors;

/* dir holds model.safetensors, or an index and its shards. */
hy_status hy_safetensors_open_dir(const char *dir, hy_safetensors **out);
/* One file's bytes in memory (tests, fuzzing); they must outlive the object. */
hy_status hy_safetensors_open_mem(const void *bytes, size_t len, hy_safetensors **out);
void hy_safetensors_close(hy_safetensors *s);

size_t hy_safetensors_n(const hy_safetensors *s);
const hy_st_tensor *hy_safetensors_at(const hy_safetensors *s, size_t i);

#endif
