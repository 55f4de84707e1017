/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU module's host code against the double of its vendor's library: what it says when there is
 * no device, order across queues at many seeds, graphs, memory for others, every call failing in
 * every way. And that the double would notice: faults are planted, each in a process of its own,
 * and must be caught.
 *
 * HY_TEST_BACKEND, HY_TEST_DRIVER, HY_TEST_BLAS: which. Thread: main.  Owner: each test.
 */
#include "hal/backend.h"
#include "hal/registry.h"
#include "tests/double/sim.h"
#include "tests/thin.h"
#include "tests/unit/cm.h"

#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 64, ROUNDS = 3, CHAIN = 11, BYTES = N * 4 };

static const char *backend, *driver, *gemm_library;

/* ---- the double ---- */

static void (*set)(const sim_plan *);
static int (*calls)(void);
static int (*faults)(void);
static int (*runs)(const char *);
static void (*revive)(void);
static int (*gemms)(void);
static const char *(*fault_at)(void);

static void *symbol(void *lib, const char *name)
{
    void *p = dlsym(lib, name);
    assert_non_null(p);
    return p;
}

static void find_double(void)
{
    void *lib = dlopen(driver, RTLD_NOW | RTLD_LOCAL); /* the module's own copy */
    assert_non_null(lib);
    void *f[] = {symbol(lib, "sim_set"),     symbol(lib, "sim_calls"),  symbol(lib, "sim_faults"),
                 symbol(lib, "sim_runs"),    symbol(lib, "sim_revive"), symbol(lib, "sim_gemms"),
                 symbol(lib, "sim_fault_at")};
    memcpy(&set, &f[0], sizeof(f[0]));
    memcpy(&calls, &f[1], sizeof(f[1]));
    memcpy(&faults, &f[2], sizeof(f[2]));
    memcpy(&runs, &f[3], sizeof(f[3]));
    memcpy(&revive, &f[4], sizeof(f[4]));
    memcpy(&gemms, &f[5], sizeof(f[5]));
    memcpy(&fault_at, &f[6], sizeof(f[6]));
}

static hy_status try_open(const char *path, hy_dev **out)
{
    char kv[600];
    const char *list[] = {kv, NULL};
    snprintf(kv, sizeof(kv), "driver=%s", path);
    hy_dev_opts o = {.backend = backend, .kv = list};
    return hy_dev_open(&o, out);
}

/* ---- a flow over two queues ---- */

typedef struct flow {
    hy_dev *d;
    hy_queue *p, *q;
    hy_event *made, *used;
    float in[ROUNDS][N], out[ROUNDS][N];
    struct {
        float value, lse, fresh[2][N];
        int32_t id;
    } got;
    bool pinned[3];
    float *x, *y, *z;
    bool no_wait; /* the flow itself forgets one */
} flow;

static hy_status add(hy_queue *q, const float *a, const float *b, float *y)
{
    hy_add op = {
        .a = a, .b = b, .y = y, .lda = N, .ldb = N, .ldy = N, .m = 1, .dim = N, .b_scale = 1.0f};
    return q->dev->math->add(q, &op);
}

static hy_status alloc(hy_dev *d, float **out)
{
    void *p = NULL;
    HY_TRY(d->ops->alloc(d, BYTES, &p));
    *out = p;
    return HY_OK;
}

static hy_status prepare(flow *f)
{
    const hy_dev_ops *o = f->d->ops;
    HY_TRY(o->queue_create(f->d, &f->p));
    HY_TRY(o->queue_create(f->d, &f->q));
    HY_TRY(o->event_create(f->d, &f->made));
    HY_TRY(o->event_create(f->d, &f->used));
    HY_TRY(alloc(f->d, &f->x));
    HY_TRY(alloc(f->d, &f->y));
    HY_TRY(alloc(f->d, &f->z));
    HY_TRY(o->host_register(f->d, f->in, sizeof(f->in)));
    f->pinned[0] = true;
    HY_TRY(o->host_register(f->d, f->out, sizeof(f->out)));
    f->pinned[1] = true;
    HY_TRY(o->host_register(f->d, &f->got, sizeof(f->got)));
    f->pinned[2] = true;
    return HY_OK;
}

