/* SPDX-License-Identifier: Apache-2.0
 *
 * Configuration: types and ranges, what errors say, inih's traps, overrides, patterns, manual.
 *
 * Thread: test.  Owner: the test.
 */
#include "core/base/rng.h"
#include "core/conf/conf.h"
#include "tests/unit/cm.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const hy_conf_key extra[] = {
    {"t", "b", HY_CONF_BOOL, "false", NULL, NULL, NULL, "A switch."},
    {"t", "i", HY_CONF_INT, "5", "-10", "1000", NULL, "A number."},
    {"t", "f", HY_CONF_FLOAT, "0.5", "0", "1", NULL, "A fraction."},
    {"t", "size", HY_CONF_SIZE, "1M", "1k", NULL, NULL, "A size."},
    {"t", "time", HY_CONF_DURATION, "10s", NULL, "1h", NULL, "A time."},
    {"t", "s", HY_CONF_STRING, "", NULL, NULL, NULL, "A text."},
    {"t", "path", HY_CONF_PATH, "", NULL, NULL, NULL, "A path."},
    {"t", "list", HY_CONF_LIST, "a, b", NULL, NULL, NULL, "A list."},
    {"mate.*", "address", HY_CONF_STRING, "", NULL, NULL, NULL, "Where the mate listens."},
    {"mate.*", "secret", HY_CONF_STRING, "", NULL, NULL, NULL, "Shared."},
    {"backend.cpu", "isa", HY_CONF_ENUM, "auto", NULL, NULL, "auto|avx2", "From an older table."},
    {"backend.cpu", "isa", HY_CONF_ENUM, "auto", NULL, NULL, "auto|neon", "From a backend."},
    {"backend.cpu", "pin", HY_CONF_BOOL, "true", NULL, NULL, NULL, "From a backend."},
};

static hy_conf *c;

static int setup(void **state)
{
    (void)state;
    c = hy_conf_create();
    return c != NULL ? hy_conf_add_table(c, extra, HY_COUNTOF(extra)) : -1;
}

static int teardown(void **state)
{
    (void)state;
    hy_conf_destroy(c);
    return 0;
}

static hy_status load(const char *text)
{
    return hy_conf_load_text(c, "x.ini", text, strlen(text));
}

static void refused(const char *text, const char *message)
{
    hy_conf *keep = c;
    setup(NULL);
    assert_true(load(text) < 0);
    assert_string_equal(hy_fail_text(), message);
    teardown(NULL);
    c = keep;
}

static void defaults(void **state)
{
    (void)state;
    assert_string_equal(hy_conf_str(c, "node", "role"), "all");
    assert_int_equal(hy_conf_enum(c, "node", "role"), 0);
    assert_int_equal(hy_conf_int(c, "http", "port"), 8000);
    assert_string_equal(hy_conf_str(c, "http", "host"), "127.0.0.1");
    assert_int_equal(hy_conf_int(c, "engine", "max_batch_tokens"), 512);
    assert_int_equal(hy_conf_int(c, "engine", "max_seqs"), 64);
    assert_true(hy_conf_bool(c, "engine", "prefix_cache"));
    assert_string_equal(hy_conf_str(c, "kv", "type"), "f16");
    assert_int_equal(hy_conf_int(c, "kv", "block_tokens"), 16);
    assert_int_equal(hy_conf_size(c, "http", "max_slow_reader_bytes"), 4 << 20);
    assert_true(hy_conf_ns(c, "http", "idle_timeout") == UINT64_C(75000000000));
    assert_false(hy_conf_is_set(c, "http", "port"));
    assert_string_equal(hy_conf_origin(c, "http", "port"), "default");
    assert_int_equal(hy_conf_list_len(c, "t", "list"), 2);
    assert_string_equal(hy_conf_list_at(c, "t", "list", 1), "b");
}

