# SPDX-License-Identifier: Apache-2.0
"""What this process computes with: devices, and the threads of the CPU backend."""

import sys
from typing import List

from . import _abi
from ._library import load
from .errors import InvalidArgument

_BACKENDS = {"cpu": _abi.CPU, "cuda": _abi.CUDA}


def devices(backend: str = "cuda") -> List[str]:
    """A line about each device of a backend ('cpu' or 'cuda'); empty where there is none: why_no_devices says why."""
    number = _backend(backend)
    library = load()
    return [library.describe_device(number, ordinal) for ordinal in range(library.device_count(number))]


def why_no_devices(backend: str = "cuda") -> str:
    """Why `devices` is empty, and what would help; "" where it is not."""
    library = load()
    if library.device_count(_backend(backend)):
        return ""
    return library.c.mica_last_error().decode(errors="replace")


def _backend(name: str) -> int:
    if name not in _BACKENDS:
        raise InvalidArgument(f"backend is {name!r}, want 'cpu' or 'cuda'")
    return _BACKENDS[name]


def set_num_threads(num_threads: int) -> None:
    """Threads of the CPU backend, for all calls from now on; 0: as many as the process may use."""
    load().set_num_threads(num_threads)
    # A plan keeps the number it was made with.
    for name in ("mica._caller", "mica._array_face"):
        module = sys.modules.get(name)
        if module is not None:
            module.forget_plans()


def get_num_threads() -> int:
    """Threads of the CPU backend."""
    return load().num_threads()
