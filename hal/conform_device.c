/* SPDX-License-Identifier: Apache-2.0
 *
 * Conformance of the device table: order within and across queues, memory that runs out, a device
 * that is lost. Reported as items of `add`, the op that the cases compute with.
 *
 * Thread: the caller of hy_conform_run.  Owner: the case.
 */
#include "hal/conform_int.h"

#include <string.h>

enum { N = 1024, ROUNDS = 4, BYTES = N * 4 };

typedef struct two { /* a producer and a consumer */
    cf *c;
    const hy_dev_ops *o;
    hy_dev *d;
    hy_queue *p, *q;
    hy_event *made, *used;
    float *x, *y, *z; /* device */
    float *in[ROUNDS], *out[ROUNDS];
} two;

static bool add(two *t, hy_queue *q, const float *a, const float *b, float *y)
{
    hy_add op = {
        .a = a, .b = b, .y = y, .lda = N, .ldb = N, .ldy = N, .m = 1, .dim = N, .b_scale = 1.0f};
    return cf_ok(t->c, "add", t->d->math->add(q, &op));
}

static bool begin(cf *c, two *t)
{
    *t = (two){.c = c, .o = c->dut.dev->ops, .d = c->dut.dev};
    for (int r = 0; r < ROUNDS; r++) {
        t->in[r] = cf_host(c, BYTES);
        t->out[r] = cf_out(c, N);
        if (t->in[r] == NULL || t->out[r] == NULL)
            return false;
        for (int i = 0; i < N; i++)
            t->in[r][i] = (float)(r * N + i);
    }
    t->x = cf_dev(c, &c->dut, t->in[0], BYTES);
    t->y = cf_dev(c, &c->dut, t->in[0], BYTES);
    t->z = cf_dev(c, &c->dut, t->in[0], BYTES);
    return t->x != NULL && t->y != NULL && t->z != NULL &&
           cf_ok(c, "queue_wait", t->o->queue_wait(c->dut.q)) &&
           cf_ok(c, "queue_create", t->o->queue_create(t->d, &t->p)) &&
           cf_ok(c, "queue_create", t->o->queue_create(t->d, &t->q));
}

static bool begin_events(cf *c, two *t)
{
    return begin(c, t) && cf_ok(c, "event_create", t->o->event_create(t->d, &t->made)) &&
           cf_ok(c, "event_create", t->o->event_create(t->d, &t->used));
}

/* A device whose queues do nothing on their own may do without. */
static bool has_events(const cf *c)
{
    hy_event *e = NULL;
    hy_status st = c->dut.dev->ops->event_create(c->dut.dev, &e);
    if (st == HY_OK)
        c->dut.dev->ops->event_destroy(e);
    return st != HY_E_UNSUPPORTED;
}

/* Waits before the case's memory goes. */
static void end(two *t)
{
    if (t->p != NULL)
        t->o->queue_wait(t->p);
    if (t->q != NULL)
        t->o->queue_wait(t->q);
    t->o->event_destroy(t->made);
    t->o->event_destroy(t->used);
    t->o->queue_destroy(t->p);
    t->o->queue_destroy(t->q);
}

static void judge(two *t, float times)
{
    for (int r = 0; r < ROUNDS; r++) {
        for (int i = 0; i < N; i++) {
            if (t->out[r][i] != times * t->in[r][i]) {
                cf_bad(t->c, "round %d: [%d] is %g, should be %g", r, i, (double)t->out[r][i],
                       (double)(times * t->in[r][i]));
                return;
            }
        }
    }
}

/* A copy comes after the compute before it, and the next write after that copy. */
static void one_queue(cf *c)
{
    two t;
    cf_case(c, "one queue");
    bool ok = begin(c, &t);
    for (int r = 0; ok && r < ROUNDS; r++)
        ok = cf_ok(c, "copy", t.o->copy(t.p, t.x, t.in[r], BYTES)) && add(&t, t.p, t.x, t.x, t.y) &&
             cf_ok(c, "copy", t.o->copy(t.p, t.z, t.y, BYTES)) && add(&t, t.p, t.z, t.x, t.y) &&
             cf_ok(c, "copy", t.o->copy(t.p, t.out[r], t.y, BYTES));
    if (ok && cf_ok(c, "queue_wait", t.o->queue_wait(t.p)))
        judge(&t, 3.0f);
    end(&t);
}

