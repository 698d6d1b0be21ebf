# SPDX-License-Identifier: Apache-2.0
"""Finds and opens libmica.so and gives its functions Python types."""

import ctypes
import os
import threading
from ctypes import POINTER, byref, c_char_p, c_int32, c_size_t, c_uint32, c_void_p
from typing import List, Optional

from . import _abi, errors
from ._messages import in_python

ENVIRONMENT = "MICA_LIBRARY"
MOST_THREADS = 1024


def candidates() -> List[str]:
    """Where the library may lie: in the package, in the build folder of a source tree, beside a copied folder."""
    package = os.path.dirname(os.path.abspath(__file__))
    root = os.path.dirname(os.path.dirname(package))
    return [os.path.join(*parts) for parts in (
        (package, "lib", "libmica.so.0"), (package, "libmica.so"), (root, "build", "src", "libmica.so"),
        (root, "lib", "libmica.so"))]


def find() -> str:
    """The path of libmica.so: what MICA_LIBRARY says, else the first candidate that is there."""
    named = os.environ.get(ENVIRONMENT)
    if named:
        for path in (os.path.join(named, "libmica.so"), os.path.join(named, "libmica.so.0"), named):
            if os.path.isfile(path):
                return os.path.abspath(path)
        raise ImportError(f"{ENVIRONMENT} is {named}, want the path of libmica.so: there is no such file")
    for path in candidates():
        if os.path.exists(path):
            return path
    raise ImportError("libmica.so is not there; looked at " + ", ".join(candidates()) +
                      f". In a source tree run `make`; or set {ENVIRONMENT} to its path.")


class Library:
    """One opened libmica.so."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_num_threads_chosen = False
        self.c = c = ctypes.CDLL(path)
        c.mica_plan_create.argtypes = [POINTER(_abi.Attention), c_int32, POINTER(c_void_p)]
        c.mica_plan_destroy.argtypes, c.mica_plan_destroy.restype = [c_void_p], None
        c.mica_plan_workspace.argtypes, c.mica_plan_workspace.restype = [c_void_p], c_size_t
        c.mica_plan_kernel.argtypes, c.mica_plan_kernel.restype = [c_void_p], c_char_p
        c.mica_plan_splits.argtypes = [c_void_p]
        c.mica_execute.argtypes = [c_void_p, c_void_p]
        c.mica_last_error.restype = c_char_p
        c.mica_version.restype = c_char_p
        c.mica_abi_version.restype = c_uint32
        c.mica_device_count.argtypes = [c_int32]
        c.mica_device_description.argtypes, c.mica_device_description.restype = [_abi.Device], c_char_p
        c.mica_set_num_threads.argtypes = [c_int32]
        if c.mica_abi_version() != _abi.ABI_VERSION:
            raise ImportError(f"{path} has ABI {c.mica_abi_version()}, want {_abi.ABI_VERSION}")
        first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
        if first.isdigit() and int(first) > 0:
            self.follow_num_threads(int(first))

    def failure(self, status: int) -> errors.Error:
        """The exception for this thread's last failed call."""
        message = in_python(self.c.mica_last_error().decode(errors="replace"))
        return errors.OF_STATUS.get(status, errors.Error)(message)

    def check(self, status: int) -> None:
        if status:
            raise self.failure(status)

    def version(self) -> str:
        version: bytes = self.c.mica_version()
        return version.decode()

    def device_count(self, backend: int) -> int:
        count: int = self.c.mica_device_count(backend)
        return count

    def describe_device(self, backend: int, ordinal: int = 0) -> str:
        text: Optional[bytes] = self.c.mica_device_description(_abi.Device(backend, ordinal))
        if text is None:
            raise self.failure(_abi.ERROR_NO_DEVICE)
        return text.decode()

    def set_num_threads(self, threads: int) -> None:
        self.check(self.c.mica_set_num_threads(threads))
        self.is_num_threads_chosen = True

    def follow_num_threads(self, threads: int) -> None:
        """The number that another library was told, unless this one was told its own."""
        if not self.is_num_threads_chosen and self.num_threads() != threads:
            self.check(self.c.mica_set_num_threads(min(threads, MOST_THREADS)))

    def num_threads(self) -> int:
        threads: int = self.c.mica_get_num_threads()
        return threads

    def plan(self, attention: _abi.Attention, which: int) -> "Plan":
        return Plan(self, attention, which)


class Plan:
    """Owns a mica_plan. Any thread may execute it."""
    __slots__ = ("_library", "address", "workspace_bytes")

    def __init__(self, library: Library, attention: _abi.Attention, which: int) -> None:
        self._library, self.address = library, None
        plan = c_void_p()
        library.check(library.c.mica_plan_create(byref(attention), which, byref(plan)))
        self.address = plan.value
        self.workspace_bytes: int = library.c.mica_plan_workspace(plan)

    @property
    def kernel(self) -> str:
        name: bytes = self._library.c.mica_plan_kernel(self.address)
        return name.decode()

    @property
    def splits(self) -> int:
        splits: int = self._library.c.mica_plan_splits(self.address)
        return splits

    def execute(self, bindings: _abi.Bindings) -> None:
        self._library.check(self._library.c.mica_execute(self.address, ctypes.addressof(bindings)))

    def __del__(self) -> None:
        if self.address:
            self._library.c.mica_plan_destroy(self.address)


_lock = threading.Lock()
_loaded: Optional[Library] = None


def load() -> Library:
    """The process's library, opened at first use."""
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                _loaded = Library(find())
    return _loaded
