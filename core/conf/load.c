/* SPDX-License-Identifier: Apache-2.0
 *
 * INI files through inih. Release 55, as Debian packages it, cuts a line at 199 bytes, a section
 * name at 49, tells the handler no line number, skips sections without keys, and takes an
 * indented line for the continuation of the value above. So it does not read the file itself: a
 * reader of ours hands it one line at a time, counts them, and sees each line first:
 * - blanks at the start are cut, so that nothing is a continuation;
 * - a section head is checked here, with its line number, even if no key follows;
 * - of a line too long for inih only `name = ` is handed over, and the value is kept aside for the
 *   handler: long values work;
 * - what inih would cut or misread in silence is an error here.
 *
 * Thread: see conf.h.  Owner: the text belongs to the caller.
 */
#include "core/base/alloc.h"
#include "core/base/file.h"
#include "core/conf/conf_int.h"

#include <ini.h>
#include <string.h>

enum { FILE_MOST = 4 << 20, NAME_MOST = 49 }; /* inih keeps 49 bytes of a name */

typedef struct reader {
    hy_conf *conf;
    hy_conf__where where; /* the line that inih now works on */
    const char *p, *end;
    char section[NAME_MOST + 1];
    char *long_value; /* of the present line; NULL: inih has the value itself */
    hy_status st;     /* first failure; its text is recorded */
} reader;

static bool blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

static hy_status fail_line(const reader *r, const char *text)
{
    return hy_fail(HY_E_FORMAT, "%s:%d: %s", r->where.origin, r->where.line, text);
}

static void cut_blanks(const char **s, size_t *n)
{
    while (*n > 0 && blank(**s)) {
        ++*s;
        --*n;
    }
    while (*n > 0 && blank((*s)[*n - 1]))
        --*n;
}

/* Where a comment behind a value begins: a semicolon after a blank. n: none. */
static size_t comment_at(const char *s, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (s[i] == ';' && blank(s[i - 1]))
            return i;
    return n;
}

/* [name], perhaps a comment. Gives inih the head without blanks inside the brackets. */
static hy_status section_head(reader *r, const char *s, size_t n, char *out)
{
    const char *close = memchr(s, ']', n);
    if (close == NULL)
        return fail_line(r, "a section head without its ']'");
    const char *name = s + 1, *rest = close + 1;
    size_t len = (size_t)(close - name), rest_len = (size_t)(s + n - rest);
    cut_blanks(&name, &len);
    cut_blanks(&rest, &rest_len);
    if (rest_len > 0 && *rest != ';' && *rest != '#')
        return fail_line(r, "something stands behind a section head");
    if (len == 0 || len > NAME_MOST)
        return fail_line(r, len == 0 ? "a section without a name"
                                     : "a section name longer than 49 bytes");
    memcpy(r->section, name, len);
    r->section[len] = '\0';
    HY_TRY(hy_conf__check_section(r->conf, r->section, &r->where));
    out[0] = '[';
    memcpy(out + 1, name, len);
    memcpy(out + 1 + len, "]\n", 3);
    return HY_OK;
}

