# SPDX-License-Identifier: Apache-2.0
"""Attention of torch.float8_e4m3fn: q, k and v with their factors, and quantised caches beside wider queries.

A stored element times its factor (descale) is what it stands for. A factor is an fp32 tensor (batch, key heads), of which
an axis of size 1 broadcasts; (key heads,); or one number for all. None is 1. A query head takes the factor of its key
head. mica.attention and its sisters take e4m3 too, without factors. For inference: nothing here has a gradient.
"""

from typing import Any, Optional, Tuple, Union

import torch
from torch import Tensor

from . import _tensors
from ._arguments import fp32, normalise, number, window_of
from ._describe import Options
from ._messages import of_a_cache
from ._pairs import capacity, check_pairs_of
from ._torch_face import cache_lengths_of, lengths_of
from ._tracing import has_forward_mode, refuse_forward_mode
from .errors import InvalidArgument, Unsupported

Factor = Union[None, float, Tensor]
LARGEST = 448.0


def _refuse_arrays(**tensors: Any) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise InvalidArgument(f"{name} is a {type(tensor).__name__}, want a torch.Tensor")


def _refuse_gradient(**tensors: Any) -> None:
    if torch.is_grad_enabled():
        for name, tensor in tensors.items():
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                raise Unsupported(f"{name} requires a gradient, and e4m3 has none; want it under torch.no_grad(), or "
                                  "mica.attention to train")


def quantise(x: Tensor, per: str = "head", key_heads: Optional[int] = None) -> Tuple[Tensor, Tensor]:
    """(x in float8_e4m3fn, its factors): the largest of each head (of all x with per='tensor', of each sequence's head
    with per='sequence') becomes 448, e4m3's largest. x is (batch or pages, rows, heads, dim). key_heads, for queries: the
    heads that share a key head share a factor."""
    _refuse_arrays(x=x)
    axes = {"tensor": (0, 1, 2, 3), "head": (0, 1, 3), "sequence": (1, 3)}
    if per not in axes:
        raise InvalidArgument(f"per is {per!r}, want 'tensor', 'head' or 'sequence'")
    if x.dim() != 4:
        raise InvalidArgument(f"x has {x.dim()} axes, want 4 (batch, rows, heads, dim)")
    heads = x.shape[2] if key_heads is None else key_heads
    if heads < 1 or x.shape[2] % heads:
        raise InvalidArgument(f"key_heads is {heads}, want a divisor of {x.shape[2]} (= x.shape[2])")
    wide = x.detach().float().reshape(x.shape[0], x.shape[1], heads, -1)
    largest = wide.abs().amax(axes[per], keepdim=True).clamp(min=1e-12)
    factor = largest / LARGEST
    stored = (wide / factor).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).reshape(x.shape)
    return stored, factor[:, 0, :, 0].contiguous()


def _factor(name: str, value: Factor, q: Tensor) -> Optional[Tensor]:
    """fp32 (batch or 1, key heads or 1), on q's device."""
    if value is None:
        return None
    if not isinstance(value, Tensor):
        try:
            factor = number(name, value)
        except InvalidArgument:
            raise InvalidArgument(f"{name} is {value!r}, want a number or an fp32 tensor (batch, key heads)") from None
        return torch.full((1, 1), fp32(name, factor), dtype=torch.float32, device=q.device)
    given: Any = value
    if given.dtype is not torch.float32 or given.dim() > 2:
        raise InvalidArgument(f"{name} is {given.dtype} of {given.dim()} axes, want float32 (batch, key heads)")
    return given.reshape(1, -1) if given.dim() < 2 else given


def _call(q: Tensor, k: Tensor, v: Tensor, numbers: Tuple[Any, ...], factors: Tuple[Factor, Factor, Factor], return_lse: bool,
          **bound: Any) -> Any:
    _refuse_arrays(q=q, k=k, v=v)
    given = dict(q=q, k=k, v=v, **bound, **dict(zip(_tensors.FACTORS, factors)))
    _refuse_gradient(**given)
    if has_forward_mode():
        refuse_forward_mode(*given.values())
    named = dict(zip(Options.__slots__, numbers))
    for name, value in zip(_tensors.FACTORS, factors):
        bound[name] = _factor(name, value, q)
    with torch.no_grad():
        dense_q, dense_k, dense_v = (_tensors.dense(t.detach()) for t in (q, k, v))
        o, lse, _ = _tensors.forward(dense_q, dense_k, dense_v, lse=bool(return_lse), **bound, **named)
    return (o, lse) if return_lse else o


def attention(q: Tensor, k: Tensor, v: Tensor, *, q_descale: Factor = None, k_descale: Factor = None,
              v_descale: Factor = None, causal: Any = False, window: Any = None, chunk: int = 0,
              mask: Optional[Tensor] = None, bias: Optional[Tensor] = None, scale: Optional[float] = None,
              softcap: Optional[float] = None,
              alibi: Optional[Tensor] = None, sinks: Optional[Tensor] = None, return_lse: bool = False,
              out: Optional[Tensor] = None, diagonal: Optional[str] = None, num_splits: int = 0,
              batch_invariant: bool = False) -> Any:
    """mica.attention with factors. q, k and v are e4m3 and the result is bfloat16, or out's type (float16, float32); or k
    and v are e4m3 beside q of another type, which the result has."""
    numbers = normalise(causal, window_of(window), chunk, scale, softcap, 0.0, diagonal, num_splits, batch_invariant)
    return _call(q, k, v, numbers, (q_descale, k_descale, v_descale), return_lse, out=out, mask=mask, bias=bias,
                 alibi=alibi, sinks=sinks)


