# SPDX-License-Identifier: Apache-2.0
"""Everything of the C interface for torch tensors, without autograd and without opinions.

forward() and backward() bind what they are given, under the names of mica_bindings, and allocate what they are asked
for. mica.attention* and the flash_attn drop-in stand on these two. Shapes are those of mica.h; packed tensors may have
three axes (rows, heads, dim) with lse (heads, rows). Numbers are those of mica._abi (CAUSAL_*, DIAGONAL_*).
"""

from typing import Dict, Optional, Tuple, Union

import torch

from . import _abi
from ._caller import caller, lse_shape
from ._describe import BINDINGS, options

Tensor = torch.Tensor
_RANK = {name: rank for rank, name in enumerate(BINDINGS)}


def _call(which: int, bound: Dict[str, Optional[Tensor]], numbers: Dict[str, Union[int, float, bool]],
          seed: int, offset: int) -> None:
    present = {name: value for name, value in bound.items() if value is not None}
    if numbers["dropout"] and "rng_state" not in present:
        present["dropout_seed"], present["dropout_offset"] = seed & (2**64 - 1), offset & (2**64 - 1)
    names = tuple(sorted(present, key=_RANK.__getitem__))
    caller(which, names)(options(**numbers), *[present[name] for name in names])


def dense(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of it whose last dimension is dense."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] < 2 else tensor.contiguous()


def new_rng_state(device: torch.device) -> Tensor:
    """{seed, offset} in the device's memory, drawn by torch's generator: torch.manual_seed decides it, and a CUDA graph
    that captured this draws anew at every replay."""
    return torch.randint(0, 2**62, (2,), dtype=torch.int64, device=device)


def rng_of(seed: Union[None, int, Tensor], device: torch.device) -> Tensor:
    """Dropout's {seed, offset} in the device's memory: drawn, made of an int, or what was given."""
    if seed is None:
        return new_rng_state(device)
    return torch.tensor([seed, 0], dtype=torch.int64, device=device) if isinstance(seed, int) else seed


def forward(q: Tensor, k: Tensor, v: Tensor, *, out: Optional[Tensor] = None, lse: Union[bool, Tensor] = False,
            probs: Union[bool, Tensor] = False, mask: Optional[Tensor] = None, bias: Optional[Tensor] = None,
            alibi: Optional[Tensor] = None, sinks: Optional[Tensor] = None, cu_seqlens_q: Optional[Tensor] = None,
            cu_seqlens_k: Optional[Tensor] = None, seqused_q: Optional[Tensor] = None,
            seqused_k: Optional[Tensor] = None, cache_batch_idx: Optional[Tensor] = None,
            cache_leftpad: Optional[Tensor] = None, block_table: Optional[Tensor] = None,
            k_new: Optional[Tensor] = None, v_new: Optional[Tensor] = None, rotary_cos: Optional[Tensor] = None,
            rotary_sin: Optional[Tensor] = None, rng_state: Optional[Tensor] = None, seed: int = 0, offset: int = 0,
            causal: int = _abi.CAUSAL_NONE, diagonal: int = _abi.DIAGONAL_FROM_CAUSAL, window_left: int = -1,
            window_right: int = -1, scale: float = 0.0, softcap: float = 0.0, dropout: float = 0.0,
            num_splits: int = 0, deterministic: bool = False, batch_invariant: bool = False,
            rotary_interleaved: bool = False, max_seqlen_q: int = 0,
            max_seqlen_k: int = 0) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
    """Computes o, and lse and probs (for tests) where they are True or a tensor to write.

    k and v are written where k_new is given. dropout takes rng_state, an int64 {seed, offset} in the tensors' device
    memory, or else seed and offset by value. probs=True is for dense tensors. Returns (o, lse or None, probs or
    None)."""
    o = q.new_empty(q.shape[:-1] + v.shape[-1:]) if out is None else out
    if lse is True:
        lse = q.new_empty(lse_shape(q), dtype=torch.float32)
    if probs is True:
        probs = q.new_empty((q.shape[0], q.shape[2], q.shape[1], k.shape[1]), dtype=torch.float32)
    lse, probs = (wanted if isinstance(wanted, Tensor) else None for wanted in (lse, probs))
    _call(_abi.FORWARD,
          dict(q=q, k=k, v=v, o=o, lse=lse, probs=probs, boolean_mask=mask, bias=bias, alibi=alibi, sinks=sinks,
               cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, seqused_q=seqused_q, seqused_k=seqused_k,
               cache_batch_idx=cache_batch_idx, cache_leftpad=cache_leftpad, block_table=block_table, k_new=k_new,
               v_new=v_new, rotary_cos=rotary_cos, rotary_sin=rotary_sin, rng_state=rng_state if dropout else None),
          dict(causal=causal, diagonal=diagonal, window_left=window_left, window_right=window_right, scale=scale,
               softcap=softcap, dropout=dropout, num_splits=num_splits, deterministic=deterministic,
               batch_invariant=batch_invariant, rotary_interleaved=rotary_interleaved, max_seqlen_q=max_seqlen_q,
               max_seqlen_k=max_seqlen_k), seed, offset)
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
             scale: float = 0.0, softcap: float = 0.0, dropout: float = 0.0, deterministic: bool = False,
             batch_invariant: bool = False, max_seqlen_q: int = 0, max_seqlen_k: int = 0) -> Tuple[
                 Optional[Tensor], Optional[Tensor], Optional[Tensor], Optional[Tensor], Optional[Tensor]]:
    """The gradients: True allocates one, a tensor is written, False leaves it out. lse of either infinity is an empty
    row. Returns (dq, dk, dv, d_bias, d_sinks), None for what was left out."""
    made = {name: like.new_empty(like.shape) if wanted is True else wanted if isinstance(wanted, Tensor) else None
            for name, wanted, like in (("dq", dq, q), ("dk", dk, k), ("dv", dv, v), ("d_bias", d_bias, bias),
                                       ("d_sinks", d_sinks, sinks))}
    _call(_abi.BACKWARD,
          dict(q=q, k=k, v=v, o=o, lse=lse, boolean_mask=mask, bias=bias, alibi=alibi, sinks=sinks,
               cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, seqused_q=seqused_q, seqused_k=seqused_k,
               cache_leftpad=cache_leftpad, rng_state=rng_state if dropout else None, d_o=d_o, d_lse=d_lse, **made),
          dict(causal=causal, diagonal=diagonal, window_left=window_left, window_right=window_right, scale=scale,
               softcap=softcap, dropout=dropout, num_splits=0, deterministic=deterministic,
               batch_invariant=batch_invariant, rotary_interleaved=False, max_seqlen_q=max_seqlen_q,
               max_seqlen_k=max_seqlen_k), seed, offset)
    return made["dq"], made["dk"], made["dv"], made["d_bias"], made["d_sinks"]
