/* SPDX-License-Identifier: Apache-2.0
 *
 * Decoding, the streaming detokeniser, and questions about the vocabulary.
 *
 * Thread: any; a hy_detok has one user.  Owner: the caller.
 */
#include "core/text/tok_int.h"
#include "core/text/utf8.h"

#include <string.h>

static bool skipped(const hy_tok *t, int32_t id)
{
    return t->tok[id].type == TOK_CONTROL || t->tok[id].type == TOK_UNKNOWN;
}

hy_status hy_tok_piece(const hy_tok *t, int32_t id, bool skip_special, hy_buf *out)
{
    if (id < 0 || id >= t->n_vocab)
        return hy_fail(HY_E_INVAL, "token id %d is outside of the vocabulary of %d", id,
                       t->n_vocab);
    if (!(skip_special && skipped(t, id)) && t->tok[id].piece_len != 0)
        hy_buf_add(out, t->pieces.data + t->tok[id].piece_off, t->tok[id].piece_len);
    return out->failed ? hy_fail(HY_E_NOMEM, "no memory for text") : HY_OK;
}

hy_status hy_tok_decode(const hy_tok *t, const int32_t *ids, size_t n, bool skip_special,
                        hy_buf *out)
{
    size_t start = out->len;
    for (size_t i = 0; i < n; i++) {
        hy_status st = hy_tok_piece(t, ids[i], skip_special, out);
        if (st < 0) {
            if (!out->failed)
                out->len = start;
            return st;
        }
    }
    if (t->strip_prefix && out->len > start && out->data[start] == ' ') {
        memmove(out->data + start, out->data + start + 1, out->len - start);
        out->len--;
    }
    return HY_OK;
}

void hy_detok_init(hy_detok *d, const hy_tok *t, bool skip_special)
{
    d->tok = t;
    d->skip_special = skip_special;
    d->started = true;
    hy_buf_init(&d->pend);
}

void hy_detok_fini(hy_detok *d)
{
    hy_buf_fini(&d->pend);
}

/* Move what is certain from pend to out. */
static void settle(hy_detok *d, bool end, hy_buf *out)
{
    const char *p = hy_buf_str(&d->pend);
    size_t i = 0, len = d->pend.len;
    while (i < len) {
        size_t bad = 1;
        bool cut = false;
        size_t n = hy_utf8_next(p + i, len - i, &bad, &cut);
        if (n != 0) {
            hy_buf_add(out, p + i, n);
        } else if (cut && !end) {
            break; /* the next token may complete it */
        } else {
            hy_buf_add(out, "\xef\xbf\xbd", 3);
            n = bad;
        }
        i += n;
    }
    hy_buf_drop(&d->pend, i);
}

hy_status hy_detok_push(hy_detok *d, int32_t id, hy_buf *out)
{
    size_t before = d->pend.len;
    HY_TRY(hy_tok_piece(d->tok, id, d->skip_special, &d->pend));
    if (!d->started && d->pend.len > before) {
        d->started = true;
        if (d->tok->strip_prefix && d->pend.data[0] == ' ')
            hy_buf_drop(&d->pend, 1);
    }
    settle(d, false, out);
    return out->failed ? hy_fail(HY_E_NOMEM, "no memory for text") : HY_OK;
}

hy_status hy_detok_flush(hy_detok *d, hy_buf *out)
{
    settle(d, true, out);
    return out->failed ? hy_fail(HY_E_NOMEM, "no memory for text") : HY_OK;
}

const char *hy_tok_token_text(const hy_tok *t, int32_t id)
{
    return id >= 0 && id < t->n_vocab ? t->text.data + t->tok[id].text_off : NULL;
}

int32_t hy_tok_lookup(const hy_tok *t, const char *text)
{
    int32_t id = hy_tok__find(t, text, strlen(text));
    return id < t->n_vocab ? id : -1;
}

int32_t hy_tok_n_vocab(const hy_tok *t)
{
    return t->n_vocab;
}

int32_t hy_tok_bos(const hy_tok *t)
{
    return t->bos;
}

int32_t hy_tok_eos(const hy_tok *t)
{
    return t->eos;
}

bool hy_tok_adds_bos(const hy_tok *t)
{
    return t->adds_bos;
}

bool hy_tok_is_special(const hy_tok *t, int32_t id)
{
    return id >= 0 && id < t->n_vocab && skipped(t, id);
}

bool hy_tok_is_eog(const hy_tok *t, int32_t id)
{
    return id >= 0 && id < t->n_vocab && t->tok[id].eog;
}

const int32_t *hy_tok_eogs(const hy_tok *t, size_t *n_out)
{
    *n_out = t->n_eogs;
    return t->eogs;
}

const char *hy_tok_chat_template(const hy_tok *t)
{
    return t->chat_template;
}

const char *hy_tok_describe(const hy_tok *t)
{
    return t->describe;
}
