/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults with real processes and hostile bytes: a peer killed or stopped while it is written to,
 * read from, or idle; a restart at the same address; a rail that dies; garbage at the control port.
 *
 * Thread: the test's; children are processes of their own.  Owner: each test reaps its
 * own child.
 */
#include "tests/conform/transport_faults.h"
#include "fabric/wire.h"
#include "tests/unit/cm.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BIG = 64 << 20, UNTOUCHED = 0x33 };
enum { MOVING = -1 /* a delay: until the first bytes have moved */ };

/* --- a child that owns memory and serves it ------------------------------------------------- */

typedef struct far {
    pid_t pid;
    int out;
    char addr[80];
} far;

static const char *any_port(void)
{
    static char addr[80];
    snprintf(addr, sizeof(addr), "%s:0", tr_host(0));
    return addr;
}

/* One at which a process can be started again: the system gives it to no connection (below
 * Linux's range) while nobody listens there, as it may one that was any port's. */
static const char *port_to_keep(void)
{
    static char addr[80];
    static int port;
    for (port = port != 0 ? port + 1 : 10000 + getpid() * 97 % 20000;; port++) {
        const struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        const bool is_free = bind(fd, (const struct sockaddr *)&a, sizeof(a)) == 0;
        close(fd);
        if (is_free)
            break;
    }
    snprintf(addr, sizeof(addr), "%s:%d", tr_host(0), port);
    return addr;
}

static void child_opts(hy_fab_opts *o, const tr_impl *im, const char *node, const char *addr)
{
    hy_fab_opts_init(o);
    o->node = node;
    o->addrs[0] = addr;
    o->n_addrs = 1;
    o->providers = im->providers;
    o->strict = im->strict;
    o->same_node = im->same;
    o->pull = im->pull;
    o->secret = "a secret of the tests";
    o->secret_len = strlen(o->secret);
    o->heartbeat_ns = 100 * HY_MS;
    o->peer_timeout_ns = tr_slow() * 1500 * HY_MS;
    o->stall_ns = tr_slow() * 2 * HY_SEC;
}

/* What a container's profile may do: process_vm_readv is refused. */
static void make_deaf(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog prog = {HY_COUNTOF(code), code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) != 0)
        _exit(6);
}

/* Tells its address, sends every peer its key, answers nothing else; lives until it is killed. */
int faults_far(const tr_impl *im, const char *addr, int out)
{
    hy_fab_opts o;
    hy_fab *f;
    hy_fab_mr *mr;
    hy_fab_info info;
    uint8_t *mem = malloc(BIG);
    hy_span s = hy_span_host(mem, BIG);
    if (getenv("HY_TEST_DEAF") != NULL)
        make_deaf();
    child_opts(&o, im, "far", addr);
    tr_fill(mem, BIG, 42);
    alarm((unsigned)tr_slow() * 60);
    if (hy_fab_open(&o, &f) < 0 ||
        hy_fab_reg(f, &s, HY_FAB_REMOTE_READ | HY_FAB_REMOTE_WRITE, &mr) < 0) {
        fprintf(stderr, "far at %s: %s\n", addr, hy_fail_text());
        _exit(3);
    }
    hy_fab_info_get(f, &info);
    if (write(out, info.rail[0].addr, sizeof(info.rail[0].addr)) < 0)
        _exit(4);
    for (;;) {
        hy_fab_event ev;
        if (hy_fab_poll(f, &ev, 1) == 0) {
            hy_fab_wait(f, hy_clock_now_ns(hy_clock_real()) + HY_SEC);
            continue;
        }
        if (ev.kind == HY_FAB_EV_UP) {
            hy_buf b;
            hy_buf_init(&b);
            hy_fab_key_pack(mr, &b);
            hy_fab_send(f, ev.peer, 1, b.data, b.len, NULL, NULL);
            hy_buf_fini(&b);
        }
        hy_fab_event_fini(&ev);
    }
}

