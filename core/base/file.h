/* SPDX-License-Identifier: Apache-2.0
 *
 * Files: read whole, map, make folders, replace atomically. Every failure names the path and the
 * system's reason.
 *
 * Thread: any.  Owner: the caller unmaps and frees.
 */
#ifndef HY_BASE_FILE_H
#define HY_BASE_FILE_H

#include "core/base/buf.h"

/* Appends the file to out. HY_E_LIMIT above `limit` bytes; HY_E_NOTFOUND; HY_E_INVAL for a
 * folder. */
hy_status hy_file_read(const char *path, size_t limit, hy_buf *out);

typedef struct hy_map {
    const uint8_t *data; /* NULL for an empty file */
    size_t len;
} hy_map;

/* Read-only shared mapping. The file must be a regular one. */
hy_status hy_file_map(const char *path, hy_map *out);
void hy_file_unmap(hy_map *m); /* a zeroed map is fine */

bool hy_file_exists(const char *path);
bool hy_file_is_dir(const char *path);
/* Makes the folder and its parents (mkdir -p). */
hy_status hy_file_mkdirs(const char *path, unsigned mode);
/* Writes a temporary file beside, syncs, renames: readers see the old or the new whole. */
hy_status hy_file_write(const char *path, const void *data, size_t len, unsigned mode);

#endif