/* x and z are zero before they are written; y must be, since it is added to. */
static hy_status check_fresh(flow *f)
{
    const hy_dev_ops *o = f->d->ops;
    const float *zero = (const float *)f->got.fresh;
    memset(f->got.fresh, 1, sizeof(f->got.fresh));
    HY_TRY(o->copy(f->p, f->got.fresh[0], f->x, BYTES));
    HY_TRY(o->copy(f->p, f->got.fresh[1], f->z, BYTES));
    HY_TRY(o->queue_wait(f->p));
    for (int i = 0; i < 2 * N; i++)
        if (zero[i] != 0.0f)
            return hy_fail(HY_E_FORMAT, "new memory holds %g", (double)zero[i]);
    return HY_OK;
}

/* p adds x to y, q uses it: p may go on only after that. No list of it may run twice. */
static hy_status round_of(flow *f, int r)
{
    const hy_dev_ops *o = f->d->ops;
    HY_TRY(o->copy(f->p, f->x, f->in[r], BYTES));
    if (r > 0 && !f->no_wait)
        HY_TRY(o->event_wait(f->p, f->used));
    for (int i = 0; i < CHAIN; i++)
        HY_TRY(add(f->p, f->y, f->x, f->y));
    HY_TRY(o->event_record(f->p, f->made));
    HY_TRY(o->event_wait(f->q, f->made));
    HY_TRY(add(f->q, f->y, f->y, f->z));
    HY_TRY(o->event_record(f->q, f->used));
    return o->copy(f->q, f->out[r], f->z, BYTES);
}

static float input(int r, int i)
{
    return (float)(r * 100 + i);
}

/* y after round r. */
static float sum_of(int r, int i)
{
    float sum = 0.0f;
    for (int k = 0; k <= r; k++)
        sum += CHAIN * input(k, i);
    return sum;
}

static hy_status rank(flow *f)
{
    hy_topk t = {.logits = f->y, .ld = N, .m = 1, .n = N, .k = 1, .ids = &f->got.id};
    t.values = &f->got.value;
    t.lse = &f->got.lse;
    HY_TRY(f->d->math->topk(f->p, &t));
    HY_TRY(f->d->ops->queue_wait(f->p));
    const float most = sum_of(ROUNDS - 1, N - 1), lse = f->got.lse; /* the next is 33 less */
    if (f->got.id != N - 1 || f->got.value != most || !(lse >= most && lse <= most + 1.0f))
        return hy_fail(HY_E_FORMAT, "the best of y is [%d] = %g, lse %g", f->got.id,
                       (double)f->got.value, (double)lse);
    return HY_OK;
}

/* HY_OK: what came out was right. HY_E_FORMAT: it was not, and nothing said so. */
static hy_status run_flow(hy_dev *d, bool no_wait)
{
    static flow f;
    memset(&f, 0, sizeof(f));
    f.d = d;
    f.no_wait = no_wait;
    for (int r = 0; r < ROUNDS; r++)
        for (int i = 0; i < N; i++)
            f.in[r][i] = input(r, i);
    hy_status st = prepare(&f);
    if (st == HY_OK)
        st = check_fresh(&f);
    for (int r = 0; st == HY_OK && r < ROUNDS; r++)
        st = round_of(&f, r);
    if (st == HY_OK)
        st = rank(&f);
    if (st == HY_OK)
        st = d->ops->queue_wait(f.q);
    for (int i = 0; st == HY_OK && i < ROUNDS * N; i++) {
        if (f.out[i / N][i % N] != 2.0f * sum_of(i / N, i % N))
            st = hy_fail(HY_E_FORMAT, "round %d [%d] is %g", i / N, i % N,
                         (double)f.out[i / N][i % N]);
    }
    char text[256];
    snprintf(text, sizeof(text), "%.250s", hy_fail_text());
    d->ops->event_destroy(f.made);
    d->ops->event_destroy(f.used);
    d->ops->queue_destroy(f.p);
    d->ops->queue_destroy(f.q);
    if (f.pinned[0])
        d->ops->host_unregister(d, f.in);
    if (f.pinned[1])
        d->ops->host_unregister(d, f.out);
    if (f.pinned[2])
        d->ops->host_unregister(d, &f.got);
    d->ops->free(d, f.x, BYTES);
    d->ops->free(d, f.y, BYTES);
    d->ops->free(d, f.z, BYTES);
    return st == HY_OK ? st : hy_fail(st, "%s", text);
}

