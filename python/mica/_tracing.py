# SPDX-License-Identifier: Apache-2.0
"""When a call must go through torch's dispatcher (torch.compile, torch.export, torch.jit.trace, dispatch modes, the
profiler, functorch, meta tensors, tensor subclasses), and how it does."""

from typing import Any, Dict, Optional, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from torch.autograd import forward_ad

from . import _tensors, _torch_ops
from ._caller import output_dtype
from .errors import InvalidArgument, Unsupported


def _never() -> bool:
    return False


_is_compiling = torch.compiler.is_compiling if _torch_ops.AVAILABLE else _never
dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", _never)
_transforms = getattr(torch._C, "_are_functorch_transforms_active", _never)


# True for Dynamo alone, which knows the function, and in eager a constant: cheaper than is_compiling.
is_dynamo_tracing = getattr(torch.compiler, "is_dynamo_compiling", _is_compiling) if _torch_ops.AVAILABLE else _never


is_exporting = getattr(torch.compiler, "is_exporting", _never) if _torch_ops.AVAILABLE else _never
is_profiled = getattr(torch._C._autograd, "_profiler_enabled", _never)
is_jit_tracing = getattr(torch._C, "_get_tracing_state", _never)
_PLAIN = (Tensor, Parameter)


def is_traced(q: Tensor, *others: Tensor) -> bool:
    return (_is_compiling() or dispatch_modes() or _transforms() or is_profiled() or is_jit_tracing() or q.is_meta or
            any(type(t) not in _PLAIN for t in (q, *others) if isinstance(t, Tensor)))


def is_transformed() -> bool:
    """Whether torch.func.* looks on, but for a compiler that looks through it."""
    return not _is_compiling() and bool(_transforms())


def has_forward_mode() -> bool:
    level: int = forward_ad._current_level
    return level >= 0


def _refuse_tangents(*_: Any) -> Any:
    raise Unsupported("forward-mode differentiation (torch.func.jvp, jacfwd, forward_ad) has no formula here, want "
                      "torch.func.vjp, jacrev or backward()")


def refuse_forward_mode(*tensors: Optional[Tensor]) -> None:
    """There is no formula for it here, and it must not be silently 0."""
    if any(isinstance(t, Tensor) and t.is_floating_point() and forward_ad.unpack_dual(t).tangent is not None
           for t in tensors):
        _refuse_tangents()


def refuse_gradient(of: str, **tensors: Optional[Tensor]) -> None:
    """Of a call that has none: on a cache, with qv."""
    if torch.is_grad_enabled():
        for name, tensor in tensors.items():
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                raise Unsupported(f"{name} requires a gradient, and a call {of} has none; want it under "
                                  "torch.no_grad(), or mica.attention to train")


def refuse_slopes(alibi: Optional[Tensor]) -> None:
    if alibi is not None and alibi.requires_grad and torch.is_grad_enabled():
        raise Unsupported("alibi requires a gradient, and slopes have none here; want alibi.detach(), or the same as "
                          "bias=")


def _only_functionalizes() -> bool:
    """torch.func.functionalize has no rule for a Function, and needs none: it takes the op."""
    from torch._C import _functorch
    return all(level.key() == _functorch.TransformType.Functionalize for level in _functorch.get_interpreter_stack() or ())


