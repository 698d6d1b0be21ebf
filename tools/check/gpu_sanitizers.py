#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compute-sanitizer's four tools on a GPU, over conformance cases that reach every kernel that they can reach.

    tools/check/gpu_sanitizers.py build/bin [--jobs 14] [--seconds 90] [--json OUT]
    tools/check/gpu_sanitizers.py build/bin --tools racecheck --match '^aligned_128_.*_bf16$' --outcomes check.json

`mica check --backend cuda --json` says which kernels each case runs (--outcomes takes such a file instead of running it);
then the cheapest cases are taken that show every kernel with every tag that a case of it has (packed, paged, split, ...), and
run as conformance_test under each tool, several processes at once. --match: cases by name (default: 16 bits as bf16, e4m3, and
random ones). Exit codes: 0 nothing found; 1 a finding, or a case failed; 2 usage; 3 time ended before all cases had run."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

TOOLS = ("racecheck", "memcheck", "initcheck", "synccheck")  # the slowest first
TYPES = ("bf16", "fp16", "fp32")  # tags that say nothing of a kernel's course
CASES_OF_A_PROCESS = 10
# What the tool reports although it is none, by kernel: where the reason is written.
BACKWARD = "docs/design/kernels/backward.md"
KNOWN = {"racecheck": {"mla_tma_sm90": "docs/design/kernels/decode.md", "backward_tma_sm90_bf16_d128_whole": BACKWARD,
                       "backward_tma_sm90_fp16_d128_whole": BACKWARD}}
FIRST_LINES = 3  # of what a tool found


def mica(binaries, *words):
    done = subprocess.run([binaries / "mica", "check", *words, "--json"], capture_output=True, text=True)
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        raise SystemExit(f"mica check {' '.join(words)}: {done.stderr.strip() or done.stdout[-300:]}") from None


def kernels_of(case):
    return [case[word] for word in ("forward_kernel", "backward_kernel") if case.get(word)]


def chosen(outcomes, tags, match):
    """Names: a greedy cover of (kernel, tag), the cheapest case first."""
    cases = [c for c in outcomes["cases"] if c["status"] == "passed" and re.search(match, c["name"])]
    shows = {c["name"]: {(kernel, tag) for kernel in kernels_of(c) for tag in (*tags[c["name"]], "any")
                         if tag not in TYPES} for c in cases}
    seconds = {c["name"]: max(c["seconds"], 0.01) for c in cases}
    left, names = set().union(*shows.values()), []
    while left:
        name = max(shows, key=lambda n: len(shows[n] & left) / seconds[n])
        names.append(name)
        left -= shows.pop(name)
    return names


def run(binaries, tool, names, end, logs):
    """One process: dict(tool, cases, passed, findings, stopped)."""
    log = logs / f"{tool}-{names[0]}.log"
    command = ["compute-sanitizer", "--tool", tool, "--print-limit", "8", binaries / "conformance_test",
               "--gtest_filter=" + ":".join(f"*/{name}" for name in names)]
    stopped = False
    with open(log, "w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
                                   env={**os.environ, "MICA_TEST_BACKEND": "cuda"})
        try:
            process.wait(max(end - time.time(), 0.1))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            stopped = True
    text = log.read_text(errors="replace")
    found = re.findall(r"SUMMARY: (\d+) (?:error|hazard)", text)
    first = re.findall(r"^=+ (Error: .*|Invalid .*|Uninitialized .*|Barrier error .*| +and \w+ access .*)$", text, re.MULTILINE)
    return dict(tool=tool, cases=names, passed=len(re.findall(r"^\[       OK \] Case/", text, re.MULTILINE)),
                findings=sum(map(int, found)) if found else None, first=first[:FIRST_LINES], stopped=stopped,
                log=str(log))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=pathlib.Path, help="the folder of mica and conformance_test")
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--match", default="_bf16$|^fp8_|^random_", help="a regular expression of cases' names")
    parser.add_argument("--outcomes", type=pathlib.Path, help="what mica check --backend cuda --json wrote")
    parser.add_argument("--jobs", type=int, default=8, help="processes at once (default 8)")
    parser.add_argument("--seconds", type=float, default=3600, help="stop after so many")
    parser.add_argument("--logs", type=pathlib.Path, default=pathlib.Path("out/sanitizers"), help="folder of the output")
    parser.add_argument("--json", type=pathlib.Path)
    given = parser.parse_args()
    unknown = set(given.tools.split(",")) - set(TOOLS)
    if unknown:
        parser.error(f"--tools has {', '.join(sorted(unknown))}, want some of {', '.join(TOOLS)}")
    begin = time.time()
    outcomes = json.loads(given.outcomes.read_text()) if given.outcomes else mica(given.binaries, "--backend", "cuda")
    tags = {case["name"]: case["tags"] for case in mica(given.binaries, "--list")}
    names = chosen(outcomes, tags, given.match)
    of_case = {c["name"]: kernels_of(c) for c in outcomes["cases"]}
    kernels = sorted({kernel for name in names for kernel in of_case[name]})
    print(f"{len(names)} cases show {len(kernels)} kernels ({time.time() - begin:.0f} s)", flush=True)
    given.logs.mkdir(parents=True, exist_ok=True)
    work = []
    for tool in given.tools.split(","):
        known = [n for n in names if any(k in kernel for k in KNOWN.get(tool, {}) for kernel in of_case[n])]
        others = [n for n in names if n not in known]
        groups = -(-len(others) // CASES_OF_A_PROCESS)
        work += [(tool, others[i::groups], False) for i in range(groups)]
        work += [(tool, known, True)] if known else []
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        made = [(known, pool.submit(run, given.binaries, tool, cases, begin + given.seconds, given.logs))
                for tool, cases, known in work]
        results = [dict(future.result(), known=known) for known, future in made]
    wrong = ended = 0
    for result in results:
        missing = len(result["cases"]) - result["passed"]
        if result["stopped"]:
            ended += 1
        elif missing or (result["findings"] != 0 and not result["known"]):
            wrong += 1
            print(f"{result['tool']}: {result['findings']} findings, {missing} cases did not pass: {result['log']}",
                  *result["first"], sep="\n    ")
    print(f"{'tool':12}{'cases':>8}{'run':>8}{'findings':>10}  known")
    for tool in given.tools.split(","):
        mine = [r for r in results if r["tool"] == tool]
        found = [sum(r["findings"] or 0 for r in mine if r["known"] == known) for known in (False, True)]
        known = ", ".join(f"{k} ({v})" for k, v in KNOWN.get(tool, {}).items())
        why = f"{found[1]} in all of {known}" if found[1] else ""
        print(f"{tool:12}{sum(len(r['cases']) for r in mine):8}{sum(r['passed'] for r in mine):8}{found[0]:10}  {why}")
    print(f"{time.time() - begin:.0f} s" + (f", {ended} processes stopped by --seconds" if ended else ""))
    if given.json:
        given.json.write_text(json.dumps(dict(kernels=kernels, results=results), indent=1) + "\n")
    return 1 if wrong else (3 if ended else 0)


if __name__ == "__main__":
    sys.exit(main())
