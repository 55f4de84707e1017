/* SPDX-License-Identifier: Apache-2.0
 *
 * Stubs for empty slots, and the names of ops. A stub says which call the device lacks.
 *
 * Thread: any.  Owner: none.
 */
#include "hal/stub.h"
#include "hal/compose.h"

#include <string.h>

static hy_status lacks(const char *what)
{
    return hy_fail(HY_E_UNSUPPORTED, "this device's backend has no %s", what);
}

/* ---- device table ---- */

static hy_status no_props(hy_dev *d, hy_dev_props *out)
{
    (void)d, (void)out;
    return lacks("props");
}

static void no_close(hy_dev *d)
{
    (void)d;
}

static hy_status no_alloc(hy_dev *d, size_t bytes, void **out)
{
    (void)d, (void)bytes, (void)out;
    return lacks("alloc");
}

static void no_free(hy_dev *d, void *p, size_t bytes)
{
    (void)d, (void)p, (void)bytes;
}

static hy_status no_host_register(hy_dev *d, void *p, size_t bytes)
{
    (void)d, (void)p, (void)bytes;
    return lacks("host_register");
}

static void no_host_unregister(hy_dev *d, void *p)
{
    (void)d, (void)p;
}

static hy_status no_queue_create(hy_dev *d, hy_queue **out)
{
    (void)d, (void)out;
    return lacks("queue_create");
}

static void no_queue_destroy(hy_queue *q)
{
    (void)q;
}

static hy_status no_queue_wait(hy_queue *q)
{
    (void)q;
    return lacks("queue_wait");
}

static hy_status no_copy(hy_queue *q, void *dst, const void *src, size_t bytes)
{
    (void)q, (void)dst, (void)src, (void)bytes;
    return lacks("copy");
}

static hy_status no_event_create(hy_dev *d, hy_event **out)
{
    (void)d, (void)out;
    return lacks("event_create");
}

static void no_event_destroy(hy_event *e)
{
    (void)e;
}

static hy_status no_event_on_queue(hy_queue *q, hy_event *e)
{
    (void)q, (void)e;
    return lacks("events");
}

static hy_status no_event_ask(hy_event *e)
{
    (void)e;
    return lacks("events");
}

static hy_status no_fence(hy_queue *q)
{
    (void)q;
    return lacks("fence");
}

static hy_status no_acquire_remote(hy_queue *q)
{
    (void)q;
    return lacks("acquire_remote");
}

static hy_status no_export_mem(hy_dev *d, void *p, size_t bytes, hy_span *out)
{
    (void)d, (void)p, (void)bytes, (void)out;
    return lacks("export_mem");
}

static hy_status no_import_mem(hy_dev *d, const hy_span *s, void **out)
{
    (void)d, (void)s, (void)out;
    return lacks("import_mem");
}

static void no_import_close(hy_dev *d, const hy_span *s, void *p)
{
    (void)d, (void)s, (void)p;
}

static const hy_dev_ops dev_stubs = {
    .size = sizeof(hy_dev_ops),
    .props = no_props,
    .close = no_close,
    .alloc = no_alloc,
    .free = no_free,
    .host_register = no_host_register,
    .host_unregister = no_host_unregister,
    .queue_create = no_queue_create,
    .queue_destroy = no_queue_destroy,
    .queue_wait = no_queue_wait,
    .copy = no_copy,
    .event_create = no_event_create,
    .event_destroy = no_event_destroy,
    .event_record = no_event_on_queue,
    .event_wait = no_event_on_queue,
    .event_query = no_event_ask,
    .event_sync = no_event_ask,
    .fence = no_fence,
    .acquire_remote = no_acquire_remote,
    .export_mem = no_export_mem,
    .import_mem = no_import_mem,
    .import_close = no_import_close,
};

/* ---- math table ---- */

static bool no_supports(hy_dev *d, const hy_op_query *q)
{
    (void)d, (void)q;
    return false;
}

static hy_status no_kv_layout(hy_dev *d, hy_kv_layout *l)
{
    (void)d, (void)l;
    return lacks("kv_layout");
}

static hy_status no_prepare_weight(hy_dev *d, const hy_weight_src *src, hy_weight **out)
{
    (void)d, (void)src, (void)out;
    return lacks("prepare_weight");
}

static void no_weight_free(hy_dev *d, hy_weight *w)
{
    (void)d, (void)w;
}

