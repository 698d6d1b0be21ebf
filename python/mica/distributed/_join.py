# SPDX-License-Identifier: Apache-2.0
"""Partial results of the same rows joined exactly, by their LSE.

Each part has o, the average of its values by its own probabilities, and lse, the logarithm of what those were divided
by; in the whole its weight is exp(lse) over the sum of all. The whole is kept in fp32.
"""

from typing import Optional, Tuple

import torch
from torch import Tensor

INFINITY = float("inf")


def by_rows(of_heads: Tensor) -> Tensor:
    """(batch, heads, rows) as a factor of (batch, rows, heads, dim)."""
    return of_heads.transpose(1, 2).unsqueeze(-1)


def share_of_second(lse: Tensor, lse_second: Tensor) -> Tensor:
    """exp(second) / (exp(first) + exp(second)); 0 where both are empty."""
    return torch.nan_to_num(torch.sigmoid(lse_second - lse), nan=0.0)


class Joined:
    """The running whole of a rank's rows: o (batch, rows, heads, dim_v) in fp32 and lse (batch, heads, rows)."""

    def __init__(self, shape: Tuple[int, ...], device: torch.device) -> None:
        self._shape, self._device = shape, device
        self._o: Optional[Tensor] = None
        self._lse: Optional[Tensor] = None

    def _start(self) -> Tuple[Tensor, Tensor]:
        if self._o is None or self._lse is None:
            batch, rows, heads, _ = self._shape
            self._o = torch.zeros(self._shape, dtype=torch.float32, device=self._device)
            self._lse = torch.full((batch, heads, rows), -INFINITY, dtype=torch.float32, device=self._device)
        return self._o, self._lse

    def add(self, begin: int, end: int, o: Tensor, lse: Tensor) -> None:
        """A partial result of rows [begin, end)."""
        if self._o is None and (begin, end) == (0, self._shape[1]):
            self._o, self._lse = o.to(torch.float32), lse
            return
        whole_o, whole_lse = self._start()
        rows_o, rows_lse = whole_o[:, begin:end], whole_lse[:, :, begin:end]
        rows_o.lerp_(o.to(torch.float32), by_rows(share_of_second(rows_lse, lse)))
        rows_lse.copy_(torch.logaddexp(rows_lse, lse))

    def add_sinks(self, sinks: Tensor) -> None:
        """A key per head whose value is 0."""
        o, lse = self._start()
        sink = sinks.to(torch.float32)[None, :, None].expand_as(lse)
        o.mul_(by_rows(share_of_second(sink, lse)))
        lse.copy_(torch.logaddexp(lse, sink))

    def result(self) -> Tuple[Tensor, Tensor]:
        return self._start()


def sink_gradient(sinks: Tensor, o: Tensor, lse: Tensor, d_o: Tensor, d_lse: Optional[Tensor]) -> Tensor:
    """Of these rows: a sink takes its share of the probability from all values."""
    share = torch.nan_to_num(torch.exp(sinks.to(torch.float32)[None, :, None] - lse), nan=0.0, posinf=0.0)
    change = -(d_o.to(torch.float32) * o.to(torch.float32)).sum(-1).transpose(1, 2)
    if d_lse is not None:
        change = change + d_lse
    return (share * change).sum((0, 2)).to(sinks.dtype)
