/* SPDX-License-Identifier: Apache-2.0
 *
 * The Jinja interpreter on small templates. The expected texts are what jinja2 3.1.6 gives in
 * Hugging Face's environment (immutable sandbox, trim_blocks, lstrip_blocks, loop controls).
 *
 * Thread: one.  Owner: the test.
 */
#include "core/text/chat.h"
#include "tests/unit/cm.h"

#include <string.h>
#include <time.h>

static const char vars_text[] =
    "{\"s\":\"Hello, World\",\"u\":\"Gr\xc3\xbc\xc3\x9f \xe6\x97\xa5\xe6\x9c\xac\",\"n\":7,"
    "\"neg\":-3,\"f\":2.5,\"big\":1e20,\"sm\":1e-7,\"no\":null,\"l\":[3,1,2],"
    "\"ls\":[\"b\",\"A\",\"c\",\"a\"],\"d\":{\"b\":1,\"a\":2,\"C\":3},"
    "\"dd\":{\"x\":{\"y\":[1,{\"z\":\"deep\"}]},\"items\":5},"
    "\"ll\":[{\"n\":\"x\",\"v\":3,\"t\":\"a\"},{\"n\":\"Y\",\"v\":1,\"t\":\"b\"},"
    "{\"n\":\"z\",\"v\":2,\"t\":\"a\"}],\"ml\":\"a\\nb\\n\\nc\\n\","
    "\"mix\":[1,2.0,\"s\",null,true,[1],{\"k\":\"v's \\\"q\\\"\"}]}";

static json_t *vars;

static int setup(void **state)
{
    (void)state;
    vars = json_loads(vars_text, 0, NULL);
    return vars == NULL;
}

static int teardown(void **state)
{
    (void)state;
    json_decref(vars);
    return 0;
}

static hy_status run(const char *src, hy_buf *out)
{
    static const struct tm now = {
        .tm_year = 126, .tm_mday = 15, .tm_hour = 9, .tm_min = 30, .tm_wday = 4, .tm_yday = 14};
    hy_jinja *j = NULL;
    HY_TRY(hy_jinja_compile(src, strlen(src), &j));
    hy_status st = hy_jinja_render(j, vars, &now, out);
    hy_jinja_destroy(j);
    return st;
}

static void expect(const char *src, const char *want)
{
    hy_buf out;
    hy_buf_init(&out);
    if (run(src, &out) < 0)
        fail_msg("%s: %s", src, hy_fail_text());
    if (strcmp(hy_buf_str(&out), want) != 0)
        fail_msg("%s: wanted [%s], got [%s]", src, want, hy_buf_str(&out));
    hy_buf_fini(&out);
}

static void expect_error(const char *src, hy_status want, const char *part)
{
    hy_buf out;
    hy_buf_init(&out);
    hy_status st = run(src, &out);
    if (st != want || strstr(hy_fail_text(), part) == NULL)
        fail_msg("%s: wanted %s with '%s', got %s: %s", src, hy_status_name(want), part,
                 hy_status_name(st), st < 0 ? hy_fail_text() : hy_buf_str(&out));
    hy_buf_fini(&out);
}

typedef struct pair {
    const char *src, *want;
} pair;

static void expect_all(const pair *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        expect(p[i].src, p[i].want);
}

static void test_white_space(void **state)
{
    (void)state;
    static const pair t[] = {
        {"  {% if true %}\n  x\n  {% endif %}\ny\n", "  x\ny"},
        {"a {% if true %} b {% endif %} c", "a  b  c"},
        {"a {%- if true -%} b {%- endif -%} c", "abc"},
        {"   {%+ if true %}x{% endif %}", "   x"},
        {"{% if true +%}\nx{% endif %}", "\nx"},
        {" {{- n -}} \n x", "7x"},
        {"a{#- c -#}  b", "ab"},
        {"x {# c #}\n  {# d #}\ny", "x y"},
        {"a\r\nb{% if true %}\r\nc{% endif %}\r\n", "a\nbc"},
        {"{% raw %}{{ x }}{% y %}{% endraw %}", "{{ x }}{% y %}"},
        {"{{ n }}   {% if true %}z{% endif %}", "7   z"},
        {"\xe3\x80\x80{%- if true -%}\xe3\x80\x80x{% endif %}", "x"},
        {"{{ n }}\n\n", "7\n"},
    };
    expect_all(t, HY_COUNTOF(t));
}

