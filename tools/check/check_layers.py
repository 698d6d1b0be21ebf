#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who may include whom: the rooms of the source tree, from which the table of docs/design/architecture.md is made.

Usage: check_layers.py [--write] [root]. Prints one line per forbidden include, per folder with too many files, and if the
page's table is not this one (--write writes it there); exit status 1 if there is any.
"""

import pathlib
import re
import sys
from typing import NamedTuple, Sequence

INTERFACE = "include/mica/"


class Room(NamedTuple):
    about: str  # what lives here, for docs/design/architecture.md
    may: Sequence[str]  # what its files may include besides their own folder: folders end in "/", else one file


# The longest prefix of a file's path decides which room it is in.
DOCTOR = "src/doctor/"
SUPPORT = "src/support/"
ROOMS = {
    "include/mica/": Room("the C interface, C99, and its C++20 face", []),
    "include/mica/enums.h": Room("enumerations; includes nothing, so that device code reads it too", []),
    "src/core/": Room("the mathematics: pure, no allocation, no standard header", ["include/mica/enums.h"]),
    "src/base/": Room("what the front door and the backends agree on: status, `Plan`, the `Backend` table",
                      [INTERFACE, "src/core/"]),
    "src/api/": Room('the front door: `extern "C"`, validation, choice of the backend',
                     [INTERFACE, "src/core/", "src/base/", "src/cpu/cpu.h", "src/cpu/threads/threads.h",
                      "src/cuda/cuda.h"]),
    "src/cpu/": Room("the CPU backend: headers compiled once per instruction set (`isa/`), chosen at run time",
                     [INTERFACE, "src/core/", "src/base/"]),
    "src/cuda/": Room("the CUDA backend's host side; `kernels.def` has a row per kernel",
                      [INTERFACE, "src/core/", "src/base/"]),
    "src/cuda/kernels/": Room("kernels", ["include/mica/enums.h", "src/core/", "src/cuda/device/"]),
    "src/cuda/kernels/options/": Room("what options of a call do to a fragment, and which rows a tile packs",
                                      ["src/core/", "src/cuda/device/", "src/cuda/kernels/params.h"]),
    "src/cuda/device/": Room("what kernels are made of", ["src/core/types.h"]),
    "src/cuda/device/attend.cuh": Room("the step that the kernels share",
                                       ["src/core/types.h", "src/core/mask.h", "src/core/score.h", "src/core/softmax.h",
                                        "src/cuda/device/"]),
    "src/cuda/device/tma.cuh": Room("the copy engine",
                                    ["src/core/types.h", "src/cuda/device/", "src/cuda/kernels/parts/tensor_map.h"]),
    "src/conformance/": Room("named cases and the double-precision reference; nothing of core, so that a mistake there "
                             "cannot agree with itself", [INTERFACE]),
    SUPPORT: Room("text, versions, bytes, files, hashes, processes, durable writes", []),
    # The doctor, from the bottom up: a room sees those above it in this list, as far as it names them.
    DOCTOR + "verdict/": Room("what the doctor says: the catalogue of codes, a verdict, its JSON", [SUPPORT]),
    DOCTOR + "tables/": Room("facts that age: GPUs, CUDA releases, torch's symbols, CPython's stable ABI, manylinux, "
                             "published wheels", [SUPPORT]),
    DOCTOR + "read/": Room("bounded readers of zip, wheel, ELF, fatbin and cubin into plain structs",
                           [SUPPORT, DOCTOR + "verdict/", DOCTOR + "tables/"]),
    DOCTOR + "facts/": Room("what a binary shows of the world it was built for, and what a target is",
                            [SUPPORT, DOCTOR + "tables/", DOCTOR + "read/"]),
    DOCTOR + "load/": Room("the dynamic loader in the head: search, versions, relocations",
                           [SUPPORT, DOCTOR + "read/", DOCTOR + "facts/"]),
    DOCTOR + "system/": Room("this machine, or a described one, by its files: C library, GPUs, Pythons, packages",
                             [SUPPORT, *(DOCTOR + room for room in ("tables/", "read/", "facts/", "load/"))]),
    DOCTOR + "judge/": Room("from facts and a target to verdicts",
                            [SUPPORT, *(DOCTOR + room for room in ("verdict/", "tables/", "read/", "facts/", "load/",
                                                                   "system/"))]),
    DOCTOR + "explain/": Room("from the text of a failure to its first cause",
                              [SUPPORT, *(DOCTOR + room for room in ("verdict/", "tables/", "facts/", "judge/"))]),
    DOCTOR + "report/": Room("what was found, for people (text, HTML) and for programs (JSON)",
                             [SUPPORT, *(DOCTOR + room for room in ("verdict/", "tables/", "read/", "facts/",
                                                                    "system/"))]),
    # The builder.
    "src/builder/plan/": Room("how a source is going to be built, decided from facts alone", [SUPPORT, DOCTOR]),
    "src/builder/shelf/": Room("wheels on shared storage: published, indexed, verified", [SUPPORT, DOCTOR]),
    "src/builder/run/": Room("a build: prepared, run, watched, judged",
                             [SUPPORT, DOCTOR, "src/builder/plan/", "src/builder/shelf/"]),
    "src/builder/install/": Room("wheels put into an environment, as a whole or not at all",
                                 [SUPPORT, DOCTOR, "src/builder/plan/"]),
    "src/builder/slurm/": Room("a build as a job of Slurm",
                               [SUPPORT, DOCTOR, "src/builder/plan/", "src/builder/run/"]),
    "src/jupyter/": Room("Jupyter's kernels: found, judged, registered, tried", [SUPPORT, DOCTOR]),
    "cli/": Room("`mica`: the command and what its verbs share", [INTERFACE, SUPPORT, DOCTOR]),
    "cli/attention/": Room("verbs of attention", [INTERFACE, SUPPORT, DOCTOR, "src/conformance/", "cli/"]),
    "cli/doctor/": Room("verbs of the doctor", [INTERFACE, SUPPORT, DOCTOR, "cli/"]),
    "cli/builder/": Room("verbs of the builder and of Jupyter",
                         [INTERFACE, SUPPORT, DOCTOR, "src/builder/", "src/jupyter/", "cli/"]),
    "bench/": Room("suites as data, and `compare.py`", [INTERFACE]),
    "python/": Room("the Python package and the drop-ins", [INTERFACE]),
}
# Rooms that device code reads: no header of the system, since NVRTC has none.
NO_SYSTEM_HEADERS = ("include/mica/enums.h", "src/core/", "src/cuda/kernels/", "src/cuda/device/")
# Where an include is looked for, besides the including file's own folder.
INCLUDE_ROOTS = ("src", "src/cuda", "include", ".")
# Written by the build, as if they lay here.
GENERATED = {
    "mica/version.h": "include/mica/version.h",
    "images.inc": "src/cuda/images.inc",
    "images_digest.h": "src/cuda/images_digest.h",
    "commit.h": "cli/attention/commit.h",
    "default_suite.h": "cli/attention/default_suite.h",
    "builder_driver.h": "src/builder/run/builder_driver.h",
    "against_program.h": "cli/attention/against/against_program.h",
    "builder_conda.h": "src/builder/run/toolchain/builder_conda.h",
}
PAGE = "docs/design/architecture.md"
MARKS = ("<!-- begin rooms (tools/check/check_layers.py --write) -->\n", "<!-- end rooms -->")
# A folder with more source files directly in it is no room but a heap.
MOST_FILES = 25
CROWDED = ("src", "cli", "tests")
SUFFIXES = {".h", ".hpp", ".c", ".cc", ".inc", ".cu", ".cuh", ".def"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def room_of(path):
    return max((room for room in ROOMS if path == room or (room.endswith("/") and path.startswith(room))), key=len)


def allowed(room):
    return [*ROOMS[room].may, room] if room.endswith("/") else ROOMS[room].may


def table():
    """The rooms for people. A file with a row of its own is an exception, which stands here alone."""
    lines = ["| room | what it is | may include, besides itself |", "|---|---|---|"]
    for name, room in ROOMS.items():
        if name.endswith("/"):
            may = ", ".join(f"`{folder.removesuffix('/').removeprefix('src/')}`" for folder in room.may) or "nothing"
            lines.append(f"| `{name.removesuffix('/')}` | {room.about} | {may} |")
    return "\n".join(lines) + "\n"


def stale_page(root, write):
    page = root / PAGE
    if not page.is_file():
        return
    text = page.read_text()
    begin, end = (text.find(mark) for mark in MARKS)
    if begin < 0 or end < begin:
        yield f"{PAGE}: the marks of the table of rooms are not there: {MARKS[0].strip()} and {MARKS[1]}"
        return
    want = text[:begin + len(MARKS[0])] + table() + text[end:]
    if want != text and write:
        page.write_text(want)
    elif want != text:
        yield f"{PAGE}: its table of rooms is not this one: tools/check/check_layers.py --write"


def crowded_folders(root):
    for top in CROWDED:
        for folder in [root / top, *(path for path in (root / top).rglob("*") if path.is_dir())]:
            files = [path for path in folder.glob("*") if path.suffix in SUFFIXES | {".py"}]
            name = folder.relative_to(root).as_posix()
            if len(files) > MOST_FILES:
                yield f"{name}: {len(files)} source files directly in it, want at most {MOST_FILES}"


def resolve(root, file, name):
    """The project's file that an include names, relative to the root; None if it is not of the project."""
    if name in GENERATED:
        return GENERATED[name]
    for folder in (file.parent, *(root / start for start in INCLUDE_ROOTS)):
        if (folder / name).is_file():
            return (folder / name).resolve().relative_to(root).as_posix()
    # Not there (yet): judged by where it would be.
    return f"src/{name}" if any(room.startswith(f"src/{name.split('/')[0]}/") for room in ROOMS) else None


