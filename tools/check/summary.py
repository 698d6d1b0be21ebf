#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads ctest's and pytest's JUnit files of a test run and prints what passed, failed and was skipped, and why.

A full run also becomes docs/evidence/test-all.md. Exit status 1 if anything failed.
"""

import argparse
import datetime
import os
import pathlib
import platform
import re
import subprocess
import sys
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]


def status_of(case):
    """ctest has an attribute, pytest an element inside."""
    for element, status in (("failure", "fail"), ("error", "fail"), ("skipped", "notrun")):
        if case.find(element) is not None:
            return status
    return case.get("status", "run")


def name_of(case):
    return "::".join(filter(None, (case.get("classname") if case.get("status") is None else None, case.get("name"))))


def reason_of(case):
    """What a skipped test gave (pytest), or the last line that it wrote (ctest)."""
    skipped = case.find("skipped")
    if case.get("status") is None and skipped is not None:
        return skipped.get("message", "no reason given")
    lines = [line.strip() for line in (case.findtext("system-out") or "").splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def inner_skips(case):
    """How many tests a program skipped inside, and how many it ran in all, by the last lines of unittest and GoogleTest.

    A program that skips all it has says that it passed, and has tested nothing."""
    text = case.findtext("system-out") or ""
    skipped = re.findall(r"\(.*?skipped=(\d+).*?\)\s*$", text, re.M) or re.findall(r"^\[  SKIPPED \] (\d+) tests?[.,]", text, re.M)
    if not skipped:
        return 0, 0
    ran = re.findall(r"^Ran (\d+) tests? in ", text, re.M)
    passed = re.findall(r"^\[  PASSED  \] (\d+) tests?\.", text, re.M)
    total = int(ran[-1]) if ran else int(skipped[-1]) + int(passed[-1] if passed else 0)
    return int(skipped[-1]), total


def read_step(path):
    cases = list(xml.etree.ElementTree.parse(path).getroot().iter("testcase"))
    skipped = [(name_of(case), reason_of(case)) for case in cases if status_of(case) in ("notrun", "disabled")]
    passed = 0
    for case in cases:
        if status_of(case) != "run":
            continue
        inside, total = inner_skips(case)
        passed += inside == 0 or inside < total
        skipped += [(name_of(case), f"{inside} of the {total} tests inside {name_of(case)} are skipped")] * inside
    return {
        "passed": passed,
        "failed": [name_of(case) for case in cases if status_of(case) == "fail"],
        "skipped": skipped,
        "seconds": sum(float(case.get("time", 0)) for case in cases),
        "slowest": max(cases, key=lambda case: float(case.get("time", 0)), default=None),
    }


def skip_notes(step, skipped):
    """One line per reason: a machine without a GPU skips hundreds of tests for the same one."""
    tests = {}
    for test, reason in skipped:
        tests.setdefault(reason, []).append(test)
    which = {reason: names[0] if len(names) == 1 else f"{len(names)} tests" for reason, names in tests.items()}
    return [f"skipped: {step}: {names}: {reason}" for reason, names in which.items()]


def processor():
    try:
        lines = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout.splitlines()
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        return fields.get("Model name", "unknown").strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def commit():
    result = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return result.stdout.strip() or "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--level", choices=("fast", "all"), required=True)
    parser.add_argument("--seconds", type=int, required=True, help="of the whole run, builds included")
    arguments = parser.parse_args()

    steps = {path.stem: read_step(path) for path in sorted(arguments.results.glob("*.xml"), key=os.path.getmtime)}
    rows, notes = [], []
    for name, step in steps.items():
        rows.append((name, step["passed"], len(step["failed"]), len(step["skipped"]), f"{step['seconds']:.0f}"))
        notes += [f"failed: {name}: {test}" for test in step["failed"]]
        notes += skip_notes(name, step["skipped"])
    for path in sorted(arguments.results.glob("*.failed")):
        rows.append((path.stem, 0, 1, 0, "0"))
        notes.append("failed: " + path.read_text().strip())
    notes += [f"skipped: {path.stem}: {path.read_text().strip()}" for path in sorted(arguments.results.glob("*.skipped"))]

    header = ("step", "passed", "failed", "skipped", "test seconds")
    widths = [max(len(str(row[column])) for row in [header, *rows]) for column in range(len(header))]
    table = [" | ".join(str(cell).ljust(width) for cell, width in zip(row, widths)) for row in [header, *rows]]
    table.insert(1, "-|-".join("-" * width for width in widths))
    failures = sum(row[2] for row in rows)
    verdict = "all passed" if failures == 0 and steps else f"{failures} failed"
    total = f"{verdict}; {arguments.seconds} s in all, builds included, on {os.cpu_count()} cores"

    print("\n" + "\n".join(table) + "\n")
    print("\n".join(notes + [total]))
    if arguments.level == "all":
        lines = [
            "# The last full run of the tests",
            "",
            f"`make test-all` at {commit()} on {datetime.date.today().isoformat()}: {total}.",
            f"Machine: {platform.machine()}, {processor()}, {os.cpu_count()} cores.",
            "",
            *("| " + line.replace("-|-", "-|-") + " |" for line in table),
            "",
            *(f"- {note}" for note in notes),
        ]
        (ROOT / "docs/evidence").mkdir(exist_ok=True, parents=True)
        (ROOT / "docs/evidence/test-all.md").write_text("\n".join(lines).rstrip() + "\n")
        print("written: docs/evidence/test-all.md")
    return 0 if failures == 0 and steps else 1


if __name__ == "__main__":
    sys.exit(main())
