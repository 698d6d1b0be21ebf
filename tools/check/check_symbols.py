#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks a built libmica: what it exports, needs and promises the loader; and that no instruction set leaks.

Usage: check_symbols.py libmica.so [isa_<name>.o ...]. Needs nm and readelf (binutils). Exit status 1 on any complaint.
"""

import pathlib
import re
import subprocess
import sys

# libc and its parts (in one piece since glibc 2.34, apart before), and the loader.
MAY_NEED = re.compile(r"^(lib(c|m|pthread|dl|rt)\.so\.\d+|ld-linux[\w.-]*\.so\.\d+)$")


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def check_needs(dynamic, own=()):
    """Which libraries it asks the loader for; `own`: names that come along with it."""
    for needed in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
        if not MAY_NEED.match(needed) and needed not in own:
            yield f"needs {needed}, want libc and its parts only"


def check_glibc(path, highest):
    """No symbol of a C library newer than `highest`, as in (2, 17)."""
    for name in sorted(set(re.findall(r"Name: (GLIBC_[\w.]+)", output_of("readelf", "-W", "-V", path)))):
        version = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", name)
        if not version or (int(version.group(1)), int(version.group(2))) > highest:
            yield f"needs {name}, want at most GLIBC_{highest[0]}.{highest[1]}"


def check_program(path, own):
    """A command that is shipped: finds its own libraries beside itself, and only there."""
    dynamic = output_of("readelf", "-W", "-d", path)
    yield from check_needs(dynamic, own)
    for folder in ":".join(re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", dynamic)).split(":"):
        if folder and not folder.startswith("$ORIGIN/"):
            yield f"looks for libraries in {folder}, want folders below $ORIGIN only"
    yield from check_hardening(path, dynamic, want_now=False)


def check_library(path):
    for line in output_of("nm", "-D", "--defined-only", path).splitlines():
        kind, name = line.split()[-2:]
        if not name.split("@")[0].startswith("mica_"):
            yield f"exports {name} ({kind}), want mica_* only"

    dynamic = output_of("readelf", "-W", "-d", path)
    yield from check_needs(dynamic)
    if not re.search(r"\(SONAME\).*\[libmica\.so\.\d+\]", dynamic):
        yield "has no soname libmica.so.<major>"
    for tag in ("RPATH", "RUNPATH"):
        if f"({tag})" in dynamic:
            yield f"has {tag}"
    yield from check_hardening(path, dynamic)


def check_hardening(path, dynamic, want_now=True):
    if "(TEXTREL)" in dynamic:
        yield "has TEXTREL"
    if want_now and not re.search(r"\(FLAGS\).*BIND_NOW|\(FLAGS_1\).*NOW|\(BIND_NOW\)", dynamic):
        yield "is not linked with -z now"

    segments = output_of("readelf", "-W", "-l", path)
    if "GNU_RELRO" not in segments:
        yield "is not linked with -z relro"
    stack = re.search(r"GNU_STACK.*", segments)
    if not stack or re.search(r"\bR?WE\b", stack.group(0)):
        yield "has an executable stack"


def check_isa_object(path):
    """A weak symbol is shared by all objects that have it: one compiled for AVX-512 could serve the whole program.

    Only symbols whose name carries the instruction set's own namespace are safe from that.
    """
    isa = re.match(r"(?:isa_)?(\w+?)\.", path.name).group(1)
    namespace = f"mica_{isa}"
    own = f"{len(namespace)}{namespace}"  # as it stands in a mangled name
    for line in output_of("nm", "--defined-only", path).splitlines():
        kind, name = line.split()[-2:]
        if kind in "WVu" and own not in name:
            readable = output_of("c++filt", name).strip()
            yield f"defines the weak symbol {readable} outside namespace {namespace}"


def main():
    library, *objects = map(pathlib.Path, sys.argv[1:])
    found = [f"{library.name} {complaint}" for complaint in check_library(library)]
    for path in objects:
        found += [f"{path.name} {complaint}" for complaint in check_isa_object(path)]
    exported = len(output_of("nm", "-D", "--defined-only", library).splitlines())
    print("\n".join(found + [f"{exported} exports, {len(objects)} instruction sets, {len(found)} complaints"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
