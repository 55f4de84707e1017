/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF v2/v3 reader. One pass over the header with a cursor that cannot leave the mapping; names
 * are sorted afterwards, for lookup and to refuse duplicates; then tensor extents are checked.
 *
 * Thread: any after open.  Owner: hy_gguf owns its index and, for files, the mapping.
 * Source: the GGUF specification (ggml/docs/gguf.md).
 */
#include "core/model/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    KEY_MAX = 65535, /* the specification's limit */
    ALIGN_DEFAULT = 32,
    ALIGN_MAX = 1 << 20, /* nobody needs more than a huge page */
    GGUF_DTYPES = 64,    /* above are types of ours that no file holds */
    N_DIMS_MAX = 4,
};

typedef struct value {
    hy_str key;
    hy_gguf_type type;
    hy_gguf_type elem; /* arrays */
    size_t n;          /* arrays: elements */
    const uint8_t *p;  /* first byte of the scalar or of the first element */
    hy_str *strs;      /* string (one) or array of strings (n) */
    hy_str str;
} value;

struct hy_gguf {
    const uint8_t *base;
    size_t len;
    bool mapped;
    uint32_t version;
    value *vals;
    size_t n_vals;
    hy_gguf_tensor *tensors;
    size_t n_tensors;
    uint32_t *val_order; /* indices sorted by name */
    uint32_t *tensor_order;
};

typedef struct cursor {
    const uint8_t *base;
    size_t pos, len;
} cursor;

static const uint8_t elem_bytes[] = {
    [HY_GGUF_U8] = 1,  [HY_GGUF_I8] = 1,  [HY_GGUF_U16] = 2,  [HY_GGUF_I16] = 2, [HY_GGUF_U32] = 4,
    [HY_GGUF_I32] = 4, [HY_GGUF_F32] = 4, [HY_GGUF_BOOL] = 1, [HY_GGUF_STR] = 0, [HY_GGUF_ARR] = 0,
    [HY_GGUF_U64] = 8, [HY_GGUF_I64] = 8, [HY_GGUF_F64] = 8,
};

static const char *const type_names[] = {
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64",
};

/* A name from the file, fit for a message: cut, and nothing that moves a terminal. */
typedef struct shown {
    char s[81];
} shown;

static shown show(hy_str v)
{
    shown r;
    size_t n = v.len < sizeof(r.s) - 1 ? v.len : sizeof(r.s) - 1;
    for (size_t i = 0; i < n; i++)
        r.s[i] = v.p[i] >= 0x20 && v.p[i] < 0x7f ? v.p[i] : '?';
    r.s[n] = '\0';
    return r;
}

static int cmp_str(hy_str a, hy_str b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    int c = n != 0 ? memcmp(a.p, b.p, n) : 0;
    return c != 0 ? c : (a.len > b.len) - (a.len < b.len);
}

static uint64_t load_le(const uint8_t *p, size_t n)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static hy_status take(cursor *c, size_t n, const char *what, const uint8_t **out)
{
    if (n > c->len - c->pos)
        return hy_fail(HY_E_FORMAT,
                       "GGUF is truncated: %s at byte %zu needs %zu bytes, %zu are left", what,
                       c->pos, n, c->len - c->pos);
    *out = c->base + c->pos;
    c->pos += n;
    return HY_OK;
}

static hy_status take_uint(cursor *c, size_t n, const char *what, uint64_t *out)
{
    const uint8_t *p = NULL;
    HY_TRY(take(c, n, what, &p));
    *out = load_le(p, n);
    return HY_OK;
}

static hy_status take_str(cursor *c, size_t max, const char *what, hy_str *out)
{
    uint64_t n = 0;
    const uint8_t *p = NULL;
    HY_TRY(take_uint(c, 8, what, &n));
    if (n > max)
        return hy_fail(HY_E_FORMAT, "GGUF: %s at byte %zu has the impossible length %" PRIu64, what,
                       c->pos - 8, n);
    HY_TRY(take(c, (size_t)n, what, &p));
    *out = (hy_str){(const char *)p, (size_t)n};
    return HY_OK;
}

