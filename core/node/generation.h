/* SPDX-License-Identifier: Apache-2.0
 *
 * A model's own sampling parameters: generation_config.json of a Hugging Face folder. They are the
 * defaults of requests that do not say otherwise, as vLLM has it.
 *
 * Thread: any.  Owner: plain values.
 */
#ifndef HY_NODE_GENERATION_H
#define HY_NODE_GENERATION_H

#include "core/req/req.h"

/* path: a model file or folder. *s keeps its values where the folder says nothing (or path is no
 * folder, or has no such file). HY_E_FORMAT names the file and the key of a value that is wrong. */
hy_status hy_generation_read(const char *path, hy_sampling *s);

#endif
