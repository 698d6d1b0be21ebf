# SPDX-License-Identifier: Apache-2.0
"""Packages of a folder that is a channel of conda, unpacked without conda: newest first, with what they depend on.

Usage: conda.py CHANNEL SUBDIR PACKAGE MAJOR FOLDER     MAJOR: the newest major version of PACKAGE that will do; 0: any
"""

import io
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile


def numbers(version):
    return [int(part) for part in re.findall(r"\d+", version)]


def fits(version, wish):
    """Whether a version meets conda's ">=12,<13", "12.3.*" or "12.3.0"; what it does not read, it lets pass."""
    for one in wish.split(","):
        operator, wanted = re.match(r"(>=|<=|==|>|<|!=|=)?(.*)", one).groups()
        if not wanted[:1].isalnum() or "|" in wanted:  # "*", "~=1.4"
            continue
        have, want = numbers(version), numbers(wanted)
        if operator in (None, "=", "==") and (wanted.endswith("*") or operator == "="):
            good = have[: len(want)] == want
        else:
            width = max(len(have), len(want))
            pair = have + [0] * (width - len(have)), want + [0] * (width - len(want))
            good = {">=": pair[0] >= pair[1], "<=": pair[0] <= pair[1], ">": pair[0] > pair[1], "<": pair[0] < pair[1],
                    "!=": pair[0] != pair[1]}.get(operator, pair[0] == pair[1])
        if not good:
            return False
    return True


class Channel:
    def __init__(self, folder, place):
        self.records = {}
        for subdir in (place, "noarch"):
            path = os.path.join(folder, subdir, "repodata.json")
            if not os.path.exists(path):
                continue
            with open(path) as file:
                data = json.load(file)
            for key in ("packages", "packages.conda"):
                for name, record in data.get(key, {}).items():
                    self.records.setdefault(record["name"], []).append((record, os.path.join(folder, subdir, name)))
        if not self.records:
            sys.exit(f"{folder}: no {place}/repodata.json with packages in it")

    def newest(self, name, wish):
        good = [r for r in self.records.get(name, []) if fits(r[0]["version"], wish) and os.path.exists(r[1])]
        if not good:
            sys.exit(f"the channel has no {name} {wish}")
        return max(good, key=lambda r: (numbers(r[0]["version"]), r[0].get("build_number", 0)))

    def closure(self, name, wish):
        chosen, waiting = {}, [(name, wish)]
        while waiting:
            name, wish = waiting.pop()
            if name in chosen or name.startswith("__"):  # "__glibc": a fact of the machine
                continue
            chosen[name] = self.newest(name, wish)
            for line in chosen[name][0].get("depends", []):
                words = line.split()
                waiting.append((words[0], words[1] if len(words) > 1 else "*"))
        return [path for _, path in chosen.values()]


def archives_of(path):
    """The archives inside a package: one of bzip2, or those of Zstandard in a .conda file."""
    if not path.endswith(".conda"):
        with tarfile.open(path) as archive:
            yield archive
        return
    with zipfile.ZipFile(path) as package:
        for name in package.namelist():
            if name.endswith(".tar.zst"):
                plain = subprocess.run(["zstd", "-dc"], input=package.read(name), stdout=subprocess.PIPE, check=True).stdout
                with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
                    yield archive


def unpack(path, folder):
    for archive in archives_of(path):
        for member in archive:
            target = os.path.realpath(os.path.join(folder, member.name))
            if not target.startswith(folder + os.sep):
                sys.exit(f"{path}: {member.name} would be written outside of the folder")
            archive.extract(member, folder)
    set_prefix(folder)


def set_prefix(folder):
    """The folder's own name, where the package's builder left a placeholder for it."""
    path = os.path.join(folder, "info", "has_prefix")
    if os.path.exists(path):
        with open(path) as file:
            lines = [line.split() for line in file if len(line.split()) == 3]
        for placeholder, kind, name in lines:
            name = os.path.join(folder, name)
            with open(name, "rb") as file:
                content = file.read()
            old, new = placeholder.encode(), folder.encode()
            if kind == "binary":  # its strings keep their length
                if len(new) > len(old):
                    sys.exit(f"{folder} has {len(new)} bytes and {name} room for {len(old)}: give a shorter --work DIR")
                content = re.sub(re.escape(old) + rb"([^\0]*)\0", lambda m: new + m.group(1) + b"\0" * (len(old) - len(new) + 1),
                                 content)
            else:
                content = content.replace(old, new)
            with open(name, "wb") as file:
                file.write(content)
        os.remove(path)


def main():
    channel, place, package, major, folder = sys.argv[1:]
    folder = os.path.realpath(folder)
    os.makedirs(folder, exist_ok=True)
    for path in Channel(channel, place).closure(package, f"<{int(major) + 1}" if int(major) else "*"):
        print("unpacking", os.path.basename(path), flush=True)
        unpack(path, folder)


if __name__ == "__main__":
    main()
