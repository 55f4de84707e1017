/* SPDX-License-Identifier: Apache-2.0
 *
 * The supervisor. Every change is one line on standard output; when all nodes are up, or the start
 * timeout has passed, a table says who is there and who is missing.
 *
 * Thread: main, in libevent's loop.  Owner: see run.h.
 */
#include "tools/up/run_int.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define POLL_STARTING (100 * HY_MS)
#define GUESS_AFTER   (3 * HY_SEC)
#define POLL_UP       (1 * HY_SEC)
#define PROBE_TIMEOUT (5 * HY_SEC)
#define MAX_BACKOFF   (30 * HY_SEC)
#define LINK_WAIT     (5 * HY_SEC) /* for links, before the table is shown without them */
#define LINK_POLL     (5 * HY_SEC)
#define STEADY        (60 * HY_SEC) /* up for so long: the next death is a first one again */
enum { MISSES = 3, SLOWER = 4 };    /* so much slower than before a restart may be */

static void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("halyard up: ", stdout);
    vprintf(fmt, ap);
    fputc('\n', stdout);
    fflush(stdout);
    va_end(ap);
}

static uint64_t now_ns(void)
{
    return hy_clock_now_ns(hy_clock_real());
}

static double seconds_since(uint64_t t)
{
    return (double)(now_ns() - t) / 1e9;
}

static void after(struct event *e, uint64_t ns)
{
    struct timeval tv = {(time_t)(ns / HY_SEC), (suseconds_t)(ns % HY_SEC / HY_US)};
    event_add(e, &tv);
}

static bool is_router(const up_child *c)
{
    return strcmp(c->n->role, "router") == 0;
}

/* ---- the table ---- */

static void say_all_up(up *u)
{
    u->told_all = true;
    say("%s: all %zu nodes are up after %.1f s; Ctrl-C stops them", u->p->name, u->p->n,
        seconds_since(u->t0_ns));
}

/* Requests that will not go where the file's reader thinks. */
static void say_peers(const up *u)
{
    hy_buf b;
    char *save = NULL;
    hy_buf_init(&b);
    hy_up_plan_peers(u->p, &b);
    for (char *line = b.data != NULL ? strtok_r(b.data, "\n", &save) : NULL; line != NULL;
         line = strtok_r(NULL, "\n", &save))
        say("%s: warning: %s", u->p->name, line);
    hy_buf_fini(&b);
}

static void show_table(up *u)
{
    size_t up_n = 0, refused = 0;
    hy_buf b;
    hy_buf_init(&b);
    hy_up__table(u, &b);
    fputs(hy_buf_str(&b), stdout);
    hy_buf_fini(&b);
    u->table_shown = true;
    for (size_t i = 0; i < u->p->n; i++)
        up_n += u->kids[i].state == UP_RUNNING;
    for (size_t i = 0; i < u->p->n; i++)
        for (size_t k = 0; k < u->kids[i].n->n_links; k++)
            refused += strcmp(u->kids[i].links[k].state, "refused") == 0;
    if (refused > 0)
        say("%s: warning: %zu link%s refused (see the table): requests between those nodes are "
            "computed twice",
            u->p->name, refused, refused > 1 ? "s are" : " is");
    say_peers(u);
    if (up_n == u->p->n)
        say_all_up(u);
    else
        say("%s: %zu of %zu nodes are up after %.1f s", u->p->name, up_n, u->p->n,
            seconds_since(u->t0_ns));
}

/* After every change. The table comes when all is there; for links it waits a little only. */
static void changed(up *u)
{
    bool all = true;
    for (size_t i = 0; i < u->p->n; i++)
        all = all && u->kids[i].state == UP_RUNNING;
    if (!all)
        u->all_up_ns = 0;
    else if (u->all_up_ns == 0)
        u->all_up_ns = now_ns();
    if (all && !u->table_shown && (hy_up__linked(u) || now_ns() - u->all_up_ns > LINK_WAIT))
        show_table(u);
    if (all && u->table_shown && !u->told_all) /* it was shown with some missing */
        say_all_up(u);
    hy_up__save_state(u);
}

