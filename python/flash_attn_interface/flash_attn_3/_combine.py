# SPDX-License-Identifier: Apache-2.0
"""Partial results over ranges of keys, joined."""
from typing import Optional, Tuple

import torch
from torch import Tensor


def combine(out_partial: Tensor, lse_partial: Tensor, out: Optional[Tensor] = None,
            out_dtype: Optional[torch.dtype] = None) -> Tuple[Tensor, Tensor]:
    """Over the first axis: out_partial (splits, ..., seqlen, heads, dim), lse_partial (splits, ..., seqlen, heads).
    Returns (out, lse); a row that is empty in every part is 0 with LSE -inf."""
    lse = torch.logsumexp(lse_partial.float(), dim=0)
    weight = torch.exp(lse_partial.float() - lse.masked_fill(lse == -float("inf"), 0.0))
    merged = (out_partial.float() * weight.unsqueeze(-1)).sum(dim=0)
    merged = merged.to(out_partial.dtype if out_dtype is None else out_dtype)
    return (merged if out is None else out.copy_(merged)), lse
