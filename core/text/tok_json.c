/* SPDX-License-Identifier: Apache-2.0
 *
 * A tokeniser from a Hugging Face folder: tokenizer.json, and around it tokenizer_config.json,
 * generation_config.json, config.json and chat_template.jinja where they are.
 *
 * Thread: one builds.  Owner: the caller.
 * Source: Hugging Face tokenizers and transformers, as their files are published.
 */
#include "core/base/file.h"
#include "core/text/tok_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 256 << 20, N_VOCAB_MAX = 1 << 24 };

static const char *str(const json_t *j, const char *key)
{
    const char *s = json_string_value(json_object_get(j, key));
    return s != NULL ? s : "";
}

static bool flag(const json_t *j, const char *key)
{
    return json_is_true(json_object_get(j, key));
}

/* Ids come from the file: none may make the tables much larger than what they hold. */
static hy_status check_id(const json_t *v, size_t count, const char *text, int32_t *out)
{
    json_int_t id = json_integer_value(v);
    if (!json_is_integer(v) || id < 0 || id >= N_VOCAB_MAX ||
        (uint64_t)id > (uint64_t)count * 16 + 65536)
        return hy_fail(HY_E_FORMAT, "tokenizer.json: token \"%.64s\" has an impossible id", text);
    *out = (int32_t)id;
    return HY_OK;
}

static hy_status read_vocab(hy_tok *t, const json_t *vocab, const json_t *added)
{
    const char *text;
    json_t *v;
    size_t count = json_object_size(vocab) + json_array_size(added);
    int32_t id = 0, max = -1;
    if (!json_is_object(vocab) || count == 0)
        return hy_fail(HY_E_FORMAT, "tokenizer.json: model.vocab is missing or empty");
    json_object_foreach((json_t *)vocab, text, v)
    {
        HY_TRY(check_id(v, count, text, &id));
        max = id > max ? id : max;
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *a = json_array_get(added, i);
        HY_TRY(check_id(json_object_get(a, "id"), count, str(a, "content"), &id));
        max = id > max ? id : max;
    }
    HY_TRY(hy_tok__resize(t, max + 1));
    json_object_foreach((json_t *)vocab, text, v)
    {
        size_t len = strlen(text);
        int type = t->byte_fallback && hy_tok__byte_token(text, len) >= 0 ? TOK_BYTE : TOK_NORMAL;
        id = (int32_t)json_integer_value(v);
        if (hy_tok_token_text(t, id)[0] != '\0')
            return hy_fail(HY_E_FORMAT, "tokenizer.json: \"%.64s\" and \"%.64s\" have the same id",
                           text, hy_tok_token_text(t, id));
        HY_TRY(hy_tok__set(t, id, text, len, type));
    }
    return HY_OK;
}

/* Marks of normalised text are normalised themselves, and looked for after all others even where
 * nothing is normalised. */
static hy_status add_mark(hy_tok *t, const json_t *a, const char *text, size_t len, tok_mark m)
{
    tok_work w = {0};
    if (!flag(a, "normalized"))
        return hy_tok__mark_add(&t->marks[0], text, len, &m);
    hy_status st = hy_tok__normalise(&t->norm, &w, text, len, &w.text);
    if (st == HY_OK)
        st = hy_tok__mark_add(&t->marks[1], hy_buf_str(&w.text), w.text.len, &m);
    hy_tok__work_fini(&w);
    return st;
}

static hy_status read_added(hy_tok *t, const json_t *added)
{
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *a = json_array_get(added, i);
        const json_t *content = json_object_get(a, "content");
        if (!json_is_string(content))
            return hy_fail(HY_E_FORMAT, "tokenizer.json: added token %zu has no content", i);
        const char *text = json_string_value(content);
        size_t len = json_string_length(content);
        int32_t id = hy_tok__find(t, text, len); /* an entry of the vocabulary keeps its id */
        int type = flag(a, "special") ? TOK_CONTROL : TOK_USER;
        if (len == 0)
            continue;
        if (id >= 0) {
            t->tok[id].type = (uint8_t)type;
        } else {
            id = (int32_t)json_integer_value(json_object_get(a, "id"));
            if (hy_tok_token_text(t, id)[0] != '\0')
                return hy_fail(HY_E_FORMAT,
                               "tokenizer.json: \"%.64s\" and \"%.64s\" have the same id", text,
                               hy_tok_token_text(t, id));
            HY_TRY(hy_tok__set(t, id, text, len, type));
        }
        tok_mark m = {.id = id,
                      .special = flag(a, "special"),
                      .lstrip = flag(a, "lstrip"),
                      .rstrip = flag(a, "rstrip"),
                      .single_word = flag(a, "single_word")};
        HY_TRY(add_mark(t, a, text, len, m));
    }
    HY_TRY(hy_tok__marks_sort(&t->marks[0]));
    return hy_tok__marks_sort(&t->marks[1]);
}

