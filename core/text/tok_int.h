/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the tokeniser. Both sources (GGUF, tokenizer.json) are compiled to one pipeline:
 *
 *   text -> marks of set 0 -> normaliser -> marks of set 1 -> pre-tokeniser -> BPE -> ids
 *
 * A mark is a token found by its text before anything else ("<|im_end|>", runs of spaces).
 *
 * Thread: built by one thread, then immutable.  Owner: hy_tok.
 */
#ifndef HY_TEXT_TOK_INT_H
#define HY_TEXT_TOK_INT_H

#define PCRE2_CODE_UNIT_WIDTH 8

#include "core/base/buf.h"
#include "core/text/tokenizer.h"

#include <jansson.h>
#include <pcre2.h>
#include <stdatomic.h>

/* Numbers as in tokenizer.ggml.token_type. */
enum {
    TOK_NORMAL = 1,
    TOK_UNKNOWN = 2,
    TOK_CONTROL = 3,
    TOK_USER = 4,
    TOK_UNUSED = 5,
    TOK_BYTE = 6,
};

typedef struct tok_entry {
    uint32_t text_off, text_len;   /* in hy_tok.text; NUL follows */
    uint32_t piece_off, piece_len; /* in hy_tok.pieces: what it decodes to */
    uint8_t type;
    bool eog;
} tok_entry;

/* A mark, with Hugging Face's AddedToken flags. */
typedef struct tok_mark {
    uint32_t off, len; /* in tok_marks.text */
    int32_t id;
    bool special, lstrip, rstrip, single_word;
} tok_mark;

typedef struct tok_marks {
    hy_buf text;
    tok_mark *v; /* sorted by text after hy_tok__marks_sort */
    size_t n, cap;
    uint32_t first[257]; /* range of v whose text begins with byte b: first[b]..first[b+1] */
} tok_marks;

typedef struct tok_merge { /* slot of the merge table; left < 0: empty */
    int32_t left, right, into;
    uint32_t rank;
} tok_merge;

typedef struct tok_regex {
    pcre2_code *code;
} tok_regex;

typedef enum tok_behavior {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_WITH_PREVIOUS,
    SPLIT_WITH_NEXT,
    SPLIT_CONTIGUOUS,
} tok_behavior;

typedef enum tok_step_kind {
    /* normalisers */
    STEP_NFC,
    STEP_NFD,
    STEP_NFKC,
    STEP_NFKD,
    STEP_LOWER,
    STEP_PREPEND, /* a */
    STEP_REPLACE, /* a by b; or regex by b */
    STEP_STRIP,   /* left, right */
    /* pre-tokenisers */
    STEP_SPLIT,        /* regex or text a; behavior, invert */
    STEP_PREFIX_SPACE, /* a: before a piece that does not begin with a space */
    STEP_METASPACE,    /* a: the replacement; prepend; left: split */
} tok_step_kind;

enum { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS };

typedef struct tok_step {
    tok_step_kind kind;
    tok_behavior behavior;
    bool invert, left, right;
    int prepend;
    tok_regex re;
    char *a, *b; /* owned; may hold any bytes but NUL */
    size_t a_len, b_len;
} tok_step;

typedef struct tok_steps {
    tok_step *v;
    size_t n, cap;
} tok_steps;

struct hy_tok {
    /* vocabulary: ids below n_vocab are tokens, those above are symbols that merges pass through */
    tok_entry *tok;
    int32_t n_vocab, n_sym, cap_sym;
    hy_buf text, pieces;
    int32_t *slots; /* hash table of ids, -1: empty */
    uint32_t n_slots;
    uint32_t max_len; /* bytes of the longest text */

    tok_merge *merges;
    uint32_t n_merge_slots, n_merges;
    _Atomic uint8_t *whole; /* [n_vocab]; what merging a token's own text gives: tok_bpe.c */
    uint32_t *score_rank;   /* score vocabularies: smaller merges first; NULL otherwise */

    bool byte_level;    /* symbols are bytes, spelt by GPT-2's printable alphabet */
    bool by_score;      /* SentencePiece: pairs by text and score */
    bool byte_fallback; /* unknown characters become <0xXX> tokens */
    bool ignore_merges; /* a word that is a token is that token */
    bool newline_words; /* so is a word of newlines only */
    bool fuse_unk;
    bool keep_invalid;    /* bytes that are no UTF-8 can be spelt */
    bool keep_surrogates; /* so can UTF-8 forms of U+D800..U+DFFF, which are no UTF-8 */
    bool escape_space;    /* ' ' becomes U+2581 before the model */
    bool prefix_space;    /* a section of text gets a space before it */
    bool strip_prefix;    /* decoding drops one space at the beginning */
    int32_t byte_sym[256];
    int32_t unk;

    tok_marks marks[2]; /* on the raw text; on the normalised text */
    tok_steps norm, pre;

    int32_t bos, eos;
    bool adds_bos;
    int32_t *prefix, *suffix; /* ids around a text with HY_TOK_ADD_SPECIAL */
    size_t n_prefix, n_suffix;
    int32_t *eogs;
    size_t n_eogs;
    char *chat_template;
    char describe[160];
};