/* The consumer reads after the producer wrote; the producer writes again after that read. */
static void two_queues(cf *c, bool compute)
{
    two t;
    cf_case(c, "%s across queues", compute ? "compute" : "copies");
    bool ok = begin_events(c, &t);
    for (int r = 0; ok && r < ROUNDS; r++) {
        ok = cf_ok(c, "copy", t.o->copy(t.p, t.x, t.in[r], BYTES)) &&
             (r == 0 || cf_ok(c, "event_wait", t.o->event_wait(t.p, t.used))) &&
             add(&t, t.p, t.x, t.x, t.y) &&
             cf_ok(c, "event_record", t.o->event_record(t.p, t.made)) &&
             cf_ok(c, "event_wait", t.o->event_wait(t.q, t.made)) &&
             (compute ? add(&t, t.q, t.y, t.y, t.z)
                      : cf_ok(c, "copy", t.o->copy(t.q, t.z, t.y, BYTES))) &&
             cf_ok(c, "event_record", t.o->event_record(t.q, t.used)) &&
             cf_ok(c, "copy", t.o->copy(t.q, t.out[r], t.z, BYTES));
    }
    if (ok && cf_ok(c, "queue_wait", t.o->queue_wait(t.q)))
        judge(&t, compute ? 4.0f : 2.0f);
    end(&t);
}

/* An event is done when the host is told so, and then what came before it can be read. */
static void events(cf *c)
{
    two t;
    cf_case(c, "host waits for an event");
    bool ok = begin_events(c, &t);
    for (int r = 0; ok && r < ROUNDS; r++) {
        hy_status st = HY_AGAIN;
        ok = cf_ok(c, "copy", t.o->copy(t.p, t.x, t.in[r], BYTES)) && add(&t, t.p, t.x, t.x, t.y) &&
             cf_ok(c, "copy", t.o->copy(t.p, t.out[r], t.y, BYTES)) &&
             cf_ok(c, "event_record", t.o->event_record(t.p, t.made));
        if (ok && r % 2 == 0) {
            ok = cf_ok(c, "event_sync", t.o->event_sync(t.made));
            st = t.o->event_query(t.made);
        }
        while (ok && r % 2 != 0 && st == HY_AGAIN)
            st = t.o->event_query(t.made);
        ok = ok && cf_ok(c, "event_query", st);
        for (int i = 0; ok && i < N; i++) {
            if (t.out[r][i] != 2.0f * t.in[r][i])
                cf_bad(c, "round %d: [%d] is %g after its event", r, i, (double)t.out[r][i]);
        }
    }
    end(&t);
}

/* What a queue wrote before a fence, everybody sees: here another queue, with no event between.
 * What others wrote, it sees after acquire_remote. */
static void fences(cf *c)
{
    two t;
    cf_case(c, "a fence instead of an event");
    bool ok = begin(c, &t);
    for (int r = 0; r < ROUNDS && ok; r++) {
        ok = cf_ok(c, "copy", t.o->copy(t.q, t.x, t.in[r], BYTES)) &&
             cf_ok(c, "fence", t.o->fence(t.q)) &&
             cf_ok(c, "acquire_remote", t.o->acquire_remote(t.p)) && add(&t, t.p, t.x, t.x, t.y) &&
             cf_ok(c, "fence", t.o->fence(t.p)) &&
             cf_ok(c, "copy", t.o->copy(t.q, t.out[r], t.y, BYTES)) &&
             cf_ok(c, "queue_wait", t.o->queue_wait(t.q));
        for (int i = 0; i < N && ok; i++) {
            if (t.out[r][i] != 2.0f * t.in[r][i])
                cf_bad(c, "round %d: [%d] is %g after the fence", r, i, (double)t.out[r][i]);
        }
    }
    end(&t);
}

static bool has_fences(const cf *c)
{
    const hy_dev_ops *o = c->dut.dev->ops;
    return o->fence(c->dut.q) != HY_E_UNSUPPORTED &&
           o->acquire_remote(c->dut.q) != HY_E_UNSUPPORTED;
}

