# SPDX-License-Identifier: Apache-2.0
"""A stand-in for flash-attn that compiles in seconds and goes wrong as the real one does: it imports packaging and torch before
anybody can say what it needs, looks for a ready wheel at an address that it guesses, and has files that take memory."""

import os
import urllib.error
import urllib.request

import torch
from packaging.version import parse
from setuptools import setup
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CUDAExtension
from wheel.bdist_wheel import bdist_wheel

FORCE_BUILD = os.environ.get("FLASH_ATTENTION_FORCE_BUILD", "FALSE") == "TRUE"
SKIP_BUILD = os.environ.get("FLASH_ATTENTION_SKIP_CUDA_BUILD", "FALSE") == "TRUE"
MEGABYTES = os.environ.get("FLASH_LIKE_MEGABYTES", "")  # of memory for each of four files


def pieces():
    """Files whose text the assembler repeats in its memory; nothing of it is left in the object."""
    names = []
    for number in range(4 if MEGABYTES else 0):
        names.append(os.path.join("csrc", f"piece{number}.cpp"))
        with open(names[-1], "w") as file:
            file.write(f'asm(".rept {MEGABYTES}*4096\\n.equ hungry, 12345678\\n.endr\\n");\nint piece{number}() {{ return 0; }}\n')
    return names


def extensions():
    if SKIP_BUILD:
        return []
    if CUDA_HOME is None:
        raise OSError("CUDA_HOME environment variable is not set. Please set it to your CUDA install root.")
    return [CUDAExtension("flash_attn_2_cuda", ["csrc/module.cpp", "csrc/kernel.cu", *pieces()],
                          extra_compile_args={"cxx": ["-O0"], "nvcc": ["-O1"]})]


class DownloadOrBuild(bdist_wheel):
    def run(self):
        if FORCE_BUILD:
            return super().run()
        name = f"flash_attn-9.9+cu{torch.version.cuda}torch{parse(torch.__version__).base_version}.whl"
        url = "http://localhost:9/" + name
        print("Guessing wheel URL: ", url, flush=True)
        try:
            urllib.request.urlretrieve(url, name)
        except (urllib.error.HTTPError, urllib.error.URLError):
            print("Precompiled wheel not found. Building from source...", flush=True)
            super().run()


setup(name="flash_attn", version="9.9", packages=["flash_attn"], ext_modules=extensions(),
      cmdclass={"bdist_wheel": DownloadOrBuild, "build_ext": BuildExtension})
