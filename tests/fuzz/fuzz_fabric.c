/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target of what fabric reads from control connections. The first byte picks the door:
 *   'H'  a stranger's frames to a listening endpoint (handshake), their checksums made right first
 *   'U'  the same on an authenticated link of a real pair: acknowledgements, messages, pulls,
 *        announcements
 *   'K'  a packed key, 'G' a greeting: what decodes is encoded again and must be the same bytes
 * Any other: a stranger's bytes as they are. Whatever comes, nothing aborts, a stranger gets no
 * link, and the endpoint still meets a friend.
 *
 * Thread: one; virtual time.  Owner: the pair is made and closed for each input.
 */
#include "fabric/fab_int.h"
#include "fabric/loop/loop.h"

#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

typedef struct pair {
    hy_runtime *rt;
    hy_loop_net *net;
    hy_fab *f[2];
    char memory[2][4096];
} pair;

static hy_fab *open_node(pair *x, const char *node, const char *addr)
{
    hy_fab_opts o;
    hy_fab *f = NULL;
    hy_fab_opts_init(&o);
    o.node = node;
    o.epoch = 5;
    o.addrs[0] = addr;
    o.n_addrs = 1;
    o.secret = "a secret of the fuzzer";
    o.secret_len = 22;
    o.loop = x->net;
    o.runtime = x->rt;
    o.max_peers = 4; /* peers' state is made at once: keep it small */
    HY_ASSERT(hy_fab_open(&o, &f) == HY_OK);
    return f;
}

static void drain(hy_fab *f)
{
    hy_fab_event ev;
    while (hy_fab_poll(f, &ev, 1) == 1)
        hy_fab_event_fini(&ev);
}

static void pass_time(pair *x, uint64_t ns)
{
    hy_runtime_run_for(x->rt, ns);
    drain(x->f[0]);
    drain(x->f[1]);
}

static void open_pair(pair *x)
{
    hy_fab_mr *mr;
    memset(x, 0, sizeof(*x));
    x->rt = hy_runtime_create(HY_RUNTIME_VIRTUAL, 1);
    x->net = hy_loop_net_create(hy_runtime_clock(x->rt), 1);
    HY_ASSERT(hy_runtime_start(x->rt) == HY_OK);
    x->f[0] = open_node(x, "a", "a:0");
    x->f[1] = open_node(x, "b", "b:0");
    for (int i = 0; i < 2; i++) {
        hy_span s = hy_span_host(x->memory[i], sizeof(x->memory[i]));
        HY_ASSERT(hy_fab_reg(x->f[i], &s, HY_FAB_REMOTE_READ | HY_FAB_REMOTE_WRITE, &mr) == HY_OK);
        mr->token = 7; /* so that a corpus can name it */
    }
}

static void meet(pair *x)
{
    HY_ASSERT(hy_fab_connect(x->f[0], "b:0", "b", 0, NULL) == HY_OK);
    pass_time(x, HY_SEC);
}

static void close_pair(pair *x)
{
    hy_fab_close(x->f[0]);
    hy_fab_close(x->f[1]);
    hy_runtime_destroy(x->rt);
    hy_loop_net_destroy(x->net);
}

static fab_link *link_of(hy_fab *f)
{
    fab_link *l = f->links;
    while (l != NULL && l->state != LINK_UP)
        l = l->next;
    return l;
}

/* Lengths stay as they are; the sum of every frame that is whole becomes right. */
static void make_right(uint8_t *d, size_t n)
{
    fab_head h;
    while (hy_fab__head_get(d, n, FAB_FRAME_MAX, &h) == HY_OK && n - FAB_HEAD >= h.len) {
        hy_fab__head_put(d, &h, d + FAB_HEAD, h.len, NULL, 0);
        d += FAB_HEAD + h.len;
        n -= FAB_HEAD + h.len;
    }
}

static void on_link(const uint8_t *d, size_t len)
{
    static pair x;
    open_pair(&x);
    meet(&x);
    fab_link *l = link_of(x.f[1]);
    HY_ASSERT(l != NULL);
    hy_fab__lock(x.f[1]);
    hy_fab__bytes(l, d, len / 2); /* cut anywhere */
    if (l->state == LINK_UP)
        hy_fab__bytes(l, d + len / 2, len - len / 2);
    hy_fab__timer(x.f[1], 0);
    hy_fab__unlock(x.f[1]);
    pass_time(&x, 100 * HY_MS);
    close_pair(&x);
}

/* A connection from outside: the loop's, whose far end is node a, which stays silent. */
static void stranger(const uint8_t *data, size_t len)
{
    static pair x;
    fab_conn *c = NULL;
    fab_link far = {0}; /* so that a's side of the connection has somebody to tell */
    open_pair(&x);
    far.f = x.f[0];
    far.state = LINK_DEAD;
    hy_fab__lock(x.f[0]);
    HY_ASSERT(x.f[0]->ct->connect(x.f[0]->ctx, 0, "b:0", &far, &c) == HY_OK);
    HY_ASSERT(x.f[0]->ct->send(x.f[0]->ctx, c, data, len / 2, NULL, 0) == HY_OK);
    HY_ASSERT(x.f[0]->ct->send(x.f[0]->ctx, c, data + len / 2, len - len / 2, NULL, 0) == HY_OK);
    hy_fab__unlock(x.f[0]);
    pass_time(&x, 10 * HY_MS);
    HY_ASSERT(x.f[1]->stats.links_up == 0);
    meet(&x); /* c is left to the end of its node: it is gone already where b closed it */
    HY_ASSERT(x.f[1]->stats.links_up == 1);
    close_pair(&x);
}

static void key(const uint8_t *data, size_t len)
{
    hy_fab_key k;
    size_t used;
    hy_buf b;
    if (hy_fab__key_get(data, len, &k, &used) < 0)
        return;
    hy_buf_init(&b);
    hy_fab__key_put(&b, &k);
    HY_ASSERT(used <= len && b.len == used && memcmp(b.data, data, used) == 0);
    hy_buf_fini(&b);
}

static void greeting(const uint8_t *data, size_t len)
{
    fab_hello h;
    size_t used;
    hy_buf b;
    if (hy_fab__hello_get(data, len, &h, &used) < 0)
        return;
    hy_buf_init(&b);
    hy_fab__hello_put(&b, &h);
    HY_ASSERT(used <= len && b.len == used && memcmp(b.data, data, used) == 0);
    hy_buf_fini(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    hy_log_set_level(HY_LOG_ERROR);
    if (len < 1 || len > FAB_FRAME_MAX)
        return 0;
    uint8_t *d = hy_malloc(len);
    HY_ASSERT(d != NULL);
    memcpy(d, data + 1, len - 1);
    if (data[0] == 'U' || data[0] == 'H')
        make_right(d, len - 1);
    if (data[0] == 'U')
        on_link(d, len - 1);
    else if (data[0] == 'K')
        key(d, len - 1);
    else if (data[0] == 'G')
        greeting(d, len - 1);
    else
        stranger(d, len - 1);
    hy_free(d);
    return 0;
}
