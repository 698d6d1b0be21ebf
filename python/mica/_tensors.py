# SPDX-License-Identifier: Apache-2.0
"""Everything of the C interface for torch tensors, without autograd and without opinions.

forward() and backward() bind what they are given, under the names of mica_bindings, and allocate what they are asked
for. mica.attention* and the flash_attn drop-in stand on these two. Shapes are those of mica.h; packed tensors may have
three axes (rows, heads, dim) with lse (heads, rows). Numbers are those of mica._abi (CAUSAL_*, DIAGONAL_*).
"""

from typing import Any, Callable, Optional, Tuple, Union

import torch
from torch import Tensor

from . import _abi
from ._caller import caller, lse_shape, output_dtype
from ._describe import options, packed_hint
from ._packed import clear_outside
from .errors import InvalidArgument

# What a call of each pass may bind besides q, k, v (and, backward, o, lse and d_o), in the order of mica_bindings.
FORWARD_OPTIONAL = ("lse", "probs", "boolean_mask", "bias", "alibi", "sinks", "cu_seqlens_q", "cu_seqlens_k",
                    "seqused_q", "seqused_k", "cache_batch_idx", "cache_leftpad", "block_table", "k_new", "v_new",
                    "rotary_cos", "rotary_sin")
FACTORS = ("q_descale", "k_descale", "v_descale")
BACKWARD_OPTIONAL = ("boolean_mask", "bias", "alibi", "sinks", "cu_seqlens_q", "cu_seqlens_k", "seqused_q",
                     "seqused_k", "cache_leftpad")
GRADIENTS = ("d_lse", "dq", "dk", "dv", "d_bias", "d_sinks")
# Seed and offset by value; rng_state takes their place where it is given.
FORWARD_BOUND = ("q", "k", "v", "o", *FORWARD_OPTIONAL, "dropout_seed", "dropout_offset", "rng_state", *FACTORS)
_forward = caller(_abi.FORWARD, FORWARD_BOUND, (), (*FORWARD_OPTIONAL, "rng_state", *FACTORS))
_forward_qv = caller(_abi.FORWARD, (*FORWARD_BOUND, "qv"), (), (*FORWARD_OPTIONAL, "rng_state", *FACTORS))
BACKWARD_BOUND = ("q", "k", "v", "o", "lse", *BACKWARD_OPTIONAL, "dropout_seed", "dropout_offset", "rng_state", "d_o",
                  *GRADIENTS)
_backward = caller(_abi.BACKWARD, BACKWARD_BOUND, (), (*BACKWARD_OPTIONAL, "rng_state", *GRADIENTS))
_64_BITS = 2**64 - 1
Run = Callable[[Any, Tuple[Any, ...], Tuple[Any, ...]], None]  # of the caller, the numbers of options() and what is bound