static void reads_a_file(void **state)
{
    (void)state;
    const char *text = "\xef\xbb\xbf# first\r\n"
                       "[http]\r\n"
                       "port = 9000   ; mine\r\n"
                       "host=0.0.0.0\n"
                       "\n"
                       "  ; a comment with blanks before it\n"
                       "[ t ]  # head\n"
                       "s = a;b = c # d\n"
                       "    i : 7\n" /* inih would take this for more of s */
                       "list = x ,, y,z\n"
                       "path =\n"
                       "[http]\n"       /* again: fine */
                       "max_body = 4M"; /* no newline at the end */
    assert_int_equal(load(text), HY_OK);
    assert_int_equal(hy_conf_int(c, "http", "port"), 9000);
    assert_string_equal(hy_conf_str(c, "http", "host"), "0.0.0.0");
    assert_string_equal(hy_conf_str(c, "t", "s"), "a;b = c # d");
    assert_int_equal(hy_conf_int(c, "t", "i"), 7);
    assert_int_equal(hy_conf_list_len(c, "t", "list"), 3);
    assert_string_equal(hy_conf_list_at(c, "t", "list", 0), "x");
    assert_string_equal(hy_conf_list_at(c, "t", "list", 2), "z");
    assert_int_equal(hy_conf_size(c, "http", "max_body"), 4 << 20);
    assert_true(hy_conf_is_set(c, "http", "port"));
    assert_string_equal(hy_conf_origin(c, "http", "port"), "x.ini:3");
    assert_string_equal(hy_conf_origin(c, "t", "i"), "x.ini:9");
    assert_true(hy_conf_is_set(c, "t", "path"));
}

/* Lines around inih's 199 bytes, and far above: every value arrives whole. */
static void long_lines(void **state)
{
    (void)state;
    static const size_t lens[] = {1,   150, 193, 194, 195, 196, 197,  198,  199,
                                  200, 201, 202, 250, 399, 400, 1000, 5000, 100000};
    for (size_t i = 0; i < HY_COUNTOF(lens); i++) {
        hy_buf b;
        hy_buf_init(&b);
        char *v = malloc(lens[i] + 1);
        for (size_t k = 0; k < lens[i]; k++)
            v[k] = (char)('a' + k % 26);
        v[lens[i]] = '\0';
        hy_buf_printf(&b, "# %s\n[t]\ns = %s\t ; behind\ni = %zu\npath = /%s=%s\n", v, v, i, v, v);
        assert_int_equal(hy_conf_load_text(c, "x.ini", b.data, b.len), HY_OK);
        assert_string_equal(hy_conf_str(c, "t", "s"), v);
        assert_string_equal(hy_conf_origin(c, "t", "s"), "x.ini:3");
        assert_int_equal(hy_conf_int(c, "t", "i"), i);
        assert_string_equal(hy_conf_origin(c, "t", "i"), "x.ini:4");
        assert_int_equal(strlen(hy_conf_str(c, "t", "path")), 2 * lens[i] + 2);
        hy_buf_clear(&b);
        hy_buf_printf(&b, "[t]\n\nf = 0.%s", v); /* a long wrong value is refused, not cut */
        assert_true(hy_conf_load_text(c, "x.ini", b.data, b.len) < 0);
        assert_non_null(strstr(hy_fail_text(), "x.ini:3: [t] f: "));
        free(v);
        hy_buf_fini(&b);
    }
    char text[300];
    memset(text, 'k', sizeof(text));
    memcpy(text, "[t]\n", 4);
    memcpy(text + 100, "=1", 3);
    refused(text, "x.ini:2: a key longer than 49 bytes");
    memset(text, 's', sizeof(text));
    text[0] = '[';
    memcpy(text + 100, "]", 2);
    refused(text, "x.ini:1: a section name longer than 49 bytes");
}

