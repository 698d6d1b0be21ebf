#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From the first error to a passing import where something must be compiled: in a throw-away environment with a real torch, by the
commands that Mica printed and no others. flash-attn is the stand-in of flash_like, which pip finds in a folder.

Usage: story_long_test.py MICA [unittest arguments]. Runs with the Python that has torch. What this machine does not allow is
skipped, with the reason."""

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "run")]
from build_long_test import MemoryGroup  # noqa: E402
from fix_command_test import make_wheel  # noqa: E402

MICA = ""
SOURCE = HERE.parent / "flash_like"
TORCH = importlib.util.find_spec("torch")
OTHER_MAJOR = """#!/bin/sh
echo "nvcc: NVIDIA (R) Cuda compiler driver"
echo "Cuda compilation tools, release 11.5, V11.5.119"
"""
# Compiled with the old C++ ABI, it asks torch for a function that takes the old std::string.
OLD_ABI = """
#include <Python.h>
#include <c10/util/Exception.h>
PyMODINIT_FUNC PyInit_flash_attn_2_cuda() {
  TORCH_CHECK(Py_IsInitialized(), "want a Python, got ", std::string("none"));
  return nullptr;
}
"""
# Compilers and toolkits are not to be seen by what runs below this; nothing outside notices.
HIDDEN = """
mount -t tmpfs none {scratch}
mkdir {scratch}/upper {scratch}/work {scratch}/empty
mount -t overlay overlay -o lowerdir=/usr/bin,upperdir={scratch}/upper,workdir={scratch}/work /usr/bin
rm -f /usr/bin/*g++* /usr/bin/*gcc* /usr/bin/*c++* /usr/bin/cc /usr/bin/*clang*
for toolkit in /usr/local/cuda* /usr/local/nvvm /usr/local/bin /opt/cuda*; do
  [ -d "$toolkit" ] && [ ! -h "$toolkit" ] && mount --bind {scratch}/empty "$toolkit"
done
"""


def distributions_of_torch():
    """torch, setuptools, and what they require; CUDA's libraries among them, which torch may name through extras."""
    found, waiting = {}, ["torch", "numpy", "setuptools"]
    waiting += [d.metadata["Name"] for d in importlib.metadata.distributions() if d.metadata["Name"].startswith("nvidia")]
    while waiting:
        name = re.match(r"[\w.-]+", waiting.pop()).group()
        try:
            one = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if one.metadata["Name"] not in found:
            found[one.metadata["Name"]] = one
            waiting += [r for r in one.requires or [] if "extra ==" not in r]
    return found.values()


def link_files(distribution, site):
    """The files of a distribution, in another environment, without their bytes being copied."""
    for file in distribution.files or []:
        source, target = pathlib.Path(distribution.locate_file(file)), site / str(file)
        if str(file).startswith("..") or target.exists() or not source.is_file():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source.resolve(), target)
        except OSError:
            os.symlink(source.resolve(), target)


@unittest.skipUnless(TORCH, "torch is not in this Python")
class Story(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import torch

        if torch.version.cuda is None:
            raise unittest.SkipTest("this torch is a build for the CPU")
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.folder.name)
        cls.venv = cls.root / "venv"
        subprocess.run([sys.executable, "-m", "venv", str(cls.venv)], check=True)
        cls.site = next((cls.venv / "lib").glob("python3*")) / "site-packages"
        for old in [*cls.site.glob("setuptools*"), *cls.site.glob("pkg_resources"), *cls.site.glob("_distutils_hack")]:
            shutil.rmtree(old)  # two releases would be mixed
        for one in distributions_of_torch():
            link_files(one, cls.site)
        (cls.root / "bin").mkdir()
        (cls.root / "bin/mica").symlink_to(MICA)
        (cls.root / "index").mkdir()
        with tarfile.open(cls.root / "index/flash_attn-9.9.tar.gz", "w:gz") as archive:
            archive.add(SOURCE, "flash_attn-9.9", filter=lambda entry: None if "__pycache__" in entry.name else entry)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def setUp(self):
        subprocess.run([self.venv / "bin/python", "-m", "pip", "uninstall", "-qy", "flash-attn"], capture_output=True)
        self.here = self.root / self.id().rpartition(".")[2]
        self.here.mkdir()
        self.variables = {
            "PATH": f"{self.root}/bin:{self.venv}/bin:/usr/bin:/bin", "VIRTUAL_ENV": str(self.venv), "HOME": str(self.here),
            "PIP_FIND_LINKS": str(self.root / "index"), "LANG": "C.UTF-8",
            **{k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_")) and k != "PIP_FIND_LINKS"},
        }
        self.wrapper = []
        self.enter = None

    def shell(self, command, text="", limit=1800):
        print(f"[{self.here.name}] $ {command}", flush=True)
        done = subprocess.run([*self.wrapper, "/bin/sh", "-c", command], cwd=self.here, env=self.variables, input=text, text=True,
                              capture_output=True, timeout=limit, preexec_fn=self.enter)
        return done.returncode, done.stdout + done.stderr

    def pip_installs(self, options=""):
        code, text = self.shell(f"python -m pip install -v --no-deps {options} flash-attn")
        self.assertNotEqual(code, 0, text)
        return text

    def explained(self, text, code):
        verdict = json.loads(self.shell("mica explain --json", text)[1])["verdicts"][0]
        self.assertEqual(verdict["code"], code, (verdict["evidence"], text[-2000:]))
        return verdict

    def follow(self, verdict):
        """The command that the answer names, with the yes that it would ask for; and once more with the option that a refusal
        names, since this machine has no GPU to go by."""
        command = re.search(r"mica fix \S+", verdict["fix"])
        self.assertIsNotNone(command, verdict["fix"])
        code, text = self.shell(command.group() + " --yes")
        if code and "BUILD_NO_ARCH" in text:
            option = re.search(r"--arch [0-9.]+", text).group()
            code, text = self.shell(f"{command.group()} {option} --yes")
        self.assertEqual(code, 0, text)
        return text

    def imports(self):
        self.assertEqual(self.shell("python -c 'import flash_attn; print(flash_attn.flash_attn_func(\"works\"))'"), (0, "works\n"))

    def test_packaging_is_missing(self):
        verdict = self.explained(self.pip_installs(), "BUILD_ISOLATION")
        self.assertIn("done ", self.follow(verdict))
        self.imports()

    def test_a_wheel_of_the_wrong_abi(self):
        library = self.here / "module.so"
        include = [f"-I{sysconfig.get_path('include')}", f"-I{self.site}/torch/include"]
        subprocess.run(["g++", "-shared", "-fPIC", "-std=c++20", "-O0", "-D_GLIBCXX_USE_CXX11_ABI=0", *include, "-x", "c++", "-",
                        "-o", library], check=True, input=OLD_ABI, text=True)
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        files = {f"flash_attn/{f.name}": f.read_text() for f in (SOURCE / "flash_attn").glob("*.py")}
        tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
        wheel = make_wheel(self.here, "flash_attn", "2.8.3", {**files, f"flash_attn_2_cuda{suffix}": library.read_bytes()},
                           f"{tag}-{tag}-linux_{os.uname().machine}")
        self.assertEqual(self.shell(f"python -m pip install -q --no-deps --no-index {wheel}")[0], 0)
        code, text = self.shell("python -c 'import flash_attn'")
        self.assertIn("undefined symbol", text)
        self.follow(self.explained(text, "TORCH_CXX11_ABI"))
        self.imports()

    def test_a_torch_for_which_none_is_published(self):
        self.variables["CUDA_HOME"] = str(self.here / "none")
        text = self.pip_installs("--no-build-isolation")
        self.assertIn("Precompiled wheel not found", text)
        verdicts = json.loads(self.shell("mica explain --json", text)[1])["verdicts"]
        self.assertIn("URL_GUESS_404", [v["code"] for v in verdicts])
        self.assertIn("no published wheel fits", " ".join(v["fix"] for v in verdicts))
        self.follow(verdicts[0])
        self.imports()

    def test_another_nvcc_comes_first(self):
        old = self.here / "cuda-11.5"
        (old / "bin").mkdir(parents=True)
        (old / "bin/nvcc").write_text(OTHER_MAJOR)
        (old / "bin/nvcc").chmod(0o755)
        self.variables["PATH"] = f"{old}/bin:" + self.variables["PATH"]
        verdict = self.explained(self.pip_installs("--no-build-isolation"), "BUILD_CUDA_MAJOR_MISMATCH")
        text = self.follow(verdict)
        self.imports()
        self.assertIn("done ", text)

    def test_no_nvcc_no_compiler_and_no_root(self):
        scratch = self.here / "scratch"
        scratch.mkdir()
        script = "set -e" + HIDDEN.format(scratch=scratch) + 'exec "$@"'
        self.wrapper = ["unshare", "-m", "/bin/sh", "-c", script, "sh"]
        if self.shell("! command -v g++")[0]:
            self.skipTest("compilers cannot be hidden here: no mount namespace")
        if not shutil.which("apt-cache") or not subprocess.run(["apt-cache", "pkgnames", "g++-"], capture_output=True).stdout:
            self.skipTest("this distribution has no packages to unpack")
        packages = subprocess.run(["dpkg-query", "-W"], capture_output=True, text=True).stdout
        verdict = self.explained(self.pip_installs("--no-build-isolation"), "BUILD_NVCC_MISSING")
        text = self.follow(verdict)
        self.assertIn("fetching one by pip: nvidia-cuda-nvcc", text)
        self.assertIn("fetching one by apt-get download g++", text)
        self.assertEqual(subprocess.run(["dpkg-query", "-W"], capture_output=True, text=True).stdout, packages)
        self.imports()

    @unittest.skipUnless("SLURM_CONF" in os.environ, "no Slurm is here: slurm_rig.py starts one")
    def test_slurm_with_modules(self):
        modules = self.here / "modules/init"
        modules.mkdir(parents=True)
        (modules / "bash").write_text('module() { [ "$1 $2" = "load cuda" ] && echo "loaded cuda" && unset CUDA_HOME; }\n')
        self.variables.update(SLURM_CONF=os.environ["SLURM_CONF"], MODULESHOME=str(modules.parent),
                              CUDA_HOME=str(self.here / "none"))
        verdict = self.explained(self.pip_installs("--no-build-isolation"), "BUILD_NVCC_MISSING")
        command = re.search(r"mica build \S+ --slurm --module \S+ --install", verdict["fix"]).group()
        size = "--jobs 1 --mem 1400M --retries 0"  # of this cluster's node
        code, text = self.shell(f"{command} {size}")
        if code and "BUILD_NO_ARCH" in text:
            code, text = self.shell(f"{command} {size} {re.search(r'--arch [0-9.]+', text).group()}")
        self.assertEqual(code, 0, text)
        self.assertIn("| loaded cuda", text)
        self.imports()

    def test_killed_for_memory(self):
        group = MemoryGroup(1700 << 20)
        self.addCleanup(group.remove)
        self.enter = group.enter
        # More jobs than files: all begin at the same time, so that all of them are large at the same time.
        self.variables.update(FLASH_LIKE_MEGABYTES="700", MAX_JOBS="8", TORCH_CUDA_ARCH_LIST="9.0")
        verdict = self.explained(self.pip_installs("--no-build-isolation"), "BUILD_OOM")
        self.assertGreaterEqual(group.kills(), 1)
        del self.variables["MAX_JOBS"], self.variables["TORCH_CUDA_ARCH_LIST"]
        self.follow(verdict)
        self.imports()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    MICA = os.path.abspath(sys.argv.pop(1))
    unittest.main()
