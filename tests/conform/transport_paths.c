/* SPDX-License-Identifier: Apache-2.0
 *
 * Which way the bytes of a link take: its provider, the same node, own TCP in its place or beside
 * it, and what TCP is told.
 *
 * Thread: the test's.  Owner: each test closes what it opens.
 */
#include "tests/conform/transport_paths.h"
#include "tests/conform/transport_faults.h"
#include "tests/unit/cm.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif

enum { BIG = 24 << 20 };

/* The connection of own TCP among this process's to that address: it is made last, and none that
 * is older is closed meanwhile, so it has the highest descriptor. */
static int data_to(const char *addr)
{
    const int port = atoi(strrchr(addr, ':') + 1);
    int last = -1;
    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_in peer = {0};
        socklen_t len = sizeof(peer);
        if (getpeername(fd, (struct sockaddr *)&peer, &len) == 0 && peer.sin_family == AF_INET &&
            ntohs(peer.sin_port) == port)
            last = fd;
    }
    return last;
}

/* Own TCP beside a link carries all of its bytes, in ranges of any size; without it the provider
 * does, until it is there again. */
void paths_beside(const tr_impl *im)
{
    enum { N = 600, SLOT = 70000, LEN = N * SLOT };
    tr t;
    if (!im->beside)
        skip();
    tr_pair(&t, im, 1);
    tr_links(&t, 2);
    uint8_t *a = malloc(LEN), *b = calloc(1, LEN), *c = calloc(1, LEN);
    hy_fab_key kb;
    hy_fab_mr *ma = tr_mem(&t, 0, a, LEN, 0, NULL), *mc = tr_mem(&t, 0, c, LEN, 0, NULL);
    tr_mem(&t, 1, b, LEN, 0, &kb);
    tr_fill(a, LEN, 8);
    hy_fab_range *r = calloc(N, sizeof(*r));
    uint64_t all = 0, op;
    for (uint64_t i = 0; i < N; i++) {
        const uint64_t len = i % 3 == 0 ? SLOT - i : 1 + i * 37 % 65535;
        r[i] = (hy_fab_range){ma, i * SLOT, &kb, i * 7 % N * SLOT, len};
        all += len;
    }
    hy_fab_stats before, s;
    hy_fab_stats_get(t.n[0].f, &before);
    assert_int_equal(hy_fab_write(t.n[0].f, t.n[0].peer, r, N, NULL, &op), HY_OK);
    tr_done_ok(&t, 0, op);
    hy_fab_stats_get(t.n[0].f, &s);
    for (uint64_t i = 0; i < N; i++)
        assert_memory_equal(b + r[i].roff, a + r[i].off, r[i].len);
    assert_int_equal(s.beside - before.beside, all);
    assert_int_equal(s.bytes_written - before.bytes_written, all);
    for (uint64_t i = 0; i < N; i++)
        r[i].mr = mc;
    assert_int_equal(hy_fab_read(t.n[0].f, t.n[0].peer, r, N, NULL, &op), HY_OK);
    tr_done_ok(&t, 0, op);
    for (uint64_t i = 0; i < N; i++)
        assert_memory_equal(c + r[i].off, a + r[i].off, r[i].len);
    hy_fab_stats_get(t.n[1].f, &s);
    assert_true(s.beside > 0); /* what it served */
    /* it alone dies: what was under way goes over the provider */
    memset(c, 0, LEN);
    assert_int_equal(hy_fab_read(t.n[0].f, t.n[0].peer, r, N, NULL, &op), HY_OK);
    tr_pass(&t);
    hy_fab_stats_get(t.n[0].f, &before);
    assert_int_equal(shutdown(data_to(t.n[1].info.rail[0].addr), SHUT_RDWR), 0);
    tr_done_ok(&t, 0, op);
    for (uint64_t i = 0; i < N; i++)
        assert_memory_equal(c + r[i].off, a + r[i].off, r[i].len);
    assert_true(hy_fab_peer_is_up(t.n[0].f, t.n[0].peer));
    for (s = before; s.links_lost == before.links_lost;) {
        tr_pass(&t);
        hy_fab_stats_get(t.n[0].f, &s);
    }
    tr_links(&t, 2); /* and is there again, and used as soon as it has its connection */
    for (before = s; s.beside == before.beside;) {
        assert_int_equal(hy_fab_write(t.n[0].f, t.n[0].peer, &r[1], 1, NULL, &op), HY_OK);
        tr_done_ok(&t, 0, op);
        hy_fab_stats_get(t.n[0].f, &s);
    }
    tr_close(&t);
    free(r);
    free(a);
    free(b);
    free(c);
}

/* It stands beside another link or not at all: when that one goes while this one is being made,
 * nobody comes back by it. */
