/* SPDX-License-Identifier: Apache-2.0
 *
 * The greeting. Both sides prove that they know the shared secret, over both nonces and both
 * identities, before a data path is opened or an address of one is told:
 *
 *   HELLO      -> who, epoch, nonce, data path wished for
 *   CHALLENGE  <- who, epoch, nonce, data path chosen; HMAC(secret, "acceptor", transcript)
 *   AUTH       -> HMAC(secret, "dialler", transcript); incarnation; same node; data path address
 *   READY      <- incarnation; same node; data path address
 *   SAME       -> whether the acceptor's memory can be read (same.c)
 *
 * The transcript is SHA-256 over HELLO's payload and CHALLENGE's without its proof. The session
 * afterwards is not encrypted: fabric belongs on a network that only the cluster reaches.
 *
 * Thread: under the fabric's lock.  Owner: the link.
 */
#include "core/base/hash.h"
#include "fabric/fab_int.h"

#include <stdio.h>
#include <string.h>

/* The wish for own TCP beside a link that there is. */
static const char BESIDE[] = "own+";

static void proof(const fab_link *l, const char *who, uint8_t out[32])
{
    uint8_t in[40] = {0};
    memcpy(in, who, strlen(who));
    memcpy(in + 8, l->transcript, 32);
    hy_fab__hmac(l->f->secret, sizeof(l->f->secret), in, sizeof(in), out);
}

static void fill_mine(fab_link *l, const char *dp)
{
    hy_fab *f = l->f;
    snprintf(l->mine.node, sizeof(l->mine.node), "%s", f->node);
    snprintf(l->mine.dp, sizeof(l->mine.dp), "%s", dp);
    l->mine.epoch = f->epoch;
    l->mine.rail = (uint32_t)l->rail;
    for (size_t i = 0; i < sizeof(l->mine.nonce); i += 8) {
        uint64_t r = hy_rng_u64(&f->rng);
        memcpy(l->mine.nonce + i, &r, 8);
    }
}

static void transcript(fab_link *l, const fab_hello *first, const fab_hello *second)
{
    hy_buf b;
    hy_buf_init(&b);
    hy_fab__hello_put(&b, first);
    hy_fab__hello_put(&b, second);
    uint8_t d[32];
    hy_sha256(hy_buf_str(&b), b.len, l->transcript);
    hy_buf_fini(&b);
    proof(l, "link", d);
    l->id = fab_get64(d);
}

void hy_fab__hello(fab_link *l)
{
    hy_buf b;
    hy_buf_init(&b);
    fill_mine(l, l->beside ? BESIDE : l->f->rail[l->rail].provider);
    hy_fab__hello_put(&b, &l->mine);
    l->state = LINK_CHALLENGE;
    hy_fab__frame(l, FAB_HELLO, b.data, b.len, NULL, 0);
    hy_buf_fini(&b);
}

void hy_fab__denied(fab_link *l, bool by_them, const char *why)
{
    enum { AGAIN_S = 60 };
    hy_fab *f = l->f;
    const uint64_t now = hy_fab__now(f);
    const bool same = strcmp(f->denied, why) == 0;
    if (f->denied_logged != 0 && now < f->denied_logged + (same ? AGAIN_S : 1) * HY_SEC)
        return;
    const char *at = l->out ? l->addr : l->from;
    char who[HY_FAB_NODE_MAX]; /* as it says, unproven */
    snprintf(who, sizeof(who), "%s", l->theirs.node[0] != 0 ? l->theirs.node : "a stranger");
    hy_printable(who);
    f->denied_logged = now;
    snprintf(f->denied, sizeof(f->denied), "%s", why);
    hy_warn("fabric", "%s: refused %s%s%s%s: %s", f->node, by_them ? "by " : "", who,
            at[0] != 0 ? " at " : "", at, why);
}

