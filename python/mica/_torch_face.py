# SPDX-License-Identifier: Apache-2.0
"""mica.attention* for torch tensors. Eager calls go straight to the library; traced ones to the registered ops.

The order of the checks is the order of their likelihood: a plain call that was made before (mica._recent) pays for one
flag, one look-up and one guard before the generated call.
"""

from functools import lru_cache
from typing import Any, Callable, Dict, Optional, Tuple

import torch
from torch import Tensor, get_num_threads, is_grad_enabled
from torch.autograd import forward_ad, profiler
from torch.utils import _python_dispatch

from . import _abi, _tensors, functions
from ._arguments import integer, normalise, numbers, numbers_of_packed, window_of
from ._autograd import attend, attend_plain, plain_forward
from ._caller import Caller, Key, caller
from ._describe import CALLED, ROWS, Options, packed_hint
from ._dlpack import has_strides_of_torch, is_numpy, native, refuse_masked, refuse_unwritable
from ._recent import Recent, recent_calls, remember, with_other_shapes
from ._messages import of_a_cache
from ._packed import clear_outside
from ._pairs import capacity, check_pairs_of, tree_mask
from ._prefix import attend_with_prefix, check_prefix, evenly_spaced, refuse_with_prefix, turn
from ._subclasses import attend_subclass
from ._tracing import (check_written, dispatch_modes, has_forward_mode, is_dynamo_tracing, is_traced, refuse_forward_mode,
                       refuse_gradient, refuse_slopes, traced)
from .errors import InvalidArgument, NotDense


def _autocast_of_two_devices() -> bool:
    """Before 2.4 there is no flag for all devices at once."""
    return bool(torch.is_autocast_enabled() or torch.is_autocast_cpu_enabled())


_any_autocast: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", _autocast_of_two_devices)


def autocast_type(kind: str) -> Optional[torch.dtype]:
    """What autocast casts to on such devices; None where it is off."""
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    if kind == "cuda":
        return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
    return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None


def autocast(*tensors: Tensor) -> Tuple[Tensor, ...]:
    """What autocast would make of them: this is an op for the lower precision, as SDPA is."""
    dtype = autocast_type(tensors[0].device.type)
    return tensors if dtype is None else tuple(_tensors.autocast_to(dtype, t) for t in tensors)


def as_tensor(name: str, value: Any, q: Tensor) -> Tensor:
    """Another library's array beside torch tensors."""
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "__dlpack__"):
        refuse_masked(name, value)
        value = native(name, value)
        return torch.from_dlpack(value if not is_numpy(value) or has_strides_of_torch(value) else value.copy())
    name = {"boolean_mask": "mask", "k_new": "k", "v_new": "v"}.get(name, name)
    what = "None" if value is None else f"a {type(value).__name__}"
    raise TypeError(f"{name} is {what}, want a torch.Tensor (as q is)")


def as_tensors(q: Tensor, **given: Any) -> Tuple[Tensor, ...]:
    return tuple(as_tensor(name, value, q) for name, value in given.items())


def optional_as_tensors(q: Tensor, given: Dict[str, Any]) -> Dict[str, Any]:
    return {name: None if value is None else as_tensor(name, value, q) for name, value in given.items()}


def lengths_of(name: str, value: Any, q: Tensor) -> Any:
    """int32 lengths on q's device, of a tensor or array of integers or a list of them."""
    if value is None or isinstance(value, Tensor) and value.dtype is torch.int32:
        return value
    if isinstance(value, (list, tuple)):
        value = [integer(f"{name}[{i}]", entry) for i, entry in enumerate(value)]
        for i, entry in enumerate(value):
            if not -2**31 <= entry < 2**31:
                raise InvalidArgument(f"{name}[{i}] is {entry}, want an int of 32 bits")
        return torch.tensor(value, dtype=torch.int32, device=q.device)
    value = as_tensor(name, value, q)
    if value.is_floating_point() or value.is_complex() or value.dtype is torch.bool:
        return value
    if value.element_size() >= 4:
        value = value.to(torch.int64).clamp(-2**31, 2**31 - 1)  # what is beyond 32 bits stays beyond every tensor
    return value.to(torch.int32)


