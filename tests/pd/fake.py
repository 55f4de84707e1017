# SPDX-License-Identifier: Apache-2.0
"""A worker that answers as vLLM does (shapes from the interop fixtures), keeps every request it
got, and misbehaves on demand. One thread per connection; loopback only."""
import json
import socket
import threading
import time

from kit import free_ports

PARAMS = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1, 2, 3]],
          "remote_engine_id": "fake-engine-p0", "remote_request_id": "cmpl-fake-1",
          "remote_host": "127.0.0.1", "remote_port": 5600, "tp_size": 1, "remote_num_tokens": 7,
          "halyard": {"v": 1, "node": "p0", "epoch": 18446744073709551615, "lease": 9007199254740993}}


class Request:
    def __init__(self, method, path, headers, raw):
        self.method, self.path, self.headers, self.raw = method, path, headers, raw
        self.gone = threading.Event()  # the router hung up before we answered

    @property
    def body(self):
        return json.loads(self.raw)


class Fake:
    """`behave(request, conn)` may answer by itself and return True; else the usual answer goes."""

    def __init__(self, port=0, params=PARAMS, tokens=4):
        self.params, self.tokens, self.behave = params, tokens, None
        self.requests, self.health, self.n_conns = [], 200, 0
        self.links = None  # what GET /links answers; None: no such page, as with vLLM
        self.lock = threading.Lock()
        self.conns, self.kept = set(), set()  # kept: answered, and open for the next request
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.port = port or free_ports(1)[0]  # another may stand there when this one has died
        self.sock.bind(("127.0.0.1", self.port))
        self.sock.listen(64)
        self.alive = True
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while self.alive:
            try:
                c, _ = self.sock.accept()
            except OSError:
                return
            c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.lock:
                self.conns.add(c)
                self.n_conns += 1
            threading.Thread(target=self.serve, args=(c,), daemon=True).start()

    def die(self):
        """As a killed process: listener and all connections at once."""
        self.alive = False
        self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
        with self.lock:
            for c in self.conns:
                try:
                    c.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def serve(self, c):
        try:
            f = c.makefile("rb")
            while True:
                line = f.readline()
                if not line:
                    return
                method, path, _ = line.decode().split(" ", 2)
                headers = []
                while (h := f.readline()) not in (b"\r\n", b""):
                    k, v = h.decode().rstrip("\r\n").split(":", 1)
                    headers.append((k, v.strip()))
                n = int(dict((k.lower(), v) for k, v in headers).get("content-length", 0))
                r = Request(method, path, headers, f.read(n))
                with self.lock:
                    self.kept.discard(c)
                if path not in ("/health", "/links"):
                    with self.lock:
                        self.requests.append(r)
                if self.behave and self.behave(r, c):
                    return
                if ("Connection", "close") not in headers:
                    with self.lock:
                        self.kept.add(c)
                self.answer(r, c)
        except (OSError, ValueError):
            pass
        finally:
            with self.lock:
                self.conns.discard(c)
                self.kept.discard(c)
            c.close()

    def seen(self, path=None, timeout=30, n=1):
        """Wait until n requests (for path) have come; all of them."""
        end = time.time() + timeout
        while True:
            with self.lock:
                got = [r for r in self.requests if path is None or r.path == path]
            if len(got) >= n or time.time() > end:
                return got
            time.sleep(0.005)

    @staticmethod
    def send(c, status, body, ctype="application/json", extra=""):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        c.sendall(f"HTTP/1.1 {status} X\r\nContent-Type: {ctype}\r\nContent-Length: {len(data)}\r\n{extra}\r\n"
                  .encode() + data)

    def chunk(self, i, chat):
        if chat:
            choice = {"index": 0, "delta": {"content": f" t{i}"}, "finish_reason": None}
        else:
            choice = {"index": 0, "text": f" t{i}", "logprobs": None, "finish_reason": None}
        return b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode() + b"\n\n"

    @staticmethod
    def head_stream(c):
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                  b"Transfer-Encoding: chunked\r\n\r\n")

    @staticmethod
    def piece(c, data):
        c.sendall(b"%x\r\n%s\r\n" % (len(data), data))

    def answer(self, r, c):
        if r.path == "/health":
            return self.send(c, self.health, b"")
        if r.path == "/links" and self.links is not None:
            return self.send(c, 200, self.links if isinstance(self.links, bytes) else {"links": self.links})
        if r.path == "/v1/models":
            return self.send(c, 200, {"object": "list", "data": [{"id": "fake-model"}]})
        if r.path == "/tokenize":
            return self.send(c, 200, {"tokens": [1, 2], "count": 2, "max_model_len": 10})
        if r.path not in ("/v1/completions", "/v1/chat/completions"):
            return self.send(c, 404, {"detail": "Not Found"})
        q, chat = r.body, "chat" in r.path
        if q.get("stream"):
            self.head_stream(c)
            for i in range(self.tokens):
                self.piece(c, self.chunk(i, chat))
            self.piece(c, b"data: [DONE]\n\n")
            return c.sendall(b"0\r\n\r\n")
        a = {"id": "x", "choices": [{"index": 0, "text": " t0"}], "usage": {"prompt_tokens": 7}}
        kv = q.get("kv_transfer_params") or {}
        a["kv_transfer_params"] = self.params if kv.get("do_remote_decode") else None
        self.send(c, 200, a)
