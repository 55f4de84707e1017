#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a cluster shows of itself: timelines of requests across router, prefill and decode node in causal order
and on one clock, links at start and afterwards, and the one line a request in the log.
Usage: test_see.py HALYARD"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tiny import Cluster, kit  # noqa: E402

PROMPT = "Once upon a time, in a small village by the sea, there lived an old man."


def run(*args):
    r = subprocess.run([kit.HALYARD, *args], capture_output=True, text=True, timeout=120)
    return r.returncode, r.stdout, r.stderr


def wait(what, timeout=2 * kit.LONG):
    end = time.time() + timeout
    while True:
        got = what()
        if got:
            return got
        if time.time() > end:
            raise AssertionError("did not come")
        time.sleep(0.05)


class Timeline:
    """The events of one request by node and name, from what `halyard trace` wrote."""

    def __init__(self, page, request):
        self.nodes = {e["pid"]: e["args"]["name"].split(" ")[0] for e in page["traceEvents"]
                      if e["ph"] == "M" and e["name"] == "process_name"}
        self.e = {}
        for e in page["traceEvents"]:
            if e["ph"] in "Xi" and e["args"]["request"] == request:
                assert (self.nodes[e["pid"]], e["name"]) not in self.e, e
                self.e[self.nodes[e["pid"]], e["name"]] = e
        self.arrows = [(self.nodes[e["pid"]], e["ph"]) for e in page["traceEvents"]
                       if e["ph"] in "sf" and e["id"] == request]

    def at(self, node, name):
        return self.e[node, name]["ts"]

    def end(self, node, name):
        return round(self.e[node, name]["ts"] + self.e[node, name].get("dur", 0), 3)  # whole nanoseconds

    def args(self, node, name):
        return self.e[node, name]["args"]