void paths_beside_alone(const tr_impl *im)
{
    tr t;
    hy_fab_event ev;
    if (!im->beside)
        skip();
    for (int i = 0; i < 20; i++) {
        tr_pair(&t, im, 1); /* is up, and its second link on the way */
        for (int k = 0; k < i; k++)
            tr_pass(&t);
        hy_fab_disconnect(t.n[0].f, t.n[0].peer);
        assert_true(tr_event(&t, 0, HY_FAB_EV_DOWN, 5 * HY_SEC, &ev));
        assert_true(tr_event(&t, 1, HY_FAB_EV_DOWN, 5 * HY_SEC, &ev));
        assert_false(tr_event(&t, 0, HY_FAB_EV_UP, 50 * HY_MS, &ev));
        assert_false(tr_event(&t, 1, HY_FAB_EV_UP, 50 * HY_MS, &ev));
        tr_close(&t);
    }
}

/* Memory whose pages the system lends to nobody, between memory that it lends: both arrive as they
 * are, over one connection, wherever the first refusal comes. */
void paths_unlent(const tr_impl *im)
{
    enum { PIECE = 1 << 20, N = 8, LEN = N * PIECE };
    const int fd = (int)syscall(SYS_memfd_secret, O_CLOEXEC);
    uint8_t *a[2] = {malloc(LEN), MAP_FAILED}, *b = calloc(1, LEN);
    if (fd >= 0 && ftruncate(fd, LEN) == 0)
        a[1] = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (a[1] == MAP_FAILED || (!im->beside && strncmp(im->name, "own", 3) != 0)) {
        free(a[0]);
        free(b);
        if (a[1] != MAP_FAILED)
            munmap(a[1], LEN);
        skip();
    }
    for (unsigned which = 1; which < 1 << 4; which++) { /* bit i: piece i is of it */
        tr t;
        hy_fab_key kb;
        hy_fab_mr *ma[2];
        hy_fab_range r[N];
        hy_fab_stats s;
        uint64_t op;
        tr_pair(&t, im, 1);
        tr_links(&t, im->beside ? 2 : 1);
        tr_mem(&t, 1, b, LEN, 0, &kb);
        memset(b, 0, LEN);
        for (int i = 0; i < 2; i++) {
            tr_fill(a[i], LEN, 2 * which + (unsigned)i);
            ma[i] = tr_mem(&t, 0, a[i], LEN, 0, NULL);
        }
        for (unsigned i = 0; i < N; i++)
            r[i] = (hy_fab_range){ma[which >> i % 4 & 1], i * PIECE, &kb, (i ^ 1) * PIECE, PIECE};
        for (int k = 0; k < 2; k++) {
            assert_int_equal(hy_fab_write(t.n[0].f, t.n[0].peer, r, N, NULL, &op), HY_OK);
            tr_done_ok(&t, 0, op);
            for (unsigned i = 0; i < N; i++)
                assert_memory_equal(b + r[i].roff, a[which >> i % 4 & 1] + r[i].off, PIECE);
        }
        hy_fab_stats_get(t.n[0].f, &s);
        assert_int_equal(s.links_lost, 0);
        tr_close(&t);
    }
    free(a[0]);
    free(b);
    munmap(a[1], LEN);
}

static const char *congestion;

static void set_congestion(hy_fab_opts *o)
{
    o->congestion = congestion;
}

/* How many of this process's TCP connections have the one that is wanted, and how many another. */
static void count_congestion(const char *want, int n[2])
{
    n[0] = n[1] = 0;
    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_storage peer;
        socklen_t len = sizeof(peer);
        char has[16] = "";
        if (getpeername(fd, (struct sockaddr *)&peer, &len) != 0 || peer.ss_family != AF_INET)
            continue;
        len = sizeof(has);
        assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, has, &len), 0);
        n[strncmp(has, want, sizeof(has)) != 0]++;
    }
}

/* Every connection of a link has the congestion control that was asked for, those of libfabric
 * too; on one machine that is not the system's if that paces. */
void paths_congestion(const tr_impl *im)
{
    static const char *const how[] = {"reno", "system", "auto"};
    enum { LEN = 4 << 20 };
    char def[16] = "";
    socklen_t n = sizeof(def);
    tr t;
    if (im->loop || (im->providers[0] != 'n' && im->providers[0] != 'o'))
        skip();
    int s = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(getsockopt(s, IPPROTO_TCP, TCP_CONGESTION, def, &n), 0);
    close(s);
    for (size_t i = 0; i < HY_COUNTOF(how); i++) {
        int has[2];
        congestion = how[i];
        tr_init(&t, im, 1);
        tr_open(&t, 0, NULL, set_congestion);
        tr_open(&t, 1, NULL, set_congestion);
        tr_join(&t, 0, 1);
        tr_links(&t, im->beside ? 2 : 1);
        uint8_t *a = calloc(1, LEN), *b = malloc(LEN);
        hy_fab_key ka, kb;
        hy_fab_mr *ma = tr_mem(&t, 0, a, LEN, 1, &ka), *mb = tr_mem(&t, 1, b, LEN, 0, &kb);
        hy_fab_range there = {ma, 0, &kb, 0, LEN}, back = {mb, 0, &ka, 0, LEN};
        uint64_t op;
        assert_int_equal(hy_fab_write(t.n[0].f, t.n[0].peer, &there, 1, NULL, &op), HY_OK);
        tr_done_ok(&t, 0, op);
        assert_int_equal(hy_fab_write(t.n[1].f, t.n[1].peer, &back, 1, NULL, &op), HY_OK);
        tr_done_ok(&t, 1, op);
        count_congestion(i == 0 ? "reno" : i == 1 ? def : "cubic", has);
        if (i == 2 && has[0] == 0)
            count_congestion("reno", has); /* a kernel without cubic */
        assert_true(has[0] >= 2);
        assert_int_equal(has[1], 0);
        tr_close(&t);
        free(a);
        free(b);
    }
}

