# SPDX-License-Identifier: Apache-2.0
"""mica.distributed.attention and attention_varlen: sequences that lie spread over the ranks of a group."""

import bisect
import zlib
from functools import lru_cache
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from .. import _abi, _tensors
from .._arguments import integer, normalise, window_of
from .._torch_face import autocast
from .._tracing import refuse_slopes
from ..errors import InvalidArgument, Unsupported
from ._agree import agree
from ._compute import Call
from ._gather import Fetch, FetchRows
from ._groups import Ranks, ranks_of
from ._join import check_sinks
from ._layout import Chunk, check_layout, chunks_of, count_of, inner
from ._mail import Mail, mail_of
from ._pieces import Mask, Part
from ._ring import Attend, Route, route_of, steps_together
from ._ulysses import heads_of, turn, turn_back

Group = Any  # a ProcessGroup, a DeviceMesh of one or two dimensions, or None: all ranks
Causal = Union[bool, str]
Window = Optional[Tuple[Optional[int], Optional[int]]]


class Options(NamedTuple):
    """The numbers of a call, as the library wants them."""
    left: Optional[int]
    right: Optional[int]
    bottom_right: bool
    scale: float
    softcap: float
    dropout: float

    def mask(self, lengths: Sequence[Tuple[int, int]]) -> Mask:
        return Mask(self.left, self.right, tuple(keys - rows if self.bottom_right else 0 for rows, keys in lengths))


def options_of(causal: Causal, window: Window, scale: Optional[float], softcap: Optional[float], dropout: float,
               diagonal: Optional[str]) -> Options:
    given = normalise(causal, window_of(window), 0, scale, softcap, dropout, diagonal)
    of_causal, of_diagonal, left, right, _chunk, _last_keys, scale, softcap, dropout = given[:9]
    if of_causal and diagonal is not None and of_diagonal != of_causal:
        raise InvalidArgument(f"diagonal is {diagonal!r}, want None or the alignment that causal names")
    if not 0 <= dropout < 1:
        raise InvalidArgument(f"dropout is {dropout:g}, want 0 <= p < 1")
    limit_right = 0 if of_causal else None if right == _abi.UNLIMITED else right
    return Options(None if left == _abi.UNLIMITED else left, limit_right,
                   of_diagonal == _abi.DIAGONAL_BOTTOM_RIGHT, scale, softcap, dropout)


def _check_tensors(q: Tensor, k: Tensor, v: Tensor, axes: int, sinks: Optional[Tensor],
                   alibi: Optional[Tensor]) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}, want a torch.Tensor")
        if tensor.dim() != axes:
            raise InvalidArgument(f"{name} has {tensor.dim()} axes, want {axes}")
        if tensor.dtype != q.dtype or tensor.device != q.device:
            raise InvalidArgument(f"{name} is {tensor.dtype} on {tensor.device}, want {q.dtype} on {q.device} (q's)")
    if k.shape[:-1] != v.shape[:-1] or q.shape[-1] != k.shape[-1] or axes == 4 and q.shape[0] != k.shape[0]:
        raise InvalidArgument(f"q, k, v are {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}: want one batch, the "
                              "same head dimension of q and k, and v as long and with as many heads as k")
    if k.shape[-2] == 0 or q.shape[-2] % k.shape[-2]:
        raise InvalidArgument(f"k has {k.shape[-2]} heads, want a divisor of {q.shape[-2]} (q's)")
    check_sinks(sinks, q)
    if alibi is not None and alibi.shape[-1:] != q.shape[-2:-1]:
        raise InvalidArgument(f"alibi is {tuple(alibi.shape)}, want {q.shape[-2]} heads (q's)")
    refuse_slopes(alibi)