def cache_lengths_of(cache_seqlens: Any, q: Tensor) -> Any:
    """The same for cache_seqlens, which may be one int for all."""
    if isinstance(cache_seqlens, (int, torch.SymInt)) or type(cache_seqlens).__module__ == "numpy" and not getattr(
            cache_seqlens, "shape", (1,)):
        length = integer("cache_seqlens", cache_seqlens)
        if isinstance(length, int) and not -2**31 <= length < 2**31:
            raise InvalidArgument(f"cache_seqlens is {length}, want an int of 32 bits")
        return torch.full((q.shape[0],), length, dtype=torch.int32, device=q.device)
    if isinstance(cache_seqlens, (float, str)):
        raise InvalidArgument(f"cache_seqlens is {cache_seqlens!r}, want an int, or integers (batch,)")
    return lengths_of("cache_seqlens", cache_seqlens, q)


@lru_cache(maxsize=None)
def _forward(optional: Tuple[str, ...], want_lse: bool, has_out: bool) -> Caller:
    """The call that may bind these, any of which may be None, and makes o and lse as asked."""
    names = ("q", "k", "v", "o", *(("lse",) if want_lse else ()), *optional)
    return caller(_abi.FORWARD, names, (() if has_out else ("o",)) + (("lse",) if want_lse else ()), optional)


def run_forward(optional: Tuple[str, ...], options: Options, q: Tensor, k: Tensor, v: Tensor, values: Tuple[Any, ...],
                return_lse: bool, out: Optional[Tensor]) -> Any:
    """o, or (o, lse), without a gradient."""
    call = _forward(optional, return_lse, out is not None)
    if out is None:
        return call(options, q, k, v, *values)
    check_written(out)
    lse = call(options, q, k, v, out, *values)
    if "cu_seqlens_q" in optional:
        clear_outside(out, values[optional.index("cu_seqlens_q")])
    _tensors.bump_version(out)
    return (out, lse) if return_lse else out


def _refuse_nested(**tensors: Any) -> None:
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and tensor.is_nested:
            raise InvalidArgument(f"{name} is a nested tensor, want one with layout=torch.jagged, in mica.attention")


def _refuse_flag(return_lse: Any) -> None:
    if isinstance(return_lse, Tensor):
        raise InvalidArgument("return_lse is a Tensor, want True or False: the lse of torch tensors is made here")


def _refuse_layouts(**tensors: Any) -> None:
    """What has no memory of its own that could be read: sparse tensors, those of other libraries within torch, None."""
    _refuse_nested(**tensors)
    for name, tensor in tensors.items():
        if tensor is None:
            raise TypeError(f"{name} is None, want a torch.Tensor (as q is)")
        if isinstance(tensor, Tensor) and tensor.layout is not torch.strided:
            raise InvalidArgument(f"{name} is {tensor.layout}, want torch.strided: {name}.to_dense()")


def _refuse_optional_layouts(names: Tuple[str, ...], values: Tuple[Any, ...]) -> None:
    """The same for what may be bound besides; asked once torch has said that something has no memory."""
    _refuse_layouts(**{CALLED.get(name, name): value for name, value in zip(names, values) if value is not None})


def _dispatch(optional: Tuple[str, ...], options: Options, q: Tensor, k: Tensor, v: Tensor, values: Tuple[Any, ...],
              return_lse: bool, out: Optional[Tensor]) -> Any:
    """With or without a gradient."""
    if is_grad_enabled():
        bias, sinks = values[_BIAS], values[_SINKS]
        refuse_slopes(values[_ALIBI])
        if (q.requires_grad or k.requires_grad or v.requires_grad or bias is not None and bias.requires_grad or
                sinks is not None and sinks.requires_grad):
            if out is not None:
                raise InvalidArgument("out is given while a gradient is wanted, want out=None or torch.no_grad()")
            bound = {name: value for name, value in zip(optional, values) if value is not None}
            return attend(options, q, k, v, bound, return_lse)
    return run_forward(optional, options, q, k, v, values, return_lse, out)


def _convert(names: Tuple[str, ...], values: Tuple[Any, ...], q: Tensor) -> Tuple[Any, ...]:
    return tuple(None if value is None else
                 _tensors.dense(as_tensor(name, value, q)) if name in ROWS else as_tensor(name, value, q).resolve_neg()
                 for name, value in zip(names, values))


def _are_tensors(*values: Any) -> bool:
    """All that are given. Where they are, an AttributeError is a defect of this package, and no other try helps."""
    return all(value is None or isinstance(value, Tensor) for value in values)


