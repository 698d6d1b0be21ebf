#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""clang-tidy (checks in .clang-tidy) over the .cc files of src and cli that build/compile_commands.json knows.

Usage: tidy.py [--since COMMIT] [--seconds N] [--jobs N] [--build FOLDER]
  --since COMMIT   only files changed since then, or whose header was; "test-all": since the commit that
                   docs/evidence/test-all.md names, which was looked over as a whole
  --seconds N      begin no further file after so long; what is left is counted, and is looked over by `make test-all`
Exit status 1 with what was found; 77: clang-tidy or the list of files is not here.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
EVIDENCE = "docs/evidence/test-all.md"


def git(*words: str) -> list[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()


def commands_of_files(build: pathlib.Path) -> list[dict[str, str]]:
    """Where several files are compiled as one (MICA_UNITY), each by the command of that one."""
    out = []
    for command in json.loads((build / "compile_commands.json").read_text()):
        whole = command["file"]
        parts = re.findall(r'^#include "(.*)"', pathlib.Path(whole).read_text(), re.M) if "/Unity/" in whole else [whole]
        out += [{**command, "file": part, "command": command["command"].replace(whole, part)} for part in parts]
    return out


def compiled(commands: list[dict[str, str]]) -> list[str]:
    """Of the files for one instruction set, which say the same thing once per set, one is enough."""
    known = {pathlib.Path(command["directory"], command["file"]).resolve() for command in commands}
    files = git("ls-files", "src/*.cc", "cli/*.cc")
    return [file for file in files if ROOT / file in known and not re.search(r"/isa_(?!list)", file)]


def last_full_run() -> str:
    named = re.search(r"`make test-all` at (\w+)", (ROOT / EVIDENCE).read_text())
    return named[1] if named else ""


def changed(since: str) -> list[str] | None:
    """Newest first; None: there is no such commit here."""
    if subprocess.run(["git", "cat-file", "-e", since + "^{commit}"], cwd=ROOT, capture_output=True).returncode:
        return None
    now = git("diff", "--name-only", "HEAD") + git("ls-files", "--others", "--exclude-standard")
    return list(dict.fromkeys(now + [line for line in git("log", "--name-only", "--format=", f"{since}..HEAD") if line]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", default="")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    arguments = parser.parse_args()
    tool = shutil.which("clang-tidy")
    if not tool:
        print("skipped: no clang-tidy (tools/build/bootstrap.sh lint installs it)")
        return 77
    if not (arguments.build / "compile_commands.json").is_file() or not git("rev-parse", "HEAD"):
        print(f"skipped: no {arguments.build}/compile_commands.json, or no git checkout")
        return 77
    commands = commands_of_files(arguments.build)
    files = compiled(commands)
    since = last_full_run() if arguments.since == "test-all" else arguments.since
    if arguments.since:
        new = changed(since)
        if new is None:
            print(f"skipped: commit {since or 'of ' + EVIDENCE} is not in this checkout")
            return 77
        order = {re.sub(r"\.(h|cc)$", "", file): place for place, file in reversed(list(enumerate(new)))}
        files = sorted((file for file in files if file[:-3] in order), key=lambda file: order[file[:-3]])
    end = time.monotonic() + arguments.seconds

    def look(file: str, folder: str) -> str | None:
        """What it says; None: no time was left."""
        if time.monotonic() > end:
            return None
        result = subprocess.run([tool, "-p", folder, "--quiet", file], cwd=ROOT, capture_output=True, text=True)
        return result.stdout if result.returncode else ""

    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        (pathlib.Path(folder) / "compile_commands.json").write_text(json.dumps(commands))
        said = list(pool.map(lambda file: look(file, folder), files))
    found = [text for text in said if text]
    left = said.count(None)
    print("".join(found), end="")
    print(f"{len(files) - left} files, {len(found)} with complaints" + (f"; {left} left to make test-all" if left else ""))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