static void test_numbers(void **state)
{
    (void)state;
    static const pair t[] = {
        {"{{ n/2 }} {{ n//2 }} {{ neg//2 }} {{ neg%5 }} {{ 7%-3 }}", "3.5 3 -2 2 -2"},
        {"{{ -7.5%2 }} {{ 2**10 }} {{ 2**-1 }}", "0.5 1024 0.5"},
        {"{{ 10/5 }} {{ 0.1+0.2 }} {{ 1e16 }} {{ 1e15 }}",
         "2.0 0.30000000000000004 1e+16 1000000000000000.0"},
        {"{{ big }} {{ sm }} {{ -0.0 }}", "1e+20 1e-07 -0.0"},
        {"{{ 2.5|round }} {{ 2.675|round(2) }} {{ 7|round(1) }}", "2.0 2.67 7"},
        {"{{ 2.1|round(0,'ceil') }} {{ -2.7|int }} {{ '3.7'|int }}", "3.0 -2 3"},
        {"{{ '0x1f'|int }} {{ '0x1f'|int(0,16) }} {{ '1_000'|int }}", "0 31 1000"},
        {"{{ 1 == 1.0 }} {{ 1 == true }} {{ '1' == 1 }} {{ 1 < 3 < 2 }}", "True True False False"},
        {"{{ 1_000 }} {{ 0x1F }} {{ 0b101 }} {{ 1.5e3 }}", "1000 31 5 1500.0"},
        {"{{ 2 * 3 ~ 5 }} {{ -n ** 2 }}", "65 49"},
    };
    expect_all(t, HY_COUNTOF(t));
    expect_error("{{ 9223372036854775807 + 1 }}", HY_E_FORMAT, "64 bits");
    expect_error("{{ 1 // 0 }}", HY_E_FORMAT, "division by zero");
}

static void test_strings(void **state)
{
    (void)state;
    static const pair t[] = {
        {"{{ u|upper }} {{ u|length }} {{ u[1:3] }} {{ u[::-1] }}",
         "GR\xc3\x9cSS \xe6\x97\xa5\xe6\x9c\xac 7 r\xc3\xbc "
         "\xe6\x9c\xac\xe6\x97\xa5 \xc3\x9f\xc3\xbcrG"},
        {"{{ 'hello-world foo(bar'|title }} {{ \"it's\".title() }}", "Hello-World Foo(Bar It'S"},
        {"{{ s.split() }} {{ 'a  b c '.split(none,1) }} {{ ' a b c '.rsplit(none,1) }}",
         "['Hello,', 'World'] ['a', 'b c '] [' a b', 'c']"},
        {"{{ 'a,b,c'.rsplit(',',1) }} {{ ml.split('\\n') }}",
         "['a,b', 'c'] ['a', 'b', '', 'c', '']"},
        {"{{ s.partition(', ') }}{{ s.find('o',5) }}{{ s.count('l') }}",
         "('Hello', ', ', 'World')83"},
        {"{{ s.startswith(('x','He')) }} {{ s.endswith('o',0,5) }}", "True True"},
        {"{{ 'xxabcxx'.lstrip('x') }} {{ 'abc'.removeprefix('ab') }}", "abcxx c"},
        {"{{ s|replace('l','L',1) }} {{ 'ab'.replace('','-') }}", "HeLlo, World -a-b-"},
        {"{{ ml|indent(2) }}|{{ 'a\\nb'|indent('>>',true) }}", "a\n  b\n\n  c\n|>>a\n>>b"},
        {"{{ '{:>5}|{:*^7}|{:05d}|{:,}|{!r}'.format('a','d',42,1234567,'x') }}",
         "    a|***d***|00042|1,234,567|'x'"},
        {"{{ '%s %5.2f %-4s| %05d %x %%' % ('a',2.5,'b',7,255) }}", "a  2.50 b   | 00007 ff %"},
        {"{{ ('<b>'|safe) + '<i>' }} {{ '<a>'|e }}", "<b>&lt;i&gt; &lt;a&gt;"},
        {"{{ 'a' ~ 1 ~ no ~ nope ~ 1.5 }}", "a1None1.5"},
        {"{{ \"\\u00e9\\x41\\t\" 'b' }}", "\xc3\xa9"
                                          "A\tb"},
    };
    expect_all(t, HY_COUNTOF(t));
}

