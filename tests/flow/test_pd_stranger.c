/* SPDX-License-Identifier: Apache-2.0
 *
 * A third node with the secret says what it likes to the connectors of a pair that works: noise,
 * damaged copies of real messages, right ones about leases and jobs that are not its own, HELLO
 * again and again. The pair's hand-overs go on as if it were not there, none fails, and afterwards
 * a node that behaves is welcome on the same link's terms (a peer was seen to be deaf for good
 * after one malformed message). HY_SEED=s runs that seed alone.
 *
 * Thread: the test's.  Owner: the test.
 */
#include "core/connector/proto.h"
#include "tests/flow/pdworld.h"

#include <stdlib.h>
#include <string.h>

typedef struct stranger {
    hy_fab *fab;
    hy_fab_peer peer[PDW_NODES];
    bool up[PDW_NODES], asked[PDW_NODES];
    hy_buf hello; /* the last that came: a real message to damage */
    uint64_t n_sent, n_hello;
} stranger;

static void open_stranger(pdw *w, stranger *s)
{
    hy_fab_opts o;
    memset(s, 0, sizeof(*s));
    hy_buf_init(&s->hello);
    hy_fab_opts_init(&o);
    o.node = "x9";
    o.addrs[0] = "x9:1";
    o.n_addrs = 1;
    o.secret = "0123456789abcdef0123456789abcdef"; /* pdworld's */
    o.secret_len = 32;
    o.loop = w->net;
    o.runtime = w->rt;
    o.epoch = 99;
    assert_int_equal(hy_fab_open(&o, &s->fab), HY_OK);
}

static void listen_to(stranger *s)
{
    hy_fab_event ev[16];
    for (size_t n; (n = hy_fab_poll(s->fab, ev, 16)) > 0;)
        for (size_t i = 0; i < n; i++) {
            const int at = strcmp(ev[i].text, "d0") == 0;
            if (ev[i].kind == HY_FAB_EV_UP) {
                s->peer[at] = ev[i].peer;
                s->up[at] = true;
            }
            for (int k = 0; k < PDW_NODES; k++)
                if (ev[i].kind == HY_FAB_EV_DOWN && s->up[k] && s->peer[k] == ev[i].peer)
                    s->up[k] = s->asked[k] = false;
            if (ev[i].kind == HY_FAB_EV_MSG && ev[i].type == HY_PDP_TYPE + HY_PDP_HELLO) {
                hy_buf_clear(&s->hello);
                hy_buf_add(&s->hello, ev[i].data, ev[i].len);
                s->n_hello++;
            }
            hy_fab_event_fini(&ev[i]);
        }
}

/* A right message of a kind, about leases and jobs that are nobody's or (small numbers) perhaps
 * somebody's. */
static void make_right(pdw *w, hy_pdp_kind kind, hy_buf *out)
{
    int32_t ids[8] = {0, 1, 2, 3, -1, 5, 1 << 20, 7};
    hy_pdp_msg m = {.kind = kind,
                    .n_groups = 1,
                    .ids = {ids},
                    .n_ids = pdw_pick(w, 0, 8),
                    .flags = (uint32_t)pdw_pick(w, 0, 63) & ~(uint32_t)HY_PDP_FIRST,
                    .lease = (uint64_t)pdw_pick(w, 0, 1000),
                    .job = (uint64_t)pdw_pick(w, 0, 4000),
                    .status = pdw_pick(w, 0, 1) == 0 ? HY_OK : HY_E_TIMEOUT,
                    .t0 = pdw_pick(w, 0, 100),
                    .n = pdw_pick(w, 1, 100),
                    .index = (uint32_t)pdw_pick(w, 0, 100),
                    .valid = pdw_pick(w, 0, 100),
                    .wait_ns = HY_SEC};
    snprintf(m.text, sizeof(m.text), "says x9");
    hy_pdp_encode(&m, out);
}

