#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The router in front of fake workers: what it sends (the shapes are those that public routers send
to vLLM workers, tests' interop fixtures) and what it does at every point where something may fail.
Usage: test_router.py HALYARD [unittest arguments]"""
import json
import os
import random
import signal
import socket
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import kit  # noqa: E402
from fake import PARAMS, Fake  # noqa: E402
from kit import LONG, Answer, Router, connect, make  # noqa: E402

Q = {"model": "fake-model", "prompt": "Hello world", "max_tokens": 4}
CHAT = {"model": "fake-model", "messages": [{"role": "user", "content": "Hi"}]}
WANT = [f" t{i}" for i in range(4)]


def texts(answer):
    return [json.loads(e)["choices"][0]["text"] for e in answer.events() if e.startswith('{"id"')]


def wait_gone(conn, timeout=LONG):
    """The other side of a worker's connection hung up."""
    conn.settimeout(timeout)
    try:
        return conn.recv(1) == b""
    except ConnectionResetError:
        return True


def wait(what, timeout=LONG):
    end = time.time() + timeout
    while not what():
        if time.time() > end:
            raise AssertionError("did not come")
        time.sleep(0.02)


def to_prefill(more, got):
    """What prefill is asked: vLLM's fields, and what its lease shall be called."""
    lease = got["kv_transfer_params"]["halyard"]["lease"]
    return {"do_remote_decode": True, "do_remote_prefill": False, "halyard": {"lease": lease}, **more}


class Base(unittest.TestCase):
    N_P, N_D, ROUTER, HTTP, SOON = 1, 1, "", "", "2s"

    def setUp(self):
        self.p = [Fake() for _ in range(self.N_P)]
        self.d = [Fake() for _ in range(self.N_D)]
        self.r = Router(self.p, self.d, self.ROUTER, self.HTTP, soon=self.SOON)
        self.addCleanup(self.finish)
        self.r.wait_states(**{f"p{i}": "up" for i in range(self.N_P)},
                           **{f"d{i}": "up" for i in range(self.N_D)})

    def finish(self):
        for f in self.p + self.d:
            if f.alive:
                f.die()
        self.r.stop()

    def released(self, p=0, n=1):
        got = self.p[p].seen("/v1/kv/release", n=n)
        self.assertEqual(len(got), n)
        for r in got:
            self.assertEqual(r.body["lease"], PARAMS["halyard"]["lease"])
            self.assertEqual(r.body["epoch"], PARAMS["halyard"]["epoch"])
            self.assertEqual(r.body["kv_transfer_params"], PARAMS)

    def disowned(self, p=0, n=1):
        """Released by the name that the router chose: the answer with the lease was not read."""
        asked = [r.body["kv_transfer_params"]["halyard"]["lease"] for r in self.p[p].seen("/v1/completions", n=n)]
        got = self.p[p].seen("/v1/kv/release", n=n)
        self.assertEqual([r.body for r in got],
                         [{"lease": x, "kv_transfer_params": {"halyard": {"lease": x}}} for x in asked])
        self.assertEqual(len(set(asked)), n)
        for x in asked:
            self.assertRegex(x, "^[0-9a-f]{16}$")

    def idle(self):
        """No request, and then no leg of one (a release, prefill's answer in push), is under way."""
        self.r.wait_metric("halyard:router_active", 0)
        end = time.time() + LONG
        while (legs := [w["active"] for w in self.r.get("/workers").json()["workers"]]) != [0] * self.r.n_workers:
            self.assertLess(time.time(), end, legs)
            time.sleep(0.02)