static far far_start(const tr_impl *im, const char *addr)
{
    far c;
    int p[2];
    assert_int_equal(pipe(p), 0);
    c.pid = fork();
    if (c.pid == 0) {
        /* a fresh process: one forked beside threads may inherit a library's locked lock */
        char fd[16];
        close(p[0]);
        snprintf(fd, sizeof(fd), "%d", p[1]);
        execl("/proc/self/exe", "test_transport", im->name, "--far", addr, fd, (char *)NULL);
        _exit(5);
    }
    close(p[1]);
    c.out = p[0];
    if (read(c.out, c.addr, sizeof(c.addr)) != (ssize_t)sizeof(c.addr))
        fail_msg("%s: the child did not open", im->name);
    return c;
}

static void far_end(far *c, int sig)
{
    int st;
    kill(c->pid, sig);
    if (sig == SIGSTOP)
        return;
    waitpid(c->pid, &st, 0);
    close(c->out);
}

/* --- kill and stop -------------------------------------------------------------------------- */

typedef enum moment { IDLE, WRITING, READING, SENDING, CONNECTING } moment;

static hy_fab *near_open(const tr_impl *im)
{
    hy_fab_opts o;
    hy_fab *f;
    child_opts(&o, im, "near", any_port());
    o.op_timeout_ns = tr_slow() * 6 * HY_SEC;
    if (hy_fab_open(&o, &f) < 0)
        fail_msg("open: %s", hy_fail_text());
    return f;
}

static bool next(hy_fab *f, hy_fab_event *ev, uint64_t ns)
{
    uint64_t end = hy_clock_now_ns(hy_clock_real()) + tr_slow() * ns;
    while (hy_fab_poll(f, ev, 1) == 0) {
        if (hy_clock_now_ns(hy_clock_real()) >= end)
            return false;
        hy_fab_wait(f, end);
    }
    return true;
}

/* Connects and takes the key. */
static hy_fab_peer meet(hy_fab *f, const char *addr, hy_fab_key *key)
{
    hy_fab_peer p = 0;
    hy_fab_event ev;
    bool got = false;
    hy_fab_connect(f, addr, "far", 0, NULL);
    while (p == 0 || !got) {
        assert_true(next(f, &ev, 10 * HY_SEC));
        if (ev.kind == HY_FAB_EV_CONNECT && ev.status < 0)
            fail_msg("connect: %s", ev.text);
        if (ev.kind == HY_FAB_EV_UP)
            p = ev.peer;
        if (ev.kind == HY_FAB_EV_MSG) {
            assert_int_equal(hy_fab_key_unpack(f, p, ev.data, ev.len, key, NULL), HY_OK);
            got = true;
        }
        hy_fab_event_fini(&ev);
    }
    return p;
}

static int start_ops(hy_fab *f, hy_fab_peer p, hy_fab_mr *mr, const hy_fab_key *key, moment when)
{
    hy_fab_range r = {mr, 0, key, 0, BIG};
    int n = 0;
    for (int i = 0; i < 3; i++) {
        if (when == WRITING)
            n += hy_fab_write(f, p, &r, 1, NULL, NULL) == HY_OK;
        else if (when == READING)
            n += hy_fab_read(f, p, &r, 1, NULL, NULL) == HY_OK;
    }
    for (int i = 0; i < 100 && when == SENDING; i++)
        n += hy_fab_send(f, p, 9, "0123456789", 10, NULL, NULL) == HY_OK;
    return n;
}

/* Some bytes of a read have landed here, or pieces of a write there. (It looks at memory that is
 * being written: meant so.) */
__attribute__((no_sanitize("thread"))) static void await_bytes(hy_fab *f,
                                                               const volatile uint8_t *mem)
{
    const uint64_t end = hy_clock_now_ns(hy_clock_real()) + tr_slow() * 20 * HY_SEC;
    for (;;) {
        hy_fab_stats s;
        hy_fab_stats_get(f, &s);
        bool moved = s.rail_bytes[0] > 0;
        for (size_t i = 0; i < BIG; i += 4096)
            moved |= mem[i] != UNTOUCHED;
        if (moved)
            return;
        if (hy_clock_now_ns(hy_clock_real()) >= end)
            fail_msg("nothing has moved");
        nanosleep(&(struct timespec){0, 200000}, NULL);
    }
}

