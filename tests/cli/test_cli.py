#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The `halyard` command: help, exit statuses (0 done, 1 failed, 2 used wrongly) and messages.

Usage: test_cli.py BINARY [TEST...]
"""
import fcntl
import glob
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

BINARY = os.path.abspath(sys.argv.pop(1))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COMMANDS = ("run", "serve", "fetch", "inspect", "tokenize", "devices", "conform", "config", "bench", "drift")
SMOLLM2 = os.path.join(os.environ.get("HY_MODELS", ""), "SmolLM2-135M-Instruct.Q4_1.gguf")


def halyard(*args, stdin="", **env):
    return subprocess.run([BINARY, *args], capture_output=True, text=True, timeout=400, input=stdin,
                          env={**os.environ, **env})


def connected(pid):
    """Has it an established TCP connection?"""
    held = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            held.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:  # closed meanwhile
            pass
    with open(f"/proc/{pid}/net/tcp") as f:
        return any(x[3] == "01" and f"socket:[{x[9]}]" in held for x in map(str.split, f))


class Cli(unittest.TestCase):
    def fails(self, args, status, *words, **env):
        p = halyard(*args, **env)
        self.assertEqual(p.returncode, status, p.stdout + p.stderr)
        self.assertEqual(p.stdout, "")
        for w in words:
            self.assertIn(w, p.stderr)
        return p.stderr

    def test_help(self):
        for args in (("--help",), ("-h",), ("help",)):
            p = halyard(*args)
            self.assertEqual(p.returncode, 0)
            for c in COMMANDS:
                self.assertIn(f"\n  {c}", p.stdout)
        for c in COMMANDS:
            p = halyard(c, "--help")
            self.assertEqual((p.returncode, p.stderr), (0, ""), c)
            self.assertTrue(p.stdout.startswith(f"Usage: halyard {c}"), c)
            self.assertLessEqual(max(map(len, p.stdout.split("\n"))), 110, c)
            for line in p.stdout.split("Options:\n")[1].splitlines():  # names stand below each other
                self.assertRegex(line, r"^  (-\w, |    )--\w|^  -o SECTION", c)
            self.assertEqual(halyard("help", c).stdout, p.stdout)
        self.assertTrue(re.fullmatch(r"halyard \d+\.\d+\.\d+\n", halyard("--version").stdout))

    def test_crash(self):
        """A signal ends the process with its own status and without a word, whatever the libraries that are
        linked have installed (psm of libfabric: handlers that print a backtrace, and may hang)."""
        off = ":".join(f"handle_{s}=0" for s in ("segv", "abort", "sigbus", "sigill", "sigfpe"))
        env = {**os.environ, **{f"{s}SAN_OPTIONS": os.environ.get(f"{s}SAN_OPTIONS", "") + ":" + off for s in "AT"}}
        no_core = lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for sig in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGINT,
                    signal.SIGTERM):
            with self.subTest(sig.name), tempfile.TemporaryDirectory() as folder:
                out, inp = os.pipe()
                fcntl.fcntl(inp, fcntl.F_SETPIPE_SZ, 4096)  # the manual does not fit: it waits there
                p = subprocess.Popen([BINARY, "config"], stdout=inp, stderr=subprocess.PIPE, cwd=folder, env=env,
                                     preexec_fn=no_core)
                os.close(inp)
                try:
                    self.assertEqual(len(os.read(out, 1)), 1)  # it has begun
                    p.send_signal(sig)
                    _, err = p.communicate(timeout=120)
                    self.assertEqual((p.returncode, err, os.listdir(folder)), (-sig, b"", []))
                finally:
                    p.kill()
                    p.wait()
                    os.close(out)

    def test_bench_link_waits(self):
        """A side that gets no CPU for longer than nodes wait for a peer (3 s; to connect, 5 s) makes bad figures, no failure."""
        p = subprocess.Popen([BINARY, "bench", "link", "--providers", "own", "--ours", "--mib", "4", "--pool", "16",
                              "--reps", "1", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            other = ""
            while not other and p.poll() is None:
                with open(f"/proc/{p.pid}/task/{p.pid}/children") as f:
                    other = f.read().strip()
            while p.poll() is None and not connected(p.pid):
                time.sleep(0.001)
            os.kill(int(other), signal.SIGSTOP)
            time.sleep(6)
            self.assertIsNone(p.poll())
            os.kill(int(other), signal.SIGCONT)
            out, err = p.communicate(timeout=400)
            self.assertEqual((p.returncode, err), (0, ""))
            self.assertGreater(min(json.loads(out)["write"]), 0)
        finally:
            p.kill()
            p.communicate()

    def test_bench_link(self):
        """Tiny sizes over own TCP, which every build has: all figures are there and positive."""
        self.fails(("bench", "link", "x"), 2, "x", "Usage")
        self.fails(("bench", "link", "--mib", "1"), 2, "--mib", "from 4")
        self.fails(("bench", "link", "--pool", "48"), 2, "--pool", "power of two")
        self.fails(("bench", "link", "--providers", "nope"), 1, "nope")
        self.fails(("bench", "link", "--rows", "write,foo"), 2, "'foo'", "raw write", "vm_readv")
        self.assertTrue(halyard("bench", "link", "--help").stdout.startswith("Usage: halyard bench link"))
        p = halyard("bench", "link", "-o", "fabric.providers=own", "-o", "fabric.piece=256k", "--mib", "4", "--pool", "16", "--reps", "1", "--json")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.fails(("bench", "link", "-o", "fabric.piece=1"), 2, "fabric", "piece")
        self.fails(("bench", "link", "-o", "fabric.providers=nope"), 1, "nope")
        self.fails(("bench", "link", "-o", "fabric.congestion=nope"), 1, "[fabric] congestion", "nope", "reno")
        r = json.loads(p.stdout)
        self.assertEqual((r["provider"], r["bytes"][0], len(r["bytes"])), ("own", 16384, 6))
        for row in ("write", "pull", "tcp_block", "tcp_spin", "tcp_tuned"):
            self.assertEqual(len(r[row]), 6)
            self.assertGreater(min(r[row]), 0, row)
        self.assertEqual(r["raw_write"], [0] * 6)  # own TCP has no provider below
        self.assertGreaterEqual(r["msg_us"][1], r["msg_us"][0])
        self.assertGreater(r["msg_us"][0], 0)

    def test_options_of_backends_are_keys(self):
        """What a backend's code reads of its options can be set: it is in the backend's table of keys."""
        def source(folder):
            text = ""
            for path in glob.glob(f"{ROOT}/backends/{folder}/*.c", recursive=True):
                with open(path) as f:
                    text += f.read()
            return text
        seen = 0
        for folder, names in (("cpu", ["cpu"]), ("simt/host", ["simt"]), ("gpu", ["cuda", "hip"])):
            read = set(re.findall(r'(?:option|yes)\(o, "(\w+)"\)', source(folder)))
            for name in names:
                keys = set(re.findall(rf'{{"backend.{name}", "(\w+)"', source(f"{name}/**")))
                self.assertEqual(read - keys, set(), name)
                seen += len(read)
        self.assertGreater(seen, 8)

    def test_drift_and_bench_device(self):
        """A made-up model on cpu and on the GPU kernels: JSON, readable text, exit statuses."""
        with tempfile.TemporaryDirectory() as d:
            model = f"{d}/m.gguf"
            p = subprocess.run([f"{os.path.dirname(BINARY)}/halyard-mkmodel", model, "tiny"], capture_output=True, text=True)
            self.assertEqual(p.returncode, 0, p.stderr)
            fact = json.loads(p.stdout)
            self.assertEqual(fact["bytes"], os.path.getsize(model))
            self.assertIn("llama", halyard("inspect", model).stdout)
            base = ("drift", "cpu", "simt:64", model, "-n", "40", "-t", "1", "-o", "kv.type=f32")
            p = halyard(*base, "--json", "-")
            rest = re.sub(r"drift: \d+ of 40 tokens in \d+ s.*\n", "", p.stderr)  # a slow machine is told how far it is
            self.assertEqual((p.returncode, rest), (0, ""))
            j = json.loads(p.stdout)
            self.assertEqual((j["tokens"], j["drift"]["positions"], j["drift"]["same_top1"]), (40, 40, 40))
            self.assertEqual((j["a"]["spec"], j["b"]["isa"], len(j["layers"])), ("cpu", "wave64", 3))
            for side in "ab":
                self.assertEqual((j[side]["control"]["same_bits"], j[side]["control"]["kl"]["max"]), (40, 0))
            self.assertTrue(0 < j["drift"]["kl"]["max"] < 1e-6)
            self.assertGreaterEqual(j["drift"]["kl"]["max"], j["drift"]["kl"]["mean"])
            p = halyard(*base, "--json", f"{d}/j")
            self.assertRegex(p.stdout, r"the same top 1 +40 of 40.*\n(.*\n)+.*layer 1 ")
            with open(f"{d}/j") as f:
                self.assertEqual(json.load(f)["drift"], j["drift"])
            p = halyard(*base, "--max-kl", "1e-30")
            self.assertEqual(p.returncode, 1)
            self.assertIn("above --max-kl", p.stderr)
            self.fails(("drift", "cpu", "cpu:1", model), 1, "devices 0 to 0")
            self.fails(("drift", "cpu", "cpu", model, "-n", "1"), 1, "--tokens")
            self.fails(("drift", "cpu", "cpu", model, "--random", "100000"), 1, "vocabulary of 512")
            self.fails(("drift", "cpu", "cpu", model, "--chunk", "1.5"), 1, "--chunk", "from 1 to 4096", "'1.5'")
        for fast in (("simt:fast",), ("simt", "-o", "engine.numerics=fast")):  # held to the bounds of its class
            p = halyard("conform", "--backend", *fast, "--op", "matmul", "--quick")
            self.assertEqual(p.returncode, 0, p.stdout)
        p = halyard("bench", "device", "--mib", "1", "--dim", "64", "--rows", "4", "--ms", "2", "-t", "1")
        self.assertEqual(p.returncode, 0, p.stderr)
        lines = [json.loads(x) for x in p.stdout.splitlines()]
        self.assertEqual([x["m"] for x in lines if x["test"] == "matmul"], [1, 2, 4])
        for x in lines[1:]:
            self.assertGreater(min(v for k, v in x.items() if k in ("gb_s", "us", "weight_gb_s", "tflop_s")), 0, x)
        self.fails(("bench", "device", "--type", "q4_0"), 1, "bf16, f16")
        # numbers are read whole, within their range, and named with both
        for cmd in (("bench", "device", "--rows", "many"), ("bench", "device", "--ms", "0"), ("bench", "device", "--mib", "1k"),
                    ("bench", "x", "--streams", "0"), ("bench", "x", "--prompt", "-1"),
                    ("bench", "x", "--reps", "99999999999999999999")):
            self.fails(cmd, 1, cmd[-2], "from", f"'{cmd[-1]}'")
        for cmd in (("bench", "device", "x"), ("bench", "a", "b"), ("drift", "cpu", "cpu", "a", "b")):
            self.fails(cmd, 2, f"'{cmd[-1]}' is one argument too many", "Usage")

    def test_used_wrongly(self):
        self.fails((), 2, "Usage")
        self.fails(("nope",), 2, "nope", "Usage")
        for c in COMMANDS:
            self.fails((c, "--bogus"), 2, "--bogus")
        for c in ("run", "serve", "inspect", "tokenize", "bench", "drift"):
            self.fails((c,), 2, "Usage")
        self.fails(("serve", "a", "b"), 2, "Usage")
        self.fails(("devices", "x"), 2, "x")
        self.fails(("serve", "x", "--port"), 2, "--port")
        self.fails(("serve", "x", "--port", "abc"), 2, "--port", "abc")
        self.fails(("serve", "x", "-o"), 2, "-o")
        self.fails(("run", "x", "--temperature", "hot"), 2, "--temperature", "hot")
        self.fails(("run", "x", "--top-p", "0"), 2, "--top-p")
        self.fails(("run", "x", "-n", "0"), 2, "--max-tokens")

    def test_overrides(self):
        self.assertIn("did you mean 'context'", self.fails(("serve", "x", "-o", "engine.contxt=5"), 2))
        self.fails(("serve", "x", "-o", "a=b"), 2, "section.key=value")
        self.assertNotIn("hunter", self.fails(("serve", "x", "-o", "api_key=hunter"), 2))
        self.assertNotIn("-o", self.fails(("serve", "x", "-o", "engine.contxt=5"), 2))
        self.fails(("serve", "x", "-o", "engine.threads=x"), 2, "threads")
        self.fails(("serve", "x", "-ochef.x=1"), 2, "chef")

    def test_models(self):
        for c in ("run", "serve", "inspect", "tokenize", "bench"):
            self.fails((c, "nope"), 1, "nope", "halyard fetch")
            with tempfile.TemporaryDirectory() as d:
                self.fails((c, "smollm2"), 1, "halyard fetch smollm2", HY_MODELS=d)
            self.fails((c, "/etc/passwd"), 1, "/etc/passwd", "not a GGUF file")

    def test_serve_looks_before_it_loads(self):
        """A port in use, wrong addresses and keys show before the model is opened (here: no model at all)."""
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            port = s.getsockname()[1]
            err = self.fails(("serve", "/etc/passwd", "--port", str(port)), 1, str(port), "in use")
            self.assertNotIn("GGUF", err)
        for args, word in ((("--host", "192.0.2.1", "--api-key", "x"), "192.0.2.1"), (("--host", "0.0.0.0"), "api_key"),
                           (("-o", "http.api_key_file=/nowhere"), "/nowhere"),
                           (("-o", "node.role=prefill", "-o", "cluster.secret_file=/nowhere"), "/nowhere")):
            err = self.fails(("serve", "/etc/passwd", "--port", "0", *args), 1, word)
            self.assertNotIn("GGUF", err)
        self.fails(("serve", "/etc/passwd", "--port", "0"), 1, "not a GGUF file")

    def test_configuration_file(self):
        with tempfile.TemporaryDirectory() as d:
            ini = os.path.join(d, "x.ini")
            with open(ini, "w") as f:
                f.write("[model]\npath = nothing-here\n[http]\nport = 1234\n")
            for c in ("run", "serve"):
                self.fails((c, ini), 1, "nothing-here")
                self.fails((c, ini, "-o", "model.path=other"), 1, "other")
                self.fails((c, "-o", "model.path=other", ini), 1, "other")
                self.fails((c, os.path.join(d, "none.ini")), 1, "none.ini")
            p = halyard("config", ini, "-o", "http.port=99")
            self.assertEqual(p.returncode, 0)
            self.assertIn("port = 99", p.stdout)
            with open(ini, "w") as f:
                f.write("[http]\nprt = 1\n")
            for c in ("run", "serve", "config"):
                self.fails((c, ini), 1, "x.ini:2", "did you mean 'port'")

    def test_cluster_file_is_no_node(self):
        """Given where a node's file belongs, or as one: the command that takes it is named. And the other way round."""
        with tempfile.TemporaryDirectory() as d:
            for i, text in enumerate(("[cluster]\nname = x\n[node.a]\nfile = n.ini\n", "# x\n  [ node.a ]\nfile = n.ini\n",
                                      "[cluster]\nnam = x\n[node.a]\n", "[node.a]")):
                ini = os.path.join(d, f"c{i}.ini")
                with open(ini, "w") as f:
                    f.write(text)
                for c in ("run", "serve", "config"):
                    self.fails((c, ini), 1, ini, "a cluster file", f"halyard up {ini}", f"--check {ini}")
            outer, node = os.path.join(d, "outer.ini"), os.path.join(d, "node.ini")
            with open(outer, "w") as f:
                f.write("[node.x]\nfile = c0.ini\n")
            self.fails(("up", "--check", outer), 1, "[node.x]", "c0.ini:3", "a cluster file")
            with open(node, "w") as f:
                f.write("[node]\nrole = decode\n")
            self.fails(("up", "--check", node), 1, "node.ini", "a cluster file")

    def test_manual(self):
        p = halyard("config")
        self.assertEqual(p.returncode, 0)
        for key in ("[engine]", "threads", "[kv]", "[http]", "[backend.cpu]", "isa"):
            self.assertIn(key, p.stdout)
        example = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../conf/all.ini")
        self.assertEqual(halyard("config", example).returncode, 0)

    def test_devices(self):
        p = halyard("devices")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertIn("cpu0:", p.stdout)
        self.fails(("conform", "--backend", "abacus"), 1, "abacus")

    @unittest.skipUnless(os.path.exists(SMOLLM2), "no SmolLM2 under $HY_MODELS")
    def test_run(self):
        p = halyard("run", SMOLLM2, "-p", "What is the capital of France? Answer with one word.", "-n", "8")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertIn("Paris", p.stdout)
        self.assertEqual(p.stderr, "")
        p = subprocess.run([BINARY, "run", SMOLLM2, "-p", "Hi", "-n", "4", "--stats"], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, timeout=400)  # a line of their own behind the answer
        self.assertRegex(p.stdout, r"\A[^\[\n][^\[]*\n\[\d+ prompt tokens .* tokens/s\]\n\Z")
        p = halyard("run", SMOLLM2, "-n", "8", stdin="My name is Ada.\nWhat is my name?\n")
        self.assertEqual((p.returncode, len(p.stdout.strip().split("\n"))), (0, 2), p.stdout)
        p = halyard("run", SMOLLM2, "-p", "word " * 3000, "-c", "256")
        self.assertEqual(p.returncode, 1)
        self.assertIn("256", p.stderr)
        p = subprocess.run([BINARY, "run", SMOLLM2, "-p", b"caf\xe9"], capture_output=True, text=True, timeout=400)
        self.assertEqual((p.returncode, p.stdout), (1, ""))
        self.assertIn("UTF-8", p.stderr)
        p = subprocess.Popen([BINARY, "run", SMOLLM2, "-p", "Write a long story about a ship.", "--temperature", "1"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        p.stdout.read(1)
        p.stdout.close()  # as `| head -c 1` does: nobody reads the rest
        self.assertEqual(p.wait(400), 1)
        self.assertIn("cannot be written", p.stderr.read())
        p.stderr.close()

    @unittest.skipUnless(os.path.exists(SMOLLM2), "no SmolLM2 under $HY_MODELS")
    def test_inspect_and_tokenize(self):
        p = halyard("inspect", SMOLLM2, "--tensors")
        self.assertEqual(p.returncode, 0)
        self.assertIn("llama", p.stdout)
        self.assertIn("blk.29.ffn_down.weight", p.stdout)
        ids = halyard("tokenize", SMOLLM2, "Hello, world").stdout.split()
        self.assertTrue(ids)


if __name__ == "__main__":
    unittest.main(verbosity=1)
