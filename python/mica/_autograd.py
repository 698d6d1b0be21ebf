# SPDX-License-Identifier: Apache-2.0
"""Attention in torch's autograd graph: q, k, v, bias and sinks have gradients, o and lse bring them."""

from functools import lru_cache
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import Function

from . import _abi, _torch_ops
from ._caller import Caller, caller
from ._describe import BINDINGS, Options, options as make_options
from ._recent import Recent
from .errors import NotDense, Unsupported

_RANK = {name: rank for rank, name in enumerate(BINDINGS)}
_GRADIENTS = ("dq", "dk", "dv", "d_bias", "d_sinks")


@lru_cache(maxsize=None)
def _forward(middle: Tuple[str, ...]) -> Caller:
    return caller(_abi.FORWARD, ("q", "k", "v", "o", "lse", *middle), ("o", "lse"))


@lru_cache(maxsize=None)
def _backward(middle: Tuple[str, ...], has_d_lse: bool, needs: Tuple[bool, ...]) -> Tuple[Caller, Tuple[int, ...]]:
    """The call, and which of the gradients each of its results is."""
    made = tuple(name for name, need in zip(_GRADIENTS, needs) if need)
    names = ("q", "k", "v", "o", "lse", *middle, "d_o", *(("d_lse",) if has_d_lse else ()), *made)
    return caller(_abi.BACKWARD, names, made), tuple(at for at, need in enumerate(needs) if need)


@lru_cache(maxsize=4096)
def _backward_options(given: Options, deterministic: bool) -> Options:
    values = {name: getattr(given, name) for name in Options.__slots__}
    values.update(num_splits=0, deterministic=deterministic)
    return make_options(**values)


def _gradients(ctx: Any, options: Options, middle: Tuple[str, ...], needs: Tuple[bool, ...], d_o: Optional[Tensor],
               d_lse: Optional[Tensor] = None) -> List[Optional[Tensor]]:
    """Of q, k, v, bias and sinks, None for what is not needed."""
    gradients: List[Optional[Tensor]] = [None] * 5
    if d_o is None and d_lse is None:
        return gradients
    q, k, v, o, lse, *others = ctx.saved_tensors
    call, places = _backward(middle, d_lse is not None, needs)
    options = _backward_options(options, torch.are_deterministic_algorithms_enabled())
    if d_o is None:
        d_o = torch.zeros_like(o)
    if _torch_ops.stand_for_several(d_o, d_lse):
        named = {name: getattr(options, name) for name in _torch_ops.NUMBER_NAMES}
        named.update(zip(("mask" if name == "boolean_mask" else name for name in middle), others))
        made = _torch_ops.backward_by_op(d_o, d_lse, q, k, v, o, lse, needs, **named)
        return [gradient if need else None for gradient, need in zip(made, needs)]
    last = () if d_lse is None else (d_lse,)
    try:
        made = call(options, q, k, v, o, lse, *others, d_o, *last)
    except NotDense:
        last = tuple(t.resolve_neg() for t in last)
        made = call(options, q, k, v, o, lse, *others, d_o.resolve_neg().contiguous(), *last)
    for place, gradient in zip(places, made if len(places) > 1 else (made,)):
        gradients[place] = gradient
    return gradients


class Final(Function):
    """The gradient itself, which depends on the sources in a way that has no derivative here."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *sources: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise Unsupported("attention has no second derivative")


def final(gradient: Tensor, *sources: Tensor) -> Tensor:
    """With create_graph a second derivative may be asked for. There is none, and it must not be silently 0."""
    if not torch.is_grad_enabled():
        return gradient
    if _torch_ops.stand_for_several(gradient):
        raise Unsupported("attention has no second derivative, want create_graph=False for gradients that come several "
                          "at a time")
    made: Tensor = Final.apply(gradient, *sources)
    return made


def _backward_of(ctx: Any, options: Options, middle: Tuple[str, ...], needs: Tuple[bool, ...],
                 given: Tuple[Optional[Tensor], ...]) -> List[Optional[Tensor]]:
    if not torch.is_grad_enabled():
        return _gradients(ctx, options, middle, needs, *given)
    # create_graph: a second derivative may be asked for. There is none, and it must not be silently 0.
    with torch.no_grad():
        results = _gradients(ctx, options, middle, needs, *given)
    sources = (*ctx.saved_tensors, *(g for g in given if g is not None))
    return [result if result is None else final(result, *sources) for result in results]


class AttendPlain(Function):
    """q, k and v alone. Every further argument of a Function costs, be it a tensor or not: hence one for all."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, recent: Recent) -> Any:
        o, lse = recent.again(recent.entry, q, k, v)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.options = recent.entry.options
        if not recent.return_lse:
            return o
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx: Any, *gradients: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
        needs = (*ctx.needs_input_grad[:3], False, False)
        return (*_backward_of(ctx, ctx.options, (), needs, gradients)[:3], None)


class Attend(Function):
    """The same with other tensors by name; bias and sinks among them have gradients."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], sinks: Optional[Tensor],
                options: Options, middle: Dict[str, Tensor], return_lse: bool) -> Any:
        ctx.options, ctx.middle, tensors = options, tuple(middle), tuple(middle.values())
        o, lse = _forward(ctx.middle)(options, q, k, v, *tensors)
        ctx.save_for_backward(q, k, v, o, lse, *tensors)
        if not return_lse:
            return o
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx: Any, *gradients: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
        return (*_backward_of(ctx, ctx.options, ctx.middle, ctx.needs_input_grad[:5], gradients), None, None, None)


# Function.apply, less its looks at functorch: what is traced does not come here.
attend_plain = super(Function, AttendPlain).apply
_apply = super(Function, Attend).apply
plain_forward = _forward(())


def attend(options: Options, q: Tensor, k: Tensor, v: Tensor, optional: Dict[str, Tensor], return_lse: bool) -> Any:
    """o, or (o, lse), with a gradient."""
    middle = {name: optional[name] for name in sorted(optional, key=_RANK.__getitem__)}
    return _apply(q, k, v, middle.get("bias"), middle.get("sinks"), options, middle, return_lse)
