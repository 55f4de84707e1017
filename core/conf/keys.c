/* SPDX-License-Identifier: Apache-2.0
 *
 * The built-in table of keys: what may stand in an INI file, and the manual that `halyard config`
 * prints. Backends bring tables of their own.
 *
 * Thread: constant data.  Owner: static.
 */
#include "core/conf/conf_int.h"

#define BOOL(s, k, def, help)                                                                      \
    {                                                                                              \
        s, k, HY_CONF_BOOL, def, NULL, NULL, NULL, help                                            \
    }
#define INT(s, k, def, min, max, help)                                                             \
    {                                                                                              \
        s, k, HY_CONF_INT, def, min, max, NULL, help                                               \
    }
#define SIZE(s, k, def, min, max, help)                                                            \
    {                                                                                              \
        s, k, HY_CONF_SIZE, def, min, max, NULL, help                                              \
    }
#define TIME(s, k, def, min, max, help)                                                            \
    {                                                                                              \
        s, k, HY_CONF_DURATION, def, min, max, NULL, help                                          \
    }
#define STRING(s, k, def, help)                                                                    \
    {                                                                                              \
        s, k, HY_CONF_STRING, def, NULL, NULL, NULL, help                                          \
    }
#define PATH(s, k, def, help)                                                                      \
    {                                                                                              \
        s, k, HY_CONF_PATH, def, NULL, NULL, NULL, help                                            \
    }
#define ENUM(s, k, def, choices, help)                                                             \
    {                                                                                              \
        s, k, HY_CONF_ENUM, def, NULL, NULL, choices, help                                         \
    }

