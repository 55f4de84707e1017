/* SPDX-License-Identifier: Apache-2.0
 *
 * Builds the stages of a node in the order device, model, text, exec, sched, http, and takes them
 * down in the reverse order.
 *
 * Thread: main.  Owner: hy_node owns all it built; the configuration is the caller's.
 */
#include "core/node/node.h"

#include "core/base/file.h"
#include "core/base/log.h"
#include "core/base/metric.h"
#include "core/base/trace.h"
#include "core/exec/exec.h"
#include "core/exec/sample.h"
#include "core/exec/stage.h"
#include "core/http/http.h"
#include "core/node/device.h"
#include "core/node/generation.h"
#include "core/node/node_int.h"
#include "core/node/role.h"
#include "core/node/size.h"
#include "core/text/load.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

struct hy_node {
    const hy_conf *conf;
    hy_dev *dev;
    hy_model *model;
    hy_tok *tok;
    hy_jinja *chat;
    char *chat_error; /* why chat is NULL */
    hy_exec *exec;
    hy_exec_stage *exec_stage;
    hy_metrics *metrics;
    hy_trace *trace; /* NULL: none is kept */
    hy_engine *engine;
    hy_pd *pd; /* roles that share their KV */
    hy_runtime *runtime;
    hy_http *http;
    hy_route *route; /* role router: the only part */
    char *served_name;
    char *api_key;
    const char *names[2]; /* the second: what the user called the model */
    size_t n_names;
    hy_sampling defaults;
    hy_size size;
    int port_fd; /* the HTTP port, until the server has it; -1: none */
    bool started, draining;
};

/* The sampler's functions as sched takes them. ctx is the model. */
static hy_status sampler_create(void *ctx, const hy_sampling *params, int32_t choice,
                                const int32_t *prompt, int32_t n_prompt, const int32_t *end_ids,
                                size_t n_end, int32_t min_tokens, struct hy_sampler **out)
{
    const hy_model *m = ctx;
    hy_sampler_opts o = {.params = params,
                         .choice = choice,
                         .vocab = m->cfg.vocab,
                         .prompt = prompt,
                         .n_prompt = n_prompt,
                         .end_ids = end_ids,
                         .n_end = n_end,
                         .min_tokens = min_tokens};
    return hy_sampler_create(&o, out);
}

static void sampler_destroy(void *ctx, struct hy_sampler *s)
{
    (void)ctx;
    hy_sampler_destroy(s);
}

static void sampler_accept(void *ctx, struct hy_sampler *s, int32_t id)
{
    (void)ctx;
    hy_sampler_accept(s, id);
}

static hy_status load_template(hy_node *n)
{
    const char *file = hy_conf_str(n->conf, "model", "chat_template");
    const char *own = hy_tok_chat_template(n->tok);
    hy_buf b;
    hy_buf_init(&b);
    hy_status st = HY_OK;
    if (*file != '\0') {
        st = hy_file_read(file, 4u << 20, &b);
        if (st == HY_OK)
            st = hy_jinja_compile(hy_buf_str(&b), b.len, &n->chat);
        if (st < 0)
            hy_fail_in(st, "[model] chat_template: ");
    } else if (own != NULL && hy_jinja_compile(own, strlen(own), &n->chat) < 0) {
        hy_buf_printf(&b, "the model's chat template cannot be used: %s", hy_fail_text());
        n->chat_error = hy_buf_take(&b);
        hy_warn("node", "%s; completions work, for chat set [model] chat_template", n->chat_error);
    }
    hy_buf_fini(&b);
    return st;
}

