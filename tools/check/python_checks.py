#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ruff (rules in pyproject.toml) over all Python of the tree; mypy over tools and bench, and --strict over python/mica.

Usage: python_checks.py ruff|types [root]. Exit status 1 with one line per finding; 77: the tool is not installed.
"""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

# The same answer on every machine: of the packages around, mypy knows nothing.
COMMON = ["--no-site-packages", "--ignore-missing-imports", "--no-error-summary", "--cache-dir", "out/mypy"]


def run(root, *words, path=""):
    result = subprocess.run([sys.executable, "-m", *map(str, words)], cwd=root, capture_output=True, text=True,
                            env={**os.environ, "MYPYPATH": path})
    if result.returncode not in (0, 1):
        raise SystemExit(f"{words[0]} ended with code {result.returncode}: {result.stderr}{result.stdout}")
    return [line for line in result.stdout.splitlines() if line]


def tracked(root, *folders):
    listed = subprocess.run(["git", "ls-files", *(f"{folder}/*.py" for folder in folders)], cwd=root, capture_output=True, text=True)
    return listed.stdout.split()


def ruff(root):
    return [line for line in run(root, "ruff", "check", "--no-cache", "--output-format", "concise", "python", "tools", "bench",
                                 "tests") if re.match(r"\S+:\d+:", line)]


def strict(root):
    """Classes and decorators of torch are not known here, so those two rules could say nothing of use."""
    return run(root, "mypy", *COMMON, "--strict", "--allow-subclassing-any", "--allow-untyped-decorators", "python/mica")


def types(root):
    loose = [line for folder, path in (("tools", ""), ("bench", "python"))  # whose scripts import the package of the tree
             for line in run(root, "mypy", *COMMON, "--scripts-are-modules", "--follow-imports=silent",
                             *tracked(root, folder), path=path)]
    return [line for line in loose + strict(root) if ": error:" in line]


def main():
    checks = {"ruff": ("ruff", ruff), "types": ("mypy", types)}
    if len(sys.argv) < 2 or sys.argv[1] not in checks:
        raise SystemExit(__doc__)
    package, check = checks[sys.argv[1]]
    if importlib.util.find_spec(package) is None:
        print(f"{package} is not installed for {sys.executable} (tools/build/bootstrap.sh test does)")
        return 77
    root = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else pathlib.Path(__file__).resolve().parents[2])
    found = check(root)
    print("\n".join([*found, f"{sys.argv[1]}: {len(found)} complaints"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
