# SPDX-License-Identifier: Apache-2.0
"""From arrays and options to mica_attention. Knows no array library: an array is (dtype, shape, stride, alignment)."""

import ctypes
import struct
from functools import lru_cache
from typing import Any, Dict, NamedTuple, Optional, Tuple

from . import _abi
from .errors import InvalidArgument, NotDense


class View(NamedTuple):
    """What a description says of one array. Strides count elements."""
    dtype: int
    shape: Tuple[int, ...]
    stride: Tuple[int, ...]
    alignment: int = 0


class Options:
    """The numbers of a call, made by options() alone: equal ones are one object, so that a cache keys by identity."""
    __slots__ = ("causal", "diagonal", "window_left", "window_right", "chunk", "mask_last_keys", "scale", "softcap", "dropout",
                 "num_splits", "deterministic", "batch_invariant", "rotary_interleaved", "max_seqlen_q", "max_seqlen_k", "place",
                 "descale_per_page", "pieces")
    causal: int
    diagonal: int
    window_left: int
    window_right: int
    chunk: int  # 0: none
    mask_last_keys: int  # 0: a mask begins at key 0
    scale: float
    softcap: float
    dropout: float
    num_splits: int
    deterministic: bool
    batch_invariant: bool
    rotary_interleaved: bool
    max_seqlen_q: int
    max_seqlen_k: int
    place: Tuple[int, ...]  # the fields of mica_place from the first on; what is missing is 0
    descale_per_page: bool
    pieces: int  # mica_pieces


@lru_cache(maxsize=4096)
def options(causal: int = 0, diagonal: int = 0, window_left: int = -1, window_right: int = -1, chunk: int = 0,
            mask_last_keys: int = 0, scale: float = 0.0, softcap: float = 0.0, dropout: float = 0.0, num_splits: int = 0, deterministic: bool = False,
            batch_invariant: bool = False, rotary_interleaved: bool = False, max_seqlen_q: int = 0,
            max_seqlen_k: int = 0, place: Tuple[int, ...] = (), descale_per_page: bool = False, pieces: int = 0) -> Options:
    made = Options()
    for name, value in zip(Options.__slots__, (causal, diagonal, window_left, window_right, chunk, mask_last_keys,
                                               scale, softcap, dropout, num_splits, deterministic, batch_invariant, rotary_interleaved,
                                               max_seqlen_q, max_seqlen_k, place, descale_per_page, pieces)):
        setattr(made, name, value)
    return made


# Binding -> where its mica_tensor lies in the description, and on which side missing axes are 1: "left" as in
# broadcasting, "right", or "rows" for lse: (heads, rows) is (1, heads, rows, 1).
TENSORS: Dict[str, Tuple[str, str]] = {
    "q": ("q", "left"), "k": ("k", "left"), "v": ("v", "left"), "o": ("o", "left"), "lse": ("lse", "rows"),
    "probs": ("probs", "left"), "boolean_mask": ("mask.boolean", "left"), "bias": ("score.bias", "left"),
    "alibi": ("score.alibi", "heads"), "sinks": ("score.sinks", "right"),
    "block_table": ("sequences.block_table", "right"), "k_new": ("append.k_new", "left"),
    "v_new": ("append.v_new", "left"), "rotary_cos": ("append.rotary_cos", "right"),
    "rotary_sin": ("append.rotary_sin", "right"), "d_o": ("gradients.d_o", "left"),
    "d_lse": ("gradients.d_lse", "rows"), "dq": ("gradients.dq", "left"), "dk": ("gradients.dk", "left"),
    "dv": ("gradients.dv", "left"), "d_bias": ("gradients.d_bias", "left"), "d_sinks": ("gradients.d_sinks", "right"),
    "q_descale": ("quantisation.q_descale", "right"), "k_descale": ("quantisation.k_descale", "right"),
    "v_descale": ("quantisation.v_descale", "right"), "k_prefix": ("k_prefix", "left"), "v_prefix": ("v_prefix", "left"),
    "qv": ("qv", "left"),
}
# int32 vectors: bit, and how many elements more than the batch.
VECTORS: Dict[str, Tuple[int, int]] = {
    "cu_seqlens_q": (_abi.CU_SEQLENS_Q, 1), "cu_seqlens_k": (_abi.CU_SEQLENS_K, 1), "seqused_q": (_abi.SEQUSED_Q, 0),
    "seqused_k": (_abi.SEQUSED_K, 0), "cache_batch_idx": (_abi.CACHE_BATCH_IDX, 0),
    "cache_leftpad": (_abi.CACHE_LEFTPAD, 0),
}
# Every name that a call may bind, in the order of mica_bindings.
BINDINGS = tuple(name for name, *_ in _abi.Bindings._fields_[2:] if not name.startswith(("workspace", "stream")))
# Kernels read and write the rows of these in pieces of 16 bytes, where all of them promise it.
ROWS = frozenset(("q", "k", "v", "o", "k_new", "v_new", "d_o", "dq", "dk", "dv", "k_prefix", "v_prefix", "qv"))
ROW_ALIGNMENT = 16
CALLED = {"boolean_mask": "mask", "o": "out"}  # bindings that callers know by another name
ONE_DTYPE = {"boolean_mask": "bool", "alibi": "float32"}  # what may have only this