/* ---- stopping ---- */

static bool any_alive(const up *u, bool routers)
{
    for (size_t i = 0; i < u->p->n; i++)
        if (u->kids[i].pid != 0 && is_router(&u->kids[i]) == routers)
            return true;
    return false;
}

static void signal_all(up *u, bool routers, int sig)
{
    for (size_t i = 0; i < u->p->n; i++)
        if (u->kids[i].pid != 0 && is_router(&u->kids[i]) == routers)
            kill(u->kids[i].pid, sig);
}

/* Routers first, so that nobody sends to a node that drains. */
static void stop_on(up *u)
{
    if (u->stopping == 1 && !any_alive(u, true)) {
        u->stopping = 2;
        signal_all(u, false, SIGINT);
    }
    if (!any_alive(u, true) && !any_alive(u, false))
        event_base_loopbreak(u->base);
}

static void kill_rest(up *u, const char *why)
{
    if (u->stopping < 3)
        say("%s: the rest is killed", why);
    u->stopping = 3;
    signal_all(u, true, SIGKILL);
    signal_all(u, false, SIGKILL);
    stop_on(u);
}

static void stop(up *u)
{
    if (u->stopping != 0)
        return;
    u->stopping = 1;
    for (size_t i = 0; i < u->p->n; i++) {
        hy_client_cancel(u->kids[i].probe);
        u->kids[i].probe = NULL;
        event_del(u->kids[i].timer);
    }
    signal_all(u, true, SIGINT);
    after(u->deadline, u->p->stop_timeout_ns);
    stop_on(u);
}

static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
    up *u = arg;
    (void)fd;
    (void)what;
    if (u->stopping != 0)
        kill_rest(u, "not done in [cluster] stop_timeout");
    else if (!u->table_shown)
        show_table(u);
}

static void on_stop(evutil_socket_t fd, short what, void *arg)
{
    up *u = arg;
    (void)fd;
    (void)what;
    if (u->stopping != 0) {
        kill_rest(u, "asked again");
        return;
    }
    say("stopping: routers first, then the nodes; running requests end (again: kill)");
    stop(u);
}

/* ---- one node ---- */

static void give_up(up_child *c, const char *why)
{
    up *u = c->u;
    hy_buf b;
    hy_buf_init(&b);
    hy_up__log_tail(c, &b);
    c->state = UP_FAILED;
    u->failed = true;
    say("%s has failed for good: %s. Its last words (%s):\n%s", c->n->name, why, c->log,
        hy_buf_str(&b));
    hy_buf_fini(&b);
    changed(u);
    if (!c->was_up) { /* it never worked: a wrong file, a port in use */
        say("stopping the others");
        stop(u);
    }
}

static void start(up_child *c)
{
    c->state = UP_STARTING;
    c->port = 0;
    c->guessed = false;
    c->misses = 0;
    c->started_ns = c->mute_ns = now_ns();
    if (hy_up__spawn(c) < 0) {
        give_up(c, hy_fail_text());
        return;
    }
    changed(c->u);
    after(c->timer, POLL_STARTING);
}

static void is_up(up_child *c)
{
    const uint64_t took = now_ns() - c->started_ns;
    hy_buf url;
    hy_buf_init(&url);
    hy_buf_put_url(&url, c->host, c->port);
    if (c->state == UP_STARTING)
        say("%s (%s) is up at %s, pid %d, after %.1f s", c->n->name, c->n->role, hy_buf_str(&url),
            (int)c->pid, (double)took / 1e9);
    else if (c->state == UP_SILENT)
        say("%s answers again", c->n->name);
    hy_buf_fini(&url);
    if (c->state == UP_STARTING && took > c->longest_ns)
        c->longest_ns = took;
    const bool news = c->state != UP_RUNNING;
    if (news)
        c->up_ns = now_ns();
    c->state = UP_RUNNING;
    c->was_up = true;
    c->misses = 0;
    c->mute_ns = 0;
    if (news || !c->u->table_shown)
        changed(c->u);
}

