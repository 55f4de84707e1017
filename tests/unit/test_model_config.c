/* SPDX-License-Identifier: Apache-2.0
 *
 * config.json to numbers (both generations of keys, nested, hostile), and rotary frequencies
 * against values computed apart from the published formulas in double precision.
 *
 * Thread: one.  Owner: each test.
 */
#include "core/model/hparams.h"
#include "core/model/rope.h"
#include "tests/unit/cm.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

static const char base_text[] =
    "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,"
    "\"num_hidden_layers\":3,\"num_attention_heads\":8,\"num_key_value_heads\":2,"
    "\"vocab_size\":512,\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-6}";

static hy_hparams hp;

/* The base with one key replaced by the JSON text v (NULL: removed). */
static hy_status with(const char *key, const char *v)
{
    json_t *j = json_loads(base_text, 0, NULL);
    assert_non_null(j);
    if (v == NULL)
        json_object_del(j, key);
    else
        json_object_set_new(j, key, json_loads(v, JSON_DECODE_ANY, NULL));
    char *text = json_dumps(j, 0);
    hy_status st = hy_hparams_from_hf(text, strlen(text), &hp);
    free(text);
    json_decref(j);
    return st;
}

static void refused(const char *key, const char *v, hy_status want, const char *text)
{
    hy_status st = with(key, v);
    if (st != want || strstr(hy_fail_text(), text) == NULL)
        fail_msg("%s = %s: %s \"%s\", wanted %s with \"%s\"", key, v != NULL ? v : "(none)",
                 hy_status_name(st), hy_fail_text(), hy_status_name(want), text);
}

static void test_base(void **state)
{
    (void)state;
    assert_int_equal(with("x", "1"), HY_OK);
    assert_int_equal(hp.dim, 64);
    assert_int_equal(hp.k_dim, 8);
    assert_int_equal(hp.rot, 8);
    assert_int_equal(hp.kv_heads, 2);
    assert_int_equal(hp.window, 0);
    assert_int_equal(hp.tied, 0);
    assert_int_equal(hp.act, HY_ACT_SILU);
    assert_true(hp.rope.base == 10000.0);
    assert_int_equal(with("num_key_value_heads", "null"), HY_OK);
    assert_int_equal(hp.kv_heads, 8);
    assert_int_equal(with("head_dim", "32"), HY_OK);
    assert_int_equal(hp.k_dim, 32);
    assert_int_equal(with("partial_rotary_factor", "0.5"), HY_OK);
    assert_int_equal(hp.rot, 4);
}

static void test_refused(void **state)
{
    (void)state;
    refused("hidden_size", NULL, HY_E_FORMAT, "hidden_size");
    refused("hidden_size", "\"64\"", HY_E_FORMAT, "hidden_size");
    refused("hidden_size", "-64", HY_E_FORMAT, "hidden_size");
    refused("hidden_size", "64.5", HY_E_FORMAT, "hidden_size");
    refused("hidden_size", "1e300", HY_E_FORMAT, "hidden_size");
    refused("hidden_size", "2097152", HY_E_FORMAT, "hidden_size");
    refused("num_hidden_layers", "0", HY_E_FORMAT, "num_hidden_layers");
    refused("num_hidden_layers", "1025", HY_E_FORMAT, "num_hidden_layers");
    refused("num_attention_heads", "0", HY_E_FORMAT, "num_attention_heads");
    refused("num_key_value_heads", "3", HY_E_FORMAT, "evenly");
    refused("num_attention_heads", "128", HY_E_FORMAT, "less than"); /* 64 / 128 = 0 */
    refused("text_config", "7", HY_E_FORMAT, "text_config");
    refused("use_bidirectional_attention", "true", HY_E_UNSUPPORTED, "use_bidirectional");
    refused("head_dim", "7", HY_E_FORMAT, "rotated");
    refused("vocab_size", "99999999999", HY_E_FORMAT, "vocab_size");
    refused("rms_norm_eps", "[]", HY_E_FORMAT, "rms_norm_eps");
    refused("tie_word_embeddings", "1", HY_E_FORMAT, "tie_word_embeddings");
    refused("hidden_act", "\"mish\"", HY_E_UNSUPPORTED, "mish");
    refused("rope_theta", "0", HY_E_FORMAT, "rope_theta");
    refused("rope_scaling", "{\"type\":\"magic\",\"factor\":2}", HY_E_UNSUPPORTED, "magic");
    refused("rope_scaling", "{\"rope_type\":\"linear\"}", HY_E_FORMAT, "factor");
    refused("rope_scaling", "7", HY_E_FORMAT, "rope scaling");
    refused("rope_scaling", "{\"rope_type\":\"longrope\",\"factor\":2}", HY_E_FORMAT,
            "short_factor");
    refused("rope_scaling",
            "{\"rope_type\":\"longrope\",\"factor\":2,\"short_factor\":[1],\"long_factor\":[1]}",
            HY_E_FORMAT, "4 are needed");
    refused("layer_types", "[\"full_attention\"]", HY_E_FORMAT, "layer_types");
    refused("layer_types", "[\"linear_attention\",\"x\",\"y\"]", HY_E_UNSUPPORTED,
            "linear_attention");
    refused("quantization_config", "{\"quant_method\":\"awq\"}", HY_E_UNSUPPORTED, "awq");
    refused("model_type", NULL, HY_E_FORMAT, "model_type");
    refused("model_type", "\"deepseek_v3\"", HY_E_UNSUPPORTED, "deepseek_v3");
    refused("model_type", "\"mixtral\"", HY_E_UNSUPPORTED, "known are llama");
    refused("model_type", "\"evil\\u001b[2Jname\"", HY_E_UNSUPPORTED, "evil?[2Jname");
    assert_int_equal(hy_hparams_from_hf("[1]", 3, &hp), HY_E_FORMAT);
    assert_int_equal(hy_hparams_from_hf("{", 1, &hp), HY_E_FORMAT);
    assert_int_equal(hy_hparams_from_hf("", 0, &hp), HY_E_FORMAT);
}

