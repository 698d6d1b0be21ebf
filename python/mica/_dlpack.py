# SPDX-License-Identifier: Apache-2.0
"""Where an array of another library lies in memory: NumPy's by its attributes, any other by DLPack."""

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from typing import Any, NamedTuple, Optional, Tuple

from . import _abi
from ._arguments import integer
from ._describe import CALLED, dense_strides
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
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = [ctypes.py_object, c_char_p], ctypes.c_int


def is_numpy(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] == "numpy" and hasattr(array, "__array_interface__")


def refuse_masked(name: str, array: Any) -> None:
    """NumPy's masked arrays hand over all of their memory."""
    if type(array).__name__ == "MaskedArray":
        raise InvalidArgument(f"{name} is a masked array, whose mask would be ignored; want {name}.filled(), and mask=")


def native(name: str, array: Any) -> Any:
    """A NumPy array in this machine's byte order."""
    return array if not is_numpy(array) or array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def has_strides_of_torch(array: Any) -> bool:
    """Of a NumPy array: torch's strides count whole elements, and run forwards."""
    return all(step >= 0 and step % array.dtype.itemsize == 0 for step in array.strides)


def _locate_numpy(name: str, array: Any) -> Located:
    refuse_masked(name, array)
    if not array.dtype.isnative:
        raise InvalidArgument(f"{name} is big-endian, want this machine's byte order")
    size = array.dtype.itemsize
    if any(stride % size for stride in array.strides):
        raise InvalidArgument(f"{name}.strides is {array.strides} bytes, want multiples of {size}")
    return Located(array.__array_interface__["data"][0], NAMES.get(array.dtype.name), array.dtype.name, array.shape,
                   tuple(stride // size for stride in array.strides), (_abi.CPU, 0), array)


# DLManagedTensorVersioned: version (two uint32), manager_ctx, deleter, flags (uint64), the tensor.
_FLAGS_OFFSET, _TENSOR_OFFSET, _READ_ONLY = 24, 32, 1


def _capsule(array: Any, options: Any) -> Any:
    """With flags, where the array's library knows them."""
    try:
        return array.__dlpack__(max_version=(1, 0), **options)
    except TypeError:
        return array.__dlpack__(**options)


def _locate_dlpack(name: str, array: Any, is_written: bool) -> Located:
    kind, ordinal = (int(part) for part in array.__dlpack_device__())
    if kind not in _BACKENDS:
        raise NoDevice(f"{name} is on DLPack device type {kind}, want 1 (CPU) or 2 (CUDA)")
    if hasattr(array, "is_neg") and array.is_neg():  # torch hands over the memory, which holds the opposite
        raise InvalidArgument(f"{name} is a negative view, want its values")
    backend = _BACKENDS[kind]
    capsule = _capsule(array, dict(stream=_LEGACY_DEFAULT_STREAM) if backend == _abi.CUDA else {})
    # Borrowed, not taken: the capsule frees what it holds when it dies.
    is_versioned = bool(_is_valid(capsule, b"dltensor_versioned"))
    address = _get_pointer(capsule, b"dltensor_versioned" if is_versioned else b"dltensor")
    flags = c_uint64.from_address(address + _FLAGS_OFFSET).value if is_versioned else 0
    tensor = _DLTensor.from_address(address + _TENSOR_OFFSET if is_versioned else address)
    if is_written and (flags & _READ_ONLY or type(array).__module__.partition(".")[0] in ("jax", "jaxlib")):
        raise InvalidArgument(f"{name} is read-only, want an array that can be written")
    shape = tuple(tensor.shape[:tensor.ndim])
    stride = tuple(tensor.strides[:tensor.ndim]) if tensor.strides else dense_strides(shape)
    dtype_name = _DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    return Located((tensor.data or 0) + tensor.byte_offset, NAMES.get(dtype_name or ""),
                   dtype_name or f"DLPack type {tensor.code} of {tensor.bits} bits", shape, stride,
                   (backend, ordinal if backend == _abi.CUDA else 0), (array, capsule))


def refuse_unwritable(name: str, cache: Any) -> None:
    """A cache that is to take up new keys where it lies."""
    if is_numpy(cache):
        if not cache.flags.writeable:
            raise InvalidArgument(f"{name} is read-only, want an array that can be written")
        if not cache.dtype.isnative:
            raise InvalidArgument(f"{name} is big-endian, want this machine's byte order: a copy would be written")
    elif hasattr(cache, "__dlpack__"):
        _locate_dlpack(name, cache, is_written=True)


WRITTEN = frozenset(("o", "lse"))


def locate(name: str, array: Any) -> Located:
    called = CALLED.get(name, name)
    if is_numpy(array):
        return _locate_numpy(called, array)
    if hasattr(array, "__dlpack__"):
        return _locate_dlpack(called, array, name in WRITTEN)
    name = called
    raise TypeError(f"{name} is a {type(array).__name__}, want a NumPy array, a torch tensor or anything with "
                    "__dlpack__")


def locate_lengths(name: str, values: Any) -> Any:
    """A vector of lengths: lists and arrays of other integers become int32 ones; what is none stays, to be refused."""
    if values is None or isinstance(values, Located):
        return values
    if isinstance(values, (list, tuple)):
        return locate_int32([_int32(f"{name}[{i}]", value) for i, value in enumerate(values)])
    if is_numpy(values) and values.dtype.kind in "iu" and values.dtype.name != "int32" and values.ndim == 1:
        return locate_int32([_int32(f"{name}[{i}]", value) for i, value in enumerate(values.tolist())])
    if not hasattr(values, "__dlpack__"):
        raise TypeError(f"{name} is a {type(values).__name__}, want integers: a list of them, or an array")
    return values


def _int32(name: str, value: Any) -> int:
    number = integer(name, value)
    if not -2**31 <= number < 2**31:
        raise InvalidArgument(f"{name} is {number}, want an int of 32 bits")
    return number


def locate_int32(values: Any) -> Located:
    """A vector of our own on the CPU."""
    memory = (c_int32 * len(values))(*values)
    return Located(ctypes.addressof(memory), _abi.INT32, "int32", (len(values),), (1,), (_abi.CPU, 0), memory)
