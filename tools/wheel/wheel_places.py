# SPDX-License-Identifier: Apache-2.0
"""Fresh environments to use a wheel in: virtual environments of Pythons that are installed here, and Pythons of Debian
and Ubuntu in a folder. What they need besides the wheel is kept in .cache/wheelhouse, so that it comes once."""

import os
import pathlib
import platform
import shutil
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "build"))
import torch_index  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHONS = ROOT / ".cache" / "pythons"
WHEELHOUSE = ROOT / ".cache" / "wheelhouse"
WORK = ROOT / "out" / "wheel-env"
NEWEST = "newest"
BASE = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MICA_"))}
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


class Unavailable(Exception):
    """This environment cannot be had here; the message says why."""


class Wrong(Exception):
    """The wheel did not do what it should."""


def run(command, wrong=Wrong, **environment):
    try:
        result = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=1800,
                                env={**BASE, "PYTHONNOUSERSITE": "1", **environment}, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise wrong(str(error)) from error
    if result.returncode:
        lines = (result.stdout + result.stderr).strip().splitlines() or ["no output"]
        raise wrong(next((line for line in lines if line.startswith("ERROR: No matching")), lines[-1]))
    return result.stdout


def requirements(torch):
    if torch is None:
        return ["numpy"]
    old = torch != NEWEST and tuple(map(int, torch.split(".")))[:2] < (2, 3)
    return ["numpy<2" if old else "numpy", "torch" if torch == NEWEST else f"torch=={torch}"]


def tags(python, machine):
    """pip's options for another Python than its own. A free-threaded one (3.14t) differs in the ABI alone."""
    options = ["--implementation", "cp", "--python-version", python.rstrip("t"), "--only-binary=:all:"]
    for abi in (f"cp{python.replace('.', '')}", "abi3", "none"):
        options += ["--abi", abi]
    # PyTorch before 2.6 calls its wheels for x86_64 manylinux1.
    for tag in ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", *["manylinux1"] * (machine == "x86_64")):
        options += ["--platform", f"{tag}_{machine}"]
    return options


def gather(python, machine, torch, folder):
    """Puts what the environment needs into the folder: from the wheelhouse, or into it from the network first."""
    offline = [*PIP, "download", "--quiet", "--no-index", "--find-links", WHEELHOUSE, *tags(python, machine),
               *requirements(torch)]
    try:
        run([*offline, "--dest", folder], Unavailable)
    except Unavailable:
        WHEELHOUSE.mkdir(parents=True, exist_ok=True)
        run([*PIP, "download", "--quiet", "--dest", WHEELHOUSE, "--find-links", WHEELHOUSE, *tags(python, machine),
             *torch_index.options(), *requirements(torch)], Unavailable)
        run([*offline, "--dest", folder], Unavailable)