/* "a b", or ["a", "b"] as newer files have it. */
static hy_status merge_sides(const json_t *m, size_t i, hy_str *a, hy_str *b)
{
    if (json_is_string(m)) {
        const char *s = json_string_value(m);
        size_t len = json_string_length(m);
        const char *sp = len > 2 ? memchr(s + 1, ' ', len - 2) : NULL;
        if (sp != NULL) {
            *a = (hy_str){s, (size_t)(sp - s)};
            *b = (hy_str){sp + 1, len - a->len - 1};
            return HY_OK;
        }
    }
    const json_t *x = json_array_get(m, 0), *y = json_array_get(m, 1);
    if (!json_is_string(x) || !json_is_string(y) || json_array_size(m) != 2)
        return hy_fail(HY_E_FORMAT, "tokenizer.json: merge %zu is not a pair of texts", i);
    *a = (hy_str){json_string_value(x), json_string_length(x)};
    *b = (hy_str){json_string_value(y), json_string_length(y)};
    return HY_OK;
}

static hy_status read_merges(hy_tok *t, const json_t *merges)
{
    hy_buf joined;
    hy_status st = HY_OK;
    if (!json_is_array(merges))
        return hy_fail(HY_E_FORMAT, "tokenizer.json: model.merges is not a list");
    HY_TRY(hy_tok__merges_reserve(t, json_array_size(merges)));
    hy_buf_init(&joined);
    for (size_t i = 0; i < json_array_size(merges) && st == HY_OK; i++) {
        hy_str a = {"", 0}, b = {"", 0};
        st = merge_sides(json_array_get(merges, i), i, &a, &b);
        if (st < 0)
            break;
        hy_buf_clear(&joined);
        hy_buf_add(&joined, a.p, a.len);
        hy_buf_add(&joined, b.p, b.len);
        if (joined.failed) {
            st = hy_fail(HY_E_NOMEM, "tokeniser: no memory");
            break;
        }
        int32_t left = hy_tok__find(t, a.p, a.len), right = hy_tok__find(t, b.p, b.len);
        int32_t into = hy_tok__find(t, hy_buf_str(&joined), joined.len);
        if (left < 0 || right < 0 || into < 0)
            st = hy_fail(HY_E_FORMAT,
                         "tokenizer.json: merge %zu (\"%.64s\") is of texts that are "
                         "no tokens",
                         i, hy_buf_str(&joined));
        else
            st = hy_tok__merge_add(t, left, right, into, (uint32_t)i);
    }
    hy_buf_fini(&joined);
    return st;
}

static hy_status check_model(const json_t *model)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *type = str(model, "type");
    if (!json_is_object(model))
        return hy_fail(HY_E_FORMAT, "tokenizer.json has no model");
    /* Files from before the type was written have merges. */
    if (strcmp(type, "BPE") != 0 && (type[0] != '\0' || json_object_get(model, "merges") == NULL))
        return hy_fail(HY_E_UNSUPPORTED, "tokenizer.json: model \"%.64s\" is not supported, BPE is",
                       type);
    for (size_t i = 0; i < HY_COUNTOF(affixes); i++)
        if (str(model, affixes[i])[0] != '\0')
            return hy_fail(HY_E_UNSUPPORTED, "tokenizer.json: model.%s is not supported",
                           affixes[i]);
    return HY_OK;
}

/* Bytes that are no UTF-8 may pass where no step looks at characters. */
static bool passes_bytes(const hy_tok *t)
{
    if (!t->byte_fallback)
        return false;
    for (size_t i = 0; i < t->norm.n; i++)
        if (t->norm.v[i].kind != STEP_PREPEND &&
            (t->norm.v[i].kind != STEP_REPLACE || t->norm.v[i].re.code != NULL))
            return false;
    for (size_t i = 0; i < t->pre.n; i++)
        if (t->pre.v[i].kind != STEP_METASPACE &&
            (t->pre.v[i].kind != STEP_SPLIT || t->pre.v[i].re.code != NULL))
            return false;
    return true;
}