def dense(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of it whose last dimension is dense. What is negative only by a flag is made so."""
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] < 2 else tensor.contiguous()


_increment_version = getattr(torch.autograd.graph, "increment_version", None)


def bump_version(tensor: Tensor) -> None:
    """Says that the tensor was written: autograd notices where the old values were kept for a gradient."""
    if tensor.is_inference():
        return
    if _increment_version is not None:
        _increment_version(tensor)
    else:
        with torch.no_grad():
            tensor.detach()[:0].zero_()  # writes nothing, and counts


def new_rng_state(device: torch.device) -> Tensor:
    """{seed, offset} in the device's memory, drawn by torch's generator: torch.manual_seed decides it, and a CUDA graph
    that captured this draws anew at every replay."""
    return torch.randint(0, 2**62, (2,), dtype=torch.int64, device=device)


def autocast_to(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    """As autocast does: float64 and what is no floating point stay what they are, to be refused."""
    return tensor.to(dtype) if tensor.is_floating_point() and tensor.dtype is not torch.float64 else tensor


def rng_of(seed: Union[None, int, Tensor], device: torch.device) -> Tensor:
    """Dropout's {seed, offset} in the device's memory: drawn, made of an int, or what was given."""
    if seed is None:
        return new_rng_state(device)
    if not isinstance(seed, int):
        if hasattr(seed, "__index__") and not isinstance(seed, Tensor):
            return rng_of(int(seed), device)
        if not isinstance(seed, Tensor):
            raise InvalidArgument(f"seed is a {type(seed).__name__}, want an int or an int64 tensor (seed, offset)")
        if seed.dtype is not torch.int64 or seed.shape != (2,):
            raise InvalidArgument(f"seed is {seed.dtype} of {tuple(seed.shape)}, want an int or int64 of (2,)")
        return seed
    if not -2**63 <= seed < 2**64:
        raise InvalidArgument(f"seed is {seed}, want an int of 64 bits")
    state = torch.zeros(2, dtype=torch.int64, device=device)
    state[:1].fill_(seed if seed < 2**63 else seed - 2**64)  # no copy from the host, which would wait and cannot be captured
    return state


def forward(q: Tensor, k: Tensor, v: Tensor, *, out: Optional[Tensor] = None, lse: Union[bool, Tensor] = False,
            probs: Union[bool, Tensor] = False, mask: Optional[Tensor] = None, bias: Optional[Tensor] = None,
            alibi: Optional[Tensor] = None, sinks: Optional[Tensor] = None, cu_seqlens_q: Optional[Tensor] = None,
            cu_seqlens_k: Optional[Tensor] = None, seqused_q: Optional[Tensor] = None,
            seqused_k: Optional[Tensor] = None, cache_batch_idx: Optional[Tensor] = None,
            cache_leftpad: Optional[Tensor] = None, block_table: Optional[Tensor] = None,
            k_new: Optional[Tensor] = None, v_new: Optional[Tensor] = None, rotary_cos: Optional[Tensor] = None,
            rotary_sin: Optional[Tensor] = None, rng_state: Optional[Tensor] = None, seed: int = 0, offset: int = 0,
            causal: int = _abi.CAUSAL_NONE, diagonal: int = _abi.DIAGONAL_FROM_CAUSAL, window_left: int = -1,
            window_right: int = -1, chunk: int = 0, mask_last_keys: int = 0, scale: float = 0.0, softcap: float = 0.0, dropout: float = 0.0,
            num_splits: int = 0, deterministic: bool = False, batch_invariant: bool = False,
            rotary_interleaved: bool = False, max_seqlen_q: int = 0, max_seqlen_k: int = 0,
            place: Tuple[int, ...] = (), q_descale: Optional[Tensor] = None, k_descale: Optional[Tensor] = None,
            v_descale: Optional[Tensor] = None, descale_per_page: bool = False,
            qv: Optional[Tensor] = None) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
    """Computes o, and lse and probs (for tests) where they are True or a tensor to write.

    k and v are written where k_new is given. dropout takes rng_state, an int64 {seed, offset} in the tensors' device
    memory, or else seed and offset by value. probs=True is for dense tensors. place: the fields of mica_place. The
    descales are those of mica_quantisation, qv is a second query for v. Returns (o, lse or None, probs or None)."""
    shape, dtype = q.shape[:-1] + v.shape[-1:], output_dtype(q)
    o = out if out is not None else q.new_zeros(shape, dtype=dtype) if cu_seqlens_q is not None else q.new_empty(
        shape, dtype=dtype)
    if lse is True:
        lse = q.new_empty(lse_shape(q), dtype=torch.float32)
        if cu_seqlens_q is not None:
            lse.fill_(-float("inf"))
    if probs is True:
        probs = q.new_empty((q.shape[0], q.shape[2], q.shape[1], k.shape[1]), dtype=torch.float32)
    lse, probs = None if lse is False else lse, None if probs is False else probs
    bound = (options(causal, diagonal, window_left, window_right, chunk, mask_last_keys, scale, softcap, dropout, num_splits, deterministic,
                     batch_invariant, rotary_interleaved, packed_hint(max_seqlen_q, q, cu_seqlens_q, batch_invariant),
                     packed_hint(max_seqlen_k, k, cu_seqlens_k, batch_invariant), place, descale_per_page),
             q, k, v, o, lse, probs, mask, bias, alibi, sinks, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k,
             cache_batch_idx, cache_leftpad, block_table, k_new, v_new, rotary_cos, rotary_sin, seed & _64_BITS,
             offset & _64_BITS, rng_state if dropout else None, q_descale, k_descale, v_descale)
    if qv is None:
        _forward(*bound)
    else:
        _forward_qv(*bound, qv)
    if out is not None:
        clear_outside(out, cu_seqlens_q)
        bump_version(out)
    if k_new is not None:
        bump_version(k)
        bump_version(v)
    return o, lse, probs


def backward(d_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, *, d_lse: Optional[Tensor] = None,
             dq: Union[bool, Tensor] = True, dk: Union[bool, Tensor] = True, dv: Union[bool, Tensor] = True,
             d_bias: Union[bool, Tensor] = False, d_sinks: Union[bool, Tensor] = False,
             mask: Optional[Tensor] = None, bias: Optional[Tensor] = None, alibi: Optional[Tensor] = None,
             sinks: Optional[Tensor] = None, cu_seqlens_q: Optional[Tensor] = None,
             cu_seqlens_k: Optional[Tensor] = None, seqused_q: Optional[Tensor] = None,
             seqused_k: Optional[Tensor] = None, cache_leftpad: Optional[Tensor] = None,
             rng_state: Optional[Tensor] = None, seed: int = 0, offset: int = 0, causal: int = _abi.CAUSAL_NONE,
             diagonal: int = _abi.DIAGONAL_FROM_CAUSAL, window_left: int = -1, window_right: int = -1,
             chunk: int = 0, scale: float = 0.0, softcap: float = 0.0, dropout: float = 0.0, deterministic: bool = False,
             batch_invariant: bool = False, max_seqlen_q: int = 0, max_seqlen_k: int = 0,
             place: Tuple[int, ...] = (), run: Optional[Run] = None) -> Tuple[
                 Optional[Tensor], Optional[Tensor], Optional[Tensor], Optional[Tensor], Optional[Tensor]]:
    """The gradients: True allocates one, a tensor is written, False leaves it out. lse of either infinity is an empty
    row. run: executes the call in another way, such as one of several pieces. Returns (dq, dk, dv, d_bias, d_sinks),
    None for what was left out."""
    given = tuple((t, cu) for t, cu in ((dq, cu_seqlens_q), (dk, cu_seqlens_k), (dv, cu_seqlens_k))
                  if not isinstance(t, bool) and cu is not None)
    dq, dk, dv, d_bias, d_sinks = (
        None if wanted is False else wanted if wanted is not True else
        torch.empty_like(like) if cu is None else torch.zeros_like(like)
        for wanted, like, cu in ((dq, q, cu_seqlens_q), (dk, k, cu_seqlens_k), (dv, v, cu_seqlens_k),
                                 (d_bias, bias, None), (d_sinks, sinks, None)))
    numbers = (causal, diagonal, window_left, window_right, chunk, 0, scale, softcap, dropout, 0, deterministic,
               batch_invariant, False, packed_hint(max_seqlen_q, q, cu_seqlens_q, batch_invariant),
               packed_hint(max_seqlen_k, k, cu_seqlens_k, batch_invariant), place)
    bound = (q, k, v, o, lse, mask, bias, alibi, sinks, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, cache_leftpad,
             seed & _64_BITS, offset & _64_BITS, rng_state if dropout else None, d_o, d_lse, dq, dk, dv, d_bias, d_sinks)
    if run is None:
        _backward(options(*numbers), *bound)
    else:
        run(_backward, numbers, bound)
    for gradient, cu in given:
        clear_outside(gradient, cu)
    return dq, dk, dv, d_bias, d_sinks