static void one_death(const tr_impl *im, moment when, int sig, int delay_us)
{
    far c = far_start(im, port_to_keep());
    hy_fab *f = near_open(im);
    hy_fab_key key;
    hy_fab_event ev;
    uint8_t *mem = malloc(BIG);
    memset(mem, UNTOUCHED, BIG);
    hy_span s = hy_span_host(mem, BIG);
    hy_fab_mr *mr;
    assert_int_equal(hy_fab_reg(f, &s, HY_FAB_REMOTE_WRITE, &mr), HY_OK);
    hy_fab_peer p = meet(f, c.addr, &key);
    int n = start_ops(f, p, mr, &key, when), done = 0;
    if (delay_us == MOVING)
        await_bytes(f, mem);
    else
        nanosleep(&(struct timespec){0, delay_us * 1000L}, NULL);
    far_end(&c, sig);
    uint64_t t = hy_clock_now_ns(hy_clock_real());
    bool down = false;
    while (!down) {
        if (!next(f, &ev, 10 * HY_SEC))
            fail_msg("%s: moment %d, signal %d: the death was not noticed", im->name, when, sig);
        done += ev.kind == HY_FAB_EV_DONE;
        if (ev.kind == HY_FAB_EV_DONE && ev.status < 0 && when == WRITING)
            assert_true((ev.flags & HY_FAB_UNKNOWN) != 0);
        down = ev.kind == HY_FAB_EV_DOWN;
        hy_fab_event_fini(&ev);
    }
    t = hy_clock_now_ns(hy_clock_real()) - t;
    print_message("moment %d, delay %d us, signal %d: noticed in %llu ms\n", when, delay_us, sig,
                  (unsigned long long)(t / HY_MS));
    assert_int_equal(done, n); /* every operation had its event, before the peer's */
    assert_true(t < tr_slow() * 5 * HY_SEC);
    memset(mem, 0x77, BIG);
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    for (size_t i = 0; i < BIG; i++) /* the fence holds */
        if (mem[i] != 0x77)
            fail_msg("%s: byte %zu landed after the peer was down", im->name, i);
    assert_int_equal(hy_fab_dereg(f, mr), HY_OK); /* no link is left that could use it */
    if (sig == SIGSTOP)
        far_end(&c, SIGKILL);
    /* again, at the same address: another epoch */
    far d = far_start(im, c.addr);
    assert_int_equal(hy_fab_reg(f, &s, HY_FAB_REMOTE_WRITE, &mr), HY_OK);
    hy_fab_peer q = meet(f, d.addr, &key);
    assert_true(q != p);
    hy_fab_range r = {mr, 0, &key, 0, 1 << 20};
    assert_int_equal(hy_fab_read(f, q, &r, 1, NULL, NULL), HY_OK);
    assert_true(next(f, &ev, 10 * HY_SEC));
    while (ev.kind != HY_FAB_EV_DONE)
        assert_true(next(f, &ev, 10 * HY_SEC));
    assert_int_equal(ev.status, HY_OK);
    uint8_t *want = malloc(1 << 20);
    tr_fill(want, 1 << 20, 42);
    assert_memory_equal(mem, want, 1 << 20);
    far_end(&d, SIGKILL);
    hy_fab_close(f);
    free(want);
    free(mem);
}

void faults_kill(const tr_impl *im)
{
    static const int delays[] = {0, 700, 5000, 15000, MOVING};
    for (size_t i = 0; i < HY_COUNTOF(delays); i++) {
        one_death(im, WRITING, SIGKILL, delays[i]);
        one_death(im, READING, SIGKILL, delays[i]);
    }
    one_death(im, SENDING, SIGKILL, 0);
    one_death(im, IDLE, SIGKILL, 1000);
}

/* A machine that is gone without a word: nothing resets, only silence tells. */
void faults_silence(const tr_impl *im)
{
    one_death(im, IDLE, SIGSTOP, 1000);
    one_death(im, WRITING, SIGSTOP, MOVING);
    one_death(im, READING, SIGSTOP, MOVING);
}

/* --- an idle pair --------------------------------------------------------------------------- */

static void move_one(hy_fab *f, hy_fab_peer p, const hy_fab_range *r, bool read)
{
    hy_fab_event ev;
    assert_int_equal(
        read ? hy_fab_read(f, p, r, 1, NULL, NULL) : hy_fab_write(f, p, r, 1, NULL, NULL), HY_OK);
    do
        assert_true(next(f, &ev, 20 * HY_SEC));
    while (ev.kind != HY_FAB_EV_DONE);
    if (ev.status != HY_OK)
        fail_msg("%s: %s", hy_status_name(ev.status), ev.text);
}

