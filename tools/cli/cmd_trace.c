/* SPDX-License-Identifier: Apache-2.0
 *
 * halyard trace: the timelines that nodes keep (GET /trace), joined into one file for trace
 * viewers, on one clock.
 *
 * Nodes whose monotonic clock is also ours (same machine, same time namespace) need no shift. Of
 * the others the clock is asked for several times; the answer with the shortest round trip places
 * it, with an error of at most half that trip. The file says which.
 *
 * Thread: main.  Owner: none.
 */
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/base/trace.h"
#include "tools/cli/cli.h"
#include "tools/up/run.h"

#include <curl/curl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NODES = 256, CLOCK_ASKS = 8 };

typedef struct node {
    char *url;
    json_t *page;
    double shift_us, error_us; /* add shift to its times; 0: it has our clock */
} node;

typedef struct trace {
    CURL *curl;
    char clock[HY_TRACE_CLOCK_MAX];
    node nodes[MOST_NODES];
    size_t n;
} trace;

static size_t on_body(char *p, size_t size, size_t n, void *arg)
{
    hy_buf *b = arg;
    if (b->len + size * n > (64u << 20))
        return 0;
    hy_buf_add(b, p, size * n);
    return b->failed ? 0 : size * n;
}

/* A JSON answer with status 200; *took_ns: the round trip. */
static hy_status get(trace *t, const char *url, const char *path, json_t **out, uint64_t *took_ns)
{
    hy_buf at, body;
    long status = 0;
    hy_buf_init(&at);
    hy_buf_init(&body);
    hy_buf_printf(&at, "%s%s", url, path);
    curl_easy_setopt(t->curl, CURLOPT_URL, hy_buf_str(&at));
    curl_easy_setopt(t->curl, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(t->curl, CURLOPT_CONNECTTIMEOUT, 5L);
    curl_easy_setopt(t->curl, CURLOPT_TIMEOUT, 60L);
    curl_easy_setopt(t->curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(t->curl, CURLOPT_WRITEDATA, &body);
    const uint64_t t0 = hy_clock_now_ns(hy_clock_real());
    const CURLcode rc = curl_easy_perform(t->curl);
    *took_ns = hy_clock_now_ns(hy_clock_real()) - t0;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &status);
    hy_status st = HY_OK;
    json_error_t err;
    if (rc != CURLE_OK)
        st = hy_fail(HY_E_PEER, "%s: %s", hy_buf_str(&at), curl_easy_strerror(rc));
    else if (status != 200)
        st = hy_fail(HY_E_PEER, "%s answers %ld: is it a Halyard node?", hy_buf_str(&at), status);
    else if ((*out = json_loadb(hy_buf_str(&body), body.len, 0, &err)) == NULL)
        st = hy_fail(HY_E_FORMAT, "%s: %s", hy_buf_str(&at), err.text);
    hy_buf_fini(&at);
    hy_buf_fini(&body);
    return st;
}

static hy_status add_node(trace *t, const char *url)
{
    size_t len = strlen(url);
    while (len > 0 && url[len - 1] == '/')
        len--;
    for (size_t i = 0; i < t->n; i++)
        if (strlen(t->nodes[i].url) == len && strncmp(t->nodes[i].url, url, len) == 0)
            return HY_OK;
    if (t->n == MOST_NODES)
        return hy_fail(HY_E_LIMIT, "more than %d nodes", MOST_NODES);
    t->nodes[t->n].url = strndup(url, len);
    return t->nodes[t->n++].url != NULL ? HY_OK : hy_fail(HY_E_NOMEM, "out of memory");
}

static double other_num(const json_t *page, const char *key)
{
    return json_number_value(json_object_get(json_object_get(page, "otherData"), key));
}

static const char *other_str(const json_t *page, const char *key)
{
    const char *s = json_string_value(json_object_get(json_object_get(page, "otherData"), key));
    return s != NULL ? s : "";
}

/* Where its clock stands against ours. */
static hy_status place_clock(trace *t, node *n)
{
    if (strcmp(other_str(n->page, "clock"), t->clock) == 0)
        return HY_OK;
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < CLOCK_ASKS; i++) {
        json_t *page = NULL;
        uint64_t took;
        HY_TRY(get(t, n->url, "/trace?n=0", &page, &took));
        const double middle = ((double)hy_clock_now_ns(hy_clock_real()) - (double)took / 2) / 1e3;
        if (took < best) {
            best = took;
            n->shift_us = middle - other_num(page, "now_us");
            n->error_us = (double)took / 2e3;
        }
        json_decref(page);
    }
    return HY_OK;
}