static hy_status build(hy_tok *t, const json_t *j)
{
    const json_t *model = json_object_get(j, "model");
    const json_t *added = json_object_get(j, "added_tokens");
    tok_steps dec = {0};
    bool byte_decoder = false;
    HY_TRY(check_model(model));
    t->byte_fallback = flag(model, "byte_fallback");
    t->ignore_merges = flag(model, "ignore_merges");
    t->fuse_unk = flag(model, "fuse_unk");
    HY_TRY(read_vocab(t, json_object_get(model, "vocab"), added));
    HY_TRY(hy_tok__json_normaliser(t, json_object_get(j, "normalizer")));
    HY_TRY(hy_tok__json_pretokeniser(t, json_object_get(j, "pre_tokenizer")));
    HY_TRY(read_added(t, added));
    HY_TRY(read_merges(t, json_object_get(model, "merges")));
    const char *unk = str(model, "unk_token");
    if (unk[0] != '\0') {
        t->unk = hy_tok__find(t, unk, strlen(unk));
        if (t->unk >= 0 && t->tok[t->unk].type == TOK_NORMAL)
            t->tok[t->unk].type = TOK_UNKNOWN;
    }
    HY_TRY(hy_tok__json_postprocessor(t, json_object_get(j, "post_processor")));
    t->keep_invalid = passes_bytes(t);
    HY_TRY(hy_tok__index_bytes(t));
    for (int i = 0; i < 256; i++) /* merges are of tokens here: nothing passes through others */
        t->byte_sym[i] = t->byte_sym[i] < t->n_vocab ? t->byte_sym[i] : -1;
    hy_status st = hy_tok__json_decoder(t, json_object_get(j, "decoder"), &dec, &byte_decoder);
    if (st == HY_OK)
        st = hy_tok__make_pieces(t, &dec, byte_decoder);
    hy_tok__steps_fini(&dec);
    snprintf(t->describe, sizeof(t->describe), "bpe/tokenizer.json, %d tokens", t->n_vocab);
    return st;
}

hy_status hy_tok__from_json(const char *text, size_t len, hy_tok **out)
{
    json_error_t err;
    json_t *j = json_loadb(text, len, JSON_ALLOW_NUL, &err);
    if (j == NULL)
        return hy_fail(HY_E_FORMAT, "tokenizer.json, line %d: %s", err.line, err.text);
    hy_tok *t = hy_tok__new();
    hy_status st = t != NULL ? build(t, j) : hy_fail(HY_E_NOMEM, "tokeniser: no memory");
    json_decref(j);
    if (st < 0) {
        hy_tok_destroy(t);
        return st;
    }
    *out = t;
    return HY_OK;
}

/* An optional JSON file of the folder; *out stays NULL when it is not there. */
static hy_status read_json(const char *folder, const char *name, json_t **out)
{
    char path[4096];
    hy_buf b;
    json_error_t err;
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", folder, name) >= sizeof(path))
        return hy_fail(HY_E_LIMIT, "%s: the path is too long", folder);
    if (!hy_file_exists(path))
        return HY_OK;
    hy_buf_init(&b);
    hy_status st = hy_file_read(path, FILE_MAX, &b);
    if (st == HY_OK) {
        *out = json_loadb(hy_buf_str(&b), b.len, JSON_ALLOW_NUL, &err);
        if (*out == NULL)
            st = hy_fail(HY_E_FORMAT, "%s, line %d: %s", path, err.line, err.text);
        else if (!json_is_object(*out))
            st = hy_fail(HY_E_FORMAT, "%s is not a JSON object", path);
    }
    hy_buf_fini(&b);
    return st;
}

/* "<s>", or {"content": "<s>", ...}; -1 when absent, null or unknown. */
static int32_t token_of(const hy_tok *t, const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v))
        v = json_object_get(v, "content");
    const char *s = json_string_value(v);
    return s != NULL ? hy_tok__find(t, s, strlen(s)) : -1;
}

