/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes a tiny Hugging Face folder as a GGUF file, the way published converters do: names mapped,
 * llama's q and k rows permuted to pairs, gemma's norms plus one, factors of longrope and llama3 as
 * tensors. For tests that both formats give the same model.
 *
 * Thread: one.  Owner: the caller removes the file.
 */
#ifndef HY_TESTS_GOLDEN_TOGGUF_H
#define HY_TESTS_GOLDEN_TOGGUF_H

#include "core/base/status.h"

/* family: of tests/golden/tiny. type: "bf16" or "f32" keeps values; "q8_0" rounds matrices whose
 * rows are whole blocks. */
hy_status togguf(const char *dir, const char *family, const char *type, const char *out);

#endif