/* Opens, runs, closes; the double aborts when something is left. */
static hy_status whole(bool no_wait)
{
    hy_dev *d = NULL;
    HY_TRY(try_open(driver, &d));
    hy_status st = run_flow(d, no_wait);
    hy_dev_close(d);
    return st;
}

/* ---- tests ---- */

static void test_none(void **state)
{
    (void)state;
    hy_dev *d = NULL;
    assert_int_equal(try_open("/nowhere/lib.so", &d), HY_E_NOTFOUND);
    assert_non_null(strstr(hy_fail_text(), "/nowhere/lib.so"));
    /* a library, but not the vendor's */
    assert_int_equal(try_open("libm.so.6", &d), HY_E_NOTFOUND);
    assert_non_null(strstr(hy_fail_text(), "too old"));
    sim_plan p = {.image = "a third device"};
    find_double();
    hy_status st = try_open(driver, &d);
    assert_int_equal(st, HY_OK);
    hy_dev_close(d);
    set(&p);
    assert_int_equal(try_open(driver, &d), HY_E_UNSUPPORTED);
    assert_non_null(strstr(hy_fail_text(), "other, double"));
    set(&(sim_plan){.image = "double"});
    assert_int_equal(try_open("/nowhere/lib.so", &d), HY_E_BUSY);
}

static void test_props(void **state)
{
    (void)state;
    for (int wave = 32; wave <= 64; wave += 32) {
        hy_dev *d = NULL;
        hy_dev_props p;
        char isa[16];
        set(&(sim_plan){.image = "double", .wave = wave});
        snprintf(isa, sizeof(isa), "wave%d", wave);
        assert_int_equal(try_open(driver, &d), HY_OK);
        assert_int_equal(d->ops->props(d, &p), HY_OK);
        assert_string_equal(p.backend, backend);
        assert_string_equal(p.isa, isa);
        assert_non_null(strstr(p.name, "double")); /* the second image */
        assert_false(p.host_visible);
        assert_true(p.mem_total > 0);
        hy_dev_close(d);
    }
}

static void test_order(void **state)
{
    (void)state;
    int wrong = 0;
    for (uint64_t seed = 0; seed < 40; seed++) {
        set(&(sim_plan){.seed = seed});
        if (whole(false) != HY_OK)
            fail_msg("seed %d: %s", (int)seed, hy_fail_text());
        set(&(sim_plan){.seed = seed});
        hy_status st = whole(true);
        assert_true(st == HY_OK || st == HY_E_FORMAT);
        wrong += st != HY_OK;
    }
    assert_true(wrong > 10); /* a flow that forgets an event is found */
}

static void test_graphs(void **state)
{
    (void)state;
    const char *name = strcmp(backend, "cuda") == 0 ? "cuGraphLaunch" : "hipGraphLaunch";
    set(&(sim_plan){.seed = 0});
    int before = runs(name);
    assert_int_equal(whole(false), HY_OK);
    assert_int_equal(runs(name) - before, ROUNDS - 1); /* the first time it is only seen */
}

