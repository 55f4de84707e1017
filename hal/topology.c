/* SPDX-License-Identifier: Apache-2.0
 *
 * The machine as hwloc sees it, cut to what affinity and cgroups allow.
 *
 * Thread: any.  Owner: a topology lives inside one call.
 */
#include "hal/topology.h"

#include "hal/limits.h"

#include <hwloc.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- hwloc ---- */

/* Kept for ever, so that plugins are not loaded and dropped (with what they allocated) each time.
 */
static hwloc_topology_t keep;

/* GPU plugins load whole vendor runtimes: slow, and ours to open through backends alone. PCI
 * stays: NICs need it. */
static void init_once(void)
{
    setenv("HWLOC_PLUGINS_BLACKLIST",
           "hwloc_opencl.so,hwloc_cuda.so,hwloc_nvml.so,hwloc_gl.so,hwloc_rsmi.so,"
           "hwloc_levelzero.so",
           0);
    if (hwloc_topology_init(&keep) != 0)
        keep = NULL;
}

/* With whole = true disallowed parts are kept, and counted by the caller. */
static hwloc_topology_t load(bool whole, bool io)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    hwloc_topology_t t;
    pthread_once(&once, init_once);
    if (hwloc_topology_init(&t) != 0)
        return NULL;
    if (io)
        hwloc_topology_set_io_types_filter(t, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (whole)
        hwloc_topology_set_flags(t, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
    if (hwloc_topology_load(t) != 0) {
        hwloc_topology_destroy(t);
        return NULL;
    }
    if (whole)
        return t;
    /* Binding of this process cuts further than what cpusets allow. */
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (set != NULL && hwloc_get_cpubind(t, set, HWLOC_CPUBIND_PROCESS) == 0 &&
        hwloc_bitmap_intersects(set, hwloc_topology_get_topology_cpuset(t)))
        hwloc_topology_restrict(t, set, io ? HWLOC_RESTRICT_FLAG_ADAPT_IO : 0);
    hwloc_bitmap_free(set);
    return t;
}

static int count(hwloc_topology_t t, hwloc_obj_type_t type)
{
    int n = hwloc_get_nbobjs_by_type(t, type);
    return n > 0 ? n : 0;
}

static uint64_t cache(hwloc_topology_t t, hwloc_obj_type_t type, int *cores)
{
    hwloc_obj_t o = hwloc_get_obj_by_type(t, type, 0);
    if (o == NULL)
        return 0;
    if (cores != NULL)
        *cores = hwloc_get_nbobjs_inside_cpuset_by_type(t, o->cpuset, HWLOC_OBJ_CORE);
    return o->attr->cache.size;
}

static hy_status no_topology(void)
{
    return hy_fail(HY_E_SYS, "hwloc cannot read this machine's topology");
}

hy_status hy_topo_get(hy_topo *out)
{
    memset(out, 0, sizeof(*out));
    hwloc_topology_t t = load(true, false);
    if (t == NULL)
        return no_topology();
    out->cores_total = count(t, HWLOC_OBJ_CORE);
    out->pus_total = count(t, HWLOC_OBJ_PU);
    out->mem_total = hwloc_get_root_obj(t)->total_memory;
    hwloc_topology_destroy(t);
    t = load(false, false);
    if (t == NULL)
        return no_topology();
    out->packages = count(t, HWLOC_OBJ_PACKAGE);
    out->numa_nodes = count(t, HWLOC_OBJ_NUMANODE);
    out->cores = count(t, HWLOC_OBJ_CORE);
    out->pus = count(t, HWLOC_OBJ_PU);
    out->l1d = cache(t, HWLOC_OBJ_L1CACHE, NULL);
    out->l2 = cache(t, HWLOC_OBJ_L2CACHE, &out->l2_cores);
    out->l3 = cache(t, HWLOC_OBJ_L3CACHE, &out->l3_cores);
    hwloc_topology_destroy(t);
    hy_limits l;
    hy_limits_read("", &l);
    out->cpu_quota = l.cpus;
    out->mem_limit = l.mem_limit;
    out->mem_free = l.mem_free;
    return HY_OK;
}

int hy_topo_threads(void)
{
    hwloc_topology_t t = load(false, false);
    int n = 1;
    if (t != NULL) {
        n = count(t, HWLOC_OBJ_CORE);
        if (n == 0)
            n = count(t, HWLOC_OBJ_PU);
        hwloc_topology_destroy(t);
    }
    hy_limits l;
    hy_limits_read("", &l);
    if (l.cpus > 0.0 && ceil(l.cpus) < n)
        n = (int)ceil(l.cpus);
    return n > 0 ? n : 1;
}

int hy_topo_cpus(int *out, int max)
{
    hwloc_topology_t t = load(false, false);
    int n = 0;
    if (t == NULL)
        return 0;
    int cores = count(t, HWLOC_OBJ_CORE);
    hwloc_obj_type_t type = cores > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    int all = count(t, type);
    for (int i = 0; i < all && n < max; i++) {
        hwloc_obj_t o = hwloc_get_obj_by_type(t, type, (unsigned)i);
        int cpu = o != NULL ? hwloc_bitmap_first(o->cpuset) : -1;
        if (cpu >= 0)
            out[n++] = cpu;
    }
    hwloc_topology_destroy(t);
    return n;
}

/* ---- text ---- */

static void put_bytes(hy_buf *out, uint64_t n)
{
    if (n >= 1ull << 30)
        hy_buf_printf(out, "%.1f GiB", (double)n / 0x1p30);
    else if (n >= 1ull << 20)
        hy_buf_printf(out, "%.3g MiB", (double)n / 0x1p20);
    else
        hy_buf_printf(out, "%.3g KiB", (double)n / 0x1p10);
}

static void put_cache(hy_buf *out, const char *name, uint64_t bytes, int cores)
{
    if (bytes == 0)
        return;
    hy_buf_printf(out, "  %s ", name);
    put_bytes(out, bytes);
    if (cores > 1)
        hy_buf_printf(out, " shared by %d cores", cores);
}

static void print_numa(hwloc_topology_t t, hy_buf *out)
{
    char cpus[256];
    int n = count(t, HWLOC_OBJ_NUMANODE);
    for (int i = 0; i < n; i++) {
        hwloc_obj_t o = hwloc_get_obj_by_type(t, HWLOC_OBJ_NUMANODE, (unsigned)i);
        hwloc_bitmap_list_snprintf(cpus, sizeof(cpus), o->cpuset);
        hy_buf_printf(out, "numa %u: cpus %s, memory ", o->os_index, cpus);
        put_bytes(out, o->attr->numanode.local_memory);
        hy_buf_putc(out, '\n');
    }
}

static const char *link_speed(hwloc_obj_t nic)
{
    const char *s = hwloc_obj_get_info_by_name(nic, "LinkSpeed");
    return s != NULL ? s : hwloc_obj_get_info_by_name(nic, "Port1State");
}

static void print_nics(hwloc_topology_t t, hy_buf *out)
{
    char nodes[128];
    for (hwloc_obj_t o = hwloc_get_next_osdev(t, NULL); o != NULL; o = hwloc_get_next_osdev(t, o)) {
        bool rdma = o->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS;
        if (!rdma && o->attr->osdev.type != HWLOC_OBJ_OSDEV_NETWORK)
            continue;
        hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(t, o);
        snprintf(nodes, sizeof(nodes), "?");
        if (near != NULL && near->nodeset != NULL)
            hwloc_bitmap_list_snprintf(nodes, sizeof(nodes), near->nodeset);
        hy_buf_printf(out, "nic %s: %s, near numa %s", o->name, rdma ? "rdma" : "network", nodes);
        if (link_speed(o) != NULL)
            hy_buf_printf(out, ", link %s", link_speed(o));
        hy_buf_putc(out, '\n');
    }
}

void hy_topo_print(hy_buf *out)
{
    hy_topo h;
    if (hy_topo_get(&h) != HY_OK) {
        hy_buf_printf(out, "topology: %s\n", hy_fail_text());
        return;
    }
    hy_buf_printf(out, "cpus: %d cores, %d hardware threads", h.cores, h.pus);
    if (h.pus < h.pus_total)
        hy_buf_printf(out, " (allowed, of %d and %d)", h.cores_total, h.pus_total);
    hy_buf_printf(out, ", %d package%s, %d NUMA node%s", h.packages, h.packages == 1 ? "" : "s",
                  h.numa_nodes, h.numa_nodes == 1 ? "" : "s");
    if (h.cpu_quota > 0.0)
        hy_buf_printf(out, ", cgroup quota %.2f CPUs", h.cpu_quota);
    hy_buf_printf(out, "; threads by default: %d\ncaches:", hy_topo_threads());
    put_cache(out, "L1d", h.l1d, 1);
    put_cache(out, "L2", h.l2, h.l2_cores);
    put_cache(out, "L3", h.l3, h.l3_cores);
    hy_buf_puts(out, "\nmemory: ");
    put_bytes(out, h.mem_total);
    if (h.mem_limit > 0) {
        hy_buf_puts(out, ", cgroup limit ");
        put_bytes(out, h.mem_limit);
    }
    hy_buf_puts(out, ", free for this process ");
    put_bytes(out, h.mem_free);
    hy_buf_putc(out, '\n');
    hwloc_topology_t t = load(false, true);
    if (t == NULL)
        return;
    print_numa(t, out);
    print_nics(t, out);
    hwloc_topology_destroy(t);
}
