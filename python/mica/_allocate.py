# SPDX-License-Identifier: Apache-2.0
"""New tensors at the least cost: a function per layout, made once and called for every result and workspace.

They come from torch's allocators, so that its rules about streams and graphs hold. What torch.compile's own code
allocates with skips the dispatcher, a third of the time of torch.empty_like; where a PyTorch lacks it, empty_like of a
tensor of one element's memory serves, which is half the time of torch.empty with all its arguments.
"""

import ctypes
import mmap
import threading
from functools import lru_cache, partial
from typing import Any, Callable, Sequence

import torch
from torch import Tensor

from ._describe import dense_strides

KEPT_BYTES = 32 << 20  # the CPU's workspace up to this size is kept per thread; pages that no call touched cost nothing
_guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)


@lru_cache(maxsize=None)
def _one_element(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(1, dtype=dtype, device=device)


def _by_template(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype,
                 device: torch.device) -> Callable[[], Tensor]:
    if tuple(stride) == dense_strides(tuple(shape)):
        return partial(torch.empty_like, _one_element(dtype, device).expand(tuple(shape)))
    return partial(torch.empty_strided, tuple(shape), tuple(stride), dtype=dtype, device=device)


def maker(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype,
          device: torch.device) -> Callable[[], Tensor]:
    """A function that allocates such a tensor."""
    direct = getattr(_guards, f"_empty_strided_{device.type}", None)
    if direct is None:
        return _by_template(shape, stride, dtype, device)
    make: Callable[[], Tensor] = partial(direct, tuple(shape), tuple(stride), dtype)
    if device.type != "cuda" or torch.cuda.device_count() == 1:
        return make
    # It allocates on the current GPU, which may be another one.
    elsewhere, current, ordinal = _by_template(shape, stride, dtype, device), torch._C._cuda_getDevice, device.index
    return lambda: make() if current() == ordinal else elsewhere()


class _Kept(threading.local):
    """A thread's own workspace. NOTE: no tensor: one made while something traces would be a fake one, for good."""

    def __init__(self) -> None:
        # Private, so that a child of fork has its own; whole pages, so that it is aligned.
        self._memory = mmap.mmap(-1, KEPT_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def data_ptr(self) -> int:
        return self._address


_kept = _Kept()


def _kept_workspace() -> _Kept:
    return _kept


def filled(make: Callable[[], Tensor], value: float) -> Callable[[], Tensor]:
    """A function that allocates such a tensor and fills it."""
    return lambda: make().fill_(value)


def workspace_maker(size: int, device: torch.device) -> Callable[[], Any]:
    """A function that gives so many bytes, for one call: on the CPU the thread's own, where it suffices."""
    if device.type == "cpu" and size <= KEPT_BYTES:
        return _kept_workspace
    return maker((size,), (1,), torch.uint8, device)
