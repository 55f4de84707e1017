/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening and closing an endpoint: options, the choice of a provider per rail, listening.
 *
 * Thread: any; one endpoint, one opener.  Owner: the opener closes.
 */
#include "fabric/fab_int.h"
#include "core/base/hash.h"
#include "fabric/sock.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

void hy_fab_opts_init(hy_fab_opts *o)
{
    *o = (hy_fab_opts){.providers = "verbs,efa,tcp,own",
                       .heartbeat_ns = 500 * HY_MS,
                       .peer_timeout_ns = 3 * HY_SEC,
                       .connect_timeout_ns = 5 * HY_SEC,
                       .op_timeout_ns = 30 * HY_SEC,
                       .stall_ns = 5 * HY_SEC,
                       .grace_ns = 500 * HY_MS,
                       .piece_bytes = 1 << 20,
                       .window_bytes = 8 << 20,
                       .congestion = "auto",
                       .same_node = true,
                       .max_ops = 4096,
                       .max_peers = 256};
    for (int i = 0; i < HY_FAB_RAILS_MAX; i++)
        o->rail_node[i] = -1;
}

static hy_status check_opts(const hy_fab_opts *o)
{
    if (o->node == NULL || o->node[0] == 0 || strlen(o->node) >= HY_FAB_NODE_MAX)
        return hy_fail(HY_E_INVAL, "fabric: a node id of 1 to %d bytes is needed",
                       HY_FAB_NODE_MAX - 1);
    for (const char *c = o->node; *c != 0; c++)
        if (*c < 0x21 || *c > 0x7e)
            return hy_fail(HY_E_INVAL, "fabric: node id \"%s\": printable ASCII without blanks",
                           o->node);
    if (o->n_addrs < 1 || o->n_addrs > HY_FAB_RAILS_MAX)
        return hy_fail(HY_E_INVAL, "fabric: 1 to %d addresses, not %d", HY_FAB_RAILS_MAX,
                       o->n_addrs);
    if (o->secret == NULL || o->secret_len < HY_FAB_SECRET_MIN)
        return hy_fail(HY_E_INVAL, "fabric: a shared secret of at least %d bytes is needed",
                       HY_FAB_SECRET_MIN);
    if (o->heartbeat_ns == 0 || o->peer_timeout_ns < 2 * o->heartbeat_ns)
        return hy_fail(HY_E_INVAL, "[fabric] peer_timeout must be at least two [fabric] heartbeat");
    if (o->piece_bytes < 4096 || o->window_bytes < o->piece_bytes || o->max_ops == 0 ||
        o->max_peers == 0 || o->max_peers > 65536)
        return hy_fail(HY_E_INVAL,
                       "[fabric] piece must be at least 4096, [fabric] window a piece or more, "
                       "limits above 0");
    if (o->runtime != NULL &&
        (o->loop == NULL || hy_runtime_mode_get(o->runtime) != HY_RUNTIME_VIRTUAL))
        return hy_fail(HY_E_INVAL, "fabric: a runtime is for virtual time with the loop only");
    return HY_OK;
}

static const fab_dp_ops *dp_of(const hy_fab *f, const char *name)
{
    if (strcmp(name, "own") == 0)
        return &hy_fab__own_dp;
    return f->o.strict ? &hy_fab__ofi_strict_dp : &hy_fab__ofi_dp;
}

static bool lists(const char *list, const char *name)
{
    const size_t n = strlen(name);
    for (const char *p = list; p != NULL && *p != 0; p += strcspn(p, ", ")) {
        p += strspn(p, ", ");
        if (strcspn(p, ", ") == n && strncmp(p, name, n) == 0)
            return true;
    }
    return false;
}

static void host_of(const char *addr, char *out, size_t cap)
{
    const char *colon = strrchr(addr, ':');
    size_t n = colon != NULL ? (size_t)(colon - addr) : strlen(addr);
    if (n >= 2 && addr[0] == '[' && addr[n - 1] == ']') {
        addr++;
        n -= 2;
    }
    snprintf(out, cap, "%.*s", (int)n, addr);
}

