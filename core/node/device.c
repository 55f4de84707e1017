/* SPDX-License-Identifier: Apache-2.0
 *
 * See device.h.
 *
 * Thread: any.  Owner: option texts live during the call.
 */
#include "core/node/device.h"
#include "hal/registry.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OPTS 16

hy_status hy_node_backend_keys(hy_conf *c)
{
    for (size_t i = 0; hy_backend_name_at(i) != NULL; i++) {
        const hy_backend *b = NULL;
        if (hy_backend_find(hy_backend_name_at(i), &b) == HY_OK && b->n_keys > 0)
            HY_TRY(hy_conf_add_table(c, b->keys, b->n_keys));
    }
    return HY_OK;
}

/* A value as in a file. */
static void value_text(const hy_conf *c, const hy_conf_key *k, char *out, size_t size)
{
    switch (k->type) {
    case HY_CONF_BOOL:
        snprintf(out, size, "%s", hy_conf_bool(c, k->section, k->key) ? "true" : "false");
        return;
    case HY_CONF_INT:
        snprintf(out, size, "%lld", (long long)hy_conf_int(c, k->section, k->key));
        return;
    case HY_CONF_FLOAT:
        snprintf(out, size, "%.17g", hy_conf_float(c, k->section, k->key));
        return;
    case HY_CONF_SIZE:
        snprintf(out, size, "%llu", (unsigned long long)hy_conf_size(c, k->section, k->key));
        return;
    case HY_CONF_DURATION:
        snprintf(out, size, "%lluns", (unsigned long long)hy_conf_ns(c, k->section, k->key));
        return;
    case HY_CONF_LIST:
        out[0] = '\0'; /* no backend has one */
        return;
    default:
        snprintf(out, size, "%s", hy_conf_str(c, k->section, k->key));
    }
}

/* What stands behind the colon of "simt:64", "cuda:1", "cpu:avx2" or "simt:64,check=true", and the
 * backend's keys in the configuration. Where both give a key, the first counts. */
typedef struct opts {
    char name[32];
    char text[MAX_OPTS][320];
    const char *kv[MAX_OPTS + 1];
    size_t n;
    int index;
    bool fast; /* numerics */
} opts;

static bool has_key(const hy_backend *b, const char *key)
{
    for (size_t i = 0; i < b->n_keys; i++)
        if (strcmp(b->keys[i].key, key) == 0)
            return true;
    return false;
}

static hy_status add_kv(opts *o, const char *key, const char *value)
{
    if (o->n == MAX_OPTS)
        return hy_fail(HY_E_LIMIT, "backend %s: more than %d options", o->name, MAX_OPTS);
    snprintf(o->text[o->n], sizeof(o->text[o->n]), "%s=%s", key, value);
    o->kv[o->n] = o->text[o->n];
    o->n++;
    return HY_OK;
}

/* One word behind the colon: key=value, a number (the wave where the backend has one to choose,
 * else which device), numerics, or an instruction set. */
static hy_status take_word(opts *o, const hy_backend *b, const char *word)
{
    char key[32] = "";
    const size_t eq = strcspn(word, "=");
    if (word[eq] == '=') {
        if (eq < sizeof(key))
            memcpy(key, word, eq);
        if (!has_key(b, key))
            return hy_fail(HY_E_NOTFOUND, "backend %s has no option '%.*s' (`halyard config`)",
                           o->name, (int)eq, word);
        return add_kv(o, key, word + eq + 1);
    }
    if (strcmp(word, "fast") == 0 || strcmp(word, "exact") == 0) {
        o->fast = word[0] == 'f';
        return HY_OK;
    }
    const bool waves = has_key(b, "wave");
    const char *number = waves && strncmp(word, "wave", 4) == 0 ? word + 4 : word;
    if (number[0] != '\0' && number[strspn(number, "0123456789")] == '\0') {
        if (waves)
            return add_kv(o, "wave", number);
        o->index = strlen(number) < 8 ? atoi(number) : INT_MAX;
        return HY_OK;
    }
    if (word[0] != '\0' && has_key(b, "isa"))
        return add_kv(o, "isa", word);
    return hy_fail(HY_E_INVAL, "backend '%s:%.40s': neither a number nor key=value", o->name, word);
}

static hy_status take_spec(opts *o, const char *spec)
{
    const hy_backend *b = NULL;
    char words[256];
    const size_t n = strcspn(spec, ":");
    snprintf(o->name, sizeof(o->name), "%.*s", (int)n, spec);
    HY_TRY(hy_backend_find(o->name, &b));
    if (spec[n] == '\0')
        return HY_OK;
    if (strlen(spec + n + 1) >= sizeof(words))
        return hy_fail(HY_E_INVAL, "backend %s: too long a list of options", o->name);
    snprintf(words, sizeof(words), "%s", spec + n + 1);
    for (char *w = words, *next; w != NULL; w = next) {
        next = strchr(w, ',');
        if (next != NULL)
            *next++ = '\0';
        HY_TRY(take_word(o, b, w));
    }
    return HY_OK;
}

/* The keys of [backend.NAME], behind what is there. */
static hy_status take_conf(opts *o, const hy_conf *c, const char *name)
{
    char section[64], value[256];
    snprintf(section, sizeof(section), "backend.%s", name);
    for (size_t i = 0; hy_conf_key_at(c, i) != NULL; i++) {
        const hy_conf_key *k = hy_conf_key_at(c, i);
        if (strcmp(k->section, section) != 0)
            continue;
        value_text(c, k, value, sizeof(value));
        HY_TRY(add_kv(o, k->key, value));
    }
    return HY_OK;
}

hy_status hy_node_open_spec(const hy_conf *c, const char *spec, hy_dev **out)
{
    opts o = {.fast = strcmp(hy_conf_str(c, "engine", "numerics"), "fast") == 0};
    HY_TRY(take_spec(&o, spec));
    HY_TRY(take_conf(&o, c, o.name));
    hy_dev_opts d = {.backend = o.name,
                     .index = o.index,
                     .n_threads = (int)hy_conf_int(c, "engine", "threads"),
                     .kv = o.kv,
                     .fast = o.fast};
    return hy_dev_open(&d, out);
}

hy_status hy_node_configure_backends(const hy_conf *c)
{
    for (size_t i = 0; hy_backend_name_at(i) != NULL; i++) {
        const hy_backend *b = NULL;
        opts o = {.index = 0};
        if (hy_backend_find(hy_backend_name_at(i), &b) < 0 ||
            b->size <= offsetof(hy_backend, configure) || b->configure == NULL)
            continue;
        HY_TRY(take_conf(&o, c, b->name));
        const hy_dev_opts d = {.backend = b->name, .kv = o.kv};
        HY_TRY(b->configure(&d));
    }
    return HY_OK;
}

hy_status hy_node_open_device(const hy_conf *c, hy_dev **out)
{
    return hy_node_open_spec(c, hy_conf_str(c, "backend", "name"), out);
}