/* A process that answers nothing at all, not even an error, is no use to anybody. Starting again it
 * has as long as any first start, and more when it was known to be slow. */
static void check_hang(up_child *c)
{
    uint64_t limit = c->n->hang_ns;
    if (limit == 0 || !c->was_up || c->mute_ns == 0 || c->pid == 0)
        return;
    if (c->state == UP_STARTING) {
        limit = limit > c->u->p->start_timeout_ns ? limit : c->u->p->start_timeout_ns;
        limit = limit > SLOWER * c->longest_ns ? limit : SLOWER * c->longest_ns;
    }
    if (now_ns() - c->mute_ns < limit)
        return;
    say("%s hangs%s: /health was not answered for %.1f s; it is killed", c->n->name,
        c->state == UP_STARTING ? " in its restart" : "", seconds_since(c->mute_ns));
    kill(c->pid, SIGKILL); /* died() does the rest */
    c->mute_ns = now_ns();
}

/* mute: not even an error was answered. */
static void missed(up_child *c, const char *why, bool mute)
{
    if (!mute)
        c->mute_ns = 0;
    else if (c->mute_ns == 0)
        c->mute_ns = c->probe_ns;
    if (c->state == UP_RUNNING && ++c->misses >= MISSES) {
        c->state = UP_SILENT;
        say("%s does not answer: %s", c->n->name, why);
        changed(c->u);
    }
    check_hang(c);
}

static void on_head(void *arg, const hy_wire_head *head)
{
    up_child *c = arg;
    c->probe_status = head->status;
}

static void on_body(void *arg, struct evbuffer *piece)
{
    (void)arg;
    (void)piece;
}

static void ask(up_child *c, const char *target, const hy_client_ops *ops);

/* ---- its links ---- */

static void on_links_body(void *arg, struct evbuffer *piece)
{
    up_child *c = arg;
    const size_t n = evbuffer_get_length(piece);
    if (c->answer.len + n > (1 << 20) || !hy_buf_reserve(&c->answer, n))
        return;
    evbuffer_copyout(piece, c->answer.data + c->answer.len, n);
    c->answer.len += n;
    c->answer.data[c->answer.len] = '\0';
}

static void on_links_end(void *arg, hy_client_fate fate, const char *why)
{
    up_child *c = arg;
    (void)why;
    c->probe = NULL;
    if (fate == HY_CLIENT_DONE && c->probe_status == 200 && hy_up__take_links(c))
        changed(c->u);
    after(c->timer, c->u->table_shown ? POLL_UP : POLL_STARTING);
}

static bool wants_links(const up_child *c)
{
    return c->n->n_links > 0 && c->state == UP_RUNNING &&
           (!c->u->table_shown || !hy_up__child_linked(c) || now_ns() - c->asked_ns > LINK_POLL);
}

static void ask_links(up_child *c)
{
    static const hy_client_ops ops = {on_head, on_links_body, on_links_end};
    c->asked_ns = now_ns();
    hy_buf_clear(&c->answer);
    ask(c, "/links", &ops);
}

static void on_end(void *arg, hy_client_fate fate, const char *why)
{
    up_child *c = arg;
    char text[64];
    c->probe = NULL;
    snprintf(text, sizeof(text), "/health answers %d", c->probe_status);
    if (fate == HY_CLIENT_DONE && c->probe_status == 200)
        is_up(c);
    else
        missed(c, fate == HY_CLIENT_DONE ? text : why, fate != HY_CLIENT_DONE);
    if (wants_links(c))
        ask_links(c);
    else
        after(c->timer, c->state == UP_STARTING ? POLL_STARTING : POLL_UP);
}