static void no_memory(cf *c)
{
    static const size_t sizes[] = {(size_t)1 << 47, (size_t)1 << 60, SIZE_MAX / 2, SIZE_MAX - 63};
    const hy_dev_ops *o = c->dut.dev->ops;
    for (size_t i = 0; i < HY_COUNTOF(sizes); i++) {
        void *p = NULL;
        two t;
        cf_case(c, "alloc of %zu bytes", sizes[i]);
        hy_status st = o->alloc(c->dut.dev, sizes[i], &p);
        if (st != HY_E_NOMEM_DEVICE)
            cf_bad(c, "gave %s, not HY_E_NOMEM_DEVICE", hy_status_name(st));
        if (st == HY_OK)
            o->free(c->dut.dev, p, sizes[i]);
        bool ok = begin(c, &t); /* and all goes on */
        ok = ok && add(&t, t.p, t.x, t.x, t.y) &&
             cf_ok(c, "copy", t.o->copy(t.p, t.out[0], t.y, BYTES)) &&
             cf_ok(c, "queue_wait", t.o->queue_wait(t.p));
        if (ok && t.out[0][N - 1] != 2.0f * (float)(N - 1))
            cf_bad(c, "afterwards a sum is %g", (double)t.out[0][N - 1]);
        end(&t);
    }
}

static void memory(cf *c)
{
    static char host[BYTES];
    const hy_dev_ops *o = c->dut.dev->ops;
    void *p = NULL;
    cf_case(c, "new memory");
    if (!cf_ok(c, "alloc", o->alloc(c->dut.dev, BYTES, &p)))
        return;
    if ((uintptr_t)p % 64 != 0)
        cf_bad(c, "%p is not aligned to 64 bytes", p);
    memset(host, 1, sizeof(host));
    hy_status st = o->host_register(c->dut.dev, host, sizeof(host));
    if (st != HY_E_UNSUPPORTED && cf_ok(c, "host_register", st)) {
        if (cf_get(c, &c->dut, host, p, BYTES)) {
            for (size_t i = 0; i < BYTES; i++) {
                if (host[i] != 0)
                    cf_bad(c, "byte %zu is %d, not 0", i, host[i]);
            }
        }
        o->host_unregister(c->dut.dev, host);
    }
    o->free(c->dut.dev, p, BYTES);
}

/* What a device says of a loss: at the latest when it is waited for, and never a right result. */
static void lost(cf *c)
{
    two t;
    void *p = NULL;
    cf_case(c, "a device that is lost");
    if (!begin_events(c, &t)) {
        end(&t);
        return;
    }
    c->opts->lose(c->opts->lose_arg);
    hy_add op = {.a = t.x, .b = t.x, .y = t.y, .lda = N, .ldb = N, .ldy = N, .m = 1, .dim = N};
    hy_status st = t.d->math->add(t.p, &op);
    if (st == HY_OK)
        st = t.o->event_record(t.p, t.made);
    if (st == HY_OK)
        st = t.o->copy(t.p, t.out[0], t.y, BYTES);
    if (st == HY_OK)
        st = t.o->queue_wait(t.p);
    if (st != HY_E_DEVICE)
        cf_bad(c, "work on it gave %s, not HY_E_DEVICE", hy_status_name(st));
    st = t.o->alloc(t.d, BYTES, &p);
    if (st != HY_E_DEVICE)
        cf_bad(c, "alloc gave %s, not HY_E_DEVICE", hy_status_name(st));
    st = t.o->event_sync(t.made);
    if (st != HY_E_DEVICE)
        cf_bad(c, "event_sync gave %s, not HY_E_DEVICE", hy_status_name(st));
    end(&t);
}

void cf_device(cf *c)
{
    hy_op_query q = {.op = HY_OP_ADD};
    if (cf_group(c, &q, "device order")) {
        one_queue(c);
        if (has_events(c)) {
            two_queues(c, true);
            two_queues(c, false);
            events(c);
        }
        if (has_fences(c))
            fences(c);
        cf_group_end(c);
    }
    if (cf_group(c, &q, "device memory")) {
        memory(c);
        no_memory(c);
        cf_group_end(c);
    }
}

void cf_device_lost(cf *c)
{
    hy_op_query q = {.op = HY_OP_ADD};
    if (c->opts->lose != NULL && cf_group(c, &q, "device lost")) {
        lost(c);
        cf_group_end(c);
    }
}
