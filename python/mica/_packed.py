# SPDX-License-Identifier: Apache-2.0
"""Rows of a packed tensor that belong to no sequence: before the first and after the last entry of cu_seqlens."""

from typing import Optional

import torch
from torch import Tensor


def clear_outside(tensor: Tensor, cu_seqlens: Optional[Tensor]) -> None:
    """Sets them to 0, without waiting for a device. tensor is (rows, heads, dim) or (1, rows, heads, dim)."""
    if cu_seqlens is None or cu_seqlens.shape[0] == 0:
        return
    tensor = tensor[0] if tensor.dim() == 4 else tensor
    rows = tensor.shape[0]
    if tensor.device.type == "cpu":
        begin, end = int(cu_seqlens[0]), int(cu_seqlens[-1])
        with torch.no_grad():
            if begin > 0:
                tensor[:begin] = 0
            if end < rows:
                tensor[end:] = 0
        return
    row = torch.arange(rows, device=tensor.device)
    outside = (row < cu_seqlens[0]) | (row >= cu_seqlens[-1])
    with torch.no_grad():
        tensor.masked_fill_(outside.view(-1, *(1,) * (tensor.dim() - 1)), 0)