static hy_status read_array(cursor *c, value *v)
{
    uint64_t type = 0, n = 0;
    HY_TRY(take_uint(c, 4, "array type", &type));
    HY_TRY(take_uint(c, 8, "array length", &n));
    if (type == HY_GGUF_ARR)
        return hy_fail(HY_E_UNSUPPORTED, "GGUF: key \"%s\" is an array of arrays", show(v->key).s);
    if (type > HY_GGUF_F64)
        return hy_fail(HY_E_FORMAT, "GGUF: key \"%s\" has unknown element type %" PRIu64,
                       show(v->key).s, type);
    size_t unit = type == HY_GGUF_STR ? 8 : elem_bytes[type];
    if (n > (c->len - c->pos) / unit)
        return hy_fail(HY_E_FORMAT,
                       "GGUF is truncated: key \"%s\" says %" PRIu64
                       " elements, %zu bytes are left",
                       show(v->key).s, n, c->len - c->pos);
    v->elem = (hy_gguf_type)type;
    v->n = (size_t)n;
    if (type != HY_GGUF_STR)
        return take(c, v->n * unit, "array", &v->p);
    v->strs = calloc(v->n != 0 ? v->n : 1, sizeof(v->strs[0]));
    if (v->strs == NULL)
        return hy_fail(HY_E_NOMEM, "GGUF: no memory for %zu strings", v->n);
    for (size_t i = 0; i < v->n; i++)
        HY_TRY(take_str(c, c->len, "array string", &v->strs[i]));
    return HY_OK;
}

static hy_status read_value(cursor *c, value *v)
{
    uint64_t type = 0;
    HY_TRY(take_str(c, KEY_MAX, "key", &v->key));
    if (v->key.len == 0)
        return hy_fail(HY_E_FORMAT, "GGUF: empty key before byte %zu", c->pos);
    HY_TRY(take_uint(c, 4, "value type", &type));
    if (type > HY_GGUF_F64)
        return hy_fail(HY_E_FORMAT, "GGUF: key \"%s\" has unknown type %" PRIu64, show(v->key).s,
                       type);
    v->type = (hy_gguf_type)type;
    if (type == HY_GGUF_STR)
        return take_str(c, c->len, "string value", &v->str);
    if (type == HY_GGUF_ARR)
        return read_array(c, v);
    HY_TRY(take(c, elem_bytes[type], "value", &v->p));
    if (type == HY_GGUF_BOOL && v->p[0] > 1)
        return hy_fail(HY_E_FORMAT, "GGUF: key \"%s\" is a boolean with value %u", show(v->key).s,
                       v->p[0]);
    return HY_OK;
}

/* Fills all but data, where the file's offset is kept until the extents are checked. */
static hy_status read_tensor(cursor *c, hy_gguf_tensor *t)
{
    uint64_t n_dims = 0, dim = 0, type = 0, offset = 0;
    HY_TRY(take_str(c, KEY_MAX, "tensor name", &t->name));
    if (t->name.len == 0)
        return hy_fail(HY_E_FORMAT, "GGUF: tensor without a name before byte %zu", c->pos);
    shown name = show(t->name);
    HY_TRY(take_uint(c, 4, "tensor rank", &n_dims));
    if (n_dims < 1 || n_dims > N_DIMS_MAX)
        return hy_fail(HY_E_FORMAT,
                       "GGUF: tensor \"%s\" has %" PRIu64 " dimensions, 1 to 4 are valid", name.s,
                       n_dims);
    t->n_dims = (int)n_dims;
    uint64_t rows = 1;
    for (int i = 0; i < N_DIMS_MAX; i++) {
        t->dims[i] = 1;
        if (i >= t->n_dims)
            continue;
        HY_TRY(take_uint(c, 8, "tensor dimension", &dim));
        if (dim == 0 || dim > INT64_MAX)
            return hy_fail(HY_E_FORMAT, "GGUF: tensor \"%s\" dimension %d is %" PRIu64, name.s, i,
                           dim);
        t->dims[i] = (int64_t)dim;
        if (i > 0 && __builtin_mul_overflow(rows, dim, &rows))
            return hy_fail(HY_E_FORMAT, "GGUF: tensor \"%s\" has impossible dimensions", name.s);
    }
    HY_TRY(take_uint(c, 4, "tensor type", &type));
    const hy_dtype_info *info = type < GGUF_DTYPES ? hy_dtype_get((int)type) : NULL;
    if (info == NULL)
        return hy_fail(HY_E_UNSUPPORTED,
                       "GGUF: tensor \"%s\" has element type %" PRIu64 ", which is not supported",
                       name.s, type);
    t->type = (hy_dtype)type;
    size_t row = hy_dtype_row_bytes((int)type, t->dims[0]);
    if (row == 0)
        return hy_fail(HY_E_FORMAT,
                       "GGUF: tensor \"%s\" (%s): rows of %" PRId64 " are not whole blocks of %u",
                       name.s, info->name, t->dims[0], info->block);
    size_t total;
    if (__builtin_mul_overflow(row, rows, &total) || total > SIZE_MAX / 8)
        return hy_fail(HY_E_FORMAT, "GGUF: tensor \"%s\" has impossible dimensions", name.s);
    t->bytes = total;
    HY_TRY(take_uint(c, 8, "tensor offset", &offset));
    if (offset > c->len)
        return hy_fail(HY_E_FORMAT, "GGUF: tensor \"%s\" begins after the end of the file", name.s);
    t->data = c->base + offset;
    return HY_OK;
}

