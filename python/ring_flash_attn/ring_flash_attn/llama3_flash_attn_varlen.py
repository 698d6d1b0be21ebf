# SPDX-License-Identifier: Apache-2.0
"""Packed sequences cut into equal stretches, wherever they begin: keys and values of all ranks are gathered, as in the
training of Llama 3. mica.distributed.attention_varlen(layout="gather") does the same and sends only what is seen."""

from typing import Any, Optional, Tuple

import torch
import torch.distributed as dist
from mica import _tensors, attention_varlen
from mica._torch_face import autocast
from mica.distributed._compute import Call
from mica.distributed._gather import Fetch, FetchRows
from mica.distributed._layout import Chunk
from mica.distributed._mail import mail_of
from mica.distributed._pieces import Part
from mica.distributed._ring import Attend, Route, route_of
from mica.distributed.functions import Options, _options
from mica.errors import InvalidArgument
from torch import Tensor

from ._forms import Window, result, window_of


def llama3_flash_attn_prepare_cu_seqlens(cu_seqlens: Tensor, causal: bool, rank: int,
                                         world_size: int) -> Tuple[Tensor, Tensor, int, int, slice]:
    """cu_seqlens of the rank's rows and of the keys that they see, the longest of each, and where in the whole those
    keys lie."""
    ends = cu_seqlens.tolist()
    if ends[-1] % world_size:
        raise InvalidArgument(f"cu_seqlens ends at {ends[-1]}, want a multiple of {world_size} (the ranks)")
    share = ends[-1] // world_size
    begin, end = rank * share, (rank + 1) * share
    inside = [(low, high) for low, high in zip(ends, ends[1:]) if low < end and high > begin and low < high]
    cuts_q = [0] + [min(high, end) - begin for _, high in inside]
    first = inside[0][0] if inside else begin
    cuts_k = [0] + [(min(high, end) if causal else high) - first for _, high in inside]

    def tensor(cuts: list) -> Tensor:
        return torch.tensor(cuts, dtype=cu_seqlens.dtype, device=cu_seqlens.device)

    def longest(cuts: list) -> int:
        return max((b - a for a, b in zip(cuts, cuts[1:])), default=0)

    return (tensor(cuts_q), tensor(cuts_k), longest(cuts_q), longest(cuts_k), slice(first, first + cuts_k[-1]))


def _route(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, first_row: int, options: Options, has_alibi: bool) -> Route:
    """Of the rank's rows to the keys that it was given, of which the first sequence has `first_row` before its first row."""
    def parts(cuts: list, first: int) -> Tuple[Part, ...]:
        return tuple(Part(low, n, Chunk(0 if n else first, 1, high - low))
                     for n, (low, high) in enumerate(zip(cuts, cuts[1:])) if low < high)
    cuts_q, cuts_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    mask = options.mask([(0, 0)] * (len(cuts_q) - 1))  # a whole sequence has as many rows as keys
    return route_of((parts(cuts_q, first_row),), (parts(cuts_k, 0),), (cuts_k[-1],), mask, 0, True, has_alibi,
                    bool(options.dropout))


def llama3_flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                                  max_seqlen_q: int, max_seqlen_k: int, heads_k_stride: int, local_k_slice: slice,
                                  dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
                                  window_size: Window = (-1, -1), alibi_slopes: Optional[Tensor] = None,
                                  deterministic: bool = False, return_attn_probs: bool = False,
                                  group: Any = None) -> Any:
    """heads_k_stride key heads are gathered at a time."""
    heads_k = k.shape[1]
    if heads_k_stride < 1 or heads_k % heads_k_stride:
        raise InvalidArgument(f"heads_k_stride is {heads_k_stride}, want a divisor of {heads_k} (the heads of k)")
    share, size = q.shape[1] // heads_k * heads_k_stride, dist.get_world_size(group)
    mail, rows = mail_of(group, q.device), k.shape[0]
    fetch = Fetch(tuple((rank * rows, (rank + 1) * rows) for rank in range(size)), ((0, size * rows),) * size)
    # Where keys end with the rank's rows, so does the diagonal; else the library is told where each row lies.
    options = _options(causal, window_of(window_size), softmax_scale, None, dropout_p, None)
    has_sides = options.left is not None or options.right is not None or alibi_slopes is not None
    route, first = None, dist.get_rank(group) * rows
    if deterministic or has_sides and local_k_slice.stop != first + rows:
        route = _route(cu_seqlens_q, cu_seqlens_k, first - local_k_slice.start, options, alibi_slopes is not None)
    outs, lses = [], []
    for at in range(heads_k // heads_k_stride):
        keys = slice(at * heads_k_stride, (at + 1) * heads_k_stride)
        queries = slice(at * share, (at + 1) * share)
        some_k, some_v = (FetchRows.apply(t[:, keys], mail, fetch)[local_k_slice] for t in (k, v))
        slopes = None if alibi_slopes is None else alibi_slopes[..., queries]
        if route is None:
            o, lse = attention_varlen(q[:, queries], some_k, some_v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q=max_seqlen_q,
                                      max_seqlen_k=max_seqlen_k, dropout=dropout_p, scale=softmax_scale, causal=causal,
                                      window=window_of(window_size), alibi=slopes, return_lse=True)
        else:
            call = Call(options.scale, options.softcap, options.dropout, True, slopes is not None, queries.start, q.shape[1],
                        deterministic)
            state = _tensors.rng_of(None, q.device) if options.dropout else None
            packed = (_tensors.dense(t)[None] for t in autocast(q[:, queries], some_k, some_v))
            o, lse = (t[0] for t in Attend.apply(*packed, None, slopes, state, None, route, call))
        outs.append(o)
        lses.append(lse)
    o, lse = (outs[0], lses[0]) if len(outs) == 1 else (torch.cat(outs, 1), torch.cat(lses, 0))
    return result((o, lse) if return_attn_probs else o, return_attn_probs)


def llama3_flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, *arguments: Any, **named: Any) -> Any:
    """As llama3_flash_attn_varlen_func, with k and v in kv[:, 0] and kv[:, 1]."""
    return llama3_flash_attn_varlen_func(q, *kv.unbind(1), *arguments, **named)


def llama3_flash_attn_varlen_qkvpacked_func(qkv: Tensor, *arguments: Any, **named: Any) -> Any:
    """As llama3_flash_attn_varlen_func, with q, k and v in qkv[:, 0], qkv[:, 1] and qkv[:, 2]."""
    return llama3_flash_attn_varlen_func(*qkv.unbind(1), *arguments, **named)
