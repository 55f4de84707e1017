/* SPDX-License-Identifier: Apache-2.0
 *
 * Every code of the CUDA driver as a status, here and nowhere else. What is not listed, codes of
 * newer releases too, means that the device is lost.
 *
 * Thread: any.  Owner: none.
 */
#include "backends/cuda/cuda.h"

#include <stddef.h>

typedef struct code_status {
    short code;
    short status;
    const char *text; /* for libraries that do not say */
} code_status;

static const code_status map[] = {
    {0, HY_OK, "success"},
    {1, HY_E_INVAL, "invalid value"},
    {2, HY_E_NOMEM_DEVICE, "out of memory"},
    {3, HY_E_DEVICE, "not initialized"},
    {4, HY_E_DEVICE, "deinitialized"},
    {5, HY_E_DEVICE, "profiler disabled"},
    {6, HY_E_DEVICE, "profiler not initialized"},
    {7, HY_E_DEVICE, "profiler already started"},
    {8, HY_E_DEVICE, "profiler already stopped"},
    {34, HY_E_UNSUPPORTED, "stub library"},
    {36, HY_E_UNSUPPORTED, "call requires newer driver"},
    {46, HY_E_BUSY, "device unavailable"},
    {100, HY_E_NOTFOUND, "no device"},
    {101, HY_E_NOTFOUND, "invalid device"},
    {102, HY_E_UNSUPPORTED, "device not licensed"},
    {200, HY_E_UNSUPPORTED, "invalid image"},
    {201, HY_E_INVAL, "invalid context"},
    {202, HY_E_BUSY, "context already current"},
    {205, HY_E_DEVICE, "map failed"},
    {206, HY_E_DEVICE, "unmap failed"},
    {207, HY_E_DEVICE, "array is mapped"},
    {208, HY_E_BUSY, "already mapped"},
    {209, HY_E_UNSUPPORTED, "no binary for gpu"},
    {210, HY_E_BUSY, "already acquired"},
    {211, HY_E_DEVICE, "not mapped"},
    {212, HY_E_UNSUPPORTED, "not mapped as array"},
    {213, HY_E_UNSUPPORTED, "not mapped as pointer"},
    {214, HY_E_DEVICE, "ecc uncorrectable"},
    {215, HY_E_UNSUPPORTED, "unsupported limit"},
    {216, HY_E_BUSY, "context already in use"},
    {217, HY_E_UNSUPPORTED, "peer access unsupported"},
    {218, HY_E_UNSUPPORTED, "invalid ptx"},
    {219, HY_E_DEVICE, "invalid graphics context"},
    {220, HY_E_DEVICE, "nvlink uncorrectable"},
    {221, HY_E_UNSUPPORTED, "jit compiler not found"},
    {222, HY_E_UNSUPPORTED, "unsupported ptx version"},
    {223, HY_E_UNSUPPORTED, "jit compilation disabled"},
    {224, HY_E_UNSUPPORTED, "unsupported exec affinity"},
    {225, HY_E_UNSUPPORTED, "unsupported devside sync"},
    {226, HY_E_DEVICE, "contained"},
    {300, HY_E_UNSUPPORTED, "invalid source"},
    {301, HY_E_NOTFOUND, "file not found"},
    {302, HY_E_UNSUPPORTED, "shared object symbol not found"},
    {303, HY_E_UNSUPPORTED, "shared object init failed"},
    {304, HY_E_SYS, "operating system"},
    {400, HY_E_INVAL, "invalid handle"},
    {401, HY_E_INVAL, "illegal state"},
    {402, HY_E_DEVICE, "lossy query"},
    {500, HY_E_NOTFOUND, "not found"},
    {600, HY_AGAIN, "not ready"},
    {700, HY_E_DEVICE, "illegal address"},
    {701, HY_E_LIMIT, "launch out of resources"},
    {702, HY_E_DEVICE, "launch timeout"},
    {703, HY_E_UNSUPPORTED, "launch incompatible texturing"},
    {704, HY_E_BUSY, "peer access already enabled"},
    {705, HY_E_NOTFOUND, "peer access not enabled"},
    {708, HY_E_BUSY, "primary context active"},
    {709, HY_E_DEVICE, "context is destroyed"},
    {710, HY_E_DEVICE, "assert"},
    {711, HY_E_DEVICE, "too many peers"},
    {712, HY_E_BUSY, "host memory already registered"},
    {713, HY_E_NOTFOUND, "host memory not registered"},
    {714, HY_E_DEVICE, "hardware stack error"},
    {715, HY_E_DEVICE, "illegal instruction"},
    {716, HY_E_DEVICE, "misaligned address"},
    {717, HY_E_DEVICE, "invalid address space"},
    {718, HY_E_DEVICE, "invalid pc"},
    {719, HY_E_DEVICE, "launch failed"},
    {720, HY_E_UNSUPPORTED, "cooperative launch too large"},
    {721, HY_E_DEVICE, "tensor memory leak"},
    {800, HY_E_DENIED, "not permitted"},
    {801, HY_E_UNSUPPORTED, "not supported"},
    {802, HY_E_DEVICE, "system not ready"},
    {803, HY_E_UNSUPPORTED, "system driver mismatch"},
    {804, HY_E_UNSUPPORTED, "compat not supported on device"},
    {805, HY_E_DEVICE, "mps connection failed"},
    {806, HY_E_DEVICE, "mps rpc failure"},
    {807, HY_E_BUSY, "mps server not ready"},
    {808, HY_E_BUSY, "mps max clients reached"},
    {809, HY_E_BUSY, "mps max connections reached"},
    {810, HY_E_DEVICE, "mps client terminated"},
    {811, HY_E_UNSUPPORTED, "cdp not supported"},
    {812, HY_E_UNSUPPORTED, "cdp version mismatch"},
    {900, HY_E_UNSUPPORTED, "stream capture unsupported"},
    {901, HY_E_UNSUPPORTED, "stream capture invalidated"},
    {902, HY_E_UNSUPPORTED, "stream capture merge"},
    {903, HY_E_UNSUPPORTED, "stream capture unmatched"},
    {904, HY_E_UNSUPPORTED, "stream capture unjoined"},
    {905, HY_E_UNSUPPORTED, "stream capture isolation"},
    {906, HY_E_UNSUPPORTED, "stream capture implicit"},
    {907, HY_E_UNSUPPORTED, "captured event"},
    {908, HY_E_UNSUPPORTED, "stream capture wrong thread"},
    {909, HY_E_TIMEOUT, "timeout"},
    {910, HY_E_UNSUPPORTED, "graph exec update failure"},
    {911, HY_E_DEVICE, "external device"},
    {912, HY_E_UNSUPPORTED, "invalid cluster size"},
    {913, HY_E_DEVICE, "function not loaded"},
    {914, HY_E_UNSUPPORTED, "invalid resource type"},
    {915, HY_E_UNSUPPORTED, "invalid resource configuration"},
    {916, HY_E_DEVICE, "key rotation"},
    {999, HY_E_DEVICE, "unknown"},
};

hy_status cuda_status(int code, const char **text)
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