/* gemma-3-4b's published configuration leaves most keys to defaults, inside text_config. */
static void test_nested(void **state)
{
    (void)state;
    static const char text[] =
        "{\"model_type\":\"gemma3\",\"text_config\":{\"hidden_size\":2560,"
        "\"intermediate_size\":10240,\"model_type\":\"gemma3_text\",\"num_hidden_layers\":34,"
        "\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"},\"sliding_window\":1024},"
        "\"vision_config\":{\"hidden_size\":1152}}";
    assert_int_equal(hy_hparams_from_hf(text, sizeof(text) - 1, &hp), HY_OK);
    assert_int_equal(hp.dim, 2560);
    assert_int_equal(hp.heads, 8);
    assert_int_equal(hp.kv_heads, 4);
    assert_int_equal(hp.k_dim, 256);
    assert_int_equal(hp.vocab, 262208);
    assert_int_equal(hp.window, 1024);
    assert_int_equal(hp.sliding[4], 1);
    assert_int_equal(hp.sliding[5], 0);
    assert_int_equal(hp.sliding[33], 1);
    assert_int_equal(hp.tied, 1);
    assert_true(hp.attn_scale == 1.0 / 16.0);
    assert_int_equal(hp.rope.scaling, HY_ROPE_LINEAR);
    assert_int_equal(hp.rope_local.scaling, HY_ROPE_PLAIN);
    assert_true(hp.rope.base == 1e6 && hp.rope_local.base == 1e4);
}

/* The newer keys: rope_parameters by layer type. */
static void test_parameters(void **state)
{
    (void)state;
    assert_int_equal(with("rope_parameters", "{\"rope_type\":\"llama3\",\"rope_theta\":500000.0,"
                                             "\"factor\":32,\"low_freq_factor\":1,"
                                             "\"high_freq_factor\":4,"
                                             "\"original_max_position_embeddings\":8192}"),
                     HY_OK);
    assert_int_equal(hp.rope.scaling, HY_ROPE_LLAMA3);
    assert_true(hp.rope.base == 500000.0 && hp.rope.original == 8192.0);
    static const char gemma[] =
        "{\"model_type\":\"gemma3_text\",\"hidden_size\":640,\"intermediate_size\":2048,"
        "\"num_hidden_layers\":2,\"layer_types\":[\"sliding_attention\",\"full_attention\"],"
        "\"sliding_window\":512,\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\","
        "\"rope_theta\":2000000.0},\"sliding_attention\":{\"rope_type\":\"default\","
        "\"rope_theta\":20000.0}}}";
    assert_int_equal(hy_hparams_from_hf(gemma, sizeof(gemma) - 1, &hp), HY_OK);
    assert_true(hp.rope.base == 2e6 && hp.rope_local.base == 2e4);
    assert_int_equal(hp.sliding[0], 1);
    assert_int_equal(hp.sliding[1], 0);
}

