/* SPDX-License-Identifier: Apache-2.0
 *
 * The hardware abstraction layer: what a backend implements. Two op tables, each with its size
 * first so that it can grow at its tail; a slot left NULL is filled with a stub that returns
 * HY_E_UNSUPPORTED (hal/registry.c), so callers never test a slot.
 *
 * A port fills the device table and the primitive math ops; composite slots are for speed and may
 * stay NULL: hal/compose.c then builds them from primitives, with the same bits.
 *
 * All addresses are device addresses; row-major; leading dimensions (ld*) count elements.
 * Activations are f32. Ops enqueue on a queue and may return before they are done.
 *
 * Thread: a queue has one owner thread; device calls are safe from any thread.
 * Owner: memory from alloc is freed by free; weights by weight_free; queues and events likewise.
 * Numerics of every op: docs/NUMERICS.md.
 */
#ifndef HY_HAL_BACKEND_H
#define HY_HAL_BACKEND_H

#include "core/base/span.h"
#include "core/base/status.h"
#include "hal/dtype.h"
#include "hal/kv_layout.h"

#include <stddef.h>
#include <stdint.h>

#define HY_HAL_ABI 1

typedef struct hy_dev hy_dev;
typedef struct hy_queue hy_queue;
typedef struct hy_event hy_event;

typedef struct hy_dev_props {
    char name[96];    /* "cpu0: AMD EPYC ... (avx2)" */
    char backend[16]; /* "cpu" */
    char isa[32];
    int index;
    size_t mem_total, mem_free; /* bytes */
    int n_threads;              /* compute units, or threads */
    bool host_visible;          /* device addresses are host addresses */
    bool exact;                 /* keeps the exactness promise in numerics = exact */
} hy_dev_props;

/* What to open: backend "cpu", index, and the backend's own INI keys as "key=value" pairs. */
typedef struct hy_dev_opts {
    const char *backend;
    int index;
    int n_threads;         /* 0: all physical cores */
    const char *isa;       /* NULL or "auto" */
    const char *const *kv; /* NULL-terminated "key=value" of [backend.NAME]; may be NULL */
    bool fast;             /* [engine] numerics = fast: props.exact is false then */
} hy_dev_opts;

/* ---- device table ---- */
typedef struct hy_dev_ops {
    size_t size;
    hy_status (*props)(hy_dev *d, hy_dev_props *out);
    void (*close)(hy_dev *d);
    /* 64-byte aligned at least, zeroed. HY_E_NOMEM_DEVICE. */
    hy_status (*alloc)(hy_dev *d, size_t bytes, void **out);
    /* What uses p was waited for before: a queue may hold work that has not begun. */
    void (*free)(hy_dev *d, void *p, size_t bytes);
    hy_status (*host_register)(hy_dev *d, void *p, size_t bytes);
    void (*host_unregister)(hy_dev *d, void *p);
    /* Queue of compute and copies. */
    hy_status (*queue_create)(hy_dev *d, hy_queue **out);
    void (*queue_destroy)(hy_queue *q);
    hy_status (*queue_wait)(hy_queue *q); /* until all enqueued work is done */
    /* Any direction between host and device, ordered on q. */
    hy_status (*copy)(hy_queue *q, void *dst, const void *src, size_t bytes);
    hy_status (*event_create)(hy_dev *d, hy_event **out);
    void (*event_destroy)(hy_event *e);
    hy_status (*event_record)(hy_queue *q, hy_event *e);
    hy_status (*event_wait)(hy_queue *q, hy_event *e); /* q waits, not the host */
    hy_status (*event_query)(hy_event *e);             /* HY_OK done, HY_AGAIN not yet */
    hy_status (*event_sync)(hy_event *e);              /* host waits */
    hy_status (*fence)(hy_queue *q);                   /* make q's writes visible to the fabric */
    hy_status (*acquire_remote)(hy_queue *q);          /* make remote writes visible to q */
    /* [p, p + bytes) of one allocation for the fabric or another process. out->exp.kind says what
     * is wanted, and is what comes: HY_EXPORT_FD (a dmabuf or memfd, whose fd the caller closes,
     * before the memory is freed or after), HY_EXPORT_IPC, or HY_EXPORT_NONE for what the device
     * likes best, which may be NONE itself: host memory, of use by its address in this process.
     * HY_E_UNSUPPORTED: not of this kind. HY_E_INVAL: no such memory (where it is the host's: no
     * bytes, or beyond all addresses). A failure leaves *out as it was. */
    hy_status (*export_mem)(hy_dev *d, void *p, size_t bytes, hy_span *out);
    /* What another process exported, until import_close with the same span; the owner frees it only
     * then. HY_E_UNSUPPORTED: not of this kind. HY_E_INVAL: the span names nothing that this
     * process could have, or more than was exported. */
    hy_status (*import_mem)(hy_dev *d, const hy_span *s, void **out);
    void (*import_close)(hy_dev *d, const hy_span *s, void *p);
} hy_dev_ops;