PACKED_BY = {"q": "cu_seqlens_q", "k": "cu_seqlens_k", "v": "cu_seqlens_k"}

LONGEST = 1 << 29  # MICA_MAX_SEQLEN


def rounded_hint(length: int) -> int:
    """A longest length, as the next power of two: a new one is not a new plan each time."""
    return min(1 << (length - 1).bit_length(), LONGEST) if 0 < length <= LONGEST else length


def packed_hint(length: int, packed: Any, cu_seqlens: Any, batch_invariant: bool) -> int:
    """The same of the sequences packed in an array. As it is where all of them are that long by the number of rows: they
    run as a dense batch does, and rows and sequences are a plan's own anyway. What goes with a batch of one sequence is not
    for plans that do not depend on the batch."""
    hint = rounded_hint(length)
    if hint == length or batch_invariant or cu_seqlens is None:
        return hint
    try:
        return length if packed.shape[0] == (cu_seqlens.shape[0] - 1) * length else hint
    except (AttributeError, IndexError, TypeError):  # no arrays, which others refuse
        return hint


def lift(name: str, side: str, shape: Tuple[int, ...], stride: Tuple[int, ...]) -> Tuple[Tuple[int, ...], ...]:
    """Shape and stride with four axes."""
    missing = 4 - len(shape)
    if missing == 0:
        return shape, stride
    if missing < 0:
        raise InvalidArgument(f"{CALLED.get(name, name)} has {len(shape)} axes, want at most 4")
    left = {"left": missing, "right": 0, "rows": max(0, missing - 1), "heads": max(0, missing - 2)}[side]
    ones, zeros = (1,) * left, (0,) * left
    return (ones + tuple(shape) + (1,) * (missing - left), zeros + tuple(stride) + (0,) * (missing - left))


def check_axes(name: str, axes: int, is_packed: bool) -> None:
    """NOTE: sdpa's (batch, rows, dim) of one head is not to be taken for (rows, heads, dim)."""
    if axes != 4 and not (is_packed and axes == 3):
        raise InvalidArgument(f"{name} has {axes} axes, want (rows, heads, dim)" if is_packed else
                              f"{name} has {axes} axes, want (batch, rows, heads, dim)")


def _offset_of(path: str) -> int:
    """Of a field of mica_attention, as in mask.boolean."""
    a = field = _abi.Attention()
    for part in path.split("."):
        field = getattr(field, part)
    return ctypes.addressof(field) - ctypes.addressof(a)


# A mica_tensor, written at once: field by field it would take four times as long.
_TENSOR = struct.Struct("<ii4q4q")
_PLACES = {name: (_offset_of(path), side) for name, (path, side) in TENSORS.items()}


def fill_tensor(description: _abi.Attention, name: str, view: View) -> None:
    offset, side = _PLACES[name]
    shape, stride = lift(name, side, view.shape, view.stride)
    _TENSOR.pack_into(description, offset, view.dtype, view.alignment, *shape, *stride)


