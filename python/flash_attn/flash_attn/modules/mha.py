# SPDX-License-Identifier: Apache-2.0
"""Attention as modules, with upstream's names and parameters."""
from typing import List, Optional

import torch
from torch import Tensor, nn

from flash_attn.flash_attn_interface import (
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)
from flash_attn.layers.rotary import RotaryEmbedding


def get_alibi_slopes(nheads: int) -> List[float]:
    """Geometric slopes of ALiBi: for a power of two 2^(-8 i / nheads); otherwise those of the power below, and every
    other one of twice that power."""
    whole = 1 << (nheads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (i + 1) / whole) for i in range(whole)]
    return slopes + [2.0 ** (-4.0 * (2 * i + 1) / whole) for i in range(nheads - whole)]


class _FlashAttention(nn.Module):
    def __init__(self, causal, softmax_scale, attention_dropout, window_size, alibi_slopes, deterministic):
        super().__init__()
        self.causal = causal
        self.softmax_scale = softmax_scale
        self.drop = nn.Dropout(attention_dropout)
        self.register_buffer("alibi_slopes", alibi_slopes, persistent=False)
        self.window_size = window_size
        self.deterministic = deterministic

    def _options(self, causal: Optional[bool]) -> dict:
        return dict(
            dropout_p=self.drop.p if self.training else 0.0,
            softmax_scale=self.softmax_scale,
            causal=self.causal if causal is None else causal,
            alibi_slopes=None if self.alibi_slopes is None else self.alibi_slopes.float(),
            window_size=self.window_size,
            deterministic=self.deterministic,
        )


class FlashSelfAttention(_FlashAttention):
    def __init__(
        self,
        causal=False,
        softmax_scale=None,
        attention_dropout=0.0,
        window_size=(-1, -1),
        alibi_slopes=None,
        deterministic=False,
    ):
        super().__init__(causal, softmax_scale, attention_dropout, window_size, alibi_slopes, deterministic)

    def forward(self, qkv, causal=None, cu_seqlens=None, max_seqlen=None):
        """qkv: (batch, seqlen, 3, heads, dim), or (total, 3, heads, dim) with cu_seqlens."""
        if cu_seqlens is None:
            return flash_attn_qkvpacked_func(qkv, **self._options(causal))
        return flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, **self._options(causal))


class FlashCrossAttention(_FlashAttention):
    def __init__(
        self,
        causal=False,
        softmax_scale=None,
        attention_dropout=0.0,
        alibi_slopes=None,
        window_size=(-1, -1),
        deterministic=False,
    ):
        super().__init__(causal, softmax_scale, attention_dropout, window_size, alibi_slopes, deterministic)

    def forward(self, q, kv, causal=None, cu_seqlens=None, max_seqlen=None, cu_seqlens_k=None, max_seqlen_k=None):
        """q: (batch, seqlen_q, heads, dim), kv: (batch, seqlen_k, 2, heads_k, dim); with cu_seqlens packed."""
        if cu_seqlens is None:
            return flash_attn_kvpacked_func(q, kv, **self._options(causal))
        return flash_attn_varlen_kvpacked_func(
            q, kv, cu_seqlens, cu_seqlens_k, max_seqlen, max_seqlen_k, **self._options(causal)
        )