/* ---- weights ---- */
typedef struct hy_weight_src {
    hy_dtype type;
    int64_t n;        /* rows: outputs */
    int64_t k;        /* columns: inputs, contiguous in the file */
    const void *data; /* host address, file format; rows of hy_dtype_row_bytes(type, k) */
    bool gather;      /* also read by embed: must allow row lookup */
} hy_weight_src;

/* First member of every backend's weight. Values are what matmul computes with. */
typedef struct hy_weight {
    hy_dtype type;
    int64_t n, k;
    size_t bytes;  /* device memory held; 0 when it borrows the source */
    bool borrowed; /* src.data must stay valid and mapped */
} hy_weight;

typedef enum hy_act_mode { HY_ACT_INT8, HY_ACT_F32 } hy_act_mode; /* [engine] activations */
typedef enum hy_act_fn { HY_ACT_SILU, HY_ACT_GELU_TANH, HY_ACT_GELU_ERF, HY_ACT_RELU } hy_act_fn;

/* y[m][n] = x[m][k] . W^T (+ bias[n]) (+ y when accumulate). */
typedef struct hy_matmul {
    const hy_weight *w;
    const float *x;
    int64_t ldx;
    float *y;
    int64_t ldy;
    int64_t m;
    const float *bias; /* NULL: none */
    hy_act_mode act;   /* int8 matters for quantised weights only */
} hy_matmul;

typedef struct hy_norm {
    const float *x;
    int64_t ldx;
    float *y; /* may be x */
    int64_t ldy;
    int64_t m, dim;
    const float *w; /* NULL: ones */
    const float *b; /* layer_norm only */
    float eps;
} hy_norm;

typedef enum hy_rope_kind { HY_ROPE_NONE, HY_ROPE_HALVES, HY_ROPE_PAIRS } hy_rope_kind;

/* cos/sin of a step's rows, made once per step and rope kind (core/exec). */
typedef struct hy_rope_table {
    hy_rope_kind kind;
    int32_t rot;      /* dimensions rotated, <= head width; the rest pass */
    const float *cos; /* [rows][rot/2], device */
    const float *sin;
} hy_rope_table;

/* x[m][heads][dim], rotated in place. */
typedef struct hy_rope {
    float *x;
    int64_t ld; /* row to row */
    int64_t m;
    int32_t heads, dim;
    hy_rope_table t;
} hy_rope;

/* The rows of a step, the same for every layer. Rows of a sequence are contiguous and ascend by
 * one position. All arrays are host memory (backends copy what they need). */
typedef struct hy_rows {
    int32_t n; /* rows */
    int32_t n_seqs;
    const int32_t *ids;     /* [n] token ids */
    const int32_t *pos;     /* [n] absolute positions */
    const int32_t *seq_row; /* [n_seqs + 1] first row of each sequence; last = n */
} hy_rows;

/* Block table of one cache group: table[seq * stride + position / block_tokens] = block id;
 * -1 where a window has passed (never read). */
typedef struct hy_block_table {
    const int32_t *table;
    int64_t stride;
} hy_block_table;

typedef struct hy_kv_write {
    const hy_kv_pool *pool;
    int32_t layer; /* within the group */
    const hy_rows *rows;
    hy_block_table bt;
    const float *k, *v; /* [n][heads][width] */
    int64_t ldk, ldv;
} hy_kv_write;

