#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs finished wheels into fresh environments, one after the other, uses them there, and prints a table.

Usage: wheel_matrix.py [--only REGEX] [--resume] [--report docs/wheel-matrix.md] WHEEL...

For this machine's architecture: virtual environments of every Python that is found here, and Pythons of Debian and
Ubuntu unpacked into .cache/pythons (tools/fetch_python.sh), each with several PyTorch versions and with none. For the
other architecture: the unpacked Pythons under qemu-user, without PyTorch. Environments are deleted after use. A Python
or PyTorch that cannot be had is a row that says so; exit status 1 if one that was had failed.
"""

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import time

import summary
import torch_index
import wheel_check

ROOT = pathlib.Path(__file__).resolve().parent.parent
SMOKE = ROOT / "tools" / "wheel_smoke.py"
PYTHONS = ROOT / ".cache" / "pythons"
WORK = ROOT / "out" / "wheel-env"
RESULTS = ROOT / "out" / "wheel-matrix.json"
MAX_IMPORT_MS = 50
CHECK = "^plain_"
NEWEST = ""
# Python, PyTorch versions (None: NumPy alone). 2.0 is the oldest supported; 2.5 and before have the old C++ ABI.
ROWS = {
    "3.9": (None, "2.0.1", "2.8.0"),
    "3.10": (None, "2.1.2"),
    "3.11": (None, "2.0.1", "2.4.1", "2.6.0", NEWEST),
    "3.12": (None, "2.2.2", "2.5.1"),
    "3.13": (None, "2.7.1"),
    "3.14": (None, "2.10.0"),
    "3.15": (None,),
}


class Unavailable(Exception):
    """This environment cannot be had here; the message says why."""


class Wrong(Exception):
    """The wheel did not do what it should."""


BASE = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MICA_"))}


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
    old = torch and tuple(map(int, torch.split(".")))[:2] < (2, 3)
    return ["numpy<2" if old else "numpy", f"torch=={torch}" if torch else "torch"]


class Venv:
    """A virtual environment of an interpreter that is installed here."""

    def __init__(self, interpreter):
        self.interpreter, self.kind = interpreter, "venv"

    def create(self, wheel, torch):
        run([self.interpreter, "-m", "venv", WORK], Unavailable)
        pip = [WORK / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        run([*pip, *torch_index.options(), *requirements(torch)], Unavailable)
        run([*pip, "--no-index", "--no-deps", wheel])
        self.python, self.mica, self.environment = [WORK / "bin" / "python"], [WORK / "bin" / "mica"], {}


class Unpacked:
    """A Python of a distribution, run by its own loader (or by qemu) on a folder that pip installed into."""

    def __init__(self, version, machine):
        self.version, self.machine = version, machine
        self.native = machine == platform.machine()
        self.kind = "folder" if self.native else "folder, qemu"

    def create(self, wheel, torch):
        root = PYTHONS / f"{self.version}-{self.machine}"
        if not root.exists():
            partial = PYTHONS / f"{root.name}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            run([ROOT / "tools" / "fetch_python.sh", self.version, self.machine, partial], Unavailable)
            if self.native:  # as the package's own script does after its installation
                compile_all = [*self.interpreter_of(partial), "-m", "compileall", "-qq"]
                library = partial / "usr" / "lib" / f"python{self.version}"
                run([*compile_all, library], Unavailable, PYTHONHOME=str(partial / "usr"))
            partial.rename(root)
        # NOTE: pip install takes no notice of --python-version when it reads Requires-Python; pip download does.
        downloads = WORK / "downloads"
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        target = ["--implementation", "cp", "--python-version", self.version, "--only-binary=:all:"]
        for abi in (f"cp{self.version.replace('.', '')}", "abi3", "none"):
            target += ["--abi", abi]
        for tag in ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014"):
            target += ["--platform", f"{tag}_{self.machine}"]
        wanted = [*torch_index.options(), *requirements(torch)]
        run([*pip, "download", "--quiet", "--dest", downloads, *target, *wanted], Unavailable)
        run([*pip, "install", "--quiet", "--target", WORK, *target, "--no-index", "--no-deps",
             "--ignore-requires-python", *downloads.glob("*.whl"), wheel])
        shutil.rmtree(downloads)
        self.python, self.mica = self.interpreter_of(root), [WORK / "bin" / "mica"]
        if not self.native:  # the launcher would ask the kernel to run the command, which needs qemu again
            self.mica = [*self.emulator(root), WORK / "mica/bin/mica"]
        self.environment = {"PYTHONPATH": str(WORK), "PYTHONHOME": str(root / "usr")}

    def emulator(self, root):
        found = shutil.which(f"qemu-{self.machine}-static") or shutil.which(f"qemu-{self.machine}")
        if not found:
            raise Unavailable(f"no qemu-{self.machine} (qemu-user-static has it)")
        return [found, "-L", root]

    def interpreter_of(self, root):
        interpreter = root / "usr" / "bin" / f"python{self.version}"
        if not self.native:
            return [*self.emulator(root), interpreter]
        folders = [root / prefix / "lib" / f"{self.machine}-linux-gnu" for prefix in ("", "usr")]
        (loader, *_) = folders[0].glob("ld-linux-*.so.*")
        return [loader, "--library-path", ":".join(map(str, folders)), interpreter]


def interpreters():
    """{version: path} of the CPythons that are installed: on the PATH, of pyenv, of uv."""
    found = {}
    home = pathlib.Path.home()
    candidates = [shutil.which(f"python{version}") for version in ROWS] + [sys._base_executable]
    for pattern in (".pyenv/versions/*/bin/python", ".local/share/uv/python/*/bin/python3"):
        candidates += sorted(home.glob(pattern))
    for candidate in filter(None, candidates):
        ask = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
        result = subprocess.run([candidate, "-c", ask], capture_output=True, text=True)
        if result.returncode == 0:
            found.setdefault(result.stdout.strip(), candidate)
    return found


def use(place, wheel, is_fast):
    """Every use of one environment; returns what was found, raises Wrong."""
    measured = [json.loads(run([*place.python, SMOKE, "--import-only"], **place.environment)) for _ in range(6)]
    found = json.loads(run([*place.python, SMOKE], **place.environment))
    found["import_ms"] = min(one["import_ms"] for one in measured)
    if is_fast and found["import_ms"] > MAX_IMPORT_MS:
        raise Wrong(f"import mica takes {found['import_ms']} ms, want at most {MAX_IMPORT_MS}")
    info = json.loads(run([*place.mica, "info", "--json"]))
    if info["version"] != wheel.version or not info["library"].startswith(str(WORK)):
        raise Wrong(f"mica info says version {info['version']}, library {info['library']}")
    checked = json.loads(run([*place.mica, "check", "--filter", CHECK, "--json"]))
    if checked["failed"] or not checked["passed"]:
        raise Wrong(f"mica check: {checked['passed']} passed, {checked['failed']} failed")
    found["checked"] = checked["passed"]
    return found


def one_row(place, wheel, python, torch):
    shutil.rmtree(WORK, ignore_errors=True)
    row = {"python": python, "machine": wheel.machine, "kind": place.kind, "torch": torch}
    started = time.monotonic()
    try:
        place.create(wheel.path, torch)
        row.update(use(place, wheel, is_fast="qemu" not in place.kind), verdict="works")
    except Unavailable as error:
        row.update(verdict="not at hand", why=str(error))
    except Wrong as error:
        row.update(verdict="FAILS", why=str(error))
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
    row["seconds"] = time.monotonic() - started
    return row


def cells(row):
    torch = "newest" if row["torch"] == NEWEST else row["torch"]
    abi = {True: "new", False: "old"}.get(row.get("cxx11_abi"), "")
    errors = ", ".join(f"{row[key]:.0e}" for key in ("error_float32", "error_bfloat16", "error_numpy") if key in row)
    is_timed = "import_ms" in row and "qemu" not in row["kind"]
    import_ms = f"{row['import_ms']:.0f} ms" if is_timed else ""
    return [row["python"], row.get("libc", "").replace("glibc ", ""), row["machine"], row["kind"], torch or "none", abi,
            row.get("numpy") or "", import_ms, errors, str(row.get("checked", "")), row["verdict"]]


def environments(wheels):
    """Every row there is: the other architecture's without PyTorch."""
    for wheel in wheels:
        for python, torches in ROWS.items():
            for torch in torches if wheel.machine == platform.machine() else (None,):
                yield wheel, python, torch


