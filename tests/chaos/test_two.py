#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two decode nodes and one prefill node, two prefill nodes and one decode node: one of the two stands still or dies at
each point of a request, and the other one's requests must not notice. What is asserted of both is below: who asks the
other is answered within FAST, who is at the victim hears within TOLD, prefill's blocks are free within the lease and
SLACK while the victim still stands, and it serves again when it goes on. Usage: test_two.py HALYARD [TEST...]"""
import json
import os
import random
import signal
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from proxy import Hold, Proxy  # noqa: E402
from test_faults import Asked, fabric_keys  # noqa: E402
from tiny import Cluster, free_ports, kit, stop_process  # noqa: E402

FAST = 10   # s: a request through nodes that are well, 0.1 s where nothing else runs; who waits for the victim waits longer
TOLD = 30   # s: [router] down_after x (health_timeout + health_interval) = 12.3 s, and what it takes elsewhere then
LEASE = 6   # s: fabric_keys
SLACK = 10  # s: a busy machine


class Two(unittest.TestCase):
    MODE, MORE = "pull", ()

    @classmethod
    def setUpClass(cls):
        ports = free_ports(5)
        cls.proxy = Proxy(ports[3])
        cls.c = Cluster(mode=cls.MODE, advertise=f"127.0.0.1:{cls.proxy.port}", ports=ports, both=fabric_keys(), more=cls.MORE,
                        router="router.health_timeout=4s")
        cls.n, cls.most = 0, {"others": 0, "told": 0, "kept": 0}

    @classmethod
    def tearDownClass(cls):
        print(f"{cls.__name__}: at most " + ", ".join(f"{k} {v:.2f} s" for k, v in cls.most.items()))
        cls.proxy.close()
        assert cls.c.stop() == 0

    def setUp(self):
        self.proxy.hook = self.proxy.middle = None

    def within(self, what, took, bound):
        self.most[what] = max(took, self.most[what])
        self.assertLess(took, bound)

    def prompt(self, words=30):
        type(self).n += 1
        r = random.Random(self.n)
        return f"{self.n}: " + " ".join(r.choice(["sea", "ship", "wind", "stone", "rope"]) for _ in range(words))

    def workers(self):
        return {w["name"]: w for w in kit.request(self.c.router, "GET", "/workers", None).json()["workers"]}

    def wait(self, what, timeout=kit.LONG):
        end = time.time() + timeout
        while not (got := what()):
            self.assertLess(time.time(), end)
            time.sleep(0.01)
        return got

    def at_work(self, kind):
        """The one node of a kind that has a request."""
        def look():
            got = [n for n, w in self.workers().items() if n[0] == kind and w["active"]]
            return got[0] if len(got) == 1 else None
        return self.wait(look)

    def right(self, prompt, **more):
        """What the other node of the kind says by itself."""
        return self.c.text(prompt, self.sound, **more)

    def others_are_well(self, head, name, sig):
        """Six requests one after another, each right and at once, by the other node (one that was killed may be back)."""
        for _ in range(6):
            prompt, t0 = self.prompt(), time.time()
            a = self.c.ask(prompt)
            self.within("others", time.time() - t0, FAST)
            self.assertEqual(a.status, 200, a.body)
            if sig == signal.SIGSTOP:
                self.assertEqual(a.headers.get(head), name)
            self.assertEqual(a.json()["choices"][0]["text"], self.right(prompt))

    def hears(self, asked, since):
        """A right answer of the other node, or an error that says why; in time."""
        a = asked.wait(2 * TOLD)
        self.within("told", asked.ended - since, TOLD)
        self.assertIsNotNone(a, asked.error)
        if a.status == 200:
            self.assertEqual(a.json()["choices"][0]["text"], self.right(asked.prompt))
        else:
            self.assertIn(a.status, (502, 503))
            self.assertRegex(a.json()["error"]["message"], "lost|reached|silent|not answer")

    def nothing_kept(self, since, *nodes):
        """No lease and no leased block, at the nodes that do not stand still."""
        def free():
            return not any(self.c.metric(self.c.port[n], m) for n in nodes for m in
                           ("halyard:kv_leases", "halyard:kv_leased_blocks", "vllm:kv_cache_usage_perc"))
        self.wait(free, LEASE + SLACK)
        self.within("kept", time.time() - since, TOLD + LEASE + SLACK)

    def hurt(self, victim, sig):
        self.pid = self.c.up.pids()[victim]
        if sig == signal.SIGSTOP:
            stop_process(self.pid)
        else:
            os.kill(self.pid, sig)

    def heals(self, victim, sig):
        """It is back, and each node of its kind serves again through a hand-over."""
        if sig == signal.SIGSTOP:
            os.kill(self.pid, signal.SIGCONT)
        else:
            self.c.up.wait(rf"pid {self.pid}, .*{victim} died.*{victim} \(\w+\) is up", 60)
        kit.wait_workers(self.c.router)
        head = "x-halyard-worker" if victim[0] == "d" else "x-halyard-prefill"
        seen, end = set(), time.time() + TOLD
        while seen != {victim[0] + "0", victim[0] + "1"}:
            self.assertLess(time.time(), end, seen)
            before, prompt = self.c.received(), self.prompt()
            a = self.c.ask(prompt)
            self.assertEqual(a.status, 200, a.body)
            self.assertEqual(a.json()["choices"][0]["text"], self.right(prompt))
            if self.c.received() > before and "x-halyard-prefill" in a.headers:
                seen.add(a.headers[head])
        self.c.wait_idle()


class Decode(Two):
    """One of two decode nodes."""
    MORE = ("d1",)

    def other(self, victim):
        return "d1" if victim == "d0" else "d0"

    def one(self, what, sig, reach, go):
        """reach() begins a request and stops the world in its hand-over, go() lets it go on; what else goes is at the
        other node."""
        with self.subTest(at=what, sig=sig.name):
            self.sound = self.c.p
            self.c.wait_idle()
            asked = reach()
            victim = self.at_work("d")
            self.hurt(victim, sig)
            since = time.time()
            go()
            self.sound = self.c.port[self.other(victim)]
            self.others_are_well("x-halyard-worker", self.other(victim), sig)
            self.hears(asked, since)
            self.nothing_kept(since, "p0", self.other(victim))
            self.heals(victim, sig)

    def test_in_a_hand_over(self):
        """Before its order, when half of the KV is there, before the end of it is told."""
        for way, name in ((">", "GET"), ("<", "data"), ("<", "DONE")):
            for sig in (signal.SIGSTOP, signal.SIGKILL):
                hold = Hold(self.proxy, way, name)

                def reach():
                    asked = Asked(self.c, self.prompt())
                    self.assertTrue(hold.reached.wait(kit.LONG), "the step was not reached")
                    return asked
                self.one(f"{way}{name}", sig, reach, hold.go)

    def test_before_it_has_the_request(self):
        """It stands still and nobody knows: of two requests one goes there."""
        for sig in (signal.SIGSTOP, signal.SIGKILL):
            with self.subTest(sig=sig.name):
                self.c.wait_idle()
                victim, self.sound = "d0", self.c.port["d1"]
                self.hurt(victim, signal.SIGSTOP)
                since = time.time()
                asked = [Asked(self.c, self.prompt()) for _ in range(2)]
                self.wait(lambda: self.workers()["d0"]["active"] == 1)
                if sig == signal.SIGKILL:
                    os.kill(self.pid, sig)
                self.others_are_well("x-halyard-worker", "d1", sig)
                for a in asked:
                    self.hears(a, since)
                self.nothing_kept(since, "p0", "d1")
                self.heals(victim, sig)

    def stream(self, sig):
        """The stream that was cut; None: the tiny model was done before."""
        prompt = self.prompt(12)
        with kit.connect(self.c.router) as s:
            s.sendall(kit.make("POST", "/v1/completions", {"model": "tiny", "prompt": prompt, "max_tokens": 400,
                                                           "temperature": 0, "ignore_eos": True, "stream": True}))
            with s.makefile("rb") as f:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += f.readline()
                victim = head.decode().lower().split("x-halyard-worker: ")[1][:2]
                self.hurt(victim, sig)
                since = time.time()
                self.sound = self.c.port[self.other(victim)]
                self.others_are_well("x-halyard-worker", self.other(victim), sig)
                body, whole = b"", False
                while (line := f.readline()):
                    n = int(line, 16)
                    body += f.read(n)
                    f.read(2)
                    whole = n == 0
                    if whole:
                        break
        self.within("told", time.time() - since, TOLD)
        events = [e[6:] for e in body.decode().split("\n\n") if e]
        self.assertTrue(whole)
        text = "".join(json.loads(e)["choices"][0]["text"] for e in events[:-1])
        right = self.right(prompt, max_tokens=400)
        done = events[-1] == "[DONE]"
        if done:
            self.assertEqual(text, right)
        else:
            self.assertRegex(json.loads(events[-1])["error"]["message"], "silent|lost")
            self.assertNotIn("[DONE]", events)
            self.assertTrue(right.startswith(text.rstrip("\ufffd")))
        self.nothing_kept(since, "p0", self.other(victim))
        self.heals(victim, sig)
        return None if done else text

    def test_in_a_stream(self):
        """Whole events and right up to there, then an error; no [DONE], and never silence."""
        for sig in (signal.SIGSTOP, signal.SIGKILL):
            for _ in range(20):
                self.c.wait_idle()
                if self.stream(sig) is not None:
                    break
            else:
                self.fail("no stream was cut")


class DecodePush(Decode):
    """Decode's order is there before prefill has the prompt."""
    MODE = "push"