static void refuse(fab_link *l, hy_status st)
{
    char why[96];
    snprintf(why, sizeof(why), "%s", hy_fail_text());
    if (st == HY_E_ABORTED) { /* nobody is at fault */
        hy_fab__break(l, st, why);
        return;
    }
    l->f->stats.refused_auth++;
    hy_fab__denied(l, false, why);
    hy_fab__frame(l, FAB_REFUSE, why, strlen(why), NULL, 0);
    hy_fab__break(l, st, why);
}

/* What follows the proof: incarnation, same node, address of the data path. */
enum { BODY = 8 + FAB_SAME_LEN };

/* Open this side's data path; out gets the body. */
static hy_status open_dp(fab_link *l, hy_buf *out)
{
    hy_fab *f = l->f;
    uint8_t blob[FAB_BLOB_MAX], inc[8], same_node[FAB_SAME_LEN];
    size_t n = sizeof(blob);
    bool same = strcmp(l->out ? l->theirs.dp : l->mine.dp, f->rail[l->rail].provider) == 0;
    l->dp = same ? f->rail[l->rail].dp : &hy_fab__own_dp;
    void *rail = same ? f->rail[l->rail].rail : f->own_rail;
    l->rrail = (int)l->theirs.rail;
    l->max_segs = l->dp->max_segs;
    l->pull_by_write = l->dp->pull_by_write;
    HY_TRY(l->dp->link_open(rail, l, &l->dpl, blob, &n));
    l->beside |= !l->out && strcmp(l->theirs.dp, BESIDE) == 0;
    HY_TRY(hy_fab__peer_meet(l));
    if (!same && !l->beside)
        hy_warn("fabric", "%s and %s have no provider in common on rail %d (here %s): own TCP",
                f->node, l->theirs.node, l->rail, f->rail[l->rail].provider);
    fab_put64(inc, l->peer->inc);
    hy_fab__same_offer(l, same_node);
    hy_buf_add(out, inc, sizeof(inc));
    hy_buf_add(out, same_node, sizeof(same_node));
    hy_buf_add(out, blob, n);
    return out->failed ? hy_fail(HY_E_NOMEM, "no memory for a greeting") : HY_OK;
}

static void got_hello(fab_link *l, const uint8_t *p, size_t n)
{
    hy_fab *f = l->f;
    size_t used;
    hy_status st = hy_fab__hello_get(p, n, &l->theirs, &used);
    if (st < 0 || used != n) {
        hy_fab__bad(l,
                    st < 0 ? st : hy_fail(HY_E_FORMAT, "greeting with %zu bytes more", n - used));
        return;
    }
    const char *have = f->rail[l->rail].provider;
    fill_mine(l, strcmp(l->theirs.dp, have) == 0 ? have : "own");
    transcript(l, &l->theirs, &l->mine);
    hy_buf b;
    hy_buf_init(&b);
    uint8_t mac[32];
    proof(l, "acceptor", mac);
    hy_fab__hello_put(&b, &l->mine);
    hy_buf_add(&b, mac, sizeof(mac));
    l->state = LINK_AUTH;
    hy_fab__frame(l, FAB_CHALLENGE, b.data, b.len, NULL, 0);
    hy_buf_fini(&b);
}

static void got_challenge(fab_link *l, const uint8_t *p, size_t n)
{
    hy_fab *f = l->f;
    size_t used;
    uint8_t mac[32];
    hy_status st = hy_fab__hello_get(p, n, &l->theirs, &used);
    if (st < 0 || used + sizeof(mac) != n) {
        hy_fab__bad(l, st < 0 ? st : hy_fail(HY_E_FORMAT, "challenge of %zu bytes", n));
        return;
    }
    transcript(l, &l->mine, &l->theirs);
    proof(l, "acceptor", mac);
    if (!hy_fab__same(mac, p + used, sizeof(mac))) {
        refuse(l, hy_fail(HY_E_DENIED, "the secrets of %s and %s differ", f->node, l->theirs.node));
        return;
    }
    if (l->want[0] != 0 && strcmp(l->want, l->theirs.node) != 0) {
        refuse(l, hy_fail(HY_E_DENIED, "%s answers at the address of %s", l->theirs.node, l->want));
        return;
    }
    hy_buf b;
    hy_buf_init(&b);
    proof(l, "dialler", mac);
    hy_buf_add(&b, mac, sizeof(mac));
    st = open_dp(l, &b);
    if (st < 0) {
        refuse(l, st);
    } else {
        l->state = LINK_READY;
        hy_fab__frame(l, FAB_AUTH, b.data, b.len, NULL, 0);
    }
    hy_buf_fini(&b);
}

