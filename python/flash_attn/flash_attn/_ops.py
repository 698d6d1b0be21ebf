# SPDX-License-Identifier: Apache-2.0
"""The four private functions that other projects import, and the torch.library operators of the same names.

Called eagerly they go straight to Mica; while a tracer looks on, to torch.ops.flash_attn.<name>.
"""
import functools
import inspect
from typing import Callable, Optional, Tuple

import torch
from mica import _tracing
from mica._inductor import know_where_views_begin
from torch import Tensor

from . import _native

HAS_OPERATORS = hasattr(torch.library, "custom_op") and hasattr(torch.library, "register_fake")  # PyTorch 2.4


def is_traced(q: Tensor) -> bool:
    """Whether the call must go through torch's dispatcher: torch.compile, torch.export, fake tensors, dispatch modes."""
    return HAS_OPERATORS and bool(_tracing.is_traced(q))


def is_transformed() -> bool:
    """Whether torch.func.* looks on, whose rules mica.attention has and the operators here have not."""
    return HAS_OPERATORS and bool(_tracing.is_transformed())


def _operator(fake: Callable, mutates: Tuple[str, ...] = ()) -> Callable:
    """Registers the decorated function as flash_attn::<its name>. `fake` takes the bound arguments by name."""

    def register(function: Callable) -> Callable:
        signature = inspect.signature(function)
        first = next(iter(signature.parameters))
        name = f"flash_attn::{function.__name__}"
        if HAS_OPERATORS:
            torch.library.custom_op(name, mutates_args=mutates)(function)

            def fake_of_call(*args, **kwargs):
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                return fake(**bound.arguments)

            torch.library.register_fake(name)(fake_of_call)

        @functools.wraps(function)
        def call(*args, **kwargs):
            if is_traced(args[0] if args else kwargs[first]):
                return getattr(torch.ops.flash_attn, function.__name__)(*args, **kwargs)
            return function(*args, **kwargs)

        # NOTE: ring-flash-attention reads the arguments with inspect.getfullargspec, which looks here.
        call.__signature__ = signature
        return call

    return register


def _fake_results(q: Tensor, v: Tensor, lse_shape, softmax_shape, return_softmax: bool):
    out = q.new_empty(q.shape[:-1] + v.shape[-1:])
    lse = q.new_empty(lse_shape, dtype=torch.float32)
    softmax = q.new_empty(softmax_shape if return_softmax else (0,))
    return out, lse, softmax, q.new_empty((2,), dtype=torch.int64)


def _fake_forward(q, k, v, return_softmax, **_):
    batch, seqlen_q, heads, _ = q.shape
    rounded = [_native.round_multiple(n, 128) for n in (seqlen_q, k.shape[1])]
    return _fake_results(q, v, (batch, heads, seqlen_q), (batch, heads, *rounded), return_softmax)


def _fake_varlen_forward(q, v, cu_seqlens_q, max_seqlen_q, max_seqlen_k, return_softmax, **_):
    total, heads, _ = q.shape
    rounded = [_native.round_multiple(n, 128) for n in (max_seqlen_q, max_seqlen_k)]
    return _fake_results(q, v, (heads, total), (cu_seqlens_q.shape[0] - 1, heads, *rounded), return_softmax)


def _fake_backward(q, **_):
    know_where_views_begin()
    *batch, seqlen_q, heads, _ = q.shape
    return q.new_empty((*batch, heads, _native.round_multiple(seqlen_q, 128)), dtype=torch.float32)


@_operator(_fake_forward)
def _flash_attn_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Optional[torch.Tensor],
    return_softmax: bool,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """out, softmax_lse (batch, heads, seqlen_q), S_dmask or empty, rng_state."""
    return tuple(
        _native.fwd(
            q, k, v, None, alibi_slopes, dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap,
            return_softmax,
        )
    )


@_operator(_fake_varlen_forward)
def _flash_attn_varlen_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Optional[torch.Tensor] = None,
    return_softmax: bool = False,
    block_table: Optional[torch.Tensor] = None,
    leftpad_k: Optional[torch.Tensor] = None,
    seqused_k: Optional[torch.Tensor] = None,
    zero_tensors: bool = False,
    num_splits: int = 0,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """out, softmax_lse (heads, total_q), S_dmask or empty, rng_state. num_splits is a hint that varlen does not
    need."""
    return tuple(
        _native.varlen_fwd(
            q, k, v, None, cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k, block_table, alibi_slopes, max_seqlen_q,
            max_seqlen_k, dropout_p, softmax_scale, zero_tensors, causal, window_size_left, window_size_right, softcap,
            return_softmax,
        )
    )


def _fake_dropout_forward(cu_seqlens_q, **given):
    fake = _fake_forward if cu_seqlens_q is None else _fake_varlen_forward
    return fake(cu_seqlens_q=cu_seqlens_q, **given)[:3]


@_operator(_fake_dropout_forward)
def _flash_attn_dropout_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    rng_state: torch.Tensor,
    cu_seqlens_q: Optional[torch.Tensor],
    cu_seqlens_k: Optional[torch.Tensor],
    block_table: Optional[torch.Tensor],
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Optional[torch.Tensor],
    return_softmax: bool,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """out, softmax_lse, S_dmask or empty, dense or packed, of an rng_state that was drawn before. Not upstream's, whose
    operators draw inside: a compiler takes such a one for a function of its arguments, so that it makes two equal calls once,
    and one that a checkpoint repeats with other elements dropped."""
    numbers = _native.numbers_of(softmax_scale, causal, window_size_left, window_size_right, softcap)
    out, lse, softmax, _ = _native.attend(
        q, k, v, dropout_p, numbers, return_softmax, True, None, alibi_slopes, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
        max_seqlen_k, block_table=block_table, rng_state=rng_state,
    )
    return out, _native.upstream_lse(lse), softmax


@_operator(_fake_backward, mutates=("dq", "dk", "dv"))
def _flash_attn_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    softmax_lse: torch.Tensor,
    dq: Optional[torch.Tensor],
    dk: Optional[torch.Tensor],
    dv: Optional[torch.Tensor],
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Optional[torch.Tensor],
    deterministic: bool,
    rng_state: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """Writes dq, dk and dv; returns the row sums of dO * O."""
    return _native.bwd(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, alibi_slopes, dropout_p, softmax_scale, causal, window_size_left,
        window_size_right, softcap, deterministic, None, rng_state,
    )[3]


@_operator(_fake_backward, mutates=("dq", "dk", "dv"))
def _flash_attn_varlen_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    softmax_lse: torch.Tensor,
    dq: Optional[torch.Tensor],
    dk: Optional[torch.Tensor],
    dv: Optional[torch.Tensor],
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Optional[torch.Tensor],
    deterministic: bool,
    rng_state: Optional[torch.Tensor] = None,
    zero_tensors: bool = False,
) -> torch.Tensor:
    """Writes dq, dk and dv; returns the row sums of dO * O."""
    return _native.varlen_bwd(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, alibi_slopes, max_seqlen_q,
        max_seqlen_k, dropout_p, softmax_scale, zero_tensors, causal, window_size_left, window_size_right, softcap,
        deterministic, None, rng_state,
    )[3]
