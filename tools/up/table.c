/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of nodes and links, the file that holds it for other processes, and who reads that.
 *
 *   NODE ROLE STATE PID RESTARTS ADDRESS LOG      a line for each node
 *   LINK STATE PATH                               a line for each node that one gets KV from
 *
 * Thread: main.  Owner: see run_int.h.
 */
#include "tools/up/run_int.h"

#include "core/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

static const char *state_name(up_state s)
{
    static const char *const names[] = {"starting",   "up",    "silent",
                                        "restarting", "ended", "failed"};
    return names[s];
}

void hy_up__table(const up *u, hy_buf *out)
{
    bool any = false;
    hy_buf_printf(out, "%-12s %-8s %-10s %8s %8s  %-28s %s\n", "NODE", "ROLE", "STATE", "PID",
                  "RESTARTS", "ADDRESS", "LOG");
    for (size_t i = 0; i < u->p->n; i++) {
        const up_child *c = &u->kids[i];
        hy_buf address;
        hy_buf_init(&address);
        if (c->port != 0)
            hy_buf_put_url(&address, c->host, c->port);
        else
            hy_buf_putc(&address, '-');
        hy_buf_printf(out, "%-12s %-8s %-10s %8d %8d  %-28s %s\n", c->n->name, c->n->role,
                      state_name(c->state), (int)c->pid, c->restarts, hy_buf_str(&address), c->log);
        hy_buf_fini(&address);
        any = any || c->n->n_links > 0;
    }
    if (any)
        hy_buf_printf(out, "%-25s %-10s %s\n", "LINK", "STATE", "PATH");
    for (size_t i = 0; i < u->p->n; i++) {
        const up_child *c = &u->kids[i];
        for (size_t k = 0; k < c->n->n_links; k++) {
            char name[96];
            snprintf(name, sizeof(name), "%s <- %s", c->n->name, c->links[k].peer);
            hy_buf_printf(out, "%-25s %-10s %s\n", name,
                          c->state == UP_RUNNING ? c->links[k].state : "missing",
                          c->state == UP_RUNNING ? c->links[k].text : "the node is not up");
        }
    }
}

static void state_path(const hy_up_plan *p, const char *file, hy_buf *out)
{
    hy_buf_init(out);
    hy_buf_printf(out, "%s/%s", p->run_dir, file);
}

void hy_up__save_state(up *u)
{
    hy_buf path, text;
    hy_buf_init(&text);
    hy_up__table(u, &text);
    if (text.failed || (u->saved.len == text.len &&
                        memcmp(hy_buf_str(&u->saved), hy_buf_str(&text), text.len) == 0)) {
        hy_buf_fini(&text);
        return;
    }
    state_path(u->p, "state", &path);
    const bool lost = !path.failed && hy_file_write(path.data, text.data, text.len, 0600) < 0;
    if (lost) { /* an old table would be a wrong one */
        if (!u->state_lost)
            fprintf(stderr, "halyard up: %s; --status is not available\n", hy_fail_text());
        (void)unlink(path.data);
        hy_buf_clear(&text);
    }
    u->state_lost = lost;
    hy_buf_fini(&path);
    hy_buf_fini(&u->saved);
    u->saved = text;
}

/* ---- links ---- */

hy_status hy_up__links_init(up_child *c)
{
    hy_buf_init(&c->answer);
    c->links = calloc(c->n->n_links + 1, sizeof(*c->links));
    if (c->links == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    const char *s = c->n->links != NULL ? strchr(c->n->links, '=') + 1 : "";
    for (size_t i = 0; i < c->n->n_links; i++) {
        up_link *l = &c->links[i];
        snprintf(l->peer, sizeof(l->peer), "%.*s", (int)strcspn(s, "@"), s);
        snprintf(l->state, sizeof(l->state), "missing");
        s += strcspn(s, ",");
        s += *s == ',';
    }
    return HY_OK;
}

static up_link *link_to(up_child *c, const char *peer)
{
    for (size_t i = 0; i < c->n->n_links; i++)
        if (strcmp(c->links[i].peer, peer) == 0)
            return &c->links[i];
    return NULL;
}

bool hy_up__take_links(up_child *c)
{
    json_t *o = json_loadb(hy_buf_str(&c->answer), c->answer.len, 0, NULL);
    const json_t *list = json_object_get(o, "links");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *x = json_array_get(list, i);
        const char *peer = json_string_value(json_object_get(x, "peer"));
        const char *state = json_string_value(json_object_get(x, "state"));
        const char *path = json_string_value(json_object_get(x, "path"));
        const char *copy = json_string_value(json_object_get(x, "copy"));
        const char *why = json_string_value(json_object_get(x, "why"));
        up_link *l = peer != NULL && state != NULL ? link_to(c, peer) : NULL;
        if (l == NULL || path == NULL || copy == NULL || why == NULL)
            continue;
        snprintf(l->state, sizeof(l->state), "%s", state);
        if (strcmp(state, "up") == 0)
            snprintf(l->text, sizeof(l->text), "%s; %s", path, copy);
        else
            snprintf(l->text, sizeof(l->text), "%s", why);
    }
    const bool ok = json_is_array(list);
    json_decref(o);
    return ok;
}

