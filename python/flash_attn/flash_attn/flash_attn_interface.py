# SPDX-License-Identifier: Apache-2.0
"""The public functions of flash_attn 2.8, on Mica.

Common arguments: dropout_p (0.0 in evaluation); softmax_scale (default 1 / sqrt(dim)); causal, aligned to the bottom
right: row i sees key j if j <= i + seqlen_k - seqlen_q; window_size (left, right), inclusive around that diagonal, -1
unlimited; softcap (0.0: none); alibi_slopes fp32 (heads,) or (batch, heads), adding -slope * |i + seqlen_k - seqlen_q -
j|; deterministic (the gradient's bits do not vary); return_attn_probs, for tests, makes the result the triple (out,
softmax_lse, S_dmask). Grouped queries: heads must be a multiple of heads_k. A row that sees no key is 0, its LSE +inf.

Beyond upstream: fp32, CPU tensors, every head dimension up to 576, other head dimensions for v, any page size.
"""
import inspect
from typing import Any

from mica._torch_face import attention_again, attention_varlen_again

from . import _native as flash_attn_gpu  # noqa: F401  upstream's name for the compiled module
from ._autograd import attention
from ._kvcache import flash_attn_with_kvcache  # noqa: F401
from ._native import dense_rows as maybe_contiguous  # noqa: F401
from ._native import round_multiple  # noqa: F401
from ._numbers import causal_of
from ._ops import (  # noqa: F401
    _flash_attn_backward,
    _flash_attn_forward,
    _flash_attn_varlen_backward,
    _flash_attn_varlen_forward,
)

USE_TRITON_ROCM = False
_wrapped_flash_attn_forward = _flash_attn_forward
_wrapped_flash_attn_varlen_forward = _flash_attn_varlen_forward
_wrapped_flash_attn_backward = _flash_attn_backward
_wrapped_flash_attn_varlen_backward = _flash_attn_varlen_backward


def _get_block_size_n(device, head_dim, is_dropout, is_causal):
    """How many keys share a maximum in S_dmask. Here the maximum is the row's, so the block is wider than any row."""
    return 1 << 30


def _plain_scale(q, dropout_p, softmax_scale, window_size, softcap, alibi_slopes, deterministic, return_attn_probs):
    """The scale of a call with no more than that and causal, as attention() hands it on; None of any other. Models make such
    calls for every layer and token, and most repeat an earlier one: that is asked for before all else."""
    if (alibi_slopes is not None or type(window_size) is not tuple or window_size != (-1, -1) or dropout_p or softcap or
            deterministic or return_attn_probs):
        return None
    head_dim = q.shape[-1]
    return None if head_dim % 8 else (head_dim**-0.5 if softmax_scale is None else softmax_scale) or 1e-30


def flash_attn_qkvpacked_func(
    qkv,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),  # -1 means infinite context window
    softcap=0.0,  # <=0.0 means deactivate
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """qkv: (batch, seqlen, 3, heads, dim) -> (batch, seqlen, heads, dim). The gradient is written packed, without a
    copy."""
    return attention(
        qkv, None, None, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs,
    )


def flash_attn_kvpacked_func(
    q,
    kv,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),  # -1 means infinite context window
    softcap=0.0,  # 0.0 means deactivated
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """q: (batch, seqlen_q, heads, dim), kv: (batch, seqlen_k, 2, heads_k, dim) -> (batch, seqlen_q, heads, dim)."""
    return attention(
        q, kv, None, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs,
    )


def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),  # -1 means infinite context window
    softcap=0.0,  # 0.0 means deactivated
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """q: (batch, seqlen_q, heads, dim), k and v: (batch, seqlen_k, heads_k, dim) -> (batch, seqlen_q, heads, dim)."""
    scale = _plain_scale(q, dropout_p, softmax_scale, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    if scale is not None:
        made = attention_again(q, k, v, causal_of(causal), scale, 0.0)
        if made is not None:
            return made
    return attention(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    )


def flash_attn_varlen_qkvpacked_func(
    qkv,
    cu_seqlens,
    max_seqlen,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),  # -1 means infinite context window
    softcap=0.0,  # 0.0 means deactivated
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """qkv: (total, 3, heads, dim), cu_seqlens int32 (batch + 1,) -> (total, heads, dim)."""
    return attention(
        qkv, None, None, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen,
    )


def flash_attn_varlen_kvpacked_func(
    q,
    kv,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),  # -1 means infinite context window
    softcap=0.0,  # 0.0 means deactivated
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """q: (total_q, heads, dim), kv: (total_k, 2, heads_k, dim) -> (total_q, heads, dim)."""
    return attention(
        q, kv, None, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
    )


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),  # -1 means infinite context window
    softcap=0.0,  # 0.0 means deactivated
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
):
    """q: (total_q, heads, dim), k and v: (total_k, heads_k, dim) or, with block_table int32 (batch, blocks), pages
    (num_blocks, page_block_size, heads_k, dim) -> (total_q, heads, dim); the LSE is (heads, total_q). max_seqlen_q and
    max_seqlen_k are hints."""
    scale = _plain_scale(q, dropout_p, softmax_scale, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    if scale is not None and block_table is None:
        made = attention_varlen_again(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal_of(causal), scale, 0.0)
        if made is not None:
            return made
    return attention(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
        cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, block_table,
    )


def _as_class(name: str, function: Any) -> type:
    """One of upstream's autograd functions, for code that calls its apply: the public function's arguments in order,
    then is_grad_enabled, which is read from torch instead."""
    count = len(inspect.signature(function).parameters)

    def apply(*args):
        return function(*args[:count])

    return type(name, (), {"apply": staticmethod(apply), "__doc__": f"apply calls {function.__name__}."})


FlashAttnQKVPackedFunc = _as_class("FlashAttnQKVPackedFunc", flash_attn_qkvpacked_func)
FlashAttnKVPackedFunc = _as_class("FlashAttnKVPackedFunc", flash_attn_kvpacked_func)
FlashAttnFunc = _as_class("FlashAttnFunc", flash_attn_func)
FlashAttnVarlenQKVPackedFunc = _as_class("FlashAttnVarlenQKVPackedFunc", flash_attn_varlen_qkvpacked_func)
FlashAttnVarlenKVPackedFunc = _as_class("FlashAttnVarlenKVPackedFunc", flash_attn_varlen_kvpacked_func)
FlashAttnVarlenFunc = _as_class("FlashAttnVarlenFunc", flash_attn_varlen_func)
