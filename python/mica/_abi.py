# SPDX-License-Identifier: Apache-2.0
"""The structs and numbers of include/mica/mica.h. tests/python/package/abi_test.py compares every offset with the header."""

import ctypes
from ctypes import Structure, c_float, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

ABI_VERSION = 1
UNLIMITED = -1

OK, ERROR_INVALID, ERROR_UNSUPPORTED, ERROR_NO_DEVICE, ERROR_OUT_OF_MEMORY, ERROR_DEVICE, ERROR_INTERNAL = range(7)
CPU, CUDA = 0, 1
FORWARD, BACKWARD = 0, 1
NONE, FP32, FP16, BF16, BOOL, INT32, FP8_E4M3 = range(7)
CAUSAL_NONE, CAUSAL_BOTTOM_RIGHT, CAUSAL_TOP_LEFT = range(3)
DIAGONAL_FROM_CAUSAL, DIAGONAL_BOTTOM_RIGHT, DIAGONAL_TOP_LEFT = range(3)
CU_SEQLENS_Q, CU_SEQLENS_K, SEQUSED_Q, SEQUSED_K, CACHE_BATCH_IDX, CACHE_LEFTPAD = (1 << bit for bit in range(6))
PIECES_NONE, PIECES_FIRST, PIECES_NEXT, PIECES_END, PIECES_BEGIN, PIECES_BESIDE = range(6)
WORKSPACE_ALIGNMENT = {CPU: 64, CUDA: 256}


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
                ("pieces", c_int32)]


class Gradients(Structure):
    _fields_ = [(name, Tensor) for name in ("d_o", "d_lse", "dq", "dk", "dv", "d_bias", "d_sinks")]


class Place(Structure):
    _fields_ = [(name, c_int64) for name in ("shift", "row_first", "row_step", "key_first", "key_step", "batch_first",
                                             "head_first", "heads")]


class Quantisation(Structure):
    _fields_ = [("q_descale", Tensor), ("k_descale", Tensor), ("v_descale", Tensor), ("per_page", c_int32),
                ("reserved", c_int32)]


class Attention(Structure):
    """mica_attention, with the defaults of MICA_ATTENTION_INIT."""
    _fields_ = [("struct_bytes", c_uint32), ("abi_version", c_uint32), ("device", Device),
                ("q", Tensor), ("k", Tensor), ("v", Tensor), ("o", Tensor), ("lse", Tensor), ("probs", Tensor),
                ("mask", Mask), ("score", Score), ("sequences", Sequences), ("append", Append), ("dropout", Dropout),
                ("control", Control), ("gradients", Gradients), ("place", Place),
                ("quantisation", Quantisation), ("attention_chunk", c_int64), ("mask_last_keys", c_int64),
                ("k_prefix", Tensor), ("v_prefix", Tensor), ("qv", Tensor)]

    def __init__(self) -> None:
        super().__init__(struct_bytes=ctypes.sizeof(Attention), abi_version=ABI_VERSION)
        self.mask.window_left = self.mask.window_right = UNLIMITED


class Bindings(Structure):
    """mica_bindings, with the defaults of MICA_BINDINGS_INIT."""
    _fields_ = [("struct_bytes", c_uint32), ("abi_version", c_uint32),
                *((name, c_void_p) for name in
                  ("q", "k", "v", "o", "lse", "probs", "boolean_mask", "bias", "alibi", "sinks", "cu_seqlens_q",
                   "cu_seqlens_k", "seqused_q", "seqused_k", "cache_batch_idx", "cache_leftpad", "block_table", "k_new",
                   "v_new", "rotary_cos", "rotary_sin")),
                ("dropout_seed", c_uint64), ("dropout_offset", c_uint64),
                *((name, c_void_p) for name in
                  ("rng_state", "d_o", "d_lse", "dq", "dk", "dv", "d_bias", "d_sinks", "workspace")),
                ("workspace_bytes", c_size_t), ("stream", c_void_p),
                *((name, c_void_p) for name in ("q_descale", "k_descale", "v_descale", "k_prefix", "v_prefix", "qv"))]

    def __init__(self) -> None:
        super().__init__(struct_bytes=ctypes.sizeof(Bindings), abi_version=ABI_VERSION)
