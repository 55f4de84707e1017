# SPDX-License-Identifier: Apache-2.0
"""A cluster of real processes with a model so small that thousands of requests take seconds: the random
llama of tests/golden/tiny with a tokenizer of bytes. A proxy can stand in the fabric's way."""
import json
import os
import shutil
import signal
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests/pd"))
import kit  # noqa: E402
from kit import free_ports  # noqa: E402
from test_up import Up  # noqa: E402


def make_model(folder):
    """config and weights of tests/golden/tiny/llama; 256 bytes and fillers as its 512 tokens."""
    for f in ("config.json", "model.safetensors"):
        shutil.copy(os.path.join(ROOT, "tests/golden/tiny/llama", f), folder)
    plain = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    names, extra = {}, 0
    for b in range(256):  # GPT-2's letters for bytes
        if b in plain:
            names[b] = chr(b)
        else:
            names[b] = chr(256 + extra)
            extra += 1
    vocab = {names[b]: 2 + b for b in range(256)}
    vocab.update({f"w{i}": i for i in range(258, 512)})
    marks = [{"id": i, "content": c, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, c in enumerate(("<s>", "</s>"))]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    with open(f"{folder}/tokenizer.json", "w") as f:
        json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": marks, "normalizer": None,
                   "pre_tokenizer": level, "post_processor": None, "decoder": level,
                   "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                             "vocab": vocab, "merges": []}}, f)


def stop_process(pid):
    """SIGSTOP, and the moment until each of its threads has heard of it."""
    os.kill(pid, signal.SIGSTOP)
    states = {}
    while set(states.values()) != {"T"}:
        for t in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{t}/stat") as f:
                states[t] = f.read().rsplit(")", 1)[1].split()[0]


class Cluster:
    """router, p0, d0 (other block size, storage and order), and `more` nodes of their kinds (p1, d1); advertise: where
    decode is told that p0 is. p_kv: what the own file of prefill nodes says of storage in [kv], changed by set_p for
    their next start."""

    def __init__(self, mode="pull", p="", d="", router="", both="", advertise=None, ports=None, p_kv="storage = f16", more=()):
        self.dir = tempfile.mkdtemp(prefix="hy-tiny-")
        make_model(self.dir)
        self.router, self.p, self.d, self.fp, self.fd = ports or free_ports(5)
        self.port, fabric = {"p0": self.p, "d0": self.d}, {"p0": self.fp, "d0": self.fd}
        for name in more:
            self.port[name], fabric[name] = free_ports(2)
        small = f"model.path={self.dir}, model.name=tiny, engine.threads=1, engine.context=512, node.log_level=debug"
        small += ", kv.blocks=128, engine.activations=f32" + (", " + both if both else "")
        of_router = [f"http.port={self.router}, router.health_interval=100ms, router.health_timeout=2s, router.down_after=3, "
                     f"router.mode={mode}, node.log_level=debug"]
        conf = os.path.join(ROOT, "conf")
        self.set_p(p_kv)
        nodes = ""
        for name in sorted(self.port, reverse=True):
            role = {"p": "prefill", "d": "decode"}[name[0]]
            at = f"127.0.0.1:{fabric[name]}"
            own = f"http.port={self.port[name]}, fabric.listen={at}, {small}"
            of_router.append(f"peer.{name}.role={role}, peer.{name}.url=http://127.0.0.1:{self.port[name]}")
            if name == "p0" and advertise:
                at = advertise
            if name[0] == "p":
                of_router.append(f"peer.{name}.addrs={at}")
                own += f", connector.advertise={at}" + (f", {p}" if p else "")
            else:
                own += f", {d}" if d else ""
            file = f"{self.dir}/p0.ini" if name[0] == "p" else f"{conf}/pd-decode.ini"
            nodes += f"[node.{name}]\nfile = {file}\nset = {own}\nrestart_backoff = 10ms\nmax_restarts = 0\n"
        of_router += [router] if router else []
        self.up = Up(f"[node.router]\nfile = {conf}/router.ini\nset = {', '.join(of_router)}\nrestart_backoff = 10ms\n"
                     f"max_restarts = 0\n{nodes}")
        try:
            self.up.wait(f"all {1 + len(self.port)} nodes are up", timeout=4 * kit.LONG)
            kit.wait_workers(self.router)
        except AssertionError:
            self.up.stop()
            shutil.rmtree(self.dir)
            raise

    def set_p(self, kv):
        with open(os.path.join(ROOT, "conf/pd-prefill.ini")) as f, open(f"{self.dir}/p0.ini", "w") as g:
            g.write(f.read().replace("storage = f16", kv))

    def stop(self):
        rc = self.up.stop()
        shutil.rmtree(self.dir)
        return rc

    def ask(self, prompt, port=None, path="/v1/completions", headers=(), **more):
        q = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **more}
        return kit.request(port or self.router, "POST", path, q, headers=headers)

    def text(self, prompt, port=None, **more):
        a = self.ask(prompt, port, **more)
        assert a.status == 200, (a.status, a.body)
        return a.json()["choices"][0]["text"]

    def metric(self, port, name):
        page = kit.request(port, "GET", "/metrics", None).body.decode().splitlines()
        return sum(float(x.split()[-1]) for x in page if x.startswith((name + " ", name + "{")))

    def busy(self):
        out = [w["active"] for w in kit.request(self.router, "GET", "/workers", None).json()["workers"]]
        for port in self.port.values():
            for m in ("vllm:num_requests_running", "vllm:num_requests_waiting", "halyard:kv_leases",
                      "halyard:kv_leased_blocks", "halyard:kv_loads", "vllm:kv_cache_usage_perc"):
                out.append(self.metric(port, m))
        return out

    def wait_idle(self, timeout=kit.LONG):
        """Nothing in work, no lease, no load, every block free. Returns the seconds that it took."""
        t0 = time.time()
        while True:
            try:
                b = self.busy()
            except OSError as e:  # a node is on its way back
                b = [repr(e)]
            if not any(b):
                return time.time() - t0
            if time.time() - t0 > timeout:
                raise AssertionError(f"still in work: {b}")
            time.sleep(0.02)

    def wait_served(self, timeout=kit.LONG):
        """Until a new prompt goes through prefill, transfer and decode again, with the right answer. The seconds
        that it took."""
        t0 = time.time()
        while True:
            self.n_served = getattr(self, "n_served", 0) + 1
            prompt = f"{self.n_served} new words for a hand-over that must work again {self.n_served}"
            try:
                before = self.received()
                a = self.ask(prompt)
                if a.status == 200 and self.received() > before:
                    t = time.time() - t0
                    got, want = a.json()["choices"][0]["text"], self.text(prompt, self.p)
                    assert got == want, (got, want)
                    return t
            except (OSError, EOFError):
                pass
            if time.time() - t0 > timeout:
                raise AssertionError(f"no hand-over for {timeout} s:\n{self.up.text()[-2000:]}")
            time.sleep(0.02)

    def received(self):
        return sum(self.metric(port, "halyard:kv_transfer_received_bytes_total") for name, port in self.port.items()
                   if name[0] == "d")