static hy_status build_engine(hy_node *n)
{
    hy_engine_opts o = {0};
    int32_t windows[HY_SIZE_MAX_GROUPS];
    const hy_model *m = n->model;
    for (int32_t g = 0; g < m->n_groups; g++)
        windows[g] = m->groups[g].window;
    o.n_groups = m->n_groups;
    o.windows = windows;
    o.n_blocks = n->size.n_blocks;
    o.block_tokens = n->size.block_tokens;
    hy_exec_fingerprint(n->exec, o.fingerprint);
    o.context = n->size.context;
    o.vocab = m->cfg.vocab;
    o.max_batch_tokens = n->size.max_rows;
    o.max_prefill_tokens = (int32_t)hy_conf_int(n->conf, "engine", "max_prefill_tokens");
    o.step_ns = hy_conf_ns(n->conf, "engine", "step_time");
    o.max_seqs = n->size.max_seqs;
    o.max_queue = (int32_t)hy_conf_int(n->conf, "http", "max_queue");
    o.prefix_cache = hy_conf_bool(n->conf, "engine", "prefix_cache");
    for (int32_t r = 0; r < m->n_ropes; r++)
        if (m->ropes[r].inv_freq_long != NULL)
            o.rope_long_from = m->ropes[r].long_from;
    o.end_ids = hy_tok_eogs(n->tok, &o.n_end);
    if (getrandom(&o.seed, sizeof(o.seed), 0) != (ssize_t)sizeof(o.seed) ||
        getrandom(&o.epoch, sizeof(o.epoch), 0) != (ssize_t)sizeof(o.epoch))
        return hy_fail(HY_E_SYS, "no random numbers from the system");
    o.sampler = (hy_sampler_ops){sampler_create, sampler_destroy, sampler_accept, n->model};
    o.model_name = n->served_name;
    o.trace = n->trace;
    HY_TRY(hy_engine_create(&o, n->metrics, n->pd != NULL ? hy_pd_connector(n->pd) : NULL,
                            &n->engine));
    n->exec_stage = hy_exec_stage_create(n->exec, 2);
    n->runtime = hy_runtime_create(HY_RUNTIME_THREADS, o.seed);
    if (n->exec_stage == NULL || n->runtime == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    hy_exec_stage_connect(n->exec_stage, hy_engine_stage(n->engine));
    hy_engine_set_exec(n->engine, hy_stage_mbox(hy_exec_stage_of(n->exec_stage)));
    HY_TRY(hy_runtime_add(n->runtime, hy_engine_stage(n->engine)));
    HY_TRY(hy_runtime_add(n->runtime, hy_exec_stage_of(n->exec_stage)));
    if (n->pd == NULL)
        return HY_OK;
    hy_pd_set_sched(n->pd, hy_engine_stage(n->engine));
    return hy_runtime_add(n->runtime, hy_pd_stage(n->pd));
}

/* [model] name, else the file's own name without its ending, and the alias beside it. */
static hy_status choose_name(hy_node *n, const char *path, const char *alias)
{
    const char *name = hy_conf_str(n->conf, "model", "name");
    if (*name == '\0') {
        size_t len = strlen(path);
        while (len > 1 && path[len - 1] == '/')
            len--;
        size_t from = len;
        while (from > 0 && path[from - 1] != '/')
            from--;
        size_t end = len - from > 5 && strncmp(path + len - 5, ".gguf", 5) == 0 ? len - 5 : len;
        n->served_name = strndup(path + from, end - from);
    } else {
        n->served_name = strdup(name);
    }
    if (n->served_name == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    n->names[n->n_names++] = n->served_name;
    if (*name == '\0' && alias != NULL && strcmp(alias, n->served_name) != 0)
        n->names[n->n_names++] = alias;
    return HY_OK;
}

static hy_status kv_release(void *arg, const char *text)
{
    return hy_pd_release(arg, text);
}

static void address_of(const hy_node *n, hy_http_opts *o)
{
    o->host = hy_conf_str(n->conf, "http", "host");
    o->port = (int)hy_conf_int(n->conf, "http", "port");
    o->api_key = n->api_key;
}

/* Before anything is loaded: wrong keys or a port in use show at once. */
static hy_status reserve_port(hy_node *n)
{
    hy_http_opts o;
    hy_http_opts_init(&o);
    HY_TRY(hy_node__read_key(n->conf, &n->api_key));
    address_of(n, &o);
    return hy_http_reserve(&o, &n->port_fd);
}

static void refresh_metrics(void *arg)
{
    hy_pd_metrics_refresh(arg);
}

static void kv_links(void *arg, hy_buf *out)
{
    hy_pd_links(arg, out);
}

static hy_status build_http(hy_node *n)
{
    const hy_conf *c = n->conf;
    hy_http_opts o;
    hy_http_opts_init(&o);
    o.engine = n->engine;
    o.tok = n->tok;
    o.chat = n->chat;
    o.chat_error = n->chat_error;
    o.models = n->names;
    o.n_models = n->n_names;
    o.defaults = n->defaults;
    o.context = n->size.context;
    o.user_marks_text = strcmp(hy_conf_str(c, "engine", "user_marks"), "text") == 0;
    o.metrics = n->metrics;
    o.trace = n->trace;
    address_of(n, &o);
    o.fd = n->port_fd;
    n->port_fd = -1;
    o.max_body_bytes = hy_conf_size(c, "http", "max_body");
    o.max_header_bytes = hy_conf_size(c, "http", "max_header");
    o.max_slow_reader_bytes = hy_conf_size(c, "http", "max_slow_reader_bytes");
    o.max_connections = (int)hy_conf_int(c, "http", "max_connections");
    o.max_requests = (int)hy_conf_int(c, "http", "max_queue");
    o.idle_timeout_ns = hy_conf_ns(c, "http", "idle_timeout");
    o.read_timeout_ns = hy_conf_ns(c, "http", "header_timeout");
    o.write_timeout_ns = hy_conf_ns(c, "http", "write_timeout");
    o.request_timeout_ns = hy_conf_ns(c, "http", "request_timeout");
    o.max_logprobs = (int32_t)hy_conf_int(c, "http", "max_logprobs");
    if (n->pd != NULL) {
        o.kv_release = kv_release;
        o.kv_links = kv_links;
        o.refresh_metrics = refresh_metrics;
        o.refresh_arg = n->pd;
        o.kv_release_arg = n->pd;
    }
    HY_TRY(hy_http_create(&o, &n->http));
    return hy_http_start(n->http);
}

/* kind = auto: where the role needs one. */
static bool wants_connector(const hy_node *n, unsigned stages)
{
    const char *kind = hy_conf_str(n->conf, "connector", "kind");
    if (strcmp(kind, "auto") == 0)
        return (stages & HY_ROLE_KV) != 0;
    return strcmp(kind, "none") != 0;
}

static hy_status load(hy_node *n, const hy_node_opts *o, unsigned stages)
{
    hy_act_mode act = strcmp(hy_conf_str(n->conf, "engine", "activations"), "f32") == 0
                          ? HY_ACT_F32
                          : HY_ACT_INT8;
    hy_model_opts mo = {.act = act, .progress = o->progress, .arg = o->arg};
    hy_dev_props props;
    HY_TRY(hy_node_open_device(n->conf, &n->dev));
    HY_TRY(n->dev->ops->props(n->dev, &props));
    if (strcmp(hy_conf_str(n->conf, "engine", "numerics"), "fast") == 0 && props.exact)
        hy_warn("node",
                "[engine] numerics = fast: %s has no kernels of that class; the exact ones run",
                props.backend);
    HY_TRY(choose_name(n, o->model_path, o->alias));
    HY_TRY(hy_tok_load(o->model_path, &n->tok));
    HY_TRY(load_template(n));
    n->defaults = (hy_sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    n->defaults.logprobs = -1;
    HY_TRY(hy_generation_read(o->model_path, &n->defaults));
    HY_TRY(hy_model_load(o->model_path, n->dev, &mo, &n->model));
    if (hy_tok_n_vocab(n->tok) > n->model->cfg.vocab)
        hy_warn("node", "the tokeniser knows %d tokens, the model %d", hy_tok_n_vocab(n->tok),
                n->model->cfg.vocab);
    HY_TRY(hy_size_choose(n->conf, n->model, act, &n->size));
    const int32_t waiting = (int32_t)hy_conf_int(n->conf, "http", "max_queue") + n->size.max_seqs;
    if (wants_connector(n, stages))
        HY_TRY(hy_node__connector_create(n->conf, n->dev, n->model, act, waiting, n->metrics,
                                         n->trace, &n->pd));
    const char *order = hy_conf_str(n->conf, "kv", "order");
    hy_exec_opts eo = {.kv_value = n->size.kv_value,
                       .kv_storage = n->size.kv_storage,
                       .block_tokens = n->size.block_tokens,
                       .n_blocks = n->size.n_blocks,
                       .max_rows = n->size.max_rows,
                       .max_seqs = n->size.max_seqs,
                       .max_logits = n->size.max_logits,
                       .context = n->size.context,
                       .act = act,
                       .kv_order = strcmp(order, "nhd") == 0   ? HY_KV_ORDER_NHD
                                   : strcmp(order, "hnd") == 0 ? HY_KV_ORDER_HND
                                                               : HY_KV_ORDER_DEFAULT,
                       .connector = n->pd != NULL ? hy_pd_connector(n->pd) : NULL};
    return hy_exec_create(n->model, &eo, &n->exec);
}

static void make_trace(hy_node *n)
{
    char name[HY_FAB_NODE_MAX];
    hy_node__name(n->conf, name, sizeof(name));
    n->trace = hy_trace_create(name, hy_conf_str(n->conf, "node", "role"),
                               (size_t)hy_conf_int(n->conf, "node", "trace"));
}

static hy_status create(hy_node *n, const hy_node_opts *o)
{
    unsigned stages;
    HY_TRY(hy_role_stages(hy_conf_str(n->conf, "node", "role"), &stages));
    n->metrics = hy_metrics_create();
    if (n->metrics == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    make_trace(n);
    if (stages & HY_ROLE_ROUTER) {
        HY_TRY(hy_node__read_key(n->conf, &n->api_key));
        return hy_node__router_create(n->conf, n->api_key, n->metrics, n->trace, &n->route);
    }
    if (o->http && (stages & HY_ROLE_HTTP))
        HY_TRY(reserve_port(n));
    if (wants_connector(n, stages))
        HY_TRY(hy_node__check_secret(n->conf));
    HY_TRY(load(n, o, stages));
    HY_TRY(build_engine(n));
    HY_TRY(hy_runtime_start(n->runtime));
    n->started = true;
    if (o->http && (stages & HY_ROLE_HTTP))
        HY_TRY(build_http(n));
    return HY_OK;
}

hy_status hy_node_create(const hy_node_opts *o, hy_node **out)
{
    hy_node *n = calloc(1, sizeof(*n));
    if (n == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    n->conf = o->conf;
    n->port_fd = -1;
    hy_status st = create(n, o);
    if (st < 0) {
        hy_node_destroy(n);
        return st;
    }
    *out = n;
    return HY_OK;
}

static hy_status drain_route(hy_node *n, uint64_t timeout_ns)
{
    hy_route_stop_accepting(n->route);
    for (uint64_t t = 0; hy_route_active(n->route) > 0; t += 10000000) {
        if (t >= timeout_ns)
            return hy_fail(HY_E_TIMEOUT, "%d requests still run", hy_route_active(n->route));
        usleep(10000);
    }
    return HY_OK;
}

hy_status hy_node_drain(hy_node *n, uint64_t timeout_ns)
{
    if (n->route != NULL)
        return drain_route(n, timeout_ns);
    if (n->http != NULL) {
        if (!n->draining)
            hy_http_stop_accepting(n->http);
        n->draining = true;
        for (uint64_t t = 0; hy_http_active(n->http) > 0; t += 10000000) {
            if (t >= timeout_ns)
                return hy_fail(HY_E_TIMEOUT, "%d requests still run", hy_http_active(n->http));
            usleep(10000);
        }
    }
    return hy_runtime_drain(n->runtime, timeout_ns);
}

void hy_node_destroy(hy_node *n)
{
    if (n == NULL)
        return;
    hy_http_destroy(n->http);
    hy_route_destroy(n->route);
    if (n->started)
        hy_runtime_stop(n->runtime);
    hy_pd_close(n->pd); /* before the pools go, into which peers may write */
    hy_runtime_destroy(n->runtime);
    hy_engine_destroy(n->engine);
    hy_exec_stage_destroy(n->exec_stage);
    hy_exec_destroy(n->exec);
    hy_pd_destroy(n->pd);
    hy_metrics_destroy(n->metrics);
    hy_trace_destroy(n->trace);
    hy_model_destroy(n->model);
    hy_jinja_destroy(n->chat);
    hy_tok_destroy(n->tok);
    hy_dev_close(n->dev);
    if (n->port_fd >= 0)
        close(n->port_fd);
    free(n->chat_error);
    free(n->served_name);
    free(n->api_key);
    free(n);
}

hy_engine *hy_node_engine(hy_node *n)
{
    return n->engine;
}

const hy_model *hy_node_model(const hy_node *n)
{
    return n->model;
}

const hy_tok *hy_node_tok(const hy_node *n)
{
    return n->tok;
}

const hy_jinja *hy_node_template(const hy_node *n)
{
    return n->chat;
}

int32_t hy_node_context(const hy_node *n)
{
    return n->size.context;
}

int hy_node_port(const hy_node *n)
{
    if (n->route != NULL)
        return hy_route_port(n->route);
    return n->http != NULL ? hy_http_port(n->http) : 0;
}

hy_status hy_node_health(hy_node *n, const char **text_out)
{
    if (n->route != NULL)
        return hy_route_health(n->route, text_out);
    return hy_runtime_failed(n->runtime, text_out);
}

void hy_node_describe(const hy_node *n, hy_buf *out)
{
    if (n->route != NULL) {
        hy_node__router_describe(n->conf, n->route, out);
        return;
    }
    hy_dev_props p;
    const hy_model_cfg *c = &n->model->cfg;
    memset(&p, 0, sizeof(p));
    n->dev->ops->props(n->dev, &p);
    hy_buf_printf(out, "device %s, %d thread%s\n", p.name, p.n_threads,
                  p.n_threads == 1 ? "" : "s");
    hy_buf_printf(out, "model %s: %s, %.1f M parameters, %s, %.0f MB on the device\n",
                  n->served_name, c->arch, (double)c->n_params / 1e6, c->quant,
                  (double)n->model->device_bytes / 1e6);
    hy_size_describe(&n->size, out);
    if (n->chat == NULL)
        hy_buf_puts(out, "no chat template: /v1/chat/completions answers 400\n");
    if (n->pd != NULL)
        hy_buf_printf(out, "sharing KV with other nodes at %s\n", hy_pd_addrs(n->pd));
    if (n->http == NULL)
        return;
    hy_buf_puts(out, "serving ");
    hy_buf_put_url(out, hy_conf_str(n->conf, "http", "host"), hy_http_port(n->http));
    hy_buf_printf(out, "/v1 (OpenAI API), model name '%s'%s%s\n", n->served_name,
                  n->n_names > 1 ? " or " : "", n->n_names > 1 ? n->names[1] : "");
}
