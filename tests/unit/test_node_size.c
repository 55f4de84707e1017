/* SPDX-License-Identifier: Apache-2.0
 *
 * Sizes of a node from a model that is only numbers and a device that says how much memory is free.
 * A block of the fake device is exactly its elements, so every figure below can be done by hand:
 * 2 (K and V) * layers * heads * width * tokens * 2 bytes (f16).
 *
 * Thread: one.  Owner: fixture.
 */
#include "core/conf/conf.h"
#include "core/node/size.h"
#include "tests/unit/cm.h"

#include <string.h>

enum { MB = 1 << 20 };

typedef struct fake {
    hy_model m;
    hy_kv_group groups[HY_SIZE_MAX_GROUPS + 1];
    hy_dev dev;
    hy_conf *conf;
    hy_size s;
} fake;

static size_t mem_free;

static hy_status props(hy_dev *d, hy_dev_props *out)
{
    (void)d;
    memset(out, 0, sizeof(*out));
    out->mem_free = mem_free;
    return HY_OK;
}

static hy_status kv_layout(hy_dev *d, hy_kv_layout *l)
{
    (void)d;
    int64_t width = l->type == HY_F32 ? 4 : 2;
    l->bytes_per_block =
        width * l->n_layers * l->n_heads * l->block_tokens * (l->k.width + l->v.width);
    return HY_OK;
}

static hy_dev_ops dev_ops = {.size = sizeof(dev_ops), .props = props};
static hy_math_ops math_ops = {.size = sizeof(math_ops), .kv_layout = kv_layout};

/* One group of 4 layers, 2 heads of 64: a block of 16 f16 tokens is 32 KiB; context 4096 is 8 MiB.
 */
static int setup(void **state)
{
    fake *f = calloc(1, sizeof(*f));
    f->dev.ops = &dev_ops;
    f->dev.math = &math_ops;
    f->m.dev = &f->dev;
    f->m.groups = f->groups;
    f->m.n_groups = 1;
    f->m.cfg.context = 4096;
    f->groups[0] = (hy_kv_group){.n_layers = 4, .n_heads = 2, .k_dim = 64, .v_dim = 64};
    f->conf = hy_conf_create();
    mem_free = (size_t)1024 * MB;
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fake *f = *state;
    hy_conf_destroy(f->conf);
    free(f);
    return 0;
}

static hy_status choose(fake *f)
{
    return hy_size_choose(f->conf, &f->m, HY_ACT_INT8, &f->s);
}

static void refused(fake *f, hy_status st, const char *word)
{
    hy_size before = f->s;
    assert_int_equal(choose(f), st);
    if (strstr(hy_fail_text(), word) == NULL)
        fail_msg("'%s' is not in: %s", word, hy_fail_text());
    assert_memory_equal(&before, &f->s, sizeof(before)); /* set on success only */
}

static void set(fake *f, const char *s)
{
    assert_int_equal(hy_conf_set(f->conf, s), HY_OK);
}

static void test_plenty_of_memory(void **state)
{
    fake *f = *state;
    assert_int_equal(choose(f), HY_OK);
    assert_int_equal(f->s.context, 4096);
    assert_int_equal(f->s.block_bytes[0], 32 * 1024);
    assert_int_equal(f->s.n_blocks[0], 8 * 256); /* eight full contexts */
    assert_int_equal(f->s.pool_bytes, 64 * MB);
    assert_int_equal(f->s.max_rows, 512);
    assert_int_equal(f->s.max_seqs, 64);
}

static void test_some_memory(void **state)
{
    fake *f = *state;
    mem_free = 50 * MB; /* 40 %: 20 MiB, two and a half contexts */
    assert_int_equal(choose(f), HY_OK);
    assert_int_equal(f->s.context, 4096);
    assert_int_equal(f->s.n_blocks[0], 640);
}

static void test_little_memory_limits_the_context(void **state)
{
    fake *f = *state;
    mem_free = 10 * MB; /* 4 MiB: half a context */
    assert_int_equal(choose(f), HY_OK);
    assert_int_equal(f->s.context, 2048);
    assert_int_equal(f->s.n_blocks[0], 128);
    set(f, "engine.context=4096"); /* asked for: refused, not lowered */
    refused(f, HY_E_NOMEM, "[engine] context");
}

static void test_no_memory(void **state)
{
    fake *f = *state;
    mem_free = MB; /* 0.4 MiB holds 204 tokens */
    refused(f, HY_E_NOMEM, "out of memory for the KV pool");
}