class Pull(unittest.TestCase):
    MODE = "pull"

    @classmethod
    def setUpClass(cls):
        cls.c = Cluster(mode=cls.MODE, both="node.trace=16", router="node.trace=16")

    @classmethod
    def tearDownClass(cls):
        assert cls.c.stop() == 0

    def trace(self, *more):
        """None: nobody has that request yet."""
        rc, out, err = run("trace", f"http://127.0.0.1:{self.c.router}/", "-o", "-", *more)
        if rc == 1 and "no request '" in err:
            return None
        self.assertEqual(rc, 0, err)
        return json.loads(out)

    def whole(self, request):
        """Its timeline once all of it is there: the last marks are the owner's blocks being free and, pushing,
        prefill's own answer."""
        def look():
            page = self.trace("-r", request)
            t = page and Timeline(page, request)
            last = ("p0", "kept for the peer"), ("router", "request"), ("router", "prefill leg"), ("p0", "request")
            return t and all(x in t.e for x in last) and t
        return wait(look)

    def test_1_every_stage_in_causal_order(self):
        for stream in (True, False):
            name = f"see-{self.MODE}-{stream}"
            a = self.c.ask(PROMPT + name, max_tokens=12, stream=stream, headers=[("X-Request-Id", name)])
            self.assertEqual(a.status, 200)
            t = self.whole(name)
            r, p, d = "router", "p0", "d0"
            one_after_another = [
                (r, [t.at(r, "request"), t.at(r, "prefill leg")]),
                ("prefill", [t.at(r, "prefill leg"), t.at(p, "request"), t.at(p, "queue"), t.end(p, "queue"),
                             t.at(p, "blocks allocated"), t.at(p, "prefill"), t.end(p, "prefill"),
                             t.at(p, "first token"), t.at(p, "finished"), t.end(p, "request"), t.end(r, "prefill leg"),
                             t.end(r, "request")]),
                ("decode", [t.at(r, "decode leg"), t.at(d, "request"), t.at(d, "queue"), t.end(d, "queue"),
                            t.at(d, "blocks allocated"), t.at(d, "transfer"), t.end(d, "transfer"),
                            t.at(d, "first token"), t.at(d, "first decode"), t.at(d, "finished"), t.end(d, "request"),
                            t.end(r, "decode leg"), t.end(r, "request")]),
                ("kv", [t.at(d, "transfer"), t.at(p, "send"), t.end(p, "send"), t.end(d, "transfer")]),
                ("hold", [t.at(p, "queue"), t.at(p, "kept for the peer"), t.end(p, "send"), t.end(p, "kept for the peer")]),
                ("first byte", [t.at(d, "first token"), t.at(r, "first byte"), t.end(r, "request")]),
            ]
            if self.MODE == "pull":
                one_after_another.append(("legs", [t.end(r, "prefill leg"), t.at(r, "decode leg")]))
            for what, times in one_after_another:
                self.assertEqual(times, sorted(times), (what, times))
            n = t.args(p, "request")["prompt_tokens"]
            self.assertEqual(t.args(p, "request")["cached_tokens"] + t.args(p, "prefill")["tokens"], n)
            self.assertEqual(t.args(d, "transfer")["tokens"] + t.args(d, "request")["cached_tokens"], n)
            self.assertNotIn((d, "prefill"), t.e)  # it computed no prompt token
            self.assertGreater(t.args(d, "transfer")["bytes"], 0)
            self.assertEqual(t.args(p, "send")["bytes"], t.args(d, "transfer")["bytes"])
            self.assertEqual(t.args(d, "request")["output_tokens"], 12)
            self.assertEqual({k: t.args(r, "request")[k] for k in ("status", "prefill", "decode", "legs")},
                             {"status": 200, "prefill": "p0", "decode": "d0", "legs": 2})
            self.assertEqual(sorted(t.arrows), [("d0", "f"), ("p0", "s")])

    def test_2_ring_is_bounded(self):
        for i in range(40):
            self.assertEqual(self.c.ask(f"{i} of forty").status, 200)
        page = self.trace()
        for pid in (1, 2, 3):
            mine = [e for e in page["traceEvents"] if e["pid"] == pid and e["name"].startswith("request")]
            self.assertEqual(len(mine), 16)
        self.assertEqual([n["node"] for n in page["otherData"]["nodes"]], ["router", "p0", "d0"])
        for n in page["otherData"]["nodes"]:  # one machine: one clock
            self.assertEqual((n["clock_shift_us"], n["clock_error_us"]), (0, 0))
        last = self.trace("-n", "2")
        self.assertEqual(len([e for e in last["traceEvents"] if e["name"].startswith("request")]), 6)
        self.assertEqual(kit.request(self.c.p, "GET", "/trace?n=0", None).json()["otherData"]["keeps"], 16)
        self.assertEqual(kit.request(self.c.p, "POST", "/trace", {}).status, 405)
        # a page as it is, without the tool, is a trace, too; and names that are no names find nothing
        for port in (self.c.router, self.c.p, self.c.d):
            self.assertEqual(len([e for e in kit.request(port, "GET", "/trace", None).json()["traceEvents"]
                                  if e["name"].startswith("request")]), 16)
            for q in ("request=%00%22", "request=nobody", "n=abc", "n=-1&request=x", "%%%", "n"):
                a = kit.request(port, "GET", f"/trace?{q}", None)
                self.assertEqual(a.status, 200)
                self.assertIn("otherData", a.json())

    def test_3_hung_up(self):
        """In the stream. (The tiny model is quick, and may be done before it hears of it: then once more.)"""
        for i in range(20):
            name = f"left{i}"
            s = kit.connect(self.c.router)
            s.sendall(kit.make("POST", "/v1/completions", {"model": "tiny", "prompt": name, "max_tokens": 480, "stream": True,
                                                           "ignore_eos": True}, [("X-Request-Id", name)]))
            s.recv(10)
            s.close()

            def left():
                t = Timeline(self.trace("-r", name) or {"traceEvents": []}, name)
                return ("router", "request") in t.e and ("d0", "request") in t.e and t
            t = wait(left)
            status = [t.args(n, "request")["status"] for n in ("router", "d0")]
            if status == [499, 499]:
                break
            self.assertEqual(status[1], 200)
        self.assertEqual(status, [499, 499])
        self.assertLess(t.args("d0", "request")["output_tokens"], 480)

    def test_4_log_line(self):
        name = "logged"
        self.assertEqual(self.c.ask(PROMPT + f"for the log, {name}", headers=[("X-Request-Id", name)]).status, 200)
        for node, pattern in (("d0", rf"request {name}: prompt \d+ tokens \(\d+ cached, [1-9]\d* moved, 0 computed\), tokenised "
                                     r"[\d.]+ ms, queued [\d.]+ ms, link [\d.]+ ms, transfer [\d.]+ MB, in [\d.]+ ms, first "
                                     r"token after [\d.]+ ms, first decode after [\d.]+ ms, 8 tokens out, decode [\d.]+ ms, "
                                     r"total [\d.]+ ms, status 200"),
                              ("p0", rf"request {name}: prompt \d+ tokens \(\d+ cached, 0 moved, \d+ computed\), .* prefill "
                                     r"[\d.]+ ms, .* 1 tokens out"),
                              ("router", rf"request {name}: ok, prefill p0 [\d.]+ ms, decode d0, first byte [\d.]+ ms, total")):
            def log():
                with open(f"{self.c.up.dir}/run/{node}.log") as f:
                    return f.read()
            try:
                wait(lambda: re.search(pattern, log()))
            except AssertionError:
                self.fail(f"{node} wrote no such line as {pattern!r}, but:\n{log()[-6000:]}")

    def test_5_links_and_status(self):
        self.assertRegex(self.c.up.text(), r"LINK +STATE +PATH\nd0 <- p0 +up +\S.* on rail 0 to 0; group 0: packed as f16")
        links = kit.request(self.c.d, "GET", "/links", None).json()["links"]
        self.assertEqual([(x["peer"], x["state"]) for x in links], [("p0", "up")])
        self.assertEqual(kit.request(self.c.p, "GET", "/links", None).json()["links"][0]["peer"], "d0")
        self.assertEqual(self.c.metric(self.c.d, "halyard:kv_links"), 1)
        ini = f"{self.c.up.dir}/c.ini"
        rc, out, _ = run("up", "--status", ini)
        self.assertEqual(rc, 0, out)
        self.assertRegex(out, r"p0 +prefill +up +\d+ +0 .*d0 <- p0 +up .*4 of 4 nodes and links are up".replace(" .*", "[^$]*"))
        # by the cluster file as by the router's address
        rc, out, err = run("trace", ini, "-o", "-")
        self.assertEqual(rc, 0, err)
        self.assertEqual(len(json.loads(out)["otherData"]["nodes"]), 3)
        # p0 dies: the link is lost, and made again without any request
        pid = self.c.up.pids()["p0"]
        os.kill(pid, signal.SIGKILL)
        self.c.up.wait(rf"pid {pid}, .*p0 died")
        self.assertNotRegex(run("up", "--status", ini)[1], r"p0 +prefill +(starting|restarting) [^$]*d0 <- p0 +up ")
        def back():
            rc, out, _ = run("up", "--status", ini)
            return rc == 0 and re.search(r"p0 +prefill +up +\d+ +1 ", out)
        wait(back)
        kit.wait_workers(self.c.router)  # `up` knows it first
        before = self.c.received()
        self.assertEqual(self.c.ask("after the restart").headers["x-halyard-prefill"], "p0")
        self.assertGreater(self.c.received(), before)


