# SPDX-License-Identifier: Apache-2.0
"""mica.attention* for torch tensors. Eager calls go straight to the library; traced ones to the registered ops.

The order of the checks is the order of their likelihood: a plain call without a gradient pays for two flags, the
options' look-up and the generated call.
"""

from functools import lru_cache
from typing import Any, Callable, Dict, Optional, Tuple

import torch
from torch import is_grad_enabled

from . import _abi, _tensors
from ._arguments import normalise, numbers, window_of
from ._autograd import attend, attend_plain
from ._caller import caller
from ._describe import BINDINGS, Options
from ._tracing import is_traced, traced
from .errors import InvalidArgument, NotDense

Tensor = torch.Tensor
_RANK = {name: rank for rank, name in enumerate(BINDINGS)}


def _no_autocast() -> bool:
    """Before 2.4 there is no flag for all devices."""
    return torch.is_autocast_enabled() or torch.is_autocast_cpu_enabled()


_any_autocast: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", _no_autocast)


def autocast(*tensors: Tensor) -> Tuple[Tensor, ...]:
    """What autocast would make of them: this is an op for the lower precision, as SDPA is."""
    kind = tensors[0].device.type
    if hasattr(torch, "get_autocast_dtype"):
        enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    elif kind == "cuda":
        enabled, dtype = torch.is_autocast_enabled(), torch.get_autocast_gpu_dtype()
    else:
        enabled, dtype = torch.is_autocast_cpu_enabled(), torch.get_autocast_cpu_dtype()
    return tuple(t.to(dtype) for t in tensors) if enabled else tensors


def as_tensor(name: str, value: Any, q: Tensor) -> Tensor:
    """Another library's array beside torch tensors."""
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "__dlpack__"):
        return torch.from_dlpack(value)
    raise TypeError(f"{name} is a {type(value).__name__}, want a torch.Tensor (as q is)")


@lru_cache(maxsize=None)
def _forward_caller(optional: Tuple[str, ...], given: Tuple[str, ...], made: Tuple[str, ...]) -> Tuple:
    """The call for these bindings, and in which order it takes them: given first, then the optional ones."""
    names = tuple(sorted(("q", "k", "v", *given, *made, *optional), key=_RANK.__getitem__))
    inputs = [name for name in names if name not in made]
    order = ("q", "k", "v", *given, *optional)
    return caller(_abi.FORWARD, names, made), tuple(order.index(name) for name in inputs)


def run_forward(options: Options, q: Tensor, k: Tensor, v: Tensor, optional: Dict[str, Tensor], want_lse: bool,
                out: Optional[Tensor]) -> Tuple[Tensor, Optional[Tensor]]:
    """The forward pass with any bindings, no gradient."""
    given = () if out is None else ("o",)
    made = (("o",) if out is None else ()) + (("lse",) if want_lse else ())
    call, order = _forward_caller(tuple(optional), given, made)
    values = (q, k, v, *(() if out is None else (out,)), *optional.values())
    result = call(options, *[values[at] for at in order])
    if out is None:
        return result if want_lse else (result, None)
    return out, result if want_lse else None


def _needs_gradient(*tensors: Optional[Tensor]) -> bool:
    return is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _general(options: Options, q: Tensor, k: Tensor, v: Tensor, optional: Dict[str, Any], return_lse: bool,
             out: Optional[Tensor]) -> Any:
    """attention and attention_varlen with whatever is given."""
    k, v = as_tensor("k", k, q), as_tensor("v", v, q)
    optional = {name: as_tensor(name, value, q) for name, value in optional.items() if value is not None}
    bias, sinks = optional.get("bias"), optional.get("sinks")
    if _needs_gradient(q, k, v, bias, sinks):
        if out is not None:
            raise InvalidArgument("out is given while a gradient is wanted, want out=None or torch.no_grad()")
        return attend(options, _tensors.dense(q), _tensors.dense(k), _tensors.dense(v), optional, return_lse)
    o, lse = run_forward(options, _tensors.dense(q), _tensors.dense(k), _tensors.dense(v), optional, return_lse, out)
    return (o, lse) if return_lse else o


_plain = caller(_abi.FORWARD, ("q", "k", "v", "o"), ("o",))
_plain_lse = caller(_abi.FORWARD, ("q", "k", "v", "o", "lse"), ("o", "lse"))


