#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From the first error to a passing import, in a throw-away environment, by the commands that Mica printed and no others.

Usage: story_test.py MICA [unittest arguments]."""

import _json
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parent))
from fix_command_test import make_wheel  # noqa: E402

MICA = ""
# What people run into: the wheel that setup.py leaves where it compiled nothing.
PRETENDER = {"flash_attn/__init__.py": "from flash_attn.flash_attn_interface import f\n",
             "flash_attn/flash_attn_interface.py": "import flash_attn_2_cuda as flash_attn_gpu\nf = 1\n"}
# A model that hides why it cannot import flash_attn.
MODEL = ("try:\n    import flash_attn\nexcept Exception:\n    flash_attn = None\n"
         "if flash_attn is None:\n    raise ValueError('FlashAttention2 is not installed')\nprint('ready')\n")
# A kernel as far as /proc shows one: it has the compiled module open, and tells which release it was started with.
KERNEL = """
import ctypes, importlib.metadata, pathlib, sys, time
site = pathlib.Path(__file__).parent
held = [ctypes.CDLL(str(p)) for p in site.glob("flash_attn_2_cuda*.so")]
pathlib.Path(sys.argv[2]).write_text(importlib.metadata.version("flash_attn"))
time.sleep(600)
"""


class Supervisor:
    """Starts the kernel again whenever it ends, with the same connection file, as Jupyter's server does."""

    def __init__(self, python, connection):
        self.words = [str(python), "-m", "ipykernel_launcher", "-f", str(connection)]
        self.connection, self.stopped = connection, False
        self.process = subprocess.Popen(self.words)
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self):
        while not self.stopped:
            if self.process.poll() is not None:
                self.process = subprocess.Popen(self.words)
            time.sleep(0.05)

    def release(self):
        """That the kernel runs with."""
        for _ in range(600):
            if self.connection.exists() and self.connection.read_text():
                return self.connection.read_text()
            time.sleep(0.1)
        return ""

    def stop(self):
        self.stopped = True
        self.thread.join()
        self.process.kill()
        self.process.wait()