static void errors_name_the_place(void **state)
{
    (void)state;
    refused("[http]\n\nprot = 1\n", "x.ini:3: [http] prot: unknown key; did you mean 'port'?");
    refused("[http]\nMax-Body = 1M\n",
            "x.ini:2: [http] Max-Body: unknown key; did you mean 'max_body'?");
    refused("[http]\nthreads = 1\n",
            "x.ini:2: [http] threads: unknown key here; section [engine] has one");
    refused("[http]\nqwertyuiop = 1\n", "x.ini:2: [http] qwertyuiop: unknown key; `halyard "
                                        "config` lists the sections and keys");
    refused("# a\n[engin]\n", "x.ini:2: unknown section [engin]; did you mean [engine]?");
    refused("[mite.n1]\naddress = x\n",
            "x.ini:1: unknown section [mite.n1]; did you mean [mate.n1]?");
    refused("[mate.*]\n", "x.ini:1: unknown section [mate.*]; did you mean [mate.NAME]?");
    refused("[mate]\n", "x.ini:1: unknown section [mate]; did you mean [mate.NAME]?");
    refused("[backend.cpuu]\n",
            "x.ini:1: unknown section [backend.cpuu]; did you mean [backend.cpu]?");
    refused("[mate.a b]\n", "x.ini:1: unknown section [mate.a b]; did you mean [mate.NAME]?");
    refused("[zzzzzz]\n", "x.ini:1: unknown section [zzzzzz]; `halyard config` lists the "
                          "sections and keys");
    refused("[node]\nrole = decoed\n",
            "x.ini:2: [node] role: 'decoed' is not one of "
            "all|prefill|decode|both|encode|attention|ffn|cache|store|router|planner; did you "
            "mean 'decode'?");
    refused("[http]\nport = 99999\n", "x.ini:2: [http] port: 99999 is above the maximum 65535");
    refused("[t]\ni = -11\n", "x.ini:2: [t] i: -11 is below the minimum -10");
    refused("[t]\nf = 1.5\n", "x.ini:2: [t] f: 1.5 is above the maximum 1");
    refused("[t]\nsize = 1\n", "x.ini:2: [t] size: 1 is below the minimum 1k");
    refused("[t]\ntime = 2h\n", "x.ini:2: [t] time: 2h is above the maximum 1h");
    refused("[t]\ni = 5 # five\n", "x.ini:2: [t] i: '5 # five' is not a whole number (a comment "
                                   "behind a value begins with ' ;')");
    refused("[t]\nb = maybe\n", "x.ini:2: [t] b: 'maybe' is neither true nor false");
    refused("[t]\ni = 1\ns = x\n i = 2\n", "x.ini:4: [t] i: set twice, first in line 2");
    refused("port = 1\n", "x.ini:1: a key before the first [section]");
    refused("[t]\nnonsense\n", "x.ini:2: neither [section] nor key = value nor a comment");
    refused("[t]\nnonsense ; = 3\n", "x.ini:2: neither [section] nor key = value nor a comment");
    refused("[t]\n= 3\n", "x.ini:2: a value without a key");
    refused("[t\n", "x.ini:1: a section head without its ']'");
    refused("[]\n", "x.ini:1: a section without a name");
    refused("[t] i = 4\n", "x.ini:1: something stands behind a section head");
    assert_int_equal(hy_conf_load_text(c, "x.ini", "[t]\ni\0=1", 8), HY_E_FORMAT);
    assert_string_equal(hy_fail_text(), "x.ini:2: a NUL byte: this is not a text file");
    assert_int_equal(hy_conf_load_file(c, "/nowhere/x.ini"), HY_E_NOTFOUND);
    assert_string_equal(hy_fail_text(), "cannot open /nowhere/x.ini: No such file or directory");
}

