/* SPDX-License-Identifier: Apache-2.0
 *
 * HTTP/1.1 messages on evbuffers.
 *
 * Thread: see wire.h.  Owner: see wire.h.
 */
#include "core/http/wire.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_LINE = 4096 }; /* of a chunk head or a trailer */

static bool is_token_char(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static bool is_token(const char *s)
{
    if (*s == '\0')
        return false;
    for (; *s != '\0'; s++)
        if (!is_token_char((unsigned char)*s))
            return false;
    return true;
}

static bool is_value(const char *s)
{
    for (; *s != '\0'; s++) {
        unsigned char c = (unsigned char)*s;
        if ((c < 0x20 && c != '\t') || c == 0x7f)
            return false;
    }
    return true;
}

static hy_status bad(const char *what)
{
    return hy_fail(HY_E_FORMAT, "not HTTP/1.1: %s", what);
}

/* The whole head with its empty line, as a string of ours; empty lines before it are skipped. */
static hy_status cut_head(struct evbuffer *in, size_t limit, size_t *scanned, char **out,
                          size_t *len_out)
{
    char two[2];
    while (*scanned == 0 && evbuffer_copyout(in, two, 2) == 2 && memcmp(two, "\r\n", 2) == 0)
        evbuffer_drain(in, 2);
    size_t len = evbuffer_get_length(in);
    struct evbuffer_ptr from, at;
    if (evbuffer_ptr_set(in, &from, *scanned, EVBUFFER_PTR_SET) != 0)
        return HY_AGAIN;
    at = evbuffer_search(in, "\r\n\r\n", 4, &from);
    if (at.pos < 0) {
        if (len > limit)
            return hy_fail(HY_E_LIMIT, "the head of a message is longer than %zu bytes", limit);
        *scanned = len > 3 ? len - 3 : 0;
        return HY_AGAIN;
    }
    size_t n = (size_t)at.pos + 4;
    if (n > limit)
        return hy_fail(HY_E_LIMIT, "the head of a message is longer than %zu bytes", limit);
    char *text = malloc(n + 1);
    if (text == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory for a message head");
    evbuffer_remove(in, text, n);
    text[n] = '\0';
    *scanned = 0;
    if (memchr(text, '\0', n) != NULL) {
        free(text);
        return bad("a NUL byte in the head");
    }
    *out = text;
    *len_out = n;
    return HY_OK;
}

/* The line at p, ended with NUL; p moves behind it. NULL: a stray CR or LF. */
static char *next_line(char **p)
{
    char *line = *p, *end = strstr(line, "\r\n");
    *end = '\0';
    *p = end + 2;
    return strpbrk(line, "\r\n") == NULL ? line : NULL;
}

static hy_status take_headers(hy_wire_head *h, char *p)
{
    for (;;) {
        char *line = next_line(&p);
        if (line == NULL)
            return bad("a bare CR or LF in the head");
        if (*line == '\0')
            return HY_OK;
        char *colon = strchr(line, ':');
        if (colon == NULL)
            return bad("a header without a colon");
        *colon = '\0';
        char *value = colon + 1 + strspn(colon + 1, " \t");
        for (size_t n = strlen(value); n > 0 && (value[n - 1] == ' ' || value[n - 1] == '\t'); n--)
            value[n - 1] = '\0';
        if (!is_token(line) || !is_value(value))
            return bad("a header with forbidden characters");
        if (h->n_headers == HY_WIRE_MAX_HEADERS)
            return hy_fail(HY_E_LIMIT, "more than %d headers", HY_WIRE_MAX_HEADERS);
        h->headers[h->n_headers].name = line;
        h->headers[h->n_headers++].value = value;
    }
}

const char *hy_wire_find(const hy_wire_head *h, const char *name)
{
    for (size_t i = 0; i < h->n_headers; i++)
        if (strcasecmp(h->headers[i].name, name) == 0)
            return h->headers[i].value;
    return NULL;
}

static size_t count(const hy_wire_head *h, const char *name)
{
    size_t n = 0;
    for (size_t i = 0; i < h->n_headers; i++)
        n += strcasecmp(h->headers[i].name, name) == 0;
    return n;
}

/* Is `word` one of the comma-separated items of any header of that name? */
static bool has_item(const hy_wire_head *h, const char *name, const char *word)
{
    size_t len = strlen(word);
    for (size_t i = 0; i < h->n_headers; i++) {
        if (strcasecmp(h->headers[i].name, name) != 0)
            continue;
        for (const char *s = h->headers[i].value; *s != '\0';) {
            s += strspn(s, ", \t");
            size_t n = strcspn(s, ", \t");
            if (n == len && strncasecmp(s, word, n) == 0)
                return true;
            s += n;
        }
    }
    return false;
}

static hy_status parse_length(const char *s, uint64_t *out)
{
    uint64_t v = 0;
    if (*s == '\0')
        return bad("an empty Content-Length");
    for (; *s != '\0'; s++) {
        if (*s < '0' || *s > '9' || v > (UINT64_C(1) << 59))
            return bad("a Content-Length that is no number");
        v = v * 10 + (uint64_t)(*s - '0');
    }
    *out = v;
    return HY_OK;
}

static hy_status find_framing(hy_wire_head *h, hy_wire_framing without)
{
    const char *te = hy_wire_find(h, "Transfer-Encoding");
    const char *len = hy_wire_find(h, "Content-Length");
    h->keep_alive = h->minor >= 1 ? !has_item(h, "Connection", "close")
                                  : has_item(h, "Connection", "keep-alive");
    h->framing = without;
    if (te != NULL) {
        if (strcasecmp(te, "chunked") != 0 || count(h, "Transfer-Encoding") != 1)
            return bad("a Transfer-Encoding other than chunked");
        if (len != NULL || h->minor == 0)
            return bad("Transfer-Encoding beside Content-Length or in HTTP/1.0");
        h->framing = HY_WIRE_CHUNKED;
    } else if (len != NULL) {
        if (count(h, "Content-Length") != 1)
            return bad("more than one Content-Length");
        HY_TRY(parse_length(len, &h->length));
        h->framing = h->length != 0 ? HY_WIRE_LENGTH : HY_WIRE_EMPTY;
    }
    return HY_OK;
}

static bool parse_version(const char *s, int *minor)
{
    if (strncmp(s, "HTTP/1.", 7) != 0 || s[7] < '0' || s[7] > '9' || s[8] != '\0')
        return false;
    *minor = s[7] - '0';
    return true;
}

static hy_status parse_request(hy_wire_head *h)
{
    char *p = h->text, *line = next_line(&p);
    char *a = line != NULL ? strchr(line, ' ') : NULL;
    char *b = a != NULL ? strchr(a + 1, ' ') : NULL;
    if (b == NULL)
        return bad("a request line needs method, path and version");
    *a = *b = '\0';
    h->method = line;
    h->target = a + 1;
    if (!is_token(h->method) || !is_value(h->target) || *h->target == '\0' ||
        !parse_version(b + 1, &h->minor))
        return bad("a request line needs method, path and version");
    HY_TRY(take_headers(h, p));
    HY_TRY(find_framing(h, HY_WIRE_EMPTY));
    h->expect_continue = h->minor >= 1 && has_item(h, "Expect", "100-continue");
    return HY_OK;
}

static hy_status parse_response(hy_wire_head *h, bool head_only)
{
    char *p = h->text, *line = next_line(&p);
    char *a = line != NULL ? strchr(line, ' ') : NULL;
    if (a == NULL)
        return bad("no status line");
    *a++ = '\0';
    if (!parse_version(line, &h->minor) || strlen(a) < 3 || (a[3] != ' ' && a[3] != '\0') ||
        !is_value(a))
        return bad("no status line");
    for (int i = 0; i < 3; i++) {
        if (a[i] < '0' || a[i] > '9')
            return bad("no status in the status line");
        h->status = h->status * 10 + (a[i] - '0');
    }
    HY_TRY(take_headers(h, p));
    HY_TRY(find_framing(h, HY_WIRE_CLOSE));
    if (head_only || h->status < 200 || h->status == 204 || h->status == 304)
        h->framing = HY_WIRE_EMPTY;
    if (h->framing == HY_WIRE_CLOSE)
        h->keep_alive = false;
    return HY_OK;
}

static hy_status take(struct evbuffer *in, size_t limit, size_t *scanned, bool response,
                      bool head_only, hy_wire_head *out)
{
    hy_wire_head h = {0};
    size_t len;
    hy_status st = cut_head(in, limit, scanned, &h.text, &len);
    if (st != HY_OK)
        return st;
    st = response ? parse_response(&h, head_only) : parse_request(&h);
    if (st < 0) {
        hy_wire_head_fini(&h);
        return st;
    }
    *out = h;
    return HY_OK;
}

hy_status hy_wire_take_request(struct evbuffer *in, size_t limit, size_t *scanned,
                               hy_wire_head *out)
{
    return take(in, limit, scanned, false, false, out);
}

hy_status hy_wire_take_response(struct evbuffer *in, size_t limit, size_t *scanned, bool head_only,
                                hy_wire_head *out)
{
    return take(in, limit, scanned, true, head_only, out);
}

void hy_wire_head_fini(hy_wire_head *h)
{
    free(h->text);
    memset(h, 0, sizeof(*h));
}

/* ---- bodies ---- */

enum { CHUNK_HEAD, CHUNK_DATA, CHUNK_END, TRAILER, DONE };

void hy_wire_body_init(hy_wire_body *b, const hy_wire_head *h)
{
    *b = (hy_wire_body){.framing = h->framing, .left = h->length, .state = CHUNK_HEAD};
    if (h->framing == HY_WIRE_EMPTY)
        b->state = DONE;
}

static void move(struct evbuffer *in, struct evbuffer *out, size_t n)
{
    size_t have = evbuffer_get_length(in);
    if (n >= have)
        evbuffer_add_buffer(out, in);
    else
        evbuffer_remove_buffer(in, out, n);
}

static hy_status take_line(struct evbuffer *in, char **line, size_t *n)
{
    *line = evbuffer_readln(in, n, EVBUFFER_EOL_CRLF_STRICT);
    if (*line != NULL)
        return HY_OK;
    return evbuffer_get_length(in) > MAX_LINE ? bad("a chunk head or trailer is too long")
                                              : HY_AGAIN;
}

static hy_status chunk_size(const char *s, uint64_t *out)
{
    uint64_t v = 0;
    int digits = 0;
    for (;; s++, digits++) {
        char c = (char)(*s | 32);
        uint64_t d = *s >= '0' && *s <= '9' ? (uint64_t)(*s - '0')
                     : c >= 'a' && c <= 'f' ? (uint64_t)(c - 'a' + 10)
                                            : 16;
        if (d == 16)
            break;
        if (digits == 15)
            return bad("a chunk size that is too large");
        v = v << 4 | d;
    }
    if (digits == 0 || (*s != '\0' && *s != ';' && *s != ' ' && *s != '\t'))
        return bad("a chunk size that is no number");
    *out = v;
    return HY_OK;
}

/* One step of a chunked body that is not data. */
static hy_status chunk_line(hy_wire_body *b, struct evbuffer *in)
{
    char *line;
    size_t n;
    hy_status st = take_line(in, &line, &n);
    if (st != HY_OK)
        return st;
    if (b->state == CHUNK_HEAD) {
        st = chunk_size(line, &b->left);
        b->state = b->left != 0 ? CHUNK_DATA : TRAILER;
    } else if (b->state == CHUNK_END) {
        st = n == 0 ? HY_OK : bad("bytes behind a chunk");
        b->state = CHUNK_HEAD;
    } else {
        b->trailer += n;
        if (n == 0)
            b->state = DONE;
        else if (b->trailer > 16 * MAX_LINE)
            st = bad("too many trailers");
    }
    free(line);
    return st;
}

static hy_status take_chunked(hy_wire_body *b, struct evbuffer *in, struct evbuffer *out)
{
    while (b->state != DONE) {
        if (b->state != CHUNK_DATA) {
            hy_status st = chunk_line(b, in);
            if (st != HY_OK)
                return st;
            continue;
        }
        size_t have = evbuffer_get_length(in);
        if (have == 0)
            return HY_AGAIN;
        size_t n = have < b->left ? have : (size_t)b->left;
        move(in, out, n);
        b->left -= n;
        if (b->left == 0)
            b->state = CHUNK_END;
    }
    return HY_OK;
}

hy_status hy_wire_body_take(hy_wire_body *b, struct evbuffer *in, struct evbuffer *out)
{
    if (b->state == DONE)
        return HY_OK;
    if (b->framing == HY_WIRE_CHUNKED)
        return take_chunked(b, in, out);
    size_t have = evbuffer_get_length(in);
    if (b->framing == HY_WIRE_CLOSE) {
        move(in, out, have);
        return HY_AGAIN;
    }
    size_t n = have < b->left ? have : (size_t)b->left;
    move(in, out, n);
    b->left -= n;
    if (b->left != 0)
        return HY_AGAIN;
    b->state = DONE;
    return HY_OK;
}

hy_status hy_wire_body_end(const hy_wire_body *b)
{
    if (b->state == DONE || b->framing == HY_WIRE_CLOSE)
        return HY_OK;
    return hy_fail(HY_E_PEER, "the connection ended in the middle of an answer");
}