static void test_values_as_text(void **state)
{
    (void)state;
    static const pair t[] = {
        {"{{ mix }}", "[1, 2.0, 's', None, True, [1], {'k': 'v\\'s \"q\"'}]"},
        {"{{ mix|tojson }}", "[1, 2.0, \"s\", null, true, [1], {\"k\": \"v's \\\"q\\\"\"}]"},
        {"{{ dd|tojson(indent=2) }}",
         "{\n  \"x\": {\n    \"y\": [\n      1,\n      {\n        \"z\": "
         "\"deep\"\n      }\n    ]\n  },\n  \"items\": 5\n}"},
        {"{{ d|tojson(separators=(',',':')) }}", "{\"b\":1,\"a\":2,\"C\":3}"},
        {"{{ d|tojson(sort_keys=true) }}", "{\"C\": 3, \"a\": 2, \"b\": 1}"},
        {"{{ '\xc3\xa9\x7f<'|tojson }} {{ '\xc3\xa9\xf0\x9f\x98\x80\x7f'|tojson(ensure_ascii=true) "
         "}}",
         "\"\xc3\xa9\x7f<\" \"\\u00e9\\ud83d\\ude00\\u007f\""},
        {"{{ (1,) }}{{ () }}{{ {1:2,none:3} }}", "(1,)(){1: 2, None: 3}"},
        {"{{ d.items() }} {{ range(3) }}",
         "dict_items([('b', 1), ('a', 2), ('C', 3)]) range(0, 3)"},
        {"{{ ['\xe2\x80\x8b\xc2\xa0\\n'] }}", "['\\u200b\\xa0\\n']"},
    };
    expect_all(t, HY_COUNTOF(t));
    expect_error("{{ nope|tojson }}", HY_E_FORMAT, "not JSON serializable");
    expect_error("{{ l|map('string')|tojson }}", HY_E_FORMAT, "generator");
}

static void test_sequences(void **state)
{
    (void)state;
    static const pair t[] = {
        {"{{ l|sort }} {{ ls|sort }} {{ ls|sort(case_sensitive=true) }}",
         "[1, 2, 3] ['A', 'a', 'b', 'c'] ['A', 'a', 'b', 'c']"},
        {"{{ d|dictsort }}", "[('a', 2), ('b', 1), ('C', 3)]"},
        {"{{ ll|selectattr('t','equalto','a')|map(attribute='n')|join(', ') }}", "x, z"},
        {"{{ ll|rejectattr('q','defined')|list|length }} {{ l|reject('odd')|list }}", "3 [2]"},
        {"{{ ll|groupby('t')|map(attribute='grouper')|list }}", "['a', 'b']"},
        {"{{ (ll|groupby('t'))[0].list|length }}", "2"},
        {"{{ l|sum }} {{ ll|sum('v') }} {{ ls|max }} {{ l|min }}", "6 6 c 1"},
        {"{{ ['a','A','b']|unique|list }} {{ l|batch(2,0)|list }}", "['a', 'b'] [[3, 1], [2, 0]]"},
        {"{% set g = l|map('string') %}{{ g|first }}{{ g|first }}{{ g|list }}", "31['2']"},
        {"{{ l[::-1] }} {{ l[-1] }} {{ l[9] }} {{ range(10)[2:5]|list }}",
         "[2, 1, 3] 2  [2, 3, 4]"},
        {"{{ nope|first }}{{ nope|last }}{{ nope|length }}{{ nope|list }}", "0[]"},
        {"{{ 'a' in d }} {{ 'lo' in s }} {{ 'x' in nope }} {{ 9 not in l }}",
         "True True False True"},
    };
    expect_all(t, HY_COUNTOF(t));
    expect_error("{{ l|map('string')|length }}", HY_E_FORMAT, "no len()");
}

