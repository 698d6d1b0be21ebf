# SPDX-License-Identifier: Apache-2.0
"""Mica: exact attention on CPUs and NVIDIA GPUs. Importing it opens no library and imports neither torch nor NumPy."""

from .errors import Error, InvalidArgument, NoDevice, OutOfMemory, Unsupported
from .functions import attention, attention_varlen, attention_with_cache
from .runtime import devices, get_num_threads, set_num_threads, why_no_devices

__all__ = ["attention", "attention_varlen", "attention_with_cache", "devices", "why_no_devices", "get_num_threads",
           "set_num_threads", "Error", "InvalidArgument", "NoDevice", "OutOfMemory", "Unsupported"]


def __getattr__(name: str) -> str:
    if name == "__version__":
        from ._library import load
        return load().version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
