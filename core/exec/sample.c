/* SPDX-License-Identifier: Apache-2.0
 *
 * Sampling of one sequence. Order of operations, as vLLM has it: barred tokens and logit bias,
 * penalties; then greedy, or temperature, min-p, top-k, top-p, draw. Reported log-probabilities
 * are of the raw logits.
 *
 * The draw inverts the distribution function over the kept tokens in order of token id, with sums
 * in double, so it needs no sort and is the same on every machine.
 *
 * Thread: see sample.h.  Owner: the sequence.
 */
#include "core/exec/sample.h"

#include "core/base/fmath.h"
#include "core/base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct hy_sampler {
    hy_sampling p;
    int32_t choice, vocab, min_tokens;
    int32_t *end_ids;
    size_t n_end;
    bool penalties;
    uint8_t *in_prompt; /* bit a token: for repetition_penalty; NULL when not needed */
    int32_t *count;     /* [vocab] output tokens; NULL without penalties */
};

struct hy_sample_ws {
    float *logits; /* a copy that penalties change */
    double *prob;  /* unnormalised */
    int32_t *heap; /* candidate ids */
    int32_t vocab;
};

hy_sample_ws *hy_sample_ws_create(int32_t vocab)
{
    hy_sample_ws *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return NULL;
    w->vocab = vocab;
    w->logits = malloc(sizeof(float) * (size_t)vocab);
    w->prob = malloc(sizeof(double) * (size_t)vocab);
    w->heap = malloc(sizeof(int32_t) * (size_t)vocab);
    if (w->logits == NULL || w->prob == NULL || w->heap == NULL) {
        hy_sample_ws_destroy(w);
        return NULL;
    }
    return w;
}

void hy_sample_ws_destroy(hy_sample_ws *w)
{
    if (w == NULL)
        return;
    free(w->logits);
    free(w->prob);
    free(w->heap);
    free(w);
}

static hy_status copy_lists(hy_sampler *s, const hy_sampler_opts *o)
{
    const hy_sampling *p = o->params;
    s->p.bias = NULL;
    if (p->n_bias > 0) {
        s->p.bias = malloc(sizeof(*p->bias) * p->n_bias);
        if (s->p.bias == NULL)
            return HY_E_NOMEM;
        memcpy(s->p.bias, p->bias, sizeof(*p->bias) * p->n_bias);
    }
    if (o->n_end > 0) {
        s->end_ids = malloc(sizeof(int32_t) * o->n_end);
        if (s->end_ids == NULL)
            return HY_E_NOMEM;
        memcpy(s->end_ids, o->end_ids, sizeof(int32_t) * o->n_end);
        s->n_end = o->n_end;
    }
    if (!s->penalties)
        return HY_OK;
    s->count = calloc((size_t)o->vocab, sizeof(int32_t));
    if (s->count == NULL)
        return HY_E_NOMEM;
    if (p->repetition_penalty == 1.0f)
        return HY_OK;
    s->in_prompt = calloc(((size_t)o->vocab + 7) / 8, 1);
    if (s->in_prompt == NULL)
        return HY_E_NOMEM;
    for (int32_t i = 0; i < o->n_prompt; i++) {
        int32_t id = o->prompt[i];
        if (id >= 0 && id < o->vocab)
            s->in_prompt[id / 8] |= (uint8_t)(1u << (id % 8));
    }
    return HY_OK;
}

hy_status hy_sampler_create(const hy_sampler_opts *o, hy_sampler **out)
{
    hy_sampler *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return hy_fail(HY_E_NOMEM, "sampler: out of memory");
    s->p = *o->params;
    s->choice = o->choice;
    s->vocab = o->vocab;
    s->min_tokens = o->min_tokens;
    s->penalties = s->p.repetition_penalty != 1.0f || s->p.presence_penalty != 0.0f ||
                   s->p.frequency_penalty != 0.0f;
    if (copy_lists(s, o) < 0) {
        hy_sampler_destroy(s);
        return hy_fail(HY_E_NOMEM, "sampler: out of memory");
    }
    *out = s;
    return HY_OK;
}

