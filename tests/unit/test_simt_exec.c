/* SPDX-License-Identifier: Apache-2.0
 *
 * The host executor: what kernels of the dialect compute, and that planted faults (a barrier that
 * is missing or not reached by all, shared memory out of bounds or not written, a wave torn apart,
 * a stack too small) come back as errors that say where.
 *
 * Thread: main.  Owner: each test.
 */
#define SIMT_CHECK
#include "backends/simt/host/exec.h"
#include "backends/simt/mma.h"
#include "tests/unit/cm.h"

typedef struct args {
    float *f;
    uint32_t *u;
    int n, mode;
} args;

/* ---- sound kernels ---- */

/* Reverses 128 numbers through shared memory. */
HY_KERNEL(k_reverse, SIMT_BLOCK, args, a)
{
    HY_SHARED(float, t, SIMT_BLOCK);
    SH_PUT(t, HY_TID, a.f[HY_BX * SIMT_BLOCK + HY_TID]);
    HY_BARRIER();
    a.f[HY_BX * SIMT_BLOCK + HY_TID] = SH_GET(t, SIMT_BLOCK - 1 - HY_TID);
}

/* The team's sum twice: by the dialect's word, and by its definition in exchanges. */
HY_KERNEL(k_sums, SIMT_BLOCK, args, a)
{
    float v = a.f[HY_TID], s = v;
    for (int m = 1; m < 32; m *= 2)
        s += hy_shfl_xor_f32(s, m);
    float whole = hy_team_sum(v);
    a.f[SIMT_BLOCK + HY_TID] = s;
    a.f[2 * SIMT_BLOCK + HY_TID] = whole;
}

HY_KERNEL(k_words, SIMT_BLOCK, args, a)
{
    uint32_t odd = hy_team_ballot(HY_LANE % 3 == 0);
    uint32_t five = hy_shfl_u32((uint32_t)HY_TID, 5);
    uint64_t top = hy_team_max_u64((uint64_t)(HY_TID * 7919 % 128) << 32);
    float most = hy_team_max((float)(HY_TID ^ 21));
    double sum = hy_team_sum_f64((double)HY_TID);
    a.u[5 * HY_TID] = odd;
    a.u[5 * HY_TID + 1] = five;
    a.u[5 * HY_TID + 2] = (uint32_t)(top >> 32);
    a.u[5 * HY_TID + 3] = (uint32_t)most;
    a.u[5 * HY_TID + 4] = (uint32_t)sum;
}

HY_KERNEL(k_atomics, SIMT_BLOCK, args, a)
{
    hy_atomic_add_u32(&a.u[0], (uint32_t)HY_TID);
    hy_atomic_max_i32((int32_t *)&a.u[1], HY_BX * 1000 + HY_TID);
    if (HY_TID == 0 && HY_BX == 0 && HY_BY == 0 && HY_BZ == 0)
        a.u[2] = (uint32_t)HY_WAVE;
}

/* A wave's product on matrix units: A [16][16], B [8 a team][16], out [16][8 a team], all in u and
 * f; mode: halves, else bf16. */
HY_KERNEL(k_units, SIMT_BLOCK, args, a)
{
    HY_SHARED(uint32_t, x, 16 * 9);
    HY_SHARED(uint32_t, y, SIMT_TEAMS * 8 * 9);
    for (int i = HY_TID; i < 16 * 8; i += SIMT_BLOCK)
        SH_PUT(x, i / 8 * 9 + i % 8, a.u[i]);
    for (int i = HY_TID; i < SIMT_TEAMS * 8 * 8; i += SIMT_BLOCK)
        SH_PUT(y, i / 8 * 9 + i % 8, a.u[16 * 8 + i]);
    HY_BARRIER();
    const hy_frag_a fa = hy_mma_load_a(x, 0, 9);
    const hy_frag_b fb = hy_mma_load_b(y, HY_TEAM * 8 * 9, 9);
    float c[4];
    for (int i = 0; i < 4; i++)
        c[i] = (float)hy_mma_row(i);
    hy_mma(c, fa, fb, a.mode);
    hy_mma(c, fa, fb, a.mode); /* twice: the lanes may not overtake each other */
    for (int i = 0; i < 4; i++)
        a.f[hy_mma_row(i) * 8 * SIMT_TEAMS + HY_TEAM * 8 + hy_mma_col(i)] = c[i];
}

/* ---- planted faults ---- */