class Push(Pull):
    MODE = "push"


class Refused(unittest.TestCase):
    """Nodes whose values differ: told at start, no request goes through the pair, and the pair is used as soon as a
    node has come back with a file that fits."""

    def run_one(self, mode):
        c = Cluster(mode=mode, p_kv="type = f32", both="connector.on_failure=fail")
        try:
            self.assertIn("[node.d0] cannot take KV from [node.p0]: [kv] type is f32 there, f16 here", c.up.text())
            self.assertRegex(c.up.text(), r"d0 <- p0 +refused ")
            pair = 'halyard:router_pairs_refused{worker="d0"}'
            wait(lambda: c.metric(c.router, pair) == 1)
            want = c.text(PROMPT, c.d)
            for _ in range(5):  # on_failure = fail: any that was sent through the pair would be an error
                a = c.ask(PROMPT)
                self.assertEqual((a.status, a.json()["choices"][0]["text"]), (200, want))
                self.assertNotIn("x-halyard-prefill", a.headers)
            self.assertEqual(c.metric(c.p, "vllm:request_success_total"), 0)
            w = [x for x in kit.request(c.router, "GET", "/workers", None).json()["workers"] if x["name"] == "d0"][0]
            self.assertEqual(w["refuses"][0]["peer"], "p0")
            self.assertIn("value", w["refuses"][0]["why"])
            c.set_p("storage = f16")
            os.kill(c.up.pids()["p0"], signal.SIGKILL)
            wait(lambda: c.ask(PROMPT).headers.get("x-halyard-prefill") == "p0", kit.LONG)
            self.assertEqual(c.metric(c.router, pair), 0)
            c.wait_served()
            c.wait_idle()
        finally:
            rc = c.stop()
        self.assertEqual(rc, 0)

    def test_pull(self):
        self.run_one("pull")

    def test_push(self):
        self.run_one("push")


