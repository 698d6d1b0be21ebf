#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The doctor against the truth: predicts what real packages will do in real Pythons, then really loads them.

Usage: doctor_truth.py MICA [--output FILE] [--work FOLDER] [--only REGEX] [--torch RELEASE] [--wheels FOLDER] [--jobs N]
                       [--resume] [--rows FILE] [--keep]

Each target is a throw-away virtual environment with one release of PyTorch and of NumPy (or no PyTorch). What a package
requires of Python is installed, then it is judged (`mica doctor FILE --python ENVIRONMENT --json`) and unpacked as pip does.
- Per file: every compiled file that was judged is loaded in a process of its own after `import torch` (and after those
  libraries of its package that the prediction says are opened first). What the loader says must be what was predicted,
  word for word.
- Per import: the exit code must be what `import` of its top modules does in new processes. An import that stops at a name or
  a package that Python code does not find says nothing about compiled files, and is counted apart.
A torch that a wheel excludes is asked of `pip check`. Wheels that pip must refuse and source packages that must not build are
tried as well. Exit status 1 if a prediction was wrong.

Wheels are taken from the folders that --wheels names, and what they lack is downloaded. With --jobs, targets are tried side by
side, each worker in an environment of its own. A run that was ended goes on with --resume: pairs that have a row are not tried
again (rows.json in the --work folder; of another doctor they are worth nothing).
"""

import argparse
import datetime
import gzip
import json
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

sys.path += [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parent.parent / "check")]
import doctor_packages as tried  # noqa: E402
import summary  # noqa: E402
from doctor_loader import Loader, top_modules, try_import  # noqa: E402

FIRST = re.compile("(?:opened before it by its package|loaded before it by what it imports): (.*)")  # evidence of a prediction
MOST_AT_ONCE = 15  # wheels that one call of pip downloads
OWN_CUDA = ("jax", "cuda-bindings")  # not needed by an import, and large
LOAD_CODES = {"LOADS", "NEEDED_MISSING", "CUDA_MAJOR", "GLIBC_TOO_OLD", "GLIBCXX_TOO_OLD", "VERSION_MISSING",
              "UNDEFINED_SYMBOL", "TORCH_CXX11_ABI", "TORCH_SIGNATURE", "TORCH_STABLE_MIN", "TORCH_MISSING", "ELF_MACHINE",
              "PY_SYMBOL", "SO_SOABI", "SO_NO_PYINIT", "CUDA_LIBRARY_SHADOWED"}


class Row(NamedTuple):
    target: str
    package: str
    files: int
    predicted: str  # of the first file that is wrong, or fails, or of all
    really: str
    code: str
    foretold: str = ""  # of the import: works, fails, or not
    imported: str = ""  # works, fails, in Python; empty: not tried
    words: str = ""

    @property
    def import_right(self) -> bool:
        return self.imported in ("", "in Python") or self.foretold in ("", self.imported)

    @property
    def right(self) -> bool:
        return plain(self.predicted) == plain(self.really) and self.import_right


def plain(message: str) -> str:
    """Without the exception's name, since Python's import says ImportError where ctypes says OSError, and without the package of a
    module, which is tried by its own name."""
    return re.sub(r"(No module named ')[\w.]+\.", r"\1", re.sub(r"^(ImportError|OSError): ", "", message))


def name_of(requirement: str) -> str:
    """The normalised name at the start of a requirement, or of a file."""
    found = re.match(r"\s*([A-Za-z0-9._-]+)", requirement)
    return re.sub(r"[-_.]+", "-", found.group(1)).lower() if found else ""


def requirements(wheel: pathlib.Path) -> List[str]:
    """What the wheel requires in this Python without any extra, as pip takes it."""
    from pip._vendor.packaging.requirements import Requirement

    with zipfile.ZipFile(wheel) as archive:
        info = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        lines = archive.read(info).decode(errors="replace").split("\n\n")[0].splitlines()
    wanted = [Requirement(line[15:].strip()) for line in lines if line.startswith("Requires-Dist: ")]
    return [str(r).split(";")[0] for r in wanted if not r.marker or r.marker.evaluate({"extra": ""})]


def run(words: List[Any], **options: Any) -> subprocess.CompletedProcess:
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, **options)


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


class Rows:
    """What came out, of all workers, kept in a file: a run that is ended has not been for nothing."""

    def __init__(self, path: pathlib.Path, resume: bool) -> None:
        self.path, self.lock, self.downloading = path, threading.Lock(), threading.Lock()
        self.rows: List[Row] = []
        self.open_pairs = 0  # where all that could be said is that it was made for another release of torch
        if resume and path.exists():
            self.rows = [Row(*row) for row in json.loads(path.read_text())]

    def add(self, row: Row) -> None:
        with self.lock:
            self.rows.append(row)
            self.path.write_text(json.dumps(self.rows))

    def has(self, target: str, package: str) -> bool:
        with self.lock:
            return any(row.target == target and row.package.split(",")[0] == package for row in self.rows)


class Truth:
    """One worker: an environment, into which one target after the other is put."""

    def __init__(self, mica: pathlib.Path, work: pathlib.Path, only: str, rows: Rows, kept: Sequence[pathlib.Path] = (),
                 wheels: Optional[pathlib.Path] = None) -> None:
        self.skip_sources = not re.search(only, "source")
        self.mica, self.work, self.only = mica, work, re.compile(only)
        self.wheels = wheels or work / "wheels"
        self.wheels.mkdir(parents=True, exist_ok=True)
        self.work.mkdir(parents=True, exist_ok=True)
        self.folders = [self.wheels, *kept]
        self.results = rows
        self.torch: Optional[str] = None  # of the target
        self.numpy = ""

    def is_meant(self, target: str, package: str) -> bool:
        return bool(self.only.search(f"{target} {package}")) and not self.results.has(target, package)

    def links(self) -> List[str]:
        return [word for folder in self.folders[1:] for word in ("--find-links", str(folder))]

    def download_all(self, packages: Sequence[str]) -> List[pathlib.Path]:
        """Their wheels, in that order, some at once: what a call of pip brought stays when the next one is ended."""
        with self.results.downloading:
            self.fetch_all([p for p in packages if not self.downloaded(p)])
        return [wheel for wheel in map(self.downloaded, packages) if wheel]

    def fetch_all(self, rest: List[str]) -> None:
        while rest:
            batch = {name_of(p.split("=")[0]): p for p in reversed(rest[:MOST_AT_ONCE])}
            rest = [p for p in rest if p not in batch.values()]
            while batch:
                missing = self.fetch(list(batch.values()))
                if missing is None:
                    break
                if missing not in batch:
                    raise RuntimeError(f"pip download failed: {missing}")
                say(f"not to be had: {batch.pop(missing)}")

    def fetch(self, packages: List[str], options: Sequence[str] = (), folder: Optional[pathlib.Path] = None) -> Optional[str]:
        """Nothing if all came, else the name of the one that this machine's index does not have, or pip's last line."""
        result = run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", *packages,
                      "-d", folder or self.wheels, *options])
        missing = re.search(r"No matching distribution found for (\S+)", result.stderr)
        if result.returncode == 0:
            return None
        return name_of(missing.group(1).split("=")[0]) if missing else result.stderr.strip().splitlines()[-1]

    def downloaded(self, package: str) -> Optional[pathlib.Path]:
        name, _, version = package.replace(" ", "").partition("==")
        for folder in self.folders:
            for wheel in folder.glob("*.whl"):
                parts = wheel.name.split("-")
                if name_of(parts[0]) == name_of(name) and (not version or parts[1] == version):
                    return wheel
        return None

    def foreign_wheel(self, package: str, options: Sequence[str]) -> Optional[pathlib.Path]:
        folder = self.wheels / re.sub(r"[^A-Za-z0-9.]+", "-", " ".join([package, *options]))
        with self.results.downloading:
            if not folder.exists() and self.fetch([package], options, folder) is not None:
                say(f"not to be had: {package} {' '.join(options)}")
        return next(iter(sorted(folder.glob("*.whl"))), None)

    def make_environment(self) -> None:
        """One virtual environment; torch and the packages are put into it and taken out again as pip would unpack them."""
        self.environment = self.work / "environment"
        shutil.rmtree(self.environment, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", self.environment], check=True)
        self.python = self.environment / "bin" / "python"
        self.site = next((self.environment / "lib").glob("python*/site-packages"))

    def pip_install(self, packages: Sequence[str], options: Sequence[str] = ("--no-deps",)) -> bool:
        return run([self.python, "-m", "pip", "install", "-q", *self.links(), *options, *packages]).returncode == 0

    def bring_requirements(self, wheels: List[pathlib.Path]) -> None:
        """What the wheels require, and what that requires, by pip, with the target's torch and NumPy as they are."""
        left_out = {"torch", "numpy", "triton", "torchvision", "torchaudio", *OWN_CUDA}
        wanted = {r.strip() for wheel in wheels for r in requirements(wheel)
                  if name_of(r) not in left_out and not name_of(r).startswith("nvidia")}
        constraints = self.work / "constraints.txt"
        # Later releases of pyarrow refuse NumPy 1.x in compiled code, of which no file tells anything.
        of_its_time = ["pyarrow<20"] if self.numpy == tried.NUMPY_1 else []
        constraints.write_text("\n".join([self.numpy, *of_its_time, *([f"torch=={self.torch}"] if self.torch else [])]) + "\n")
        options = ["--only-binary", ":all:", "-c", str(constraints)]
        if not self.pip_install(sorted(wanted), options):  # one wants what another excludes
            for wheel in wheels:
                own = [r.strip() for r in requirements(wheel) if r.strip() in wanted]
                if own and not self.pip_install(own, options):
                    say(f"not to be had for {wheel.name}: {own}")

    def unpack(self, wheel: pathlib.Path) -> List[pathlib.Path]:
        """Into site-packages; returns what was added. What stood there is put aside until remove(); a folder that belongs to
        another distribution too (PyQt5 and its Qt) stays, and gets the files that it lacks."""
        aside = self.work / "aside"
        own = name_of(wheel.name.split("-")[0])
        shared = {line.split("/")[0] for info in self.site.glob("*.dist-info")
                  if name_of(info.name.split("-")[0]) != own and (info / "RECORD").exists()
                  for line in (info / "RECORD").read_text(errors="replace").splitlines() if "/" in line}
        with zipfile.ZipFile(wheel) as archive:
            tops = {name.split("/")[0] for name in archive.namelist()}
            kept = {top for top in tops if top in shared}
            files = [self.site / n for n in archive.namelist() if n.split("/")[0] in kept and not n.endswith("/")]
            files = [path for path in files if not path.exists()]
            tops -= kept
            for info in self.site.glob("*.dist-info"):  # another release of the same
                if name_of(info.name.split("-")[0]) == name_of(wheel.name.split("-")[0]):
                    tops.add(info.name)
            for top in tops:
                if (self.site / top).exists():
                    aside.mkdir(exist_ok=True)
                    shutil.move(str(self.site / top), str(aside / top))
            archive.extractall(self.site)
        for data in self.site.glob("*.data"):
            for scheme in ("purelib", "platlib"):
                for part in (data / scheme).glob("*"):
                    if not (self.site / part.name).exists():
                        shutil.move(str(part), str(self.site / part.name))
                        tops.add(part.name)
        return [self.site / top for top in tops] + files

    def remove(self, paths: List[pathlib.Path]) -> None:
        for path in paths:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        for kept in (self.work / "aside").glob("*"):
            shutil.move(str(kept), str(self.site / kept.name))

    def judge(self, what: Any) -> Tuple[int, List[Dict[str, Any]]]:
        result = run([self.mica, "doctor", what, "--python", self.environment, "--json"])
        if result.returncode not in (0, 1, 2) or not result.stdout:
            raise RuntimeError(f"mica doctor {what}: {result.stderr}")
        return result.returncode, json.loads(result.stdout)["verdicts"]

    def add(self, target: str, package: str, predictions: List[Tuple[str, str, str]],
            foretold: str = "", imported: Tuple[str, str] = ("", "")) -> None:
        """One pair: every file of it must be right, and the import. The row shows the first file that fails, or the first."""
        wrong = [p for p in predictions if plain(p[1]) != plain(p[2])]
        failing = [p for p in predictions if p[1] != "LOADS"]
        shown = (wrong or failing or predictions or [("none", "", "")])[0]
        codes = sorted({code for code, _, _ in predictions})
        row = Row(target, package, len(predictions), shown[1], shown[2], ", ".join(codes), foretold, *imported)
        self.results.add(row)
        say(f"{'right' if row.right else 'WRONG'}  {target}  {row.package}  {row.code}  import {foretold}/{row.imported} {row.words}")
        if wrong:
            say(f"  predicted {shown[1]}\n  really    {shown[2]}")

    def wheel_pair(self, target: str, wheel: pathlib.Path) -> None:
        """Predict from the wheel, unpack it where pip would, load each file that was judged, import it."""
        code, verdicts = self.judge(wheel)
        added = self.unpack(wheel)
        predictions = []
        open_files = sum(v["code"] == "TORCH_OTHER_RELEASE" for v in verdicts)
        # Named like modules of Python, and opened by torch.ops or ctypes: what is said of that is a note.
        libraries = {v["subject"] for v in verdicts if v["code"] == "SO_NO_PYINIT" and v["severity"] == "note"}
        for verdict in verdicts:
            if verdict["code"] == "SO_NO_PYINIT" and verdict["subject"] in libraries:
                continue
            if "Python version mismatch" in verdict["message"]:  # the module's own words, where it is imported
                continue
            path = self.site / re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", verdict["subject"])
            if verdict["code"] in LOAD_CODES and path.suffix == ".so" and path.exists():
                predicted = "LOADS" if verdict["code"] == "LOADS" else verdict["message"]
                first = [self.site / found.group(1) for found in map(FIRST.fullmatch, verdict["evidence"]) if found]
                really = self.loader.load(path, verdict["code"], first, verdict["subject"] in libraries)
                predictions.append((verdict["code"], predicted, really))
        name = wheel.name.split("-")[0]
        for verdict in verdicts:
            if verdict["code"] == "WHEEL_REQUIRES_TORCH":
                checked = run([self.python, "-m", "pip", "check"]).stdout.splitlines()
                said = [line for line in checked if name_of(line.split(" ")[0]) == name_of(name) and " requirement torch" in line]
                # pip knows torch by its metadata, which may leave the label (+cu121) out.
                words = re.sub(r"\+\w+\.$", ".", verdict["message"])
                predictions.append((verdict["code"], words, re.sub(r"\+\w+\.$", ".", said[0]) if said else "pip check says nothing"))
        wants_torch = any(name_of(r) == "torch" for r in requirements(wheel))
        tops = top_modules(wheel)
        imported = try_import(self.python, tops, bool(self.torch) and wants_torch, self.work) if tops else ("", "")
        self.remove(added)
        foretold = {0: "works", 1: "fails"}.get(code, "") if tops else ""
        if not predictions and open_files and not foretold:
            say(f"not foretold: {wheel.name} in {target}")
            self.results.open_pairs += 1
        else:
            self.add(target, wheel.name + (f", {open_files} more not foretold" if open_files else ""), predictions, foretold,
                     imported)

    def refused_pair(self, target: str, wheel: pathlib.Path) -> None:
        """A wheel that pip must refuse, in pip's words."""
        if not self.is_meant(target, wheel.name):
            return
        refused = [v for v in self.judge(wheel)[1] if v["code"] in ("WHEEL_TAG_PYTHON", "WHEEL_TAG_PLATFORM")]
        result = run([self.python, "-m", "pip", "install", "-q", "--no-deps", wheel])
        errors = [line[7:] for line in result.stderr.splitlines() if line.startswith("ERROR: ")]
        self.add(target, wheel.name, [(refused[0]["code"] if refused else "LOADS",
                                       re.sub("^ERROR: ", "", refused[0]["message"]) if refused else "installs",
                                       errors[0] if errors else "installs")])

    def foreign_file(self, target: str, wheel: pathlib.Path) -> None:
        """A file of another machine's or Python's wheel, unpacked by hand and loaded by its path."""
        with zipfile.ZipFile(wheel) as archive:
            names = sorted(n for n in archive.namelist() if n.endswith(".so") and ".libs/" not in n)
            if not self.is_meant(target, f"{names[0]} of {wheel.name}"):
                return
            path = pathlib.Path(archive.extract(names[0], self.work / "foreign" / wheel.stem))
        verdicts = [v for v in self.judge(path)[1] if v["code"] in LOAD_CODES]
        if verdicts:
            verdict = verdicts[-1]
            predicted = "LOADS" if verdict["code"] == "LOADS" else verdict["message"]
            self.add(target, f"{names[0]} of {wheel.name}", [(verdict["code"], predicted, self.loader.load(path, verdict["code"]))])

    def source_pair(self, target: str, package: str) -> None:
        """A source package: the first thing that stops its build."""
        if not self.is_meant(target, f"{package} (source)"):
            return
        source = self.work / (package.replace("-", "_").replace("==", "-") + ".tar.gz")
        source.write_bytes(gzip.compress(b""))  # what is judged is the environment; pip downloads the package when it builds it
        verdicts = [v for v in self.judge(source)[1] if v["severity"] == "error"]
        source.unlink()
        result = run([self.python, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-binary", ":all:",
                      package], cwd=self.work)
        errors = re.findall(r"^\s*((?:ModuleNotFoundError|OSError|RuntimeError|ImportError): .*)$",
                            result.stdout + result.stderr, re.MULTILINE)
        self.add(target, f"{package} (source)",
                 [(verdicts[0]["code"] if verdicts else "LOADS", verdicts[0]["message"] if verdicts else "builds",
                   errors[0] if errors else "builds")])

    def bring_torch(self, torch: str) -> Optional[List[pathlib.Path]]:
        """PyTorch, what it requires of CUDA's libraries and Triton, and what those require of each other."""
        found = self.download_all([f"torch=={torch}"])
        if not found:
            return None
        added: List[pathlib.Path] = []
        wanted, seen = found, {"torch"}
        while wanted:
            for wheel in wanted:
                added += self.unpack(wheel)
            required = {name_of(r): r for wheel in wanted for r in requirements(wheel)
                        if name_of(r).startswith(("nvidia", "triton", "cuda")) and name_of(r) not in seen}
            seen |= set(required)
            wanted = self.download_all(list(required.values()))
        return added

    def run_target(self, torch: Optional[str], numpy: str) -> None:
        target = (f"torch {torch}" if torch else "no torch") + f", {numpy.replace('==', ' ')}"
        self.torch, self.numpy = torch, numpy
        say(f"target: {target}")
        plain = tried.PLAIN if numpy == tried.NUMPY_2 else []
        wheels = self.download_all(tried.packages_with_torch() if torch else tried.WITH_NUMPY + plain)
        wheels = [wheel for wheel in wheels if self.is_meant(target, wheel.name)]
        self.pip_install(tried.PYTHON_OF_TORCH + [numpy])
        added = self.bring_torch(torch) if torch else []
        if added is None:
            return
        self.bring_requirements(wheels)
        self.loader = Loader(self.python, torch is not None, self.work)
        for wheel in wheels:
            self.wheel_pair(target, wheel)
        last = list(tried.TORCHES)[-1]
        for wheel in self.foreign_wheels() if torch == last or (not torch and numpy == tried.NUMPY_1) else []:
            if not torch:
                self.refused_pair(target, wheel)
            self.foreign_file(target, wheel)
        self.loader.close()
        if torch == last:
            self.source_pair(target, tried.SOURCE)
        self.remove(added)

    def foreign_wheels(self) -> List[pathlib.Path]:
        other = "manylinux2014_aarch64" if platform.machine() == "x86_64" else "manylinux2014_x86_64"
        newer = "manylinux_2_28_" + other.split("_", 1)[1]
        wheels = []
        for package, options in tried.FOREIGN:
            wheels.append(self.foreign_wheel(package, ["--platform", other, "--platform", newer] if "MACHINE" in options
                                             else options))
        return [wheel for wheel in wheels if wheel]

    def source_steps(self) -> None:
        """flash-attn's source in a Python that gets, one by one, what its setup.py imports."""
        self.source_pair("no torch, no packaging", tried.SOURCE)
        for module in ("packaging", "wheel"):
            self.pip_install([module])
            self.source_pair(f"no torch, with {module}", tried.SOURCE)

    def run_targets(self, targets: List[Tuple[Optional[str], str]], with_sources: bool) -> None:
        """Those of the list, which other workers take from too, until none is left."""
        self.make_environment()
        if with_sources and not self.skip_sources:
            self.source_steps()
        while True:
            with self.results.lock:
                if not targets:
                    break
                torch, numpy = targets.pop(0)
            self.run_target(torch, numpy)
        shutil.rmtree(self.environment, ignore_errors=True)
        shutil.rmtree(self.work / "foreign", ignore_errors=True)