static int order_vals(const void *a, const void *b, void *arg)
{
    const value *v = arg;
    return cmp_str(v[*(const uint32_t *)a].key, v[*(const uint32_t *)b].key);
}

static int order_tensors(const void *a, const void *b, void *arg)
{
    const hy_gguf_tensor *t = arg;
    return cmp_str(t[*(const uint32_t *)a].name, t[*(const uint32_t *)b].name);
}

static int order_extents(const void *a, const void *b, void *arg)
{
    const hy_gguf_tensor *t = arg;
    const char *x = t[*(const uint32_t *)a].data, *y = t[*(const uint32_t *)b].data;
    return (x > y) - (x < y);
}

static hy_status make_order(size_t n, uint32_t **out)
{
    uint32_t *o = malloc((n != 0 ? n : 1) * sizeof(*o));
    if (o == NULL)
        return hy_fail(HY_E_NOMEM, "GGUF: no memory for an index of %zu", n);
    for (size_t i = 0; i < n; i++)
        o[i] = (uint32_t)i;
    *out = o;
    return HY_OK;
}

static hy_status index_names(hy_gguf *g)
{
    HY_TRY(make_order(g->n_vals, &g->val_order));
    qsort_r(g->val_order, g->n_vals, sizeof(uint32_t), order_vals, g->vals);
    for (size_t i = 1; i < g->n_vals; i++) {
        hy_str k = g->vals[g->val_order[i]].key;
        if (cmp_str(g->vals[g->val_order[i - 1]].key, k) == 0)
            return hy_fail(HY_E_FORMAT, "GGUF: key \"%s\" is there twice", show(k).s);
    }
    HY_TRY(make_order(g->n_tensors, &g->tensor_order));
    qsort_r(g->tensor_order, g->n_tensors, sizeof(uint32_t), order_tensors, g->tensors);
    for (size_t i = 1; i < g->n_tensors; i++) {
        hy_str k = g->tensors[g->tensor_order[i]].name;
        if (cmp_str(g->tensors[g->tensor_order[i - 1]].name, k) == 0)
            return hy_fail(HY_E_FORMAT, "GGUF: tensor \"%s\" is there twice", show(k).s);
    }
    return HY_OK;
}

static hy_status place_tensors(hy_gguf *g, size_t header_end)
{
    uint64_t align = ALIGN_DEFAULT;
    hy_status st = hy_gguf_get_u64(g, "general.alignment", &align);
    if (st < 0 && st != HY_E_NOTFOUND)
        return st;
    if (align == 0 || align > ALIGN_MAX || (align & (align - 1)) != 0)
        return hy_fail(HY_E_FORMAT, "GGUF: general.alignment is %" PRIu64 ", not a power of two",
                       align);
    size_t start = (header_end + (size_t)align - 1) & ~((size_t)align - 1);
    for (size_t i = 0; i < g->n_tensors; i++) {
        hy_gguf_tensor *t = &g->tensors[i];
        size_t offset = (size_t)((const uint8_t *)t->data - g->base);
        if (offset % align != 0)
            return hy_fail(HY_E_FORMAT, "GGUF: tensor \"%s\" is not aligned to %" PRIu64 " bytes",
                           show(t->name).s, align);
        if (start > g->len || offset > g->len - start || t->bytes > g->len - start - offset)
            return hy_fail(HY_E_FORMAT,
                           "GGUF is truncated: tensor \"%s\" (%zu bytes at %zu) ends after the "
                           "file's %zu bytes",
                           show(t->name).s, t->bytes, start + offset, g->len);
        t->data = g->base + start + offset;
    }
    uint32_t *o = NULL;
    HY_TRY(make_order(g->n_tensors, &o));
    qsort_r(o, g->n_tensors, sizeof(uint32_t), order_extents, g->tensors);
    st = HY_OK;
    for (size_t i = 1; i < g->n_tensors && st == HY_OK; i++) {
        const hy_gguf_tensor *a = &g->tensors[o[i - 1]], *b = &g->tensors[o[i]];
        if ((const uint8_t *)a->data + a->bytes > (const uint8_t *)b->data)
            st = hy_fail(HY_E_FORMAT, "GGUF: tensors \"%s\" and \"%s\" overlap", show(a->name).s,
                         show(b->name).s);
    }
    free(o);
    return st;
}

