/* SPDX-License-Identifier: Apache-2.0
 *
 * Peers from [peer.NAME] sections, and what is refused by name.
 *
 * Thread: one.  Owner: each test.
 */
#include "core/cluster/cluster.h"
#include "tests/unit/cm.h"

#include <string.h>

static hy_status load(const char *text, hy_cluster *out)
{
    hy_conf *c = hy_conf_create();
    assert_int_equal(hy_conf_load_text(c, "t.ini", text, strlen(text)), HY_OK);
    hy_status st = hy_cluster_load(c, out);
    hy_conf_destroy(c);
    return st;
}

static void test_peers(void **state)
{
    hy_cluster c;
    (void)state;
    assert_int_equal(
        load("[peer.p-0.x]\nrole = prefill\nurl = http://127.0.0.1:8100\n"
             "[peer.d0]\nurl = http://[::1]:8200/\nrole = decode\n"
             "[peer.b]\nrole = both\nurl = http://node.example\n[peer.a]\nrole = all\n",
             &c),
        HY_OK);
    assert_int_equal(c.n, 4);
    assert_string_equal(c.peers[0].name, "p-0.x");
    assert_string_equal(c.peers[0].host, "127.0.0.1");
    assert_int_equal(c.peers[0].port, 8100);
    assert_int_equal(c.peers[0].can, HY_PEER_PREFILL);
    assert_string_equal(c.peers[1].host, "::1");
    assert_int_equal(c.peers[1].can, HY_PEER_DECODE);
    assert_int_equal(c.peers[2].port, 80);
    assert_int_equal(c.peers[2].can, HY_PEER_PREFILL | HY_PEER_DECODE);
    assert_null(c.peers[3].host);
    assert_int_equal(c.peers[3].can, HY_PEER_DECODE);
    assert_ptr_equal(hy_cluster_find(&c, "b"), &c.peers[2]);
    assert_null(hy_cluster_find(&c, "nobody"));
    hy_cluster_fini(&c);
    assert_int_equal(load("[node]\nrole = all\n", &c), HY_OK);
    assert_int_equal(c.n, 0);
    hy_cluster_fini(&c);
}

static void test_refused(void **state)
{
    static const struct {
        const char *text, *word;
    } bad[] = {
        {"[peer.a]\nurl = https://x:1\n", "t.ini:2"},
        {"[peer.a]\nurl = http://\n", "HOST"},
        {"[peer.a]\nurl = http://x:0\n", "HOST"},
        {"[peer.a]\nurl = http://x:65536\n", "HOST"},
        {"[peer.a]\nurl = http://x:+1\n", "HOST"},
        {"[peer.a]\nurl = http://x:1/v1\n", "HOST"},
        {"[peer.a]\nurl = http://u@x:1\n", "HOST"},
        {"[peer.a]\naddrs = 127.0.0.1:1 \"x\n", "addrs"},
        {"[peer.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa]\nurl = http://x:1\n", "name"},
        {"[peer.a]\nurl = http://x:1\n[peer.b]\nurl = http://x:1/\n", "[peer.a]"},
    };
    (void)state;
    for (size_t i = 0; i < HY_COUNTOF(bad); i++) {
        hy_cluster c;
        assert_int_equal(load(bad[i].text, &c), HY_E_INVAL);
        assert_non_null(strstr(hy_fail_text(), bad[i].word));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peers),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
