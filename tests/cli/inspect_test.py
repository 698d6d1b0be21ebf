#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`mica inspect` as a script sees it: wheels with faults packed by zipfile, exit codes, JSON.

Usage: inspect_test.py MICA LIBMICA [unittest arguments]."""

import base64
import hashlib
import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest
import zipfile

MICA = LIBRARY = None


def inspect(*paths):
    result = subprocess.run([MICA, "inspect", "--json", *map(str, paths)], capture_output=True, text=True)
    return result.returncode, json.loads(result.stdout)


def codes(report):
    return sorted({v["code"] for v in report["verdicts"] if v["severity"] != "note"})


class Wheels(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def wheel(self, files, name="demo-1.0-py3-none-any.whl", tag=None, version="1.0", method=zipfile.ZIP_DEFLATED):
        path = pathlib.Path(self.folder.name, name)
        tag = tag or "-".join(path.stem.split("-")[-3:])
        files = {
            **files,
            f"demo-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: demo\nVersion: {version}\n",
            f"demo-{version}.dist-info/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
        }
        record = ""
        with zipfile.ZipFile(path, "w", method) as archive:
            for file, data in files.items():
                data = data.encode() if isinstance(data, str) else data
                digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
                record += f"{file},sha256={digest},{len(data)}\n"
                archive.writestr(file, data)
            archive.writestr(f"demo-{version}.dist-info/RECORD", record + f"demo-{version}.dist-info/RECORD,,\n")
        return path

    def test_a_good_wheel(self):
        for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
            code, report = inspect(self.wheel({"demo/__init__.py": ""}, method=method))
            self.assertEqual((code, report["verdicts"]), (0, []))
            self.assertEqual(report["files"][0]["wheel"]["version"], "1.0")
            self.assertEqual(report["files"][0]["wheel"]["tags"], ["py3-none-any"])

    def test_a_wheel_with_a_library(self):
        """The library itself is in order; the tag is not."""
        data = pathlib.Path(LIBRARY).read_bytes()
        code, report = inspect(self.wheel({"demo/libmica.so": data}))
        self.assertEqual((code, codes(report)), (1, ["WHEEL_TAG_VS_ELF"]))
        binary = report["files"][0]["binaries"][0]
        self.assertEqual(binary["machine"], os.uname().machine)
        self.assertEqual(binary["soname"], "libmica.so.0")
        self.assertEqual(binary["cxx_abi"]["abi"], "neutral")
        tag = f"py3-none-linux_{os.uname().machine}"
        code, report = inspect(self.wheel({"demo/libmica.so": data}, name=f"demo-1.0-{tag}.whl"))
        self.assertEqual((code, codes(report)), (0, []))

    def test_claims_kernels_and_holds_none(self):
        code, report = inspect(self.wheel({"demo/a.py": "import torch\nimport demo_2_cuda as gpu\n"}))
        self.assertEqual((code, codes(report)), (1, ["WHEEL_NO_EXTENSION"]))
        verdict = report["verdicts"][0]
        self.assertEqual(verdict["message"], "No module named 'demo_2_cuda'")
        for key in ("code", "severity", "subject", "message", "cause", "fix", "evidence"):
            self.assertTrue(verdict[key], key)

    def test_names_that_disagree(self):
        code, report = inspect(self.wheel({"a.py": ""}, name="demo-1.0+cu12-py3-none-any.whl"))
        self.assertEqual((code, codes(report)), (0, ["WHEEL_VERSION_MISMATCH"]))
        code, report = inspect(self.wheel({"a.py": ""}, tag="cp312-cp312-linux_x86_64"))
        self.assertEqual((code, codes(report)), (0, ["WHEEL_TAG_MISMATCH"]))

    def test_hostile_archives(self):
        path = self.wheel({"a.py": ""})
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("../../evil.py", "")
            link = zipfile.ZipInfo("link")
            link.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(link, "/etc/passwd")
        code, report = inspect(path)
        self.assertEqual(code, 1)
        messages = " ".join(v["message"] for v in report["verdicts"])
        self.assertIn("'../../evil.py' leads outside", messages)
        self.assertIn("'link' is a symbolic link", messages)
        bomb = self.wheel({"zeros": b"\0" * (80 << 20)})
        code, report = inspect(bomb)
        self.assertEqual(code, 1)
        self.assertIn("zip bomb", report["verdicts"][0]["message"])

    def test_damage(self):
        path = self.wheel({"demo/__init__.py": "x = 1\n" * 100})
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        code, report = inspect(path)
        self.assertEqual((code, codes(report)), (1, ["WHEEL_ARCHIVE"]))


class Others(unittest.TestCase):
    def test_what_cannot_be_read(self):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder, "notes.txt")
            text.write_text("hello")
            for path in (text, "/nowhere", "/dev/null"):
                code, report = inspect(path)
                self.assertEqual(code, 2)
                self.assertIn("error", report["files"][0])
            # The others are still looked at.
            code, report = inspect(text, LIBRARY)
            self.assertEqual(code, 2)
            self.assertEqual(report["files"][1]["kind"], "elf")

    def test_a_folder_and_text_for_people(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "libx.so").write_bytes(pathlib.Path(LIBRARY).read_bytes())
            os.symlink("/", pathlib.Path(folder, "everything"))
            code, report = inspect(folder)
            self.assertEqual((code, len(report["files"][0]["binaries"])), (0, 1))
            result = subprocess.run([MICA, "inspect", folder], capture_output=True, text=True)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertIn("1 compiled file", result.stdout)
            self.assertIn("soname     libmica.so.0", result.stdout)
            self.assertNotIn("\x1b", result.stdout)


if __name__ == "__main__":
    MICA, LIBRARY = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