def report(results: Rows, work: pathlib.Path) -> str:
    right = sum(row.right for row in results.rows)
    packages = {name_of(re.split(r"[-= ]", row.package.split(" of ")[-1])[0]) for row in results.rows}
    files = sum(row.files for row in results.rows)
    imports = [row for row in results.rows if row.foretold and row.imported]
    apart = [row for row in imports if row.imported == "in Python"]
    untold = sum(bool(row.imported) and not row.foretold for row in results.rows)
    lines = ["# The doctor against the truth", "",
             "Written by `make doctor-truth`: each package was judged by `mica doctor`, then really installed and loaded in a",
             "throw-away Python. A row is right if what the loader (or pip, or the build) said of every compiled file is what",
             "was predicted, word for word, and if `import` of the package's top modules did what the exit code said.", "",
             f"{len(results.rows)} pairs of a target and a package, over {len(packages)} packages: {right} right. {files} files were",
             f"loaded. Of {len(imports)} imports {sum(r.import_right for r in imports) - len(apart)} did what was foretold; {len(apart)} stopped at a name or a package that",
             "Python code did not find, which says nothing about compiled files (`in Python`). Of "
             f"{results.open_pairs} more the doctor only said",
             "that they were made for another release of torch (TORCH_OTHER_RELEASE: loads, or crashes). Of "
             f"{untold} imports it said\nthat it cannot tell (exit code 2). "
             f"At {summary.commit()} on",
             f"{datetime.date.today().isoformat()}, Python {platform.python_version()}, {platform.machine()}, "
             f"{' '.join(platform.libc_ver())}.", "",
             "| | target | package | files | verdicts | first message | import foretold | and really |",
             "|---|---|---|---|---|---|---|---|"]
    for row in results.rows:
        same = plain(row.predicted) == plain(row.really)
        message = row.really if same else f"predicted {row.predicted}, really {row.really}"
        cells = ["right" if row.right else "WRONG", row.target, row.package, str(row.files), row.code,
                 f"`{message[:300]}`" if message else "", row.foretold, row.imported + (f": `{row.words[:200]}`" if row.words else "")]
        lines.append("| " + " | ".join(re.sub(re.escape(str(work)) + r"(/worker-\d+)?", "...", c).replace("|", "\\|") for c in cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("mica", type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path(".cache/doctor-truth"))
    parser.add_argument("--only", default="", help="a regular expression over target and package")
    parser.add_argument("--torch", action="append", help="only these releases of torch, or none")
    parser.add_argument("--wheels", type=pathlib.Path, action="append", default=[], help="a folder of wheels to look into first")
    parser.add_argument("--jobs", type=int, default=1, help="targets that are tried side by side")
    parser.add_argument("--resume", action="store_true", help="go on with a run that was ended")
    parser.add_argument("--rows", type=pathlib.Path, action="append", default=[],
                        help="rows.json of another run (its --work folder), reported too")
    parser.add_argument("--report-only", action="store_true", help="try nothing: only report --rows")
    parser.add_argument("--keep", action="store_true", help="keep the downloads")
    arguments = parser.parse_args()
    work, wanted = arguments.work.resolve(), arguments.torch or ["none", *tried.TORCHES]
    work.mkdir(parents=True, exist_ok=True)
    results = Rows(work / "rows.json", arguments.resume)
    for path in arguments.rows:
        results.rows += [Row(*row) for row in json.loads(path.read_text())]
    targets: List[Tuple[Optional[str], str]] = [(release, tried.TORCHES[release]) for release in wanted if release != "none"]
    if "none" in wanted:
        targets = [(None, tried.NUMPY_2), (None, tried.NUMPY_1), *targets]
    if not arguments.report_only:
        kept = [folder.resolve() for folder in arguments.wheels]
        workers = [Truth(arguments.mica.resolve(), work / f"worker-{i}", arguments.only, results, kept, work / "wheels")
                   for i in range(arguments.jobs)]
        with ThreadPoolExecutor(len(workers)) as pool:
            ended = [pool.submit(worker.run_targets, targets, "none" in wanted and i == 0) for i, worker in enumerate(workers)]
        for each in ended:
            each.result()
    if not arguments.keep:
        shutil.rmtree(work / "wheels", ignore_errors=True)
    results.rows.sort(key=lambda row: row.target)
    text = report(results, work)
    if arguments.output:
        arguments.output.write_text(text)
    print(text)
    return 0 if results.rows and all(row.right for row in results.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
