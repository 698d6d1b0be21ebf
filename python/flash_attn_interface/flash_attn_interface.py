# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3's functions, on Mica. NOTE: the order of arguments differs from flash_attn's (there is no
dropout)."""
from typing import Any, Optional, Tuple, Union

import flash_attn_3._C  # noqa: F401  torch.ops.flash_attn_3
import mica
import torch
from flash_attn._autocast import as_they_are, autocast
from flash_attn._autograd import attention as _with_options
from flash_attn._native import dense_rows
from flash_attn._numbers import causal_of, chunk_of, window_of
from flash_attn._transformers import Registration
from flash_attn_3._combine import combine
from flash_attn_3._fp8 import factors_of, factors_of_beta, forward_only
from flash_attn_3._native import Deterministic, forward, joined, scale_of
from mica import fp8
from torch import Tensor


def _window(window_size: Any) -> Tuple[Optional[int], Optional[int]]:
    left, right = window_of(window_size)
    return (None if left < 0 else left, None if right < 0 else right)


def _has_gradient(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _deterministic(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, window_size: Any, softcap: float,
                   chunk: int, with_lse: bool, cu_q: Optional[Tensor] = None, cu_k: Optional[Tensor] = None,
                   used_q: Optional[Tensor] = None, used_k: Optional[Tensor] = None, max_q: Any = None,
                   max_k: Any = None) -> Any:
    """The call whose gradient has the same bits every time, whatever torch's global switch says."""
    if chunk or used_q is not None or used_k is not None:
        made = Deterministic.apply(q, k, v, scale, causal_of(causal), window_of(window_size), softcap, chunk, cu_q, cu_k, used_q,
                                   used_k, max_q, max_k)
        return made if with_lse else made[0]
    packed = () if cu_q is None else (cu_q, cu_k, max_q, max_k)
    made = _with_options(q, k, v, 0.0, scale, causal, window_size, softcap, None, True, with_lse, *packed)
    return (made[0], made[1].masked_fill(made[1] == float("inf"), -float("inf"))) if with_lse else made


def flash_attn_func(
    q,
    k,
    v,
    softmax_scale=None,
    causal=False,
    qv=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
):
    """q (batch, seqlen_q, heads, dim), k and v (batch, seqlen_k, heads_k, dim); with return_attn_probs also the LSE."""
    attention_chunk = chunk_of(attention_chunk)
    factors = factors_of(q, k, q_descale, k_descale, v_descale, qv=qv)
    if factors is not None:
        return forward_only(
            fp8.attention, q, k, v, causal=causal_of(causal), window=_window(window_size), chunk=attention_chunk,
            scale=softmax_scale, softcap=softcap, num_splits=num_splits, return_lse=return_attn_probs, **factors,
        )
    q, k, v, qv = autocast(q, k, v, qv)
    if qv is not None and not _has_gradient(q, k, v, qv):
        return mica.attention_with_cache(
            q, dense_rows(k), dense_rows(v), qv=qv, causal=causal_of(causal), window=_window(window_size), chunk=attention_chunk, scale=softmax_scale,
            softcap=softcap, num_splits=num_splits, return_lse=return_attn_probs,
        )
    scale = scale_of(q, qv, softmax_scale)
    with as_they_are(q):
        q, k = joined(q, k, v, qv)
        if deterministic:
            return _deterministic(q, k, v, scale, causal, window_size, softcap, attention_chunk, return_attn_probs)
        return mica.attention(
            q, k, v, causal=causal_of(causal), window=_window(window_size), chunk=attention_chunk, scale=scale, softcap=softcap,
            num_splits=num_splits, return_lse=return_attn_probs,
        )


