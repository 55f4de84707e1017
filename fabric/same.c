/* SPDX-License-Identifier: Apache-2.0
 *
 * The same-node path: two processes of one user on one host need no network for the bytes. A write
 * travels as a frame that says where the bytes lie; the target checks the keys, copies them with
 * process_vm_readv into its own registered memory and answers. So every promise stays what it is:
 * - complete means applied: the answer is sent after the copy;
 * - the fence holds: only the owner of memory ever writes into it, under its fabric's lock;
 * - a peer that dies or stops is a link that dies or stops.
 * Reads are asked for and served as the owner's writes (pull.c). The link's ordinary data path
 * stands beside it, for device memory and for whoever may not read the other's memory.
 *
 * After the proof of the secret each side tells a process id, an address and 16 random bytes that
 * lie there. Whoever reads these bytes there is on the same host, may read, and has the right
 * process: each copy reads them again in the same call, so that a process id used anew is noticed.
 *
 *   SAME_WRITE: piece u64, n u32, 0 u32, n times memory, token, offset, length, source (u64 each)
 *   SAME_DONE:  piece u64, as many as there are
 *
 * Thread: under the fabric's lock.  Owner: writes that are not copied yet belong to their link.
 */
#include "core/base/hash.h"
#include "fabric/fab_int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FIXED = 16, SEG = 40, NONCE = 16, BUDGET = 4 << 20 /* bytes of a pass */ };
enum { MOST_IN = 1024, MOST_DONE = 64, MOST_BACKLOG = 1 << 20, MOST_BYTES = 64 << 20 };

typedef struct fab_same_in {
    struct fab_same_in *next;
    uint64_t piece;
    int n_segs;
    struct {
        uint64_t id, token, off, len, src;
    } seg[FAB_SEGS];
} fab_same_in;

void hy_fab__same_open(hy_fab *f)
{
    char text[128];
    uint8_t d[HY_SHA256_LEN];
    if (!f->o.same_node || f->o.loop != NULL)
        return;
    FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "re");
    size_t n = boot != NULL ? fread(text, 1, 64, boot) : 0;
    if (boot != NULL)
        fclose(boot);
    if (n == 0) {
        hy_info("fabric", "%s: no same-node path: this system has no boot id", f->node);
        return;
    }
    snprintf(text + n, sizeof(text) - n, " uid %lu", (unsigned long)geteuid());
    hy_sha256(text, n + strlen(text + n), d);
    f->same.host = fab_get64(d) | 1;
    fab_put64(f->same.nonce, hy_rng_u64(&f->rng));
    fab_put64(f->same.nonce + 8, hy_rng_u64(&f->rng));
}

void hy_fab__same_offer(const fab_link *l, uint8_t out[FAB_SAME_LEN])
{
    const hy_fab *f = l->f;
    memset(out, 0, FAB_SAME_LEN);
    if (f->same.host == 0)
        return;
    fab_put64(out, f->same.host);
    fab_put32(out + 8, (uint32_t)getpid());
    fab_put64(out + 12, (uint64_t)(uintptr_t)f->same.nonce);
    memcpy(out + 20, f->same.nonce, NONCE);
    out[36] = l->same.rx;
}

/* Why process_vm_readv was refused, for the one who may change it. */
static void why_not(int e, char *out, size_t cap)
{
    FILE *yama = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
    int scope = 0;
    if (yama != NULL) {
        if (fscanf(yama, "%d", &scope) != 1)
            scope = 0;
        fclose(yama);
    }
    if (e == EPERM && scope > 0)
        snprintf(out, cap, "kernel.yama.ptrace_scope is %d (0 allows it)", scope);
    else if (e == EPERM || e == ENOSYS)
        snprintf(out, cap, "%s (the container's seccomp profile, or CAP_SYS_PTRACE is needed)",
                 strerror(e));
    else if (e == ESRCH || e == 0)
        snprintf(out, cap, "its process is in another pid namespace");
    else
        snprintf(out, cap, "%s", strerror(e));
}