static void values_of_every_type(void **state)
{
    (void)state;
    static const struct {
        const char *key, *text;
        bool ok;
        uint64_t want;
    } cases[] = {
        {"size", "4096", true, 4096},
        {"size", "64k", true, 65536},
        {"size", "64K", true, 65536},
        {"size", "64KiB", true, 65536},
        {"size", "64 KB", true, 65536},
        {"size", "1.5M", true, 1572864},
        {"size", "2G", true, UINT64_C(2147483648)},
        {"size", "1T", true, UINT64_C(1099511627776)},
        {"size", "2048B", true, 2048},
        {"size", "16777215T", true, UINT64_C(16777215) << 40},
        {"size", "16777216T", false, 0}, /* 2^64 */
        {"size", "99999999999999999999", false, 0},
        {"size", "-1k", false, 0},
        {"size", "k", false, 0},
        {"size", "1.", false, 0},
        {"size", "1kk", false, 0},
        {"size", "0x1000", false, 0},
        {"size", "", false, 0},
        {"time", "250ms", true, UINT64_C(250000000)},
        {"time", "1.5s", true, UINT64_C(1500000000)},
        {"time", "30", true, UINT64_C(30000000000)},
        {"time", "5 m", true, UINT64_C(300000000000)},
        {"time", "1h", true, UINT64_C(3600000000000)},
        {"time", "7us", true, 7000},
        {"time", "9ns", true, 9},
        {"time", "1 hour", false, 0},
        {"time", "-1s", false, 0},
        {"i", "0x10", true, 16},
        {"i", "+7", true, 7},
        {"i", "010", true, 10},
        {"i", "1e2", false, 0},
        {"i", "1.0", false, 0},
        {"i", "9223372036854775808", false, 0},
        {"i", "99999999999999999999999", false, 0},
        {"i", "0x", false, 0},
        {"i", "", false, 0},
        {"b", "true", true, 1},
        {"b", "off", true, 0},
        {"b", "yes", true, 1},
        {"b", "1", true, 1},
        {"b", "2", false, 0},
        {"f", "nan", false, 0},
        {"f", "inf", false, 0},
        {"f", "0.5x", false, 0},
        {"f", "", false, 0},
    };
    for (size_t i = 0; i < HY_COUNTOF(cases); i++) {
        const char *k = cases[i].key;
        hy_status st = hy_conf_put(c, "t", k, cases[i].text, "test");
        if ((st == HY_OK) != cases[i].ok)
            fail_msg("%s = %s: %s", k, cases[i].text, hy_fail_text());
        if (st != HY_OK)
            continue;
        uint64_t got = strcmp(k, "size") == 0   ? hy_conf_size(c, "t", k)
                       : strcmp(k, "time") == 0 ? hy_conf_ns(c, "t", k)
                       : strcmp(k, "i") == 0    ? (uint64_t)hy_conf_int(c, "t", k)
                                                : hy_conf_bool(c, "t", k);
        if (got != cases[i].want)
            fail_msg("%s = %s gives %llu", k, cases[i].text, (unsigned long long)got);
    }
    assert_int_equal(hy_conf_put(c, "t", "f", "0.25", "test"), HY_OK);
    assert_true(hy_conf_float(c, "t", "f") == 0.25);
    setenv("HOME", "/home/me", 1);
    assert_int_equal(hy_conf_put(c, "t", "path", "~/m/x", "test"), HY_OK);
    assert_string_equal(hy_conf_str(c, "t", "path"), "/home/me/m/x");
    assert_int_equal(hy_conf_put(c, "t", "path", "~you/x", "test"), HY_OK);
    assert_string_equal(hy_conf_str(c, "t", "path"), "~you/x");
    assert_int_equal(hy_conf_put(c, "t", "list", "", "test"), HY_OK);
    assert_int_equal(hy_conf_list_len(c, "t", "list"), 0);
}

static void overrides(void **state)
{
    (void)state;
    assert_int_equal(hy_conf_set(c, "engine.threads=2"), HY_OK);
    assert_int_equal(load("[engine]\nthreads = 8\nmax_seqs = 3\n"), HY_OK);
    assert_int_equal(hy_conf_int(c, "engine", "threads"), 2); /* above the file, though earlier */
    assert_string_equal(hy_conf_origin(c, "engine", "threads"), "-o");
    assert_int_equal(load("[engine]\nmax_seqs = 4\n"), HY_OK); /* a later file */
    assert_int_equal(hy_conf_int(c, "engine", "max_seqs"), 4);
    assert_int_equal(hy_conf_set(c, " engine.threads = 3 "), HY_OK); /* the last one wins */
    assert_int_equal(hy_conf_int(c, "engine", "threads"), 3);
    assert_int_equal(hy_conf_set(c, "model.path=/a=b.c/d"), HY_OK);
    assert_string_equal(hy_conf_str(c, "model", "path"), "/a=b.c/d");
    assert_int_equal(hy_conf_set(c, "backend.cpu.pin=off"), HY_OK);
    assert_false(hy_conf_bool(c, "backend.cpu", "pin"));
    assert_int_equal(hy_conf_put(c, "http", "port", "80", "--port"), HY_OK);
    assert_string_equal(hy_conf_origin(c, "http", "port"), "--port");
    assert_int_equal(hy_conf_set(c, "engine.thread=2"), HY_E_INVAL);
    assert_string_equal(hy_fail_text(), "[engine] thread: unknown key; did you mean 'threads'?");
    assert_int_equal(hy_conf_put(c, "http", "port", "x", "--port"), HY_E_INVAL);
    assert_string_equal(hy_fail_text(), "--port: [http] port: 'x' is not a whole number");
    static const char *const bad[] = {"threads=2", "engine.threads", "", "="};
    for (size_t i = 0; i < HY_COUNTOF(bad); i++) {
        assert_int_equal(hy_conf_set(c, bad[i]), HY_E_INVAL);
        assert_non_null(strstr(hy_fail_text(), "an override is section.key=value"));
    }
}

