/* SPDX-License-Identifier: Apache-2.0
 *
 * A tokeniser from a model path.
 *
 * Thread: any.  Owner: the caller.
 */
#include "core/text/load.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

hy_status hy_tok_load(const char *path, hy_tok **out)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return hy_fail(HY_E_IO, "%s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return hy_tok_from_folder(path, out);
    hy_gguf *g;
    HY_TRY(hy_gguf_open(path, &g));
    hy_status rc = hy_tok_from_gguf(g, out);
    hy_gguf_close(g);
    return rc;
}
