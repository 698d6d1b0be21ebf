# SPDX-License-Identifier: Apache-2.0
"""What torch.utils.flop_counter counts for the ops: the products, of all pairs, as it does for SDPA."""

from typing import Any, Optional

from torch import Tensor


def _pairs(q: Tensor, k: Tensor, cu_seqlens_q: Optional[Tensor], cu_seqlens_k: Optional[Tensor]) -> int:
    """(row, key) pairs of all sequences, of one head."""
    if cu_seqlens_q is not None and cu_seqlens_k is not None:
        lengths_q, lengths_k = (cu[1:].long() - cu[:-1].long() for cu in (cu_seqlens_q, cu_seqlens_k))
        return int((lengths_q * lengths_k).sum())
    pairs: int = q.shape[0] * q.shape[1] * k.shape[1] if q.dim() == 4 else q.shape[0] * k.shape[-3]
    return pairs


def _forward(q: Tensor, k: Tensor, v: Tensor, mask: Any, bias: Any, alibi: Any, sinks: Any, cu_q: Optional[Tensor],
             cu_k: Optional[Tensor], used_q: Any, used_k: Any, rng_state: Any, leftpad: Any, batch_idx: Any, block_table: Any,
             qv: Optional[Tensor], *rest: Any, **kwargs: Any) -> int:
    columns = q.shape[-1] + v.shape[-1] + (0 if qv is None else qv.shape[-1])
    flops: int = 2 * _pairs(q, k, cu_q, cu_k) * q.shape[-2] * columns
    return flops


def _backward(d_o: Tensor, d_lse: Any, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, mask: Any, bias: Any,
              alibi: Any, sinks: Any, cu_q: Optional[Tensor], cu_k: Optional[Tensor], *rest: Any, **kwargs: Any) -> int:
    """The scores again, dQ and dK; the probabilities' gradient and dV."""
    flops: int = 2 * _pairs(q, k, cu_q, cu_k) * q.shape[-2] * (3 * q.shape[-1] + 2 * v.shape[-1])
    return flops


def register_flops(forward: Any, backward: Any) -> None:
    try:
        from torch.utils.flop_counter import flop_registry, register_flop_formula
    except ImportError:
        return
    for op, formula in ((forward, _forward), (backward, _backward)):
        register_flop_formula(op, get_raw=True)(formula)
        flop_registry.setdefault(op, formula)  # PyTorch 2.4 notes its overloads, and then asks for the op