/* `name = value`: the whole line if inih can hold it, else the name alone. */
static hy_status pair(reader *r, const char *s, size_t n, char *out, size_t room)
{
    size_t sep = 0, code = comment_at(s, n);
    while (sep < code && s[sep] != '=' && s[sep] != ':')
        sep++;
    if (sep == code)
        return fail_line(r, "neither [section] nor key = value nor a comment");
    const char *name = s, *value = s + sep + 1;
    size_t name_len = sep, value_len = n - sep - 1;
    cut_blanks(&name, &name_len);
    if (name_len == 0 || name_len > NAME_MOST)
        return fail_line(r, name_len == 0 ? "a value without a key" : "a key longer than 49 bytes");
    if (r->section[0] == '\0')
        return fail_line(r, "a key before the first [section]");
    if (n + 2 <= room) {
        memcpy(out, s, n);
        memcpy(out + n, "\n", 2);
        return HY_OK;
    }
    value_len = comment_at(value, value_len);
    cut_blanks(&value, &value_len);
    r->long_value = hy_malloc(value_len + 1);
    if (r->long_value == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    memcpy(r->long_value, value, value_len);
    r->long_value[value_len] = '\0';
    memcpy(out, name, name_len);
    memcpy(out + name_len, "=\n", 3);
    return HY_OK;
}

static hy_status next_line(reader *r, char *out, size_t room)
{
    const char *s = r->p;
    const char *nl = memchr(s, '\n', (size_t)(r->end - s));
    size_t n = (size_t)((nl != NULL ? nl : r->end) - s);
    r->p = nl != NULL ? nl + 1 : r->end;
    r->where.line++;
    hy_free(r->long_value);
    r->long_value = NULL;
    if (memchr(s, '\0', n) != NULL)
        return fail_line(r, "a NUL byte: this is not a text file");
    cut_blanks(&s, &n);
    memcpy(out, "\n", 2);
    if (n == 0 || *s == ';' || *s == '#')
        return HY_OK;
    HY_ASSERT(room >= NAME_MOST + 4);
    return *s == '[' ? section_head(r, s, n, out) : pair(r, s, n, out, room);
}

static char *read_line(char *out, int room, void *arg)
{
    reader *r = arg;
    if (r->st < 0 || r->p == r->end)
        return NULL;
    r->st = next_line(r, out, (size_t)room);
    return r->st < 0 ? NULL : out;
}

static int on_pair(void *arg, const char *section, const char *name, const char *value)
{
    reader *r = arg;
    if (r->st < 0)
        return 0;
    if (r->long_value != NULL)
        value = r->long_value;
    r->st = hy_conf__assign(r->conf, section, name, value != NULL ? value : "", &r->where);
    return r->st >= 0;
}

/* Cluster files have [node.NAME] sections, nodes' files have none: the line of the first; 0: none.
 */
static int cluster_line(const hy_conf *c, const char *text, const char *end)
{
    if (hy_conf__has_section(c, "node.*"))
        return 0; /* it knows them */
    int line = 1;
    for (const char *s = text, *nl; s < end; s = nl + 1, line++) {
        nl = memchr(s, '\n', (size_t)(end - s));
        nl = nl != NULL ? nl : end;
        size_t n = (size_t)(nl - s);
        cut_blanks(&s, &n);
        if (n == 0 || *s != '[')
            continue;
        s++, n--;
        cut_blanks(&s, &n);
        if (n > 5 && memcmp(s, "node.", 5) == 0)
            return line;
    }
    return 0;
}

hy_status hy_conf_load_text(hy_conf *c, const char *name, const char *text, size_t len)
{
    reader r = {.conf = c, .where = {name, 0, hy_conf__next_unit(c)}, .p = text, .end = text + len};
    if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        r.p += 3; /* byte order mark */
    int rc = ini_parse_stream(read_line, &r, on_pair, &r);
    hy_free(r.long_value);
    const int line = r.st < 0 ? cluster_line(c, text, r.end) : 0;
    if (line > 0)
        return hy_fail(
            HY_E_INVAL,
            "%s:%d: [node.NAME] makes this a cluster file, not a node's: `halyard up %s` "
            "starts it, `halyard up --check %s` checks it",
            name, line, name, name);
    if (r.st < 0)
        return r.st;
    if (rc != 0)
        return hy_fail(HY_E_FORMAT, "%s:%d: not an INI line", name, rc > 0 ? rc : 0);
    return HY_OK;
}

hy_status hy_conf_load_file(hy_conf *c, const char *path)
{
    hy_buf b;
    hy_buf_init(&b);
    hy_status st = hy_file_read(path, FILE_MOST, &b);
    if (st == HY_OK)
        st = hy_conf_load_text(c, path, hy_buf_str(&b), b.len);
    hy_buf_fini(&b);
    return st;
}
