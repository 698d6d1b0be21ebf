# SPDX-License-Identifier: Apache-2.0
"""apply_rotary: rotates pairs of features by an angle per position. Plain torch on every device; torch.compile fuses
it."""
from typing import Optional, Tuple, Union

import torch
from torch import Tensor


def _positions(x: Tensor, offsets: Union[int, Tensor], cu_seqlens: Optional[Tensor]) -> Tensor:
    """The position of every token of x: (seqlen,), (batch, seqlen) or, packed, (total,)."""
    if cu_seqlens is None:
        steps = torch.arange(x.shape[1], device=x.device)
        return steps + offsets.unsqueeze(1) if isinstance(offsets, Tensor) else steps + offsets
    steps = torch.arange(x.shape[0], device=x.device)
    last = cu_seqlens.shape[0] - 2
    sequence = torch.searchsorted(cu_seqlens[1:].contiguous(), steps, right=True).clamp(max=max(last, 0))
    positions = steps - cu_seqlens[sequence]
    return positions + (offsets[sequence] if isinstance(offsets, Tensor) else offsets)


def _angles(table: Tensor, positions: Tensor, beyond: float) -> Tensor:
    """Rows of a cos or sin table in fp32, with a head axis; a position past the table turns by nothing."""
    known = positions < table.shape[0]
    rows = table[positions.clamp(max=table.shape[0] - 1)].float()
    return torch.where(known.unsqueeze(-1), rows, beyond).unsqueeze(-2)


def _rotate(pairs: Tuple[Tensor, Tensor], cos: Tensor, sin: Tensor) -> Tuple[Tensor, Tensor]:
    first, second = pairs[0].float(), pairs[1].float()
    return first * cos - second * sin, first * sin + second * cos


def apply_rotary(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    seqlen_offsets: Union[int, Tensor] = 0,
    cu_seqlens: Optional[Tensor] = None,
    max_seqlen: Optional[int] = None,
    interleaved=False,
    inplace=False,
    conjugate=False,
) -> Tensor:
    """Rotates the first rotary_dim features of x (batch, seqlen, heads, dim), or (total, heads, dim) with cu_seqlens.

    cos, sin: (positions, rotary_dim / 2). interleaved: pairs (0,1) (2,3) ...; otherwise (0, r/2) (1, r/2 + 1) ...
    seqlen_offsets, an int or (batch,), shifts each sequence. conjugate turns the other way (the gradient). The
    arithmetic is fp32, the result has x's type. max_seqlen is upstream's and not needed.
    """
    rotary_dim = 2 * cos.shape[-1]
    if rotary_dim > x.shape[-1]:
        raise ValueError(f"cos.shape[-1] is {cos.shape[-1]}, want at most {x.shape[-1] // 2} (half of x.shape[-1])")
    if cos.shape != sin.shape:
        raise ValueError(f"sin.shape is {tuple(sin.shape)}, want {tuple(cos.shape)} (= cos.shape)")
    positions = _positions(x, seqlen_offsets, cu_seqlens)
    cos, sin = _angles(cos, positions, 1.0), _angles(sin, positions, 0.0)
    if conjugate:
        sin = -sin
    turned = x[..., :rotary_dim]
    if interleaved:
        rotated = torch.stack(_rotate((turned[..., 0::2], turned[..., 1::2]), cos, sin), dim=-1).flatten(-2)
    else:
        rotated = torch.cat(_rotate(turned.chunk(2, dim=-1), cos, sin), dim=-1)
    if inplace:
        turned.copy_(rotated)
        return x
    rotated = rotated.to(x.dtype)
    return rotated if rotary_dim == x.shape[-1] else torch.cat((rotated, x[..., rotary_dim:]), dim=-1)
