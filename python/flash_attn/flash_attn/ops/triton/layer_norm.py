# SPDX-License-Identifier: Apache-2.0
"""Layer norm and RMS norm with upstream's arguments, in plain torch (fp32 inside) on every device; torch.compile
fuses them."""
from typing import Optional

import torch
from torch import Tensor


def _dropped(x: Tensor, dropout_p: float):
    """x after dropout and the mask that was drawn (True: kept)."""
    if dropout_p == 0.0:
        return x, None
    kept = torch.rand_like(x, dtype=torch.float32) >= dropout_p
    return x * kept / (1.0 - dropout_p), kept


def _normalised(
    x: Tensor, weight: Tensor, bias: Optional[Tensor], eps: float, zero_centered: bool, rms: bool
) -> Tensor:
    if rms:
        y = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    else:
        centred = x - x.mean(dim=-1, keepdim=True)
        y = centred * torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + eps)
    y = y * (weight.float() + 1.0 if zero_centered else weight.float())
    return y if bias is None else y + bias.float()


def _written(destination: Optional[Tensor], value: Tensor) -> Tensor:
    return value if destination is None else destination.copy_(value)


def layer_norm_fn(
    x,
    weight,
    bias,
    residual=None,
    x1=None,
    weight1=None,
    bias1=None,
    eps=1e-6,
    dropout_p=0.0,
    rowscale=None,
    prenorm=False,
    residual_in_fp32=False,
    zero_centered_weight=False,
    is_rms_norm=False,
    return_dropout_mask=False,
    out_dtype=None,
    out=None,
    residual_out=None,
):
    """norm(dropout(x * rowscale) + dropout(x1) + residual), once more with weight1 where given.

    Returns out, then out1 if weight1 is given, then the sum before the norm if prenorm, then the two dropout masks (or
    None) if return_dropout_mask. The sum has residual's type, or fp32 if residual_in_fp32.
    """
    if x1 is not None and rowscale is not None:
        raise ValueError("rowscale is given together with x1, want one of them")
    for name, given in (("residual", residual), ("x1", x1)):
        if given is not None and given.shape != x.shape:
            raise ValueError(f"{name}.shape is {tuple(given.shape)}, want {tuple(x.shape)} (= x.shape)")
    if rowscale is not None and rowscale.numel() != x.shape[:-1].numel():
        raise ValueError(f"rowscale.shape is {tuple(rowscale.shape)}, want {tuple(x.shape[:-1])} (the rows of x)")
    total = x.float() if rowscale is None else x.float() * rowscale.reshape(*x.shape[:-1], 1).float()
    total, mask = _dropped(total, dropout_p)
    mask1 = None
    if x1 is not None:
        other, mask1 = _dropped(x1.float(), dropout_p)
        total = total + other
    if residual is not None:
        total = total + residual.float()
    sum_dtype = residual.dtype if residual is not None else (torch.float32 if residual_in_fp32 else x.dtype)
    wanted = x.dtype if out_dtype is None else out_dtype

    def norm(scale, shift):
        return _normalised(total, scale, shift, eps, zero_centered_weight, is_rms_norm).to(wanted)

    results = [_written(out, norm(weight, bias))]
    if weight1 is not None:
        results.append(norm(weight1, bias1))
    if prenorm:
        results.append(_written(residual_out, total.to(sum_dtype)))
    if return_dropout_mask:
        results += [mask, mask1]
    return results[0] if len(results) == 1 else tuple(results)


def rms_norm_fn(
    x,
    weight,
    bias,
    residual=None,
    x1=None,
    weight1=None,
    bias1=None,
    eps=1e-6,
    dropout_p=0.0,
    rowscale=None,
    prenorm=False,
    residual_in_fp32=False,
    zero_centered_weight=False,
    return_dropout_mask=False,
    out_dtype=None,
    out=None,
    residual_out=None,
):
    """layer_norm_fn without the mean."""
    return layer_norm_fn(
        x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale, prenorm, residual_in_fp32,
        zero_centered_weight, True, return_dropout_mask, out_dtype, out, residual_out,
    )


class RMSNorm(torch.nn.Module):
    def __init__(self, hidden_size, eps=1e-5, dropout_p=0.0, zero_centered_weight=False, device=None, dtype=None):
        super().__init__()
        self.eps = eps
        self.drop = torch.nn.Dropout(dropout_p) if dropout_p > 0.0 else None
        self.zero_centered_weight = zero_centered_weight
        self.weight = torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self):
        torch.nn.init.constant_(self.weight, 0.0 if self.zero_centered_weight else 1.0)

    def forward(self, x, residual=None, prenorm=False, residual_in_fp32=False):
        dropout_p = self.drop.p if self.drop is not None and self.training else 0.0
        return rms_norm_fn(
            x, self.weight, self.bias, residual=residual, eps=self.eps, dropout_p=dropout_p, prenorm=prenorm,
            residual_in_fp32=residual_in_fp32, zero_centered_weight=self.zero_centered_weight,
        )
