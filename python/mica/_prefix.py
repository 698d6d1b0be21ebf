# SPDX-License-Identifier: Apache-2.0
"""Attention to a prefix that the whole batch shares and to each sequence's own cache, joined by their LSE.

The prefix is read once for all sequences: their rows are rows of one sequence to it. Both parts come in q's type, the
sum of their weights in fp32.
"""

from typing import Any, Callable, Optional, Tuple

import torch
from torch import Tensor

from .errors import InvalidArgument


def refuse_with_prefix(causal: Any, **unwanted: Any) -> None:
    """What would show a row a part of the prefix, or count its keys."""
    if causal == "top-left":
        raise InvalidArgument("causal is 'top-left' with k_prefix, want 'bottom-right': the prefix comes before every row")
    for name, value in unwanted.items():
        if value is not None and value is not False and (isinstance(value, Tensor) or value != 0):
            raise InvalidArgument(f"{name} is given with k_prefix, want none: every row sees the whole prefix")


def _check(q: Tensor, k_prefix: Any, v_prefix: Any) -> None:
    for name, prefix, other in (("k_prefix", k_prefix, "v_prefix"), ("v_prefix", v_prefix, "k_prefix")):
        if prefix is None:
            raise InvalidArgument(f"{name} is None, want it together with {other}")
        if not isinstance(prefix, Tensor):
            raise InvalidArgument(f"{name} is a {type(prefix).__name__}, want a torch.Tensor (as q is)")
        if prefix.dim() != 3:
            raise InvalidArgument(f"{name} has {prefix.dim()} axes, want (prefix keys, key heads, dim)")
    if k_prefix.shape[:2] != v_prefix.shape[:2]:
        raise InvalidArgument(f"v_prefix.shape[:2] is {tuple(v_prefix.shape[:2])}, want {tuple(k_prefix.shape[:2])} "
                              "(= k_prefix.shape[:2])")
    if q.dim() != 4:
        raise InvalidArgument(f"q has {q.dim()} axes, want (batch, rows, heads, dim)")


def join(first: Tuple[Tensor, Tensor], second: Tuple[Tensor, Tensor]) -> Tuple[Tensor, Tensor]:
    """(o, lse) of all keys from those of two parts of them: o (batch, rows, heads, dim), lse (batch, heads, rows)."""
    share = torch.nan_to_num(torch.sigmoid(second[1] - first[1]), nan=0.0)  # of the second; nan: both see nothing
    o = torch.lerp(first[0].float(), second[0].float(), share.transpose(1, 2).unsqueeze(-1))
    return o.to(first[0].dtype), torch.logaddexp(first[1], second[1])


def attend_with_prefix(q: Tensor, k_prefix: Any, v_prefix: Any, scale: Optional[float], softcap: Optional[float],
                       attend: Callable[..., Any], own: Callable[..., Any], return_lse: bool, out: Optional[Tensor]) -> Any:
    """attend: mica.attention. own(): (o, lse) of the sequences' own caches, sinks among them."""
    _check(q, k_prefix, v_prefix)
    batch, rows, heads = q.shape[:3]
    second = own()
    o, lse = attend(q.reshape(1, batch * rows, heads, q.shape[3]), k_prefix[None], v_prefix[None], scale=scale,
                    softcap=softcap, return_lse=True)
    first = o.reshape(batch, rows, heads, -1), lse.reshape(heads, batch, rows).transpose(0, 1)
    o, lse = join(first, second)
    o = o if out is None else out.copy_(o)
    return (o, lse) if return_lse else o
