# SPDX-License-Identifier: Apache-2.0
"""Where an array of another library lies in memory: NumPy's by its attributes, any other by DLPack."""

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from typing import Any, NamedTuple, Optional, Tuple

from . import _abi
from ._describe import dense_strides
from .errors import InvalidArgument, NoDevice


class Located(NamedTuple):
    """An array in memory. Strides count elements; owner keeps the memory while this lives."""
    address: int
    dtype: Optional[int]  # None: none that the C interface knows
    dtype_name: str
    shape: Tuple[int, ...]
    stride: Tuple[int, ...]
    device: Tuple[int, int]  # backend, ordinal
    owner: Any


NAMES = {"float32": _abi.FP32, "float16": _abi.FP16, "bfloat16": _abi.BF16, "bool": _abi.BOOL, "int32": _abi.INT32}


class _DLTensor(Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32),
                ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16), ("shape", POINTER(c_int64)),
                ("strides", POINTER(c_int64)), ("byte_offset", c_uint64)]


# DLDataTypeCode and bits.
_DTYPES = {(2, 32): "float32", (2, 16): "float16", (4, 16): "bfloat16", (6, 8): "bool", (0, 32): "int32"}
_BACKENDS = {1: _abi.CPU, 3: _abi.CPU, 2: _abi.CUDA, 13: _abi.CUDA}  # DLDeviceType: CPU, pinned, CUDA, managed
_LEGACY_DEFAULT_STREAM = 1

_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.argtypes, _get_pointer.restype = [ctypes.py_object, c_char_p], c_void_p


def _locate_numpy(name: str, array: Any) -> Located:
    size = array.dtype.itemsize
    if any(stride % size for stride in array.strides):
        raise InvalidArgument(f"{name}.strides is {array.strides} bytes, want multiples of {size}")
    return Located(array.__array_interface__["data"][0], NAMES.get(array.dtype.name), array.dtype.name, array.shape,
                   tuple(stride // size for stride in array.strides), (_abi.CPU, 0), array)


def _locate_dlpack(name: str, array: Any) -> Located:
    kind, ordinal = (int(part) for part in array.__dlpack_device__())
    if kind not in _BACKENDS:
        raise NoDevice(f"{name} is on DLPack device type {kind}, want 1 (CPU) or 2 (CUDA)")
    backend = _BACKENDS[kind]
    capsule = array.__dlpack__(stream=_LEGACY_DEFAULT_STREAM) if backend == _abi.CUDA else array.__dlpack__()
    # Borrowed, not taken: the capsule frees what it holds when it dies.
    tensor = _DLTensor.from_address(_get_pointer(capsule, b"dltensor"))
    shape = tuple(tensor.shape[:tensor.ndim])
    stride = tuple(tensor.strides[:tensor.ndim]) if tensor.strides else dense_strides(shape)
    dtype_name = _DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    return Located((tensor.data or 0) + tensor.byte_offset, NAMES.get(dtype_name or ""),
                   dtype_name or f"DLPack type {tensor.code} of {tensor.bits} bits", shape, stride,
                   (backend, ordinal if backend == _abi.CUDA else 0), (array, capsule))


def locate(name: str, array: Any) -> Located:
    if type(array).__module__.partition(".")[0] == "numpy" and hasattr(array, "__array_interface__"):
        return _locate_numpy(name, array)
    if hasattr(array, "__dlpack__"):
        return _locate_dlpack(name, array)
    raise TypeError(f"{name} is a {type(array).__name__}, want a NumPy array, a torch tensor or anything with "
                    "__dlpack__")


def locate_int32(values: Any) -> Located:
    """A vector of our own on the CPU."""
    memory = (c_int32 * len(values))(*values)
    return Located(ctypes.addressof(memory), _abi.INT32, "int32", (len(values),), (1,), (_abi.CPU, 0), memory)
