#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`mica doctor`, `mica explain` and `mica pick` as a script sees them; and that every verdict has its section in the docs.

Usage: doctor_test.py MICA LIBMICA [unittest arguments]."""

import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MICA = LIBRARY = None
FIELDS = {"code", "severity", "subject", "message", "cause", "fix", "evidence"}


def run(*arguments, text=None):
    # A home of its own: what lies in the real one is no part of the test.
    environment = {**os.environ, "HOME": "/nonexistent"}
    return subprocess.run([MICA, *map(str, arguments)], capture_output=True, text=True, input=text, env=environment)


def run_json(*arguments, text=None):
    """Checks on the way what every verb promises of --json: its verdicts, and the exit code."""
    result = run(*arguments, "--json", text=text)
    report = json.loads(result.stdout)
    assert report["exit_code"] == result.returncode, (arguments, result.returncode)
    for verdict in report["verdicts"]:
        assert FIELDS <= set(verdict), verdict
        assert verdict["severity"] in ("error", "warning", "note"), verdict
        assert isinstance(verdict["evidence"], list) and verdict["message"], verdict
    if any(verdict["severity"] == "error" for verdict in report["verdicts"]):
        assert result.returncode == 1, arguments
    return result.returncode, report


def note_covered(code):
    """As tests/verdict_notes.h does: a fixture and a near miss of this code were seen."""
    if "MICA_VERDICT_NOTES" in os.environ:
        pathlib.Path(os.environ["MICA_VERDICT_NOTES"], "cli_doctor").write_text(code + "\n")


class Doctor(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def test_the_environment(self):
        code, report = run_json("doctor")
        self.assertIn(code, (0, 1, 2))
        host = report["environment"]["host"]
        self.assertEqual(host["machine"], os.uname().machine)
        self.assertGreater(host["memory_bytes"], 0)
        programs = [python["executable"] for python in report["environment"]["pythons"]]
        self.assertTrue(programs)

    def test_this_python_is_what_it_says_of_itself(self):
        code, report = run_json("doctor", LIBRARY, "--python", sys.executable)
        self.assertEqual(code, 0, report["verdicts"])
        own = [p for p in report["environment"]["pythons"] if p["program"] == sys.executable or
               os.path.realpath(p["program"]) == os.path.realpath(sys.executable)]
        self.assertTrue(own)
        self.assertTrue(sys.version.startswith(own[0]["version"].rsplit(".", 1)[0]), own[0]["version"])

    def test_our_own_library_loads_here_and_in_a_described_target(self):
        target, page = self.path / "target.json", self.path / "page.html"
        self.assertEqual(run("doctor", LIBRARY, "--export", target, "--html", page).returncode, 0)
        self.assertIn("<!doctype html>", page.read_text())
        code, report = run_json("doctor", LIBRARY, "--target", target)
        self.assertEqual(code, 0, report["verdicts"])
        self.assertIn("LOADS", [verdict["code"] for verdict in report["verdicts"]])
        # The same target with another machine in it.
        described = json.loads(target.read_text())
        self.assertEqual(described["mica_target"], 1)
        target.write_text(json.dumps({**described, "machine": "riscv64"}))
        code, report = run_json("doctor", LIBRARY, "--target", target)
        self.assertEqual((code, [verdict["code"] for verdict in report["verdicts"]]), (1, ["ELF_MACHINE"]))

    def test_what_cannot_be_read_does_not_hide_the_rest(self):
        for verb in ("doctor", "inspect"):
            code, report = run_json(verb, "/nowhere.so", LIBRARY)
            self.assertEqual(code, 2, verb)
            codes = [verdict["code"] for verdict in report["verdicts"]]
            self.assertEqual(codes.count("CANNOT_TELL"), 1, verb)
            self.assertEqual(len(report["judged" if verb == "doctor" else "files"]), 2)
            result = run(verb, "/nowhere.so", LIBRARY)
            self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1))
            self.assertIn("libmica", result.stdout)
        # What will fail outweighs what is not known.
        bad = self.path / "bad-1.0-py3-none-any.whl"
        bad.write_text("no archive")
        for verb in ("doctor", "inspect"):
            self.assertEqual(run_json(verb, "/nowhere.so", bad)[0], 1, verb)

    def test_an_installed_package(self):
        """By its name, by a folder of it; nothing of it is executed."""
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.path / "venv"], check=True)
        site = next((self.path / "venv" / "lib").glob("python3*")) / "site-packages"
        record = "demo/__init__.py,,\ndemo/libdemo.so,,\ndemo-1.0.dist-info/METADATA,,\ndemo-1.0.dist-info/WHEEL,,\n"
        for name, text in {"demo/__init__.py": "raise SystemExit(9)\n",
                           "demo-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
                           "demo-1.0.dist-info/WHEEL": f"Wheel-Version: 1.0\nTag: py3-none-linux_{os.uname().machine}\n",
                           "demo-1.0.dist-info/RECORD": record}.items():
            (site / name).parent.mkdir(exist_ok=True)
            (site / name).write_text(text)
        (site / "demo/libdemo.so").write_bytes(pathlib.Path(LIBRARY).read_bytes())
        python = ["--python", self.path / "venv"]
        for given in (["demo", *python], [site / "demo"], [site / "demo-1.0.dist-info"]):
            code, report = run_json("inspect", *given)
            found = report["files"][0]
            self.assertEqual((code, found["kind"], found["package"]["version"]), (0, "package", "1.0"), given)
            self.assertEqual([binary["path"] for binary in found["binaries"]], ["demo/libdemo.so"])
        for given in ("demo", site / "demo"):
            code, report = run_json("doctor", given, *python)
            self.assertEqual((code, [verdict["code"] for verdict in report["verdicts"]]), (0, ["LOADS"]), given)
            self.assertEqual(report["judged"][0]["subject"], "demo 1.0")
        # For another machine, as if it were moved there.
        target = self.path / "target.json"
        self.assertEqual(run("doctor", "demo", *python, "--export", target).returncode, 0)
        for machine, expected in ((os.uname().machine, (0, ["LOADS"])), ("riscv64", (1, ["WHEEL_TAG_PLATFORM"]))):
            target.write_text(json.dumps({**json.loads(target.read_text()), "machine": machine}))
            code, report = run_json("doctor", site / "demo", "--target", target)
            self.assertEqual((code, [verdict["code"] for verdict in report["verdicts"]]), expected)
        for verb in ("inspect", "doctor"):
            result = run(verb, "no-such-package", *python)
            self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1))
            self.assertIn("no-such-package is no file, and no package of ", result.stderr)
        (site / "demo/__init__.py").unlink()
        self.assertEqual(run_json("inspect", "demo", *python)[0], 1, "a recorded file is gone")

    def test_bad_usage_gets_one_line(self):
        bad = self.path / "bad.json"
        bad.write_text("{")
        for arguments in (["/nowhere.so"], ["--python", "/nowhere"], ["--target", bad, LIBRARY], ["--target", "/nowhere", LIBRARY],
                          ["--python", ""], ["--export", "/nowhere/x.json"], ["--html", "/nowhere/x.html"], [bad]):
            result = run("doctor", *arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertEqual(result.stdout, "", arguments)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)


class Sources(unittest.TestCase):
    def test_as_its_own_project(self):
        with tempfile.TemporaryDirectory() as folder:
            none = pathlib.Path(folder, "demo-1.0.tar.gz")
            none.write_text("<html>404</html>")
            result = run("doctor", str(none))
            self.assertEqual(result.returncode, 2)
            self.assertIn("is no source archive", result.stderr)
            source = pathlib.Path(folder, "demo-1.0")
            source.mkdir()
            (source / "setup.py").write_text("from setuptools import setup\nsetup(name='demo', version='1.0')\n")
            (source / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
            with tarfile.open(none, "w:gz") as archive:
                archive.add(source, "demo-1.0")
            code, report = run_json("doctor", str(none))
            said = json.dumps(report["judged"])
            self.assertNotIn("flash", said.lower(), "another project's source is not judged as flash-attn's")
            self.assertIn(code, (0, 1))


class Explain(unittest.TestCase):
    def test_known_unknown_and_well(self):
        code, report = run_json("explain", "--elsewhere", text="nvcc fatal   : Unsupported gpu architecture 'compute_120'\n")
        self.assertEqual(code, 1)
        self.assertEqual(report["verdicts"][0]["code"], "BUILD_ARCH_UNSUPPORTED_BY_NVCC")
        self.assertLessEqual(FIELDS, set(report["verdicts"][0]))
        code, report = run_json("explain", "--elsewhere", text="something odd\n")
        self.assertEqual((code, report["verdicts"][0]["code"]), (2, "NOT_KNOWN"))
        code, report = run_json("explain", "--elsewhere", text="Successfully installed flash-attn-2.8.3\n")
        self.assertEqual((code, report["verdicts"]), (0, []))
        note_covered("NOT_KNOWN")

    def test_bytes_that_are_no_text(self):
        result = subprocess.run([MICA, "explain", "--elsewhere", "--json"], input=bytes(range(256)) * 4 + b"\nKilled\n",
                                capture_output=True)
        self.assertEqual(result.returncode, 1)
        self.assertEqual(json.loads(result.stdout)["verdicts"][0]["code"], "BUILD_OOM")

    def test_from_a_file_and_from_words(self):
        with tempfile.NamedTemporaryFile("w", suffix=".log") as log:
            log.write("CUDA error: no kernel image is available for execution on the device\n")
            log.flush()
            self.assertEqual(run("explain", "--elsewhere", "--file", log.name).returncode, 1)
        self.assertIn("TORCH_SIGNATURE", run("explain", "undefined", "symbol:", "_ZN3c104cuda9SetDeviceEa").stdout)
        for unreadable in ("/nowhere", "/"):
            result = run("explain", "--elsewhere", "--file", unreadable)
            self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1))

    def test_explain_reads_at_most_64_megabytes(self):
        with tempfile.NamedTemporaryFile(mode="r+b") as log:
            log.truncate(200 << 20)
            log.seek(0, os.SEEK_END)
            log.write(b"\nKilled\n")
            log.flush()
            result = run("explain", "--elsewhere", "--file", log.name)
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn("BUILD_OOM", result.stdout)
            self.assertIn("its first and its last 32 MB were read", result.stderr)


class Pick(unittest.TestCase):
    TARGET = ["--python", "3.12", "--machine", "x86_64", "--torch"]

    def test_by_name_and_with_a_saved_page(self):
        code, report = run_json("pick", "flash-attn", *self.TARGET, "2.9.1+cu128")
        self.assertEqual(code, 0)
        self.assertIn("torch2.9", report["match"]["file"])
        self.assertRegex(report["published_as_of"], r"^20\d\d-\d\d-\d\d$")
        self.assertIn("as of " + report["published_as_of"], run("pick", *self.TARGET, "2.9.1+cu128").stdout)
        self.assertEqual(run_json("pick", *self.TARGET, "2.15.0+cu132")[0], 1)
        with tempfile.NamedTemporaryFile("w", suffix=".html") as page:
            page.write('<a href="/x/flash_attn-2.9.0%2Bcu13torch2.15cxx11abiTRUE-cp312-cp312-linux_x86_64.whl">one</a>')
            page.flush()
            code, report = run_json("pick", *self.TARGET, "2.15.0+cu132", "--index", page.name)
            self.assertEqual(code, 0)
            self.assertIn("torch2.15", report["match"]["file"])
        with tempfile.NamedTemporaryFile("w", suffix=".html") as page:
            self.assertIn("names no wheel", run("pick", *self.TARGET, "2.15.0+cu132", "--index", page.name).stderr)
        self.assertIn("--index is /nowhere", run("pick", *self.TARGET, "2.15.0", "--index", "/nowhere").stderr)

    def test_published(self):
        code, report = run_json("pick", *self.TARGET, "2.8.0+cu128")
        self.assertEqual((code, report["match"]["file"]),
                         (0, "flash_attn-2.8.3.post2+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl"))
        code, report = run_json("pick", *self.TARGET, "2.15.0+cu132")
        self.assertEqual((code, report["match"], len(report["nearest"])), (1, None, 3))
        self.assertEqual(run_json("pick", "--machine", "x86_64")[0], 2)

    def test_from_a_list_and_a_folder(self):
        name = "flash_attn-2.8.3+cu130torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl"
        code, report = run_json("pick", "-", *self.TARGET, "2.9.0+cu130", text=f"<a href=\"x/{name}\">and more</a>\n")
        self.assertEqual((code, report["match"]["file"]), (0, f"x/{name}"))
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, name).touch()
            self.assertEqual(run("pick", folder, *self.TARGET, "2.9.0+cu130").returncode, 0)
            self.assertEqual(run("pick", folder, *self.TARGET, "2.8.0+cu130").returncode, 1)
        for unreadable in ("/nowhere", "/dev/zero"):
            self.assertEqual(run("pick", unreadable, *self.TARGET, "2.9.0").returncode, 2)
        self.assertIn("such as 2.8.0", run("pick", *self.TARGET, "new").stderr)
        self.assertEqual(run("pick", "--python", "many").returncode, 2)

    def test_flags_in_other_words(self):
        for name, wanted in {"amd64": "x86_64", "arm64": "aarch64", "x86-64": "x86_64"}.items():
            code, report = run_json("pick", "--python", "3.12", "--torch", "2.8.0+cu126", "--machine", name)
            self.assertEqual((code, report["target"]["machine"]), (0, wanted))
        for flags in (["--python", "312"], ["--python", "/usr/bin/python3"], ["--python", "3.12", "--cuda", "128"]):
            result = run("pick", "--machine", "x86_64", "--torch", "2.8.0+cu128", *flags)
            self.assertEqual(result.returncode, 2)
            self.assertIn("want a version such as", result.stderr)


class FullDisk(unittest.TestCase):
    def test_no_half_of_a_file_stays(self):
        def allow_little():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

        with tempfile.TemporaryDirectory() as folder:
            for flag in ("--export", "--html"):
                result = subprocess.run([MICA, "doctor", LIBRARY, flag, f"{folder}/x"], capture_output=True, text=True,
                                        preexec_fn=allow_little)
                self.assertEqual(result.returncode, 2)
                self.assertIn("cannot be written: File too large", result.stderr)
                self.assertEqual(os.listdir(folder), [])


class Pages(unittest.TestCase):
    def test_every_verdict_has_its_section(self):
        """With what is really printed."""
        codes = re.findall(r"^MICA_VERDICT\(([A-Z_0-9]+),", (ROOT / "src/doctor/verdict/verdicts.def").read_text(), re.M)
        page = (ROOT / "docs/user/doctor.md").read_text()
        missing = [code for code in codes
                   if f'<a id="{code.lower().replace("_", "-")}"></a>\n### {code}\n' not in page]
        self.assertGreater(len(codes), 50)
        self.assertEqual(missing, [], "without a section in docs/user/doctor.md")
        sections = dict(section.split("\n", 1) for section in page.split("\n### ")[1:])
        silent = [code for code in codes if code != "JOB_WAITS" and f" {code}  " not in sections[code]]
        self.assertEqual(silent, [], "without its output in docs/user/doctor.md")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    MICA, LIBRARY = sys.argv[1], sys.argv[2]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