class TransformedBackward(torch.autograd.Function):
    """The gradient's op for torch.func.*, which has no derivative."""
    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return torch.ops.mica.attention_backward(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise Unsupported("attention has no second derivative")

    jvp = staticmethod(_refuse_tangents)


class Transformed(torch.autograd.Function):
    """The op for torch.func.*: its arguments are the op's."""
    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return torch.ops.mica.attention(*arguments)

    setup_context = staticmethod(_torch_ops.keep)

    @staticmethod
    def backward(ctx: Any, d_o: Any, d_lse: Any) -> Any:
        return _torch_ops.differentiate(ctx, d_o, d_lse, TransformedBackward.apply)

    jvp = staticmethod(_refuse_tangents)


def check_written(out: Any) -> None:
    if not isinstance(out, Tensor):
        raise InvalidArgument(f"out is a {type(out).__name__}, want a torch.Tensor (as q is)")
    if out.requires_grad and torch.is_grad_enabled():
        raise InvalidArgument("out requires a gradient, which would not know of what is written, want out.detach()")


def _check_out(out: Any, q: Tensor, k: Tensor, v: Tensor) -> None:
    """What the library would say of it: here the result is copied into it."""
    check_written(out)
    wanted = (*q.shape[:-1], v.shape[-1])
    if out.shape != wanted:
        raise InvalidArgument(f"out.shape is {tuple(out.shape)}, want {tuple(wanted)}")
    if out.dtype not in (output_dtype(q), torch.float32) and not (q.dtype.itemsize == 1 and out.dtype is torch.float16):
        raise InvalidArgument(f"out.dtype is {out.dtype}, want {output_dtype(q)} or torch.float32")
    has_memory = not _is_compiling() and all(type(t) in _PLAIN and not t.is_meta for t in (out, k, v))
    for name, tensor in (("k", k), ("v", v)):
        if out is tensor or has_memory and out.numel() and out.data_ptr() == tensor.data_ptr():
            raise InvalidArgument(f"out overlaps {name}, want memory of its own")


def _of_new_keys(optional: Dict[str, Optional[Tensor]], name: str, dtype: Optional[torch.dtype]) -> Tensor:
    """In autocast's type, where there is one: that of the cache."""
    new = optional[name]
    if new is None:
        raise InvalidArgument("v_new is None, want it together with k_new")
    return new.detach() if dtype is None else _tensors.autocast_to(dtype, new.detach())


def _refuse_without_new_keys(optional: Dict[str, Optional[Tensor]]) -> None:
    """What the library says of them; the op of a cache that takes up nothing has no such arguments."""
    if optional["v_new"] is not None:
        raise InvalidArgument("k_new is None, want it together with v_new")
    for name in ("rotary_cos", "rotary_sin"):
        if optional[name] is not None:
            raise InvalidArgument(f"{name} is given, want k with it (rotary turns q and the new keys)")


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
    cast_to: Optional[torch.dtype] = None
    if q.device.type in ("cpu", "cuda") and torch.is_autocast_enabled(q.device.type):
        # A cache keeps its type, and the others follow it, unless it is e4m3.
        dtype = k.dtype if is_cached else torch.get_autocast_dtype(q.device.type)
        if dtype.itemsize > 1:
            cast_to = dtype
            q, k, v = (_tensors.autocast_to(dtype, t) for t in (q, k, v))
            if optional.get("qv") is not None:
                tensors[-1] = _tensors.autocast_to(dtype, tensors[-1])
    if out is not None:
        _check_out(out, q, k, v)
    if is_cached and optional["k_new"] is not None:
        new = [_of_new_keys(optional, name, cast_to) for name in ("k_new", "v_new")]
        o, lse = torch.ops.mica.attention_append(q.detach(), k, v, *new, optional["rotary_cos"],
                                                 optional["rotary_sin"], *tensors, *numbers, return_lse)
    elif is_cached:
        _refuse_without_new_keys(optional)
        o, lse = torch.ops.mica.attention(q.detach(), k.detach(), v.detach(), *tensors, *numbers, return_lse)
    else:
        values["deterministic"] = torch.are_deterministic_algorithms_enabled()
        refuse_slopes(optional.get("alibi"))
        needs_gradient = torch.is_grad_enabled() and any(
            t is not None and t.requires_grad for t in (q, k, v, optional.get("bias"), optional.get("sinks")))
        if needs_gradient and out is not None:
            raise InvalidArgument("out is given while a gradient is wanted, want out=None or torch.no_grad()")
        call = torch.ops.mica.attention
        if is_transformed() and not _only_functionalizes():
            call, needs_gradient = Transformed.apply, True
        o, lse = call(q, k, v, *tensors, *[values[name] for name in _torch_ops.NUMBER_NAMES],
                      return_lse or needs_gradient)
    if out is not None:
        o = out.copy_(o)
    return (o, lse) if return_lse else o
