# SPDX-License-Identifier: Apache-2.0
"""Partial results over ranges of keys, joined."""
from typing import Optional, Tuple

import torch
from torch import Tensor


def combine(out_partial: Tensor, lse_partial: Tensor, out: Optional[Tensor] = None,
            out_dtype: Optional[torch.dtype] = None) -> Tuple[Tensor, Tensor]:
    """Over the first axis: out_partial (splits, ..., seqlen, heads, dim), lse_partial (splits, ..., seqlen, heads).
    Returns (out, lse); a row that is empty in every part is 0 with LSE -inf. Where a part has LSE -inf, what its output holds
    does not count: nobody may have written it."""
    if lse_partial.shape != out_partial.shape[:-1]:
        raise ValueError(f"lse_partial.shape is {tuple(lse_partial.shape)}, want {tuple(out_partial.shape[:-1])} (= out_partial.shape[:-1])")
    if out is not None and out.shape != out_partial.shape[1:]:
        raise ValueError(f"out.shape is {tuple(out.shape)}, want {tuple(out_partial.shape[1:])} (= out_partial.shape[1:])")
    lse = torch.logsumexp(lse_partial.float(), dim=0)
    weight = torch.exp(lse_partial.float() - lse.masked_fill(lse == -float("inf"), 0.0))
    weight = weight.unsqueeze(-1)
    merged = torch.where(weight > 0, out_partial.float() * weight, 0.0).sum(dim=0)
    merged = merged.to(out_partial.dtype if out_dtype is None else out_dtype)
    return (merged if out is None else out.copy_(merged)), lse
