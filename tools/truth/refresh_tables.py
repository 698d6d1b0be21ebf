#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a table of src/doctor/tables anew from the file of others that it stands for.

    refresh_tables.py torch_stable FOLDER       FOLDER: torch/include of an installed torch
    refresh_tables.py cpython_abi3 FILE         FILE: Misc/stable_abi.toml of CPython
Options: --check: write nothing, exit status 1 if the table would change.

Afterwards: the day in src/doctor/tables/tables.def, and ctest -R doctor/.
"""

import pathlib
import re
import sys
import textwrap
import tomllib

TABLES = pathlib.Path(__file__).resolve().parents[2] / "src/doctor/tables"
WIDTH = 112  # of the names in a line


def torch_stable(folder: pathlib.Path) -> dict[int, set[str]]:
    """{minor version of torch 2: names that its shims declare from then on}."""
    names: dict[int, set[str]] = {}
    for header in ("csrc/stable/c/shim.h", "csrc/inductor/aoti_torch/c/shim.h"):
        # Conditions nest; the innermost that names a release decides.
        conditions: list[int] = []
        text = re.sub(r"//.*", "", (folder / "torch" / header).read_text())
        for line in text.splitlines():
            if re.match(r"\s*#\s*if", line):
                release = re.search(r"TORCH_FEATURE_VERSION\s*>=\s*TORCH_VERSION_2_(\d+)_0", line)
                conditions.append(int(release[1]) if release else 0)
            elif re.match(r"\s*#\s*endif", line) and conditions:
                conditions.pop()
            minor = max(conditions, default=0)
            if minor:
                names.setdefault(minor, set()).update(re.findall(r"\b((?:aoti_)?torch_\w+)\s*\(", line))
    return names


def cpython_abi3(file: pathlib.Path) -> dict[int, set[str]]:
    """{minor version of Python 3: functions and data that it added}."""
    names: dict[int, set[str]] = {}
    document = tomllib.loads(file.read_text())
    for kind in ("function", "data"):
        for name, entry in document.get(kind, {}).items():
            names.setdefault(int(entry["added"].split(".")[1]), set()).add(name)
    return names


def rows(names: dict[int, set[str]]) -> str:
    out = []
    for minor, added in sorted(names.items()):
        lines = textwrap.wrap(" ".join(sorted(added)), WIDTH, break_long_words=False)
        out.append(f"{{{minor},\n" + "\n".join(f'     "{line} "' for line in lines) + "},\n")
    return "".join(out)


def names_in(text: str) -> dict[int, set[str]]:
    return {int(minor): set(" ".join(re.findall(r'"([^"]*)"', body)).split())
            for minor, body in re.findall(r"^\{(\d+),(.*?)\},$", text, flags=re.M | re.S)}


def main() -> int:
    readers = {"torch_stable": torch_stable, "cpython_abi3": cpython_abi3}
    words = [word for word in sys.argv[1:] if word != "--check"]
    if len(words) != 2 or words[0] not in readers:
        print(__doc__, file=sys.stderr)
        return 2
    table = TABLES / f"{words[0]}.inc"
    old = table.read_text()
    head = "".join(line + "\n" for line in old.splitlines() if line.startswith("//"))
    was, now = names_in(old), readers[words[0]](pathlib.Path(words[1]))
    for minor in sorted({*was, *now}):
        for sign, change in (("+", now.get(minor, set()) - was.get(minor, set())), ("-", was.get(minor, set()) - now.get(minor, set()))):
            for name in sorted(change):
                print(f"{sign} {minor} {name}")
    if "--check" in sys.argv:
        return int(was != now)
    table.write_text(head + rows(now))
    return 0


if __name__ == "__main__":
    sys.exit(main())
