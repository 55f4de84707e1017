/* SPDX-License-Identifier: Apache-2.0
 *
 * tokenizer.json around its model: normaliser, pre-tokeniser, decoder, post-processor. What is not
 * understood is refused by name, so that no text is ever tokenised almost right.
 *
 * Thread: one builds.  Owner: hy_tok.
 * Source: Hugging Face tokenizers, the serialised form of its components.
 */
#include "core/text/tok_int.h"

#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 8 };

#define JOINERS "\\x{200c}\\x{200d}" /* words have them in the Whitespace step alone */

static const char *str(const json_t *j, const char *key)
{
    const char *s = json_string_value(json_object_get(j, key));
    return s != NULL ? s : "";
}

static size_t str_len(const json_t *j, const char *key)
{
    return json_string_length(json_object_get(j, key));
}

static bool flag(const json_t *j, const char *key, bool absent)
{
    const json_t *v = json_object_get(j, key);
    return json_is_boolean(v) ? json_is_true(v) : absent;
}

static hy_status refuse(const char *part, const char *type)
{
    return hy_fail(HY_E_UNSUPPORTED, "tokenizer.json: %s \"%.64s\" is not supported", part, type);
}

/* {"Regex": "..."} or {"String": "..."}; a plain string is the older form of the latter. */
static hy_status pattern_of(const json_t *j, const char **p, size_t *len, bool *literal)
{
    const json_t *v = json_object_get(j, "pattern");
    const json_t *re = json_object_get(v, "Regex"), *s = json_object_get(v, "String");
    if (json_is_string(v))
        s = v;
    const json_t *use = re != NULL ? re : s;
    if (!json_is_string(use))
        return hy_fail(HY_E_FORMAT, "tokenizer.json: a pattern is neither Regex nor String");
    *literal = re == NULL;
    *p = json_string_value(use);
    *len = json_string_length(use);
    return HY_OK;
}

static hy_status add_replace(tok_steps *s, const json_t *j, bool decoder)
{
    tok_step *k = NULL;
    const char *p = NULL;
    size_t len = 0;
    bool literal = false;
    HY_TRY(pattern_of(j, &p, &len, &literal));
    if (decoder && !literal)
        return refuse("decoder", "Replace with Regex");
    HY_TRY(hy_tok__step_add(s, STEP_REPLACE, &k));
    HY_TRY(hy_tok__step_text(str(j, "content"), str_len(j, "content"), &k->b, &k->b_len));
    if (literal)
        return hy_tok__step_text(p, len, &k->a, &k->a_len);
    return hy_tok__regex(p, len, &k->re);
}

static hy_status normaliser(hy_tok *t, const json_t *j, int depth)
{
    static const struct {
        const char *name;
        tok_step_kind kind;
    } plain[] = {{"NFC", STEP_NFC},
                 {"NFD", STEP_NFD},
                 {"NFKC", STEP_NFKC},
                 {"NFKD", STEP_NFKD},
                 {"Lowercase", STEP_LOWER}};
    const char *type = str(j, "type");
    tok_step *k = NULL;
    if (j == NULL || json_is_null(j))
        return HY_OK;
    if (depth > DEPTH_MAX)
        return hy_fail(HY_E_LIMIT, "tokenizer.json: normalizers are nested too deep");
    for (size_t i = 0; i < HY_COUNTOF(plain); i++)
        if (strcmp(type, plain[i].name) == 0)
            return hy_tok__step_add(&t->norm, plain[i].kind, &k);
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(j, "normalizers");
        for (size_t i = 0; i < json_array_size(list); i++)
            HY_TRY(normaliser(t, json_array_get(list, i), depth + 1));
        return HY_OK;
    }
    if (strcmp(type, "Prepend") == 0) {
        HY_TRY(hy_tok__step_add(&t->norm, STEP_PREPEND, &k));
        return hy_tok__step_text(str(j, "prepend"), str_len(j, "prepend"), &k->a, &k->a_len);
    }
    if (strcmp(type, "Strip") == 0) {
        HY_TRY(hy_tok__step_add(&t->norm, STEP_STRIP, &k));
        k->left = flag(j, "strip_left", true);
        k->right = flag(j, "strip_right", true);
        return HY_OK;
    }
    if (strcmp(type, "Replace") == 0)
        return add_replace(&t->norm, j, false);
    return refuse("normalizer", type);
}

hy_status hy_tok__json_normaliser(hy_tok *t, const json_t *j)
{
    return normaliser(t, j, 0);
}

static hy_status behavior_of(const json_t *j, tok_behavior *out)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *name = str(j, "behavior");
    for (size_t i = 0; i < HY_COUNTOF(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (tok_behavior)i;
            return HY_OK;
        }
    }
    return refuse("behavior", name);
}

static hy_status regex_step(hy_tok *t, const char *p, tok_behavior b, bool invert)
{
    return hy_tok__step_split(&t->pre, p, strlen(p), false, b, invert);
}

