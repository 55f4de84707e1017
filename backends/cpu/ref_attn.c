/* SPDX-License-Identifier: Apache-2.0
 *
 * Scalar reference of attention over the paged cache. Positions fall into segments of 256 at fixed
 * places, each with its own maximum and sums, combined in ascending order: so the result does not
 * depend on how the work was cut.
 *
 * Thread: a queue's owner.  Owner: none.
 */
#include "backends/cpu/ref_int.h"
#include "hal/fmath.h"

#include <math.h>
#include <string.h>

#define SEG 256

/* One row and one head. */
typedef struct job {
    const hy_attn *a;
    const int32_t *blocks; /* of the row's sequence */
    int32_t kv_head;
    int32_t first, last; /* visible positions, both included */
    const float *q;
    float *out;
    float *score; /* [last - first + 1] */
    float *o;     /* [v width] of a segment */
    float *total; /* [v width] */
} job;

static const uint8_t *plane_at(const job *j, const hy_kv_plane *p, int32_t pos)
{
    const hy_kv_layout *l = &j->a->pool->layout;
    int32_t block = j->blocks[pos / l->block_tokens];
    return ref_kv_block(j->a->pool, j->a->layer, block) + p->off + j->kv_head * p->head +
           pos % l->block_tokens * p->token;
}

static float score_at(const job *j, int32_t pos)
{
    const hy_kv_layout *l = &j->a->pool->layout;
    const uint8_t *k = plane_at(j, &l->k, pos);
    float acc = 0.0f;
    for (int32_t d = 0; d < l->k.width; d++)
        acc = fmaf(j->q[d], ref_kv_load(l->type, k + d * l->k.dim), acc);
    acc *= j->a->scale;
    return j->a->softcap != 0.0f ? hy_m_softcap(acc, j->a->softcap) : acc;
}

static float max_of(const float *s, int32_t n)
{
    float m = -INFINITY;
    for (int32_t i = 0; i < n; i++)
        m = s[i] > m ? s[i] : m;
    return m;
}

/* o and the returned l of positions lo..hi, all of one segment whose maximum is m. */
static float sum_segment(const job *j, int32_t lo, int32_t hi, float m)
{
    const hy_kv_layout *l = &j->a->pool->layout;
    float lanes[16] = {0};
    memset(j->o, 0, (size_t)l->v.width * sizeof(float));
    for (int32_t pos = lo; pos <= hi; pos++) {
        const uint8_t *v = plane_at(j, &l->v, pos);
        float p = hy_m_exp(j->score[pos - j->first] - m);
        lanes[pos % 16] += p;
        for (int32_t d = 0; d < l->v.width; d++)
            j->o[d] = fmaf(p, ref_kv_load(l->type, v + d * l->v.dim), j->o[d]);
    }
    return ref_tree16(lanes);
}

static void attend(const job *j)
{
    int32_t width = j->a->pool->layout.v.width, n = j->last - j->first + 1;
    for (int32_t i = 0; i < n; i++)
        j->score[i] = score_at(j, j->first + i);
    float all = max_of(j->score, n), sum = 0.0f;
    memset(j->total, 0, (size_t)width * sizeof(float));
    for (int32_t lo = j->first; lo <= j->last;) {
        int32_t hi = lo / SEG * SEG + SEG - 1;
        hi = hi < j->last ? hi : j->last;
        float m = max_of(j->score + (lo - j->first), hi - lo + 1);
        float l = sum_segment(j, lo, hi, m);
        float e = hy_m_exp(m - all);
        sum = fmaf(l, e, sum);
        for (int32_t d = 0; d < width; d++)
            j->total[d] = fmaf(j->o[d], e, j->total[d]);
        lo = hi + 1;
    }
    float inv = 1.0f / sum;
    for (int32_t d = 0; d < width; d++)
        j->out[d] = j->total[d] * inv;
}

static hy_status check_blocks(const hy_attn *a, const int32_t *blocks, int32_t first, int32_t last)
{
    int32_t bt = a->pool->layout.block_tokens;
    for (int32_t b = first / bt; b <= last / bt; b++) {
        if (ref_kv_block(a->pool, a->layer, blocks[b]) == NULL)
            return hy_fail(HY_E_INVAL, "attention: layer %d, block %d is outside the pool",
                           a->layer, blocks[b]);
    }
    return HY_OK;
}

static hy_status attend_row(const hy_attn *a, int32_t seq, int32_t row, float *scratch)
{
    const hy_kv_layout *l = &a->pool->layout;
    int32_t pos = a->rows->pos[row];
    job j = {.a = a, .blocks = a->bt.table + seq * a->bt.stride, .last = pos};
    j.first = a->window > 0 && pos >= a->window ? pos - a->window + 1 : 0;
    j.o = scratch;
    j.total = scratch + l->v.width;
    j.score = scratch + 2 * (int64_t)l->v.width;
    HY_TRY(check_blocks(a, j.blocks, j.first, j.last));
    for (int32_t h = 0; h < a->heads; h++) {
        j.kv_head = (int32_t)((int64_t)h * l->n_heads / a->heads);
        j.q = a->q + row * a->ldq + (int64_t)h * l->k.width;
        j.out = a->out + row * a->ldo + (int64_t)h * l->v.width;
        attend(&j);
    }
    return HY_OK;
}

hy_status ref_attention(hy_queue *q, const hy_attn *a)
{
    int32_t longest = 0;
    for (int32_t r = 0; r < a->rows->n; r++)
        longest = a->rows->pos[r] >= longest ? a->rows->pos[r] + 1 : longest;
    size_t bytes = ((size_t)longest + 2 * (size_t)a->pool->layout.v.width) * sizeof(float);
    float *scratch = cpu_scratch(q, bytes);
    if (scratch == NULL)
        return hy_fail(HY_E_NOMEM_DEVICE, "cpu: no memory for %zu bytes of scores", bytes);
    for (int32_t s = 0; s < a->rows->n_seqs; s++) {
        for (int32_t r = a->rows->seq_row[s]; r < a->rows->seq_row[s + 1]; r++)
            HY_TRY(attend_row(a, s, r, scratch));
    }
    return HY_OK;
}
