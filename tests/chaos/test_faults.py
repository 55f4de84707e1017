#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults between real processes, one at a time and exactly where they hurt: a proxy in the fabric's way stops the
world before or after each message of a hand-over. After each fault: no wrong token, nothing left in work, every
block free, and hand-overs work again within RECOVERS seconds. FAULTS.md is the list.
HY_FULL=1: every step with every victim. Usage: test_faults.py HALYARD"""
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from proxy import Middle, Proxy, Stop  # noqa: E402
from tiny import Cluster, free_ports, kit, stop_process  # noqa: E402

FULL = os.environ.get("HY_FULL") == "1"
RECOVERS = 15  # s (FAULTS.md: what was seen)
SEEN = 9  # s: less than any deadline of a load
FABRIC = ("fabric.providers=own, fabric.heartbeat=100ms, fabric.peer_timeout=3s, fabric.connect_timeout=3s, "
          "fabric.stall_timeout=3s, fabric.op_timeout=5s, connector.timeout=12s, connector.lease=6s, connector.grace=300ms, "
          "connector.verify=true")


def fabric_keys():
    """A path that leaves the network out would leave the proxy out."""
    keys = subprocess.run([kit.HALYARD, "config"], capture_output=True, text=True).stdout
    return FABRIC + (", fabric.same_node=false" if re.search("^;?same_node", keys, re.M) else "")


class Asked:
    """A request under way."""

    def __init__(self, c, prompt, **more):
        self.answer, self.error, self.c, self.ended = None, None, c, None
        self.prompt = prompt
        self.thread = threading.Thread(target=self.run, args=(more,))
        self.thread.start()

    def run(self, more):
        try:
            self.answer = self.c.ask(self.prompt, **more)
        except (OSError, EOFError, ValueError) as e:
            self.error = e
        self.ended = time.time()

    def wait(self, timeout=2 * kit.LONG):
        self.thread.join(timeout)
        assert not self.thread.is_alive(), "a request hangs"
        return self.answer


class Faults(unittest.TestCase):
    MODE, broken = "pull", 0

    @classmethod
    def setUpClass(cls):
        ports = free_ports(5)
        cls.proxy = Proxy(ports[3])
        cls.c = Cluster(mode=cls.MODE, advertise=f"127.0.0.1:{cls.proxy.port}", ports=ports, p="kv.blocks=96", d="kv.blocks=48",
                        both=fabric_keys())
        cls.n, cls.slowest = 0, {}

    @classmethod
    def tearDownClass(cls):
        print(f"{cls.MODE}: recovered after at most: " + ", ".join(f"{k} {v:.2f} s" for k, v in sorted(cls.slowest.items())))
        cls.proxy.close()
        assert cls.c.stop() == 0

    def setUp(self):
        self.proxy.hook, self.proxy.middle, self.proxy.rate, self.proxy.flip = None, None, 0, 0
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
        # (renewals and their answers come when they are due, in one hand-over and not in the next)
        order = [x for x in dict.fromkeys(self.proxy.seen) if x[1] not in ("HOLD", "HELD")]
        self.assertIn((">", "GET"), order)
        self.assertIn(("<", "DONE"), order)
        return [(way, name, before) for way, name in order for before in (True, False)]

    def kill_at(self, what, victim, reach, go, prompt=None):
        """reach() returns once the world stands still at the step; the victim dies there; go() lets go."""
        with self.subTest(step=what, victim=victim):
            asked = Asked(self.c, prompt or self.prompt())
            reach()
            pid = self.c.up.pids()[victim]
            os.kill(pid, signal.SIGKILL)
            go()
            self.c.up.wait(rf"pid {pid}, .*{victim} died.*{victim} \(\w+\) is up", 60)
            up = time.time()
            self.check(asked, victim != "p0")
            # A death is noticed: no deadline has to end it. (Who was promised nothing yet may wait for the node, which
            # the supervisor starts later from death to death.)
            self.assertLess(asked.ended, up + SEEN)
            self.recovered(f"kill {victim}")

    def test_kill_at_each_step(self):
        """Before and after each message, and when half of the KV has passed."""
        victims = ("p0", "d0", "router")
        steps = self.steps()
        for i, (way, name, before) in enumerate(steps):
            for victim in victims if FULL else (victims[i % 3],):
                stop = Stop(self.proxy, way, name, before)
                self.kill_at(f"{'before' if before else 'after'} {way}{name}", victim,
                             lambda: self.assertTrue(stop.reached.wait(kit.LONG), "the step was not reached"), stop.go)
        for victim in victims:
            middle = Middle(self.proxy)
            self.kill_at("mid-read", victim, lambda: self.assertTrue(middle.reached.wait(kit.LONG)), middle.go, self.prompt(30))

    def test_kill_while_a_node_works(self):
        """No message is under way: prefill computes (it is stopped, so that it does when the victim dies), or decode
        has the request and has said nothing yet."""
        for worker, victims in (("p0", ("p0", "router", "d0")), ("d0", ("d0", "router", "p0"))):
            for victim in victims:
                pid = self.c.up.pids()[worker]
                stop_process(pid)

                def reach():
                    end = time.time() + kit.LONG
                    while not any(w["name"] == worker and w["active"] for w in
                                  kit.request(self.c.router, "GET", "/workers", None).json()["workers"]):
                        self.assertLess(time.time(), end)
                        time.sleep(0.005)

                def go():
                    try:
                        os.kill(pid, signal.SIGCONT)
                    except ProcessLookupError:
                        pass
                self.kill_at(f"{worker} works", victim, reach, go)

    def test_decode_dies_in_a_stream(self):
        """Whole events, the right text up to there, then an error event; no [DONE], and never silence."""
        for i in range(20):
            if i >= 2 and self.broken:
                break
            prompt = self.prompt()
            pid = self.c.up.pids()["d0"]
            with kit.connect(self.c.router) as s:
                s.sendall(kit.make("POST", "/v1/completions", {"model": "tiny", "prompt": prompt, "max_tokens": 400,
                                                               "temperature": 0, "ignore_eos": True, "stream": True}))
                s.recv(1, socket.MSG_PEEK)
                stop_process(pid)
                os.kill(pid, signal.SIGKILL)
                with s.makefile("rb") as f:
                    a = kit.Answer(f)
            self.assertTrue(a.whole)
            events = a.events()
            text = "".join(json.loads(e)["choices"][0]["text"] for e in events[:-1])
            right = self.right(prompt, max_tokens=400)
            if events[-1] == "[DONE]":  # the tiny model is quick
                self.assertEqual(text, right)
            else:
                self.assertIn("lost", json.loads(events[-1])["error"]["message"])
                self.assertNotIn("[DONE]", events)
                self.assertTrue(right.startswith(text.rstrip("\ufffd")))
                self.broken += 1
            self.c.up.wait(rf"pid {pid}, .*d0 died.*d0 \(\w+\) is up", 60)
            self.recovered("kill d0")
        self.assertGreater(self.broken, 0)

    def test_partition_without_a_reset(self):
        """Packets are lost, connections stay: in the middle of a hand-over, and before one."""
        for way, name, before in ((">", "GET", False), ("<", "DONE", True)):
            stop = Stop(self.proxy, way, name, before)
            asked = Asked(self.c, self.prompt())
            self.assertTrue(stop.reached.wait(kit.LONG))
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
        self.assertTrue(stop.reached.wait(kit.LONG))
        self.proxy.cut()
        stop.go()
        t0 = time.time()
        self.check(asked, False)
        self.assertLess(time.time() - t0, SEEN)
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
        """On the wire: sequence numbers sort them out, and the link lives."""
        self.c.wait_served(RECOVERS)
        failed = self.c.metric(self.c.d, "halyard:kv_transfer_failed_total")
        self.proxy.hook = lambda way, name, frame: [frame, frame]
        for _ in range(4):
            before = self.c.received()
            self.check(Asked(self.c, self.prompt()), False)
            self.assertGreater(self.c.received(), before)
        self.proxy.hook = None
        self.assertEqual(self.c.metric(self.c.d, "halyard:kv_transfer_failed_total"), failed)
        self.recovered("duplicates")

    def test_completion_comes_late(self):
        """After decode has given the load up: it is a no-op, and what came is not used."""
        stop = Stop(self.proxy, "<", "DONE", True)
        asked = Asked(self.c, self.prompt())
        self.assertTrue(stop.reached.wait(kit.LONG))
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
        self.assertTrue(stop.reached.wait(kit.LONG))
        end = time.time() + kit.LONG
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
            end = time.time() + kit.LONG
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
            got = a.wait(6 * kit.LONG)
            self.assertIsNotNone(got, a.error)
            self.assertEqual(got.status, 200, got.body)
        for a in asked:
            self.assertEqual(a.answer.json()["choices"][0]["text"], self.right(a.prompt, max_tokens=40))
        self.recovered("full nodes")

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


class FaultsPush(Faults):
    """Decode's order is there before prefill has the prompt; layers go while it is computed."""
    MODE = "push"