class Shapes(Base):
    def test_completion(self):
        a = self.r.post("/v1/completions", Q, headers=[("X-Request-ID", "cap-req-1"),
                                                       ("Authorization", "Bearer test-token")])
        self.assertEqual(a.status, 200)
        self.assertEqual(a.headers["x-request-id"], "cap-req-1")
        self.assertEqual(a.headers["x-halyard-prefill"], "p0")
        self.assertEqual(a.headers["x-halyard-worker"], "d0")
        self.assertEqual(a.json()["usage"], {"prompt_tokens": 7})
        p, d = self.p[0].requests, self.d[0].requests
        self.assertEqual((len(p), len(d)), (1, 1))
        # as smg-pd-vllm-Nixl.jsonl has it, and how much decode may give
        self.assertEqual(p[0].body, {"model": "fake-model", "prompt": "Hello world", "max_tokens": 1,
                                     "stream": False, "kv_transfer_params":
                                     to_prefill({"remote_max_tokens": 4}, p[0].body)})
        self.assertEqual(d[0].body, {**Q, "kv_transfer_params": PARAMS})
        for r in (p[0], d[0]):
            h = {k.lower(): v for k, v in r.headers}
            self.assertEqual(h["x-request-id"], "cap-req-1")
            self.assertEqual(h["authorization"], "Bearer test-token")
            self.assertEqual(h["content-type"], "application/json")
        self.idle()

    def test_stream(self):
        q = {**Q, "stream": True, "stream_options": {"include_usage": True}, "min_tokens": 2}
        a = self.r.post("/v1/completions", q)
        self.assertEqual(a.headers["content-type"], "text/event-stream; charset=utf-8")
        self.assertTrue(a.whole)
        self.assertEqual(texts(a), WANT)
        self.assertEqual(a.events()[-1], "[DONE]")
        p = self.p[0].requests[0].body
        self.assertNotIn("stream_options", p)
        # one token, drawn with end tokens barred as decode would: else decode could not use it
        self.assertEqual((p["stream"], p["max_tokens"], p["min_tokens"]), (False, 1, 1))
        self.assertEqual(self.d[0].requests[0].body, {**q, "kv_transfer_params": PARAMS})

    def test_chat_keeps_everything_else(self):
        q = {**CHAT, "max_completion_tokens": 9, "min_tokens": 3, "temperature": 0.5, "top_k": 7,
             "seed": 9223372036854775807, "stop": ["x"], "x_unknown": {"a": [1, "}", '"']},
             "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}
        raw = json.dumps(q).replace("0.5", "0.50000000000000000001").encode()
        self.assertEqual(self.r.post("/v1/chat/completions", raw).status, 200)
        p, d = self.p[0].requests[0], self.d[0].requests[0]
        want = {**q, "min_tokens": 1}
        want.update(max_completion_tokens=1, stream=False,
                    kv_transfer_params=to_prefill({"remote_max_tokens": 9}, p.body))
        self.assertEqual(p.body, want)
        self.assertEqual(d.body, {**q, "kv_transfer_params": PARAMS})
        for r in (p, d):  # numbers keep their digits
            self.assertIn(b"0.50000000000000000001", r.raw)
            self.assertIn(b"9223372036854775807", r.raw)

    def test_alone(self):
        for more in ({"n": 2}, {"echo": True}, {"prompt_logprobs": 1}, {"prompt": ["a", "b"]},
                     {"prompt": [[1], [2]]}, {"best_of": 3}, {"max_tokens": 0}):
            a = self.r.post("/v1/completions", {**Q, **more})
            self.assertEqual(a.status, 200, more)
            self.assertEqual(self.d[0].requests[-1].body, {**Q, **more})
        self.assertEqual(self.p[0].requests, [])
        for more in ({"n": 1}, {"echo": False}, {"prompt_logprobs": None}, {"prompt": [1, 2]}):
            before = len(self.p[0].requests)
            self.assertEqual(self.r.post("/v1/completions", {**Q, **more}).status, 200)
            self.assertEqual(len(self.p[0].requests), before + 1, more)

    def test_clients_params_are_not_passed_on(self):
        """They would make a worker connect to whomever the client names."""
        evil = {"do_remote_prefill": True, "remote_host": "10.0.0.1", "remote_port": 1}
        for more in ({}, {"n": 2}):
            self.r.post("/v1/completions", {**Q, **more, "kv_transfer_params": evil})
            self.assertNotIn(b"10.0.0.1", self.d[0].requests[-1].raw)
        for disguise in (b'"kv_transfer\\u005fparams"', b'"kv_transfer_params":{},"kv_transfer_params"'):
            raw = json.dumps({**Q, "kv_transfer_params": evil}).encode()
            self.r.post("/v1/completions", raw.replace(b'"kv_transfer_params"', disguise))
            self.assertNotIn(b"10.0.0.1", self.d[0].requests[-1].raw)
        n = len(self.d[0].requests)
        for raw in (b"", b"[]", b"{", b'{"a":1}}', b'{"a" 1}', b"\xef\xbb\xbf{}", b'{"a":' + b"[" * 300,
                    b'{"a":"' + b"x" * 100, json.dumps(Q).encode("utf-16")):
            a = self.r.post("/v1/completions", raw)
            self.assertEqual((a.status, a.json()["error"]["type"]), (400, "BadRequestError"), raw)
        self.assertEqual(len(self.d[0].requests), n)

    def test_pages(self):
        self.assertEqual(self.r.get("/v1/models").json()["data"], [{"id": "fake-model"}])
        self.assertEqual(self.r.post("/tokenize", {"prompt": "x"}).json()["tokens"], [1, 2])
        self.assertIn("version", self.r.get("/version").json())
        self.assertEqual(self.r.get("/health").status, 200)
        self.assertEqual(self.r.get("/nothing").status, 404)
        self.assertEqual(self.r.get("/v1/completions").status, 405)
        self.assertEqual(self.r.post("/health", {}).status, 404)
        self.assertEqual(self.r.post("/v1/completions", Q, headers=[("X-Request-Id", "a b\"")]).status, 200)

    def test_client_error_of_a_worker(self):
        def bad(r, c):
            if r.path == "/health":
                return False
            Fake.send(c, 400, {"error": {"message": "too long", "code": 400}})
            return True
        self.p[0].behave = self.d[0].behave = bad
        a = self.r.post("/v1/completions", Q)
        self.assertEqual((a.status, a.json()["error"]["message"]), (400, "too long"))
        self.assertEqual(self.p[0].seen("/v1/kv/release", timeout=0.2), [])  # nothing was held


class Alone(Base):
    def alone(self, n_p=1):
        a = self.r.post("/v1/completions", {**Q, "stream": True})
        self.assertEqual(texts(a), WANT)
        self.assertEqual(a.events()[-1], "[DONE]")
        self.assertEqual(self.d[0].requests[-1].body, {**Q, "stream": True})
        self.assertEqual(len([r for r in self.p[0].requests if "kv" not in r.path]), n_p)
        self.idle()

    def behave(self, fn):
        def go(r, c):
            return r.path != "/health" and (fn(c) or True)
        self.p[0].behave = go


class PrefillHangs(Alone):
    ROUTER = "prefill_timeout = 300ms\n"

    def test_hangs(self):
        self.behave(lambda c: self.assertTrue(wait_gone(c)))
        t = time.time()
        self.alone()
        self.assertLess(time.time() - t, LONG)
        self.disowned()


class Prefill(Alone):
    """Whatever prefill does, decode answers; without its params it computes the prompt itself."""

    def test_down(self):
        self.p[0].die()
        self.alone(0)
        self.r.wait_states(p0="down")
        self.alone(0)
        self.p[0] = Fake(self.p[0].port)
        self.r.wait_states(p0="up")
        self.assertIn("x-halyard-prefill", self.r.post("/v1/completions", Q).headers)

    def test_500(self):
        self.behave(lambda c: Fake.send(c, 500, {"error": {}}))
        self.alone()
        self.assertEqual(self.p[0].seen("/v1/kv/release", timeout=0.1), [])

    def test_400(self):
        self.behave(lambda c: Fake.send(c, 400, {"error": {}}))
        self.alone()
        self.assertEqual(self.p[0].seen("/v1/kv/release", timeout=0.1), [])

    def test_closes(self):
        self.behave(lambda c: None)
        self.alone()
        self.disowned()

    def test_closes_in_its_answer(self):
        self.behave(lambda c: c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{\"kv_transfer_params\": {"))
        self.alone()
        self.disowned()

    def test_no_params(self):
        self.p[0].params = None
        self.alone()
        self.assertEqual(self.p[0].seen("/v1/kv/release", timeout=0.1), [])

    def test_malformed(self):
        for raw in (b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
                    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"HTTP/1.1 200 OK\r\nA b: c\r\n\r\n",
                    b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", b"HTTP/2 200\r\n\r\n",
                    b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100000 + b"\r\n\r\n",
                    b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
                    b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nnot json!",
                    b'HTTP/1.1 200 OK\r\nContent-Length: 25\r\n\r\n{"kv_transfer_params":[1]}',
                    b"\x00\xff\r\n\r\n"):
            self.p[0].requests.clear()
            self.behave(lambda c, raw=raw: c.sendall(raw))
            self.alone()

    def test_stale_kept_connection(self):
        """A worker that closes its kept connections costs nobody an error."""
        for _ in range(3):
            self.assertEqual(self.r.post("/v1/completions", Q).status, 200)
            for f in (self.d[0], self.p[0]):
                with f.lock:
                    c, = f.kept
                    f.kept.clear()
                    c.shutdown(socket.SHUT_RDWR)
        self.idle()


class TwoPrefill(Base):
    N_P = 2

    def test_the_other(self):
        for behave in (lambda c: Fake.send(c, 503, {}), lambda c: None):
            self.p[0].behave = lambda r, c, b=behave: r.path == "/v1/completions" and (b(c) or True)
            for _ in range(2):
                a = self.r.post("/v1/completions", Q)
                self.assertEqual(a.headers["x-halyard-prefill"], "p1")
                self.assertEqual(self.d[0].requests[-1].body["kv_transfer_params"], PARAMS)
            self.r.wait_states(p0="up")
        leases = [{r.body["kv_transfer_params"]["halyard"]["lease"] for r in p.seen("/v1/completions")} for p in self.p]
        self.assertEqual((len(leases[1]), leases[0] & leases[1]), (4, set()))  # each try has its own


class Decode(Base):
    N_D = 2

    def on(self, i, fn, path="/v1/completions"):
        self.d[i].behave = lambda r, c: r.path == path and (fn(c) or True)

    def test_refused_goes_to_the_other(self):
        """Same params; two workers take turns, so both orders come up."""
        self.d[0].die()
        for _ in range(2):
            self.assertEqual(self.r.post("/v1/completions", Q).headers["x-halyard-worker"], "d1")
        self.assertEqual(self.d[1].requests[-1].body["kv_transfer_params"], PARAMS)
        self.assertEqual(self.p[0].seen("/v1/kv/release", timeout=0.1), [])

    def test_503_or_closed_goes_to_the_other(self):
        for fn in (lambda c: Fake.send(c, 503, {}, extra="Retry-After: 9\r\n"), lambda c: None):
            self.on(0, fn)
            for _ in range(2):
                self.assertEqual(self.r.post("/v1/completions", Q).headers["x-halyard-worker"], "d1")
        self.idle()

    def test_all_busy(self):
        for i in range(2):
            self.on(i, lambda c: Fake.send(c, 503, {"error": {"message": "full"}}, extra="Retry-After: 9\r\n"))
        a = self.r.post("/v1/completions", Q)
        self.assertEqual((a.status, a.headers["retry-after"], a.json()["error"]["message"]), (503, "9", "full"))
        self.released()

    def test_all_down(self):
        for d in self.d:
            d.die()
        a = self.r.post("/v1/completions", Q)
        self.assertEqual((a.status, a.headers["retry-after"]), (503, "1"))
        self.assertEqual(a.json()["error"]["code"], 503)
        n = len([r for r in self.p[0].requests if r.path == "/v1/completions"])
        if n:  # it was found out after prefill
            self.released()
        self.r.wait_states(d0="down", d1="down")
        self.assertEqual(self.r.post("/v1/completions", Q).status, 503)  # prefill is not troubled now
        self.assertEqual(len([r for r in self.p[0].requests if r.path == "/v1/completions"]), n)
        self.assertEqual(self.r.get("/health").status, 503)
        self.idle()

    def test_dies_before_the_head(self):
        for i in range(2):
            self.on(i, lambda c: None)
        a = self.r.post("/v1/completions", Q)
        self.assertEqual((a.status, a.json()["error"]["type"]), (502, "UpstreamError"))
        self.released()
        self.idle()

    def test_dies_in_the_stream(self):
        def half(c):
            Fake.head_stream(c)
            Fake.piece(c, self.d[0].chunk(0, False))
            Fake.piece(c, self.d[0].chunk(1, False)[:20])  # half an event must not go out
        for i in range(2):
            self.on(i, half)
        a = self.r.post("/v1/completions", {**Q, "stream": True})
        self.assertEqual(a.status, 200)
        self.assertTrue(a.whole)
        self.assertEqual(texts(a), WANT[:1])
        self.assertEqual(len(a.events()), 2)
        e = json.loads(a.events()[1])["error"]
        self.assertEqual((e["code"], e["type"]), (502, "UpstreamError"))
        self.assertNotIn(b"[DONE]", a.body)
        self.released()
        self.idle()

    def test_stream_without_framing(self):
        """HTTP/1.0 style: whole only if [DONE] came."""
        def old(c, done):
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + self.d[0].chunk(0, False))
            if done:
                c.sendall(b"data: [DONE]\n\n")
        for done in (True, False):
            for i in range(2):
                self.on(i, lambda c, done=done: old(c, done))
            a = self.r.post("/v1/completions", {**Q, "stream": True})
            self.assertEqual(a.events()[-1] == "[DONE]", done)
            self.assertEqual("error" in a.events()[-1], not done)

    def test_dies_in_a_whole_answer(self):
        for i in range(2):
            self.on(i, lambda c: c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{\"half\":"))
        a = self.r.post("/v1/completions", Q)
        self.assertEqual(a.status, 502)
        self.assertIn("error", a.json())
        self.released()

    def test_malformed(self):
        for raw in (b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100000,
                    b"HTTP/1.1 999999 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n"):
            for i in range(2):
                self.on(i, lambda c, raw=raw: c.sendall(raw))
            a = self.r.post("/v1/completions", Q)
            self.assertEqual(a.status, 502, raw)
        self.idle()

    def test_its_own_error_event_passes(self):
        def own(c):
            Fake.head_stream(c)
            Fake.piece(c, b'data: {"error":{"message":"mine"}}\n\n')
            c.sendall(b"0\r\n\r\n")
        for i in range(2):
            self.on(i, own)
        a = self.r.post("/v1/completions", {**Q, "stream": True})
        self.assertEqual(a.events(), ['{"error":{"message":"mine"}}'])

    def test_client_error_after_prefill(self):
        """Decode will not have it: what prefill holds for it is given back."""
        for k, status in enumerate((400, 401, 404, 413, 422, 307)):
            for i in range(2):
                self.on(i, lambda c, status=status: Fake.send(c, status, {"error": {"message": "no"}}))
            a = self.r.post("/v1/completions", {**Q, "stream": k % 2 == 0})
            self.assertEqual((a.status, a.json()["error"]["message"]), (status, "no"))
            self.released(n=k + 1)
        self.idle()

    def test_models_from_any(self):
        self.d[0].die()
        self.d[1].die()
        self.r.wait_states(d0="down", d1="down")
        self.assertEqual(self.r.get("/v1/models").status, 200)  # the prefill node knows them too


