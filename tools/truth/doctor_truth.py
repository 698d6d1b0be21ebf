#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The doctor against the truth: predicts what real packages will do in real Pythons, then really loads them.

Usage: doctor_truth.py MICA [--output docs/evidence/doctor-truth.md] [--work FOLDER] [--only REGEX] [--keep]

Each target is a throw-away virtual environment with one release of PyTorch (or none). Each package is predicted first
(`mica doctor FILE --python ENVIRONMENT --json`), then unpacked as pip does, and every compiled file that was judged is
loaded in a process of its own after `import torch` (and after those libraries of its package that the prediction says are
opened first). What the loader says must be what was predicted, word for word; and a package of which no failure was predicted must
really import. A torch that a wheel excludes is asked of `pip check`. Wheels that pip must refuse and source packages that must not build are tried as well. Exit status 1 if a prediction was wrong.
"""

import argparse
import datetime
import json
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import time
import zipfile
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "check"))
import summary  # noqa: E402

PYTHON_OF_TORCH = ["typing-extensions", "filelock", "fsspec", "jinja2", "markupsafe", "networkx", "sympy", "mpmath",
                   "numpy<2", "pillow", "requests", "urllib3", "idna", "certifi", "charset-normalizer", "packaging",
                   "setuptools", "wheel", "psutil"]
# Releases of torchvision and torchaudio made for one of these, and tried with all of them.
TORCHES = ["2.1.2", "2.4.1", "2.6.0", "2.8.0", "2.10.0"]
VISIONS = ["0.16.2", "0.19.1", "0.21.0", "0.23.0", "0.25.0"]
AUDIOS = ["2.1.2", "2.6.0", "2.8.0"]
OTHERS = ["tensordict==0.10.0", "bitsandbytes==0.46.1"]
WITHOUT_TORCH = ["markupsafe==2.1.5", "numpy==1.26.4", "bitsandbytes==0.46.1"]
IMPORTED = ["torchvision", "torchaudio", "bitsandbytes"]  # what they need besides torch is in PYTHON_OF_TORCH
FIRST = "opened before it by its package: "  # evidence of a prediction
# Wheels of another Python, of another C library, of another machine.
FOREIGN = [("torchvision==0.23.0", ["--python-version", "3.12", "--implementation", "cp", "--abi", "cp312"]),
           ("markupsafe==2.1.5", ["--python-version", "3.9", "--implementation", "cp", "--abi", "cp39"]),
           ("markupsafe==2.1.5", ["--platform", f"musllinux_1_1_{platform.machine()}"]),
           ("torchvision==0.23.0", ["--platform", "MACHINE"]), ("numpy==1.26.4", ["--platform", "MACHINE"])]
SOURCES = ["flash-attn==2.8.3"]
LOAD_CODES = {"LOADS", "NEEDED_MISSING", "CUDA_MAJOR", "GLIBC_TOO_OLD", "GLIBCXX_TOO_OLD", "VERSION_MISSING",
              "UNDEFINED_SYMBOL", "TORCH_CXX11_ABI", "TORCH_SIGNATURE", "TORCH_STABLE_MIN", "TORCH_MISSING", "ELF_MACHINE",
              "PY_SYMBOL", "SO_SOABI", "SO_NO_PYINIT", "CUDA_LIBRARY_SHADOWED"}

# Loads files as Python would, each in a child of its own: torch first if it is there, then the module or the library.
LOADER = r"""
import ctypes, importlib.machinery, importlib.util, json, os, sys
try:
    if sys.argv[1] == "torch":
        import torch
    problem = ""
except ImportError as e:
    problem = type(e).__name__ + ": " + str(e).split("\n")[0]
print("READY", flush=True)
for line in sys.stdin:
    how, first, path = json.loads(line)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        answer = problem
        try:
            name = os.path.basename(path)
            kept = [ctypes.CDLL(library) for library in first if not problem]
            if not problem and how == "by-name":
                sys.path.insert(0, os.path.dirname(path))
                importlib.import_module(name.split(".")[0])
            elif not problem and (".cpython-" in name or ".abi3." in name):
                module = name.split(".")[0]
                loader = importlib.machinery.ExtensionFileLoader(module, path)
                importlib.util.module_from_spec(importlib.util.spec_from_file_location(module, path, loader=loader))
            elif not problem:
                ctypes.CDLL(path)
            answer = answer or "LOADS"
        except (ImportError, OSError) as e:
            answer = type(e).__name__ + ": " + str(e).split("\n")[0]
        except Exception:
            answer = "LOADS"  # the loader did its part; the module wants its package around it
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    answer = b""
    while piece := os.read(read, 65536):
        answer += piece
    os.close(read)
    status = os.waitpid(child, 0)[1]
    print(answer.decode() or "ended with status " + str(status), flush=True)
