/* SPDX-License-Identifier: Apache-2.0
 *
 * Fabric's INI keys; the defaults are those of hy_fab_opts_init.
 *
 * Thread: constant data.  Owner: lives forever.
 */
#include "fabric/keys.h"

#include "fabric/fabric.h"

#define TIME(k, def, min, max, help)                                                               \
    {                                                                                              \
        "fabric", k, HY_CONF_DURATION, def, min, max, NULL, help                                   \
    }
#define SIZE(k, def, min, max, help)                                                               \
    {                                                                                              \
        "fabric", k, HY_CONF_SIZE, def, min, max, NULL, help                                       \
    }

const hy_conf_key hy_fab_keys[] = {
    {"fabric", "listen", HY_CONF_LIST, "127.0.0.1:18500", NULL, NULL, NULL,
     "Addresses (host:port) of this node for other nodes, one per rail (at most 8)."},
    {"fabric", "providers", HY_CONF_LIST, HY_FAB_PROVIDERS, NULL, NULL, NULL,
     "libfabric providers in order of preference; `tcp` is native TCP of any version, `shm` is for "
     "one host and never reports a death, `own` is framed TCP without libfabric, which also stands "
     "beside `tcp` where both are listed and moves the bytes. A fallback is logged as a warning."},
    TIME("heartbeat", "500ms", "10ms", "1m", "Time between two signs of life to a connected peer."),
    TIME("peer_timeout", "3s", "50ms", "10m",
         "A peer that is silent for this long is gone. At least two heartbeats."),
    TIME("connect_timeout", "5s", "100ms", "10m", "To connect to a peer and prove the secret."),
    TIME("op_timeout", "30s", "100ms", "1h", "Longest time of one transfer."),
    TIME("stall_timeout", "5s", "100ms", "10m",
         "A link on which nothing completes for this long is closed."),
    TIME("cancel_grace", "500ms", "1ms", "1m",
         "A cancelled transfer may drain for this long; then its link is closed."),
    SIZE("piece", "1M", "4k", "64M", "Bytes of one write or read of the provider."),
    SIZE("window", "8M", "64k", "1G", "Bytes in flight on one link."),
    {"fabric", "pull", HY_CONF_ENUM, "auto", NULL, NULL, "auto|write|read",
     "How reads are done: write (the owner writes, faster over TCP), read (the provider's own)."},
    {"fabric", "same_node", HY_CONF_BOOL, "yes", NULL, NULL, NULL,
     "Between processes of one user on one host, copy the bytes with process_vm_readv, and read "
     "packed KV where its owner packed it; where the kernel or a container refuses that, a warning "
     "tells and the provider is used."},
    {"fabric", "congestion", HY_CONF_STRING, "auto", NULL, NULL, NULL,
     "TCP's congestion control between nodes: `system`, the name of one that the kernel has, or "
     "`auto`: the system's, but cubic between two ends of one machine, where pacing (bbr) costs a "
     "third of the rate."},
    {"fabric", "strict", HY_CONF_BOOL, "no", NULL, NULL, NULL,
     "Impose EFA's rules on another provider: for tests."},
};
const size_t hy_fab_n_keys = sizeof(hy_fab_keys) / sizeof(hy_fab_keys[0]);
