# SPDX-License-Identifier: Apache-2.0
"""Cross entropy with upstream's arguments, in plain torch on every device."""
from typing import Optional, Tuple

import torch


def cross_entropy_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    precomputed_lse: Optional[torch.Tensor] = None,
    label_smoothing: float = 0.0,
    logit_scale: float = 1.0,
    lse_square_scale: float = 0.0,
    ignore_index=-100,
    inplace_backward: bool = False,
    process_group=None,
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Losses and z-losses, fp32 (batch,), of logits (batch, vocabulary) and labels (batch,).

    Rows labelled ignore_index give 0. The z-loss, lse_square_scale * lse^2, is part of the loss; returned beside it, it
    carries no gradient. precomputed_lse is that of the logits as given, so it is not used where logit_scale changes them.
    inplace_backward is accepted and changes nothing. A vocabulary split over processes is not offered.
    """
    if process_group is not None:
        raise ValueError("process_group is given, want None: Mica's drop-in has no vocabulary split over processes")
    for name, given in (("labels", labels), ("precomputed_lse", precomputed_lse)):
        if given is not None and given.shape != logits.shape[:-1]:
            raise ValueError(f"{name}.shape is {tuple(given.shape)}, want {tuple(logits.shape[:-1])} (the rows of logits)")
    scores = logits.float() * logit_scale
    # Where the caller has the LSE already, its value is used and the gradient still flows through the scores.
    lse = torch.logsumexp(scores, dim=-1)
    if precomputed_lse is not None and logit_scale == 1.0:
        lse = lse + (precomputed_lse - lse).detach()
    used = labels != ignore_index
    target = scores.gather(-1, labels.where(used, 0).unsqueeze(-1)).squeeze(-1)
    loss = lse - (1.0 - label_smoothing) * target
    if label_smoothing > 0.0:
        loss = loss - label_smoothing * scores.mean(dim=-1)
    z_loss = lse_square_scale * lse.square()
    return torch.where(used, loss + z_loss, 0.0), torch.where(used, z_loss, 0.0).detach()
