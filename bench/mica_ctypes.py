# SPDX-License-Identifier: Apache-2.0
"""The structs and functions of include/mica/mica.h for Python programs that have nothing but the shared library."""

import ctypes
import os
from ctypes import POINTER, Structure, byref, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

ABI_VERSION = 1
UNLIMITED = -1
CPU, CUDA = 0, 1
FORWARD, BACKWARD = 0, 1
NONE, FP32, FP16, BF16, BOOL, INT32 = range(6)
CAUSAL = {"none": 0, "bottom-right": 1, "top-left": 2}
DIAGONAL_BOTTOM_RIGHT = 1
CU_SEQLENS_Q, CU_SEQLENS_K, SEQUSED_Q, SEQUSED_K, CACHE_BATCH_IDX, CACHE_LEFTPAD = (1 << bit for bit in range(6))


class Device(Structure):
    _fields_ = [("backend", c_int32), ("ordinal", c_int32)]


class Tensor(Structure):
    _fields_ = [("dtype", c_int32), ("alignment", c_int32), ("shape", c_int64 * 4), ("stride", c_int64 * 4)]


class Mask(Structure):
    _fields_ = [("causal", c_int32), ("diagonal", c_int32), ("window_left", c_int64), ("window_right", c_int64),
                ("boolean", Tensor)]


class Score(Structure):
    _fields_ = [("scale", c_float), ("softcap", c_float), ("alibi", Tensor), ("bias", Tensor), ("sinks", Tensor)]


class Sequences(Structure):
    _fields_ = [("vectors", c_uint32), ("reserved", c_uint32), ("batch", c_int64), ("max_seqlen_q", c_int64),
                ("max_seqlen_k", c_int64), ("block_table", Tensor)]


class Append(Structure):
    _fields_ = [("k_new", Tensor), ("v_new", Tensor), ("rotary_cos", Tensor), ("rotary_sin", Tensor),
                ("rotary_interleaved", c_int32), ("reserved", c_int32)]


class Dropout(Structure):
    _fields_ = [("probability", c_float), ("rng_from_memory", c_int32)]


class Control(Structure):
    _fields_ = [("num_splits", c_int32), ("deterministic", c_int32), ("batch_invariant", c_int32),
                ("reserved", c_int32)]


class Gradients(Structure):
    _fields_ = [(name, Tensor) for name in ("d_o", "d_lse", "dq", "dk", "dv", "d_bias", "d_sinks")]


class Attention(Structure):
    """mica_attention, with the defaults of MICA_ATTENTION_INIT."""
    _fields_ = [("struct_bytes", c_uint32), ("abi_version", c_uint32), ("device", Device),
                ("q", Tensor), ("k", Tensor), ("v", Tensor), ("o", Tensor), ("lse", Tensor), ("probs", Tensor),
                ("mask", Mask), ("score", Score), ("sequences", Sequences), ("append", Append), ("dropout", Dropout),
                ("control", Control), ("gradients", Gradients)]

    def __init__(self):
        super().__init__(struct_bytes=ctypes.sizeof(Attention), abi_version=ABI_VERSION)
        self.mask.window_left = self.mask.window_right = UNLIMITED


class Bindings(Structure):
    _fields_ = ([("struct_bytes", c_uint32), ("abi_version", c_uint32)] +
                [(name, c_void_p) for name in
                 ("q", "k", "v", "o", "lse", "probs", "boolean_mask", "bias", "alibi", "sinks", "cu_seqlens_q",
                  "cu_seqlens_k", "seqused_q", "seqused_k", "cache_batch_idx", "cache_leftpad", "block_table", "k_new",
                  "v_new", "rotary_cos", "rotary_sin")] +
                [("dropout_seed", c_uint64), ("dropout_offset", c_uint64)] +
                [(name, c_void_p) for name in
                 ("rng_state", "d_o", "d_lse", "dq", "dk", "dv", "d_bias", "d_sinks", "workspace")] +
                [("workspace_bytes", c_size_t), ("stream", c_void_p)])

    def __init__(self):
        super().__init__(struct_bytes=ctypes.sizeof(Bindings), abi_version=ABI_VERSION)


class Error(RuntimeError):
    """A call that failed; the message is mica_last_error()."""


def find_library(path=None):
    """The path that was given, or the library of the build tree or bundle that this folder lies in."""
    if path:
        return os.path.abspath(path)
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for folder in ("build/src", "lib"):
        candidate = os.path.join(root, folder, "libmica.so")
        if os.path.exists(candidate):
            return candidate
    raise Error("no libmica.so in build/src or lib: run `make`, or say --lib PATH")


class Library:
    def __init__(self, path=None):
        self.path = find_library(path)
        self._c = c = ctypes.CDLL(self.path)
        c.mica_plan_create.argtypes = [POINTER(Attention), c_int32, POINTER(c_void_p)]
        c.mica_plan_destroy.argtypes = [c_void_p]
        c.mica_plan_destroy.restype = None
        c.mica_plan_workspace.argtypes = [c_void_p]
        c.mica_plan_workspace.restype = c_size_t
        c.mica_plan_kernel.argtypes = [c_void_p]
        c.mica_plan_kernel.restype = c_char_p
        c.mica_plan_splits.argtypes = [c_void_p]
        c.mica_execute.argtypes = [c_void_p, POINTER(Bindings)]
        c.mica_last_error.restype = c_char_p
        c.mica_version.restype = c_char_p
        c.mica_device_description.argtypes = [Device]
        c.mica_device_description.restype = c_char_p
        c.mica_set_num_threads.argtypes = [c_int32]

    def check(self, status):
        if status != 0:
            raise Error(self._c.mica_last_error().decode())

    def version(self):
        return self._c.mica_version().decode()

    def describe_device(self, backend, ordinal=0):
        text = self._c.mica_device_description(Device(backend, ordinal))
        if text is None:
            raise Error(self._c.mica_last_error().decode())
        return text.decode()

    def set_num_threads(self, threads):
        self.check(self._c.mica_set_num_threads(threads))

    def num_threads(self):
        return self._c.mica_get_num_threads()

    def plan(self, attention, which):
        return Plan(self, attention, which)


class Plan:
    """Owns a mica_plan."""

    def __init__(self, library, attention, which):
        self._library, self._plan = library, c_void_p()
        library.check(library._c.mica_plan_create(byref(attention), which, byref(self._plan)))
        self.workspace_bytes = library._c.mica_plan_workspace(self._plan)
        self.kernel = library._c.mica_plan_kernel(self._plan).decode()
        self.splits = library._c.mica_plan_splits(self._plan)

    def execute(self, bindings):
        self._library.check(self._library._c.mica_execute(self._plan, byref(bindings)))

    def __del__(self):
        if self._plan:
            self._library._c.mica_plan_destroy(self._plan)


def dense(dtype, shape, alignment=0):
    """A dense tensor; missing axes are 1."""
    t = Tensor(dtype=dtype, alignment=alignment)
    shape = list(shape) + [1] * (4 - len(shape))
    stride = 1
    for axis in (3, 2, 1, 0):
        t.shape[axis], t.stride[axis] = shape[axis], stride
        stride *= shape[axis]
    return t
