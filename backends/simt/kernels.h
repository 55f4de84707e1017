/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of kernels: one enum, and the names under which a module or a table holds them.
 *
 * Thread: constants.  Owner: none.
 */
#ifndef HY_SIMT_KERNELS_H
#define HY_SIMT_KERNELS_H

#define SIMT_EACH_FLOAT(X, pre) X(pre##_f32) X(pre##_f16) X(pre##_bf16)
#define SIMT_EACH_QUANT(X, pre)                                                                    \
    X(pre##_q4_0)                                                                                  \
    X(pre##_q4_1)                                                                                  \
    X(pre##_q5_0)                                                                                  \
    X(pre##_q5_1)                                                                                  \
    X(pre##_q8_0)                                                                                  \
    X(pre##_q2_k)                                                                                  \
    X(pre##_q3_k) X(pre##_q4_k) X(pre##_q5_k) X(pre##_q6_k) X(pre##_iq4_nl)
#define SIMT_EACH_KERNEL(X)                                                                        \
    SIMT_EACH_FLOAT(X, k_mv1_f)                                                                    \
    SIMT_EACH_FLOAT(X, k_mv32_f)                                                                   \
    SIMT_EACH_QUANT(X, k_mv8_f)                                                                    \
    SIMT_EACH_FLOAT(X, k_mm_f)                                                                     \
    SIMT_EACH_QUANT(X, k_mm_f)                                                                     \
    SIMT_EACH_QUANT(X, k_mv1_i)                                                                    \
    SIMT_EACH_QUANT(X, k_mv16_i)                                                                   \
    SIMT_EACH_QUANT(X, k_mm_i)                                                                     \
    X(k_mma_f16)                                                                                   \
    X(k_mma_bf16)                                                                                  \
    SIMT_EACH_QUANT(X, k_mma)                                                                      \
    SIMT_EACH_FLOAT(X, k_attn)                                                                     \
    X(k_attn_fold)                                                                                 \
    X(k_embed)                                                                                     \
    X(k_decode)                                                                                    \
    X(k_moe_route)                                                                                 \
    X(k_moe_sort)                                                                                  \
    X(k_moe_sum)                                                                                   \
    X(k_rms_norm)                                                                                  \
    X(k_layer_norm)                                                                                \
    X(k_quant)                                                                                     \
    X(k_rope)                                                                                      \
    X(k_act_mul)                                                                                   \
    X(k_add) X(k_scale) X(k_topk) X(k_lse) X(k_kv_write) X(k_kv_pack) X(k_kv_unpack)

/* SIMT_k_embed, ... */
#define SIMT_ENUM(name) SIMT_##name,
typedef enum simt_kernel { SIMT_EACH_KERNEL(SIMT_ENUM) SIMT_KERNELS } simt_kernel;
#undef SIMT_ENUM

#endif