HEADER = ["Python", "glibc", "machine", "environment", "PyTorch", "C++ ABI", "NumPy", "import", "errors", "cases",
          "verdict"]


def report(rows, wheels):
    def line(values):
        return "| " + " | ".join(values) + " |"

    text = ["# Where the wheels were used", "", f"Written by `make wheel-test` at {summary.commit()} on "
            f"{datetime.date.today().isoformat()}, on {platform.machine()} ({summary.processor()}).", ""]
    text += [f"- `{wheel.path.name}`, {wheel.path.stat().st_size / 1e6:.1f} MB" for wheel in wheels]
    text += ["", "Each row is a fresh environment: the wheel is installed, `import mica` is timed (CPU time, the best of six),",
             "attention runs forward and backward beside the formula written out in PyTorch (largest errors in fp32,",
             f"bf16) and forward beside NumPy, then `mica info`, then `mica check --filter {CHECK}` (cases passed).",
             "*venv*: `python -m venv` and `pip install`. *folder*: `pip install --target`, with a Python and a C library",
             "of Debian or Ubuntu; under qemu-user where the machine is another one.", ""]
    text += [line(HEADER), line(["---"] * len(HEADER)), *(line(cells(row)) for row in rows)]
    notes = [f"- Python {row['python']} on {row['machine']}, PyTorch {cells(row)[4]}: {row['why']}"
             for row in rows if "why" in row]
    if notes:
        text += ["", "What was not at hand, or failed:", "", *notes]
    return "\n".join(text) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", nargs="+", type=pathlib.Path)
    parser.add_argument("--only", default="", help="rows whose 'python machine torch' matches this regular expression")
    parser.add_argument("--resume", action="store_true", help="keep the rows that the same files had in an earlier run")
    parser.add_argument("--report", type=pathlib.Path, help="write the table here")
    arguments = parser.parse_args()
    wheels = [wheel_check.Wheel(path.resolve()) for path in arguments.wheels]
    here, done = interpreters(), json.loads(RESULTS.read_text()) if arguments.resume and RESULTS.exists() else {}
    print("Pythons installed here:", *(f"{version} ({path})" for version, path in sorted(here.items())), flush=True)
    rows = []
    for wheel, python, torch in environments(wheels):
        key = f"{python} {wheel.machine} {torch}"
        stored = f"{key} {hashlib.sha256(wheel.path.read_bytes()).hexdigest()}"
        if stored not in done:
            if not re.search(arguments.only, key):
                continue
            is_here = python in here and wheel.machine == platform.machine()
            place = Venv(here[python]) if is_here else Unpacked(python, wheel.machine)
            row = one_row(place, wheel, python, torch)
            print(" | ".join(cells(row)) + f" | {row['seconds']:.0f} s", row.get("why", ""), flush=True)
            done[stored] = row
            RESULTS.parent.mkdir(exist_ok=True)
            kept = {name: one for name, one in done.items() if one["verdict"] == "works"}
            RESULTS.write_text(json.dumps(kept, indent=1))
        rows.append(done[stored])
        if arguments.report:
            arguments.report.write_text(report(rows, wheels))
    print("\n" + report(rows, wheels))
    failed = sum(row["verdict"] == "FAILS" for row in rows)
    works = sum(row["verdict"] == "works" for row in rows)
    print(f"{works} environments work, {failed} fail, {len(rows) - works - failed} not at hand")
    return 1 if failed or not works else 0


if __name__ == "__main__":
    sys.exit(main())