static hy_status read_header(cursor *c, hy_gguf *g)
{
    const uint8_t *magic = NULL;
    uint64_t version = 0, n_tensors = 0, n_vals = 0;
    HY_TRY(take(c, 4, "magic", &magic));
    if (memcmp(magic, "GGUF", 4) != 0)
        return hy_fail(HY_E_FORMAT, "not a GGUF file: it does not begin with \"GGUF\"");
    HY_TRY(take_uint(c, 4, "version", &version));
    if ((version & 0xffffu) == 0)
        return hy_fail(HY_E_UNSUPPORTED, "GGUF: big-endian file; convert it to little-endian");
    if (version != 2 && version != 3)
        return hy_fail(HY_E_UNSUPPORTED, "GGUF version %" PRIu64 " is not supported, 2 and 3 are",
                       version);
    g->version = (uint32_t)version;
    HY_TRY(take_uint(c, 8, "tensor count", &n_tensors));
    HY_TRY(take_uint(c, 8, "key count", &n_vals));
    /* The smallest key takes 14 bytes, the smallest tensor 33: more cannot be in the file, and so
     * allocations stay within a small multiple of its size. */
    size_t left = c->len - c->pos;
    if (n_vals > left / 14 || n_tensors > left / 33 || n_vals > UINT32_MAX ||
        n_tensors > UINT32_MAX)
        return hy_fail(HY_E_FORMAT,
                       "GGUF is truncated: %" PRIu64 " keys and %" PRIu64
                       " tensors do not fit in %zu bytes",
                       n_vals, n_tensors, left);
    g->vals = calloc(n_vals != 0 ? (size_t)n_vals : 1, sizeof(g->vals[0]));
    g->tensors = calloc(n_tensors != 0 ? (size_t)n_tensors : 1, sizeof(g->tensors[0]));
    if (g->vals == NULL || g->tensors == NULL)
        return hy_fail(HY_E_NOMEM, "GGUF: no memory for %" PRIu64 " keys", n_vals);
    for (; g->n_vals < n_vals; g->n_vals++) {
        value *v = &g->vals[g->n_vals];
        hy_status st = read_value(c, v);
        if (st < 0) {
            free(v->strs);
            return st;
        }
    }
    for (; g->n_tensors < n_tensors; g->n_tensors++)
        HY_TRY(read_tensor(c, &g->tensors[g->n_tensors]));
    return HY_OK;
}

static hy_status parse(hy_gguf *g)
{
    cursor c = {g->base, 0, g->len};
    HY_TRY(read_header(&c, g));
    HY_TRY(index_names(g));
    return place_tensors(g, c.pos);
}

hy_status hy_gguf_open_mem(const void *bytes, size_t len, hy_gguf **out)
{
    hy_gguf *g = calloc(1, sizeof(*g));
    if (g == NULL)
        return hy_fail(HY_E_NOMEM, "GGUF: no memory");
    g->base = bytes;
    g->len = len;
    hy_status st = parse(g);
    if (st < 0) {
        hy_gguf_close(g);
        return st;
    }
    *out = g;
    return HY_OK;
}

hy_status hy_gguf_open(const char *path, hy_gguf **out)
{
    struct stat sb;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return hy_fail(HY_E_IO, "cannot open %s: %s", path, strerror(errno));
    if (fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode)) {
        close(fd);
        return hy_fail(HY_E_IO, "%s is not a regular file", path);
    }
    if (sb.st_size == 0) {
        close(fd);
        return hy_fail(HY_E_FORMAT, "%s: the file is empty", path);
    }
    void *p = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_SHARED, fd, 0);
    int err = errno;
    close(fd);
    if (p == MAP_FAILED)
        return hy_fail(HY_E_IO, "cannot map %s: %s", path, strerror(err));
    hy_status st = hy_gguf_open_mem(p, (size_t)sb.st_size, out);
    if (st < 0) {
        munmap(p, (size_t)sb.st_size);
        return hy_fail_in(st, "%s: ", path);
    }
    (*out)->mapped = true;
    return HY_OK;
}