/* tok_vocab.c */
hy_tok *hy_tok__new(void);
hy_status hy_tok__resize(hy_tok *t, int32_t n_vocab);
hy_status hy_tok__set(hy_tok *t, int32_t id, const char *text, size_t len, int type);
/* Any id by its text, -1 if none; and only what may be made out of plain text. */
int32_t hy_tok__find(const hy_tok *t, const char *text, size_t len);
int32_t hy_tok__find_plain(const hy_tok *t, const char *text, size_t len);
/* Id of a text, as a new symbol above the vocabulary if need be. */
hy_status hy_tok__intern(hy_tok *t, const char *text, size_t len, int32_t *out);
hy_status hy_tok__merges_reserve(hy_tok *t, size_t n);
hy_status hy_tok__merge_add(hy_tok *t, int32_t left, int32_t right, int32_t into, uint32_t rank);
const tok_merge *hy_tok__merge_find(const hy_tok *t, int32_t left, int32_t right);
hy_status hy_tok__set_scores(hy_tok *t, const float *scores);
/* GPT-2's alphabet: code point of a byte, and back (-1: none). */
uint32_t hy_tok__byte_to_cp(uint8_t b);
int hy_tok__cp_to_byte(uint32_t cp);
/* Fill byte_sym from the alphabet, or from <0xXX> tokens. */
hy_status hy_tok__index_bytes(hy_tok *t);
/* "<0x0A>": the byte, or -1. */
int hy_tok__byte_token(const char *text, size_t len);
/* What tokens decode to: byte tokens their byte, the others through the byte alphabet or through
 * the replacements of dec (STEP_REPLACE of texts only). */
hy_status hy_tok__make_pieces(hy_tok *t, const tok_steps *dec, bool byte_level);
hy_status hy_tok__add_eog(hy_tok *t, int32_t id);
/* EOG by well-known names, for sources that do not say. */
hy_status hy_tok__eogs_by_name(hy_tok *t);

/* tok_marks.c */
hy_status hy_tok__mark_add(tok_marks *m, const char *text, size_t len, const tok_mark *flags);
hy_status hy_tok__marks_sort(tok_marks *m);
/* The longest mark at p that is allowed; NULL if none. */
const tok_mark *hy_tok__mark_at(const tok_marks *m, const char *p, size_t len, bool special);

/* tok_split.c */
/* Inside of a class: what \w is in tokenizer.json's dialects (Alphabetic, marks, decimal digits,
 * connectors; the ranges are letters in circles and squares, whose category is So). */
#define TOK_WORD                                                                                   \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}"                    \
    "\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"
/* Oniguruma's syntax as tokenizer.json uses it, translated to PCRE2. */
hy_status hy_tok__regex(const char *pattern, size_t len, tok_regex *out);
hy_status hy_tok__step_add(tok_steps *s, tok_step_kind kind, tok_step **out);
hy_status hy_tok__step_split(tok_steps *s, const char *pattern, size_t len, bool literal,
                             tok_behavior behavior, bool invert);
void hy_tok__steps_fini(tok_steps *s);
void hy_tok__regex_fini(tok_regex *r);

typedef struct tok_piece {
    uint32_t off, len;
} tok_piece;
typedef struct tok_pieces {
    tok_piece *v;
    size_t n, cap;
} tok_pieces;
typedef struct tok_work { /* one encode's memory */
    hy_buf text, text2;
    tok_pieces pieces, pieces2;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    void *syms, *heap;
    size_t cap_syms, cap_heap, n_heap;
} tok_work;
void hy_tok__work_fini(tok_work *w);
/* One match at or after `from`: 1 and the range, 0 none, negative a failure. */
int hy_tok__match(tok_work *w, const tok_regex *r, const char *p, size_t len, size_t from,
                  size_t *start, size_t *end);
hy_status hy_tok__normalise(const tok_steps *s, tok_work *w, const char *p, size_t len,
                            hy_buf *out);
/* w->text into w->pieces. first: the section begins the text. */
hy_status hy_tok__pretokenise(const hy_tok *t, tok_work *w, bool first);

/* tok_bpe.c */
hy_status hy_tok__bpe(const hy_tok *t, tok_work *w, const char *p, size_t len, size_t max_ids,
                      hy_tok_ids *out);
hy_status hy_tok__push(hy_tok_ids *v, int32_t id, size_t max_ids);

hy_status hy_tok__step_text(const char *text, size_t len, char **out, size_t *len_out);

/* tok_pipe.c: the parts of tokenizer.json around its model; *_out are what the file says */
hy_status hy_tok__json_normaliser(hy_tok *t, const json_t *j);
hy_status hy_tok__json_pretokeniser(hy_tok *t, const json_t *j);
hy_status hy_tok__json_decoder(hy_tok *t, const json_t *j, tok_steps *dec, bool *byte_level_out);
hy_status hy_tok__json_postprocessor(hy_tok *t, const json_t *j);
hy_status hy_tok__set_ids(int32_t id, int32_t **out, size_t *n);

/* tok_json.c: tokenizer.json alone (tests, fuzzing) */
hy_status hy_tok__from_json(const char *text, size_t len, hy_tok **out);

/* tok_pre.c */
typedef struct tok_pre {
    const char *name;
    const char *patterns[7];
    bool ignore_merges, add_bos;
} tok_pre;
const tok_pre *hy_tok__pre(const char *name, size_t len);
extern const char hy_tok__gpt2_pattern[];

#endif
