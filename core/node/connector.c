/* SPDX-License-Identifier: Apache-2.0
 *
 * The connector of a node from [connector], [fabric] and [cluster].
 *
 * Thread: main.  Owner: the caller destroys what is made.
 */
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/node/node_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* 32 hex digits at least, or any text of 16 bytes, in a file that only we may read. */
static hy_status read_secret(const hy_conf *c, hy_buf *out)
{
    const char *file = hy_conf_str(c, "cluster", "secret_file");
    struct stat info;
    if (*file == '\0')
        return hy_fail(HY_E_INVAL,
                       "[cluster] secret_file is needed by a node that talks to others: a file of "
                       "yours with at least 16 bytes (`halyard up` makes one)");
    if (stat(file, &info) == 0 && (info.st_mode & 077) != 0)
        return hy_fail(HY_E_DENIED,
                       "[cluster] secret_file: %s may be read by others (mode %04o): chmod 600",
                       file, (unsigned)info.st_mode & 07777);
    hy_status st = hy_file_read(file, 4096, out);
    if (st < 0)
        return hy_fail_in(st, "[cluster] secret_file: ");
    while (out->len > 0 && strchr(" \t\r\n", out->data[out->len - 1]) != NULL)
        out->data[--out->len] = '\0';
    if (out->len < HY_FAB_SECRET_MIN)
        return hy_fail(HY_E_INVAL, "[cluster] secret_file: %s holds %zu bytes, at least %d needed",
                       file, out->len, HY_FAB_SECRET_MIN);
    return HY_OK;
}

hy_status hy_node__check_secret(const hy_conf *c)
{
    hy_buf b;
    hy_buf_init(&b);
    const hy_status st = read_secret(c, &b);
    hy_buf_fini(&b);
    return st;
}

static void fabric_opts(const hy_conf *c, hy_fab_opts *f)
{
    f->heartbeat_ns = hy_conf_ns(c, "fabric", "heartbeat");
    f->peer_timeout_ns = hy_conf_ns(c, "fabric", "peer_timeout");
    f->connect_timeout_ns = hy_conf_ns(c, "fabric", "connect_timeout");
    f->op_timeout_ns = hy_conf_ns(c, "fabric", "op_timeout");
    f->stall_ns = hy_conf_ns(c, "fabric", "stall_timeout");
    f->grace_ns = hy_conf_ns(c, "fabric", "cancel_grace");
    f->piece_bytes = hy_conf_size(c, "fabric", "piece");
    f->window_bytes = hy_conf_size(c, "fabric", "window");
    f->strict = hy_conf_bool(c, "fabric", "strict");
    f->congestion = hy_conf_str(c, "fabric", "congestion");
    f->same_node = hy_conf_bool(c, "fabric", "same_node");
    const char *pull = hy_conf_str(c, "fabric", "pull");
    f->pull = strcmp(pull, "write") == 0  ? HY_FAB_PULL_WRITE
              : strcmp(pull, "read") == 0 ? HY_FAB_PULL_READ
                                          : HY_FAB_PULL_AUTO;
}

/* An address of all interfaces says nothing to others. */
static hy_status check_advertise(const char *listen, const char *advertise)
{
    if (*advertise == '\0' &&
        (strncmp(listen, "0.0.0.0:", 8) == 0 || strncmp(listen, "[::]:", 5) == 0))
        return hy_fail(HY_E_INVAL,
                       "[fabric] listen = %s: set [connector] advertise to the address "
                       "that other nodes reach",
                       listen);
    return HY_OK;
}

static hy_status listen_at(const hy_conf *c, hy_fab_opts *f)
{
    const size_t n = hy_conf_list_len(c, "fabric", "listen");
    if (n < 1 || n > HY_FAB_RAILS_MAX)
        return hy_fail(HY_E_INVAL, "[fabric] listen: 1 to %d addresses", HY_FAB_RAILS_MAX);
    for (size_t i = 0; i < n; i++)
        f->addrs[f->n_addrs++] = hy_conf_list_at(c, "fabric", "listen", i);
    return HY_OK;
}

