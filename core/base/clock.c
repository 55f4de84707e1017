/* SPDX-License-Identifier: Apache-2.0
 *
 * Real and virtual clocks.
 *
 * Thread: any reads; the virtual scheduler alone advances.  Owner: the creator.
 */
#include "core/base/clock.h"
#include "core/base/alloc.h"

#include <stdatomic.h>
#include <time.h>

struct hy_clock {
    bool is_virtual;
    _Atomic uint64_t now_ns; /* virtual only */
};

/* 2026-01-01T00:00:00Z: a fixed date, so that virtual runs print the same. */
static const uint64_t virtual_epoch_s = 1767225600;

static hy_clock real_clock;

hy_clock *hy_clock_real(void)
{
    return &real_clock;
}

hy_clock *hy_clock_create_virtual(uint64_t start_ns)
{
    hy_clock *c = hy_calloc(1, sizeof(*c));
    if (c == NULL)
        return NULL;
    c->is_virtual = true;
    atomic_init(&c->now_ns, start_ns);
    return c;
}

void hy_clock_destroy(hy_clock *c)
{
    if (c != &real_clock)
        hy_free(c);
}

bool hy_clock_is_virtual(const hy_clock *c)
{
    return c->is_virtual;
}

static uint64_t read_clock(clockid_t id)
{
    struct timespec ts;
    clock_gettime(id, &ts);
    return (uint64_t)ts.tv_sec * HY_SEC + (uint64_t)ts.tv_nsec;
}

uint64_t hy_clock_now_ns(const hy_clock *c)
{
    if (!c->is_virtual)
        return read_clock(CLOCK_MONOTONIC);
    return atomic_load_explicit(&c->now_ns, memory_order_relaxed);
}

uint64_t hy_clock_unix_ns(const hy_clock *c)
{
    if (!c->is_virtual)
        return read_clock(CLOCK_REALTIME);
    return virtual_epoch_s * HY_SEC + hy_clock_now_ns(c);
}

void hy_clock_advance_to(hy_clock *c, uint64_t at_ns)
{
    HY_ASSERT(c->is_virtual);
    if (at_ns > hy_clock_now_ns(c))
        atomic_store_explicit(&c->now_ns, at_ns, memory_order_relaxed);
}