def complaints(root, file):
    path = file.relative_to(root).as_posix()
    room = room_of(path)
    for number, line in enumerate(file.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, name = match.groups()
        target = resolve(root, file, name)
        if target is None:
            if quote == '"' and not (path.startswith("cli/") and name.endswith(".hpp")):
                yield f"{path}:{number}: \"{name}\" names no file of the project"
            elif quote == "<" and path.startswith(NO_SYSTEM_HEADERS):
                yield f"{path}:{number}: <{name}>: {room} includes no system header (NVRTC has none)"
        elif not any(target == may or (may.endswith("/") and target.startswith(may)) for may in allowed(room)):
            yield f"{path}:{number}: {target}: {room} may include only {', '.join(allowed(room)) or 'nothing'}"
        elif room == "src/cuda/" and (target.endswith(".cuh") or target.startswith("src/cuda/device/")):
            yield f"{path}:{number}: {target}: host code reads no device code"


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--write"]
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).resolve().parents[2]).resolve()
    tops = sorted({room.split("/")[0] for room in ROOMS})
    files = [file for top in tops for file in sorted((root / top).rglob("*")) if file.suffix in SUFFIXES]
    found = [complaint for file in files for complaint in complaints(root, file)]
    found += [*crowded_folders(root), *stale_page(root, "--write" in sys.argv)]
    print("\n".join(found + [f"{len(files)} files, {len(found)} complaints"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
