# SPDX-License-Identifier: Apache-2.0
"""tools/build/build_kernels.py on a small tree of its own: what is compiled, what is not compiled again, what is refused."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SKIPPED = 77

TABLE = """MICA_TARGETS(TWO, "80 ptx80")
MICA_KERNEL(double_it, FORWARD, double_it, TWO, BF16, 64, 64, 128, 64, 4, 2, 1, PLAIN, "")
MICA_KERNEL(sum_up, FORWARD, sum_up, TWO, FP16, 64, 64, 128, 64, 4, 2, 1, FULL, "")
"""
DOUBLE_IT = """#include "kernels/factor.h"
extern "C" __global__ void MICA_KERNEL_NAME(float* x) { x[threadIdx.x] *= FACTOR + MICA_TILE_Q; }
"""
SUM_UP = """
extern "C" __global__ void MICA_KERNEL_NAME(float* x) { x[0] += x[threadIdx.x] * MICA_FULL; }
"""
# Far more values alive at once than 32 registers hold.
SPILLS = """
extern "C" __global__ void __launch_bounds__(1024, 2) MICA_KERNEL_NAME(float* x) {
  float v[64];
  for (int i = 0; i < 64; ++i) v[i] = x[i * threadIdx.x];
  for (int k = 0; k < 10; ++k)
    for (int i = 0; i < 64; ++i) v[i] *= v[(i * 7 + 1) & 63];
  for (int i = 0; i < 64; ++i) x[i * threadIdx.x + 1] = v[i];
}
"""


class BuildKernels(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        self.kernels = self.root / "src/cuda/kernels"
        self.kernels.mkdir(parents=True)
        (self.kernels / "instance.cu").write_text("#include MICA_KERNEL_FILE\n")
        (self.kernels / "factor.h").write_text("#define FACTOR 2\n")
        (self.kernels / "double_it.cuh").write_text(DOUBLE_IT)
        (self.kernels / "sum_up.cuh").write_text(SUM_UP)
        self.table(TABLE)

    def tearDown(self):
        self.folder.cleanup()

    def table(self, text):
        (self.root / "src/cuda/kernels.def").write_text(text)

    def build(self, *options):
        """Exit status, and how many images were compiled and not taken from the cache."""
        command = [sys.executable, ROOT / "tools/build/build_kernels.py", "--root", self.root, "--quiet"]
        result = subprocess.run([*map(str, command), *options], capture_output=True, text=True)
        self.output = result.stdout + result.stderr
        compiled = sum(line.startswith("[") and "FAILED" not in line for line in result.stdout.splitlines())
        return result.returncode, compiled

    def test_compiles_only_what_changed(self):
        self.assertEqual(self.build(), (0, 4), self.output)
        self.assertEqual(self.build(), (0, 0), self.output)
        (self.kernels / "factor.h").write_text("#define FACTOR 3\n")
        self.assertEqual(self.build(), (0, 2), self.output)
        self.table(TABLE.replace("128, 64, 4, 2, 1, FULL", "256, 64, 4, 2, 1, FULL"))
        self.assertEqual(self.build(), (0, 2), self.output)

    def test_match_and_arch_choose(self):
        self.assertEqual(self.build("--match", "^double"), (0, 2), self.output)
        self.assertEqual(self.build("--arch", "sm_80"), (0, 1), self.output)

    def test_outputs(self):
        out = self.root / "out"
        self.assertEqual(self.build("--out", str(out), "--depfile", str(out / "images.d"))[0], 0, self.output)
        report = json.loads((out / "resources.json").read_text())
        self.assertEqual([image["kernel"] for image in report["images"]], ["double_it"] * 2 + ["sum_up"] * 2)
        self.assertGreater(report["images"][0]["registers"], 0)
        self.assertEqual((out / "images.bin").stat().st_size, report["deflated_bytes"])
        self.assertEqual((out / "images.inc").read_text().count("},  // "), 4)
        self.assertIn("factor.h", (out / "images.d").read_text())

    def test_a_spill_needs_a_reason(self):
        (self.kernels / "sum_up.cuh").write_text(SPILLS)
        self.assertEqual(self.build("--arch", "80"), (1, 2))
        self.assertIn("sum_up 80: spills", self.output)
        self.assertEqual(self.build("--arch", "80")[0], 1, "what was refused is refused again")
        self.table(TABLE.replace('FULL, "")', 'FULL, "a test wants it")'))
        self.assertEqual(self.build("--arch", "80"), (0, 0), self.output)

    def test_errors_name_the_kernel(self):
        (self.kernels / "sum_up.cuh").write_text("this is no kernel\n")
        self.assertEqual(self.build("--arch", "80")[0], 1)
        self.assertIn("sum_up 80: FAILED", self.output)
        self.table(TABLE.replace("FP16", "FP17"))
        self.assertEqual(self.build()[0], 1)
        self.assertIn("kernels.def:3: dtype of sum_up is FP17", self.output)


if __name__ == "__main__":
    check = subprocess.run([sys.executable, ROOT / "tools/build/build_kernels.py", "--check"], capture_output=True, text=True)
    if check.returncode == SKIPPED:
        print("skipped: " + check.stdout.strip())
        sys.exit(SKIPPED)
    unittest.main()
