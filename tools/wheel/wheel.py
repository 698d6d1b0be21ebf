#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs wheels from what is built, and checks them.

  wheel.py --build build-x86_64 --tag manylinux2014_x86_64   the distribution mica-attention, from a CMake build folder
  wheel.py --pure python/flash_attn                     a distribution of Python files alone

The rules of packing stand in each pyproject.toml; the same ones serve `pip install .`. The result lies in --out
(default out/wheels) and is the same, byte for byte, for the same files and the same SOURCE_DATE_EPOCH (default: the
time of the last commit).
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

import wheel_check

ROOT = pathlib.Path(__file__).resolve().parents[2]
STAGE = ROOT / "out" / "wheel-stage"  # as in pyproject.toml


def last_commit_time():
    log = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True)
    return log.stdout.strip() or "315532800"  # 1980, where zip's calendar begins


def stage(build):
    """The compiled files of the wheel, as the build installs them."""
    shutil.rmtree(STAGE, ignore_errors=True)
    command = ["cmake", "--install", str(build), "--component", "wheel", "--prefix", str(STAGE)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def pack(project, out, environment, settings=()):
    """Runs the project's own build backend; returns the wheel."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", str(project), "--quiet"]
        command += ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder]
        for setting in settings:
            command += ["--config-settings", setting]
        subprocess.run(command, check=True, env={**os.environ, **environment})
        (made,) = pathlib.Path(folder).glob("*.whl")
        out.mkdir(parents=True, exist_ok=True)
        return sort_members(made, out / made.name)


def remove_leftovers(project):
    """setuptools builds inside the project, and would pack a file that has since been deleted there."""
    for folder in (project / "build", *project.glob("*.egg-info")):
        shutil.rmtree(folder, ignore_errors=True)


def sort_members(made, path):
    """The backend writes some members in the order of the file system; RECORD stays last, as the format advises."""
    with zipfile.ZipFile(made) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target:
        for info in sorted(source.infolist(), key=lambda info: (info.filename.endswith("/RECORD"), info.filename)):
            target.writestr(info, source.read(info), compresslevel=9)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--build", type=pathlib.Path, help="a CMake build folder with the library and the command")
    what.add_argument("--pure", type=pathlib.Path, help="a folder with a pyproject.toml")
    parser.add_argument("--tag", help="the platform that the compiled files are for, as in manylinux2014_x86_64")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out" / "wheels", help="where wheels are written")
    arguments = parser.parse_args()
    if arguments.build and not arguments.tag:
        parser.error("--build wants --tag")

    environment = {"SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH") or last_commit_time()}
    if arguments.build:
        stage(arguments.build)
        environment["MICA_WHEEL_STAGED"] = "1"
        made = pack(ROOT, arguments.out, environment, [f"wheel.tags=py3-none-{arguments.tag}"])
    else:
        remove_leftovers(arguments.pure)
        made = pack(arguments.pure, arguments.out, environment)
        remove_leftovers(arguments.pure)
    return wheel_check.main([made])


if __name__ == "__main__":
    sys.exit(main())