def _general(optional: Tuple[str, ...], options: Options, q: Tensor, k: Tensor, v: Tensor, values: Tuple[Any, ...],
             return_lse: bool, out: Optional[Tensor]) -> Any:
    """attention and attention_varlen with whatever is given."""
    try:
        return _dispatch(optional, options, q, k, v, values, return_lse, out)
    except NotDense:
        pass  # copies: once more
    except AttributeError:  # arrays of another library: once more
        if _are_tensors(q, k, v, *values):
            raise
    except RuntimeError:
        _refuse_optional_layouts(optional, values)
        raise
    q, k, v = (_tensors.dense(as_tensor(name, t, q)) for name, t in (("q", q), ("k", k), ("v", v)))
    return _dispatch(optional, options, q, k, v, _convert(optional, values, q), return_lse, out)


_DENSE = ("boolean_mask", "bias", "alibi", "sinks", "rng_state")
_BIAS, _ALIBI, _SINKS = (_DENSE.index(name) for name in ("bias", "alibi", "sinks"))  # the same in all three
_PACKED = ("boolean_mask", "bias", "alibi", "sinks", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k",
           "block_table", "rng_state", "qv")
_CACHED = ("boolean_mask", "bias", "alibi", "sinks", "seqused_k", "cache_batch_idx", "cache_leftpad", "block_table",
           "k_new", "v_new", "rotary_cos", "rotary_sin")
_NEW = _CACHED.index("k_new") - 2
_PREFIX = ("k_prefix", "v_prefix")
_SECOND = ("qv",)
_plain = caller(_abi.FORWARD, ("q", "k", "v", "o"), ("o",))
_plain_lse = caller(_abi.FORWARD, ("q", "k", "v", "o", "lse"), ("o", "lse"))
_packed = caller(_abi.FORWARD, ("q", "k", "v", "o", "cu_seqlens_q", "cu_seqlens_k"), ("o",))


def _plain_call(key: Optional[Key], options: Options, return_lse: bool, q: Tensor, k: Tensor, v: Tensor,
                *lengths: Tensor) -> Any:
    """o, or (o, lse), of q, k and v alone, or o of packed ones; remembered under the key. None for packed ones that want a
    gradient."""
    needs_gradient = is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    if lengths and needs_gradient:
        return None
    call = _packed if lengths else plain_forward if needs_gradient else _plain_lse if return_lse else _plain
    entry = call.find(options, q, k, v, *lengths)
    made = Recent(entry, call, needs_gradient, return_lse)
    if key is not None:
        remember(key, made, q, k, v, *lengths)
    return attend_plain(q, k, v, made) if needs_gradient else call.again(entry, q, k, v, *lengths)


def _anew(names: Tuple[str, ...], given: Dict[str, Any], arguments: Tuple[Any, ...], key: Optional[Key], is_plain: bool,
          q: Tensor, k: Tensor, v: Tensor, lengths: Tuple[Tensor, ...], return_lse: bool, out: Optional[Tensor],
          seed: Any) -> Any:
    """attention and attention_varlen where no earlier call is repeated and nothing is traced. given: the tensors that may be
    bound, in the order of their names; arguments: those of numbers(); lengths: the cumulative ones of a packed call."""
    options = numbers_of_packed(q, k, *lengths, *arguments) if lengths else numbers(*arguments)
    if _any_autocast():
        q, k, v = autocast(q, *as_tensors(q, k=k, v=v))
        if given.get("qv") is not None:
            (given["qv"],) = autocast(as_tensor("qv", given["qv"], q))
        key = None  # what a guard sees of the arguments is not what is computed with
    if is_plain:
        try:
            made = _plain_call(key, options, return_lse, q, k, v, *lengths)
            if made is not None:
                return made
        except NotDense:
            pass  # copies: below
        except AttributeError:  # arrays of another library: below
            if _are_tensors(q, k, v):
                raise
    if options.dropout:
        given["rng_state"] = _tensors.rng_of(seed, q.device)
    return _general(names, options, q, k, v, tuple(given.values()), return_lse, out)