void hy_sampler_destroy(hy_sampler *s)
{
    if (s == NULL)
        return;
    free(s->p.bias);
    free(s->end_ids);
    free(s->in_prompt);
    free(s->count);
    free(s);
}

void hy_sampler_accept(hy_sampler *s, int32_t id)
{
    if (s->count != NULL && id >= 0 && id < s->vocab)
        s->count[id]++;
}

static bool bars_end(const hy_sampler *s, int32_t pos)
{
    return pos < s->min_tokens && s->n_end > 0;
}

static bool changes_logits(const hy_sampler *s, int32_t pos)
{
    return s->penalties || s->p.n_bias > 0 || bars_end(s, pos);
}

bool hy_sampler_is_argmax(const hy_sampler *s, int32_t pos)
{
    return s->p.temperature <= 0.0f && s->p.logprobs < 0 && !changes_logits(s, pos);
}

bool hy_sampler_wants_lse(const hy_sampler *s)
{
    return s->p.logprobs >= 0;
}

/* Penalties, bias and barred tokens, on a copy. */
static const float *changed(hy_sampler *s, hy_sample_ws *w, const float *logits, int32_t pos)
{
    float *l = w->logits;
    memcpy(l, logits, sizeof(float) * (size_t)s->vocab);
    if (bars_end(s, pos))
        for (size_t i = 0; i < s->n_end; i++)
            if (s->end_ids[i] >= 0 && s->end_ids[i] < s->vocab)
                l[s->end_ids[i]] = -INFINITY;
    for (size_t i = 0; i < s->p.n_bias; i++)
        if (s->p.bias[i].id >= 0 && s->p.bias[i].id < s->vocab)
            l[s->p.bias[i].id] += s->p.bias[i].bias;
    if (!s->penalties)
        return l;
    const float rep = s->p.repetition_penalty;
    for (int32_t i = 0; i < s->vocab; i++) {
        int32_t c = s->count[i];
        bool seen = c > 0 || (s->in_prompt != NULL && (s->in_prompt[i / 8] >> (i % 8) & 1));
        if (!seen)
            continue;
        if (rep != 1.0f)
            l[i] = l[i] > 0.0f ? l[i] / rep : l[i] * rep;
        if (c > 0) {
            l[i] -= s->p.frequency_penalty * (float)c;
            l[i] -= s->p.presence_penalty;
        }
    }
    return l;
}

/* Best id, lower first among equals; -1 when there is none, -2 when one is NaN. */
static int32_t argmax(const float *l, int32_t n)
{
    int32_t best = -1;
    float v = -INFINITY;
    bool nan = false;
    for (int32_t i = 0; i < n; i++) {
        nan |= l[i] != l[i];
        if (l[i] > v) {
            v = l[i];
            best = i;
        }
    }
    if (nan)
        return -2;
    return best >= 0 && v < INFINITY ? best : -1;
}

/* True when a should be given before b. */
static bool before(const double *p, int32_t a, int32_t b)
{
    return p[a] > p[b] || (p[a] == p[b] && a < b);
}

static void sift(int32_t *h, int32_t n, int32_t i, const double *p)
{
    for (;;) {
        int32_t c = 2 * i + 1;
        if (c >= n)
            return;
        if (c + 1 < n && before(p, h[c + 1], h[c]))
            c++;
        if (before(p, h[i], h[c]))
            return;
        int32_t t = h[i];
        h[i] = h[c];
        h[c] = t;
        i = c;
    }
}

/* Keep the best tokens until k of them or their share reaches top_p; others get prob 0.
 * Returns the sum of what is kept. */
