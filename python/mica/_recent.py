# SPDX-License-Identifier: Apache-2.0
"""Plain calls made again. Most calls repeat an earlier one with other addresses; to see that by one question to torch
costs a fifth of looking up the plan by shapes, strides, types and devices.

The question is torch's own guard (what torch.compile asks of its inputs at every call): same classes, shapes, strides,
types, devices and requires_grad, and nothing in this thread that changes what an operator does (autocast, functorch,
inference mode) but did not when the guard was made; dispatch modes, the profiler and forward mode the caller asks for.
It refuses a tensor that is given twice. Where a PyTorch has no such guard, or one that lets something through, every
call looks up its plan.
"""

from functools import lru_cache
from typing import Any, Callable, Dict

import torch
from torch import Tensor
from torch.autograd import profiler
from torch.utils import _python_dispatch

from ._caller import Entry, Key, kept_with_plans

KEPT = 512
MOST_GUARDS = 8  # for one plan: where calls keep differing in what a plan does not depend on, guards do not pay


def _never(*tensors: Any) -> bool:
    return False


def _guard(*tensors: Tensor) -> Callable[..., bool]:
    """A function that is true of tensors such as these."""
    guards: Any = torch._C._dynamo.guards.TensorGuards(*tensors, dynamic_dims_sizes=[list(t.shape) for t in tensors],
                                                       dynamic_dims_strides=[list(t.stride()) for t in tensors])
    check: Callable[..., bool] = guards.check
    return check


@lru_cache(maxsize=None)
def _guard_is_right() -> bool:
    """Whether this PyTorch's guard is there, and sees every difference that matters. NOTE: asked at a call that
    nothing traces, not when this is imported."""
    one, two = torch.zeros(2, 3), torch.zeros(2, 3)
    others = (two[:1], two.t().contiguous().t(), two.half(), two.clone().requires_grad_(), two.to("meta"), None,
              torch.nn.Parameter(two))
    # What the caller reads besides, without a call.
    if not (hasattr(profiler, "_is_profiler_enabled") and hasattr(_python_dispatch, "_is_in_torch_dispatch_mode")):
        return False
    try:
        is_same = _guard(one, two)
        return is_same(two, one) is True and not any(is_same(one, other) for other in others)
    except (AttributeError, TypeError, RuntimeError):
        return False


class Recent:
    """A plan of a plain call, and how to see that a call can use it."""
    __slots__ = ("is_same", "guards_made", "entry", "again", "needs_gradient", "return_lse")

    def __init__(self, entry: Entry, call: Any, needs_gradient: bool, return_lse: bool) -> None:
        self.is_same: Callable[..., bool] = _never
        self.guards_made = 0
        self.entry, self.again = entry, call.again
        self.needs_gradient, self.return_lse = needs_gradient, return_lse


# Read by subscript: the method get would be a step more at every call.
recent_calls: Dict[Key, Recent] = kept_with_plans()


def remember(key: Key, call: Recent, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Notes what the plain arguments of the key led to with these tensors. The second time in succession it gets a
    guard: where shapes change at every call, each one would be made in vain."""
    last = recent_calls.get(key)
    if last is not None and last.entry is call.entry:
        call.guards_made = last.guards_made
        if call.guards_made < MOST_GUARDS and _guard_is_right() and q is not k and q is not v and k is not v:
            call.is_same = _guard(q, k, v)
            call.guards_made += 1
    elif len(recent_calls) >= KEPT:
        recent_calls.clear()
    recent_calls[key] = call