bool hy_up__child_linked(const up_child *c)
{
    for (size_t k = 0; k < c->n->n_links; k++)
        if (strcmp(c->links[k].state, "up") != 0)
            return false;
    return true;
}

bool hy_up__linked(const up *u)
{
    for (size_t i = 0; i < u->p->n; i++)
        if (!hy_up__child_linked(&u->kids[i]))
            return false;
    return true;
}

void hy_up__links_lost(up *u, const char *name)
{
    for (size_t i = 0; i < u->p->n; i++) {
        const bool own =
            strcmp(u->kids[i].n->name, name) == 0; /* what it said is of its last life */
        for (size_t k = 0; k < u->kids[i].n->n_links; k++) {
            up_link *l = &u->kids[i].links[k];
            if (!own && strcmp(l->peer, name) != 0)
                continue;
            snprintf(l->state, sizeof(l->state), own ? "missing" : "down");
            snprintf(l->text, sizeof(l->text), "%s has died", name);
        }
    }
}

/* ---- other processes ---- */

/* Its supervisor holds the lock. */
static hy_status read_state(const hy_up_plan *p, hy_buf *out)
{
    hy_buf path;
    state_path(p, "lock", &path);
    const int fd = path.failed ? -1 : open(path.data, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    const bool runs = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (fd >= 0)
        close(fd);
    hy_buf_fini(&path);
    if (!runs)
        return hy_fail(HY_E_NOTFOUND, "cluster '%s' does not run from %s", p->name, p->run_dir);
    state_path(p, "state", &path);
    hy_status st =
        path.failed ? hy_fail(HY_E_NOMEM, "out of memory") : hy_file_read(path.data, 1 << 20, out);
    if (st == HY_E_NOTFOUND)
        st = hy_fail(st, "cluster '%s' runs, but its table %s is not there: is the disk full?",
                     p->name, path.data);
    hy_buf_fini(&path);
    return st;
}

int hy_up_status(const hy_up_plan *p)
{
    hy_buf b;
    hy_buf_init(&b);
    if (read_state(p, &b) < 0) {
        fprintf(stderr, "halyard up: %s\n", hy_fail_text());
        hy_buf_fini(&b);
        return 1;
    }
    fputs(hy_buf_str(&b), stdout);
    size_t n = 0, up_n = 0;
    for (char *save = NULL, *line = strtok_r(b.data, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        const char *state = strstr(line, " <- ");
        char word[16] = "";
        if (strncmp(line, "NODE ", 5) == 0 || strncmp(line, "LINK ", 5) == 0)
            continue;
        if (sscanf(state != NULL ? state + 4 : line, state != NULL ? "%*s %15s" : "%*s %*s %15s",
                   word) == 1)
            up_n += strcmp(word, "up") == 0;
        n++;
    }
    hy_buf_fini(&b);
    printf("halyard up: %s: %zu of %zu nodes and links are up\n", p->name, up_n, n);
    return up_n == n ? 0 : 1;
}

hy_status hy_up_urls(const hy_up_plan *p, hy_buf *out)
{
    hy_buf b;
    hy_buf_init(&b);
    const hy_status st = read_state(p, &b);
    if (st == HY_OK)
        for (char *save = NULL, *line = strtok_r(b.data, "\n", &save); line != NULL;
             line = strtok_r(NULL, "\n", &save)) {
            char url[160];
            if (sscanf(line, "%*s %*s %*s %*d %*d %159s", url) == 1 &&
                strncmp(url, "http://", 7) == 0)
                hy_buf_printf(out, "%s\n", url);
        }
    hy_buf_fini(&b);
    return st;
}