void hy_fab__same_meet(fab_link *l, const uint8_t in[FAB_SAME_LEN])
{
    const hy_fab *f = l->f;
    uint8_t got[NONCE] = {0};
    char why[128];
    if (f->same.host == 0 || fab_get64(in) != f->same.host)
        return; /* switched off on a side, another machine, another user */
    l->same.pid = fab_get32(in + 8);
    l->same.addr = fab_get64(in + 12);
    memcpy(l->same.nonce, in + 20, NONCE);
    struct iovec mine = {got, NONCE}, theirs = {(void *)(uintptr_t)l->same.addr, NONCE};
    ssize_t k = process_vm_readv((pid_t)l->same.pid, &mine, 1, &theirs, 1, 0);
    l->same.rx = k == NONCE && memcmp(got, l->same.nonce, NONCE) == 0;
    l->same.tx = in[36] != 0;
    if (l->same.rx)
        return;
    why_not(k < 0 ? errno : 0, why, sizeof(why));
    hy_warn("fabric", "%s and %s are on one host, but process_vm_readv does not work: %s; %s",
            f->node, l->theirs.node, why, "the ordinary provider is used");
}

const char *hy_fab__path(const fab_link *l)
{
    if (l->same.rx && l->same.tx)
        return "same node, process_vm";
    if (l->beside)
        return "own TCP beside it";
    return l->dp == &hy_fab__own_dp ? "own TCP" : l->f->rail[l->rail].provider;
}

bool hy_fab__same_fits(const fab_link *l, const fab_piece *p)
{
    if (!l->same.tx || p->read || p->len > MOST_BYTES)
        return false;
    for (int i = 0; i < p->n_segs; i++)
        if (((p->seg[i].mr->access | p->seg[i].key->access) & FAB_DEVICE) != 0)
            return false;
    return true;
}

hy_status hy_fab__same_post(fab_link *l, fab_piece *p)
{
    uint8_t b[FIXED + SEG * FAB_SEGS];
    if (l->conn == NULL || l->f->ct->backlog(l->f->ctx, l->conn) > MOST_BACKLOG)
        return HY_AGAIN;
    fab_put64(b, p->id);
    fab_put32(b + 8, (uint32_t)p->n_segs);
    fab_put32(b + 12, 0);
    for (int i = 0; i < p->n_segs; i++) {
        const fab_seg *s = &p->seg[i];
        uint8_t *h = b + FIXED + (size_t)SEG * (size_t)i;
        fab_put64(h, s->key->id);
        fab_put64(h + 8, s->key->token);
        fab_put64(h + 16, s->roff);
        fab_put64(h + 24, s->len);
        fab_put64(h + 32, (uint64_t)(uintptr_t)s->mr->span.addr + s->off);
    }
    return hy_fab__frame(l, FAB_SAME_WRITE, b, FIXED + (size_t)SEG * (size_t)p->n_segs, NULL, 0);
}

static void got_write(fab_link *l, const uint8_t *p, size_t n)
{
    uint32_t n_segs = n >= FIXED ? fab_get32(p + 8) : 0;
    if (n_segs == 0 || n_segs > FAB_SEGS || n != FIXED + (size_t)SEG * n_segs || !l->same.rx ||
        l->same.n_in >= MOST_IN) {
        hy_fab__bad(l, hy_fail(HY_E_FORMAT, "a same-node write of %zu bytes", n));
        return;
    }
    fab_same_in *w = hy_malloc(sizeof(*w));
    if (w == NULL) {
        hy_fab__break(l, HY_E_NOMEM, "no memory for a write");
        return;
    }
    w->next = NULL;
    w->piece = fab_get64(p);
    w->n_segs = (int)n_segs;
    for (uint32_t i = 0; i < n_segs; i++) {
        const uint8_t *h = p + FIXED + (size_t)SEG * i;
        w->seg[i].id = fab_get64(h);
        w->seg[i].token = fab_get64(h + 8);
        w->seg[i].off = fab_get64(h + 16);
        w->seg[i].len = fab_get64(h + 24);
        w->seg[i].src = fab_get64(h + 32);
    }
    if (l->same.tail != NULL)
        l->same.tail->next = w;
    else
        l->same.head = w;
    l->same.tail = w;
    l->same.n_in++;
}

static void got_done(fab_link *l, const uint8_t *p, size_t n)
{
    if (n == 0 || n % 8 != 0) {
        hy_fab__bad(l, hy_fail(HY_E_FORMAT, "a same-node answer of %zu bytes", n));
        return;
    }
    for (size_t i = 0; i < n && !l->broken; i += 8) {
        fab_piece *x = l->pieces;
        while (x != NULL && (x->id != fab_get64(p + i) || !x->same))
            x = x->next;
        if (x != NULL)
            hy_fab__piece_done(x, HY_OK);
        else
            l->f->stats.late++;
    }
}