typedef struct hy_attn {
    const hy_kv_pool *pool;
    int32_t layer;
    const hy_rows *rows;
    hy_block_table bt;
    const float *q; /* [n][heads][k width]; head h uses KV head h * kv_heads / heads */
    int64_t ldq;
    int32_t heads;
    float *out; /* [n][heads][v width] */
    int64_t ldo;
    float scale;
    float softcap;  /* 0: none; s = cap * tanh(s / cap) */
    int32_t window; /* 0: all; else a row at p sees positions > p - window */
} hy_attn;

/* y = fn(gate) * up, elementwise [m][dim]; up NULL: fn(gate) alone. */
typedef struct hy_act_mul {
    const float *gate, *up;
    int64_t ldg, ldu;
    float *y;
    int64_t ldy;
    int64_t m, dim;
    hy_act_fn fn;
} hy_act_mul;

typedef struct hy_embed {
    const hy_weight *w;
    const int32_t *ids; /* [m], host */
    int64_t m;
    float *y;
    int64_t ldy;
    float scale; /* multiplies every value; 1 for most */
} hy_embed;

typedef struct hy_add {
    const float *a, *b;
    int64_t lda, ldb;
    float *y; /* may be a or b */
    int64_t ldy;
    int64_t m, dim;
    float b_scale; /* y = fma(b, b_scale, a); 1 adds */
} hy_add;

/* Statistics of logits rows for sampling; any output may be NULL. Ties go to the lower id. */
typedef struct hy_topk {
    const float *logits;
    int64_t ld;
    int64_t m, n;
    int32_t k;     /* 1..256 */
    int32_t *ids;  /* [m][k] best first, host */
    float *values; /* [m][k] logits, host */
    float *lse;    /* [m] log(sum(exp(logit))), host */
} hy_topk;

/* Canonical KV wire [layer][16 tokens][K|V][head][token][dim] in `wire` type for tokens [t0, t0+n).
 * Groups of tokens are cut at absolute multiples of 16: the first and the last may be shorter, and
 * are then packed without gaps. */
typedef struct hy_kv_copy {
    const hy_kv_pool *pool;
    const int32_t *blocks; /* block of each token / block_tokens, host */
    int32_t t0, n;         /* token positions */
    int32_t layer0, n_layers;
    int32_t head0, n_heads;
    hy_dtype wire;
    void *buf; /* device */
    size_t bytes;
    void *scales; /* quantised wire: f32 [layer][16 tokens][K|V][head][token]; else NULL */
} hy_kv_copy;

typedef enum hy_moe_score { HY_MOE_SOFTMAX, HY_MOE_SIGMOID } hy_moe_score;

/* Which experts a row goes to, and with which weights. A row's score of an expert is the softmax of
 * its logits, or the sigmoid of each. Experts are chosen by score + bias; with n_groups > 1 they
 * fall into groups of equal size, and only those of the top_groups best groups can be chosen, where
 * a group counts by its best expert, or by the sum of its best two (group_top2). Ties go to the
 * lower id; NaN counts as -inf. weight = score (without bias), divided by the sum of the chosen
 * scores with norm, times scale. */
typedef struct hy_moe_route {
    const float *logits; /* [m][n_experts] */
    int64_t ld, m;
    int32_t n_experts; /* 1..HY_MOE_EXPERTS */
    int32_t k;         /* 1..HY_MOE_TOP, at most n_experts (with groups: what top_groups hold) */
    hy_moe_score score;
    const float *bias;            /* [n_experts]; NULL: none */
    int32_t n_groups, top_groups; /* n_groups: 0 or 1: none; at most HY_MOE_GROUPS */
    bool group_top2;
    bool norm;
    float scale;
    int32_t *ids;   /* [m][k] device, best first */
    float *weights; /* [m][k] device */
} hy_moe_route;

#define HY_MOE_EXPERTS 512
#define HY_MOE_TOP     32
#define HY_MOE_GROUPS  32

/* ---- composite ops: scratch is device memory of at least *_ws(...) bytes ---- */

typedef struct hy_ws {
    void *p;
    size_t bytes;
} hy_ws;

typedef struct hy_norm_w { /* a norm's parameters */
    const float *w;        /* NULL: no norm at all */
    const float *b;        /* not NULL: layer norm */
    float eps;
} hy_norm_w;

