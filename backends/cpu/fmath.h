/* SPDX-License-Identifier: Apache-2.0
 *
 * The elementary functions of this backend are the HAL's own: hal/fmath.h defines their bits.
 *
 * Thread: any.  Owner: none.
 */
#ifndef HY_CPU_FMATH_H
#define HY_CPU_FMATH_H

#include "hal/fmath.h"

#endif
