/* SPDX-License-Identifier: Apache-2.0
 *
 * The planning function.
 *
 * Thread: any; pure.  Owner: see plan.h.
 */
#include "core/sched/plan.h"

#include <string.h>

typedef struct room {
    int32_t free[HY_PLAN_MAX_GROUPS];
    int32_t budget, prefill;
} room;

static int32_t min32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t max32(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static bool before(const hy_plan_seq *a, const hy_plan_seq *b)
{
    return a->priority != b->priority ? a->priority < b->priority : a->arrival < b->arrival;
}

/* Blocks of group g it must take to hold upto tokens. */
static int32_t need(const hy_plan *p, const hy_plan_seq *s, int32_t g, int32_t upto)
{
    return max32(0, (upto + p->block_tokens - 1) / p->block_tokens - s->have[g]);
}

/* Most of `want` tokens for which there are blocks. */
static int32_t fit(const hy_plan *p, const room *r, const hy_plan_seq *s, int32_t want)
{
    for (int32_t g = 0; g < p->n_groups; g++) {
        const int64_t upto = (int64_t)(s->have[g] + r->free[g]) * p->block_tokens;
        if (upto - s->computed < want)
            want = (int32_t)(upto - s->computed);
    }
    return max32(want, 0);
}

static void grant(hy_plan *p, room *r, hy_plan_seq *s, int32_t n)
{
    for (int32_t g = 0; g < p->n_groups; g++)
        r->free[g] -= need(p, s, g, s->computed + n);
    s->grant = n;
    r->budget -= n;
    p->n_tokens += n;
    p->n_grants += n > 0;
}

static bool plan_decodes(hy_plan *p, room *r)
{
    for (int32_t i = 0; i < p->n_run && r->budget > 0; i++) {
        hy_plan_seq *s = &p->run[i];
        if (s->todo != 1)
            continue;
        if (fit(p, r, s, 1) < 1) {
            p->victim = p->n_run - 1; /* may be itself, or one that had its grant just now */
            return false;
        }
        grant(p, r, s, 1);
    }
    return true;
}

/* A running prompt's next chunk. False: someone must be preempted. */
static bool plan_chunk(hy_plan *p, room *r, int32_t i)
{
    hy_plan_seq *s = &p->run[i];
    const int32_t n = fit(p, r, s, min32(s->todo, min32(r->budget, r->prefill)));
    if (n > 0) {
        grant(p, r, s, n);
        r->prefill -= n;
        return true;
    }
    /* No block. A worse one gives way; the worst itself waits while others go on, and gives way
     * when nobody does: its blocks may be what the others wait for. */
    if (p->n_admit > 0 || (i == p->n_run - 1 && p->n_grants > 0))
        return true;
    p->victim = p->n_run - 1;
    return false;
}

/* Would all of its known tokens fit, with one block spare for each of the others? */
static bool fits_whole(const hy_plan *p, const room *r, const hy_plan_seq *s)
{
    const int32_t spare = p->n_run + p->n_admit;
    for (int32_t g = 0; g < p->n_groups; g++) {
        int32_t n = need(p, s, g, s->computed + s->todo);
        if (p->least[g] > 0) {
            const int32_t tail = max32(p->least[g] - s->live[g], need(p, s, g, s->computed + 1));
            n = min32(n, tail);
        }
        if (n + s->touch[g] + spare > r->free[g])
            return false;
    }
    return true;
}

/* False: nobody behind it may be admitted. */
static bool plan_admission(hy_plan *p, room *r, hy_plan_seq *s)
{
    if (p->preempted || p->n_run + p->n_parked + p->n_admit >= p->max_seqs)
        return false;
    if (!fits_whole(p, r, s)) {
        p->short_of_blocks = true;
        return false;
    }
    for (int32_t g = 0; g < p->n_groups; g++)
        r->free[g] -= s->touch[g];
    s->admit = true;
    p->n_admit++;
    if (s->park) {
        for (int32_t g = 0; g < p->n_groups; g++)
            r->free[g] -= need(p, s, g, s->computed + (p->least[g] > 0 ? 1 : s->todo));
        return true;
    }
    const int32_t n = fit(p, r, s, min32(s->todo, min32(r->budget, r->prefill)));
    grant(p, r, s, n);
    r->prefill -= n;
    return true;
}

static bool plan_prompts(hy_plan *p, room *r)
{
    bool admitting = true;
    int32_t i = 0, w = 0;
    while (i < p->n_run || (admitting && w < p->n_wait)) {
        if (r->budget <= 0 || r->prefill <= 0)
            return true;
        if (admitting && w < p->n_wait && (i >= p->n_run || before(&p->wait[w], &p->run[i]))) {
            admitting = plan_admission(p, r, &p->wait[w++]);
            continue;
        }
        if (i < p->n_run && p->run[i].todo > 1 && !plan_chunk(p, r, i))
            return false;
        i++;
    }
    return true;
}

static void reset(hy_plan *p)
{
    p->victim = -1;
    p->n_tokens = p->n_grants = p->n_admit = 0;
    p->short_of_blocks = false;
    for (int32_t i = 0; i < p->n_run; i++)
        p->run[i].grant = 0;
    for (int32_t i = 0; i < p->n_wait; i++) {
        p->wait[i].grant = 0;
        p->wait[i].admit = false;
    }
}

void hy_plan_make(hy_plan *p)
{
    reset(p);
    room r = {.budget = p->budget};
    memcpy(r.free, p->free, sizeof(r.free));
    if (!plan_decodes(p, &r))
        return;
    r.prefill = p->n_grants > 0 && p->max_prefill > 0 ? p->max_prefill : r.budget;
    (void)plan_prompts(p, &r);
}