static double keep_best(hy_sample_ws *w, int32_t n, int32_t k, double top_p)
{
    int32_t *h = w->heap;
    double *p = w->prob;
    int32_t m = 0;
    double total = 0.0;
    for (int32_t i = 0; i < n; i++)
        if (p[i] > 0.0)
            h[m++] = i;
    for (int32_t i = m / 2 - 1; i >= 0; i--)
        sift(h, m, i, p);
    /* top-k first: its sum is what top-p is a share of. Popped ids go to the array's end. */
    int32_t kept = 0, left = m;
    if (k <= 0 || k > m)
        k = m;
    if (k == m)
        for (int32_t i = 0; i < n; i++)
            total += p[i];
    double sum = 0.0;
    double limit = k == m ? top_p * total : INFINITY;
    while (kept < k && sum < limit) {
        int32_t best = h[0];
        h[0] = h[--left];
        h[left] = best;
        sift(h, left, 0, p);
        sum += p[best];
        kept++;
    }
    if (k < m && top_p < 1.0) { /* now top-p among the k */
        total = sum;
        sum = 0.0;
        int32_t i = 0;
        while (i < kept && sum < top_p * total)
            sum += p[h[m - 1 - i++]];
        left += kept - i;
        kept = i;
    }
    for (int32_t i = 0; i < m - kept; i++)
        p[h[i]] = 0.0;
    return sum;
}

/* Draw from softmax(l / temperature) after the filters. */
static int32_t draw(const hy_sampler *s, hy_sample_ws *w, const float *l, int32_t best, int32_t pos)
{
    const int32_t n = s->vocab;
    const double inv_t = 1.0 / (double)s->p.temperature;
    const double top = (double)l[best];
    double total = 0.0;
    for (int32_t i = 0; i < n; i++)
        w->prob[i] = hy_exp64(((double)l[i] - top) * inv_t);
    if (s->p.min_p > 0.0f)
        for (int32_t i = 0; i < n; i++)
            if (w->prob[i] < (double)s->p.min_p)
                w->prob[i] = 0.0;
    if (s->p.top_k > 0 || s->p.top_p < 1.0f)
        keep_best(w, n, s->p.top_k, (double)s->p.top_p);
    for (int32_t i = 0; i < n; i++)
        total += w->prob[i];
    double u = hy_rng_f64_at(s->p.seed, (uint64_t)s->choice, (uint64_t)pos, 0) * total;
    double sum = 0.0;
    int32_t last = best;
    for (int32_t i = 0; i < n; i++) {
        if (w->prob[i] <= 0.0)
            continue;
        sum += w->prob[i];
        last = i;
        if (u < sum)
            break;
    }
    return last;
}

void hy_sample_score(const float *logits, float lse, int32_t vocab, int32_t target, int32_t n_top,
                     hy_token_out *out, int32_t *top_ids, float *top_lps)
{
    int32_t rank = 1, n = 0;
    const float t = logits[target];
    for (int32_t i = 0; i < vocab; i++) {
        float v = logits[i];
        rank += v > t;
        if (n_top <= 0 || (n == n_top && !(v > top_lps[n - 1])))
            continue;
        int32_t j = n < n_top ? n++ : n - 1;
        for (; j > 0 && v > top_lps[j - 1]; j--) {
            top_lps[j] = top_lps[j - 1];
            top_ids[j] = top_ids[j - 1];
        }
        top_lps[j] = v;
        top_ids[j] = i;
    }
    for (int32_t i = 0; i < n; i++)
        top_lps[i] -= lse;
    *out = (hy_token_out){.id = target,
                          .rank = rank,
                          .logprob = t - lse,
                          .n_top = n,
                          .top_ids = top_ids,
                          .top_lps = top_lps};
}

hy_status hy_sampler_draw(hy_sampler *s, hy_sample_ws *w, const float *logits, float lse,
                          int32_t pos, hy_token_out *out, int32_t *top_ids, float *top_lps)
{
    HY_ASSERT(w->vocab >= s->vocab);
    const float *l = changes_logits(s, pos) ? changed(s, w, logits, pos) : logits;
    int32_t id = argmax(l, s->vocab);
    if (id == -2)
        return hy_fail(HY_E_INVAL, "the model gave a NaN instead of a logit");
    if (id < 0)
        return hy_fail(HY_E_INVAL, "no token can be sampled: every logit is -inf or one is +inf");
    if (s->p.temperature > 0.0f)
        id = draw(s, w, l, id, pos);
    if (s->p.logprobs >= 0)
        hy_sample_score(logits, lse, s->vocab, id, s->p.logprobs, out, top_ids, top_lps);
    else
        *out = (hy_token_out){.id = id};
    return HY_OK;
}
