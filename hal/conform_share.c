/* SPDX-License-Identifier: Apache-2.0
 *
 * Conformance of export_mem and import_mem: what a device can, it can for true, here and in another
 * process; what it cannot, it says, and leaves nothing behind. Reported as `add`, device memory for
 * others.
 *
 * The other process is this program once more, with the same arguments (opts.again) and the span in
 * its environment: hy_conform_run is then cf_guest alone.
 *
 * Thread: the caller of hy_conform_run.  Owner: the case.
 */
#include "hal/conform_int.h"

#include <dirent.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* LEN bytes at OFF of an allocation of ALL: neither begins nor ends with a page. */
enum { ALL = 3 << 20, OFF = 70016, LEN = 1 << 20, ROUNDS = 16, HUGE_SPAN = 1 << 30 };
#define GUEST_ENV "HY_CONFORM_GUEST"

extern char **environ;

static const char *const kind_names[] = {"what it likes", "a descriptor", "a key", "a handle"};

/* What the bytes are after each side has had its turn. */
static void fill(unsigned char *p, int turn)
{
    for (size_t i = 0; i < LEN; i++)
        p[i] = (unsigned char)(i * 31 + i / 4096 + (size_t)turn * 101);
}

static size_t wrong_at(const unsigned char *p, int turn)
{
    size_t i = 0;
    while (i < LEN && p[i] == (unsigned char)(i * 31 + i / 4096 + (size_t)turn * 101))
        i++;
    return i;
}

static int n_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (d != NULL && readdir(d) != NULL)
        n++;
    if (d != NULL)
        closedir(d);
    return n;
}

typedef struct share {
    cf *c;
    const hy_dev_ops *o;
    hy_dev *d;
    hy_queue *q;
    bool host_visible;
    unsigned char *host; /* LEN */
    char *base;          /* ALL bytes of the device; NULL: none now */
} share;

/* For others to see: the fence is all that there is. */
static bool put(share *s, void *at, int turn)
{
    fill(s->host, turn);
    return cf_ok(s->c, "copy", s->o->copy(s->q, at, s->host, LEN)) &&
           cf_ok(s->c, "fence", s->o->fence(s->q));
}

static bool holds(share *s, const void *at, int turn, const char *who)
{
    memset(s->host, 0, LEN);
    if (!cf_ok(s->c, "copy", s->o->copy(s->q, s->host, at, LEN)) ||
        !cf_ok(s->c, "queue_wait", s->o->queue_wait(s->q)))
        return false;
    const size_t i = wrong_at(s->host, turn);
    if (i != LEN)
        cf_bad(s->c, "%s: byte %zu is %d", who, i, s->host[i]);
    return i == LEN;
}

static bool take(share *s)
{
    void *p = NULL;
    if (!cf_ok(s->c, "alloc", s->o->alloc(s->d, ALL, &p)))
        return false;
    s->base = p;
    return true;
}

static void drop(share *s)
{
    s->o->free(s->d, s->base, ALL);
    s->base = NULL;
}

static hy_span wanted(hy_export_kind kind)
{
    return (hy_span){.device = -1, .exp = {.kind = kind, .fd = -1}};
}

/* HY_OK or HY_E_UNSUPPORTED with nothing left behind; else the case has failed. */
static hy_status export(share *s, hy_export_kind kind, hy_span *out)
{
    const hy_span before = wanted(kind);
    const int fds = n_fds();
    memcpy(out, &before, sizeof(before)); /* with its padding */
    const hy_status st = s->o->export_mem(s->d, s->base + OFF, LEN, out);
    if (st == HY_E_UNSUPPORTED) {
        if (memcmp(&before, out, sizeof(before)) != 0 || n_fds() != fds)
            cf_bad(s->c, "refused, and yet something was left");
        return st;
    }
    if (!cf_ok(s->c, "export_mem", st))
        return HY_E_INVAL;
    const hy_export_kind got = out->exp.kind;
    if (out->addr != s->base + OFF || out->len != LEN ||
        (out->mem == HY_MEM_DEVICE) == s->host_visible)
        cf_bad(s->c, "the span tells of other memory");
    else if ((kind != HY_EXPORT_NONE && got != kind) || (got == HY_EXPORT_FD) != (out->exp.fd >= 0))
        cf_bad(s->c, "kind %d, descriptor %d for %s", (int)got, out->exp.fd, kind_names[kind]);
    else if (got == HY_EXPORT_NONE && !s->host_visible)
        cf_bad(s->c, "the host cannot follow a device's address");
    else
        return HY_OK;
    return HY_E_INVAL;
}

