/* SPDX-License-Identifier: Apache-2.0
 *
 * Log-probabilities in the forms of chat, completions, and vLLM's prompt_logprobs.
 *
 * Thread: out stage.  Owner: see out_int.h.
 */
#include "core/http/out_int.h"

#include "core/http/json_out.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool hy_lps__add(hy_lps *l, const hy_ev *ev, const hy_evs *from)
{
    if (l->n == l->cap) {
        size_t cap = l->cap * 2 + 8;
        hy_lp *p = realloc(l->v, cap * sizeof(*p));
        if (p == NULL)
            return false;
        l->v = p;
        l->cap = cap;
    }
    if (l->n_top + ev->n_top > l->cap_top) {
        size_t cap = (l->n_top + ev->n_top) * 2 + 8;
        int32_t *a = realloc(l->top_id, cap * sizeof(*a));
        if (a == NULL)
            return false;
        l->top_id = a;
        float *b = realloc(l->top_lp, cap * sizeof(*b));
        if (b == NULL)
            return false;
        l->top_lp = b;
        l->cap_top = cap;
    }
    l->v[l->n++] = (hy_lp){ev->id, ev->rank, ev->lp, (uint32_t)l->n_top, ev->n_top};
    if (ev->n_top != 0) {
        memcpy(l->top_id + l->n_top, from->top_id + ev->top_at, ev->n_top * sizeof(int32_t));
        memcpy(l->top_lp + l->n_top, from->top_lp + ev->top_at, ev->n_top * sizeof(float));
        l->n_top += ev->n_top;
    }
    return true;
}

void hy_lps__clear(hy_lps *l)
{
    l->n = 0;
    l->n_top = 0;
}

void hy_lps__fini(hy_lps *l)
{
    free(l->v);
    free(l->top_id);
    free(l->top_lp);
    memset(l, 0, sizeof(*l));
}

/* The token's text as answers show it, in t (cleared first). */
static void token_text(const hy_http *h, const hy_call *c, int32_t id, hy_buf *t)
{
    hy_buf_clear(t);
    if (c != NULL && c->q.tokens_as_ids)
        hy_buf_printf(t, "token_id:%d", (int)id);
    else
        hy_tok_piece(h->o.tok, id, false, t);
}

static void chat_token(const hy_http *h, const hy_call *c, int32_t id, float lp, hy_buf *t,
                       hy_buf *b)
{
    token_text(h, c, id, t);
    hy_buf_puts(b, "{\"token\":");
    hy_json_str(b, hy_buf_str(t), t->len);
    hy_buf_puts(b, ",\"logprob\":");
    hy_json_lp(b, lp);
    hy_buf_puts(b, ",\"bytes\":");
    hy_json_bytes(b, hy_buf_str(t), t->len);
}

void hy_out__chat_lps(const hy_http *h, const hy_call *c, const hy_lps *l, hy_buf *b)
{
    hy_buf t;
    hy_buf_init(&t);
    hy_buf_puts(b, "{\"content\":[");
    for (size_t i = 0; i < l->n; i++) {
        const hy_lp *x = &l->v[i];
        if (i != 0)
            hy_buf_putc(b, ',');
        chat_token(h, c, x->id, x->lp, &t, b);
        hy_buf_puts(b, ",\"top_logprobs\":[");
        for (uint32_t k = 0; k < x->n_top && (int32_t)k < c->q.s.logprobs; k++) {
            if (k != 0)
                hy_buf_putc(b, ',');
            chat_token(h, c, l->top_id[x->top_at + k], l->top_lp[x->top_at + k], &t, b);
            hy_buf_putc(b, '}');
        }
        hy_buf_puts(b, "]}");
    }
    hy_buf_puts(b, "]}");
    hy_buf_fini(&t);
}

/* ---- completions: four arrays ---- */

typedef struct arrays {
    hy_buf offset, lp, token, top;
    size_t at; /* characters so far */
    size_t n;
} arrays;

