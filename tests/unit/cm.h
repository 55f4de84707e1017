/* SPDX-License-Identifier: Apache-2.0
 *
 * cmocka with the headers that it wants before itself.
 *
 * Thread: any.  Owner: nothing.
 */
#ifndef HY_TESTS_CM_H
#define HY_TESTS_CM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#endif