def batch_of(views: Dict[str, View]) -> int:
    if "cu_seqlens_q" in views:
        length = len_of("cu_seqlens_q", views["cu_seqlens_q"])
        if length < 1:
            raise InvalidArgument("cu_seqlens_q.shape[0] is 0, want 1 or more (the sequences, and one)")
        return length - 1
    shape = views["q"].shape
    return shape[0] if len(shape) == 4 else 1


def len_of(name: str, view: View) -> int:
    if len(view.shape) != 1:
        raise InvalidArgument(f"{name} has {len(view.shape)} axes, want 1")
    return view.shape[0]


def fill_vectors(sequences: _abi.Sequences, views: Dict[str, View], batch: int) -> None:
    """The library sees only the addresses of these, so their lengths and strides are checked here."""
    for name, (bit, extra) in VECTORS.items():
        if name not in views:
            continue
        view = views[name]
        if len_of(name, view) != batch + extra:
            raise InvalidArgument(f"{name}.shape[0] is {view.shape[0]}, want {batch + extra} (the batch is {batch})")
        if view.shape[0] > 1 and view.stride[0] != 1:
            raise InvalidArgument(f"{name}.stride[0] is {view.stride[0]}, want 1")
        sequences.vectors |= bit


@lru_cache(maxsize=1024)
def _without_tensors(given: Options, device: Tuple[int, int]) -> _abi.Attention:
    """What a description says of the numbers of a call."""
    a = _abi.Attention()
    a.device.backend, a.device.ordinal = device
    a.sequences.max_seqlen_q, a.sequences.max_seqlen_k = given.max_seqlen_q, given.max_seqlen_k
    a.mask.causal, a.mask.diagonal = given.causal, given.diagonal
    a.mask.window_left, a.mask.window_right = given.window_left, given.window_right
    a.attention_chunk, a.mask_last_keys = given.chunk, given.mask_last_keys
    a.score.scale, a.score.softcap = given.scale, given.softcap
    a.append.rotary_interleaved = given.rotary_interleaved
    a.dropout.probability = given.dropout
    a.control.num_splits, a.control.deterministic = given.num_splits, given.deterministic
    a.control.batch_invariant, a.control.pieces = given.batch_invariant, given.pieces
    a.place = _abi.Place(*given.place)
    a.quantisation.per_page = given.descale_per_page
    return a


def describe(views: Dict[str, View], given: Options, device: Tuple[int, int]) -> _abi.Attention:
    """The description of a call that binds these arrays. rng_state is (int64, (2,)) and stands for rng_from_memory."""
    a = _abi.Attention.from_buffer_copy(_without_tensors(given, device))
    batch = batch_of(views)
    for name, view in views.items():
        if name in TENSORS:
            fill_tensor(a, name, view)
    fill_vectors(a.sequences, views, batch)
    a.sequences.batch = batch
    if "rng_state" in views:
        a.dropout.rng_from_memory = 1
    return a


def dense_strides(shape: Tuple[int, ...]) -> Tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides))[:len(shape)]


def view_of(name: str, dtype: Optional[int], shape: Tuple[int, ...], stride: Tuple[int, ...], rows_aligned: bool,
            dtype_name: object) -> View:
    """A View; an unknown dtype is refused by name. Only row tensors promise more than their element's alignment."""
    called = CALLED.get(name, name)
    if dtype is None or (name in VECTORS and dtype != _abi.INT32):
        is_int = name in VECTORS or name == "block_table"
        wanted = "int32" if is_int else ONE_DTYPE.get(name, "float32, float16 or bfloat16")
        raise InvalidArgument(f"{called}.dtype is {dtype_name}, want {wanted}")
    if 0 in shape:
        stride = dense_strides(shape)  # no element, so any strides are right; a library may have left zeros
    if name in ROWS and shape and shape[-1] > 1 and stride[-1] != 1:
        raise NotDense(f"{called}.stride[{len(shape) - 1}] is {stride[-1]}, want 1 (the last dimension must be dense)")
    return View(dtype, tuple(shape), tuple(stride), ROW_ALIGNMENT if rows_aligned and name in ROWS else 0)
