/* SPDX-License-Identifier: Apache-2.0
 *
 * Safetensors reader. The JSON header is parsed once into a flat table; every extent is checked
 * against the file before a pointer is made.
 *
 * Thread: any after open.  Owner: hy_safetensors owns mappings and names.
 */
#include "core/model/safetensors.h"

#include "core/base/file.h"

#include <jansson.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEADER_MAX = 100 << 20, /* the reference implementation's limit */
    INDEX_MAX = 64 << 20,
    SHARDS_MAX = 4096,
    TENSORS_MAX = 1 << 20,
};

struct hy_safetensors {
    hy_map *maps;
    size_t n_maps;
    hy_st_tensor *t;
    size_t n, cap;
};

static const struct {
    const char *name;
    int type;
    size_t bytes;
} types[] = {
    {"F32", HY_F32, 4}, {"F16", HY_F16, 2}, {"BF16", HY_BF16, 2}, {"F64", -1, 8},
    {"I64", -1, 8},     {"I32", -1, 4},     {"I16", -1, 2},       {"I8", -1, 1},
    {"U64", -1, 8},     {"U32", -1, 4},     {"U16", -1, 2},       {"U8", -1, 1},
    {"BOOL", -1, 1},    {"F8_E4M3", -1, 1}, {"F8_E5M2", -1, 1},
};

/* A name from the file, fit for a message. */
static const char *shown(const char *s, char buf[96])
{
    size_t i = 0;
    for (; i < 95 && s[i] != '\0'; i++)
        buf[i] = s[i] >= 0x20 && s[i] < 0x7f ? s[i] : '?';
    buf[i] = '\0';
    return buf;
}

static hy_status read_shape(json_t *shape, const char *name, hy_st_tensor *t, int64_t *n_out)
{
    if (!json_is_array(shape) || json_array_size(shape) > 8)
        return hy_fail(HY_E_FORMAT, "tensor %s: \"shape\" is not a list of at most 8 numbers",
                       name);
    int64_t n = 1;
    t->n_dims = (int)json_array_size(shape);
    for (int i = 0; i < t->n_dims; i++) {
        json_t *v = json_array_get(shape, (size_t)i);
        int64_t d = json_is_integer(v) ? json_integer_value(v) : -1;
        if (d < 0 || (d != 0 && n > INT64_MAX / 16 / d))
            return hy_fail(HY_E_FORMAT, "tensor %s: impossible dimension %d of \"shape\"", name, i);
        t->dims[i] = d;
        n *= d;
    }
    *n_out = n;
    return HY_OK;
}

static hy_status read_tensor(const char *key, json_t *v, const uint8_t *data, size_t len,
                             hy_st_tensor *t)
{
    char name[96];
    shown(key, name);
    const char *dtype = json_string_value(json_object_get(v, "dtype"));
    if (dtype == NULL)
        return hy_fail(HY_E_FORMAT, "tensor %s has no \"dtype\"", name);
    size_t unit = 0;
    t->type = -1;
    for (size_t i = 0; i < HY_COUNTOF(types); i++) {
        if (strcmp(dtype, types[i].name) == 0) {
            unit = types[i].bytes;
            t->type = types[i].type;
        }
    }
    char shown_type[96];
    snprintf(t->type_name, sizeof(t->type_name), "%.11s", shown(dtype, shown_type));
    int64_t n = 0;
    HY_TRY(read_shape(json_object_get(v, "shape"), name, t, &n));
    json_t *off = json_object_get(v, "data_offsets");
    json_t *b = json_array_get(off, 0), *e = json_array_get(off, 1);
    if (!json_is_integer(b) || !json_is_integer(e) || json_array_size(off) != 2)
        return hy_fail(HY_E_FORMAT, "tensor %s: \"data_offsets\" is not two numbers", name);
    int64_t lo = json_integer_value(b), hi = json_integer_value(e);
    if (lo < 0 || hi < lo || (uint64_t)hi > len)
        return hy_fail(HY_E_FORMAT,
                       "tensor %s: bytes %" PRId64 "..%" PRId64 " lie outside the file's %zu "
                       "bytes of data: is the file cut short?",
                       name, lo, hi, len);
    if (unit != 0 && (uint64_t)(hi - lo) != (uint64_t)n * unit)
        return hy_fail(HY_E_FORMAT,
                       "tensor %s: %" PRId64 " bytes, but its shape and type %s need %" PRIu64,
                       name, hi - lo, t->type_name, (uint64_t)n * unit);
    t->data = data + lo;
    t->bytes = (size_t)(hi - lo);
    return HY_OK;
}