static void test_attributes(void **state)
{
    (void)state;
    static const pair t[] = {
        {"{{ dd.x.y[1].z }} {{ dd['items'] }} {{ dd.items is callable }}", "deep 5 True"},
        {"{{ dd.q }}|{{ no.x }}|{{ dd.q is defined }}", "||False"},
        {"{{ namespace(a=1).a }}{{ dict(d, q=1).q }}", "11"},
        {"{{ nope is sequence }} {{ d.items() is sequence }} {{ true is integer }}",
         "True False False"},
    };
    expect_all(t, HY_COUNTOF(t));
    expect_error("{{ dd.q.r }}", HY_E_FORMAT, "'dict object' has no attribute 'q'");
    expect_error("{{ no.x.y }}", HY_E_FORMAT, "'None' has no attribute 'x'");
    expect_error("{{ nope.x }}", HY_E_FORMAT, "'nope' is undefined");
    expect_error("{% set _ = l.append(4) %}", HY_E_FORMAT, "unsafe");
    expect_error("{{ 'a' + no }}", HY_E_FORMAT, "can only concatenate str");
}

static void test_statements(void **state)
{
    (void)state;
    static const pair t[] = {
        {"{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% endfor %}",
         "1/2:3 2/2:2 "},
        {"{% for x in [] %}a{% else %}empty{% endfor %}", "empty"},
        {"{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}"
         "{% endif %}{{ x }}{% endfor %}",
         "0134"},
        {"{% for m in ll %}{{ loop.previtem.n if loop.previtem else '-' }}"
         "{{ loop.nextitem.n if loop.nextitem is defined else '-' }} {% endfor %}",
         "-Y xz Y- "},
        {"{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}",
         "4 2 3 1"},
        {"{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}"
         "{{ ns.x }}",
         "7"},
        {"{% if true %}{% set q = 5 %}{% endif %}{{ q }}", "5"},
        {"{% set x | trim | upper %}  body {{ n }} {% endset %}[{{ x }}]", "[BODY 7]"},
        {"{% macro f(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}"
         "{{ f(1) }}|{{ f(1,c='z') }}|{{ f() }}",
         "12x|12z|2x"},
        {"{% macro f() %}{{ x }}{% endmacro %}{% set x = 3 %}{{ f() }}", "3"},
        {"{% macro f(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1,2,z=4) }}", "(2,){'z': 4}"},
        {"{% macro f() %}[{{ caller(5) }}]{% endmacro %}{% call(x) f() %}in{{ x }}{% endcall %}",
         "[in5]"},
        {"{% for i in [1,2] %}{% macro g() %}{{ i }}{% endmacro %}{{ g() }}{% endfor %}", "12"},
        {"{% for x in [{'n':1,'c':[{'n':2,'c':[]}]}] recursive %}{{ x.n }}{{ loop.depth }}"
         "{% if x.c %}({{ loop(x.c) }}){% endif %}{% endfor %}",
         "11(22)"},
        {"{% filter upper %}abc {{ s }}{% endfilter %}", "ABC HELLO, WORLD"},
        {"{% with a=1, b=n %}{{ a }}{{ b }}{% endwith %}{{ a }}", "17"},
        {"{% generation %}x{% set y = 4 %}{% endgeneration %}{{ y }}", "x"},
        {"{% for x in [1,2] %}{% set y %}a{% if x == 2 %}{% break %}{% endif %}{% endset %}{{ y }}"
         "{% endfor %}",
         "a"},
        {"{% if false %}{{ n|nofilter }}{% endif %}ok", "ok"},
        {"{{ strftime_now('%Y-%m-%d %H:%M %a %B %f') }}", "2026-01-15 09:30 Thu January 000000"},
        {"{{ 'a' if false }}{{ 1 if 0 else 2 if 0 else 3 }}", "3"},
    };
    expect_all(t, HY_COUNTOF(t));
}

