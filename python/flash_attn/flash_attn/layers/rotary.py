# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding with upstream's names. NOTE: interleaved is False by default here and True by default in
flash_attn_with_kvcache, as upstream."""
from typing import Callable, Optional, Tuple, Union

import torch
from mica._tracing import is_dynamo_tracing, is_exporting, is_transformed
from torch import Tensor

from flash_attn.ops.triton.rotary import apply_rotary


def rotate_half(x: Tensor, interleaved: bool = False) -> Tensor:
    """A quarter turn of every pair of features."""
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def apply_rotary_emb_torch(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """x (batch, seqlen, heads, dim); cos, sin (seqlen, rotary_dim / 2) or (batch, seqlen, rotary_dim / 2); in x's
    type."""
    rotary_dim = 2 * cos.shape[-1]
    if rotary_dim > x.shape[-1]:
        raise ValueError(f"cos.shape[-1] is {cos.shape[-1]}, want at most {x.shape[-1] // 2} (half of x.shape[-1])")

    def per_feature(table: Tensor) -> Tensor:
        wide = table.repeat_interleave(2, dim=-1) if interleaved else torch.cat((table, table), dim=-1)
        return wide.unsqueeze(-2)

    turned = x[..., :rotary_dim]
    turned = turned * per_feature(cos) + rotate_half(turned, interleaved) * per_feature(sin)
    return torch.cat((turned, x[..., rotary_dim:]), dim=-1)


class _InPlaceRotary(torch.autograd.Function):
    """Turns the given parts of x in place, where x may be a leaf that wants a gradient, as upstream allows."""

    @staticmethod
    def forward(ctx, x, parts, tables, options):
        # NOTE: through x.data, as a kernel would write: autograd would otherwise refuse other views of the same tensor.
        for part, (cos, sin) in zip(parts(x.data), tables):
            apply_rotary(part, cos, sin, inplace=True, **options)
        ctx.parts, ctx.tables, ctx.options = parts, tables, options
        return x

    @staticmethod
    def backward(ctx, dx):
        dx = dx.clone()
        for part, (cos, sin) in zip(ctx.parts(dx), ctx.tables):
            apply_rotary(part, cos, sin, inplace=True, conjugate=True, **ctx.options)
        return dx, None, None, None


def _turn_in_place(x: Tensor, parts: Callable, tables: Tuple, options: dict) -> Tensor:
    """x, of which these parts are turned. Where a graph is exported and under torch.func's transforms by operations in
    place, since x.data is a tensor of its own there, and no part of the graph."""
    if not (is_exporting() or is_transformed()):
        return _InPlaceRotary.apply(x, parts, tables, options)
    for part, (cos, sin) in zip(parts(x), tables):
        apply_rotary(part, cos, sin, inplace=True, **options)
    return x


def _whole(x: Tensor) -> Tuple[Tensor, ...]:
    return (x,)


def apply_rotary_emb(
    x,
    cos,
    sin,
    interleaved=False,
    inplace=False,
    seqlen_offsets: Union[int, Tensor] = 0,
    cu_seqlens: Optional[Tensor] = None,
    max_seqlen: Optional[int] = None,
):
    """x: (batch, seqlen, heads, dim), or (total, heads, dim) with cu_seqlens; see ops.triton.rotary.apply_rotary."""
    options = dict(seqlen_offsets=seqlen_offsets, cu_seqlens=cu_seqlens, max_seqlen=max_seqlen, interleaved=interleaved)
    if inplace:
        return _turn_in_place(x, _whole, ((cos, sin),), options)
    return apply_rotary(x, cos, sin, **options)


apply_rotary_emb_func = apply_rotary_emb


def _query_and_key(num_heads_q: Optional[int]):
    """Views of the queries and the keys of a packed tensor."""

    def parts(qkv: Tensor) -> Tuple[Tensor, Tensor]:
        if qkv.dim() == 5:
            return qkv[:, :, 0], qkv[:, :, 1]
        heads_k = (qkv.shape[2] - num_heads_q) // 2
        return qkv[:, :, :num_heads_q], qkv[:, :, num_heads_q : num_heads_q + heads_k]

    return parts


def apply_rotary_emb_qkv_(
    qkv,
    cos,
    sin,
    cos_k=None,
    sin_k=None,
    interleaved=False,
    seqlen_offsets: Union[int, torch.Tensor] = 0,
    num_heads_q: Optional[int] = None,
):
    """Rotates q and k in place. qkv: (batch, seqlen, 3, heads, dim), or (batch, seqlen, num_heads_q + 2 * heads_k,
    dim)."""
    if qkv.dim() == 4 and num_heads_q is None:
        raise ValueError("num_heads_q is None, want the number of query heads for a 4-D qkv")
    if qkv.dim() == 4 and not (0 <= num_heads_q <= qkv.shape[2] and (qkv.shape[2] - num_heads_q) % 2 == 0):
        raise ValueError(f"qkv.shape[2] is {qkv.shape[2]}, want num_heads_q ({num_heads_q}) + 2 * heads_k")
    if qkv.dim() not in (4, 5) or (qkv.dim() == 5 and qkv.shape[2] != 3):
        raise ValueError(f"qkv.shape is {tuple(qkv.shape)}, want (batch, seqlen, 3, heads, dim) or a 4-D tensor")
    tables = ((cos, sin), (cos if cos_k is None else cos_k, sin if sin_k is None else sin_k))
    options = dict(seqlen_offsets=seqlen_offsets, interleaved=interleaved)
    return _turn_in_place(qkv, _query_and_key(num_heads_q), tables, options)


def _key_of_pair(kv: Tensor) -> Tuple[Tensor, ...]:
    return (kv[:, :, 0],)


def apply_rotary_emb_kv_(kv, cos, sin, interleaved=False, seqlen_offsets: Union[int, torch.Tensor] = 0):
    """Rotates k in place. kv: (batch, seqlen, 2, heads, dim)."""
    if kv.dim() != 5 or kv.shape[2] != 2:
        raise ValueError(f"kv.shape is {tuple(kv.shape)}, want (batch, seqlen, 2, heads, dim)")
    options = dict(seqlen_offsets=seqlen_offsets, interleaved=interleaved)
    return _turn_in_place(kv, _key_of_pair, ((cos, sin),), options)


class RotaryEmbedding(torch.nn.Module):
    """Keeps cos and sin tables as long as the longest sequence seen. scale_base: XPos (Sun et al. 2022), keys scaled
    inversely."""

    def __init__(self, dim: int, base=10000.0, interleaved=False, scale_base=None, device=None):
        super().__init__()
        self.dim = dim
        self.base = float(base)
        self.interleaved = interleaved
        self.scale_base = scale_base
        self.register_buffer("inv_freq", self._compute_inv_freq(device), persistent=False)
        steps = torch.arange(0, dim, 2, device=device, dtype=torch.float32)
        scale = None if scale_base is None else (steps + 0.4 * dim) / (1.4 * dim)
        self.register_buffer("scale", scale, persistent=False)
        self._seq_len_cached = 0
        self._cos_cached: Optional[Tensor] = None
        self._sin_cached: Optional[Tensor] = None
        self._cos_k_cached: Optional[Tensor] = None
        self._sin_k_cached: Optional[Tensor] = None

    def _compute_inv_freq(self, device=None) -> Tensor:
        return self.base ** (-torch.arange(0, self.dim, 2, device=device, dtype=torch.float32) / self.dim)

    def _update_cos_sin_cache(self, seqlen: int, device=None, dtype=None) -> None:
        cos = self._cos_cached
        if cos is not None and seqlen <= self._seq_len_cached and cos.device == device and cos.dtype == dtype:
            if not (self.training and not is_dynamo_tracing() and cos.is_inference()):
                return
        self._seq_len_cached = seqlen
        # A module moved to bf16 has rounded frequencies: they are made again.
        fresh = self.inv_freq.dtype != torch.float32
        inv_freq = self._compute_inv_freq(device) if fresh else self.inv_freq.to(device)
        steps = torch.arange(seqlen, device=device, dtype=torch.float32)
        angles = torch.outer(steps, inv_freq)
        cos, sin = angles.cos(), angles.sin()
        if self.scale is None:
            self._cos_cached, self._sin_cached = cos.to(dtype), sin.to(dtype)
            return
        power = (steps - seqlen // 2) / self.scale_base
        scale = self.scale.to(device=device, dtype=torch.float32) ** power.unsqueeze(1)
        self._cos_cached, self._sin_cached = (cos * scale).to(dtype), (sin * scale).to(dtype)
        self._cos_k_cached, self._sin_k_cached = (cos / scale).to(dtype), (sin / scale).to(dtype)

    def forward(
        self,
        qkv: torch.Tensor,
        kv: Optional[torch.Tensor] = None,
        seqlen_offset: Union[int, torch.Tensor] = 0,
        max_seqlen: Optional[int] = None,
        num_heads_q: Optional[int] = None,
    ) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
        """In place. With kv (batch, seqlen, 2, heads_k, dim), qkv is q alone (batch, seqlen, heads, dim) and both come
        back.

        A tensor of offsets needs max_seqlen, since the tables must be long enough.
        """
        seqlen = qkv.shape[1]
        if max_seqlen is not None:
            self._update_cos_sin_cache(max_seqlen, device=qkv.device, dtype=qkv.dtype)
        elif isinstance(seqlen_offset, int):
            self._update_cos_sin_cache(seqlen + seqlen_offset, device=qkv.device, dtype=qkv.dtype)
        options = dict(interleaved=self.interleaved, seqlen_offsets=seqlen_offset)
        tables = (self._cos_cached, self._sin_cached, self._cos_k_cached, self._sin_k_cached)
        if kv is None:
            return apply_rotary_emb_qkv_(qkv, *tables, num_heads_q=num_heads_q, **options)
        q = apply_rotary_emb(qkv, *tables[:2], inplace=True, **options)
        cos_k, sin_k = tables[:2] if self.scale is None else tables[2:]
        return q, apply_rotary_emb_kv_(kv, cos_k, sin_k, **options)