HY_KERNEL(k_fault, SIMT_BLOCK, args, a)
{
    HY_SHARED(float, t, SIMT_BLOCK);
    const int me = HY_TID, next = (me + 1) % SIMT_BLOCK;
    float v = 0.0f;
    switch (a.mode) {
    case 0: /* the barrier is not there */
        SH_PUT(t, me, 1.0f);
        v = SH_GET(t, next);
        break;
    case 1: /* the barrier before writing again is not there */
        SH_PUT(t, me, 1.0f);
        HY_BARRIER();
        v = SH_GET(t, next);
        SH_PUT(t, me, v);
        break;
    case 2: /* half of the block */
        if (me < 64)
            HY_BARRIER();
        break;
    case 3: /* two barriers for one */
        if (me % 2 == 0)
            HY_BARRIER();
        else
            HY_BARRIER();
        break;
    case 4:
        SH_PUT(t, me + 1, 1.0f);
        break;
    case 5:
        SH_PUT(t, me, 1.0f);
        HY_BARRIER();
        v = SH_GET(t, me - 1);
        break;
    case 6:
        v = SH_GET(t, me);
        break;
    case 7: /* a part of a team */
        if (HY_LANE < 16)
            v = hy_team_sum(1.0f);
        break;
    case 8: /* whole teams, but half a wave of 64 */
        if (HY_TEAM % 2 == 0)
            v = hy_team_sum(1.0f);
        break;
    case 9: /* one wave at a barrier, one in a team operation */
        if (HY_TEAM < 2)
            HY_BARRIER();
        else
            v = hy_team_max(1.0f) + (HY_LANE == 0 ? hy_team_max(2.0f) : 0.0f);
        break;
    case 10: /* two lanes write one place */
        SH_PUT(t, me / 2, 1.0f);
        break;
    case 11: { /* matrix units without the whole team */
        hy_frag_a fa = {{0, 0, 0, 0}};
        hy_frag_b fb = {{0, 0}};
        float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (HY_LANE != 7)
            hy_mma(c, fa, fb, 1);
        v = c[0];
        break;
    }
    case 12: /* a part of what is read was never written */
        if (me != 77)
            SH_PUT(t, me, 1.0f);
        HY_BARRIER();
        v = SH_GET(t, next);
        break;
    case 13: /* a lane leaves before the barrier */
        if (me == 127)
            return;
        HY_BARRIER();
        break;
    }
    a.f[me] = v;
}

HY_KERNEL(k_huge, SIMT_BLOCK, args, a)
{
    HY_SHARED(double, big, 8000);
    a.f[HY_TID] = (float)SH_GET(big, 0);
}

static float deep(int n)
{
    volatile float here[64];
    here[n % 64] = (float)n;
    return (char *)(uintptr_t)here - simt_stack_end() > 4096 ? deep(n + 1) + here[n % 64] : 0.0f;
}

/* Nearly all of the stack. */
HY_KERNEL(k_deep, SIMT_BLOCK, args, a)
{
    a.f[HY_TID] = deep(0);
}

/* Overwrites the low end of the lane's stack, as one frame too many would. */
HY_KERNEL(k_over, SIMT_BLOCK, args, a)
{
    if (HY_TID == 3)
        memset(simt_stack_end(), 2, 32);
    a.f[HY_TID] = 1.0f;
}

/* ---- frame ---- */

static simt_exec *open_exec(int wave, int threads, uint64_t seed)
{
    simt_exec_opts o = {.wave = wave, .threads = threads, .seed = seed};
    simt_exec *e = NULL;
    assert_int_equal(simt_exec_create(&o, &e), HY_OK);
    return e;
}

static hy_status run(simt_exec *e, const char *name, simt_fn fn, uint32_t blocks, const args *a)
{
    simt_launch l = {
        .name = name, .fn = fn, .lanes = SIMT_BLOCK, .x = blocks, .y = 1, .z = 1, .args = a};
    return simt_exec_run(e, &l);
}

static const struct {
    int wave, threads;
    uint64_t seed;
} kinds[] = {{32, 1, 0}, {64, 1, 0}, {32, 2, 5}, {64, 3, 6}, {64, 1, 7}};