def attention(q: Tensor, k: Tensor, v: Tensor, causal: Any, window: Any, mask: Optional[Tensor],
              bias: Optional[Tensor], scale: Optional[float], softcap: Optional[float], alibi: Optional[Tensor],
              sinks: Optional[Tensor], dropout: float, return_lse: bool, out: Optional[Tensor],
              diagonal: Optional[str], num_splits: int, batch_invariant: bool, seed: Any) -> Any:
    if window is not None:
        window = window_of(window)
    if is_traced(q):
        return traced(q, k, v, dict(mask=mask, bias=bias, alibi=alibi, sinks=sinks),
                      normalise(causal, window, scale, softcap, dropout, diagonal, num_splits, batch_invariant),
                      return_lse, out, seed)
    if _any_autocast():
        q, k, v = autocast(q, k, v)
    options = numbers(causal, window, scale, softcap, dropout, diagonal, num_splits, batch_invariant)
    if mask is None and bias is None and alibi is None and sinks is None and out is None and not dropout:
        try:
            if is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
                return attend_plain(options, q, k, v, return_lse)
            return _plain_lse(options, q, k, v) if return_lse else _plain(options, q, k, v)
        except (NotDense, AttributeError):
            pass  # copies, or arrays of another library: below
    return _general(options, q, k, v,
                    dict(boolean_mask=mask, bias=bias, alibi=alibi, sinks=sinks,
                         rng_state=_tensors.rng_of(seed, q.device) if dropout else None), return_lse, out)


def attention_varlen(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                     max_seqlen_q: Optional[int], max_seqlen_k: Optional[int], causal: Any, window: Any,
                     mask: Optional[Tensor], bias: Optional[Tensor], scale: Optional[float],
                     softcap: Optional[float], alibi: Optional[Tensor], sinks: Optional[Tensor], dropout: float,
                     return_lse: bool, out: Optional[Tensor], diagonal: Optional[str], num_splits: int,
                     batch_invariant: bool, seed: Any, seqused_q: Optional[Tensor], seqused_k: Optional[Tensor],
                     block_table: Optional[Tensor]) -> Any:
    if window is not None:
        window = window_of(window)
    arguments = (causal, window, scale, softcap, dropout, diagonal, num_splits, batch_invariant, False, False,
                 max_seqlen_q, max_seqlen_k)
    optional = dict(bias=bias, alibi=alibi, sinks=sinks, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
                    seqused_q=seqused_q, seqused_k=seqused_k, block_table=block_table)
    if is_traced(q):
        return traced(q, k, v, dict(optional, mask=mask), normalise(*arguments), return_lse, out, seed)
    if _any_autocast():
        q, k, v = autocast(q, k, v)
    return _general(numbers(*arguments), q, k, v,
                    dict(optional, boolean_mask=mask, rng_state=_tensors.rng_of(seed, q.device) if dropout else None), return_lse, out)


def attention_with_cache(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Optional[Tensor], v: Optional[Tensor],
                         cache_seqlens: Any, block_table: Optional[Tensor], cache_batch_idx: Optional[Tensor],
                         cache_leftpad: Optional[Tensor], rotary_cos: Optional[Tensor],
                         rotary_sin: Optional[Tensor], rotary_interleaved: bool, causal: Any, window: Any,
                         mask: Optional[Tensor], bias: Optional[Tensor], scale: Optional[float],
                         softcap: Optional[float], alibi: Optional[Tensor], sinks: Optional[Tensor],
                         return_lse: bool, out: Optional[Tensor], diagonal: Optional[str], num_splits: int,
                         batch_invariant: bool, max_seqlen_k: Optional[int]) -> Any:
    if window is not None:
        window = window_of(window)
    if cache_seqlens is not None and not isinstance(cache_seqlens, Tensor):
        if isinstance(cache_seqlens, (int, torch.SymInt)):
            cache_seqlens = torch.full((q.shape[0],), cache_seqlens, dtype=torch.int32, device=q.device)
        else:
            cache_seqlens = as_tensor("cache_seqlens", cache_seqlens, q)
    arguments = (causal, window, scale, softcap, 0.0, diagonal, num_splits, batch_invariant, False,
                 rotary_interleaved, None, max_seqlen_k)
    optional = dict(bias=bias, alibi=alibi, sinks=sinks, seqused_k=cache_seqlens, cache_batch_idx=cache_batch_idx,
                    cache_leftpad=cache_leftpad, block_table=block_table, k_new=k, v_new=v, rotary_cos=rotary_cos,
                    rotary_sin=rotary_sin)
    if is_traced(q):
        return traced(q, k_cache, v_cache, dict(optional, mask=mask), normalise(*arguments), return_lse, out, None)
    optional["boolean_mask"] = mask
    present = {name: as_tensor(name, value, q) for name, value in optional.items() if value is not None}
    for name in ("k_new", "v_new"):
        if name in present:
            present[name] = _tensors.dense(present[name])
    o, lse = run_forward(numbers(*arguments), _tensors.dense(q), as_tensor("k_cache", k_cache, q),
                         as_tensor("v_cache", v_cache, q), present, return_lse, out)
    return (o, lse) if return_lse else o
