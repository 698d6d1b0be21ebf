#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks finished wheels: names, tags, RECORD, METADATA, and what their ELF files need.

Usage: wheel_check.py WHEEL... Needs nm and readelf (binutils). Exit status 1 on any complaint.
"""

import base64
import csv
import email.parser
import hashlib
import itertools
import pathlib
import re
import stat
import sys
import tempfile
import zipfile

TOOLS = pathlib.Path(__file__).resolve().parent.parent
sys.path += [str(TOOLS / "check"), str(TOOLS / "build")]
import check_symbols  # noqa: E402
import wheel_bytes  # noqa: E402

# What the manylinux2014 tag promises (PEP 599).
GLIBC = (2, 17)
MACHINES = {"x86_64": 62, "aarch64": 183}
NAME = re.compile(r"(?P<name>\w+)-(?P<version>[\w.+!]+)-(?P<python>[\w.]+)-(?P<abi>[\w.]+)-(?P<platform>[\w.]+)\.whl")
# Of the distribution mica-attention.
LIBRARY, COMMAND = "mica/lib/libmica.so.0", "mica/bin/mica"


class Wheel:
    def __init__(self, path):
        self.path = path
        self.archive = zipfile.ZipFile(path)
        self.names = self.archive.namelist()
        found = NAME.fullmatch(path.name)
        if not found:
            raise SystemExit(f"{path.name}: not a wheel's name")
        self.__dict__.update(found.groupdict())
        self.dist_info = f"{self.name}-{self.version}.dist-info"
        self.machine = next((machine for machine in MACHINES if self.platform.endswith(machine)), None)

    def message(self, name):
        return email.parser.Parser().parsestr(self.archive.read(f"{self.dist_info}/{name}").decode())

    def elf_files(self):
        return [name for name in self.names if self.archive.open(name).read(4) == b"\x7fELF"]


def check_names(wheel):
    for name in wheel.names:
        if name.startswith("/") or ".." in name.split("/") or "\\" in name:
            yield f"holds a file outside of it: {name}"
        if name.endswith((".pyc", ".pyo")) or "__pycache__" in name:
            yield f"holds a compiled file: {name}"
    if len(set(wheel.names)) != len(wheel.names):
        yield "holds a file twice"
    top = {name.split("/")[0] for name in wheel.names if "/" in name}
    for name in sorted(top):
        if name.endswith((".dist-info", ".data")) and not name.startswith(f"{wheel.name}-{wheel.version}."):
            yield f"holds {name}, want {wheel.name}-{wheel.version}"
    if len({info.date_time for info in wheel.archive.infolist()}) != 1:
        yield "its files have several times: it cannot be made again"


def check_metadata(wheel):
    metadata, tags = wheel.message("METADATA"), wheel.message("WHEEL").get_all("Tag")
    if re.sub(r"[-_.]+", "_", metadata["Name"]).lower() != wheel.name or metadata["Version"] != wheel.version:
        yield f"METADATA says {metadata['Name']} {metadata['Version']}, the file's name {wheel.name} {wheel.version}"
    if metadata["Requires-Python"] != ">=3.9":
        yield f"Requires-Python is {metadata['Requires-Python']}, want >=3.9"
    parts = (wheel.python.split("."), wheel.abi.split("."), wheel.platform.split("."))
    expanded = ["-".join(tag) for tag in itertools.product(*parts)]
    if sorted(tags) != sorted(expanded):
        yield f"WHEEL has the tags {tags}, the file's name {expanded}"
    if (wheel.message("WHEEL")["Root-Is-Purelib"] == "true") != (wheel.platform == "any"):
        yield "Root-Is-Purelib does not fit the platform"
    for text in ("LICENSE", "NOTICE"):
        if not any(name.startswith(wheel.dist_info) and name.endswith("/" + text) for name in wheel.names):
            yield f"holds no {text}"


def check_record(wheel):
    record = f"{wheel.dist_info}/RECORD"
    rows = {row[0]: row[1:] for row in csv.reader(wheel.archive.read(record).decode().splitlines())}
    for name in sorted(set(wheel.names) ^ set(rows)):
        yield f"{name} is not in both, the archive and RECORD"
    for name in sorted(set(wheel.names) & set(rows) - {record}):
        data = wheel.archive.read(name)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        if rows[name] != [f"sha256={digest}", str(len(data))]:
            yield f"RECORD has {rows[name]} for {name}, want sha256={digest} and {len(data)}"


def check_elf(wheel, name, folder):
    """One ELF file: for the right machine, stripped, needing nothing that may be absent."""
    path = pathlib.Path(wheel.archive.extract(name, folder))
    machine = int.from_bytes(path.read_bytes()[18:20], "little")
    if MACHINES.get(wheel.machine) != machine:
        yield f"is for ELF machine {machine}, but the tag is {wheel.platform}"
    if name == LIBRARY:
        yield from check_symbols.check_library(path)
    else:
        yield from check_symbols.check_program(path, own=[pathlib.Path(LIBRARY).name])
        if not stat.S_IMODE(wheel.archive.getinfo(name).external_attr >> 16) & 0o111:
            yield "is not executable"
    if wheel.platform.startswith("manylinux"):
        yield from check_symbols.check_glibc(path, GLIBC)
        if " .symtab " in check_symbols.output_of("readelf", "-W", "-S", path):
            yield "is not stripped"


def check_content(wheel):
    """The distribution mica-attention: all its compiled parts, no need of another distribution."""
    if wheel.name != "mica_attention":
        for name in wheel.elf_files():
            yield f"holds an ELF file: {name}"
        return
    launcher = f"{wheel.name}-{wheel.version}.data/scripts/mica"
    for name in (LIBRARY, COMMAND, launcher):
        if name not in wheel.names:
            yield f"holds no {name}"
    for needed in wheel.message("METADATA").get_all("Requires-Dist") or []:
        if "extra ==" not in needed:
            yield f"requires {needed}, want nothing"
    with tempfile.TemporaryDirectory() as folder:
        for name in wheel.elf_files():
            if name not in (LIBRARY, COMMAND, launcher):
                yield f"holds an unexpected ELF file: {name}"
            yield from (f"{name} {complaint}" for complaint in check_elf(wheel, name, folder))


def complaints(path):
    wheel = Wheel(path)
    if path.stat().st_size > wheel_bytes.WHEEL:
        yield f"has {path.stat().st_size} bytes, want at most {wheel_bytes.WHEEL}"
    for check in (check_names, check_metadata, check_record, check_content):
        yield from check(wheel)


def main(paths):
    failed = False
    for path in map(pathlib.Path, paths):
        found = list(complaints(path))
        failed |= bool(found)
        print(*(f"{path.name}: {complaint}" for complaint in found), sep="\n", end="\n" if found else "")
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, {len(Wheel(path).names)} files, {len(found)} complaints")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