/* A link says what it runs over: the provider that was asked for. */
void paths_path(const tr_impl *im)
{
    tr t;
    hy_buf path;
    char want[128];
    if (im->same)
        skip(); /* paths_same_node */
    tr_pair(&t, im, 1);
    tr_links(&t, im->beside ? 2 : 1);
    const char *provider = t.n[0].info.rail[0].provider;
    if (strncmp(im->name, "verbs", 5) == 0)
        assert_string_equal(provider, "verbs");
    snprintf(want, sizeof(want), "%s on rail 0 to 0",
             strcmp(provider, "own") == 0 ? "own TCP" : provider);
    if (im->beside)
        snprintf(want, sizeof(want), "own TCP beside it on rail 0 to 0, %s on rail 0 to 0",
                 provider);
    for (int i = 0; i < 2; i++) {
        hy_buf_init(&path);
        assert_int_equal(hy_fab_peer_path(t.n[i].f, t.n[i].peer, &path), HY_OK);
        assert_string_equal(hy_buf_str(&path), want);
        hy_buf_fini(&path);
    }
    tr_close(&t);
}

/* The path is taken, in both directions, and says so. */
void paths_same_node(const tr_impl *im)
{
    tr t;
    hy_buf path;
    hy_fab_stats s[2];
    if (!im->same)
        skip();
    tr_pair(&t, im, 1);
    uint8_t *a = malloc(BIG), *b = calloc(1, BIG);
    hy_fab_key kb;
    uint64_t op;
    hy_fab_mr *ma = tr_mem(&t, 0, a, BIG, 0, NULL);
    tr_mem(&t, 1, b, BIG, 0, &kb);
    hy_fab_range r = {ma, 0, &kb, 0, BIG};
    tr_fill(a, BIG, 3);
    assert_int_equal(hy_fab_write(t.n[0].f, t.n[0].peer, &r, 1, NULL, &op), HY_OK);
    tr_done_ok(&t, 0, op);
    assert_memory_equal(a, b, BIG);
    memset(a, 0, BIG);
    assert_int_equal(hy_fab_read(t.n[0].f, t.n[0].peer, &r, 1, NULL, &op), HY_OK);
    tr_done_ok(&t, 0, op);
    assert_memory_equal(a, b, BIG);
    for (int i = 0; i < 2; i++) {
        hy_fab_stats_get(t.n[i].f, &s[i]);
        assert_int_equal(s[i].same_node, BIG);
        hy_buf_init(&path);
        assert_int_equal(hy_fab_peer_path(t.n[i].f, t.n[i].peer, &path), HY_OK);
        assert_string_equal(hy_buf_str(&path), "same node, process_vm on rail 0 to 0");
        hy_buf_fini(&path);
    }
    tr_close(&t);
    free(a);
    free(b);
    faults_deaf(im);
}

static void only_own(hy_fab_opts *o)
{
    o->providers = "own";
}

/* Two ends without a provider in common still have a link: over own TCP. */
void paths_unlike_providers(const tr_impl *im)
{
    tr t;
    hy_buf path;
    if (im->loop || im->same || strncmp(im->name, "own", 3) == 0)
        skip();
    tr_init(&t, im, 1);
    tr_open(&t, 0, NULL, NULL);
    tr_open(&t, 1, NULL, only_own);
    tr_join(&t, 0, 1);
    hy_buf_init(&path);
    assert_int_equal(hy_fab_peer_path(t.n[0].f, t.n[0].peer, &path), HY_OK);
    assert_string_equal(hy_buf_str(&path), "own TCP on rail 0 to 0");
    hy_buf_fini(&path);
    uint8_t *a = malloc(1 << 20), *b = calloc(1, 1 << 20);
    hy_fab_key kb;
    uint64_t op;
    hy_fab_mr *ma = tr_mem(&t, 0, a, 1 << 20, 0, NULL);
    tr_mem(&t, 1, b, 1 << 20, 0, &kb);
    tr_fill(a, 1 << 20, 8);
    hy_fab_range r = {ma, 0, &kb, 0, 1 << 20};
    assert_int_equal(hy_fab_write(t.n[0].f, t.n[0].peer, &r, 1, NULL, &op), HY_OK);
    tr_done_ok(&t, 0, op);
    assert_memory_equal(a, b, 1 << 20);
    memset(a, 0, 1 << 20);
    assert_int_equal(hy_fab_read(t.n[0].f, t.n[0].peer, &r, 1, NULL, &op), HY_OK);
    tr_done_ok(&t, 0, op);
    assert_memory_equal(a, b, 1 << 20);
    tr_close(&t);
    free(a);
    free(b);
}
