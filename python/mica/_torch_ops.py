# SPDX-License-Identifier: Apache-2.0
"""torch.ops.mica.*: what torch.compile, torch.export and other tracers see. Eager calls do not come through here.

attention (dense, packed or cached), attention_backward, and attention_append, which writes new keys into the caches.
Their outputs are always contiguous, so that the fake implementations can promise the strides.
"""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import _tensors
from ._caller import lse_shape, output_dtype
from ._describe import options
from ._flops import register_flops
from ._inductor import know_where_views_begin
from ._pairs import capacity, check_pairs_of
from ._shapes import check_by_shapes
from .errors import Unsupported

AVAILABLE = hasattr(torch.library, "register_fake") and hasattr(torch.library, "register_autograd")  # from 2.4 on

# Optional tensors, and the numbers of Options, in the order of the ops' arguments.
TENSORS = ("mask", "bias", "alibi", "sinks", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "rng_state",
           "cache_leftpad", "cache_batch_idx", "block_table", "qv")
BACKWARD_TENSORS = TENSORS[:10]
APPEND_TENSORS = ("k_new", "v_new", "rotary_cos", "rotary_sin")
NUMBERS = (("int", "causal"), ("int", "diagonal"), ("int", "window_left"), ("int", "window_right"), ("int", "chunk"), ("int", "mask_last_keys"),
           ("float", "scale"), ("float", "softcap"), ("float", "dropout"), ("int", "num_splits"), ("bool", "deterministic"),
           ("bool", "batch_invariant"), ("bool", "rotary_interleaved"), ("SymInt", "max_seqlen_q"),
           ("SymInt", "max_seqlen_k"))
NUMBER_NAMES = tuple(name for _, name in NUMBERS)


def _never(*_: Any) -> bool:
    return False


_transforms = getattr(torch._C, "_are_functorch_transforms_active", _never)
_of_older_vmap = getattr(getattr(torch._C, "_functorch", None), "is_legacy_batchedtensor", _never)


def _is_batched(gradient: Optional[Tensor]) -> bool:
    """By the vmap of autograd's own, which is no transform of torch.func."""
    return gradient is not None and bool(_of_older_vmap(gradient))


def _schema(tensors: Sequence[str]) -> str:
    return ", ".join([f"Tensor? {name}" for name in tensors] + [f"{kind} {name}" for kind, name in NUMBERS])


def _named(tensors: Sequence[str], rest: Sequence[Any]) -> Dict[str, Any]:
    return dict(zip((*tensors, *NUMBER_NAMES), rest))


def _resolved(named: Dict[str, Any]) -> Dict[str, Any]:
    """With the values of what is negative only by a flag, and a second query whose last dimension is dense."""
    if named.get("qv") is not None:
        named["qv"] = _tensors.dense(named["qv"])
    return {name: value.resolve_neg() if isinstance(value, Tensor) and value.is_neg() else value
            for name, value in named.items()}


def _empty(q: Tensor) -> Tensor:
    return q.new_empty((0,), dtype=torch.float32)


def _outputs(q: Tensor, v: Tensor, want_lse: bool, is_packed: bool = False) -> Tuple[Tensor, Tensor]:
    """o and lse, or an empty one. Packed rows of no sequence stay empty."""
    shape = (*q.shape[:-1], v.shape[-1])
    o = q.new_zeros(shape, dtype=output_dtype(q)) if is_packed else q.new_empty(shape, dtype=output_dtype(q))
    if not want_lse:
        return o, _empty(q)
    return o, q.new_full(lse_shape(q), -float("inf"), dtype=torch.float32)


