#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`halyard up` with nodes that need no model (routers in front of fake workers): start, table, restart,
permanent failure, orderly stop, and no process left behind. Usage: test_up.py HALYARD"""
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import kit  # noqa: E402
from fake import Fake  # noqa: E402


def alive(pid):
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (OSError, FileNotFoundError):
        return False


class Up:
    """One `halyard up` over a cluster file made of [node.NAME] texts."""

    def __init__(self, nodes, cluster="", args=(), run_dir=True):
        self.dir = tempfile.mkdtemp(prefix="hy-up-")
        if run_dir:
            cluster = f"run_dir = {self.dir}/run\n" + cluster
        with open(f"{self.dir}/c.ini", "w") as f:
            f.write(f"[cluster]\nname = t\n{cluster}\n{nodes}")
        self.out = open(f"{self.dir}/out", "w+")
        self.proc = subprocess.Popen([kit.HALYARD, "up", f"{self.dir}/c.ini", *args], stdout=self.out, stderr=self.out)

    def text(self):
        with open(f"{self.dir}/out") as f:
            return f.read()

    def wait(self, pattern, timeout=2 * kit.LONG):
        end = time.time() + timeout
        while time.time() < end:
            m = re.search(pattern, self.text(), re.S)
            if m:
                return m
            if self.proc.poll() is not None:
                time.sleep(0.05)
                m = re.search(pattern, self.text(), re.S)
                if m:
                    return m
                break
            time.sleep(0.02)
        logs = ""
        for n in os.listdir(f"{self.dir}/run") if os.path.isdir(f"{self.dir}/run") else ():
            if n.endswith(".log"):
                logs += f"--- {n}\n" + open(f"{self.dir}/run/{n}").read()[-3000:]
        raise AssertionError(f"no {pattern!r} in:\n{self.text()}\n{logs}")

    def pids(self):
        """Name to pid, by the latest line about each."""
        return {m[1]: int(m[2]) for m in re.finditer(r"halyard up: (\S+) \(\w+\) is up at \S+ pid (\d+)", self.text())}

    def stop(self, check=lambda: None):
        """check: of what it has said, at the end."""
        try:
            if self.proc.poll() is None:
                self.proc.send_signal(signal.SIGINT)
                try:
                    self.proc.wait(kit.LONG)
                except subprocess.TimeoutExpired:
                    self.proc.send_signal(signal.SIGINT)
                    self.proc.wait(kit.LONG)
            left = [p for p in self.pids().values() if alive(p)]
            assert not left, f"left behind: {left}"
            check()
            return self.proc.returncode
        finally:
            self.out.close()
            shutil.rmtree(self.dir)


class TestUp(unittest.TestCase):
    def setUp(self):
        self.fake = Fake()
        self.files = tempfile.mkdtemp(prefix="hy-up-files-")
        with open(f"{self.files}/r.ini", "w") as f:
            f.write("[node]\nrole = router\n[http]\nport = 0\n[router]\nhealth_interval = 100ms\n"
                    f"[peer.d0]\nrole = decode\nurl = http://127.0.0.1:{self.fake.port}\n")
        self.addCleanup(shutil.rmtree, self.files)
        self.addCleanup(lambda: self.fake.alive and self.fake.die())

    def node(self, name, more=""):
        return f"[node.{name}]\nfile = {self.files}/r.ini\n{more}\n"

    def start(self, *a, **k):
        u = Up(*a, **k)
        self.addCleanup(lambda: os.path.isdir(u.dir) and u.stop())
        return u

    def test_life(self):
        # whatever a node logs, its address is found
        u = self.start(self.node("a", "restart_backoff = 100ms") +
                       self.node("b", "restart = always\nset = node.log_level=error"))
        u.wait(r"NODE +ROLE.*\na +router +up .*\nb +router +up .*all 2 nodes are up")
        secret = f"{u.dir}/run/secret"
        self.assertEqual(stat.S_IMODE(os.stat(secret).st_mode), 0o600)
        with open(secret) as f:
            first = f.read()
        self.assertRegex(first, "^[0-9a-f]{64}\n$")
        pids = u.pids()
        with open(f"/proc/{pids['a']}/cmdline") as f:
            self.assertIn(f"cluster.secret_file={secret}", f.read())
        # a second supervisor of the same folder is refused
        again = subprocess.run([kit.HALYARD, "up", f"{u.dir}/c.ini"], capture_output=True, text=True)
        self.assertEqual(again.returncode, 1)
        self.assertIn("already runs", again.stderr)
        os.kill(pids["a"], signal.SIGKILL)
        u.wait(r"a died: killed by signal 9.*a \(router\) is up")
        self.assertNotEqual(u.pids()["a"], pids["a"])
        with open(f"{u.dir}/run/a.log") as f:  # where each run begins
            runs = re.findall(r"halyard \d+\.\d+\.\d+ starts: pid (\d+), (\S+)", f.read())
        self.assertEqual(runs, [(str(pid), f"{self.files}/r.ini") for pid in (pids["a"], u.pids()["a"])])
        os.kill(pids["b"], signal.SIGTERM)  # ends well; restart = always
        u.wait(r"b died: exit status 0.*b \(router\) is up")
        with open(secret) as f:
            self.assertEqual(f.read(), first)
        self.assertEqual(u.stop(), 0)

    def test_ends_well_and_stays_so(self):
        u = self.start(self.node("a") + self.node("b"))
        u.wait("all 2 nodes are up")
        os.kill(u.pids()["a"], signal.SIGINT)
        u.wait("a has ended")
        os.kill(u.pids()["b"], signal.SIGINT)
        u.wait("t has stopped")  # nobody is left to wait for
        self.assertEqual(u.proc.wait(2 * kit.LONG), 0)

    def test_gives_up(self):
        u = self.start(self.node("a", "max_restarts = 1\nrestart_backoff = 10ms") + self.node("b"))
        u.wait("all 2 nodes are up")
        for n in (1, 2):
            os.kill(u.pids()["a"], signal.SIGKILL)
            u.wait(r"restart 1 in.*a \(router\) is up" if n == 1 else "a has failed for good: killed by signal 9")
        self.assertTrue(alive(u.pids()["b"]))  # the others go on
        self.assertEqual(u.stop(), 1)

    def test_never(self):
        u = self.start(self.node("a", "restart = never") + self.node("b"))
        u.wait("all 2 nodes are up")
        os.kill(u.pids()["a"], signal.SIGKILL)
        u.wait("a has failed for good")
        self.assertEqual(u.stop(), 1)

    def test_wrong_from_the_start(self):
        """A port in use: said with the node's own words, and the rest is stopped."""
        u = self.start(self.node("a") + self.node("b", f"set = http.port={self.fake.port}"))
        u.wait("b has failed for good: exit status 1.*cannot listen on .*another program uses it")
        self.assertEqual(u.proc.wait(2 * kit.LONG), 1)

    def test_refused_before_anything_starts(self):
        for nodes, word in ((self.node("a", "set = http.prt=1"), "[node.a]: set: [http] prt: unknown key"), ("", "NODE" if False else "node.NAME"),
                            (self.node("a", "set = node.role=all, model.path=nowhere"), "nowhere"),
                            (self.node("a", "set = node.role=all, kv.block_tokens=20"), "multiple of 16"),
                            (self.node("a", "set = node.role=all, kv.storage=bf16"), "storage = bf16 cannot hold")):
            u = self.start(nodes)
            self.assertEqual(u.proc.wait(2 * kit.LONG), 1)
            self.assertIn(word, u.text())
            self.assertFalse(os.path.exists(f"{u.dir}/run"))

    def test_unlike_pairs(self):
        """Nodes that could never link are told by both names and the key; --check wants that put right."""
        ini = f"{self.files}/n.ini"
        with open(ini, "w") as f:
            f.write(f"[node]\nrole = prefill\n[connector]\nkind = pull\n[model]\npath = {ini}\n")
        for more, rc in (("", 1), (", connector.accept_lossy=yes", 0), (", kv.type=bf16", 0)):
            u = self.start(f"[node.p0]\nfile = {ini}\nset = http.port=1, kv.type=bf16\n"
                           f"[node.d0]\nfile = {ini}\nset = http.port=2, node.role=decode{more}\n", args=["--check"])
            self.assertEqual(u.proc.wait(2 * kit.LONG), rc, u.text())
            self.assertEqual("[node.d0] cannot take KV from [node.p0]: [kv] type is bf16 there, f16 here" in u.text(), rc == 1)

    def test_check(self):
        u = self.start(self.node("a"), args=["--check"])
        self.assertEqual(u.proc.wait(2 * kit.LONG), 0)
        self.assertIn("1 nodes, all files are good", u.text())
        self.assertIn(f"[node.a] has [peer.d0] url = http://127.0.0.1:{self.fake.port}, where no node of this file is",
                      u.text())
        self.assertFalse(os.path.exists(f"{u.dir}/run"))

    def test_missing(self):
        """A router without a worker is not healthy: the table says who is missing."""
        self.fake.health = 503
        u = self.start(self.node("a"), cluster="start_timeout = 1s")
        u.wait("a +router +starting.*0 of 1 nodes are up")
        self.fake.health = 200
        u.wait(r"a \(router\) is up.*all 1 nodes are up")  # later than the table, and said
        self.fake.health = 503
        u.wait("a does not answer: /health answers 503")
        self.fake.health = 200
        u.wait("a answers again")
        self.assertEqual(u.stop(), 0)

    def status(self, u):
        r = subprocess.run([kit.HALYARD, "up", "--status", f"{u.dir}/c.ini"], capture_output=True, text=True, timeout=120)
        return r.returncode, r.stdout + r.stderr

    def test_hangs(self):
        """A stopped process keeps its connections and answers nothing: killed after hang_timeout, and back."""
        u = self.start(self.node("a", "hang_timeout = 1s\nrestart_backoff = 10ms") + self.node("b", "hang_timeout = 0s"))
        u.wait("all 2 nodes are up")
        first = u.pids()
        t0 = time.time()
        for n in "ab":
            os.kill(first[n], signal.SIGSTOP)
        u.wait(r"a hangs: /health was not answered for [0-9.]+ s; it is killed.*a died: killed by signal 9.*"
               r"a \(router\) is up")
        self.assertGreaterEqual(time.time() - t0, 1.0)
        self.assertTrue(alive(first["b"]))  # for it a minute would not be enough
        os.kill(first["b"], signal.SIGCONT)
        self.assertEqual(u.stop(), 0)

    def test_hangs_in_its_restart(self):
        """It does not even come to print its address (its file is a pipe that nobody writes): killed, again and
        again, until the file is back. Another whose hang_timeout is 0 is left alone."""
        ini = f"{self.files}/r.ini"
        more = "hang_timeout = 500ms\nrestart_backoff = 10ms\nmax_restarts = 0"
        u = self.start(self.node("a", more) + self.node("b", more.replace("500ms", "0s")),
                       cluster="start_timeout = 1s\nstop_timeout = 1s")
        u.wait("all 2 nodes are up")
        os.rename(ini, f"{self.files}/kept.ini")
        os.mkfifo(ini)
        for pid in u.pids().values():
            os.kill(pid, signal.SIGKILL)
        hang = r"a hangs in its restart: /health was not answered for ([0-9.]+) s; it is killed.*"
        m = u.wait(hang + hang + r"restart 3")
        for s in m.groups():
            self.assertGreaterEqual(float(s), 1.0)
        os.replace(f"{self.files}/kept.ini", ini)
        u.wait(hang * 2 + r"a \(router\) is up")
        self.assertNotIn("b hangs", u.text())
        self.assertRegex(self.status(u)[1], r"b +router +starting +[1-9]\d* +1 ")
        self.assertEqual(u.stop(), 0)

    def test_a_slow_restart_is_no_hang(self):
        """A start is given start_timeout, however short hang_timeout is."""
        ini = f"{self.files}/r.ini"
        u = self.start(self.node("a", "hang_timeout = 2s\nrestart_backoff = 10ms"), cluster="start_timeout = 1m")
        u.wait("all 1 nodes are up")
        with open(ini) as f:
            text = f.read()
        os.remove(ini)
        os.mkfifo(ini)
        os.kill(u.pids()["a"], signal.SIGKILL)
        time.sleep(4)
        with open(ini, "w") as f:
            f.write(text)
        u.wait(r"a died.*a \(router\) is up")
        self.assertNotIn("hangs in its restart", u.text())
        self.assertEqual(u.stop(), 0)

    def test_an_error_is_an_answer(self):
        u = self.start(self.node("a", "hang_timeout = 3s"))
        u.wait("all 1 nodes are up")
        pid = u.pids()["a"]
        self.fake.health = 503  # no worker: the router's /health answers 503
        u.wait("a does not answer: /health answers 503")
        time.sleep(4)
        self.assertTrue(alive(pid))
        self.assertNotIn("hangs", u.text())
        self.assertEqual(u.stop(), 0)

    def test_status(self):
        u = self.start(self.node("a", "restart_backoff = 60s") + self.node("b"))
        u.wait("all 2 nodes are up")
        rc, text = self.status(u)
        self.assertEqual(rc, 0, text)
        self.assertRegex(text, r"NODE +ROLE +STATE +PID +RESTARTS.*\na +router +up +\d+ +0 +http://127.0.0.1:\d+ "
                               r"[^$]*2 of 2 nodes and links are up")
        os.kill(u.pids()["a"], signal.SIGKILL)
        u.wait("a died")
        rc, text = self.status(u)
        self.assertEqual(rc, 1, text)
        self.assertRegex(text, r"a +router +restarting +0 +1 [^$]*1 of 2 nodes and links are up")
        u.proc.send_signal(signal.SIGINT)
        u.proc.wait(2 * kit.LONG)
        rc, text = self.status(u)
        self.assertEqual(rc, 1, text)
        self.assertIn("does not run", text)

    def test_disk_is_full(self):
        """Logs and the table cannot be written: a node that dies is started again and found all the same, and --status
        shows no old table as if it were today's."""
        small = f"{self.files}/small"
        os.mkdir(small)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], capture_output=True).returncode:
            self.skipTest("a file system of its own cannot be mounted")
        self.addCleanup(subprocess.run, ["umount", "-l", small])
        port = kit.free_ports(1)[0]
        u = self.start(self.node("a", f"set = http.port={port}\nrestart_backoff = 10ms\nhang_timeout = 5s"),
                       cluster=f"run_dir = {small}\nstart_timeout = 20s", run_dir=False)
        u.wait("all 1 nodes are up")
        for name, n in (("fill", 4096), ("a.log", 1)):  # to the last byte of the log's last page
            with open(f"{small}/{name}", "ab", buffering=0) as f:
                while True:
                    try:
                        f.write(bytes(n))
                    except OSError:
                        break
        for _ in range(2):
            pid = u.pids()["a"]
            os.kill(pid, signal.SIGKILL)
            u.wait(rf"pid {pid}, .*a died.*a \(router\) is up at http://127.0.0.1:{port}, pid (?!{pid},)")
            text = self.status(u)[1]
            self.assertTrue("is the disk full?" in text or f" {u.pids()['a']} " in text, text)
        os.remove(f"{small}/fill")
        os.kill(u.pids()["a"], signal.SIGKILL)  # the next change is written again
        end = time.time() + 2 * kit.LONG
        while self.status(u)[0] != 0:
            self.assertLess(time.time(), end, self.status(u))
            time.sleep(0.1)
        self.assertNotIn("hangs", u.text())
        self.assertEqual(u.stop(), 0)

    def test_log_may_not_grow(self):
        """A limit of file sizes is an error of the log's writes, not the node's end."""
        u = self.start(self.node("a", ""))
        u.wait("all 1 nodes are up")
        resource.prlimit(u.pids()["a"], resource.RLIMIT_FSIZE, (1, 1))
        self.assertEqual(u.stop(lambda: self.assertIn("a has stopped (exit status 0)", u.text())), 0)

    def test_ipv6(self):
        """Addresses stand in brackets wherever a URL is shown or read again."""
        u = self.start(self.node("a", "set = http.host=::1"))
        m = u.wait(r"a \(router\) is up at http://\[::1\]:(\d+), .*all 1 nodes are up")
        rc, text = self.status(u)
        self.assertEqual(rc, 0, text)
        self.assertIn(f"http://[::1]:{m[1]} ", text)
        r = subprocess.run([kit.HALYARD, "trace", f"{u.dir}/c.ini", "-o", f"{u.dir}/t.json"], capture_output=True, text=True)
        self.assertNotIn("::1", r.stderr.replace("[::1]", ""))
        self.assertEqual(u.stop(), 0)

    def test_supervisor_is_killed(self):
        """The nodes go with it."""
        u = self.start(self.node("a"))
        u.wait("all 1 nodes are up")
        u.proc.kill()
        u.proc.wait()
        end = time.time() + kit.LONG
        while alive(u.pids()["a"]) and time.time() < end:
            time.sleep(0.02)
        self.assertFalse(alive(u.pids()["a"]))

    def test_crash_while_it_stops(self):
        """Not an orderly stop, and said so."""
        u = self.start(self.node("a") + self.node("b"))
        u.wait("all 2 nodes are up")
        self.fake.behave = lambda r, c: r.path == "/v1/completions" and (time.sleep(3 * kit.LONG) or True)
        s = kit.connect(int(re.search(r"\ba \([^)]+\) is up at \S*127\.0\.0\.1:(\d+)", u.text()).group(1)))
        s.sendall(kit.make("POST", "/v1/completions", {"prompt": "x"}))
        self.fake.seen("/v1/completions")
        u.proc.send_signal(signal.SIGINT)  # a waits for its request
        u.wait("stopping")
        os.kill(u.pids()["a"], signal.SIGSEGV)
        u.wait("a has stopped .killed by signal 11")
        self.assertEqual(u.proc.wait(2 * kit.LONG), 1)
        s.close()

    def test_kill_at_the_second_signal(self):
        u = self.start(self.node("a"))
        u.wait("all 1 nodes are up")
        self.fake.behave = lambda r, c: r.path == "/v1/completions" and (time.sleep(3 * kit.LONG) or True)
        s = kit.connect(int(re.search(r"127\.0\.0\.1:(\d+), pid", u.text()).group(1)))
        s.sendall(kit.make("POST", "/v1/completions", {"prompt": "x"}))
        self.fake.seen("/v1/completions")
        u.proc.send_signal(signal.SIGINT)
        u.wait("stopping")
        time.sleep(0.3)
        self.assertIsNone(u.proc.poll())
        u.proc.send_signal(signal.SIGINT)
        u.wait("asked again.*a has stopped .killed by signal 9")
        self.assertEqual(u.proc.wait(2 * kit.LONG), 0)
        s.close()


if __name__ == "__main__":
    kit.HALYARD = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=1)
