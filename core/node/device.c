/* SPDX-License-Identifier: Apache-2.0
 *
 * See device.h.
 *
 * Thread: any.  Owner: option texts live during the call.
 */
#include "core/node/device.h"
#include "hal/registry.h"

#include <stdio.h>
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

hy_status hy_node_open_device(const hy_conf *c, hy_dev **out)
{
    const char *backend = hy_conf_str(c, "backend", "name"), *kv[MAX_OPTS + 1] = {NULL};
    char section[64], text[MAX_OPTS][320], value[256];
    size_t n = 0;
    snprintf(section, sizeof(section), "backend.%s", backend);
    for (size_t i = 0; hy_conf_key_at(c, i) != NULL && n < MAX_OPTS; i++) {
        const hy_conf_key *k = hy_conf_key_at(c, i);
        if (strcmp(k->section, section) != 0)
            continue;
        value_text(c, k, value, sizeof(value));
        snprintf(text[n], sizeof(text[n]), "%s=%s", k->key, value);
        kv[n] = text[n];
        n++;
    }
    hy_dev_opts o = {
        .backend = backend, .n_threads = (int)hy_conf_int(c, "engine", "threads"), .kv = kv};
    return hy_dev_open(&o, out);
}
