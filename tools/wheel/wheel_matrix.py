#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs finished wheels into fresh environments, one after the other, uses them there, and prints a table.

Usage: wheel_matrix.py [--only REGEX] [--again] [--report docs/evidence/wheel-matrix.md] WHEEL...
       wheel_matrix.py --fetch          only fetches Pythons and packages, so that a run needs no network

Wheels of Python files alone (flash-attn's) are installed beside the others where there is a PyTorch.
For this machine's architecture: every Python of ROWS, with several PyTorch versions and with none; virtual environments
where it is installed here, else Pythons of Debian and Ubuntu in .cache/pythons (tools/build/fetch_python.sh). For the other
architecture: those under qemu-user, without PyTorch. Environments are deleted after use. A row that worked is kept in
out/wheel-matrix.json for the same wheel, so that a run that was stopped goes on where it stood. A Python or PyTorch that
cannot be had is a row that says so; exit status 1 if one that was had failed.
"""

import argparse
import datetime
import hashlib
import json
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "check"))
import summary  # noqa: E402
import wheel_check  # noqa: E402
from wheel_places import BASE, NEWEST, ROOT, WORK, Unavailable, Unpacked, Venv, Wrong, interpreters, run  # noqa: E402

SMOKE = ROOT / "tools/wheel/wheel_smoke.py"
RESULTS = ROOT / "out" / "wheel-matrix.json"
MAX_IMPORT_MS = 50
CHECK = "^plain_"
# Python, PyTorch versions (None: NumPy alone). 2.0 is the oldest supported; 2.5 and before have the old C++ ABI. 3.14t
# is free-threaded. The newest PyTorch comes with the Python that runs this.
ROWS = {
    "3.9": (None, "2.0.1", "2.8.0"),
    "3.10": (None, "2.1.2"),
    "3.11": (None, "2.2.2", "2.4.1", "2.6.0"),
    "3.12": (None, "2.3.1", "2.5.1"),
    "3.13": (None, "2.7.1"),
    "3.14": (None, "2.10.0"),
    "3.14t": (None, "2.10.0"),
    "3.15": (None,),
}
THIS_PYTHON = "%d.%d" % sys.version_info[:2]
ROWS[THIS_PYTHON] = (*ROWS.get(THIS_PYTHON, (None,)), NEWEST)


def use(place, wheel, is_fast):
    """Every use of one environment; returns what was found, raises Wrong."""
    times = 6 if is_fast else 1
    measured = [json.loads(run([*place.python, SMOKE, "--import-only"], **place.environment)) for _ in range(times)]
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


def one_row(place, wheel, beside, python, torch):
    shutil.rmtree(WORK, ignore_errors=True)
    row = {"python": python, "machine": wheel.machine, "kind": place.kind, "torch": torch}
    started = time.monotonic()
    try:
        place.create([wheel.path, *(beside if torch else [])], torch)
        row.update(use(place, wheel, is_fast="qemu" not in place.kind), kind=place.kind, verdict="works")
        if torch and beside and not row.get("flash_attn"):
            raise Wrong("the drop-in was installed, and flash_attn cannot be imported")
    except Unavailable as error:
        row.update(verdict="not at hand", why=str(error))
    except Wrong as error:
        row.update(verdict="FAILS", why=str(error))
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
    row["seconds"] = time.monotonic() - started
    return row


def cells(row):
    python = row["python"] + ("t" if row.get("free_threaded") and not row["python"].endswith("t") else "")
    abi = {True: "new", False: "old"}.get(row.get("cxx11_abi"), "")
    errors = ", ".join(f"{row[key]:.0e}" for key in ("error_float32", "error_bfloat16", "error_numpy") if key in row)
    also = ", ".join(name for name, key in (("compile", "compiled"), ("flash_attn", "flash_attn")) if row.get(key))
    is_timed = "import_ms" in row and "qemu" not in row["kind"]
    import_ms = f"{row['import_ms']:.0f} ms" if is_timed else ""
    return [python, row.get("libc", "").replace("glibc ", ""), row["machine"], row["kind"], row["torch"] or "none", abi,
            row.get("numpy") or "", import_ms, errors, also, str(row.get("checked", "")), row["verdict"]]


def environments(machines, here):
    """(place, Python, machine, PyTorch) of every row there is; the other architecture's are without PyTorch."""
    for machine in machines:
        is_native = machine == platform.machine()
        for python, torches in ROWS.items():
            for torch in torches if is_native else (None,):
                if not is_native and python.endswith("t"):
                    continue  # in no distribution, and compiled for this machine alone
                place = Venv(here[python], python) if is_native and python in here else Unpacked(python, machine)
                yield place, python, machine, torch


HEADER = ["Python", "glibc", "machine", "environment", "PyTorch", "C++ ABI", "NumPy", "import", "errors", "also", "cases",
          "verdict"]


def commit_of(wheel):
    """The commit that a wheel was made at: tools/wheel/wheel.py gives every file in it the time of that commit."""
    log = subprocess.run(["git", "log", "-500", "--format=%h %cd", "--date=format-local:%Y %m %d %H %M %S"], cwd=ROOT,
                         capture_output=True, text=True, env={**BASE, "TZ": "UTC"}).stdout
    made = wheel.archive.infolist()[0].date_time
    for line in log.splitlines():
        commit, *fields = line.split()
        *minute, second = map(int, fields)
        if (*minute, second - second % 2) == made:  # zip's clock has even seconds
            return commit
    return None


def report(commit, rows, wheels, missing):
    def line(values):
        return "| " + " | ".join(values) + " |"

    text = ["# Where the wheels were used", "", f"Written by `make wheel-test` at {commit} on "
            f"{datetime.date.today().isoformat()}, on {platform.machine()} ({summary.processor()}).", ""]
    text += [f"- `{wheel.path.name}`, {wheel.path.stat().st_size / 1e6:.2f} MB, made at "
             f"{commit_of(wheel) or 'no commit of this tree'}" for wheel in wheels]
    text += ["", "Each row is a fresh environment: the wheel is installed, `import mica` is timed (CPU time, the best of six),",
             "attention runs forward and backward beside the formula written out in PyTorch (largest errors in fp32,",
             "bf16) and forward beside NumPy, also in four threads at once; *also*: the same, gradients included, under",
             "torch.compile(fullgraph=True) (which wants PyTorch 2.4, and a Python that this PyTorch compiles for), and through the",
             "drop-in; then `mica info`, then",
             f"`mica check --filter {CHECK}` (cases passed). *venv*: `python -m venv` and `pip install`; *lent*: PyTorch is that",
             "of another environment, by its path. *folder*:",
             "`pip install --target`, with a Python and a C library of Debian or Ubuntu; under qemu-user where the machine",
             "is another one; *compiled*: with a Python compiled here from the distribution's source. A t after the Python:",
             "free-threaded, and it stayed so.", ""]
    text += [line(HEADER), line(["---"] * len(HEADER)), *(line(cells(row)) for row in rows)]
    notes = [f"- Python {row['python']} on {row['machine']}, PyTorch {cells(row)[4]}: {row['why']}"
             for row in rows if "why" in row]
    if notes:
        text += ["", "What was not at hand, or failed:", "", *notes]
    if missing:
        text += ["", f"Not run: {', '.join(missing)}."]
    return "\n".join(text) + "\n"


def fetch(places, only):
    """Only brings what the rows need; returns how many could not be had."""
    lacking = 0
    for place, python, machine, torch in places:
        if not re.search(only, f"{python} {machine} {torch}"):
            continue
        print(f"Python {python} on {machine}, PyTorch {torch or 'none'}: ", end="", flush=True)
        shutil.rmtree(WORK, ignore_errors=True)
        try:
            place.fetch(torch)
            print("here", flush=True)
        except Unavailable as error:
            lacking += 1
            print(error, flush=True)
    shutil.rmtree(WORK, ignore_errors=True)
    return lacking


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", nargs="*", type=pathlib.Path)
    parser.add_argument("--fetch", action="store_true", help="only fetch what the rows need")
    parser.add_argument("--only", default="", help="rows whose 'python machine torch' matches this regular expression")
    parser.add_argument("--again", action="store_true", help="run rows again that worked in an earlier run")
    parser.add_argument("--report", type=pathlib.Path, help="write the table here, after every row")
    arguments = parser.parse_args()
    if bool(arguments.wheels) == arguments.fetch:
        parser.error("want wheels, or --fetch")
    here = interpreters(ROWS)
    print("Pythons installed here:", *(f"{version} ({path})" for version, path in sorted(here.items())), flush=True)
    if arguments.fetch:
        return 1 if fetch(environments(("aarch64", "x86_64"), here), arguments.only) else 0

    commit = summary.commit()  # before the report of this run is a change to it
    every_wheel = [wheel_check.Wheel(path.resolve()) for path in arguments.wheels]
    wheels = {wheel.machine: wheel for wheel in every_wheel if wheel.machine}
    beside = [wheel.path for wheel in every_wheel if not wheel.machine]
    hashes = {machine: hashlib.sha256(b"".join(path.read_bytes() for path in (wheel.path, *beside))).hexdigest()
              for machine, wheel in wheels.items()}
    done = json.loads(RESULTS.read_text()) if RESULTS.exists() and not arguments.again else {}
    rows, missing, every = [], [], list(environments(wheels, here))
    for number, (place, python, machine, torch) in enumerate(every, 1):
        key = f"{python} {machine} {torch}"
        stored = f"{key} {hashes[machine]}"
        if stored not in done:
            if not re.search(arguments.only, key):
                missing.append(f"Python {python} on {machine} with PyTorch {torch or 'none'}")
                continue
            print(f"[{number}/{len(every)}] Python {python} on {machine}, PyTorch {torch or 'none'} ...", flush=True)
            row = one_row(place, wheels[machine], beside, python, torch)
            print("    " + " | ".join(cells(row)) + f" | {row['seconds']:.0f} s", row.get("why", ""), flush=True)
            done[stored] = row
            RESULTS.parent.mkdir(exist_ok=True)
            kept = {name: one for name, one in done.items() if one["verdict"] == "works"}
            RESULTS.write_text(json.dumps(kept, indent=1))
        rows.append(done[stored])
        if arguments.report:
            arguments.report.write_text(report(commit, rows, every_wheel, missing))
    if arguments.report:
        arguments.report.write_text(report(commit, rows, every_wheel, missing))
    print("\n" + report(commit, rows, every_wheel, missing))
    failed = sum(row["verdict"] == "FAILS" for row in rows)
    works = sum(row["verdict"] == "works" for row in rows)
    print(f"{works} environments work, {failed} fail, {len(rows) - works - failed} not at hand")
    return 1 if failed or not works else 0


if __name__ == "__main__":
    sys.exit(main())
