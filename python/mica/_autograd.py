# SPDX-License-Identifier: Apache-2.0
"""Attention in torch's autograd graph: q, k, v, bias and sinks have gradients, o and lse bring them."""

from functools import lru_cache
from typing import Any, Callable, Dict, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import Function

from . import _abi
from ._caller import caller
from ._describe import BINDINGS, Options, options as make_options
from .errors import NotDense, Unsupported

_RANK = {name: rank for rank, name in enumerate(BINDINGS)}
_GRADIENTS = ("dq", "dk", "dv", "d_bias", "d_sinks")


@lru_cache(maxsize=None)
def _forward(middle: Tuple[str, ...]) -> Callable:
    return caller(_abi.FORWARD, ("q", "k", "v", "o", "lse", *middle), ("o", "lse"))


@lru_cache(maxsize=None)
def _backward(middle: Tuple[str, ...], has_d_lse: bool, needs: Tuple[bool, ...]) -> Tuple[Callable, Tuple[int, ...]]:
    """The call, and which of the gradients each of its results is."""
    made = tuple(name for name, need in zip(_GRADIENTS, needs) if need)
    names = ("q", "k", "v", "o", "lse", *middle, "d_o", *(("d_lse",) if has_d_lse else ()), *made)
    return caller(_abi.BACKWARD, names, made), tuple(at for at, need in enumerate(needs) if need)


@lru_cache(maxsize=4096)
def _backward_options(given: Options, deterministic: bool) -> Options:
    values = {name: getattr(given, name) for name in Options.__slots__}
    values.update(num_splits=0, deterministic=deterministic)
    return make_options(**values)


def _gradients(ctx: Any, d_o: Optional[Tensor], d_lse: Optional[Tensor] = None) -> Tuple[Optional[Tensor], ...]:
    q, k, v, o, lse, *middle = ctx.saved_tensors
    call, places = _backward(ctx.middle, d_lse is not None, ctx.needs_input_grad[:5])
    options = _backward_options(ctx.options, torch.are_deterministic_algorithms_enabled())
    if d_o is None:
        if d_lse is None:
            return (None,) * 8
        d_o = torch.zeros_like(o)
    last = (d_o,) if d_lse is None else (d_o, d_lse)
    try:
        made = call(options, q, k, v, o, lse, *middle, *last)
    except NotDense:
        made = call(options, q, k, v, o, lse, *middle, d_o.contiguous(), *last[1:])
    gradients = [None] * 8
    for place, gradient in zip(places, made if len(places) > 1 else (made,)):
        gradients[place] = gradient
    return tuple(gradients)


class Final(Function):
    """The gradient itself, which depends on the sources in a way that has no derivative here."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *sources: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise Unsupported("attention has no second derivative")


_plain_forward = _forward(())


class Attend(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], sinks: Optional[Tensor],
                options: Options, middle: Optional[Dict[str, Tensor]], return_lse: bool) -> Any:
        if middle:
            names, tensors = tuple(middle), tuple(middle.values())
            o, lse = _forward(names)(options, q, k, v, *tensors)
            ctx.save_for_backward(q, k, v, o, lse, *tensors)
            ctx.middle = names
        else:
            o, lse = _plain_forward(options, q, k, v)
            ctx.save_for_backward(q, k, v, o, lse)
            ctx.middle = ()
        ctx.options = options
        if not return_lse:
            return o
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx: Any, *gradients: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
        if not torch.is_grad_enabled():
            return _gradients(ctx, *gradients)
        # create_graph: a second derivative may be asked for. There is none, and it must not be silently 0.
        with torch.no_grad():
            results = _gradients(ctx, *gradients)
        sources = (*ctx.saved_tensors, *(g for g in gradients if g is not None))
        return tuple(result if result is None else Final.apply(result, *sources) for result in results)


# Function.apply, less its looks at functorch: what is traced does not come here.
_apply = super(Function, Attend).apply


def attend_plain(options: Options, q: Tensor, k: Tensor, v: Tensor, return_lse: bool) -> Any:
    """o, or (o, lse), of q, k and v alone, with a gradient."""
    return _apply(q, k, v, None, None, options, None, return_lse)


def attend(options: Options, q: Tensor, k: Tensor, v: Tensor, optional: Dict[str, Tensor], return_lse: bool) -> Any:
    """The same with other bindings by name; bias and sinks among them have gradients."""
    middle = {name: optional[name] for name in sorted(optional, key=_RANK.__getitem__)}
    return _apply(q, k, v, middle.get("bias"), middle.get("sinks"), options, middle, return_lse)
