/* SPDX-License-Identifier: Apache-2.0
 *
 * A span names bytes wherever they lie: host, pinned host, device, or a mapped file. It is the
 * one description of memory that the HAL and the fabric share; neither sees the other.
 *
 * Thread: a value, copy freely.  Owner: a span never owns its bytes nor its export handle.
 */
#ifndef HY_BASE_SPAN_H
#define HY_BASE_SPAN_H

#include "core/base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef enum hy_mem {
    HY_MEM_HOST,   /* ordinary memory */
    HY_MEM_PINNED, /* host memory known to a device: both may touch it */
    HY_MEM_DEVICE, /* addr is a device address: the host must not follow it */
    HY_MEM_FILE,   /* a read-only mapping: pages may be dropped and read again */
} hy_mem;

/* How another process, device or NIC gets at the same bytes. */
typedef enum hy_export_kind {
    HY_EXPORT_NONE,
    HY_EXPORT_FD,  /* dmabuf or memfd */
    HY_EXPORT_U64, /* a key that the exporting device understands */
    HY_EXPORT_IPC, /* a handle that another process imports with a device of the same kind */
} hy_export_kind;

/* Whose runtime knows a device's memory: what registers it may ask there. */
typedef enum hy_maker { HY_MAKER_NONE, HY_MAKER_CUDA, HY_MAKER_ROCM } hy_maker;

typedef struct hy_export {
    hy_export_kind kind;
    int fd;                /* HY_EXPORT_FD, else -1 */
    uint64_t key;          /* HY_EXPORT_U64; _FD of a device: its hy_maker; _IPC: bytes there are */
    uint64_t offset;       /* of the span's first byte inside what is exported */
    unsigned char ipc[64]; /* HY_EXPORT_IPC */
} hy_export;

typedef struct hy_span {
    void *addr;
    uint64_t len; /* bytes */
    hy_mem mem;
    int device; /* index in this node's device list; -1: none */
    hy_export exp;
} hy_span;

static inline hy_span hy_span_host(void *addr, uint64_t len)
{
    return (hy_span){addr, len, HY_MEM_HOST, -1, {HY_EXPORT_NONE, -1, 0, 0, {0}}};
}

/* True when off..off+len lies inside the span, whatever the numbers. */
static inline bool hy_span_has(const hy_span *s, uint64_t off, uint64_t len)
{
    return off <= s->len && len <= s->len - off;
}

/* Part of a span; the caller has checked hy_span_has. */
static inline hy_span hy_span_sub(const hy_span *s, uint64_t off, uint64_t len)
{
    HY_ASSERT(hy_span_has(s, off, len));
    hy_span r = *s;
    r.addr = (char *)s->addr + off;
    r.len = len;
    r.exp.offset += off;
    return r;
}

#endif