/* The first of the list that opens; every refusal is told, with its reason. */
static hy_status choose(hy_fab *f, int rail)
{
    char host[80], list[256], why[240] = "", *save = NULL;
    host_of(f->rail[rail].addr, host, sizeof(host));
    snprintf(list, sizeof(list), "%s", f->o.providers);
    bool first = true;
    /* nobody asked for the default list's first names: no cause for alarm */
    const bool asked = strcmp(f->o.providers, HY_FAB_PROVIDERS) != 0;
    for (char *name = strtok_r(list, ", ", &save); name != NULL;
         name = strtok_r(NULL, ", ", &save)) {
        const fab_dp_ops *dp = dp_of(f, name);
        void *r;
        hy_status st = dp->rail_open(f, rail, host, name, &r);
        if (st == HY_OK) {
            f->rail[rail].dp = dp;
            f->rail[rail].rail = r;
            if (f->rail[rail].provider[0] == 0)
                snprintf(f->rail[rail].provider, sizeof(f->rail[rail].provider), "%s", name);
            hy_log(first || !asked ? HY_LOG_INFO : HY_LOG_WARN, "fabric",
                   "%s: rail %d at %s: provider %s (as %s)%s", f->node, rail, f->rail[rail].addr,
                   f->rail[rail].provider, name,
                   first ? "" : ", not the first of fabric.providers (reasons above)");
            return HY_OK;
        }
        snprintf(why, sizeof(why), "%s: %s", name, hy_fail_text());
        hy_info("fabric", "%s: rail %d: no %s", f->node, rail, why);
        first = false;
    }
    return hy_fail(HY_E_NOTFOUND,
                   "[fabric] providers: none of \"%s\" works at %s (%s); add \"own\" to the list",
                   f->o.providers, f->rail[rail].addr, why);
}

static hy_status open_rails(hy_fab *f)
{
    for (int i = 0; i < f->n_rails; i++) {
        const hy_status st =
            f->ct->listen(f->ctx, i, f->o.addrs[i], f->rail[i].addr, sizeof(f->rail[i].addr));
        if (st < 0)
            return hy_fail_in(st, "[fabric] listen: ");
        if (f->o.loop != NULL) {
            f->rail[i].dp = &hy_fab__loop_dp;
            snprintf(f->rail[i].provider, sizeof(f->rail[i].provider), "loop");
            HY_TRY(f->rail[i].dp->rail_open(f, i, "", "loop", &f->rail[i].rail));
        } else {
            HY_TRY(choose(f, i));
        }
        f->rail[i].node = f->o.rail_node[i];
        if (f->rail[i].node < 0 && f->o.loop == NULL)
            f->rail[i].node = hy_fab__numa_of_addr(f->rail[i].addr);
        if (f->rail[i].node >= 0)
            hy_info("fabric", "%s: rail %d is near NUMA node %d", f->node, i, f->rail[i].node);
    }
    return f->o.loop != NULL ? HY_OK : hy_fab__own_dp.rail_open(f, -1, "", "own", &f->own_rail);
}

static hy_status init(hy_fab *f, const hy_fab_opts *o)
{
    f->o = *o;
    snprintf(f->node, sizeof(f->node), "%s", o->node);
    f->clock = o->runtime != NULL ? hy_runtime_clock(o->runtime) : hy_clock_real();
    if (o->secret_len > sizeof(f->secret))
        hy_sha256(o->secret, o->secret_len, f->secret);
    else
        memcpy(f->secret, o->secret, o->secret_len);
    pthread_mutex_init(&f->turn, NULL);
    pthread_mutex_init(&f->lock, NULL);
    pthread_mutex_init(&f->ev_lock, NULL);
    pthread_condattr_t ca;
    pthread_condattr_init(&ca);
    pthread_condattr_setclock(&ca, CLOCK_MONOTONIC);
    pthread_cond_init(&f->ev_cond, &ca);
    pthread_condattr_destroy(&ca);
    /* keys and nonces come from the system, under virtual time from the given epoch */
    hy_rng_init(&f->rng, o->runtime != NULL && o->epoch != 0 ? o->epoch : hy_rng_entropy());
    f->epoch = o->epoch != 0 ? o->epoch : hy_rng_u64(&f->rng) | 1;
    f->n_rails = o->n_addrs;
    hy_fab__same_open(f);
    HY_TRY(hy_fab__congestion_check(o->congestion));
    snprintf(f->congestion, sizeof(f->congestion), "%s", o->congestion);
    f->beside = lists(o->providers, "own");
    f->peers = hy_calloc(o->max_peers, sizeof(*f->peers));
    if (f->peers == NULL)
        return hy_fail(HY_E_NOMEM, "fabric: no memory for %u peers", o->max_peers);
    f->ct = o->loop != NULL ? &hy_fab__loop_ct : &hy_fab__sock_ops;
    HY_TRY(o->loop != NULL ? hy_fab__loop_create(f, &f->ctx) : hy_fab__sock_create(f, &f->ctx));
    HY_TRY(open_rails(f));
    return hy_fab__drive_start(f);
}

