# SPDX-License-Identifier: Apache-2.0
"""torch.ops.mica.*: what torch.compile, torch.export and other tracers see. Eager calls do not come through here.

attention (dense, packed or cached), attention_backward, and attention_append, which writes new keys into the caches.
Their outputs are always contiguous, so that the fake implementations can promise the strides.
"""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import _tensors
from ._caller import lse_shape
from .errors import Unsupported

AVAILABLE = hasattr(torch.library, "register_fake") and hasattr(torch.library, "register_autograd")  # from 2.4 on

# Optional tensors, and the numbers of Options, in the order of the ops' arguments.
TENSORS = ("mask", "bias", "alibi", "sinks", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "rng_state",
           "cache_leftpad", "cache_batch_idx", "block_table")
BACKWARD_TENSORS = TENSORS[:10]
APPEND_TENSORS = ("k_new", "v_new", "rotary_cos", "rotary_sin")
NUMBERS = (("int", "causal"), ("int", "diagonal"), ("int", "window_left"), ("int", "window_right"), ("float", "scale"),
           ("float", "softcap"), ("float", "dropout"), ("int", "num_splits"), ("bool", "deterministic"),
           ("bool", "batch_invariant"), ("bool", "rotary_interleaved"), ("SymInt", "max_seqlen_q"),
           ("SymInt", "max_seqlen_k"))
NUMBER_NAMES = tuple(name for _, name in NUMBERS)


def _schema(tensors: Sequence[str]) -> str:
    return ", ".join([f"Tensor? {name}" for name in tensors] + [f"{kind} {name}" for kind, name in NUMBERS])


def _named(tensors: Sequence[str], rest: Sequence[Any]) -> Dict[str, Any]:
    return dict(zip((*tensors, *NUMBER_NAMES), rest))


def _empty(q: Tensor) -> Tensor:
    return q.new_empty((0,), dtype=torch.float32)


def _outputs(q: Tensor, v: Tensor, want_lse: bool) -> Tuple[Tensor, Tensor]:
    o = q.new_empty((*q.shape[:-1], v.shape[-1]))
    return o, q.new_empty(lse_shape(q), dtype=torch.float32) if want_lse else _empty(q)


def _attention(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> Tuple[Tensor, Tensor]:
    *rest, want_lse = arguments
    o, lse = _outputs(q, v, want_lse)
    _tensors.forward(_tensors.dense(q), _tensors.dense(k), _tensors.dense(v), out=o, lse=lse if want_lse else False,
                     **_named(TENSORS, rest))
    return o, lse


def _attention_fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tuple[Tensor, Tensor]:
    return _outputs(q, v, rest[-1])


def _append(q: Tensor, k_cache: Tensor, v_cache: Tensor, *arguments: Any) -> Tuple[Tensor, Tensor]:
    *rest, want_lse = arguments
    named = _named((*APPEND_TENSORS, *TENSORS), rest)
    o, lse = _outputs(q, v_cache, want_lse)
    named["k_new"], named["v_new"] = _tensors.dense(named["k_new"]), _tensors.dense(named["v_new"])
    _tensors.forward(_tensors.dense(q), k_cache, v_cache, out=o, lse=lse if want_lse else False, **named)
    return o, lse


def _append_fake(q: Tensor, k_cache: Tensor, v_cache: Tensor, *rest: Any) -> Tuple[Tensor, Tensor]:
    return _outputs(q, v_cache, rest[-1])


def _gradients(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], sinks: Optional[Tensor],
               needs: Sequence[bool]) -> List[Tensor]:
    return [torch.empty_like(like, memory_format=torch.contiguous_format) if need and like is not None else _empty(q)
            for like, need in zip((q, k, v, bias, sinks), needs)]


def _backward(d_o: Tensor, d_lse: Optional[Tensor], q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
              *arguments: Any) -> List[Tensor]:
    *rest, needs = arguments
    named = _named(BACKWARD_TENSORS, rest)
    made = _gradients(q, k, v, named["bias"], named["sinks"], needs)
    wanted = dict(zip(("dq", "dk", "dv", "d_bias", "d_sinks"),
                      (tensor if need else False for tensor, need in zip(made, needs))))
    for unused in ("num_splits", "rotary_interleaved"):
        named.pop(unused)
    _tensors.backward(_tensors.dense(d_o), *(_tensors.dense(t) for t in (q, k, v, o)), lse, d_lse=d_lse, **wanted,
                      **named)
    return made


def _backward_fake(d_o: Tensor, d_lse: Optional[Tensor], q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
                   *rest: Any) -> List[Tensor]:
    named = _named(BACKWARD_TENSORS, rest)
    return _gradients(q, k, v, named["bias"], named["sinks"], rest[-1])


def _save(ctx: Any, inputs: Tuple, output: Tuple) -> None:
    q, k, v, *rest, want_lse = inputs
    ctx.want_lse = want_lse
    ctx.save_for_backward(q, k, v, *output, *rest[:len(TENSORS)])
    ctx.numbers = rest[len(TENSORS):]
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, d_o: Optional[Tensor], d_lse: Optional[Tensor]) -> Tuple:
    q, k, v, o, lse, *rest = ctx.saved_tensors
    named = dict(zip(TENSORS, rest))
    if named["block_table"] is not None or named["cache_batch_idx"] is not None:
        raise Unsupported("block_table or cache_batch_idx is given: two sequences may share keys there, so no gradient "
                          "is defined")
    if not ctx.want_lse:
        raise Unsupported("the forward pass kept no lse, want it called with an input that requires a gradient")
    of = (0, 1, 2, 3 + TENSORS.index("bias"), 3 + TENSORS.index("sinks"))
    needs = [ctx.needs_input_grad[at] for at in of]
    if d_o is None:
        d_o = torch.zeros_like(o)
    made = torch.ops.mica.attention_backward(d_o, d_lse, q, k, v, o, lse, *rest[:len(BACKWARD_TENSORS)], *ctx.numbers,
                                             needs)
    grads: List[Optional[Tensor]] = [None] * (3 + len(TENSORS) + len(NUMBERS) + 1)
    for at, need, gradient in zip(of, needs, made):
        if need:
            grads[at] = gradient
    return tuple(grads)


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
    torch.library.register_autograd("mica::attention", _differentiate, setup_context=_save, lib=library)
    return library


_library = _register() if AVAILABLE else None  # kept: the registrations end with it