void hy_fab__same_frame(fab_link *l, fab_kind kind, const uint8_t *p, size_t n)
{
    if (kind == FAB_SAME_WRITE) {
        got_write(l, p, n);
    } else if (kind == FAB_SAME_DONE) {
        got_done(l, p, n);
    } else if (n != 1 || l->f->same.host == 0) {
        hy_fab__bad(l, hy_fail(HY_E_FORMAT, "a same-node verdict of %zu bytes", n));
    } else {
        l->same.tx = p[0] != 0;
        if (!l->same.tx && l->same.rx)
            hy_warn("fabric",
                    "%s: %s is on this host and cannot read this process: writes to it "
                    "take the ordinary provider",
                    l->f->node, l->theirs.node);
    }
}

/* The stretches as this process has them; the sum of their lengths, 0: refused. */
static uint64_t targets(hy_fab *f, const fab_same_in *w, struct iovec *mine, struct iovec *theirs)
{
    uint64_t sum = 0;
    for (int i = 0; i < w->n_segs; i++) {
        uint64_t off = w->seg[i].off, len = w->seg[i].len;
        const hy_fab_mr *mr = hy_fab__mr_find(f, w->seg[i].id);
        if (mr == NULL || mr->token != w->seg[i].token || !hy_span_has(&mr->span, off, len) ||
            (mr->access & (FAB_LAND | FAB_DEVICE)) != FAB_LAND || len > MOST_BYTES - sum)
            return 0;
        mine[i] = (struct iovec){(char *)mr->span.addr + off, (size_t)len};
        theirs[i] = (struct iovec){(void *)(uintptr_t)w->seg[i].src, (size_t)len};
        sum += len;
    }
    return sum;
}

/* What has come is taken off the front of both lists. */
static int advance(struct iovec *v, int n, size_t k)
{
    int at = 0;
    while (at < n && k >= v[at].iov_len)
        k -= v[at++].iov_len;
    for (int i = at; i < n; i++)
        v[i - at] = v[i];
    if (at < n) {
        v[0].iov_base = (char *)v[0].iov_base + k;
        v[0].iov_len -= k;
    }
    return n - at;
}

/* Copies one write; the peer's 16 bytes come last, in the same call as the last of the data. */
static bool copy(fab_link *l, const fab_same_in *w, uint64_t *len)
{
    struct iovec mine[FAB_SEGS + 1], theirs[FAB_SEGS + 1];
    uint8_t got[NONCE] = {0};
    int n = w->n_segs + 1, m = n;
    *len = targets(l->f, w, mine, theirs);
    if (*len == 0) {
        hy_fab__break(l, HY_E_PEER, "same node: a write outside of what is shared");
        return false;
    }
    mine[n - 1] = (struct iovec){got, NONCE};
    theirs[n - 1] = (struct iovec){(void *)(uintptr_t)l->same.addr, NONCE};
    while (n > 0) {
        ssize_t k = process_vm_readv((pid_t)l->same.pid, mine, (unsigned long)n, theirs,
                                     (unsigned long)m, 0);
        if (k <= 0) {
            hy_fab__break(l, HY_E_PEER, "same node: the peer's memory cannot be read any more");
            return false;
        }
        n = advance(mine, n, (size_t)k);
        m = advance(theirs, m, (size_t)k);
    }
    if (memcmp(got, l->same.nonce, NONCE) != 0) {
        hy_fab__break(l, HY_E_PEER, "same node: another process has the peer's id");
        return false;
    }
    return true;
}

bool hy_fab__same_progress(fab_link *l)
{
    uint8_t done[8 * MOST_DONE];
    size_t n = 0;
    uint64_t bytes = 0, len;
    while (l->same.head != NULL && bytes < BUDGET && n < MOST_DONE) {
        fab_same_in *w = l->same.head;
        if (!copy(l, w, &len))
            break; /* unanswered: the link goes, and the queue with it */
        fab_put64(done + 8 * n++, w->piece);
        bytes += len;
        l->same.head = w->next;
        if (l->same.head == NULL)
            l->same.tail = NULL;
        l->same.n_in--;
        hy_free(w);
    }
    l->f->stats.same_node += bytes;
    if (n > 0 && !l->broken)
        hy_fab__frame(l, FAB_SAME_DONE, done, 8 * n, NULL, 0);
    return n > 0;
}

void hy_fab__same_close(fab_link *l)
{
    while (l->same.head != NULL) {
        fab_same_in *w = l->same.head;
        l->same.head = w->next;
        hy_free(w);
    }
    l->same.tail = NULL;
    l->same.n_in = 0;
    l->same.rx = l->same.tx = false;
}
