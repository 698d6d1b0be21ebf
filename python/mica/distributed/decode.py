# SPDX-License-Identifier: Apache-2.0
"""Decoding with a KV cache that is spread over a group by its keys."""

from typing import Any, Optional

import torch
from torch import Tensor

from .._tracing import refuse_gradient
from ..errors import InvalidArgument
from ..functions import attention_with_cache as attend_here
from ._agree import agree
from ._groups import ranks_of
from ._join import by_rows, check_sinks
from ._mail import mail_of


def _joined(parts: Tensor, sinks: Optional[Tensor]) -> Any:
    """parts: (ranks, batch, rows, heads, dim_v + 1), o and the LSE of each rank. The same bits on every rank."""
    o, lse = parts[..., :-1], parts[..., -1].transpose(2, 3)  # (ranks, batch, heads, rows)
    total = torch.logsumexp(lse, 0)
    if sinks is not None:
        total = torch.logaddexp(total, sinks.to(torch.float32)[None, :, None].expand_as(total))
    shares = torch.nan_to_num(torch.exp(lse - total), nan=0.0)
    return sum(by_rows(share) * part for share, part in zip(shares, o)), total


def attention_with_cache(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Optional[Tensor] = None,
                         v: Optional[Tensor] = None, *, cache_seqlens: Any, group: Any = None,
                         owner: Optional[int] = None, causal: bool = False, block_table: Optional[Tensor] = None,
                         scale: Optional[float] = None, softcap: Optional[float] = None,
                         sinks: Optional[Tensor] = None, return_lse: bool = False) -> Any:
    """mica.attention_with_cache with a cache whose keys lie spread over a group, in any order.

    q is (batch, rows, heads, dim), the same on every rank. k_cache and v_cache are this rank's part (or pages, with
    block_table), of which the first cache_seqlens (int, or int32 (batch,)) keys are in use; 0 where it has none. Each
    rank attends to its part, and one all-gather of (rows, heads, dim_v + 1) numbers joins them: every rank gets the
    whole result, with the same bits.

    k, v: new keys, the same on every rank; the rank `owner` (counted in the group; None: the last) writes them into its
        part. The other ranks do not look at them.
    causal: rows are the newest tokens, whose keys are the last ones of the owner: row i does not see those of later
        rows.
    """
    ranks = ranks_of(group, "ring")
    mail = mail_of(ranks.group, q.device)
    owner = ranks.size - 1 if owner is None else owner
    if not 0 <= owner < ranks.size:
        raise InvalidArgument(f"owner is {owner}, want a rank of the group, 0 to {ranks.size - 1}")
    if causal not in (False, True, "bottom-right"):  # the owner's last keys are those of the rows, and no other rank's
        raise InvalidArgument(f"causal is {causal!r}, want True or False")
    if (k is None) != (v is None):
        raise InvalidArgument(f"{'k' if k is None else 'v'} is None, want it together with {'v' if k is None else 'k'}")
    is_owner = ranks.rank == owner
    refuse_gradient("on a cache", q=q, k_cache=k_cache, v_cache=v_cache, k=k, v=v, sinks=sinks)
    check_sinks(sinks, q)
    agree(mail, dict(function="attention_with_cache", dtype=q.dtype, device=q.device.type, q=tuple(q.shape),
                     key_heads=k_cache.shape[-2], dim_v=v_cache.shape[-1], causal=causal, scale=scale, softcap=softcap,
                     owner=owner, appends=k is not None, sinks=sinks is not None))
    new = dict(k=k, v=v) if is_owner and k is not None else {}
    with torch.no_grad():
        o, lse = attend_here(q, k_cache, v_cache, **new, cache_seqlens=cache_seqlens, block_table=block_table,
                             causal=causal and is_owner, scale=scale, softcap=softcap, return_lse=True)
        mine = torch.cat([o.to(torch.float32), by_rows(lse)], -1)
        o, lse = _joined(mail.all_gather(mine) if ranks.size > 1 else mine[None], sinks)
    return (o.to(q.dtype), lse) if return_lse else o.to(q.dtype)
