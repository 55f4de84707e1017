/* SPDX-License-Identifier: Apache-2.0
 *
 * Every code of the HIP runtime as a status, here and nowhere else. What is not listed, codes of
 * newer releases too, means that the device is lost.
 *
 * Thread: any.  Owner: none.
 */
#include "backends/hip/hip.h"

#include <stddef.h>

typedef struct code_status {
    short code;
    short status;
    const char *text; /* for libraries that do not say */
} code_status;

static const code_status map[] = {
    {0, HY_OK, "success"},
    {1, HY_E_INVAL, "invalid value"},
    {2, HY_E_NOMEM_DEVICE, "memory allocation"},
    {3, HY_E_DEVICE, "initialization error"},
    {4, HY_E_DEVICE, "deinitialized"},
    {5, HY_E_DEVICE, "profiler disabled"},
    {6, HY_E_DEVICE, "profiler not initialized"},
    {7, HY_E_DEVICE, "profiler already started"},
    {8, HY_E_DEVICE, "profiler already stopped"},
    {9, HY_E_INVAL, "invalid configuration"},
    {12, HY_E_INVAL, "invalid pitch value"},
    {13, HY_E_INVAL, "invalid symbol"},
    {17, HY_E_INVAL, "invalid device pointer"},
    {21, HY_E_INVAL, "invalid memcpy direction"},
    {35, HY_E_UNSUPPORTED, "insufficient driver"},
    {52, HY_E_INVAL, "missing configuration"},
    {53, HY_E_DEVICE, "prior launch failure"},
    {98, HY_E_INVAL, "invalid device function"},
    {100, HY_E_NOTFOUND, "no device"},
    {101, HY_E_NOTFOUND, "invalid device"},
    {200, HY_E_UNSUPPORTED, "invalid image"},
    {201, HY_E_INVAL, "invalid context"},
    {202, HY_E_BUSY, "context already current"},
    {205, HY_E_DEVICE, "map buffer object failed"},
    {206, HY_E_DEVICE, "unmap failed"},
    {207, HY_E_DEVICE, "array is mapped"},
    {208, HY_E_BUSY, "already mapped"},
    {209, HY_E_UNSUPPORTED, "no binary for gpu"},
    {210, HY_E_BUSY, "already acquired"},
    {211, HY_E_DEVICE, "not mapped"},
    {212, HY_E_UNSUPPORTED, "not mapped as array"},
    {213, HY_E_UNSUPPORTED, "not mapped as pointer"},
    {214, HY_E_DEVICE, "eccnot correctable"},
    {215, HY_E_UNSUPPORTED, "unsupported limit"},
    {216, HY_E_BUSY, "context already in use"},
    {217, HY_E_UNSUPPORTED, "peer access unsupported"},
    {218, HY_E_UNSUPPORTED, "invalid kernel file"},
    {219, HY_E_DEVICE, "invalid graphics context"},
    {300, HY_E_UNSUPPORTED, "invalid source"},
    {301, HY_E_NOTFOUND, "file not found"},
    {302, HY_E_UNSUPPORTED, "shared object symbol not found"},
    {303, HY_E_UNSUPPORTED, "shared object init failed"},
    {304, HY_E_SYS, "operating system"},
    {400, HY_E_INVAL, "invalid resource handle"},
    {401, HY_E_INVAL, "illegal state"},
    {500, HY_E_NOTFOUND, "not found"},
    {600, HY_AGAIN, "not ready"},
    {700, HY_E_DEVICE, "illegal address"},
    {701, HY_E_LIMIT, "launch out of resources"},
    {702, HY_E_DEVICE, "launch time out"},
    {704, HY_E_BUSY, "peer access already enabled"},
    {705, HY_E_NOTFOUND, "peer access not enabled"},
    {708, HY_E_BUSY, "set on active process"},
    {709, HY_E_DEVICE, "context is destroyed"},
    {710, HY_E_DEVICE, "assert"},
    {712, HY_E_BUSY, "host memory already registered"},
    {713, HY_E_NOTFOUND, "host memory not registered"},
    {719, HY_E_DEVICE, "launch failure"},
    {720, HY_E_UNSUPPORTED, "cooperative launch too large"},
    {801, HY_E_UNSUPPORTED, "not supported"},
    {900, HY_E_UNSUPPORTED, "stream capture unsupported"},
    {901, HY_E_UNSUPPORTED, "stream capture invalidated"},
    {902, HY_E_UNSUPPORTED, "stream capture merge"},
    {903, HY_E_UNSUPPORTED, "stream capture unmatched"},
    {904, HY_E_UNSUPPORTED, "stream capture unjoined"},
    {905, HY_E_UNSUPPORTED, "stream capture isolation"},
    {906, HY_E_UNSUPPORTED, "stream capture implicit"},
    {907, HY_E_UNSUPPORTED, "captured event"},
    {908, HY_E_UNSUPPORTED, "stream capture wrong thread"},
    {910, HY_E_UNSUPPORTED, "graph exec update failure"},
    {999, HY_E_DEVICE, "unknown"},
    {1052, HY_E_NOMEM_DEVICE, "runtime memory"},
    {1053, HY_E_DEVICE, "runtime other"},
};

hy_status hip_status(int code, const char **text)
{
    for (size_t i = 0; i < HY_COUNTOF(map); i++) {
        if (map[i].code == code) {
            *text = map[i].text;
            return (hy_status)map[i].status;
        }
    }
    *text = "unknown error";
    return HY_E_DEVICE;
}
