/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of element types, and scalar conversions of the 16-bit floats. Decoding of the
 * quantised blocks is in decode.c.
 *
 * Thread: any (constant tables).  Owner: none.
 * Source of the block layouts: the GGUF format as documented by ggml.
 */
#include "hal/dtype.h"

#include <math.h>
#include <string.h>
#include <strings.h>

static const hy_dtype_info infos[HY_DTYPE_MAX] = {
    [HY_F32] = {"f32", 1, 4, false},
    [HY_F16] = {"f16", 1, 2, false},
    [HY_Q4_0] = {"q4_0", 32, 2 + 16, true},
    [HY_Q4_1] = {"q4_1", 32, 4 + 16, true},
    [HY_Q5_0] = {"q5_0", 32, 2 + 4 + 16, true},
    [HY_Q5_1] = {"q5_1", 32, 4 + 4 + 16, true},
    [HY_Q8_0] = {"q8_0", 32, 2 + 32, true},
    [HY_Q2_K] = {"q2_k", 256, 16 + 64 + 4, true},
    [HY_Q3_K] = {"q3_k", 256, 32 + 64 + 12 + 2, true},
    [HY_Q4_K] = {"q4_k", 256, 4 + 12 + 128, true},
    [HY_Q5_K] = {"q5_k", 256, 4 + 12 + 32 + 128, true},
    [HY_Q6_K] = {"q6_k", 256, 128 + 64 + 16 + 2, true},
    [HY_IQ4_NL] = {"iq4_nl", 32, 2 + 16, true},
    [HY_I8] = {"i8", 1, 1, false},
    [HY_I32] = {"i32", 1, 4, false},
    [HY_BF16] = {"bf16", 1, 2, false},
    [HY_F8_E4M3] = {"f8_e4m3", 1, 1, false},
    [HY_F8_E4M3FNUZ] = {"f8_e4m3fnuz", 1, 1, false},
};

const hy_dtype_info *hy_dtype_get(int t)
{
    if (t < 0 || t >= HY_DTYPE_MAX || infos[t].name == NULL)
        return NULL;
    return &infos[t];
}

const char *hy_dtype_name(int t)
{
    const hy_dtype_info *d = hy_dtype_get(t);
    return d != NULL ? d->name : "?";
}

hy_status hy_dtype_parse(const char *name, hy_dtype *out)
{
    char known[256] = "";
    size_t n = 0;
    for (int t = 0; t < HY_DTYPE_MAX; t++) {
        if (infos[t].name == NULL)
            continue;
        if (strcasecmp(name, infos[t].name) == 0) {
            *out = (hy_dtype)t;
            return HY_OK;
        }
        size_t len = strlen(infos[t].name);
        if (n + len + 2 < sizeof(known)) {
            known[n++] = ' ';
            memcpy(known + n, infos[t].name, len + 1);
            n += len;
        }
    }
    return hy_fail(HY_E_INVAL, "unknown element type \"%s\"; known are:%s", name, known);
}

size_t hy_dtype_row_bytes(int t, int64_t n)
{
    const hy_dtype_info *d = hy_dtype_get(t);
    if (d == NULL || n < 0 || n % d->block != 0)
        return 0;
    uint64_t blocks = (uint64_t)n / d->block;
    if (blocks > SIZE_MAX / d->bytes)
        return 0;
    return (size_t)blocks * d->bytes;
}

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    return u;
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

float hy_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exp = (h >> 10) & 0x1fu;
    uint32_t man = h & 0x3ffu;
    if (exp == 31) /* infinity, NaN (made quiet, as processors do) */
        return float_of(sign | 0x7f800000u | man << 13 | (man != 0 ? 0x400000u : 0));
    if (exp == 0) { /* zero, subnormal: man * 2^-24 is exact */
        float f = (float)man * 0x1p-24f;
        return float_of(sign | bits_of(f));
    }
    return float_of(sign | (exp + 112) << 23 | man << 13);
}

uint16_t hy_f32_to_f16(float f)
{
    uint32_t u = bits_of(f);
    uint32_t sign = u >> 16 & 0x8000u;
    uint32_t a = u & 0x7fffffffu;
    if (a > 0x7f800000u) /* NaN stays one, quiet */
        return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x3ffu));
    if (a >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) { /* below 2^-14: subnormal; adding 0.5 aligns and rounds the mantissa */
        float r = float_of(a) + 0.5f;
        return (uint16_t)(sign | (bits_of(r) - 0x3f000000u));
    }
    uint32_t odd = a >> 13 & 1u;
    a += 0xfffu + odd; /* nearest, ties to even; a carry moves into the exponent */
    return (uint16_t)(sign | ((a >> 13) - (112u << 10)));
}

float hy_bf16_to_f32(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

uint16_t hy_f32_to_bf16(float f)
{
    uint32_t u = bits_of(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) /* NaN stays one, quiet */
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

float hy_f8_to_f32(hy_dtype t, uint8_t b)
{
    bool fn = t == HY_F8_E4M3;
    int e = b >> 3 & 15, m = b & 7, bias = fn ? 7 : 8;
    float v = e == 0 ? ldexpf((float)m, -2 - bias) : ldexpf((float)(8 + m), e - 3 - bias);
    if (fn ? (b & 0x7f) == 0x7f : b == 0x80)
        return float_of(0x7fc00000u | (fn ? (uint32_t)(b & 0x80) << 24 : 0));
    return b & 0x80 ? -v : v;
}

uint8_t hy_f32_to_f8(hy_dtype t, float f)
{
    bool fn = t == HY_F8_E4M3;
    int bias = fn ? 7 : 8, top = fn ? 0x7e : 0x7f, code, e;
    uint8_t sign = signbit(f) ? 0x80 : 0;
    float a = fabsf(f);
    if (f != f)
        return fn ? sign | 0x7f : 0x80;
    if (a >= (fn ? 448.0f : 240.0f)) {
        code = top;
    } else if (a < ldexpf(1.0f, 1 - bias)) { /* subnormal: a carry gives the first normal */
        code = (int)rintf(ldexpf(a, 2 + bias));
    } else {
        float m = frexpf(a, &e); /* a = m 2^e, m in [1/2, 1) */
        int q = (int)rintf(m * 16.0f);
        code = ((e - 1 + bias) << 3) + (q - 8); /* a carry of q to 16 moves into e */
    }
    return (uint8_t)(code == 0 && !fn ? 0 : sign | code);
}
