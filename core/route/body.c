/* SPDX-License-Identifier: Apache-2.0
 *
 * A request's JSON as text: skimming and splicing.
 *
 * Thread: any.  Owner: see body.h.
 */
#include "core/route/body.h"

#include <string.h>

typedef struct skim {
    const char *s;
    size_t at, len;
} skim;

static hy_status bad(const char *what)
{
    return hy_fail(HY_E_FORMAT, "the body is no JSON object: %s", what);
}

static void blanks(skim *k)
{
    while (k->at < k->len && strchr(" \t\r\n", k->s[k->at]) != NULL && k->s[k->at] != '\0')
        k->at++;
}

static bool take(skim *k, char c)
{
    if (k->at >= k->len || k->s[k->at] != c)
        return false;
    k->at++;
    return true;
}

/* To behind the closing quote. */
static hy_status string(skim *k)
{
    if (!take(k, '"'))
        return bad("a string is missing");
    for (; k->at < k->len; k->at++) {
        char c = k->s[k->at];
        if (c == '"') {
            k->at++;
            return HY_OK;
        }
        if (c == '\\')
            k->at++;
        else if ((unsigned char)c < 0x20)
            return bad("a control character in a string");
    }
    return bad("it ends inside a string");
}

static bool is_scalar_char(char c)
{
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '+' || c == '-' ||
           c == '.';
}

static hy_status scalar(skim *k)
{
    size_t from = k->at;
    while (k->at < k->len && is_scalar_char(k->s[k->at]))
        k->at++;
    return k->at > from ? HY_OK : bad("a value is missing");
}

/* Any value. Inside of nested ones only strings and brackets are looked at. */
static hy_status value(skim *k)
{
    char open[HY_BODY_MAX_DEPTH];
    size_t depth = 0;
    if (k->at < k->len && k->s[k->at] == '"')
        return string(k);
    if (k->at >= k->len || (k->s[k->at] != '{' && k->s[k->at] != '['))
        return scalar(k);
    do {
        if (k->at >= k->len)
            return bad("it ends inside a bracket");
        char c = k->s[k->at];
        if (c == '"') {
            HY_TRY(string(k));
            continue;
        }
        k->at++;
        if (c == '{' || c == '[') {
            if (depth == HY_BODY_MAX_DEPTH)
                return hy_fail(HY_E_LIMIT, "the body is nested deeper than %d", HY_BODY_MAX_DEPTH);
            open[depth++] = c;
        } else if (c == '}' || c == ']') {
            if (open[--depth] != (c == '}' ? '{' : '['))
                return bad("brackets do not match");
        }
    } while (depth > 0);
    return HY_OK;
}

static hy_status member(skim *k, hy_body *b)
{
    if (b->n == HY_BODY_MAX_MEMBERS)
        return hy_fail(HY_E_LIMIT, "the body has more than %d members", HY_BODY_MAX_MEMBERS);
    hy_member *m = &b->m[b->n];
    m->key = k->at + 1;
    HY_TRY(string(k));
    m->key_len = k->at - 1 - m->key;
    blanks(k);
    if (!take(k, ':'))
        return bad("a colon is missing");
    blanks(k);
    m->from = k->at;
    HY_TRY(value(k));
    m->to = k->at;
    for (size_t i = 0; i < b->n; i++)
        if (b->m[i].key_len == m->key_len &&
            memcmp(b->s + b->m[i].key, b->s + m->key, m->key_len) == 0)
            b->odd = true;
    b->n++;
    return HY_OK;
}

hy_status hy_body_parse(const char *s, size_t len, hy_body *out)
{
    skim k = {.s = s, .len = len};
    out->s = s;
    out->n = 0;
    out->odd = false;
    blanks(&k);
    if (!take(&k, '{'))
        return bad("it does not begin with a brace");
    blanks(&k);
    if (!take(&k, '}')) {
        do {
            blanks(&k);
            HY_TRY(member(&k, out));
            blanks(&k);
        } while (take(&k, ','));
        if (!take(&k, '}'))
            return bad("a comma or brace is missing");
    }
    blanks(&k);
    return k.at == k.len ? HY_OK : bad("something stands behind it");
}

static int hex_of(const char *s, size_t n)
{
    int v = 0;
    for (size_t i = 0; i < n; i++) {
        char c = (char)(s[i] | 32);
        int d = s[i] >= '0' && s[i] <= '9' ? s[i] - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (d < 0)
            return -1;
        v = v << 4 | d;
    }
    return v;
}

/* However it is written: a key in disguise (kv\u005ftransfer...) is that key to a worker. */
static bool key_is(const hy_body *b, const hy_member *m, const char *key)
{
    const char *s = b->s + m->key, *end = s + m->key_len;
    for (; s < end && *key != '\0'; key++) {
        int c = (unsigned char)*s++;
        if (c == '\\' && s < end) {
            c = (unsigned char)*s++;
            if (c == 'u' && end - s >= 4) {
                c = hex_of(s, 4);
                s += 4;
            }
        }
        if (c != (unsigned char)*key)
            return false;
    }
    return s == end && *key == '\0';
}

const hy_member *hy_body_find(const hy_body *b, const char *key)
{
    for (size_t i = 0; i < b->n; i++)
        if (key_is(b, &b->m[i], key))
            return &b->m[i];
    return NULL;
}

