#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`mica build` with the small extension of this folder: plans, and what can be built in seconds (C++ only).

Usage: build_command_test.py MICA [unittest arguments]. Runs with the Python that has torch; without torch, the tests
that build are skipped."""

import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent.parent
EXTENSION = HERE / "extension"
MICA = None
HAS_TORCH = importlib.util.find_spec("torch") is not None


class Build(unittest.TestCase):
    """Each test has a folder of its own for builds, wheels and fake tools."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.out = self.folder / "out"

    def command(self, *arguments):
        where = ["--python", sys.executable, "--work", self.folder / "work", "--out", self.out]
        return [MICA, "build", *map(str, [*arguments, *where])]

    def environment(self, **variables):
        spoken = {"LANG": "C.UTF-8", "LANGUAGE": "de"}  # by compilers, where the machine has the words
        return {**os.environ, "HUNGRY_CUDA": "FALSE", **spoken, **{name: str(value) for name, value in variables.items()}}

    def run_mica(self, *arguments, **variables):
        command, environment = self.command(*arguments), self.environment(**variables)
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
        if result.returncode == 2 and "cannot fetch" in result.stderr:
            self.skipTest("no package index can be reached: " + result.stderr)
        return result

    def run_json(self, *arguments, **variables):
        result = self.run_mica(*arguments, "--json", **variables)
        self.assertNotEqual(result.returncode, 2, result.stderr)
        return result.returncode, json.loads(result.stdout)

    def host_only(self):
        """A copy of the extension without its .cu files, for machines without nvcc."""
        copy = self.folder / "extension"
        shutil.copytree(EXTENSION, copy, ignore=shutil.ignore_patterns("*.cu", "build", "*.egg-info"))
        return copy

    def log(self):
        return next((self.folder / "work").glob("*/build.log")).read_text()