static void test_memory_key(void **state)
{
    fake *f = *state;
    set(f, "kv.memory=16M");
    assert_int_equal(choose(f), HY_OK);
    assert_int_equal(f->s.n_blocks[0], 512);
    assert_int_equal(f->s.pool_bytes, 16 * MB);
    set(f, "kv.memory=1M"); /* 32 blocks: 512 tokens */
    assert_int_equal(choose(f), HY_OK);
    assert_int_equal(f->s.context, 512);
    set(f, "kv.memory=40k");
    refused(f, HY_E_INVAL, "[kv] memory");
    set(f, "kv.memory=2G");
    refused(f, HY_E_NOMEM, "out of memory for the KV pool");
    set(f, "kv.memory=64T");
    refused(f, HY_E_NOMEM, "out of memory for the KV pool");
}

static void test_blocks_key(void **state)
{
    fake *f = *state;
    set(f, "kv.blocks=300");
    assert_int_equal(choose(f), HY_OK);
    assert_int_equal(f->s.n_blocks[0], 300);
    set(f, "kv.blocks=1");
    refused(f, HY_E_INVAL, "[kv] blocks");
    set(f, "kv.blocks=268435456");
    refused(f, HY_E_NOMEM, "out of memory for the KV pool");
}

static void test_context_key(void **state)
{
    fake *f = *state;
    set(f, "engine.context=1024");
    assert_int_equal(choose(f), HY_OK);
    assert_int_equal(f->s.context, 1024);
    assert_int_equal(f->s.n_blocks[0], 8 * 64);
    set(f, "engine.context=4097");
    refused(f, HY_E_INVAL, "[engine] context = 4097");
}

static void test_unknown_context(void **state)
{
    fake *f = *state;
    f->m.cfg.context = 0;
    assert_int_equal(choose(f), HY_OK);
    assert_int_equal(f->s.context, 2048);
}

static void test_block_tokens(void **state)
{
    fake *f = *state;
    set(f, "kv.block_tokens=24");
    refused(f, HY_E_INVAL, "[kv] block_tokens = 24");
    set(f, "kv.block_tokens=64");
    assert_int_equal(choose(f), HY_OK);
    assert_int_equal(f->s.n_blocks[0], 8 * 64);
    assert_int_equal(f->s.block_bytes[0], 128 * 1024);
}

static void test_types(void **state)
{
    fake *f = *state;
    set(f, "kv.type=f32");
    assert_int_equal(choose(f), HY_OK);
    assert_int_equal(f->s.block_bytes[0], 64 * 1024);
    set(f, "kv.storage=f16"); /* would lose bits */
    refused(f, HY_E_INVAL, "[kv] storage");
    set(f, "kv.type=bf16");
    set(f, "kv.storage=f32");
    assert_int_equal(choose(f), HY_OK);
    assert_int_equal(f->s.kv_value, HY_BF16);
    assert_int_equal(f->s.kv_storage, HY_F32);
}

/* A window of 512 beside a full group: a sequence holds (512 + 512 rows) / 16 + 2 blocks of it. */
static void test_window_group(void **state)
{
    fake *f = *state;
    f->m.n_groups = 2;
    f->groups[1] =
        (hy_kv_group){.n_layers = 20, .n_heads = 2, .k_dim = 64, .v_dim = 64, .window = 512};
    assert_int_equal(choose(f), HY_OK);
    assert_int_equal(f->s.n_blocks[0], 8 * 256);
    assert_int_equal(f->s.n_blocks[1], 8 * 66);
    set(f, "engine.context=256"); /* shorter than the window */
    assert_int_equal(choose(f), HY_OK);
    assert_int_equal(f->s.n_blocks[1], 8 * 16);
}

static void test_too_many_groups(void **state)
{
    fake *f = *state;
    f->m.n_groups = HY_SIZE_MAX_GROUPS + 1;
    refused(f, HY_E_UNSUPPORTED, "cache groups");
}

static void test_fewer_rows_than_sequences(void **state)
{
    fake *f = *state;
    set(f, "engine.max_batch_tokens=16");
    assert_int_equal(choose(f), HY_OK);
    assert_int_equal(f->s.max_seqs, 16);
    assert_int_equal(f->s.max_logits, 16);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_plenty_of_memory),
        T(test_some_memory),
        T(test_little_memory_limits_the_context),
        T(test_no_memory),
        T(test_memory_key),
        T(test_blocks_key),
        T(test_context_key),
        T(test_unknown_context),
        T(test_block_tokens),
        T(test_types),
        T(test_window_group),
        T(test_too_many_groups),
        T(test_fewer_rows_than_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
