/* SPDX-License-Identifier: Apache-2.0
 *
 * How a double's entry points are written: ENTRY(name, arguments, what sim.h does). FREEING ones
 * give back what they shall even when they are made to fail.
 *
 * Thread: any.  Owner: the process.
 */
#ifndef HY_TESTS_DOUBLE_ENTRY_H
#define HY_TESTS_DOUBLE_ENTRY_H

#include "tests/double/sim.h"

#include <stdio.h>

#define API __attribute__((visibility("default")))

#define ENTRY_(name, args, freeing, what)                                                          \
    API int name args;                                                                             \
    API int name args                                                                              \
    {                                                                                              \
        int rc = sim_begin(#name, freeing);                                                        \
        return sim_end(rc == SIM_OK ? (what) : rc);                                                \
    }
#define ENTRY(name, args, what)   ENTRY_(name, args, false, what)
#define FREEING(name, args, what) ENTRY_(name, args, true, what)

#define ENTRY_LAUNCH_ARGS                                                                          \
    (void *fn, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,          \
     unsigned shared, void *s, void **params, void **extra)
#define ENTRY_LAUNCH                                                                               \
    sim_launch(fn, (const uint32_t[3]){x, y, z}, (const uint32_t[3]){bx, by, bz}, shared, s,       \
               params, extra)

static inline int entry_name(char *s, int len, int dev)
{
    snprintf(s, (size_t)len, "a double");
    return dev == 0 ? SIM_OK : SIM_INVALID;
}

static inline int entry_attribute(int *v, bool is_wave, bool is_units, int dev)
{
    *v = is_wave ? sim_wave() : is_units ? 4 : 0;
    return dev == 0 && (is_wave || is_units) ? SIM_OK : SIM_INVALID;
}

#endif
