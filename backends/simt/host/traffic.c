/* SPDX-License-Identifier: Apache-2.0
 *
 * Device memory traffic of a block, as a GPU would see it: what the lanes of a wave access at one
 * line, for the n-th time each, is one access of the wave; it moves whole sectors of 32 bytes.
 *
 * Thread: a worker's own.  Owner: the worker.
 */
#include "backends/simt/host/block.h"

#include <stdlib.h>

/* The block's list is full beyond this; the rest is only counted as lost. */
#define MOST ((uint32_t)1 << 18)

bool simt_traffic_init(simt_block *b)
{
    b->access = calloc(MOST, sizeof(*b->access)); /* not of a step: a tool's own */
    return b->access != NULL;
}

static uint32_t site_of(const char *file, int line)
{
    return (uint32_t)((uintptr_t)file * 2654435761u) ^ (uint32_t)line;
}

void simt_traffic_note(simt_block *b, const void *p, size_t bytes, int write, const char *file,
                       int line)
{
    if (b->n_access == MOST) {
        b->lost++;
        return;
    }
    b->access[b->n_access] = (simt_access){.addr = (uintptr_t)p,
                                           .site = site_of(file, line) << 1 | (uint32_t)write,
                                           .nth = b->n_access,
                                           .lane = (uint16_t)simt_me->tid,
                                           .bytes = (uint16_t)bytes};
    b->n_access++;
}

static int by_lane(const void *pa, const void *pb)
{
    const simt_access *a = pa, *b = pb;
    if (a->site != b->site)
        return a->site < b->site ? -1 : 1;
    if (a->lane != b->lane)
        return a->lane < b->lane ? -1 : 1;
    return a->nth < b->nth ? -1 : a->nth > b->nth;
}

static int by_wave(const void *pa, const void *pb)
{
    const simt_access *a = pa, *b = pb;
    if (a->wave != b->wave)
        return a->wave < b->wave ? -1 : 1;
    if (a->site != b->site)
        return a->site < b->site ? -1 : 1;
    if (a->nth != b->nth)
        return a->nth < b->nth ? -1 : 1;
    return a->addr < b->addr ? -1 : a->addr > b->addr;
}

/* Accesses of one wave at once, by address: bytes that differ, and their sectors. */
static void count(const simt_access *a, uint32_t n, simt_traffic *t)
{
    uintptr_t end = 0, sector = 0; /* behind the last byte and sector counted */
    uint64_t bytes = 0, sectors = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uintptr_t from = a[i].addr > end ? a[i].addr : end, to = a[i].addr + a[i].bytes;
        if (to <= end)
            continue;
        bytes += to - from;
        end = to;
        const uintptr_t first = from / 32 >= sector ? from / 32 : sector, last = (to - 1) / 32 + 1;
        sectors += last > first ? last - first : 0;
        sector = last;
    }
    if (a->site & 1u) {
        t->stores++;
        t->store_bytes += bytes;
        t->store_sectors += sectors;
    } else {
        t->loads++;
        t->load_bytes += bytes;
        t->load_sectors += sectors;
    }
}

void simt_traffic_fold(simt_block *b, simt_traffic *out)
{
    simt_access *a = b->access;
    const uint32_t n = b->n_access;
    qsort(a, n, sizeof(*a), by_lane);
    for (uint32_t i = 0, nth = 0; i < n; i++) {
        nth = i > 0 && a[i].site == a[i - 1].site && a[i].lane == a[i - 1].lane ? nth + 1 : 0;
        a[i].nth = nth;
        a[i].wave = (uint16_t)(a[i].lane / b->wave);
    }
    qsort(a, n, sizeof(*a), by_wave);
    for (uint32_t i = 0, j; i < n; i = j) {
        for (j = i + 1;
             j < n && a[j].wave == a[i].wave && a[j].site == a[i].site && a[j].nth == a[i].nth;)
            j++;
        count(a + i, j - i, out);
    }
    out->lost += b->lost;
    b->n_access = b->lost = 0;
}
