# SPDX-License-Identifier: Apache-2.0
"""Both interfaces under torch.autocast. Upstream's functions take 16 bits as they are, whatever type autocast has, and no
others. So do these; fp32 and types that differ, which upstream refuses, become autocast's, as in mica.attention."""
from contextlib import nullcontext
from typing import Any, Optional, Tuple

import torch
from mica._tensors import autocast_to
from mica._torch_face import autocast_type
from torch import Tensor

_HALVES = (torch.float16, torch.bfloat16)


def _type(device: torch.device) -> Optional[torch.dtype]:
    return autocast_type(device.type) if device.type in ("cpu", "cuda") else None


def autocast(*tensors: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
    """The tensors as they are to be computed with."""
    first: Any = tensors[0]
    dtype = _type(first.device)
    if dtype is None or first.dtype in _HALVES and all(x is None or x.dtype is first.dtype for x in tensors):
        return tensors
    return tuple(None if x is None else autocast_to(dtype, x) for x in tensors)


def as_they_are(x: Tensor) -> Any:
    """A context in which mica.attention takes tensors such as x as they are."""
    return nullcontext() if _type(x.device) is None else torch.autocast(x.device.type, enabled=False)
