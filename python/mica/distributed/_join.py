# SPDX-License-Identifier: Apache-2.0
"""Partial results of the same rows joined exactly, by their LSE.

Each part has o, the average of its values by its own probabilities, and lse, the logarithm of what those were divided
by; in the whole its weight is exp(lse) over the sum of all. The whole is kept in fp32.
"""

from functools import lru_cache
from typing import Callable, Dict, Optional, Tuple

import torch
from torch import Tensor

INFINITY = float("inf")


def by_rows(of_heads: Tensor) -> Tensor:
    """(batch, heads, rows) as a factor of (batch, rows, heads, dim)."""
    return of_heads.transpose(1, 2).unsqueeze(-1)


def share_of_second(lse: Tensor, lse_second: Tensor) -> Tensor:
    """exp(second) / (exp(first) + exp(second)); 0 where both are empty."""
    return torch.nan_to_num(torch.sigmoid(lse_second - lse), nan=0.0)


@lru_cache(maxsize=None)
def _fused(device: torch.device) -> Optional[Callable]:
    """o + share * (part - o) as one kernel that PyTorch compiles on the GPU, reading the part in its own type: half the
    traffic of a conversion and a lerp. None where this PyTorch cannot, or does something else."""
    try:
        join: Callable = torch.cuda.jiterator._create_jit_fn(
            "template <typename T> T join(T o, T part, T share) { return o + share * (part - o); }")
        o, part = torch.zeros(1, 2, 2, 3, device=device), torch.ones(1, 2, 2, 3, device=device, dtype=torch.bfloat16)
        share = torch.full((1, 2, 2), 0.25, device=device).transpose(1, 2).unsqueeze(-1)
        made = join(o, part, share)
        return join if made.dtype is torch.float32 and bool((made == 0.25).all()) else None
    except Exception:  # a prototype of PyTorch's: whatever it raises, there is another way
        return None


def _join_values(o: Tensor, part: Tensor, share: Tensor) -> Tensor:
    """In fp32; may write into o."""
    if o.is_cuda and part.dtype is not torch.float32 and not torch.cuda.is_current_stream_capturing():
        fused = _fused(o.device)
        if fused is not None:
            return fused(o, part, share)
    return o.lerp_(part.to(torch.float32), share)


class Joined:
    """The running whole of a rank's rows: o (batch, rows, heads, dim_v) in fp32 and lse (batch, heads, rows). Stretches
    of rows are kept apart until the end."""

    def __init__(self, shape: Tuple[int, ...], device: torch.device) -> None:
        self._shape, self._device = shape, device
        self._parts: Dict[Tuple[int, int], Tuple[Tensor, Tensor]] = {}

    def add(self, begin: int, end: int, o: Tensor, lse: Tensor) -> None:
        """A partial result of rows [begin, end), which may be written into."""
        before = self._parts.get((begin, end))
        if before is None:
            self._parts[begin, end] = o.to(torch.float32), lse
            return
        whole_o, whole_lse = before
        share = by_rows(share_of_second(whole_lse, lse))
        self._parts[begin, end] = _join_values(whole_o, o, share), torch.logaddexp(whole_lse, lse)

    def result(self, sinks: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
        """The whole. A sink is a key per head whose value is 0."""
        o, lse = self._whole()
        if sinks is not None:
            sink = sinks.to(torch.float32)[None, :, None].expand_as(lse)
            o, lse = o * by_rows(share_of_second(sink, lse)), torch.logaddexp(lse, sink)
        return o, lse

    def _whole(self) -> Tuple[Tensor, Tensor]:
        batch, rows, heads, _ = self._shape
        if len(self._parts) == 1 and (0, rows) in self._parts:
            return self._parts[0, rows]
        o = torch.zeros(self._shape, dtype=torch.float32, device=self._device)
        lse = torch.full((batch, heads, rows), -INFINITY, dtype=torch.float32, device=self._device)
        for (begin, end), (part, part_lse) in self._parts.items():
            rows_lse = lse[:, :, begin:end]
            o[:, begin:end].lerp_(part, by_rows(share_of_second(rows_lse, part_lse)))
            rows_lse.copy_(torch.logaddexp(rows_lse, part_lse))
        return o, lse


def sink_gradient(sinks: Tensor, o: Tensor, lse: Tensor, d_o: Tensor, d_lse: Optional[Tensor]) -> Tensor:
    """Of these rows: a sink takes its share of the probability from all values."""
    share = torch.nan_to_num(torch.exp(sinks.to(torch.float32)[None, :, None] - lse), nan=0.0, posinf=0.0)
    change = -(d_o.to(torch.float32) * o.to(torch.float32)).sum(-1).transpose(1, 2)
    if d_lse is not None:
        change = change + d_lse
    return (share * change).sum((0, 2)).to(sinks.dtype)