def flash_attn_qkvpacked_func(
    qkv,
    softmax_scale=None,
    causal=False,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    deterministic=False,
    num_heads_q=None,
    sm_margin=0,
    return_attn_probs=False,
):
    """qkv: (batch, seqlen, 3, heads, dim), or (batch, seqlen, num_heads_q + 2 * heads_k, dim)."""
    if qkv.dim() == 5:
        q, k, v = qkv.unbind(dim=2)
    elif num_heads_q is None:
        raise ValueError("num_heads_q is None, want the number of query heads for a 4-D qkv")
    else:
        heads_k = (qkv.shape[2] - num_heads_q) // 2
        q, k, v = qkv.split((num_heads_q, heads_k, heads_k), dim=2)
    return flash_attn_func(
        q, k, v, softmax_scale, causal, None, q_descale, k_descale, v_descale, window_size, attention_chunk, softcap,
        deterministic=deterministic, return_attn_probs=return_attn_probs,
    )


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    seqused_q=None,
    seqused_k=None,
    softmax_scale=None,
    causal=False,
    qv=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
):
    """q (total_q, heads, dim), k and v (total_k, heads_k, dim); with return_attn_probs also the LSE (heads,
    total_q)."""
    attention_chunk = chunk_of(attention_chunk)
    factors = factors_of(q, k, q_descale, k_descale, v_descale, qv=qv)
    if factors is not None:
        return forward_only(
            fp8.attention_varlen, q, k, v, cu_seqlens_q, cu_seqlens_k, causal=causal_of(causal),
            window=_window(window_size), chunk=attention_chunk, scale=softmax_scale, softcap=softcap,
            num_splits=num_splits, return_lse=return_attn_probs, seqused_q=seqused_q, seqused_k=seqused_k, **factors,
        )
    q, k, v, qv = autocast(q, k, v, qv)
    scale = scale_of(q, qv, softmax_scale)
    if qv is not None and _has_gradient(q, k, v, qv):
        with as_they_are(q):
            q, k = joined(q, k, v, qv)
        qv = None
    if deterministic and qv is None:
        packed = (cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_seqlen_q, max_seqlen_k)
        return _deterministic(q, k, v, scale, causal, window_size, softcap, attention_chunk, return_attn_probs, *packed)
    hints = [length if isinstance(length, int) else None for length in (max_seqlen_q, max_seqlen_k)]
    with as_they_are(q):
        return mica.attention_varlen(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q=hints[0], max_seqlen_k=hints[1], causal=causal_of(causal),
            window=_window(window_size), chunk=attention_chunk, scale=scale, softcap=softcap,
            return_lse=return_attn_probs, seqused_q=seqused_q, seqused_k=seqused_k, qv=qv,
        )


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    qv=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens: Optional[Union[(int, torch.Tensor)]] = None,
    cache_batch_idx: Optional[torch.Tensor] = None,
    cache_leftpad: Optional[torch.Tensor] = None,
    page_table: Optional[torch.Tensor] = None,
    cu_seqlens_q: Optional[torch.Tensor] = None,
    cu_seqlens_k_new: Optional[torch.Tensor] = None,
    max_seqlen_q: Optional[int] = None,
    rotary_seqlens: Optional[torch.Tensor] = None,
    q_descale: Optional[torch.Tensor] = None,
    k_descale: Optional[torch.Tensor] = None,
    v_descale: Optional[torch.Tensor] = None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    rotary_interleaved=True,
    scheduler_metadata=None,
    num_splits=0,
    pack_gqa=None,
    sm_margin=0,
    return_softmax_lse=False,
    **older,
):
    """As flash_attn.flash_attn_with_kvcache; page_table is its block_table. q may be packed, (total_q, heads, dim),
    with cu_seqlens_q, and new keys, (total_new, heads_k, dim), with cu_seqlens_k_new. rotary_seqlens: int32 (batch,), where
    rotary counts from instead of cache_seqlens. qv: (..., heads, dim_v), whose product with v_cache is added to the scores.
    With return_softmax_lse: (out, lse, None, None); upstream's last two are its partial results. A call by the names of upstream's beta (gqa_parallel, max_seqlen_k_hint,
    descale_q, descale_k, descale_v) gets that one's (out, lse)."""
    if older:
        q_descale, k_descale, v_descale = factors_of_beta(older, q, k_cache, (q_descale, k_descale, v_descale))
    attention_chunk = chunk_of(attention_chunk)
    factors = factors_of(q, k_cache, q_descale, k_descale, v_descale, qv=qv)
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    if isinstance(cache_seqlens, int):
        cache_seqlens = torch.full((batch,), cache_seqlens, dtype=torch.int32, device=q.device)
    is_turned_apart = rotary_cos is not None and rotary_seqlens is not None and rotary_seqlens is not cache_seqlens
    with torch.no_grad():  # as upstream: the result has no gradient
        is_plain = cu_seqlens_q is None and cu_seqlens_k_new is None and not is_turned_apart
        if is_plain and factors is None:
            if page_table is not None and cache_batch_idx is not None:  # rows of the table, as slots of a cache
                page_table, cache_batch_idx = page_table.index_select(0, cache_batch_idx), None
            made = mica.attention_with_cache(
                q, k_cache, v_cache, k=k, v=v, cache_seqlens=cache_seqlens, cache_batch_idx=cache_batch_idx,
                cache_leftpad=cache_leftpad, block_table=page_table, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
                rotary_interleaved=rotary_interleaved, causal=causal_of(causal), window=_window(window_size),
                chunk=attention_chunk, scale=scale_of(q, qv, softmax_scale), softcap=softcap, num_splits=num_splits,
                return_lse=bool(return_softmax_lse), qv=qv,
            )
            return (*made, None, None) if return_softmax_lse and not older else made
        out, lse = forward(
            q, k_cache, v_cache, k, v, qv, None, cu_seqlens_q, None, cu_seqlens_k_new, None, cache_seqlens, max_seqlen_q,
            None, page_table, cache_batch_idx, cache_leftpad, rotary_cos, rotary_sin, rotary_seqlens, softmax_scale,
            causal_of(causal), window_of(window_size), attention_chunk, softcap, rotary_interleaved, num_splits,
            (q_descale, k_descale, v_descale),
        )
    if return_softmax_lse:
        return (out, lse) if older else (out, lse, None, None)
    return out


def flash_attn_combine(out_partial, lse_partial, out=None, out_dtype=None):
    """Joins partial results over the first axis: out_partial (splits, ..., seqlen, heads, dim), lse_partial
    (splits, ..., seqlen, heads). Returns (out, lse)."""
    return combine(out_partial, lse_partial, out, out_dtype)


def get_scheduler_metadata(
    batch_size,
    max_seqlen_q,
    max_seqlen_k,
    num_heads_q,
    num_heads_kv,
    headdim,
    cache_seqlens: torch.Tensor,
    qkv_dtype=torch.bfloat16,
    headdim_v=None,
    cu_seqlens_q: Optional[torch.Tensor] = None,
    cu_seqlens_k_new: Optional[torch.Tensor] = None,
    cache_leftpad: Optional[torch.Tensor] = None,
    page_size: Optional[int] = None,
    max_seqlen_k_new=0,
    causal=False,
    window_size=(-1, -1),
    attention_chunk=0,
    has_softcap=False,
    num_splits=0,
    pack_gqa=None,
    sm_margin=0,
):
    """Mica schedules without it: an empty tensor that flash_attn_with_kvcache accepts."""
    return torch.empty(0, dtype=torch.int32, device=cache_seqlens.device)


# Transformers imports this module when it first loads FlashAttention-3. It leaves num_splits at 1, by which a step of few
# sequences on a long cache would use few of the GPU's processors: 0 chooses by shape.
_registration = Registration("flash_attention_3", flash_attn_func, num_splits=0)
_registration.attach()
