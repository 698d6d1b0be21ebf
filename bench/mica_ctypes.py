# SPDX-License-Identifier: Apache-2.0
"""The C interface for the benchmarks: the Python package's own face of it, beside a path that may be given."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python"))

from mica import _library  # noqa: E402
from mica._abi import *  # noqa: E402,F403
from mica._abi import CAUSAL_BOTTOM_RIGHT, CAUSAL_NONE, CAUSAL_TOP_LEFT, Tensor  # noqa: E402
from mica.errors import Error  # noqa: E402,F401

CAUSAL = {"none": CAUSAL_NONE, "bottom-right": CAUSAL_BOTTOM_RIGHT, "top-left": CAUSAL_TOP_LEFT}


def find_library(path=None):
    """The path that was given, or the library of the build tree or bundle that this folder lies in."""
    return os.path.abspath(path) if path else _library.find()


class Library(_library.Library):
    def __init__(self, path=None):
        super().__init__(find_library(path))


def dense(dtype, shape, alignment=0):
    """A dense tensor; missing axes are 1."""
    t = Tensor(dtype=dtype, alignment=alignment)
    shape = list(shape) + [1] * (4 - len(shape))
    stride = 1
    for axis in (3, 2, 1, 0):
        t.shape[axis], t.stride[axis] = shape[axis], stride
        stride *= shape[axis]
    return t
