/* SPDX-License-Identifier: Apache-2.0
 *
 * Nearest name: edit distance with swaps of neighbours (optimal string alignment), blind to case
 * and to '-' for '_'.
 *
 * Thread: any.  Owner: nothing kept.
 */
#include "core/conf/conf_int.h"

#include <string.h>

enum { MOST = 63 };

static char fold(char c)
{
    if (c >= 'A' && c <= 'Z')
        return (char)(c - 'A' + 'a');
    return c == '-' ? '_' : c;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    if (n > MOST || m > MOST)
        return SIZE_MAX;
    size_t rows[3][MOST + 1];
    size_t *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t j = 0; j <= m; j++)
        last[j] = j;
    for (size_t i = 1; i <= n; i++) {
        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            char x = fold(a[i - 1]), y = fold(b[j - 1]);
            size_t d = last[j - 1] + (x != y);
            d = least(d, least(last[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && x == fold(b[j - 2]) && fold(a[i - 2]) == y)
                d = least(d, before[j - 2] + 1);
            now[j] = d;
        }
        size_t *t = before;
        before = last;
        last = now;
        now = t;
    }
    return last[m];
}

void hy_conf__near_init(hy_conf__near *n, const char *want)
{
    /* a third of the letters may be wrong, one in any name of two letters or more */
    size_t len = strlen(want);
    *n = (hy_conf__near){want, NULL, len < 2 ? 1 : len / 3 + (len < 3) + 1};
}

void hy_conf__near_try(hy_conf__near *n, const char *name)
{
    size_t d = distance(n->want, name);
    if (d < n->best_d) {
        n->best_d = d;
        n->best = name;
    }
}
