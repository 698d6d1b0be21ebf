# SPDX-License-Identifier: Apache-2.0
"""Masks and biases of packed or cached sequences: they cover the longest, or broadcast.

The library takes what lies outside their shape as hidden (mask) or 0 (bias); a caller who forgot a key does not mean
that. Lengths are read where that costs nothing, on the CPU; a GPU's are not waited for."""

from typing import Any, Optional, Sequence, Tuple

from .errors import InvalidArgument


def check_pairs(mask: Any, bias: Any, rows: int, keys: int) -> None:
    """rows and keys: of the longest sequences."""
    for name, array in (("mask", mask), ("bias", bias)):
        shape: Sequence[int] = getattr(array, "shape", ())
        for axis, wanted, what in ((-2, rows, "rows"), (-1, keys, "keys")):
            if len(shape) >= -axis and shape[axis] != 1 and shape[axis] < wanted:
                raise InvalidArgument(f"{name}.shape[{len(shape) + axis}] is {shape[axis]}, want 1 or at least "
                                      f"{wanted} (the {what} of the longest sequence)")


def longest(cu_seqlens: Optional[Sequence[int]], used: Optional[Sequence[int]], whole: int, new: int = 0,
            skipped: Optional[Sequence[int]] = None) -> int:
    """The most rows or keys of any sequence, by cumulative lengths, lengths in use or the whole of a slot; new: keys on top of
    those in use, skipped: keys at the beginning of each that do not count."""
    if used is None and cu_seqlens is None:
        return whole - min(skipped or (0,))
    lengths = [b - a for a, b in zip(cu_seqlens, cu_seqlens[1:])] if cu_seqlens is not None else []
    if used is not None:
        lengths = [length + new for length in used]
    if skipped is not None:
        lengths = [length - count for length, count in zip(lengths, skipped)]
    return max(lengths, default=0)


def capacity(cache_shape: Sequence[int], table_shape: Optional[Sequence[int]]) -> int:
    """The keys of a slot, or of a row of a block table."""
    if table_shape is None:
        return cache_shape[1]
    return cache_shape[1] * table_shape[1] if len(table_shape) == 2 else 0


def check_pairs_of(mask: Any, bias: Any, q: Any, rows: Tuple[Any, ...], keys: Tuple[Any, ...], new: int = 0,
                   leftpad: Any = None) -> None:
    """Of torch tensors. rows and keys: cumulative lengths, lengths in use, and a whole slot; new: keys on top of those in use;
    leftpad: keys of each sequence that are skipped."""
    vectors = (*rows[:2], *keys[:2], leftpad)
    # What is no vector is refused by name later on.
    if q.device.type != "cpu" or any(t is not None and (getattr(t, "ndim", 0) != 1 or not getattr(t, "is_cpu", True))
                                     for t in vectors):
        return
    cu_q, used_q, cu_k, used_k, skipped = (None if t is None else t.tolist() for t in vectors)
    check_pairs(mask, bias, longest(cu_q, used_q, rows[2]), longest(cu_k, used_k, keys[2], new, skipped))


def tree_mask(tree: Any, mask: Any) -> Any:
    """A tree of speculated tokens as the mask that it is: (rows, n), or with batch or (batch, heads) ahead. None: a tree of no
    keys hides nothing."""
    if mask is not None:
        raise InvalidArgument("tree is given with mask, want one of them")
    axes = len(getattr(tree, "shape", ()))
    if not 2 <= axes <= 4:
        raise InvalidArgument(f"tree has {axes} axes, want (rows, n), (batch, rows, n) or (batch, heads, rows, n)")
    if tree.shape[-1] == 0:
        return None
    return tree[:, None] if axes == 3 else tree
