/* SPDX-License-Identifier: Apache-2.0
 *
 * One block: lanes are fibres that switch straight to the next one able to run. A stack is given
 * up by a lane that ends, so kernels without barriers run all lanes on one stack without a switch.
 *
 * Thread: a worker's own.  Owner: the worker.
 */
#include "backends/simt/host/block.h"
#include "core/base/alloc.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#define CANARY 0x5afe57acc0ffee11u /* at the low end of every stack in use */

_Thread_local simt_lane *simt_me;

static const char *base_name(const char *path)
{
    const char *s = strrchr(path, '/');
    return s != NULL ? s + 1 : path;
}

/* ---- switching, known to the sanitizers ---- */

/* Frames that end by a switch and never return: no marks of the sanitizer may stay behind. */
#define NO_MARKS __attribute__((noinline, no_sanitize("address")))

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>

/* Goes on at `to`, on a stack of the block, or on the thread's own (-1). */
NO_MARKS static void jump(simt_block *b, void **from, void *to, int stack)
{
    void *fake = NULL;
    b->stack = stack;
    __sanitizer_start_switch_fiber(&fake,
                                   stack < 0 ? b->home_low : simt_stack_low(&b->stacks, stack),
                                   stack < 0 ? b->home_size : b->stacks.bytes);
    simt_fiber_switch(from, to);
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
}

static void arrived(simt_block *b)
{
    if (b->n_stacks == 1) /* from home */
        __sanitizer_finish_switch_fiber(NULL, &b->home_low, &b->home_size);
    else
        __sanitizer_finish_switch_fiber(NULL, NULL, NULL);
}

/* Lanes left behind have frames that never end. */
static void clean_stacks(simt_block *b)
{
    for (int i = 0; i < b->n_stacks; i++)
        __asan_unpoison_memory_region(simt_stack_low(&b->stacks, i), b->stacks.bytes);
}

#else

NO_MARKS static void jump(simt_block *b, void **from, void *to, int stack)
{
    b->stack = stack;
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(stack < 0 ? b->tsan_home : b->tsan[stack], 0);
#endif
    simt_fiber_switch(from, to);
}

static void arrived(simt_block *b)
{
    (void)b;
}

static void clean_stacks(simt_block *b)
{
    (void)b;
}

#endif

/* Lanes are left where they are: their stacks are simply used anew. */
NO_MARKS static _Noreturn void leave(simt_block *b)
{
    void *nowhere;
    jump(b, &nowhere, b->home, -1);
    HY_ASSERT(!"a lane of a failed block goes on");
}

