#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that README.md and docs/user/c.md quote the examples and the support matrix as they are, and that links lead somewhere.

Usage: check_readme.py MICA [--write]. MICA is the command, whose `info --matrix` is asked. On these pages, what stands
between `<!-- begin NAME -->` and `<!-- end NAME -->` must be NAME's text: "matrix", or a file (without its SPDX line).
Links of README.md and docs/ must name files of the tree, and functions and types that docs/design/algorithm.md names must be
found in the source.
Exit status 1, with a line for each difference, if it is not; --write puts it there.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LANGUAGES = {".c": "c", ".cc": "cpp"}
# What each page must quote.
PAGES = {"README.md": ("matrix", "examples/attention.cc"), "docs/user/c.md": ("examples/attention.c", "examples/attention.cc")}


def wanted(name, mica):
    if name == "matrix":
        return subprocess.run([mica, "info", "--matrix"], check=True, capture_output=True, text=True).stdout
    text = (ROOT / name).read_text()
    first, rest = text.split("\n", 1)
    assert "SPDX" in first, f"{name} does not begin with its licence"
    return f"```{LANGUAGES[pathlib.Path(name).suffix]}\n{rest}```\n"


def broken_links():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            if not (page.parent / link).exists():
                yield f"{page.relative_to(ROOT)}: {link} is not there"


def unknown_names():
    text = (ROOT / "docs/design/algorithm.md").read_text()
    source = "".join(path.read_text() for path in (ROOT / "src").glob("**/*.h"))
    for name in sorted(set(re.findall(r"`(?:\w+::)?(\w+)`", text))):
        if not re.search(rf"\b{name}\b", source):
            yield f"docs/design/algorithm.md: {name} is not in the source"


def differences(page, must, mica, write):
    """What a page quotes otherwise than it is; --write mends the page."""
    path = ROOT / page
    text = path.read_text()
    names = re.findall(r"<!-- begin (\S+) -->", text)
    failures = [f"{page} quotes no {name}" for name in must if name not in names]
    for name in names:
        pattern = re.compile(rf"(<!-- begin {re.escape(name)} -->\n)(.*?)(<!-- end {re.escape(name)} -->)", re.DOTALL)
        found = pattern.search(text)
        if not found:
            failures.append(f"{page}: no end of {name}")
        elif found.group(2) != (want := wanted(name, mica)):
            if write:
                text = text[:found.start(2)] + want + text[found.end(2):]
            else:
                failures.append(f"{page}: {name} is not what it quotes (tools/check/check_readme.py MICA --write repairs it)")
    if write:
        path.write_text(text)
    return failures


def main(mica, write):
    failures = [line for page, must in PAGES.items() for line in differences(page, must, mica, write)]
    failures += [*broken_links(), *unknown_names()]
    print("\n".join(failures) or f"{', '.join(PAGES)} quote their texts as they are")
    return 1 if failures else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], "--write" in sys.argv[2:]))