static void test_compile_errors(void **state)
{
    (void)state;
    expect_error("a\nb {% include 'x' %}", HY_E_UNSUPPORTED, "line 2: ");
    expect_error("\n\n{{ n|nofilter }}", HY_E_UNSUPPORTED, "line 3: no filter named 'nofilter'");
    expect_error("{{ n is notest }}", HY_E_UNSUPPORTED, "no test named 'notest'");
    expect_error("{% if false %}{% for x in l %}{{ n|nofilter }}{% endfor %}{% endif %}",
                 HY_E_UNSUPPORTED, "nofilter");
    expect_error("{% if n %}x", HY_E_FORMAT, "endif");
    expect_error("{% break %}", HY_E_FORMAT, "outside of a loop");
    expect_error("{{ n", HY_E_FORMAT, "not closed");
    expect_error("{# n", HY_E_FORMAT, "not closed");
    expect_error("{{ 'abc }}", HY_E_FORMAT, "string");
    expect_error("{{ (n }}", HY_E_FORMAT, "line 1: ");
    expect_error("{{ a b }}", HY_E_FORMAT, "expected }}");
    expect_error("{% set 1 = 2 %}", HY_E_FORMAT, "assign");
    expect_error("{{ \xff }}", HY_E_FORMAT, "UTF-8");
}

static void test_runtime_errors(void **state)
{
    (void)state;
    expect_error("{{ raise_exception('boom ' ~ n) }}", HY_E_INVAL, "boom 7");
    hy_buf out;
    hy_buf_init(&out);
    assert_int_equal(run("{{ raise_exception('only this') }}", &out), HY_E_INVAL);
    assert_string_equal(hy_fail_text(), "only this");
    hy_buf_fini(&out);
    expect_error("a\n{{ no + 1 }}", HY_E_FORMAT, "line 2: ");
    expect_error("{% set q.x = 1 %}", HY_E_FORMAT, "undefined");
    expect_error("{% for a,b in [(1,2,3)] %}{% endfor %}", HY_E_FORMAT, "too many values");
    expect_error("{{ range(100001) }}", HY_E_FORMAT, "range");
    /* jinja2 slices by Python's own rules: what has no order is a type error, never undefined */
    const char *const whole[] = {"n", "none", "true", "1.5", "{'a': 1}", "nothing"};
    for (size_t i = 0; i < HY_COUNTOF(whole); i++) {
        char src[64];
        snprintf(src, sizeof src, "{{ (%s)[:1] is defined }}", whole[i]);
        expect_error(src, HY_E_FORMAT,
                     i + 1 < HY_COUNTOF(whole) ? "cannot be sliced" : "undefined");
    }
}

/* Templates made to hurt: each must end soon with HY_E_LIMIT or a plain error. */
static void test_bounds(void **state)
{
    (void)state;
    expect_error("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
                 HY_E_LIMIT, "steps");
    expect_error("{{ 'x' * 100000000000 }}", HY_E_LIMIT, "memory");
    expect_error("{{ [0] * 100000000000 }}", HY_E_LIMIT, "memory");
    expect_error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", HY_E_LIMIT, "depth");
    expect_error("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", HY_E_LIMIT, "depth");
    expect_error(
        "{% set ns = namespace(a='x') %}{% for i in range(99) %}{% set ns.a = ns.a + ns.a %}"
        "{% endfor %}",
        HY_E_LIMIT, "memory");
    expect_error("{{ '%1000000000d' % 1 }}", HY_E_FORMAT, "width");
    char deep[8200];
    memset(deep, '(', sizeof deep);
    memcpy(deep, "{{", 2);
    deep[sizeof deep - 1] = '\0';
    expect_error(deep, HY_E_UNSUPPORTED, "nested");
    memset(deep + 2, '-', sizeof deep - 3);
    memcpy(deep + sizeof deep - 4, "1}}", 3);
    expect_error(deep, HY_E_UNSUPPORTED, "nested");
}

/* A prompt built by appending in a loop takes time and memory in proportion to its length. */
static void test_appending(void **state)
{
    (void)state;
    hy_buf out;
    hy_buf_init(&out);
    assert_int_equal(run("{% set ns = namespace(a='') %}{% for i in range(100000) %}"
                         "{% set ns.a = ns.a + 'some forty bytes of text, or nearly so..' %}"
                         "{% endfor %}{{ ns.a|length }}",
                         &out),
                     HY_OK);
    assert_string_equal(hy_buf_str(&out), "4000000");
    hy_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_white_space),    cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_strings),        cmocka_unit_test(test_values_as_text),
        cmocka_unit_test(test_sequences),      cmocka_unit_test(test_attributes),
        cmocka_unit_test(test_statements),     cmocka_unit_test(test_compile_errors),
        cmocka_unit_test(test_runtime_errors), cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_appending),
    };
    return cmocka_run_group_tests_name("jinja", tests, setup, teardown);
}
