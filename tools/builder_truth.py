#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The builder against the real projects, with real compilers. Takes from minutes to hours; what was built stays, so that
it can be run in pieces. Not in CI: the results are committed, in docs/builder-truth.json.

Usage: builder_truth.py MICA [CASE ...] [--minutes N] [--python PATH] [--arch LIST]
Cases: abi            the small extension, C++ only, against a torch of the old and one of the new C++ ABI
       causal-conv1d  for one architecture, judged and imported
       flash-attn     2.8.3.post2 for one architecture (72 files of 4 to 6 minutes each), in pieces of --minutes
Without a case: abi and causal-conv1d. --python names a Python with torch and CUDA (default: this one)."""

import argparse
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "builder-truth"
RESULTS = ROOT / "docs" / "builder-truth.json"
# The last release whose wheels on PyPI have the old ABI for the CPU of x86_64; elsewhere its symbols decide.
TORCHES = ("2.5.1", "2.8.0")
PACKAGES = {"causal-conv1d": "causal-conv1d", "flash-attn": "flash-attn==2.8.3.post2"}


def environment(torch):
    """A virtual environment with that torch; made once."""
    folder = CACHE / f"torch-{torch}"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "-q", f"torch=={torch}", "numpy<2", "setuptools<80"]
        cpu = ["--extra-index-url", "https://download.pytorch.org/whl/cpu"] if platform.machine() == "x86_64" else []
        subprocess.run([*install, *cpu], check=True)
        (folder / "ready").touch()
    return python


def build(mica, target, python, *options, minutes=None, variables=None):
    command = [mica, "build", target, "--python", str(python), "--work", str(CACHE / "work"), "--out", str(CACHE / "out")]
    process = subprocess.Popen(
        [*command, "--json", *options], stdout=subprocess.PIPE, text=True, env={**os.environ, **(variables or {})}
    )
    try:
        output, _ = process.communicate(timeout=minutes * 60 if minutes else None)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
    if not output:
        sys.exit(process.returncode)
    return json.loads(output)


def summary(out):
    wheel = pathlib.Path(out["wheel"]) if out["wheel"] else None
    return {
        "status": out["status"],
        "error": out["error"],
        "wheel": wheel.name if wheel else None,
        "wheel_bytes": wheel.stat().st_size if wheel else None,
        "seconds": round(out["seconds"], 1),
        "peak_bytes": out["peak_bytes"],
        "attempts": out["attempts"],
        "jobs": out["jobs"],
        "imported": out["imported"],
        "compared_with_mica": out["compared_with_mica"],
        "verdicts": [verdict["code"] for verdict in out["verdicts"]],
    }


def abi_case(mica, _):
    results = []
    for torch in TORCHES:
        python = environment(torch)
        ask = "import torch; print(torch.__version__, int(torch._C._GLIBCXX_USE_CXX11_ABI))"
        version, abi = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.split()
        out = build(mica, str(ROOT / "tests" / "builder" / "extension"), python, variables={"HUNGRY_CUDA": "FALSE"})
        result = {"torch": version, "torch_says": int(abi), **summary(out)}
        if out["status"] == "built":
            record = json.loads(pathlib.Path(out["record"]).read_text())
            result["built_with"] = record["plan"]["cxx_abi"]
            result["agrees"] = record["plan"]["cxx_abi"] == int(abi)
        results.append(result)
    return results


def package_case(name):
    def run(mica, options):
        out = build(mica, PACKAGES[name], options.python, "--arch", options.arch, "--keep", minutes=options.minutes)
        facts = "import sys, torch; print(sys.version.split()[0], torch.__version__, torch.version.cuda)"
        python, torch, cuda = subprocess.run(
            [options.python, "-c", facts], check=True, capture_output=True, text=True
        ).stdout.split()
        return {"package": PACKAGES[name], "python": python, "torch": torch, "cuda": cuda, "arch": options.arch,
                **summary(out)}

    return run


CASES = {"abi": abi_case, "causal-conv1d": package_case("causal-conv1d"), "flash-attn": package_case("flash-attn")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mica")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--minutes", type=float, help="stop then; the same command goes on later")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--arch", default="9.0")
    options = parser.parse_args()
    unknown = [case for case in options.cases if case not in CASES]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)} (there are {', '.join(CASES)})")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    failed = False
    for case in options.cases or ["abi", "causal-conv1d"]:
        outcome = CASES[case](options.mica, options)
        machine = platform.machine()
        results[f"{case} on {machine}"] = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "outcome": outcome}
        RESULTS.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
        print(json.dumps(outcome, indent=2))
        outcomes = outcome if isinstance(outcome, list) else [outcome]
        failed |= any(one["status"] not in ("built", "interrupted") for one in outcomes)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
