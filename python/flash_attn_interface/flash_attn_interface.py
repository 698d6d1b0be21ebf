# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3's functions, on Mica. NOTE: the order of arguments differs from flash_attn's (there is no
dropout)."""
from typing import Any, Dict, Optional, Tuple, Union

import mica
import torch
from flash_attn._autograd import attention as _with_options
from flash_attn._numbers import chunk_of, window_of
from flash_attn.layers.rotary import apply_rotary_emb
from torch import Tensor


def _refuse(**unwanted: Any) -> None:
    for name, value in unwanted.items():
        if value is not None:
            raise ValueError(f"{name} is given, want None: Mica has no such option")


def _window(window_size: Any) -> Tuple[Optional[int], Optional[int]]:
    left, right = window_of(window_size)
    return (None if left < 0 else left, None if right < 0 else right)


def _joined(
    q: Tensor, k: Tensor, v: Tensor, qv: Optional[Tensor], scale: Optional[float]
) -> Tuple[Tensor, Tensor, float]:
    """q.k + qv.v is one product of the joined features; the default scale counts both."""
    if qv is None:
        return q, k, q.shape[-1] ** -0.5 if scale is None else scale
    q, k = torch.cat((q, qv), dim=-1), torch.cat((k, v), dim=-1)
    return q, k, q.shape[-1] ** -0.5 if scale is None else scale


def _deterministic(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, window_size: Any, softcap: float,
                   with_lse: bool, *packed: Any) -> Any:
    """The call whose gradient has the same bits every time, whatever torch's global switch says."""
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
    _refuse(q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    attention_chunk = chunk_of(attention_chunk)
    q, k, scale = _joined(q, k, v, qv, softmax_scale)
    if deterministic and not attention_chunk:
        return _deterministic(q, k, v, scale, causal, window_size, softcap, return_attn_probs)
    return mica.attention(
        q, k, v, causal=bool(causal), window=_window(window_size), chunk=attention_chunk, scale=scale, softcap=softcap,
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
    _refuse(q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    attention_chunk = chunk_of(attention_chunk)
    q, k, scale = _joined(q, k, v, qv, softmax_scale)
    if deterministic and not attention_chunk:
        if seqused_q is not None or seqused_k is not None:
            raise ValueError("deterministic is True with seqused, want torch.use_deterministic_algorithms(True)")
        packed = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        return _deterministic(q, k, v, scale, causal, window_size, softcap, return_attn_probs, *packed)
    hints = [length if isinstance(length, int) else None for length in (max_seqlen_q, max_seqlen_k)]
    return mica.attention_varlen(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q=hints[0], max_seqlen_k=hints[1], causal=bool(causal),
        window=_window(window_size), chunk=attention_chunk, scale=scale, softcap=softcap,
        return_lse=return_attn_probs, seqused_q=seqused_q, seqused_k=seqused_k,
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
):
    """As flash_attn.flash_attn_with_kvcache; page_table is its block_table. q may be packed, (total_q, heads, dim),
    with cu_seqlens_q. With return_softmax_lse: (out, lse, None, None); upstream's last two are its partial results."""
    _refuse(q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, cu_seqlens_k_new=cu_seqlens_k_new)
    attention_chunk = chunk_of(attention_chunk)
    if qv is not None and k is not None:
        raise ValueError("qv is given with k, want new keys written into the caches beforehand")
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    if isinstance(cache_seqlens, int):
        cache_seqlens = torch.full((batch,), cache_seqlens, dtype=torch.int32, device=q.device)
    if page_table is not None and cache_batch_idx is not None:  # rows of the table, as slots of a cache
        page_table, cache_batch_idx = page_table.index_select(0, cache_batch_idx), None
    if rotary_seqlens is not None and rotary_cos is not None:
        local = causal or _window(window_size) != (None, None) or attention_chunk > 0
        q, k = _turned(q, k, rotary_cos, rotary_sin, rotary_seqlens, rotary_interleaved, local)
        rotary_cos = rotary_sin = None
    q, keys, scale = _joined(q, k_cache, v_cache, qv, softmax_scale)
    options: Dict[str, Any] = dict(
        causal=bool(causal), window=_window(window_size), chunk=attention_chunk, scale=scale, softcap=softcap,
        return_lse=True, num_splits=num_splits, block_table=page_table,
    )
    if cu_seqlens_q is None:
        with torch.no_grad():  # as upstream: the result has no gradient
            out, lse = mica.attention_with_cache(
                q, keys, v_cache, k=k, v=v, cache_seqlens=cache_seqlens, cache_batch_idx=cache_batch_idx,
                cache_leftpad=cache_leftpad, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
                rotary_interleaved=rotary_interleaved, **options,
            )
    else:
        out, lse = _packed_queries(q, keys, v_cache, cu_seqlens_q, cache_seqlens, max_seqlen_q, options,
                                   k=k, cache_batch_idx=cache_batch_idx, cache_leftpad=cache_leftpad)
    return (out, lse, None, None) if return_softmax_lse else out


def _turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, at: Tensor, interleaved: bool, local: bool):
    """q and k turned by positions of their own, not those of the cache: q row i at `at` + i if local, else at `at`."""
    options = dict(interleaved=interleaved, seqlen_offsets=at)
    k = apply_rotary_emb(k, cos, sin, **options)
    if local:
        return apply_rotary_emb(q, cos, sin, **options), k
    flat = apply_rotary_emb(q.flatten(1, 2).unsqueeze(1), cos, sin, **options)
    return flat.reshape(q.shape), k


def _packed_queries(q, k_cache, v_cache, cu_seqlens_q, cache_seqlens, max_seqlen_q, options, **unwanted):
    """Packed queries over a cache: the cache's slots, or its pages, are the keys of a packed call."""
    for name, value in unwanted.items():
        if value is not None:
            raise ValueError(f"{name} is given with cu_seqlens_q, want None")
    batch = cu_seqlens_q.shape[0] - 1
    if options["block_table"] is None:
        capacity = k_cache.shape[1]
        cu_seqlens_k = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * capacity
        k_cache, v_cache = k_cache[:batch].flatten(0, 1), v_cache[:batch].flatten(0, 1)
    else:
        cu_seqlens_k = None
    return mica.attention_varlen(
        q, k_cache, v_cache, cu_seqlens_q, cu_seqlens_k, max_seqlen_q=max_seqlen_q, seqused_k=cache_seqlens, **options
    )


def flash_attn_combine(out_partial, lse_partial, out=None, out_dtype=None):
    """Merges partial results over the first axis: out_partial (splits, ..., seqlen, heads, dim), lse_partial
    (splits, ..., seqlen, heads). Returns (out, lse); a row that is empty in every part is 0 with LSE -inf."""
    lse = torch.logsumexp(lse_partial.float(), dim=0)
    weight = torch.exp(lse_partial.float() - lse.masked_fill(lse == -float("inf"), 0.0))
    merged = (out_partial.float() * weight.unsqueeze(-1)).sum(dim=0)
    merged = merged.to(out_partial.dtype if out_dtype is None else out_dtype)
    return (merged if out is None else out.copy_(merged)), lse


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
