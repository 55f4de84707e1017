/* SPDX-License-Identifier: Apache-2.0
 *
 * Frequencies of rotary embeddings from their published parameters, and the cos/sin of a position.
 * All by our own elementary functions: the same bits on every machine.
 *
 * Thread: any.  Owner: hy_rope_free.
 * Source: transformers' modeling_rope_utils (formulas), YaRN (arXiv 2309.00071), LongRoPE
 * (arXiv 2402.13753).
 */
#ifndef HY_MODEL_ROPE_H
#define HY_MODEL_ROPE_H

#include "core/model/hparams.h"
#include "core/model/model.h"

/* d->rot and d->kind are set; fills the rest. context: of the configuration. */
hy_status hy_rope_make(const hy_rope_params *r, int32_t context, hy_rope_desc *d);
void hy_rope_free(hy_rope_desc *d);
/* cos and sin [rot/2] of one position; long_form: the long factors where there are some. */
void hy_rope_angles(const hy_rope_desc *d, int32_t pos, bool long_form, float *cos, float *sin);

#endif