void hy_gguf_close(hy_gguf *g)
{
    if (g == NULL)
        return;
    for (size_t i = 0; i < g->n_vals; i++)
        free(g->vals[i].strs);
    free(g->vals);
    free(g->tensors);
    free(g->val_order);
    free(g->tensor_order);
    if (g->mapped)
        munmap((void *)g->base, g->len);
    free(g);
}

uint32_t hy_gguf_version(const hy_gguf *g)
{
    return g->version;
}

size_t hy_gguf_file_bytes(const hy_gguf *g)
{
    return g->len;
}

size_t hy_gguf_n_tensors(const hy_gguf *g)
{
    return g->n_tensors;
}

const hy_gguf_tensor *hy_gguf_tensor_at(const hy_gguf *g, size_t i)
{
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}

const hy_gguf_tensor *hy_gguf_tensor_find(const hy_gguf *g, const char *name)
{
    hy_str want = {name, strlen(name)};
    size_t lo = 0, hi = g->n_tensors;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const hy_gguf_tensor *t = &g->tensors[g->tensor_order[mid]];
        int c = cmp_str(t->name, want);
        if (c == 0)
            return t;
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

size_t hy_gguf_n_keys(const hy_gguf *g)
{
    return g->n_vals;
}

hy_str hy_gguf_key_at(const hy_gguf *g, size_t i, hy_gguf_type *type_out)
{
    HY_ASSERT(i < g->n_vals);
    if (type_out != NULL)
        *type_out = g->vals[i].type;
    return g->vals[i].key;
}

static hy_status find(const hy_gguf *g, const char *key, const value **out)
{
    hy_str want = {key, strlen(key)};
    size_t lo = 0, hi = g->n_vals;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const value *v = &g->vals[g->val_order[mid]];
        int c = cmp_str(v->key, want);
        if (c == 0) {
            *out = v;
            return HY_OK;
        }
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return hy_fail(HY_E_NOTFOUND, "GGUF has no key \"%s\"", key);
}

static hy_status wrong_type(const char *key, hy_gguf_type is, const char *want)
{
    return hy_fail(HY_E_FORMAT, "GGUF: key \"%s\" is %s, %s was expected", key, type_names[is],
                   want);
}

static hy_status load_i64(const char *key, hy_gguf_type type, const uint8_t *p, int64_t *out)
{
    uint64_t u;
    switch (type) {
    case HY_GGUF_U8:
    case HY_GGUF_U16:
    case HY_GGUF_U32:
    case HY_GGUF_U64:
    case HY_GGUF_BOOL:
        u = load_le(p, elem_bytes[type]);
        if (u > INT64_MAX)
            return hy_fail(HY_E_FORMAT, "GGUF: key \"%s\" is out of range", key);
        *out = (int64_t)u;
        return HY_OK;
    case HY_GGUF_I8:
        *out = (int8_t)p[0];
        return HY_OK;
    case HY_GGUF_I16:
        *out = (int16_t)load_le(p, 2);
        return HY_OK;
    case HY_GGUF_I32:
        *out = (int32_t)load_le(p, 4);
        return HY_OK;
    case HY_GGUF_I64:
        *out = (int64_t)load_le(p, 8);
        return HY_OK;
    default:
        return wrong_type(key, type, "an integer");
    }
}

static hy_status load_f64(const char *key, hy_gguf_type type, const uint8_t *p, double *out)
{
    if (type == HY_GGUF_F32) {
        uint32_t u = (uint32_t)load_le(p, 4);
        float f;
        memcpy(&f, &u, sizeof(f));
        *out = f;
        return HY_OK;
    }
    if (type == HY_GGUF_F64) {
        uint64_t u = load_le(p, 8);
        memcpy(out, &u, sizeof(*out));
        return HY_OK;
    }
    int64_t i = 0;
    if (type == HY_GGUF_BOOL || type == HY_GGUF_STR || type == HY_GGUF_ARR)
        return wrong_type(key, type, "a number");
    HY_TRY(load_i64(key, type, p, &i));
    *out = (double)i;
    return HY_OK;
}

hy_status hy_gguf_get_u64(const hy_gguf *g, const char *key, uint64_t *out)
{
    const value *v = NULL;
    int64_t i = 0;
    HY_TRY(find(g, key, &v));
    if (v->type == HY_GGUF_U64) {
        *out = load_le(v->p, 8);
        return HY_OK;
    }
    if (v->type == HY_GGUF_BOOL)
        return wrong_type(key, v->type, "an integer");
    HY_TRY(load_i64(key, v->type, v->p, &i));
    if (i < 0)
        return hy_fail(HY_E_FORMAT, "GGUF: key \"%s\" is %" PRId64 ", which may not be negative",
                       key, i);
    *out = (uint64_t)i;
    return HY_OK;
}

hy_status hy_gguf_get_i64(const hy_gguf *g, const char *key, int64_t *out)
{
    const value *v = NULL;
    HY_TRY(find(g, key, &v));
    if (v->type == HY_GGUF_BOOL)
        return wrong_type(key, v->type, "an integer");
    return load_i64(key, v->type, v->p, out);
}

hy_status hy_gguf_get_f64(const hy_gguf *g, const char *key, double *out)
{
    const value *v = NULL;
    HY_TRY(find(g, key, &v));
    return load_f64(key, v->type, v->p, out);
}

hy_status hy_gguf_get_bool(const hy_gguf *g, const char *key, bool *out)
{
    const value *v = NULL;
    HY_TRY(find(g, key, &v));
    if (v->type != HY_GGUF_BOOL)
        return wrong_type(key, v->type, "a boolean");
    *out = v->p[0] != 0;
    return HY_OK;
}

hy_status hy_gguf_get_str(const hy_gguf *g, const char *key, hy_str *out)
{
    const value *v = NULL;
    HY_TRY(find(g, key, &v));
    if (v->type != HY_GGUF_STR)
        return wrong_type(key, v->type, "a string");
    *out = v->str;
    return HY_OK;
}

hy_status hy_gguf_arr(const hy_gguf *g, const char *key, hy_gguf_type *elem_out, size_t *n_out)
{
    const value *v = NULL;
    HY_TRY(find(g, key, &v));
    if (v->type != HY_GGUF_ARR)
        return wrong_type(key, v->type, "an array");
    if (elem_out != NULL)
        *elem_out = v->elem;
    if (n_out != NULL)
        *n_out = v->n;
    return HY_OK;
}

static hy_status find_elem(const hy_gguf *g, const char *key, size_t i, bool strings,
                           const value **out)
{
    HY_TRY(find(g, key, out));
    if ((*out)->type != HY_GGUF_ARR)
        return wrong_type(key, (*out)->type, "an array");
    if (strings != ((*out)->elem == HY_GGUF_STR))
        return wrong_type(key, (*out)->elem, strings ? "a list of strings" : "a list of numbers");
    if (i >= (*out)->n)
        return hy_fail(HY_E_FORMAT, "GGUF: key \"%s\" has %zu elements, number %zu was asked for",
                       key, (*out)->n, i);
    return HY_OK;
}

hy_status hy_gguf_arr_str(const hy_gguf *g, const char *key, size_t i, hy_str *out)
{
    const value *v = NULL;
    HY_TRY(find_elem(g, key, i, true, &v));
    *out = v->strs[i];
    return HY_OK;
}

hy_status hy_gguf_arr_f64(const hy_gguf *g, const char *key, size_t i, double *out)
{
    const value *v = NULL;
    HY_TRY(find_elem(g, key, i, false, &v));
    return load_f64(key, v->elem, v->p + i * elem_bytes[v->elem], out);
}

hy_status hy_gguf_arr_i64(const hy_gguf *g, const char *key, size_t i, int64_t *out)
{
    const value *v = NULL;
    HY_TRY(find_elem(g, key, i, false, &v));
    return load_i64(key, v->elem, v->p + i * elem_bytes[v->elem], out);
}

void hy_gguf_drop_pages(const hy_gguf *g, const hy_gguf_tensor *t)
{
    if (!g->mapped)
        return;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)t->data + page - 1) & ~(page - 1);
    uintptr_t to = ((uintptr_t)t->data + t->bytes) & ~(page - 1);
    if (to > from)
        madvise((void *)from, to - from, MADV_DONTNEED);
}
