#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`mica build` where things go wrong for real: a memory limit that kills the compiler, Ctrl-C, a closed terminal, a killed
builder, two starts at once, a Python without build tools, a disk that is full, a share that is read-only; and nvcc.

Usage: build_long_test.py MICA [unittest arguments]. What this machine does not allow is skipped, with the reason."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

import build_command_test
from build_command_test import EXTENSION, HAS_TORCH, Build


def state_of(folder):
    for path in (folder / "work").glob("*/state.json"):
        with contextlib.suppress(ValueError, OSError):
            return json.loads(path.read_text())
    return {}


def wait_for(condition, seconds=240):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return False


def processes_of_session(session):
    out = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                out.append(path)
    return out


class MemoryGroup:
    """A control group with a memory limit, version 1 or 2, below the one this process is in."""

    def __init__(self, limit):
        own = {}
        for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            own[controllers] = path
        name = f"mica-test-{os.getpid()}-{time.monotonic_ns()}"
        if "memory" in own:
            root = pathlib.Path("/sys/fs/cgroup/memory")
            files = {"memory.limit_in_bytes": str(limit), "memory.memsw.limit_in_bytes": str(limit)}
        else:
            root = pathlib.Path("/sys/fs/cgroup")
            files = {"memory.max": str(limit), "memory.swap.max": "0"}
        base = root / own.get("memory", own.get("", "/")).lstrip("/")
        self.path = (base if base.exists() else root) / name
        try:
            self.path.mkdir()
            limit_file, swap_file = files
            (self.path / limit_file).write_text(files[limit_file])
            with contextlib.suppress(OSError):
                (self.path / swap_file).write_text(files[swap_file])
        except OSError as error:
            raise unittest.SkipTest(f"no control group with a memory limit can be made here: {error}") from error

    def enter(self):
        """In a child, before it becomes another program."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def kills(self):
        """How many processes the kernel ended here for memory."""
        for name in ("memory.events", "memory.oom_control"):
            if (self.path / name).exists():
                return int(re.search(r"^oom_kill (\d+)", (self.path / name).read_text(), re.M).group(1))
        return 0

    def remove(self):
        for _ in range(50):
            try:
                self.path.rmdir()
                return
            except OSError:
                time.sleep(0.1)


@unittest.skipUnless(HAS_TORCH, "torch is not in this Python")
class Memory(Build):
    def test_a_killed_compiler_is_followed_by_fewer_jobs(self):
        group = MemoryGroup(1700 << 20)
        self.addCleanup(group.remove)
        variables = self.environment(HUNGRY_PIECES=3, HUNGRY_MEGABYTES=600)
        command = self.command(self.host_only(), "--jobs", "4", "--json")
        result = subprocess.run(command, capture_output=True, text=True, env=variables, preexec_fn=group.enter)
        out = json.loads(result.stdout)
        self.assertEqual((result.returncode, out["status"]), (0, "built"), (out["error"], out["verdicts"]))
        self.assertGreaterEqual(out["attempts"], 2)
        self.assertLess(out["jobs"], 4)
        attempts = re.findall(r"mica: attempt \d+, (\d+) jobs", self.log())
        self.assertEqual(attempts[0], "4")
        self.assertGreaterEqual(group.kills(), 1)  # a compiler, or the Python around it: the kernel chooses

    def test_what_does_not_fit_at_all_is_explained(self):
        group = MemoryGroup(900 << 20)
        self.addCleanup(group.remove)
        variables = self.environment(HUNGRY_PIECES=1, HUNGRY_MEGABYTES=1500)
        command = self.command(self.host_only(), "--jobs", "2", "--json")
        result = subprocess.run(command, capture_output=True, text=True, env=variables, preexec_fn=group.enter)
        out = json.loads(result.stdout)
        self.assertEqual((result.returncode, out["status"], out["jobs"]), (1, "failed", 1), result.stdout)
        self.assertEqual(out["verdicts"][0]["code"], "BUILD_OOM")
        self.assertFalse(self.out.exists())


@unittest.skipUnless(HAS_TORCH, "torch is not in this Python")
class Interrupted(Build):
    def start(self, source, *arguments):
        variables = self.environment(HUNGRY_PIECES=5, HUNGRY_MEGABYTES=200)
        return subprocess.Popen(
            self.command(source, "--jobs", "1", *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=variables, start_new_session=True,
        )

    def files_done(self):
        return state_of(self.folder).get("files_done", 0)

    def finishes(self, source):
        """The same command again: it compiles what was left, and only that."""
        done = self.files_done()
        process = self.start(source, "--json")
        output, errors = process.communicate()
        out = json.loads(output)
        self.assertEqual((process.returncode, out["status"]), (0, "built"), (out["error"], errors))
        totals = [int(total) for total in re.findall(r"^\[\d+/(\d+)\]", self.log(), re.M)]
        self.assertLessEqual(totals[-1], totals[0] - done)
        return out

    def test_ctrl_c_and_a_second_start(self):
        source = self.host_only()
        process = self.start(source)
        self.assertTrue(wait_for(lambda: self.files_done() >= 2), process.poll())
        session = state_of(self.folder)["session"]
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, output + errors)
        self.assertIn("goes on from there", output)
        self.assertEqual(processes_of_session(session), [])
        self.assertEqual(state_of(self.folder)["phase"], "interrupted")
        self.finishes(source)

    def test_a_closed_terminal_does_not_end_it(self):
        source = self.host_only()
        process = self.start(source, "--json")
        self.assertTrue(wait_for(lambda: self.files_done() >= 1))
        process.send_signal(signal.SIGHUP)
        time.sleep(1)
        process.send_signal(signal.SIGHUP)
        output, errors = process.communicate()
        self.assertEqual((process.returncode, json.loads(output)["status"]), (0, "built"), errors)

    def test_a_killed_builder_leaves_nothing_in_the_way(self):
        source = self.host_only()
        process = self.start(source)
        self.assertTrue(wait_for(lambda: self.files_done() >= 2))
        session = state_of(self.folder)["session"]
        process.kill()
        process.communicate()
        self.assertEqual(state_of(self.folder)["phase"], "building")
        self.finishes(source)
        self.assertEqual(processes_of_session(session), [])

    def test_a_second_start_follows_the_first(self):
        source = self.host_only()
        first = self.start(source)
        self.assertTrue(wait_for(lambda: self.files_done() >= 1))
        attached = subprocess.Popen(
            [build_command_test.MICA, "build", "--attach", "--work", str(self.folder / "work")],
            stdout=subprocess.PIPE, text=True,
        )
        wanted, self.out = self.out, self.folder / "another"
        second = self.start(source)
        outputs = [process.communicate()[0] for process in (first, second, attached)]
        self.assertEqual([p.returncode for p in (first, second, attached)], [0, 0, 0], outputs)
        self.assertIn("following the build", outputs[1])
        self.assertIn("wheel ", outputs[2])
        self.assertEqual(self.log().count("mica: attempt"), 1)
        names = [[p.name for p in folder.glob("*.whl")] for folder in (wanted, self.out)]
        self.assertEqual(len(names[0]), 1)
        self.assertEqual(names[0], names[1])  # each where its command wants it


@unittest.skipUnless(HAS_TORCH, "torch is not in this Python")
class BarePython(Build):
    """A Python that has torch and none of packaging, wheel, setuptools, pip: as build isolation leaves one."""

    def setUp(self):
        import torch

        super().setUp()
        environment = self.folder / "environment"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
        site = next(environment.glob("lib/python*/site-packages"))
        have = pathlib.Path(torch.__file__).parent.parent
        for path in have.iterdir():
            if not re.match(r"(packaging|wheel|setuptools|pip|psutil|ninja|pkg_resources|_distutils_hack)\b", path.name):
                if path.suffix != ".pth":
                    (site / path.name).symlink_to(path)
        self.site, self.python, self.source = site, environment / "bin" / "python", self.host_only()

    def run_bare(self, *before, **variables):
        command = self.command(self.source, "--json", "--keep")
        command[command.index("--python") + 1] = str(self.python)
        variables = self.environment(**variables)
        return subprocess.run([*before, *command], capture_output=True, text=True, env=variables)

    def names(self):
        return sorted(p.name for p in self.site.iterdir() if p.name != "__pycache__")

    def test_what_setup_py_imports_comes_for_this_build_alone(self):
        before = self.names()
        result = self.run_bare()
        if result.returncode == 2 and "cannot fetch" in result.stderr:
            self.skipTest("no package index can be reached: " + result.stderr)
        out = json.loads(result.stdout)
        self.assertEqual((result.returncode, out["status"]), (0, "built"), (out["error"], result.stderr))
        self.assertEqual(before, self.names())
        tools = [p.name for p in (pathlib.Path(out["folder"]) / "tools").iterdir()]
        self.assertIn("packaging", tools)

    def test_without_a_network(self):
        if subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode != 0:
            self.skipTest("no network can be taken away here")
        result = self.run_bare("unshare", "-n", PIP_RETRIES=0)
        self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
        wheels = self.folder / "work" / "wheels"
        self.assertIn(f"put wheels into {wheels}", result.stderr)
        fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(wheels)]
        if subprocess.run([*fetch, "setuptools", "wheel", "packaging", "ninja"]).returncode != 0:
            self.skipTest("no package index can be reached")
        result = self.run_bare("unshare", "-n")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["imported"], ["hungry_extension._C"])


@unittest.skipUnless(HAS_TORCH, "torch is not in this Python")
class Device(Build):
    def test_toolkit_architecture_and_abi_are_the_right_ones(self):
        """Whatever comes first on PATH, whatever setup.py says."""
        wrong = self.folder / "cuda-9.2"
        (wrong / "bin").mkdir(parents=True)
        nvcc = wrong / "bin" / "nvcc"
        nvcc.write_text("#!/bin/sh\n# Cuda compilation tools, release 9.2, V9.2.148\nexit 1\n")
        nvcc.chmod(0o755)
        variables = {"HUNGRY_CUDA": "TRUE", "CUDA_HOME": str(wrong), "PATH": f"{wrong}/bin:{os.environ['PATH']}"}
        result = self.run_mica(EXTENSION, "--arch", "9.0", "--jobs", "2", "--json", **variables)
        out = json.loads(result.stdout)
        if out["status"] == "refused":
            self.skipTest(out["error"])
        self.assertEqual((result.returncode, out["status"]), (0, "built"), (out["error"], out["verdicts"]))
        import torch

        abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
        commands = [line for line in self.log().splitlines() if re.match(r"\[\d+/\d+\] .*nvcc .*\.cu ", line)]
        self.assertEqual(len(commands), 2)
        for line in commands:
            self.assertIn(abi, line)
        text = subprocess.run([build_command_test.MICA, "inspect", out["wheel"]], capture_output=True, text=True).stdout
        self.assertIn("sm_90", text)
        self.assertNotIn("sm_80", text)  # what setup.py says itself
        self.assertNotIn("sm_75", text)


@unittest.skipUnless(HAS_TORCH, "torch is not in this Python")
class Empty(Build):
    def test_a_wheel_with_nothing_inside_is_not_handed_out(self):
        source = self.host_only()
        (source / "csrc" / "empty.cu").write_text("")  # so that the plan expects compiled code
        cuda = self.folder / "cuda"
        result = self.run_mica(source, "--arch", "8.0", HUNGRY_SKIP_BUILD="TRUE", CUDA_HOME=str(cuda))
        if "refused" in result.stdout:
            self.skipTest("no nvcc that fits this torch: " + result.stdout.splitlines()[0])
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("WHEEL_NO_EXTENSION", result.stdout)
        self.assertFalse(self.out.exists())


@unittest.skipUnless(HAS_TORCH, "torch is not in this Python")
class SmallDisk(Build):
    def test_a_full_disk_and_the_same_command_with_more_room(self):
        work = self.folder / "work"
        work.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=1200k", "none", str(work)]
        if subprocess.run(mount, capture_output=True).returncode != 0:
            self.skipTest("nothing can be mounted here")
        self.addCleanup(subprocess.run, ["umount", str(work)], check=True)
        source = self.host_only()
        result = self.run_mica(source, "--jobs", "1", HUNGRY_PIECES=2)
        self.assertIn(result.returncode, (1, 2), result.stdout)
        self.assertIn("No space left on device", result.stdout + result.stderr)
        self.assertFalse(self.out.exists())
        subprocess.run(["mount", "-o", "remount,size=100m", str(work)], check=True)
        code, out = self.run_json(source, "--jobs", "1", HUNGRY_PIECES=2)
        self.assertEqual((code, out["status"]), (0, "built"), out["error"])


class Storage(unittest.TestCase):
    """Publishing onto file systems that say no."""

    def setUp(self):
        import tempfile

        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.share = self.folder / "share"
        self.share.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(self.share)], capture_output=True)
        if mounted.returncode != 0:
            self.skipTest("nothing can be mounted here: " + mounted.stderr.decode().strip())
        self.addCleanup(subprocess.run, ["umount", str(self.share)], check=True)

    def wheel(self, name, size):
        sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "shelf"))
        from shelf_command_test import make_wheel

        noise = os.urandom(size // 2).hex()
        return make_wheel(self.folder, name, files={f"{name}/data.txt": noise})

    def publish(self, wheel):
        return subprocess.run([build_command_test.MICA, "publish", str(wheel), str(self.share)], capture_output=True, text=True)

    def test_a_full_disk(self):
        small, large = self.wheel("small", 20_000), self.wheel("large", 8_000_000)
        self.assertEqual(self.publish(small).returncode, 0)
        result = self.publish(large)
        self.assertEqual(result.returncode, 2)
        self.assertIn("No space left on device", result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1)
        self.assertEqual([p.name for p in self.share.iterdir() if "large" in p.name or p.suffix == ".tmp"], [])
        verify = subprocess.run([build_command_test.MICA, "verify", str(self.share)], capture_output=True, text=True)
        self.assertEqual(verify.returncode, 0, verify.stdout)

    def test_a_read_only_share(self):
        wheel = self.wheel("small", 20_000)
        self.assertEqual(self.publish(wheel).returncode, 0)
        subprocess.run(["mount", "-o", "remount,ro", str(self.share)], check=True)
        result = self.publish(self.wheel("other", 20_000))
        self.assertEqual(result.returncode, 2)
        self.assertIn("Read-only file system", result.stderr)
        verify = subprocess.run([build_command_test.MICA, "verify", str(self.share)], capture_output=True, text=True)
        self.assertEqual(verify.returncode, 0, verify.stdout)
        subprocess.run(["mount", "-o", "remount,rw", str(self.share)], check=True)


del Build  # its tests ran in build_command_test

if __name__ == "__main__":
    build_command_test.MICA = sys.argv.pop(1)
    unittest.main()
