# SPDX-License-Identifier: Apache-2.0
"""From a part of the rows with all heads to all rows with a part of the heads, and back: one all-to-all each way."""

from functools import lru_cache
from typing import Any, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import Function

from .._autograd import final
from ..errors import InvalidArgument
from ._mail import Mail

Range = Tuple[int, int]


class Heads(NamedTuple):
    """Which heads each rank computes. Key heads of two ranks are the same where the ranks are more than the heads."""
    queries: Tuple[Range, ...]
    keys: Tuple[Range, ...]


@lru_cache(maxsize=None)
def heads_of(heads_q: int, heads_k: int, size: int) -> Heads:
    """Whole groups of heads to every rank; where there are fewer groups than ranks, equal parts of a group."""
    group = heads_q // heads_k
    if heads_k >= size:
        cuts = [heads_k * rank // size for rank in range(size + 1)]
        keys = tuple(zip(cuts, cuts[1:]))
        return Heads(tuple((begin * group, end * group) for begin, end in keys), keys)
    if size % heads_k or group % (size // heads_k):
        raise InvalidArgument(
            f"q has {heads_q} heads and k {heads_k} for {size} ranks: want at least {size} key heads, or ranks that "
            f"are a multiple of the key heads and divide the heads of q; layouts 'ring', 'zigzag' and 'ulysses x ring' "
            "divide no heads, or fewer")
    share, ranks_of_head = heads_q // size, size // heads_k
    return Heads(tuple((rank * share, (rank + 1) * share) for rank in range(size)),
                 tuple((rank // ranks_of_head, rank // ranks_of_head + 1) for rank in range(size)))


def _to_heads(mail: Mail, x: Tensor, heads: Tuple[Range, ...], rows: Tuple[int, ...]) -> Tensor:
    """(batch, my rows, all heads, dim) to (batch, all rows, my heads, dim)."""
    batch, _, _, dim = x.shape
    parts = [x[:, :, begin:end] for begin, end in heads]
    mine = heads[mail.rank][1] - heads[mail.rank][0]
    counts = [batch * count * mine * dim for count in rows]
    flat = mail.all_to_all(torch.cat([part.reshape(-1) for part in parts]), [part.numel() for part in parts], counts)
    return torch.cat([part.view(batch, count, mine, dim) for part, count in zip(flat.split(counts), rows)], 1)


def _to_rows(mail: Mail, x: Tensor, heads: Tuple[Range, ...], rows: Tuple[int, ...], all_heads: int) -> Tensor:
    """The way back. What several ranks have of the same head is summed, in x's type."""
    batch, _, _, dim = x.shape
    parts = x.split(rows, 1)
    counts = [batch * rows[mail.rank] * (end - begin) * dim for begin, end in heads]
    flat = mail.all_to_all(torch.cat([part.reshape(-1) for part in parts]), [part.numel() for part in parts], counts)
    pieces = [part.view(batch, rows[mail.rank], end - begin, dim)
              for part, (begin, end) in zip(flat.split(counts), heads)]
    if sum(end - begin for begin, end in heads) == all_heads:
        return torch.cat(pieces, 2)
    whole = x.new_zeros(batch, rows[mail.rank], all_heads, dim)
    for piece, (begin, end) in zip(pieces, heads):
        whole[:, :, begin:end] += piece
    return whole


class ToHeads(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mail: Mail, heads: Tuple[Range, ...], rows: Tuple[int, ...]) -> Tensor:
        ctx.arguments = mail, heads, rows, x.shape[2]
        return _to_heads(mail, x, heads, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        mail, heads, rows, all_heads = ctx.arguments
        is_shared = sum(end - begin for begin, end in heads) != all_heads
        wide = gradient.to(torch.float32) if is_shared else gradient
        made = _to_rows(mail, wide, heads, rows, all_heads).to(gradient.dtype)
        return final(made, gradient), None, None, None


class ToRows(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mail: Mail, heads: Tuple[Range, ...], rows: Tuple[int, ...],
                all_heads: int) -> Tensor:
        ctx.arguments = mail, heads, rows
        return _to_rows(mail, x, heads, rows, all_heads)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        mail, heads, rows = ctx.arguments
        return final(_to_heads(mail, gradient, heads, rows), gradient), None, None, None, None


class Turned(NamedTuple):
    """q, k and v as all rows of some heads, and what of the per-head arguments belongs to those."""
    q: Tensor
    k: Tensor
    v: Tensor
    sinks: Optional[Tensor]
    alibi: Optional[Tensor]
    head_first: int


def turn(mail: Mail, heads: Heads, rows_q: Tuple[int, ...], rows_k: Tuple[int, ...], q: Tensor, k: Tensor, v: Tensor,
         sinks: Optional[Tensor], alibi: Optional[Tensor]) -> Turned:
    begin, end = heads.queries[mail.rank]
    return Turned(ToHeads.apply(q, mail, heads.queries, rows_q), ToHeads.apply(k, mail, heads.keys, rows_k),
                  ToHeads.apply(v, mail, heads.keys, rows_k), None if sinks is None else sinks[begin:end],
                  None if alibi is None else alibi[..., begin:end].contiguous(), begin)


def turn_back(mail: Mail, heads: Heads, rows_q: Tuple[int, ...], all_heads: int, o: Tensor,
              lse: Optional[Tensor]) -> Tuple[Tensor, Optional[Tensor]]:
    made: List[Optional[Tensor]] = [ToRows.apply(o, mail, heads.queries, rows_q, all_heads), None]
    if lse is not None:
        rows = ToRows.apply(lse.transpose(1, 2).unsqueeze(-1), mail, heads.queries, rows_q, all_heads)
        made[1] = rows.squeeze(-1).transpose(1, 2)
    return made[0], made[1]