static void ask(up_child *c, const char *target, const hy_client_ops *ops)
{
    const uint64_t hang = c->n->hang_ns;
    const uint64_t most = hang != 0 && hang < PROBE_TIMEOUT ? hang : PROBE_TIMEOUT;
    bool any4 = strcmp(c->host, "0.0.0.0") == 0, any6 = strcmp(c->host, "::") == 0;
    hy_client_req q = {
        .host = any4   ? "127.0.0.1"
                : any6 ? "::1"
                       : c->host,
        .port = c->port,
        .method = "GET",
        .target = target,
        .head_timeout_ns = most,
        .stall_timeout_ns = most,
        .fresh = true,
        .ops = *ops,
        .arg = c,
    };
    c->probe_status = 0;
    c->probe_ns = now_ns();
    if (hy_client_send(c->u->client, &q, &c->probe) < 0)
        after(c->timer, POLL_UP);
}

static void probe(up_child *c)
{
    static const hy_client_ops ops = {on_head, on_body, on_end};
    ask(c, "/health", &ops);
}

/* From its log. A log that cannot be written (the disk is full) tells nothing: then the address
 * that the file gives, but not of a process so young that it may yet find the port in use and end.
 */
static bool know_address(up_child *c)
{
    if (c->port != 0 && !c->guessed)
        return true;
    c->port = 0;
    c->guessed = false;
    if (hy_up__find_address(c))
        return true;
    if (c->n->port == 0 || now_ns() - c->started_ns < GUESS_AFTER)
        return false;
    snprintf(c->host, sizeof(c->host), "%s", c->n->host);
    c->port = c->n->port;
    c->guessed = true;
    return true;
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    up_child *c = arg;
    (void)fd;
    (void)what;
    if (c->u->stopping != 0 || c->probe != NULL)
        return;
    if (c->state == UP_PAUSE) {
        start(c);
    } else if (c->state == UP_STARTING && !know_address(c)) {
        check_hang(c);
        after(c->timer, POLL_STARTING);
    } else {
        probe(c);
    }
}