def _again(key: Key, q: Tensor, k: Tensor, v: Tensor, *lengths: Tensor) -> Any:
    """What a plain call gives that repeats an earlier one, or does but for the shapes; None where it does not, or something
    looks on. lengths: the cumulative ones of a packed call."""
    try:
        call = recent_calls[key]
        # torch's guard ends the process where it meets a nested tensor.
        if q.is_nested or k.is_nested or v.is_nested or lengths and any(t.is_nested for t in lengths):
            return None
    except (KeyError, TypeError, AttributeError):  # what is no number and no tensor is for those who come next
        return None
    is_same = call.is_same(q, k, v, *lengths)
    if ((is_same or call.is_alike(q, k, v, *lengths)) and forward_ad._current_level < 0 and
            not profiler._is_profiler_enabled and
            not (_python_dispatch._is_in_torch_dispatch_mode and dispatch_modes())):  # the flag stays in PyTorch 2.4
        if is_same:
            call.is_used = True
        else:
            try:
                call = with_other_shapes(key, call, q, k, v, *lengths)
            except NotDense:
                return None
        return attend_plain(q, k, v, call) if call.needs_gradient else call.again(call.entry, q, k, v, *lengths)
    return None


def attention_again(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, softcap: float) -> Any:
    """attention(q, k, v, causal=, scale=, softcap=) if it repeats an earlier call, else None: for whoever has more to ask
    before a call that does not."""
    if is_dynamo_tracing():
        return None
    return _again((causal, None, 0, scale, softcap, None, 0, False, False, is_grad_enabled(), get_num_threads()), q, k, v)


def attention_varlen_again(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: Any,
                           max_seqlen_k: Any, causal: bool, scale: float, softcap: float) -> Any:
    """attention_varlen likewise."""
    if is_dynamo_tracing() or type(max_seqlen_q) is not int or type(max_seqlen_k) is not int:
        return None
    return _again((causal, None, 0, scale, softcap, None, 0, False, packed_hint(max_seqlen_q, q, cu_seqlens_q, False),
                   packed_hint(max_seqlen_k, k, cu_seqlens_k, False), is_grad_enabled(), get_num_threads()), q, k, v,
                  cu_seqlens_q, cu_seqlens_k)


def attention(q: Tensor, k: Tensor, v: Tensor, causal: Any, window: Any, chunk: Any, mask: Optional[Tensor],
              bias: Optional[Tensor], scale: Optional[float], softcap: Optional[float], alibi: Optional[Tensor],
              sinks: Optional[Tensor], dropout: float, return_lse: bool, out: Optional[Tensor],
              diagonal: Optional[str], num_splits: int, batch_invariant: bool, seed: Any) -> Any:
    if window is not None:
        window = window_of(window)
    is_plain = mask is None and bias is None and alibi is None and sinks is None and out is None and not dropout
    key: Optional[Key] = None
    if is_plain and not is_dynamo_tracing():
        key = (causal, window, chunk, scale, softcap, diagonal, num_splits, batch_invariant, return_lse, is_grad_enabled(),
               get_num_threads())
        made = _again(key, q, k, v)
        if made is not None:
            return made
    given = dict(mask=mask, bias=bias, alibi=alibi, sinks=sinks, rng_state=None)
    arguments = (causal, window, chunk, scale, softcap, dropout, diagonal, num_splits, batch_invariant)
    _refuse_flag(return_lse)
    if has_forward_mode():
        refuse_forward_mode(q, k, v, bias, sinks, alibi)
    if is_traced(q, k, v):
        k, v = as_tensors(q, k=k, v=v)
        given = optional_as_tensors(q, given)
        if attend_subclass.knows(q, k, v):
            return attend_subclass(q, k, v, dict(mask=mask, bias=bias, alibi=alibi, sinks=sinks, out=out),
                                   dict(causal=causal, window=window, chunk=chunk, scale=scale, softcap=softcap, dropout=dropout,
                                        diagonal=diagonal, num_splits=num_splits, batch_invariant=batch_invariant,
                                        seed=seed), return_lse)
        return traced(q, k, v, given, normalise(*arguments), return_lse, out, seed)
    _refuse_layouts(q=q, k=k, v=v)
    return _anew(_DENSE, given, arguments, key, is_plain, q, k, v, (), return_lse, out, seed)


