# SPDX-License-Identifier: Apache-2.0
"""Several partial results joined in one pass over memory: a kernel in Triton, which PyTorch for GPUs comes with.

PyTorch's own operators would read and write the fp32 whole for every part. Here the parts are read once, in their own
type, and the whole is written once.
"""

from typing import Optional, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._join import MOST_PARTS, Part

ITEMS = 16  # (row, head) pairs of a program


@triton.jit
def _lse_of(lse, begin, end, batch, row, head, heads: tl.constexpr, inside):  # type: ignore[no-untyped-def]
    at = (batch * heads + head) * (end - begin) + row - begin
    return tl.load(lse + at, mask=inside & (row >= begin) & (row < end), other=float("-inf"))


@triton.jit
def _added(  # type: ignore[no-untyped-def]
        whole, total, top, o, lse, begin, end, batch, row, head, heads: tl.constexpr, dim: tl.constexpr, column, inside):
    """The sums of weighted values and of weights, with this part's."""
    weight = tl.exp(_lse_of(lse, begin, end, batch, row, head, heads, inside) - top)
    at = ((batch * (end - begin) + row - begin) * heads + head) * dim
    is_there = inside & (row >= begin) & (row < end)
    values = tl.load(o + at[:, None] + column[None, :], mask=is_there[:, None] & (column < dim)[None, :], other=0.0)
    return whole + weight[:, None] * values.to(tl.float32), total + weight


# Not compiled anew for other lengths.
@triton.jit(do_not_specialize=[f"{name}{part}" for name in ("begin", "end") for part in range(MOST_PARTS)] + ["items", "rows"])
def _join(  # type: ignore[no-untyped-def]
        o, lse, sinks, o0, lse0, begin0, end0, o1, lse1, begin1, end1, o2, lse2, begin2, end2, o3, lse3, begin3, end3,
        o4, lse4, begin4, end4, o5, lse5, begin5, end5, o6, lse6, begin6, end6, o7, lse7, begin7, end7, items, rows,
        heads: tl.constexpr, dim: tl.constexpr, COUNT: tl.constexpr, HAS_SINKS: tl.constexpr, WIDTH: tl.constexpr,
        ITEMS: tl.constexpr):
    item = tl.program_id(0).to(tl.int64) * ITEMS + tl.arange(0, ITEMS)
    inside = item < items
    head, row, batch = item % heads, item // heads % rows, item // heads // rows
    column = tl.arange(0, WIDTH)
    top = _lse_of(lse0, begin0, end0, batch, row, head, heads, inside)
    if COUNT > 1:
        top = tl.maximum(top, _lse_of(lse1, begin1, end1, batch, row, head, heads, inside))
    if COUNT > 2:
        top = tl.maximum(top, _lse_of(lse2, begin2, end2, batch, row, head, heads, inside))
    if COUNT > 3:
        top = tl.maximum(top, _lse_of(lse3, begin3, end3, batch, row, head, heads, inside))
    if COUNT > 4:
        top = tl.maximum(top, _lse_of(lse4, begin4, end4, batch, row, head, heads, inside))
    if COUNT > 5:
        top = tl.maximum(top, _lse_of(lse5, begin5, end5, batch, row, head, heads, inside))
    if COUNT > 6:
        top = tl.maximum(top, _lse_of(lse6, begin6, end6, batch, row, head, heads, inside))
    if COUNT > 7:
        top = tl.maximum(top, _lse_of(lse7, begin7, end7, batch, row, head, heads, inside))
    if HAS_SINKS:
        sink = tl.load(sinks + head).to(tl.float32)
        top = tl.maximum(top, sink)
    top = tl.where(top == float("-inf"), 0.0, top)  # an empty row: every weight is 0
    whole, total = tl.zeros((ITEMS, WIDTH), tl.float32), tl.zeros((ITEMS,), tl.float32)
    whole, total = _added(whole, total, top, o0, lse0, begin0, end0, batch, row, head, heads, dim, column, inside)
    if COUNT > 1:
        whole, total = _added(whole, total, top, o1, lse1, begin1, end1, batch, row, head, heads, dim, column, inside)
    if COUNT > 2:
        whole, total = _added(whole, total, top, o2, lse2, begin2, end2, batch, row, head, heads, dim, column, inside)
    if COUNT > 3:
        whole, total = _added(whole, total, top, o3, lse3, begin3, end3, batch, row, head, heads, dim, column, inside)
    if COUNT > 4:
        whole, total = _added(whole, total, top, o4, lse4, begin4, end4, batch, row, head, heads, dim, column, inside)
    if COUNT > 5:
        whole, total = _added(whole, total, top, o5, lse5, begin5, end5, batch, row, head, heads, dim, column, inside)
    if COUNT > 6:
        whole, total = _added(whole, total, top, o6, lse6, begin6, end6, batch, row, head, heads, dim, column, inside)
    if COUNT > 7:
        whole, total = _added(whole, total, top, o7, lse7, begin7, end7, batch, row, head, heads, dim, column, inside)
    if HAS_SINKS:
        total += tl.exp(sink - top)
    is_empty = total == 0.0
    whole = whole / tl.where(is_empty, 1.0, total)[:, None]
    tl.store(o + (item * dim)[:, None] + column[None, :], whole.to(o.dtype.element_ty),
             mask=inside[:, None] & (column < dim)[None, :])
    tl.store(lse + (batch * heads + head) * rows + row, tl.where(is_empty, float("-inf"), top + tl.log(total)),
             mask=inside)


def join(parts: Sequence[Part], sinks: Optional[Tensor], o: Tensor, lse: Tensor) -> None:
    """At most MOST_PARTS of them; o (batch, rows, heads, dim) and lse (batch, heads, rows) of the whole are written."""
    batch, rows, heads, dim = o.shape
    items = batch * rows * heads
    if not items or not dim:
        return
    filled = [*parts, *[parts[0]] * (MOST_PARTS - len(parts))]  # those beyond the count are not read
    arguments = [x for part in filled for x in (part.o, part.lse, part.begin, part.end)]
    with torch.cuda.device_of(o):
        _join[(triton.cdiv(items, ITEMS),)](o, lse, lse if sinks is None else sinks, *arguments, items, rows, heads, dim,
                                            len(parts), sinks is not None, triton.next_power_of_2(dim), ITEMS)