static void test_export(void **state)
{
    (void)state;
    hy_dev *d = NULL;
    hy_queue *q = NULL;
    float host[N] = {0}, *x = NULL;
    set(&(sim_plan){0});
    assert_int_equal(try_open(driver, &d), HY_OK);
    assert_int_equal(d->ops->queue_create(d, &q), HY_OK);
    assert_int_equal(alloc(d, &x), HY_OK);
    host[3] = 7.0f;
    assert_int_equal(d->ops->copy(q, x, host, BYTES), HY_OK);
    assert_int_equal(d->ops->fence(q), HY_OK);

    hy_span s = {0};
    assert_int_equal(d->ops->export_mem(d, x + 2, 8, &s), HY_OK);
    assert_int_equal(s.exp.kind, HY_EXPORT_FD);
    const float *seen = mmap(NULL, 4096, PROT_READ, MAP_SHARED, s.exp.fd, 0);
    assert_true(seen != MAP_FAILED);
    assert_true(seen[s.exp.offset / 4 + 1] == 7.0f);
    munmap((void *)(uintptr_t)seen, 4096);
    close(s.exp.fd);

    s = (hy_span){.exp = {.kind = HY_EXPORT_IPC}};
    assert_int_equal(d->ops->export_mem(d, x + 2, 8, &s), HY_OK);
    void *back = NULL;
    assert_int_equal(d->ops->import_mem(d, &s, &back), HY_E_INVAL); /* not by its owner */
    pid_t pid = fork();
    if (pid == 0) { /* another process: reads it, and writes to it */
        float got[2] = {0}, put = 9.0f;
        bool ok = d->ops->import_mem(d, &s, &back) == HY_OK &&
                  d->ops->copy(q, got, back, 8) == HY_OK && d->ops->queue_wait(q) == HY_OK &&
                  got[1] == 7.0f && d->ops->copy(q, back, &put, 4) == HY_OK &&
                  d->ops->queue_wait(q) == HY_OK;
        if (ok)
            d->ops->import_close(d, &s, back);
        _exit(ok ? 0 : 1);
    }
    int status = -1;
    assert_true(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(d->ops->copy(q, host, x, BYTES), HY_OK);
    assert_int_equal(d->ops->queue_wait(q), HY_OK);
    assert_true(host[2] == 9.0f);
    d->ops->free(d, x, BYTES);
    d->ops->queue_destroy(q);
    hy_dev_close(d);
}

static bool loaded(const char *library)
{
    void *lib = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    if (lib != NULL)
        dlclose(lib);
    return lib != NULL;
}

/* numerics = fast, 70 rows of bf16; how many products went to the vendor's library. */
static int product(const char *library, int64_t n)
{
    enum { M = 70, K = 48 };
    static float x[M * K], y[M * 96];
    static uint16_t w[96 * K];
    char kv[2][600];
    const char *list[] = {kv[0], kv[1], NULL};
    snprintf(kv[0], sizeof(kv[0]), "driver=%s", driver);
    snprintf(kv[1], sizeof(kv[1]), "blas=%s", library);
    hy_dev_opts o = {.backend = backend, .kv = list, .fast = true};
    hy_dev *d = NULL;
    hy_queue *q = NULL;
    hy_weight *wt = NULL;
    void *dx = NULL, *dy = NULL;
    int before = gemms();
    for (int i = 0; i < M * K; i++)
        x[i] = (float)(i % 7 - 3);
    for (int i = 0; i < 96 * K; i++)
        w[i] = hy_f32_to_bf16((float)(i % 5 - 2));
    const bool there = loaded(library);
    assert_int_equal(hy_dev_open(&o, &d), HY_OK);
    assert_int_equal(loaded(library), there); /* not before it is needed */
    hy_weight_src src = {.type = HY_BF16, .n = n, .k = K, .data = w};
    assert_int_equal(d->math->prepare_weight(d, &src, &wt), HY_OK);
    assert_int_equal(d->ops->queue_create(d, &q), HY_OK);
    assert_int_equal(d->ops->alloc(d, sizeof(x), &dx), HY_OK);
    assert_int_equal(d->ops->alloc(d, sizeof(y), &dy), HY_OK);
    assert_int_equal(d->ops->copy(q, dx, x, sizeof(x)), HY_OK);
    hy_matmul a = {.w = wt, .x = dx, .ldx = K, .y = dy, .ldy = 96, .m = M};
    assert_int_equal(d->math->matmul(q, &a), HY_OK);
    assert_int_equal(d->ops->copy(q, y, dy, sizeof(y)), HY_OK);
    assert_int_equal(d->ops->queue_wait(q), HY_OK);
    for (int i = 0; i < M * n; i++) {
        int64_t r = i / n, c = i % n;
        float sum = 0.0f;
        for (int k = 0; k < K; k++)
            sum += x[r * K + k] * (float)((c * K + k) % 5 - 2);
        if (y[r * 96 + c] != sum)
            fail_msg("[%d][%d] is %g, should be %g", (int)r, (int)c, (double)y[r * 96 + c],
                     (double)sum);
    }
    d->ops->free(d, dx, sizeof(x));
    d->ops->free(d, dy, sizeof(y));
    d->math->weight_free(d, wt);
    d->ops->queue_destroy(q);
    hy_dev_close(d);
    return gemms() - before;
}

static void test_gemm(void **state)
{
    (void)state;
    assert_false(loaded(gemm_library)); /* or product() shows nothing */
    for (uint64_t seed = 0; seed < 8; seed++) {
        set(&(sim_plan){.seed = seed});
        assert_int_equal(product(gemm_library, 95), 1);
    }
    assert_int_equal(product(gemm_library, 96), 0); /* the double refuses: ours do it */
    assert_int_equal(product("off", 95), 0);
    assert_int_equal(product("/nowhere/libblas.so", 95), 0);
}

/* Every call fails, in every way: a clean status, nothing left, and afterwards all is well. */
static void test_failures(void **state)
{
    (void)state;
    for (int kind = SIM_FAIL_MEMORY; kind <= SIM_FAIL_LOST; kind++) {
        int n = 1, failed = 0, tried = 0;
        for (;; n += test_thin() ? 5 : 1, tried++) {
            set(&(sim_plan){.seed = (uint64_t)n % 3, .fail = kind, .at = n});
            hy_status st = whole(false);
            bool reached = calls() >= n;
            revive();
            if (st == HY_E_FORMAT)
                fail_msg("kind %d at call %d: wrong results: %s", kind, n, hy_fail_text());
            if (kind == SIM_FAIL_MEMORY)
                assert_true(st == HY_OK || st == HY_E_NOMEM_DEVICE);
            else
                assert_true(st == HY_OK || st == HY_E_DEVICE);
            failed += st != HY_OK;
            set(&(sim_plan){0});
            if (!reached)
                break;
        }
        print_message("%s, kind %d: %d of %d calls failed the flow\n", backend, kind, failed,
                      n - 1);
        assert_true(n > 100 && failed > tried / 2);
        assert_int_equal(whole(false), HY_OK);
    }
}

/* Where the fault was planted, told by the child. */
static char *where;

/* 0: nothing was wrong; 1: caught; 2: the fault never came to pass. */
static int planted(const sim_plan *p, hy_status (*use)(void))
{
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        if (freopen("/dev/null", "w", stderr) == NULL || freopen("/dev/null", "w", stdout) == NULL)
            _exit(9);
        signal(SIGSEGV, SIG_DFL); /* cmocka's would go on with the next test in this process */
        signal(SIGBUS, SIG_DFL);
        set(p);
        hy_status st = use();
        snprintf(where, 64, "%.63s", fault_at());
        _exit(st != HY_OK ? 1 : faults() ? 0 : 2);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status))
        return 1; /* the double aborted */
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) <= 2);
    return WEXITSTATUS(status);
}

