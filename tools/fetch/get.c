/* SPDX-License-Identifier: Apache-2.0
 *
 * One download through libcurl: follows redirects, goes on after a break with a range (only if the
 * server's etag, or without one its Last-Modified, is still the same), checks size and SHA-256, and
 * renames when whole. The part is locked, so that two calls cannot write into one file.
 *
 * Thread: main.  Owner: none.
 */
#include "core/base/file.h"
#include "core/base/hash.h"
#include "tools/fetch/fetch.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct transfer {
    const hy_get *get;
    FILE *f;
    hy_progress progress;
    uint64_t have;    /* bytes in the part */
    uint64_t resumed; /* asked to start here */
    char etag[128];   /* of the answer being read */
    char old_etag[128];
    char linked[128]; /* X-Linked-Etag: of the object behind a redirect */
    char modified[128];
    uint64_t linked_size, length;
    uint64_t range_total; /* Content-Range's total, which a 416 states */
    long status;
    int disk_errno;
    bool started;
    bool etag_changed;
} transfer;

static void header_value(const char *p, size_t n, char *out, size_t cap)
{
    while (n > 0 && (*p == ' ' || *p == '"')) {
        p++;
        n--;
    }
    if (n > 2 && p[0] == 'W' && p[1] == '/') {
        p += 3;
        n = n > 3 ? n - 3 : 0;
    }
    while (n > 0 && strchr(" \"\r\n", p[n - 1]) != NULL)
        n--;
    n = n < cap - 1 ? n : cap - 1;
    memcpy(out, p, n);
    out[n] = '\0';
}

static size_t on_header(char *p, size_t size, size_t n, void *arg)
{
    transfer *t = arg;
    size_t len = size * n;
    char num[32];
    if (len >= 5 && memcmp(p, "HTTP/", 5) == 0) { /* a new answer of the redirect chain */
        const char *sp = memchr(p, ' ', len);
        t->status = sp != NULL ? strtol(sp, NULL, 10) : 0;
        t->etag[0] = t->modified[0] = '\0';
        t->length = t->range_total = 0;
    } else if (len > 5 && strncasecmp(p, "etag:", 5) == 0) {
        header_value(p + 5, len - 5, t->etag, sizeof(t->etag));
    } else if (len > 14 && strncasecmp(p, "x-linked-etag:", 14) == 0) {
        header_value(p + 14, len - 14, t->linked, sizeof(t->linked));
    } else if (len > 14 && strncasecmp(p, "x-linked-size:", 14) == 0) {
        header_value(p + 14, len - 14, num, sizeof(num));
        t->linked_size = strtoull(num, NULL, 10);
    } else if (len > 14 && strncasecmp(p, "last-modified:", 14) == 0) {
        header_value(p + 14, len - 14, t->modified, sizeof(t->modified));
    } else if (len > 14 && strncasecmp(p, "content-range:", 14) == 0) {
        header_value(p + 14, len - 14, num, sizeof(num));
        const char *slash = strchr(num, '/');
        t->range_total = slash != NULL ? strtoull(slash + 1, NULL, 10) : 0;
    } else if (len > 15 && strncasecmp(p, "content-length:", 15) == 0) {
        header_value(p + 15, len - 15, num, sizeof(num));
        t->length = strtoull(num, NULL, 10);
    }
    return len;
}

static bool is_sha256(const char *s)
{
    return strlen(s) == 64 && strspn(s, "0123456789abcdef") == 64;
}

/* Object's own tag: the linked one names the content wherever it is served from. */
static const char *tag_of(const transfer *t)
{
    if (t->linked[0] != '\0')
        return t->linked;
    return t->etag[0] != '\0' ? t->etag : t->modified;
}

static bool start_body(transfer *t)
{
    if (t->status != 200 && t->status != 206)
        return true; /* an error page: dropped */
    if (t->resumed > 0 && t->status == 206 && strcmp(tag_of(t), t->old_etag) != 0) {
        t->etag_changed = true;
        return false;
    }
    if (t->status == 200 && t->resumed > 0) { /* the server starts anew */
        if (ftruncate(fileno(t->f), 0) != 0 || fseek(t->f, 0, SEEK_SET) != 0) {
            t->disk_errno = errno;
            return false;
        }
        t->have = 0;
    }
    uint64_t total = t->get->bytes ? t->get->bytes : t->linked_size;
    if (total == 0 && t->length > 0)
        total = t->have + t->length;
    hy_progress_start(&t->progress, t->get->label, t->have, total);
    char path[4096];
    snprintf(path, sizeof(path), "%s.part.etag", t->get->path);
    if (tag_of(t)[0] == '\0')
        unlink(path); /* without a tag the part cannot be trusted later */
    else
        hy_file_write(path, tag_of(t), strlen(tag_of(t)), 0644);
    return true;
}

