#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clusters of unlike backends with a tiny model: prefill on one, decode on another, each way between the
cpu backend and the GPU kernels on the host executor at wave 32 and 64. simt32 and simt64 agree bit for
bit, cpu and simt by the golden f32 rule (tests/golden/tiny: |log p| within 2e-4, the same token where
the two best are further apart than 5e-4). Usage: test_mixed.py HALYARD"""
import json
import os
import re
import shutil
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import kit  # noqa: E402
from kit import free_ports  # noqa: E402
from test_up import Up  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
CONF = os.path.join(HERE, "../../conf")
TINY = os.path.join(HERE, "../golden/tiny")
TOLERANCE, MARGIN = 2e-4, 5e-4
N = 12  # tokens of an answer
F32 = "kv.type=f32, kv.storage=f32, engine.activations=f32"
# What came from an unlike node would be shared with later prompts.
ALONE = "engine.prefix_cache=false"
SMALL = "engine.threads=1, engine.context=256, engine.max_seqs=4, engine.max_batch_tokens=64, kv.memory=8M"


def folder(family):
    """The tiny model with a made-up byte vocabulary: requests are token ids, but a server wants one."""
    d = tempfile.mkdtemp(prefix=f"hy-mixed-{family}-")
    for f in ("config.json", "model.safetensors"):
        os.symlink(os.path.abspath(f"{TINY}/{family}/{f}"), f"{d}/{f}")
    # GPT-2's byte alphabet, then pieces that no text spells
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    signs = [chr(b) for b in plain] + [chr(256 + i) for i in range(256 - len(plain))]
    vocab = {s: i for i, s in enumerate(signs + [f"<{i}>" for i in range(256, 512)])}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    with open(f"{d}/tokenizer.json", "w") as f:
        json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                   "pre_tokenizer": {**level, "use_regex": True}, "post_processor": None, "decoder": level,
                   "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                             "ignore_merges": False, "vocab": vocab, "merges": []}}, f)
    return d


def golden(family):
    with open(f"{TINY}/{family}/generate.jsonl") as f:
        return [json.loads(line) for line in f]


def ask(port, ids, handover=None, max_tokens=N, **more):
    body = {"model": "tiny", "prompt": ids, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
            "logprobs": 2, "return_token_ids": True, "return_tokens_as_token_ids": True, **more}
    if handover is not None:
        body["kv_transfer_params"] = handover
    a = kit.request(port, "POST", "/v1/completions", body)
    if a.status != 200:
        raise AssertionError(f"{a.status}: {a.body}")
    return a.json(), a.headers


def metric(port, name):
    text = kit.request(port, "GET", "/metrics", None).body.decode()
    return sum(float(x.split()[-1]) for x in text.splitlines() if x.startswith(name))


class Mixed(unittest.TestCase):
    """Three nodes of role both, asked without a router, so that each pair is met each way."""
    NODES = {"cpu": "backend.name=cpu, kv.block_tokens=16", "w32": "backend.name=simt, backend.simt.wave=32, "
             "backend.simt.check=true, kv.block_tokens=32, kv.order=nhd",
             "w64": "backend.name=simt, backend.simt.wave=64, kv.block_tokens=64, kv.order=hnd",
             "bf16": "backend.name=cpu, kv.type=bf16, kv.storage=bf16",
             "int8": "backend.name=simt, engine.activations=int8"}
    FAMILY = "gemma3"  # windows, soft caps of nothing, norms of every kind; llama below

    @classmethod
    def setUpClass(cls):
        cls.model = folder(cls.FAMILY)
        cls.lines = golden(cls.FAMILY)
        # prompts of 2, 16, 64 and 150 tokens; a sanitizer's build is slow on the host executor
        cls.some = cls.lines[3:6:2] if kit.sanitised() else cls.lines[1::2]
        with open(f"{cls.model}/n.ini", "w") as f:
            f.write(f"[node]\nrole = both\n[model]\npath = {cls.model}\nname = tiny\n[connector]\nverify = true\n")
        ports = free_ports(2 * len(cls.NODES))
        cls.port = dict(zip(cls.NODES, ports))
        fabric = dict(zip(cls.NODES, ports[len(cls.NODES):]))
        cls.up = Up("".join(
            f"[node.{n}]\nfile = {cls.model}/n.ini\nset = http.port={cls.port[n]}, "
            f"fabric.listen=127.0.0.1:{fabric[n]}, {SMALL}, {ALONE}, {F32}, {more}\n" for n, more in cls.NODES.items()))
        cls.up.wait(f"all {len(cls.NODES)} nodes are up", timeout=240)

    @classmethod
    def tearDownClass(cls):
        rc = cls.up.stop()
        shutil.rmtree(cls.model)
        assert rc == 0, rc

    def pd(self, p, d, ids, **more):
        """Prefill on p, decode on d; the decode node's choice. The KV came from p, all of it."""
        first, _ = ask(self.port[p], ids, {"do_remote_decode": True}, 1, **more)
        before = metric(self.port[d], "halyard:pd_prompt_tokens_computed")
        a, _ = ask(self.port[d], ids, first["kv_transfer_params"], **more)
        self.computed = metric(self.port[d], "halyard:pd_prompt_tokens_computed") - before
        return a["choices"][0]

    def follows(self, got, line, name):
        """The golden rule for free-running greedy: as long as the tokens agree, so do their log p."""
        for i in range(N):
            best, second = line["top"][i][0][1], line["top"][i][1][1]
            if got["token_ids"][i] != line["golden"][i]:
                self.assertLess(best - second, MARGIN, f"{name}: token {i} is another")
                return i
            self.assertLessEqual(abs(got["logprobs"]["token_logprobs"][i] - line["lp"][i]), TOLERANCE,
                                 f"{name}: token {i}")
        return N

    def test_cpu_and_simt(self):
        seen = 0
        for p, d in (("cpu", "w32"), ("w32", "cpu"), ("cpu", "w64"), ("w64", "cpu")):
            for line in self.some:
                seen += self.follows(self.pd(p, d, line["ids"]), line, f"{p} to {d}, {line['id']}")
                self.assertEqual(self.computed, 0)
        self.assertGreater(seen, 4 * len(self.some) * N * 0.9)  # the rule was not met by leaving early

    def test_waves_agree(self):
        for more, lines in (({}, self.some), ({"temperature": 1, "seed": 5, "top_p": 0.95}, self.some[-2:-1])):
            for line in lines:
                one = ask(self.port["w32"], line["ids"], **more)[0]["choices"][0]
                self.assertEqual(one, ask(self.port["w64"], line["ids"], **more)[0]["choices"][0])
                for p, d in (("w32", "w64"), ("w64", "w32")):
                    self.assertEqual(one, self.pd(p, d, line["ids"], **more), f"{p} to {d}, {line['id']}")
                    self.assertEqual(self.computed, 0)

    def test_unlike_values_are_refused(self):
        """What changes values bars the link, by name; the answer is then the decode node's own."""
        line = self.lines[4]
        for p, why in (("bf16", "value type"), ("int8", "activations")):
            got = self.pd(p, "w32", line["ids"])
            self.assertEqual(got, ask(self.port["w32"], line["ids"])[0]["choices"][0])
            self.assertEqual(self.computed, len(line["ids"]))
            with open(f"{self.up.dir}/run/w32.log") as f:
                self.assertRegex(f.read(), f"(link with {p} is refused|{p} refuses the link): .*{why}")


