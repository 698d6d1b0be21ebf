# SPDX-License-Identifier: Apache-2.0
"""A layout of mica.distributed in the six forms of ring-flash-attention's functions: dense or packed sequences, with q,
k and v apart, k and v together, or all three together."""

from typing import Any, Callable, Optional, Tuple

import torch.distributed as dist
from mica import distributed
from torch import Tensor

Window = Tuple[int, int]


def window_of(window_size: Window) -> Optional[Tuple[Optional[int], Optional[int]]]:
    """-1 is unlimited."""
    left, right = (None if side < 0 else side for side in window_size)
    return None if left is None and right is None else (left, right)


def result(made: Any, return_attn_probs: bool) -> Any:
    return (*made, None) if return_attn_probs else made


def whole(cu_seqlens: Tensor, group: Any) -> Tuple[int, ...]:
    """The cumulative lengths of all ranks' parts, which are as long as this one's."""
    size = dist.get_world_size(group)
    return tuple(size * at for at in (cu_seqlens.tolist() if isinstance(cu_seqlens, Tensor) else cu_seqlens))


def _named(function: Callable, name: str) -> Callable:
    function.__name__ = function.__qualname__ = name
    return function


def dense_forms(layout: str, name: str) -> Tuple[Callable, Callable, Callable]:
    """{name}_func, {name}_kvpacked_func and {name}_qkvpacked_func."""

    def apart(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
              causal: bool = False, window_size: Window = (-1, -1), alibi_slopes: Optional[Tensor] = None,
              deterministic: bool = False, return_attn_probs: bool = False, group: Any = None) -> Any:
        made = distributed.attention(q, k, v, layout=layout, group=group, dropout=dropout_p, scale=softmax_scale,
                                     causal=causal, window=window_of(window_size), alibi=alibi_slopes,
                                     deterministic=deterministic, return_lse=return_attn_probs)
        return result(made, return_attn_probs)

    def kvpacked(q: Tensor, kv: Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                 causal: bool = False, window_size: Window = (-1, -1), alibi_slopes: Optional[Tensor] = None,
                 deterministic: bool = False, return_attn_probs: bool = False, group: Any = None) -> Any:
        return apart(q, *kv.unbind(2), dropout_p, softmax_scale, causal, window_size, alibi_slopes, deterministic,
                     return_attn_probs, group)

    def qkvpacked(qkv: Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
                  window_size: Window = (-1, -1), alibi_slopes: Optional[Tensor] = None, deterministic: bool = False,
                  return_attn_probs: bool = False, group: Any = None) -> Any:
        return apart(*qkv.unbind(2), dropout_p, softmax_scale, causal, window_size, alibi_slopes, deterministic,
                     return_attn_probs, group)

    return (_named(apart, f"{name}_func"), _named(kvpacked, f"{name}_kvpacked_func"),
            _named(qkvpacked, f"{name}_qkvpacked_func"))


def packed_forms(layout: str, name: str) -> Tuple[Callable, Callable, Callable]:
    """The same for packed sequences: cu_seqlens are those of this rank's parts, and every rank's are alike."""

    def apart(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = 0.0,
              softmax_scale: Optional[float] = None, causal: bool = False, window_size: Window = (-1, -1),
              alibi_slopes: Optional[Tensor] = None, deterministic: bool = False, return_attn_probs: bool = False,
              group: Any = None) -> Any:
        made = distributed.attention_varlen(q, k, v, whole(cu_seqlens, group), layout=layout, group=group,
                                            dropout=dropout_p, scale=softmax_scale, causal=causal,
                                            window=window_of(window_size), alibi=alibi_slopes,
                                            deterministic=deterministic, return_lse=return_attn_probs)
        return result(made, return_attn_probs)

    def kvpacked(q: Tensor, kv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = 0.0,
                 softmax_scale: Optional[float] = None, causal: bool = False, window_size: Window = (-1, -1),
                 alibi_slopes: Optional[Tensor] = None, deterministic: bool = False, return_attn_probs: bool = False,
                 group: Any = None) -> Any:
        return apart(q, *kv.unbind(1), cu_seqlens, max_seqlen, dropout_p, softmax_scale, causal, window_size,
                     alibi_slopes, deterministic, return_attn_probs, group)

    def qkvpacked(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = 0.0,
                  softmax_scale: Optional[float] = None, causal: bool = False, window_size: Window = (-1, -1),
                  alibi_slopes: Optional[Tensor] = None, deterministic: bool = False, return_attn_probs: bool = False,
                  group: Any = None) -> Any:
        return apart(*qkv.unbind(1), cu_seqlens, max_seqlen, dropout_p, softmax_scale, causal, window_size,
                     alibi_slopes, deterministic, return_attn_probs, group)

    return (_named(apart, f"{name}_func"), _named(kvpacked, f"{name}_kvpacked_func"),
            _named(qkvpacked, f"{name}_qkvpacked_func"))


