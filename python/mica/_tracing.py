# SPDX-License-Identifier: Apache-2.0
"""When a call must go through torch's dispatcher (torch.compile, torch.export, dispatch modes, functorch, tensor
subclasses), and how it does."""

from typing import Any, Dict, Optional, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from . import _tensors, _torch_ops
from .errors import Unsupported


def _never() -> bool:
    return False


_is_compiling = torch.compiler.is_compiling if _torch_ops.AVAILABLE else _never
_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", _never)
_transforms = getattr(torch._C, "_are_functorch_transforms_active", _never)


# True for Dynamo alone, which knows the function, and in eager a constant: cheaper than is_compiling.
is_dynamo_tracing = getattr(torch.compiler, "is_dynamo_compiling", _is_compiling) if _torch_ops.AVAILABLE else _never


def is_traced(q: Tensor) -> bool:
    return (_is_compiling() or _dispatch_modes() or _transforms() or
            type(q) is not Tensor and type(q) is not Parameter)  # type: ignore[return-value]


def traced(q: Tensor, k: Tensor, v: Tensor, optional: Dict[str, Optional[Tensor]], numbers: Sequence[Any],
           return_lse: bool, out: Optional[Tensor], seed: Any) -> Any:
    """The call as torch.ops.mica.*. numbers are those of normalise()."""
    if not _torch_ops.AVAILABLE:
        raise Unsupported(f"tracing wants PyTorch 2.4 or later, this is {torch.__version__}")
    values = dict(zip(_torch_ops.NUMBER_NAMES, numbers))
    if values["dropout"]:
        optional = {**optional, "rng_state": _tensors.rng_of(seed, q.device)}
    tensors = [optional.get(name) for name in _torch_ops.TENSORS]
    is_cached = "k_new" in optional
    if torch.is_autocast_enabled(q.device.type):
        # A cache keeps its type, and the others follow it.
        dtype = k.dtype if is_cached else torch.get_autocast_dtype(q.device.type)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if is_cached and optional["k_new"] is not None:
        new = [optional[name].detach().to(k.dtype) for name in ("k_new", "v_new")]
        o, lse = torch.ops.mica.attention_append(q.detach(), k, v, *new, optional["rotary_cos"],
                                                 optional["rotary_sin"], *tensors, *numbers, return_lse)
    elif is_cached:
        o, lse = torch.ops.mica.attention(q.detach(), k.detach(), v.detach(), *tensors, *numbers, return_lse)
    else:
        values["deterministic"] = torch.are_deterministic_algorithms_enabled()
        needs_gradient = torch.is_grad_enabled() and any(
            t is not None and t.requires_grad for t in (q, k, v, optional.get("bias"), optional.get("sinks")))
        o, lse = torch.ops.mica.attention(q, k, v, *tensors, *[values[name] for name in _torch_ops.NUMBER_NAMES],
                                          return_lse or needs_gradient)
    if out is not None:
        o = out.copy_(o)
    return (o, lse) if return_lse else o
