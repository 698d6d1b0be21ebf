# SPDX-License-Identifier: Apache-2.0
"""flash_attn_with_kvcache: attention over a cache that may grow in the same call. Forward only, as upstream."""
from typing import Optional, Tuple, Union

import mica
import torch
from mica._inductor import know_where_views_begin
from mica._torch_face import attention_with_cache_again
from mica._tracing import has_forward_mode, refuse_forward_mode
from torch import Tensor

from . import _native, _ops
from ._numbers import causal_of, number, window_of


def _cached(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Optional[Tensor],
    v: Optional[Tensor],
    cache_seqlens: Optional[Tensor],
    rotary_cos: Optional[Tensor],
    rotary_sin: Optional[Tensor],
    cache_batch_idx: Optional[Tensor],
    cache_leftpad: Optional[Tensor],
    block_table: Optional[Tensor],
    alibi_slopes: Optional[Tensor],
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    rotary_interleaved: bool,
    num_splits: int,
) -> Tuple[Tensor, Tensor]:
    out, lse = _native.fwd_kvcache(
        q, k_cache, v_cache, k, v, cache_seqlens, rotary_cos, rotary_sin, cache_batch_idx, cache_leftpad, block_table,
        alibi_slopes, None, softmax_scale, causal, window_size_left, window_size_right, softcap, rotary_interleaved,
        num_splits,
    )
    return out, lse


if _ops.HAS_OPERATORS:
    # Upstream's cache function breaks a traced graph; as an operator that names what it writes, it does not.
    torch.library.custom_op("flash_attn::_flash_attn_with_kvcache", mutates_args=("k_cache", "v_cache"))(_cached)

    @torch.library.register_fake("flash_attn::_flash_attn_with_kvcache")
    def _fake(q, k_cache, v_cache, *_args, **_kwargs):
        know_where_views_begin()
        batch, seqlen_q, heads, _ = q.shape
        lse = q.new_empty((batch, heads, seqlen_q), dtype=torch.float32)
        return q.new_empty((batch, seqlen_q, heads, v_cache.shape[-1])), lse


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens: Optional[Union[(int, torch.Tensor)]] = None,
    cache_batch_idx: Optional[torch.Tensor] = None,
    cache_leftpad: Optional[torch.Tensor] = None,
    block_table: Optional[torch.Tensor] = None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),  # -1 means infinite context window
    softcap=0.0,  # 0.0 means deactivated
    rotary_interleaved=True,
    alibi_slopes=None,
    num_splits=0,
    return_softmax_lse=False,
):
    """Attention of q over a KV cache, appending k and v to it in place first where given.

    q: (batch, seqlen_q, heads, dim). k_cache, v_cache: (batch_cache, seqlen_cache, heads_k, dim), or pages
    (num_blocks, page_block_size, heads_k, dim) with block_table int32 (batch, blocks); any page size. k, v: (batch,
    seqlen_new, heads_k, dim), written at cache_seqlens, which is an int or int32 (batch,): the length before appending.
    rotary_cos, rotary_sin: (positions, rotary_dim / 2), turn k at its place and q at cache_seqlens + i if causal or
    windowed, else at cache_seqlens. NOTE: rotary_interleaved is True by default. cache_batch_idx, cache_leftpad: int32
    (batch,). causal and windows are aligned to the bottom right. num_splits: 0 lets Mica choose.

    Returns out (batch, seqlen_q, heads, dim), with return_softmax_lse also the LSE (batch, heads, seqlen_q).
    """
    if isinstance(cache_seqlens, int):
        cache_seqlens = torch.full((q.shape[0],), cache_seqlens, dtype=torch.int32, device=q.device)
    # Models make such calls for every layer and token, and most repeat an earlier one.
    if (type(window_size) is tuple and window_size == (-1, -1) and type(softcap) is float and softcap >= 0 and
            (softmax_scale is None or type(softmax_scale) is float) and type(return_softmax_lse) is bool and
            type(num_splits) is int):
        scale = (q.shape[-1]**-0.5 if softmax_scale is None else softmax_scale) or 1e-30
        made = attention_with_cache_again(
            q, k_cache, v_cache, k, v, cache_seqlens, block_table, cache_batch_idx, cache_leftpad, rotary_cos, rotary_sin,
            rotary_interleaved, causal_of(causal), scale, softcap, alibi_slopes, num_splits, return_softmax_lse)
        if made is not None:
            return (made[0], _native.upstream_lse(made[1])) if return_softmax_lse else made
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.stride(-1) != 1:
            raise ValueError(f"{name}.stride(-1) is {cache.stride(-1)}, want 1: a copy would not be written in place")
    softmax_scale = q.shape[-1] ** -0.5 if softmax_scale is None else number("softmax_scale", softmax_scale)
    softcap = number("softcap", softcap)
    left, right = window_of(window_size)
    if has_forward_mode():
        refuse_forward_mode(q, k_cache, v_cache, k, v, alibi_slopes)
    if _ops.is_traced(q):
        out, lse = torch.ops.flash_attn._flash_attn_with_kvcache(
            q, k_cache, v_cache, k, v, cache_seqlens, rotary_cos, rotary_sin, cache_batch_idx, cache_leftpad,
            block_table, alibi_slopes, softmax_scale, causal_of(causal), left, right, softcap,
            bool(rotary_interleaved), int(num_splits),
        )
        return (out, lse) if return_softmax_lse else out
    vector = _native.vector
    with torch.no_grad():  # as upstream: the result has no gradient
        made = mica.attention_with_cache(
            q, k_cache, v_cache, k=k, v=v, cache_seqlens=vector(cache_seqlens), block_table=vector(block_table),
            cache_batch_idx=vector(cache_batch_idx), cache_leftpad=vector(cache_leftpad), rotary_cos=rotary_cos,
            rotary_sin=rotary_sin, rotary_interleaved=bool(rotary_interleaved), causal=causal_of(causal),
            window=(left if left >= 0 else None, right if right >= 0 else None), scale=softmax_scale or 1e-30,
            softcap=softcap if softcap != softcap else max(softcap, 0.0), alibi=alibi_slopes, num_splits=int(num_splits), return_lse=return_softmax_lse,
        )
    return (made[0], _native.upstream_lse(made[1])) if return_softmax_lse else made