class Venv:
    """A virtual environment of an interpreter that is installed here."""

    def __init__(self, interpreter, version):
        self.interpreter, self.version, self.kind = interpreter, version, "venv"

    def fetch(self, torch):
        if torch != NEWEST:
            gather(self.version, platform.machine(), torch, WORK)

    def create(self, wheels, torch):
        run([self.interpreter, "-m", "venv", WORK], Unavailable)
        self.python, self.mica, self.environment = [WORK / "bin" / "python"], [WORK / "bin" / "mica"], {}
        pip = [WORK / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        if torch == NEWEST and lent_torch():
            self.kind = "venv, PyTorch lent"
            (site,) = WORK.glob("lib/python*/site-packages")
            (site / "lent.pth").write_text(f"{lent_torch()}\n")
        elif torch == NEWEST:  # gigabytes, which the wheelhouse need not hold
            run([*pip, "--no-compile", *torch_index.options(), *requirements(torch)], Unavailable)
        else:
            downloads = WORK / "downloads"
            gather(self.version, platform.machine(), torch, downloads)
            run([*pip, "--no-compile", "--no-index", "--no-deps", *downloads.glob("*.whl")], Unavailable)
            shutil.rmtree(downloads)
        run([*pip, "--no-index", "--no-deps", *wheels])


def lent_torch():
    """Where the Python that runs this has its PyTorch (`make test` installs the newest into .venv); None: nowhere."""
    found = subprocess.run([sys.executable, "-c", "import importlib.util as u; print(u.find_spec('torch').origin)"],
                           capture_output=True, text=True)
    return pathlib.Path(found.stdout.strip()).parent.parent if found.returncode == 0 else None


class Unpacked:
    """A Python of a distribution, run by its own loader (or by qemu) on a folder that pip installed into."""

    def __init__(self, version, machine):
        self.version, self.machine = version, machine
        self.native = machine == platform.machine()
        self.root = PYTHONS / f"{version}-{machine}"
        self.kind = "folder" if self.native else "folder, qemu"

    def fetch(self, torch):
        if not self.root.exists():
            partial = PYTHONS / f"{self.root.name}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            run([ROOT / "tools" / "build" / "fetch_python.sh", self.version, self.machine, partial], Unavailable)
            if self.native:  # as the package's own script does after its installation
                compile_all = [*self.interpreter_of(partial), "-m", "compileall", "-qq"]
                run([*compile_all, *partial.glob("usr/lib/python*")], Unavailable, PYTHONHOME=str(partial / "usr"))
            partial.rename(self.root)
        gather(self.version, self.machine, torch, WORK / "downloads")

    def create(self, wheels, torch):
        self.fetch(torch)
        if self.native and not self.has_loader(self.root):
            self.kind = "folder, compiled"
        downloads = WORK / "downloads"
        # NOTE: pip install takes no notice of --python-version when it reads Requires-Python; pip download does.
        into = [*PIP, "install", "--quiet", "--target", WORK, *tags(self.version, self.machine), "--no-index", "--no-deps",
                "--no-compile", "--ignore-requires-python"]  # to compile would be in vain: this is another Python's pip
        run([*into, *downloads.glob("*.whl"), *wheels])
        shutil.rmtree(downloads)
        self.python, self.mica = self.interpreter_of(self.root), [WORK / "bin" / "mica"]
        if not self.native:  # the launcher would ask the kernel to run the command, which needs qemu again
            self.mica = [*self.emulator(self.root), WORK / "mica/bin/mica"]
        self.environment = {"PYTHONPATH": str(WORK), "PYTHONHOME": str(self.root / "usr")}

    def emulator(self, root):
        found = shutil.which(f"qemu-{self.machine}-static") or shutil.which(f"qemu-{self.machine}")
        if not found:
            raise Unavailable(f"no qemu-{self.machine} (qemu-user-static has it)")
        return [found, "-L", root]

    def has_loader(self, root):
        return any((root / "lib" / f"{self.machine}-linux-gnu").glob("ld-linux-*.so.*"))

    def interpreter_of(self, root):
        interpreter = root / "usr" / "bin" / f"python{self.version}"
        if not self.native:
            return [*self.emulator(root), interpreter]
        if not self.has_loader(root):  # compiled here, for this machine's C library
            return [interpreter]
        folders = [root / prefix / "lib" / f"{self.machine}-linux-gnu" for prefix in ("", "usr")]
        (loader, *_) = folders[0].glob("ld-linux-*.so.*")
        return [loader, "--library-path", ":".join(map(str, folders)), interpreter]


def interpreters(versions):
    """{version: path} of the CPythons that are installed: on the PATH, of pyenv, of uv."""
    found = {}
    home = pathlib.Path.home()
    candidates = [shutil.which(f"python{version}") for version in versions] + [sys._base_executable]
    for pattern in (".pyenv/versions/*/bin/python", ".local/share/uv/python/*/bin/python3"):
        candidates += sorted(home.glob(pattern))
    ask = ("import sys, sysconfig, venv, ensurepip; "
           "print('%d.%d' % sys.version_info[:2] + 't' * bool(sysconfig.get_config_var('Py_GIL_DISABLED')))")
    for candidate in filter(None, candidates):
        result = subprocess.run([candidate, "-c", ask], capture_output=True, text=True)
        if result.returncode == 0:
            found.setdefault(result.stdout.strip(), candidate)
    return found