def attention_varlen(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Any, cu_seqlens_k: Any, *,
                     q_descale: Factor = None, k_descale: Factor = None, v_descale: Factor = None,
                     max_seqlen_q: Optional[int] = None, max_seqlen_k: Optional[int] = None, causal: Any = False,
                     window: Any = None, chunk: int = 0, scale: Optional[float] = None, softcap: Optional[float] = None,
                     sinks: Optional[Tensor] = None, return_lse: bool = False, out: Optional[Tensor] = None,
                     diagonal: Optional[str] = None, num_splits: int = 0, batch_invariant: bool = False,
                     seqused_q: Any = None, seqused_k: Any = None, block_table: Optional[Tensor] = None,
                     descale_per_page: bool = False) -> Any:
    """mica.attention_varlen with factors, which go by the packed sequences; descale_per_page: those of k and v are
    (pages, key heads)."""
    numbers = normalise(causal, window_of(window), chunk, scale, softcap, 0.0, diagonal, num_splits, batch_invariant, False,
                        False, max_seqlen_q, max_seqlen_k)
    _refuse_arrays(q=q)
    return _call(q, k, v, numbers, (q_descale, k_descale, v_descale), return_lse, out=out, sinks=sinks,
                 cu_seqlens_q=lengths_of("cu_seqlens_q", cu_seqlens_q, q),
                 cu_seqlens_k=lengths_of("cu_seqlens_k", cu_seqlens_k, q),
                 seqused_q=lengths_of("seqused_q", seqused_q, q), seqused_k=lengths_of("seqused_k", seqused_k, q),
                 block_table=block_table, descale_per_page=bool(descale_per_page))


def attention_with_cache(q: Tensor, k_cache: Tensor, v_cache: Tensor, *, k: Optional[Tensor] = None,
                         v: Optional[Tensor] = None, q_descale: Factor = None, k_descale: Factor = None,
                         v_descale: Factor = None, descale_per_page: bool = False, cache_seqlens: Any = None,
                         block_table: Optional[Tensor] = None, cache_batch_idx: Optional[Tensor] = None,
                         cache_leftpad: Optional[Tensor] = None, rotary_cos: Optional[Tensor] = None,
                         rotary_sin: Optional[Tensor] = None, rotary_interleaved: bool = False, causal: Any = False,
                         window: Any = None, chunk: int = 0, mask: Optional[Tensor] = None, bias: Optional[Tensor] = None,
                         scale: Optional[float] = None, softcap: Optional[float] = None,
                         alibi: Optional[Tensor] = None, sinks: Optional[Tensor] = None, return_lse: bool = False,
                         out: Optional[Tensor] = None, diagonal: Optional[str] = None, num_splits: int = 0,
                         batch_invariant: bool = False, max_seqlen_k: Optional[int] = None) -> Any:
    """mica.attention_with_cache with caches of e4m3. New keys and values of q's type are divided by the factors, rounded
    and written; of e4m3 they are written as they are."""
    numbers = normalise(causal, window_of(window), chunk, scale, softcap, 0.0, diagonal, num_splits, batch_invariant, False,
                        rotary_interleaved, None, max_seqlen_k)
    _refuse_arrays(q=q, k_cache=k_cache, v_cache=v_cache, **{name: t for name, t in (("k", k), ("v", v)) if t is not None})
    cache_seqlens = cache_lengths_of(cache_seqlens, q)
    if mask is not None or bias is not None:
        whole = capacity(k_cache.shape, None if block_table is None else getattr(block_table, "shape", ()))
        check_pairs_of(mask, bias, q, (None, None, q.shape[1]), (None, cache_seqlens, whole), 0 if k is None else k.shape[1],
                       cache_leftpad)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.shape[-1] > 1 and cache.stride(-1) != 1:
            raise InvalidArgument(f"{name}.stride[3] is {cache.stride(-1)}, want 1 (the last dimension must be dense)")
    try:
        return _call(q, k_cache, v_cache, numbers, (q_descale, k_descale, v_descale), return_lse, out=out, mask=mask,
                     bias=bias, alibi=alibi, sinks=sinks, seqused_k=cache_seqlens,
                     cache_batch_idx=cache_batch_idx, cache_leftpad=cache_leftpad, block_table=block_table,
                     k_new=None if k is None else _tensors.dense(k), v_new=None if v is None else _tensors.dense(v),
                     rotary_cos=rotary_cos, rotary_sin=rotary_sin, descale_per_page=bool(descale_per_page))
    except InvalidArgument as error:
        raise type(error)(of_a_cache(str(error))) from None
