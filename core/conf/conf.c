/* SPDX-License-Identifier: Apache-2.0
 *
 * Store of the configuration: a table of keys with defaults, and a list of what was written.
 * Both are short and read at start: plain lists.
 *
 * Thread: see conf.h.  Owner: see conf.h.
 */
#include "core/base/alloc.h"
#include "core/conf/conf_int.h"

#include <stdio.h>
#include <string.h>

#define OVERRIDE "-o" /* the origin of what hy_conf_set set */

typedef struct slot {
    const hy_conf_key *key;
    hy_conf__value def;
} slot;

typedef struct entry {
    char *section; /* as written: "peer.p0" */
    const hy_conf_key *key;
    hy_conf__value val;
    char *origin;
    hy_conf__where where; /* origin points to the copy above */
    char *place;          /* "file:12" */
} entry;

struct hy_conf {
    slot *slots;
    size_t n_slots;
    entry *entries;
    size_t n_entries;
    char **sections; /* of patterns, as they appeared */
    size_t n_sections;
    unsigned units;
};

bool hy_conf__is_pattern(const char *section)
{
    size_t n = strlen(section);
    return n >= 2 && strcmp(section + n - 2, ".*") == 0;
}

static bool name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}

/* "peer.*" against "peer.p0". */
static bool pattern_matches(const char *pattern, const char *section)
{
    size_t n = strlen(pattern) - 1;
    if (!hy_conf__is_pattern(pattern) || strncmp(pattern, section, n) != 0 || section[n] == '\0')
        return false;
    for (const char *p = section + n; *p != '\0'; p++)
        if (!name_char(*p))
            return false;
    return true;
}

hy_conf *hy_conf_create(void)
{
    hy_conf *c = hy_calloc(1, sizeof(*c));
    if (c != NULL && hy_conf_add_table(c, hy_conf__keys, hy_conf__n_keys) < 0) {
        hy_conf_destroy(c);
        return NULL;
    }
    return c;
}

static void entry_fini(entry *e)
{
    hy_free(e->section);
    hy_free(e->origin);
    hy_free(e->place);
    hy_conf__value_fini(&e->val);
}

void hy_conf_destroy(hy_conf *c)
{
    if (c == NULL)
        return;
    for (size_t i = 0; i < c->n_slots; i++)
        hy_conf__value_fini(&c->slots[i].def);
    for (size_t i = 0; i < c->n_entries; i++)
        entry_fini(&c->entries[i]);
    for (size_t i = 0; i < c->n_sections; i++)
        hy_free(c->sections[i]);
    hy_free(c->slots);
    hy_free(c->entries);
    hy_free(c->sections);
    hy_free(c);
}

static hy_status add_key(hy_conf *c, const hy_conf_key *k)
{
    HY_ASSERT(k->section != NULL && k->key != NULL && k->def != NULL && k->help != NULL);
    HY_ASSERT((k->type == HY_CONF_ENUM) == (k->choices != NULL));
    hy_conf__value def;
    hy_status st = hy_conf__parse(k, k->def, &def);
    if (st == HY_E_NOMEM)
        return st;
    if (st < 0)
        fprintf(stderr, "[%s] %s: default: %s\n", k->section, k->key, hy_fail_text());
    HY_ASSERT(st == HY_OK && "the default of a key does not pass its own check");
    size_t at = c->n_slots; /* behind its section, so that the manual has each section once */
    for (size_t i = 0; i < c->n_slots; i++) {
        if (strcmp(c->slots[i].key->section, k->section) != 0)
            continue;
        if (strcmp(c->slots[i].key->key, k->key) == 0) {
            hy_conf__value_fini(&c->slots[i].def);
            c->slots[i] = (slot){k, def};
            return HY_OK;
        }
        at = i + 1;
    }
    slot *p = hy_realloc(c->slots, (c->n_slots + 1) * sizeof(*p));
    if (p == NULL) {
        hy_conf__value_fini(&def);
        return hy_fail(HY_E_NOMEM, "out of memory");
    }
    c->slots = p;
    memmove(p + at + 1, p + at, (c->n_slots - at) * sizeof(*p));
    p[at] = (slot){k, def};
    c->n_slots++;
    return HY_OK;
}