class Environment(unittest.TestCase):
    """A throw-away environment, its shell, and the one step that an answer names."""

    PYTHON = sys.executable

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.folder.name)
        cls.venv = cls.root / "venv"
        subprocess.run([cls.PYTHON, "-m", "venv", str(cls.venv)], check=True)
        # `mica` as a shell finds it, with that environment active, in a folder whose `wheels` has Mica's own.
        (cls.root / "bin").mkdir()
        (cls.root / "bin/mica").symlink_to(MICA)
        cls.variables = {"PATH": f"{cls.root}/bin:{cls.venv}/bin:/usr/bin:/bin", "VIRTUAL_ENV": str(cls.venv),
                         "HOME": str(cls.root)}
        make_wheel_folder = cls.root / "wheels"
        make_wheel_folder.mkdir()
        make_wheel(make_wheel_folder, "flash_attn", "2.8.3+mica0.1.0", {"flash_attn/__init__.py": "from mica_attention import f\n"})
        make_wheel(make_wheel_folder, "mica_attention", "0.1.0", {"mica_attention/__init__.py": "f = 7\n"})

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def setUp(self):
        subprocess.run([self.venv / "bin/python", "-m", "pip", "uninstall", "-qy", "flash-attn", "mica-attention"],
                       check=True, capture_output=True)

    def shell(self, command: str, text: str = ""):
        return subprocess.run(["/bin/sh", "-c", command], cwd=self.root, env=self.variables, input=text, text=True,
                              capture_output=True)

    def explain(self, text: str) -> dict:
        return json.loads(self.shell("mica explain --json", text).stdout)["verdicts"][0]

    def install_the_pretender(self, more=()):
        shared = self.root / "shared"
        shared.mkdir(exist_ok=True)
        wheel = make_wheel(shared, "flash_attn", "2.8.3", {**PRETENDER, **dict(more)})
        subprocess.run([self.venv / "bin/python", "-m", "pip", "install", "-q", "--no-deps", "--no-index",
                        "--force-reinstall", wheel], check=True, capture_output=True)

    def do_the_one_step(self, verdict: dict):
        """The command that the answer names, as it stands there; the question that it asks is answered by --yes."""
        command = re.search(r"(mica fix \S+)", verdict["fix"])
        self.assertIsNotNone(command, verdict["fix"])
        done = self.shell(command.group(1) + " --yes")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class Story(Environment):
    def test_the_wheel_without_its_extension_on_shared_storage(self):
        self.install_the_pretender()
        error = self.shell("python -c 'import flash_attn'").stderr
        self.assertIn("No module named 'flash_attn_2_cuda'", error)
        verdict = self.explain(error)
        self.assertEqual(verdict["code"], "MODULE_MISSING")
        self.do_the_one_step(verdict)
        self.assertEqual(self.shell("python -c 'import flash_attn; print(flash_attn.f)'").stdout, "7\n")

    def test_a_model_that_says_it_is_not_installed(self):
        self.install_the_pretender()
        (self.root / "model.py").write_text(MODEL)
        error = self.shell("python model.py").stderr
        verdict = self.explain(error)
        self.assertEqual(verdict["code"], "FLASH_ATTN_NOT_SEEN")
        # How to see it: the command that is printed, from the interpreter to the pipe.
        look = re.match(r"(\S+python -c 'import flash_attn' 2>&1 \| mica explain)", verdict["fix"])
        self.assertIsNotNone(look, verdict["fix"])
        seen = self.shell(look.group(1) + " --json")
        cause = json.loads(seen.stdout)["verdicts"][0]
        self.assertEqual(cause["code"], "MODULE_MISSING")
        self.do_the_one_step(cause)
        self.assertEqual(self.shell("python model.py").stdout, "ready\n")

    def test_nothing_can_be_downloaded(self):
        error = self.shell("python -m pip install --no-index flash-attn").stderr
        verdict = self.explain(error)
        self.assertEqual(verdict["code"], "WHEEL_NONE_PUBLISHED")
        self.do_the_one_step(verdict)
        self.assertEqual(self.shell("python -c 'import flash_attn; print(flash_attn.f)'").stdout, "7\n")

    def test_a_kernel_that_still_holds_the_old_module(self):
        # A compiled file that is no module of that name: it can be opened, and cannot be imported.
        module = pathlib.Path(_json.__file__).read_bytes()
        self.install_the_pretender({"flash_attn_2_cuda" + sysconfig.get_config_var("EXT_SUFFIX"): module})
        site = next((self.venv / "lib").glob("python3*")) / "site-packages"
        (site / "ipykernel_launcher.py").write_text(KERNEL)
        connection = self.root / "kernel-1.json"
        jupyter = Supervisor(self.venv / "bin/python", connection)
        self.addCleanup(jupyter.stop)
        self.assertEqual(jupyter.release(), "2.8.3")
        error = self.shell("python -c 'import flash_attn'").stderr
        command = re.search(r"(mica fix \S+)", self.explain(error)["fix"]).group(1)
        done = self.shell(command + " --yes")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("error JUPYTER_KERNEL_OLD", done.stdout)  # the fix is on disk, and the kernel does not see it
        self.assertEqual(self.shell("mica jupyter running").returncode, 1)
        connection.write_text("")
        restart = re.search(r"mica jupyter running --restart \d+", done.stdout).group()
        again = self.shell(restart)
        self.assertEqual(again.returncode, 0, again.stdout + again.stderr)
        self.assertIn("started again by Jupyter", again.stdout)
        self.assertEqual(jupyter.release(), "2.8.3+mica0.1.0")
        self.assertEqual(self.shell("mica jupyter running").returncode, 0)


def python_312():
    """A Python 3.12 of this machine; empty: there is none."""
    root = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
    found = sorted(root.glob("versions/3.12*/bin/python3.12"))
    return str(found[-1]) if found else shutil.which("python3.12") or ""


@unittest.skipUnless(python_312(), "no Python 3.12 is here")
class AnotherPython(Environment):
    """cp312, torch 2.9.1+cu128, and nothing can be downloaded. (torch is a stand-in that says so; the Python is real.)"""

    PYTHON = python_312()

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        site = next((cls.venv / "lib").glob("python3*")) / "site-packages"
        (site / "torch/lib").mkdir(parents=True)
        (site / "torch/__init__.py").write_text("from torch.version import __version__\n")
        (site / "torch/version.py").write_text("__version__ = '2.9.1+cu128'\ncuda = '12.8'\n")
        info = site / "torch-2.9.1+cu128.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.1+cu128\n")
        (info / "RECORD").write_text("torch/__init__.py,,\ntorch/version.py,,\n")
        cls.variables = {**cls.variables, "PIP_NO_INDEX": "1"}

    def test_no_wheel_at_hand_for_this_torch(self):
        error = self.shell("python -m pip install flash-attn").stderr
        verdict = self.explain(error)
        self.assertEqual(verdict["code"], "WHEEL_NONE_PUBLISHED", error)
        self.do_the_one_step(verdict)
        self.assertEqual(self.shell("python -c 'import torch, flash_attn, sys; print(torch.__version__, flash_attn.f, "
                                    "sys.version_info[:2])'").stdout, "2.9.1+cu128 7 (3, 12)\n")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    MICA = os.path.abspath(sys.argv.pop(1))
    unittest.main()