static hy_status pre_byte_level(hy_tok *t, const json_t *j)
{
    tok_step *k = NULL;
    t->byte_level = true;
    if (flag(j, "add_prefix_space", true)) {
        HY_TRY(hy_tok__step_add(&t->pre, STEP_PREFIX_SPACE, &k));
        HY_TRY(hy_tok__step_text(" ", 1, &k->a, &k->a_len));
    }
    if (!flag(j, "use_regex", true))
        return HY_OK;
    return regex_step(t, hy_tok__gpt2_pattern, SPLIT_ISOLATED, false);
}

static hy_status pre_metaspace(hy_tok *t, const json_t *j)
{
    tok_step *k = NULL;
    const char *scheme = str(j, "prepend_scheme");
    HY_TRY(hy_tok__step_add(&t->pre, STEP_METASPACE, &k));
    k->left = flag(j, "split", true);
    if (strcmp(scheme, "never") == 0 || !flag(j, "add_prefix_space", true))
        k->prepend = PREPEND_NEVER;
    else if (strcmp(scheme, "first") == 0)
        k->prepend = PREPEND_FIRST;
    else if (strcmp(scheme, "always") == 0 || scheme[0] == '\0')
        k->prepend = PREPEND_ALWAYS;
    else
        return refuse("prepend_scheme", scheme);
    if (str_len(j, "replacement") == 0)
        return hy_fail(HY_E_FORMAT, "tokenizer.json: Metaspace without a replacement");
    return hy_tok__step_text(str(j, "replacement"), str_len(j, "replacement"), &k->a, &k->a_len);
}

static hy_status pretokeniser(hy_tok *t, const json_t *j, int depth)
{
    const char *type = str(j, "type");
    tok_behavior b = SPLIT_ISOLATED;
    if (j == NULL || json_is_null(j))
        return HY_OK;
    if (depth > DEPTH_MAX)
        return hy_fail(HY_E_LIMIT, "tokenizer.json: pre-tokenizers are nested too deep");
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(j, "pretokenizers");
        for (size_t i = 0; i < json_array_size(list); i++)
            HY_TRY(pretokeniser(t, json_array_get(list, i), depth + 1));
        return HY_OK;
    }
    if (t->byte_level) /* it would see the byte alphabet, which we never spell out */
        return refuse("a pre-tokenizer after ByteLevel,", type);
    if (strcmp(type, "ByteLevel") == 0)
        return pre_byte_level(t, j);
    if (strcmp(type, "Metaspace") == 0)
        return pre_metaspace(t, j);
    if (strcmp(type, "Split") == 0) {
        const char *p = NULL;
        size_t len = 0;
        bool literal = false;
        HY_TRY(behavior_of(j, &b));
        HY_TRY(pattern_of(j, &p, &len, &literal));
        return hy_tok__step_split(&t->pre, p, len, literal, b, flag(j, "invert", false));
    }
    if (strcmp(type, "Digits") == 0)
        return regex_step(t, flag(j, "individual_digits", false) ? "\\p{N}" : "\\p{N}+",
                          SPLIT_ISOLATED, false);
    if (strcmp(type, "Punctuation") == 0) {
        if (json_object_get(j, "behavior") != NULL)
            HY_TRY(behavior_of(j, &b));
        return regex_step(t, "[!-/:-@\\[-`{-~\\p{P}]", b, false);
    }
    if (strcmp(type, "Whitespace") == 0)
        return regex_step(t, "[" TOK_WORD JOINERS "]+|[^" TOK_WORD JOINERS "\\s]+", SPLIT_REMOVED,
                          true);
    if (strcmp(type, "WhitespaceSplit") == 0)
        return regex_step(t, "\\s+", SPLIT_REMOVED, false);
    return refuse("pre-tokenizer", type);
}

hy_status hy_tok__json_pretokeniser(hy_tok *t, const json_t *j)
{
    return pretokeniser(t, j, 0);
}

typedef struct decoder {
    hy_tok *t;
    tok_steps *dec;
    bool *byte_level;
    bool fused;
} decoder;

static hy_status decode_strip(decoder *d, const json_t *j)
{
    json_int_t start = json_integer_value(json_object_get(j, "start"));
    json_int_t stop = json_integer_value(json_object_get(j, "stop"));
    if (!d->fused || strcmp(str(j, "content"), " ") != 0 || start > 1 || stop != 0)
        return refuse("decoder", "Strip other than one leading space after Fuse");
    d->t->strip_prefix = start == 1;
    return HY_OK;
}

static hy_status decode_metaspace(decoder *d, const json_t *j)
{
    tok_step *k = NULL;
    HY_TRY(hy_tok__step_add(d->dec, STEP_REPLACE, &k));
    HY_TRY(hy_tok__step_text(str(j, "replacement"), str_len(j, "replacement"), &k->a, &k->a_len));
    HY_TRY(hy_tok__step_text(" ", 1, &k->b, &k->b_len));
    d->t->strip_prefix =
        strcmp(str(j, "prepend_scheme"), "never") != 0 && flag(j, "add_prefix_space", true);
    return HY_OK;
}