static void wire_of(const char *name, hy_pd_opts *o)
{
    static const struct {
        const char *name;
        hy_dtype type;
    } wires[] = {{"f16", HY_F16},
                 {"bf16", HY_BF16},
                 {"int8", HY_I8},
                 {"fp8_e4m3fn", HY_F8_E4M3},
                 {"fp8_e4m3fnuz", HY_F8_E4M3FNUZ}};
    for (size_t i = 0; i < HY_COUNTOF(wires); i++)
        if (strcmp(name, wires[i].name) == 0) {
            o->has_wire = true;
            o->wire = wires[i].type;
        }
}

void hy_node__name(const hy_conf *c, char *out, size_t cap)
{
    snprintf(out, cap, "%s", hy_conf_str(c, "node", "name"));
    if (out[0] == '\0' && gethostname(out, cap - 1) != 0)
        snprintf(out, cap, "node");
    out[cap - 1] = '\0';
}

hy_status hy_node__connector_create(const hy_conf *c, hy_dev *dev, const hy_model *m,
                                    hy_act_mode act, int32_t max_waiting, hy_metrics *mx,
                                    hy_trace *t, hy_pd **out)
{
    hy_pd_opts o;
    hy_buf secret, providers, links;
    char name[HY_FAB_NODE_MAX] = "";
    int32_t windows[HY_KV_MAX_GROUPS];
    if (m->n_groups > HY_KV_MAX_GROUPS)
        return hy_fail(HY_E_UNSUPPORTED, "the model has %d cache groups, at most %d are supported",
                       m->n_groups, HY_KV_MAX_GROUPS);
    hy_pd_opts_init(&o);
    hy_buf_init(&secret);
    hy_buf_init(&providers);
    hy_buf_init(&links);
    for (int32_t g = 0; g < m->n_groups; g++)
        windows[g] = m->groups[g].window;
    fabric_opts(c, &o.fab);
    hy_node__name(c, name, sizeof(name));
    o.fab.node = name;
    for (size_t i = 0; i < hy_conf_list_len(c, "fabric", "providers"); i++)
        hy_buf_printf(&providers, "%s%s", i > 0 ? "," : "",
                      hy_conf_list_at(c, "fabric", "providers", i));
    o.fab.providers = hy_buf_str(&providers);
    for (size_t i = 0; i < hy_conf_list_len(c, "connector", "link"); i++)
        hy_buf_printf(&links, "%s%s", i > 0 ? "," : "", hy_conf_list_at(c, "connector", "link", i));
    o.links = hy_buf_str(&links);
    o.advertise = hy_conf_str(c, "connector", "advertise");
    o.dev = dev;
    o.n_groups = m->n_groups;
    o.windows = windows;
    memcpy(o.model, m->fingerprint, sizeof(o.model));
    o.act = (uint8_t)act;
    o.numerics = strcmp(hy_conf_str(c, "engine", "numerics"), "fast") == 0;
    o.lease_ns = hy_conf_ns(c, "connector", "lease");
    o.timeout_ns = hy_conf_ns(c, "connector", "timeout");
    o.grace_ns = hy_conf_ns(c, "connector", "grace");
    o.fail = strcmp(hy_conf_str(c, "connector", "on_failure"), "fail") == 0;
    o.verify = hy_conf_bool(c, "connector", "verify");
    o.accept_lossy = hy_conf_bool(c, "connector", "accept_lossy");
    wire_of(hy_conf_str(c, "connector", "wire"), &o);
    o.staging_bytes = hy_conf_size(c, "connector", "staging");
    o.max_waiting = max_waiting;
    o.metrics = mx;
    o.trace = t;
    hy_status st = listen_at(c, &o.fab);
    if (st == HY_OK)
        st = check_advertise(o.fab.addrs[0], o.advertise);
    if (st == HY_OK)
        st = read_secret(c, &secret);
    o.fab.secret = secret.data;
    o.fab.secret_len = secret.len;
    if (st == HY_OK)
        st = hy_pd_create(&o, out);
    if (st == HY_OK)
        hy_info("connector", "node %s: peers connect to %s", name, hy_pd_addrs(*out));
    hy_buf_fini(&secret);
    hy_buf_fini(&providers);
    hy_buf_fini(&links);
    return st;
}