class Usage(Build):
    def complains(self, *arguments, about):
        result = self.run_mica(*arguments)
        self.assertEqual(result.returncode, 2, result.stdout)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertIn(about, result.stderr)

    def test_bad_usage_gets_one_line(self):
        self.complains(about="want a package")
        self.complains("flash-attn>=2", about="flash-attn>=2")
        self.complains("/nowhere/at/all", about="/nowhere/at/all")
        self.complains(EXTENSION, "--arch", "sm_90", about="sm_90")
        self.complains(EXTENSION, "--jobs", "many", about="many")
        self.complains(EXTENSION, "--jobs", "0", about="--jobs is '0'")
        self.complains(EXTENSION, "--target", "/nowhere.json", about="/nowhere.json")
        self.complains("--attach", about="no build is running")
        empty = self.folder / "empty"
        empty.mkdir()
        self.complains(empty, about="neither setup.py nor pyproject.toml")

    def test_the_job_is_asked_for_what_the_command_was(self):
        flags = ["--keep", "--allow-downloads", "--no-fetch"]
        script = self.run_mica(EXTENSION, "--slurm", "--print", "--arch", "9.0", *flags).stdout
        command = next(line for line in script.splitlines() if " build " in line)
        for flag in flags:
            self.assertIn(f" {flag} ", command)

    def test_ctrl_c_before_the_compilers(self):
        """A Python that takes its time to unpack an archive."""
        slow, mark = self.folder / "slow", self.folder / "begun"
        slow.mkdir()
        (slow / "sitecustomize.py").write_text(f"import pathlib, time\npathlib.Path({str(mark)!r}).touch()\ntime.sleep(60)\n")
        archive = self.folder / "thing-1.0.tar.gz"
        with tarfile.open(archive, "w:gz") as file:
            file.add(EXTENSION / "setup.py", "thing-1.0/setup.py")
        process = subprocess.Popen(self.command(archive), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=self.environment(PYTHONPATH=slow))
        while not mark.exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, errors)
        self.assertEqual(errors.count("\n"), 1, errors)
        self.assertIn("stopped", errors)

    def test_a_python_that_is_none(self):
        result = subprocess.run([MICA, "build", str(EXTENSION), "--python", "/etc"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 2)
        self.assertIn("/etc", result.stderr)


def load_driver():
    spec = importlib.util.spec_from_file_location("driver", HERE.parent.parent / "src" / "builder" / "run" / "driver.py")
    driver = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(driver)
    return driver


class Requirements(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("packaging"), "packaging is not in this Python")
    def test_one_for_another_python_is_not_missing(self):
        driver = load_driver()
        self.assertTrue(driver.is_installed("no-such-thing; python_version < '3'"))
        self.assertTrue(driver.is_installed("no-such-thing >= 2 ; sys_platform == 'win32'"))
        self.assertFalse(driver.is_installed("no-such-thing; python_version >= '3'"))
        self.assertFalse(driver.is_installed("no-such-thing"))
        self.assertTrue(driver.is_installed("packaging >= 0.1; python_version >= '3'"))
        self.assertFalse(driver.is_installed("packaging < 0.1"))


class Flags(unittest.TestCase):
    def test_what_setup_py_says_gives_way(self):
        driver = load_driver()
        forced = driver.Forced({"cxx_abi": 0, "gencode": ["arch=compute_90,code=sm_90"], "nvcc_threads": 2})
        given = ["-O3", "-gencode", "arch=compute_75,code=sm_75", "--threads", "4", "-D_GLIBCXX_USE_CXX11_ABI=1",
                 "-arch=sm_80", "--threads=8", "-t", "4", "-t=4", "-Dthreads"]
        wanted = ["-O3", "--threads", "2", "--threads=2", "-t", "2", "-t=2", "-Dthreads", "-D_GLIBCXX_USE_CXX11_ABI=0",
                  "-gencode=arch=compute_90,code=sm_90"]
        self.assertEqual(forced.device(given), wanted)
        self.assertEqual(forced.host(["-t", "4"]), ["-t", "4", "-D_GLIBCXX_USE_CXX11_ABI=0"])  # another compiler's word


@unittest.skipUnless(HAS_TORCH, "torch is not in this Python")
class Plans(Build):
    def toolkit(self, version, name="nvcc"):
        """A folder that looks like a toolkit to everybody who does not start its nvcc."""
        folder = self.folder / f"cuda-{version}"
        (folder / "bin").mkdir(parents=True)
        (folder / "include" / "crt").mkdir(parents=True)
        major, minor = map(int, version.split("."))
        (folder / "include" / "cuda.h").write_text(f"#define CUDA_VERSION {major * 1000 + minor * 10}\n")
        (folder / "include" / "crt" / "host_config.h").write_text("#if __GNUC__ > 99\n")
        nvcc = folder / "bin" / name
        nvcc.write_text(f"#!/bin/sh\n# Cuda compilation tools, release {version}, V{version}.1\nexit 1\n")
        nvcc.chmod(0o755)
        return folder

    def torch_cuda(self):
        import torch

        if not torch.version.cuda:
            self.skipTest("this torch is a build for the CPU")
        return torch.version.cuda

    def test_the_toolkit_is_torchs_whatever_comes_first_on_path(self):
        cuda = self.torch_cuda()
        wrong, right = self.toolkit("9.2"), self.toolkit(cuda)
        path = f"{wrong}/bin:{right}/bin:{os.environ['PATH']}"
        code, out = self.run_json(EXTENSION, "--dry-run", "--arch", "8.0", PATH=path, CUDA_HOME=str(wrong))
        self.assertEqual(code, 0, out["verdicts"])
        self.assertEqual(out["plan"]["toolkit"]["folder"], str(right))
        decision = next(d for d in out["plan"]["decisions"] if d["what"] == "toolkit")
        self.assertIn(f"{wrong}, is not used", decision["why"])
        self.assertEqual(out["plan"]["gencode"], ["arch=compute_80,code=sm_80"])
        self.assertFalse(self.out.exists())

    def test_known_packages_by_name_alone(self):
        cuda = self.torch_cuda()
        right = self.toolkit(cuda)
        code, out = self.run_json("flash-attn", "--dry-run", "--arch", "9.0", PATH=f"{right}/bin:{os.environ['PATH']}")
        self.assertEqual(code, 0, out["verdicts"])
        variables = {v["name"]: v["value"] for v in out["plan"]["variables"]}
        self.assertEqual(variables["FLASH_ATTENTION_FORCE_BUILD"], "TRUE")
        self.assertEqual(variables["FLASH_ATTN_CUDA_ARCHS"], "90")
        self.assertIsNone(variables["FLASH_ATTENTION_SKIP_CUDA_BUILD"])
        self.assertTrue(all(v["why"] for v in out["plan"]["variables"]))
        text = self.run_mica("causal-conv1d", "--dry-run", "--arch", "9.0", PATH=f"{right}/bin:{os.environ['PATH']}")
        self.assertIn("CAUSAL_CONV1D_FORCE_BUILD", text.stdout)

    def test_refused_with_the_reason(self):
        self.torch_cuda()
        code, out = self.run_json(EXTENSION, "--dry-run", "--arch", "1.0")
        self.assertEqual((code, out["refused"]), (1, True))
        result = self.run_mica(EXTENSION, "--arch", "1.0")
        self.assertEqual(result.returncode, 1)
        self.assertIn("refused", result.stdout)
        self.assertFalse(self.out.exists())

    def test_a_trial_with_an_archive_leaves_no_trace(self):
        archive, temporary = self.folder / "thing-1.0.tar.gz", self.folder / "tmp"
        temporary.mkdir()
        with tarfile.open(archive, "w:gz") as file:
            file.add(self.host_only(), "thing-1.0")
        code, out = self.run_json(archive, "--dry-run", TMPDIR=temporary)
        self.assertEqual((code, out["plan"]["cuda"]), (0, False), out["verdicts"])
        self.assertEqual([(self.folder / "work").exists(), self.out.exists(), list(temporary.iterdir())], [False, False, []])

    def test_without_cuda_files_no_nvcc_is_asked_for(self):
        code, out = self.run_json(self.host_only(), "--dry-run", PATH="/usr/bin:/bin")
        self.assertEqual((code, out["plan"]["cuda"]), (0, False), out["verdicts"])
        self.assertGreaterEqual(out["plan"]["jobs"], 1)


@unittest.skipUnless(HAS_TORCH, "torch is not in this Python")
class Builds(Build):
    def test_from_source_to_a_wheel_on_the_shelf(self):
        """One build for all, since a compiler takes seconds: no download, the ABI, the record, a second start, a shelf."""
        before = {p for p in pathlib.Path(sys.prefix).glob("lib/python*/site-packages/*")}
        source = self.host_only()
        code, out = self.run_json(source, "--keep")
        self.assertEqual((code, out["status"]), (0, "built"), (out["error"], out["verdicts"]))
        wheel = pathlib.Path(out["wheel"])
        self.assertTrue(wheel.exists())
        self.assertEqual(out["imported"], ["hungry_extension._C"])
        log = self.log()
        self.assertIn("mica: refused to download", log)
        self.assertNotIn("took the ready wheel", log)
        import torch

        abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
        compiled = [line for line in log.splitlines() if "module.cpp" in line and " -c " in line]
        self.assertTrue(compiled and all(f"-D_GLIBCXX_USE_CXX11_ABI={abi}" in line for line in compiled), compiled)
        self.assertEqual(before, {p for p in pathlib.Path(sys.prefix).glob("lib/python*/site-packages/*")})
        self.assertEqual(list(source.glob("build")), [])  # the given folder stays as it was

        record = json.loads(pathlib.Path(out["record"]).read_text())
        self.assertEqual(record["sha256"], out["sha256"])
        self.assertEqual(record["environment"]["torch"]["version"], torch.__version__)
        self.assertGreater(record["peak_bytes"], 10e6)
        self.assertRegex(record["tools"]["setuptools"], r"^\d")  # also what was there already
        self.assertEqual(record["matrix"]["status"], "imported")

        beside = subprocess.run([MICA, "matrix", str(self.out)], capture_output=True, text=True)
        self.assertIn("imported", beside.stdout)  # before anything is published
        shelf = self.folder / "shelf"
        code, again = self.run_json(source, "--publish", shelf)
        self.assertEqual(again["published"], str(shelf))
        self.assertEqual((code, again["sha256"], again["attempts"]), (0, out["sha256"], 0))  # nothing was compiled
        second = json.loads(pathlib.Path(again["record"]).read_text())
        for name in ("attempts", "tools", "seconds", "built_at", "imported"):  # what it took stays known
            self.assertEqual(second[name], record[name])

        matrix = subprocess.run([MICA, "matrix", str(shelf)], capture_output=True, text=True)
        self.assertIn(torch.__version__, matrix.stdout)

    def test_a_failure_ends_in_the_one_line_that_matters(self):
        source = self.host_only()
        (source / "csrc" / "hungry.cpp").write_text("#include <no_such_header_of_cuda.h>\n")
        result = self.run_mica(source, "--jobs", "2")
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("no_such_header_of_cuda.h: No such file or directory", result.stdout)
        self.assertIn("BUILD_HEADERS_MISSING", result.stdout)
        self.assertFalse(self.out.exists())


if __name__ == "__main__":
    MICA = sys.argv.pop(1)
    unittest.main()