def attention_varlen(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                     max_seqlen_q: Optional[int], max_seqlen_k: Optional[int], causal: Any, window: Any, chunk: Any,
                     mask: Optional[Tensor], bias: Optional[Tensor], scale: Optional[float],
                     softcap: Optional[float], alibi: Optional[Tensor], sinks: Optional[Tensor], dropout: float,
                     return_lse: bool, out: Optional[Tensor], diagonal: Optional[str], num_splits: int,
                     batch_invariant: bool, seed: Any, seqused_q: Optional[Tensor], seqused_k: Optional[Tensor],
                     block_table: Optional[Tensor], qv: Optional[Tensor]) -> Any:
    if window is not None:
        window = window_of(window)
    is_plain = (mask is None and bias is None and alibi is None and sinks is None and out is None and not dropout and
                seqused_q is None and seqused_k is None and block_table is None and qv is None and return_lse is False and
                cu_seqlens_q is not None and cu_seqlens_k is not None)
    key: Optional[Key] = None
    if is_plain and type(max_seqlen_q) is int and type(max_seqlen_k) is int and not is_dynamo_tracing():
        key = (causal, window, chunk, scale, softcap, diagonal, num_splits, batch_invariant,
               packed_hint(max_seqlen_q, q, cu_seqlens_q, batch_invariant),
               packed_hint(max_seqlen_k, k, cu_seqlens_k, batch_invariant), is_grad_enabled(), get_num_threads())
        made = _again(key, q, k, v, cu_seqlens_q, cu_seqlens_k)
        if made is not None:
            return made
    cu_seqlens_q = lengths_of("cu_seqlens_q", cu_seqlens_q, q)
    cu_seqlens_k = lengths_of("cu_seqlens_k", cu_seqlens_k, q)
    seqused_q, seqused_k = lengths_of("seqused_q", seqused_q, q), lengths_of("seqused_k", seqused_k, q)
    given = dict(mask=mask, bias=bias, alibi=alibi, sinks=sinks, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
                 seqused_q=seqused_q, seqused_k=seqused_k, block_table=block_table, rng_state=None, qv=qv)
    arguments = (causal, window, chunk, scale, softcap, dropout, diagonal, num_splits, batch_invariant, False, False,
                 max_seqlen_q, max_seqlen_k)
    if qv is not None:
        refuse_gradient("with qv", q=q, k=k, v=v, bias=bias, sinks=sinks, qv=qv)
    _refuse_flag(return_lse)
    if has_forward_mode():
        refuse_forward_mode(q, k, v, bias, sinks, alibi, qv)
    if is_traced(q, k, v):
        _refuse_nested(q=q, k=k, v=v)
        k, v = as_tensors(q, k=k, v=v)
        return traced(q, k, v, optional_as_tensors(q, given), normalise(*arguments), return_lse, out, seed)
    _refuse_layouts(q=q, k=k, v=v)
    if mask is not None or bias is not None:
        pages = 0 if block_table is None else capacity(k.shape, getattr(block_table, "shape", ()))
        check_pairs_of(mask, bias, q, (cu_seqlens_q, seqused_q, q.shape[0]), (cu_seqlens_k, seqused_k, pages))
    return _anew(_PACKED, given, arguments, key, is_plain, q, k, v, (cu_seqlens_q, cu_seqlens_k), return_lse, out, seed)


def _cache_key(values: Tuple[Any, ...], causal: Any, window: Any, chunk: Any, scale: Any, softcap: Any, diagonal: Any,
               num_splits: Any, batch_invariant: Any, rotary_interleaved: Any, max_seqlen_k: Any, return_lse: bool,
               wants_gradient: bool) -> Key:
    """What a call on a cache is known by. values: those of _CACHED after mask and bias, which it has not."""
    return (causal, window, chunk, scale, softcap, diagonal, num_splits, bool(batch_invariant), bool(rotary_interleaved),
            max_seqlen_k, return_lse, wants_gradient, get_num_threads(), *[value is None for value in values])


def _cached_again(key: Key, q: Tensor, k_cache: Tensor, v_cache: Tensor, values: Tuple[Any, ...]) -> Any:
    """_again on a cache, whose version is another one where it took up new keys."""
    made = _again(key, q, k_cache, v_cache, *[value for value in values if value is not None])
    if made is not None and values[_NEW] is not None:
        _tensors.bump_version(k_cache)
        _tensors.bump_version(v_cache)
    return made


def _cached_call(key: Key, options: Options, return_lse: bool, q: Tensor, k_cache: Tensor, v_cache: Tensor,
                 values: Tuple[Any, ...]) -> Any:
    """o, or (o, lse), remembered under the key."""
    names = tuple(name for name, value in zip(_CACHED[2:], values) if value is not None)
    given = [value for value in values if value is not None]
    made = ("o", "lse") if return_lse else ("o",)
    call = caller(_abi.FORWARD, ("q", "k", "v", *made, *names), made)
    entry = call.find(options, q, k_cache, v_cache, *given)
    remember(key, Recent(entry, call, False, return_lse, grows=False), q, k_cache, v_cache, *given)
    return call.again(entry, q, k_cache, v_cache, *given)


