/* SPDX-License-Identifier: Apache-2.0
 *
 * A model file's configuration, metadata and tensors as text, for `halyard inspect`.
 *
 * Thread: any.  Owner: nothing kept.
 */
#include "core/base/buf.h"
#include "core/model/model.h"
#include "core/model/source.h"

#include <inttypes.h>
#include <string.h>

enum { SHOW_MAX = 120 };

/* Text from the file: cut, and nothing that moves a terminal. */
static void put_text(hy_buf *out, const char *p, size_t len)
{
    for (size_t i = 0; i < len && i < SHOW_MAX; i++) {
        unsigned char c = (unsigned char)p[i];
        if (c == '\n')
            hy_buf_puts(out, "\\n");
        else
            hy_buf_putc(out, c < 0x20 || c == 0x7f ? '?' : (char)c);
    }
    if (len > SHOW_MAX)
        hy_buf_printf(out, "... (%zu bytes)", len);
}

static void put_value(hy_buf *out, const hy_gguf *g, const char *key, hy_gguf_type type)
{
    int64_t i = 0;
    uint64_t u = 0;
    double d = 0.0;
    bool b = false;
    hy_str s = {NULL, 0};
    hy_gguf_type elem = HY_GGUF_U8;
    size_t n = 0;
    if (type == HY_GGUF_STR && hy_gguf_get_str(g, key, &s) == HY_OK)
        put_text(out, s.p, s.len);
    else if (type == HY_GGUF_BOOL && hy_gguf_get_bool(g, key, &b) == HY_OK)
        hy_buf_puts(out, b ? "true" : "false");
    else if (type == HY_GGUF_ARR && hy_gguf_arr(g, key, &elem, &n) == HY_OK)
        hy_buf_printf(out, "list of %zu", n);
    else if ((type == HY_GGUF_F32 || type == HY_GGUF_F64) && hy_gguf_get_f64(g, key, &d) == HY_OK)
        hy_buf_printf(out, "%g", d);
    else if (hy_gguf_get_i64(g, key, &i) == HY_OK)
        hy_buf_printf(out, "%" PRId64, i);
    else if (hy_gguf_get_u64(g, key, &u) == HY_OK)
        hy_buf_printf(out, "%" PRIu64, u);
    else
        hy_buf_puts(out, "?");
}

static void put_metadata(hy_buf *out, const hy_gguf *g)
{
    hy_buf_printf(out, "\nmetadata (GGUF version %" PRIu32 ")\n", hy_gguf_version(g));
    for (size_t i = 0; i < hy_gguf_n_keys(g); i++) {
        hy_gguf_type type = HY_GGUF_U8;
        hy_str k = hy_gguf_key_at(g, i, &type);
        hy_buf key;
        hy_buf_init(&key);
        hy_buf_add(&key, k.p, k.len);
        hy_buf_puts(out, "  ");
        put_text(out, k.p, k.len);
        hy_buf_puts(out, " = ");
        put_value(out, g, hy_buf_str(&key), type);
        hy_buf_putc(out, '\n');
        hy_buf_fini(&key);
    }
}

static void put_summary(hy_buf *out, const hy_source *s)
{
    const hy_hparams *hp = &s->hp;
    int64_t params = 0;
    int32_t slide = 0;
    for (size_t i = 0; i < s->n_tensors; i++)
        params += s->tensors[i].elements;
    for (int32_t i = 0; i < hp->n_layers; i++)
        slide += hp->sliding[i];
    hy_buf_puts(out, "name        ");
    put_text(out, hp->name, strlen(hp->name));
    hy_buf_printf(out, "\nfamily      %s (%s)\n", hp->arch, s->hf ? "Hugging Face folder" : "GGUF");
    hy_buf_printf(out, "parameters  %" PRId64 " in %zu tensors, %zu bytes\n", params, s->n_tensors,
                  s->tensor_bytes);
    hy_buf_printf(out, "layers      %d, width %d, ffn %d\n", hp->n_layers, hp->dim, hp->ffn);
    hy_buf_printf(out, "heads       %d query, %d key/value, width %d/%d\n", hp->heads, hp->kv_heads,
                  hp->k_dim, hp->v_dim);
    hy_buf_printf(out, "context     %d tokens as trained\n", hp->context);
    hy_buf_printf(out, "rotary      base %g, %d dimensions\n", hp->rope.base, hp->rot);
    if (slide > 0)
        hy_buf_printf(out, "window      %d tokens in %d layers\n", hp->window, slide);
}

static void put_tensors(hy_buf *out, const hy_source *s)
{
    hy_buf_puts(out, "\ntensors (rows x columns)\n");
    for (size_t i = 0; i < s->n_tensors; i++) {
        const hy_tensor *t = &s->tensors[i];
        hy_buf_printf(out, "  %-6s %8" PRId64 " x %-8" PRId64 " %12zu  ", t->type_name, t->rows,
                      t->cols, t->bytes);
        put_text(out, t->name, strlen(t->name));
        hy_buf_putc(out, '\n');
    }
}

hy_status hy_model_inspect(const char *path, bool tensors, hy_buf *out)
{
    hy_source s;
    hy_status st = hy_source_open(path, &s);
    if (st < 0)
        return hy_source_fail(st, path);
    put_summary(out, &s);
    if (s.gguf != NULL)
        put_metadata(out, s.gguf);
    if (tensors)
        put_tensors(out, &s);
    hy_source_close(&s);
    return out->failed ? hy_fail(HY_E_NOMEM, "no memory for the listing") : HY_OK;
}
