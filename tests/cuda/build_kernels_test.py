# SPDX-License-Identifier: Apache-2.0
"""tools/build/build_kernels.py on a small tree of its own: what is compiled, what is not compiled again, what is refused."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools/build"))
import kernel_table  # noqa: E402
SKIPPED = 77

TABLE = """MICA_TARGETS(TWO, "80 ptx80")
MICA_KERNEL(double_it, double_it, .dtype = BF16, .role = FORWARD, .targets = TWO,
    .dim_qk = 64, .dim_v = 64, .tile_q = 128, .tile_k = 64, .warps = 4, .stages = 2, .blocks = 1)
MICA_KERNEL(sum_up, sum_up, .dtype = FP16, .role = FORWARD, .targets = TWO, .served = FULL,
    .dim_qk = 64, .dim_v = 64, .tile_q = 32, .tile_k = 64, .warps = 4, .stages = 2, .blocks = 1)
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
        (self.kernels / "parts").mkdir(parents=True)
        (self.kernels / "parts/instance.cu").write_text("#include MICA_KERNEL_FILE\n")
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
        self.table(TABLE.replace(".tile_q = 32", ".tile_q = 64"))
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
        self.assertEqual((out / "images.bin").stat().st_size, report["packed_bytes"])
        self.assertEqual((out / "images.inc").read_text().count("},  // "), 4)
        self.assertIn("factor.h", (out / "images.d").read_text())

    def packed(self, *options):
        """Builds, and unpacks the images as the library does. {"kernel target": that of its base}."""
        import zstandard  # not there where all of this is skipped

        out = self.root / "out"
        self.assertEqual(self.build("--out", str(out), "--save", str(self.root / "plain"), *options)[0], 0, self.output)
        blob = (out / "images.bin").read_bytes()
        numbers = [list(map(int, re.findall(r"-?\d+", line.split("//")[0])))
                   for line in (out / "images.inc").read_text().splitlines() if line.startswith("{")]  # fmt: skip
        labels = [f"{image['kernel']} {image['target']}" for image in json.loads((out / "resources.json").read_text())["images"]]

        def unpack(place, most):
            offset, packed_bytes, size, base = numbers[place][4:8]
            self.assertGreater(most, 0, "a chain of bases has an end")
            prefix = None
            if base >= 0:
                prefix = zstandard.ZstdCompressionDict(unpack(base, most - 1), dict_type=zstandard.DICT_TYPE_RAWCONTENT)
            image = zstandard.ZstdDecompressor(dict_data=prefix).decompress(blob[offset : offset + packed_bytes])
            self.assertEqual(len(image), size)
            return image

        for place, label in enumerate(labels):
            name, target = label.split()
            suffix = "ptx" if target.startswith("ptx") else "cubin"
            self.assertEqual(unpack(place, 4), (self.root / "plain" / f"{name}.{target}.{suffix}").read_bytes(), label)
        return {label: labels[row[7]] if row[7] >= 0 else None for label, row in zip(labels, numbers)}

    def test_bases(self):
        # Two pairs of one file, of about the same size, and one kernel of another file.
        row = "MICA_KERNELS({}, .role = FORWARD, .targets = ALL, .tile_q = {}, .warps = 4)\n"
        self.table('MICA_TARGETS(ALL, "80 86 89")\n' + row.format("double_it, _a", 16) + row.format("double_it, _b", 32)
                   + row.format("sum_up, _c", 16))  # fmt: skip
        bases = self.packed()
        self.assertEqual(len(bases), 18)
        alone = {label for label, base in bases.items() if not base}
        self.assertEqual(len(alone & {"double_it_bf16_a 86", "double_it_bf16_b 86"}), 1, "one is the base of the other")
        self.assertEqual(len(alone), 4, "one of each file for sm_80 and sm_86")
        self.assertEqual(bases["double_it_fp16_a 86"], "double_it_bf16_a 86", "its twin")
        self.assertEqual(bases["double_it_fp16_a 89"], "double_it_fp16_a 86", "nearly the same code")
        self.assertEqual(bases["double_it_bf16_a 89"], "double_it_bf16_a 86")
        self.assertEqual(self.build()[1], 0)
        alone = self.packed("--arch", "89", "--match", "fp16_c")
        self.assertEqual(alone, {"sum_up_fp16_c 89": None}, "what is not built is no base")

    def test_packing_again_compiles_nothing(self):
        before = self.packed()
        for packed in (self.root / ".cache/kernels").glob("*.packed"):
            packed.unlink()
        self.assertEqual(self.build("--out", str(self.root / "out")), (0, 0), self.output)
        self.assertEqual(self.packed(), before)

    def test_a_spill_needs_a_reason(self):
        (self.kernels / "sum_up.cuh").write_text(SPILLS)
        self.assertEqual(self.build("--arch", "80"), (1, 2))
        self.assertIn("sum_up 80: spills", self.output)
        self.assertEqual(self.build("--arch", "80")[0], 1, "what was refused is refused again")
        self.table(TABLE.removesuffix(")\n") + ', .why_spill = "a test wants it")\n')
        self.assertEqual(self.build("--arch", "80"), (0, 0), self.output)

    def test_errors_name_the_kernel(self):
        (self.kernels / "sum_up.cuh").write_text("this is no kernel\n")
        self.assertEqual(self.build("--arch", "80")[0], 1)
        self.assertIn("sum_up 80: FAILED", self.output)
        self.table(TABLE.replace("FP16", "FP17"))
        self.assertEqual(self.build()[0], 1)
        self.assertIn("kernels.def:4: dtype of sum_up is FP17", self.output)

    def test_a_row_names_what_it_sets(self):
        pair = "MICA_KERNELS(sum_up, _d64, .role = FORWARD, .targets = TWO, .warps = 4)\n"
        rows = kernel_table.parse('MICA_TARGETS(TWO, "80 ptx80")\n' + pair)
        self.assertEqual([(row.name, row.file, row.dtype, row.warps, row.blocks, row.targets) for row in rows], [
            ("sum_up_bf16_d64", "sum_up", "BF16", 4, 0, ["80", "ptx80"]),
            ("sum_up_fp16_d64", "sum_up", "FP16", 4, 0, ["80", "ptx80"]),
        ])  # fmt: skip
        for wrong, message in (
            (TABLE.replace(".warps = 4", ".wraps = 4"), "kernels.def:2: no field is called wraps"),
            (TABLE.replace(".warps = 4", ".warps = four"), "kernels.def:2: warps is four, want a number"),
            (TABLE.replace(".dim_v = 64, .tile_q = 32", ".tile_q = 32, .dim_v = 64"), "kernels.def:4: fields stand as"),
            (TABLE.replace(".targets = TWO", ".targets = SIX"), "kernels.def:2: double_it is for SIX"),
            (TABLE.replace(".blocks = 1)", ".blocks = 1"), "a bracket or a quote is missing"),
            (TABLE.replace("(sum_up", "(double_it"), "kernels.def:4: double_it is there twice"),
        ):
            with self.subTest(message), self.assertRaisesRegex(SystemExit, re.escape(message)):
                kernel_table.parse(wrong)


if __name__ == "__main__":
    check = subprocess.run([sys.executable, ROOT / "tools/build/build_kernels.py", "--check"], capture_output=True, text=True)
    if check.returncode == SKIPPED:
        print("skipped: " + check.stdout.strip())
        sys.exit(SKIPPED)
    unittest.main()