def attention_with_cache_again(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Any, v: Any, cache_seqlens: Any,
                               block_table: Any, cache_batch_idx: Any, cache_leftpad: Any, rotary_cos: Any, rotary_sin: Any,
                               rotary_interleaved: Any, causal: bool, scale: float, softcap: float, alibi: Any,
                               num_splits: int, return_lse: bool) -> Any:
    """attention_with_cache of these under no_grad, with window=(None, None), if it repeats an earlier call, else None."""
    if is_dynamo_tracing():
        return None
    values = (alibi, None, cache_seqlens, cache_batch_idx, cache_leftpad, block_table, k, v, rotary_cos, rotary_sin)
    key = _cache_key(values, causal, (None, None), 0, scale, softcap, None, num_splits, False, rotary_interleaved, None,
                     return_lse, False)
    try:
        return _cached_again(key, q, k_cache, v_cache, values)
    except InvalidArgument as error:
        raise type(error)(of_a_cache(str(error))) from None


def attention_with_cache(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Optional[Tensor], v: Optional[Tensor],
                         cache_seqlens: Any, block_table: Optional[Tensor], cache_batch_idx: Optional[Tensor],
                         cache_leftpad: Optional[Tensor], rotary_cos: Optional[Tensor],
                         rotary_sin: Optional[Tensor], rotary_interleaved: bool, causal: Any, window: Any, chunk: Any,
                         mask: Optional[Tensor], bias: Optional[Tensor], scale: Optional[float],
                         softcap: Optional[float], alibi: Optional[Tensor], sinks: Optional[Tensor],
                         return_lse: bool, out: Optional[Tensor], diagonal: Optional[str], num_splits: int,
                         batch_invariant: bool, max_seqlen_k: Optional[int], tree: Optional[Tensor],
                         k_prefix: Optional[Tensor], v_prefix: Optional[Tensor], qv: Optional[Tensor]) -> Any:
    if type(cache_seqlens) is not Tensor or cache_seqlens.dtype is not torch.int32:
        cache_seqlens = cache_lengths_of(cache_seqlens, q)
    if window is not None:
        window = window_of(window)
    rest = (alibi, sinks, cache_seqlens, cache_batch_idx, cache_leftpad, block_table, k, v, rotary_cos, rotary_sin)
    key: Optional[Key] = None
    if (mask is None and bias is None and out is None and tree is None and k_prefix is None and v_prefix is None and
            qv is None and type(return_lse) is bool and (max_seqlen_k is None or type(max_seqlen_k) is int) and
            not is_dynamo_tracing()):
        key = _cache_key(rest, causal, window, chunk, scale, softcap, diagonal, num_splits, batch_invariant,
                         rotary_interleaved, max_seqlen_k, return_lse, is_grad_enabled())
        made = _cached_again(key, q, k_cache, v_cache, rest)
        if made is not None:
            return made
    if k is not None:
        for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
            if not isinstance(cache, Tensor):
                refuse_unwritable(name, cache)
                if is_numpy(cache) and not has_strides_of_torch(cache):
                    raise InvalidArgument(f"{name}.strides is {cache.strides}, want multiples of "
                                          f"{cache.dtype.itemsize} bytes, none below 0: a copy would be written")
    beside: Tuple[Any, ...] = () if qv is None else (qv,)  # of the cache, or of q
    if qv is not None and (k_prefix is not None or v_prefix is not None):
        raise InvalidArgument("k_prefix is given with qv, want None")
    if k_prefix is not None or v_prefix is not None:
        refuse_with_prefix(causal, window=window, chunk=chunk, mask=mask, bias=bias, alibi=alibi,
                           batch_invariant=batch_invariant)
        check_prefix(q, k_prefix, v_prefix, k_cache, v_cache)
        # The library takes both as one plan, but does not turn q for the prefix; registered ops have no prefix.
        if rotary_cos is not None or rotary_sin is not None or q.element_size() == 1 or is_traced(q, k_cache, v_cache):
            def own() -> Any:  # also looks at what out and the tables are
                return attention_with_cache(
                    q, k_cache, v_cache, k, v, cache_seqlens, block_table, cache_batch_idx, cache_leftpad, rotary_cos,
                    rotary_sin, rotary_interleaved, causal, None, 0, None, None, scale, softcap, None, sinks, True, out,
                    diagonal, num_splits, False, max_seqlen_k, tree, None, None, None)

            def turned(q: Tensor) -> Tensor:
                return q if rotary_cos is None else turn(q, rotary_cos, rotary_sin, cache_seqlens, causal, rotary_interleaved)
            return attend_with_prefix(q, k_prefix, v_prefix, scale, softcap, functions.attention, own, turned, return_lse, out)
        beside = k_prefix, v_prefix
        q = evenly_spaced(q)
    arguments: Tuple[Any, ...] = (causal, window, chunk, scale, softcap, 0.0, diagonal, num_splits, batch_invariant, False,
                                  rotary_interleaved, None, max_seqlen_k)
    if tree is not None:
        mask = tree_mask(tree, mask)
        arguments = (*arguments, 0 if mask is None else mask.shape[-1])
    if is_grad_enabled():
        refuse_gradient("on a cache", q=q, k_cache=k_cache, v_cache=v_cache, k=k, v=v, bias=bias, alibi=alibi, sinks=sinks,
                        rotary_cos=rotary_cos, rotary_sin=rotary_sin, k_prefix=k_prefix, v_prefix=v_prefix, qv=qv)
    _refuse_flag(return_lse)
    if has_forward_mode():
        refuse_forward_mode(q, k_cache, v_cache, k, v, bias, sinks, alibi, rotary_cos, rotary_sin, *beside)
    if is_traced(q, k_cache, v_cache):
        _refuse_nested(q=q, k_cache=k_cache, v_cache=v_cache)
        k_cache, v_cache = as_tensors(q, k_cache=k_cache, v_cache=v_cache)
        given = dict(mask=mask, bias=bias, alibi=alibi, sinks=sinks, seqused_k=cache_seqlens, cache_batch_idx=cache_batch_idx,
                     cache_leftpad=cache_leftpad, block_table=block_table, k_new=k, v_new=v, rotary_cos=rotary_cos,
                     rotary_sin=rotary_sin, qv=qv)
        return traced(q, k_cache, v_cache, optional_as_tensors(q, given), normalise(*arguments), return_lse, out, None)
    _refuse_layouts(q=q, k_cache=k_cache, v_cache=v_cache)
    if (mask is not None and tree is None or bias is not None) and isinstance(k_cache, Tensor):
        whole = capacity(k_cache.shape, None if block_table is None else getattr(block_table, "shape", ()))
        check_pairs_of(mask if tree is None else None, bias, q, (None, None, q.shape[1]), (None, cache_seqlens, whole),
                       0 if k is None else k.shape[1], cache_leftpad)
    if _any_autocast():
        key = None
        k_cache, v_cache = as_tensors(q, k_cache=k_cache, v_cache=v_cache)
        if k_cache.element_size() > 1:  # beside a cache of e4m3 they stay what they are
            q, k, v = (None if t is None else _tensors.autocast_to(k_cache.dtype, as_tensor(name, t, q))
                       for name, t in (("q", q), ("k", k), ("v", v)))
            beside = tuple(_tensors.autocast_to(k_cache.dtype, as_tensor("qv", t, q)) for t in beside)
    options = numbers(*arguments)
    names = (*_CACHED, *(_PREFIX if qv is None else _SECOND)) if beside else _CACHED
    values = (mask, bias, alibi, sinks, cache_seqlens, cache_batch_idx, cache_leftpad, block_table, k, v, rotary_cos,
              rotary_sin, *beside)
    try:
        if key is None:
            made = run_forward(names, options, q, k_cache, v_cache, values, return_lse, out)
        else:
            made = _cached_call(key, options, return_lse, q, k_cache, v_cache, rest)
    except NotDense:
        made = None  # copies: once more
    except AttributeError:  # arrays of another library: once more
        if _are_tensors(q, k_cache, v_cache, *values):
            raise
        made = None
    except RuntimeError:
        _refuse_optional_layouts(names, values)
        raise
    if made is None:
        k_cache, v_cache = as_tensor("k_cache", k_cache, q), as_tensor("v_cache", v_cache, q)
        made = run_forward(names, options, _tensors.dense(q), k_cache, v_cache, _convert(names, values, q), return_lse, out)
    if k is not None:
        _tensors.bump_version(k_cache)
        _tensors.bump_version(v_cache)
    return made
