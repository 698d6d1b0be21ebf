# SPDX-License-Identifier: Apache-2.0
"""Mica under torch.nn.functional.scaled_dot_product_attention, so that unchanged code runs it.

    import mica.integrations.sdpa                                # makes "mica" known, changes nothing yet
    torch.nn.attention.activate_flash_attention_impl("mica")     # from here on, whatever takes the flash backend
    torch.nn.attention.restore_flash_attention_impl()            # PyTorch's own again

PyTorch still decides which calls go to its flash backend (on CUDA: fp16 or bf16, no mask, head dimension up to 256);
those run Mica, on the CPU too, and so does torch.nn.attention.varlen. Needs a PyTorch with
register_flash_attention_impl.
"""
import warnings
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from mica import _abi, _tensors
from mica.integrations import context_parallel
from mica.integrations._meanings import finite_bias, scale_of

NAME = "mica"
MICA_TYPES = (torch.float32, torch.float16, torch.bfloat16)
WIDEST = 512  # columns of values


def _rows_first(*tensors: Tensor) -> Tuple[Tensor, ...]:
    """(batch, heads, rows, dim) as (batch, rows, heads, dim), without a copy unless the last axis is not dense."""
    return tuple(_tensors.dense(t.transpose(1, 2)) for t in tensors)


def _numbers(is_causal: bool, scale: Optional[float], dropout_p: float) -> Dict[str, Any]:
    """NOTE: is_causal of SDPA is aligned to the top left."""
    return dict(causal=_abi.CAUSAL_TOP_LEFT if is_causal else _abi.CAUSAL_NONE, scale=scale_of(scale), dropout=dropout_p)


def _mask(attn_mask: Optional[Tensor]) -> Dict[str, Tensor]:
    if attn_mask is None:
        return {}
    return {"mask": attn_mask} if attn_mask.dtype == torch.bool else {"bias": finite_bias(attn_mask)}


def _rng(query: Tensor, dropout_p: float) -> Tensor:
    """{seed, offset}, in the type that PyTorch's own kernel has it in."""
    device = query.device
    state = _tensors.new_rng_state(device) if dropout_p else torch.zeros(2, dtype=torch.int64, device=device)
    return state.view(torch.uint64)


def _state(rng_state: Tensor, dropout_p: float) -> Optional[Tensor]:
    return rng_state.view(torch.int64) if dropout_p else None


def _backward(grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
              **options: Any) -> Tuple[Tensor, ...]:
    d_o, q, k, v, o = _rows_first(grad_out, query, key, value, out)
    grads = tuple(torch.empty_like(t) for t in (query, key, value))
    made = _tensors.backward(d_o, q, k, v, o, logsumexp.contiguous(), **options,
                             deterministic=torch.are_deterministic_algorithms_enabled())
    return tuple(grad.copy_(m.transpose(1, 2)) for grad, m in zip(grads, made) if m is not None)


def sdpa_cuda(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
              return_debug_mask: bool = False, *, scale: Optional[float] = None) -> Tuple[Any, ...]:
    """aten::_scaled_dot_product_flash_attention."""
    q, k, v = _rows_first(query, key, value)
    out = torch.empty_like(query)
    rng_state = _rng(query, dropout_p)
    _, lse, _ = _tensors.forward(q, k, v, out=out.transpose(1, 2), lse=True, rng_state=_state(rng_state, dropout_p),
                                 **_numbers(is_causal, scale, dropout_p))
    unused = torch.zeros((), dtype=torch.uint64, device=query.device)
    return out, lse, None, None, query.shape[2], key.shape[2], rng_state, unused, query.new_empty(0)


def sdpa_cuda_backward(grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
                       cum_seq_q: Optional[Tensor], cum_seq_k: Optional[Tensor], max_q: int, max_k: int, dropout_p: float,
                       is_causal: bool, philox_seed: Tensor, philox_offset: Tensor, *,
                       scale: Optional[float] = None) -> Tuple[Tensor, ...]:
    """aten::_scaled_dot_product_flash_attention_backward."""
    return _backward(grad_out, query, key, value, out, logsumexp, rng_state=_state(philox_seed, dropout_p),
                     **_numbers(is_causal, scale, dropout_p))