#define STUB(name, args)                                                                           \
    static hy_status no_##name(hy_queue *q, const args *a)                                         \
    {                                                                                              \
        (void)q, (void)a;                                                                          \
        return lacks(#name);                                                                       \
    }
STUB(embed, hy_embed)
STUB(rms_norm, hy_norm)
STUB(layer_norm, hy_norm)
STUB(matmul, hy_matmul)
STUB(rope, hy_rope)
STUB(kv_write, hy_kv_write)
STUB(attention, hy_attn)
STUB(act_mul, hy_act_mul)
STUB(add, hy_add)
STUB(topk, hy_topk)
STUB(kv_pack, hy_kv_copy)
STUB(kv_unpack, hy_kv_copy)
STUB(moe_route, hy_moe_route)

static const hy_math_ops math_stubs = {
    .size = sizeof(hy_math_ops),
    .supports = no_supports,
    .kv_layout = no_kv_layout,
    .prepare_weight = no_prepare_weight,
    .weight_free = no_weight_free,
    .embed = no_embed,
    .rms_norm = no_rms_norm,
    .layer_norm = no_layer_norm,
    .matmul = no_matmul,
    .rope = no_rope,
    .kv_write = no_kv_write,
    .attention = no_attention,
    .act_mul = no_act_mul,
    .add = no_add,
    .topk = no_topk,
    .kv_pack = no_kv_pack,
    .kv_unpack = no_kv_unpack,
    .attn_in = hy_compose_attn_in,
    .attn_out = hy_compose_attn_out,
    .ffn = hy_compose_ffn,
    .head = hy_compose_head,
    .moe_route = no_moe_route,
    .moe_ffn = hy_compose_moe_ffn,
};

/* Where each op's slot lies in the math table; 0: the op has no slot yet. */
static const size_t slots[HY_OP_COUNT] = {
    [HY_OP_EMBED] = offsetof(hy_math_ops, embed),
    [HY_OP_RMS_NORM] = offsetof(hy_math_ops, rms_norm),
    [HY_OP_LAYER_NORM] = offsetof(hy_math_ops, layer_norm),
    [HY_OP_MATMUL] = offsetof(hy_math_ops, matmul),
    [HY_OP_ROPE] = offsetof(hy_math_ops, rope),
    [HY_OP_KV_WRITE] = offsetof(hy_math_ops, kv_write),
    [HY_OP_ATTENTION] = offsetof(hy_math_ops, attention),
    [HY_OP_ACT_MUL] = offsetof(hy_math_ops, act_mul),
    [HY_OP_ADD] = offsetof(hy_math_ops, add),
    [HY_OP_TOPK] = offsetof(hy_math_ops, topk),
    [HY_OP_KV_PACK] = offsetof(hy_math_ops, kv_pack),
    [HY_OP_KV_UNPACK] = offsetof(hy_math_ops, kv_unpack),
    [HY_OP_ATTN_IN] = offsetof(hy_math_ops, attn_in),
    [HY_OP_ATTN_OUT] = offsetof(hy_math_ops, attn_out),
    [HY_OP_FFN] = offsetof(hy_math_ops, ffn),
    [HY_OP_HEAD] = offsetof(hy_math_ops, head),
    [HY_OP_MOE_ROUTE] = offsetof(hy_math_ops, moe_route),
    [HY_OP_MOE_FFN] = offsetof(hy_math_ops, moe_ffn),
};

static const char *const op_names[HY_OP_COUNT] = {
    [HY_OP_EMBED] = "embed",
    [HY_OP_RMS_NORM] = "rms_norm",
    [HY_OP_LAYER_NORM] = "layer_norm",
    [HY_OP_MATMUL] = "matmul",
    [HY_OP_ROPE] = "rope",
    [HY_OP_KV_WRITE] = "kv_write",
    [HY_OP_ATTENTION] = "attention",
    [HY_OP_ACT_MUL] = "act_mul",
    [HY_OP_ADD] = "add",
    [HY_OP_MOE_ROUTE] = "moe_route",
    [HY_OP_MOE_FFN] = "moe_ffn",
    [HY_OP_TOPK] = "topk",
    [HY_OP_KV_PACK] = "kv_pack",
    [HY_OP_KV_UNPACK] = "kv_unpack",
    [HY_OP_PATCH_EMBED] = "patch_embed",
    [HY_OP_ATTN_FULL] = "attn_full",
    [HY_OP_PIXEL_SHUFFLE] = "pixel_shuffle",
    [HY_OP_ATTN_IN] = "attn_in",
    [HY_OP_ATTN_OUT] = "attn_out",
    [HY_OP_FFN] = "ffn",
    [HY_OP_HEAD] = "head",
};

const char *hy_op_name(hy_op op)
{
    return (int)op >= 0 && op < HY_OP_COUNT && op_names[op] != NULL ? op_names[op] : "?";
}

/* Every slot behind `size` is a pointer of the size of a function pointer. */
typedef void (*slot_fn)(void);
_Static_assert(sizeof(slot_fn) == sizeof(void *), "slots are copied by size");

static slot_fn slot_at(const void *table, size_t off)
{
    slot_fn f;
    memcpy(&f, (const char *)table + off, sizeof(f));
    return f;
}

static void fill(void *table, const void *own, size_t own_size, const void *stubs, size_t size)
{
    memcpy(table, stubs, size);
    for (size_t off = sizeof(size_t); off < size && off + sizeof(slot_fn) <= own_size;
         off += sizeof(slot_fn)) {
        slot_fn f = slot_at(own, off);
        if (f != NULL)
            memcpy((char *)table + off, &f, sizeof(f));
    }
}

uint64_t hy_stub_fill(const hy_dev_ops *own_ops, const hy_math_ops *own_math, hy_dev_ops *ops,
                      hy_math_ops *math)
{
    uint64_t caps = 0;
    fill(ops, own_ops, own_ops->size, &dev_stubs, sizeof(*ops));
    fill(math, own_math, own_math->size, &math_stubs, sizeof(*math));
    for (int op = 0; op < HY_OP_COUNT; op++) {
        size_t off = slots[op];
        if (off != 0 && off + sizeof(slot_fn) <= own_math->size && slot_at(own_math, off) != NULL)
            caps |= 1ull << op;
    }
    return caps;
}
