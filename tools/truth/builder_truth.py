#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The builder against the real projects, with real compilers. Takes minutes to hours; what was built stays, so that
it can be run in pieces. Not in CI: the results are committed, in docs/evidence/builder-truth.json.

Usage: builder_truth.py MICA [CASE ...] [options]
Cases: abi            the small extension, C++ only, against a torch of the old and one of the new C++ ABI
       causal-conv1d  for one architecture, judged and imported
       flash-attn     2.8.3.post2 for one architecture (72 files of 4 to 6 minutes each); with a GPU and Mica's Python
                      package, its results are compared with Mica's, forward and backward
Without a case: abi and causal-conv1d. Without a network: --source FILE, --python PATH, and wheels of what setup.py
imports (packaging, psutil, ...) in WORK/wheels."""

import argparse
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "builder-truth"
# The last release whose wheels have the old ABI everywhere, and one of the new ABI, each for the CPU.
TORCHES = ("2.5.1", "2.8.0")
PACKAGES = {"causal-conv1d": "causal-conv1d", "flash-attn": "flash-attn==2.8.3.post2"}


def environment(name: str, *packages: str) -> pathlib.Path:
    """The Python of a virtual environment with these packages; made once."""
    folder = CACHE / name
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True)
        (folder / "ready").touch()
    return python


def torch_for_cpu(version: str) -> pathlib.Path:
    cpu = ["--extra-index-url", "https://download.pytorch.org/whl/cpu"] if platform.machine() == "x86_64" else []
    return environment(f"torch-{version}", f"torch=={version}", "numpy<2", "setuptools<80", *cpu)


class Pieces:
    """One build after the other by `mica build`, each for at most so many minutes."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.out = options.work / "out"

    def build(self, target: str, python: pathlib.Path, *wishes: str, **variables: str) -> Dict[str, Any]:
        options = self.options
        command = [options.mica, "build", target, "--python", str(python), "--work", str(options.work), "--json"]
        command += ["--out", str(self.out), *wishes, *(["--jobs", str(options.jobs)] if options.jobs else [])]
        self.out.mkdir(parents=True, exist_ok=True)
        # Files and a session of its own: the build may outlive this program and its terminal.
        answer, errors = self.out / f"answer-{os.getpid()}.json", self.out / "errors.txt"
        with open(answer, "w") as output, open(errors, "w") as complaints:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=complaints, start_new_session=True,
                env={**os.environ, **variables},
            )
        try:
            process.wait(options.minutes * 60 if options.minutes else None)
        except subprocess.TimeoutExpired:
            state = self.state(target)
            if options.leave and state and state["owner"] == process.pid:
                return {"status": "running", "progress": progress(state)}
            process.send_signal(signal.SIGINT)  # ends a build of its own; a start that only follows one goes away
            process.wait()
        if process.returncode == 2 or not answer.stat().st_size:
            sys.exit(errors.read_text() or f"{' '.join(command)}: exit code {process.returncode}")
        out = json.loads(answer.read_text())
        answer.unlink()
        if out["status"] in ("building", "judging"):
            return {"status": "running", "progress": progress(self.state(target))}
        return out

    def state(self, target: str) -> Optional[Dict[str, Any]]:
        """What the newest build of this target notes about itself."""
        states = sorted(self.options.work.glob("*/state.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        found = (json.loads(path.read_text()) for path in states)
        return next((state for state in found if state["target"] == target), None)


def progress(state: Optional[Dict[str, Any]]) -> str:
    if not state:
        return "not begun"
    done, peak = f"{state['files_done']} of {state['files_total']} files", state["peak_bytes"] / 2**30
    return f"{state['phase']}: {done}, {state['jobs']} jobs, {state['seconds']:.0f} s, {peak:.1f} GiB at most"


def summary(out: Dict[str, Any]) -> Dict[str, Any]:
    if out["status"] != "built":
        codes = [verdict["code"] for verdict in out.get("verdicts", [])]
        return {"status": out["status"], **{k: out[k] for k in ("error", "progress") if k in out}, "verdicts": codes}
    wheel = pathlib.Path(out["wheel"])
    record = json.loads(pathlib.Path(out["record"]).read_text())  # of the start that finished it
    kept = ("peak_bytes", "attempts", "jobs_at_the_end", "imported", "compared_with_mica", "largest_difference")
    return {
        "status": "built",
        "wheel": wheel.name,
        "wheel_bytes": wheel.stat().st_size,
        "source_sha256": record["source"]["sha256"],
        "nvcc": record["plan"].get("toolkit", {}).get("version"),
        "compiler": record["plan"]["compiler"]["version"],
        "gpu": record["matrix"].get("gpu"),
        **{name: record[name] for name in kept},
        "seconds": round(record["seconds"], 1),
        "not_compared": out["not_compared"],
        "verdicts": [f"{verdict['severity']} {verdict['code']}" for verdict in record["verdicts"]],
    }


def abi_case(pieces: Pieces) -> List[Dict[str, Any]]:
    results = []
    for torch in TORCHES:
        python = torch_for_cpu(torch)
        ask = "import torch; print(torch.__version__, int(torch._C._GLIBCXX_USE_CXX11_ABI))"
        version, abi = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.split()
        out = pieces.build(str(ROOT / "tests" / "builder" / "extension"), python, HUNGRY_CUDA="FALSE")
        result = {"torch": version, "torch_says": int(abi), **summary(out)}
        if out["status"] == "built":
            result["built_with"] = json.loads(pathlib.Path(out["record"]).read_text())["plan"]["cxx_abi"]
            if result["built_with"] != int(abi):
                result["status"] = "failed"
        results.append(result)
    return results


def package_case(name: str):
    def run(pieces: Pieces) -> List[Dict[str, Any]]:
        options = pieces.options
        python = options.python or environment("torch-newest", "torch", "numpy")
        facts = "import sys, torch; print(sys.version.split()[0], torch.__version__, torch.version.cuda)"
        versions = subprocess.run([python, "-c", facts], check=True, capture_output=True, text=True).stdout.split()
        out = pieces.build(options.source or PACKAGES[name], python, "--arch", options.arch, "--keep")
        return [{**dict(zip(("python", "torch", "cuda"), versions)), "arch": options.arch, **summary(out)}]

    return run


CASES = {"abi": abi_case, **{name: package_case(name) for name in PACKAGES}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mica")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--minutes", type=float, help="stop then; the same command goes on later")
    parser.add_argument("--leave", action="store_true", help="then leave it running, and say how far it is")
    parser.add_argument("--python", help="a Python that has torch with CUDA (default: an environment made for this)")
    parser.add_argument("--arch", default="9.0")
    parser.add_argument("--jobs", type=int, help="compilers at a time (default: what mica build chooses)")
    parser.add_argument("--source", help="a source archive or folder in place of the package from the index")
    parser.add_argument("--work", type=pathlib.Path, default=CACHE / "work", help="where builds live")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "docs/evidence/builder-truth.json")
    options = parser.parse_args()
    cases = options.cases or ["abi", "causal-conv1d"]
    unknown = [case for case in cases if case not in CASES]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)} (there are {', '.join(CASES)})")
    if options.source and cases not in (["causal-conv1d"], ["flash-attn"]):
        parser.error("--source goes with one case: causal-conv1d or flash-attn")
    results = json.loads(options.results.read_text()) if options.results.exists() else {}
    failed = False
    for case in cases:
        outcomes = CASES[case](Pieces(options))
        print(json.dumps(outcomes, indent=2))
        failed |= any(one["status"] not in ("built", "interrupted", "running") for one in outcomes)
        if all(one["status"] in ("built", "failed", "refused") for one in outcomes):
            date = time.strftime("%Y-%m-%d", time.gmtime())
            results[f"{case} on {platform.machine()}"] = {"date": date, "outcomes": outcomes}
            options.results.parent.mkdir(parents=True, exist_ok=True)
            options.results.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