def _length(name: str, given: Optional[int], local: int, layout: str, ranks: Ranks) -> int:
    """Of the whole sequence: as given, or as many tokens on every rank as here."""
    length = local * ranks.size if given is None else integer(name, given)
    held = count_of(chunks_of(layout, length, ranks.rows, ranks.row, ranks.columns, ranks.column))
    if held != local:
        raise InvalidArgument(f"{'q' if name == 'seqlen' else 'k'} has {local} rows on rank {ranks.rank}, want {held}: "
                              f"layout {layout!r} of {length} tokens over {ranks.size} ranks" +
                              ("" if given is not None else f"; pass {name}, the length of the whole"))
    return length


def _parts(layout: str, length: int, rows: int) -> Tuple[Tuple[Part, ...], ...]:
    """Of every row of ranks."""
    made = []
    for row in range(rows):
        parts, at = [], 0
        for chunk in chunks_of(layout, length, rows, row):
            parts.append(Part(at, 0, chunk))
            at += chunk.count
        made.append(tuple(parts))
    return tuple(made)


@lru_cache(maxsize=256)
def _dense_route(layout: str, seqlen: int, seqlen_k: int, rows: int, row: int, options: Options,
                 has_alibi: bool, together: int) -> Route:
    queries, keys = _parts(layout, seqlen, rows), _parts(layout, seqlen_k, rows)
    lengths = tuple(sum(part.chunk.count for part in parts) for parts in keys)
    return route_of(queries, keys, lengths, options.mask([(seqlen, seqlen_k)]), row, False, has_alibi,
                    bool(options.dropout), together)


def _held(layout: str, length: int, ranks: Ranks) -> Tuple[int, ...]:
    """Tokens of each rank of this one's row."""
    return tuple(count_of(chunks_of(layout, length, ranks.rows, ranks.row, ranks.columns, column))
                 for column in range(ranks.columns))


def _rng_state(dropout: float, seed: Any, mail: Mail, device: torch.device) -> Optional[Tensor]:
    """One for all ranks: given, or drawn by the first."""
    if not dropout:
        return None
    state = _tensors.rng_of(seed, device)
    return mail.broadcast(state) if seed is None else state


def _describe(name: str, layout: str, q: Tensor, k: Tensor, v: Tensor, options: Options,
              **more: Any) -> Dict[str, Any]:
    """What must be the same on all ranks."""
    needs = "".join(name for name, tensor in (("q", q), ("k", k), ("v", v)) if tensor.requires_grad)
    description = dict(function=name, layout=layout, dtype=q.dtype, device=q.device.type, heads=q.shape[-2],
                       key_heads=k.shape[-2], dim=q.shape[-1], dim_v=v.shape[-1],
                       gradients=needs if torch.is_grad_enabled() else "")
    description.update(options._asdict())
    description.update(more)
    return description