def _check_pairs(q: Tensor, k: Tensor, named: Dict[str, Any], new: int = 0) -> None:
    """What a call that nothing looks on is asked for before, since the library does not know the lengths."""
    mask, bias, table = named["mask"] if not named["mask_last_keys"] else None, named["bias"], named["block_table"]
    lengths_q, lengths_k = ((named[f"cu_seqlens_{side}"], named[f"seqused_{side}"]) for side in "qk")
    if mask is None and bias is None or lengths_q[0] is lengths_k[0] is lengths_k[1] is table is None:
        return
    is_paged_or_slots = named["cu_seqlens_k"] is None
    whole = capacity(k.shape, None if table is None else table.shape) if is_paged_or_slots and k.dim() == 4 else 0
    check_pairs_of(mask, bias, q, (*lengths_q, q.shape[-3]), (*lengths_k, whole), new, named["cache_leftpad"])


def _attention(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> Tuple[Tensor, Tensor]:
    *rest, want_lse = arguments
    named = _resolved(_named(TENSORS, rest))
    _check_pairs(q, k, named)
    o, lse = _outputs(q, v, want_lse, named["cu_seqlens_q"] is not None)
    _tensors.forward(_tensors.dense(q), _tensors.dense(k), _tensors.dense(v), out=o, lse=lse if want_lse else False,
                     **named)
    return o, lse


def _attention_fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tuple[Tensor, Tensor]:
    check_by_shapes(q, k, v, _named(TENSORS, rest))
    return _outputs(q, v, rest[-1])


def _append(q: Tensor, k_cache: Tensor, v_cache: Tensor, *arguments: Any) -> Tuple[Tensor, Tensor]:
    *rest, want_lse = arguments
    named = _resolved(_named((*APPEND_TENSORS, *TENSORS), rest))
    _check_pairs(q, k_cache, named, named["k_new"].shape[1])
    o, lse = _outputs(q, v_cache, want_lse)
    named["k_new"], named["v_new"] = _tensors.dense(named["k_new"]), _tensors.dense(named["v_new"])
    _tensors.forward(_tensors.dense(q), k_cache, v_cache, out=o, lse=lse if want_lse else False, **named)
    return o, lse


def _append_fake(q: Tensor, k_cache: Tensor, v_cache: Tensor, *rest: Any) -> Tuple[Tensor, Tensor]:
    know_where_views_begin()
    check_by_shapes(q, k_cache, v_cache, _named((*APPEND_TENSORS, *TENSORS), rest))
    return _outputs(q, v_cache, rest[-1])


def _gradients(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], sinks: Optional[Tensor],
               needs: Sequence[bool], is_packed: bool = False) -> List[Tensor]:
    make = torch.zeros_like if is_packed else torch.empty_like
    return [make(like, memory_format=torch.contiguous_format) if need and like is not None else _empty(q)
            for like, need in zip((q, k, v, bias, sinks), needs)]


def _backward(d_o: Tensor, d_lse: Optional[Tensor], q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
              *arguments: Any) -> List[Tensor]:
    *rest, needs = arguments
    named = _resolved(_named(BACKWARD_TENSORS, rest))
    is_packed = named["cu_seqlens_q"] is not None or named["cu_seqlens_k"] is not None
    made = _gradients(q, k, v, named["bias"], named["sinks"], needs, is_packed)
    wanted: Dict[str, Any] = dict(zip(("dq", "dk", "dv", "d_bias", "d_sinks"),
                                      (tensor if need else False for tensor, need in zip(made, needs))))
    for unused in ("num_splits", "rotary_interleaved", "mask_last_keys"):
        named.pop(unused)
    d_lse = None if d_lse is None else d_lse.resolve_neg()
    dense = _tensors.dense
    _tensors.backward(dense(d_o), dense(q), dense(k), dense(v), dense(o), lse, d_lse=d_lse, **wanted, **named)
    return made


def stand_for_several(*gradients: Optional[Tensor]) -> bool:
    """Whether gradients come several at a time (is_grads_batched, jacobian(vectorize=True), vmap), without memory."""
    if not AVAILABLE or torch.compiler.is_compiling():
        return False
    return bool(_transforms()) or any(map(_is_batched, gradients))