static size_t on_body(char *p, size_t size, size_t n, void *arg)
{
    transfer *t = arg;
    size_t len = size * n;
    if (!t->started) {
        t->started = true;
        if (!start_body(t))
            return 0;
    }
    if (t->status != 200 && t->status != 206)
        return len;
    if (fwrite(p, 1, len, t->f) != len || (t->have % (8u << 20) < len && fflush(t->f) != 0)) {
        t->disk_errno = errno != 0 ? errno : EIO;
        return 0;
    }
    t->have += len;
    hy_progress_at(&t->progress, t->have);
    return len;
}

static CURL *new_curl(const char *url, const char *bearer)
{
    static bool ready;
    if (!ready) {
        curl_global_init(CURL_GLOBAL_DEFAULT);
        ready = true;
    }
    CURL *c = curl_easy_init();
    if (c == NULL)
        return NULL;
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(c, CURLOPT_MAXREDIRS, 10L);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_USERAGENT, "halyard/" HY_VERSION);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, 30L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L); /* nothing for a minute: broken */
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, 60L);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    if (bearer != NULL && *bearer != '\0') { /* curl drops it when a redirect leaves the host */
        curl_easy_setopt(c, CURLOPT_HTTPAUTH, (long)CURLAUTH_BEARER);
        curl_easy_setopt(c, CURLOPT_XOAUTH2_BEARER, bearer);
    }
    return c;
}

static hy_status http_error(long status, const char *url)
{
    if (status == 404)
        return hy_fail(HY_E_NOTFOUND, "%s: not found (404)", url);
    if (status == 401 || status == 403)
        return hy_fail(
            HY_E_DENIED,
            "%s: access denied (%ld): it may be gated or private, or not exist; accept its terms "
            "on its page and set a token (HF_TOKEN or [fetch] token_file)",
            url, status);
    if (status == 429)
        return hy_fail(HY_E_BUSY, "%s: too many requests (429): try later", url);
    return hy_fail(HY_E_PEER, "%s: HTTP status %ld", url, status);
}

/* Bytes already in the part that may be kept, and its tag. */
static uint64_t part_state(const hy_get *g, const char *part, char *etag, size_t cap)
{
    char path[4096];
    struct stat st;
    hy_buf b;
    hy_buf_init(&b);
    uint64_t have = 0;
    snprintf(path, sizeof(path), "%s.part.etag", g->path);
    if (stat(part, &st) == 0 && hy_file_exists(path) && hy_file_read(path, cap - 1, &b) == HY_OK &&
        b.len > 0) {
        have = (uint64_t)st.st_size;
        snprintf(etag, cap, "%s", hy_buf_str(&b));
    }
    hy_buf_fini(&b);
    return have;
}

/* Opened and locked; what is in it is kept. */
static hy_status open_part(const char *part, FILE **out)
{
    int fd = open(part, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        return hy_fail(HY_E_IO, "%s: %s", part, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        close(fd);
        return hy_fail(HY_E_BUSY, "%s: another fetch is writing it", part);
    }
    *out = fdopen(fd, "r+b");
    if (*out == NULL) {
        close(fd);
        return hy_fail(HY_E_NOMEM, "out of memory");
    }
    return HY_OK;
}

static CURLcode perform(transfer *t, char *error)
{
    const hy_get *g = t->get;
    CURL *c = new_curl(g->url, g->bearer);
    char range[32];
    if (c == NULL)
        return CURLE_OUT_OF_MEMORY;
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, error);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, t);
    if (t->have > 0) { /* not RESUME_FROM: it takes a 200 for an error instead of a fresh start */
        snprintf(range, sizeof(range), "%llu-", (unsigned long long)t->have);
        curl_easy_setopt(c, CURLOPT_RANGE, range);
    }
    CURLcode rc = curl_easy_perform(c);
    if (rc == CURLE_OK && !t->started && t->status == 200 && !start_body(t)) /* an empty file */
        rc = CURLE_WRITE_ERROR;
    curl_easy_cleanup(c);
    return rc;
}

/* What became of one connection. HY_AGAIN: broken, more may come. */
static hy_status outcome(transfer *t, CURLcode rc, const char *error)
{
    const hy_get *g = t->get;
    if (t->etag_changed || t->status == 416) {
        bool whole = t->status == 416 && t->have > 0 && t->range_total == t->have &&
                     (g->sha256 != NULL || strcmp(tag_of(t), t->old_etag) == 0);
        if (whole)
            return HY_OK;
        hy_fail(HY_E_PEER, "%s: the file changed on the server", g->url);
        if (ftruncate(fileno(t->f), 0) != 0)
            return hy_fail(HY_E_IO, "%s.part: %s", g->path, strerror(errno));
        t->have = 0;
        return HY_AGAIN;
    }
    if (rc == CURLE_OK && (t->status == 200 || t->status == 206))
        return HY_OK;
    if (t->status >= 400) {
        hy_status st = http_error(t->status, g->url);
        return t->status >= 500 || t->status == 429 ? HY_AGAIN : st;
    }
    if (rc == CURLE_OK)
        return http_error(t->status, g->url);
    hy_fail(HY_E_PEER, "%s: %s", g->url, error[0] != '\0' ? error : curl_easy_strerror(rc));
    bool permanent = rc == CURLE_URL_MALFORMAT || rc == CURLE_UNSUPPORTED_PROTOCOL ||
                     rc == CURLE_COULDNT_RESOLVE_HOST || rc == CURLE_PEER_FAILED_VERIFICATION ||
                     rc == CURLE_TOO_MANY_REDIRECTS || rc == CURLE_OUT_OF_MEMORY ||
                     (rc == CURLE_COULDNT_CONNECT && t->resumed == 0);
    return permanent ? HY_E_PEER : HY_AGAIN;
}