def attention(q: Tensor, k: Tensor, v: Tensor, *, group: Group = None, layout: str = "ring", causal: Causal = False,
              window: Window = None, scale: Optional[float] = None, softcap: Optional[float] = None,
              alibi: Optional[Tensor] = None, sinks: Optional[Tensor] = None, dropout: float = 0.0,
              return_lse: bool = False, diagonal: Optional[str] = None, seed: Union[None, int, Tensor] = None,
              seqlen: Optional[int] = None, seqlen_k: Optional[int] = None, deterministic: bool = False) -> Any:
    """mica.attention of sequences that lie spread over a group: every rank brings its rows and keys, and gets its rows.

    q is (batch, rows here, heads, dim), k and v likewise; the result has q's rows. The options mean what they mean for
    mica.attention of the whole sequence, and the results and gradients are those: dropout with the same seed drops the
    same probabilities.

    group: a ProcessGroup, a DeviceMesh, or None for all ranks.
    layout: which tokens a rank holds and how keys reach queries; see mica.distributed.shard.
        'ring', 'zigzag', 'stripe': keys go round, and their gradients with them.
        'ulysses': an all-to-all gives every rank all rows of some heads.
        'ulysses x ring', 'ulysses x zigzag', 'ulysses x stripe': on a DeviceMesh of two dimensions, keys go round along
        the first and heads are divided along the second.
    seqlen, seqlen_k: the length of the whole sequence (of k, if it is another one), where the ranks do not all hold
        the same number of tokens.
    sinks: their gradient here is this rank's share: the sum over the group is the whole, as for every parameter.
    seed: of dropout, the same on all ranks; None: drawn by the first.
    deterministic: gradients have the same bits on every run.

    All ranks call with the same options; one that differs is named in an error on all of them.
    """
    check_layout(layout)
    if layout == "gather":
        raise InvalidArgument("layout is 'gather', which is for packed sequences: want attention_varlen, or another "
                              "layout")
    options = options_of(causal, window, scale, softcap, dropout, diagonal)
    _check_tensors(q, k, v, 4, sinks, alibi)
    if inner(layout) == "stripe" and alibi is not None and options.right != 0:
        raise Unsupported(f"alibi is given with layout {layout!r}, want causal with it, or another layout")
    ranks = ranks_of(group, layout)
    q, k, v = (_tensors.dense(t) for t in autocast(q, k, v))
    whole = mail_of(ranks.group, q.device)
    length = _length("seqlen", seqlen, q.shape[1], layout, ranks)
    length_k = _length("seqlen_k", seqlen_k if seqlen_k is not None or k.shape[1] != q.shape[1] else seqlen, k.shape[1],
                       layout, ranks)
    agree(whole, _describe("attention", layout, q, k, v, options, batch=q.shape[0], seqlen=length, seqlen_k=length_k,
                           alibi=alibi is not None, sinks=sinks is not None))
    rng_state = _rng_state(options.dropout, seed, whole, q.device)
    all_heads, columns = q.shape[2], None
    head_first = 0
    if ranks.columns > 1:
        columns = mail_of(ranks.column_group, q.device)
        heads, rows_q = heads_of(q.shape[2], k.shape[2], columns.size), _held(layout, length, ranks)
        q, k, v, sinks, alibi, head_first = turn(columns, heads, rows_q, _held(layout, length_k, ranks), q, k, v, sinks,
                                                 alibi)
    mail = mail_of(ranks.row_group, q.device) if ranks.rows > 1 else None
    route = _dense_route(inner(layout), length, length_k, ranks.rows, ranks.row, options, alibi is not None,
                         steps_together(mail, q.shape[0]))
    call = Call(options.scale, options.softcap, options.dropout, False, alibi is not None, head_first, all_heads,
                deterministic)
    o, lse = Attend.apply(q, k, v, sinks, alibi, rng_state, mail, route, call)
    if columns is not None:
        o, lse = turn_back(columns, heads, rows_q, all_heads, o, lse if return_lse else None)
    return (o, lse) if return_lse else o


def _list(name: str, cu_seqlens: Any) -> Tuple[int, ...]:
    """NOTE: as ints alone. Routes are kept by them, and 6.0 would be the key of 6."""
    values = cu_seqlens.tolist() if hasattr(cu_seqlens, "tolist") else list(cu_seqlens)
    if isinstance(values, list):
        values = [integer(f"{name}[{i}]", value) for i, value in enumerate(values)]
    if not isinstance(values, list) or not values or values[0] != 0 or any(a > b for a, b in zip(values, values[1:])):
        raise InvalidArgument(f"{name} is {values}, want 0 and the end of each sequence, none before the last")
    return tuple(values)


def _stream_parts(cu: Tuple[int, ...], begin: int, end: int, origin: int) -> List[Part]:
    """Of rows [begin, end) of the stream, counted from `origin`, the stretch of each sequence."""
    made = []
    for n in range(max(bisect.bisect_right(cu, begin) - 1, 0), len(cu) - 1):
        if cu[n] >= end:
            break
        first, last = max(cu[n], begin), min(cu[n + 1], end)
        if first < last:
            made.append(Part(first - origin, n, Chunk(first - cu[n], 1, last - first)))
    return made


class _Stream(NamedTuple):
    """A packed stream over ranks: who holds what, what this rank fetches, and what it computes."""
    fetch: Fetch
    route: Route


