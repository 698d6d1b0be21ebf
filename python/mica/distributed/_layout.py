# SPDX-License-Identifier: Apache-2.0
"""Which tokens of a sequence each rank holds.

    ring      one stretch a rank, in order
    zigzag    the sequence in 2 * ranks stretches; rank r holds the r-th from the front and the r-th from the back, so
              that a causal mask leaves every rank the same work
    stripe    every ranks-th token, from token r on

"ulysses" and "gather" hold tokens as "ring" does. "ulysses x ring" (zigzag, stripe) deals tokens out to the rows of a
two-dimensional mesh by the second word, and a row's tokens to its ranks in order. Stretches are those of torch.chunk:
all but the last ones equally long, which may be empty.
"""

from functools import lru_cache
from typing import List, NamedTuple, Tuple

from ..errors import InvalidArgument

PLAIN = ("ring", "zigzag", "stripe")
PRODUCTS = tuple(f"ulysses x {layout}" for layout in PLAIN)
LAYOUTS = (*PLAIN, "ulysses", "gather", *PRODUCTS)


class Chunk(NamedTuple):
    """Tokens first, first + step, ... , `count` of them."""
    first: int
    step: int
    count: int  # type: ignore[assignment]  # in place of tuple.count, which nobody asks for


def _stretch(length: int, parts: int, part: int) -> Tuple[int, int]:
    size = -(-length // parts)
    return min(length, part * size), min(length, (part + 1) * size)


def _between(length: int, parts: int, part: int) -> Chunk:
    begin, end = _stretch(length, parts, part)
    return Chunk(begin, 1, end - begin)


def _cut(chunks: Tuple[Chunk, ...], begin: int, end: int) -> Tuple[Chunk, ...]:
    """Tokens [begin, end) of the chunks, one after the other."""
    made: List[Chunk] = []
    at = 0
    for chunk in chunks:
        low, high = max(begin - at, 0), min(end - at, chunk.count)
        if low < high:
            made.append(Chunk(chunk.first + low * chunk.step, chunk.step, high - low))
        at += chunk.count
    return tuple(made)


def check_layout(layout: str) -> str:
    if layout not in LAYOUTS:
        raise InvalidArgument(f"layout is {layout!r}, want one of {', '.join(map(repr, LAYOUTS))}")
    return layout


def inner(layout: str) -> str:
    """How the tokens are dealt out: 'ring', 'zigzag' or 'stripe'."""
    return layout.rpartition(" x ")[2] if " x " in layout else layout if layout in PLAIN else "ring"


def is_product(layout: str) -> bool:
    return layout in PRODUCTS


@lru_cache(maxsize=4096)
def chunks_of(layout: str, length: int, size: int, rank: int, columns: int = 1, column: int = 0) -> Tuple[Chunk, ...]:
    """The tokens of a rank, in the order in which it holds them; those without tokens are left out. columns: ranks
    that share the tokens of a row of the mesh."""
    if inner(layout) == "ring":
        chunks: Tuple[Chunk, ...] = (_between(length, size, rank),)
    elif inner(layout) == "zigzag":
        chunks = (_between(length, 2 * size, rank), _between(length, 2 * size, 2 * size - 1 - rank))
    else:
        chunks = (Chunk(rank, size, max(0, -(-(length - rank) // size))),)
    total = sum(chunk.count for chunk in chunks)
    return _cut(chunks, *_stretch(total, columns, column))


def count_of(chunks: Tuple[Chunk, ...]) -> int:
    return sum(chunk.count for chunk in chunks)
