#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A compiler from a folder that is a channel of conda: unpacked without conda, and a build by it where no other is to be seen.

Usage: conda_channel_test.py MICA [unittest arguments]. What compiles wants a Python with torch."""

import importlib.util
import io
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
READER = HERE.parent.parent.parent / "src/builder/run/toolchain/conda.py"
EXTENSION = HERE.parent / "extension"
PLACE = "linux-64" if platform.machine() == "x86_64" else "linux-" + platform.machine()
PREFIX = "/home/conda/feedstock_root/placeholder_placehold_placehold_placehold_placehold_placehold_placehold_placehold"
MICA = None


class ChannelFolder:
    """Writes packages and the repodata.json that lists them."""

    def __init__(self, folder):
        self.folder = folder / PLACE
        self.folder.mkdir(parents=True)
        self.data = {"packages": {}, "packages.conda": {}}

    def add(self, name, version, files, depends=(), kind=".tar.bz2", prefixed=()):
        """`files`: path to text; those of `prefixed` hold PREFIX, each with its kind (text, binary)."""
        files = {**files, "info/index.json": json.dumps({"name": name, "version": version})}
        if prefixed:
            files["info/has_prefix"] = "".join(f"{PREFIX} {how} {path}\n" for path, how in prefixed)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w" if kind == ".conda" else "w:bz2") as archive:
            for path, text in files.items():
                content = text if isinstance(text, bytes) else text.encode()
                entry = tarfile.TarInfo(path)
                entry.size, entry.mode = len(content), 0o755
                archive.addfile(entry, io.BytesIO(content))
        file = self.folder / f"{name}-{version}-0{kind}"
        if kind == ".conda":
            plain = subprocess.run(["zstd", "-qc"], input=packed.getvalue(), stdout=subprocess.PIPE, check=True).stdout
            with zipfile.ZipFile(file, "w") as package:
                package.writestr(f"pkg-{name}-{version}-0.tar.zst", plain)
        else:
            file.write_bytes(packed.getvalue())
        key = "packages.conda" if kind == ".conda" else "packages"
        self.data[key][file.name] = {"name": name, "version": version, "build_number": 0, "depends": list(depends)}
        (self.folder / "repodata.json").write_text(json.dumps(self.data))


class Channel(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="mica-conda-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.channel = ChannelFolder(self.folder / "channel")

    def unpack(self, package, major, out="out"):
        words = [sys.executable, READER, self.folder / "channel", PLACE, package, major, self.folder / out]
        return subprocess.run(list(map(str, words)), capture_output=True, text=True)

    def test_newest_that_fits_with_what_it_depends_on(self):
        self.channel.add("gxx_impl", "11.4.0", {"bin/g++": "11"}, ["gcc_impl 11.4.0", "__glibc >=2.17"])
        self.channel.add("gxx_impl", "13.2.0", {"bin/g++": "13"}, ["gcc_impl 13.2.0"])
        self.channel.add("gcc_impl", "11.4.0", {"bin/gcc": "11"}, ["sysroot 2.17.*"])
        self.channel.add("gcc_impl", "13.2.0", {"bin/gcc": "13"}, ["sysroot ~=2.17"])  # a wish that is not read passes
        self.channel.add("sysroot", "2.17.1", {"sysroot/version": "2.17"})
        self.channel.add("sysroot", "2.28.1", {"sysroot/version": "2.28"})
        result = self.unpack("gxx_impl", 12)
        self.assertEqual(result.returncode, 0, result.stderr)
        out = self.folder / "out"
        self.assertEqual([(out / name).read_text() for name in ("bin/g++", "bin/gcc", "sysroot/version")],
                         ["11", "11", "2.17"])
        self.assertEqual(self.unpack("gxx_impl", 0).returncode, 0)
        missing = self.unpack("gxx_impl", 9)
        self.assertNotEqual(missing.returncode, 0)
        self.assertIn("the channel has no gxx_impl <10", missing.stderr)

    def test_the_folder_takes_the_placeholders_place(self):
        kinds = [".tar.bz2"] + ([".conda"] if shutil.which("zstd") else [])
        for kind in kinds:
            name = "tool" + kind.strip(".").replace(".", "")
            self.channel.add(name, "1.0", {f"bin/{name}": f"#!{PREFIX}/bin/sh\n",
                                           f"lib/{name}.bin": PREFIX.encode() + b"/lib/x\0rest"},
                             kind=kind, prefixed=[(f"bin/{name}", "text"), (f"lib/{name}.bin", "binary")])
            result = self.unpack(name, 0)
            self.assertEqual(result.returncode, 0, result.stderr)
            out = (self.folder / "out").resolve()
            self.assertEqual((out / f"bin/{name}").read_text(), f"#!{out}/bin/sh\n")
            binary = (out / f"lib/{name}.bin").read_bytes()
            self.assertTrue(binary.startswith(f"{out}/lib/x\0".encode()), binary)
            self.assertEqual(len(binary), len(PREFIX) + len("/lib/x\0rest"), "a binary's strings keep their length")

    def test_a_folder_that_is_too_long_for_a_binary_is_refused(self):
        self.channel.add("tool", "1.0", {"lib/tool": PREFIX.encode() + b"/lib\0rest"}, prefixed=[("lib/tool", "binary")])
        result = self.unpack("tool", 0, "long" * 50)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("give a shorter --work DIR", result.stderr)

    def test_a_package_that_writes_elsewhere_is_refused(self):
        self.channel.add("evil", "1.0", {"../../outside": "x"})
        result = self.unpack("evil", 0)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("would be written outside of the folder", result.stderr)
        self.assertFalse((self.folder / "outside").exists())

    @unittest.skipUnless(importlib.util.find_spec("torch"), "torch is not in this Python")
    def test_a_build_by_the_channels_compiler(self):
        """Its compiler is the system's under conda's name: what is tried is the way to it, and that no other is there."""
        real = {name: shutil.which(name) for name in ("gcc", "g++")}
        if not all(real.values()):
            self.skipTest("no gcc is here that could stand for conda's")
        machine = platform.machine()
        major = subprocess.run(["g++", "-dumpversion"], capture_output=True, text=True).stdout.strip().split(".")[0]
        self.channel.add(f"gxx_impl_{PLACE}", f"{major}.0.0", {
            f"bin/{machine}-conda-linux-gnu-{name}": f'#!/bin/sh\necho "{name} $*" >>{self.folder}/calls\nPATH=/usr/bin:/bin exec {path} "$@"\n'
            for name, path in real.items()})
        source = self.folder / "extension"
        shutil.copytree(EXTENSION, source, ignore=shutil.ignore_patterns("*.cu", "build", "*.egg-info"))
        programs = self.folder / "programs"
        programs.mkdir()
        for folder in ("/usr/bin", "/bin"):
            for path in pathlib.Path(folder).iterdir():
                is_compiler = any(word in path.name for word in ("gcc", "g++", "c++", "clang")) or path.name in ("cc", "nvcc")
                if not is_compiler and not (programs / path.name).exists():
                    (programs / path.name).symlink_to(path)
        environment = {"PATH": str(programs), "HOME": str(self.folder), "HUNGRY_CUDA": "FALSE", "LANG": "C.UTF-8",
                       **{k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_"))}}
        words = [MICA, "build", source, "--python", sys.executable, "--work", self.folder / "work", "--out",
                 self.folder / "dist", "--conda-channel", self.folder / "channel", "--jobs", "1"]
        result = subprocess.run(list(map(str, words)), capture_output=True, text=True, env=environment)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("the channel " + str(self.folder / "channel"), result.stdout)
        self.assertEqual(len(list((self.folder / "dist").glob("*.whl"))), 1)
        self.assertIn("hungry", (self.folder / "calls").read_text())


if __name__ == "__main__":
    MICA = sys.argv[1]
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
