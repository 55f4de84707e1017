/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading a cluster file.
 *
 * Thread: main.  Owner: see plan.h.
 */
#include "tools/up/plan.h"

#include "core/base/file.h"
#include "core/node/role.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const hy_conf_key hy_up_keys[] = {
    {"cluster", "name", HY_CONF_STRING, "halyard", NULL, NULL, NULL,
     "Name of the cluster: of its folder, and in messages."},
    {"cluster", "run_dir", HY_CONF_PATH, "", NULL, NULL, NULL,
     "Folder of logs and of the secret; a relative one is beside the cluster file. Empty: NAME in "
     "$XDG_RUNTIME_DIR/halyard, else in /tmp/halyard-UID."},
    {"cluster", "start_timeout", HY_CONF_DURATION, "2m", "1s", "1h", NULL,
     "A node that is not up by then is reported as missing."},
    {"cluster", "stop_timeout", HY_CONF_DURATION, "30s", "100ms", "1h", NULL,
     "Time to finish running requests when the cluster stops; then processes are killed."},
    {"node.*", "file", HY_CONF_PATH, "", NULL, NULL, NULL,
     "The node's INI file, beside the cluster file or from the working folder."},
    {"node.*", "set", HY_CONF_LIST, "", NULL, NULL, NULL,
     "Overrides of the node's file: section.key=value, with commas between."},
    {"node.*", "restart", HY_CONF_ENUM, "on-failure", NULL, NULL, "never|on-failure|always",
     "What to do when the node's process ends."},
    {"node.*", "restart_backoff", HY_CONF_DURATION, "500ms", "10ms", "10m", NULL,
     "Pause before a restart; doubled each time in a row, up to 30 s."},
    {"node.*", "hang_timeout", HY_CONF_DURATION, "1m", "0s", "1d", NULL,
     "A node that worked and whose /health is not answered for so long hangs: it is killed and "
     "treated as one that died. In a restart it has [cluster] start_timeout, or four times its "
     "longest start, if that is longer. 0: never."},
    {"node.*", "max_restarts", HY_CONF_INT, "10", "0", "1000000", NULL,
     "Restarts in a row (less than a minute up in between) until the node is given up. 0: no "
     "limit."},
};
const size_t hy_up_n_keys = HY_COUNTOF(hy_up_keys);

static char *beside(const char *path, const char *file)
{
    const char *slash = strrchr(path, '/');
    hy_buf b;
    hy_buf_init(&b);
    if (slash != NULL && file[0] != '/')
        hy_buf_add(&b, path, (size_t)(slash + 1 - path));
    hy_buf_puts(&b, file);
    return hy_buf_take(&b);
}

/* A file or folder that the cluster file names; one that the command line names is from the working
 * folder, as there all are. */
static char *named(const hy_conf *c, const char *path, const char *key)
{
    const char *name = hy_conf_str(c, "cluster", key);
    const bool inside = strncmp(hy_conf_origin(c, "cluster", key), path, strlen(path)) == 0;
    return *name != '\0' && inside ? beside(path, name) : strdup(name);
}

