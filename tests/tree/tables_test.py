# SPDX-License-Identifier: Apache-2.0
"""Every table that ages has its row in tables.def with a day and a way to make it anew; a refresh changes nothing twice."""

import datetime
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLES = ROOT / "src/doctor/tables"
TOOL = ROOT / "tools/truth/refresh_tables.py"
# Not tables: how GPUs are counted, how one is looked up, and the list itself.
OTHERS = {"gpu_arch.cc", "stable_abi.cc", "tables.cc"}
HEADER = """
#if TORCH_FEATURE_VERSION >= TORCH_VERSION_2_10_0
AOTI_TORCH_EXPORT AOTITorchError torch_first(int a);  // torch_in_a_comment(
#ifdef USE_CUDA
AOTI_TORCH_EXPORT AOTITorchError
torch_nested(int a);
#endif
#endif
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_of_no_release(int a);
#if TORCH_FEATURE_VERSION >= TORCH_VERSION_2_12_0
AOTI_TORCH_EXPORT int aoti_torch_second();
#endif
"""


def rows():
    text = (TABLES / "tables.def").read_text()
    return [re.findall(r'"([^"]*)"', call) for call in re.findall(r"^MICA_TABLE\((.*?)\)$", text, flags=re.M | re.S)]


class Tables(unittest.TestCase):
    def test_each_has_a_day_and_a_way(self):
        for file, as_of, what, source, refresh in rows():
            self.assertTrue((TABLES / file).is_file(), file)
            self.assertLessEqual(datetime.date.fromisoformat(as_of), datetime.date.today(), file)
            self.assertTrue(what and source and refresh, file)
            if not refresh.startswith("by hand"):
                self.assertTrue((ROOT / refresh.split()[0]).is_file(), refresh)
        named = {row[0] for row in rows()}
        there = {path.name for pattern in ("*.cc", "*.inc") for path in TABLES.glob(pattern)}
        self.assertEqual(there - named, OTHERS)

    def test_a_shim_is_read_by_its_releases(self):
        sys.path.insert(0, str(TOOL.parent))
        import refresh_tables
        with tempfile.TemporaryDirectory() as folder:
            for part in ("stable/c", "inductor/aoti_torch/c"):
                path = pathlib.Path(folder, "torch/csrc", part)
                path.mkdir(parents=True)
                (path / "shim.h").write_text(HEADER if part == "stable/c" else "")
            found = refresh_tables.torch_stable(pathlib.Path(folder))
            self.assertEqual(found, {10: {"torch_first", "torch_nested"}, 12: {"aoti_torch_second"}})
            self.assertEqual(refresh_tables.names_in(refresh_tables.rows(found)), found)
            (toml := pathlib.Path(folder, "stable_abi.toml")).write_text(
                "[function.PyA]\nadded = '3.2'\n[data.PyB]\nadded = '3.12'\n[macro.PyC]\nadded = '3.2'\n")
            self.assertEqual(refresh_tables.cpython_abi3(toml), {2: {"PyA"}, 12: {"PyB"}})

    def test_wrong_words_are_told(self):
        self.assertEqual(subprocess.run([sys.executable, TOOL, "gpus", "x"], capture_output=True).returncode, 2)


if __name__ == "__main__":
    unittest.main()
