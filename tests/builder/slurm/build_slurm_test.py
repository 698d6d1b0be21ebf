#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`mica build --slurm` in a real Slurm, which slurm_rig.py starts: too little memory, the second try, the shelf.

Usage: build_slurm_test.py MICA [unittest arguments], with a Python that has torch."""

import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

EXTENSION = pathlib.Path(__file__).resolve().parent.parent / "extension"
MICA = None


@unittest.skipUnless(importlib.util.find_spec("torch"), "torch is not in this Python")
class BuildInSlurm(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="mica-slurm-build-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.source = self.folder / "extension"
        shutil.copytree(EXTENSION, self.source, ignore=shutil.ignore_patterns("*.cu", "build", "*.egg-info"))
        self.environment = {**os.environ, "HUNGRY_CUDA": "FALSE"}

    def command(self, *arguments):
        where = ["--python", sys.executable, "--work", self.folder / "work", "--out", self.folder / "dist"]
        return [MICA, "build", str(self.source), *map(str, [*arguments, *where])]

    def run_mica(self, *arguments):
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, env=self.environment)

    def test_too_little_memory_then_enough_then_the_shelf(self):
        shelf = self.folder / "shelf"
        asked = ["--slurm", "--jobs", "1", "--mem", "400M", "--retries", "3", "--publish", shelf]
        result = self.run_mica(*asked, "--json")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        out = json.loads(result.stdout)
        self.assertEqual((out["end"], out["exit_code"], out["published"]), ("success", 0, str(shelf)))
        self.assertGreater(out["attempts"], 1, "400 MB do not suffice for a compiler of torch's headers")
        wheel = pathlib.Path(out["wheel"])
        self.assertEqual(wheel.parent, self.folder / "dist")
        self.assertTrue((shelf / wheel.name).is_file())
        provenance = json.loads(next((shelf / "provenance").glob("*.json")).read_text())
        self.assertTrue(provenance["build"], "the record of the build is part of it")
        if importlib.util.find_spec("wheel") is None:
            self.assertTrue(list((self.folder / "work/wheels").glob("wheel-*.whl")), "for nodes without a network")

    def test_the_terminal_closes_and_another_one_attaches(self):
        words = self.command("--slurm", "--jobs", "1", "--mem", "1200M", "--publish", self.folder / "shelf")
        first = subprocess.Popen(words, env=self.environment, stdout=subprocess.PIPE, text=True)
        for line in first.stdout:
            if "running on" in line:
                break
        first.send_signal(signal.SIGINT)
        self.assertIn("goes on without this terminal", first.stdout.read())
        self.assertEqual(first.wait(60), 130)
        first.stdout.close()
        result = self.run_mica("--slurm", "--attach")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("  | judged   nothing wrong", result.stdout)  # the build's own words
        self.assertEqual(result.stdout.count("  | import   hungry_extension._C"), 1)
        self.assertEqual(len(list((self.folder / "dist").glob("*.whl"))), 1)
        self.assertEqual(len(list((self.folder / "shelf").glob("*.whl"))), 1)  # by the job itself, whoever looks on

    def test_cancel(self):
        (self.source / "setup.py").write_text("import time; time.sleep(600)\n" + (self.source / "setup.py").read_text())
        words = self.command("--slurm", "--jobs", "1", "--mem", "1200M")
        first = subprocess.Popen(words, env=self.environment, stdout=subprocess.DEVNULL)
        deadline = time.time() + 120
        jobs = self.folder / "work/jobs"
        while not list(jobs.glob("*/job-*.log")) and time.time() < deadline:
            time.sleep(0.2)
        result = self.run_mica("--slurm", "--cancel", "--json")
        self.assertEqual((result.returncode, json.loads(result.stdout)["end"]), (1, "cancelled"), result.stdout)
        self.assertEqual(first.wait(120), 1)

    def test_what_is_refused_here_is_fetched_for_the_node_that_decides(self):
        self.source = "causal-conv1d"
        result = self.run_mica("--slurm", "--arch", "1.0", "--mem", "800M", "--retries", "0")
        if "not fetched here" in result.stdout:
            self.skipTest(result.stdout)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertIn("here it could not be built (GPU_TOO_OLD); the job's node decides", result.stdout)
        self.assertIn("  | refused  ", result.stdout)
        archive = next((self.folder / "work/downloads/causal-conv1d/archives").glob("causal_conv1d-*.tar.gz"))
        job = json.loads((self.folder / "work/jobs/causal-conv1d/job.json").read_text())
        self.assertIn(str(archive), json.dumps(job))

    def test_print_submits_nothing(self):
        self.assertTrue(self.run_mica("--slurm", "--dry-run").stdout.startswith("#!/bin/bash\n"))
        result = self.run_mica("--slurm", "--print", "--partition", "build", "--time", "2:00:00")
        self.assertEqual(result.returncode, 0, result.stderr)
        for line in ("#SBATCH --partition=build\n", "#SBATCH --time=2:00:00\n", "#SBATCH --mem=13048M\n"):
            self.assertIn(line, result.stdout)
        self.assertFalse((self.folder / "work/jobs").exists())
        as_json = json.loads(self.run_mica("--slurm", "--print", "--json").stdout)
        self.assertTrue(as_json["script"].startswith("#!/bin/bash\n"))

    def test_a_wheel_for_each_of_several_pythons(self):
        other = self.folder / "other"
        (other / "bin").mkdir(parents=True)
        for name in ("lib", "pyvenv.cfg"):
            (other / name).symlink_to(pathlib.Path(sys.prefix) / name)
        (other / "bin/python").symlink_to(pathlib.Path(sys.executable).resolve())
        several = ["--slurm", "--python", other, "--jobs", "1", "--mem", "1400M", "--retries", "0"]
        script = self.run_mica(*several, "--print").stdout
        self.assertIn("#SBATCH --array=0-1\n", script)
        for python in (other / "bin/python", sys.executable):
            self.assertEqual(sum(str(python) in line for line in script.splitlines()), 1, script)
        result = self.run_mica(*several, "--publish", self.folder / "shelf", "--json")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        tasks = json.loads(result.stdout)["tasks"]
        self.assertEqual([task["end"] for task in tasks], ["success", "success"])
        self.assertRegex(tasks[0]["job"], r"^\d+_0$")
        self.assertEqual([pathlib.Path(task["log"]).parent.name for task in tasks], ["0", "1"])
        wheels = [pathlib.Path(task["wheel"]) for task in tasks]
        self.assertEqual(wheels[0].name, wheels[1].name)
        self.assertNotEqual(wheels[0].parent, wheels[1].parent, "wheels for two torches have one name")
        for wheel in wheels:
            self.assertTrue((self.folder / "shelf" / wheel.parent.name / wheel.name).is_file())
        again = self.run_mica("--slurm", "--attach", "--json")
        self.assertEqual([t["job"] for t in json.loads(again.stdout)["tasks"]], [t["job"] for t in tasks])

    def test_refused(self):
        result = self.run_mica("--slurm", "--partition", "nowhere")
        self.assertEqual(result.returncode, 2)
        self.assertIn("nvalid partition", result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1)


if __name__ == "__main__":
    MICA = sys.argv[1]
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
