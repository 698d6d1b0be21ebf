#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`mica jupyter` as a person uses it, with a jupyter_client made for the test; with --real, with the one from pip.

Usage: kernels_verb_test.py [--real] MICA [unittest arguments]. Exit status 77: skipped, the last line says why."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

MICA = None
REAL_PYTHON = None  # of an environment with ipykernel


def venv(folder: pathlib.Path, *options: str) -> pathlib.Path:
    subprocess.run([sys.executable, "-m", "venv", *options, str(folder)], check=True)
    return folder / "bin" / "python"


# jupyter_client in miniature: a kernel is a Python that runs one text.
CLIENT = """
import json, os, subprocess, sys
class KernelSpecManager:
    def __init__(self, kernel_dirs): self.kernel_dirs = kernel_dirs
class KernelManager:
    def __init__(self, kernel_name, kernel_spec_manager):
        with open(os.path.join(kernel_spec_manager.kernel_dirs[0], kernel_name, "kernel.json")) as file:
            self.spec = json.load(file)
    def start_kernel(self, stdout, stderr):
        mode = os.environ.get("MODE", "")
        if mode == "slow":
            print("waiting", flush=True)
            import time; time.sleep(100)
        if mode == "die": os._exit(9)
        if mode == "fails":
            stderr.write("ImportError: libzmq.so.5: no such file\\n"); stderr.flush()
            raise RuntimeError("Kernel died before replying to kernel_info")
    def client(self): return self
    def start_channels(self): pass
    def stop_channels(self): pass
    def wait_for_ready(self, timeout): pass
    def shutdown_kernel(self, now): pass
    def execute_interactive(self, code, store_history, allow_stdin, timeout, output_hook):
        env = {**os.environ, **self.spec.get("env", {})}
        text = subprocess.run([self.spec["argv"][0], "-c", code], env=env, capture_output=True, text=True).stdout
        output_hook({"header": {"msg_type": "stream"}, "content": {"text": text}})
        return {"content": {"status": "ok"}}
"""
KERNEL = """
import os, sys
RESOURCES = os.path.join(os.path.dirname(__file__), "resources")
def get_kernel_dict():
    return {"argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "Python 3",
            "language": "python", "metadata": {"debugger": True}}
"""


class Verb(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="mica-jupyter-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.home = self.folder / "home"
        self.home.mkdir()
        self.kernels = self.home / ".local/share/jupyter/kernels"
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "XDG", "CONDA", "PYTHON"))}
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir()
        self.addCleanup(lambda: self.assertEqual(list(self.temporary.glob("mica-kernel-*")), []))
        self.env = {**keep, "HOME": str(self.home), "TMPDIR": str(self.temporary)}

    def run_mica(self, *arguments, **env):
        return subprocess.run(
            [MICA, "jupyter", *arguments], capture_output=True, text=True, env={**self.env, **env}
        )

    def install(self, python, *arguments, name="one", **env):
        return self.run_mica(
            "install", "--python", str(python), "--name", name, "--display-name", "One", *arguments, **env
        )

    def traces(self):
        return sorted(str(p.relative_to(self.kernels)) for p in self.kernels.rglob("*"))


