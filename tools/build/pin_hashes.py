#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the hashes of tools/build/requirements/*.txt anew: of every pinned version, those of its wheels for Linux.

Usage: pin_hashes.py [--check] [FILE...]. A pinned line is NAME==VERSION [; MARKER]; a file in which no line is pinned stays as
it is. With one hash in a file pip wants one for everything, so what a package needs is pinned in the same file.
--check: writes nothing; exit status 1 if the index has other hashes.
"""

import argparse
import pathlib
import re
import sys
import urllib.parse
import urllib.request
from typing import List

FOLDER = pathlib.Path(__file__).resolve().parent / "requirements"
INDEX = "https://pypi.org/simple/"
PINNED = re.compile(r"([A-Za-z0-9._-]+)==([^\s;\\]+)(\s*;[^\\]*)?")


def hashes(name: str, version: str) -> List[str]:
    """SHA-256 of the wheels that a CPython on Linux with glibc could take, sorted."""
    with urllib.request.urlopen(f"{INDEX}{name}/", timeout=60) as answer:
        page = answer.read().decode()
    of_version = re.compile(rf"{name.replace('-', '[-_.]')}-{re.escape(version)}-(.+)\.whl", re.IGNORECASE)
    found = set()
    for file, sha256 in re.findall(r'href="[^"#]*/([^"#/]+)#sha256=([0-9a-f]{64})"', page):
        wheel = of_version.fullmatch(urllib.parse.unquote(file))
        if wheel and re.search(r"-any$|-manylinux.*_(x86_64|aarch64)$", wheel[1]) and not wheel[1].startswith("pp"):
            found.add(sha256)
    if not found:
        raise SystemExit(f"{name} {version}: {INDEX} has no wheel of it for Linux")
    return sorted(found)


def renewed(text: str) -> str:
    lines = []
    for line in text.splitlines():
        pin = PINNED.match(line)
        if pin:
            lines.append(f"{pin[1]}=={pin[2]}{(pin[3] or '').rstrip()} \\")
            lines += [f"    --hash=sha256:{one} \\" for one in hashes(pin[1], pin[2])]
            lines[-1] = lines[-1][:-2]
        elif not line.startswith("    --hash="):
            lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("files", nargs="*", type=pathlib.Path, default=sorted(FOLDER.glob("*.txt")))
    arguments = parser.parse_args()
    stale = 0
    for path in arguments.files:
        before = path.read_text()
        after = renewed(before)
        stale += before != after
        print(f"{path.name}: {'as it was' if before == after else 'other hashes'}")
        if not arguments.check:
            path.write_text(after)
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
