# SPDX-License-Identifier: Apache-2.0
"""Attention with a gradient: one autograd function for dense and packed sequences, for q, k, v apart or packed
together."""
from typing import Optional, Tuple, Union

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import _native, _ops

Window = Union[Tuple[int, int], Tensor]


def _unpack(a: Tensor, b: Optional[Tensor], c: Optional[Tensor]) -> Tuple[Tensor, Tensor, Tensor]:
    """Views q, k, v of (q, k, v), of (q, kv, None) or of (qkv, None, None); the packing axis is the third from the
    end."""
    if b is None:
        return a.select(-3, 0), a.select(-3, 1), a.select(-3, 2)
    return (a, b.select(-3, 0), b.select(-3, 1)) if c is None else (a, b, c)


def _forward(q, k, v, alibi, cu_q, cu_k, block_table, max_q, max_k, p, scale, causal, left, right, softcap,
             want_softmax, want_lse):
    """(out, lse, S_dmask, rng_state); lse is upstream's if want_softmax, else Mica's own, or None if not want_lse."""
    if _ops.is_compiling():
        if cu_q is None:
            return torch.ops.flash_attn._flash_attn_forward(
                q, k, v, p, scale, causal, left, right, softcap, alibi, want_softmax and p > 0.0
            )
        return torch.ops.flash_attn._flash_attn_varlen_forward(
            q, k, v, cu_q, cu_k, max_q, max_k, p, scale, causal, left, right, softcap, alibi, want_softmax and p > 0.0,
            block_table,
        )
    numbers = _native.numbers_of(scale, causal, left, right, softcap)
    out, lse, softmax, rng_state = _native.attend(
        q, k, v, p, numbers, want_softmax and p > 0.0, want_lse or want_softmax, None, alibi, cu_q, cu_k, max_q, max_k,
        block_table=block_table,
    )
    return out, _native.upstream_lse(lse) if want_softmax else lse, softmax, rng_state


def _distinct(*tensors: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
    """The same tensors under different names: the tracer of torch.compile refuses one tensor given twice."""
    if not _ops.is_compiling():
        return tensors
    first, *rest = tensors
    return (first, *(x.view_as(x) if x is not None else None for x in rest))


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b, c, alibi, cu_q, cu_k, block_table, max_q, max_k, p, scale, causal, left, right, softcap,
                deterministic, want_softmax):
        q, k, v = _unpack(a, b, c)
        out, lse, softmax, rng_state = _forward(
            q, k, v, alibi, cu_q, cu_k, block_table, max_q, max_k, p, scale, causal, left, right, softcap,
            want_softmax, True,
        )
        ctx.save_for_backward(a, b, c, out, lse, rng_state, alibi, cu_q, cu_k)
        ctx.lengths = (max_q, max_k)
        ctx.options = (p, scale, causal, left, right, softcap, deterministic)
        ctx.is_paged = block_table is not None
        # NOTE: upstream drops a gradient that comes in through the LSE; here asking for one is an error.
        ctx.mark_non_differentiable(lse, softmax)
        return out, lse, softmax

    @staticmethod
    @once_differentiable
    def backward(ctx, dout, _dlse, _dsoftmax):
        if ctx.is_paged:
            raise RuntimeError("block_table is given, want None for a gradient: pages have none")
        a, b, c, out, lse, rng_state, alibi, cu_q, cu_k = ctx.saved_tensors
        p, scale, causal, left, right, softcap, deterministic = ctx.options
        grads = tuple(None if x is None else torch.empty_like(x) for x in (a, b, c))
        dq, dk, dv = _unpack(*grads)
        q, k, v = _unpack(a, b, c)
        if _ops.is_compiling():
            if cu_q is None:
                torch.ops.flash_attn._flash_attn_backward(
                    dout, q, k, v, out, lse, dq, dk, dv, p, scale, causal, left, right, softcap, alibi, deterministic,
                    rng_state,
                )
            else:
                torch.ops.flash_attn._flash_attn_varlen_backward(
                    dout, q, k, v, out, lse, dq, dk, dv, cu_q, cu_k, *ctx.lengths, p, scale, causal, left, right,
                    softcap, alibi, deterministic, rng_state,
                )
        else:
            numbers = _native.numbers_of(scale, causal, left, right, softcap)
            _native.differentiate(
                dout, q, k, v, out, lse, (dq, dk, dv), p, numbers, deterministic, rng_state, alibi, cu_q, cu_k,
                *ctx.lengths,
            )
        return (*grads, *(None,) * 14)


def _padding(*tensors: Optional[Tensor]) -> int:
    """Features to add so that rows start at 16 bytes, which the fast GPU kernels want; the CPU takes any head
    dimension."""
    sizes = {x.shape[-1] for x in tensors if x is not None}
    return max(-size % 8 for size in sizes) if tensors[0].is_cuda and len(sizes) == 1 else 0


def attention(
    a: Tensor,
    b: Optional[Tensor],
    c: Optional[Tensor],
    dropout_p: float,
    softmax_scale: Optional[float],
    causal: bool,
    window_size: Window,
    softcap: float,
    alibi_slopes: Optional[Tensor],
    deterministic: bool,
    return_attn_probs: bool,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k: Optional[Tensor] = None,
    max_seqlen_q: Union[int, Tensor] = 0,
    max_seqlen_k: Union[int, Tensor] = 0,
    block_table: Optional[Tensor] = None,
) -> Union[Tensor, Tuple[Tensor, Tensor, Tensor]]:
    """What the six public functions do. (a, b, c) is (q, k, v), (q, kv, None) or (qkv, None, None)."""
    if softmax_scale is None:
        softmax_scale = a.shape[-1] ** -0.5
    left, right = int(window_size[0]), int(window_size[1])
    head_dim_out, extra = (b if c is None and b is not None else a if c is None else c).shape[-1], _padding(a, b, c)
    if extra:
        a, b, c = (None if x is None else torch.nn.functional.pad(x, (0, extra)) for x in (a, b, c))
    options = (float(dropout_p), float(softmax_scale), bool(causal), left, right, float(softcap))
    a, b, c = _distinct(a, b, c)
    sequences = (*_distinct(cu_seqlens_q, cu_seqlens_k), block_table, max_seqlen_q, max_seqlen_k)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (a, b, c)):
        out, lse, softmax = _Attention.apply(
            a, b, c, alibi_slopes, *sequences, *options, bool(deterministic), bool(return_attn_probs)
        )
    else:
        out, lse, softmax, _ = _forward(
            *_unpack(a, b, c), alibi_slopes, *sequences, *options, bool(return_attn_probs), False
        )
    if extra:
        out = out[..., :head_dim_out]
    return (out, lse, softmax) if return_attn_probs else out