def _flash_options(is_causal: bool, window_size_left: Optional[int], window_size_right: Optional[int],
                   scale: Optional[float], dropout_p: float) -> Dict[str, Any]:
    """NOTE: is_causal of the flash operators is aligned to the bottom right."""
    left, right = (-1 if side is None else max(int(side), -1) for side in (window_size_left, window_size_right))
    return dict(causal=_abi.CAUSAL_BOTTOM_RIGHT if is_causal else _abi.CAUSAL_NONE, scale=scale_of(scale),
                dropout=dropout_p, diagonal=_abi.DIAGONAL_BOTTOM_RIGHT, window_left=left,
                window_right=-1 if is_causal else right)


def flash_forward(query: Tensor, key: Tensor, value: Tensor, cum_seq_q: Optional[Tensor], cum_seq_k: Optional[Tensor],
                  max_q: int, max_k: int, dropout_p: float, is_causal: bool, return_debug_mask: bool, *,
                  scale: Optional[float] = None, window_size_left: Optional[int] = None,
                  window_size_right: Optional[int] = None, seqused_k: Optional[Tensor] = None,
                  alibi_slopes: Optional[Tensor] = None, block_table: Optional[Tensor] = None,
                  num_splits: Optional[int] = None, out: Optional[Tensor] = None) -> Tuple[Any, ...]:
    """aten::_flash_attention_forward: (batch, rows, heads, dim), or packed (rows, heads, dim) with cum_seq_q."""
    rng_state = _rng(query, dropout_p)
    if block_table is not None:  # pages have no beginnings
        if seqused_k is None and cum_seq_k is not None:
            seqused_k = cum_seq_k[1:] - cum_seq_k[:-1]
        cum_seq_k = None
    out, lse, _ = _tensors.forward(
        _tensors.dense(query), _tensors.dense(key), _tensors.dense(value), out=out, lse=True, cu_seqlens_q=cum_seq_q,
        cu_seqlens_k=cum_seq_k, seqused_k=seqused_k, alibi=alibi_slopes, block_table=block_table,
        rng_state=_state(rng_state, dropout_p), max_seqlen_q=max_q, max_seqlen_k=max_k, num_splits=num_splits or 0,
        **_flash_options(is_causal, window_size_left, window_size_right, scale, dropout_p))
    unused = torch.zeros((), dtype=torch.uint64, device=query.device)
    return out, lse, rng_state, unused, query.new_empty(0)


def flash_forward_inplace(out: Tensor, *args: Any, **kwargs: Any) -> Any:
    """aten::_flash_attention_forward_no_dropout_inplace."""
    return flash_forward(*args, out=out, **kwargs)[1]


def flash_backward(grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
                   cum_seq_q: Optional[Tensor], cum_seq_k: Optional[Tensor], max_q: int, max_k: int, dropout_p: float,
                   is_causal: bool, rng_state: Tensor, unused: Tensor, *, scale: Optional[float] = None,
                   window_size_left: Optional[int] = None, window_size_right: Optional[int] = None) -> Tuple[Any, ...]:
    """aten::_flash_attention_backward."""
    packed: Dict[str, Any] = dict(cu_seqlens_q=cum_seq_q, cu_seqlens_k=cum_seq_k, max_seqlen_q=max_q, max_seqlen_k=max_k)
    d_o, q, k, v, o = (_tensors.dense(t) for t in (grad_out, query, key, value, out))
    return _tensors.backward(
        d_o, q, k, v, o, logsumexp.contiguous(),
        rng_state=_state(rng_state, dropout_p), deterministic=torch.are_deterministic_algorithms_enabled(),
        **(packed if cum_seq_q is not None else {}),
        **_flash_options(is_causal, window_size_left, window_size_right, scale, dropout_p))[:3]


def _textbook(query: Tensor, key: Tensor, is_causal: bool, attn_mask: Optional[Tensor],
              scale: float) -> Tuple[Tensor, Tensor]:
    """Probabilities and LSE."""
    scores = query @ key.transpose(-1, -2) * scale
    if is_causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -float("inf"))
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -float("inf")) if attn_mask.dtype == torch.bool else scores + attn_mask
    lse = torch.logsumexp(scores, -1)  # of scores near the type's least number it lacks the count of keys
    return torch.softmax(scores, -1).masked_fill((lse == -float("inf")).unsqueeze(-1), 0.0), lse


