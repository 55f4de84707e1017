/* SPDX-License-Identifier: Apache-2.0
 *
 * Text to value, by type, with range. Nothing is guessed: the whole text must be the value.
 *
 * Thread: any.  Owner: hy_conf__value_fini frees.
 */
#include "core/base/alloc.h"
#include "core/conf/conf_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const type_names[] = {"bool",   "int",  "float", "size", "duration",
                                         "string", "path", "enum",  "list"};

const char *hy_conf__type_name(hy_conf_type t)
{
    return type_names[t];
}

void hy_conf__value_fini(hy_conf__value *v)
{
    hy_free(v->text);
    hy_free(v->items);
    memset(v, 0, sizeof(*v));
}

typedef struct unit {
    const char *name;
    uint64_t mul;
} unit;

static const unit size_units[] = {
    {"", 1},
    {"B", 1},
    {"k", UINT64_C(1) << 10},
    {"K", UINT64_C(1) << 10},
    {"M", UINT64_C(1) << 20},
    {"G", UINT64_C(1) << 30},
    {"T", UINT64_C(1) << 40},
    {NULL, 0},
};
static const unit time_units[] = {
    {"", 1000000000},
    {"ns", 1},
    {"us", 1000},
    {"ms", 1000000},
    {"s", 1000000000},
    {"m", UINT64_C(60) * 1000000000},
    {"min", UINT64_C(60) * 1000000000},
    {"h", UINT64_C(3600) * 1000000000},
    {"d", UINT64_C(86400) * 1000000000},
    {NULL, 0},
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* "iB" and "B" behind a size's letter mean the same as the letter alone. */
static uint64_t find_unit(const unit *units, const char *s, bool bytes)
{
    size_t n = strlen(s);
    if (bytes && n == 3 && strcmp(s + 1, "iB") == 0)
        n = 1;
    else if (bytes && n == 2 && s[1] == 'B')
        n = 1;
    for (; units->name != NULL; units++)
        if (strlen(units->name) == n && strncmp(units->name, s, n) == 0)
            return units->mul;
    return 0;
}

/* Digits, perhaps a fraction, perhaps blanks, a unit. */
static bool parse_scaled(const char *s, const unit *units, bool bytes, uint64_t *out)
{
    uint64_t whole = 0, mul;
    double fraction = 0, place = 0.1;
    if (!is_digit(*s))
        return false;
    for (; is_digit(*s); s++)
        if (__builtin_mul_overflow(whole, 10, &whole) ||
            __builtin_add_overflow(whole, (uint64_t)(*s - '0'), &whole))
            return false;
    if (*s == '.') {
        if (!is_digit(*++s))
            return false;
        for (; is_digit(*s); s++, place /= 10)
            fraction += place * (*s - '0');
    }
    while (*s == ' ')
        s++;
    mul = find_unit(units, s, bytes);
    return mul != 0 && !__builtin_mul_overflow(whole, mul, &whole) &&
           !__builtin_add_overflow(whole, (uint64_t)llround(fraction * (double)mul), out);
}

static bool parse_int(const char *s, int64_t *out)
{
    bool neg = *s == '-';
    uint64_t v = 0;
    s += *s == '-' || *s == '+';
    uint64_t base = s[0] == '0' && (s[1] == 'x' || s[1] == 'X') ? 16 : 10;
    s += base == 16 ? 2 : 0;
    if (*s == '\0')
        return false;
    for (; *s != '\0'; s++) {
        char c = (char)(*s | 32);
        uint64_t d = is_digit(*s)           ? (uint64_t)(*s - '0')
                     : c >= 'a' && c <= 'f' ? (uint64_t)(c - 'a' + 10)
                                            : 99;
        if (d >= base || __builtin_mul_overflow(v, base, &v) || __builtin_add_overflow(v, d, &v))
            return false;
    }
    if (v > (uint64_t)INT64_MAX)
        return false;
    *out = neg ? -(int64_t)v : (int64_t)v;
    return true;
}

static hy_status parse_bool(const char *s, bool *out)
{
    static const char *const names[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};
    for (size_t i = 0; i < HY_COUNTOF(names); i++)
        if (strcmp(s, names[i]) == 0) {
            *out = i % 2 != 0;
            return HY_OK;
        }
    return hy_fail(HY_E_INVAL, "'%s' is neither true nor false", s);
}

static hy_status parse_enum(const hy_conf_key *k, const char *s, int *out)
{
    char names[512];
    hy_conf__near near;
    hy_conf__near_init(&near, s);
    HY_ASSERT(strlen(k->choices) < sizeof(names));
    strcpy(names, k->choices);
    char *save = NULL;
    int i = 0;
    for (char *n = strtok_r(names, "|", &save); n != NULL; n = strtok_r(NULL, "|", &save), i++) {
        if (strcmp(n, s) == 0) {
            *out = i;
            return HY_OK;
        }
        hy_conf__near_try(&near, n);
    }
    if (near.best != NULL)
        return hy_fail(HY_E_INVAL, "'%s' is not one of %s; did you mean '%s'?", s, k->choices,
                       near.best);
    return hy_fail(HY_E_INVAL, "'%s' is not one of %s", s, k->choices);
}

static hy_status parse_path(const char *s, hy_conf__value *out)
{
    const char *home = getenv("HOME");
    if (s[0] != '~' || (s[1] != '/' && s[1] != '\0'))
        return HY_OK;
    if (home == NULL || home[0] == '\0')
        return hy_fail(HY_E_INVAL, "'%s' needs $HOME, which is not set", s);
    hy_buf b;
    hy_buf_init(&b);
    hy_buf_puts(&b, home);
    hy_buf_puts(&b, s + 1);
    hy_free(out->text);
    out->text = hy_buf_take(&b);
    return out->text != NULL ? HY_OK : hy_fail(HY_E_NOMEM, "out of memory");
}

/* Pointers and strings in one block. Empty items are left out, so "" is the empty list. */
static hy_status parse_list(const char *s, hy_conf__value *out)
{
    size_t most = 1, len = strlen(s);
    for (const char *p = s; *p != '\0'; p++)
        most += *p == ',';
    out->items = hy_calloc(1, most * sizeof(char *) + len + 1);
    if (out->items == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    char *copy = memcpy((char *)(out->items + most), s, len + 1), *save = NULL;
    for (char *p = strtok_r(copy, ",", &save); p != NULL; p = strtok_r(NULL, ",", &save)) {
        while (*p == ' ' || *p == '\t')
            p++;
        size_t n = strlen(p);
        while (n > 0 && (p[n - 1] == ' ' || p[n - 1] == '\t'))
            p[--n] = '\0';
        if (n > 0)
            out->items[out->n_items++] = p;
    }
    return HY_OK;
}

static hy_status parse_plain(const hy_conf_key *k, const char *s, hy_conf__value *out)
{
    char *end;
    switch (k->type) {
    case HY_CONF_BOOL:
        return parse_bool(s, &out->b);
    case HY_CONF_INT:
        if (!parse_int(s, &out->i))
            return hy_fail(HY_E_INVAL, "'%s' is not a whole number", s);
        return HY_OK;
    case HY_CONF_FLOAT:
        out->f = strtod(s, &end);
        if (end == s || *end != '\0' || !isfinite(out->f))
            return hy_fail(HY_E_INVAL, "'%s' is not a number", s);
        return HY_OK;
    case HY_CONF_SIZE:
        if (!parse_scaled(s, size_units, true, &out->u))
            return hy_fail(HY_E_INVAL, "'%s' is not a size such as 4096, 64k, 512M or 2G", s);
        return HY_OK;
    case HY_CONF_DURATION:
        if (!parse_scaled(s, time_units, false, &out->u))
            return hy_fail(HY_E_INVAL, "'%s' is not a duration such as 250ms, 30s, 5m or 1h", s);
        return HY_OK;
    case HY_CONF_ENUM:
        return parse_enum(k, s, &out->e);
    case HY_CONF_PATH:
        return parse_path(s, out);
    case HY_CONF_LIST:
        return parse_list(s, out);
    case HY_CONF_STRING:
        return HY_OK;
    }
    return HY_OK;
}

static int compare(hy_conf_type t, const hy_conf__value *a, const hy_conf__value *b)
{
    switch (t) {
    case HY_CONF_INT:
        return (a->i > b->i) - (a->i < b->i);
    case HY_CONF_FLOAT:
        return (a->f > b->f) - (a->f < b->f);
    default:
        return (a->u > b->u) - (a->u < b->u);
    }
}

static hy_status check_range(const hy_conf_key *k, const hy_conf__value *v)
{
    hy_conf__value bound = {0};
    if (k->min != NULL) {
        HY_TRY(parse_plain(k, k->min, &bound));
        if (compare(k->type, v, &bound) < 0)
            return hy_fail(HY_E_INVAL, "%s is below the minimum %s", v->text, k->min);
    }
    if (k->max != NULL) {
        HY_TRY(parse_plain(k, k->max, &bound));
        if (compare(k->type, v, &bound) > 0)
            return hy_fail(HY_E_INVAL, "%s is above the maximum %s", v->text, k->max);
    }
    return HY_OK;
}

hy_status hy_conf__parse(const hy_conf_key *k, const char *text, hy_conf__value *out)
{
    hy_conf__value v = {.text = hy_strdup(text)};
    if (v.text == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    hy_status st = parse_plain(k, text, &v);
    if (st == HY_OK)
        st = check_range(k, &v);
    if (st == HY_OK) {
        *out = v;
        return st;
    }
    hy_conf__value_fini(&v);
    if (st == HY_E_INVAL && strstr(text, " #") != NULL)
        return hy_fail(st, "%s (a comment behind a value begins with ' ;')", hy_fail_text());
    return st;
}