/* Writes to it take the ordinary provider; what it writes here is still copied. */
void faults_deaf(const tr_impl *im)
{
    enum { LEN = 8 << 20 };
    setenv("HY_TEST_DEAF", "1", 1);
    far c = far_start(im, any_port());
    unsetenv("HY_TEST_DEAF");
    hy_fab *f = near_open(im);
    hy_fab_key key;
    hy_fab_mr *mr;
    hy_fab_stats s;
    hy_buf path;
    uint8_t *mem = malloc(2 * LEN);
    hy_span span = hy_span_host(mem, 2 * LEN);
    assert_int_equal(hy_fab_reg(f, &span, HY_FAB_REMOTE_WRITE, &mr), HY_OK);
    hy_fab_peer p = meet(f, c.addr, &key);
    tr_fill(mem, LEN, 77);
    const hy_fab_range there = {mr, 0, &key, 0, LEN}, back = {mr, LEN, &key, 0, LEN};
    move_one(f, p, &there, false);
    move_one(f, p, &back, true);
    assert_memory_equal(mem, mem + LEN, LEN);
    hy_fab_stats_get(f, &s);
    assert_int_equal(s.same_node, LEN);
    hy_buf_init(&path);
    assert_int_equal(hy_fab_peer_path(f, p, &path), HY_OK);
    assert_null(strstr(hy_buf_str(&path), "same node"));
    hy_buf_fini(&path);
    far_end(&c, SIGKILL);
    hy_fab_close(f);
    free(mem);
}

static double cpu_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

void faults_idle(const tr_impl *im)
{
    far c = far_start(im, any_port());
    hy_fab *f = near_open(im);
    hy_fab_key key;
    meet(f, c.addr, &key);
    nanosleep(&(struct timespec){0, 300000000}, NULL);
    double t = cpu_s();
    nanosleep(&(struct timespec){1, 0}, NULL);
    t = cpu_s() - t;
    if (t > 0.01 * (double)tr_slow())
        fail_msg("%s: an idle endpoint used %.1f %% of a core", im->name, 100 * t);
    hy_fab_close(f);
    far_end(&c, SIGKILL);
}

/* --- hostile bytes -------------------------------------------------------------------------- */

static int raw_connect(const char *addr)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    inet_pton(AF_INET, tr_host(0), &a.sin_addr);
    a.sin_port = htons((uint16_t)atoi(strrchr(addr, ':') + 1));
    int s = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(s, (struct sockaddr *)&a, sizeof(a)), 0);
    return s;
}

/* Sends and waits for the other side to close; answers come to out. */
static size_t poke(const char *addr, const void *data, size_t n, uint8_t *out, size_t cap)
{
    int s = raw_connect(addr);
    size_t got = 0;
    (void)!send(s, data, n, MSG_NOSIGNAL);
    struct pollfd p = {s, POLLIN, 0};
    while (poll(&p, 1, 5000) == 1) {
        ssize_t k = recv(s, out + got, cap - got, 0);
        if (k <= 0 || got + (size_t)k == cap)
            break;
        got += (size_t)k;
    }
    close(s);
    return got;
}

static size_t frame(uint8_t *out, fab_kind kind, const void *body, size_t n)
{
    fab_head h = {.kind = kind};
    hy_fab__head_put(out, &h, body, n, NULL, 0);
    if (n > 0)
        memcpy(out + FAB_HEAD, body, n);
    return FAB_HEAD + n;
}

static size_t hello(uint8_t *out, fab_hello *h)
{
    hy_buf b;
    hy_buf_init(&b);
    memset(h, 0, sizeof(*h));
    snprintf(h->node, sizeof(h->node), "stranger");
    snprintf(h->dp, sizeof(h->dp), "own");
    h->epoch = 99;
    hy_fab__hello_put(&b, h);
    size_t n = frame(out, FAB_HELLO, b.data, b.len);
    hy_buf_fini(&b);
    return n;
}

