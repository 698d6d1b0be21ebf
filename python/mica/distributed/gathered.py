# SPDX-License-Identifier: Apache-2.0
"""Packed sequences cut into equal stretches: each rank gathers the keys of all and is told which of them its rows see.

For callers that have worked that out themselves, as those of ring-flash-attention's llama3 functions.
attention_varlen(layout="gather") needs only where the sequences lie, and sends only what is seen.
"""

from typing import List, Optional, Tuple

import torch
from torch import Tensor

from .. import _tensors
from .._torch_face import autocast
from ..functions import attention_varlen
from ._compute import Call
from ._gather import Fetch, FetchRows
from ._layout import Chunk
from ._mail import mail_of
from ._pieces import Part
from ._ring import Attend, Route, route_of
from .functions import Group, Options, Window, options_of


def _route(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, first_row: int, options: Options, has_alibi: bool) -> Route:
    """Of the rank's rows to the keys that it was given, of which the first sequence has `first_row` before its first row."""
    def parts(cuts: List[int], first: int) -> Tuple[Part, ...]:
        return tuple(Part(low, n, Chunk(0 if n else first, 1, high - low))
                     for n, (low, high) in enumerate(zip(cuts, cuts[1:])) if low < high)
    cuts_q, cuts_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    mask = options.mask([(0, 0)] * (len(cuts_q) - 1))  # a whole sequence has as many rows as keys
    return route_of((parts(cuts_q, first_row),), (parts(cuts_k, 0),), (cuts_k[-1],), mask, 0, True, has_alibi,
                    bool(options.dropout))


def attention_of_gathered(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                          max_seqlen_q: int, max_seqlen_k: int, seen: slice, heads_together: int, *,
                          causal: bool = False, window: Window = None, scale: Optional[float] = None,
                          dropout: float = 0.0, alibi: Optional[Tensor] = None, deterministic: bool = False,
                          group: Group = None) -> Tuple[Tensor, Tensor]:
    """O and LSE of the rank's rows. q, k, v: (rows, heads, dim), as many rows on every rank. seen: of all ranks' keys,
    those that cu_seqlens_k counts. heads_together: key heads that are gathered at a time, a divisor of their number.
    The elements that dropout drops are drawn by each rank for itself."""
    mail, rows, heads_k = mail_of(group, q.device), k.shape[0], k.shape[1]
    share, size = q.shape[1] // heads_k * heads_together, mail.size
    fetch = Fetch(tuple((rank * rows, (rank + 1) * rows) for rank in range(size)), ((0, size * rows),) * size)
    # Where keys end with the rank's rows, so does the diagonal; else the library is told where each row lies.
    options = options_of(causal, window, scale, None, dropout, None)
    has_sides = options.left is not None or options.right is not None or alibi is not None
    route, first = None, mail.rank * rows
    if deterministic or has_sides and seen.stop != first + rows:
        route = _route(cu_seqlens_q, cu_seqlens_k, first - seen.start, options, alibi is not None)
    outs, lses = [], []
    for at in range(heads_k // heads_together):
        keys = slice(at * heads_together, (at + 1) * heads_together)
        queries = slice(at * share, (at + 1) * share)
        some_k, some_v = (FetchRows.apply(t[:, keys], mail, fetch)[seen] for t in (k, v))
        slopes = None if alibi is None else alibi[..., queries]
        if route is None:
            o, lse = attention_varlen(q[:, queries], some_k, some_v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q=max_seqlen_q,
                                      max_seqlen_k=max_seqlen_k, dropout=dropout, scale=scale, causal=causal,
                                      window=window, alibi=slopes, return_lse=True)
        else:
            call = Call(options.scale, options.softcap, options.dropout, True, slopes is not None, queries.start, q.shape[1],
                        deterministic)
            state = _tensors.rng_of(None, q.device) if options.dropout else None
            packed = (_tensors.dense(t)[None] for t in autocast(q[:, queries], some_k, some_v))
            o, lse = (t[0] for t in Attend.apply(*packed, None, slopes, state, None, route, call))
        outs.append(o)
        lses.append(lse)
    return (outs[0], lses[0]) if len(outs) == 1 else (torch.cat(outs, 1), torch.cat(lses, 0))