def _needed(cu_q: Tuple[int, ...], cu_k: Tuple[int, ...], held: Tuple[int, int], options: Options) -> Tuple[int, int]:
    """The keys that rows `held` of the stream can see: one range."""
    low, high = None, 0
    for part in _stream_parts(cu_q, *held, 0):
        n, rows, keys = part.sequence, part.chunk, cu_k[part.sequence + 1] - cu_k[part.sequence]
        shift = keys - (cu_q[n + 1] - cu_q[n]) if options.bottom_right else 0
        first = 0 if options.left is None else min(max(rows.first + shift - options.left, 0), keys)
        last = keys if options.right is None else min(max(rows.first + rows.count + shift + options.right, first), keys)
        if first < last:
            low = cu_k[n] + first if low is None else min(low, cu_k[n] + first)
            high = max(high, cu_k[n] + last)
    return (0, 0) if low is None else (low, high)


@lru_cache(maxsize=64)
def _stream(cu_q: Tuple[int, ...], cu_k: Tuple[int, ...], size: int, rank: int, options: Options,
            has_alibi: bool) -> _Stream:
    def held_by(cu: Tuple[int, ...], other: int) -> Tuple[int, int]:
        chunks = chunks_of("ring", cu[-1], size, other)
        return (chunks[0].first, chunks[0].first + chunks[0].count) if chunks else (cu[-1], cu[-1])
    rows = tuple(held_by(cu_q, other) for other in range(size))
    needed = tuple(_needed(cu_q, cu_k, rows[other], options) for other in range(size))
    lengths = [(b - a, d - c) for a, b, c, d in zip(cu_q, cu_q[1:], cu_k, cu_k[1:])]
    queries = tuple(_stream_parts(cu_q, *rows[rank], rows[rank][0]))
    keys = tuple(_stream_parts(cu_k, *needed[rank], needed[rank][0]))
    route = route_of((queries,), (keys,), (needed[rank][1] - needed[rank][0],), options.mask(lengths), 0,
                     True, has_alibi, bool(options.dropout))
    return _Stream(Fetch(tuple(held_by(cu_k, other) for other in range(size)), needed), route)