/* {" Paris": -0.26, ...}: the token itself, then the alternatives; one entry a text. */
static void top_object(const hy_http *h, const hy_call *c, const hy_lps *l, const hy_lp *x,
                       hy_buf *t, hy_buf *b)
{
    hy_buf keys; /* those written: "\n" key "\n" ...; no JSON string holds a raw line end */
    hy_buf_init(&keys);
    hy_buf_puts(&keys, "\n");
    hy_buf_putc(b, '{');
    for (uint32_t k = 0; k <= x->n_top; k++) {
        if (k > 0 && l->top_id[x->top_at + k - 1] == x->id)
            continue;
        size_t from = keys.len - 1; /* at the "\n" before the new key */
        token_text(h, c, k == 0 ? x->id : l->top_id[x->top_at + k - 1], t);
        hy_json_str(&keys, hy_buf_str(t), t->len);
        hy_buf_putc(&keys, '\n');
        if (keys.failed)
            break;
        const char *key = keys.data + from;
        size_t key_len = keys.len - from;
        if (memmem(keys.data, from + 1, key, key_len) != NULL) {
            keys.len = from + 1;
            continue;
        }
        if (k != 0)
            hy_buf_putc(b, ',');
        hy_buf_add(b, key + 1, key_len - 2);
        hy_buf_putc(b, ':');
        hy_json_lp(b, k == 0 ? x->lp : l->top_lp[x->top_at + k - 1]);
    }
    hy_buf_putc(b, '}');
    hy_buf_fini(&keys);
}

static void add_entry(const hy_http *h, const hy_call *c, arrays *a, const hy_lps *l,
                      const hy_lp *x, int32_t id, hy_buf *t)
{
    const char *sep = a->n++ == 0 ? "" : ",";
    hy_buf_printf(&a->offset, "%s%zu", sep, a->at);
    hy_buf_puts(&a->lp, sep);
    hy_buf_puts(&a->token, sep);
    hy_buf_puts(&a->top, sep);
    token_text(h, c, id, t);
    hy_json_str(&a->token, hy_buf_str(t), t->len);
    a->at += hy_json_n_chars(hy_buf_str(t), t->len);
    if (x == NULL) {
        hy_buf_puts(&a->lp, "null");
        hy_buf_puts(&a->top, "null");
        return;
    }
    hy_json_lp(&a->lp, x->lp);
    top_object(h, c, l, x, t, &a->top);
}

static void append_array(hy_buf *b, const char *name, hy_buf *from)
{
    hy_buf_printf(b, "%s:[", name);
    if (from->len != 0)
        hy_buf_add(b, from->data, from->len);
    hy_buf_putc(b, ']');
    b->failed |= from->failed;
    hy_buf_fini(from);
}

void hy_out__text_lps(const hy_http *h, const hy_call *c, hy_choice *x, const hy_prompt *prompt,
                      const hy_lps *prompt_lps, hy_buf *b)
{
    arrays a = {.at = x->text_offset};
    hy_buf t;
    hy_buf_init(&t);
    if (prompt != NULL) {
        size_t missing = (size_t)prompt->n > prompt_lps->n ? (size_t)prompt->n - prompt_lps->n : 0;
        for (size_t i = 0; i < (size_t)prompt->n; i++) {
            const hy_lp *lp = i < missing ? NULL : &prompt_lps->v[i - missing];
            add_entry(h, c, &a, prompt_lps, lp, prompt->ids[i], &t);
        }
    }
    for (size_t i = 0; i < x->lps.n; i++)
        add_entry(h, c, &a, &x->lps, &x->lps.v[i], x->lps.v[i].id, &t);
    x->text_offset = a.at;
    hy_buf_putc(b, '{');
    append_array(b, "\"text_offset\"", &a.offset);
    append_array(b, ",\"token_logprobs\"", &a.lp);
    append_array(b, ",\"tokens\"", &a.token);
    append_array(b, ",\"top_logprobs\"", &a.top);
    hy_buf_putc(b, '}');
    hy_buf_fini(&t);
}

/* ---- vLLM's prompt_logprobs ---- */

static void ranked(const hy_http *h, int32_t id, int32_t rank, float lp, hy_buf *t, hy_buf *b)
{
    token_text(h, NULL, id, t);
    hy_buf_printf(b, "\"%d\":{\"logprob\":", (int)id);
    hy_json_lp(b, lp);
    hy_buf_printf(b, ",\"rank\":%d,\"decoded_token\":", (int)rank);
    hy_json_str(b, hy_buf_str(t), t->len);
    hy_buf_putc(b, '}');
}

void hy_out__prompt_lps(const hy_http *h, const hy_lps *l, hy_buf *b)
{
    hy_buf t;
    hy_buf_init(&t);
    hy_buf_puts(b, "[null");
    for (size_t i = 0; i < l->n; i++) {
        const hy_lp *x = &l->v[i];
        hy_buf_puts(b, ",{");
        ranked(h, x->id, x->rank, x->lp, &t, b);
        for (uint32_t k = 0; k < x->n_top; k++) {
            int32_t id = l->top_id[x->top_at + k];
            if (id == x->id)
                continue;
            hy_buf_putc(b, ',');
            ranked(h, id, (int32_t)k + 1, l->top_lp[x->top_at + k], &t, b);
        }
        hy_buf_putc(b, '}');
    }
    hy_buf_putc(b, ']');
    hy_buf_fini(&t);
}
