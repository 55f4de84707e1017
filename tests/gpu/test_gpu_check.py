#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/gpu-check, whole, at its smallest sizes. Usage: test_gpu_check.py HALYARD MODULE_DIR DRIVER_DOUBLE"""
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.abspath(f"{HERE}/../../tools/gpu-check")
HALYARD, MODULES, DOUBLE = (os.path.abspath(a) for a in sys.argv[1:4])
BUILD = os.path.dirname(HALYARD)
del sys.argv[1:4]
with open(HALYARD, "rb") as binary:
    SANITISED = b"__asan_init" in binary.read()
STEPS = ["build", "devices", "conformance", "make model", "logits", "prefill and decode", "device speed", "PyTorch",
         "exact model speed", "fast model speed", "fast numerics"]


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="hy-gpucheck-")
        self.addCleanup(shutil.rmtree, self.dir)

    def check(self, *args, status, script=SCRIPT, clean=False, **env):
        """Report of a run with that exit status."""
        env = {**({"PATH": os.environ["PATH"]} if clean else os.environ), **env}
        env.pop("HY_GPU_CHECK", None)
        p = subprocess.run([sys.executable, script, "--tiny", "--out", f"{self.dir}/out", "--work", self.dir, *args],
                           env=env, capture_output=True, text=True, timeout=400)
        self.assertEqual(p.returncode, status, f"{p.stdout}{p.stderr}{self.log()}")
        with open(f"{self.dir}/out/report.json") as f:
            report = json.load(f)
        self.assertEqual([s["step"] for s in report["steps"]], STEPS)
        with open(f"{self.dir}/out/report.txt") as f:
            text = f.read()
        for s in report["steps"]:
            self.assertIn(s["text"], text)
            self.assertIn(s["text"], p.stdout)
        self.assertEqual(os.listdir(self.dir), ["out"] if script == SCRIPT else os.listdir(self.dir))
        return report, {s["step"]: s for s in report["steps"]}

    def bins(self, cases):
        """A build whose halyard does these cases of "$1 $2" itself; BINS: its folder."""
        bins = f"{self.dir}-bin"
        os.mkdir(bins)
        self.addCleanup(shutil.rmtree, bins)
        os.symlink(f"{BUILD}/halyard-mkmodel", f"{bins}/halyard-mkmodel")
        with open(f"{bins}/halyard", "w") as f:
            f.write(f"#!/bin/sh\ncase \"$1 $2\" in\n{cases.replace('BINS', bins)}*) exec {HALYARD} \"$@\";;\nesac\n")
        os.chmod(f"{bins}/halyard", stat.S_IRWXU)
        return bins

    def log(self):
        try:
            with open(f"{self.dir}/out/log.txt") as f:
                return f.read()[-4000:]
        except FileNotFoundError:
            return ""

    def test_no_device(self):
        report, step = self.check("--build", BUILD, "--driver", "/nowhere/libcuda.so.1", "--backend", "cuda",
                                  status=3, HY_BACKEND_PATH=MODULES)
        self.assertEqual((report["verdict"], report["backend"]), ("no device", None))
        self.assertRegex(step["devices"]["text"], "no device: cuda: none .*/nowhere/libcuda.so.1")
        for name in STEPS[2:]:
            self.assertEqual((step[name]["status"], step[name]["text"]), ("skipped", "no device"))

    def test_double(self):
        """All of it through backends/cuda: conformance, logits, PD both ways, speeds."""
        report, step = self.check("--build", BUILD, "--driver", DOUBLE, "--backend", "cuda", status=0,
                                  HY_BACKEND_PATH=MODULES, HY_DOUBLE="image=double,wave=64,seed=4")
        self.assertEqual((report["verdict"], report["backend"]), ("all steps passed", "cuda"))
        self.assertRegex(step["conformance"]["text"], r"[1-9]\d* passed, 0 failed")
        j = step["logits"]["data"]
        self.assertTrue(j["b"]["device"].startswith("cuda0"))
        self.assertEqual(j["b"]["control"]["same_bits"], 24)
        self.assertEqual(j["drift"]["same_top1"], 24)
        self.assertGreater(max(x["relative"] for x in j["layers"]), 0)  # two backends, not one
        pd = step["prefill and decode"]["data"]
        self.assertEqual([(r["from"], r["to"]) for r in pd["rows"]], 3 * [("gpu", "cpu")] + 3 * [("cpu", "gpu")])
        self.assertGreater(min(pd["bytes_to_cpu"], pd["bytes_to_gpu"]), 0)
        for numerics in ("exact", "fast"):
            speed = step[f"{numerics} model speed"]["data"]
            for x in (speed["decode_1"]["gb_s"], speed["decode_8"]["of_copy"], speed["prefill"]["tflop_s"]):
                self.assertGreater(x, 0)
        self.assertIn("version", step["PyTorch"]["data"]) if "none" not in step["PyTorch"]["data"] else None

    @unittest.skipIf(SANITISED, "the script's own cases need no sanitizer")
    def test_failures_stop_nothing(self):
        """One step's program fails, one hangs, one says nonsense: the others are done."""
        bins = self.bins("'conform '*) echo planted; exit 1;;\n'drift '*) sleep 1000;;\n'bench device') echo 7;;\n")
        report, step = self.check("--build", bins, "--backend", "cpu", "--patience", "0.2", status=1)
        bad = {"conformance": "exit status 1: planted", "logits": "not done in", "device speed": "StopIteration",
               "fast numerics": "not done in"}
        for name, s in step.items():
            self.assertEqual(s["status"], "FAIL" if name in bad else "ok", s)
            self.assertIn(bad.get(name, ""), s["text"])
        self.assertEqual(report["verdict"], "4 of 11 steps failed")

    @unittest.skipIf(SANITISED, "the script's own cases need no sanitizer")
    def test_ended(self):
        """Whoever ends the script (a job's time is over) ends its programs, and finds the report so far."""
        bins = self.bins("'drift '*) echo $$ >BINS/part; mv BINS/part BINS/pid; exec sleep 1000;;\n'conform '*) echo '1 passed';;\n")
        p = subprocess.Popen([sys.executable, SCRIPT, "--tiny", "--out", f"{self.dir}/out", "--work", self.dir,
                              "--build", bins, "--backend", "cpu", "--patience", "100", "--budget", "10000"],
                             stdout=subprocess.DEVNULL)
        while not os.path.exists(f"{bins}/pid"):
            self.assertIsNone(p.poll())
            time.sleep(0.05)
        p.terminate()
        self.assertEqual(p.wait(), 128 + signal.SIGTERM)
        with open(f"{bins}/pid") as f:
            pid = f.read().strip()
        while os.path.exists(f"/proc/{pid}/cmdline") and open(f"/proc/{pid}/cmdline").read().startswith("sleep"):
            time.sleep(0.05)
        self.assertEqual(os.listdir(self.dir), ["out"])
        with open(f"{self.dir}/out/report.txt") as f:
            self.assertRegex(f.read(), "(?m)^ok +conformance")

    def test_nothing_that_runs(self):
        empty = f"{self.dir}-none"
        os.mkdir(empty)
        self.addCleanup(shutil.rmtree, empty)
        _, step = self.check("--build", empty, status=1, PATH="/nonexistent")
        self.assertIn("no halyard there", step["build"]["text"])
        self.assertIn("cannot build here either: no cmake", step["build"]["text"])
        self.assertEqual(step["logits"]["text"], "no build that runs here")

    @unittest.skipIf(SANITISED, "a sanitizer's build is not carried")
    def test_pack(self):
        """What is carried runs with an empty environment, on the C library that it brings."""
        pack = f"{self.dir}-pack"
        p = subprocess.run([sys.executable, SCRIPT, "--pack", pack, "--no-build", "--build", BUILD, "--module", MODULES],
                           capture_output=True, text=True, timeout=120)
        self.addCleanup(shutil.rmtree, pack)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertIn("halyard-cuda.so", p.stdout)
        _, step = self.check("--backend", "cpu", status=0, script=f"{pack}/gpu-check", clean=True,
                             HY_GPU_CHECK_GLIBC="own")
        self.assertIn(f"{pack} with the C library that it carries", step["build"]["text"])
        self.assertIn("\ncuda: none (", "\n" + "\n".join(step["devices"]["data"]["lines"]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
