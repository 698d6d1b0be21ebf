# SPDX-License-Identifier: Apache-2.0
"""mica.attention of tensors that are made of others: jagged nested tensors, and DTensors sharded by batch or heads."""

import sys
from typing import Any, Dict, Optional

import torch
from torch import Tensor

from ._tracing import _is_compiling
from .errors import InvalidArgument, Unsupported


def _dtensor() -> Optional[type]:
    """Its class, once something has imported it; before PyTorch 2.5 from a private module."""
    kind: Optional[type] = None
    for name in ("torch.distributed.tensor", "torch.distributed._tensor"):
        kind = kind or getattr(sys.modules.get(name), "DTensor", None)
    return kind


def _refuse(optional: Dict[str, Any], what: str) -> None:
    for name, value in optional.items():
        if value is not None:
            raise InvalidArgument(f"{name} is given with {what}, want None")


def _nested(q: Tensor, k: Tensor, v: Tensor, optional: Dict[str, Any], options: Dict[str, Any],
            return_lse: bool) -> Any:
    """(batch, rows of each sequence, heads, dim): the packed form of it."""
    from .functions import attention_varlen
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not tensor.is_nested or tensor.layout != torch.jagged or tensor.dim() != 4 or tensor._ragged_idx != 1:
            what = f"a nested tensor whose ragged axis is {tensor._ragged_idx}" if tensor.is_nested and tensor.layout == torch.jagged \
                else "no jagged nested tensor"
            raise InvalidArgument(f"{name} is {what}, want a jagged one of (batch, rows, heads, dim) for all of q, k and v, of which "
                                  "the rows are ragged")
        if tensor.lengths() is not None:
            raise InvalidArgument(f"{name} is a jagged nested tensor with holes between its sequences, want "
                                  f"{name}.contiguous()")
    if k.shape[1] != v.shape[1] and not _is_compiling() and not torch.equal(k.offsets(), v.offsets()):
        raise InvalidArgument("v has sequences of other lengths than k, want the same")
    _refuse({name: optional[name] for name in ("mask", "bias", "out")}, "nested tensors")
    cu_q, cu_k = (t.offsets().to(torch.int32) for t in (q, k))
    made = attention_varlen(q.values(), k.values(), v.values(), cu_q, cu_k, alibi=optional["alibi"],
                            sinks=optional["sinks"], return_lse=return_lse, **options)
    o, lse = made if return_lse else (made, None)
    o = torch.nested.nested_tensor_from_jagged(o, q.offsets())
    return (o, lse) if return_lse else o


def _round(q: Tensor, k: Tensor, v: Tensor, group: Any, seqlen: int, seqlen_k: int, options: Dict[str, Any],
           return_lse: bool) -> Any:
    """Rows and keys of sequences of these lengths lie in stretches over the group."""
    if not _is_compiling():
        from .distributed import attention
        return attention(q, k, v, group=group, seqlen=seqlen, seqlen_k=seqlen_k, return_lse=return_lse, **options)
    from .distributed._op import Numbers, ring
    from .distributed.functions import options_of
    options.pop("seed")  # dropout is 0
    made = options_of(**options)
    o, lse = ring(q, k, v, Numbers(group.group_name, "ring", seqlen, seqlen_k, made.left, made.right, made.bottom_right,
                                   made.scale, made.softcap, torch.are_deterministic_algorithms_enabled()))
    return (o, lse) if return_lse else o


def _distributed(q: Any, k: Any, v: Any, optional: Dict[str, Any], options: Dict[str, Any], return_lse: bool) -> Any:
    """Batch and heads are divided as they lie: every rank attends to what it has. Rows that are divided along one
    dimension of the mesh go round it."""
    try:
        from torch.distributed.tensor import DTensor, Replicate, Shard
    except ImportError:  # before PyTorch 2.5
        from torch.distributed._tensor import DTensor, Replicate, Shard

    from .functions import attention
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, DTensor) or tensor.device_mesh != q.device_mesh or tensor.placements != q.placements:
            raise Unsupported(f"{name} is not a DTensor placed as q is ({q.placements}), want it redistributed so")
    for placement in q.placements:
        if placement not in (Replicate(), Shard(0), Shard(1), Shard(2)):
            place = f"Shard({placement.dim})" if isinstance(placement, Shard) else repr(placement)
            raise Unsupported(f"q is placed as {place}, want Replicate(), Shard(0) (the batch), Shard(1) (rows and "
                              "keys) or Shard(2) (the heads)")
    round_axes = [axis for axis, placement in enumerate(q.placements) if placement == Shard(1)]
    if len(round_axes) > 1:
        raise Unsupported("q has Shard(1) along two dimensions of the mesh, want one")
    _refuse(optional, "DTensors")
    if options["dropout"] and any(isinstance(p, Shard) for p in q.placements):
        raise Unsupported("dropout is given with sharded DTensors, want 0: its bits would repeat on every rank")
    lse_place = [Shard({0: 0, 1: 2, 2: 1}[p.dim]) if isinstance(p, Shard) else p for p in q.placements]
    for axis, placement in enumerate(q.placements):
        size = q.device_mesh.size(axis)
        if placement == Shard(2) and (q.shape[2] % size or k.shape[2] % size):
            raise Unsupported(f"{q.shape[2]} and {k.shape[2]} heads are sharded by {size}, want it to divide both")
    locals_ = q.to_local(), k.to_local(), v.to_local()
    if round_axes:
        if options.pop("batch_invariant"):
            raise Unsupported("batch_invariant is True with rows that go round the ranks, want False: their order differs")
        if options.pop("chunk"):
            raise Unsupported("chunk is given with rows that go round the ranks, want 0")
        options.pop("num_splits")  # a hint
        made = _round(*locals_, q.device_mesh.get_group(round_axes[0]), q.shape[1], k.shape[1], options, return_lse)
    else:
        made = attention(*locals_, return_lse=return_lse, **options)
    o, lse = made if return_lse else (made, None)

    def placed(t: Tensor, placements: Any, shape: Any) -> Any:
        return DTensor.from_local(t, q.device_mesh, placements, run_check=False, shape=shape,
                                  stride=torch.empty(shape, device="meta").stride())
    o = placed(o, q.placements, q.shape[:-1] + v.shape[-1:])
    return (o, placed(lse, lse_place, (q.shape[0], q.shape[2], q.shape[1]))) if return_lse else o


class _Attend:
    @staticmethod
    def knows(*tensors: Tensor) -> bool:
        kind = _dtensor()
        return any(t.is_nested or kind is not None and isinstance(t, kind) for t in tensors)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, optional: Dict[str, Any], options: Dict[str, Any],
                 return_lse: bool) -> Any:
        call = _nested if q.is_nested or k.is_nested or v.is_nested else _distributed
        return call(q, k, v, optional, options, return_lse)


attend_subclass = _Attend()