def _wants_textbook(query: Tensor) -> bool:
    """What Mica has no kernels for and PyTorch's CPU backend takes."""
    return query.dtype not in MICA_TYPES or query.shape[-1] > WIDEST


def _wide(*tensors: Tensor) -> Tuple[Tensor, ...]:
    return tuple(t if t.dtype is torch.float64 else t.float() for t in tensors)


def _for_every_query_head(query: Tensor, *tensors: Tensor) -> Tuple[Tensor, ...]:
    return tuple(t.repeat_interleave(query.shape[1] // t.shape[1], 1) for t in tensors)


def sdpa_cpu(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
             attn_mask: Optional[Tensor] = None, scale: Optional[float] = None) -> Tuple[Tensor, Tensor]:
    """aten::_scaled_dot_product_flash_attention_for_cpu. PyTorch lays its LSE out as (batch, rows, heads)."""
    out = torch.empty_like(query)
    if _wants_textbook(query):
        q, k, v = _wide(query, *_for_every_query_head(query, key, value))
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        probability, lse = _textbook(q, k, is_causal, attn_mask, scale)
        return out.copy_(probability @ v), lse.transpose(1, 2).contiguous().transpose(1, 2)
    q, k, v = _rows_first(query, key, value)
    lse = torch.empty(q.shape[:3], dtype=torch.float32).transpose(1, 2)
    _tensors.forward(q, k, v, out=out.transpose(1, 2), lse=lse, **_mask(attn_mask), **_numbers(is_causal, scale, 0.0))
    return out, lse


def sdpa_cpu_backward(grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
                      dropout_p: float, is_causal: bool, *, attn_mask: Optional[Tensor] = None,
                      scale: Optional[float] = None) -> Tuple[Tensor, ...]:
    """aten::_scaled_dot_product_flash_attention_for_cpu_backward."""
    if _wants_textbook(query):
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        q, k, v, d_o, o = _wide(query, *_for_every_query_head(query, key, value), grad_out, out)
        probability, _ = _textbook(q, k, is_causal, attn_mask, scale)
        d_score = probability * (d_o @ v.transpose(-1, -2) - (d_o * o).sum(-1, keepdim=True)) * scale
        d_k, d_v = d_score.transpose(-1, -2) @ q, probability.transpose(-1, -2) @ d_o
        made = d_score @ k, *(t.unflatten(1, (key.shape[1], -1)).sum(2) for t in (d_k, d_v))
        return tuple(t.to(query.dtype) for t in made)
    return _backward(grad_out, query, key, value, out, logsumexp, **_mask(attn_mask), **_numbers(is_causal, scale, 0.0))


OPERATORS = {
    "CUDA": {
        "_scaled_dot_product_flash_attention": sdpa_cuda,
        "_scaled_dot_product_flash_attention_backward": sdpa_cuda_backward,
        "_flash_attention_forward": flash_forward,
        "_flash_attention_forward_no_dropout_inplace": flash_forward_inplace,
        "_flash_attention_backward": flash_backward,
    },
    "CPU": {
        "_scaled_dot_product_flash_attention_for_cpu": sdpa_cpu,
        "_scaled_dot_product_flash_attention_for_cpu_backward": sdpa_cpu_backward,
    },
}


class _Handle:
    """Keeps the overridden operators; remove() gives PyTorch its own back."""

    def __init__(self) -> None:
        self._libraries: List[torch.library.Library] = []
        for key, functions in OPERATORS.items():
            library = torch.library.Library("aten", "IMPL", key)
            self._libraries.append(library)
            for name, function in functions.items():
                if hasattr(torch.ops.aten, name):
                    library.impl(name, function, key)
        context_parallel.install()

    def remove(self) -> None:
        context_parallel.uninstall()
        for library in self._libraries:
            library._destroy()
        self._libraries = []


def _activate() -> _Handle:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*verriding a previously registered kernel")
        return _Handle()


def register() -> None:
    """Makes "mica" known to torch.nn.attention. Importing this module does it."""
    try:
        from torch.nn.attention import register_flash_attention_impl
    except ImportError:
        name = "torch.nn.attention.register_flash_attention_impl"
        raise ImportError(f"torch is {torch.__version__}, want one that has {name}") from None
    register_flash_attention_impl(NAME, register_fn=_activate)


register()
