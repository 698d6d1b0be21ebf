# SPDX-License-Identifier: Apache-2.0
"""mica.attention* for NumPy arrays and for everything else that speaks DLPack. No gradients.

A NumPy q gives NumPy results. Arrays of other libraries cannot be made here, so `out` (and, for lse, return_lse) says
where to write. Work on a GPU is queued on the legacy default stream.
"""

import ctypes
import threading
from typing import Any, Dict, List, Optional, Tuple

from . import _abi
from ._arguments import integer, numbers, numbers_of_packed, window_of
from ._describe import PACKED_BY, ROW_ALIGNMENT, ROWS, TENSORS, Options, View, check_axes, describe, lift, view_of
from ._dlpack import Located, is_numpy, locate, locate_lengths, native, refuse_masked, refuse_unwritable
from ._library import Plan, load
from ._pairs import capacity, check_pairs, longest, tree_mask
from .errors import InvalidArgument, Unsupported

KEPT_PLANS = 512


class _Local(threading.local):
    def __init__(self) -> None:
        self.plans: Dict[Tuple[Any, ...], Plan] = {}
        self.workspace = ctypes.create_string_buffer(1 << 16)


_local = _Local()


def forget_plans() -> None:
    """Every thread makes its plans anew."""
    global _local
    _local = _Local()


