#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The doctor's exit code against the import: real wheels, judged for one environment, then really imported in it.

Usage: doctor_imports.py MICA --python ENVIRONMENT [--output docs/evidence/doctor-imports.md] [--seconds N] [PACKAGE...]

Each wheel is fetched without its requirements, judged (`mica doctor WHEEL --python ENVIRONMENT --json`), installed into a
folder of its own (pip install --target) and its top modules imported in a new process that sees that folder first. Right:
exit code 0 and the import works, or 1 and it fails. An import that stops at a Python package which is not installed says
nothing about the compiled files, and is counted apart. Exit status 1 if a prediction was wrong."""

import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import zipfile

# With and without torch, NumPy of both kinds, one library for each CUDA, checks of their own, programs, plug-ins.
PACKAGES = """torchaudio torchao torchtext torchcodec bitsandbytes numexpr==2.8.7 bottleneck==1.3.7 tables==3.9.2
pandas==1.5.3 tensordict torchvision safetensors tokenizers lxml xxhash h5py llvmlite orjson uvloop multidict cffi psutil pyzmq
shapely av soxr pycocotools==2.0.7 pillow regex zstandard lz4 mmh3 cvxopt soundfile samplerate blis cymem grpcio pymssql faiss-cpu
ctranslate2 kiwisolver contourpy greenlet mpi4py psycopg2-binary opencv-python-headless duckdb pikepdf frozenlist yarl
rapidfuzz ujson tornado murmurhash preshed pybase64 simplejson msgpack markupsafe pyyaml brotli cryptography
pydantic-core rpds-py watchfiles scs xformers""".split()
SKIPPED_FOLDERS = {"tests", "test", "docs", "examples", "benchmarks"}


def run(words, seconds, **more):
    try:
        return subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=seconds, **more)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 124, "", f"ended after {seconds} s")


def tops_of(wheel: pathlib.Path):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(n for n in names if n.endswith(".dist-info/METADATA"))).decode(errors="replace")
    tops = {n.split("/")[0] for n in names if n.count("/") == 1 and n.endswith("/__init__.py")}
    tops |= {n.split(".")[0] for n in names if "/" not in n and n.endswith((".so", ".py"))}
    tops = {t for t in tops if t.isidentifier() and not t.startswith("_") and t not in SKIPPED_FOLDERS}
    return sorted(tops), bool(re.search(r"^Requires-Dist: torch(?![\w-])", metadata, re.M))


def judge(mica, environment, package, folder):
    """(kind, predicted, said, what happened) of one package."""
    python = environment / "bin/python"
    fetched = run([python, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", folder, package], 240)
    wheels = list(folder.glob("*.whl"))
    if not wheels:
        return "not fetched", "", "", fetched.stderr.strip().splitlines()[-1:] or [""]
    predicted = run([mica, "doctor", wheels[0], "--python", environment, "--json"], 300)
    errors = [v for v in json.loads(predicted.stdout)["verdicts"] if v["severity"] == "error"]
    said = f'{errors[0]["code"]}: {errors[0]["message"]}' if errors else ""
    installed = run([python, "-m", "pip", "install", "-q", "--no-deps", "--target", folder / "site", wheels[0]], 300)
    tops, wants_torch = tops_of(wheels[0])
    if installed.returncode:
        happened, words = "fails", installed.stderr.strip().splitlines()[-1]
    else:
        happened, words = "works", ""
        for top in tops[:4]:
            program = ("import torch\n" if wants_torch else "") + f"import {top}\n"
            tried = run([python, "-c", program], 300, cwd=folder,
                        env={"PYTHONPATH": str(folder / "site"), "PATH": "/usr/bin:/bin", "HOME": str(folder)})
            if tried.returncode == 0:
                continue
            words = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
            missing = re.search(r"No module named '(\w+)", words)
            happened = "needs" if missing and missing.group(1) not in tops else "fails"
            break
    expected = {0: "works", 1: "fails"}.get(predicted.returncode, "cannot be told")
    kind = "apart" if happened == "needs" else "right" if expected == happened else "wrong"
    return kind, expected, said, [words] if words else [""]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mica", type=pathlib.Path)
    parser.add_argument("--python", type=pathlib.Path, required=True, help="an environment's folder")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=3600, help="no package is begun after that")
    parser.add_argument("packages", nargs="*", default=PACKAGES)
    arguments = parser.parse_intermixed_args()
    mica, environment = arguments.mica.resolve(), pathlib.Path(os.path.abspath(arguments.python))
    begun = time.monotonic()
    rows, count = [], {"right": 0, "wrong": 0, "apart": 0, "not fetched": 0}
    for package in arguments.packages:
        if time.monotonic() - begun > arguments.seconds:
            break
        with tempfile.TemporaryDirectory() as folder:
            kind, expected, said, words = judge(mica, environment, package, pathlib.Path(folder))
            names = [p.name for p in pathlib.Path(folder).glob("*.whl")]
            for place, name in ((folder, "FOLDER"), (str(environment.resolve()), "VENV"), (str(environment), "VENV")):
                said, words = said.replace(place, name), [words[0].replace(place, name)]
        count[kind] += 1
        name = "-".join(names[0].split("-")[:2]) if names else package
        line = [name, expected, said[:110].replace("|", "/"), kind, words[0][:110].replace("|", "/")]
        rows.append(line)
        print("  ".join(line), flush=True)
    versions = run([environment / "bin/python", "-c",
                    "import sys, importlib.metadata as m; print(sys.version.split()[0], m.version('torch'), m.version('numpy'))"],
                   60).stdout.split()
    if arguments.output:
        text = [
            "# The doctor's exit code against the import", "",
            f"Written by `make doctor-imports` on {datetime.date.today()}: Python {versions[0]}, torch {versions[1]}, NumPy "
            f"{versions[2]}, {os.uname().machine}. {count['right']} right, {count['wrong']} wrong, {count['apart']} whose import "
            f"stopped at a Python package that is not installed (nothing wrong was foretold of {sum(r[3] == 'apart' and r[1] == 'works' for r in rows)} of them), "
            f"{count['not fetched']} without a wheel.", "",
            "| wheel | foretold | by | | what the import said |", "|---|---|---|---|---|"
        ]
        text += ["| " + " | ".join(row) + " |" for row in rows]
        arguments.output.write_text("\n".join(text) + "\n")
    print(count)
    return 1 if count["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
