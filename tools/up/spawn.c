/* SPDX-License-Identifier: Apache-2.0
 *
 * Child processes and their files: run folder, lock, secret, logs.
 *
 * Thread: main.  Owner: see run_int.h.
 */
#include "tools/up/run_int.h"

#include "core/base/file.h"
#include "core/base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static hy_status make_secret(up *u)
{
    uint8_t bytes[32];
    char hex[2 * sizeof(bytes) + 2];
    struct stat st;
    hy_buf b;
    if (u->p->secret_file[0] != '\0') {
        u->secret = strdup(u->p->secret_file);
    } else {
        hy_buf_init(&b);
        hy_buf_printf(&b, "%s/secret", u->p->run_dir);
        u->secret = hy_buf_take(&b);
    }
    if (u->secret == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    if (u->p->secret_file[0] != '\0' || lstat(u->secret, &st) == 0)
        return hy_up_plan_secret(u->secret);
    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
        return hy_fail(HY_E_SYS, "no random numbers from the system");
    hy_hex(bytes, sizeof(bytes), hex);
    strcat(hex, "\n");
    return hy_file_write(u->secret, hex, strlen(hex), 0600);
}

hy_status hy_up__dir(up *u)
{
    struct stat st;
    hy_buf b;
    HY_TRY(hy_file_mkdirs(u->p->run_dir, 0700));
    if (lstat(u->p->run_dir, &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != getuid())
        return hy_fail(HY_E_DENIED, "[cluster] run_dir: %s is not a folder of yours",
                       u->p->run_dir);
    hy_buf_init(&b);
    hy_buf_printf(&b, "%s/lock", u->p->run_dir);
    u->lock = open(hy_buf_str(&b), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    hy_buf_fini(&b);
    if (u->lock < 0)
        return hy_fail(HY_E_IO, "%s/lock: %s", u->p->run_dir, strerror(errno));
    if (flock(u->lock, LOCK_EX | LOCK_NB) != 0)
        return hy_fail(HY_E_BUSY,
                       "cluster '%s' already runs from %s; stop it, or give this one another "
                       "[cluster] name or run_dir",
                       u->p->name, u->p->run_dir);
    return make_secret(u);
}

/* Only calls that are safe between fork and exec. */
static _Noreturn void become(const up_child *c, char *const *argv, int log, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    setpgid(0, 0); /* Ctrl-C at the terminal goes to the supervisor alone */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    int null = open("/dev/null", O_RDONLY);
    dup2(null, 0);
    dup2(log, 1);
    dup2(log, 2);
    execv(c->u->exe, argv);
    static const char text[] = "halyard up: the program cannot be run\n";
    ssize_t n = write(2, text, sizeof(text) - 1);
    (void)n;
    _exit(127);
}

hy_status hy_up__spawn(up_child *c)
{
    const hy_up_node *n = c->n;
    hy_status st = HY_OK;
    hy_buf name, secret;
    size_t argc = 0;
    char **argv = calloc(2 * n->n_sets + 10, sizeof(char *));
    int log = open(c->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    hy_buf_init(&name);
    hy_buf_init(&secret);
    hy_buf_printf(&name, "node.name=%s", n->name);
    hy_buf_printf(&secret, "cluster.secret_file=%s", c->u->secret);
    if (argv == NULL || name.failed || secret.failed)
        st = hy_fail(HY_E_NOMEM, "out of memory");
    else if (log < 0)
        st = hy_fail(HY_E_IO, "%s: %s", c->log, strerror(errno));
    if (st == HY_OK) {
        char o[] = "-o", serve[] = "serve";
        argv[argc++] = (char *)c->u->exe;
        argv[argc++] = serve;
        argv[argc++] = n->file;
        argv[argc++] = o;
        argv[argc++] = name.data;
        argv[argc++] = o;
        argv[argc++] = secret.data;
        if (n->links != NULL) {
            argv[argc++] = o;
            argv[argc++] = n->links;
        }
        for (size_t i = 0; i < n->n_sets; i++) {
            argv[argc++] = o;
            argv[argc++] = n->sets[i];
        }
        c->log_from = lseek(log, 0, SEEK_END);
        pid_t parent = getpid(), pid = fork();
        if (pid == 0)
            become(c, argv, log, parent);
        if (pid < 0)
            st = hy_fail(HY_E_SYS, "fork: %s", strerror(errno));
        else
            c->pid = pid;
    }
    if (log >= 0)
        close(log);
    free(argv);
    hy_buf_fini(&name);
    hy_buf_fini(&secret);
    return st;
}

static void read_log(const up_child *c, size_t most, bool tail, hy_buf *out)
{
    int fd = open(c->log, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    off_t end = lseek(fd, 0, SEEK_END), from = c->log_from;
    if (tail && end - from > (off_t)most)
        from = end - (off_t)most;
    if (hy_buf_reserve(out, most)) {
        ssize_t n = pread(fd, out->data, most, from);
        out->len = n > 0 ? (size_t)n : 0;
        out->data[out->len] = '\0';
    }
    close(fd);
}

bool hy_up__find_address(up_child *c)
{
    static const char mark[] = "serving http://";
    hy_buf b;
    hy_buf_init(&b);
    read_log(c, 256 << 10, false, &b);
    const char *p = b.data != NULL ? strstr(b.data, mark) : NULL;
    if (p != NULL) {
        p += sizeof(mark) - 1;
        size_t n = strcspn(p, "/ \n");
        const char *colon = memrchr(p, ':', n);
        long port = colon != NULL ? strtol(colon + 1, NULL, 10) : 0;
        size_t len = colon != NULL ? (size_t)(colon - p) : 0;
        if (len > 2 && *p == '[') { /* IPv6 */
            p++;
            len -= 2;
        }
        if (len > 0 && len < sizeof(c->host) && port > 0 && port < 65536) {
            snprintf(c->host, sizeof(c->host), "%.*s", (int)len, p);
            c->port = (int)port;
        }
    }
    hy_buf_fini(&b);
    return c->port != 0;
}

void hy_up__log_tail(const up_child *c, hy_buf *out)
{
    hy_buf b;
    hy_buf_init(&b);
    read_log(c, 2048, true, &b);
    while (b.len > 0 && b.data[b.len - 1] == '\n')
        b.len--;
    size_t from = b.len;
    for (int lines = 0; from > 0; from--)
        if (b.data[from - 1] == '\n' && ++lines == 3)
            break;
    hy_buf_add(out, b.data != NULL ? b.data + from : "", b.len - from);
    hy_buf_fini(&b);
}
