#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`mica publish`, `mica verify` and `mica matrix` as a person uses them, and pip reading what they leave.

Usage: shelf_command_test.py MICA [unittest arguments]."""

import base64
import hashlib
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

MICA = None


# Neither the user's nor the machine's indexes take part, only the shelf.
PIP_ENVIRONMENT = {**os.environ, "PIP_CONFIG_FILE": os.devnull}


def run(*arguments, **options):
    return subprocess.run([MICA, *map(str, arguments)], capture_output=True, text=True, **options)


def run_json(*arguments):
    result = run(*arguments, "--json")
    return result.returncode, json.loads(result.stdout)


def make_wheel(folder, name, version="1.0", tag="py3-none-any", files=None):
    """A wheel with a whole RECORD."""
    info = f"{name}-{version}.dist-info"
    files = dict(files or {f"{name}/__init__.py": "answer = 42\n"})
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n"
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text.encode())}\n"
    files[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    path = pathlib.Path(folder) / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for inner, text in files.items():
            wheel.writestr(inner, text)
    return path


def make_pretender(folder):
    """What flash-attn's setup.py leaves when the CUDA part was skipped."""
    files = {"flash_attn/__init__.py": "", "flash_attn/interface.py": "import flash_attn_2_cuda as flash_attn_gpu\n"}
    return make_wheel(folder, "flash_attn", "2.8.3", files=files)