void faults_garbage(const tr_impl *im)
{
    tr t;
    hy_fab_stats before, after;
    uint8_t f[2048], out[4096], junk[4096];
    fab_hello h;
    hy_rng rng;
    hy_rng_init(&rng, 3);
    tr_init(&t, im, 1);
    tr_open(&t, 0, NULL, NULL);
    tr_open(&t, 1, NULL, NULL);
    const char *addr = t.n[1].info.rail[0].addr;
    hy_fab_stats_get(t.n[1].f, &before);
    for (int i = 0; i < 40; i++) { /* noise */
        tr_fill(junk, sizeof(junk), (uint64_t)i);
        poke(addr, junk, 1 + hy_rng_below(&rng, sizeof(junk) - 1), out, sizeof(out));
    }
    size_t n = hello(f, &h);
    for (size_t bit = 0; bit < n * 8; bit += 3) { /* one wrong bit anywhere */
        memcpy(junk, f, n);
        junk[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        if (bit / 8 >= 8 && bit / 8 < 12)
            continue; /* a longer length only waits for more: the deadline's case */
        poke(addr, junk, n, out, sizeof(out));
    }
    /* another version is refused by name */
    memcpy(junk, f, n);
    junk[4] = HY_FAB_PROTO + 1;
    size_t got = poke(addr, junk, n, out, sizeof(out) - 1);
    out[got] = 0;
    assert_true(got > FAB_HEAD);
    assert_int_equal(out[5], FAB_REFUSE);
    char version[32];
    snprintf(version, sizeof(version), "protocol version %d", HY_FAB_PROTO + 1);
    assert_non_null(strstr((char *)out + FAB_HEAD, version));
    /* oversized, out of turn, a proof that is none */
    memset(junk, 0, sizeof(junk));
    got = poke(addr, junk, frame(junk, FAB_MSG, out, 64), out, sizeof(out));
    assert_int_equal(got, 0);
    int s = raw_connect(addr);
    (void)!send(s, f, n, MSG_NOSIGNAL);
    assert_true(recv(s, out, sizeof(out), 0) > FAB_HEAD);
    assert_int_equal(out[5], FAB_CHALLENGE);
    memset(junk, 7, 100);
    uint8_t a[200];
    (void)!send(s, a, frame(a, FAB_AUTH, junk, 100), MSG_NOSIGNAL);
    ssize_t k = recv(s, out, sizeof(out), 0);
    assert_true(k > FAB_HEAD && out[5] == FAB_REFUSE);
    close(s);
    hy_fab_stats_get(t.n[1].f, &after);
    assert_true(after.bad_frames > before.bad_frames + 100);
    assert_true(after.foreign_versions > before.foreign_versions);
    assert_true(after.refused_auth > before.refused_auth);
    /* half a greeting, and many who say nothing: the door stays open for others */
    int idle[80];
    for (int i = 0; i < 80; i++) {
        idle[i] = raw_connect(addr);
        (void)!send(idle[i], f, 20, MSG_NOSIGNAL);
    }
    nanosleep(&(struct timespec){(time_t)tr_slow() * 3 + 1, 0}, NULL); /* the connect timeout */
    tr_join(&t, 0, 1);
    for (int i = 0; i < 80; i++)
        close(idle[i]);
    tr_close(&t);
}

/* --- rails ---------------------------------------------------------------------------------- */

/* What becomes of own TCP's data connections. */
typedef enum fate { PASSED, SWALLOWED, GARBLED, CUT } fate;

typedef struct relay { /* a TCP relay in a child: a rail that can be cut */
    pid_t pid;
    char addr[80];
} relay;

static int relay_to(const struct sockaddr_in *to)
{
    int b = socket(AF_INET, SOCK_STREAM, 0);
    return connect(b, (const struct sockaddr *)to, sizeof(*to)) == 0 ? b : -1;
}

/* false: the connection ends. */
static bool relay_pass(int from, int *to, fate data)
{
    static char buf[65536];
    const ssize_t k = recv(from, buf, sizeof(buf), 0);
    if (k <= 0)
        return false;
    if (data == PASSED || k < FAB_HEAD || memcmp(buf, "HYFB", 4) != 0 || buf[5] != FAB_DATA)
        return send(*to, buf, (size_t)k, MSG_NOSIGNAL) == k;
    if (data == SWALLOWED) { /* and stays open for ever */
        close(*to);
        *to = -1;
        return true;
    }
    tr_fill(buf, sizeof(buf), 5);
    return data == GARBLED && send(from, buf, sizeof(buf), MSG_NOSIGNAL) > 0;
}

static void relay_main(int ls, const struct sockaddr_in *to, fate data)
{
    enum { MOST = 64 };
    struct pollfd p[1 + 2 * MOST] = {{ls, POLLIN, 0}}; /* then both ends of each connection */
    nfds_t n = 1;
    alarm((unsigned)tr_slow() * 60);
    for (;;) {
        poll(p, n, -1);
        for (nfds_t i = 1; i < n; i++) {
            if ((p[i].revents & (POLLIN | POLLHUP)) == 0)
                continue;
            nfds_t other = i % 2 == 1 ? i + 1 : i - 1;
            if (relay_pass(p[i].fd, &p[other].fd, data))
                continue;
            close(p[i].fd);
            close(p[other].fd);
            p[i] = p[other] = (struct pollfd){.fd = -1};
        }
        if ((p[0].revents & POLLIN) == 0)
            continue;
        p[n] = (struct pollfd){accept(ls, NULL, NULL), POLLIN, 0};
        p[n + 1] = (struct pollfd){relay_to(to), POLLIN, 0};
        if (p[n].fd < 0 || p[n + 1].fd < 0 || n + 2 > 2 * MOST)
            _exit(1);
        n += 2;
    }
}

static relay relay_start(fate data)
{
    relay r;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int ls = socket(AF_INET, SOCK_STREAM, 0), p[2];
    assert_int_equal(bind(ls, (struct sockaddr *)&a, len), 0);
    assert_int_equal(listen(ls, 4), 0);
    getsockname(ls, (struct sockaddr *)&a, &len);
    snprintf(r.addr, sizeof(r.addr), "127.0.0.1:%d", ntohs(a.sin_port));
    assert_int_equal(pipe(p), 0);
    r.pid = fork();
    if (r.pid == 0) {
        if (read(p[0], &a, sizeof(a)) != (ssize_t)sizeof(a))
            _exit(2);
        relay_main(ls, &a, data);
    }
    close(ls);
    close(p[0]);
    snprintf(r.addr + 40, 40, "%d", p[1]); /* the pipe, behind the address */
    return r;
}

static void relay_point(relay *r, const char *addr)
{
    const char *colon = strrchr(addr, ':');
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(colon + 1))};
    const int fd = atoi(r->addr + 40);
    char host[64];
    snprintf(host, sizeof(host), "%.*s", (int)(colon - addr), addr);
    assert_int_equal(inet_pton(AF_INET, host, &a.sin_addr), 1);
    assert_int_equal(write(fd, &a, sizeof(a)), sizeof(a));
    close(fd);
}