def _workspace(size: int, backend: int) -> Tuple[int, Any]:
    """(address, what keeps it): the thread's own memory on the CPU, torch's on a GPU."""
    if size == 0:
        return 0, None
    alignment = _abi.WORKSPACE_ALIGNMENT[backend]
    if backend == _abi.CUDA:
        try:
            import torch
        except ImportError:
            raise Unsupported(f"this needs {size} bytes of the GPU's memory, which Mica takes from PyTorch: "
                              "install it, or try num_splits=1") from None
        memory = torch.empty(size, dtype=torch.uint8, device="cuda")
        return memory.data_ptr(), memory
    local = _local
    if len(local.workspace) < size + alignment:
        local.workspace = ctypes.create_string_buffer(size + alignment)
    return -(-ctypes.addressof(local.workspace) // alignment) * alignment, local.workspace


def _plan(bound: Dict[str, Located], options: Options, device: Tuple[int, int]) -> Plan:
    plans = _local.plans
    rows_aligned = all(at.address % ROW_ALIGNMENT == 0 for name, at in bound.items() if name in ROWS)
    key = (options, device, rows_aligned,
           *((name, at.dtype_name, at.shape, at.stride) for name, at in bound.items()))
    plan = plans.get(key)
    if plan is None:
        views: Dict[str, View] = {name: view_of(name, at.dtype, at.shape, at.stride, rows_aligned, at.dtype_name)
                                  for name, at in bound.items()}
        plan = load().plan(describe(views, options, device), _abi.FORWARD)
        if len(plans) >= KEPT_PLANS:
            plans.pop(next(iter(plans)))
        plans[key] = plan
    return plan


def _values(name: str, array: Any) -> Optional[List[int]]:
    """The numbers of an int32 vector, where the CPU has them."""
    at = located(name, array)
    if at.device[0] != _abi.CPU or at.dtype != _abi.INT32 or len(at.shape) != 1 or not at.shape[0]:
        return None
    step = at.stride[0] if at.shape[0] > 1 else 1
    return [ctypes.c_int32.from_address(at.address + 4 * i * step).value for i in range(at.shape[0])]


def located(name: str, array: Any) -> Located:
    return array if isinstance(array, Located) else locate(name, array)


def _execute(arrays: Dict[str, Any], options: Options, seed: int = 0, offset: int = 0) -> None:
    bound = {name: located(name, array if name in ("o", "lse") else native(name, array))
             for name, array in arrays.items() if array is not None}
    device = bound["q"].device
    for name, at in bound.items():
        if at.device != device:
            raise InvalidArgument(f"{name} is on {'CPU CUDA'.split()[at.device[0]]} {at.device[1]}, want "
                                  f"{'CPU CUDA'.split()[device[0]]} {device[1]} (q's)")
    plan = _plan(bound, options, device)
    x = _abi.Bindings()
    for name, at in bound.items():
        setattr(x, name, at.address)
    x.dropout_seed, x.dropout_offset = seed, offset
    x.workspace, kept = _workspace(plan.workspace_bytes, device[0])
    x.workspace_bytes = plan.workspace_bytes
    plan.execute(x)
    del kept


def _result(name: str, given: Any, q: Any, shape: Tuple[int, ...], dtype: Any, is_packed: bool) -> Any:
    """The array to write: the one that was given, or a new one beside a NumPy q."""
    if given is not None:
        if is_numpy(given) and not given.flags.writeable:
            raise InvalidArgument(f"{name} is read-only, want an array that can be written")
        return given
    if not is_numpy(q):
        raise InvalidArgument(f"{name} is None, want an array to write to (q is a {type(q).__name__}, and only NumPy "
                              "arrays and torch tensors are made here)")
    import numpy
    if is_packed:
        return numpy.full(shape, -numpy.inf if name == "return_lse" else 0.0, dtype)
    return numpy.empty(shape, dtype)


def _clear_outside(name: str, at: Located, cu_seqlens_q: Any) -> None:
    """Packed rows of no sequence in an array that was given: o is 0 there, lse -inf. A GPU's lengths are not waited for."""
    values = _values("cu_seqlens_q", cu_seqlens_q)
    if values is None:
        return
    shape, stride = lift(name, TENSORS[name][1], at.shape, at.stride)
    row_axis, head_axis = (1, 2) if name == "o" else (2, 1)
    size = 4 if at.dtype == _abi.FP32 else 2
    for row in (*range(values[0]), *range(values[-1], shape[row_axis])):
        for head in range(shape[head_axis]):
            address = at.address + (row * stride[row_axis] + head * stride[head_axis]) * size
            if name == "o":
                ctypes.memset(address, 0, shape[3] * size)
            else:
                ctypes.c_float.from_address(address).value = -float("inf")


def _dense(name: str, array: Any) -> Any:
    refuse_masked(name, array)  # a copy would have no mask
    if is_numpy(array) and array.ndim and array.shape[-1] > 1 and array.strides[-1] != array.dtype.itemsize:
        import numpy
        return numpy.ascontiguousarray(array)
    return array


def _seed_of(seed: Any) -> Tuple[int, int]:
    """(seed, offset), each of 64 bits."""
    if seed is None:
        import numpy
        seed, offset = (int(value) for value in numpy.random.randint(0, 2**62, 2))
        return seed, offset
    parts: Any = None
    if hasattr(seed, "__index__") and not getattr(seed, "shape", ()):
        parts = seed, 0
    elif isinstance(seed, (list, tuple)) or getattr(seed, "shape", ()) == (2,):
        parts = tuple(seed)
    if parts is None or len(parts) != 2:
        raise InvalidArgument(f"seed is a {type(seed).__name__}, want an int or an array (seed, offset)")
    for value in parts:
        if not -2**63 <= integer("seed", value) < 2**64:
            raise InvalidArgument(f"seed is {int(value)}, want an int of 64 bits")
    return int(parts[0]) & (2**64 - 1), int(parts[1]) & (2**64 - 1)


def _lse_of(return_lse: Any) -> Any:
    """True, False, or the array to write; NumPy's own True and False are arrays, too."""
    if return_lse is None or is_numpy(return_lse) and return_lse.dtype.name == "bool" and return_lse.ndim == 0:
        return bool(return_lse)
    return return_lse


def _forward(q: Any, k: Any, v: Any, optional: Dict[str, Any], options: Options, return_lse: Any, out: Any,
             seed: Tuple[int, int] = (0, 0)) -> Any:
    q, k, v = native("q", q), native("k", k), native("v", v)
    is_append = "k_new" in optional
    at = {"q": located("q", _dense("q", q)), "k": located("k", k if is_append else _dense("k", k)),
          "v": located("v", v if is_append else _dense("v", v))}
    for name, array in at.items():
        check_axes(name, len(array.shape), optional.get(PACKED_BY[name]) is not None)
    shape = at["q"].shape
    cu_seqlens_q = optional.get("cu_seqlens_q")
    is_packed = cu_seqlens_q is not None  # rows of no sequence stay empty
    o = _result("out", out, q, (*shape[:-1], at["v"].shape[-1]), getattr(q, "dtype", None), is_packed)
    lse, return_lse = None, _lse_of(return_lse)
    if return_lse is not False:
        rows = (shape[0], shape[2], shape[1]) if len(shape) == 4 else (shape[1], shape[0])
        lse = _result("return_lse", None if return_lse is True else return_lse, q, rows, "float32",
                      is_packed)
    _execute(dict(at, o=o, lse=lse, **optional), options, *seed)
    if is_packed:
        for name, given in (("o", out), ("lse", None if return_lse is True else lse)):
            if given is not None:
                _clear_outside(name, located(name, given), cu_seqlens_q)
    return o if lse is None else (o, lse)


def _capacity(cache: Any, block_table: Any) -> int:
    return capacity(located("k_cache", native("k_cache", cache)).shape,
                    None if block_table is None else located("block_table", block_table).shape)


def _check_pairs(mask: Any, bias: Any, rows: Tuple[Any, ...], keys: Tuple[Any, ...], new: int = 0, leftpad: Any = None) -> None:
    """rows and keys: cumulative lengths, lengths in use, and a whole slot. Nothing where one of them is not known here."""
    vectors = (*rows[:2], *keys[:2], leftpad)
    known = [None if vector is None else _values("lengths", vector) for vector in vectors]
    if not any(values is None and vector is not None for values, vector in zip(known, vectors)):
        cu_q, used_q, cu_k, used_k, skipped = known
        check_pairs(mask, bias, longest(cu_q, used_q, rows[2]), longest(cu_k, used_k, keys[2], new, skipped))


def attention(q: Any, k: Any, v: Any, causal: Any, window: Any, chunk: Any, mask: Any, bias: Any, scale: Optional[float],
              softcap: Optional[float], alibi: Any, sinks: Any, dropout: float, return_lse: Any, out: Any,
              diagonal: Optional[str], num_splits: int, batch_invariant: bool, seed: Any) -> Any:
    options = numbers(causal, window_of(window), chunk, scale, softcap, dropout, diagonal, num_splits, batch_invariant)
    return _forward(q, k, v, dict(boolean_mask=mask, bias=bias, alibi=alibi, sinks=sinks), options, return_lse, out,
                    _seed_of(seed) if dropout else (0, 0))


def attention_varlen(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: Optional[int],
                     max_seqlen_k: Optional[int], causal: Any, window: Any, chunk: Any, mask: Any, bias: Any,
                     scale: Optional[float], softcap: Optional[float], alibi: Any, sinks: Any, dropout: float,
                     return_lse: Any, out: Any, diagonal: Optional[str], num_splits: int, batch_invariant: bool,
                     seed: Any, seqused_q: Any, seqused_k: Any, block_table: Any, qv: Any) -> Any:
    lengths = {name: locate_lengths(name, value) for name, value in (
        ("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k), ("seqused_q", seqused_q),
        ("seqused_k", seqused_k))}
    options = numbers_of_packed(q, k, lengths["cu_seqlens_q"], lengths["cu_seqlens_k"], causal, window_of(window), chunk, scale,
                                softcap, dropout, diagonal, num_splits, batch_invariant, False, False, max_seqlen_q,
                                max_seqlen_k)
    if mask is not None or bias is not None:
        _check_pairs(mask, bias, (lengths["cu_seqlens_q"], lengths["seqused_q"], 0),
                     (lengths["cu_seqlens_k"], lengths["seqused_k"], 0 if block_table is None else _capacity(k, block_table)))
    return _forward(q, k, v, dict(boolean_mask=mask, bias=bias, alibi=alibi, sinks=sinks, block_table=block_table,
                                  qv=_dense("qv", qv), **lengths), options, return_lse, out,
                    _seed_of(seed) if dropout else (0, 0))


def attention_with_cache(q: Any, k_cache: Any, v_cache: Any, k: Any, v: Any, cache_seqlens: Any, block_table: Any,
                         cache_batch_idx: Any, cache_leftpad: Any, rotary_cos: Any, rotary_sin: Any,
                         rotary_interleaved: bool, causal: Any, window: Any, chunk: Any, mask: Any, bias: Any,
                         scale: Optional[float], softcap: Optional[float], alibi: Any, sinks: Any, return_lse: Any,
                         out: Any, diagonal: Optional[str], num_splits: int, batch_invariant: bool,
                         max_seqlen_k: Optional[int], tree: Any, k_prefix: Any, v_prefix: Any, qv: Any) -> Any:
    if k_prefix is not None or v_prefix is not None:
        raise InvalidArgument("k_prefix is given, want torch tensors: other arrays have no shared prefix")
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache is None:
            raise TypeError(f"{name} is None, want a NumPy array, a torch tensor or anything with __dlpack__")
    of_tree = None if tree is None else tree_mask(tree, mask)
    options = numbers(causal, window_of(window), chunk, scale, softcap, 0.0, diagonal, num_splits, batch_invariant, False,
                      rotary_interleaved, None, max_seqlen_k, 0 if of_tree is None else of_tree.shape[-1])
    if hasattr(cache_seqlens, "__index__") and not getattr(cache_seqlens, "shape", ()):
        cache_seqlens = [cache_seqlens] * located("q", native("q", q)).shape[0]
    cache_seqlens = locate_lengths("cache_seqlens", cache_seqlens)
    if mask is not None or bias is not None:
        _check_pairs(mask, bias, (None, None, located("q", native("q", q)).shape[1]),
                     (None, cache_seqlens, _capacity(k_cache, block_table)),
                     located("k", native("k", k)).shape[1] if k is not None else 0, cache_leftpad)
    mask = mask if of_tree is None else of_tree
    optional = dict(boolean_mask=mask, bias=bias, alibi=alibi, sinks=sinks, seqused_k=cache_seqlens,
                    cache_batch_idx=cache_batch_idx, cache_leftpad=cache_leftpad, block_table=block_table,
                    rotary_cos=rotary_cos, rotary_sin=rotary_sin, qv=_dense("qv", qv))
    if k is not None or v is not None:
        for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
            refuse_unwritable(name, cache)
        optional.update(k_new=_dense("k_new", k), v_new=_dense("v_new", v))
    return _forward(q, k_cache, v_cache, optional, options, return_lse, out)