static void describe_end(int status, char *out, size_t room)
{
    if (WIFSIGNALED(status))
        snprintf(out, room, "killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(out, room, "exit status %d", WEXITSTATUS(status));
}

/* Asked to stop, it ended in another way. A signal to end may meet one that is not ready for it. */
static bool crashed(const up *u, int status)
{
    const int sig = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    return u->stopping < 3 && status != 0 && sig != SIGINT && sig != SIGTERM;
}

static void died(up_child *c, int status)
{
    const hy_up_node *n = c->n;
    char how[96];
    bool clean = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    describe_end(status, how, sizeof(how));
    hy_client_cancel(c->probe);
    c->probe = NULL;
    event_del(c->timer);
    c->pid = 0;
    hy_up__links_lost(c->u, n->name);
    if (c->u->stopping != 0) {
        say("%s has stopped (%s)", n->name, how);
        c->state = UP_ENDED;
        if (crashed(c->u, status))
            c->u->failed = true;
        return;
    }
    if (c->state == UP_RUNNING && now_ns() - c->up_ns > STEADY)
        c->restarts = 0;
    bool again = n->restart == HY_UP_ALWAYS || (n->restart == HY_UP_ON_FAILURE && !clean);
    if (!c->was_up && !clean) {
        give_up(c, how);
    } else if (!again && clean) {
        say("%s has ended", n->name);
        c->state = UP_ENDED;
        changed(c->u);
    } else if (!again || (n->max_restarts != 0 && c->restarts >= n->max_restarts)) {
        give_up(c, how);
    } else {
        uint64_t pause = n->backoff_ns;
        for (int i = 0; i < c->restarts && pause < MAX_BACKOFF; i++)
            pause *= 2;
        pause = pause < MAX_BACKOFF ? pause : MAX_BACKOFF;
        c->restarts++;
        c->state = UP_PAUSE;
        changed(c->u);
        say("%s died: %s; restart %d in %.1f s", n->name, how, c->restarts, (double)pause / 1e9);
        after(c->timer, pause);
    }
}

static void on_child(evutil_socket_t fd, short what, void *arg)
{
    up *u = arg;
    (void)fd;
    (void)what;
    for (size_t i = 0; i < u->p->n; i++) {
        up_child *c = &u->kids[i];
        int status;
        if (c->pid != 0 && waitpid(c->pid, &status, WNOHANG) == c->pid)
            died(c, status);
    }
    bool left = false;
    for (size_t i = 0; i < u->p->n; i++)
        left = left || u->kids[i].pid != 0 || u->kids[i].state == UP_PAUSE;
    if (u->stopping != 0)
        stop_on(u);
    else if (!left)
        event_base_loopbreak(u->base);
}

/* ---- all of it ---- */

static hy_status make_loop(up *u)
{
    u->base = event_base_new();
    if (u->base == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    hy_client_opts o = {.base = u->base};
    HY_TRY(hy_client_create(&o, &u->client));
    u->sigs[0] = evsignal_new(u->base, SIGINT, on_stop, u);
    u->sigs[1] = evsignal_new(u->base, SIGTERM, on_stop, u);
    u->sigs[2] = evsignal_new(u->base, SIGCHLD, on_child, u);
    u->deadline = event_new(u->base, -1, 0, on_deadline, u);
    for (size_t i = 0; i < HY_COUNTOF(u->sigs); i++)
        if (u->sigs[i] == NULL || event_add(u->sigs[i], NULL) != 0)
            return hy_fail(HY_E_NOMEM, "out of memory");
    if (u->deadline == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    after(u->deadline, u->p->start_timeout_ns);
    return HY_OK;
}

static hy_status make_kids(up *u)
{
    u->kids = calloc(u->p->n, sizeof(*u->kids));
    if (u->kids == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    for (size_t i = 0; i < u->p->n; i++) {
        up_child *c = &u->kids[i];
        hy_buf b;
        hy_buf_init(&b);
        hy_buf_printf(&b, "%s/%s.log", u->p->run_dir, u->p->nodes[i].name);
        c->u = u;
        c->n = &u->p->nodes[i];
        c->log = hy_buf_take(&b);
        c->timer = event_new(u->base, -1, 0, on_timer, c);
        if (c->log == NULL || c->timer == NULL)
            return hy_fail(HY_E_NOMEM, "out of memory");
        HY_TRY(hy_up__links_init(c));
    }
    return HY_OK;
}

static void up_fini(up *u)
{
    for (size_t i = 0; u->kids != NULL && i < u->p->n; i++) {
        hy_client_cancel(u->kids[i].probe);
        if (u->kids[i].timer != NULL)
            event_free(u->kids[i].timer);
        free(u->kids[i].log);
        free(u->kids[i].links);
        hy_buf_fini(&u->kids[i].answer);
    }
    free(u->kids);
    hy_client_destroy(u->client);
    for (size_t i = 0; i < HY_COUNTOF(u->sigs); i++)
        if (u->sigs[i] != NULL)
            event_free(u->sigs[i]);
    if (u->deadline != NULL)
        event_free(u->deadline);
    if (u->base != NULL)
        event_base_free(u->base);
    if (u->lock >= 0)
        close(u->lock);
    free(u->secret);
    hy_buf_fini(&u->saved);
}

int hy_up_run(const hy_up_plan *p, const char *exe)
{
    up u = {.p = p, .exe = exe, .lock = -1, .t0_ns = now_ns()};
    hy_status st = hy_up__dir(&u);
    if (st == HY_OK)
        st = make_loop(&u);
    if (st == HY_OK)
        st = make_kids(&u);
    if (st == HY_OK) {
        signal(SIGPIPE, SIG_IGN);
        say("%s: %zu nodes, logs in %s", p->name, p->n, p->run_dir);
        for (size_t i = 0; i < p->n && u.stopping == 0; i++)
            start(&u.kids[i]);
        if (u.stopping == 0 || any_alive(&u, true) || any_alive(&u, false))
            event_base_dispatch(u.base);
        say(u.failed ? "%s has stopped; a node had failed" : "%s has stopped", p->name);
    } else {
        fprintf(stderr, "halyard up: %s\n", hy_fail_text());
    }
    up_fini(&u);
    return st == HY_OK && !u.failed ? 0 : 1;
}