def backward_by_op(d_o: Tensor, d_lse: Optional[Tensor], q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
                   needs: Sequence[bool], **named: Any) -> Tuple[Tensor, ...]:
    """_tensors.backward as the op, which torch calls for one gradient after the other. Empty where there is no need."""
    tensors = [named.get(name) for name in BACKWARD_TENSORS]
    numbers = [named.get(name, getattr(options(), name)) for name in NUMBER_NAMES]
    backward = torch.ops.mica.attention_backward
    made: Tuple[Tensor, ...] = backward(d_o, d_lse, q, k, v, o, lse, *tensors, *numbers, list(needs))
    return made


def _backward_fake(d_o: Tensor, d_lse: Optional[Tensor], q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
                   *rest: Any) -> List[Tensor]:
    named = _named(BACKWARD_TENSORS, rest)
    return _gradients(q, k, v, named["bias"], named["sinks"], rest[-1])


def keep(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[Any, ...]) -> None:
    q, k, v, *rest, want_lse = inputs
    ctx.want_lse = want_lse
    ctx.save_for_backward(q, k, v, *output, *rest[:len(TENSORS)])
    ctx.numbers = rest[len(TENSORS):]
    ctx.set_materialize_grads(False)


def differentiate(ctx: Any, d_o: Optional[Tensor], d_lse: Optional[Tensor], backward: Any = None) -> Tuple[Any, ...]:
    """The gradients of attention's arguments, by attention_backward or what stands for it."""
    q, k, v, o, lse, *rest = ctx.saved_tensors
    named = dict(zip(TENSORS, rest))
    if named["qv"] is not None:
        raise Unsupported("qv is given, but it is for inference and has no gradient")
    if named["block_table"] is not None or named["cache_batch_idx"] is not None:
        raise Unsupported("block_table or cache_batch_idx is given: two sequences may share keys there, so no gradient "
                          "is defined")
    if not ctx.want_lse:
        raise Unsupported("the forward pass kept no lse, want it called with an input that requires a gradient")
    of = (0, 1, 2, 3 + TENSORS.index("bias"), 3 + TENSORS.index("sinks"))
    needs = [ctx.needs_input_grad[at] for at in of]
    if d_o is None:
        d_o = torch.zeros_like(o)
    backward = backward or torch.ops.mica.attention_backward
    made = backward(d_o, d_lse, q, k, v, o, lse, *rest[:len(BACKWARD_TENSORS)], *ctx.numbers, needs)
    grads: List[Optional[Tensor]] = [None] * (3 + len(TENSORS) + len(NUMBERS) + 1)
    for at, need, gradient in zip(of, needs, made):
        if need:
            grads[at] = gradient
    return tuple(grads)


def _refuse_second(ctx: Any, *gradients: Optional[Tensor]) -> Any:
    raise Unsupported("attention has no second derivative")


def _register() -> torch.library.Library:
    library = torch.library.Library("mica", "DEF")
    library.define(f"attention(Tensor q, Tensor k, Tensor v, {_schema(TENSORS)}, bool want_lse) -> (Tensor, Tensor)")
    library.define("attention_append(Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, "
                   f"{_schema((*APPEND_TENSORS, *TENSORS))}, bool want_lse) -> (Tensor, Tensor)")
    library.define("attention_backward(Tensor d_o, Tensor? d_lse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, "
                   f"{_schema(BACKWARD_TENSORS)}, bool[5] needs) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
    for name, real, fake in (("attention", _attention, _attention_fake), ("attention_append", _append, _append_fake),
                             ("attention_backward", lambda *a: tuple(_backward(*a)),
                              lambda *a: tuple(_backward_fake(*a)))):
        for key in ("CPU", "CUDA"):
            library.impl(name, real, key)
        torch.library.register_fake(f"mica::{name}", fake, lib=library)
    torch.library.register_autograd("mica::attention", differentiate, setup_context=keep, lib=library)
    torch.library.register_autograd("mica::attention_backward", _refuse_second, lib=library)
    register_flops(torch.ops.mica.attention, torch.ops.mica.attention_backward)
    return library


_library = _register() if AVAILABLE else None  # kept: the registrations end with it