/* q = rope(qnorm(norm(x) Wq + bq)), k and v likewise and written to the cache. */
typedef struct hy_attn_in {
    const float *x; /* residual stream [n][dim] */
    int64_t ldx;
    int64_t dim;
    hy_norm_w norm;
    const hy_weight *wq, *wk, *wv;
    const float *bq, *bk, *bv;
    hy_norm_w q_norm, k_norm; /* per head */
    int32_t heads;
    hy_rope_table rope;
    const hy_kv_pool *pool;
    int32_t layer;
    const hy_rows *rows;
    hy_block_table bt;
    float *q; /* out: [n][heads * k width], contiguous rows */
    hy_act_mode act;
    bool v_f32; /* the v product takes f32 activations whatever act says */
    hy_ws ws;
} hy_attn_in;

/* x += out_scale * post_norm(attention(q) Wo + bo). */
typedef struct hy_attn_out {
    hy_attn attn; /* attn.out ignored */
    const hy_weight *wo;
    const float *bo;
    hy_norm_w post_norm;
    float *x; /* residual stream, in place */
    int64_t ldx, dim;
    hy_act_mode act;
    hy_ws ws;
} hy_attn_out;

/* x += post_norm(Wdown(fn(Wgate norm(x)) * (Wup norm(x)))). */
typedef struct hy_ffn {
    float *x; /* residual stream, in place */
    int64_t ldx, dim, m;
    hy_norm_w norm;      /* w NULL: x is normed already (AFD: the cut is after the norm) */
    const float *normed; /* with norm.w NULL: the input [m][dim]; NULL: x itself */
    int64_t ldn;
    const hy_weight *gate, *up, *down; /* gate NULL: fn(up) */
    const float *b_gate, *b_up, *b_down;
    hy_act_fn fn;
    hy_norm_w post_norm;
    bool no_residual; /* x = ... instead of x += ... (AFD worker) */
    hy_act_mode act;
    hy_ws ws;
} hy_ffn;

/* logits[i] = softcap(Wout norm(x[rows[i]])). */
typedef struct hy_head {
    const float *x;
    int64_t ldx, dim;
    const int32_t *rows; /* [m] host: rows of x that need logits */
    int64_t m;
    hy_norm_w norm;
    const hy_weight *w;
    float scale;   /* multiplies logits; 1 */
    float softcap; /* 0: none */
    float *logits; /* [m][w->n] */
    int64_t ldl;
    hy_act_mode act;
    hy_ws ws;
} hy_head;

/* y[r] = sum over j of weights[r][j] * Wdown_e(fn(Wgate_e x[r]) * (Wup_e x[r])), e = ids[r][j]: one
 * chain of fma from +0.0 in ascending j, so in routing order. No expert is left out. */
typedef struct hy_moe_ffn {
    const float *x; /* normed [m][dim] */
    int64_t ldx, dim, m;
    float *y; /* [m][dim], not x */
    int64_t ldy;
    const int32_t *ids; /* [m][k] device, as moe_route gives them */
    const float *weights;
    int32_t k, n_experts;
    /* [n_experts] each, host; of one type and shape. gate NULL: fn(up) */
    const hy_weight *const *gate, *const *up, *const *down;
    hy_act_fn fn;
    hy_act_mode act;
    hy_ws ws; /* hy_ws_need.moe_k and moe_ffn say how much */
} hy_moe_ffn;

typedef enum hy_op {
    HY_OP_EMBED,
    HY_OP_RMS_NORM,
    HY_OP_LAYER_NORM,
    HY_OP_MATMUL,
    HY_OP_ROPE,
    HY_OP_KV_WRITE,
    HY_OP_ATTENTION,
    HY_OP_ACT_MUL,
    HY_OP_ADD,
    HY_OP_MOE_ROUTE,
    HY_OP_MOE_FFN,
    HY_OP_TOPK,
    HY_OP_KV_PACK,
    HY_OP_KV_UNPACK,
    HY_OP_PATCH_EMBED,
    HY_OP_ATTN_FULL,
    HY_OP_PIXEL_SHUFFLE,
    HY_OP_ATTN_IN,
    HY_OP_ATTN_OUT,
    HY_OP_FFN,
    HY_OP_HEAD,
    HY_OP_COUNT
} hy_op;