static void say(pdw *w, stranger *s, int to)
{
    hy_buf b;
    uint64_t op;
    hy_buf_init(&b);
    uint32_t type = HY_PDP_TYPE + (uint32_t)pdw_pick(w, 1, HY_PDP_KINDS - 1);
    const int32_t what = pdw_pick(w, 0, 3);
    if (what == 0) { /* noise, under any type */
        for (int32_t n = pdw_pick(w, 0, 200); n > 0; n--)
            hy_buf_putc(&b, (char)pdw_pick(w, 0, 255));
        type = pdw_pick(w, 0, 3) == 0 ? (uint32_t)pdw_pick(w, 0, 1 << 30) : type;
    } else if (what == 1 && s->hello.len > 0) { /* theirs, whole or damaged, back to them */
        hy_buf_add(&b, s->hello.data, s->hello.len);
        type = HY_PDP_TYPE + HY_PDP_HELLO;
    } else {
        const hy_pdp_kind kind = pdw_pick(w, 0, 60) == 0
                                     ? HY_PDP_REFUSE
                                     : (hy_pdp_kind)pdw_pick(w, HY_PDP_HOLD, HY_PDP_KINDS - 1);
        type = HY_PDP_TYPE + (uint32_t)kind;
        make_right(w, kind, &b);
    }
    for (int32_t n = pdw_pick(w, 0, 3); n > 0 && b.len > 0; n--)
        b.data[pdw_pick(w, 0, (int32_t)b.len - 1)] = (char)pdw_pick(w, 0, 255);
    if (pdw_pick(w, 0, 4) == 0 && b.len > 0) /* short, or long */
        b.len = (size_t)pdw_pick(w, 0, (int32_t)b.len - 1);
    else if (pdw_pick(w, 0, 8) == 0)
        hy_buf_add(&b, "trailing bytes", 14);
    s->n_sent += hy_fab_send(s->fab, s->peer[to], type, hy_buf_str(&b), b.len, NULL, &op) == HY_OK;
    hy_buf_fini(&b);
}

static void talk(pdw *w, stranger *s)
{
    static const char *const names[] = {"p0", "d0"}, *const addrs[] = {"p0:1", "d0:1"};
    uint64_t op;
    listen_to(s);
    for (int i = 0; i < PDW_NODES; i++) {
        if (!s->up[i] && !s->asked[i])
            s->asked[i] = hy_fab_connect(s->fab, addrs[i], names[i], 1, &op) == HY_OK;
        for (int k = 0; k < 4 && s->up[i]; k++)
            say(w, s, i);
        if (s->up[i] && pdw_pick(w, 0, 60) == 0) { /* and begins anew */
            hy_fab_disconnect(s->fab, s->peer[i]);
            s->up[i] = s->asked[i] = false;
        }
    }
}

static void run_seed(uint64_t seed, bool push)
{
    pdw_opts o;
    stranger s;
    int32_t text[200];
    pdw_opts_init(&o, seed);
    o.block_tokens[1] = 32;
    o.verify = true;
    pdw *w = pdw_make(&o);
    open_stranger(w, &s);
    for (int32_t k = 0; k < 20; k++) {
        const int32_t n = pdw_pick(w, 20, 200);
        pdw_text(text, n, k);
        pdw_req *r = pdw_add(w, text, n, 10, (uint64_t)pdw_pick(w, 0, 400000) * HY_US);
        r->push = push;
        r->p_first = pdw_pick(w, 0, 1) == 0;
    }
    for (int i = 0; i < 300; i++) {
        talk(w, &s);
        PDW_CHECK(w, hy_runtime_run_for(w->rt, 2 * HY_MS) == HY_OK);
    }
    pdw_run(w, 60 * HY_SEC);
    pdw_verify(w, false);
    hy_pd_stats st[PDW_NODES];
    for (int i = 0; i < PDW_NODES; i++) {
        hy_pd_stats_get(w->node[i].pd, &st[i]);
        PDW_CHECK(w, st[i].malformed > 50 && st[i].late > 0);
    }
    PDW_CHECK(w, s.n_sent > 1000 && s.n_hello > 2);
    PDW_CHECK(w, st[1].received == 20 && st[1].failed == 0 && st[1].missed == 0);
    PDW_CHECK(w, st[0].leases_expired == 0 && st[0].leases_open == 0 && st[1].loads_open == 0);
    hy_fab_close(s.fab);
    hy_buf_fini(&s.hello);
    pdw_end(w);
}

static void run_seeds(bool push)
{
    const char *one = getenv("HY_SEED");
    const uint64_t first = one != NULL ? strtoull(one, NULL, 10) : 1;
    for (uint64_t seed = first; seed < first + (one != NULL ? 1 : 40); seed++)
        run_seed(seed, push);
}

static void pulled(void **state)
{
    (void)state;
    run_seeds(false);
}

static void pushed(void **state)
{
    (void)state;
    run_seeds(true);
}

int main(void)
{
    pdw_log();
    const struct CMUnitTest tests[] = {cmocka_unit_test(pulled), cmocka_unit_test(pushed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