static void rails_body(tr *t, void (*cut)(tr *t, void *arg), void *arg)
{
    hy_fab_event ev;
    hy_fab_stats st;
    uint8_t *a = malloc(BIG), *b = malloc(BIG);
    hy_fab_key kb;
    hy_fab_mr *ma = tr_mem(t, 0, a, BIG, 0, NULL);
    tr_mem(t, 1, b, BIG, 0, &kb);
    tr_fill(b, BIG, 6);
    const uint64_t links = t->im->beside ? 4 : 2;
    tr_links(t, links);
    hy_fab_range r = {ma, 0, &kb, 0, BIG};
    uint64_t op[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(hy_fab_read(t->n[0].f, t->n[0].peer, &r, 1, NULL, &op[i]), HY_OK);
        assert_int_equal(hy_fab_send(t->n[0].f, t->n[0].peer, (uint32_t)i, "x", 1, NULL, NULL),
                         HY_OK);
    }
    for (int i = 0; i < 5; i++)
        tr_pass(t);
    cut(t, arg);
    for (int i = 0; i < 8; i++) { /* every read is good, over the rail that is left */
        assert_true(tr_event(t, 0, HY_FAB_EV_DONE, 20 * HY_SEC, &ev));
        if (ev.status != HY_OK)
            fail_msg("%s: %s %s", t->im->name, hy_status_name(ev.status), ev.text);
    }
    assert_memory_equal(a, b, BIG);
    for (uint32_t i = 0; i < 4; i++) { /* and no message is lost, doubled or out of order */
        assert_true(tr_event(t, 1, HY_FAB_EV_MSG, 5 * HY_SEC, &ev));
        assert_int_equal(ev.type, i);
        hy_fab_event_fini(&ev);
    }
    assert_false(tr_event(t, 1, HY_FAB_EV_MSG, 50 * HY_MS, &ev));
    assert_true(hy_fab_peer_is_up(t->n[0].f, t->n[0].peer));
    st.links_up = links;
    for (int i = 0; i < 20000 && st.links_up > links / 2; i++) {
        hy_fab_stats_get(t->n[0].f, &st);
        tr_pass(t);
    }
    assert_int_equal(st.links_up, links / 2);
    free(a);
    free(b);
}