static void test_reverse(void **state)
{
    (void)state;
    enum { BLOCKS = 37 };
    static float f[BLOCKS * SIMT_BLOCK];
    for (size_t k = 0; k < HY_COUNTOF(kinds); k++) {
        simt_exec *e = open_exec(kinds[k].wave, kinds[k].threads, kinds[k].seed);
        for (int i = 0; i < BLOCKS * SIMT_BLOCK; i++)
            f[i] = (float)i;
        assert_int_equal(run(e, "k_reverse", k_reverse, BLOCKS, &(args){.f = f}), HY_OK);
        for (int i = 0; i < BLOCKS * SIMT_BLOCK; i++)
            assert_true(f[i] ==
                        (float)(i / SIMT_BLOCK * SIMT_BLOCK + SIMT_BLOCK - 1 - i % SIMT_BLOCK));
        simt_exec_destroy(e);
    }
}

static void test_sums(void **state)
{
    (void)state;
    float f[3 * SIMT_BLOCK], first[SIMT_BLOCK];
    for (size_t k = 0; k < HY_COUNTOF(kinds); k++) {
        simt_exec *e = open_exec(kinds[k].wave, kinds[k].threads, kinds[k].seed);
        for (int i = 0; i < SIMT_BLOCK; i++)
            f[i] = (float)(i * i % 97) / 7.0f - 3.3f;
        assert_int_equal(run(e, "k_sums", k_sums, 1, &(args){.f = f}), HY_OK);
        assert_memory_equal(f + SIMT_BLOCK, f + 2 * SIMT_BLOCK, sizeof(first));
        for (int i = 0; i < SIMT_BLOCK; i++) { /* all lanes of a team agree */
            double want = 0.0;
            for (int j = 0; j < 32; j++)
                want += (double)f[i / 32 * 32 + j];
            assert_true(f[SIMT_BLOCK + i] == f[SIMT_BLOCK + i / 32 * 32]);
            assert_true(fabs((double)f[SIMT_BLOCK + i] - want) < 1e-4);
        }
        if (k == 0)
            memcpy(first, f + SIMT_BLOCK, sizeof(first));
        assert_memory_equal(first, f + SIMT_BLOCK, sizeof(first));
        simt_exec_destroy(e);
    }
}

static void test_words(void **state)
{
    (void)state;
    uint32_t u[5 * SIMT_BLOCK];
    for (size_t k = 0; k < HY_COUNTOF(kinds); k++) {
        simt_exec *e = open_exec(kinds[k].wave, kinds[k].threads, kinds[k].seed);
        memset(u, 0, sizeof(u));
        assert_int_equal(run(e, "k_words", k_words, 1, &(args){.u = u}), HY_OK);
        for (int i = 0; i < SIMT_BLOCK; i++) {
            int t = i / 32 * 32;
            uint32_t top = 0, most = 0;
            for (int j = t; j < t + 32; j++) {
                top = (uint32_t)(j * 7919 % 128) > top ? (uint32_t)(j * 7919 % 128) : top;
                most = (uint32_t)(j ^ 21) > most ? (uint32_t)(j ^ 21) : most;
            }
            assert_int_equal(u[5 * i], 0x49249249u); /* bits 0, 3, 6, ... 30 */
            assert_int_equal(u[5 * i + 1], t + 5);
            assert_int_equal(u[5 * i + 2], top);
            assert_int_equal(u[5 * i + 3], most);
            assert_int_equal(u[5 * i + 4], 32 * t + 31 * 16);
        }
        simt_exec_destroy(e);
    }
}

static void test_units(void **state)
{
    (void)state;
    enum { N = 8 * SIMT_TEAMS };
    uint32_t u[(16 + N) * 8];
    float f[16 * N], x[(16 + N) * 16];
    for (int f16 = 0; f16 < 2; f16++) {
        for (int i = 0; i < (16 + N) * 16; i++) { /* small whole numbers: every sum is exact */
            x[i] = (float)(i * 37 % 15 - 7);
            uint32_t bits;
            memcpy(&bits, &x[i], sizeof(bits));
            bits = f16 ? hy_f2h(x[i]) : bits >> 16;
            u[i / 2] = i % 2 ? u[i / 2] | bits << 16 : bits;
        }
        for (size_t k = 0; k < HY_COUNTOF(kinds); k++) {
            simt_exec *e = open_exec(kinds[k].wave, kinds[k].threads, kinds[k].seed);
            memset(f, 0xff, sizeof(f));
            assert_int_equal(run(e, "k_units", k_units, 1, &(args){.f = f, .u = u, .mode = f16}),
                             HY_OK);
            for (int i = 0; i < 16 * N; i++) {
                float want = 0.0f;
                for (int j = 0; j < 16; j++)
                    want += x[i / N * 16 + j] * x[(16 + i % N) * 16 + j];
                assert_true(f[i] == (float)(i / N) + 2.0f * want);
            }
            simt_exec_destroy(e);
        }
    }
}