static _Noreturn void fail(simt_block *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static _Noreturn void fail(simt_block *b, const char *fmt, ...)
{
    char msg[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof(msg), fmt, ap);
    va_end(ap);
    snprintf(b->text, sizeof(b->text), "kernel %s, block (%d,%d,%d): %s", b->l->name, simt_me->bx,
             simt_me->by, simt_me->bz, msg);
    b->failed = true;
    leave(b);
}

/* "lanes 0-31 wait at a barrier (k.h:12); lanes 32-63 have ended" */
static void describe(const simt_block *b, char *out, size_t size)
{
    static const char *const words[] = {"run", "wait at a barrier", "wait for their wave",
                                        "have not begun", "have ended"};
    size_t at = 0;
    for (int i = 0, parts = 0; i < b->n && parts < 4; parts++) {
        int j = i;
        bool waits = b->state[i] == SIMT_AT_BARRIER || b->state[i] == SIMT_AT_TEAM;
        while (j + 1 < b->n && b->state[j + 1] == b->state[i] &&
               (!waits || b->at[j + 1].line == b->at[i].line))
            j++;
        int n = snprintf(out + at, size - at, "%slanes %d-%d %s", at != 0 ? "; " : "", i, j,
                         words[b->state[i]]);
        at += n > 0 ? (size_t)n : 0;
        at = at < size ? at : size - 1;
        if (waits) {
            n = snprintf(out + at, size - at, " (%s:%d)", base_name(b->at[i].file), b->at[i].line);
            at += n > 0 ? (size_t)n : 0;
            at = at < size ? at : size - 1;
        }
        i = j + 1;
    }
}

static _Noreturn void stuck(simt_block *b)
{
    char where[224] = "";
    bool team = memchr(b->state, SIMT_AT_TEAM, (size_t)b->n) != NULL;
    describe(b, where, sizeof(where));
    fail(b, "not all lanes of a %s: %s", team ? "wave come along" : "block reach a barrier", where);
}

static void fiber_main(void);

/* Waves have 32 or 64 lanes: no division. */
static int wave_of(const simt_block *b, int tid)
{
    return tid >> (b->wave == 32 ? 5 : 6);
}

/* The next ready lane of [lo, hi) after me, around; -1: none. */
static int next_ready(const simt_block *b, int me, int lo, int hi)
{
    const uint8_t *p = memchr(b->state + me + 1, SIMT_READY, (size_t)(hi - me - 1));
    if (p == NULL)
        p = memchr(b->state + lo, SIMT_READY, (size_t)(me - lo));
    return p != NULL ? (int)(p - b->state) : -1;
}

/* A lane to run after `me`: of its wave if possible, then one that has not begun. -1: none. */
static int pick(const simt_block *b, int me)
{
    const int wave = wave_of(b, me), lo = wave * b->wave, hi = lo + b->waves[wave].n;
    int fresh = b->n_fresh > 0 ? b->order[b->n - b->n_fresh] : -1;
    if (fresh < 0 && me + 1 < hi && b->state[me + 1] == SIMT_READY) /* nearly always */
        return me + 1;
    if (fresh >= lo && fresh < hi)
        return fresh;
    int l = next_ready(b, me, lo, hi);
    if (l >= 0 || fresh >= 0)
        return l >= 0 ? l : fresh;
    return next_ready(b, me, 0, b->n);
}

/* This lane waits; another one goes on. */
static void wait_here(simt_block *b, simt_state state, const char *file, int line)
{
    simt_lane *me = simt_me;
    b->state[me->tid] = (uint8_t)state;
    b->at[me->tid] = (simt_site){file, line};
    me->stack = b->stack;
    int next = pick(b, me->tid);
    if (next < 0)
        stuck(b);
    if (b->state[next] == SIMT_FRESH) {
        uint64_t *low = (uint64_t *)(void *)simt_stack_low(&b->stacks, b->n_stacks);
        *low = CANARY;
        int fresh = b->n_stacks++;
        jump(b, &me->sp, simt_fiber_make(&b->stacks, fresh, fiber_main), fresh);
    } else {
        simt_me = &b->lane[next];
        jump(b, &me->sp, simt_me->sp, simt_me->stack);
    }
}

/* Runs lanes that have not begun, one after another, on one stack. */
NO_MARKS static void fiber_main(void)
{
    simt_block *b = simt_me->block;
    arrived(b);
    while (b->n_fresh > 0) {
        int i = b->order[b->n - b->n_fresh--];
        simt_me = &b->lane[i];
        b->state[i] = SIMT_READY;
        b->l->fn(b->l->args);
        b->state[simt_me->tid] = SIMT_DONE;
        b->n_done++;
    }
    if (b->n_done == b->n)
        leave(b);
    int next = pick(b, simt_me->tid);
    if (next < 0)
        stuck(b);
    void *nowhere;
    simt_me = &b->lane[next];
    jump(b, &nowhere, simt_me->sp, simt_me->stack);
    HY_ASSERT(!"an ended lane goes on");
}

void simt_barrier(const char *file, int line)
{
    simt_block *b = simt_me->block;
    if (b->n_barrier == 0)
        b->barrier = (simt_site){file, line};
    else if (b->barrier.line != line || b->barrier.file != file)
        fail(b, "lane %d is at the barrier %s:%d while others wait at %s:%d", simt_me->tid,
             base_name(file), line, base_name(b->barrier.file), b->barrier.line);
    if (b->n_done > 0) {
        b->state[simt_me->tid] = SIMT_AT_BARRIER;
        b->at[simt_me->tid] = (simt_site){file, line};
        stuck(b);
    }
    if (++b->n_barrier < b->n) {
        wait_here(b, SIMT_AT_BARRIER, file, line);
        return;
    }
    b->n_barrier = 0;
    b->epoch++;
    memset(b->state, SIMT_READY, (size_t)b->n);
}

/* ---- teams ---- */

static float tree_f32(const uint64_t *s)
{
    float v[32];
    for (int i = 0; i < 32; i++)
        v[i] = simt_to_f32(s[i]);
    for (int w = 1; w < 32; w *= 2) {
        for (int i = 0; i < 32; i += 2 * w)
            v[i] += v[i + w];
    }
    return v[0];
}

static double tree_f64(const uint64_t *s)
{
    double v[32];
    for (int i = 0; i < 32; i++)
        v[i] = simt_to_f64(s[i]);
    for (int w = 1; w < 32; w *= 2) {
        for (int i = 0; i < 32; i += 2 * w)
            v[i] += v[i + w];
    }
    return v[0];
}

/* What all lanes of a team get. */
static uint64_t team_result(simt_op op, const uint64_t *s)
{
    uint64_t r = s[0];
    switch (op) {
    case SIMT_SUM32:
        return simt_of_f32(tree_f32(s));
    case SIMT_SUM64:
        return simt_of_f64(tree_f64(s));
    case SIMT_BALLOT:
        for (int i = 1; i < 32; i++)
            r |= s[i] << i;
        return r;
    case SIMT_MAX32:
        for (int i = 1; i < 32; i++)
            r = simt_to_f32(s[i]) > simt_to_f32(r) ? s[i] : r;
        return r;
    case SIMT_MAXU64:
        for (int i = 1; i < 32; i++)
            r = s[i] > r ? s[i] : r;
        return r;
    default:
        return 0;
    }
}

/* The wave of this lane, which arrives at an operation of it. */
static simt_wave *arrive(simt_op op, const char *file, int line)
{
    const simt_lane *me = simt_me;
    simt_block *b = me->block;
    simt_wave *w = &b->waves[wave_of(b, me->tid)];
    if (w->arrived == 0) {
        w->op = op;
        w->site = (simt_site){file, line};
    } else if (w->op != op || w->site.line != line || w->site.file != file) {
        fail(b, "lane %d is at %s:%d while others of its wave of %d wait at %s:%d", me->tid,
             base_name(file), line, b->wave, base_name(w->site.file), w->site.line);
    }
    return w;
}

uint64_t simt_team(simt_op op, uint64_t v, int arg, const char *file, int line)
{
    simt_lane *me = simt_me;
    simt_block *b = me->block;
    simt_wave *w = arrive(op, file, line);
    int lane = me->tid & (b->wave - 1), side = w->side;
    uint64_t *team = w->slot[side] + lane / 32 * 32;
    w->slot[side][lane] = v;
    if (++w->arrived < w->n) {
        wait_here(b, SIMT_AT_TEAM, file, line);
    } else {
        w->arrived = 0;
        w->side = 1 - side;
        for (int t = 0; op > SIMT_LANE && t < w->n; t += 32)
            w->slot[side][t] = team_result(op, w->slot[side] + t);
        memset(b->state + (me->tid & -b->wave), SIMT_READY, (size_t)w->n);
    }
    if (op == SIMT_XOR)
        return team[(lane ^ arg) & 31];
    return op == SIMT_LANE ? team[arg & 31] : team[0];
}

static void mma_word(float *out, uint32_t w, int f16)
{
    out[0] = f16 ? hy_h2f((uint16_t)w) : simt_to_f32((uint64_t)(w << 16));
    out[1] = f16 ? hy_h2f((uint16_t)(w >> 16)) : simt_to_f32(w & 0xffff0000u);
}

void simt_mma(float c[4], const uint32_t a[4], const uint32_t b[2], int f16, const char *file,
              int line)
{
    simt_lane *me = simt_me;
    simt_block *bl = me->block;
    simt_wave *w = arrive(SIMT_MMA, file, line);
    const int side = w->side, t = (me->tid & (bl->wave - 1)) / 32, row = me->tid % 32 / 4;
    const int k = me->tid % 4 * 2, col = me->tid % 4 * 2;
    float *A = w->a[side][t], *B = w->b[side][t];
    for (int i = 0; i < 4; i++) /* words 0, 2: row; 1, 3: eight below; 2, 3: eight on in k */
        mma_word(A + (row + i % 2 * 8) * 16 + k + i / 2 * 8, a[i], f16);
    for (int i = 0; i < 2; i++)
        mma_word(B + row * 16 + k + i * 8, b[i], f16);
    if (++w->arrived < w->n) {
        wait_here(bl, SIMT_AT_TEAM, file, line);
    } else {
        w->arrived = 0;
        w->side = 1 - side;
        memset(bl->state + (me->tid & -bl->wave), SIMT_READY, (size_t)w->n);
    }
    for (int i = 0; i < 4; i++) {
        const float *x = A + (row + i / 2 * 8) * 16, *y = B + (col + i % 2) * 16;
        for (int j = 0; j < 16; j++)
            c[i] = fmaf(x[j], y[j], c[i]);
    }
}

/* ---- shared memory ---- */

void *simt_shared(const char *key, uint32_t n, uint32_t size, const char *name, simt_shadow **sh)
{
    simt_block *b = simt_me->block;
    for (int i = 0; i < b->n_arrays; i++) {
        if (b->arrays[i].key == key) {
            *sh = b->arrays[i].shadow;
            return b->shared + b->arrays[i].at;
        }
    }
    uint32_t at = (b->used + 15) / 16 * 16;
    if (b->n_arrays == SIMT_MAX_ARRAYS || at > SIMT_MAX_SHARED || n > (SIMT_MAX_SHARED - at) / size)
        fail(b, "shared array %s of %u bytes does not fit: %u of %d are taken", name, n * size,
             b->used, SIMT_MAX_SHARED);
    simt_array *a = &b->arrays[b->n_arrays++];
    *a = (simt_array){key, name, n, size, at, b->shadow + b->shadows};
    b->used = at + n * size;
    b->shadows += n;
    memset(b->shared + at, 0xff, (size_t)n * size); /* NaN: what was there is nobody's business */
    memset(a->shadow, 0, n * sizeof(*a->shadow));
    *sh = a->shadow;
    return b->shared + at;
}

void simt_touch(const void *p, size_t bytes, int write, const char *file, int line)
{
    simt_block *b = simt_me->block;
    if ((uintptr_t)p % bytes != 0)
        fail(b, "lane %d, %s:%d: %zu bytes at an address that is no multiple of it", simt_me->tid,
             base_name(file), line, bytes);
    if (b->access != NULL)
        simt_traffic_note(b, p, bytes, write, file, line);
}

static void check_index(uint32_t n, int64_t i, const char *what, const char *file, int line)
{
    if (i < 0 || i >= (int64_t)n)
        fail(simt_me->block, "lane %d, %s:%d: %s[%lld] is outside its %u elements", simt_me->tid,
             base_name(file), line, what, (long long)i, n);
}

void simt_check_read(simt_shadow *s, uint32_t n, int64_t i, const char *what, const char *file,
                     int line)
{
    int16_t me = (int16_t)simt_me->tid;
    uint32_t epoch = simt_me->block->epoch;
    check_index(n, i, what, file, line);
    s += i;
    if (s->wrote == 0)
        fail(simt_me->block, "lane %d, %s:%d: %s[%lld] is read before it was written", me,
             base_name(file), line, what, (long long)i);
    if (s->wrote == epoch && s->writer != me)
        fail(simt_me->block,
             "lane %d, %s:%d: reads %s[%lld], which lane %d wrote with no barrier between", me,
             base_name(file), line, what, (long long)i, s->writer);
    s->reader = s->read == epoch && s->reader != me ? -1 : me;
    s->read = epoch;
}

void simt_check_write(simt_shadow *s, uint32_t n, int64_t i, const char *what, const char *file,
                      int line)
{
    int16_t me = (int16_t)simt_me->tid;
    uint32_t epoch = simt_me->block->epoch;
    check_index(n, i, what, file, line);
    s += i;
    if ((s->wrote == epoch && s->writer != me) || (s->read == epoch && s->reader != me))
        fail(simt_me->block,
             "lane %d, %s:%d: writes %s[%lld], which lane %d %s with no barrier between", me,
             base_name(file), line, what, (long long)i,
             s->wrote == epoch && s->writer != me ? s->writer : s->reader,
             s->wrote == epoch && s->writer != me ? "wrote" : "read");
    s->wrote = epoch;
    s->writer = me;
}

char *simt_stack_end(void)
{
    char here;
    const simt_block *b = simt_me->block;
    size_t one = (size_t)(simt_stack_low(&b->stacks, 1) - simt_stack_low(&b->stacks, 0));
    return simt_stack_low(&b->stacks, (int)((size_t)(&here - b->stacks.base) / one));
}

/* ---- the whole ---- */

bool simt_block_init(simt_block *b, size_t stack)
{
    b->shared = hy_aligned_alloc(64, SIMT_MAX_SHARED);
    b->shadow = hy_calloc(SIMT_MAX_SHARED / 4, sizeof(simt_shadow));
    for (int i = 0; i < SIMT_MAX_LANES; i++)
        b->order[i] = (uint16_t)i;
#if defined(__SANITIZE_THREAD__)
    for (int i = 0; i < SIMT_MAX_LANES; i++)
        b->tsan[i] = __tsan_create_fiber(0);
#endif
    return b->shared != NULL && b->shadow != NULL &&
           simt_stacks_make(&b->stacks, SIMT_MAX_LANES, stack);
}

void simt_block_fini(simt_block *b)
{
#if defined(__SANITIZE_THREAD__)
    for (int i = 0; i < SIMT_MAX_LANES; i++) {
        if (b->tsan[i] != NULL)
            __tsan_destroy_fiber(b->tsan[i]);
    }
#endif
    simt_stacks_free(&b->stacks);
    free(b->access);
    hy_free(b->shared);
    hy_free(b->shadow);
}

void simt_block_run(simt_block *b, const simt_launch *l, int wave, uint32_t x, uint32_t y,
                    uint32_t z)
{
    b->l = l;
    b->n = b->n_fresh = l->lanes;
    b->wave = wave;
    b->n_done = b->n_barrier = b->n_arrays = 0;
    b->epoch = 1;
    b->used = b->shadows = 0;
    b->failed = false;
    memset(b->state, SIMT_FRESH, (size_t)b->n);
    for (int i = 0; i < b->n; i++)
        b->lane[i] = (simt_lane){i, (int32_t)x, (int32_t)y, (int32_t)z, wave, 0, b, NULL};
    for (int w = 0; w * wave < b->n; w++) {
        b->waves[w].n = b->n - w * wave < wave ? b->n - w * wave : wave;
        b->waves[w].arrived = 0;
    }
    simt_me = &b->lane[0];
    b->n_stacks = 1;
    *(uint64_t *)(void *)simt_stack_low(&b->stacks, 0) = CANARY;
#if defined(__SANITIZE_THREAD__)
    b->tsan_home = __tsan_get_current_fiber();
#endif
    jump(b, &b->home, simt_fiber_make(&b->stacks, 0, fiber_main), 0);
    if (b->failed)
        clean_stacks(b);
    for (int i = 0; i < b->n_stacks && !b->failed; i++) {
        if (*(uint64_t *)(void *)simt_stack_low(&b->stacks, i) != CANARY) {
            snprintf(b->text, sizeof(b->text),
                     "kernel %s, block (%u,%u,%u): a lane ran out of its "
                     "stack of %zu bytes",
                     l->name, x, y, z, b->stacks.bytes);
            b->failed = true;
        }
    }
}
