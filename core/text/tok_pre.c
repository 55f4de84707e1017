/* SPDX-License-Identifier: Apache-2.0
 *
 * Pre-tokenisers that a GGUF file names: patterns applied one after the other, each cutting its
 * matches out of what the one before left. A table: the patterns are those of the published
 * tokenizer.json files of the models that the names come from.
 *
 * Thread: any (constant).  Owner: none.
 */
#include "core/text/tok_int.h"

#include <string.h>

/* clang-format off */
#define GPT2 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA3 \
    "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\\r\\n\\p{L}\\p{N}]?" \
    "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define QWEN2 \
    "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\\r\\n\\p{L}\\p{N}]?" \
    "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define QWEN35 \
    "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\\r\\n\\p{L}\\p{N}]?" \
    "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?" \
    "!\\S)|\\s+"
#define GPT4O \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo" \
    "}\\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\\r\\n\\p{" \
    "L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?:" \
    "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\\p{N}{1,3}| ?[^\\s\\p{L" \
    "}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define TEKKEN \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo" \
    "}\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{" \
    "Lm}\\p{Lo}\\p{M}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)" \
    "|\\s+"
#define BAILING \
    "'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|" \
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"
#define SEED \
    "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\\r\\n\\p{L}\\p{N}]?" \
    "\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define DS_LETTERS \
    "\\s?[A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf" \
    "}\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{" \
    "37d}\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{" \
    "3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{" \
    "13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b" \
    "}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{" \
    "1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}" \
    "\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{" \
    "1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec" \
    "}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{" \
    "2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-" \
    "\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{21" \
    "84}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{" \
    "a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}\\x{a78b" \
    "}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{" \
    "ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{" \
    "104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}\\x{1e900}-" \
    "\\x{1e943}]+"
#define DS_PUNCT \
    "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{" \
    "3002}]+"
#define DS_CJK \
    "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
#define DS3_CJK \
    "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"
#define DS3_WORDS \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?" \
    "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
#define BLOOM \
    " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"

const char hy_tok__gpt2_pattern[] = GPT2;

static const tok_pre pres[] = {
    {"gpt-2", {GPT2}, false, false},
    {"phi-2", {GPT2}, false, false},
    {"mpt", {GPT2}, false, false},
    {"olmo", {GPT2}, false, false},
    {"jais", {GPT2}, false, false},
    {"trillion", {GPT2}, false, false},
    {"granite-docling", {GPT2}, false, false},
    {"gigachat", {GPT2}, false, false},
    {"a.x-4.0", {GPT2}, false, false},
    {"mellum", {GPT2}, false, false},
    {"exaone4", {GPT2}, false, false},
    {"jina-es", {GPT2}, false, false},
    {"jina-de", {GPT2}, false, false},
    {"jina-v2-es", {GPT2}, false, false},
    {"jina-v2-de", {GPT2}, false, false},
    {"jina-v2-code", {GPT2}, false, false},
    {"jina-v1-en", {GPT2}, false, false},
    {"roberta-bpe", {GPT2}, false, false},
    {"modern-bert", {GPT2}, false, false},
    {"smollm", {"\\p{N}", GPT2}, false, false},
    {"starcoder", {"\\p{N}", GPT2}, false, false},
    {"refact", {"\\p{N}", GPT2}, false, false},
    {"command-r", {"\\p{N}", GPT2}, false, false},
    {"codeshell", {"\\p{N}", GPT2}, false, false},
    {"exaone", {"\\p{N}", GPT2}, false, false},
    {"minerva-7b", {"\\p{N}", GPT2}, false, false},
    {"mellum2", {"\\p{N}", GPT2}, false, false},
    {"llama-bpe", {LLAMA3}, true, true},
    {"llama3", {LLAMA3}, true, true},
    {"llama-v3", {LLAMA3}, true, true},
    {"falcon3", {LLAMA3}, true, true},
    {"falcon-h1", {LLAMA3}, true, true},
    {"pixtral", {LLAMA3}, true, true},
    {"midm-2.0", {LLAMA3}, true, true},
    {"lfm2", {LLAMA3}, true, true},
    {"dbrx", {LLAMA3}, false, false},
    {"smaug-bpe", {LLAMA3}, false, false},
    {"chatglm-bpe", {LLAMA3}, false, false},
    {"glm4", {LLAMA3}, true, false},
    {"glm5", {LLAMA3}, true, false},
    {"qwen2", {QWEN2}, false, false},
    {"deepseek-r1-qwen", {QWEN2}, false, false},
    {"kormo", {QWEN2}, false, false},
    {"megrez", {QWEN2}, false, false},
    {"stablelm2", {QWEN2}, false, false},
    {"hunyuan", {QWEN2}, false, false},
    {"solar-open", {QWEN2}, false, false},
    {"grok-2", {QWEN2}, false, false},
    {"qwen35", {QWEN35}, false, false},
    {"gpt-4o", {GPT4O}, false, false},
    {"llama4", {GPT4O}, false, false},
    {"kanana2", {GPT4O}, false, false},
    {"minimax-m2", {GPT4O}, false, false},
    {"tekken", {TEKKEN}, true, true},
    {"deepseek-llm", {"[\r\n]", DS_LETTERS, DS_PUNCT, "\\s+$", DS_CJK, "\\p{N}+"}, false, false},
    {"deepseek-coder", {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", DS_CJK, "\\p{N}"}, false, false},
    {"deepseek-v3", {"\\p{N}{1,3}", DS3_CJK, DS3_WORDS}, false, false},
    {"hunyuan-dense", {"\\p{N}{1,3}", DS3_CJK, DS3_WORDS}, false, false},
    {"joyai-llm", {"\\p{N}{1,3}", DS3_CJK, DS3_WORDS}, false, false},
    {"falcon", {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}, false, false},
    {"default", {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, false, false},
    {"bloom", {BLOOM}, false, false},
    {"poro-chat", {BLOOM}, false, false},
    {"gpt3-finnish", {BLOOM}, false, false},
    {"viking", {BLOOM, "\\p{N}"}, false, false},
    {"bailingmoe", {BAILING}, false, false},
    {"bailingmoe2", {BAILING}, false, false},
    {"llada-moe", {BAILING}, false, false},
    {"seed-coder", {SEED}, false, false},
};
/* clang-format on */

const tok_pre *hy_tok__pre(const char *name, size_t len)
{
    for (size_t i = 0; i < HY_COUNTOF(pres); i++)
        if (strlen(pres[i].name) == len && memcmp(pres[i].name, name, len) == 0)
            return &pres[i];
    return NULL;
}
