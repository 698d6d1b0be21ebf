# SPDX-License-Identifier: Apache-2.0
"""One group of pieces computed by the library, forward and backward."""

from functools import lru_cache
from typing import Any, Dict, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from .. import _abi, _tensors
from .._caller import output_dtype
from ._join import Part
from ._lanes import Lanes
from ._pieces import Group, Piece
from ._query_sums import QuerySums
from ._sum import Sum


class Call(NamedTuple):
    """What all pieces of a call share. heads: of the whole, of which this rank has those from head_first on."""
    scale: float
    softcap: float
    dropout: float
    is_packed: bool
    has_alibi: bool
    head_first: int
    heads: int
    deterministic: bool


def _place(piece: Piece, call: Call, shift: int) -> Tuple[int, ...]:
    if not call.dropout:
        return (shift,) if shift else ()
    q, k = piece.q.chunk, piece.k.chunk
    return (shift, q.first, q.step, k.first, k.step, piece.q.sequence if call.is_packed else 0, call.head_first,
            call.heads)


def _options(group: Group, call: Call) -> Dict[str, Any]:
    """The numbers of mica._tensors for the group."""
    piece = group.pieces[0]
    corner = piece.k.chunk.count - piece.q.chunk.count if group.corner == "bottom-right" else 0
    # The diagonal is free where there is no ALiBi: any limit may be it.
    has_limit = piece.lower is not None or piece.upper is not None
    at = piece.diagonal if call.has_alibi else piece.upper if piece.upper is not None else piece.lower or 0
    limits = dict(window_left=-1 if piece.lower is None else at - piece.lower,
                  window_right=-1 if piece.upper is None else piece.upper - at)
    if has_limit or call.has_alibi:
        limits["diagonal"] = _abi.DIAGONAL_BOTTOM_RIGHT if corner or group.corner == "bottom-right" else \
            _abi.DIAGONAL_TOP_LEFT
    shift = at - corner if has_limit or call.has_alibi else 0
    return dict(limits, place=_place(piece, call, shift), scale=call.scale, softcap=call.softcap, dropout=call.dropout)


@lru_cache(maxsize=1024)
def _lengths(group: Group, device: torch.device) -> Dict[str, Tensor]:
    """The int32 vectors of a packed call: where each part begins, and how long it is."""
    def of(parts: Tuple[Any, ...]) -> Tuple[Tensor, Tensor]:
        begins = [part.begin for part in parts] + [parts[-1].end]
        return (torch.tensor(begins, dtype=torch.int32, device=device),
                torch.tensor([part.chunk.count for part in parts], dtype=torch.int32, device=device))
    (cu_q, used_q), (cu_k, used_k) = (of(tuple(getattr(piece, side) for piece in group.pieces)) for side in "qk")
    longest = {f"max_seqlen_{side}": max(getattr(piece, side).chunk.count for piece in group.pieces) for side in "qk"}
    return dict(cu_seqlens_q=cu_q, seqused_q=used_q, cu_seqlens_k=cu_k, seqused_k=used_k, **longest)


class Rows(NamedTuple):
    """The rows that a group's call reads: of the queries' tensors and of the keys'."""
    begin: int
    end: int
    key_begin: int
    key_end: int
    vectors: Dict[str, Any]

    def packed(self, *tensors: Any) -> Tuple[Any, ...]:
        """As the call wants them: packed tensors have no batch."""
        return tuple(t[0] if self.vectors and isinstance(t, Tensor) else t for t in tensors)


def rows_of(group: Group, device: torch.device, rows: int, keys: int) -> Rows:
    if len(group.pieces) > 1:
        return Rows(0, rows, 0, keys, _lengths(group, device))
    piece = group.pieces[0]
    return Rows(piece.q.begin, piece.q.end, piece.k.begin, piece.k.end, {})


class Slopes:
    """ALiBi for a piece. Where tokens are `step` apart a distance counts so much more, and what a step does not cover
    (`rest`) is the same for all keys before the diagonal: it leaves the probabilities alone and moves the LSE."""

    def __init__(self, alibi: Optional[Tensor], group: Group) -> None:
        piece = group.pieces[0]
        step = piece.q.chunk.step
        self.alibi, self.moved = alibi, None
        if alibi is None or step == 1:
            return
        self.alibi = alibi * step
        if piece.rest:
            self.moved = (alibi * piece.rest).reshape(-1, alibi.shape[-1], 1)  # (batch or 1, heads, 1)