def attention_varlen(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Any, cu_seqlens_k: Any = None, *,
                     group: Group = None, layout: str = "gather", causal: Causal = False, window: Window = None,
                     scale: Optional[float] = None, softcap: Optional[float] = None, alibi: Optional[Tensor] = None,
                     sinks: Optional[Tensor] = None, dropout: float = 0.0, return_lse: bool = False,
                     diagonal: Optional[str] = None, seed: Union[None, int, Tensor] = None,
                     deterministic: bool = False) -> Any:
    """mica.attention_varlen of packed sequences that lie spread over a group.

    q is (rows here, heads, dim), k and v likewise. cu_seqlens_q and cu_seqlens_k (None: the same) are those of the
    whole stream, on every rank the same: [0, end of sequence 0, ...]. A list or a CPU tensor saves a GPU from waiting.

    layout 'gather': the stream is cut into equal stretches, wherever sequences begin; a rank fetches the keys that its
        rows see. The last ranks may have fewer rows, or none.
    layout 'ring', 'zigzag', 'stripe': every sequence is spread over the ranks by itself, as mica.distributed.attention
        spreads it; a rank holds its part of each, one after the other.
    The rest is as for mica.distributed.attention. lse is (heads, rows here).
    """
    check_layout(layout)
    if layout not in ("gather", "ring", "zigzag", "stripe"):
        raise InvalidArgument(f"layout is {layout!r}, want 'gather', 'ring', 'zigzag' or 'stripe' for packed sequences")
    options = options_of(causal, window, scale, softcap, dropout, diagonal)
    _check_tensors(q, k, v, 3, sinks, alibi)
    if layout == "stripe" and alibi is not None and options.right != 0:
        raise Unsupported("alibi is given with layout 'stripe', want causal with it, or another layout")
    ranks = ranks_of(group, layout)
    cu_q = _list("cu_seqlens_q", cu_seqlens_q)
    cu_k = cu_q if cu_seqlens_k is None else _list("cu_seqlens_k", cu_seqlens_k)
    if len(cu_q) != len(cu_k):
        raise InvalidArgument(f"cu_seqlens_k has {len(cu_k)} entries, want {len(cu_q)} (cu_seqlens_q's)")
    if alibi is not None and alibi.dim() == 2 and alibi.shape[0] not in (1, len(cu_q) - 1):
        raise InvalidArgument(f"alibi is {tuple(alibi.shape)}, want ({len(cu_q) - 1}, heads) or (heads,)")
    q, k, v = (_tensors.dense(t) for t in autocast(q, k, v))
    mail = mail_of(ranks.group, q.device)
    agree(mail, _describe("attention_varlen", layout, q, k, v, options, sequences=len(cu_q) - 1,
                          cu_seqlens=zlib.crc32(repr((cu_q, cu_k)).encode()), alibi=alibi is not None,
                          sinks=sinks is not None))
    if alibi is not None and alibi.dim() == 2 and alibi.shape[0] > 1:
        raise Unsupported("alibi is given per sequence, want (heads,) for packed sequences over ranks")
    rng_state = _rng_state(options.dropout, seed, mail, q.device)
    call = Call(options.scale, options.softcap, options.dropout, True, alibi is not None, 0, q.shape[1],
                deterministic)
    if layout == "gather":
        stream = _stream(cu_q, cu_k, ranks.size, ranks.rank, options, alibi is not None)
        rows = chunks_of("ring", cu_q[-1], ranks.size, ranks.rank)
        _check_rows("q", q, count_of(rows), layout, ranks)
        begin, end = stream.fetch.held[ranks.rank]
        _check_rows("k", k, end - begin, layout, ranks)
        if ranks.size > 1:
            k, v = FetchRows.apply(k, mail, stream.fetch), FetchRows.apply(v, mail, stream.fetch)
        else:
            low, high = stream.fetch.needed[0]
            k, v = k[low:high], v[low:high]
        route, traveller = stream.route, None
    else:
        route = _packed_route(layout, cu_q, cu_k, ranks.size, ranks.rank, options, alibi is not None)
        _check_rows("q", q, sum(count_of(chunks_of(layout, b - a, ranks.size, ranks.rank))
                                for a, b in zip(cu_q, cu_q[1:])), layout, ranks)
        _check_rows("k", k, route.lengths[ranks.rank], layout, ranks)
        traveller = mail if ranks.size > 1 else None
    o, lse = Attend.apply(*(t.unsqueeze(0) for t in (q, k, v)), sinks, alibi, rng_state, traveller, route, call)
    return (o[0], lse[0]) if return_lse else o[0]


def _check_rows(name: str, tensor: Tensor, want: int, layout: str, ranks: Ranks) -> None:
    if tensor.shape[0] != want:
        raise InvalidArgument(f"{name} has {tensor.shape[0]} rows on rank {ranks.rank}, want {want}: layout {layout!r} "
                              f"of these cu_seqlens over {ranks.size} ranks")


@lru_cache(maxsize=64)
def _packed_route(layout: str, cu_q: Tuple[int, ...], cu_k: Tuple[int, ...], size: int, rank: int, options: Options,
                  has_alibi: bool) -> Route:
    def parts_of(cu: Tuple[int, ...]) -> Tuple[Tuple[Part, ...], ...]:
        made = []
        for other in range(size):
            parts, at = [], 0
            for n, (begin, end) in enumerate(zip(cu, cu[1:])):
                for chunk in chunks_of(layout, end - begin, size, other):
                    parts.append(Part(at, n, chunk))
                    at += chunk.count
            made.append(tuple(parts))
        return tuple(made)
    keys = parts_of(cu_k)
    lengths = tuple(sum(part.chunk.count for part in parts) for parts in keys)
    sequences = [(b - a, d - c) for a, b, c, d in zip(cu_q, cu_q[1:], cu_k, cu_k[1:])]
    return route_of(parts_of(cu_q), keys, lengths, options.mask(sequences), rank, True, has_alibi,
                    bool(options.dropout))
