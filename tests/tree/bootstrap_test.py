#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/build/bootstrap.sh with a pretended apt: it says what it installs, takes the names that the distribution has, and a
second run does nothing."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parent.parent.parent / "tools" / "build"

# The folder "known" holds what the distribution has, "installed" what was installed, "calls" what apt-get was asked.
PROGRAMS = {
    "dpkg-query": '[ -e "$STATE/installed/${@: -1}" ] && printf installed',
    "apt-cache": '[ -e "$STATE/known/$2" ]',
    "sudo": '"$@"',
    "apt-get": """echo "$*" >>"$STATE/calls"
[ ! -e "$STATE/offline" ] || exit 100
[ "$1" = install ] || exit 0
for name in "$@"; do
  case $name in install | -* | Dpkg*) continue ;; esac
  [ -e "$STATE/known/$name" ] || exit 100
  touch "$STATE/installed/$name"
done""",
}


class Bootstrap(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "tools" / "build").mkdir(parents=True)  # no requirements in it: no virtual environment
        shutil.copy(TOOLS / "bootstrap.sh", self.root / "tools" / "build")
        for name in ("bin", "known", "installed"):
            (self.root / name).mkdir()
        for name, text in PROGRAMS.items():
            path = self.root / "bin" / name
            path.write_text(f"#!/usr/bin/env bash\n{text}\n")
            path.chmod(0o755)

    def run_tasks(self, *tasks):
        environment = {**os.environ, "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}", "STATE": str(self.root)}
        (self.root / "calls").write_text("")
        result = subprocess.run([self.root / "tools" / "build" / "bootstrap.sh", *tasks], env=environment, capture_output=True,
                                text=True)
        return result.returncode, result.stdout, (self.root / "calls").read_text()

    def test_a_second_run_does_nothing(self):
        # This distribution has no package of the sanitizers' runtime, and calls one other by its second name.
        known = ("cmake ninja-build g++ make libhwy-dev libcli11-dev nlohmann-json3-dev zlib1g-dev libzstd-dev python3 python3-venv "
                 "ccache libgtest-dev binutils pkgconf clang qemu-user-static libc6-arm64-cross libc6-amd64-cross")
        for name in known.split():
            (self.root / "known" / name).touch()
        status, output, calls = self.run_tasks("build", "test")
        self.assertEqual(status, 0, output)
        self.assertIn("apt-get install cmake", output)
        self.assertIn("pkgconf", calls)
        self.assertIn("libclang-rt-dev|libclang-rt-14-dev cannot be had here", output)
        self.assertEqual(self.run_tasks("build", "test"), (0, "", ""))

    def test_without_a_network_it_asks_again_the_next_time(self):
        (self.root / "offline").touch()
        (self.root / "known" / "munge").touch()
        for _ in range(2):
            status, output, calls = self.run_tasks("slurm")
            self.assertEqual(status, 0)
            self.assertIn("munge cannot be had here", output)
            self.assertIn("update", calls)

    def test_what_must_be_there_and_is_not(self):
        status, output, _ = self.run_tasks("build")
        self.assertEqual(status, 1)
        self.assertIn("could not install cmake", output)

    def test_an_unknown_task(self):
        self.assertEqual(self.run_tasks("dance")[:2], (2, "bootstrap: no such task: dance\n"))


if __name__ == "__main__":
    unittest.main()