static hy_status both_queues(void)
{
    return whole(false);
}

/* How many instances of a fault are caught; missed ones are named. */
static int hunt(int fault, uint64_t seeds, bool bare, hy_status (*use)(void), char *missed,
                size_t cap, int *n_out)
{
    int n = 1, caught = 0;
    missed[0] = '\0';
    for (;; n++) {
        int r = 0;
        for (uint64_t seed = 0; r == 0 && seed < seeds; seed++) {
            const sim_plan p = {.seed = seed, .fault = fault, .nth = n, .bare = bare};
            r = planted(&p, use);
        }
        if (r == 2)
            break;
        caught += r;
        const size_t at = strlen(missed);
        if (r == 0)
            snprintf(missed + at, cap - at, " %d:%s", n, where);
    }
    *n_out = n - 1;
    return caught;
}

/* Each fault but those that make no difference, which docs/BACKENDS.md lists. */
static void test_faults(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        int fault;
        int harmless;
        uint64_t seeds;
    } kinds[] = {
        {"missing event", SIM_FAULT_WAIT, 0, 24},     {"missing wait", SIM_FAULT_SYNC, 5, 24},
        {"copy too early", SIM_FAULT_COPY, 3, 6},     {"leak", SIM_FAULT_LEAK, 0, 1},
        {"launch left out", SIM_FAULT_LAUNCH, 0, 1},  {"clearing left out", SIM_FAULT_CLEAR, 0, 1},
        {"unchecked status", SIM_FAULT_STATUS, 6, 24}};
    for (size_t k = 0; k < HY_COUNTOF(kinds); k++) {
        char missed[1024];
        int n = 0;
        const int caught =
            hunt(kinds[k].fault, kinds[k].seeds, false, both_queues, missed, sizeof(missed), &n);
        print_message("%s, %s: %d of %d caught, not:%s\n", backend, kinds[k].what, caught, n,
                      missed[0] != '\0' ? missed : " none");
        assert_true(n > kinds[k].harmless);
        assert_int_equal(n - caught, kinds[k].harmless);
    }
}

