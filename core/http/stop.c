/* SPDX-License-Identifier: Apache-2.0
 *
 * Stop strings: see stop.h.
 *
 * Thread: one state, one thread.  Owner: see stop.h.
 */
#include "core/http/stop.h"

#include <stdlib.h>
#include <string.h>

static void make_fail(const char *s, uint32_t len, uint32_t *fail)
{
    fail[0] = 0;
    for (uint32_t i = 1, k = 0; i < len; i++) {
        while (k > 0 && s[i] != s[k])
            k = fail[k - 1];
        k += s[i] == s[k];
        fail[i] = k;
    }
}

hy_status hy_stop_set_init(hy_stop_set *s, const char *const *strs, const size_t *lens, size_t n)
{
    memset(s, 0, sizeof(*s));
    if (n == 0)
        return HY_OK;
    s->str = calloc(n, sizeof(*s->str));
    s->len = calloc(n, sizeof(*s->len));
    s->fail = calloc(n, sizeof(*s->fail));
    if (s->str == NULL || s->len == NULL || s->fail == NULL)
        goto err_mem;
    for (; s->n < n; s->n++) {
        size_t i = s->n;
        s->str[i] = malloc(lens[i]);
        s->fail[i] = malloc(lens[i] * sizeof(uint32_t));
        if (s->str[i] == NULL || s->fail[i] == NULL) {
            s->n++;
            goto err_mem;
        }
        memcpy(s->str[i], strs[i], lens[i]);
        s->len[i] = (uint32_t)lens[i];
        make_fail(s->str[i], s->len[i], s->fail[i]);
    }
    return HY_OK;
err_mem:
    hy_stop_set_fini(s);
    return hy_fail(HY_E_NOMEM, "out of memory for %zu stop strings", n);
}

void hy_stop_set_fini(hy_stop_set *s)
{
    for (size_t i = 0; i < s->n; i++) {
        free(s->str[i]);
        free(s->fail[i]);
    }
    free(s->str);
    free(s->len);
    free(s->fail);
    memset(s, 0, sizeof(*s));
}

hy_status hy_stop_init(hy_stop_state *st, const hy_stop_set *set)
{
    memset(st, 0, sizeof(*st));
    st->set = set;
    st->matched = -1;
    if (set->n == 0)
        return HY_OK;
    st->at = calloc(set->n, sizeof(*st->at));
    return st->at != NULL ? HY_OK : hy_fail(HY_E_NOMEM, "out of memory for stop strings");
}

void hy_stop_fini(hy_stop_state *st)
{
    free(st->at);
    hy_buf_fini(&st->held);
    memset(st, 0, sizeof(*st));
}

/* Feeds one byte to every automaton. Index of the longest string that ends here, -1 if none. */
static int advance(hy_stop_state *st, char c)
{
    const hy_stop_set *set = st->set;
    int hit = -1;
    for (size_t i = 0; i < set->n; i++) {
        uint32_t k = st->at[i];
        while (k > 0 && set->str[i][k] != c)
            k = set->fail[i][k - 1];
        k += set->str[i][k] == c;
        st->at[i] = k;
        if (k == set->len[i] && (hit < 0 || set->len[i] > set->len[hit]))
            hit = (int)i;
    }
    return hit;
}

static uint32_t longest_begun(const hy_stop_state *st)
{
    uint32_t most = 0;
    for (size_t i = 0; i < st->set->n; i++)
        most = st->at[i] > most ? st->at[i] : most;
    return most;
}

bool hy_stop_push(hy_stop_state *st, const char *s, size_t len, bool arm, bool include, hy_buf *out)
{
    if (st->matched >= 0)
        return true;
    if (st->set->n == 0) {
        hy_buf_add(out, s, len);
        return false;
    }
    if (!arm) {
        hy_stop_flush(st, out);
        hy_buf_add(out, s, len);
        memset(st->at, 0, st->set->n * sizeof(*st->at));
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        hy_buf_putc(&st->held, s[i]);
        int hit = advance(st, s[i]);
        if (hit >= 0) {
            st->matched = hit;
            hy_buf_add(out, hy_buf_str(&st->held),
                       st->held.len - (include ? 0 : st->set->len[hit]));
            hy_buf_clear(&st->held);
            return true;
        }
    }
    size_t keep = longest_begun(st);
    if (st->held.len > keep) {
        hy_buf_add(out, st->held.data, st->held.len - keep);
        hy_buf_drop(&st->held, st->held.len - keep);
    }
    return false;
}

void hy_stop_flush(hy_stop_state *st, hy_buf *out)
{
    if (st->held.len != 0)
        hy_buf_add(out, st->held.data, st->held.len);
    hy_buf_clear(&st->held);
}
