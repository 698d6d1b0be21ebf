#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks who includes whom against the table of docs/architecture.md ("Who may include whom").

Usage: check_layers.py [root]. Prints one line per forbidden include; exit status 1 if there is any.
"""

import pathlib
import re
import sys

INTERFACE = "include/mica/"
# Room (the longest prefix of the path decides) -> what its files may include: folders end in "/", else one file.
ROOMS = {
    "include/mica/": [INTERFACE],
    "include/mica/enums.h": [],
    "src/core/": ["include/mica/enums.h", "src/core/"],
    "src/base/": [INTERFACE, "src/core/", "src/base/"],
    "src/api/": [INTERFACE, "src/core/", "src/base/", "src/api/", "src/cpu/cpu.h", "src/cuda/cuda.h"],
    "src/cpu/": [INTERFACE, "src/core/", "src/base/", "src/cpu/"],
    "src/cuda/": [INTERFACE, "src/core/", "src/base/", "src/cuda/"],
    "src/cuda/kernels/": ["include/mica/enums.h", "src/core/", "src/cuda/device/", "src/cuda/kernels/"],
    "src/cuda/device/": ["src/core/types.h", "src/cuda/device/"],
    "src/cuda/device/attend.cuh": [
        "src/core/types.h",
        "src/core/mask.h",
        "src/core/score.h",
        "src/core/softmax.h",
        "src/cuda/device/",
    ],
    # What the options of a call do to a fragment, and which rows a tile packs: these read the call's parameters.
    "src/cuda/device/features.cuh": ["src/core/", "src/cuda/device/", "src/cuda/kernels/params.h"],
    "src/cuda/device/pairs.cuh": ["src/core/", "src/cuda/device/", "src/cuda/kernels/params.h"],
    "src/cuda/device/tma.cuh": ["src/core/types.h", "src/cuda/device/", "src/cuda/kernels/tensor_map.h"],
    "src/conformance/": [INTERFACE, "src/conformance/"],
    "src/doctor/": ["src/doctor/"],
    "src/builder/": ["src/doctor/", "src/builder/"],
    "cli/": [INTERFACE, "src/doctor/", "src/builder/", "src/conformance/", "cli/"],
    "bench/": [INTERFACE, "bench/"],
    "python/": [INTERFACE, "python/"],
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
    "commit.h": "cli/commit.h",
    "default_suite.h": "cli/default_suite.h",
    "builder_driver.h": "src/builder/builder_driver.h",
}
SUFFIXES = {".h", ".hpp", ".c", ".cc", ".inc", ".cu", ".cuh", ".def"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def room_of(path):
    return max((room for room in ROOMS if path == room or (room.endswith("/") and path.startswith(room))), key=len)


def resolve(root, file, name):
    """The project's file that an include names, relative to the root; None if it is not of the project."""
    if name in GENERATED:
        return GENERATED[name]
    for folder in (file.parent, *(root / start for start in INCLUDE_ROOTS)):
        if (folder / name).is_file():
            return (folder / name).resolve().relative_to(root).as_posix()
    # Not there (yet): judged by where it would be.
    return f"src/{name}" if f"src/{name.split('/')[0]}/" in ROOMS else None


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
        elif not any(target == may or (may.endswith("/") and target.startswith(may)) for may in ROOMS[room]):
            yield f"{path}:{number}: {target}: {room} may include only {', '.join(ROOMS[room]) or 'nothing'}"
        elif room == "src/cuda/" and (target.endswith(".cuh") or target.startswith("src/cuda/device/")):
            yield f"{path}:{number}: {target}: host code reads no device code"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    tops = sorted({room.split("/")[0] for room in ROOMS})
    files = [file for top in tops for file in sorted((root / top).rglob("*")) if file.suffix in SUFFIXES]
    found = [complaint for file in files for complaint in complaints(root, file)]
    print("\n".join(found + [f"{len(files)} files, {len(found)} forbidden includes"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