class DecodeStalls(Base):
    ROUTER = "stall_timeout = 1s\n"

    def test_stream_stalls(self):
        def stall(r, c):
            if r.path != "/v1/completions":
                return False
            Fake.head_stream(c)
            Fake.piece(c, self.d[0].chunk(0, False))
            self.assertTrue(wait_gone(c))
            return True
        self.d[0].behave = stall
        a = self.r.post("/v1/completions", {**Q, "stream": True})
        self.assertEqual(texts(a), WANT[:1])
        self.assertIn("error", json.loads(a.events()[-1]))
        self.released()


class Gone(Base):
    """The client hangs up: everything upstream is hung up on, and prefill's KV is given back."""

    def hang_up(self, where):
        s = connect(self.r.port)
        s.sendall(make("POST", "/v1/completions", {**Q, "stream": True}))
        where(s)
        s.close()

    def check(self, gone, conn, released):
        self.assertTrue(gone.wait(LONG))
        self.assertTrue(wait_gone(conn[0]))
        self.r.wait_metric('halyard:router_requests_total{outcome="gone"}', 1)
        released()
        self.r.wait_metric('halyard:router_releases_total{result="unknown"}', 1)
        self.idle()

    def hold(self, fake, before):
        gone, conn, seen = threading.Event(), [], threading.Event()

        def go(r, c):
            if r.path != "/v1/completions":
                return False
            before(c)
            conn.append(c.dup())
            seen.set()
            gone.set() if wait_gone(c) else None
            return True
        fake.behave = go
        return gone, conn, seen

    def test_in_prefill(self):
        gone, conn, seen = self.hold(self.p[0], lambda c: None)
        self.hang_up(lambda s: seen.wait(LONG))
        self.check(gone, conn, self.disowned)
        self.assertEqual(self.d[0].requests, [])

    def test_in_prefills_answer(self):
        """Prefill is done and keeps the KV, its answer is on the way: nobody reads the lease in it."""
        gone, conn, seen = self.hold(self.p[0], lambda c: c.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{\"kv_transfer_params\": {"))
        self.hang_up(lambda s: seen.wait(LONG))
        self.check(gone, conn, self.disowned)
        self.assertEqual(self.d[0].requests, [])

    def test_before_decodes_head(self):
        gone, conn, seen = self.hold(self.d[0], lambda c: None)
        self.hang_up(lambda s: seen.wait(LONG))
        self.check(gone, conn, self.released)

    def test_in_the_stream(self):
        def begin(c):
            Fake.head_stream(c)
            Fake.piece(c, self.d[0].chunk(0, False))
        gone, conn, seen = self.hold(self.d[0], begin)
        self.hang_up(lambda s: self.assertIn(b"200 OK", s.recv(4096)))
        self.check(gone, conn, self.released)

    def test_release_is_answered(self):
        gone, conn, seen = self.hold(self.d[0], lambda c: None)
        self.p[0].behave = lambda r, c: r.path == "/v1/kv/release" and (Fake.send(c, 200, {}) or True)
        self.hang_up(lambda s: seen.wait(LONG))
        self.r.wait_metric('halyard:router_releases_total{result="released"}', 1)


