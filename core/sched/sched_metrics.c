/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine's metrics under vLLM's names, labels and buckets, so that dashboards made for it work.
 *
 * Thread: sched stage, after init.  Owner: the metrics' registry.
 */
#include "core/sched/engine_int.h"

static const double few[] = {1, 2, 5, 10, 20};
static const double counts[] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000};
static const double preempts[] = {1, 2, 3, 4, 5, 10, 20};
static const double iteration[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
static const double ttft[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                              1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
static const double itl[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                             0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
static const double spans[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                               30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};

typedef struct maker {
    hy_metrics *m;
    hy_label l[3];
} maker;

static hy_metric *counter(const maker *k, const char *name, const char *help)
{
    return hy_metric_counter(k->m, name, help, k->l, 2);
}

static hy_metric *gauge(const maker *k, const char *name, const char *help)
{
    return hy_metric_gauge(k->m, name, help, k->l, 2);
}

static hy_metric *histogram(const maker *k, const char *name, const char *help, const double *b,
                            size_t n)
{
    return hy_metric_histogram(k->m, name, help, b, n, k->l, 2);
}

static void init_counts(hy_sched_metrics *m, const maker *k)
{
    m->running = gauge(k, "vllm:num_requests_running", "Sequences in the running batch.");
    m->waiting = gauge(k, "vllm:num_requests_waiting", "Sequences that wait to be run.");
    m->kv_usage = gauge(k, "vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.");
    m->prefix_queries =
        counter(k, "vllm:prefix_cache_queries_total", "Tokens looked up in the prefix cache.");
    m->prefix_hits =
        counter(k, "vllm:prefix_cache_hits_total", "Tokens found in the prefix cache.");
    m->ext_queries = counter(k, "vllm:external_prefix_cache_queries_total",
                             "Tokens looked up at the KV connector.");
    m->ext_hits =
        counter(k, "vllm:external_prefix_cache_hits_total", "Tokens found by the KV connector.");
    m->pd_computed = counter(k, "halyard:pd_prompt_tokens_computed",
                             "Prompt tokens computed here of requests that came with a hand-over.");
    m->preemptions = counter(k, "vllm:num_preemptions_total", "Preemptions so far.");
    m->prompt_tokens = counter(k, "vllm:prompt_tokens_total", "Prompt tokens processed.");
    m->cached_tokens =
        counter(k, "vllm:prompt_tokens_cached_total", "Prompt tokens that were not computed.");
    m->generation_tokens = counter(k, "vllm:generation_tokens_total", "Tokens generated.");
}

static void init_times(hy_sched_metrics *m, const maker *k)
{
    m->ttft = histogram(k, "vllm:time_to_first_token_seconds", "Arrival to first token.", ttft,
                        HY_COUNTOF(ttft));
    m->itl = histogram(k, "vllm:inter_token_latency_seconds", "Gaps between tokens.", itl,
                       HY_COUNTOF(itl));
    m->tpot = histogram(k, "vllm:request_time_per_output_token_seconds",
                        "Mean gap between a request's tokens.", itl, HY_COUNTOF(itl));
    m->e2e = histogram(k, "vllm:e2e_request_latency_seconds", "Arrival to last token.", spans,
                       HY_COUNTOF(spans));
    m->queue_time = histogram(k, "vllm:request_queue_time_seconds", "Arrival to first admission.",
                              spans, HY_COUNTOF(spans));
    m->inference_time = histogram(k, "vllm:request_inference_time_seconds",
                                  "First admission to last token.", spans, HY_COUNTOF(spans));
    m->prefill_time = histogram(k, "vllm:request_prefill_time_seconds",
                                "First admission to first token.", spans, HY_COUNTOF(spans));
    m->decode_time = histogram(k, "vllm:request_decode_time_seconds", "First token to last token.",
                               spans, HY_COUNTOF(spans));
}

static void init_requests(hy_sched_metrics *m, maker *k)
{
    m->req_prompt = histogram(k, "vllm:request_prompt_tokens", "Prompt tokens of a request.",
                              counts, HY_COUNTOF(counts));
    m->req_generation = histogram(k, "vllm:request_generation_tokens",
                                  "Generated tokens of a request.", counts, HY_COUNTOF(counts));
    m->req_preemptions = histogram(k, "vllm:request_num_preemptions", "Preemptions of a request.",
                                   preempts, HY_COUNTOF(preempts));
    m->iteration_tokens = histogram(k, "vllm:iteration_tokens_total", "Tokens of a step.",
                                    iteration, HY_COUNTOF(iteration));
    m->params_n =
        histogram(k, "vllm:request_params_n", "Parameter n of requests.", few, HY_COUNTOF(few));
    m->params_max_tokens =
        histogram(k, "vllm:request_params_max_tokens", "Parameter max_tokens of requests.", counts,
                  HY_COUNTOF(counts));
    static const char *const reasons[] = {[HY_FINISH_STOP] = "stop",
                                          [HY_FINISH_LENGTH] = "length",
                                          [HY_FINISH_ABORT] = "abort",
                                          [HY_FINISH_ERROR] = "error"};
    for (size_t i = HY_FINISH_STOP; i < HY_COUNTOF(reasons); i++) {
        k->l[2] = (hy_label){"finished_reason", reasons[i]};
        m->success[i] = hy_metric_counter(k->m, "vllm:request_success_total",
                                          "Requests ended, by reason.", k->l, 3);
    }
}

void hy_sched__metrics_init(hy_engine *e, hy_metrics *m)
{
    if (m == NULL)
        return; /* all handles stay NULL, which updates accept */
    const char *name = e->o.model_name != NULL ? e->o.model_name : "";
    maker k = {.m = m, .l = {{"engine", "0"}, {"model_name", name}}};
    init_counts(&e->m, &k);
    init_times(&e->m, &k);
    init_requests(&e->m, &k);
}

static double seconds(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) / 1e9 : 0.0;
}

void hy_sched__metrics_finish(hy_engine *e, const hy_seq *s, uint64_t now)
{
    const hy_sched_metrics *m = &e->m;
    const hy_req *r = s->job->r;
    const uint64_t arrival = (uint64_t)r->arrival_ns;
    const int32_t n = hy_seq_n_out(s);
    hy_metric_inc(m->success[s->end]);
    if (s->end != HY_FINISH_STOP && s->end != HY_FINISH_LENGTH)
        return;
    const uint64_t last = s->last_ns != 0 ? s->last_ns : now;
    hy_metric_observe(m->e2e, seconds(arrival, last));
    hy_metric_observe(m->queue_time, seconds(arrival, s->start_ns));
    hy_metric_observe(m->inference_time, seconds(s->start_ns, last));
    if (s->first_ns != 0) {
        hy_metric_observe(m->prefill_time, seconds(s->start_ns, s->first_ns));
        hy_metric_observe(m->decode_time, seconds(s->first_ns, last));
    }
    if (n > 1)
        hy_metric_observe(m->tpot, seconds(s->first_ns, last) / (n - 1));
    hy_metric_observe(m->req_prompt, r->n_prompt);
    hy_metric_observe(m->req_generation, n);
    hy_metric_observe(m->req_preemptions, s->n_preempted);
    hy_metric_observe(m->params_n, r->n);
    hy_metric_observe(m->params_max_tokens, s->job->max_new);
}

void hy_sched__publish_stats(hy_engine *e)
{
    const int32_t total = hy_kv_n_blocks(e->kv, 0), free_blocks = hy_kv_n_free(e->kv, 0);
    const int32_t waiting = e->waiting.n + e->n_held;
    atomic_store(&e->st.running, e->running.n);
    atomic_store(&e->st.waiting, waiting);
    atomic_store(&e->st.parked, e->parked.n);
    atomic_store(&e->st.blocks_free, free_blocks);
    atomic_store(&e->st.blocks_cached, hy_kv_n_hashed(e->kv, 0));
    hy_metric_set(e->m.running, e->running.n);
    hy_metric_set(e->m.waiting, waiting + e->parked.n);
    hy_metric_set(e->m.kv_usage, (double)(total - free_blocks) / total);
}
