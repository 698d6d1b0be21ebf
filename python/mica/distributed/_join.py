# SPDX-License-Identifier: Apache-2.0
"""Partial results of the same rows joined exactly, by their LSE.

Each part has o, the average of its values by its own probabilities, and lse, the logarithm of what those were divided
by; in the whole its weight is exp(lse) over the sum of all. The whole is kept in fp32.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from ..errors import InvalidArgument

INFINITY = float("inf")
MOST_PARTS = 8  # that the kernel joins at once


def by_rows(of_heads: Tensor) -> Tensor:
    """(batch, heads, rows) as a factor of (batch, rows, heads, dim)."""
    return of_heads.transpose(1, 2).unsqueeze(-1)


def share_of_second(lse: Tensor, lse_second: Tensor) -> Tensor:
    """exp(second) / (exp(first) + exp(second)); 0 where both are empty."""
    return torch.nan_to_num(torch.sigmoid(lse_second - lse), nan=0.0)


def check_sinks(sinks: Optional[Tensor], q: Tensor) -> None:
    """As the library wants them, which does not get to see them here."""
    if sinks is None:
        return
    if sinks.shape != q.shape[-2:-1]:
        raise InvalidArgument(f"sinks is {tuple(sinks.shape)}, want ({q.shape[-2]},), the heads of q")
    if sinks.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise InvalidArgument(f"sinks.dtype is {sinks.dtype}, want float32, float16 or bfloat16")
    if sinks.device != q.device:
        raise InvalidArgument(f"sinks is on {sinks.device}, want {q.device} (q's)")


class Part(NamedTuple):
    """Of rows [begin, end): o (batch, rows, heads, dim_v) and lse (batch, heads, rows), both contiguous."""
    begin: int
    end: int
    o: Tensor
    lse: Tensor


_kernels: Dict[torch.device, Optional[Callable[..., Any]]] = {}


def _kernel(device: torch.device) -> Optional[Callable[..., Any]]:
    """Joins several parts in one pass on a GPU; None where it cannot be had: no Triton, no compiler for it, or the first
    call comes while a graph is captured."""
    if device.type != "cuda" or device in _kernels or torch.cuda.is_current_stream_capturing():
        return _kernels.get(device)
    _kernels[device] = None
    try:
        from ._join_kernel import join
        o, lse = torch.ones((1, 1, 1, 16), device=device), torch.zeros((1, 1, 1), device=device)
        join([Part(0, 1, o, lse), Part(0, 1, 2 * o, lse)], None, o, lse)
        if bool((o == 1.5).all()):
            _kernels[device] = join
    except Exception:  # a compiler at work: whatever it raises, there is another way
        pass
    return _kernels[device]


class Joined:
    """The whole of a rank's rows, of parts that come one after the other.

    With a kernel that joins several parts, on a GPU, parts wait for it in their own type. Else there is a running whole
    in fp32 for each stretch of rows."""

    def __init__(self, shape: Tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        """shape: (batch, rows, heads, dim_v), of the whole; dtype: of its o."""
        self._shape, self._device, self._dtype = shape, device, dtype
        self._kernel = _kernel(device)
        self._parts: List[Part] = []

    @property
    def waits(self) -> bool:
        """Whether add() reads no part before it is_full."""
        return self._kernel is not None

    @property
    def is_full(self) -> bool:
        return self.waits and len(self._parts) == MOST_PARTS

    def add(self, part: Part) -> None:
        """It may be written into."""
        if self._kernel is not None:
            if self.is_full:
                self._parts = [self._join(torch.float32, None)]
            self._parts.append(part)
            return
        for at, before in enumerate(self._parts):
            if before[:2] == part[:2]:
                share = by_rows(share_of_second(before.lse, part.lse))
                self._parts[at] = part._replace(o=before.o.lerp_(part.o.to(torch.float32), share),
                                                lse=torch.logaddexp(before.lse, part.lse))
                return
        self._parts.append(part._replace(o=part.o.to(torch.float32)))

    def result(self, sinks: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
        """The whole. A sink is a key per head whose value is 0."""
        is_whole = len(self._parts) == 1 and self._parts[0][:2] == (0, self._shape[1])
        if self._kernel is not None and self._parts and not (is_whole and sinks is None):
            return self._join(self._dtype, sinks)[2:]
        o, lse = self._parts[0][2:] if is_whole else self._whole()
        if sinks is not None:
            sink = sinks.to(torch.float32)[None, :, None].expand_as(lse)
            o, lse = o * by_rows(share_of_second(sink, lse)), torch.logaddexp(lse, sink)
        return o.to(self._dtype), lse

    def _empty(self, dtype: torch.dtype) -> Part:
        batch, rows, heads, _ = self._shape
        return Part(0, rows, torch.empty(self._shape, dtype=dtype, device=self._device),
                    torch.empty((batch, heads, rows), dtype=torch.float32, device=self._device))

    def _join(self, dtype: torch.dtype, sinks: Optional[Tensor]) -> Part:
        made = self._empty(dtype)
        assert self._kernel is not None
        self._kernel(self._parts, None if sinks is None else sinks.contiguous(), made.o, made.lse)
        return made

    def _whole(self) -> Tuple[Tensor, Tensor]:
        whole = self._empty(torch.float32)
        o, lse = whole.o.zero_(), whole.lse.fill_(-INFINITY)
        for begin, end, part, part_lse in self._parts:
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
