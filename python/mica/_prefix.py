# SPDX-License-Identifier: Apache-2.0
"""Attention to a prefix that the whole batch shares and to each sequence's own cache.

The library joins both in one plan (src/api/prefix.cc). Here is what is checked before, and the same in two calls for
what it does not take: rotary, which would have to turn q for the prefix, and calls that are traced. The prefix is read
once for all sequences: their rows are rows of one sequence to it. Both parts come in q's type, the sum of their weights
in fp32.
"""

from typing import Any, Callable, Optional, Tuple

import torch
from torch import Tensor

from ._tracing import is_dynamo_tracing
from .errors import InvalidArgument


def refuse_with_prefix(causal: Any, **unwanted: Any) -> None:
    """What would show a row a part of the prefix, or count its keys."""
    if causal == "top-left":
        raise InvalidArgument("causal is 'top-left' with k_prefix, want 'bottom-right': the prefix comes before every row")
    for name, value in unwanted.items():
        if value is not None and value is not False and (isinstance(value, Tensor) or value != 0):
            why = "the sequences are computed together" if name == "batch_invariant" else "every row sees the whole prefix"
            raise InvalidArgument(f"{name} is given with k_prefix, want none: {why}")


def check_prefix(q: Tensor, k_prefix: Any, v_prefix: Any, k_cache: Tensor, v_cache: Tensor) -> None:
    if q.dim() != 4:
        raise InvalidArgument(f"q has {q.dim()} axes, want (batch, rows, heads, dim)")
    for name, prefix, other, cache in (("k_prefix", k_prefix, "v_prefix", k_cache), ("v_prefix", v_prefix, "k_prefix", v_cache)):
        if prefix is None:
            raise InvalidArgument(f"{name} is None, want it together with {other}")
        if not isinstance(prefix, Tensor):
            raise InvalidArgument(f"{name} is a {type(prefix).__name__}, want a torch.Tensor (as q is)")
        if prefix.dim() != 3:
            raise InvalidArgument(f"{name} has {prefix.dim()} axes, want (prefix keys, key heads, dim)")
        if prefix.shape[1:] != cache.shape[-2:]:
            raise InvalidArgument(f"{name}.shape[1:] is {tuple(prefix.shape[1:])}, want {tuple(cache.shape[-2:])} (= those of "
                                  f"{name[0]}_cache)")
        if prefix.dtype is not q.dtype:
            raise InvalidArgument(f"{name}.dtype is {prefix.dtype}, want {q.dtype} (= q.dtype)")
        if prefix.device != q.device:
            raise InvalidArgument(f"{name} is on {prefix.device}, want {q.device} (as q is)")
    if k_prefix.shape[0] != v_prefix.shape[0]:
        raise InvalidArgument(f"v_prefix.shape[0] is {v_prefix.shape[0]}, want {k_prefix.shape[0]} (= k_prefix.shape[0])")


def evenly_spaced(q: Tensor) -> Tensor:
    """q as one axis of all rows, which the prefix sees."""
    batch, rows = q.shape[:2]
    return q if batch <= 1 or rows <= 1 or q.stride(0) == rows * q.stride(1) else q.contiguous()


def _bytes_of(t: Tensor) -> Tuple[int, int]:
    reach = sum((count - 1) * step for count, step in zip(t.shape, t.stride()))
    return t.data_ptr(), t.data_ptr() + (reach + 1) * t.element_size()


def _refuse_overlap(out: Any, **prefixes: Tensor) -> None:
    """The result is written before the prefix is read."""
    if is_dynamo_tracing() or type(out) is not Tensor or out.is_meta or not out.numel():
        return
    begin, end = _bytes_of(out)
    for name, prefix in prefixes.items():
        first, last = _bytes_of(prefix)
        if prefix.numel() and first < end and begin < last:
            raise InvalidArgument(f"out overlaps {name}, want memory of its own")


def turn(q: Tensor, cos: Tensor, sin: Tensor, cache_seqlens: Tensor, causal: Any, interleaved: bool) -> Tensor:
    """q turned by the positions that the kernel gives its rows (see attention_with_cache): the keys of a prefix are."""
    at = cache_seqlens[:, None].long()
    if causal:
        at = at + torch.arange(q.shape[1], device=q.device)
    at = at.clamp(0, cos.shape[0] - 1)  # as a GPU does with lengths beyond the tables
    pairs = cos.shape[1]
    c, s = (table[at][:, :, None].float() for table in (cos, sin))  # (batch, rows or 1, 1, pairs)
    wide = q.float()
    first, second = ((slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if interleaved else
                     (slice(0, pairs), slice(pairs, 2 * pairs)))
    a, b = wide[..., first], wide[..., second]
    turned = wide.clone()
    turned[..., first], turned[..., second] = a * c - b * s, a * s + b * c
    return turned.to(q.dtype)


def join(first: Tuple[Tensor, Tensor], second: Tuple[Tensor, Tensor]) -> Tuple[Tensor, Tensor]:
    """(o, lse) of all keys from those of two parts of them: o (batch, rows, heads, dim), lse (batch, heads, rows)."""
    share = torch.nan_to_num(torch.sigmoid(second[1] - first[1]), nan=0.0)  # of the second; nan: both see nothing
    o = torch.lerp(first[0].float(), second[0].float(), share.transpose(1, 2).unsqueeze(-1))
    return o.to(second[0].dtype), torch.logaddexp(first[1], second[1])


def attend_with_prefix(q: Tensor, k_prefix: Any, v_prefix: Any, scale: Optional[float], softcap: Optional[float],
                       attend: Callable[..., Any], own: Callable[[], Any], turned: Callable[[Tensor], Tensor],
                       return_lse: bool, out: Optional[Tensor]) -> Any:
    """In two calls. attend: mica.attention. own(): (o, lse) of the sequences' own caches, sinks among them, o in out where
    that is given. turned(q): q as the prefix's keys see it."""
    if out is not None:
        _refuse_overlap(out, k_prefix=k_prefix, v_prefix=v_prefix)
        q = q.clone()  # out may lie in its place
    batch, rows, heads = q.shape[:3]
    second = own()
    o, lse = attend(turned(q).reshape(1, batch * rows, heads, q.shape[3]), k_prefix[None], v_prefix[None], scale=scale,
                    softcap=softcap, return_lse=True)
    first = o.reshape(batch, rows, heads, -1), lse.reshape(heads, batch, rows).transpose(0, 1)
    o, lse = join(first, second)
    o = o if out is None else out.copy_(o)
    return (o, lse) if return_lse else o