hy_status hy_fab_open(const hy_fab_opts *o, hy_fab **out)
{
    HY_TRY(check_opts(o));
    hy_fab *f = hy_calloc(1, sizeof(*f));
    if (f == NULL)
        return hy_fail(HY_E_NOMEM, "fabric: no memory");
    hy_status st = init(f, o);
    if (st < 0) {
        char why[512];
        snprintf(why, sizeof(why), "%s", hy_fail_text());
        hy_fab_close(f);
        return hy_fail(st, "%s", why);
    }
    *out = f;
    return HY_OK;
}

static void close_links(hy_fab *f)
{
    f->closing = true;
    for (fab_link *l = f->links; l != NULL; l = l->next) {
        if (l->state == LINK_UP)
            hy_fab__frame(l, FAB_BYE, NULL, 0, NULL, 0);
    }
    for (uint32_t i = 0; f->peers != NULL && i < f->o.max_peers; i++)
        if (f->peers[i].used)
            hy_fab__peer_down(&f->peers[i], f, HY_E_ABORTED, "the endpoint is closed");
    for (fab_link *l = f->links; l != NULL; l = l->next)
        hy_fab__link_close(l, HY_E_ABORTED, "the endpoint is closed");
    hy_fab__links_reap(f);
    while (f->connects != NULL)
        hy_fab__op_free(f, f->connects);
}

void hy_fab_close(hy_fab *f)
{
    if (f == NULL)
        return;
    hy_fab__drive_stop(f);
    hy_fab__lock(f);
    close_links(f);
    f->told = false;
    hy_fab__unlock(f);
    while (f->mrs != NULL) {
        f->mrs->users = 0;
        hy_fab_dereg(f, f->mrs);
    }
    for (int i = 0; i < f->n_rails; i++)
        if (f->rail[i].rail != NULL)
            f->rail[i].dp->rail_close(f->rail[i].rail);
    if (f->own_rail != NULL)
        hy_fab__own_dp.rail_close(f->own_rail);
    if (f->ctx != NULL)
        f->ct->destroy(f->ctx, f->stage);
    while (f->free_pieces != NULL) {
        fab_piece *p = f->free_pieces;
        f->free_pieces = p->next;
        hy_free(p);
    }
    while (f->ev_n > 0) {
        hy_fab_event_fini(&f->ev[f->ev_head]);
        f->ev_head = (f->ev_head + 1) % f->ev_cap;
        f->ev_n--;
    }
    hy_free(f->ev);
    hy_free(f->peers);
    pthread_mutex_destroy(&f->turn);
    pthread_mutex_destroy(&f->lock);
    pthread_mutex_destroy(&f->ev_lock);
    pthread_cond_destroy(&f->ev_cond);
    hy_free(f);
}

void hy_fab_info_get(hy_fab *f, hy_fab_info *out)
{
    memset(out, 0, sizeof(*out));
    out->epoch = f->epoch;
    out->n_rails = f->n_rails;
    for (int i = 0; i < f->n_rails; i++) {
        snprintf(out->rail[i].addr, sizeof(out->rail[i].addr), "%s", f->rail[i].addr);
        snprintf(out->rail[i].provider, sizeof(out->rail[i].provider), "%s", f->rail[i].provider);
    }
}

void hy_fab_stats_get(hy_fab *f, hy_fab_stats *out)
{
    hy_fab__lock(f);
    *out = f->stats;
    out->ops_open = f->n_ops;
    out->spins = atomic_load(&f->spins);
    out->sleeps = atomic_load(&f->sleeps);
    hy_fab__unlock(f);
}