def listening(pid):
    """Every TCP port that a process listens on, whoever opened it."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            m = re.match(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            continue
        if m:
            inodes.add(m[1])
    ports = set()
    for name in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{name}") as f:
            for line in f.readlines()[1:]:
                x = line.split()
                if x[3] == "0A" and x[9] in inodes:
                    ports.add(int(x[1].rsplit(":", 1)[1], 16))
    return ports


class Ports(unittest.TestCase):
    """Short, oversized, foreign and random bytes, and silence, to every port that any process listens on: counted and
    refused, and nobody else notices."""
    PROVIDER, N_PORTS = "own", 5  # three of HTTP, two of the fabric

    @classmethod
    def setUpClass(cls):
        cls.c = Cluster(both=fabric_keys().replace("providers=own", f"providers={cls.PROVIDER}") +
                        ", kv.blocks=96, http.header_timeout=1s", router="http.header_timeout=1s")

    @classmethod
    def tearDownClass(cls):
        assert cls.c.stop() == 0

    def garbage(self, rng):
        head = b"HYFB" + struct.pack("<BBHIIQQ", 1, 1, 0, 64, 0, 0, 0)
        bad = [b"", b"\0", b"HYFB", head, head[:4] + b"\x63" + head[5:], head[:8] + b"\xff\xff\xff\x7f" + head[12:],
               head + bytes(64), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"A" * 200000,
               b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 20000,
               b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
               b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n{{{{{",
               b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
               b"POST /v1/kv/release HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n[]"]
        for kind in range(12):  # frames of every kind, right but for what they say
            bad.append(head[:5] + bytes([kind]) + head[6:] + bytes(rng.randrange(256) for _ in range(64)))
        return bad + [bytes(rng.randrange(256) for _ in range(rng.choice([1, 31, 32, 33, 500]))) for _ in range(12)]

    def test_every_port(self):
        self.c.wait_served()
        self.c.wait_idle()
        pids = dict(self.c.up.pids())
        ports = {p: n for n, pid in pids.items() for p in listening(pid)}
        self.assertGreaterEqual(len(ports), self.N_PORTS, ports)
        for p in (self.c.router, self.c.p, self.c.d, self.c.fp, self.c.fd):
            self.assertIn(p, ports)
        fds = {n: kit.n_fds(pid) for n, pid in pids.items()}
        rng = random.Random(7)
        for _ in range(2):
            running = [Asked(self.c, f"while rubbish comes {rng.random()}") for _ in range(3)]
            held = []
            for port in ports:
                for data in self.garbage(rng):
                    try:
                        s = socket.create_connection(("127.0.0.1", port), 5)
                        held.append(s)
                        s.sendall(data)
                        if rng.random() < 0.5:
                            s.shutdown(socket.SHUT_WR)
                    except OSError:
                        pass  # it hung up already
            for a in running:
                got = a.wait()
                self.assertEqual(got and got.status, 200, (a.error, got and got.body))
                self.assertEqual(got.json()["choices"][0]["text"], self.c.text(a.prompt, self.c.p))
            self.c.wait_served(RECOVERS)  # while all of them are still open
            for s in held:
                s.close()
        self.c.wait_idle(RECOVERS)
        self.assertEqual(self.c.up.pids(), pids)
        end = time.time() + RECOVERS
        while True:
            left = {n: kit.n_fds(pid) - fds[n] for n, pid in pids.items()}
            if all(x <= 30 for x in left.values()):  # checks come and go; 90 of ours came to each port
                break
            self.assertLess(time.time(), end, left)
            time.sleep(0.05)

    def test_silence(self):
        """Connections that say nothing, or stop in the middle of a head, are closed by the other side in time."""
        ports = {p for pid in self.c.up.pids().values() for p in listening(pid)}
        for first in (b"", b"HYFB", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Le"):
            for port in ports & {self.c.fp, self.c.fd} if not first else ports:
                with socket.create_connection(("127.0.0.1", port), 5) as s:
                    s.settimeout(RECOVERS)
                    s.sendall(first)
                    if port not in (self.c.router, self.c.p, self.c.d, self.c.fp, self.c.fd):
                        continue  # the provider's own: nothing to promise, but that it lives
                    try:
                        while s.recv(4096):
                            pass
                    except ConnectionError:
                        pass
        self.c.wait_served(RECOVERS)
        self.c.wait_idle()


class PortsTcp(Ports):
    """libfabric's provider opens ports of its own."""
    PROVIDER, N_PORTS = "tcp", 6