class Router(unittest.TestCase):
    """conf/pd-mixed.ini as it is, but for ports, model and a second worker of each role."""

    def test_example(self):
        model = folder("llama")
        self.addCleanup(shutil.rmtree, model)
        router, hp0, hp1, hd0, hd1, fp0, fp1, fd0, fd1 = free_ports(9)
        more = {"router": f"http.port={router}, router.health_interval=200ms, router.policy=round_robin",
                "p0": f"http.port={hp0}, fabric.listen=127.0.0.1:{fp0}",
                "d0": f"http.port={hd0}, fabric.listen=127.0.0.1:{fd0}"}
        peers = {"p0": ("prefill", hp0, fp0), "d0": ("decode", hd0, fd0), "p1": ("prefill", hp1, fp1),
                 "d1": ("decode", hd1, fd1)}
        with open(f"{CONF}/router.ini") as f:  # its peers are replaced: ours have other ports
            text = f.read().split("# One section for each worker")[0]
        with open(f"{model}/router.ini", "w") as f:
            f.write(text)
            for name, (role, http, fab) in peers.items():
                f.write(f"[peer.{name}]\nrole = {role}\nurl = http://127.0.0.1:{http}\n"
                        f"addrs = 127.0.0.1:{fab}\n")
        with open(f"{CONF}/pd-mixed.ini") as f:
            text = re.sub(r"(?s)^.*?\n(?=\[node)", "", f.read())
        model_set = f"model.path={model}, model.name=tiny, {SMALL}"
        for name in ("router", "p0", "d0"):
            part = more[name] if name == "router" else f"{more[name]}, {model_set}"
            text, n = re.subn(rf"(?s)(\[node\.{name}\].*?\nset = )", rf"\g<1>{part}, ", text, count=1)
            self.assertEqual(n, 1, name)
        text = text.replace("file = router.ini", f"file = {model}/router.ini")
        text = re.sub(r"(?m)^file = pd-", f"file = {CONF}/pd-", text)
        text += (f"[node.p1]\nfile = {CONF}/pd-prefill.ini\nset = http.port={hp1}, fabric.listen=127.0.0.1:{fp1}, "
                 f"{model_set}, {F32}, backend.name=simt, backend.simt.wave=64\n"
                 f"[node.d1]\nfile = {CONF}/pd-decode.ini\nset = http.port={hd1}, fabric.listen=127.0.0.1:{fd1}, "
                 f"{model_set}, {F32}\n")
        up = Up(text)
        try:
            up.wait("all 5 nodes are up", timeout=240)
            kit.wait_workers(router)
            self.run_all(router, (hp0, hp1, hd0, hd1))
        finally:
            rc = up.stop()
        self.assertEqual(rc, 0)

    def run_all(self, router, ports):
        lines, pairs = golden("llama"), set()
        end = time.time() + 120
        k = 0
        while len(pairs) < 4 and time.time() < end:
            line = lines[3 + k % 4]
            k += 1
            got, head = ask(router, line["ids"])
            pair = (head.get("x-halyard-prefill"), head["x-halyard-worker"])
            pairs.add(pair)
            Mixed.follows(self, got["choices"][0], line, f"{pair}, {line['id']}")
            if k % 3 == 0:  # one to decode alone: the turns of both roles fall together otherwise
                ask(router, line["ids"], prompt_logprobs=0, max_tokens=1)
        self.assertEqual(pairs, {(p, d) for p in ("p0", "p1") for d in ("d0", "d1")})
        for p in ports:
            self.assertEqual(metric(p, "halyard:kv_transfer_failed_total"), 0)


if __name__ == "__main__":
    kit.HALYARD = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