hy_status hy_conf_add_table(hy_conf *c, const hy_conf_key *keys, size_t n)
{
    HY_ASSERT(c->n_entries == 0 && "tables come before values");
    for (size_t i = 0; i < n; i++)
        HY_TRY(add_key(c, &keys[i]));
    return HY_OK;
}

bool hy_conf__has_section(const hy_conf *c, const char *section)
{
    for (size_t i = 0; i < c->n_slots; i++)
        if (strcmp(c->slots[i].key->section, section) == 0)
            return true;
    return false;
}

/* A section of its own is stronger than a pattern that would fit, too. */
static const slot *find_slot(const hy_conf *c, const char *section, const char *key)
{
    bool own = hy_conf__has_section(c, section);
    for (size_t i = 0; i < c->n_slots; i++) {
        const hy_conf_key *k = c->slots[i].key;
        bool fits = own ? strcmp(k->section, section) == 0 : pattern_matches(k->section, section);
        if (fits && strcmp(k->key, key) == 0)
            return &c->slots[i];
    }
    return NULL;
}

static entry *find_entry(const hy_conf *c, const char *section, const char *key)
{
    for (size_t i = 0; i < c->n_entries; i++)
        if (strcmp(c->entries[i].section, section) == 0 && strcmp(c->entries[i].key->key, key) == 0)
            return &c->entries[i];
    return NULL;
}

void hy_conf__put_where(hy_buf *b, const hy_conf__where *w)
{
    hy_buf_puts(b, w->origin);
    if (w->line > 0)
        hy_buf_printf(b, ":%d", w->line);
}

/* Put "file:12: " before what is wrong; of an override the caller knows where it stands. */
static hy_status fail_at(const hy_conf__where *w, hy_status st, const char *text)
{
    if (w->line > 0)
        return hy_fail(st, "%s:%d: %s", w->origin, w->line, text);
    if (strcmp(w->origin, OVERRIDE) == 0)
        return hy_fail(st, "%s", text);
    return hy_fail(st, "%s: %s", w->origin, text);
}

