# SPDX-License-Identifier: Apache-2.0
"""CrossEntropyLoss as a module."""
from torch import nn

from flash_attn.ops.triton.cross_entropy import cross_entropy_loss


class CrossEntropyLoss(nn.Module):
    def __init__(
        self,
        ignore_index=-100,
        reduction="mean",
        label_smoothing=0.0,
        logit_scale=1.0,
        lse_square_scale=0.0,
        inplace_backward=False,
        process_group=None,
        return_z_loss=False,
    ):
        super().__init__()
        if reduction not in ("mean", "none", "sum"):
            raise ValueError(f"reduction is {reduction!r}, want 'mean', 'none' or 'sum'")
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing
        self.logit_scale = logit_scale
        self.lse_square_scale = lse_square_scale
        self.inplace_backward = inplace_backward
        self.process_group = process_group
        self.return_z_loss = return_z_loss

    def forward(self, input, target, precomputed_lse=None):
        """input (batch, vocabulary), target (batch,) -> the loss, with the z-loss beside it if return_z_loss."""
        losses = cross_entropy_loss(
            input,
            target,
            precomputed_lse=precomputed_lse,
            label_smoothing=self.label_smoothing,
            logit_scale=self.logit_scale,
            lse_square_scale=self.lse_square_scale,
            ignore_index=self.ignore_index,
            inplace_backward=self.inplace_backward,
            process_group=self.process_group,
        )
        if self.reduction != "none":
            losses = tuple(each.sum() for each in losses)
        if self.reduction == "mean":
            count = (target != self.ignore_index).sum()
            losses = tuple(each / count for each in losses)
        return losses if self.return_z_loss else losses[0]