static void release(const hy_span *s)
{
    if (s->exp.kind == HY_EXPORT_FD)
        close(s->exp.fd);
}

/* ---- who else sees it ---- */

/* By its address, or mapped. A device's descriptor need not be one that the host can map. */
static void by_host(share *s, const hy_span *e)
{
    unsigned char *all = NULL, *at = e->addr;
    const size_t len = (size_t)e->exp.offset + LEN;
    if (e->exp.kind == HY_EXPORT_FD) {
        all = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, e->exp.fd, 0);
        if (all == MAP_FAILED)
            return;
        at = all + e->exp.offset;
    }
    if (put(s, s->base + OFF, 1)) {
        const size_t i = wrong_at(at, 1);
        if (i != LEN)
            cf_bad(s->c, "after a fence the host sees %d at byte %zu", at[i], i);
        fill(at, 2);
        if (cf_ok(s->c, "acquire_remote", s->o->acquire_remote(s->q)))
            holds(s, s->base + OFF, 2, "what the host wrote");
    }
    if (all != NULL)
        munmap(all, len);
}

/* In this process the owner may refuse its own memory, but not half. */
static void by_itself(share *s, const hy_span *e)
{
    static char none;
    void *back = &none;
    const int fds = n_fds();
    const hy_status st = s->o->import_mem(s->d, e, &back);
    if (st == HY_E_UNSUPPORTED || st == HY_E_INVAL) {
        if (back != &none || n_fds() != fds)
            cf_bad(s->c, "its import was refused, and yet something was left");
        return;
    }
    if (!cf_ok(s->c, "import_mem", st))
        return;
    if (put(s, back, 3) && cf_ok(s->c, "acquire_remote", s->o->acquire_remote(s->q)))
        holds(s, s->base + OFF, 3, "what was written through the import");
    s->o->import_close(s->d, e, back);
}

/* This program's arguments, in buf; how many. */
static int own_args(char *buf, size_t cap, char **argv, int most)
{
    const int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    const ssize_t got = fd >= 0 ? read(fd, buf, cap - 1) : -1;
    int n = 0;
    if (fd >= 0)
        close(fd);
    buf[got > 0 ? got : 0] = '\0';
    for (ssize_t i = 0; i < got && n < most; i += (ssize_t)strlen(buf + i) + 1)
        argv[n++] = buf + i;
    argv[n] = NULL;
    return n;
}

static int run_guest(const char *span)
{
    char buf[4096], *argv[64];
    size_t n = 0, k = 0;
    pid_t pid = 0;
    int status = -1;
    while (environ[n] != NULL)
        n++;
    if (own_args(buf, sizeof(buf), argv, (int)HY_COUNTOF(argv) - 1) == 0)
        return -1;
    char **env = calloc(n + 2, sizeof(*env));
    for (size_t i = 0; env != NULL && i < n; i++)
        if (strncmp(environ[i], GUEST_ENV "=", strlen(GUEST_ENV) + 1) != 0)
            env[k++] = environ[i];
    char var[2 * sizeof(hy_span) + sizeof(GUEST_ENV) + 2];
    snprintf(var, sizeof(var), GUEST_ENV "=%s", span);
    if (env != NULL)
        env[k] = var;
    if (env == NULL || posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, env) != 0 ||
        waitpid(pid, &status, 0) != pid)
        status = -1;
    free(env);
    return status;
}