/* Asked of supports(): the types and widths that decide. Unused fields are 0. */
typedef struct hy_op_query {
    hy_op op;
    hy_dtype w_type; /* weight */
    hy_act_mode act;
    hy_dtype kv_type; /* storage */
    hy_dtype kv_value;
    int32_t k_dim, v_dim, block_tokens;
    int64_t n, k;
    hy_act_fn fn;
} hy_op_query;

/* ---- math table ---- */
typedef struct hy_math_ops {
    size_t size;
    bool (*supports)(hy_dev *d, const hy_op_query *q);
    /* Fill layout's strides from its types and counts, as this backend likes them. */
    hy_status (*kv_layout)(hy_dev *d, hy_kv_layout *inout);
    hy_status (*prepare_weight)(hy_dev *d, const hy_weight_src *src, hy_weight **out);
    void (*weight_free)(hy_dev *d, hy_weight *w);

    hy_status (*embed)(hy_queue *q, const hy_embed *a);
    hy_status (*rms_norm)(hy_queue *q, const hy_norm *a);
    hy_status (*layer_norm)(hy_queue *q, const hy_norm *a);
    hy_status (*matmul)(hy_queue *q, const hy_matmul *a);
    hy_status (*rope)(hy_queue *q, const hy_rope *a);
    hy_status (*kv_write)(hy_queue *q, const hy_kv_write *a);
    hy_status (*attention)(hy_queue *q, const hy_attn *a);
    hy_status (*act_mul)(hy_queue *q, const hy_act_mul *a);
    hy_status (*add)(hy_queue *q, const hy_add *a);
    hy_status (*topk)(hy_queue *q, const hy_topk *a);
    hy_status (*kv_pack)(hy_queue *q, const hy_kv_copy *a);
    hy_status (*kv_unpack)(hy_queue *q, const hy_kv_copy *a);

    /* composite */
    hy_status (*attn_in)(hy_queue *q, const hy_attn_in *a);
    hy_status (*attn_out)(hy_queue *q, const hy_attn_out *a);
    hy_status (*ffn)(hy_queue *q, const hy_ffn *a);
    hy_status (*head)(hy_queue *q, const hy_head *a);

    /* mixture of experts: a primitive, then a composite */
    hy_status (*moe_route)(hy_queue *q, const hy_moe_route *a);
    hy_status (*moe_ffn)(hy_queue *q, const hy_moe_ffn *a);
} hy_math_ops;

/* First member of every backend's device and queue. */
struct hy_dev {
    const hy_dev_ops *ops;
    const hy_math_ops *math; /* no NULL slot after hy_dev_open */
    uint64_t caps;           /* bit hy_op: slot filled by the backend itself */
};
struct hy_queue {
    hy_dev *dev;
};

/* What a backend exports: a static table for built-in ones, the symbol "hy_backend_v1" for modules.
 */
typedef struct hy_backend {
    size_t size;
    uint32_t abi; /* HY_HAL_ABI */
    const char *name;
    int (*count)(void);            /* devices present; 0 and a reason when none */
    const char *(*why_none)(void); /* text for `halyard devices` */
    hy_status (*open)(const hy_dev_opts *o, hy_dev **out);
    const struct hy_conf_key *keys; /* its INI keys; may be NULL */
    size_t n_keys;
    /* Keys that decide what is found here, such as a driver's path: before count. May be NULL. */
    hy_status (*configure)(const hy_dev_opts *o);
} hy_backend;

/* ---- registry (hal/registry.c) ---- */
/* Built-in backends are named in one table; others are modules "halyard-NAME.so" looked for beside
 * the program and in HY_BACKEND_PATH. */
hy_status hy_dev_open(const hy_dev_opts *o, hy_dev **out);
void hy_dev_close(hy_dev *d);
/* Scratch that the composites need for n rows of these widths (an upper bound). */
typedef struct hy_ws_need {
    int64_t rows, dim, heads, k_dim, v_dim, kv_heads, ffn, max_ctx;
    int64_t moe_k, moe_ffn; /* experts of a row, width of one; 0: none */
} hy_ws_need;
size_t hy_ws_bytes(const hy_ws_need *n);

const char *hy_op_name(hy_op op);

#endif
