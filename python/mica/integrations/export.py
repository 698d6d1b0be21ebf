# SPDX-License-Identifier: Apache-2.0
"""Mica's operators, for programs that run what torch.export saved: torch knows only those that somebody registered.

    import mica.integrations.export
    program = torch.export.load("model.pt2")
"""
from mica import _torch_ops
from mica.errors import Unsupported

if not _torch_ops.AVAILABLE:
    import torch
    raise Unsupported(f"operators want PyTorch 2.4 or later, this is {torch.__version__}")
