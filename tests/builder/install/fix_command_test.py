#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`mica fix` in a throw-away environment: what it chooses, that it does it, and that it leaves no trace if it cannot.

Usage: fix_command_test.py MICA [unittest arguments]."""

import base64
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile

MICA = ""


def make_wheel(folder: pathlib.Path, name: str, version: str, files: dict, tag: str = "py3-none-any") -> pathlib.Path:
    info = f"{name}-{version}.dist-info"
    entries = dict(files)
    entries[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    entries[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n"
    rows = []
    for path, text in entries.items():
        content = text if isinstance(text, bytes) else text.encode()
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(content)}")
    entries[f"{info}/RECORD"] = "\n".join(rows) + f"\n{info}/RECORD,,\n"
    wheel = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in entries.items():
            archive.writestr(path, text)
    return wheel


class Fix(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.folder.name)
        subprocess.run([sys.executable, "-m", "venv", str(cls.root / "venv")], check=True)
        cls.python = cls.root / "venv/bin/python"

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def fix(self, *arguments: str):
        environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        result = subprocess.run([MICA, "fix", *arguments, "--python", str(self.root / "venv"), "--json"], cwd=self.root,
                                capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL)
        self.assertIn(result.returncode, (0, 1), result.stderr)
        return result.returncode, json.loads(result.stdout)

    def imports(self, program: str) -> str:
        result = subprocess.run([self.python, "-c", program], capture_output=True, text=True, cwd="/")
        return result.stdout.strip() if result.returncode == 0 else result.stderr.strip().splitlines()[-1]

    def snapshot(self) -> dict:
        site = next((self.root / "venv/lib").glob("python3*")) / "site-packages"
        return {str(p): p.read_bytes() for p in site.rglob("*") if p.is_file() and "__pycache__" not in p.parts}

    def test_a_wheel_and_its_successor(self):
        one = make_wheel(self.root, "demo", "1.0", {"demo/__init__.py": "x = 1\n", "demo/only_old.py": ""})
        code, report = self.fix(str(one), "--dry-run")
        self.assertEqual((code, report["choice"], report["done"]), (0, "wheel", False))
        self.assertIn("No module named 'demo'", self.imports("import demo"))
        code, report = self.fix(str(one), "--yes")
        self.assertEqual((code, report["done"], report["imported"]), (0, True, ["demo"]))
        self.assertEqual(self.imports("import demo; print(demo.x)"), "1")
        two = make_wheel(self.root, "demo", "2.0", {"demo/__init__.py": "x = 2\n"})
        code, report = self.fix(str(two), "--yes")
        self.assertEqual((code, report["replaced"]), (0, ["demo 1.0"]))
        self.assertEqual(self.imports("import demo, importlib.metadata as m; print(demo.x, m.version('demo'))"), "2 2.0")
        self.assertIn("No module named", self.imports("import demo.only_old"))
        # pip knows what is there, and can take it away again.
        subprocess.run([self.python, "-m", "pip", "uninstall", "-qy", "demo"], check=True, capture_output=True)
        self.assertIn("No module named 'demo'", self.imports("import demo"))

    def test_what_does_not_import_leaves_no_trace(self):
        good = make_wheel(self.root, "frail", "1.0", {"frail/__init__.py": "x = 1\n"})
        self.assertEqual(self.fix(str(good), "--yes")[0], 0)
        before = self.snapshot()
        bad = make_wheel(self.root, "frail", "2.0", {"frail/__init__.py": "raise ImportError('libgone.so.1: cannot open')\n"})
        code, report = self.fix(str(bad), "--yes")
        self.assertEqual((code, report["done"]), (1, False))
        self.assertIn("import frail", report["error"])
        self.assertEqual(self.snapshot(), before)
        self.assertEqual(self.imports("import frail; print(frail.x)"), "1")

    def test_the_drop_in_then_nothing_to_do(self):
        shelf = self.root / "shelf"
        shelf.mkdir()
        code, report = self.fix("flash-attn", "--from", str(shelf), "--dry-run")
        self.assertEqual((code, report["choice"]), (0, "build"))
        self.assertTrue(any("no wheel of flash-attn is at hand" in line for line in report["why"]), report["why"])
        make_wheel(shelf, "flash_attn", "2.8.3", {"flash_attn/__init__.py": "import flash_attn_2_cuda\n"})  # the pretender
        code, report = self.fix("flash_attn works with this torch", "--from", str(shelf), "--dry-run")
        self.assertEqual(report["choice"], "build")
        self.assertTrue(any("nothing was compiled into it" in line for line in report["why"]), report["why"])
        make_wheel(shelf, "flash_attn", "2.8.3+mica0.1.0", {"flash_attn/__init__.py": "from mica_attention import f\n"})
        make_wheel(shelf, "mica_attention", "0.1.0", {"mica_attention/__init__.py": "f = 7\n"})
        code, report = self.fix("flash_attn", "--from", str(shelf), "--yes")
        self.assertEqual((code, report["choice"], report["done"]), (0, "drop-in", True), report)
        self.assertEqual(self.imports("import flash_attn; print(flash_attn.f)"), "7")
        code, report = self.fix("flash-attn", "--from", str(shelf), "--yes")
        self.assertEqual((code, report["choice"]), (0, "nothing"))

    def test_refusals(self):
        code, report = self.fix(str(self.root / "none-1.0-py3-none-any.whl"), "--yes")
        self.assertEqual((code, report["choice"]), (1, "refused"))
        wheel = make_wheel(self.root, "shy", "1.0", {"shy/__init__.py": ""})
        for arguments, words in (([], "want a package"), ([str(wheel)], "give --yes")):
            result = subprocess.run([MICA, "fix", *arguments, "--python", str(self.root / "venv")], capture_output=True,
                                    text=True, stdin=subprocess.DEVNULL)
            self.assertEqual(result.returncode, 2)
            self.assertIn(words, result.stderr)
        result = subprocess.run([MICA, "fix", "--undo", "--python", str(self.root / "venv")], capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stdout), (0, "there was nothing to undo\n"))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    MICA = sys.argv.pop(1)
    unittest.main()
