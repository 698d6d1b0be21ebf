# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's numbers and masks mean to Mica, where its own word is another."""

from typing import Optional

import torch
from torch import Tensor

LEAST = -1e38


def scale_of(scale: Optional[float]) -> float:
    """0 is Mica's word for the default, so a scale of 0 becomes the smallest."""
    return 0.0 if scale is None else scale or 1e-30


def finite_bias(mask: Tensor) -> Tensor:
    """Models hide keys with the type's least number. In a row that has nothing else PyTorch then takes the mean of the
    values, but in Mica's units of log2(e) that number is -inf, and the row 0."""
    return mask if mask.dtype == torch.float16 else torch.where((mask < LEAST) & (mask > -float("inf")), LEAST, mask)