static void patterns(void **state)
{
    (void)state;
    assert_int_equal(load("[mate.p0]\naddress = a\n[mate.d-1]\n[mate.x.y]\naddress = z\n"), HY_OK);
    assert_int_equal(hy_conf_set(c, "mate.x.y.secret=hush"), HY_OK);
    assert_string_equal(hy_conf_section_at(c, "mate.*", 0), "mate.p0");
    assert_string_equal(hy_conf_section_at(c, "mate.*", 1), "mate.d-1");
    assert_string_equal(hy_conf_section_at(c, "mate.*", 2), "mate.x.y");
    assert_null(hy_conf_section_at(c, "mate.*", 3));
    assert_string_equal(hy_conf_str(c, "mate.p0", "address"), "a");
    assert_string_equal(hy_conf_str(c, "mate.d-1", "address"), "");
    assert_string_equal(hy_conf_str(c, "mate.x.y", "secret"), "hush");
    assert_true(load("[mate.]\n") < 0);
    assert_true(load("[mate]\n") < 0);
    assert_true(load("[mate.a b]\n") < 0);
    assert_true(load("[backend.cpu.x]\n") < 0);
    refused("[mate.p0]\nadress = a\n",
            "x.ini:2: [mate.p0] adress: unknown key; did you mean 'address'?");
}

static void a_backends_table_replaces(void **state)
{
    (void)state;
    assert_int_equal(hy_conf_set(c, "backend.cpu.isa=neon"), HY_OK);
    assert_int_equal(hy_conf_set(c, "backend.cpu.isa=avx2"), HY_E_INVAL);
    int n = 0;
    const hy_conf_key *k;
    for (size_t i = 0; (k = hy_conf_key_at(c, i)) != NULL; i++)
        n += strcmp(k->section, "backend.cpu") == 0 && strcmp(k->key, "isa") == 0;
    assert_int_equal(n, 1);
}

static void manual_has_all_and_loads(void **state)
{
    (void)state;
    hy_buf b;
    hy_buf_init(&b);
    hy_conf_manual(c, &b);
    assert_non_null(strstr(b.data, "[engine]\n"
                                   "# Compute threads. 0: one for each physical core this process "
                                   "may use.\n"
                                   "# (int, 0 to 1024; default 0)\n"
                                   ";threads = 0\n"));
    assert_non_null(strstr(b.data, "# (enum: exact, fast; default exact)\n;numerics = exact\n"));
    assert_non_null(strstr(b.data, "[mate.NAME]\n# Where the mate listens.\n"
                                   "# (string; default: empty)\n;address =\n"));
    const hy_conf_key *k;
    for (size_t i = 0; (k = hy_conf_key_at(c, i)) != NULL; i++) {
        char line[200];
        snprintf(line, sizeof(line), "\n;%s =", k->key);
        assert_non_null(strstr(b.data, line));
    }
    for (char *p = b.data, *nl; (nl = strchr(p, '\n')) != NULL; p = nl + 1)
        assert_true(nl - p <= 100);
    for (char *p = b.data; (p = strstr(p, "\n;")) != NULL; p++) /* all defaults, as values */
        p[1] = ' ';
    assert_int_equal(hy_conf_load_text(c, "manual", b.data, b.len), HY_OK);
    for (size_t i = 0; (k = hy_conf_key_at(c, i)) != NULL; i++)
        if (strchr(k->section, '*') == NULL)
            assert_true(hy_conf_is_set(c, k->section, k->key));
    hy_buf_fini(&b);
}

