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
    """Rows of a cos or sin table in fp32, with a head axis; a position outside the table turns by nothing."""
    known = (positions >= 0) & (positions < table.shape[0])
    rows = table[positions.clamp(0, table.shape[0] - 1)].float()
    return torch.where(known.unsqueeze(-1), rows, beyond).unsqueeze(-2)


def _rotate(pairs: Tuple[Tensor, Tensor], cos: Tensor, sin: Tensor) -> Tuple[Tensor, Tensor]:
    first, second = pairs[0].float(), pairs[1].float()
    return first * cos - second * sin, first * sin + second * cos


def _check(x: Tensor, cos: Tensor, sin: Tensor, offsets: Union[int, Tensor], cu_seqlens: Optional[Tensor],
           max_seqlen: Optional[int]) -> None:
    axes = 4 if cu_seqlens is None else 3
    if x.dim() != axes:
        raise ValueError(f"x.shape is {tuple(x.shape)}, want {axes} axes (3 with cu_seqlens, else 4)")
    if cos.dim() != 2 or 2 * cos.shape[1] > x.shape[-1]:
        raise ValueError(f"cos.shape is {tuple(cos.shape)}, want two axes, the last at most {x.shape[-1] // 2} (half of x.shape[-1])")
    if cos.shape != sin.shape:
        raise ValueError(f"sin.shape is {tuple(sin.shape)}, want {tuple(cos.shape)} (= cos.shape)")
    if cu_seqlens is None:
        batch, longest = x.shape[:2]
    else:
        batch, longest = cu_seqlens.shape[0] - 1, x.shape[0] if max_seqlen is None else max_seqlen
    if isinstance(offsets, Tensor):
        if offsets.shape != (batch,):
            raise ValueError(f"seqlen_offsets.shape is {tuple(offsets.shape)}, want ({batch},)")
        offsets = 0  # what they hold is not looked at, which would wait for the device
    elif offsets < 0:
        raise ValueError(f"seqlen_offsets is {offsets}, want 0 or more")
    if longest + offsets > cos.shape[0]:
        unknown = ", or max_seqlen" if cu_seqlens is not None and max_seqlen is None else ""
        raise ValueError(f"cos.shape[0] is {cos.shape[0]}, want {longest + offsets} or more (rows of x + seqlen_offsets){unknown}")


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
    arithmetic is fp32, the result has x's type. max_seqlen: the longest packed sequence, which says how many rows of cos it
    takes. A position outside the tables, to which a tensor of offsets may lead, turns by nothing.
    """
    _check(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen)
    rotary_dim = 2 * cos.shape[-1]
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