class Shelf(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        self.shelf = self.folder / "shelf"

    def publish(self, wheel):
        code, out = run_json("publish", wheel, self.shelf)
        self.assertEqual((code, out["published"]), (0, True), out)
        return out


class Publish(Shelf):
    def test_what_is_there_afterwards(self):
        wheel = make_wheel(self.folder, "small_one")
        out = self.publish(wheel)
        self.assertTrue(out["new"])
        self.assertEqual(out["sha256"], hashlib.sha256(wheel.read_bytes()).hexdigest())
        self.assertEqual((self.shelf / wheel.name).read_bytes(), wheel.read_bytes())
        provenance = json.loads(pathlib.Path(out["provenance"]).read_text())
        self.assertEqual(provenance["sha256"], out["sha256"])
        self.assertIsNone(provenance["build"])
        self.assertFalse(self.publish(wheel)["new"])

    def test_pip_installs_from_the_folder_and_from_the_index(self):
        if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode != 0:
            self.skipTest("this Python has no pip")
        self.publish(make_wheel(self.folder, "small_one"))
        for number, source in enumerate(
            (["--no-index", "--find-links", self.shelf], ["--index-url", (self.shelf / "simple").as_uri()])
        ):
            target = self.folder / str(number)
            command = [sys.executable, "-m", "pip", "install", "--isolated", "--target", target, *source, "small-one"]
            result = subprocess.run([*map(str, command)], capture_output=True, text=True, env=PIP_ENVIRONMENT)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertTrue((target / "small_one" / "__init__.py").exists())

    def test_pip_notices_altered_bytes(self):
        wheel = make_wheel(self.folder, "small_one")
        self.publish(wheel)
        with open(self.shelf / wheel.name, "ab") as file:
            file.write(b"x")
        command = [sys.executable, "-m", "pip", "install", "--isolated", "--target", self.folder / "t", "--index-url"]
        command += [(self.shelf / "simple").as_uri(), "small-one"]
        result = subprocess.run([*map(str, command)], capture_output=True, text=True, env=PIP_ENVIRONMENT)
        if "No module named pip" in result.stderr:
            self.skipTest("this Python has no pip")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("DO NOT MATCH THE HASHES", result.stderr)

    def test_a_build_record_becomes_provenance_only_of_its_own_bytes(self):
        wheel = make_wheel(self.folder, "small_one")
        sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
        line = {"package": "small-one", "torch": "2.11.0", "status": "imported"}
        record = pathlib.Path(f"{wheel}.build.json")
        record.write_text(json.dumps({"sha256": sha256, "seconds": 12, "matrix": line}))
        provenance = json.loads(pathlib.Path(self.publish(wheel)["provenance"]).read_text())
        self.assertEqual(provenance["build"]["seconds"], 12)
        self.assertEqual(run_json("matrix", self.shelf)[1]["lines"][0]["torch"], "2.11.0")
        other = make_wheel(self.folder, "small_two")
        pathlib.Path(f"{other}.build.json").write_text(json.dumps({"sha256": sha256}))
        out = self.publish(other)
        self.assertIn("of another wheel", out["note"])
        self.assertIsNone(json.loads(pathlib.Path(out["provenance"]).read_text())["build"])

    def test_the_line_to_install_by_is_one_for_a_shell(self):
        self.shelf = self.folder / "the group's wheels"
        result = run("publish", make_wheel(self.folder, "small_one"), self.shelf.name, cwd=self.folder)
        line = next(line for line in result.stdout.splitlines() if line.startswith("install "))
        self.assertEqual(shlex.split(line)[-3:], ["--find-links", str(self.shelf), "small-one"])

    def test_a_path_of_any_bytes(self):
        """Latin-1 in the name of a folder: no UTF-8, and no reason to end after the wheel was put there."""
        self.shelf = self.folder / os.fsdecode(b"r\xe4ume")
        wheel = make_wheel(self.folder, "small_one")
        command = [os.fsencode(word) for word in (MICA, "publish", wheel, self.shelf, "--json")]
        result = subprocess.run(command, capture_output=True)
        self.assertEqual((result.returncode, result.stderr), (0, b""))
        self.assertTrue(json.loads(result.stdout)["new"])
        for words in (["verify"], ["matrix"], ["publish", "--reindex"]):
            command = [os.fsencode(word) for word in (MICA, *words, self.shelf, "--json")]
            result = subprocess.run(command, capture_output=True)
            self.assertEqual(result.returncode, 0, result.stderr)
            json.loads(result.stdout)

    def test_a_pretender_is_not_taken(self):
        code, out = run_json("publish", make_pretender(self.folder), self.shelf)
        self.assertEqual((code, out["published"]), (1, False))
        self.assertIn("WHEEL_NO_EXTENSION", [verdict["code"] for verdict in out["verdicts"]])
        self.assertFalse(self.shelf.exists())

    def test_another_file_of_that_name_stays(self):
        wheel = make_wheel(self.folder, "small_one")
        self.publish(wheel)
        before = (self.shelf / wheel.name).read_bytes()
        make_wheel(self.folder, "small_one", files={"small_one/__init__.py": "answer = 43\n"})
        result = run("publish", wheel, self.shelf)
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr.count("\n"), 1)
        self.assertIn("another file with the same name", result.stderr)
        self.assertEqual((self.shelf / wheel.name).read_bytes(), before)

    def test_bad_usage_gets_one_line(self):
        (self.folder / "file").write_text("x")
        wheel = make_wheel(self.folder, "small_one")
        for arguments, about in (
            ([], "want a wheel"),
            ([self.folder / "nowhere.whl", self.shelf], "nowhere.whl"),
            ([wheel, self.folder / "file" / "below"], "cannot make folder"),
            (["--reindex", self.folder / "nowhere"], "no folder"),
            ([wheel, self.shelf, "--reindex", self.folder], "--reindex publishes nothing"),
        ):
            result = run("publish", *arguments)
            self.assertEqual(result.returncode, 2, result.stdout)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
            self.assertIn(about, result.stderr)
        self.assertFalse((self.folder / "nowhere").exists())
        self.assertFalse((self.folder / "simple").exists())


