/* SPDX-License-Identifier: Apache-2.0
 *
 * The only source of time. A real clock is CLOCK_MONOTONIC; a virtual one stands still until the
 * virtual-time scheduler moves it.
 *
 * Thread: any may read; only the scheduler advances.  Owner: the creator destroys a virtual
 * clock; the real one is static.
 */
#ifndef HY_BASE_CLOCK_H
#define HY_BASE_CLOCK_H

#include "core/base/status.h"

#include <stdint.h>

#define HY_NEVER UINT64_MAX /* a deadline that does not come */
#define HY_US    UINT64_C(1000)
#define HY_MS    UINT64_C(1000000)
#define HY_SEC   UINT64_C(1000000000)

typedef struct hy_clock hy_clock;

/* The process's real clock; never destroyed. */
hy_clock *hy_clock_real(void);
/* Starts at start_ns. NULL when out of memory. */
hy_clock *hy_clock_create_virtual(uint64_t start_ns);
void hy_clock_destroy(hy_clock *c); /* NULL and the real clock are fine */
bool hy_clock_is_virtual(const hy_clock *c);

/* Never goes back. The zero point means nothing. */
uint64_t hy_clock_now_ns(const hy_clock *c);
/* Date for people and APIs: nanoseconds since 1970; virtual: 2026-01-01 plus virtual time. */
uint64_t hy_clock_unix_ns(const hy_clock *c);

/* Virtual clocks only; a time already past is ignored. */
void hy_clock_advance_to(hy_clock *c, uint64_t at_ns);

/* now + ns, HY_NEVER when that overflows. */
static inline uint64_t hy_clock_after(uint64_t now_ns, uint64_t ns)
{
    return ns >= HY_NEVER - now_ns ? HY_NEVER : now_ns + ns;
}

#endif