static void cut_loop(tr *t, void *arg)
{
    hy_loop_cut(t->net, arg, true);
}

static void cut_relay(tr *t, void *arg)
{
    (void)t;
    relay *r = arg;
    kill(r->pid, SIGKILL);
    waitpid(r->pid, NULL, 0);
}

static void short_stall(hy_fab_opts *o)
{
    o->stall_ns = tr_slow() * HY_SEC;
}

void faults_rails(const tr_impl *im)
{
    tr t;
    if (im->loop) {
        for (int rail = 0; rail < 2; rail++) {
            char addr[24];
            tr_init(&t, im, 2);
            hy_loop_model m = {.latency_ns = 10 * HY_US, .bytes_per_s = UINT64_C(4) << 30};
            hy_loop_set(t.net, &m);
            tr_open(&t, 0, NULL, short_stall);
            tr_open(&t, 1, NULL, short_stall);
            tr_join(&t, 0, 1);
            snprintf(addr, sizeof(addr), "node1:%d", rail);
            rails_body(&t, cut_loop, addr);
            tr_close(&t);
        }
        return;
    }
    relay r = relay_start(PASSED);
    tr_init(&t, im, 2);
    tr_open(&t, 0, NULL, short_stall);
    tr_open(&t, 1, NULL, short_stall);
    relay_point(&r, t.n[1].info.rail[1].addr);
    snprintf(t.n[1].addrs, sizeof(t.n[1].addrs), "%s,%s", t.n[1].info.rail[0].addr, r.addr);
    tr_join(&t, 0, 1);
    rails_body(&t, cut_relay, &r);
    tr_close(&t);
}

static void three_rails(hy_fab_opts *o)
{
    short_stall(o);
    o->pull = HY_FAB_PULL_WRITE;
}

/* Two of three rails go dark at once, under a read. Its owner gives both up first; the reader, who
 * has not noticed, must have closed its ends of both when the read is done: what is still on the
 * way could land later. */
void faults_two_rails(const tr_impl *im)
{
    enum { LEN = 4 << 20 /* what is asked for at once */ };
    tr t;
    hy_fab_stats s;
    hy_fab_key kb;
    uint64_t op;
    if (!im->loop)
        skip(); /* nothing else goes dark at both ends */
    tr_init(&t, im, 3);
    hy_loop_model m = {.latency_ns = 10 * HY_US, .bytes_per_s = UINT64_C(1) << 30};
    hy_loop_set(t.net, &m);
    tr_open(&t, 0, NULL, three_rails);
    tr_open(&t, 1, NULL, three_rails);
    tr_join(&t, 0, 1);
    tr_links(&t, 3);
    uint8_t *a = calloc(1, LEN), *b = malloc(LEN);
    hy_fab_mr *ma = tr_mem(&t, 0, a, LEN, 0, NULL);
    tr_mem(&t, 1, b, LEN, 0, &kb);
    tr_fill(b, LEN, 9);
    hy_fab_range r = {ma, 0, &kb, 0, LEN};
    assert_int_equal(hy_fab_read(t.n[0].f, t.n[0].peer, &r, 1, NULL, &op), HY_OK);
    hy_loop_cut(t.net, "node1:1", true);
    hy_loop_cut(t.net, "node1:2", true);
    tr_done_ok(&t, 0, op);
    hy_fab_stats_get(t.n[0].f, &s);
    assert_int_equal(s.links_up, 1);
    assert_memory_equal(a, b, LEN);
    tr_close(&t);
    free(a);
    free(b);
}

static void long_stall(hy_fab_opts *o)
{
    o->stall_ns = o->op_timeout_ns = tr_slow() * 600 * HY_SEC;
}

/* Own TCP beside a link is greeted, but its connection never works: nothing waits for it, in
 * neither direction, and it is given up. */
