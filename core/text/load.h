/* SPDX-License-Identifier: Apache-2.0
 *
 * A tokeniser from a model path, whatever kind it is.
 *
 * Thread: any.  Owner: the caller destroys the result.
 */
#ifndef HY_TEXT_LOAD_H
#define HY_TEXT_LOAD_H

#include "core/text/tokenizer.h"

/* path: a GGUF file, or a Hugging Face folder. Errors as hy_tok_from_gguf and hy_tok_from_folder.
 */
hy_status hy_tok_load(const char *path, hy_tok **out);

#endif