class Imitated(Verb):
    @classmethod
    def setUpClass(cls):
        cls.shared = pathlib.Path(tempfile.mkdtemp(prefix="mica-jupyter-"))
        cls.bare = venv(cls.shared / "bare", "--without-pip")
        cls.python = venv(cls.shared / "full", "--without-pip")
        site = next((cls.shared / "full/lib").glob("python3*/site-packages"))
        files = {
            "jupyter_client/__init__.py": "",
            "jupyter_client/kernelspec.py": CLIENT,
            "jupyter_client/manager.py": CLIENT,
            "ipykernel/__init__.py": "",
            "ipykernel/kernelspec.py": KERNEL,
            "ipykernel/resources/logo-32x32.png": "PNG",
            "ipykernel_launcher.py": "",
            "causal_conv1d.py": "__version__ = '1.5'\n",
            "mamba_ssm.py": "raise ImportError('x.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs')\n",
        }
        for name, text in files.items():
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_text(text)
        cls.broken = site / "mamba_ssm.py"

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.shared)

    def test_without_ipykernel_nothing_is_written(self):
        result = self.install(self.bare, "--json")
        self.assertEqual(result.returncode, 1, result.stderr)
        verdict = json.loads(result.stdout)["verdicts"][0]
        self.assertEqual(verdict["code"], "JUPYTER_NO_IPYKERNEL")
        self.assertIn("install ipykernel", verdict["fix"])
        self.assertEqual(self.traces(), [])

    def test_registered_started_listed(self):
        result = self.install(self.python, "--json", "--env", "A_SECRET=hidden", name="ONE")
        out = json.loads(result.stdout)
        self.assertEqual((out["placed"], out["started"], out["name"]), ("new", True, "one"))
        self.assertEqual(out["executable"], str(self.python))
        imported = {item["module"]: item for item in out["imports"]}
        self.assertEqual(imported["causal_conv1d"]["version"], "1.5")
        self.assertIn("undefined symbol", imported["mamba_ssm"]["error"])
        self.assertEqual(result.returncode, 1, "an import fails inside")
        self.assertEqual([v["subject"] for v in out["verdicts"]], ["mamba_ssm"])
        spec = json.loads((self.kernels / "one/kernel.json").read_text())
        self.assertEqual((spec["display_name"], spec["env"]), ("One", {"A_SECRET": "hidden"}))
        self.assertEqual(self.traces(), ["one", "one/kernel.json", "one/logo-32x32.png"])
        listed = self.run_mica("list", "--json")
        self.assertNotIn("hidden", listed.stdout)
        mine = [k for k in json.loads(listed.stdout)["kernels"] if k["name"] == "one"]
        self.assertEqual([k["python"]["program"] for k in mine], [str(self.python)])
        self.assertEqual(mine[0]["env"], ["A_SECRET"])
        if len(json.loads(listed.stdout)["kernels"]) == 1:  # those of the machine may be in any state
            self.assertEqual(listed.returncode, 0, listed.stdout + listed.stderr)
        shutil.rmtree(self.kernels / "one")
        again = json.loads(self.run_mica("list", "--json").stdout)
        self.assertEqual([k for k in again["kernels"] if k["scope"] == "user"], [])

    def test_another_kernel_stays_unless_told(self):
        self.install(self.python)
        file = self.kernels / "one/kernel.json"
        before = file.read_text()
        self.assertEqual(json.loads(self.install(self.python, "--json").stdout)["placed"], "same")
        result = self.install(self.python, "--env", "A=b")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr.count("\n"), 1)
        self.assertIn("--replace", result.stderr)
        self.assertEqual(file.read_text(), before)
        replaced = self.install(self.python, "--env", "A=b", "--replace", "--json")
        self.assertEqual(json.loads(replaced.stdout)["placed"], "replaced")
        self.assertIn('"A"', file.read_text())

    def test_what_does_not_start_is_taken_back(self):
        for mode, about in (("fails", "Kernel died"), ("die", "exit code 9")):
            result = self.install(self.python, "--json", MODE=mode)
            out = json.loads(result.stdout)
            self.assertEqual((result.returncode, out["placed"], out["started"]), (1, "", False))
            self.assertEqual(out["verdicts"][0]["code"], "JUPYTER_KERNEL_DEAD")
            self.assertIn(about, out["verdicts"][0]["message"])
            self.assertEqual(self.traces(), [])
        self.assertIn("libzmq", self.install(self.python, MODE="fails").stdout)
        started = json.loads(self.install(self.python, "--json").stdout)
        self.assertNotIn("JUPYTER_KERNEL_DEAD", [verdict["code"] for verdict in started["verdicts"]])
        if "MICA_VERDICT_NOTES" in os.environ:  # tests/verdict_notes.h
            pathlib.Path(os.environ["MICA_VERDICT_NOTES"], "jupyter_verb").write_text("JUPYTER_KERNEL_DEAD\n")
        before = (self.kernels / "one/kernel.json").read_text()
        self.install(self.python, "--env", "A=b", "--replace", MODE="fails")
        self.assertEqual((self.kernels / "one/kernel.json").read_text(), before, "the old one is there again")
        result = self.install(self.python, "--json", "--timeout", "1", name="two", MODE="slow")
        self.assertEqual(result.returncode, 1)

    def test_ctrl_c_takes_it_back(self):
        process = subprocess.Popen(
            [MICA, "jupyter", "install", "--python", str(self.python), "--name", "one", "--display-name", "One"],
            env={**self.env, "MODE": "slow"}, stdout=subprocess.PIPE, text=True,
        )
        while not (self.kernels / "one/kernel.json").exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(), 1)
        process.stdout.close()
        self.assertEqual(self.traces(), [])

    def test_into_a_prefix(self):
        result = self.install(self.python, "--prefix", str(self.folder / "jupyter hub"))
        self.assertIn("JUPYTER_PATH", result.stdout)
        self.assertTrue((self.folder / "jupyter hub/share/jupyter/kernels/one/kernel.json").is_file())
        self.assertEqual(self.traces(), [])

    def test_bad_usage_gets_one_line(self):
        cases = {
            "--python": ["--python", "/nowhere"],
            "is no Python": ["--python", "/bin/sh"],
            "--name": ["--name", "a b"],
            "--display-name": ["--display-name", "a\nb"],
            "--env": ["--env", "nothing"],
            "UTF-8": ["--env", b"A=\xff"],
            "--timeout": ["--timeout", "x"],
        }
        for about, given in cases.items():
            options = {"--python": str(self.python), "--name": "one", "--display-name": "One"}
            options[given[0]] = given[1]
            result = self.run_mica("install", *[word for pair in options.items() for word in pair])
            self.assertEqual((result.returncode, result.stdout), (2, ""), about)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
            self.assertIn(about, result.stderr)
        self.assertEqual(self.run_mica().returncode, 2)
        read_only = self.install(self.python, "--prefix", "/proc/self")
        self.assertEqual(read_only.returncode, 2, read_only.stderr)

    def test_help(self):
        for words in ([], ["list"], ["install"]):
            result = self.run_mica(*words, "--help")
            self.assertEqual(result.returncode, 0)
            self.assertIn("Usage: mica jupyter", result.stdout)