def _inputs(group: Group, alibi: Optional[Tensor], rng_state: Optional[Tensor], call: Call) -> Dict[str, Any]:
    return dict(_options(group, call), alibi=alibi, rng_state=rng_state, deterministic=call.deterministic)


def forward(q: Tensor, k: Tensor, v: Tensor, group: Group, call: Call, alibi: Optional[Tensor],
            rng_state: Optional[Tensor], lanes: Lanes) -> Part:
    """Of the group's rows. On a CPU o is fp32; on a GPU it has the whole's type, which its fast kernels write."""
    rows = rows_of(group, q.device, q.shape[1], k.shape[1])
    slopes = Slopes(alibi, group)
    some_q, some_k, some_v = q[:, rows.begin:rows.end], k[:, rows.key_begin:rows.key_end], v[:, rows.key_begin:
                                                                                             rows.key_end]
    dtype = output_dtype(q) if q.is_cuda else torch.float32
    make = torch.zeros if rows.vectors else torch.empty
    o = make((*some_q.shape[:-1], v.shape[-1]), dtype=dtype, device=q.device)
    lse = torch.empty((q.shape[0], q.shape[2], some_q.shape[1]), dtype=torch.float32, device=q.device)
    if rows.vectors:
        lse.fill_(-float("inf"))
    packed_q, packed_k, packed_v = rows.packed(some_q, some_k, some_v)
    with lanes.on(k, v, rows, slopes, o, lse):
        _tensors.forward(packed_q, packed_k, packed_v, out=rows.packed(o)[0], lse=rows.packed(lse)[0],
                         **rows.vectors, **_inputs(group, slopes.alibi, rng_state, call))
        if slopes.moved is not None:
            lse.sub_(slopes.moved)
    return Part(rows.begin, rows.end, o, lse)


def backward(d_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, d_lse: Optional[Tensor],
             group: Group, call: Call, alibi: Optional[Tensor], rng_state: Optional[Tensor],
             sums: Tuple[Sum, Sum, Sum], query_sums: Optional[QuerySums], lanes: Lanes) -> None:
    """Adds the group's gradients of q, k and v to the sums, that of q to query_sums where it can. o and lse are those of
    the whole: with them a piece's probabilities are those of the whole softmax."""
    rows = rows_of(group, q.device, q.shape[1], k.shape[1])
    slopes = Slopes(alibi, group)
    mine, keys = slice(rows.begin, rows.end), slice(rows.key_begin, rows.key_end)
    some_lse = lse[:, :, mine] if slopes.moved is None else lse[:, :, mine] + slopes.moved
    stretches = ((rows.begin, rows.end), (rows.key_begin, rows.key_end), (rows.key_begin, rows.key_end))
    rooms = [one.room(begin, end, bool(rows.vectors)) for one, (begin, end) in zip(sums, stretches)]
    some = rows.packed(d_o[:, mine], q[:, mine], k[:, keys], v[:, keys], o[:, mine], some_lse)
    wanted = rows.packed(*(False if room is None else room for room in rooms))
    run = None
    if (query_sums is not None and rooms[0] is not None and not rows.vectors and slopes.moved is None and
            query_sums.takes(*(t for t in (*some[:5], *wanted) if isinstance(t, Tensor)))):
        run = query_sums.run_of(rows.begin, rows.end, lanes)
    with lanes.on(k, v, rows, slopes, some_lse, rooms):
        _tensors.backward(some[0], some[1], some[2], some[3], some[4], some[5],
                          d_lse=None if d_lse is None else rows.packed(d_lse[:, :, mine])[0],
                          **dict(zip(("dq", "dk", "dv"), wanted)), **rows.vectors, run=run,
                          **_inputs(group, slopes.alibi, rng_state, call))
        for one, (begin, end), room in zip(sums, stretches, rooms):
            if run is None or one is not sums[0]:
                one.add(begin, end, room)