class Descriptors(unittest.TestCase):
    """What the system allows each process: open files, and their size."""

    def cluster(self, limit, both):
        with tempfile.TemporaryDirectory() as d:
            real, kit.HALYARD = kit.HALYARD, f"{d}/halyard"
            with open(kit.HALYARD, "w") as f:
                f.write(f'#!/bin/sh\nulimit {limit}\nexec {real} "$@"\n')
            os.chmod(kit.HALYARD, 0o755)
            try:
                return Cluster(both=both)
            finally:
                kit.HALYARD = real

    def test_file_size(self):
        """No file may grow beyond 1 MB (logs, memory that readers map): all goes on without."""
        c = self.cluster("-f 1000", "kv.blocks=96")
        try:
            c.wait_served()
        finally:
            rc = c.stop()
        self.assertEqual(rc, 0)

    def test_flood(self):
        """No process may open more than 64 files: who floods a port costs others time, but nobody his life, and
        afterwards all is as before."""
        c = self.cluster("-n 64", fabric_keys() + ", kv.blocks=96")
        try:
            c.wait_served()
            pids = dict(c.up.pids())
            for port in (c.router, c.p, c.d, c.fp, c.fd):
                held = []
                for _ in range(100):
                    try:
                        held.append(socket.create_connection(("127.0.0.1", port), 1))
                    except OSError:
                        break
                time.sleep(0.3)
                for s in held:
                    s.close()
                c.wait_served(RECOVERS)
            c.wait_idle(RECOVERS)
            self.assertEqual(c.up.pids(), pids)
        finally:
            rc = c.stop()
        self.assertEqual(rc, 0)


if __name__ == "__main__":
    kit.HALYARD = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=1)