static hy_status read_node(trace *t, size_t i, const char *query)
{
    node *n = &t->nodes[i];
    uint64_t took;
    hy_status st = get(t, n->url, query, &n->page, &took);
    if (st == HY_OK && !json_is_array(json_object_get(n->page, "traceEvents")))
        st = hy_fail(HY_E_FORMAT, "%s/trace: no trace events", n->url);
    if (st == HY_OK)
        st = place_clock(t, n);
    if (st < 0 || strcmp(other_str(n->page, "role"), "router") != 0)
        return st;
    json_t *list = NULL; /* whom it sends requests to */
    HY_TRY(get(t, n->url, "/workers", &list, &took));
    const json_t *w = json_object_get(list, "workers");
    for (size_t k = 0; k < json_array_size(w) && st == HY_OK; k++) {
        const char *url = json_string_value(json_object_get(json_array_get(w, k), "url"));
        if (url != NULL)
            st = add_node(t, url);
    }
    json_decref(list);
    return st;
}

/* Its events into the list of all: rows belong to node i, times to our clock. Requests counted. */
static size_t join(const node *n, size_t i, json_t *all)
{
    size_t requests = 0;
    json_t *events = json_object_get(n->page, "traceEvents");
    for (size_t k = 0; k < json_array_size(events); k++) {
        json_t *e = json_array_get(events, k);
        json_object_set_new(e, "pid", json_integer((json_int_t)i + 1));
        const json_t *ts = json_object_get(e, "ts");
        const char *name = json_string_value(json_object_get(e, "name"));
        if (ts != NULL)
            json_object_set_new(e, "ts", json_real(json_number_value(ts) + n->shift_us));
        requests += name != NULL && strncmp(name, "request", 7) == 0;
        json_array_append(all, e);
    }
    json_array_append_new(all,
                          json_pack("{s:s,s:i,s:s,s:{s:i}}", "ph", "M", "pid", (int)i + 1, "name",
                                    "process_sort_index", "args", "sort_index", (int)i));
    return requests;
}

/* request: the only one that is wanted; NULL: all. */
static hy_status write_file(trace *t, const char *request, const char *out)
{
    json_t *all = json_array(), *nodes = json_array();
    size_t requests[MOST_NODES], sum = 0;
    for (size_t i = 0; i < t->n; i++) {
        const node *n = &t->nodes[i];
        requests[i] = join(n, i, all);
        sum += requests[i];
        json_array_append_new(
            nodes, json_pack("{s:s,s:s,s:s,s:f,s:f}", "node", other_str(n->page, "node"), "role",
                             other_str(n->page, "role"), "url", n->url, "clock_shift_us",
                             n->shift_us, "clock_error_us", n->error_us));
    }
    json_t *o = json_pack("{s:s,s:{s:o},s:o}", "displayTimeUnit", "ms", "otherData", "nodes", nodes,
                          "traceEvents", all);
    char *text = json_dumps(o, JSON_COMPACT);
    hy_status st = text != NULL ? HY_OK : hy_fail(HY_E_NOMEM, "out of memory");
    if (st == HY_OK && request != NULL && sum == 0)
        st =
            hy_fail(HY_E_NOTFOUND,
                    "no request '%s' among the last ones of %zu node%s ([node] trace says how many "
                    "each keeps)",
                    request, t->n, t->n == 1 ? "" : "s");
    if (st == HY_OK && strcmp(out, "-") == 0)
        puts(text);
    else if (st == HY_OK)
        st = hy_file_write(out, text, strlen(text), 0644);
    for (size_t i = 0; i < t->n && st == HY_OK; i++) {
        const node *n = &t->nodes[i];
        fprintf(stderr, "%-12s %-8s %6zu requests, ", other_str(n->page, "node"),
                other_str(n->page, "role"), requests[i]);
        if (n->error_us > 0.0)
            fprintf(stderr, "its clock is placed within %.3f ms\n", n->error_us / 1e3);
        else
            fprintf(stderr, "same clock\n");
    }
    if (st == HY_OK && strcmp(out, "-") != 0)
        fprintf(stderr, "%s: open it in ui.perfetto.dev or chrome://tracing\n", out);
    free(text);
    json_decref(o);
    return st;
}