"""


class Loader:
    """A Python that has imported torch (or not) and loads what it is told to."""

    def __init__(self, python: pathlib.Path, with_torch: bool, folder: pathlib.Path) -> None:
        self.process = subprocess.Popen([str(python), "-c", LOADER, "torch" if with_torch else "bare"], cwd=folder,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout and self.process.stdout.readline() == "READY\n"

    def load(self, path: pathlib.Path, code: str, first: Sequence[pathlib.Path] = ()) -> str:
        """A module for another Python is one that the import system does not find by its name."""
        assert self.process.stdin and self.process.stdout
        request = ["by-name" if code == "SO_SOABI" else "by-path", [str(library) for library in first], str(path)]
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


class Row(NamedTuple):
    target: str
    package: str
    predicted: str
    really: str
    code: str

    @property
    def right(self) -> bool:
        return plain(self.predicted) == plain(self.really)


def plain(message: str) -> str:
    """Without the exception's name: Python's import says ImportError where ctypes says OSError."""
    return re.sub(r"^(ImportError|OSError): ", "", message)


def run(words: List[Any], **options: Any) -> subprocess.CompletedProcess:
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, **options)


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


class Truth:
    def __init__(self, mica: pathlib.Path, work: pathlib.Path, only: str) -> None:
        self.mica, self.work, self.only = mica, work, re.compile(only)
        self.wheels = work / "wheels"
        self.wheels.mkdir(parents=True, exist_ok=True)
        self.rows: List[Row] = []
        self.torch: Optional[str] = None  # of the target
        self.open_pairs = 0  # where all that could be said is that it was made for another release of torch

    def download(self, package: str, options: Optional[List[str]] = None) -> Optional[pathlib.Path]:
        """One wheel by pip, from its cache if it was there before; None if this machine's index has none."""
        folder = self.wheels / re.sub(r"[^A-Za-z0-9.]+", "-", " ".join([package] + (options or [])))
        if not folder.exists():
            result = run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", package,
                          "-d", folder] + (options or []))
            if result.returncode:
                say(f"not to be had: {package} {' '.join(options or [])}")
                shutil.rmtree(folder, ignore_errors=True)
                return None
        return next(iter(sorted(folder.glob("*.whl"))), None)

    def make_environment(self) -> None:
        """One virtual environment; torch and the packages are put into it and taken out again as pip would unpack them."""
        self.environment = self.work / "environment"
        shutil.rmtree(self.environment, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", self.environment], check=True)
        self.python = self.environment / "bin" / "python"
        self.site = next((self.environment / "lib").glob("python*/site-packages"))

    def pip_install(self, packages: List[str]) -> None:
        result = run([self.python, "-m", "pip", "install", "-q", "--no-deps"] + packages)
        if result.returncode:
            raise RuntimeError(result.stderr)

    def unpack(self, wheel: pathlib.Path) -> List[pathlib.Path]:
        """Into site-packages; returns what was added at the top."""
        with zipfile.ZipFile(wheel) as archive:
            tops = {name.split("/")[0] for name in archive.namelist()}
            archive.extractall(self.site)
        return [self.site / top for top in tops]

    @staticmethod
    def remove(paths: List[pathlib.Path]) -> None:
        for path in paths:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def judge(self, what: Any) -> List[Dict[str, Any]]:
        result = run([self.mica, "doctor", what, "--python", self.environment, "--json"])
        if result.returncode not in (0, 1, 2) or not result.stdout:
            raise RuntimeError(f"mica doctor {what}: {result.stderr}")
        return json.loads(result.stdout)["verdicts"]

    def add(self, target: str, package: str, predictions: List[Tuple[str, str, str]]) -> None:
        """One pair: every file of it must be right. The row shows the first file that fails, or the first of all."""
        wrong = [p for p in predictions if plain(p[1]) != plain(p[2])]
        failing = [p for p in predictions if p[1] != "LOADS"]
        shown = (wrong or failing or predictions)[0]
        codes = sorted({code for code, _, _ in predictions})
        files = len(predictions) - package.endswith(", imported")
        row = Row(target, f"{package} ({files} files)" if files > 1 else package, shown[1], shown[2],
                  ", ".join(codes))
        self.rows.append(row)
        say(f"{'right' if not wrong else 'WRONG'}  {target}  {row.package}  {row.code}")
        if wrong:
            say(f"  predicted {shown[1]}\n  really    {shown[2]}")

    def wheel_pair(self, target: str, wheel: pathlib.Path) -> None:
        """Predict from the wheel, unpack it where pip would, load each file that was judged."""
        if not self.only.search(f"{target} {wheel.name}"):
            return
        verdicts = self.judge(wheel)
        added = self.unpack(wheel)
        predictions = []
        open_files = sum(v["code"] == "TORCH_OTHER_RELEASE" for v in verdicts)
        for verdict in verdicts:
            path = self.site / verdict["subject"]
            if verdict["code"] in LOAD_CODES and path.suffix == ".so" and path.exists():
                predicted = "LOADS" if verdict["code"] == "LOADS" else verdict["message"]
                first = [self.site / line[len(FIRST):] for line in verdict["evidence"] if line.startswith(FIRST)]
                predictions.append((verdict["code"], predicted, self.loader.load(path, verdict["code"], first)))
        name = wheel.name.split("-")[0]
        for verdict in verdicts:
            if verdict["code"] == "WHEEL_REQUIRES_TORCH":
                words = run([self.python, "-m", "pip", "check"]).stdout.splitlines()
                said = [line for line in words if line.startswith(name + " ") and " requirement torch" in line]
                predictions.append((verdict["code"], verdict["message"], said[0] if said else "pip check says nothing"))
        imported = name in IMPORTED and self.torch and not open_files and all(v["severity"] != "error" for v in verdicts)
        if imported:
            result = run([self.python, "-c", f"import torch, {name}"], cwd=self.work)
            really = "LOADS" if result.returncode == 0 else (result.stderr.strip().splitlines() or ["killed"])[-1]
            predictions.append(("LOADS", "LOADS", really))
        self.remove(added)
        if predictions:
            self.add(target, wheel.name + (f", {open_files} more not foretold" if open_files else "") +
                     (", imported" if imported else ""), predictions)
        elif open_files:
            say(f"not foretold: {wheel.name} in {target}")
            self.open_pairs += 1
        else:
            say(f"nothing was predicted of {wheel.name} in {target}: {[v['code'] for v in verdicts]}")
            self.rows.append(Row(target, wheel.name, "nothing", "not tried", "none"))

    def refused_pair(self, target: str, wheel: pathlib.Path) -> None:
        """A wheel that pip must refuse, in pip's words."""
        if not self.only.search(f"{target} {wheel.name}"):
            return
        refused = [v for v in self.judge(wheel) if v["code"] in ("WHEEL_TAG_PYTHON", "WHEEL_TAG_PLATFORM")]
        result = run([self.python, "-m", "pip", "install", "-q", "--no-deps", wheel])
        errors = [line[7:] for line in result.stderr.splitlines() if line.startswith("ERROR: ")]
        self.add(target, wheel.name, [(refused[0]["code"] if refused else "LOADS",
                                       re.sub("^ERROR: ", "", refused[0]["message"]) if refused else "installs",
                                       errors[0] if errors else "installs")])

    def foreign_file(self, target: str, wheel: pathlib.Path) -> None:
        """A file of another machine's or Python's wheel, unpacked by hand and loaded by its path."""
        if not self.only.search(f"{target} {wheel.name}"):
            return
        with zipfile.ZipFile(wheel) as archive:
            names = sorted(n for n in archive.namelist() if n.endswith(".so") and ".libs/" not in n)
            path = pathlib.Path(archive.extract(names[0], self.work / "foreign" / wheel.stem))
        verdicts = [v for v in self.judge(path) if v["code"] in LOAD_CODES]
        if verdicts:
            verdict = verdicts[-1]
            predicted = "LOADS" if verdict["code"] == "LOADS" else verdict["message"]
            self.add(target, f"{names[0]} of {wheel.name}", [(verdict["code"], predicted, self.loader.load(path, verdict["code"]))])

    def source_pair(self, target: str, package: str) -> None:
        """A source package: the first thing that stops its build."""
        if not self.only.search(f"{target} {package}"):
            return
        source = self.work / (package.replace("-", "_").replace("==", "-") + ".tar.gz")
        source.write_bytes(b"")  # what is judged is the environment; pip downloads the package when it builds it
        verdicts = [v for v in self.judge(source) if v["severity"] == "error"]
        source.unlink()
        result = run([self.python, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-binary", ":all:",
                      package], cwd=self.work)
        errors = re.findall(r"^\s*((?:ModuleNotFoundError|OSError|RuntimeError|ImportError): .*)$",
                            result.stdout + result.stderr, re.MULTILINE)
        self.add(target, f"{package} (source)",
                 [(verdicts[0]["code"] if verdicts else "LOADS", verdicts[0]["message"] if verdicts else "builds",
                   errors[0] if errors else "builds")])

    def run_target(self, torch: Optional[str]) -> None:
        target = f"torch {torch}" if torch else "no torch"
        self.torch = torch
        say(f"target: {target}")
        added: List[pathlib.Path] = []
        if torch:
            wheel = self.download(f"torch=={torch}")
            if not wheel:
                return
            added = self.unpack(wheel)
        self.loader = Loader(self.python, torch is not None, self.work)
        packages = [f"torchvision=={v}" for v in VISIONS] + [f"torchaudio=={v}" for v in AUDIOS] + OTHERS
        for package in packages if torch else WITHOUT_TORCH:
            wheel = self.download(package)
            if wheel:
                self.wheel_pair(target, wheel)
        for wheel in self.foreign_wheels() if torch in (None, TORCHES[-1]) else []:
            if not torch:
                self.refused_pair(target, wheel)
            self.foreign_file(target, wheel)
        self.loader.close()
        if torch == TORCHES[-1]:
            self.source_pair(target, SOURCES[0])
        self.remove(added)

    def foreign_wheels(self) -> List[pathlib.Path]:
        other = "manylinux2014_aarch64" if platform.machine() == "x86_64" else "manylinux2014_x86_64"
        newer = "manylinux_2_28_" + other.split("_", 1)[1]
        wheels = []
        for package, options in FOREIGN:
            wheels.append(self.download(package, ["--platform", other, "--platform", newer] if "MACHINE" in options
                                        else options))
        return [wheel for wheel in wheels if wheel]

    def source_steps(self) -> None:
        """flash-attn's source in a Python that gets, one by one, what its setup.py imports."""
        self.source_pair("no torch, no packaging", SOURCES[0])
        for module in ("packaging", "wheel"):
            self.pip_install([module])
            self.source_pair(f"no torch, with {module}", SOURCES[0])

    def run_all(self, torches: List[Optional[str]]) -> None:
        self.make_environment()
        if None in torches:
            self.source_steps()
        self.pip_install(PYTHON_OF_TORCH)
        for torch in torches:
            self.run_target(torch)
            if torch is None:  # taken out again with it: NumPy and MarkupSafe
                self.pip_install(PYTHON_OF_TORCH)
        shutil.rmtree(self.environment, ignore_errors=True)

    def report(self) -> str:
        right = sum(row.right for row in self.rows)
        lines = ["# The doctor against the truth", "",
                 "Written by `make doctor-truth`: each package was predicted by `mica doctor`, then really installed and",
                 "loaded in a throw-away Python. A row is right if what the loader (or pip, or the build) said of every",
                 "compiled file is what was predicted, word for word; and where no failure was predicted (\"imported\"), `import`",
                 "of the package really worked. A missing library of a part that a package can do without (torchaudio's FFmpeg,",
                 "bitsandbytes for other CUDAs) is a warning, and its row shows the loader's words all the same.", "",
                 f"{len(self.rows)} pairs, {right} right; of {self.open_pairs} more the doctor only said that they were made",
                 "for another release of torch (TORCH_OTHER_RELEASE: loads, or crashes). "
                 f"At {summary.commit()} on {datetime.date.today().isoformat()}, Python {platform.python_version()}, "
                 f"{platform.machine()}, "
                 f"{' '.join(platform.libc_ver())}.", "",
                 "| | target | package | verdicts | first message |", "|---|---|---|---|---|"]
        for row in self.rows:
            message = row.really if row.right else f"predicted {row.predicted}, really {row.really}"
            message = message.replace(str(self.work), "...").replace("|", "\\|")
            lines.append(f"| {'right' if row.right else 'WRONG'} | {row.target} | {row.package} | {row.code} | `{message}` |")
        return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("mica", type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path(".cache/doctor-truth"))
    parser.add_argument("--only", default="", help="a regular expression over target and package")
    parser.add_argument("--torch", action="append", help="only these releases of torch")
    parser.add_argument("--keep", action="store_true", help="keep the downloads")
    arguments = parser.parse_args()
    truth = Truth(arguments.mica.resolve(), arguments.work.resolve(), arguments.only)
    truth.run_all(arguments.torch or [None] + TORCHES)
    if not arguments.keep:
        shutil.rmtree(truth.wheels, ignore_errors=True)
    shutil.rmtree(truth.work / "foreign", ignore_errors=True)
    report = truth.report()
    if arguments.output:
        arguments.output.write_text(report)
    print(report)
    return 0 if truth.rows and all(row.right for row in truth.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