bool hy_body_is(const hy_body *b, const hy_member *m, const char *literal)
{
    return m != NULL && m->to - m->from == strlen(literal) &&
           memcmp(b->s + m->from, literal, m->to - m->from) == 0;
}

void hy_body_write(hy_buf *out, const hy_body *b, const char *const *drop, const char *add)
{
    const char *comma = "";
    hy_buf_putc(out, '{');
    for (size_t i = 0; i < b->n; i++) {
        const hy_member *m = &b->m[i];
        const char *const *d = drop;
        while (*d != NULL && !key_is(b, m, *d))
            d++;
        if (*d != NULL)
            continue;
        hy_buf_puts(out, comma);
        hy_buf_add(out, b->s + m->key - 1, m->key_len + 2);
        hy_buf_putc(out, ':');
        hy_buf_add(out, b->s + m->from, m->to - m->from);
        comma = ",";
    }
    if (add != NULL) {
        hy_buf_puts(out, comma);
        hy_buf_puts(out, add);
    }
    hy_buf_putc(out, '}');
}

/* Given, and neither null nor false nor one of a default's spellings. */
static bool is_set(const hy_body *b, const char *key, const char *usual)
{
    const hy_member *m = hy_body_find(b, key);
    return m != NULL && !hy_body_is(b, m, "null") && !hy_body_is(b, m, "false") &&
           (usual == NULL || !hy_body_is(b, m, usual));
}

/* A list of prompts, not a text and not one prompt's token ids. */
static bool is_prompt_list(const hy_body *b, const hy_member *m)
{
    skim k = {.s = b->s, .at = m->from, .len = m->to};
    if (!take(&k, '['))
        return false;
    blanks(&k);
    char c = k.at < k.len ? k.s[k.at] : ']';
    return c < '0' || c > '9';
}

/* What a worker will make of the members that bound the output (OpenAI's defaults). */
static int32_t max_tokens_of(const hy_body *b, bool chat)
{
    const hy_member *m = chat ? hy_body_find(b, "max_completion_tokens") : NULL;
    if (m == NULL || hy_body_is(b, m, "null"))
        m = hy_body_find(b, "max_tokens");
    if (m == NULL)
        return chat ? -1 : 16;
    if (hy_body_is(b, m, "null"))
        return -1;
    int32_t v = 0;
    for (size_t i = m->from; i < m->to; i++) {
        const char c = b->s[i];
        if (c < '0' || c > '9')
            return 0;
        v = v > (INT32_MAX - 9) / 10 ? INT32_MAX : 10 * v + (c - '0');
    }
    return v;
}

void hy_body_facts_get(const hy_body *b, hy_body_facts *out)
{
    const hy_member *prompt = hy_body_find(b, "prompt"), *messages = hy_body_find(b, "messages");
    const hy_member *what = messages != NULL ? messages : prompt;
    *out = (hy_body_facts){
        .stream = hy_body_is(b, hy_body_find(b, "stream"), "true"),
        .completion_key = is_set(b, "max_completion_tokens", NULL),
        .min_tokens = is_set(b, "min_tokens", "0"),
        .max_tokens = max_tokens_of(b, messages != NULL),
        .prompt_len = what != NULL ? what->to - what->from : 0,
    };
    out->alone = b->odd || what == NULL || is_set(b, "n", "1") || is_set(b, "best_of", "1") ||
                 is_set(b, "echo", NULL) || is_set(b, "prompt_logprobs", NULL) ||
                 is_set(b, "use_beam_search", NULL) || is_set(b, "prompt_embeds", NULL) ||
                 hy_body_is(b, hy_body_find(b, "max_tokens"), "0") ||
                 (messages == NULL && is_prompt_list(b, prompt));
}

static void add_params(hy_buf *add, const char *comma, const char *params)
{
    hy_buf_printf(add, "%s\"kv_transfer_params\":", comma);
    hy_buf_puts(add, params);
}

void hy_body_prefill(hy_buf *out, const hy_body *b, const hy_body_facts *f, const char *params)
{
    static const char *const drop[] = {
        "max_tokens", "max_completion_tokens", "stream", "stream_options", "min_tokens", "n",
        "best_of",    "kv_transfer_params",    NULL};
    hy_buf add;
    hy_buf_init(&add);
    hy_buf_puts(&add, f->completion_key ? "\"max_completion_tokens\":1,\"stream\":false"
                                        : "\"max_tokens\":1,\"stream\":false");
    if (f->min_tokens) /* the first token is drawn as decode would draw it: end tokens barred */
        hy_buf_puts(&add, ",\"min_tokens\":1");
    add_params(&add, ",", params);
    if (f->max_tokens != 0 && !add.failed) {
        add.len--; /* the closing brace */
        hy_buf_printf(&add, "%s\"remote_max_tokens\":%d}", add.data[add.len - 1] == '{' ? "" : ",",
                      f->max_tokens);
    }
    if (add.failed)
        out->failed = true;
    hy_body_write(out, b, drop, hy_buf_str(&add));
    hy_buf_fini(&add);
}

void hy_body_decode(hy_buf *out, const hy_body *b, const char *params)
{
    static const char *const drop[] = {"kv_transfer_params", NULL};
    hy_buf add;
    hy_buf_init(&add);
    if (params != NULL)
        add_params(&add, "", params);
    if (add.failed)
        out->failed = true;
    hy_body_write(out, b, drop, params != NULL ? hy_buf_str(&add) : NULL);
    hy_buf_fini(&add);
}