/* What is left out means what each family's own configuration class says (transformers 5.24). */
static void test_left_out(void **state)
{
    (void)state;
    static const struct {
        const char *type, *more;
        int32_t context, k_dim, window;
        double eps, original;
    } cases[] = {
        {"llama", "", 2048, 8, 0, 1e-6, 0},
        {"mistral", "", 131072, 8, 4096, 1e-6, 0},
        {"mistral", ",\"sliding_window\":null", 131072, 8, 0, 1e-6, 0},
        {"qwen2", "", 32768, 8, 0, 1e-6, 0},
        {"qwen2", ",\"use_sliding_window\":true,\"max_window_layers\":0", 32768, 8, 4096, 1e-6, 0},
        {"qwen3", "", 32768, 128, 0, 1e-6, 0},
        {"phi3", "", 4096, 8, 0, 1e-5, 0},
        {"phi3",
         ",\"max_position_embeddings\":8192,\"rope_scaling\":{\"type\":\"longrope\","
         "\"short_factor\":[1,1,1,1],\"long_factor\":[2,2,2,2]}",
         8192, 8, 0, 1e-5, 4096},
        {"gemma3_text", "", 131072, 256, 4096, 1e-6, 0},
        {"gemma3_text", ",\"sliding_window\":null", 131072, 256, 0, 1e-6, 0},
    };
    for (size_t i = 0; i < HY_COUNTOF(cases); i++) {
        char text[512];
        int n = snprintf(text, sizeof(text),
                         "{\"model_type\":\"%s\",\"hidden_size\":64,\"intermediate_size\":96,"
                         "\"num_hidden_layers\":1,\"num_attention_heads\":8,"
                         "\"num_key_value_heads\":2,\"vocab_size\":512%s}",
                         cases[i].type, cases[i].more);
        if (hy_hparams_from_hf(text, (size_t)n, &hp) < 0)
            fail_msg("%s: %s", text, hy_fail_text());
        assert_int_equal(hp.context, cases[i].context);
        assert_int_equal(hp.k_dim, cases[i].k_dim);
        assert_int_equal(hp.window, cases[i].window);
        assert_int_equal(hp.sliding[0], cases[i].window > 0);
        assert_true(hp.eps == (float)cases[i].eps);
        assert_true(hp.rope.original == cases[i].original);
        if (cases[i].original > 0)
            assert_true(hp.rope.factor == 2.0);
    }
}

static void test_windows(void **state)
{
    (void)state;
    assert_int_equal(with("sliding_window", "16"), HY_OK); /* llama has none */
    assert_int_equal(hp.sliding[0], 0);
    static const char mistral[] =
        "{\"model_type\":\"mistral\",\"hidden_size\":64,\"intermediate_size\":96,"
        "\"num_hidden_layers\":2,\"num_attention_heads\":8,\"vocab_size\":512,"
        "\"sliding_window\":4096}";
    assert_int_equal(hy_hparams_from_hf(mistral, sizeof(mistral) - 1, &hp), HY_OK);
    assert_true(hp.sliding[0] == 1 && hp.sliding[1] == 1 && hp.window == 4096);
    static const char qwen[] =
        "{\"model_type\":\"qwen2\",\"hidden_size\":64,\"intermediate_size\":96,"
        "\"num_hidden_layers\":3,\"num_attention_heads\":8,\"vocab_size\":512,"
        "\"sliding_window\":4096,\"use_sliding_window\":true,\"max_window_layers\":2}";
    assert_int_equal(hy_hparams_from_hf(qwen, sizeof(qwen) - 1, &hp), HY_OK);
    assert_true(hp.sliding[0] == 0 && hp.sliding[1] == 0 && hp.sliding[2] == 1);
}

static void near(float got, double want)
{
    if (!(fabs((double)got - want) <= 1e-6 * fabs(want)))
        fail_msg("%.9g, wanted %.9g", (double)got, want);
}

static void make(const hy_rope_params *r, int32_t rot, int32_t context, hy_rope_desc *d)
{
    memset(d, 0, sizeof(*d));
    d->kind = HY_ROPE_HALVES;
    d->rot = rot;
    assert_int_equal(hy_rope_make(r, context, d), HY_OK);
}

