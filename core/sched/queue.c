/* SPDX-License-Identifier: Apache-2.0
 *
 * The waiting list and the running array, ordered by (priority, arrival).
 *
 * Thread: sched stage only.  Owner: the engine.
 */
#include "core/sched/seq.h"

#include <string.h>

void hy_seq_list_insert(hy_seq_list *l, hy_seq *s)
{
    hy_seq *after = l->tail;
    while (after != NULL && hy_seq_before(s, after))
        after = after->prev;
    s->prev = after;
    s->next = after != NULL ? after->next : l->head;
    if (s->next != NULL)
        s->next->prev = s;
    else
        l->tail = s;
    if (after != NULL)
        after->next = s;
    else
        l->head = s;
    l->n++;
}

void hy_seq_list_remove(hy_seq_list *l, hy_seq *s)
{
    if (s->prev != NULL)
        s->prev->next = s->next;
    else
        l->head = s->next;
    if (s->next != NULL)
        s->next->prev = s->prev;
    else
        l->tail = s->prev;
    s->prev = s->next = NULL;
    l->n--;
}

void hy_seq_array_insert(hy_seq_array *a, hy_seq *s)
{
    HY_ASSERT(a->n < a->cap);
    int32_t i = a->n++;
    while (i > 0 && hy_seq_before(s, a->at[i - 1])) {
        a->at[i] = a->at[i - 1];
        i--;
    }
    a->at[i] = s;
}

void hy_seq_array_remove(hy_seq_array *a, const hy_seq *s)
{
    for (int32_t i = 0; i < a->n; i++)
        if (a->at[i] == s) {
            a->n--;
            memmove(&a->at[i], &a->at[i + 1], (size_t)(a->n - i) * sizeof(*a->at));
            return;
        }
    HY_ASSERT(!"sequence is not running");
}
