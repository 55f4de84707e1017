/* SPDX-License-Identifier: Apache-2.0
 *
 * Life of a packed weight: memory cut from large chunks (so that small matrices lie in huge pages
 * too), strips packed by all threads, the source dropped.
 *
 * Thread: any; the chunk list is locked.  Owner: the device frees chunks left at close.
 */
#include "backends/cpu/fast.h"
#include "core/base/alloc.h"

#define CHUNK ((size_t)32 << 20)

typedef struct cpu_chunk {
    struct cpu_chunk *next;
    uint8_t *p;
    size_t size, used;
    int live; /* weights in it */
} cpu_chunk;

static void *take(cpu_fast *f, size_t bytes)
{
    bytes = (bytes + 8191) & ~(size_t)4095; /* kernels prefetch past the end */
    void *p = NULL;
    pthread_mutex_lock(&f->lock);
    cpu_chunk *c = f->chunks;
    if (c == NULL || c->size - c->used < bytes) {
        c = hy_calloc(1, sizeof(*c));
        size_t size = bytes > CHUNK / 2 ? bytes : CHUNK;
        if (c != NULL && (c->p = cpu_alloc(size)) == NULL) {
            hy_free(c);
            c = NULL;
        }
        if (c != NULL) {
            c->size = size;
            bool behind = f->chunks != NULL && size == bytes; /* keep a part-used one in front */
            cpu_chunk **at = behind ? &f->chunks->next : &f->chunks;
            c->next = *at;
            *at = c;
        }
    }
    if (c != NULL) {
        p = c->p + c->used;
        c->used += bytes;
        c->live++;
    }
    pthread_mutex_unlock(&f->lock);
    return p;
}

static void give(cpu_fast *f, const uint8_t *p)
{
    pthread_mutex_lock(&f->lock);
    for (cpu_chunk **at = &f->chunks; *at != NULL; at = &(*at)->next) {
        cpu_chunk *c = *at;
        if (p < c->p || p >= c->p + c->size)
            continue;
        if (--c->live == 0) {
            *at = c->next;
            cpu_free(c->p, c->size);
            hy_free(c);
        }
        break;
    }
    pthread_mutex_unlock(&f->lock);
}

void cpu_chunks_free(cpu_fast *f)
{
    while (f->chunks != NULL) {
        cpu_chunk *c = f->chunks;
        f->chunks = c->next;
        cpu_free(c->p, c->size);
        hy_free(c);
    }
}

typedef struct pack_job {
    const cpu_fast *f;
    const hy_weight_src *src;
    cpu_weight *w;
    size_t strip;
    int strips, per_item;
} pack_job;

static void pack_item(void *ctx, int item, int thread)
{
    (void)thread;
    pack_job *j = ctx;
    int R = j->f->mm->rows, s1 = (item + 1) * j->per_item;
    for (int s = item * j->per_item; s < s1 && s < j->strips; s++) {
        int64_t n0 = (int64_t)s * R, n = j->src->n - n0 < R ? j->src->n - n0 : R;
        cpu_pack_strip((cpu_pack)j->w->pack, j->src->type, R, j->f->mm->signed8,
                       j->w->raw + (size_t)n0 * j->w->row_bytes, j->w->row_bytes, (int)n, j->src->k,
                       (uint8_t *)j->w->packed + (size_t)s * j->strip);
    }
}

hy_status cpu_fast_prepare(hy_dev *d, const hy_weight_src *src, hy_weight **out)
{
    cpu_fast *f = cpu_dev_of(d)->fast;
    hy_weight *base = NULL;
    HY_TRY(cpu_ref_prepare_weight(d, src, &base)); /* checks the shape */
    cpu_weight *w = (cpu_weight *)(void *)base;
    w->pack = cpu_pack_of(src->type);
    if (w->pack == PACK_NONE) {
        *out = base;
        return HY_OK;
    }
    pack_job j = {.f = f, .src = src, .w = w, .strips = cpu_strips(f, src->n)};
    j.strip = cpu_strip_bytes((cpu_pack)w->pack, f->mm->rows, src->k);
    w->packed_bytes = j.strip * (size_t)j.strips;
    w->packed = take(f, w->packed_bytes);
    if (w->packed == NULL) {
        size_t bytes = w->packed_bytes;
        cpu_ref_weight_free(d, base);
        return hy_fail(HY_E_NOMEM_DEVICE, "cpu: no memory for a weight of %zu bytes", bytes);
    }
    j.per_item = (int)((256 << 10) / j.strip) + 1;
    cpu_pool_for(f->pool, (j.strips + j.per_item - 1) / j.per_item, pack_item, &j);
    w->raw = NULL;
    w->base.borrowed = false;
    w->base.bytes = w->packed_bytes;
    *out = base;
    return HY_OK;
}

void cpu_fast_weight_free(hy_dev *d, hy_weight *w)
{
    if (w == NULL)
        return;
    cpu_weight *c = (cpu_weight *)(void *)w;
    if (c->packed != NULL)
        give(cpu_dev_of(d)->fast, c->packed);
    cpu_ref_weight_free(d, w);
}
