# SPDX-License-Identifier: Apache-2.0
"""The five functions of upstream's compiled module, on Mica.

Positional arguments and results are those of flash_attn_2_cuda 2.8.3, so that code that calls the extension itself
works too. Semantics that are upstream's and not Mica's own live here: an empty row has LSE +inf, causal is
bottom-right, -1 is an unlimited window. Nothing here waits for the device.
"""
from typing import Dict, List, Optional, Sequence, Tuple, Union

import torch
from mica import _abi, _tensors
from torch import Tensor

INFINITY = float("inf")
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def round_multiple(x: int, m: int) -> int:
    return -(-x // m) * m


def dense_rows(x: Optional[Tensor]) -> Optional[Tensor]:
    """The tensor, copied only if its last axis is not dense."""
    return x.contiguous() if x is not None and x.stride(-1) != 1 else x


def vector(x: Optional[Tensor]) -> Optional[Tensor]:
    """int32 and dense, as the kernels want lengths and tables; what holds no integers is left to be refused by name."""
    if not isinstance(x, Tensor) or (x.dtype is torch.int32 and x.is_contiguous()) or x.dtype not in _INTEGERS:
        return x
    if x.dtype is torch.int64:
        x = x.clamp(-2**31, 2**31 - 1)  # what is beyond 32 bits stays beyond every tensor
    return x.to(torch.int32).contiguous()


def hint(length: Union[int, Tensor, None]) -> int:
    """A longest length as the hint that it is: 0, unknown, rather than wait for a device to tell."""
    if isinstance(length, Tensor):
        return 0 if length.is_cuda else int(length)
    return 0 if length is None else int(length)


def numbers_of(scale: float, causal: bool, window_left: int, window_right: int, softcap: float) -> Dict[str, object]:
    """The options of one call. 0 is Mica's word for the default scale, so a scale of 0 becomes the smallest."""
    return dict(
        scale=float(scale) or 1e-30,
        causal=_abi.CAUSAL_BOTTOM_RIGHT if causal else _abi.CAUSAL_NONE,
        diagonal=_abi.DIAGONAL_BOTTOM_RIGHT,
        window_left=max(int(window_left), -1),
        window_right=-1 if causal else max(int(window_right), -1),
        softcap=max(float(softcap), 0.0),
    )


def _refuse_generator(gen: object) -> None:
    if gen is not None:
        raise RuntimeError("generator is given, want None: dropout draws from the device's default generator")


def new_rng_state(like: Tensor, p_dropout: float) -> Tensor:
    """{seed, offset} from the device's default generator; without dropout two numbers that nobody reads."""
    if p_dropout > 0.0:
        return _tensors.new_rng_state(like.device)
    return torch.empty(2, dtype=torch.int64, device=like.device)


def upstream_lse(lse: Tensor) -> Tensor:
    """-inf, Mica's LSE of an empty row, becomes upstream's +inf. A copy, since a gradient may still need the original."""
    return lse.detach().nan_to_num(nan=float("nan"), posinf=INFINITY, neginf=INFINITY)


def _probs_buffer(like: Tensor, batch: int, heads: int, seqlen_q: int, seqlen_k: int) -> Tensor:
    shape = (batch, heads, round_multiple(seqlen_q, 128), round_multiple(seqlen_k, 128))
    return torch.zeros(shape, dtype=torch.float32, device=like.device)


def _s_dmask(probs: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(score - row maximum), negative where dropped: what upstream's tests decode, in blocks as wide as a row."""
    largest = probs.abs().amax(dim=-1, keepdim=True)
    return (probs / largest.where(largest > 0, 1.0)).to(dtype)


def keys_of(cu_seqlens_k, seqused_k, block_table) -> Dict[str, Optional[Tensor]]:
    """Packed keys start where cu_seqlens_k says; pages start at 0, and cu_seqlens_k only says how many there are."""
    if block_table is None:
        return dict(cu_seqlens_k=vector(cu_seqlens_k), seqused_k=vector(seqused_k))
    if seqused_k is None:
        seqused_k = cu_seqlens_k[1:] - cu_seqlens_k[:-1]
    return dict(seqused_k=vector(seqused_k), block_table=vector(block_table))


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    p_dropout: float,
    numbers: Dict[str, object],
    return_softmax: bool = False,
    lse: bool = True,
    out: Optional[Tensor] = None,
    alibi_slopes: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k: Optional[Tensor] = None,
    max_seqlen_q: Union[int, Tensor] = 0,
    max_seqlen_k: Union[int, Tensor] = 0,
    seqused_k: Optional[Tensor] = None,
    leftpad_k: Optional[Tensor] = None,
    block_table: Optional[Tensor] = None,
    rng_state: Optional[Tensor] = None,
) -> Tuple[Tensor, Optional[Tensor], Tensor, Tensor]:
    """(out, Mica's LSE or None, S_dmask or empty, rng_state, drawn if None), packed where cu_seqlens_q is given."""
    if numbers["softcap"] and p_dropout > 0.0:
        raise RuntimeError(f"softcap is {numbers['softcap']} with dropout {p_dropout}, want one of them (as upstream)")
    if rng_state is None:
        rng_state = new_rng_state(q, p_dropout)
    bound: Dict[str, object] = dict(alibi=alibi_slopes)
    probs = visible = None
    if cu_seqlens_q is None:
        if return_softmax:
            probs = _probs_buffer(q, q.shape[0], q.shape[2], q.shape[1], k.shape[1])
            visible = probs[:, :, : q.shape[1], : k.shape[1]]
    else:
        bound.update(keys_of(cu_seqlens_k, seqused_k, block_table))
        bound.update(cu_seqlens_q=vector(cu_seqlens_q), cache_leftpad=vector(leftpad_k))
        bound.update(max_seqlen_q=hint(max_seqlen_q), max_seqlen_k=hint(max_seqlen_k))
        if return_softmax:
            batch = cu_seqlens_q.shape[0] - 1
            visible = probs = _probs_buffer(q, batch, q.shape[1], int(max_seqlen_q), int(max_seqlen_k))
    out, made_lse, _ = _tensors.forward(
        dense_rows(q), dense_rows(k), dense_rows(v), out=out, lse=lse, probs=False if visible is None else visible,
        dropout=float(p_dropout), rng_state=rng_state if p_dropout > 0.0 else None, **numbers, **bound,
    )
    return out, made_lse, q.new_empty((0,)) if probs is None else _s_dmask(probs, q.dtype), rng_state


def differentiate(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    gradients: Sequence[Optional[Tensor]],
    p_dropout: float,
    numbers: Dict[str, object],
    deterministic: bool,
    rng_state: Optional[Tensor] = None,
    alibi_slopes: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k: Optional[Tensor] = None,
    max_seqlen_q: Union[int, Tensor] = 0,
    max_seqlen_k: Union[int, Tensor] = 0,
) -> Tuple[Tensor, ...]:
    """dq, dk, dv; written into `gradients` where those are given. lse: either infinity is an empty row."""
    if p_dropout > 0.0 and rng_state is None:
        raise RuntimeError("rng_state is None, want the one that the forward pass with dropout returned")
    dout, q, k, v, out = (dense_rows(x) for x in (dout, q, k, v, out))
    # A gradient whose last axis is not dense is made apart and copied.
    dq, dk, dv = (x if x is not None and x.stride(-1) == 1 else True for x in gradients)
    bound = dict(alibi=alibi_slopes)
    if cu_seqlens_q is not None:
        bound.update(cu_seqlens_q=vector(cu_seqlens_q), cu_seqlens_k=vector(cu_seqlens_k))
        bound.update(max_seqlen_q=hint(max_seqlen_q), max_seqlen_k=hint(max_seqlen_k))
    made = _tensors.backward(
        dout, q, k, v, out, lse.contiguous(), dq=dq, dk=dk, dv=dv, dropout=float(p_dropout),
        rng_state=rng_state if p_dropout > 0.0 else None, deterministic=bool(deterministic), **numbers, **bound,
    )
    return tuple(m if wanted is None or wanted is m else wanted.copy_(m) for wanted, m in zip(gradients, made))


def _row_dots(dout: Tensor, out: Tensor) -> Tensor:
    """sum(dO * O) of every row: (batch, heads, rows rounded to 128), packed (heads, total rounded)."""
    dots = (dout.float() * out.float()).sum(dim=-1).transpose(-1, -2)
    return torch.nn.functional.pad(dots, (0, round_multiple(dots.shape[-1], 128) - dots.shape[-1]))


def fwd(
    q, k, v, out_, alibi_slopes_, p_dropout, softmax_scale, is_causal, window_size_left, window_size_right, softcap,
    return_softmax, gen_=None,
) -> List[Tensor]:
    """[out, lse (batch, heads, seqlen_q), S_dmask or empty, rng_state]."""
    _refuse_generator(gen_)
    numbers = numbers_of(softmax_scale, is_causal, window_size_left, window_size_right, softcap)
    out, lse, softmax, rng_state = attend(
        q, k, v, p_dropout, numbers, return_softmax, out=out_, alibi_slopes=alibi_slopes_
    )
    return [out, upstream_lse(lse), softmax, rng_state]


def varlen_fwd(
    q, k, v, out_, cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k_, block_table_, alibi_slopes_, max_seqlen_q,
    max_seqlen_k, p_dropout, softmax_scale, zero_tensors, is_causal, window_size_left, window_size_right, softcap,
    return_softmax, gen_=None,
) -> List[Tensor]:
    """[out, lse (heads, total_q), S_dmask or empty, rng_state]."""
    _refuse_generator(gen_)
    numbers = numbers_of(softmax_scale, is_causal, window_size_left, window_size_right, softcap)
    out, lse, softmax, rng_state = attend(
        q, k, v, p_dropout, numbers, return_softmax, out=out_, alibi_slopes=alibi_slopes_, cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, seqused_k=seqused_k,
        leftpad_k=leftpad_k_, block_table=block_table_,
    )
    return [out, upstream_lse(lse), softmax, rng_state]


def bwd(
    dout, q, k, v, out, softmax_lse, dq_, dk_, dv_, alibi_slopes_, p_dropout, softmax_scale, is_causal,
    window_size_left, window_size_right, softcap, deterministic, gen_=None, rng_state=None,
) -> List[Tensor]:
    """[dq, dk, dv, row sums of dO * O]. Dropout wants the rng_state of its forward pass."""
    _refuse_generator(gen_)
    numbers = numbers_of(softmax_scale, is_causal, window_size_left, window_size_right, softcap)
    made = differentiate(
        dout, q, k, v, out, softmax_lse, (dq_, dk_, dv_), p_dropout, numbers, deterministic, rng_state, alibi_slopes_
    )
    return [*made, _row_dots(dout, out)]


def varlen_bwd(
    dout, q, k, v, out, softmax_lse, dq_, dk_, dv_, cu_seqlens_q, cu_seqlens_k, alibi_slopes_, max_seqlen_q,
    max_seqlen_k, p_dropout, softmax_scale, zero_tensors, is_causal, window_size_left, window_size_right, softcap,
    deterministic, gen_=None, rng_state=None,
) -> List[Tensor]:
    """[dq, dk, dv, row sums of dO * O (heads, total_q rounded to 128)]."""
    _refuse_generator(gen_)
    numbers = numbers_of(softmax_scale, is_causal, window_size_left, window_size_right, softcap)
    made = differentiate(
        dout, q, k, v, out, softmax_lse, (dq_, dk_, dv_), p_dropout, numbers, deterministic, rng_state, alibi_slopes_,
        cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
    )
    return [*made, _row_dots(dout, out)]


def fwd_kvcache(
    q, kcache, vcache, k_, v_, seqlens_k_, rotary_cos_, rotary_sin_, cache_batch_idx_, leftpad_k_, block_table_,
    alibi_slopes_, out_, softmax_scale, is_causal, window_size_left, window_size_right, softcap, is_rotary_interleaved,
    num_splits,
) -> List[Tensor]:
    """[out, lse (batch, heads, seqlen_q)]; k_ and v_ are written into the caches in place."""
    numbers = numbers_of(softmax_scale, is_causal, window_size_left, window_size_right, softcap)
    out, lse, _ = _tensors.forward(
        dense_rows(q), kcache, vcache, out=out_, lse=True, k_new=dense_rows(k_), v_new=dense_rows(v_),
        seqused_k=vector(seqlens_k_), rotary_cos=dense_rows(rotary_cos_), rotary_sin=dense_rows(rotary_sin_),
        cache_batch_idx=vector(cache_batch_idx_), cache_leftpad=vector(leftpad_k_), block_table=vector(block_table_),
        alibi=alibi_slopes_, rotary_interleaved=bool(is_rotary_interleaved), num_splits=int(num_splits), **numbers,
    )
    return [out, upstream_lse(lse)]
