# SPDX-License-Identifier: Apache-2.0
"""Packed sequences cut into equal stretches, wherever they begin: keys and values of all ranks are gathered, as in the
training of Llama 3. mica.distributed.attention_varlen(layout="gather") does the same and sends only what is seen."""

from typing import Any, Optional, Tuple

import torch
from mica.distributed.gathered import attention_of_gathered
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
    o, lse = attention_of_gathered(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, local_k_slice,
                                   heads_k_stride, causal=causal, window=window_of(window_size), scale=softmax_scale,
                                   dropout=dropout_p, alibi=alibi_slopes, deterministic=deterministic, group=group)
    return result((o, lse) if return_attn_probs else o, return_attn_probs)


def llama3_flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, *arguments: Any, **named: Any) -> Any:
    """As llama3_flash_attn_varlen_func, with k and v in kv[:, 0] and kv[:, 1]."""
    return llama3_flash_attn_varlen_func(q, *kv.unbind(1), *arguments, **named)


def llama3_flash_attn_varlen_qkvpacked_func(qkv: Tensor, *arguments: Any, **named: Any) -> Any:
    """As llama3_flash_attn_varlen_func, with q, k and v in qkv[:, 0], qkv[:, 1] and qkv[:, 2]."""
    return llama3_flash_attn_varlen_func(*qkv.unbind(1), *arguments, **named)