static void by_guest(share *s, const hy_span *e)
{
    char span[2 * sizeof(*e) + 1];
    const unsigned char *b = (const unsigned char *)e;
    for (size_t i = 0; i < sizeof(*e); i++)
        snprintf(span + 2 * i, 3, "%02x", b[i]);
    if (!put(s, s->base + OFF, 4))
        return;
    const int status = run_guest(span);
    if (status != 0)
        cf_bad(s->c, "another process: status %#x", (unsigned)status);
    else if (cf_ok(s->c, "acquire_remote", s->o->acquire_remote(s->q)))
        holds(s, s->base + OFF, 5, "what another process wrote");
}

hy_status cf_guest(cf *c, bool *is_out)
{
    const char *text = getenv(GUEST_ENV);
    hy_span e;
    unsigned char *b = (unsigned char *)&e;
    *is_out = text != NULL;
    if (text == NULL)
        return HY_OK;
    for (size_t i = 0; i < sizeof(e); i++) {
        unsigned v = 0;
        if (strlen(text) != 2 * sizeof(e) || sscanf(text + 2 * i, "%2x", &v) != 1)
            return hy_fail(HY_E_INVAL, GUEST_ENV " is no span");
        b[i] = (unsigned char)v;
    }
    const hy_dev_ops *o = c->dut.dev->ops;
    share s = {.c = c, .o = o, .d = c->dut.dev, .q = c->dut.q, .host = cf_host(c, LEN)};
    void *p = NULL;
    hy_span longer = e, behind = e;
    longer.len = HUGE_SPAN;
    behind.exp.offset += HUGE_SPAN;
    bool ok = s.host != NULL;
    for (int i = 0; ok && i < 2; i++) { /* both times the same bytes: closing lost none */
        ok = cf_ok(c, "import_mem", o->import_mem(s.d, &e, &p)) &&
             cf_ok(c, "acquire_remote", o->acquire_remote(s.q)) &&
             holds(&s, p, 4 + i, "what the owner wrote") && put(&s, p, 5);
        if (p != NULL)
            o->import_close(s.d, &e, p);
        p = NULL;
    }
    if (ok &&
        (o->import_mem(s.d, &longer, &p) == HY_OK || o->import_mem(s.d, &behind, &p) == HY_OK))
        cf_bad(c, "more was imported than had been exported");
    return c->failed ? hy_fail(HY_E_FORMAT, "in another process: %s", c->text) : HY_OK;
}

/* ---- what is no memory ---- */

static void not_exported(share *s, hy_export_kind kind, const char *what, void *p, size_t bytes)
{
    const hy_span before = wanted(kind);
    hy_span e;
    memcpy(&e, &before, sizeof(e));
    const int fds = n_fds();
    const hy_status st = s->o->export_mem(s->d, p, bytes, &e);
    if (st != HY_E_INVAL && st != HY_E_NOTFOUND)
        cf_bad(s->c, "%s: export gave %s, not HY_E_INVAL", what, hy_status_name(st));
    if (st == HY_OK)
        release(&e);
    else if (memcmp(&before, &e, sizeof(e)) != 0 || n_fds() != fds)
        cf_bad(s->c, "%s: refused, and yet something was left", what);
}

/* Where memory is the host's, nobody knows what of it is in use. */
static void bad_ranges(share *s, hy_export_kind kind)
{
    not_exported(s, kind, "no bytes", s->base, 0);
    not_exported(s, kind, "no memory", NULL, 64);
    not_exported(s, kind, "a range beyond all addresses", s->base + OFF, SIZE_MAX - OFF);
    if (s->host_visible)
        return;
    char *old = s->base;
    not_exported(s, kind, "more than there is", s->base, (size_t)ALL * 64);
    not_exported(s, kind, "memory of the host", s->host, LEN);
    drop(s);
    not_exported(s, kind, "freed memory", old + OFF, LEN);
    take(s);
}