static int cmp_place(const void *a, const void *b)
{
    const hy_st_tensor *x = *(hy_st_tensor *const *)a, *y = *(hy_st_tensor *const *)b;
    uintptr_t p = (uintptr_t)x->data, q = (uintptr_t)y->data;
    return p != q ? (p > q) - (p < q) : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* No byte belongs to two tensors. The format forbids holes, too; they do no harm. */
static hy_status check_places(hy_st_tensor *t, size_t n)
{
    hy_st_tensor **by = malloc((n + 1) * sizeof(hy_st_tensor *));
    if (by == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for a table of %zu tensors", n);
    for (size_t i = 0; i < n; i++)
        by[i] = &t[i];
    qsort(by, n, sizeof(hy_st_tensor *), cmp_place);
    hy_status st = HY_OK;
    for (size_t i = 1; i < n && st == HY_OK; i++) {
        char a[96], b[96];
        if ((const uint8_t *)by[i]->data < (const uint8_t *)by[i - 1]->data + by[i - 1]->bytes)
            st = hy_fail(HY_E_FORMAT, "tensors %s and %s have bytes in common",
                         shown(by[i - 1]->name, a), shown(by[i]->name, b));
    }
    free(by);
    return st;
}

static hy_status add_header(hy_safetensors *s, json_t *root, const uint8_t *data, size_t len)
{
    const char *key;
    json_t *v;
    size_t more = json_object_size(root), first = s->n;
    if (more > TENSORS_MAX || s->n + more > TENSORS_MAX)
        return hy_fail(HY_E_LIMIT, "more than %d tensors", TENSORS_MAX);
    hy_st_tensor *t = realloc(s->t, (s->n + more + 1) * sizeof(*t));
    if (t == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for a table of %zu tensors", s->n + more);
    s->t = t;
    json_object_foreach(root, key, v)
    {
        if (strcmp(key, "__metadata__") == 0)
            continue;
        if (!json_is_object(v))
            return hy_fail(HY_E_FORMAT, "safetensors header: an entry is not an object");
        hy_st_tensor *x = &s->t[s->n];
        memset(x, 0, sizeof(*x));
        HY_TRY(read_tensor(key, v, data, len, x));
        x->name = strdup(key);
        if (x->name == NULL)
            return hy_fail(HY_E_NOMEM, "no memory for tensor names");
        s->n++;
    }
    return check_places(s->t + first, s->n - first);
}

static hy_status add_bytes(hy_safetensors *s, const uint8_t *p, size_t len)
{
    if (len < 8)
        return hy_fail(HY_E_FORMAT, "%zu bytes are no safetensors file", len);
    uint64_t n = 0;
    for (int i = 0; i < 8; i++)
        n |= (uint64_t)p[i] << (8 * i);
    if (n > HEADER_MAX || n > len - 8)
        return hy_fail(HY_E_FORMAT,
                       "safetensors header says %" PRIu64 " bytes; the file has %zu: no "
                       "safetensors file, or cut short",
                       n, len);
    json_error_t err;
    json_t *root = json_loadb((const char *)p + 8, (size_t)n, JSON_REJECT_DUPLICATES, &err);
    if (root == NULL)
        return hy_fail(HY_E_FORMAT, "safetensors header: %s (byte %d)", err.text, err.position);
    hy_status st = json_is_object(root)
                       ? add_header(s, root, p + 8 + n, len - 8 - (size_t)n)
                       : hy_fail(HY_E_FORMAT, "safetensors header is not a JSON object");
    json_decref(root);
    return st;
}

static hy_status add_file(hy_safetensors *s, const char *dir, const char *file)
{
    if (strchr(file, '/') != NULL || file[0] == '\0' || file[0] == '.')
        return hy_fail(HY_E_FORMAT,
                       "index names the file \"%.80s\": only files of the same "
                       "folder may be named",
                       file);
    char path[4096];
    int n = snprintf(path, sizeof(path), "%s/%s", dir, file);
    if (n < 0 || (size_t)n >= sizeof(path))
        return hy_fail(HY_E_LIMIT, "path too long: %.80s...", path);
    hy_map *maps = realloc(s->maps, (s->n_maps + 1) * sizeof(*maps));
    if (maps == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for shard %s", file);
    s->maps = maps;
    hy_map *m = &maps[s->n_maps];
    HY_TRY(hy_file_map(path, m));
    s->n_maps++;
    hy_status st = add_bytes(s, m->data, m->len);
    return st < 0 ? hy_fail_in(st, "%s: ", path) : st;
}

static int cmp_name(const void *a, const void *b)
{
    return strcmp(((const hy_st_tensor *)a)->name, ((const hy_st_tensor *)b)->name);
}

static hy_status finish(hy_safetensors *s)
{
    if (s->n != 0)
        qsort(s->t, s->n, sizeof(s->t[0]), cmp_name);
    for (size_t i = 1; i < s->n; i++) {
        char b[96];
        if (strcmp(s->t[i].name, s->t[i - 1].name) == 0)
            return hy_fail(HY_E_FORMAT, "tensor %s is in two shards", shown(s->t[i].name, b));
    }
    return HY_OK;
}

/* Every tensor that the index names must have come from a shard. */
static hy_status check_map(const hy_safetensors *s, json_t *map)
{
    const char *key;
    json_t *v;
    json_object_foreach(map, key, v)
    {
        hy_st_tensor want = {.name = key};
        char b[96];
        if (s->n == 0 || bsearch(&want, s->t, s->n, sizeof(s->t[0]), cmp_name) == NULL)
            return hy_fail(HY_E_FORMAT, "the index puts tensor %s into %.80s, which lacks it",
                           shown(key, b), json_string_value(v));
    }
    return HY_OK;
}

static hy_status add_shards(hy_safetensors *s, const char *dir, json_t *map)
{
    const char *key;
    json_t *v;
    json_t *seen = json_object();
    hy_status st = seen == NULL ? hy_fail(HY_E_NOMEM, "no memory for the index") : HY_OK;
    json_object_foreach(map, key, v)
    {
        const char *file = json_string_value(v);
        if (st < 0)
            break;
        if (file == NULL)
            st = hy_fail(HY_E_FORMAT, "\"weight_map\" has an entry that is not a file name");
        else if (json_object_get(seen, file) != NULL)
            continue;
        else if (json_object_size(seen) >= SHARDS_MAX)
            st = hy_fail(HY_E_LIMIT, "more than %d shards", SHARDS_MAX);
        else if (json_object_set_new(seen, file, json_true()) != 0)
            st = hy_fail(HY_E_FORMAT, "\"weight_map\" has a file name that is not UTF-8");
        else
            st = add_file(s, dir, file);
    }
    json_decref(seen);
    return st;
}

static hy_status open_index(hy_safetensors *s, const char *dir, const char *path)
{
    hy_buf text;
    hy_buf_init(&text);
    hy_status st = hy_file_read(path, INDEX_MAX, &text);
    if (st < 0) {
        hy_buf_fini(&text);
        return st;
    }
    json_error_t err;
    json_t *root = json_loadb(hy_buf_str(&text), text.len, 0, &err);
    hy_buf_fini(&text);
    json_t *map = json_object_get(root, "weight_map");
    if (root == NULL)
        st = hy_fail(HY_E_FORMAT, "%s: %s (line %d)", path, err.text, err.line);
    else if (!json_is_object(map))
        st = hy_fail(HY_E_FORMAT, "%s has no \"weight_map\"", path);
    else
        st = add_shards(s, dir, map);
    if (st >= 0)
        st = finish(s);
    if (st >= 0)
        st = check_map(s, map);
    json_decref(root);
    return st;
}

hy_status hy_safetensors_open_dir(const char *dir, hy_safetensors **out)
{
    char index[4096];
    int n = snprintf(index, sizeof(index), "%s/model.safetensors.index.json", dir);
    if (n < 0 || (size_t)n >= sizeof(index))
        return hy_fail(HY_E_LIMIT, "path too long: %.80s...", index);
    hy_safetensors *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for a safetensors reader");
    hy_status st;
    if (hy_file_exists(index)) {
        st = open_index(s, dir, index);
    } else {
        st = add_file(s, dir, "model.safetensors");
        if (st >= 0)
            st = finish(s);
    }
    if (st < 0) {
        hy_safetensors_close(s);
        return st;
    }
    *out = s;
    return HY_OK;
}

hy_status hy_safetensors_open_mem(const void *bytes, size_t len, hy_safetensors **out)
{
    hy_safetensors *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for a safetensors reader");
    hy_status st = add_bytes(s, bytes, len);
    if (st >= 0)
        st = finish(s);
    if (st < 0) {
        hy_safetensors_close(s);
        return st;
    }
    *out = s;
    return HY_OK;
}

void hy_safetensors_close(hy_safetensors *s)
{
    if (s == NULL)
        return;
    for (size_t i = 0; i < s->n; i++)
        free((char *)(uintptr_t)s->t[i].name);
    for (size_t i = 0; i < s->n_maps; i++)
        hy_file_unmap(&s->maps[i]);
    free(s->maps);
    free(s->t);
    free(s);
}

size_t hy_safetensors_n(const hy_safetensors *s)
{
    return s->n;
}

const hy_st_tensor *hy_safetensors_at(const hy_safetensors *s, size_t i)
{
    return i < s->n ? &s->t[i] : NULL;
}
