# SPDX-License-Identifier: Apache-2.0
"""A router process for tests, and a client that sees every byte."""
import fcntl
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

HALYARD = None  # set by main


_taken = None  # a file whose byte N is locked by the test process that has port N
_own = set()   # this one's


def free_ports(n):
    """Ports for who may be started again at them: nobody uses them now, no other test takes them as long as this one
    runs, and the system gives them to no connection (below Linux's range)."""
    global _taken
    if _taken is None:
        _taken = open(os.path.join(tempfile.gettempdir(), "hy-test-ports"), "a+")
    found, port = [], random.randrange(10000, 30000)
    while len(found) < n:
        port += 1
        if port in _own:  # a lock does not keep out who has it
            continue
        try:
            fcntl.lockf(_taken, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            with socket.socket() as s:
                s.bind(("127.0.0.1", port))
        except OSError:
            continue
        found.append(port)
        _own.add(port)
    return found


LONG = 30  # s: for what comes at once where nothing else runs; a busy machine may need it


class Router:
    """Checks are given time: a test whose workers are silent says `soon`."""

    def __init__(self, p, d, router="", http="", both=(), host="127.0.0.1", soon="2s"):
        self.dir = tempfile.mkdtemp(prefix="hy-router-")
        text = "[node]\nrole = router\nlog_level = debug\n[http]\nport = 0\n" + http
        text += f"[router]\nhealth_interval = 100ms\nhealth_timeout = {soon}\nconnect_timeout = {soon}\n{router}"
        for role, fakes in (("prefill", p), ("decode", d), ("both", both)):
            for i, f in enumerate(fakes):
                text += f"[peer.{role[0]}{i}]\nrole = {role}\nurl = http://{host}:{getattr(f, 'port', f)}\n"
        with open(f"{self.dir}/router.ini", "w") as f:
            f.write(text)
        self.log = open(f"{self.dir}/log", "w+")
        self.proc = subprocess.Popen([HALYARD, "serve", f"{self.dir}/router.ini"], stderr=self.log)
        try:
            self.port = self.wait_log(r"serving http://127\.0\.0\.1:(\d+)/")
        except AssertionError:
            self.log.close()
            shutil.rmtree(self.dir)
            raise
        self.n_workers = len(p) + len(d) + len(both)

    def text(self):
        with open(f"{self.dir}/log") as f:
            return f.read()

    def wait_log(self, pattern, timeout=LONG):
        end = time.time() + timeout
        while time.time() < end:
            m = re.search(pattern, self.text())
            if m:
                return int(m.group(1)) if m.groups() else True
            if self.proc.poll() is not None:
                break
            time.sleep(0.01)
        raise AssertionError(f"no {pattern!r} in the router's log:\n{self.text()}")

    def wait_states(self, timeout=LONG, **states):
        end = time.time() + timeout
        while True:
            got = {w["name"]: w["state"] for w in self.get("/workers").json()["workers"]}
            if all(got[k] == v for k, v in states.items()):
                return
            if time.time() > end:
                raise AssertionError(f"wanted {states}, workers are {got}\n{self.text()}")
            time.sleep(0.02)

    def get(self, path, **k):
        return request(self.port, "GET", path, None, **k)

    def post(self, path, body, **k):
        return request(self.port, "POST", path, body, **k)

    def metric(self, name):
        for line in self.get("/metrics").body.decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
        raise AssertionError(f"no metric {name}")

    def wait_metric(self, name, value, timeout=LONG):
        end = time.time() + timeout
        while self.metric(name) != value:
            if time.time() > end:
                raise AssertionError(f"{name} is {self.metric(name)}, not {value}")
            time.sleep(0.02)

    def stop(self):
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGINT)
            try:
                self.proc.wait(5)
            except subprocess.TimeoutExpired:
                self.proc.send_signal(signal.SIGINT)
                self.proc.wait(LONG)
        self.log.close()
        rc = self.proc.returncode
        text = self.text()
        shutil.rmtree(self.dir)
        if rc != 0:
            raise AssertionError(f"the router ended with {rc}:\n{text}")


def connect(port, rcvbuf=None):
    s = socket.socket()
    if rcvbuf:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
    s.settimeout(5 * LONG)
    s.connect(("127.0.0.1", port))
    return s


def make(method, path, body, headers=(), close=True):
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n"
    if close:
        head += "Connection: close\r\n"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    for k, v in headers:
        head += f"{k}: {v}\r\n"
    return head.encode() + b"\r\n" + data


class Answer:
    def __init__(self, f):
        line = f.readline()
        if not line:
            raise EOFError("no answer")
        self.status = int(line.split()[1])
        self.headers = {}
        while (h := f.readline()) not in (b"\r\n", b""):
            k, v = h.decode().rstrip("\r\n").split(":", 1)
            self.headers[k.lower()] = v.strip()
        self.whole = True  # the framing was complete
        if self.headers.get("transfer-encoding") == "chunked":
            parts = []
            while True:
                line = f.readline()
                if not line:
                    self.whole = False
                    break
                n = int(line, 16)
                parts.append(f.read(n))
                f.read(2)
                if n == 0:
                    break
            self.body = b"".join(parts)
        elif "content-length" in self.headers:
            self.body = f.read(int(self.headers["content-length"]))
        else:
            self.body = f.read()

    def json(self):
        return json.loads(self.body)

    def events(self):
        return [e[6:] for e in self.body.decode().split("\n\n") if e]


def request(port, method, path, body, headers=(), **k):
    s = connect(port)
    try:
        s.sendall(make(method, path, body, headers, **k))
        with s.makefile("rb") as f:
            return Answer(f)
    finally:
        s.close()


def wait_workers(port, timeout=2 * LONG):
    """`up` has seen every node; the router looks for itself, and decodes alone until it has met prefill."""
    end, w = time.time() + timeout, []
    while not w or any(x["state"] != "up" for x in w):
        if time.time() > end:
            raise AssertionError(f"not all workers are up after {timeout} s: {w}")
        time.sleep(0.05)
        w = request(port, "GET", "/workers", None).json()["workers"]


def sanitised():
    """An address sanitizer keeps freed memory for a while: limits of memory are wider then."""
    with open(HALYARD, "rb") as f:
        return b"__asan_init" in f.read()


def rss_mb(pid):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1)) / 1024


def n_fds(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))
