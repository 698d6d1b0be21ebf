# SPDX-License-Identifier: Apache-2.0
"""swiglu with upstream's names."""
import torch
from torch import Tensor


def swiglu_fwd(x: Tensor, y: Tensor) -> Tensor:
    """silu(x) * y, in fp32 inside."""
    return (torch.nn.functional.silu(x.float()) * y.float()).to(x.dtype)


class SwiGLUFunction:
    """Differentiable by its operations; called as SwiGLUFunction.apply(x, y)."""

    apply = staticmethod(swiglu_fwd)


swiglu = SwiGLUFunction.apply