class Prefill(Two):
    """One of two prefill nodes."""
    MORE = ("p1",)

    def one(self, what, sig, reach, go):
        with self.subTest(at=what, sig=sig.name):
            self.sound = self.c.d
            self.c.wait_idle()
            asked = reach()
            self.hurt("p0", sig)
            since = time.time()
            go()
            # p0 may be picked until the router has seen that it is silent: who is sent there hears as late as the first
            self.sound = self.c.port["p1"]
            more = [Asked(self.c, self.prompt()) for _ in range(4)]
            for a in [asked, *more]:
                self.hears(a, since)
                self.assertEqual(a.answer.status, 200, a.answer.body)  # decode computes it, or p1 has
            self.wait(lambda: self.workers()["p0"]["state"] == "down" or sig == signal.SIGKILL)
            if sig == signal.SIGSTOP:
                self.others_are_well("x-halyard-prefill", "p1", sig)
            self.nothing_kept(since, "p1", "d0")
            self.heals("p0", sig)

    def test_in_a_hand_over(self):
        for way, name in ((">", "GET"), ("<", "data"), ("<", "DONE")):
            for sig in (signal.SIGSTOP, signal.SIGKILL):
                hold = Hold(self.proxy, way, name)

                def reach():
                    for _ in range(4):  # the proxy stands before p0: every second one goes there
                        asked = Asked(self.c, self.prompt())
                        if hold.reached.wait(1) and not asked.ended:
                            return asked
                        asked.wait()
                    self.fail("the step was not reached")
                self.one(f"{way}{name}", sig, reach, hold.go)

    def test_before_it_has_the_request(self):
        for sig in (signal.SIGSTOP, signal.SIGKILL):
            def reach():
                self.hurt("p0", signal.SIGSTOP)
                asked = [Asked(self.c, self.prompt()) for _ in range(2)]
                self.wait(lambda: self.workers()["p0"]["active"] == 1)
                self.wait(lambda: any(a.ended for a in asked))
                return next((a for a in asked if not a.ended), asked[0])
            self.one("before", sig, reach, lambda: None)


class PrefillPush(Prefill):
    MODE = "push"


if __name__ == "__main__":
    kit.HALYARD = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=1)
