# SPDX-License-Identifier: Apache-2.0
"""Attention with a gradient: one autograd function for dense and packed sequences, for q, k, v apart or packed
together."""
from typing import Optional, Tuple, Union

import mica
import torch
from mica._autograd import final
from mica._torch_ops import backward_by_op, stand_for_several
from mica._tracing import has_forward_mode, refuse_forward_mode, refuse_slopes
from torch import Tensor

from . import _native, _ops
from ._autocast import as_they_are, autocast
from ._numbers import causal_of, number, window_of

Window = Union[Tuple[int, int], Tensor]


def _unpack(a: Tensor, b: Optional[Tensor], c: Optional[Tensor]) -> Tuple[Tensor, Tensor, Tensor]:
    """Views q, k, v of (q, k, v), of (q, kv, None) or of (qkv, None, None); the packing axis is the third from the
    end."""
    if c is None:
        packed, name, count = (a, "qkv", 3) if b is None else (b, "kv", 2)
        if packed.dim() < 3 or packed.shape[-3] != count:
            raise ValueError(f"{name}.shape is {tuple(packed.shape)}, want {count} as the third axis from the end")
    if b is None:
        return a.select(-3, 0), a.select(-3, 1), a.select(-3, 2)
    return (a, b.select(-3, 0), b.select(-3, 1)) if c is None else (a, b, c)


def _forward(q, k, v, alibi, cu_q, cu_k, block_table, max_q, max_k, p, scale, causal, left, right, softcap,
             want_softmax, want_lse):
    """(out, lse, S_dmask, rng_state); lse is upstream's if want_softmax, else Mica's own, or None if not want_lse."""
    if _ops.is_traced(q):
        if p > 0.0:
            rng_state = _native.new_rng_state(q, p)
            made = torch.ops.flash_attn._flash_attn_dropout_forward(
                q, k, v, rng_state, cu_q, cu_k, block_table, max_q, max_k, p, scale, causal, left, right, softcap, alibi,
                want_softmax,
            )
            return (*made, rng_state)
        if cu_q is None:
            return torch.ops.flash_attn._flash_attn_forward(
                q, k, v, p, scale, causal, left, right, softcap, alibi, False
            )
        return torch.ops.flash_attn._flash_attn_varlen_forward(
            q, k, v, cu_q, cu_k, max_q, max_k, p, scale, causal, left, right, softcap, alibi, False, block_table,
        )
    numbers = _native.numbers_of(scale, causal, left, right, softcap)
    out, lse, softmax, rng_state = _native.attend(
        q, k, v, p, numbers, want_softmax and p > 0.0, want_lse or want_softmax, None, alibi, cu_q, cu_k, max_q, max_k,
        block_table=block_table,
    )
    return out, _native.upstream_lse(lse) if want_softmax else lse, softmax, rng_state


