/* SPDX-License-Identifier: Apache-2.0
 *
 * HY_THIN=1: sweeps over kernels and seeds take a part of their cases. tools/check sets it for the
 * sanitizer builds, which look for wrong accesses and races and are 5 to 20 times slower; release
 * builds run every case. What is left out by then is nothing of another kind.
 *
 * Thread: any.  Owner: none.
 */
#ifndef HY_TESTS_THIN_H
#define HY_TESTS_THIN_H

#include <stdbool.h>
#include <stdlib.h>

static inline bool test_thin(void)
{
    const char *v = getenv("HY_THIN");
    return v != NULL && v[0] == '1';
}

#endif