/* ---- what poison alone tells ---- */

/* One queue does the same AGAIN times, in new blocks that lie where the last round's lay: memory
 * that is stale, freed or not cleared still holds what is right, unless something poisons it. */
enum { AGAIN = 3 };

typedef struct once {
    hy_queue *q;
    float *x, *w, *y; /* w: never written, so zero */
    float in[N], out[N];
} once;

static hy_status once_more(hy_dev *d, once *o)
{
    HY_TRY(alloc(d, &o->x));
    HY_TRY(alloc(d, &o->w));
    HY_TRY(alloc(d, &o->y));
    HY_TRY(d->ops->copy(o->q, o->x, o->in, BYTES));
    HY_TRY(add(o->q, o->x, o->w, o->y));
    HY_TRY(d->ops->copy(o->q, o->out, o->y, BYTES));
    HY_TRY(d->ops->queue_wait(o->q));
    for (int i = 0; i < N; i++)
        if (o->out[i] != o->in[i])
            return hy_fail(HY_E_FORMAT, "[%d] is %g", i, (double)o->out[i]);
    return HY_OK;
}

static hy_status again_and_again(void)
{
    static once o;
    hy_dev *d = NULL;
    HY_TRY(try_open(driver, &d));
    for (int i = 0; i < N; i++)
        o.in[i] = o.out[i] = input(1, i);
    hy_status st = d->ops->queue_create(d, &o.q);
    bool pinned = st == HY_OK && d->ops->host_register(d, o.out, sizeof(o.out)) == HY_OK;
    for (int k = 0; st == HY_OK && k < AGAIN; k++) {
        o.x = o.w = o.y = NULL;
        st = once_more(d, &o);
        d->ops->free(d, o.y, BYTES);
        d->ops->free(d, o.w, BYTES);
        d->ops->free(d, o.x, BYTES);
    }
    if (pinned)
        d->ops->host_unregister(d, o.out);
    d->ops->queue_destroy(o.q);
    hy_dev_close(d);
    return st;
}

/* Caught as often as it matters, and on a device that poisons nothing not once: so it is the poison
 * that tells. */
static void test_poison(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        int fault;
    } kinds[] = {{"a new block read though nobody cleared it", SIM_FAULT_CLEAR},
                 {"a block read after it was freed", SIM_FAULT_FREED},
                 {"an output read before it was done", SIM_FAULT_SYNC}};
    for (size_t k = 0; k < HY_COUNTOF(kinds); k++) {
        char missed[1024];
        int n = 0, bare_n = 0;
        const int bare =
            hunt(kinds[k].fault, 1, true, again_and_again, missed, sizeof(missed), &bare_n);
        const int caught =
            hunt(kinds[k].fault, 1, false, again_and_again, missed, sizeof(missed), &n);
        print_message("%s, %s: %d of %d caught, without poison %d\n", backend, kinds[k].what,
                      caught, n, bare);
        assert_int_equal(n, bare_n);
        assert_int_equal(bare, 0);
        assert_int_equal(caught, AGAIN); /* one a round does harm */
    }
}

int main(void)
{
    backend = getenv("HY_TEST_BACKEND");
    driver = getenv("HY_TEST_DRIVER");
    gemm_library = getenv("HY_TEST_BLAS");
    if (backend == NULL || driver == NULL || gemm_library == NULL) {
        fprintf(stderr, "set HY_TEST_BACKEND, HY_TEST_DRIVER and HY_TEST_BLAS\n");
        return 77;
    }
    where = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (where == MAP_FAILED)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_none),     cmocka_unit_test(test_props),
        cmocka_unit_test(test_order),    cmocka_unit_test(test_graphs),
        cmocka_unit_test(test_export),   cmocka_unit_test(test_gemm),
        cmocka_unit_test(test_failures), cmocka_unit_test(test_faults),
        cmocka_unit_test(test_poison)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
