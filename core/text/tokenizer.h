/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokenisers: text to token ids and back, from a GGUF vocabulary or a Hugging Face tokenizer.json.
 * Kinds: byte-level BPE with a pre-tokeniser pattern, SentencePiece-style BPE with scores and byte
 * fallback (GGUF "llama"), and what tokenizer.json describes.
 *
 * Thread: any after creation (immutable; encode uses the caller's scratch or its own).
 * Owner: the caller destroys; returned strings are borrowed.
 */
#ifndef HY_TEXT_TOKENIZER_H
#define HY_TEXT_TOKENIZER_H

#include "core/base/buf.h"
#include "core/base/status.h"
#include "core/model/gguf.h"

typedef struct hy_tok hy_tok;

/* HY_E_UNSUPPORTED names an unknown model or pre-tokeniser. Copies what it needs out of g. */
hy_status hy_tok_from_gguf(const hy_gguf *g, hy_tok **out);
/* Folder with tokenizer.json (and tokenizer_config.json, generation_config.json, config.json when
 * there) as published on Hugging Face. */
hy_status hy_tok_from_folder(const char *folder, hy_tok **out);
void hy_tok_destroy(hy_tok *t);

typedef struct hy_tok_ids {
    int32_t *ids;
    size_t n, cap;
} hy_tok_ids;
void hy_tok_ids_fini(hy_tok_ids *v);

enum {
    HY_TOK_ADD_SPECIAL = 1,   /* BOS/EOS as the model says */
    HY_TOK_PARSE_SPECIAL = 2, /* "<|im_end|>" in the text becomes its token */
};
/* Append the ids of text (any bytes; what is not UTF-8 becomes U+FFFD where the vocabulary cannot
 * spell it). HY_E_LIMIT when over max_ids (0: no limit), for a text above 1 GiB, or when a pattern
 * of the file backtracks without end; on failure nothing is appended. */
hy_status hy_tok_encode(const hy_tok *t, const char *text, size_t len, int flags, size_t max_ids,
                        hy_tok_ids *out);
/* Bytes of one token as it stands in running text. Specials give their mark ("<|im_end|>") unless
 * skip_special. Unknown ids append nothing and return HY_E_INVAL. */
hy_status hy_tok_piece(const hy_tok *t, int32_t id, bool skip_special, hy_buf *out);
/* Decode a whole sequence (strips the SentencePiece space prefix where the model has one). Bytes as
 * the tokens say: byte tokens may spell what is not UTF-8 (see hy_utf8_replace_runs). */
hy_status hy_tok_decode(const hy_tok *t, const int32_t *ids, size_t n, bool skip_special,
                        hy_buf *out);
/* The vocabulary's own spelling of a token ("Ġthe", "▁the", "<0x0A>"); NULL if out of range. */
const char *hy_tok_token_text(const hy_tok *t, int32_t id);
/* Id of an exact vocabulary entry, -1 if none. */
int32_t hy_tok_lookup(const hy_tok *t, const char *text);

int32_t hy_tok_n_vocab(const hy_tok *t);
int32_t hy_tok_bos(const hy_tok *t); /* -1: none */
int32_t hy_tok_eos(const hy_tok *t);
bool hy_tok_adds_bos(const hy_tok *t);
bool hy_tok_is_special(const hy_tok *t, int32_t id);
/* End of generation: EOS, EOT, and generation_config.json's eos_token_id list. */
bool hy_tok_is_eog(const hy_tok *t, int32_t id);
/* All end-of-generation ids; *n_out of them. Borrowed. */
const int32_t *hy_tok_eogs(const hy_tok *t, size_t *n_out);
/* The chat template that came with the vocabulary or folder; NULL when none. */
const char *hy_tok_chat_template(const hy_tok *t);
/* A one-line description for `inspect` and the log: "bpe/qwen2, 151936 tokens". */
const char *hy_tok_describe(const hy_tok *t);

/* Streaming detokeniser: feeds token ids, gives out only whole UTF-8 characters. */
typedef struct hy_detok {
    const hy_tok *tok;
    hy_buf pend; /* bytes of an unfinished character, or held back */
    bool skip_special;
    bool started; /* false: the next text begins a sequence, and its space prefix goes */
} hy_detok;
/* Starts as a continuation of a prompt. */
void hy_detok_init(hy_detok *d, const hy_tok *t, bool skip_special);
void hy_detok_fini(hy_detok *d);
/* Append to out the text that became certain, always whole UTF-8 characters; a bad sequence becomes
 * one U+FFFD. After prompt ids, the first piece keeps its space. */
hy_status hy_detok_push(hy_detok *d, int32_t id, hy_buf *out);
/* End of stream: what is pending becomes U+FFFD. */
hy_status hy_detok_flush(hy_detok *d, hy_buf *out);

#endif