static void got_auth(fab_link *l, const uint8_t *p, size_t n)
{
    uint8_t mac[32];
    if (n < sizeof(mac) + BODY || n > sizeof(mac) + BODY + FAB_BLOB_MAX) {
        hy_fab__bad(l, hy_fail(HY_E_FORMAT, "proof of %zu bytes", n));
        return;
    }
    proof(l, "dialler", mac);
    if (!hy_fab__same(mac, p, sizeof(mac))) {
        refuse(l,
               hy_fail(HY_E_DENIED, "the secrets of %s and %s differ", l->theirs.node, l->f->node));
        return;
    }
    p += sizeof(mac);
    n -= sizeof(mac);
    hy_buf b;
    hy_buf_init(&b);
    hy_fab__same_meet(l, p + 8);
    hy_status st = open_dp(l, &b);
    uint64_t inc = fab_get64(p);
    if (st >= 0 && l->peer->their_inc != 0 && l->peer->their_inc != inc) {
        /* it has dropped what we still hold: begin anew, without this link in the old state */
        fab_peer *old = l->peer;
        l->peer = NULL;
        old->n_links--;
        hy_fab__peer_down(old, l->f, HY_E_PEER, "the peer has begun anew");
        st = hy_fab__peer_meet(l);
        if (st >= 0)
            fab_put64((uint8_t *)b.data, l->peer->inc);
    }
    if (st >= 0)
        st = l->dp->link_connect(l->dpl, p + BODY, n - BODY);
    if (st < 0) {
        refuse(l, st);
    } else {
        l->state = LINK_READY; /* peer_join makes it UP; READY goes out before anything else */
        hy_fab__frame(l, FAB_READY, b.data, b.len, NULL, 0);
        st = hy_fab__peer_join(l, inc);
        if (st < 0)
            hy_fab__break(l, st, hy_fail_text());
    }
    hy_buf_fini(&b);
}

static void got_ready(fab_link *l, const uint8_t *p, size_t n)
{
    if (n < BODY || n > BODY + FAB_BLOB_MAX) {
        hy_fab__bad(l, hy_fail(HY_E_FORMAT, "data path address of %zu bytes", n));
        return;
    }
    uint64_t inc = fab_get64(p);
    hy_fab__same_meet(l, p + 8);
    hy_status st = l->dp->link_connect(l->dpl, p + BODY, n - BODY);
    if (st >= 0 && l->peer->their_inc != 0 && l->peer->their_inc != inc) {
        hy_fab__peer_down(l->peer, l->f, HY_E_PEER, "the peer has begun anew");
        return; /* with this link; whoever wants the peer dials again */
    }
    if (st >= 0)
        st = hy_fab__peer_join(l, inc);
    const uint8_t verdict = l->same.rx;
    if (st >= 0 && l->same.pid != 0)
        hy_fab__frame(l, FAB_SAME, &verdict, 1, NULL, 0);
    if (st < 0)
        hy_fab__break(l, st, hy_fail_text());
}

void hy_fab__shake(fab_link *l, fab_kind kind, const uint8_t *p, size_t n)
{
    if (kind == FAB_HELLO && l->state == LINK_HELLO)
        got_hello(l, p, n);
    else if (kind == FAB_CHALLENGE && l->state == LINK_CHALLENGE)
        got_challenge(l, p, n);
    else if (kind == FAB_AUTH && l->state == LINK_AUTH)
        got_auth(l, p, n);
    else if (kind == FAB_READY && l->state == LINK_READY && l->out)
        got_ready(l, p, n);
    else
        hy_fab__bad(l, hy_fail(HY_E_FORMAT, "greeting %d out of turn", kind));
}
