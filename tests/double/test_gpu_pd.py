#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prefill on one backend, decode on another, through the cuda and hip modules and the doubles of their
vendors' libraries: cuda at wave 32, hip at wave 64, both seeded and adversarial, against the host executor, bit
for bit. Also a device that is lost under load: its requests fail, nothing hangs, the node says why.
Usage: test_gpu_pd.py HALYARD FOLDER_OF_THE_MODULES CUDA_DOUBLE HIP_DOUBLE"""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../pd"))
import kit  # noqa: E402
import test_mixed  # noqa: E402
from test_mixed import ask, metric  # noqa: E402


class Gpu(test_mixed.Mixed):
    NODES = {"simt": "backend.name=simt", "cuda": "", "hip": ""}  # the doubles' paths: main
    FAMILY = "llama"

    PLAN = {"HY_DOUBLE_CUDA": "wave=32,seed=11,image=double", "HY_DOUBLE_HIP": "wave=64,seed=12,image=double"}

    test_cpu_and_simt = test_unlike_values_are_refused = test_waves_agree = None

    @classmethod
    def setUpClass(cls):
        os.environ.update(cls.PLAN)
        super().setUpClass()

    def test_pairs(self):
        for more, lines in (({}, self.lines[3::4]), ({"temperature": 1, "seed": 5, "top_p": 0.95}, self.lines[2:3])):
            for line in lines:
                one = ask(self.port["simt"], line["ids"], **more)[0]["choices"][0]
                for n in ("cuda", "hip"):
                    self.assertEqual(one, ask(self.port[n], line["ids"], **more)[0]["choices"][0], n)
                for p, d in (("cuda", "hip"), ("hip", "cuda"), ("simt", "cuda"), ("hip", "simt")):
                    self.assertEqual(one, self.pd(p, d, line["ids"], **more), f"{p} to {d}, {line['id']}")
                    self.assertEqual(self.computed, 0)


    def test_memory_is_told(self):
        """How peers reach each cache: TCP takes no device memory, and the page, the metric and the log say so."""
        for n in self.NODES:
            memory = kit.request(self.port[n], "GET", "/links", None).json()["memory"]
            path = "host" if n == "simt" else "host staging"
            self.assertEqual(memory.split(": ")[0], path)
            with open(f"{self.up.dir}/run/{n}.log") as f:
                log = f.read()
            for way in ("host", "dmabuf", "host staging"):
                self.assertEqual(metric(self.port[n], 'halyard:kv_memory{path="%s"}' % way), way == path)
            if n != "simt":
                self.assertRegex(memory, "device memory")
                self.assertIn(f"KV goes through {memory}", log)


class Lost(Gpu):
    """The cuda node's device is lost in the middle of its work."""
    PLAN = {**Gpu.PLAN, "HY_DOUBLE_CUDA": "wave=32,seed=3,image=double,fail=3,at=2000"}

    test_memory_is_told = None

    def test_pairs(self):
        line, failed = self.lines[1], None
        one = ask(self.port["simt"], line["ids"])[0]["choices"][0]
        for _ in range(200):
            try:
                self.assertEqual(one, ask(self.port["cuda"], line["ids"])[0]["choices"][0])
            except AssertionError as e:
                failed = str(e)
                break
        self.assertIsNotNone(failed, "the device was never lost")
        self.assertIn("500: ", failed)  # never another token
        with self.assertRaises(AssertionError):  # nor does it come back, or hang
            ask(self.port["cuda"], line["ids"])
        with open(f"{self.up.dir}/run/cuda.log") as f:
            self.assertIn("ECC_UNCORRECTABLE (214)", f.read())
        self.assertEqual(one, self.pd("hip", "simt", line["ids"]))  # the others go on
        self.assertEqual(one, self.pd("simt", "hip", line["ids"]))


del test_mixed.Mixed, test_mixed.Router  # theirs run in tests/pd

if __name__ == "__main__":
    kit.HALYARD, modules, cuda, hip = (os.path.abspath(a) for a in sys.argv[1:5])
    del sys.argv[1:5]
    os.environ["HY_BACKEND_PATH"] = modules
    Gpu.NODES["cuda"] = f"backend.name=cuda, backend.cuda.driver={cuda}, kv.block_tokens=32"
    Gpu.NODES["hip"] = f"backend.name=hip, backend.hip.driver={hip}, kv.block_tokens=64, kv.order=hnd"
    unittest.main(verbosity=2)