const hy_conf_key hy_conf__keys[] = {
    ENUM("node", "role", "all",
         "all|prefill|decode|both|encode|attention|ffn|cache|store|router|planner",
         "What this node does. `all` serves everything by itself; the other roles share the work "
         "of a request among nodes. A role that this build cannot run yet is refused by name."),
    STRING("node", "name", "", "Name of this node in logs. Empty: the host's name."),
    ENUM("node", "log_level", "info", "error|warn|info|debug|trace",
         "How much is logged, on standard error: error (work lost), warn (went on), info (starts "
         "and ends), debug (per request), trace (per step)."),
    INT("node", "trace", "256", "0", "1000000",
        "Requests whose timelines are kept for GET /trace (`halyard trace`), the last ones. 0: "
        "none."),

    PATH("model", "path", "",
         "Model to serve: a GGUF file, a folder in Hugging Face form, or the name of a fetched "
         "model. `halyard serve MODEL` sets it."),
    STRING("model", "name", "",
           "Name that clients use in `model`. Empty: the file's or folder's own name."),
    PATH("model", "chat_template", "",
         "File with a Jinja chat template to use instead of the model's own."),

    INT("engine", "threads", "0", "0", "1024",
        "Compute threads. 0: one for each physical core this process may use."),
    ENUM("engine", "numerics", "exact", "exact|fast",
         "exact: the same bits whatever the batch, chunking, thread count or instruction set. "
         "fast: vendor and BLAS kernels may be used. Nodes that differ refuse to link."),
    ENUM("engine", "activations", "int8", "int8|f32",
         "Type of activations that meet quantised weights. f32 is slower and closest to the "
         "reference. Part of the model's fingerprint."),
    INT("engine", "context", "0", "0", "16777216",
        "Most tokens of a request, prompt and output together. 0: what the model was trained "
        "for, less where the KV memory does not hold it."),
    INT("engine", "max_batch_tokens", "512", "1", "1048576",
        "Token budget of a step: prompts are cut into chunks that fit it."),
    INT("engine", "max_seqs", "64", "1", "65536",
        "Most sequences that run at the same time; others wait."),
    INT("engine", "max_prefill_tokens", "0", "0", "1048576",
        "Most prompt tokens in a step that also decodes, to bound the gap between streamed "
        "tokens. 0: chosen by `step_time` and the measured speed."),
    TIME("engine", "step_time", "350ms", "0s", "1h",
         "Aim for the longest step while streams decode: prompts are cut into chunks that keep it, "
         "by the measured speed. 0: no limit but the step budget."),
    ENUM("engine", "user_marks", "parse", "parse|text",
         "Special tokens written inside a chat user's text. parse: they are special tokens, as "
         "Hugging Face does. text: they stay plain text."),
    BOOL("engine", "prefix_cache", "true",
         "Keep the KV of finished requests and share equal beginnings of prompts."),

    ENUM("kv", "type", "f16", "f16|f32|bf16",
         "Type of the keys and values that attention sees. Part of the model's fingerprint."),
    ENUM("kv", "storage", "auto", "auto|f16|f32|bf16",
         "Type in memory. auto: as `type`; f32 holds every other type exactly."),
    ENUM("kv", "order", "default", "default|nhd|hnd",
         "Memory order inside a block: the backend's own, or token or head major. The others are "
         "slower on a CPU; for tests of unlike nodes."),
    INT("kv", "block_tokens", "16", "16", "1024", "Tokens of a KV block; a multiple of 16."),
    SIZE(
        "kv", "memory", "0", "0", "64T",
        "Memory for the KV pool. 0: eight full contexts, within 40 % of the free memory and 8 GiB. "
        "It is taken as the pool fills, and 256 MiB ahead of that."),
    INT("kv", "blocks", "0", "0", "268435456",
        "Number of KV blocks, instead of `memory`. 0: from `memory`."),

    STRING("http", "host", "127.0.0.1",
           "Address to listen on. One that other machines reach needs api_key or api_key_file."),
    INT("http", "port", "8000", "0", "65535", "TCP port. 0: any free one, which is printed."),
    STRING("http", "api_key", "",
           "Key that clients send as `Authorization: Bearer KEY`. Better in a file: see "
           "api_key_file. Empty: none is asked for."),
    PATH("http", "api_key_file", "",
         "File with API keys, one a line; its mode must keep others out (0600)."),
    SIZE("http", "max_body", "32M", "1k", "1G", "Largest request body; larger ones get 413."),
    SIZE("http", "max_header", "64k", "1k", "16M", "Largest request line and headers together."),
    INT("http", "max_connections", "1024", "1", "1000000",
        "Most connections with a request in work; above it a request gets 503 and Retry-After. One "
        "that waits for its client is closed when others need its place."),
    INT("http", "max_queue", "4096", "1", "1000000",
        "Most requests in work or waiting; above it a request gets 503 and Retry-After."),
    SIZE("http", "max_slow_reader_bytes", "4M", "64k", "1G",
         "Unsent bytes of a stream after which a client that does not read is dropped."),
    TIME("http", "header_timeout", "60s", "1ms", "1d",
         "From the first byte of a request to its last, headers and body."),
    TIME("http", "idle_timeout", "75s", "1ms", "1d",
         "A kept-alive connection without a request is closed after this."),
    TIME("http", "write_timeout", "60s", "1ms", "1d",
         "A client that takes no byte for this long is dropped."),
    TIME("http", "request_timeout", "0s", "0s", "7d",
         "Longest time for a request in the engine, waiting included. 0: none."),
    INT("http", "max_logprobs", "20", "0", "1000",
        "Most alternatives that a request may ask for with logprobs."),

    ENUM("router", "mode", "pull", "pull|push",
         "pull: prefill first, then decode with what prefill answered. push: both at once, joined "
         "by a transfer id."),
    ENUM("router", "policy", "least", "least|round_robin",
         "Which worker takes a request: the one with the fewest under way, or each in turn."),
    SIZE("router", "min_prefill_chars", "0", "0", "1G",
         "A shorter prompt (bytes, as JSON) goes to a decode node alone."),
    ENUM("router", "without_prefill", "compute", "compute|fail",
         "When no prefill node can be used (none is up, none whose KV a decode node can take, all "
         "have failed): decode computes the prompt, or the client gets 503."),
    INT("router", "retries", "2", "0", "100",
        "Further workers to try when one fails before the first byte of its answer."),
    TIME("router", "health_interval", "2s", "10ms", "1h",
         "Time between two checks of a worker (GET /health)."),
    TIME("router", "health_timeout", "5s", "10ms", "1h",
         "A check that is not answered for this long counts as silence."),
    INT("router", "down_after", "3", "1", "1000",
        "Silent checks in a row until a worker is down and what it has in work is given up. A "
        "refused connection marks it down at once."),
    TIME("router", "connect_timeout", "2s", "1ms", "10m", "To connect to a worker."),
    TIME("router", "prefill_timeout", "5m", "1ms", "1d",
         "Longest time for prefill; after it decode does all by itself."),
    TIME("router", "answer_timeout", "0s", "0s", "1d",
         "Longest wait for decode's answer to begin: the first token of a stream, else all of it. "
         "0: as long as the worker passes its checks."),
    TIME("router", "stall_timeout", "2m", "0s", "1d",
         "Longest time between two pieces of an answer. 0: as long as the worker passes its "
         "checks."),
    SIZE("router", "max_answer", "64M", "64k", "4G",
         "Largest answer that is no stream; such answers are kept whole before they go out."),
    SIZE("router", "max_unsent", "1M", "4k", "1G",
         "Unsent bytes of a stream to a slow reader from which on its worker is made to wait."),

    ENUM("connector", "kind", "auto", "auto|none|pull|push",
         "How KV gets from prefill to decode nodes. auto: none for role all, else both: the "
         "router's request says which. pull: when prefill is done; push: while it goes on."),
    STRING("connector", "advertise", "",
           "host:port[,host:port] that other nodes connect to. Empty: [fabric] listen."),
    {"connector", "link", HY_CONF_LIST, "", NULL, NULL, NULL,
     "Nodes to link with at start, and again whenever that link is lost: NAME@host:port, more "
     "addresses of one node behind a '+'. Others are linked at the first request. `halyard up` "
     "sets it for decode nodes."},
    TIME("connector", "lease", "10s", "10ms", "1h",
         "How long a finished prompt's KV is kept for the node that wants it; that node renews it "
         "every third of this."),
    TIME("connector", "timeout", "30s", "10ms", "1h", "Longest time of a load of KV."),
    TIME("connector", "grace", "2s", "10ms", "1m",
         "A cancelled load's owner may answer for this long; then the link is cut."),
    ENUM("connector", "on_failure", "recompute", "recompute|fail",
         "What becomes of a request whose KV does not come: its prompt is computed here (the same "
         "tokens), or it gets an error."),
    BOOL("connector", "verify", "false",
         "Digests of all bytes that move, for memory and wires that are not trusted."),
    BOOL("connector", "accept_lossy", "false",
         "Take KV of another value type; the tokens then differ from those of one node."),
    ENUM("connector", "wire", "same", "same|f16|bf16|int8|fp8_e4m3fn|fp8_e4m3fnuz",
         "Type in which KV travels to this node: narrower ones save bytes and round (int8 and fp8 "
         "with a scale for each token and head), so that tokens differ from those of one node "
         "(docs/PD.md has by how much). same: nothing is lost."),
    SIZE("connector", "staging", "32M", "1M", "16G",
         "Registered memory for KV that must be repacked; half for what comes in."),

    PATH("cluster", "secret_file", "",
         "File with the secret that the cluster's nodes share, mode 0600. `halyard up` makes one."),
    ENUM("peer.*", "role", "all", "all|prefill|decode|both",
         "What the router asks this node for: prefill, decode, both, or whole requests (all)."),
    STRING("peer.*", "url", "", "Where its HTTP is: http://HOST:PORT."),
    STRING(
        "peer.*", "addrs", "",
        "Where its fabric is: host:port[,host:port], its [fabric] listen or [connector] advertise. "
        "A router in push mode tells it to decode nodes. Empty: the node is asked."),

    STRING("backend", "name", "cpu",
           "Compute backend. `halyard devices` lists those found. Behind a colon: which device "
           "(cuda:1), the wave (simt:64), the instruction set (cpu:avx2), or key=value."),

    PATH("fetch", "cache_dir", "",
         "Where fetched models are kept. Empty: $HY_MODELS, else $XDG_CACHE_HOME/halyard, else "
         "~/.cache/halyard."),
    STRING("fetch", "hf_endpoint", "https://huggingface.co",
           "Server for hf:owner/repo, a mirror or a test server of the same scheme. The variable "
           "HF_ENDPOINT overrides the default."),
    PATH("fetch", "token_file", "",
         "File with a Hugging Face access token. Empty: $HF_TOKEN, if it is set."),
};

const size_t hy_conf__n_keys = HY_COUNTOF(hy_conf__keys);