class Secret(unittest.TestCase):
    """A node with another secret: both logs say so, the link is refused, no request goes through the pair, and all
    is well as soon as the node is back with the right one; whether links are made at start or by requests."""

    def run_one(self, mode, d):
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/wrong", "w") as f:
                f.write("another secret, as long as it must be\n")
            os.chmod(f"{folder}/wrong", 0o600)
            c = Cluster(mode=mode, p_kv="storage = f16", p=f"cluster.secret_file={folder}/wrong", d=d)
            try:
                pair = 'halyard:router_pairs_refused{worker="d0"}'
                want = c.text(PROMPT, c.d)
                wait(lambda: c.text(PROMPT) == want and c.metric(c.router, pair) == 1)
                link, = kit.request(c.d, "GET", "/links", None).json()["links"]
                self.assertEqual((link["peer"], link["state"]), ("p0", "refused"))
                self.assertIn("secrets of d0 and p0 differ", link["why"])
                c.wait_idle()  # prefill's part of the first requests may end after decode's
                n = c.metric(c.p, "vllm:request_success_total")
                for _ in range(5):
                    a = c.ask(PROMPT)
                    self.assertEqual((a.status, a.json()["choices"][0]["text"]), (200, want))
                    self.assertNotIn("x-halyard-prefill", a.headers)
                self.assertEqual(c.metric(c.p, "vllm:request_success_total"), n)
                time.sleep(1)  # some more tries to connect
                for node, words in (("d0", "refused p0 at "), ("p0", "refused by d0 at 127.0.0.1:")):
                    with open(f"{c.up.dir}/run/{node}.log") as f:
                        lines = [x for x in f.read().splitlines() if words in x and "secrets of d0 and p0 differ" in x]
                    self.assertEqual(len(lines), 1, lines)
                shutil.copy(f"{c.up.dir}/run/secret", f"{folder}/wrong")
                os.kill(c.up.pids()["p0"], signal.SIGKILL)
                wait(lambda: c.ask(PROMPT).headers.get("x-halyard-prefill") == "p0", kit.LONG)
                self.assertEqual(c.metric(c.router, pair), 0)
                c.wait_served()
                c.wait_idle()
            finally:
                rc = c.stop()
            self.assertEqual(rc, 0)

    def test_pull(self):
        self.run_one("pull", "")

    def test_by_requests(self):
        self.run_one("push", "connector.link=")


class NoAddress(unittest.TestCase):
    """Push, and the router's file does not say where prefill's fabric is, nor its name: the node does."""

    def test_push(self):
        c = Cluster(mode="push", router="peer.p0.addrs=", d="connector.link=", p="node.name=another")
        try:
            self.assertEqual(c.ask("before").status, 200)
            wait(lambda: c.received() > 0 or c.ask(f"again {time.time()}").status != 200)
            before = c.received()
            self.assertEqual(c.ask(PROMPT + " no address").headers["x-halyard-prefill"], "p0")
            self.assertGreater(c.received(), before)
            w = kit.request(c.router, "GET", "/workers", None).json()["workers"]
            self.assertEqual({x["name"]: x["node"] for x in w}, {"p0": "another", "d0": "d0"})
        finally:
            rc = c.stop()
        self.assertEqual(rc, 0)


class Clock(unittest.TestCase):
    """A node of another machine: its clock is placed, and the file says how well."""

    def test_shift(self):
        ahead = 5e6  # its clock shows 5 s more
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                now = time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6 + ahead
                events = [] if "n=0" in self.path else [
                    {"ph": "X", "pid": 1, "tid": 2, "name": "request", "ts": now, "dur": 1, "args": {"request": "x"}}]
                body = json.dumps({"otherData": {"node": "far", "role": "decode", "clock": "another", "now_us": now},
                                   "traceEvents": events}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *a):
                pass
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        t0 = time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6
        rc, out, err = run("trace", f"http://127.0.0.1:{server.server_port}", "-o", "-")
        t1 = time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6
        server.shutdown()
        server.server_close()
        self.assertEqual(rc, 0, err)
        self.assertRegex(err, "far +decode +1 requests, its clock is placed within [0-9.]+ ms")
        page = json.loads(out)
        node = page["otherData"]["nodes"][0]
        self.assertLess(abs(node["clock_shift_us"] + ahead), node["clock_error_us"] + 1)
        e = [e for e in page["traceEvents"] if e["name"] == "request"][0]
        self.assertLess(t0 - node["clock_error_us"] - 1, e["ts"])
        self.assertLess(e["ts"], t1 + node["clock_error_us"] + 1)

    def test_refused(self):
        page = json.dumps({"otherData": {"node": "x", "role": "all", "clock": "y", "now_us": 1},
                           "traceEvents": []}).encode()
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, *a):
                pass
        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        rc, out, err = run("trace", url, "-r", "nosuch", "-o", "-")
        self.assertEqual((rc, out), (1, ""))
        self.assertIn("no request 'nosuch'", err)
        self.assertEqual(run("trace", url, "-o", "-")[0], 0)  # nothing was asked for: nothing is missing
        server.shutdown()
        server.server_close()
        for args, word in (((), "Usage"), (("http://127.0.0.1:1",), "127.0.0.1:1"), (("nowhere.ini",), "nowhere.ini")):
            rc, _, err = run("trace", *args)
            self.assertNotEqual(rc, 0)
            self.assertIn(word, err)


if __name__ == "__main__":
    kit.HALYARD = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=1)
