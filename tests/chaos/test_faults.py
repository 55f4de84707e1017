#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults between real processes, one at a time and exactly where they hurt: a proxy in the fabric's way stops the
world before or after each message of a hand-over. After each fault: no wrong token, nothing left in work, every
block free, and hand-overs work again within RECOVERS seconds. FAULTS.md is the list.
HY_FULL=1: every step with every victim. Usage: test_faults.py HALYARD"""
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from proxy import Proxy, Stop  # noqa: E402
from tiny import Cluster, free_ports, kit, stop_process  # noqa: E402

FULL = os.environ.get("HY_FULL") == "1"
RECOVERS = 15  # s (FAULTS.md: what was seen)
FABRIC = ("fabric.providers=own, fabric.heartbeat=100ms, fabric.peer_timeout=1s, fabric.connect_timeout=1s, "
          "fabric.stall_timeout=1s, fabric.op_timeout=3s, connector.timeout=3s, connector.lease=4s, connector.grace=300ms, "
          "connector.verify=true")


def fabric_keys():
    """A path that leaves the network out would leave the proxy out."""
    keys = subprocess.run([kit.HALYARD, "config"], capture_output=True, text=True).stdout
    return FABRIC + (", fabric.same_node=false" if re.search("^;?same_node", keys, re.M) else "")


class Asked:
    """A request under way."""

    def __init__(self, c, prompt, **more):
        self.answer, self.error, self.c = None, None, c
        self.prompt = prompt
        self.thread = threading.Thread(target=self.run, args=(more,))
        self.thread.start()

    def run(self, more):
        try:
            self.answer = self.c.ask(self.prompt, **more)
        except (OSError, EOFError, ValueError) as e:
            self.error = e

    def wait(self, timeout=30):
        self.thread.join(timeout)
        assert not self.thread.is_alive(), "a request hangs"
        return self.answer


class Faults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        ports = free_ports(5)
        cls.proxy = Proxy(ports[3])
        cls.c = Cluster(advertise=f"127.0.0.1:{cls.proxy.port}", ports=ports, p="kv.blocks=96", d="kv.blocks=48",
                        both=fabric_keys())
        cls.n, cls.slowest = 0, {}

    @classmethod
    def tearDownClass(cls):
        print("recovered after at most: " + ", ".join(f"{k} {v:.2f} s" for k, v in sorted(cls.slowest.items())))
        cls.proxy.close()
        assert cls.c.stop() == 0

    def setUp(self):
        self.proxy.hook, self.proxy.rate, self.proxy.flip = None, 0, 0
        self.proxy.hole.clear()

    def prompt(self, words=12):
        type(self).n += 1
        r = random.Random(self.n)
        return f"{self.n}: " + " ".join(r.choice(["sea", "ship", "wind", "stone", "rope"]) for _ in range(words))

    def right(self, prompt, **more):
        return self.c.text(prompt, self.c.p, **more)

    def recovered(self, what):
        """Nothing is left of it, and the next hand-over works."""
        t0 = time.time()
        self.c.wait_served(RECOVERS)
        self.c.wait_idle(RECOVERS)
        took = time.time() - t0
        cls = type(self)
        cls.slowest[what] = max(took, cls.slowest.get(what, 0))

    def check(self, asked, may_fail):
        """A complete answer is right; else it is an error that says so."""
        a = asked.wait()
        if a is not None and a.status == 200:
            self.assertEqual(a.json()["choices"][0]["text"], self.right(asked.prompt))
        else:
            self.assertTrue(may_fail, (asked.error, a and a.body))
            if a is not None:
                self.assertIn(a.status, (502, 503))
                self.assertRegex(a.json()["error"]["message"], "lost|reached|No worker|not answer|silent")

    def grows(self, port, age):
        """An age is of now, not of the last time that something happened."""
        first = self.c.metric(port, age)
        time.sleep(0.1)
        self.assertGreaterEqual(self.c.metric(port, age), first + 0.09)

    def steps(self):
        """Before and after each message of a hand-over, as one is seen to go."""
        self.c.wait_served(RECOVERS)
        self.c.wait_idle()
        del self.proxy.seen[:]
        self.c.wait_served(RECOVERS)
        self.c.wait_idle()
        order = list(dict.fromkeys(self.proxy.seen))
        self.assertIn((">", "GET"), order)
        self.assertIn(("<", "DONE"), order)
        return [(way, name, before) for way, name in order for before in (True, False)]

    def test_kill_at_each_step(self):
        victims = ("p0", "d0", "router")
        for i, (way, name, before) in enumerate(self.steps()):
            for victim in victims if FULL else (victims[i % 3],):
                with self.subTest(step=f"{'before' if before else 'after'} {way}{name}", victim=victim):
                    stop = Stop(self.proxy, way, name, before)
                    asked = Asked(self.c, self.prompt())
                    self.assertTrue(stop.reached.wait(20), "the step was not reached")
                    pid = self.c.up.pids()[victim]
                    os.kill(pid, signal.SIGKILL)
                    stop.go()
                    self.c.up.wait(rf"pid {pid}, .*{victim} died.*{victim} \(\w+\) is up", 60)
                    self.check(asked, victim != "p0")
                    self.recovered(f"kill {victim}")

    def test_partition_without_a_reset(self):
        """Packets are lost, connections stay: in the middle of a hand-over, and before one."""
        for way, name, before in ((">", "GET", False), ("<", "DONE", True)):
            stop = Stop(self.proxy, way, name, before)
            asked = Asked(self.c, self.prompt())
            self.assertTrue(stop.reached.wait(20))
            self.proxy.hole.set()
            t0 = time.time()
            self.check(asked, False)  # decode computes it itself, before the way is open again
            self.assertLess(time.time() - t0, RECOVERS)
            stop.go()
            self.recovered("partition")
        self.proxy.hole.set()
        asked = [Asked(self.c, self.prompt()) for _ in range(3)]
        for a in asked:
            self.check(a, False)
        self.proxy.hole.clear()
        self.recovered("partition")

    def test_connections_are_reset(self):
        stop = Stop(self.proxy, ">", "GET", False)
        asked = Asked(self.c, self.prompt())
        self.assertTrue(stop.reached.wait(20))
        self.proxy.cut()
        stop.go()
        self.check(asked, False)
        self.recovered("reset")

    def test_slow_link(self):
        self.proxy.rate = 200000
        asked = [Asked(self.c, self.prompt(40)) for _ in range(6)]
        for a in asked:
            self.check(a, False)
        self.proxy.rate = 0
        self.recovered("slow link")

    def test_corrupted_bytes(self):
        before = self.c.metric(self.c.d, "halyard:kv_transfer_corrupt_total")
        for _ in range(2):
            self.proxy.flip = 1
            self.check(Asked(self.c, self.prompt(30)), False)
            self.assertEqual(self.proxy.flip, 0)
        self.assertEqual(self.c.metric(self.c.d, "halyard:kv_transfer_corrupt_total"), before + 2)
        self.recovered("corruption")

    def test_every_message_twice(self):
        """On the wire: sequence numbers sort them out."""
        self.proxy.hook = lambda way, name, frame: [frame, frame]
        for _ in range(4):
            self.check(Asked(self.c, self.prompt()), False)
        self.proxy.hook = None
        self.recovered("duplicates")

    def test_completion_comes_late(self):
        """After decode has given the load up: it is a no-op, and what came is not used."""
        stop = Stop(self.proxy, "<", "DONE", True)
        asked = Asked(self.c, self.prompt())
        self.assertTrue(stop.reached.wait(20))
        self.assertEqual(self.c.metric(self.c.d, "halyard:kv_loads"), 1)
        self.grows(self.c.d, "halyard:kv_load_oldest_seconds")
        failed = self.c.metric(self.c.d, "halyard:kv_transfer_failed_total")
        self.check(asked, False)  # its deadline, or the silence of the peer, ended the load
        self.assertEqual(self.c.metric(self.c.d, "halyard:kv_transfer_failed_total"), failed + 1)
        self.assertEqual(self.c.metric(self.c.d, "halyard:kv_load_oldest_seconds"), 0)
        stop.go()
        self.recovered("late completion")

    def test_lease_expires_before_the_read(self):
        expired = self.c.metric(self.c.p, "halyard:kv_leases_expired_total")
        stop = Stop(self.proxy, ">", "GET", True)  # neither the order nor renewals get through
        asked = Asked(self.c, self.prompt())
        self.assertTrue(stop.reached.wait(20))
        end = time.time() + 20
        while self.c.metric(self.c.p, "halyard:kv_leases_expired_total") == expired:
            self.assertLess(time.time(), end)
            time.sleep(0.02)
        self.assertEqual(self.c.metric(self.c.p, "halyard:kv_leases"), 0)
        stop.go()
        self.check(asked, False)
        self.recovered("lease expiry")

    def test_client_gone_between_the_nodes(self):
        """Prefill is done, decode (stopped) has not answered: the router gives the lease back."""
        pid = self.c.up.pids()["d0"]
        stop_process(pid)
        try:
            s = kit.connect(self.c.router)
            s.sendall(kit.make("POST", "/v1/completions", {"model": "tiny", "prompt": self.prompt(), "max_tokens": 4}))
            end = time.time() + 10
            while self.c.metric(self.c.p, "halyard:kv_leases") == 0:
                self.assertLess(time.time(), end)
                time.sleep(0.01)
            expired = self.c.metric(self.c.p, "halyard:kv_leases_expired_total")
            self.assertGreater(self.c.metric(self.c.p, "halyard:kv_leased_blocks"), 0)
            self.grows(self.c.p, "halyard:kv_lease_oldest_seconds")
            s.close()
            while self.c.metric(self.c.p, "halyard:kv_leases") != 0:
                self.assertLess(time.time(), end)
                time.sleep(0.01)
            self.assertEqual(self.c.metric(self.c.p, "halyard:kv_leases_expired_total"), expired)
        finally:
            os.kill(pid, signal.SIGCONT)
        self.recovered("client gone")

    def test_both_full(self):
        """More tokens than either node has blocks for: requests wait, their leases are renewed, none fails."""
        asked = [Asked(self.c, self.prompt(70), max_tokens=40) for _ in range(16)]
        for a in asked:
            got = a.wait(120)
            self.assertIsNotNone(got, a.error)
            self.assertEqual(got.status, 200, got.body)
        for a in asked:
            self.assertEqual(a.answer.json()["choices"][0]["text"], self.right(a.prompt, max_tokens=40))
        self.recovered("full nodes")

    def test_malformed_to_every_port(self):
        """Short, oversized, foreign and random: counted and refused, and nobody else notices."""
        pids = dict(self.c.up.pids())
        rng = random.Random(7)
        head = b"HYFB" + struct.pack("<BBHIIQQ", 1, 1, 0, 64, 0, 0, 0)
        bad = [b"", b"\0", b"HYFB", head, head[:4] + b"\x63" + head[5:], head[:8] + b"\xff\xff\xff\x7f" + head[12:],
               head + bytes(64), b"GET / HTTP/1.1\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
               b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n{{{{{", b"\x16\x03\x01\x02\x00\x01\x00",
               b"POST /v1/kv/release HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n[]", b"A" * 200000]
        bad += [bytes(rng.randrange(256) for _ in range(rng.choice([1, 31, 32, 33, 500]))) for _ in range(12)]
        running = [Asked(self.c, self.prompt()) for _ in range(3)]
        for port in (self.c.router, self.c.p, self.c.d, self.c.fp, self.c.fd):
            held = []
            for data in bad:
                s = socket.create_connection(("127.0.0.1", port), 5)
                try:
                    s.sendall(data)
                    if rng.random() < 0.5:
                        s.shutdown(socket.SHUT_WR)
                except OSError:
                    pass  # it hung up already
                held.append(s)
            for s in held:
                s.close()
        for a in running:
            self.check(a, False)
        self.recovered("malformed")
        self.assertEqual(self.c.up.pids(), pids)

    def test_kv_params_of_every_kind(self):
        """References that name nothing, in every form, straight to decode: computed there."""
        p = self.prompt()
        want = self.right(p)
        good = self.c.ask(p, self.c.p, kv_transfer_params={"do_remote_decode": True}, max_tokens=1)
        params = good.json()["kv_transfer_params"]
        own = params["halyard"]
        for k, v in (("v", 99), ("v", "1"), ("epoch", "0" * 16), ("epoch", 5), ("lease", "f" * 16), ("lease", None),
                     ("addrs", "x" * 500), ("addrs", "127.0.0.1:1"), ("node", ""), ("tokens", -1), ("tokens", 10**9),
                     ("prompt", "00"), ("prompt", "0" * 64), ("first", {"id": -1})):
            bad = {**params, "halyard": {**own, k: v}}
            a = self.c.ask(p, self.c.d, kv_transfer_params=bad)
            self.assertEqual((a.status, a.status == 200 and a.json()["choices"][0]["text"]), (200, want), (k, v, a.body))
        self.recovered("bad references")


if __name__ == "__main__":
    kit.HALYARD = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=1)