def _distinct(*tensors: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
    """The same tensors under different names: the tracer of torch.compile refuses one tensor given twice."""
    if tensors[0] is None or not _ops.is_traced(tensors[0]):
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
    def backward(ctx, dout, _dlse, _dsoftmax):
        if _ops.is_traced(dout):
            return (*_gradients(ctx, dout), *(None,) * 14)
        with torch.no_grad():
            grads = _gradients(ctx, dout)
        sources = tuple(x for x in (*ctx.saved_tensors[:3], dout) if x is not None)
        return (*(None if x is None else final(x, *sources) for x in grads), *(None,) * 14)


def _gradients(ctx, dout):
    """Of a, b and c, packed as they are."""
    if ctx.is_paged:
        raise RuntimeError("block_table is given, want None for a gradient: pages have none")
    a, b, c, out, lse, rng_state, alibi, cu_q, cu_k = ctx.saved_tensors
    p, scale, causal, left, right, softcap, deterministic = ctx.options
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    q, k, v = _unpack(a, b, c)
    if stand_for_several(dout):
        dq, dk, dv, *_ = backward_by_op(
            dout, None, q, k, v, out, lse, (True, True, True, False, False), dropout=p, deterministic=deterministic,
            alibi=alibi, cu_seqlens_q=_native.vector(cu_q), cu_seqlens_k=_native.vector(cu_k),
            rng_state=rng_state if p > 0.0 else None,
            **_native.numbers_of(scale, causal, left, right, softcap),
        )
        if c is not None:
            return dq, dk, dv
        return (torch.stack((dq, dk, dv), -3), None, None) if b is None else (dq, torch.stack((dk, dv), -3), None)
    grads = tuple(None if x is None else torch.empty_like(x) for x in (a, b, c))
    dq, dk, dv = _unpack(*grads)
    if _ops.is_traced(q):
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
    return grads


def _wants_padding(*tensors: Optional[Tensor]) -> bool:
    """On a GPU rows start at 16 bytes, as the fast kernels want; the CPU takes any head dimension as it is."""
    head_dim = tensors[0].shape[-1]
    return tensors[0].is_cuda and head_dim % 8 != 0 and all(x is None or x.shape[-1] == head_dim for x in tensors)


def _padded(x: Optional[Tensor]) -> Optional[Tensor]:
    return None if x is None else torch.nn.functional.pad(x, (0, -x.shape[-1] % 8))


def _needs_gradient(*tensors: Optional[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in tensors)


def _length(value: Union[int, Tensor, None]) -> Optional[int]:
    return value if isinstance(value, int) else _native.hint(value)


def _plain(q, k, v, dropout_p, scale, causal, left, right, softcap, alibi, with_lse, cu_q, cu_k, max_q, max_k, table):
    """The call without upstream's special wishes: straight to mica.attention or mica.attention_varlen."""
    window = None if left < 0 and right < 0 else (left if left >= 0 else None, right if right >= 0 else None)
    options = dict(causal=causal, window=window, scale=scale or 1e-30, softcap=softcap, alibi=alibi, dropout=dropout_p,
                   return_lse=with_lse)
    if cu_q is None:
        return mica.attention(q, k, v, **options)
    keys = _native.keys_of(cu_k, None, table)
    return mica.attention_varlen(
        q, k, v, _native.vector(cu_q), keys.pop("cu_seqlens_k", None), max_seqlen_q=_length(max_q),
        max_seqlen_k=_length(max_k), **keys, **options,
    )


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
    head_dim = a.shape[-1]
    softmax_scale = head_dim**-0.5 if softmax_scale is None else number("softmax_scale", softmax_scale)
    softcap, dropout_p = number("softcap", softcap), number("dropout_p", dropout_p)
    if softcap > 0.0 and dropout_p > 0.0:
        raise RuntimeError(f"softcap is {softcap} with dropout {dropout_p}, want one of them (as upstream)")
    left, right = window_of(window_size)
    a, b, c = autocast(a, b, c)
    padding = _wants_padding(a, b, c)
    if padding:
        a, b, c = _padded(a), _padded(b), _padded(c)
    gradient = _needs_gradient(a, b, c)
    refuse_slopes(alibi_slopes)
    options = (dropout_p, softmax_scale, causal_of(causal), left, right, softcap if softcap != softcap else max(softcap, 0.0))
    lengths = (max_seqlen_q, max_seqlen_k)
    if has_forward_mode():
        refuse_forward_mode(a, b, c, alibi_slopes)
    transformed = _ops.is_transformed()
    # S_dmask, a gradient written packed and one whose bits are asked for by argument are what Mica's face does not have.
    if not ((_ops.is_traced(a) and not transformed) or (return_attn_probs and dropout_p) or
            (gradient and (deterministic or (c is None and not transformed)))):
        with as_they_are(a):
            out = _plain(*_unpack(a, b, c), *options, alibi_slopes, return_attn_probs, cu_seqlens_q, cu_seqlens_k, *lengths,
                         block_table)
        if return_attn_probs:
            out, lse = out
            lse, softmax = _native.upstream_lse(lse), a.new_empty((0,))
    else:
        sequences = (*_distinct(cu_seqlens_q, cu_seqlens_k), block_table, *lengths)
        if gradient:
            out, lse, softmax = _Attention.apply(
                *_distinct(a, b, c), alibi_slopes, *sequences, *options, bool(deterministic), bool(return_attn_probs)
            )
        else:
            out, lse, softmax, _ = _forward(
                *_unpack(a, b, c), alibi_slopes, *sequences, *options, bool(return_attn_probs), False
            )
    if padding:
        out = out[..., :head_dim]
    return (out, lse, softmax) if return_attn_probs else out