class Real(Verb):
    def test_a_kernel_is_started(self):
        result = self.install(REAL_PYTHON, "--json", "--env", "MICA_PROOF=seen")
        out = json.loads(result.stdout)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual((out["placed"], out["started"], out["executable"]), ("new", True, str(REAL_PYTHON)))
        self.assertEqual(out["python_version"], "%d.%d.%d" % sys.version_info[:3])
        listed = subprocess.run(
            [str(REAL_PYTHON), "-m", "jupyter_client.kernelspecapp", "list", "--json"],
            capture_output=True, text=True, env=self.env, check=True,
        )
        self.assertEqual(
            pathlib.Path(json.loads(listed.stdout)["kernelspecs"]["one"]["resource_dir"]).resolve(),
            (self.kernels / "one").resolve(),
        )
        program = textwrap.dedent("""
            from jupyter_client.manager import start_new_kernel
            manager, client = start_new_kernel(kernel_name="one")
            client.execute_interactive("import os, sys; print(os.environ['MICA_PROOF'], sys.executable)")
            client.stop_channels(); manager.shutdown_kernel(now=True)
            """)
        words = [str(REAL_PYTHON), "-c", program]
        run = subprocess.run(words, capture_output=True, text=True, env=self.env, timeout=200)
        self.assertEqual(run.stdout.split(), ["seen", str(REAL_PYTHON)], run.stderr)

    def test_a_kernel_that_dies(self):
        before = self.traces()
        result = self.install(REAL_PYTHON, "--json", "--timeout", "20", "--env", "PYTHONHOME=/nowhere")
        out = json.loads(result.stdout)
        self.assertEqual((result.returncode, out["started"]), (1, False), result.stdout)
        self.assertIn("No module named 'encodings'", "\n".join(out["verdicts"][0]["evidence"]))
        self.assertEqual(self.traces(), before)

    def test_a_broken_module_inside(self):
        extra = self.folder / "extra"
        extra.mkdir()
        text = "raise ImportError('libcudart.so.11.0: cannot open shared object file: No such file or directory')\n"
        (extra / "causal_conv1d.py").write_text(text)
        result = self.install(REAL_PYTHON, "--json", "--env", "PYTHONPATH=%s" % extra)
        out = json.loads(result.stdout)
        self.assertEqual((result.returncode, out["started"], out["placed"]), (1, True, "new"))
        self.assertEqual([v["subject"] for v in out["verdicts"]], ["causal_conv1d"])

    def notebook(self, *cells):
        """A notebook of these code cells, with one of text between the first two."""
        listed = [{"cell_type": "code", "metadata": {}, "source": c.splitlines(True), "outputs": [], "execution_count": None}
                  for c in cells]
        listed.insert(1, {"cell_type": "markdown", "metadata": {}, "source": ["# text\n"]})
        path = self.folder / "train.ipynb"
        path.write_text(json.dumps({"cells": listed, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}))
        return path

    def test_a_notebook_runs(self):
        path = self.notebook("x = 6\n", "print('answer', x * 7)\n")
        before = path.read_bytes()
        result = self.run_mica("run", str(path), "--python", str(REAL_PYTHON))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(path.read_bytes(), before, "the file stays as it was")

    def test_the_cell_that_failed_and_why(self):
        path = self.notebook("x = 1\n", "%%time\nraise ImportError('/env/lib/python3.11/site-packages/flash_attn_2_cuda"
                             ".cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs')\n",
                             "print('not reached')\n")
        result = self.run_mica("run", str(path), "--python", str(REAL_PYTHON), "--json")
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        verdicts = json.loads(result.stdout)["verdicts"]
        self.assertEqual([v["code"] for v in verdicts[:2]], ["JUPYTER_CELL_FAILED", "TORCH_CXX11_ABI"])
        self.assertIn("code cell 2", verdicts[0]["subject"])
        self.assertNotIn("not reached", result.stdout)


def real_environment(folder: pathlib.Path) -> pathlib.Path:
    """A throw-away environment with ipykernel; exits with 77 where pip cannot be reached."""
    python = venv(folder / "venv")
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-input", "--retries", "1"]
    done = subprocess.run([*pip, "ipykernel", "jupyter_client"], capture_output=True, text=True)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        print("skipped: pip cannot install ipykernel here: " + reason)
        sys.exit(77)
    return python


if __name__ == "__main__":
    arguments = sys.argv[1:]
    is_real = "--real" in arguments
    if is_real:
        arguments.remove("--real")
    MICA = arguments[0]
    with tempfile.TemporaryDirectory(prefix="mica-jupyter-") as shared:
        if is_real:
            REAL_PYTHON = real_environment(pathlib.Path(shared))
        tests = unittest.main(argv=[sys.argv[0], *(arguments[1:] or ["Real" if is_real else "Imitated"])], exit=False)
    sys.exit(not tests.result.wasSuccessful())
