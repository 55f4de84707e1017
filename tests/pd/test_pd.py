#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A real cluster under `halyard up`: router, prefill and decode node with SmolLM2 (unlike KV caches),
answers equal to one node's, and kill -9 or a stop of each process under load. Needs the model in
$HY_MODELS (else skipped: exit 77). Usage: test_pd.py HALYARD"""
import json
import os
import signal
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import kit  # noqa: E402
from kit import free_ports  # noqa: E402
from test_up import Up  # noqa: E402

CONF = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../conf")
PROMPTS = ["The capital of France is", "Once upon a time, in a small village by the sea, there lived",
           "def fibonacci(n):\n", "Water boils at"]


class Cluster(unittest.TestCase):
    MODE = "pull"

    @classmethod
    def setUpClass(cls):
        cls.router, cls.p, cls.d, fp, fd = free_ports(5)
        small = "engine.threads=1, kv.blocks=256, engine.context=512"
        cls.up = Up(f"""
[node.router]
file = {CONF}/router.ini
set = http.port={cls.router}, peer.p0.url=http://127.0.0.1:{cls.p}, peer.d0.url=http://127.0.0.1:{cls.d}, router.health_interval=200ms, router.health_timeout=2s, router.down_after=3, router.mode={cls.MODE}, peer.p0.addrs=127.0.0.1:{fp}
restart_backoff = 100ms
[node.p0]
file = {CONF}/pd-prefill.ini
set = http.port={cls.p}, fabric.listen=127.0.0.1:{fp}, {small}
restart_backoff = 100ms
[node.d0]
file = {CONF}/pd-decode.ini
set = http.port={cls.d}, fabric.listen=127.0.0.1:{fd}, {small}
restart_backoff = 100ms
""")
        cls.up.wait("all 3 nodes are up", timeout=240)
        kit.wait_workers(cls.router)

    @classmethod
    def tearDownClass(cls):
        rc = cls.up.stop()
        assert rc == 0, rc

    def post(self, port, body, path="/v1/completions"):
        return kit.request(port, "POST", path, {"model": "SmolLM2-135M-Instruct.Q4_1", **body})

    def load(self, n, seconds, results, stop):
        """n clients that ask again and again; results gets (status, complete, error text)."""
        def one(i):
            while not stop.is_set():
                try:
                    a = self.post(self.router, {"prompt": PROMPTS[i % 4], "max_tokens": 24, "temperature": 0,
                                                "ignore_eos": True, "stream": i % 2 == 0})
                except (OSError, EOFError, ValueError) as e:  # the router itself was killed
                    results.append((0, False, repr(e)))
                    time.sleep(0.05)
                    continue
                if a.status != 200:
                    results.append((a.status, False, a.json()["error"]["message"]))
                    time.sleep(0.05)
                elif i % 2:
                    results.append((200, True, a.json()["choices"][0]["text"]))
                else:
                    ev = a.events()
                    done = bool(ev) and ev[-1] == "[DONE]"
                    if done:
                        text = "".join(json.loads(e)["choices"][0]["text"] for e in ev[:-1])
                    elif ev and "error" in ev[-1]:
                        text = json.loads(ev[-1])["error"]["message"]
                    else:
                        text = None if a.whole else "cut off"
                    results.append((200, done, text))
        threads = [threading.Thread(target=one, args=(i,)) for i in range(n)]
        for t in threads:
            t.start()
        return threads

    def under_load(self, hurt, name, sig):
        pid = self.up.pids()[name]
        results, stop = [], threading.Event()
        threads = self.load(4, 0, results, stop)
        end = time.time() + 2 * kit.LONG
        while len([r for r in results if r[1]]) < 4 and time.time() < end:
            time.sleep(0.02)
        n_before = len(results)
        os.kill(pid, sig)
        hurt(pid)
        end = time.time() + 2 * kit.LONG  # service comes back
        after = len(results)
        while len([r for r in results[after:] if r[1]]) < 6 and time.time() < end:
            time.sleep(0.02)
        stop.set()
        for t in threads:
            t.join(2 * kit.LONG)
            self.assertFalse(t.is_alive(), "a request hangs")
        self.assertGreaterEqual(len([r for r in results[after:] if r[1]]), 6, results[after:])
        # what is complete is right, whatever died meanwhile
        for status, done, text in results:
            self.assertIsNotNone(text, "a stream ended in silence")
            if done:
                self.assertIn(text, self.right)
        self.check_idle()
        return [r for r in results[n_before:] if not r[1]]

    def check_idle(self):
        end = time.time() + kit.LONG
        while True:
            busy = [w["active"] for w in kit.request(self.router, "GET", "/workers", None).json()["workers"]]
            for port in (self.p, self.d):
                for line in kit.request(port, "GET", "/metrics", None).body.decode().splitlines():
                    if line.startswith(("vllm:num_requests_running{", "vllm:num_requests_waiting{",
                                        "halyard:kv_leases ", "halyard:kv_loads ")):
                        busy.append(float(line.split()[-1]))
            if not any(busy):
                return
            if time.time() > end:
                self.fail(f"still in work: {busy}")
            time.sleep(0.05)

    def setUp(self):
        """What one node answers, alone."""
        cls = type(self)
        if not hasattr(cls, "right"):
            cls.right = {self.post(self.p, {"prompt": p, "max_tokens": 24, "temperature": 0, "ignore_eos": True})
                         .json()["choices"][0]["text"] for p in PROMPTS}

    def metric(self, port, name):
        return sum(float(x.split()[-1]) for x in kit.request(port, "GET", "/metrics", None).body.decode()
                   .splitlines() if x.startswith(name))

    def test_1_same_as_one_node(self):
        """Tokens and logprobs, bit for bit, through the router (decode: other blocks and storage)."""
        for more in ({"temperature": 0}, {"temperature": 1, "seed": 7, "top_p": 0.9}):
            for p in PROMPTS:
                q = {"prompt": p, "max_tokens": 16, "logprobs": 3, "return_token_ids": True, **more}
                one, both = self.post(self.p, q), self.post(self.router, q)
                self.assertEqual((one.status, both.status), (200, 200), both.body)
                self.assertEqual((both.headers["x-halyard-prefill"], both.headers["x-halyard-worker"]), ("p0", "d0"))
                a, b = one.json()["choices"], both.json()["choices"]
                self.assertEqual(a, b)
        q = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 12, "temperature": 0,
             "logprobs": True, "top_logprobs": 2}
        a = self.post(self.p, q, "/v1/chat/completions").json()["choices"]
        self.assertEqual(a, self.post(self.router, q, "/v1/chat/completions").json()["choices"])
        self.check_idle()
        # the prompts' KV was moved, and decode computed not one prompt token
        self.assertGreater(self.metric(self.d, "halyard:kv_transfer_received_bytes_total"), 0)
        self.assertEqual(self.metric(self.d, "halyard:pd_prompt_tokens_computed"), 0)
        self.assertEqual(self.metric(self.d, "halyard:kv_transfer_failed_total"), 0)
        self.assertEqual(self.metric(self.p, "halyard:kv_leases_expired_total"), 0)
        # how: the caches are unlike, and where this host allows it nothing is copied between the processes
        link, = kit.request(self.d, "GET", "/links", None).json()["links"]
        self.assertIn("packed as f16, storage f16 -> f32", link["copy"])
        self.assertEqual("read in place" in link["copy"], "same node" in link["path"], link)

    def test_1a_release_and_bad_params(self):
        """Prefill keeps the KV until it is released; what cannot be used is not used."""
        q = {"prompt": PROMPTS[1], "max_tokens": 24, "temperature": 0, "ignore_eos": True}
        a = self.post(self.p, {**q, "kv_transfer_params": {"do_remote_decode": True}}).json()
        params = a["kv_transfer_params"]
        self.assertEqual(a["usage"]["completion_tokens"], 1)
        self.assertEqual(params["remote_engine_id"], "p0")
        self.assertEqual(params["remote_num_tokens"], a["usage"]["prompt_tokens"])
        end = time.time() + kit.LONG
        while self.metric(self.p, "halyard:kv_leases ") != 1:
            self.assertLess(time.time(), end)
        for _ in range(2):
            r = kit.request(self.p, "POST", "/v1/kv/release", {"kv_transfer_params": params})
            self.assertEqual(r.status, 200)
        self.check_idle()
        self.assertEqual(kit.request(self.p, "POST", "/v1/kv/release", {"lease": 5}).status, 400)
        self.assertEqual(kit.request(self.p, "GET", "/v1/kv/release", None).status, 405)
        missed = self.metric(self.d, "halyard:kv_transfer_missed_total")
        right = self.post(self.p, q).json()["choices"]
        for bad in (params, {"do_remote_prefill": True, "remote_block_ids": [[1]]},
                    {**params, "halyard": {**params["halyard"], "prompt": "00" * 32}},
                    {**params, "halyard": {**params["halyard"], "v": 2}}):
            self.assertEqual(self.post(self.d, {**q, "kv_transfer_params": bad}).json()["choices"], right)
        self.assertEqual(self.metric(self.d, "halyard:kv_transfer_missed_total"), missed + 4)
        self.check_idle()

    def test_1aa_too_long(self):
        """What decode refuses for its length is refused before prefill computes anything."""
        n_prompt = self.post(self.d, {"prompt": PROMPTS[1], "max_tokens": 1}).json()["usage"]["prompt_tokens"]
        end = time.time() + kit.LONG
        while self.MODE == "pull":  # until the router has read decode's page
            a = self.post(self.router, {"prompt": PROMPTS[1], "max_tokens": 513})
            self.assertEqual(a.status, 400)
            if "x-halyard-prefill" not in a.headers:
                break
            self.assertLess(time.time(), end)
        self.check_idle()
        before = self.metric(self.p, "vllm:prompt_tokens_total")
        for most in (512 - n_prompt + 1, 99999, 10**12):
            a = self.post(self.router, {"prompt": PROMPTS[1], "max_tokens": most})
            self.assertEqual(a.status, 400, a.body)
            self.assertIn("512", a.json()["error"]["message"])
            if self.MODE == "pull":
                self.assertNotIn("x-halyard-prefill", a.headers)
        self.check_idle()
        if self.MODE == "pull":
            self.assertEqual(self.metric(self.p, "vllm:prompt_tokens_total"), before)
        a = self.post(self.router, {"prompt": PROMPTS[1], "max_tokens": 512 - n_prompt, "stop": [" "]})
        self.assertEqual((a.status, a.headers["x-halyard-prefill"]), (200, "p0"))
        self.check_idle()

    def test_1b_packed_before_the_order(self):
        """Prefill packs for the order to come; where decode has a part already, the rest is packed anew."""
        def counts():
            return [self.metric(self.p, f"halyard:kv_early_pieces_{x}_total") for x in ("used", "dropped")]
        before, end, k = counts(), time.time() + 120, 0
        while not all(a > b for a, b in zip(counts(), before)):  # prefill must have had the time
            self.assertLess(time.time(), end)
            for head, tail in ((k, 1), (k + 1, 2), (k + 1, 3)):  # a whole one, a whole one, a part
                q = {"prompt": [1000 + 100 * head + i for i in range(96)] + [500 + 60 * tail + i for i in range(60)],
                     "max_tokens": 8, "temperature": 0, "ignore_eos": True}
                self.assertEqual(self.post(self.router, q).json()["choices"], self.post(self.p, q).json()["choices"])
            k += 2
            if self.MODE == "push":
                break
        self.assertTrue(self.MODE == "pull" or counts() == before)
        self.check_idle()

    def test_2_prefill_is_killed(self):
        bad = self.under_load(lambda pid: self.up.wait(rf"pid {pid}, .*p0 died.*p0 \(\w+\) is up"), "p0", signal.SIGKILL)
        self.assertEqual(bad, [])  # nobody noticed

    def test_3_decode_is_killed(self):
        bad = self.under_load(lambda pid: self.up.wait(rf"pid {pid}, .*d0 died.*d0 \(\w+\) is up"), "d0", signal.SIGKILL)
        self.assertGreater(len(bad), 0)
        for status, _, text in bad:
            self.assertIn(status, (200, 502, 503))
            self.assertRegex(text, "lost|reached|No worker|not answer")

    def test_4_router_is_killed(self):
        bad = self.under_load(lambda pid: self.up.wait(rf"pid {pid}, .*router died.*router \(\w+\) is up"), "router", signal.SIGKILL)
        self.assertGreater(len(bad), 0)

    def test_5_decode_is_stopped(self):
        """Silent, with all its connections open."""
        def hurt(pid):
            end = time.time() + 2 * kit.LONG
            while True:
                w = kit.request(self.router, "GET", "/workers", None).json()["workers"]
                if [x for x in w if x["name"] == "d0" and x["state"] == "down" and x["active"] == 0]:
                    break
                self.assertLess(time.time(), end, w)
                time.sleep(0.05)
            os.kill(pid, signal.SIGCONT)
        bad = self.under_load(hurt, "d0", signal.SIGSTOP)
        self.assertGreater(len([b for b in bad if "silent" in b[2]]), 0, bad)


class Push(Cluster):
    MODE = "push"


if __name__ == "__main__":
    kit.HALYARD = os.path.abspath(sys.argv.pop(1))
    models = os.environ.get("HY_MODELS", "")
    if not os.path.exists(os.path.join(models, "SmolLM2-135M-Instruct.Q4_1.gguf")):
        print("skipped: SmolLM2 is not in $HY_MODELS")
        sys.exit(77)
    unittest.main(verbosity=2)
