# SPDX-License-Identifier: Apache-2.0
"""Stands between a decode and a prefill node's fabric (providers = own) and does what networks do: delays,
loses without a reset, flips bits, sends twice. It reads the frames of control connections (fabric/wire.h)
and knows the connector's messages by name (core/connector/proto.h), so that a test can stop the world
exactly before or after one of them."""
import os
import re
import socket
import struct
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HEAD, MSG_FIXED, FAB_MSG = 32, 24, 7


def kinds():
    with open(os.path.join(ROOT, "core/connector/proto.h")) as f:
        s = f.read()
    base = int(re.search(r"HY_PDP_TYPE = (0x[0-9a-f]+)", s)[1], 16)
    body = re.search(r"typedef enum hy_pdp_kind \{(.*?)\}", s, re.S)[1]
    names = re.findall(r"^\s*HY_PDP_(\w+)", body, re.M)
    return {base + 1 + i: n for i, n in enumerate(names) if n != "KINDS"}


class Proxy:
    """hook(direction, name, frame) for each of the connector's messages, in order of arrival: returns the
    frames to pass on (a list), or None for the frame itself. direction: ">" from D, "<" from P."""

    def __init__(self, target):
        self.target, self.hook = target, None
        self.kinds = kinds()
        self.hole = threading.Event()  # set: nothing passes, nobody is told
        self.rate = 0                  # bytes/s; 0: no limit
        self.flip = 0                  # flip one bit of the next n pieces of data
        self.middle = None             # Middle: stops the world in the middle of a hand-over's data
        self.seen = []                 # (direction, name)
        self.lock = threading.Lock()
        self.conns = set()
        self.alive = True
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.sock.bind(("127.0.0.1", 0))
        self.port = self.sock.getsockname()[1]
        self.sock.listen(64)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while self.alive:
            try:
                a, _ = self.sock.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(a,), daemon=True).start()

    def serve(self, a):
        while self.hole.is_set() and self.alive:
            time.sleep(0.01)
        b = socket.socket()
        try:
            b.connect(("127.0.0.1", self.target))
        except OSError:
            a.close()
            b.close()
            return
        for s in (a, b):
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self.lock:
            self.conns |= {a, b}
        state = {"control": None}
        t = threading.Thread(target=self.pump, args=(b, a, "<", state), daemon=True)
        t.start()
        self.pump(a, b, ">", state)
        t.join()
        for s in (a, b):
            s.close()
        with self.lock:
            self.conns -= {a, b}

    def pump(self, src, dst, way, state):
        buf = b""
        try:
            while True:
                data = src.recv(1 << 16)
                if not data:
                    break
                while self.hole.is_set() and self.alive:  # as lost packets: they are sent again later
                    time.sleep(0.005)
                if state["control"] is None and way == ">":
                    state["control"] = data[5] == 1  # HELLO; own data connections begin with DATA
                if self.rate:
                    time.sleep(len(data) / self.rate)
                if not state["control"]:
                    data = self.spoil(data, way)
                    m = self.middle
                    if m is not None and m.takes(way, len(data)):
                        dst.sendall(data[:len(data) // 2])
                        data = data[len(data) // 2:]
                        m.stop()
                        while self.hole.is_set() and self.alive:
                            time.sleep(0.005)
                    dst.sendall(data)
                    continue
                buf += data
                while len(buf) >= HEAD:
                    n = HEAD + struct.unpack_from("<I", buf, 8)[0]
                    if len(buf) < n:
                        break
                    for f in self.look(buf[:n], way):
                        dst.sendall(f)
                    buf = buf[n:]
        except OSError:
            pass
        for s in (src, dst):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def spoil(self, data, way):
        """A bit of a payload: small frames (acknowledgements, heads alone) stay as they are."""
        with self.lock:
            if way == "<" and self.flip > 0 and len(data) > 512:
                self.flip -= 1
                at = len(data) - 9
                return data[:at] + bytes([data[at] ^ 16]) + data[at + 1:]
        return data

    def look(self, frame, way):
        if frame[5] != FAB_MSG or len(frame) < HEAD + MSG_FIXED:
            return [frame]
        name = self.kinds.get(struct.unpack_from("<I", frame, HEAD + 12)[0])
        if name is None:
            return [frame]
        with self.lock:
            self.seen.append((way, name))
            hook = self.hook
        out = hook(way, name, frame) if hook else None
        return [frame] if out is None else out

    def cut(self):
        """Every connection is reset."""
        with self.lock:
            for s in self.conns:
                try:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    s.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def close(self):
        self.alive = False
        self.hook = None
        self.hole.clear()
        self.sock.close()
        self.cut()


class Stop:
    """A hook that stops the world at a message: `before` it passes, or right after it has. `reached` is set
    then; go() lets everything pass again."""

    def __init__(self, proxy, way, name, before):
        self.proxy, self.at, self.before = proxy, (way, name), before
        self.reached, self.gate = threading.Event(), threading.Event()
        proxy.hook = self.on

    def on(self, way, name, frame):
        if self.gate.is_set() or (way, name) != self.at:
            return None
        if not self.before:
            # it passes; what comes behind it does not
            self.at = (None, None)
            threading.Thread(target=self.after, daemon=True).start()
            return None
        self.reached.set()
        self.gate.wait(30)
        return None

    def after(self):
        self.proxy.hole.set()
        self.reached.set()

    def go(self):
        self.gate.set()
        self.proxy.hook = None
        self.proxy.hole.clear()


class Middle:
    """Stops the world when half of a large piece of KV has passed: in the middle of a read."""

    def __init__(self, proxy):
        self.proxy, self.reached = proxy, threading.Event()
        proxy.middle = self

    def takes(self, way, n):
        return way == "<" and n > 512 and not self.reached.is_set()

    def stop(self):
        self.proxy.hole.set()
        self.reached.set()

    def go(self):
        self.proxy.middle = None
        self.proxy.hole.clear()


class Hold:
    """As Stop and Middle, but only the one connection stands still: other decode nodes' pass. A hand-over's message
    (`before` it passes), or name "data": half of a piece of KV has passed."""

    def __init__(self, proxy, way, name):
        self.proxy, self.at = proxy, (way, name)
        self.reached, self.gate, self.lock = threading.Event(), threading.Event(), threading.Lock()
        if name == "data":
            proxy.middle = self
        else:
            proxy.hook = self.on

    def first(self):
        with self.lock:
            if self.reached.is_set():
                return False
            self.reached.set()
            return True

    def on(self, way, name, frame):
        if (way, name) == self.at and self.first():
            self.gate.wait(60)

    def takes(self, way, n):
        return way == "<" and n > 512 and self.first()

    def stop(self):
        self.gate.wait(60)

    def go(self):
        self.gate.set()
        self.proxy.hook = self.proxy.middle = None