static hy_status remember_section(hy_conf *c, const char *section)
{
    for (size_t i = 0; i < c->n_sections; i++)
        if (strcmp(c->sections[i], section) == 0)
            return HY_OK;
    char **p = hy_realloc(c->sections, (c->n_sections + 1) * sizeof(*p));
    if (p == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    c->sections = p;
    p[c->n_sections] = hy_strdup(section);
    if (p[c->n_sections] == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    c->n_sections++;
    return HY_OK;
}

/* Nearest section; of a pattern only the part before the dot is compared. */
static void nearest_section(const hy_conf *c, const char *section, char *best, size_t room)
{
    char stem[64];
    const char *rest = strchr(section, '.');
    int stem_len = (int)(rest != NULL ? (size_t)(rest - section) : strlen(section));
    snprintf(stem, sizeof(stem), "%.*s", stem_len, section);
    bool fine = rest != NULL && rest[1] != '\0';
    for (const char *p = rest; fine && *p != '\0'; p++)
        fine = name_char(*p);
    if (!fine)
        rest = ".NAME";
    hy_conf__near whole, head;
    hy_conf__near_init(&whole, section);
    hy_conf__near_init(&head, stem);
    for (size_t i = 0; i < c->n_slots; i++) {
        const char *s = c->slots[i].key->section;
        bool pattern = hy_conf__is_pattern(s);
        char name[64];
        snprintf(name, sizeof(name), "%.*s", (int)strlen(s) - (pattern ? 2 : 0), s);
        hy_conf__near *n = pattern ? &head : &whole;
        n->best = NULL;
        hy_conf__near_try(n, name);
        if (n->best != NULL)
            snprintf(best, room, "%s%s", name, pattern ? rest : "");
    }
}

hy_status hy_conf__check_section(hy_conf *c, const char *section, const hy_conf__where *w)
{
    if (hy_conf__has_section(c, section) && !hy_conf__is_pattern(section))
        return HY_OK;
    for (size_t i = 0; i < c->n_slots; i++)
        if (pattern_matches(c->slots[i].key->section, section))
            return remember_section(c, section);
    char text[400], best[130] = "";
    nearest_section(c, section, best, sizeof(best));
    if (best[0] != '\0')
        snprintf(text, sizeof(text), "unknown section [%.60s]; did you mean [%s]?", section, best);
    else
        snprintf(text, sizeof(text),
                 "unknown section [%.60s]; `halyard config` lists the sections and keys", section);
    return fail_at(w, HY_E_INVAL, text);
}

static hy_status unknown_key(hy_conf *c, const char *section, const char *key,
                             const hy_conf__where *w)
{
    char text[400];
    const char *other = NULL;
    hy_conf__near near;
    hy_conf__near_init(&near, key);
    for (size_t i = 0; i < c->n_slots; i++) {
        const hy_conf_key *k = c->slots[i].key;
        if (find_slot(c, section, k->key) == &c->slots[i])
            hy_conf__near_try(&near, k->key);
        else if (strcmp(k->key, key) == 0)
            other = k->section;
    }
    if (near.best != NULL)
        snprintf(text, sizeof(text), "[%s] %.60s: unknown key; did you mean '%s'?", section, key,
                 near.best);
    else if (other != NULL)
        snprintf(text, sizeof(text), "[%s] %.60s: unknown key here; section [%s] has one", section,
                 key, other);
    else
        snprintf(text, sizeof(text),
                 "[%s] %.60s: unknown key; `halyard config` lists the sections and keys", section,
                 key);
    return fail_at(w, HY_E_INVAL, text);
}

static hy_status fill_entry(entry *e, const char *section, const hy_conf_key *k,
                            hy_conf__value *val, const hy_conf__where *w)
{
    hy_buf place;
    hy_buf_init(&place);
    hy_conf__put_where(&place, w);
    *e = (entry){.section = hy_strdup(section),
                 .key = k,
                 .val = *val,
                 .origin = hy_strdup(w->origin),
                 .where = *w,
                 .place = hy_buf_take(&place)};
    e->where.origin = e->origin;
    if (e->section != NULL && e->origin != NULL && e->place != NULL)
        return HY_OK;
    entry_fini(e);
    return hy_fail(HY_E_NOMEM, "out of memory");
}

static hy_status store(hy_conf *c, const char *section, const hy_conf_key *k, hy_conf__value *val,
                       const hy_conf__where *w)
{
    entry fresh, *old = find_entry(c, section, k->key);
    HY_TRY(fill_entry(&fresh, section, k, val, w)); /* owns val from here on, whatever happens */
    if (old != NULL && old->where.line == 0 && w->line > 0) {
        entry_fini(&fresh); /* the command line stays above a file that is read later */
        return HY_OK;
    }
    if (old != NULL) {
        entry_fini(old);
        *old = fresh;
        return HY_OK;
    }
    entry *p = hy_realloc(c->entries, (c->n_entries + 1) * sizeof(*p));
    if (p == NULL) {
        entry_fini(&fresh);
        return hy_fail(HY_E_NOMEM, "out of memory");
    }
    c->entries = p;
    p[c->n_entries++] = fresh;
    return HY_OK;
}

hy_status hy_conf__assign(hy_conf *c, const char *section, const char *key, const char *text,
                          const hy_conf__where *w)
{
    HY_TRY(hy_conf__check_section(c, section, w));
    const slot *s = find_slot(c, section, key);
    if (s == NULL)
        return unknown_key(c, section, key, w);
    const entry *old = find_entry(c, section, key);
    if (old != NULL && w->line > 0 && old->where.line > 0 && old->where.unit == w->unit) {
        char why[200];
        snprintf(why, sizeof(why), "[%s] %s: set twice, first in line %d", section, key,
                 old->where.line);
        return fail_at(w, HY_E_INVAL, why);
    }
    hy_conf__value val;
    hy_status st = hy_conf__parse(s->key, text, &val);
    if (st < 0) {
        char why[900];
        snprintf(why, sizeof(why), "[%s] %s: %.700s", section, key, hy_fail_text());
        return fail_at(w, st, why);
    }
    return store(c, section, s->key, &val, w);
}

unsigned hy_conf__next_unit(hy_conf *c)
{
    return ++c->units;
}

hy_status hy_conf_put(hy_conf *c, const char *section, const char *key, const char *value,
                      const char *origin)
{
    const hy_conf__where w = {origin, 0, 0};
    return hy_conf__assign(c, section, key, value, &w);
}

static char *trim(char *s)
{
    while (*s == ' ' || *s == '\t')
        s++;
    size_t n = strlen(s);
    while (n > 0 && (s[n - 1] == ' ' || s[n - 1] == '\t'))
        s[--n] = '\0';
    return s;
}

hy_status hy_conf_set(hy_conf *c, const char *assignment)
{
    static const char form[] = "an override is section.key=value, such as engine.threads=2";
    char *copy = hy_strdup(assignment);
    if (copy == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    hy_status st;
    char *eq = strchr(copy, '='), *dot = NULL;
    if (eq != NULL) {
        *eq = '\0';
        dot = strrchr(copy, '.');
    }
    if (dot == NULL) {
        st = hy_fail(HY_E_INVAL, "%.*s: %s", (int)strcspn(assignment, "="), assignment, form);
    } else {
        *dot = '\0';
        st = hy_conf_put(c, trim(copy), trim(dot + 1), trim(eq + 1), OVERRIDE);
    }
    hy_free(copy);
    return st;
}

/* Getters. */

static const hy_conf__value *get(const hy_conf *c, const char *section, const char *key)
{
    const slot *s = find_slot(c, section, key);
    if (s == NULL)
        fprintf(stderr, "no such key in the table: [%s] %s\n", section, key);
    HY_ASSERT(s != NULL && "a getter asked for a key that is not in the table");
    const entry *e = find_entry(c, section, key);
    return e != NULL ? &e->val : &s->def;
}

static const hy_conf__value *get_as(const hy_conf *c, const char *section, const char *key,
                                    hy_conf_type type)
{
    const hy_conf__value *v = get(c, section, key);
    HY_ASSERT(find_slot(c, section, key)->key->type == type && "a getter of another type");
    return v;
}

const char *hy_conf__text(const hy_conf *c, const char *section, const char *key)
{
    return get(c, section, key)->text;
}

bool hy_conf_bool(const hy_conf *c, const char *section, const char *key)
{
    return get_as(c, section, key, HY_CONF_BOOL)->b;
}

int64_t hy_conf_int(const hy_conf *c, const char *section, const char *key)
{
    return get_as(c, section, key, HY_CONF_INT)->i;
}

double hy_conf_float(const hy_conf *c, const char *section, const char *key)
{
    return get_as(c, section, key, HY_CONF_FLOAT)->f;
}

uint64_t hy_conf_size(const hy_conf *c, const char *section, const char *key)
{
    return get_as(c, section, key, HY_CONF_SIZE)->u;
}

uint64_t hy_conf_ns(const hy_conf *c, const char *section, const char *key)
{
    return get_as(c, section, key, HY_CONF_DURATION)->u;
}

const char *hy_conf_str(const hy_conf *c, const char *section, const char *key)
{
    const hy_conf__value *v = get(c, section, key);
    hy_conf_type t = find_slot(c, section, key)->key->type;
    HY_ASSERT((t == HY_CONF_STRING || t == HY_CONF_PATH || t == HY_CONF_ENUM) &&
              "a getter of another type");
    return v->text;
}

int hy_conf_enum(const hy_conf *c, const char *section, const char *key)
{
    return get_as(c, section, key, HY_CONF_ENUM)->e;
}

size_t hy_conf_list_len(const hy_conf *c, const char *section, const char *key)
{
    return get_as(c, section, key, HY_CONF_LIST)->n_items;
}

const char *hy_conf_list_at(const hy_conf *c, const char *section, const char *key, size_t i)
{
    const hy_conf__value *v = get_as(c, section, key, HY_CONF_LIST);
    HY_ASSERT(i < v->n_items);
    return v->items[i];
}

bool hy_conf_is_set(const hy_conf *c, const char *section, const char *key)
{
    get(c, section, key);
    return find_entry(c, section, key) != NULL;
}

const char *hy_conf_origin(const hy_conf *c, const char *section, const char *key)
{
    get(c, section, key);
    const entry *e = find_entry(c, section, key);
    return e != NULL ? e->place : "default";
}

const char *hy_conf_section_at(const hy_conf *c, const char *pattern, size_t i)
{
    for (size_t k = 0; k < c->n_sections; k++)
        if (pattern_matches(pattern, c->sections[k]) && i-- == 0)
            return c->sections[k];
    return NULL;
}

const hy_conf_key *hy_conf_key_at(const hy_conf *c, size_t i)
{
    return i < c->n_slots ? c->slots[i].key : NULL;
}
