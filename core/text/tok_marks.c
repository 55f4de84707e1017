/* SPDX-License-Identifier: Apache-2.0
 *
 * Marks: tokens found by their text before anything else. A sorted array, narrowed byte by byte.
 *
 * Thread: built by one thread, then immutable.  Owner: hy_tok.
 */
#include "core/text/tok_int.h"

#include <stdlib.h>
#include <string.h>

hy_status hy_tok__mark_add(tok_marks *m, const char *text, size_t len, const tok_mark *flags)
{
    if (len == 0)
        return HY_OK; /* an empty mark would match everywhere */
    if (m->n == m->cap) {
        size_t cap = m->cap ? m->cap * 2 : 64;
        tok_mark *p = realloc(m->v, cap * sizeof(*p));
        if (p == NULL)
            return hy_fail(HY_E_NOMEM, "tokeniser: no memory for marks");
        m->v = p;
        m->cap = cap;
    }
    if (m->text.len + len > UINT32_MAX / 2)
        return hy_fail(HY_E_LIMIT, "tokeniser: marks are larger than 2 GiB");
    m->v[m->n] = *flags;
    m->v[m->n].off = (uint32_t)m->text.len;
    m->v[m->n].len = (uint32_t)len;
    hy_buf_add(&m->text, text, len);
    if (m->text.failed)
        return hy_fail(HY_E_NOMEM, "tokeniser: no memory for marks");
    m->n++;
    return HY_OK;
}

static int by_text(const void *pa, const void *pb, void *arg)
{
    const tok_mark *a = pa, *b = pb;
    const char *text = arg;
    size_t n = a->len < b->len ? a->len : b->len;
    int c = memcmp(text + a->off, text + b->off, n);
    return c != 0 ? c : (a->len > b->len) - (a->len < b->len);
}

hy_status hy_tok__marks_sort(tok_marks *m)
{
    if (m->n == 0)
        return HY_OK;
    qsort_r(m->v, m->n, sizeof(m->v[0]), by_text, m->text.data);
    size_t i = 0;
    for (unsigned b = 0; b < 256; b++) {
        m->first[b] = (uint32_t)i;
        while (i < m->n && (unsigned char)m->text.data[m->v[i].off] == b)
            i++;
    }
    m->first[256] = (uint32_t)i;
    return HY_OK;
}

/* First of v[lo..hi) whose byte at `at` is not below b; texts ending there come first. */
static size_t lower(const tok_marks *m, size_t lo, size_t hi, size_t at, int b)
{
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const tok_mark *k = &m->v[mid];
        int x = k->len > at ? (unsigned char)m->text.data[k->off + at] : -1;
        if (x < b)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

const tok_mark *hy_tok__mark_at(const tok_marks *m, const char *p, size_t len, bool special)
{
    const tok_mark *best = NULL;
    if (m->n == 0 || len == 0)
        return NULL;
    size_t lo = m->first[(unsigned char)p[0]], hi = m->first[(unsigned char)p[0] + 1];
    for (size_t at = 1; lo < hi; at++) {
        for (size_t i = lo; i < hi && m->v[i].len == at; i++)
            if (special || !m->v[i].special)
                best = &m->v[i];
        if (at == len)
            break;
        int b = (unsigned char)p[at];
        lo = lower(m, lo, hi, at, b);
        hi = lower(m, lo, hi, at, b + 1);
    }
    return best;
}