class Verify(Shelf):
    def test_altered_and_unknown_wheels_are_named(self):
        good, altered = make_wheel(self.folder, "good"), make_wheel(self.folder, "altered")
        self.publish(good)
        self.publish(altered)
        make_wheel(self.shelf, "altered", files={"altered/__init__.py": "import os\n"})
        make_wheel(self.shelf, "stray")
        code, out = run_json("verify", self.shelf)
        self.assertEqual(code, 1)
        codes = {entry["wheel"].split("-")[0]: [v["code"] for v in entry["verdicts"]] for entry in out["wheels"]}
        self.assertIn("SHARE_ALTERED", codes["altered"])
        self.assertIn("SHARE_UNRECORDED", codes["stray"])
        self.assertEqual([entry["ok"] for entry in out["wheels"]], [False, True, True])
        self.assertEqual([v["code"] for v in out["verdicts"]], ["SHARE_INDEX_STALE"])
        self.assertEqual(run("publish", "--reindex", self.shelf).returncode, 0)
        self.assertEqual(run_json("verify", self.shelf)[1]["verdicts"], [])

    def test_a_pretender_is_set_aside_on_request(self):
        self.shelf.mkdir()
        wheel = make_pretender(self.shelf)
        self.publish(make_wheel(self.folder, "good"))
        code, out = run_json("verify", self.shelf)
        self.assertEqual((code, wheel.exists()), (1, True))
        code, out = run_json("verify", self.shelf, "--quarantine")
        self.assertFalse(wheel.exists())
        self.assertTrue((self.shelf / "quarantine" / wheel.name).exists())
        self.assertEqual(run("verify", self.shelf).returncode, 0)

    def test_the_report_comes_also_where_nothing_can_be_recorded(self):
        self.publish(make_wheel(self.folder, "good"))
        shutil.rmtree(self.shelf / "matrix")
        (self.shelf / "matrix").write_text("no folder")
        result = run("verify", self.shelf, "--record", "--json")
        self.assertEqual(result.returncode, 2)
        self.assertIn("cannot make folder", result.stderr)
        self.assertEqual([entry["ok"] for entry in json.loads(result.stdout)["wheels"]], [True])

    def test_names_move_no_cursor(self):
        self.shelf.mkdir()
        make_wheel(self.shelf, "red\x1b[31m")
        (self.shelf / ".red.whl.node.1.0.tmp").write_text("half")
        result = run("verify", self.shelf)
        self.assertIn("red\\x1b[31m-1.0", result.stdout)
        self.assertNotIn("\x1b", result.stdout)

    def test_damaged_files_do_no_harm(self):
        self.shelf.mkdir()
        (self.shelf / "broken-1.0-py3-none-any.whl").write_bytes(b"PK\x03\x04 no archive")
        (self.shelf / "empty-1.0-py3-none-any.whl").write_bytes(b"")
        os.mkfifo(self.shelf / "pipe-1.0-py3-none-any.whl")
        code, out = run_json("verify", self.shelf)
        self.assertEqual((code, len(out["wheels"])), (1, 2))
        self.assertEqual(run("verify", self.folder / "nowhere").returncode, 2)


class Matrix(Shelf):
    def test_forms(self):
        self.shelf.mkdir()
        lines = [
            {"package": "flash-attn", "version": "2.8.3", "torch": "2.11.0", "cuda": "13.0", "python": "3.12"},
            {"package": "flash-attn", "version": "2.8.3", "torch": "2.9.0", "cuda": "12.8", "python": "3.12"},
        ]
        texts = [{**lines[0], "status": "fails", "codes": ["GPU_NO_CODE"], "time": "2026-01-01T00:00:00Z"}]
        texts += [{**lines[0], "status": "imported", "time": "2026-02-01T00:00:00Z", "gpu": ""}]
        texts += [{**lines[1], "status": "compared", "gpu": "<H200|x>", "time": "2026-02-01T00:00:00Z"}]
        (self.shelf / "matrix.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
        table = run("matrix", self.shelf)
        self.assertEqual(table.returncode, 0)
        rows = table.stdout.splitlines()
        self.assertEqual(len(rows), 3)  # the newest line about a combination stands for it
        self.assertIn("2.9.0", rows[1])  # 2.9 before 2.11
        self.assertIn("imported", rows[2])
        self.assertEqual(len(run("matrix", self.shelf, "--all").stdout.splitlines()), 4)
        self.assertIn("| <H200\\|x> |", run("matrix", self.shelf, "--format", "markdown").stdout)
        page = self.folder / "matrix.html"
        self.assertEqual(run("matrix", self.shelf, "--format", "html", "--output", page).returncode, 0)
        self.assertIn("&lt;H200|x&gt;", page.read_text())
        self.assertEqual(run_json("matrix", self.shelf, "--package", "other")[1]["lines"], [])

    def test_lines_that_make_no_sense_are_named(self):
        self.shelf.mkdir()
        (self.shelf / "matrix.jsonl").write_text("oops\n")
        result = run("matrix", self.shelf)
        self.assertEqual(result.returncode, 1)
        self.assertIn("line 1", result.stderr)
        self.assertEqual(run("matrix", self.folder / "nowhere").returncode, 2)


if __name__ == "__main__":
    MICA = sys.argv.pop(1)
    unittest.main()