/* One connection, from where the part ends. */
static hy_status attempt(const hy_get *g, const char *part, transfer *t)
{
    memset(t, 0, sizeof(*t));
    t->get = g;
    HY_TRY(open_part(part, &t->f));
    t->have = t->resumed = part_state(g, part, t->old_etag, sizeof(t->old_etag));
    char error[CURL_ERROR_SIZE] = "";
    hy_status st = HY_OK;
    if (ftruncate(fileno(t->f), (off_t)t->have) != 0 || fseeko(t->f, (off_t)t->have, SEEK_SET) != 0)
        st = hy_fail(HY_E_IO, "%s: %s", part, strerror(errno));
    if (st == HY_OK) {
        CURLcode rc = perform(t, error);
        if (t->progress.t0 > 0)
            hy_progress_end(&t->progress, rc == CURLE_OK);
        if (fflush(t->f) != 0 && t->disk_errno == 0)
            t->disk_errno = errno;
        if (t->disk_errno != 0)
            st = hy_fail(HY_E_IO, "%s: %s (what has come is kept: make room and run it again)",
                         part, strerror(t->disk_errno));
        else
            st = outcome(t, rc, error);
    }
    fclose(t->f);
    return st;
}

static hy_status check_whole(const hy_get *g, const char *part, const transfer *t)
{
    uint64_t want = g->bytes ? g->bytes : t->linked_size;
    if (want != 0 && want != t->have) {
        unlink(part);
        return hy_fail(HY_E_FORMAT, "%s: %llu bytes came, %llu expected", g->url,
                       (unsigned long long)t->have, (unsigned long long)want);
    }
    const char *sum = g->sha256 != NULL ? g->sha256 : is_sha256(t->linked) ? t->linked : NULL;
    if (sum == NULL)
        return HY_OK;
    uint8_t digest[HY_SHA256_LEN];
    char hex[HY_SHA256_HEX_LEN + 1];
    HY_TRY(hy_sha256_file(part, digest));
    hy_hex(digest, sizeof(digest), hex);
    if (strcasecmp(hex, sum) == 0)
        return HY_OK;
    unlink(part);
    return hy_fail(HY_E_FORMAT, "%s: SHA-256 is %s, expected %s; the download was deleted", g->url,
                   hex, sum);
}

hy_status hy_get_file(const hy_get *g)
{
    char part[4096], etag[4096];
    if (snprintf(part, sizeof(part), "%s.part", g->path) >= (int)sizeof(part) - 8)
        return hy_fail(HY_E_LIMIT, "%s: path too long", g->path);
    snprintf(etag, sizeof(etag), "%.4080s.etag", part);
    transfer t;
    uint64_t last = 0;
    int left = g->retries;
    for (;;) {
        hy_status st = attempt(g, part, &t);
        if (st == HY_OK)
            break;
        if (st != HY_AGAIN)
            return st;
        left = t.have > last ? g->retries : left - 1; /* progress renews the patience */
        last = t.have;
        if (left < 0)
            return HY_E_PEER;
        fprintf(stderr, "%s; trying again\n", hy_fail_text());
        if (left < g->retries)
            sleep(1);
    }
    HY_TRY(check_whole(g, part, &t));
    if (rename(part, g->path) != 0)
        return hy_fail(HY_E_IO, "%s: %s", g->path, strerror(errno));
    unlink(etag);
    return HY_OK;
}

typedef struct text_sink {
    hy_buf *out;
    size_t limit;
} text_sink;

static size_t on_text(char *p, size_t size, size_t n, void *arg)
{
    text_sink *s = arg;
    if (s->out->len + size * n > s->limit)
        return 0; /* curl reports a write error */
    hy_buf_add(s->out, p, size * n);
    return size * n;
}

hy_status hy_get_text(const char *url, const char *bearer, size_t limit, hy_buf *out)
{
    CURL *c = new_curl(url, bearer);
    if (c == NULL)
        return hy_fail(HY_E_NOMEM, "curl: out of memory");
    char error[CURL_ERROR_SIZE] = "";
    text_sink sink = {out, limit};
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, error);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_text);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, &sink);
    CURLcode rc = curl_easy_perform(c);
    long status = 0;
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_cleanup(c);
    if (rc == CURLE_WRITE_ERROR)
        return hy_fail(HY_E_LIMIT, "%s: the answer is longer than %zu bytes", url, limit);
    if (rc != CURLE_OK)
        return hy_fail(HY_E_PEER, "%s: %s", url, error[0] != '\0' ? error : curl_easy_strerror(rc));
    return status == 200 ? HY_OK : http_error(status, url);
}