/* An id or the first of a list of ids, where in the vocabulary. */
static int32_t id_of(const hy_tok *t, const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);
    if (v == NULL)
        v = json_object_get(json_object_get(config, "text_config"), key);
    if (json_is_array(v))
        v = json_array_get(v, 0);
    json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
    return id >= 0 && id < t->n_vocab ? (int32_t)id : -1;
}

static hy_status add_eogs(hy_tok *t, const json_t *config)
{
    const json_t *v = json_object_get(config, "eos_token_id");
    HY_TRY(hy_tok__add_eog(t, id_of(t, config, "eos_token_id")));
    for (size_t i = 1; i < json_array_size(v) && i < 64; i++) {
        const json_t *e = json_array_get(v, i);
        json_int_t id = json_is_integer(e) ? json_integer_value(e) : -1;
        if (id >= 0 && id < t->n_vocab)
            HY_TRY(hy_tok__add_eog(t, (int32_t)id));
    }
    return HY_OK;
}

static void drop_front(hy_tok *t, int32_t id)
{
    if (t->n_prefix > 0 && t->prefix[0] == id)
        memmove(t->prefix, t->prefix + 1, --t->n_prefix * sizeof(*t->prefix));
}

/* transformers rebuilds the template of these classes from add_bos_token and add_eos_token. */
static hy_status apply_bos(hy_tok *t, const json_t *config)
{
    const json_t *add_bos = json_object_get(config, "add_bos_token");
    const json_t *add_eos = json_object_get(config, "add_eos_token");
    const char *class = str(config, "tokenizer_class");
    bool rebuilt = strncmp(class, "Llama", 5) == 0 || strncmp(class, "Gemma", 5) == 0 ||
                   strncmp(class, "CodeLlama", 9) == 0;
    bool has_bos = t->n_prefix > 0 && t->prefix[0] == t->bos;
    bool has_eos = t->n_suffix > 0 && t->suffix[t->n_suffix - 1] == t->eos;
    bool empty = t->n_prefix == 0 && t->n_suffix == 0;
    if ((rebuilt || empty) && json_is_true(add_bos) && !has_bos && t->bos >= 0) {
        size_t n = 0;
        int32_t *p = NULL;
        HY_TRY(hy_tok__set_ids(t->bos, &p, &n));
        for (size_t i = 0; i < t->n_prefix; i++)
            HY_TRY(hy_tok__set_ids(t->prefix[i], &p, &n));
        free(t->prefix);
        t->prefix = p;
        t->n_prefix = n;
    }
    if ((rebuilt || empty) && json_is_true(add_eos) && !has_eos && t->eos >= 0)
        HY_TRY(hy_tok__set_ids(t->eos, &t->suffix, &t->n_suffix));
    if (rebuilt && json_is_false(add_bos) && has_bos)
        drop_front(t, t->bos);
    if (rebuilt && json_is_false(add_eos) && has_eos)
        t->n_suffix--;
    t->adds_bos = t->n_prefix > 0 && t->prefix[0] == t->bos;
    return HY_OK;
}

/* A string, or a list of {"name", "template"} of which "default" is taken. */
static hy_status template_of(hy_tok *t, const json_t *config)
{
    const json_t *v = json_object_get(config, "chat_template");
    for (size_t i = 0; json_is_array(v) && i < json_array_size(v); i++) {
        const json_t *e = json_array_get(v, i);
        if (strcmp(str(e, "name"), "default") == 0)
            v = json_object_get(e, "template");
    }
    if (v != NULL && !json_is_null(v) && !json_is_string(v) && !json_is_array(v))
        return hy_fail(HY_E_FORMAT, "\"chat_template\" must be a text or a list of named ones");
    if (!json_is_string(v) || t->chat_template != NULL)
        return HY_OK;
    t->chat_template = strndup(json_string_value(v), json_string_length(v));
    return t->chat_template != NULL ? HY_OK : hy_fail(HY_E_NOMEM, "no memory for the template");
}

static hy_status read_template(hy_tok *t, const char *folder)
{
    char path[4096];
    hy_buf b;
    if ((size_t)snprintf(path, sizeof(path), "%s/chat_template.jinja", folder) >= sizeof(path) ||
        !hy_file_exists(path))
        return HY_OK;
    hy_buf_init(&b);
    hy_status st = hy_file_read(path, FILE_MAX, &b);
    if (st < 0) {
        hy_buf_fini(&b);
        return st;
    }
    t->chat_template = hy_buf_take(&b);
    return t->chat_template != NULL ? HY_OK : hy_fail(HY_E_NOMEM, "no memory for the template");
}

