/* SPDX-License-Identifier: Apache-2.0
 *
 * Stop strings over a stream of text: one Knuth-Morris-Pratt automaton a string. What may be the
 * beginning of a stop string is held back; a match cuts the text. The match that ends first wins,
 * the longest of those that end together.
 *
 * Thread: the set is immutable once made; a state belongs to one stream.
 * Owner: the set copies the strings; the caller frees set and state.
 */
#ifndef HY_HTTP_STOP_H
#define HY_HTTP_STOP_H

#include "core/base/buf.h"

typedef struct hy_stop_set {
    size_t n;
    char **str;
    uint32_t *len;
    uint32_t **fail; /* fail[i][k]: longest border of the first k + 1 bytes */
} hy_stop_set;

/* lens in bytes, each >= 1. HY_E_NOMEM. */
hy_status hy_stop_set_init(hy_stop_set *s, const char *const *strs, const size_t *lens, size_t n);
void hy_stop_set_fini(hy_stop_set *s);

typedef struct hy_stop_state {
    const hy_stop_set *set;
    uint32_t *at; /* per string: bytes of it matched so far */
    hy_buf held;  /* text not given out yet */
    int matched;  /* index of the string, -1: none yet */
} hy_stop_state;

hy_status hy_stop_init(hy_stop_state *st, const hy_stop_set *set);
void hy_stop_fini(hy_stop_state *st);
/* Takes text; appends to out what is certain. After a match (also the return value) nothing more is
 * taken: out ends before the stop string, or behind it when `include`. `arm` false: the text is
 * passed on and not looked at (min_tokens). */
bool hy_stop_push(hy_stop_state *st, const char *s, size_t len, bool arm, bool include,
                  hy_buf *out);
/* End of the stream: gives out what was held. */
void hy_stop_flush(hy_stop_state *st, hy_buf *out);

#endif