static void test_rope_scalings(void **state)
{
    (void)state;
    hy_rope_desc d;
    static hy_rope_params r;
    r = (hy_rope_params){.base = 500000.0,
                         .scaling = HY_ROPE_LLAMA3,
                         .factor = 32.0,
                         .original = 8192.0,
                         .low_freq = 1.0,
                         .high_freq = 4.0};
    make(&r, 64, 131072, &d); /* Llama-3.2-1B */
    near(d.inv_freq[0], 1.0);
    near(d.inv_freq[7], 0.0566696214);
    near(d.inv_freq[14], 0.00321144599);
    near(d.inv_freq[15], 0.00129054793);
    near(d.inv_freq[16], 0.000429556797);
    near(d.inv_freq[17], 9.7082878e-05);
    near(d.inv_freq[31], 9.41830673e-08);
    near(d.mscale, 1.0);
    hy_rope_free(&d);
    r = (hy_rope_params){.base = 1e6,
                         .scaling = HY_ROPE_YARN,
                         .factor = 4.0,
                         .original = 32768.0,
                         .beta_fast = 32.0,
                         .beta_slow = 1.0};
    make(&r, 128, 131072, &d); /* Qwen2.5 with yarn */
    near(d.inv_freq[0], 1.0);
    near(d.inv_freq[20], 0.0133352143);
    near(d.inv_freq[30], 0.00106436098);
    near(d.inv_freq[35], 0.000246258407);
    near(d.inv_freq[39], 6.49039432e-05);
    near(d.inv_freq[63], 3.1023444e-07);
    near(d.mscale, 1.13862944);
    hy_rope_free(&d);
    r.mscale = r.mscale_all = 1.0; /* DeepSeek: they cancel */
    make(&r, 128, 131072, &d);
    near(d.mscale, 1.0);
    hy_rope_free(&d);
    r = (hy_rope_params){.base = 1e4, .scaling = HY_ROPE_LINEAR, .factor = 8.0};
    make(&r, 16, 4096, &d);
    near(d.inv_freq[0], 0.125);
    near(d.inv_freq[4], 0.00125);
    hy_rope_free(&d);
}

static void test_longrope(void **state)
{
    (void)state;
    hy_rope_desc d;
    static hy_rope_params r;
    r = (hy_rope_params){.base = 1e4,
                         .scaling = HY_ROPE_LONGROPE,
                         .factor = 32.0,
                         .original = 4096.0,
                         .short_factor = {1.0f, 1.05f, 1.1f, 1.2f, 1.4f, 1.7f, 2.1f, 2.6f},
                         .long_factor = {1.1f, 1.5f, 2.2f, 4.0f, 8.0f, 14.0f, 22.0f, 32.0f},
                         .n_short = 8,
                         .n_long = 8};
    make(&r, 16, 131072, &d); /* the tiny phi3's */
    near(d.mscale, 1.19023807);
    assert_int_equal(d.long_from, 4096);
    near(d.inv_freq[3], 0.0263523138);
    near(d.inv_freq_long[3], 0.00790569415);
    near(d.inv_freq[7], 0.000121626064);
    near(d.inv_freq_long[7], 9.88211769e-06);
    float c1[8], s1[8], c2[8], s2[8];
    hy_rope_angles(&d, 5000, false, c1, s1);
    hy_rope_angles(&d, 5000, true, c2, s2);
    assert_true(c1[7] != c2[7] && s1[7] != s2[7]);
    hy_rope_free(&d);
}

static void test_angles(void **state)
{
    (void)state;
    float f[2] = {1.0f, 0.5623413251903491f}, c[2], s[2];
    hy_rope_desc d = {.kind = HY_ROPE_HALVES, .rot = 4, .inv_freq = f, .mscale = 1.0f};
    hy_rope_angles(&d, 100000, false, c, s);
    near(c[0], -0.999360807);
    near(s[0], 0.035748798);
    hy_rope_angles(&d, 131071, false, c, s);
    near(c[1], 0.163840786);
    near(s[1], -0.986486795);
    hy_rope_angles(&d, 7, false, c, s);
    near(c[0], 0.753902254);
    near(s[0], 0.656986599);
    hy_rope_angles(&d, 0, false, c, s);
    assert_true(c[0] == 1.0f && s[0] == 0.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base),          cmocka_unit_test(test_refused),
        cmocka_unit_test(test_nested),        cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_left_out),      cmocka_unit_test(test_windows),
        cmocka_unit_test(test_rope_scalings), cmocka_unit_test(test_longrope),
        cmocka_unit_test(test_angles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
