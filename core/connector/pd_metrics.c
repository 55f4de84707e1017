/* SPDX-License-Identifier: Apache-2.0
 *
 * Metrics of the point-to-point connector, under vLLM's names where it has them.
 *
 * Thread: connector stage; the metrics themselves any.  Owner: the registry.
 */
#include "core/connector/pd_int.h"

void hy_pd__metrics_init(hy_pd *p, hy_metrics *m)
{
    static const double seconds[] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1,
                                     0.2,   0.5,   1,     2,    5,    10,   30};
    if (m == NULL)
        return;
    pd_metrics *x = &p->m;
    x->bytes_in = hy_metric_counter(m, "halyard:kv_transfer_received_bytes_total",
                                    "KV bytes received from peers.", NULL, 0);
    x->bytes_out = hy_metric_counter(m, "halyard:kv_transfer_sent_bytes_total",
                                     "KV bytes written into peers.", NULL, 0);
    x->seconds =
        hy_metric_histogram(m, "halyard:kv_transfer_seconds",
                            "From blocks given to KV usable; pushing, with the wait for prefill.",
                            seconds, HY_COUNTOF(seconds), NULL, 0);
    x->failed = hy_metric_counter(m, "halyard:kv_transfer_failed_total",
                                  "Loads that failed: link, timeout, refusal.", NULL, 0);
    x->missed = hy_metric_counter(m, "halyard:kv_transfer_missed_total",
                                  "References to KV that is not there (any more).", NULL, 0);
    x->corrupt = hy_metric_counter(m, "halyard:kv_transfer_corrupt_total",
                                   "Loads whose digest was wrong.", NULL, 0);
    x->full_hits = hy_metric_counter(m, "halyard:kv_transfer_full_hits_total",
                                     "Hand-overs whose KV was here already.", NULL, 0);
    x->early_used =
        hy_metric_counter(m, "halyard:kv_early_pieces_used_total",
                          "Packed pieces that stood there when they were ordered.", NULL, 0);
    x->early_dropped =
        hy_metric_counter(m, "halyard:kv_early_pieces_dropped_total",
                          "Pieces packed before an order that never asked for them.", NULL, 0);
    x->expired_leases = hy_metric_counter(m, "halyard:kv_leases_expired_total",
                                          "Leases that nobody released in time.", NULL, 0);
    x->refused = hy_metric_counter(m, "halyard:kv_links_refused_total",
                                   "Links refused for unlike models or layouts.", NULL, 0);
    x->leases = hy_metric_gauge(m, "halyard:kv_leases", "Leases held for peers.", NULL, 0);
    x->held_blocks = hy_metric_gauge(m, "halyard:kv_leased_blocks",
                                     "Blocks held for peers, all groups.", NULL, 0);
    x->oldest =
        hy_metric_gauge(m, "halyard:kv_lease_oldest_seconds", "Age of the oldest lease.", NULL, 0);
    x->loads = hy_metric_gauge(m, "halyard:kv_loads", "Loads under way.", NULL, 0);
    x->oldest_load = hy_metric_gauge(m, "halyard:kv_load_oldest_seconds",
                                     "Age of the oldest load: its request came.", NULL, 0);
    x->links = hy_metric_gauge(m, "halyard:kv_links", "Links to other nodes that are up.", NULL, 0);
}

void hy_pd__metrics_leases(hy_pd *p)
{
    if (p->m.leases == NULL)
        return;
    int32_t n = 0, blocks = 0;
    uint64_t born = UINT64_MAX;
    for (int i = 0; i < PD_BUCKETS && atomic_load(&p->st.leases_open) > n; i++)
        for (const pd_lease *l = p->lease[i]; l != NULL; l = l->chain) {
            n++;
            for (int32_t g = 0; g < l->tab.n_groups; g++)
                blocks += l->tab.n[g];
            born = l->born < born ? l->born : born;
        }
    hy_metric_set(p->m.leases, n);
    hy_metric_set(p->m.held_blocks, blocks);
    hy_metric_set(p->m.loads, atomic_load(&p->st.loads_open));
    atomic_store(&p->born_lease, n > 0 ? born : 0);
    born = UINT64_MAX;
    n = 0;
    for (int i = 0; i < PD_BUCKETS && atomic_load(&p->st.loads_open) > n; i++)
        for (const pd_load *l = p->load[i]; l != NULL; l = l->chain, n++)
            born = l->t_arrived < born ? l->t_arrived : born;
    atomic_store(&p->born_load, n > 0 ? born : 0);
    hy_pd_metrics_refresh(p);
}

static void set_age(hy_metric *x, uint64_t born, uint64_t now)
{
    hy_metric_set(x, born != 0 && now > born ? (double)(now - born) / 1e9 : 0.0);
}

void hy_pd_metrics_refresh(hy_pd *p)
{
    const uint64_t now = hy_pd__now(p);
    set_age(p->m.oldest, atomic_load(&p->born_lease), now);
    set_age(p->m.oldest_load, atomic_load(&p->born_load), now);
}