static hy_status find_file(const hy_conf *c, const char *path, const char *section, hy_up_node *n)
{
    const char *file = hy_conf_str(c, section, "file");
    if (*file == '\0')
        return hy_fail(HY_E_INVAL, "[%s] file is missing: name the node's INI file", section);
    n->file = beside(path, file);
    if (n->file != NULL && !hy_file_exists(n->file) && hy_file_exists(file)) {
        free(n->file);
        n->file = strdup(file);
    }
    if (n->file == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    if (!hy_file_exists(n->file))
        return hy_fail(HY_E_NOTFOUND, "%s: [%s] file: there is no %s",
                       hy_conf_origin(c, section, "file"), section, n->file);
    return HY_OK;
}

/* Does it share KV, in which direction, and where do others connect to? */
static hy_status look_at_fabric(hy_up_node *n, const hy_conf *c)
{
    const char *kind = hy_conf_str(c, "connector", "kind"), *role = n->role;
    const bool both = strcmp(role, "both") == 0;
    if (strcmp(kind, "none") == 0)
        return HY_OK;
    n->takes = both || strcmp(role, "decode") == 0;
    n->gives = both || strcmp(role, "prefill") == 0;
    n->own_links = hy_conf_list_len(c, "connector", "link") > 0;
    n->kv_type = strdup(hy_conf_str(c, "kv", "type"));
    n->activations = strdup(hy_conf_str(c, "engine", "activations"));
    n->numerics = strdup(hy_conf_str(c, "engine", "numerics"));
    n->lossy = hy_conf_bool(c, "connector", "accept_lossy");
    if (n->kv_type == NULL || n->activations == NULL || n->numerics == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    if (!n->gives)
        return HY_OK;
    hy_buf b;
    hy_buf_init(&b);
    hy_buf_puts(&b, hy_conf_str(c, "connector", "advertise"));
    for (size_t i = 0; b.len == 0 || i > 0; i++) {
        if (i == hy_conf_list_len(c, "fabric", "listen"))
            break;
        hy_buf_printf(&b, "%s%s", i > 0 ? "," : "", hy_conf_list_at(c, "fabric", "listen", i));
    }
    for (size_t i = 0; i < b.len; i++)
        if (b.data[i] == ',')
            b.data[i] = '+';
    const bool any_port = b.len >= 2 && strcmp(b.data + b.len - 2, ":0") == 0;
    n->addrs = any_port ? NULL : hy_buf_take(&b);
    hy_buf_fini(&b);
    return any_port || n->addrs != NULL ? HY_OK : hy_fail(HY_E_NOMEM, "out of memory");
}

/* Links are made at start, so that they can be shown, and no request waits for one. */
static hy_status plan_links(hy_up_plan *p, hy_up_node *n)
{
    hy_buf b;
    if (!n->takes || n->own_links)
        return HY_OK;
    hy_buf_init(&b);
    for (size_t i = 0; i < p->n; i++) {
        const hy_up_node *x = &p->nodes[i];
        if (x == n || !x->gives || x->addrs == NULL)
            continue;
        hy_buf_printf(&b, "%s%s@%s", n->n_links > 0 ? "," : "connector.link=", x->name, x->addrs);
        n->n_links++;
    }
    n->links = n->n_links > 0 ? hy_buf_take(&b) : NULL;
    hy_buf_fini(&b);
    return n->n_links == 0 || n->links != NULL ? HY_OK : hy_fail(HY_E_NOMEM, "out of memory");
}

/* The node's own configuration: it must load, and say who the node is. */
static hy_status look_inside(hy_up_node *n, const hy_up_env *env)
{
    unsigned stages;
    hy_conf *c = env->make_conf();
    if (c == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    hy_status st = hy_conf_load_file(c, n->file);
    for (size_t i = 0; i < n->n_sets && st == HY_OK; i++) {
        st = hy_conf_set(c, n->sets[i]);
        if (st < 0)
            hy_fail_in(st, "set: ");
    }
    if (st == HY_OK)
        st = hy_role_stages(hy_conf_str(c, "node", "role"), &stages);
    if (st == HY_OK && env->check_node != NULL)
        st = env->check_node(c, &n->model);
    if (st == HY_OK) {
        n->role = strdup(hy_conf_str(c, "node", "role"));
        n->host = strdup(hy_conf_str(c, "http", "host"));
        n->port = (int)hy_conf_int(c, "http", "port");
        if (n->role == NULL || n->host == NULL)
            st = hy_fail(HY_E_NOMEM, "out of memory");
        else
            st = look_at_fabric(n, c);
    }
    if (st == HY_OK && strcmp(n->role, "router") == 0)
        st = hy_cluster_load(c, &n->peers);
    hy_conf_destroy(c);
    return st;
}

static bool is_name(const char *s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    return n > 0 && n <= 40 && s[n] == '\0' && s[0] != '.';
}

static hy_status make_node(const hy_conf *c, const char *path, const char *section,
                           const hy_up_env *env, hy_up_node *n)
{
    n->name = strdup(section + strlen("node."));
    n->n_sets = hy_conf_list_len(c, section, "set");
    n->sets = calloc(n->n_sets + 1, sizeof(char *));
    if (n->name == NULL || n->sets == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    if (!is_name(n->name))
        return hy_fail(HY_E_INVAL,
                       "[%s]: a node's name has letters, digits, '.', '_' and '-', at most 40",
                       section);
    for (size_t i = 0; i < n->n_sets; i++) {
        n->sets[i] = strdup(hy_conf_list_at(c, section, "set", i));
        if (n->sets[i] == NULL)
            return hy_fail(HY_E_NOMEM, "out of memory");
    }
    n->restart = (hy_up_restart)hy_conf_enum(c, section, "restart");
    n->backoff_ns = hy_conf_ns(c, section, "restart_backoff");
    n->max_restarts = (int)hy_conf_int(c, section, "max_restarts");
    n->hang_ns = hy_conf_ns(c, section, "hang_timeout");
    HY_TRY(find_file(c, path, section, n));
    hy_status st = look_inside(n, env);
    return st < 0 ? hy_fail_in(st, "[%s]: ", section) : HY_OK;
}

static hy_status check_ports(const hy_up_plan *p)
{
    for (size_t i = 0; i < p->n; i++)
        for (size_t j = 0; j < i; j++)
            if (p->nodes[i].port != 0 && p->nodes[i].port == p->nodes[j].port)
                return hy_fail(
                    HY_E_INVAL,
                    "[node.%s] and [node.%s] both want port %d: give one of them another "
                    "with set = http.port=N",
                    p->nodes[j].name, p->nodes[i].name, p->nodes[i].port);
    return HY_OK;
}

/* True: d can take KV from p; else a line says why not. */
static bool fits(const hy_up_node *d, const hy_up_node *p, hy_buf *out)
{
    const struct {
        const char *key, *d, *p;
        bool free;
    } same[] = {{"[engine] activations", d->activations, p->activations, false},
                {"[engine] numerics", d->numerics, p->numerics, false},
                {"[kv] type", d->kv_type, p->kv_type, d->lossy}};
    for (size_t i = 0; i < HY_COUNTOF(same); i++) {
        if (same[i].free || strcmp(same[i].d, same[i].p) == 0)
            continue;
        hy_buf_printf(out, "[node.%s] cannot take KV from [node.%s]: %s is %s there, %s here\n",
                      d->name, p->name, same[i].key, same[i].p, same[i].d);
        return false;
    }
    if (d->model != NULL && p->model != NULL && strcmp(d->model, p->model) != 0)
        hy_buf_printf(
            out,
            "[node.%s] takes KV from [node.%s] only if their weights are the same: [model] "
            "path is %s there, %s here\n",
            d->name, p->name, p->model, d->model);
    return true;
}

/* How many can give it KV, or (gives) take its; SIZE_MAX: there are none to ask. */
static size_t partners(const hy_up_plan *p, const hy_up_node *x, bool gives, hy_buf *out)
{
    size_t all = 0, good = 0;
    for (size_t i = 0; i < p->n; i++) {
        const hy_up_node *y = &p->nodes[i];
        if (y == x || !(gives ? y->takes : y->gives))
            continue;
        all++;
        good += gives ? fits(y, x, out) : fits(x, y, out);
    }
    return all > 0 ? good : SIZE_MAX;
}

hy_status hy_up_plan_pairs(const hy_up_plan *p, hy_buf *out)
{
    hy_status st = HY_OK;
    hy_buf again; /* each pair is told once, of who takes */
    hy_buf_init(&again);
    for (size_t i = 0; i < p->n; i++) {
        const hy_up_node *x = &p->nodes[i];
        if (x->takes && partners(p, x, false, out) == 0)
            st = hy_fail(HY_E_INVAL, "[node.%s] is left without a node to take KV from", x->name);
        if (x->gives && partners(p, x, true, &again) == 0 && st == HY_OK)
            st = hy_fail(HY_E_INVAL, "[node.%s] is left without a node to give KV to", x->name);
    }
    hy_buf_fini(&again);
    return st;
}

static char *default_dir(const char *name)
{
    const char *xdg = getenv("XDG_RUNTIME_DIR");
    hy_buf b;
    hy_buf_init(&b);
    if (xdg != NULL && xdg[0] == '/')
        hy_buf_printf(&b, "%s/halyard/%s", xdg, name);
    else
        hy_buf_printf(&b, "/tmp/halyard-%u/%s", (unsigned)getuid(), name);
    return hy_buf_take(&b);
}

/* Keys of nodes do not belong here: a slip that would be silent otherwise. */
static hy_status check_foreign(const hy_conf *c)
{
    const hy_conf_key *k;
    for (size_t i = 0; (k = hy_conf_key_at(c, i)) != NULL; i++) {
        if (strcmp(k->section, "cluster") == 0 || strchr(k->section, '*') != NULL)
            continue;
        if (hy_conf_is_set(c, k->section, k->key))
            return hy_fail(HY_E_INVAL,
                           "%s: [%s] %s is a key of a node: put it into the node's file, or into "
                           "its set = %s.%s=...",
                           hy_conf_origin(c, k->section, k->key), k->section, k->key, k->section,
                           k->key);
    }
    if (hy_conf_section_at(c, "peer.*", 0) != NULL)
        return hy_fail(HY_E_INVAL, "[%s] belongs in a node's file",
                       hy_conf_section_at(c, "peer.*", 0));
    return HY_OK;
}

hy_status hy_up_plan_secret(const char *file)
{
    struct stat st;
    if (lstat(file, &st) != 0)
        return hy_fail(HY_E_NOTFOUND, "[cluster] secret_file: there is no %s", file);
    if (!S_ISREG(st.st_mode) || st.st_uid != getuid() || (st.st_mode & 077) != 0)
        return hy_fail(HY_E_DENIED,
                       "%s must be a file of yours that nobody else can read: chmod 600", file);
    return HY_OK;
}

static hy_status make(const hy_conf *c, const char *path, const hy_up_env *env, hy_up_plan *p)
{
    const char *section;
    if (hy_conf_section_at(c, "node.*", 0) == NULL)
        return hy_fail(HY_E_INVAL,
                       "%s: a cluster file needs [node.NAME] sections (one node's own file is for "
                       "`halyard serve %s`)",
                       path, path);
    HY_TRY(check_foreign(c));
    p->name = strdup(hy_conf_str(c, "cluster", "name"));
    p->secret_file = named(c, path, "secret_file");
    p->run_dir = named(c, path, "run_dir");
    if (p->name == NULL || p->secret_file == NULL || p->run_dir == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    if (!is_name(p->name))
        return hy_fail(HY_E_INVAL, "[cluster] name has letters, digits, '.', '_' and '-' only");
    if (env->check_node != NULL && p->secret_file[0] != '\0')
        HY_TRY(hy_up_plan_secret(p->secret_file));
    if (p->run_dir[0] == '\0') {
        free(p->run_dir);
        p->run_dir = default_dir(p->name);
    }
    p->start_timeout_ns = hy_conf_ns(c, "cluster", "start_timeout");
    p->stop_timeout_ns = hy_conf_ns(c, "cluster", "stop_timeout");
    size_t n = 0;
    while (hy_conf_section_at(c, "node.*", n) != NULL)
        n++;
    p->nodes = calloc(n, sizeof(*p->nodes));
    if (p->run_dir == NULL || p->nodes == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    for (size_t i = 0; (section = hy_conf_section_at(c, "node.*", i)) != NULL; i++) {
        p->n = i + 1;
        HY_TRY(make_node(c, path, section, env, &p->nodes[i]));
    }
    for (size_t i = 0; i < p->n; i++)
        HY_TRY(plan_links(p, &p->nodes[i]));
    return check_ports(p);
}

hy_status hy_up_plan_make(const hy_conf *c, const char *path, const hy_up_env *env, hy_up_plan *out)
{
    hy_up_plan p = {0};
    hy_status st = make(c, path, env, &p);
    if (st < 0) {
        hy_up_plan_fini(&p);
        return st;
    }
    *out = p;
    return HY_OK;
}

void hy_up_plan_fini(hy_up_plan *p)
{
    for (size_t i = 0; i < p->n; i++) {
        hy_up_node *n = &p->nodes[i];
        for (size_t j = 0; j < n->n_sets && n->sets != NULL; j++)
            free(n->sets[j]);
        free(n->sets);
        free(n->name);
        free(n->file);
        free(n->role);
        free(n->host);
        free(n->addrs);
        free(n->links);
        free(n->model);
        free(n->kv_type);
        free(n->activations);
        free(n->numerics);
        hy_cluster_fini(&n->peers);
    }
    free(p->nodes);
    free(p->name);
    free(p->run_dir);
    free(p->secret_file);
    *p = (hy_up_plan){0};
}
