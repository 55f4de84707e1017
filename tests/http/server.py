# SPDX-License-Identifier: Apache-2.0
"""Starts `halyard serve` on a free loopback port and talks to it with the standard library alone."""
import http.client
import json
import os
import re
import signal
import subprocess
import tempfile
import time


class Server:
    def __init__(self, binary, model, *args, env=None):
        self.log_file = tempfile.NamedTemporaryFile("w+", prefix="hy-serve-", suffix=".log")
        begin = time.monotonic()
        self.process = subprocess.Popen([binary, "serve", model, "--port", "0", *args], stderr=self.log_file,
                                        stdout=self.log_file, env=env)
        self.port = None
        while self.port is None:
            m = re.search(r"serving http://[^:]*:(\d+)/v1 .*model name '([^']*)'", self.log())
            if m:
                self.port, self.model = int(m.group(1)), m.group(2)
            elif self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.log()}")
            elif time.monotonic() - begin > 120:
                self.process.kill()
                raise RuntimeError(f"the server is not ready after 120 s:\n{self.log()}")
            time.sleep(0.01)
        self.ready_s = time.monotonic() - begin
        self.ready_cpu_s = self.cpu()

    def log(self):
        with open(self.log_file.name, encoding="utf-8", errors="replace") as f:
            return f.read()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log_file.close()
        return self.process.returncode

    def cpu(self):
        """Seconds of CPU that it has used."""
        with open(f"/proc/{self.process.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss(self):
        with open(f"/proc/{self.process.pid}/status") as f:
            return int(re.search(r"VmRSS:\s*(\d+)", f.read()).group(1)) * 1024

    def connect(self, timeout=120):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def raw(self, method, path, body=None, headers=None, timeout=120):
        """Status and bytes."""
        c = self.connect(timeout)
        try:
            c.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
            r = c.getresponse()
            return r.status, r.read()
        finally:
            c.close()

    def post(self, path, body, parse_float=float, **more):
        """Status and document; a body of bytes is sent as it is."""
        data = body if isinstance(body, bytes) else json.dumps({"model": self.model, **body}).encode()
        status, answer = self.raw("POST", path, data, **more)
        return status, json.loads(answer, parse_float=parse_float)

    def ok(self, path, body, **more):
        status, doc = self.post(path, body, **more)
        if status != 200:
            raise AssertionError(f"{path}: {status} {doc}")
        return doc

    def events(self, path, body, parse_float=float):
        """The stream's documents, as they come; ends behind [DONE]."""
        c = self.connect()
        c.request("POST", path, json.dumps({"model": self.model, "stream": True, **body}).encode(),
                  {"Content-Type": "application/json"})
        r = c.getresponse()
        if r.status != 200:
            raise AssertionError(f"{path}: {r.status} {r.read()}")
        done = False
        for line in r:
            line = line.strip()
            if line == b"data: [DONE]":
                done = True
            elif line.startswith(b"data: "):
                yield json.loads(line[6:].decode("utf-8"), parse_float=parse_float)
        c.close()
        if not done:
            raise AssertionError("the stream ended without [DONE]")

    def metric(self, name):
        _, page = self.raw("GET", "/metrics")
        total, found = 0.0, False
        for line in page.decode().split("\n"):
            if re.match(re.escape(name) + r"[{ ]", line):
                total += float(line.rsplit(" ", 1)[1])
                found = True
        if not found:
            raise AssertionError(f"no metric {name}")
        return total

    def wait_idle(self, seconds):
        """True when no sequence runs or waits within that time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting") == 0:
                return True
            time.sleep(0.02)
        return False


def model_path(model):
    """What `halyard serve MODEL` opens: a path, or the smollm2 of the cache folder."""
    if os.path.exists(model):
        return model
    names = {"smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf"}
    folder = os.environ.get("HY_MODELS") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "halyard")
    return os.path.join(folder, names.get(model, model))
