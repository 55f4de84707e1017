#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Nodes whose clocks disagree: wall clocks an hour apart either way, also set while a hand-over is under way, and
monotonic clocks that began hours apart, as on any two machines. Leases last as long as they say, deadlines come when
they should, tokens are right. Usage: test_skew.py HALYARD SKEW_LIBRARY"""
import os
import re
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time
import unittest
from datetime import datetime, timezone

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tiny import Cluster, kit, stop_process  # noqa: E402

HOUR = 3600
AHEAD = {"router": (0, 30 * HOUR), "p0": (HOUR, 2 * HOUR), "d0": (-HOUR, 100)}  # wall, monotonic; s
LEASE, TIMEOUT = 2.0, 5.0
KEYS = (f"connector.lease={LEASE:.0f}s, connector.timeout={TIMEOUT:.0f}s, connector.grace=300ms, fabric.heartbeat=100ms, "
        "fabric.peer_timeout=10s")
SLACK = 20  # s: a busy machine


class Skew(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.mkdtemp(prefix="hy-skew-")
        for name in AHEAD:
            cls.set_wall(name)
        old = dict(os.environ)
        os.environ.update(LD_PRELOAD=LIBRARY, HY_SKEW=cls.dir)
        os.environ["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
        try:
            cls.c = Cluster(both=KEYS)
        finally:
            os.environ.clear()
            os.environ.update(old)

    @classmethod
    def tearDownClass(cls):
        rc = cls.c.stop()
        shutil.rmtree(cls.dir)
        assert rc == 0, rc

    @classmethod
    def set_wall(cls, name, more=0):
        wall, mono = AHEAD[name]
        with open(f"{cls.dir}/{name}", "r+b" if os.path.exists(f"{cls.dir}/{name}") else "wb") as f:
            f.write(struct.pack("<qq", int((wall + more) * 1e9), int(mono * 1e9)))

    def setUp(self):
        for name in AHEAD:
            self.set_wall(name)

    def metrics(self):
        return {m: self.c.metric(port, m) for port, m in (
            (self.c.p, "halyard:kv_leases_expired_total"), (self.c.d, "halyard:kv_transfer_failed_total"),
            (self.c.d, "halyard:kv_transfer_missed_total"))}

    def keep(self, prompt):
        """Prefill's part alone: its kv_transfer_params, and the time of asking."""
        t0 = time.monotonic()
        a = self.c.ask(prompt, self.c.p, kv_transfer_params={"do_remote_decode": True}, max_tokens=1)
        self.assertEqual(a.status, 200)
        end = t0 + SLACK
        while self.c.metric(self.c.p, "halyard:kv_leases") != 1:  # its blocks are held when the answer is out
            self.assertLess(time.monotonic(), end)
        return a.json()["kv_transfer_params"], t0

    def test_1_clocks_are_skewed(self):
        """What this test stands on."""
        for name, (wall, mono) in AHEAD.items():
            with open(f"{self.c.up.dir}/run/{name}.log") as f:
                said = re.search(r"(\S+)Z info +node +serving", f.read())[1]
            at = datetime.fromisoformat(said).replace(tzinfo=timezone.utc).timestamp() - time.time()
            self.assertLess(abs(at - wall), 120)
            port = {"router": self.c.router, "p0": self.c.p, "d0": self.c.d}[name]
            now = kit.request(port, "GET", "/trace?n=0", None).json()["otherData"]["now_us"] / 1e6
            self.assertLess(abs(now - time.clock_gettime(time.CLOCK_MONOTONIC) - mono), 60)

    def test_2_hand_overs(self):
        before = self.metrics()
        for i in range(8):
            for name in AHEAD:  # each wall clock is set again and again
                self.set_wall(name, (-HOUR, 0, HOUR)[(i + len(name)) % 3])
            prompt, got = f"{i} the sea and the ships that cross it, {i}", self.c.received()
            a = self.c.ask(prompt, stream=False)
            self.assertEqual((a.status, a.headers.get("x-halyard-prefill")), (200, "p0"))
            self.assertGreater(self.c.received(), got)
            self.assertEqual(a.json()["choices"][0]["text"], self.c.text(prompt, self.c.p))
        self.assertEqual(self.metrics(), before)
        self.c.wait_idle()

    def test_3_a_lease_lasts_as_long_as_it_says(self):
        for more in (HOUR, -HOUR):
            expired = self.c.metric(self.c.p, "halyard:kv_leases_expired_total")
            _, t0 = self.keep(f"nobody comes for it {more}")
            self.set_wall("p0", more)
            while self.c.metric(self.c.p, "halyard:kv_leases_expired_total") == expired:
                self.assertLess(time.monotonic() - t0, LEASE + SLACK)
                time.sleep(0.02)
            self.assertGreater(time.monotonic() - t0, 0.9 * LEASE)
            self.c.wait_idle()

    def test_4_a_lease_holds_while_clocks_are_set(self):
        """Taken before, asked for after: it is there and the KV moves."""
        for more in (HOUR, -HOUR):
            before, prompt = self.metrics(), f"kept for a while, {more}"
            params, _ = self.keep(prompt)
            for name in AHEAD:
                self.set_wall(name, more)
            got = self.c.received()
            a = self.c.ask(prompt, self.c.d, kv_transfer_params=params)
            self.assertEqual(a.status, 200)
            self.assertGreater(self.c.received(), got)
            self.assertEqual(a.json()["choices"][0]["text"], self.c.text(prompt, self.c.p))
            self.assertEqual(self.metrics(), before)
            self.c.wait_idle()

    def test_5_a_deadline_comes_when_it_should(self):
        """The owner is stopped in the middle: decode computes the prompt itself, after [connector] timeout."""
        for more in (HOUR, -HOUR):
            prompt = f"the owner has stopped, {more}"
            failed = self.c.metric(self.c.d, "halyard:kv_transfer_failed_total")
            params, _ = self.keep(prompt)
            pid = self.c.up.pids()["p0"]
            stop_process(pid)
            try:
                self.set_wall("d0", more)
                t0 = time.monotonic()
                a = self.c.ask(prompt, self.c.d, kv_transfer_params=params)
                took = time.monotonic() - t0
            finally:
                os.kill(pid, signal.SIGCONT)
            self.assertEqual(a.status, 200)
            self.assertGreater(took, 0.8 * TIMEOUT)
            self.assertLess(took, TIMEOUT + SLACK)
            self.assertEqual(self.c.metric(self.c.d, "halyard:kv_transfer_failed_total"), failed + 1)
            self.c.wait_idle()
            self.assertEqual(a.json()["choices"][0]["text"], self.c.text(prompt, self.c.p))

    def test_6_the_owner_stood_still(self):
        """Longer than the lease, and decode's order was sent meanwhile: it is read before the lease is ended."""
        self.c.wait_served()
        prompt = "the owner goes on, and what it holds is still wanted"
        before = self.metrics()
        params, t0 = self.keep(prompt)
        pid = self.c.up.pids()["p0"]
        stop_process(pid)
        got, answer = self.c.received(), []
        asked = threading.Thread(target=lambda: answer.append(self.c.ask(prompt, self.c.d, kv_transfer_params=params)))
        try:
            time.sleep(0.5 * LEASE)
            asked.start()
            time.sleep(max(0, 1.2 * LEASE - (time.monotonic() - t0)))
        finally:
            os.kill(pid, signal.SIGCONT)
        asked.join(60)
        self.assertEqual(answer[0].status, 200)
        self.assertEqual(answer[0].json()["choices"][0]["text"], self.c.text(prompt, self.c.p))
        self.assertEqual(self.metrics(), before)
        self.assertGreater(self.c.received(), got)
        self.c.wait_idle()


if __name__ == "__main__":
    LIBRARY = os.path.abspath(sys.argv.pop(2))
    kit.HALYARD = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=1)