static hy_status add_cluster(trace *t, hy_conf *conf, const char *file)
{
    hy_up_plan plan = {0};
    hy_buf urls;
    hy_buf_init(&urls);
    const hy_up_env env = {hy_cli_conf, NULL};
    hy_status st = hy_conf_add_table(conf, hy_up_keys, hy_up_n_keys);
    if (st == HY_OK)
        st = hy_conf_load_file(conf, file);
    if (st == HY_OK)
        st = hy_up_plan_make(conf, file, &env, &plan);
    if (st == HY_OK)
        st = hy_up_urls(&plan, &urls);
    for (char *save = NULL, *url = st == HY_OK ? strtok_r(urls.data, "\n", &save) : NULL;
         url != NULL && st == HY_OK; url = strtok_r(NULL, "\n", &save))
        st = add_node(t, url);
    hy_up_plan_fini(&plan);
    hy_buf_fini(&urls);
    return st;
}

static hy_status run(trace *t, hy_conf *conf, const hy_cli *cli, const char *query,
                     const char *request, const char *out)
{
    t->curl = curl_easy_init();
    if (t->curl == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    hy_trace_clock(t->clock, sizeof(t->clock));
    for (int i = 0; i < cli->n_args; i++)
        HY_TRY(hy_cli_is_ini(cli->args[i]) ? add_cluster(t, conf, cli->args[i])
                                           : add_node(t, cli->args[i]));
    for (size_t i = 0; i < t->n; i++) /* grows: routers name their workers */
        HY_TRY(read_node(t, i, query));
    return write_file(t, request, out);
}

int hy_cmd_trace(int argc, char **argv)
{
    static trace t;
    hy_conf *conf = hy_cli_conf();
    const char *out = "trace.json", *request = NULL, *n = NULL;
    const hy_cli_opt opts[] = {
        {.name = "--output",
         .letter = 'o',
         .arg = "FILE",
         .help = "where to (trace.json; -: standard output)",
         .value = &out},
        {.name = "--request",
         .letter = 'r',
         .arg = "NAME",
         .help = "only this X-Request-Id",
         .value = &request},
        {.name = "--last",
         .letter = 'n',
         .arg = "N",
         .help = "only the last N of each node",
         .value = &n},
    };
    hy_cli cli = {
        .usage = "trace URL... | CLUSTER.ini",
        .about = "Collect the timelines of the last requests from nodes ([node] trace) into one\n"
                 "file for ui.perfetto.dev or chrome://tracing. A router's URL stands for its\n"
                 "workers, too; CLUSTER.ini for what `halyard up` runs from it.",
        .opts = opts,
        .n_opts = HY_COUNTOF(opts)};
    int rc = hy_cli_parse(&cli, argc, argv);
    if (rc < 0 && cli.n_args < 1) {
        fprintf(stderr, "Usage: halyard %s   (--help says more)\n", cli.usage);
        rc = HY_EXIT_USAGE;
    }
    if (rc < 0) {
        hy_buf query;
        char *name = request != NULL ? curl_easy_escape(NULL, request, 0) : NULL;
        hy_buf_init(&query);
        hy_buf_printf(&query, "/trace?n=%lu", n != NULL ? strtoul(n, NULL, 10) : HY_TRACE_MOST);
        if (name != NULL)
            hy_buf_printf(&query, "&request=%s", name);
        hy_log_set_level(HY_LOG_WARN);
        rc = run(&t, conf, &cli, hy_buf_str(&query), request, out) < 0 ? hy_cli_fail("trace")
                                                                       : HY_EXIT_OK;
        curl_free(name);
        hy_buf_fini(&query);
    }
    for (size_t i = 0; i < t.n; i++) {
        free(t.nodes[i].url);
        json_decref(t.nodes[i].page);
    }
    if (t.curl != NULL)
        curl_easy_cleanup(t.curl);
    hy_conf_destroy(conf);
    return rc;
}
