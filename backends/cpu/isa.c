/* SPDX-License-Identifier: Apache-2.0
 *
 * Which vector instructions this CPU and its system have: CPUID, and XGETBV for the registers that
 * the system saves. isa = NAME may only pick what is there.
 *
 * Thread: any.  Owner: none.
 */
#include "backends/cpu/cpu_int.h"

#include <string.h>
#include <strings.h>

#if defined(__x86_64__)
#include <cpuid.h>

static uint64_t xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static bool all(uint32_t reg, uint32_t bits)
{
    return (reg & bits) == bits;
}

#define BIT(n) (1u << (n))

void cpu_isa_detect(cpu_features *out)
{
    uint32_t a, b, c, d, a1 = 0, b1, c1, d1;
    memset(out, 0, sizeof(*out));
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return;
    bool fma = c & BIT(12), osxsave = c & BIT(27), f16c = c & BIT(29);
    if (!osxsave || !(c & BIT(28)) || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return;
    uint64_t x = xcr0();
    bool ymm = (x & 0x6) == 0x6, zmm = (x & 0xe6) == 0xe6;
    __get_cpuid_count(7, 1, &a1, &b1, &c1, &d1);
    bool avx2 = ymm && fma && f16c && all(b, BIT(5) | BIT(8)); /* AVX2, BMI2 */
    /* F 16, DQ 17, BW 30, VL 31; VNNI is ecx 11 */
    bool avx512 = avx2 && zmm && all(b, BIT(16) | BIT(17) | BIT(30) | BIT(31)) && c & BIT(11);
    out->best = avx512 ? CPU_ISA_AVX512 : avx2 ? CPU_ISA_AVX2 : CPU_ISA_SCALAR;
    out->avx_vnni = avx2 && a1 & BIT(4);
    out->avx512_bf16 = avx512 && a1 & BIT(5);
    out->avx512_vbmi = avx512 && c & BIT(1);
}

#else

void cpu_isa_detect(cpu_features *out)
{
    memset(out, 0, sizeof(*out));
}

#endif

static const char *const names[CPU_ISA_COUNT] = {"scalar", "avx2", "avx512"};

const char *cpu_isa_name(cpu_isa isa)
{
    return names[isa];
}

hy_status cpu_isa_pick(const char *name, const cpu_features *f, cpu_isa *out)
{
    if (name == NULL || name[0] == '\0' || strcasecmp(name, "auto") == 0) {
        *out = f->best;
        return HY_OK;
    }
    for (int i = 0; i < CPU_ISA_COUNT; i++) {
        if (strcasecmp(name, names[i]) != 0)
            continue;
        if ((cpu_isa)i > f->best)
            return hy_fail(HY_E_UNSUPPORTED,
                           "[backend.cpu] isa = %s: this CPU has no more than %s; use auto", name,
                           names[f->best]);
        *out = (cpu_isa)i;
        return HY_OK;
    }
    return hy_fail(HY_E_INVAL,
                   "[backend.cpu] isa = %s: no such value; use auto, scalar, avx2 or avx512", name);
}
