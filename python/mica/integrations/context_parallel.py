# SPDX-License-Identifier: Apache-2.0
"""PyTorch's context_parallel and DTensors under scaled_dot_product_attention on a CPU, while "mica" is active.

PyTorch knows how its GPU operators are spread over ranks; those run Mica's kernels piece by piece, as they are. Of the
CPU's operator it knows nothing. Here it is told: batch and heads are divided as they lie, and a sequence that is divided goes
round by mica.distributed's ring. mica.integrations.sdpa installs this when it
is activated with a process group there, or torch.distributed.tensor imported.
"""

import sys
from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor

from ..errors import Unsupported
from ._meanings import scale_of

BATCH, HEADS, ROWS = 0, 1, 2  # the axes of SDPA's tensors (batch, heads, rows, dim)


def _is_balanced() -> bool:
    """Whether context_parallel deals tokens out from both ends."""
    from torch.distributed.tensor import DTensor
    handlers = DTensor._op_dispatcher._custom_op_handlers
    if torch.ops.aten._scaled_dot_product_flash_attention.default not in handlers:
        return False  # no context_parallel: a DTensor's rows lie in order
    from torch.distributed.tensor.experimental import _attention
    options = getattr(_attention, "_cp_options", None)
    if options is None:
        from torch.distributed.tensor.experimental._context_parallel import _attention as newer
        options = newer._cp_options
    return bool(options.enable_load_balance)


def _ring_axis(*tensors: Any) -> Optional[int]:
    """The dimension of the mesh along which rows are divided; None: none."""
    from torch.distributed.tensor import Replicate, Shard
    first = tensors[0]
    for tensor in tensors:
        if tensor.device_mesh != first.device_mesh or tensor.placements != first.placements:
            raise Unsupported(f"query, key and value are placed as {[t.placements for t in tensors]}, want them placed "
                              "alike")
    for placement in first.placements:
        if placement not in (Replicate(), Shard(BATCH), Shard(HEADS), Shard(ROWS)):
            raise Unsupported(f"query is placed as {placement}, want Replicate(), or Shard of the batch, the heads or "
                              "the rows")
    axes = [axis for axis, placement in enumerate(first.placements) if placement == Shard(ROWS)]
    if len(axes) > 1:
        raise Unsupported("the rows are divided along two dimensions of the mesh, want one")
    return axes[0] if axes else None


def _numbers(query: Any, key: Any, is_causal: bool, scale: Optional[float], axis: Optional[int], layout: str) -> Any:
    """SDPA's diagonal: top left."""
    from ..distributed._op import Numbers
    group = query.device_mesh.get_group(axis).group_name if axis is not None else ""
    return Numbers(group, layout, query.shape[ROWS], key.shape[ROWS], None, 0 if is_causal else None, False,
                   scale_of(scale), 0.0, torch.are_deterministic_algorithms_enabled())


def _rows_first(tensor: Any) -> Tensor:
    from .._tensors import dense
    return dense(tensor.to_local().transpose(1, 2))


def _refuse(dropout_p: float, attn_mask: Optional[Tensor]) -> None:
    if dropout_p:
        raise Unsupported("dropout_p is given with DTensors, want 0")
    if attn_mask is not None:
        raise Unsupported("attn_mask is given with DTensors, want None or is_causal")


def forward(op: Any, arguments: Tuple[Any, ...], named: Dict[str, Any]) -> Tuple[Any, ...]:
    """aten::_scaled_dot_product_flash_attention_for_cpu of DTensors."""
    def take(query: Any, key: Any, value: Any, dropout_p: float = 0.0, is_causal: bool = False, *,
             attn_mask: Optional[Tensor] = None, scale: Optional[float] = None) -> Tuple[Any, ...]:
        return query, key, value, dropout_p, is_causal, attn_mask, scale
    query, key, value, dropout_p, is_causal, attn_mask, scale = take(*arguments, **named)
    from torch.distributed.tensor import DTensor

    from ..distributed import _op
    _refuse(dropout_p, attn_mask)
    axis = _ring_axis(query, key, value)
    layout = "zigzag" if axis is not None and _is_balanced() else "ring"
    o, lse = _op.ring(_rows_first(query), _rows_first(key), _rows_first(value),
                      _numbers(query, key, is_causal, scale, axis, layout))
    local = o.transpose(1, 2)
    local._mica_layout = layout  # backward may run outside context_parallel
    return tuple(DTensor.from_local(t, query.device_mesh, query.placements, run_check=False, shape=shape,
                                    stride=torch.empty(shape, device="meta").stride())
                 for t, shape in ((local, query.shape[:-1] + value.shape[-1:]), (lse, query.shape[:-1])))


def backward(op: Any, arguments: Tuple[Any, ...], named: Dict[str, Any]) -> Tuple[Any, ...]:
    """aten::_scaled_dot_product_flash_attention_for_cpu_backward of DTensors."""
    def take(grad_out: Any, query: Any, key: Any, value: Any, out: Any, logsumexp: Any, dropout_p: float, is_causal: bool, *,
             attn_mask: Optional[Tensor] = None, scale: Optional[float] = None) -> Tuple[Any, ...]:
        return grad_out, query, key, value, out, logsumexp, is_causal, scale
    grad_out, query, key, value, out, logsumexp, is_causal, scale = take(*arguments, **named)
    from torch.distributed.tensor import DTensor

    from ..distributed import _op
    axis = _ring_axis(query, key, value)
    layout = getattr(out._local_tensor, "_mica_layout", None) or \
        ("zigzag" if axis is not None and _is_balanced() else "ring")
    if grad_out.placements != query.placements:
        grad_out = grad_out.redistribute(query.device_mesh, query.placements)
    d_o, q, k, v, o = (_rows_first(t) for t in (grad_out, query, key, value, out))
    made = _op.ring_backward(d_o, q, k, v, o, logsumexp.to_local(),
                             _numbers(query, key, is_causal, scale, axis, layout))
    return tuple(DTensor.from_local(t.transpose(1, 2), query.device_mesh, query.placements, run_check=False,
                                    shape=like.shape, stride=like.stride())
                 for t, like in zip(made, (query, key, value)))


def _handlers() -> Optional[Dict[Any, Any]]:
    """PyTorch's own table, which context_parallel adds to and comes back to. DTensor's module takes a second to import:
    it is left alone where neither it nor a process group is there."""
    if not torch.distributed.is_available():
        return None
    if "torch.distributed.tensor" not in sys.modules and not torch.distributed.is_initialized():
        return None
    try:
        from torch.distributed.tensor import DTensor
        handlers: Dict[Any, Any] = DTensor._op_dispatcher._custom_op_handlers
        return handlers
    except (ImportError, AttributeError):
        return None


def install() -> None:
    handlers, aten = _handlers(), torch.ops.aten
    if handlers is not None and hasattr(aten, "_scaled_dot_product_flash_attention_for_cpu"):
        handlers[aten._scaled_dot_product_flash_attention_for_cpu.default] = forward
        handlers[aten._scaled_dot_product_flash_attention_for_cpu_backward.default] = backward


def uninstall() -> None:
    handlers, aten = _handlers(), torch.ops.aten
    if handlers is not None and hasattr(aten, "_scaled_dot_product_flash_attention_for_cpu"):
        handlers.pop(aten._scaled_dot_product_flash_attention_for_cpu.default, None)
        handlers.pop(aten._scaled_dot_product_flash_attention_for_cpu_backward.default, None)