static void not_imported(share *s, const char *what, const hy_span *e)
{
    static char none;
    void *p = &none;
    const int fds = n_fds();
    const hy_status st = s->o->import_mem(s->d, e, &p);
    if (st == HY_OK) {
        cf_bad(s->c, "%s was imported", what);
        s->o->import_close(s->d, e, p);
    } else if (st != HY_E_INVAL && st != HY_E_UNSUPPORTED) {
        cf_bad(s->c, "%s: import gave %s", what, hy_status_name(st));
    } else if (p != &none || n_fds() != fds) {
        cf_bad(s->c, "%s: its import was refused, and yet something was left", what);
    }
}

static void bad_handles(share *s)
{
    hy_span e = wanted(HY_EXPORT_IPC);
    e.addr = s->base;
    e.len = LEN;
    e.mem = HY_MEM_DEVICE;
    cf_case(s->c, "handles that name nothing");
    not_imported(s, "a handle of zeros", &e);
    for (int i = 0; i < 4; i++) {
        for (size_t k = 0; k < sizeof(e.exp.ipc); k++)
            e.exp.ipc[k] = (unsigned char)cf_below(s->c, 256);
        not_imported(s, "a handle of noise", &e);
    }
    e.exp.kind = HY_EXPORT_U64;
    not_imported(s, "a key of nobody", &e);
    e.exp.kind = HY_EXPORT_FD;
    not_imported(s, "descriptor -1", &e);
    e.exp.fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    not_imported(s, "/dev/null", &e);
    close(e.exp.fd);
    not_imported(s, "a closed descriptor", &e);
    e = wanted(HY_EXPORT_NONE);
    not_imported(s, "an empty span", &e);
    e.addr = s->base;
    e.len = LEN;
    e.mem = HY_MEM_DEVICE;
    not_imported(s, "another device's address", &e);
}

/* ---- one kind ---- */

static void use(share *s, hy_export_kind kind)
{
    hy_span e;
    if (!take(s))
        return;
    if (export(s, kind, &e) != HY_OK) {
        drop(s);
        return;
    }
    if (e.exp.kind == HY_EXPORT_FD || e.exp.kind == HY_EXPORT_NONE)
        by_host(s, &e);
    by_itself(s, &e);
    if (e.exp.kind == HY_EXPORT_IPC && s->c->opts->again)
        by_guest(s, &e);
    release(&e);
    bad_ranges(s, kind);
    drop(s);
}

/* The memory first or its export first, again and again: nothing is lost. */
static void orders(share *s, hy_export_kind kind)
{
    const int fds = n_fds();
    hy_dev_props a = {0}, b = {0};
    s->o->props(s->d, &a);
    for (int i = 0; i < ROUNDS && !s->c->failed; i++) {
        hy_span e;
        if (!take(s))
            return;
        const hy_status st = export(s, kind, &e);
        if (st == HY_OK && i % 2 == 0)
            release(&e);
        drop(s);
        if (st == HY_OK && i % 2 != 0)
            release(&e);
    }
    s->o->props(s->d, &b);
    if (n_fds() != fds)
        cf_bad(s->c, "%d descriptors are left of %d exports", n_fds() - fds, ROUNDS);
    if (!s->host_visible && b.mem_free + (size_t)ALL * ROUNDS / 2 < a.mem_free)
        cf_bad(s->c, "%zu bytes of the device are gone", a.mem_free - b.mem_free);
}

void cf_share(cf *c)
{
    static const hy_export_kind kinds[] = {HY_EXPORT_NONE, HY_EXPORT_FD, HY_EXPORT_IPC};
    const hy_op_query q = {.op = HY_OP_ADD};
    hy_dev_props p;
    if (!cf_group(c, &q, "memory for others"))
        return;
    share s = {.c = c, .o = c->dut.dev->ops, .d = c->dut.dev, .q = c->dut.q};
    if (cf_ok(c, "props", s.o->props(s.d, &p))) {
        s.host_visible = p.host_visible;
        for (size_t i = 0; i < HY_COUNTOF(kinds); i++) {
            cf_case(c, "export as %s", kind_names[kinds[i]]);
            s.host = cf_host(c, LEN);
            if (s.host == NULL)
                break;
            use(&s, kinds[i]);
            orders(&s, kinds[i]);
        }
        bad_handles(&s);
    }
    cf_group_end(c);
}