class Silence(Base):
    N_D = 2
    ROUTER, SOON = "down_after = 2\n", "1s"

    def test_silent_worker_is_given_up(self):
        """A stopped process keeps its connections open: only the checks can tell."""
        first = threading.Event()

        def freeze(r, c):
            if r.path == "/health" and not first.is_set():
                return False
            if r.path != "/health":
                Fake.head_stream(c)
                Fake.piece(c, self.d[0].chunk(0, False))
                first.set()
            wait_gone(c)
            return True
        self.d[0].behave = freeze
        self.d[1].health = 503
        self.r.wait_states(d1="down")
        t = time.time()
        a = self.r.post("/v1/completions", {**Q, "stream": True})
        self.assertLess(time.time() - t, LONG)
        self.assertIn("silent", json.loads(a.events()[-1])["error"]["message"])
        self.released()
        self.r.wait_states(d0="down")
        self.d[1].health = 200
        self.r.wait_states(d1="up")
        self.assertEqual(self.r.post("/v1/completions", Q).status, 200)
        self.idle()

    def test_worker_that_drains_finishes(self):
        """503 on /health: no new requests, but what it has goes on."""
        go = threading.Event()

        def slow(r, c):
            if r.path != "/v1/completions":
                return False
            Fake.head_stream(c)
            Fake.piece(c, self.d[0].chunk(0, False))
            go.wait(2 * LONG)
            Fake.piece(c, b"data: [DONE]\n\n")
            c.sendall(b"0\r\n\r\n")
            return True
        self.d[0].behave = self.d[1].behave = slow
        out = []
        t = threading.Thread(target=lambda: out.append(self.r.post("/v1/completions", {**Q, "stream": True})))
        t.start()
        wait(lambda: any(d.requests for d in self.d))
        for d in self.d:
            d.health = 503
        self.r.wait_states(d0="down", d1="down")
        self.assertEqual(self.r.post("/v1/completions", Q).status, 503)
        go.set()
        t.join(LONG)
        self.assertEqual(out[0].events()[-1], "[DONE]")


class HungUp(Base):
    """A health check that is hung up on says nothing yet; the next one does."""

    def checks(self, bad):
        """How many were hung up on, or answered once `bad` were."""
        n = [0, 0]

        def behave(r, c):
            if r.path != "/health":
                return False
            n[n[0] >= bad] += 1
            return n[1] == 0
        self.d[0].behave = behave
        return n

    def test_one(self):
        for _ in range(3):
            n = self.checks(1)
            wait(lambda: n[1] > 2)
            self.assertEqual(self.r.post("/v1/completions", Q).status, 200)
        self.assertNotIn("is down", self.r.text())

    def test_each(self):
        self.checks(10 ** 9)
        self.r.wait_states(d0="down")
        self.assertIn("closed the connection", self.r.get("/workers").json()["workers"][1]["why"])
        self.d[0].behave = None
        self.r.wait_states(d0="up")


