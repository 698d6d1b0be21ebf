# SPDX-License-Identifier: Apache-2.0
"""A rank's part of a whole tensor, and the whole of everybody's parts: tokens, position ids, labels."""

from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor

from ..errors import InvalidArgument
from ._groups import Ranks, ranks_of
from ._layout import Chunk, check_layout, chunks_of, count_of
from ._mail import mail_of


def _take(x: Tensor, chunks: Tuple[Chunk, ...], dim: int) -> Tensor:
    parts = []
    for chunk in chunks:
        index: List[Any] = [slice(None)] * x.dim()
        index[dim] = slice(chunk.first, chunk.first + (chunk.count - 1) * chunk.step + 1, chunk.step)
        parts.append(x[tuple(index)])
    return torch.cat(parts, dim) if parts else x.narrow(dim, 0, 0).clone()


def _chunks(layout: str, length: int, ranks: Ranks, rank: int) -> Tuple[Chunk, ...]:
    row, column = divmod(rank, ranks.columns)
    return chunks_of(layout, length, ranks.rows, row, ranks.columns, column)


def shard(x: Tensor, *, group: Any = None, layout: str = "ring", dim: int = 1) -> Tensor:
    """This rank's tokens of x, which every rank has whole; dim is the axis of tokens."""
    ranks = ranks_of(group, check_layout(layout))
    return _take(x, _chunks(layout, x.shape[dim], ranks, ranks.rank), dim % x.dim())


def positions(seqlen: int, *, group: Any = None, layout: str = "ring", device: Any = None) -> Tensor:
    """The places in the sequence of this rank's tokens: int64 (tokens here,), as position ids and rotary want them."""
    ranks = ranks_of(group, check_layout(layout))
    return _take(torch.arange(seqlen, device=device), _chunks(layout, seqlen, ranks, ranks.rank), 0)


class _Unshard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, layout: str, dim: int, length: int) -> Tensor:
        ctx.arguments = ranks, layout, dim, length
        mail = mail_of(ranks.group, x.device)
        counts = [count_of(_chunks(layout, length, ranks, rank)) for rank in range(ranks.size)]
        moved = x.movedim(dim, 0)
        padded = moved.new_zeros((max(counts), *moved.shape[1:]))
        padded[:moved.shape[0]] = moved
        whole = moved.new_empty((length, *moved.shape[1:]))
        for rank, part in enumerate(mail.all_gather(padded)):
            at = 0
            for chunk in _chunks(layout, length, ranks, rank):
                end = chunk.first + (chunk.count - 1) * chunk.step + 1
                whole[chunk.first:end:chunk.step] = part[at:at + chunk.count]
                at += chunk.count
        return whole.movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _ShardOfSum.apply(gradient, *ctx.arguments), None, None, None, None


class _ShardOfSum(torch.autograd.Function):
    """This rank's tokens of the sum of what every rank has whole: the gradient of _Unshard, whose gradient is that."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, ranks: Ranks, layout: str, dim: int, length: int) -> Tensor:
        ctx.arguments = ranks, layout, dim, length
        total = mail_of(ranks.group, whole.device).all_gather(whole.contiguous()).sum(0)
        return _take(total, _chunks(layout, length, ranks, ranks.rank), dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _Unshard.apply(gradient, *ctx.arguments), None, None, None, None


def unshard(x: Tensor, *, group: Any = None, layout: str = "ring", dim: int = 1,
            seqlen: Optional[int] = None) -> Tensor:
    """The whole of which every rank has its part; seqlen: its length, where the ranks do not all hold as many tokens.
    Gradients are summed over the ranks."""
    ranks = ranks_of(group, check_layout(layout))
    dim %= x.dim()
    length = x.shape[dim] * ranks.size if seqlen is None else seqlen
    held = count_of(_chunks(layout, length, ranks, ranks.rank))
    if held != x.shape[dim]:
        raise InvalidArgument(f"x.shape[{dim}] is {x.shape[dim]} on rank {ranks.rank}, want {held}: layout {layout!r} "
                              f"of {length} tokens over {ranks.size} ranks; pass seqlen, the length of the whole")
    return _Unshard.apply(x, ranks, layout, dim, length)
