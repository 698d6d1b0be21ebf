# SPDX-License-Identifier: Apache-2.0
"""What this process computes with: devices, and the threads of the CPU backend."""

import sys
from typing import Any, List, Tuple

from .errors import InvalidArgument


def _library() -> Any:
    from ._library import load  # not before it is needed: ctypes is half of the time of `import mica`
    return load()


def _backend(name: str) -> Tuple[Any, int]:
    """The library and the number of a backend."""
    if name not in ("cpu", "cuda"):
        raise InvalidArgument(f"backend is {name!r}, want 'cpu' or 'cuda'")
    from . import _abi
    return _library(), _abi.CPU if name == "cpu" else _abi.CUDA


def devices(backend: str = "cuda") -> List[str]:
    """A line about each device of a backend ('cpu' or 'cuda'); empty where there is none: why_no_devices says why."""
    library, number = _backend(backend)
    return [library.describe_device(number, ordinal) for ordinal in range(library.device_count(number))]


def why_no_devices(backend: str = "cuda") -> str:
    """Why `devices` is empty, and what would help; "" where it is not."""
    library, number = _backend(backend)
    return "" if library.device_count(number) else library.c.mica_last_error().decode(errors="replace")


def set_num_threads(num_threads: int) -> None:
    """Threads of the CPU backend, for all calls from now on; 0: as many as the process may use."""
    if isinstance(num_threads, bool) or not hasattr(num_threads, "__index__") or not 0 <= num_threads <= 1024:
        raise InvalidArgument(f"num_threads is {num_threads!r}, want 0 (all) to 1024")
    _library().set_num_threads(int(num_threads))
    # A plan keeps the number it was made with.
    for name in ("mica._caller", "mica._array_face"):
        module = sys.modules.get(name)
        if module is not None:
            module.forget_plans()


def get_num_threads() -> int:
    """Threads of the CPU backend: as set, else torch's where torch is in use, else OMP_NUM_THREADS', else all."""
    library = _library()
    if "mica._caller" in sys.modules:
        library.follow_num_threads(sys.modules["torch"].get_num_threads())
    threads: int = library.num_threads()
    return threads
