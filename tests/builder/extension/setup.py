# SPDX-License-Identifier: Apache-2.0
"""A small extension of torch that behaves like the large ones: it looks for a ready wheel on the network first, takes
the architectures from nobody, drops CXXFLAGS, says nothing about the C++ ABI, and has one file that takes as much
memory as HUNGRY_MEGABYTES says."""

import os
import sys
import urllib.error
import urllib.request

from packaging.version import parse  # noqa: F401  (as the large ones do: missing under build isolation)
from setuptools import setup
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension
from wheel.bdist_wheel import bdist_wheel

import torch

NAME = "hungry_extension"
FORCE_BUILD = os.environ.get("HUNGRY_FORCE_BUILD", "FALSE") == "TRUE"
SKIP_BUILD = os.environ.get("HUNGRY_SKIP_BUILD", "FALSE") == "TRUE"
WITH_CUDA = os.environ.get("HUNGRY_CUDA", "TRUE") == "TRUE" and torch.version.cuda is not None and CUDA_HOME is not None

for variable in ("CXXFLAGS", "CFLAGS", "CPPFLAGS"):
    os.environ.pop(variable, None)


def pieces():
    """Host files that each take a moment; the number is a switch, so that a test has something to interrupt."""
    folder = os.path.join("csrc", "pieces")
    os.makedirs(folder, exist_ok=True)
    names = []
    for number in range(int(os.environ.get("HUNGRY_PIECES", "0"))):
        path = os.path.join(folder, f"piece{number}.cpp")
        text = f'#include "../hungry.h"\nint piece{number}() {{ return {number}; }}\n'
        if not os.path.exists(path) or open(path).read() != text:
            with open(path, "w") as file:
                file.write(text)
        names.append(path)
    return names


def extensions():
    if SKIP_BUILD:
        return []
    hungry = int(os.environ.get("HUNGRY_MEGABYTES", "0"))
    host = [] if not hungry else [f"-DHUNGRY_MEGABYTES={hungry}"]
    common = ["csrc/module.cpp", "csrc/hungry.cpp", *pieces()]
    if not WITH_CUDA:
        return [CppExtension(f"{NAME}._C", common, extra_compile_args={"cxx": ["-O0", *host]})]
    device = ["-O1", "-gencode", "arch=compute_75,code=sm_75", "-gencode=arch=compute_80,code=sm_80", *host]
    return [
        CUDAExtension(
            f"{NAME}._C",
            [*common, "csrc/add.cu", "csrc/scale.cu"],
            extra_compile_args={"cxx": ["-O0", "-DWITH_CUDA", *host], "nvcc": device},
        )
    ]


class DownloadOrBuild(bdist_wheel):
    def run(self):
        if FORCE_BUILD:
            return super().run()
        try:
            url = os.environ.get("HUNGRY_WHEEL_URL", "http://localhost:9/hungry_extension.whl")
            print("looking for a ready wheel:", url, flush=True)
            os.makedirs(self.dist_dir, exist_ok=True)
            tag = "-".join(self.get_tag())
            path = os.path.join(self.dist_dir, f"{NAME}-1.0-{tag}.whl")
            urllib.request.urlretrieve(url, path)
            print("took the ready wheel", flush=True)
        except (urllib.error.HTTPError, urllib.error.URLError):
            print("no ready wheel; building from source", file=sys.stderr, flush=True)
            super().run()


setup(
    name=NAME,
    version="1.0",
    packages=[NAME],
    ext_modules=extensions(),
    cmdclass={"bdist_wheel": DownloadOrBuild, "build_ext": BuildExtension},
)
