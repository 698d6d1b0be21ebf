# SPDX-License-Identifier: Apache-2.0
"""e4m3 for the functions of flash_attn_interface."""
from typing import Any, Callable, Dict, Optional, Tuple

import torch
from mica.errors import Unsupported
from torch import Tensor

E4M3 = getattr(torch, "float8_e4m3fn", None)


def factors_of(q: Tensor, k: Tensor, q_descale: Any, k_descale: Any, v_descale: Any,
               **unwanted: Any) -> Optional[Dict[str, Any]]:
    """The factors of those tensors that are e4m3; None where none is, and then upstream looks at no factor either."""
    if k.dtype is not E4M3:
        return None
    for name, value in unwanted.items():
        if value is not None:
            raise ValueError(f"{name} is given with float8_e4m3fn keys, want None")
    return {"q_descale": q_descale if q.dtype is E4M3 else None, "k_descale": k_descale, "v_descale": v_descale}


# What flash_attn_with_kvcache took besides in upstream's beta: its factors, one for all heads, and hints.
BETA_FACTORS = ("descale_q", "descale_k", "descale_v")
BETA_NAMES = (*BETA_FACTORS, "gqa_parallel", "gqa_decoding", "max_seqlen_k_hint")


def factors_of_beta(older: Dict[str, Any], q: Tensor, k: Tensor, factors: Tuple[Any, ...]) -> Tuple[Any, ...]:
    """q_descale, k_descale and v_descale, those of the beta's names as today's: (batch, key heads)."""
    for name in older:
        if name not in BETA_NAMES:
            raise TypeError(f"flash_attn_with_kvcache() got an unexpected keyword argument '{name}'")
    given = [older.get(name) for name in BETA_FACTORS]
    return tuple(factor if beta is None else beta.reshape(1, 1).expand(q.shape[0], k.shape[-2])
                 for factor, beta in zip(factors, given))


def as_bytes(x: Tensor) -> Tensor:
    """e4m3 as uint8, which PyTorch indexes; another tensor as it is."""
    return x.view(torch.uint8) if x.dtype is E4M3 else x


class _ForwardOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, *inputs: Tensor) -> Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise Unsupported("q, k or v requires a gradient, and e4m3 has none; want mica.attention to train")


def forward_only(call: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, *others: Any, **options: Any) -> Any:
    """call(q, k, v, ...), which has no gradient. Upstream takes tensors that require one, and fails in backward: so does
    this."""
    made = call(q.detach(), k.detach(), v.detach(), *others, **options)
    if not (torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))):
        return made
    if isinstance(made, tuple):
        return (_ForwardOnly.apply(made[0], q, k, v), *made[1:])
    return _ForwardOnly.apply(made, q, k, v)