static void test_atomics(void **state)
{
    (void)state;
    for (size_t k = 0; k < HY_COUNTOF(kinds); k++) {
        uint32_t u[3] = {0, 0, 0};
        simt_exec *e = open_exec(kinds[k].wave, kinds[k].threads, kinds[k].seed);
        assert_int_equal(run(e, "k_atomics", k_atomics, 50, &(args){.u = u}), HY_OK);
        assert_int_equal(u[0], 50 * (127 * 128 / 2));
        assert_int_equal(u[1], 49127);
        assert_int_equal(u[2], kinds[k].wave);
        simt_exec_destroy(e);
    }
}

static void test_faults(void **state)
{
    (void)state;
    static const struct {
        int mode, wave; /* 0: both */
        const char *text;
    } faults[] = {
        {0, 0, "read"},
        {1, 0, "with no barrier between"},
        {2, 0, "not all lanes of a block reach a barrier"},
        {3, 0, "while others wait at"},
        {4, 0, "t[128] is outside its 128 elements"},
        {5, 0, "t[-1] is outside its 128 elements"},
        {6, 0, "is read before it was written"},
        {7, 0, "not all lanes of a wave come along"},
        {8, 64, "not all lanes of a wave come along"},
        {9, 0, "wait at a barrier"},
        {10, 0, "with no barrier between"},
        {11, 0, "not all lanes of a wave come along"},
        {12, 0, "t[77] is read before it was written"},
        {13, 0, "not all lanes of a block reach a barrier"},
    };
    float f[SIMT_BLOCK];
    for (size_t k = 0; k < HY_COUNTOF(kinds); k++) {
        simt_exec *e = open_exec(kinds[k].wave, kinds[k].threads, kinds[k].seed);
        for (size_t i = 0; i < HY_COUNTOF(faults); i++) {
            args a = {.f = f, .mode = faults[i].mode};
            hy_status st = run(e, "k_fault", k_fault, 1, &a);
            if (faults[i].wave != 0 && faults[i].wave != kinds[k].wave) {
                assert_int_equal(st, HY_OK); /* right at this width */
                continue;
            }
            assert_int_equal(st, HY_E_DEVICE);
            if (strstr(hy_fail_text(), faults[i].text) == NULL)
                fail_msg("fault %d: \"%s\" does not say \"%s\"", faults[i].mode, hy_fail_text(),
                         faults[i].text);
            assert_non_null(strstr(hy_fail_text(), "k_fault, block (0,0,0)"));
            assert_non_null(strstr(hy_fail_text(), "test_simt_exec.c:"));
        }
        /* and goes on with sound kernels */
        for (int i = 0; i < SIMT_BLOCK; i++)
            f[i] = (float)i;
        assert_int_equal(run(e, "k_reverse", k_reverse, 1, &(args){.f = f}), HY_OK);
        assert_true(f[0] == 127.0f);
        simt_exec_destroy(e);
    }
}

static void test_limits(void **state)
{
    (void)state;
    float f[SIMT_BLOCK];
    simt_exec *e = open_exec(32, 1, 0), *none = NULL;
    assert_int_equal(run(e, "k_huge", k_huge, 1, &(args){.f = f}), HY_E_DEVICE);
    assert_non_null(strstr(hy_fail_text(), "shared array big of 64000 bytes does not fit"));
    assert_int_equal(run(e, "k_deep", k_deep, 1, &(args){.f = f}), HY_OK);
    assert_true(f[5] > 0.0f);
    assert_int_equal(run(e, "k_over", k_over, 1, &(args){.f = f}), HY_E_DEVICE);
    assert_non_null(strstr(hy_fail_text(), "ran out of its stack"));
    simt_launch l = {.name = "k", .fn = k_reverse, .lanes = 512, .x = 1, .y = 1, .z = 1};
    assert_int_equal(simt_exec_run(e, &l), HY_E_INVAL);
    simt_exec_destroy(e);
    assert_int_equal(simt_exec_create(&(simt_exec_opts){.wave = 48, .threads = 1}, &none),
                     HY_E_INVAL);
    assert_null(none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reverse), cmocka_unit_test(test_sums),  cmocka_unit_test(test_words),
        cmocka_unit_test(test_atomics), cmocka_unit_test(test_units), cmocka_unit_test(test_faults),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