static hy_status decode_one(decoder *d, const json_t *j, int depth)
{
    const char *type = str(j, "type");
    if (j == NULL || json_is_null(j))
        return HY_OK;
    if (depth > DEPTH_MAX)
        return hy_fail(HY_E_LIMIT, "tokenizer.json: decoders are nested too deep");
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(j, "decoders");
        for (size_t i = 0; i < json_array_size(list); i++)
            HY_TRY(decode_one(d, json_array_get(list, i), depth + 1));
        return HY_OK;
    }
    if (strcmp(type, "ByteLevel") == 0) {
        *d->byte_level = true;
        return HY_OK;
    }
    if (strcmp(type, "ByteFallback") == 0)
        return HY_OK; /* byte tokens always decode to their byte */
    if (strcmp(type, "Fuse") == 0) {
        d->fused = true;
        return HY_OK;
    }
    if (strcmp(type, "Replace") == 0)
        return add_replace(d->dec, j, true);
    if (strcmp(type, "Strip") == 0)
        return decode_strip(d, j);
    if (strcmp(type, "Metaspace") == 0)
        return decode_metaspace(d, j);
    return refuse("decoder", type);
}

hy_status hy_tok__json_decoder(hy_tok *t, const json_t *j, tok_steps *dec, bool *byte_level_out)
{
    decoder d = {t, dec, byte_level_out, false};
    return decode_one(&d, j, 0);
}

hy_status hy_tok__set_ids(int32_t id, int32_t **out, size_t *n)
{
    int32_t *p = realloc(*out, (*n + 1) * sizeof(*p));
    if (p == NULL)
        return hy_fail(HY_E_NOMEM, "tokeniser: no memory");
    p[(*n)++] = id;
    *out = p;
    return HY_OK;
}

/* One entry of a template: a token, by the template's own table of ids. */
static hy_status template_token(hy_tok *t, const json_t *table, const char *name, bool after)
{
    const json_t *ids = json_object_get(json_object_get(table, name), "ids");
    if (json_array_size(ids) == 0 || json_array_size(ids) > 64)
        return hy_fail(HY_E_FORMAT, "tokenizer.json: the post-processor does not know \"%.64s\"",
                       name);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *v = json_array_get(ids, i);
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id >= t->n_vocab)
            return hy_fail(HY_E_FORMAT, "tokenizer.json: the post-processor adds a wrong id");
        if (after)
            HY_TRY(hy_tok__set_ids((int32_t)id, &t->suffix, &t->n_suffix));
        else
            HY_TRY(hy_tok__set_ids((int32_t)id, &t->prefix, &t->n_prefix));
    }
    return HY_OK;
}

static hy_status post_template(hy_tok *t, const json_t *j)
{
    const json_t *single = json_object_get(j, "single");
    bool after = false;
    if (json_array_size(single) > 64)
        return hy_fail(HY_E_LIMIT, "tokenizer.json: the post-processor's template is too long");
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i);
        const json_t *mark = json_object_get(item, "SpecialToken");
        if (mark != NULL)
            HY_TRY(template_token(t, json_object_get(j, "special_tokens"), str(mark, "id"), after));
        else
            after = true;
    }
    return HY_OK;
}

/* [text, id] */
static hy_status post_pair(hy_tok *t, const json_t *pair, int32_t **out, size_t *n)
{
    const json_t *v = json_array_get(pair, 1);
    json_int_t id = json_integer_value(v);
    if (!json_is_integer(v) || id < 0 || id >= t->n_vocab)
        return hy_fail(HY_E_FORMAT, "tokenizer.json: the post-processor adds a wrong id");
    return hy_tok__set_ids((int32_t)id, out, n);
}

static hy_status postprocessor(hy_tok *t, const json_t *j, int depth)
{
    const char *type = str(j, "type");
    if (j == NULL || json_is_null(j) || strcmp(type, "ByteLevel") == 0)
        return HY_OK;
    if (depth > DEPTH_MAX)
        return hy_fail(HY_E_LIMIT, "tokenizer.json: post-processors are nested too deep");
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(j, "processors");
        for (size_t i = 0; i < json_array_size(list); i++)
            HY_TRY(postprocessor(t, json_array_get(list, i), depth + 1));
        return HY_OK;
    }
    if (strcmp(type, "TemplateProcessing") == 0)
        return post_template(t, j);
    if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0) {
        HY_TRY(post_pair(t, json_object_get(j, "cls"), &t->prefix, &t->n_prefix));
        return post_pair(t, json_object_get(j, "sep"), &t->suffix, &t->n_suffix);
    }
    return refuse("post-processor", type);
}

hy_status hy_tok__json_postprocessor(hy_tok *t, const json_t *j)
{
    return postprocessor(t, j, 0);
}
