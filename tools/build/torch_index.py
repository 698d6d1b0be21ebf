#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the options of pip with which PyTorch comes without CUDA, a tenth of the size: its own index has such builds.

Nothing on a machine with a GPU, and where that index cannot be reached."""

import shutil
import urllib.request

INDEX = "https://download.pytorch.org/whl/cpu"


def options():
    if shutil.which("nvidia-smi"):
        return []
    try:
        urllib.request.urlopen(INDEX + "/torch/", timeout=5).close()
    except OSError:
        return []
    return ["--extra-index-url", INDEX]


if __name__ == "__main__":
    print(*options())
