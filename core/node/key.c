/* SPDX-License-Identifier: Apache-2.0
 *
 * The keys that clients must show.
 *
 * Thread: main.  Owner: the caller frees.
 */
#include "core/base/file.h"
#include "core/node/node_int.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Keys, one a line: api_key, or what api_key_file holds. */
hy_status hy_node__read_key(const hy_conf *c, char **out)
{
    const char *file = hy_conf_str(c, "http", "api_key_file");
    if (*file == '\0') {
        *out = strdup(hy_conf_str(c, "http", "api_key"));
        return *out != NULL ? HY_OK : hy_fail(HY_E_NOMEM, "out of memory");
    }
    struct stat info;
    hy_buf b;
    hy_buf_init(&b);
    hy_status st = hy_file_read(file, 65536, &b);
    if (st < 0)
        hy_fail_in(st, "[http] api_key_file: ");
    else if (stat(file, &info) == 0 && (info.st_mode & 077) != 0)
        st = hy_fail(HY_E_DENIED,
                     "[http] api_key_file: %s may be read by others (mode %04o): chmod 600", file,
                     (unsigned)info.st_mode & 07777);
    else if (b.data == NULL || strspn(hy_buf_str(&b), " \t\r\n") == b.len)
        st = hy_fail(HY_E_INVAL, "[http] api_key_file: %s holds no key", file);
    else
        *out = hy_buf_take(&b);
    hy_buf_fini(&b);
    return st;
}