class MHA(nn.Module):
    """Multi-head self or cross attention. The same parameters, so the same state dict, as upstream's; use_flash_attn is
    always on. Of upstream's options, dwconv and a padding mask (use cu_seqlens) are refused."""

    def __init__(
        self,
        embed_dim,
        num_heads,
        num_heads_kv=None,
        cross_attn=False,
        qkv_proj_bias=True,
        out_proj_bias=True,
        dropout=0.0,
        softmax_scale=None,
        causal=False,
        layer_idx=None,
        dwconv=False,
        rotary_emb_dim=0,
        rotary_emb_base=10000.0,
        rotary_emb_scale_base=None,
        rotary_emb_interleaved=False,
        use_alibi=False,
        window_size=(-1, -1),
        fused_bias_fc=False,
        use_flash_attn=False,
        return_residual=False,
        checkpointing=False,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.num_heads_kv = num_heads if num_heads_kv is None else num_heads_kv
        if dwconv:
            raise ValueError("dwconv is True, want False: Mica's drop-in has no depthwise convolution")
        if embed_dim % num_heads or num_heads % self.num_heads_kv:
            heads = f"num_heads {num_heads}, num_heads_kv {self.num_heads_kv}"
            raise ValueError(f"embed_dim is {embed_dim}, {heads}, want each a multiple of the next")
        if cross_attn and rotary_emb_dim > 0:
            raise ValueError(f"rotary_emb_dim is {rotary_emb_dim}, want 0 with cross_attn")
        self.embed_dim = embed_dim
        self.head_dim = embed_dim // num_heads
        self.cross_attn = cross_attn
        self.causal = causal
        self.layer_idx = layer_idx
        self.rotary_emb_dim = rotary_emb_dim
        self.return_residual = return_residual
        self.checkpointing = checkpointing
        factory = dict(device=device, dtype=dtype)
        if rotary_emb_dim > 0:
            self.rotary_emb = RotaryEmbedding(
                rotary_emb_dim, rotary_emb_base, rotary_emb_interleaved, rotary_emb_scale_base, device
            )
        kv_dim = 2 * self.head_dim * self.num_heads_kv
        if cross_attn:
            self.Wq = nn.Linear(embed_dim, embed_dim, bias=qkv_proj_bias, **factory)
            self.Wkv = nn.Linear(embed_dim, kv_dim, bias=qkv_proj_bias, **factory)
        else:
            self.Wqkv = nn.Linear(embed_dim, embed_dim + kv_dim, bias=qkv_proj_bias, **factory)
        slopes = torch.tensor(get_alibi_slopes(num_heads), device=device) if use_alibi else None
        common = dict(causal=causal, softmax_scale=softmax_scale, attention_dropout=dropout)
        self.inner_attn = FlashSelfAttention(alibi_slopes=slopes, window_size=window_size, **common)
        self.inner_cross_attn = FlashCrossAttention(alibi_slopes=slopes, window_size=window_size, **common)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=out_proj_bias, **factory)

    def allocate_inference_cache(self, batch_size, max_seqlen, dtype=None) -> Tensor:
        """(batch, max_seqlen, 2, heads_kv, dim), to be put into inference_params.key_value_memory_dict[layer_idx]."""
        weight = self.out_proj.weight
        shape = (batch_size, max_seqlen, 2, self.num_heads_kv, self.head_dim)
        return torch.empty(shape, dtype=weight.dtype if dtype is None else dtype, device=weight.device)

    def _project(self, x: Tensor, x_kv: Optional[Tensor], mixer_subset):
        """q (..., heads, dim) and kv (..., 2, heads_kv, dim)."""
        if self.cross_attn:
            q = self.Wq(x if mixer_subset is None else x[:, mixer_subset])
            kv = self.Wkv(x if x_kv is None else x_kv)
        else:
            qkv = self.Wqkv(x)  # sliced, not split: autograd forbids writing in place into one view of many
            q, kv = qkv[..., : self.embed_dim], qkv[..., self.embed_dim :]
        return q.unflatten(-1, (self.num_heads, self.head_dim)), kv.unflatten(-1, (2, self.num_heads_kv, self.head_dim))

    def _with_cache(self, q: Tensor, kv: Tensor, inference_params) -> Tensor:
        """Appends kv to the layer's cache and attends over it, rotary included."""
        batch = q.shape[0]
        memory = inference_params.key_value_memory_dict
        if self.layer_idx not in memory:
            memory[self.layer_idx] = self.allocate_inference_cache(
                inference_params.max_batch_size, inference_params.max_seqlen, kv.dtype
            )
        first = getattr(inference_params, "batch_size_offset", 0)  # of a batch that comes in parts
        cache = memory[self.layer_idx][first : first + batch]
        lengths = inference_params.lengths_per_sample
        lengths = inference_params.seqlen_offset if lengths is None else lengths[first : first + batch]
        rotary: dict = {}
        if self.rotary_emb_dim > 0 and (inference_params.seqlen_offset == 0 or self.rotary_emb_dim % 16):
            # Each row by its own position, which the function below does only with causal or a window.
            q, kv = self.rotary_emb(q, kv, seqlen_offset=lengths, max_seqlen=inference_params.max_seqlen)
        elif self.rotary_emb_dim > 0:
            if self.rotary_emb.scale is not None:
                raise ValueError("rotary_emb_scale_base is given, want None with a cache")
            self.rotary_emb._update_cos_sin_cache(inference_params.max_seqlen, device=q.device, dtype=q.dtype)
            rotary = dict(
                rotary_cos=self.rotary_emb._cos_cached,
                rotary_sin=self.rotary_emb._sin_cached,
                rotary_interleaved=self.rotary_emb.interleaved,
            )
        inner = self.inner_cross_attn
        return flash_attn_with_kvcache(
            q, cache[:, :, 0], cache[:, :, 1], kv[:, :, 0], kv[:, :, 1], cache_seqlens=lengths,
            softmax_scale=inner.softmax_scale, causal=inner.causal, window_size=inner.window_size,
            alibi_slopes=inner.alibi_slopes, **rotary,
        )

    def forward(
        self,
        x,
        x_kv=None,
        key_padding_mask=None,
        cu_seqlens=None,
        max_seqlen=None,
        mixer_subset=None,
        inference_params=None,
        **kwargs,
    ):
        """x: (batch, seqlen, embed_dim), or (total, embed_dim) with cu_seqlens."""
        if key_padding_mask is not None:
            raise ValueError("key_padding_mask is given, want cu_seqlens and max_seqlen of an unpadded batch")
        for name, value in (("x_kv", x_kv), ("mixer_subset", mixer_subset)):
            if value is not None and not self.cross_attn:
                raise ValueError(f"{name} is given, want None without cross_attn")
        if cu_seqlens is not None and (self.rotary_emb_dim > 0 or inference_params is not None):
            raise ValueError("cu_seqlens is given, want None with rotary_emb_dim or inference_params")
        q, kv = self._project(x, x_kv, mixer_subset)
        if inference_params is not None:
            context = self._with_cache(q, kv, inference_params)
        else:
            if self.rotary_emb_dim > 0:
                q, kv = self.rotary_emb(q, kv)
            packed = dict(kwargs)
            if cu_seqlens is not None:
                packed.update(cu_seqlens=cu_seqlens, max_seqlen=max_seqlen)
                if x_kv is None:
                    packed.setdefault("cu_seqlens_k", cu_seqlens)
                    packed.setdefault("max_seqlen_k", max_seqlen)
                elif packed.get("cu_seqlens_k") is None:
                    raise ValueError("cu_seqlens_k is None, want the cumulative lengths of x_kv with cu_seqlens")
            if self.checkpointing:
                context = torch.utils.checkpoint.checkpoint(self.inner_cross_attn, q, kv, use_reentrant=False, **packed)
            else:
                context = self.inner_cross_attn(q, kv, **packed)
        out = self.out_proj(context.flatten(-2))
        return (out, x) if self.return_residual else out