void faults_beside(const tr_impl *im)
{
    enum { N = 100, SLOT = 8192, LEN = N * SLOT };
    if (!im->beside)
        skip();
    for (fate data = SWALLOWED; data <= CUT; data++) {
        tr t;
        hy_fab_stats st = {0};
        relay r = relay_start(data);
        uint8_t *m[2] = {calloc(1, LEN), calloc(1, LEN)};
        hy_fab_key key[2];
        hy_fab_mr *mr[2];
        tr_init(&t, im, 1);
        tr_open(&t, 0, NULL, long_stall);
        tr_open(&t, 1, NULL, long_stall);
        relay_point(&r, t.n[1].addrs);
        snprintf(t.n[1].addrs, sizeof(t.n[1].addrs), "%s", r.addr);
        tr_join(&t, 0, 1);
        for (int i = 0; i < 2; i++)
            mr[i] = tr_mem(&t, i, m[i], LEN, 1 - i, &key[i]);
        for (unsigned k = 0; k < 12 || st.links_lost == 0; k++) {
            const int i = k % 2;
            hy_fab_range x[N];
            uint64_t op;
            for (uint64_t s = 0; s < N; s++)
                x[s] = (hy_fab_range){mr[i], s * SLOT, &key[1 - i], (N - 1 - s) * SLOT, SLOT / 2};
            tr_fill(m[i], LEN, k);
            assert_int_equal(k % 4 < 2 ? hy_fab_write(t.n[i].f, t.n[i].peer, x, N, NULL, &op)
                                       : hy_fab_read(t.n[i].f, t.n[i].peer, x, N, NULL, &op),
                             HY_OK);
            tr_done_ok(&t, i, op);
            for (uint64_t s = 0; s < N; s++)
                assert_memory_equal(m[i] + x[s].off, m[1 - i] + x[s].roff, SLOT / 2);
            tr_pass(&t);
            hy_fab_stats_get(t.n[0].f, &st);
        }
        assert_int_equal(st.beside, 0);
        assert_int_equal(st.peers_lost, 0);
        if (data == CUT) { /* each second twice, then after 2 and after 4 */
            const uint64_t begun = tr_now(&t);
            const uint64_t before = st.links_lost;
            while (tr_now(&t) < begun + 7 * HY_SEC)
                tr_pass(&t);
            hy_fab_stats_get(t.n[0].f, &st);
            assert_in_range(st.links_lost - before, 0, 3);
        }
        cut_relay(NULL, &r);
        tr_close(&t);
        free(m[0]);
        free(m[1]);
    }
}

/* What cannot be opened names the keys that would change it. */
void faults_not_opened(const tr_impl *im)
{
    static const struct {
        const char *words[3];
    } cases[] = {{{"[fabric] listen", "127.0.0.1:", "another port"}},
                 {{"[fabric] listen", "nowhere", ""}},
                 {{"[fabric] peer_timeout", "[fabric] heartbeat", ""}},
                 {{"[fabric] piece", "[fabric] window", ""}},
                 {{"[fabric] congestion", "nosuch", "reno"}}};
    tr t;
    tr_init(&t, im, 1);
    tr_open(&t, 0, NULL, NULL);
    for (size_t i = im->loop ? 2 : 0; i < HY_COUNTOF(cases); i++) { /* loop has no ports */
        hy_fab_opts o;
        hy_fab *f = NULL;
        hy_fab_opts_init(&o);
        o.node = "x";
        o.secret = "a secret of the tests";
        o.secret_len = strlen(o.secret);
        o.n_addrs = 1;
        o.addrs[0] = i == 0 ? t.n[0].addrs : i == 1 ? "nowhere" : "127.0.0.1:0";
        if (i == 2)
            o.peer_timeout_ns = o.heartbeat_ns;
        if (i == 3)
            o.window_bytes = o.piece_bytes - 1;
        if (i == 4)
            o.congestion = "nosuch";
        assert_true(hy_fab_open(&o, &f) < 0);
        for (int k = 0; k < 3; k++)
            if (strstr(hy_fail_text(), cases[i].words[k]) == NULL)
                fail_msg("%zu: '%s' is not in: %s", i, cases[i].words[k], hy_fail_text());
    }
    tr_close(&t);
}