typedef struct configs {
    json_t *tokenizer, *generation, *model, *chat;
} configs;

/* Ids of the wrong type would go unnoticed, and texts would not end. */
static hy_status check_ids(const json_t *config, const char *file)
{
    static const char *const keys[] = {"bos_token_id", "eos_token_id"};
    for (size_t i = 0; i < HY_COUNTOF(keys); i++) {
        const json_t *v = json_object_get(config, keys[i]);
        bool ok = v == NULL || json_is_null(v) || json_is_integer(v) || json_is_array(v);
        for (size_t k = 0; ok && k < json_array_size(v); k++)
            ok = json_is_integer(json_array_get(v, k));
        if (!ok)
            return hy_fail(HY_E_FORMAT, "%s: \"%s\" must be a token id or a list of them", file,
                           keys[i]);
    }
    return HY_OK;
}

static hy_status apply_configs(hy_tok *t, const char *folder, configs *c)
{
    HY_TRY(read_json(folder, "tokenizer_config.json", &c->tokenizer));
    HY_TRY(read_json(folder, "generation_config.json", &c->generation));
    HY_TRY(read_json(folder, "config.json", &c->model));
    HY_TRY(read_json(folder, "chat_template.json", &c->chat));
    HY_TRY(check_ids(c->generation, "generation_config.json"));
    HY_TRY(check_ids(c->model, "config.json"));
    const json_t *const later[] = {c->generation, c->model};
    t->bos = token_of(t, c->tokenizer, "bos_token");
    t->eos = token_of(t, c->tokenizer, "eos_token");
    for (size_t i = 0; i < HY_COUNTOF(later); i++) {
        /* A tokenizer_config that says "bos_token": null means it. */
        if (t->bos < 0 && json_object_get(c->tokenizer, "bos_token") == NULL)
            t->bos = id_of(t, later[i], "bos_token_id");
        if (t->eos < 0)
            t->eos = id_of(t, later[i], "eos_token_id");
    }
    HY_TRY(hy_tok__add_eog(t, t->eos));
    HY_TRY(add_eogs(t, c->generation != NULL ? c->generation : c->model));
    if (c->generation == NULL)
        HY_TRY(hy_tok__eogs_by_name(t));
    HY_TRY(apply_bos(t, c->tokenizer));
    HY_TRY(read_template(t, folder));
    HY_TRY(template_of(t, c->tokenizer));
    return template_of(t, c->chat);
}

static hy_status no_tokenizer(const char *folder)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/config.json", folder);
    if (!hy_file_exists(path))
        return hy_fail(HY_E_NOTFOUND,
                       "%s: no config.json and no tokenizer.json: not a model folder in Hugging "
                       "Face form; name the folder that holds them, or a GGUF file",
                       folder);
    return hy_fail(HY_E_NOTFOUND, "%s: no tokenizer.json, which a Hugging Face folder needs",
                   folder);
}

hy_status hy_tok_from_folder(const char *folder, hy_tok **out)
{
    char path[4096];
    hy_buf b;
    hy_tok *t = NULL;
    configs c = {0};
    if ((size_t)snprintf(path, sizeof(path), "%s/tokenizer.json", folder) >= sizeof(path))
        return hy_fail(HY_E_LIMIT, "%s: the path is too long", folder);
    if (!hy_file_exists(path))
        return no_tokenizer(folder);
    hy_buf_init(&b);
    hy_status st = hy_file_read(path, FILE_MAX, &b);
    if (st == HY_OK) {
        st = hy_tok__from_json(hy_buf_str(&b), b.len, &t);
        if (st < 0)
            hy_fail_in(st, "%s: ", folder);
    }
    hy_buf_fini(&b);
    if (st < 0)
        return st;
    st = apply_configs(t, folder, &c);
    json_decref(c.tokenizer);
    json_decref(c.generation);
    json_decref(c.model);
    json_decref(c.chat);
    if (st < 0) {
        hy_tok_destroy(t);
        return st;
    }
    *out = t;
    return HY_OK;
}
