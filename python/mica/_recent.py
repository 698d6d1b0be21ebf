# SPDX-License-Identifier: Apache-2.0
"""Plain calls made again. Most calls repeat an earlier one with other addresses; to see that by one question to torch
costs a fifth of looking up the plan by shapes, strides, types and devices.

The question is torch's own guard (what torch.compile asks of its inputs at every call): same classes, shapes, strides,
types, devices and requires_grad, and nothing in this thread that changes what an operator does (autocast, functorch,
inference mode) but did not when the guard was made; dispatch modes, the profiler and forward mode the caller asks for.
It refuses a tensor that is given twice. Where a PyTorch has no such guard, or one that lets something through, every
call looks up its plan.

A second guard asks for all of that but the shapes and strides: where it alone is true (a cache has grown by a key), the
plan is looked up or made without the questions before it.
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


def _guard_of_kind(*tensors: Tensor) -> Callable[..., bool]:
    """A function that is true of tensors such as these, of whatever shapes and strides."""
    anything = [[None] * t.dim() for t in tensors]
    guards: Any = torch._C._dynamo.guards.TensorGuards(*tensors, dynamic_dims_sizes=anything, dynamic_dims_strides=anything)
    check: Callable[..., bool] = guards.check
    return check


@lru_cache(maxsize=None)
def _guard_is_right() -> bool:
    """Whether this PyTorch's guards are there, and see every difference that matters. NOTE: asked at a call that
    nothing traces, not when this is imported."""
    one, two = torch.zeros(2, 3), torch.zeros(2, 3)
    shapes = two[:1], two.t().contiguous().t()
    others = (two.half(), two.clone().requires_grad_(), two.to("meta"), None, torch.nn.Parameter(two), two[0])
    # What the caller reads besides, without a call.
    if not (hasattr(profiler, "_is_profiler_enabled") and hasattr(_python_dispatch, "_is_in_torch_dispatch_mode")):
        return False
    try:
        is_same, is_alike = _guard(one, two), _guard_of_kind(one, two)
        return (is_same(two, one) is True and not any(is_same(one, other) for other in (*shapes, *others)) and
                all(is_alike(one, other) is True for other in shapes) and not any(is_alike(one, other) for other in others))
    except (AttributeError, TypeError, RuntimeError):
        return False


class Recent:
    """A plan of a plain call, and how to see that a call can use it. grows: a plan for other shapes is made like this one."""
    __slots__ = ("is_same", "is_alike", "is_used", "guards_made", "entry", "call", "again", "needs_gradient", "return_lse",
                 "grows")

    def __init__(self, entry: Entry, call: Any, needs_gradient: bool, return_lse: bool, grows: bool = True) -> None:
        self.is_same: Callable[..., bool] = _never
        self.is_alike: Callable[..., bool] = _never
        self.is_used = False  # whether the guard was of use
        self.guards_made = 0
        self.entry, self.call, self.again = entry, call, call.again
        self.needs_gradient, self.return_lse, self.grows = needs_gradient, return_lse, grows

    def guard(self, *tensors: Tensor) -> None:
        self.is_same = _guard(*tensors)
        self.guards_made += 1


# Read by subscript: the method get would be a step more at every call.
recent_calls: Dict[Key, Recent] = kept_with_plans()


def remember(key: Key, call: Recent, *tensors: Tensor) -> None:
    """Notes what the plain arguments of the key led to with these tensors. The second time in succession it gets
    guards: where shapes change at every call, each one would be made in vain."""
    last = recent_calls.get(key)
    if last is not None and last.entry is call.entry:
        call.guards_made = last.guards_made
        if call.guards_made < MOST_GUARDS and _guard_is_right() and len(set(map(id, tensors))) == len(tensors):
            call.guard(*tensors)
            if call.grows:
                call.is_alike = _guard_of_kind(*tensors)
    elif len(recent_calls) >= KEPT:
        recent_calls.clear()
    recent_calls[key] = call


def with_other_shapes(key: Key, last: Recent, *tensors: Tensor) -> Recent:
    """The call of a key with tensors of the same kind as its last ones. Where those came again, these are taken to: the
    layers of a model follow one another with the same shapes. May raise as a plain call does."""
    entry = last.call.find(last.entry.options, *tensors, last.entry)
    call = Recent(entry, last.call, last.needs_gradient, last.return_lse)
    call.is_alike = last.is_alike
    if entry is last.entry:
        call.guards_made = last.guards_made
    if (last.is_used or entry is last.entry) and call.guards_made < MOST_GUARDS:
        call.guard(*tensors)
    recent_calls[key] = call
    return call
