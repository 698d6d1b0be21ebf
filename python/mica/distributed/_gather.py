# SPDX-License-Identifier: Apache-2.0
"""The keys that a rank's rows of a packed stream see, fetched from the ranks that hold them: one all-to-all each way.

Every rank knows where all sequences lie, so each sends a rank only rows that it needs.
"""

from typing import Any, List, NamedTuple, Tuple

import torch
from torch import Tensor
from torch.autograd.function import Function

from .._autograd import final
from ._mail import Mail

Range = Tuple[int, int]


class Fetch(NamedTuple):
    """Rows of the stream: held[r] are rank r's own, needed[r] those that it computes with."""
    held: Tuple[Range, ...]
    needed: Tuple[Range, ...]

    def given(self, giver: int, taker: int) -> Range:
        """Of the giver's rows, counted in its own tensor."""
        (begin, end), (low, high) = self.held[giver], self.needed[taker]
        first = min(max(low, begin), end)
        return first - begin, max(first, min(high, end)) - begin


def _rows(x: Tensor, ranges: List[Range]) -> Tensor:
    return torch.cat([x[begin:end].reshape(-1) for begin, end in ranges])


class FetchRows(Function):
    """(rows held, heads, dim) to (rows needed, heads, dim); gradients go back and are summed in fp32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mail: Mail, fetch: Fetch) -> Tensor:
        ctx.mail, ctx.fetch = mail, fetch
        width = x.shape[1] * x.shape[2]
        out = [fetch.given(mail.rank, taker) for taker in range(mail.size)]
        come = [fetch.given(giver, mail.rank) for giver in range(mail.size)]
        flat = mail.all_to_all(_rows(x, out), [(end - begin) * width for begin, end in out],
                               [(end - begin) * width for begin, end in come])
        return flat.view(-1, *x.shape[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        mail, fetch = ctx.mail, ctx.fetch
        shape = gradient.shape[1:]
        width = shape[0] * shape[1]
        come = [fetch.given(giver, mail.rank) for giver in range(mail.size)]
        out = [fetch.given(mail.rank, taker) for taker in range(mail.size)]
        counts = [(end - begin) * width for begin, end in out]
        flat = mail.all_to_all(gradient.to(torch.float32).reshape(-1), [(end - begin) * width for begin, end in come],
                               counts)
        begin, end = fetch.held[mail.rank]
        whole = gradient.new_zeros((end - begin, *shape), dtype=torch.float32)
        for part, (first, last) in zip(flat.split(counts), out):
            whole[first:last] += part.view(-1, *shape)
        return final(whole.to(gradient.dtype), gradient), None, None