class Wire(Base):
    HTTP = "max_body = 64k\nmax_header = 8k\n"

    def raw(self, data):
        s = connect(self.r.port)
        self.addCleanup(s.close)
        s.sendall(data)
        return s.makefile("rb")

    def test_pipelined(self):
        one = make("POST", "/v1/completions", {**Q, "stream": True}, close=False)
        f = self.raw(one + make("GET", "/version", None, close=False) + one + make("GET", "/v1/models", None))
        self.assertEqual(texts(Answer(f)), WANT)
        self.assertIn("version", Answer(f).json())
        self.assertEqual(texts(Answer(f)), WANT)
        self.assertEqual(Answer(f).status, 200)
        self.assertEqual(f.read(), b"")

    def test_chunked_body_and_continue(self):
        body = json.dumps(Q).encode()
        s = connect(self.r.port)
        f = s.makefile("rb")
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n")
        self.assertEqual(f.readline(), b"HTTP/1.1 100 Continue\r\n")
        f.readline()
        for c in body:
            s.sendall(b"1;ext=1\r\n" + bytes([c]) + b"\r\n")
        s.sendall(b"0\r\nTrailer: x\r\n\r\n")
        self.assertEqual(Answer(f).status, 200)
        self.assertEqual(self.d[0].requests[-1].body, {**Q, "kv_transfer_params": PARAMS})
        s.close()

    def test_http10(self):
        body = json.dumps({**Q, "stream": True}).encode()
        f = self.raw(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        a = Answer(f)
        self.assertNotIn("transfer-encoding", a.headers)
        self.assertEqual(texts(a), WANT)

    def test_refused(self):
        for data, status in ((b"GARBAGE\r\n\r\n", 400), (b"GET / HTTP/1.1\r\nA : b\r\n\r\n", 400),
                             (b"GET / HTTP/2.0\r\n\r\n", 400), (b"GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n", 400),
                             (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
                             (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400),
                             (b"POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
                             (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400),
                             (b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
                             (b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 17 + b"\r\n", 400),
                             (b"GET / HTTP/1.1\r\nA: " + b"x" * 9000 + b"\r\n\r\n", 431),
                             (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 130 + b"\r\n", 431),
                             (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 70000\r\n\r\n" + b"x" * 70000, 413),
                             (b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" +
                              b"ffff\r\n" + b"x" * 65535 + b"\r\nff\r\n" + b"x" * 255 + b"\r\n", 413),
                             (b"GET /\0 HTTP/1.1\r\n\r\n", 400), (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
                             (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400)):
            f = self.raw(data)
            a = Answer(f)
            self.assertEqual(a.status, status, data[:80])
            self.assertIn("error", a.json())
            self.assertEqual(f.read(), b"")
        self.assertEqual(self.r.get("/health").status, 200)


class Idlers(Wire):
    HTTP = "header_timeout = 1s\nidle_timeout = 2s\n"
    test_pipelined = test_chunked_body_and_continue = test_http10 = test_refused = None

    def test_slow_senders_and_idlers_are_cut(self):
        for data in (b"GET / HT", b"POST /tokenize HTTP/1.1\r\nContent-Length: 9\r\n\r\n{", b""):
            t = time.time()
            self.assertEqual(self.raw(data).read(), b"")
            self.assertLess(time.time() - t, LONG)  # of 60 s and more


class Full(Base):
    """As many connections as may be: who leaves the router waiting makes room, who is in work keeps its place."""
    HTTP = "max_connections = 4\nheader_timeout = 1h\nidle_timeout = 1h\n"

    def waiting(self, n):
        for i in range(n):
            s = connect(self.r.port)
            self.addCleanup(s.close)
            if i % 2:
                s.sendall(make("POST", "/v1/completions", Q)[:-5])

    def test_waiting_make_room(self):
        self.waiting(30)
        for _ in range(4):
            self.assertEqual(self.r.post("/v1/completions", Q).status, 200)

    def test_all_in_work(self):
        go, out = threading.Event(), []

        def hold(r, c):
            if r.path == "/v1/completions":
                go.wait(5 * LONG)
            return False
        self.d[0].behave = hold
        threads = [threading.Thread(target=lambda: out.append(self.r.post("/v1/completions", Q).status)) for _ in range(4)]
        for t in threads:
            t.start()
        self.r.wait_metric("halyard:router_active", 4)
        for _ in range(5):
            self.waiting(6)
            self.assertEqual(self.r.get("/health").status, 200)
            a = self.r.post("/v1/completions", Q)
            self.assertEqual((a.status, a.headers["retry-after"]), (503, "1"))
        go.set()
        for t in threads:
            t.join(LONG)
        self.assertEqual(out, [200] * 4)


class Slow(Base):
    ROUTER = "max_unsent = 256k\n"
    TOTAL = 48 << 20

    def test_slow_reader(self):
        """The worker is made to wait; memory does not grow, and every byte comes in the end."""
        sent = [0]
        event = b"data: " + b"x" * 16000 + b"\n\n"

        def flood(r, c):
            if r.path != "/v1/completions":
                return False
            Fake.head_stream(c)
            while sent[0] < self.TOTAL:
                Fake.piece(c, event)
                sent[0] += len(event)
            Fake.piece(c, b"data: [DONE]\n\n")
            c.sendall(b"0\r\n\r\n")
            return True
        self.d[0].behave = flood
        s = connect(self.r.port, rcvbuf=65536)
        s.sendall(make("POST", "/v1/completions", {**Q, "stream": True}))
        before = 0
        while before == 0 or before != sent[0]:  # until nothing moves
            before = sent[0]
            time.sleep(0.5)
        self.assertLess(sent[0], 16 << 20)
        self.assertLess(kit.rss_mb(self.r.proc.pid), 400 if kit.sanitised() else 60)
        with s.makefile("rb") as f:
            a = Answer(f)
        s.close()
        self.assertTrue(a.whole)
        n = (self.TOTAL + len(event) - 1) // len(event)
        self.assertEqual(len(a.body), n * len(event) + 14)
        self.assertTrue(a.body.endswith(b"data: [DONE]\n\n"))
        self.idle()


class Drain(Base):
    def test_running_requests_end(self):
        go = threading.Event()

        def slow(r, c):
            if r.path != "/v1/completions":
                return False
            Fake.head_stream(c)
            Fake.piece(c, self.d[0].chunk(0, False))
            go.wait(2 * LONG)
            Fake.piece(c, b"data: [DONE]\n\n")
            c.sendall(b"0\r\n\r\n")
            return True
        self.d[0].behave = slow
        s = connect(self.r.port)
        s.sendall(make("POST", "/v1/completions", {**Q, "stream": True}))
        self.d[0].seen("/v1/completions")
        idle = connect(self.r.port)
        idle.sendall(make("GET", "/health", None, close=False))
        self.assertEqual(Answer(idle.makefile("rb")).status, 200)
        self.r.proc.send_signal(signal.SIGINT)
        self.r.wait_log("draining")
        self.assertEqual(idle.recv(1), b"")
        with self.assertRaises(ConnectionRefusedError):
            while True:
                connect(self.r.port).close()
                time.sleep(0.05)
        self.assertIsNone(self.r.proc.poll())
        go.set()
        with s.makefile("rb") as f:
            a = Answer(f)
        self.assertEqual(a.events()[-1], "[DONE]")
        self.assertEqual(self.r.proc.wait(LONG), 0)

    def test_second_signal_hangs_up(self):
        self.d[0].behave = lambda r, c: r.path == "/v1/completions" and (wait_gone(c) or True)
        s = connect(self.r.port)
        s.sendall(make("POST", "/v1/completions", Q))
        self.d[0].seen("/v1/completions")
        self.r.proc.send_signal(signal.SIGINT)
        self.r.wait_log("draining")
        self.r.proc.send_signal(signal.SIGINT)
        self.assertEqual(self.r.proc.wait(LONG), 0)
        self.released()


class Keys(Base):
    HTTP = "api_key = s3cret\n"

    def test_key(self):
        for h in ((), [("Authorization", "Bearer wrong")], [("Authorization", "s3cret")]):
            self.assertEqual(self.r.post("/v1/completions", Q, headers=h).status, 401)
            self.assertEqual(self.r.get("/v1/models", headers=h).status, 401)
        ok = [("Authorization", "Bearer s3cret")]
        self.assertEqual(self.r.post("/v1/completions", Q, headers=ok).status, 200)
        self.assertIn(("Authorization", "Bearer s3cret"), self.d[0].requests[-1].headers)
        self.assertEqual(self.r.get("/health").status, 200)


class Short(Base):
    ROUTER = "min_prefill_chars = 40\n"

    def test_short_prompts_stay_with_decode(self):
        self.r.post("/v1/completions", {**Q, "prompt": "x" * 37})
        self.assertEqual(self.p[0].requests, [])
        self.r.post("/v1/completions", {**Q, "prompt": "x" * 38})  # 40 with its quotes
        self.assertEqual(len(self.p[0].requests), 1)


class Push(Base):
    ROUTER = "mode = push\n"

    def test_both_at_once(self):
        both = threading.Barrier(2, timeout=LONG)

        def meet(r, c):
            if r.path == "/v1/completions":
                both.wait()
            return False
        self.p[0].behave = self.d[0].behave = meet
        a = self.r.post("/v1/completions", {**Q, "stream": True})
        self.assertEqual(texts(a), WANT)
        p = self.p[0].requests[0].body
        d = self.d[0].requests[0].body
        pk, dk = p["kv_transfer_params"], d["kv_transfer_params"]
        self.assertRegex(pk["transfer_id"], "^[0-9a-f]{16}$")
        self.assertEqual(pk, {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": pk["transfer_id"],
                              "remote_max_tokens": 4})
        self.assertEqual(dk, {"do_remote_decode": False, "do_remote_prefill": True, "transfer_id": pk["transfer_id"],
                              "remote_engine_id": "p0", "remote_bootstrap_addr": f"http://127.0.0.1:{self.p[0].port}"})
        self.assertEqual((p["max_tokens"], p["stream"]), (1, False))
        self.idle()

    def late(self, how):
        """Decode has answered it whole, prefill has not: the router is held there and `how` does the rest."""
        there, go, left = threading.Event(), threading.Event(), []

        def p(r, c):
            if r.path != "/v1/completions":
                return False
            there.set()
            go.wait(LONG)
            left.append(how(c))
            return True
        self.p[0].behave = p
        a = self.r.post("/v1/completions", {**Q, "stream": True})
        self.assertEqual(texts(a), WANT)
        self.assertTrue(there.wait(LONG))
        w = {w["name"]: w["active"] for w in self.r.get("/workers").json()["workers"]}
        self.assertEqual(w, {"p0": 1, "d0": 0})
        go.set()
        self.r.wait_metric('halyard:router_worker_active{worker="p0"}', 0)
        self.idle()
        self.assertEqual(self.p[0].seen("/v1/kv/release", timeout=0.1), [])  # decode has given the lease back
        return left[0]

    def test_decode_is_done_first(self):
        """Prefill's own answer is waited for a moment, so that it counts as answered there, too."""
        def how(c):
            c.settimeout(0.01)
            try:
                left = c.recv(1) == b""
            except TimeoutError:
                left = False
            Fake.send(c, 200, {"choices": [{"text": " t0"}]})
            return left
        self.assertFalse(self.late(how))
        page = self.r.get("/trace").json()["traceEvents"]
        self.assertEqual([e["name"] for e in page if e["name"] == "prefill leg"], ["prefill leg"])

    def test_decode_is_done_and_prefill_goes_on(self):
        """It computes for nobody: hung up on."""
        self.assertTrue(self.late(wait_gone))

    def test_decode_is_done_and_prefill_dies(self):
        self.late(lambda c: c.close())
        self.r.wait_states(p0="up")  # a check was answered

    def test_prefill_fails(self):
        """Decode waits for what will not come: it begins again, without."""
        def d(r, c):
            if r.path == "/v1/completions" and "kv_transfer_params" in r.body:
                wait_gone(c)
                return True
            return False
        self.d[0].behave = d
        self.p[0].behave = lambda r, c: r.path == "/v1/completions" and (Fake.send(c, 500, {}) or True)
        a = self.r.post("/v1/completions", {**Q, "stream": True})
        self.assertEqual(texts(a), WANT)
        self.idle()


class PushReleases(Base):
    """Whatever ends a request that decode has not taken, prefill hears of it."""
    ROUTER = "mode = push\n"

    def named(self):
        asked = [r.body["kv_transfer_params"]["transfer_id"] for r in self.p[0].seen("/v1/completions")]
        got = self.p[0].seen("/v1/kv/release", n=len(asked))
        self.assertEqual(sorted(r.body["kv_transfer_params"]["transfer_id"] for r in got), sorted(asked))
        self.idle()

    def test_client_error(self):
        for k, status in enumerate((400, 404, 422, 307)):
            def d(r, c, k=k, status=status):
                if r.path != "/v1/completions":
                    return False
                self.p[0].seen("/v1/completions", n=k + 1)
                Fake.send(c, status, {"error": {}})
                return True
            self.d[0].behave = d
            self.assertEqual(self.r.post("/v1/completions", Q).status, status)
            self.named()

    def lost(self, *ways):
        """It may have finished, and hold the KV: decode begins again and does not ask for it."""
        def d(r, c):
            if r.path == "/v1/completions" and "kv_transfer_params" in r.body:
                wait_gone(c)
                return True
            return False
        self.d[0].behave = d
        for how in ways:
            self.p[0].behave = lambda r, c, how=how: r.path == "/v1/completions" and (how(c) or True)
            self.assertEqual(self.r.post("/v1/completions", Q).status, 200)
            self.named()

    def test_prefill_is_lost(self):
        self.lost(lambda c: None, lambda c: c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{"))

    def test_prefill_answers_an_error(self):
        self.d[0].behave = lambda r, c: "kv_transfer_params" in (r.body if r.raw else {}) and (wait_gone(c) or True)
        self.p[0].behave = lambda r, c: r.path == "/v1/completions" and (Fake.send(c, 500, {}) or True)
        self.assertEqual(self.r.post("/v1/completions", Q).status, 200)
        self.assertEqual(self.p[0].seen("/v1/kv/release", timeout=0.1), [])  # it holds nothing
        self.idle()


class PushPrefillHangs(PushReleases):
    ROUTER = PushReleases.ROUTER + "prefill_timeout = 400ms\n"
    test_client_error = test_prefill_is_lost = test_prefill_answers_an_error = None

    def test_hangs(self):
        self.lost(wait_gone)


def link(peer, state="up", why="", copy="group 0: as it is", addrs=""):
    return {"peer": peer, "addrs": addrs, "state": state, "path": "own", "copy": copy if state == "up" else "", "why": why}


WHY = "[kv] type: f16 here, f32 there"


class Pairs(Base):
    """A decode node says that it cannot take KV from a prefill node: no request goes through that pair, until it
    says otherwise."""
    N_P, N_D = 2, 2

    def refused(self, d, n):
        self.r.wait_metric(f'halyard:router_pairs_refused{{worker="d{d}"}}', n)

    def workers(self):
        return {w["name"]: w.get("refuses") for w in self.r.get("/workers").json()["workers"]}

    def pairs(self, n=12, stream=False):
        got = set()
        for _ in range(n):
            a = self.r.post("/v1/completions", {**Q, "stream": stream})
            self.assertEqual(a.status, 200)
            got.add((a.headers.get("x-halyard-prefill"), a.headers["x-halyard-worker"]))
        self.idle()
        return got

    def test_only_good_pairs(self):
        """Two islands: each prefill node fits one decode node, and never meets the other."""
        for d in (0, 1):
            self.d[d].links = [link(f"p{d}"), link(f"p{1 - d}", "refused", WHY)]
            self.refused(d, 1)
        for stream in (False, True):
            self.assertEqual(self.pairs(stream=stream), {("p0", "d0"), ("p1", "d1")})
        self.assertEqual(self.workers(), {"p0": None, "p1": None, "d0": [{"peer": "p1", "why": WHY}],
                                          "d1": [{"peer": "p0", "why": WHY}]})
        h = self.r.get("/health")
        self.assertEqual((h.status, h.json()), (200, {"pairs_refused": [
            {"decode": "d0", "peers": [{"peer": "p1", "why": WHY}]}, {"decode": "d1", "peers": [{"peer": "p0", "why": WHY}]}]}))
        self.assertIn(f"d0 cannot take KV from p1: {WHY}", self.r.text())
        # p1 was started again with another file: all pairs are good, and said to be
        for d in self.d:
            d.links = [link("p0"), link("p1")]
        self.refused(0, 0)
        self.refused(1, 0)
        self.assertIn("d0 may take KV from p1 again", self.r.text())
        self.assertEqual(self.r.get("/health").body, b"")
        self.assertEqual({d for _, d in self.pairs()}, {"d0", "d1"})

    def test_a_link_that_is_lost_or_unknown_is_no_refusal(self):
        self.d[0].links = [link("p0", "down", "connection refused"), link("p1", "connecting")]
        self.d[1].links = []
        time.sleep(0.4)
        for d in (0, 1):
            self.refused(d, 0)
        self.assertEqual({p for p, _ in self.pairs()}, {"p0", "p1"})

    def test_one_way_and_by_address(self):
        """A link that only serves is of no use for taking; a node may have another name than its peer section."""
        self.d[0].links = [link("p0", copy=""), link("somebody", "refused", WHY, addrs="1.2.3.4:5")]
        self.refused(0, 1)
        self.assertEqual([x["peer"] for x in self.workers()["d0"]], ["p0"])

    def test_pages_that_are_none(self):
        """What is no page of links says nothing, and the router lives."""
        self.d[0].links = [link("p0", "refused", WHY)]
        self.refused(0, 1)
        for raw in (b"", b"nonsense", b"[]", b'{"links": 5}', b'{"links": [5, null, {}, {"peer": 7, "state": []}]}',
                    b'{"links": [' + b'{"peer": "p0", "state": "refused"},' * 60000 + b"{}]}"):
            self.d[0].links = raw
            self.refused(0, 0)
            self.d[0].links = [link("p0", "refused", "x" * 100000)]
            self.refused(0, 1)
        self.assertEqual(self.pairs(4) - {("p0", "d1"), ("p1", "d0"), ("p1", "d1")}, set())

    def test_all_refused(self):
        """Decode computes the prompts by itself, and prefill is not asked for KV that nobody takes."""
        for d in self.d:
            d.links = [link("p0", "refused", WHY), link("p1", "refused", WHY)]
        self.refused(0, 2)
        self.refused(1, 2)
        self.assertEqual(self.pairs(), {(None, "d0"), (None, "d1")})
        self.assertEqual([p.seen("/v1/completions", timeout=0.1) for p in self.p], [[], []])
        self.assertEqual(self.r.get("/health").status, 200)

    def test_the_only_taker_dies(self):
        """Its KV is given back, and the other node computes the prompt instead of failing to load."""
        self.d[0].links = [link("p0", "refused", WHY), link("p1", "refused", WHY)]
        self.refused(0, 2)
        self.d[1].behave = lambda r, c: r.path == "/v1/completions"  # closes without a byte
        a = self.r.post("/v1/completions", Q)
        self.assertEqual((a.status, a.headers["x-halyard-worker"]), (200, "d0"))
        self.assertNotIn("x-halyard-prefill", a.headers)
        self.assertNotIn("kv_transfer_params", self.d[0].requests[-1].body)
        self.released(0 if self.p[0].seen("/v1/completions", timeout=0.1) else 1)
        self.idle()


class PairsPush(Pairs):
    ROUTER = "mode = push\n"

    def test_the_only_taker_dies(self):
        self.d[0].links = [link("p0", "refused", WHY), link("p1", "refused", WHY)]
        self.refused(0, 2)
        for p in self.p:
            p.behave = lambda r, c: r.path == "/v1/completions" and (wait_gone(c) or True)

        def asked():
            return [p for p in self.p if any(r.path == "/v1/completions" for r in p.requests)]
        self.d[1].behave = lambda r, c: r.path == "/v1/completions" and (wait(asked) or True)
        a = self.r.post("/v1/completions", Q)
        self.assertEqual((a.status, a.headers["x-halyard-worker"]), (200, "d0"))
        self.assertNotIn("kv_transfer_params", self.d[0].requests[-1].body)
        p, = asked()
        name = p.seen("/v1/completions")[0].body["kv_transfer_params"]["transfer_id"]
        self.assertEqual([r.body["kv_transfer_params"]["transfer_id"] for r in p.seen("/v1/kv/release")], [name])
        self.idle()


def page(node, addrs="", links=(), **more):
    """What GET /links of a Halyard node is."""
    return json.dumps({"node": node, "addrs": addrs, "links": list(links), **more}).encode()


class Context(Base):
    """Prefill is told how long a request may be where it goes then, so that none is begun that is refused there."""
    N_D = 2

    def told(self):
        self.p[0].requests.clear()
        self.assertEqual(self.r.post("/v1/completions", Q).status, 200)
        self.idle()
        return self.p[0].seen("/v1/completions")[0].body["kv_transfer_params"].get("remote_context")

    def test_longest_of_those_that_may_take_it(self):
        def pages(*contexts):
            for d, context in zip(self.d, contexts):
                d.links = context if context is None else page("", context=context)
        self.assertIsNone(self.told())  # other engines have no such page
        pages(100, None)
        self.d[1].links = [link("p0")]
        wait(lambda: self.told() is None)
        pages(100, 200)
        wait(lambda: self.told() == 200)
        pages(300, 200)
        wait(lambda: self.told() == 300)
        self.d[0].links = page("", links=[link("p0", "refused", WHY)], context=300)
        wait(lambda: self.told() == 200)
        pages(300, 250)
        wait(lambda: self.told() == 300)
        self.d[0].die()
        self.r.wait_states(d0="down")
        self.assertEqual(self.told(), 250)
        for odd in (0, -7, "9", 1.5, [], None, 2**31):  # as good as none
            self.d[1].links = page("", context=250)
            wait(lambda: self.told() == 250)
            self.d[1].links = page("", context=odd)
            wait(lambda: self.told() is None)

    def test_refused_by_prefill(self):
        """It says that decode would refuse: decode is asked, alone, and its words go to the client."""
        for d in self.d:
            d.links = page("", context=5)
        wait(lambda: self.told() == 5)
        for f in self.p + self.d:
            f.behave = lambda r, c: r.path == "/v1/completions" and (Fake.send(c, 400, {"error": "long"}) or True)
        a = self.r.post("/v1/completions", Q)
        self.assertEqual((a.status, a.headers.get("x-halyard-prefill")), (400, None))
        self.assertIn(a.headers["x-halyard-worker"], ("d0", "d1"))
        self.idle()
        self.assertEqual(self.p[0].seen("/v1/kv/release", timeout=0.1), [])


class PushAddress(Base):
    """Push: what decode is told of prefill's fabric is what the node itself says, where the file says nothing."""
    ROUTER, N_P = "mode = push\n", 2

    def told(self):
        self.d[0].requests.clear()
        a = self.r.post("/v1/completions", Q)
        self.assertEqual(a.status, 200)
        self.idle()
        return a.headers.get("x-halyard-prefill"), self.d[0].requests[0].body.get("kv_transfer_params")

    def test_asked(self):
        self.p[0].links, self.p[1].links = page("other", "10.1.2.3:18510,10.1.2.4:18510"), page("x")
        bar = 'halyard:router_pairs_refused{worker="d0"}'
        self.r.wait_metric(bar, 1)  # p1 is a node without a fabric: of no use
        wait(lambda: [w.get("node") for w in self.r.get("/workers").json()["workers"]] == ["other", "x", None])
        for _ in range(4):
            p, kv = self.told()
            self.assertEqual((p, kv["remote_engine_id"], kv["halyard"]),
                             ("p0", "other", {"v": 1, "node": "other", "addrs": "10.1.2.3:18510,10.1.2.4:18510"}))
        self.assertEqual(self.p[1].seen("/v1/completions", timeout=0.1), [])
        self.assertIn("p1 does not say where its fabric is", self.r.text())
        w = {w["name"]: w for w in self.r.get("/workers").json()["workers"]}
        self.assertEqual(([x["peer"] for x in w["d0"]["refuses"]], w["p0"]["node"]), (["p1"], "other"))
        h = self.r.get("/health").json()["pairs_refused"]
        self.assertEqual([(x["decode"], [y["peer"] for y in x["peers"]]) for x in h], [("d0", ["p1"])])
        # started again, elsewhere and with a fabric
        self.p[0].links, self.p[1].links = page("x"), page("y", "10.1.2.9:1")
        wait(lambda: "p1 has a fabric" in self.r.text() and "p0 does not say" in self.r.text())
        self.assertEqual(self.told()[1]["halyard"], {"v": 1, "node": "y", "addrs": "10.1.2.9:1"})
        self.p[0].links = page("x", "10.1.2.9:2")
        self.r.wait_metric(bar, 0)
        self.assertEqual({self.told()[0] for _ in range(4)}, {"p0", "p1"})
        self.assertEqual(self.r.get("/health").body, b"")

    def test_none_of_them(self):
        for p in self.p:
            p.links = page("")
        self.r.wait_metric('halyard:router_pairs_refused{worker="d0"}', 2)
        self.assertEqual(self.told(), (None, None))

    def test_odd_pages(self):
        """What a page says goes into requests as JSON, or not at all; another engine has no such page."""
        self.p[1].die()
        self.r.wait_states(p1="down")
        for node, addrs in (('q"\\', 'a"b:1'), ("n\n", "x:1")):
            self.p[0].links = page(node, addrs)
            wait(lambda: (self.told()[1] or {}).get("halyard") == {"v": 1, "node": node, "addrs": addrs})
        self.p[0].links = page("z" * 5000, "y" * 5000)
        time.sleep(0.3)
        self.assertEqual(self.told()[1]["halyard"]["addrs"], "x:1")


class FileAddress(PushAddress):
    """The file's word goes before the node's."""
    test_asked = test_none_of_them = test_odd_pages = None

    def setUp(self):
        self.p, self.d = [Fake()], [Fake()]
        self.p[0].links = page("n0", "10.9.9.9:9")
        self.r = Router(self.p, self.d, self.ROUTER, "[peer.p0]\naddrs = 10.1.1.1:1\n")
        self.addCleanup(self.finish)
        self.r.wait_states(p0="up", d0="up")

    def test_file(self):
        wait(lambda: self.told()[1]["halyard"] == {"v": 1, "node": "n0", "addrs": "10.1.1.1:1"})


class SameName(Base):
    """Two nodes of one name: said in the log once, and in /health as long as it is so."""
    N_P, N_D = 2, 2

    def test_same_name(self):
        for f, n in zip(self.p + self.d, ("a", "b", "a", "a")):
            f.links = page(n, "h:1")
        want = {"same_name": [["p0", "d0", "d1"]]}
        wait(lambda: (self.r.get("/health").body or b"{}") == json.dumps(want, separators=(",", ":")).encode())
        lines = [x for x in self.r.text().splitlines() if "both called a" in x]
        self.assertIn(len(lines), (1, 2))
        self.assertIn("[node] name", lines[0])
        self.d[0].links, self.d[1].links = page("c"), page("d")
        wait(lambda: self.r.get("/health").body == b"")
        self.d[1].die()
        self.d[0].links = page("d")
        self.r.wait_states(d1="down")
        time.sleep(0.3)
        self.assertEqual(self.r.get("/health").body, b"")  # it was replaced


class WithoutPrefill(Base):
    """[router] without_prefill = fail: decode nodes never compute prompts that prefill should."""
    ROUTER = "without_prefill = fail\nmin_prefill_chars = 4\n"

    def unable(self, *words):
        a = self.r.post("/v1/completions", Q)
        self.assertEqual((a.status, a.headers.get("retry-after")), (503, "1"))
        for w in words:
            self.assertIn(w, a.json()["error"]["message"])
        self.assertEqual(self.d[0].seen("/v1/completions", timeout=0.05), [])
        self.idle()

    def test_refused(self):
        self.d[0].links = [link("p0", "refused", WHY)]
        self.r.wait_metric('halyard:router_pairs_refused{worker="d0"}', 1)
        self.unable("d0 cannot take KV from p0", WHY, "without_prefill")
        h = self.r.get("/health")
        self.assertEqual(h.status, 503)
        self.assertIn(WHY, h.json()["error"]["message"])
        self.d[0].links = [link("p0")]
        self.r.wait_metric('halyard:router_pairs_refused{worker="d0"}', 0)
        self.assertEqual(self.r.get("/health").status, 200)
        self.assertEqual(self.r.post("/v1/completions", Q).status, 200)

    def test_down_or_failing(self):
        self.p[0].behave = lambda r, c: r.path == "/v1/completions" and (Fake.send(c, 500, {}) or True)
        self.unable("p0", "500")
        self.p[0].behave = lambda r, c: r.path == "/v1/completions" and (Fake.send(c, 400, {}) or True)
        self.assertEqual(self.r.post("/v1/completions", Q).status, 200)  # decode says what is wrong with it
        self.d[0].requests.clear()
        self.p[0].die()
        self.unable("p0")
        self.r.wait_states(p0="down")
        self.unable("p0 is down")
        self.assertEqual(self.r.get("/health").status, 503)

    def test_what_is_decodes_own(self):
        self.p[0].die()
        self.r.wait_states(p0="down")
        for q in ({**Q, "prompt": "x"}, {**Q, "n": 2}):
            self.assertEqual(self.r.post("/v1/completions", q).status, 200)
        self.assertEqual(self.r.get("/v1/models").status, 200)


class WithoutPrefillPush(WithoutPrefill):
    ROUTER = WithoutPrefill.ROUTER + "mode = push\n"

    def test_down_or_failing(self):
        def d(r, c):
            return r.path == "/v1/completions" and "kv_transfer_params" in r.body and wait_gone(c)
        self.d[0].behave = d
        self.p[0].behave = lambda r, c: r.path == "/v1/completions" and (Fake.send(c, 500, {}) or True)
        a = self.r.post("/v1/completions", Q)
        self.assertEqual(a.status, 503)
        self.assertIn("500", a.json()["error"]["message"])
        self.idle()


class Load(Base):
    N_P, N_D = 2, 2

    def test_random_cancels_and_deaths(self):
        rng = random.Random(1)
        bad = []

        def one(seed):
            r = random.Random(seed)
            try:
                s = connect(self.r.port)
                s.sendall(make("POST", "/v1/completions", {**Q, "stream": r.random() < 0.5}))
                if r.random() < 0.3:
                    time.sleep(r.random() * 0.01)
                    s.close()
                    return
                a = Answer(s.makefile("rb"))
                s.close()
                if a.status not in (200, 502, 503):
                    bad.append(a.status)
                if a.status == 200 and not (a.body.endswith(b"[DONE]\n\n") or b"error" in a.body or b"t0" in a.body):
                    bad.append(a.body)
            except Exception as e:
                bad.append(e)
        base = kit.n_fds(self.r.proc.pid)
        for round in range(6):
            threads = [threading.Thread(target=one, args=(round * 100 + i,)) for i in range(60)]
            for t in threads:
                t.start()
            if round in (1, 3):
                victim = rng.randrange(2)
                (self.p if round == 1 else self.d)[victim].die()
            for t in threads:
                t.join(60)
                self.assertFalse(t.is_alive(), "a request hangs")
            for fakes in (self.p, self.d):
                for i, f in enumerate(fakes):
                    if not f.alive:
                        fakes[i] = Fake(f.port)
        self.assertEqual(bad, [])
        self.idle()
        self.r.wait_states(p0="up", p1="up", d0="up", d1="up")
        end = time.time() + LONG
        while kit.n_fds(self.r.proc.pid) > base + 300 and time.time() < end:
            time.sleep(0.1)
        self.assertEqual(self.r.post("/v1/completions", Q).status, 200)
        self.assertLess(kit.rss_mb(self.r.proc.pid), 240 if kit.sanitised() else 60)


class Both(unittest.TestCase):
    def test_alone_and_paired(self):
        """One node of role both serves alone; two split the work."""
        a, b = Fake(), Fake()
        r = Router([], [], both=[a])
        r.wait_states(b0="up")
        self.assertNotIn("x-halyard-prefill", r.post("/v1/completions", Q).headers)
        r.stop()
        r = Router([], [], both=[a, b])
        r.wait_states(b0="up", b1="up")
        x = r.post("/v1/completions", Q)
        self.assertNotEqual(x.headers["x-halyard-prefill"], x.headers["x-halyard-worker"])
        r.stop()
        a.die()
        b.die()

    def test_by_name(self):
        p, d = Fake(), Fake()
        r = Router([p], [d], host="localhost")
        r.wait_states(p0="up", d0="up")
        self.assertIn("x-halyard-prefill", r.post("/v1/completions", Q).headers)
        r.stop()
        p.die()
        d.die()

    def test_unreachable(self):
        """Connections that nobody refuses nor takes, as to a machine that is gone."""
        hole = socket.socket()
        hole.bind(("127.0.0.1", 0))
        hole.listen(0)
        port = hole.getsockname()[1]
        fill = []
        for _ in range(4):  # until the queue is full and further SYNs are dropped
            s = socket.socket()
            s.setblocking(False)
            s.connect_ex(("127.0.0.1", port))
            fill.append(s)
        time.sleep(0.1)
        d = Fake()
        r = Router([port], [d], "down_after = 2\n", soon="500ms")
        r.wait_states(d0="up")
        t = time.time()
        self.assertEqual(texts(r.post("/v1/completions", {**Q, "stream": True})), WANT)
        self.assertLess(time.time() - t, LONG)
        r.wait_states(p0="down")
        r.stop()
        d.die()
        for s in fill + [hole]:
            s.close()

    def test_refuses_to_start(self):
        p = Fake()
        with self.assertRaisesRegex(AssertionError, "no worker that can decode"):
            Router([p], [])
        with self.assertRaisesRegex(AssertionError, "is no URL"):
            Router([], ["x"])
        with self.assertRaisesRegex(AssertionError, r"is the URL of \[peer.p0\] too"):
            Router([p], [p])
        p.die()


if __name__ == "__main__":
    kit.HALYARD = sys.argv.pop(1)
    unittest.main(verbosity=1)