static void dump_masks_secrets(void **state)
{
    (void)state;
    hy_buf b;
    hy_buf_init(&b);
    assert_int_equal(load("[http]\napi_key = verysecret\nport = 81\n[mate.q]\nsecret = s3\n"),
                     HY_OK);
    hy_conf_dump(c, &b);
    assert_null(strstr(b.data, "verysecret"));
    assert_non_null(strstr(b.data, "api_key = ******** ; x.ini:2\n"));
    assert_non_null(strstr(b.data, "\nport = 81 ; x.ini:3\n"));
    assert_non_null(strstr(b.data, "\n[mate.q]\naddress = ; default\nsecret = ******** ; x.ini:5"));
    hy_conf *again = hy_conf_create();
    hy_conf_add_table(again, extra, HY_COUNTOF(extra));
    assert_int_equal(hy_conf_load_text(again, "dump", b.data, b.len), HY_OK);
    assert_int_equal(hy_conf_int(again, "http", "port"), 81);
    assert_string_equal(hy_conf_str(again, "model", "path"), "");
    hy_conf_destroy(again);
    hy_buf_fini(&b);
}

/* Damaged files: one clear message that begins with the place, or a good load; never a crash. */
static void damaged_files(void **state)
{
    (void)state;
    static const char good[] = "[node]\nrole = all ; x\n[http]\nport = 80\nhost: ::1\n# c\n"
                               "[t]\nlist = a,b\nsize = 3M\ntime = 5 s\nf = 0.5\n[mate.a]\n"
                               "address = 1\n";
    static const char bytes[] = "[]=:;# \t\r\n\0.\xff\xc3"
                                "0aM";
    hy_rng r;
    hy_rng_init(&r, 99);
    int ok = 0;
    for (int i = 0; i < 20000; i++) {
        char text[sizeof(good) + 300];
        size_t n = sizeof(good) - 1;
        memcpy(text, good, n);
        for (uint64_t k = hy_rng_below(&r, 4); k-- > 0;) {
            size_t at = (size_t)hy_rng_below(&r, n);
            size_t run = hy_rng_below(&r, 8) == 0 && n < sizeof(good) ? 250 : 1;
            if (run > 1) { /* make one line long */
                memmove(text + at + run, text + at, n - at);
                n += run;
            }
            memset(text + at, bytes[hy_rng_below(&r, sizeof(bytes) - 1)], run);
        }
        n -= hy_rng_below(&r, 10) == 0 ? hy_rng_below(&r, n) : 0;
        hy_conf *d = hy_conf_create();
        hy_conf_add_table(d, extra, HY_COUNTOF(extra));
        char *copy = malloc(n + 1); /* its end is where a sanitizer sees it */
        memcpy(copy, text, n);
        if (hy_conf_load_text(d, "x.ini", copy, n) == HY_OK)
            ok++;
        else if (strncmp(hy_fail_text(), "x.ini:", 6) != 0)
            fail_msg("round %d: %s", i, hy_fail_text());
        free(copy);
        hy_conf_destroy(d);
    }
    assert_in_range(ok, 1000, 19000);
}

static void a_getter_of_an_unknown_key_is_our_bug(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            fclose(stderr);
            if (i == 0)
                hy_conf_int(c, "engine", "thread");
            else
                hy_conf_int(c, "http", "host"); /* another type */
            _exit(0);
        }
        int status = 0;
        waitpid(pid, &status, 0);
        assert_true(WIFSIGNALED(status));
    }
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(defaults),
        T(reads_a_file),
        T(long_lines),
        T(errors_name_the_place),
        T(values_of_every_type),
        T(overrides),
        T(patterns),
        T(a_backends_table_replaces),
        T(manual_has_all_and_loads),
        T(dump_masks_secrets),
        T(damaged_files),
        T(a_getter_of_an_unknown_key_is_our_bug),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
