# SPDX-License-Identifier: Apache-2.0
"""Which pairs of stretches see each other, and how the library is asked for one: the geometry of pieces.

A Part is a stretch of a rank's rows that is a Chunk of one sequence. A Piece is the attention of a part of the queries
to a part of the keys. Pieces of packed sequences that ask the same of the library become one packed call.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ._layout import Chunk


class Part(NamedTuple):
    begin: int  # the first row in the rank's tensor
    sequence: int
    chunk: Chunk

    @property
    def end(self) -> int:
        return self.begin + self.chunk.count


class Mask(NamedTuple):
    """Row i of the whole sees key j if i + shift - left <= j <= i + shift + right; None: unlimited. `shifts` has the
    shift of each sequence."""
    left: Optional[int]
    right: Optional[int]
    shifts: Tuple[int, ...]


class Piece(NamedTuple):
    """In rows i and keys j of the two parts: lower <= j - i <= upper, where None is no limit; `diagonal` is the
    j - i of distance 0 for ALiBi, and `rest` what is left of the distance where steps do not divide it."""
    q: Part
    k: Part
    lower: Optional[int]
    upper: Optional[int]
    diagonal: int
    rest: int


class Group(NamedTuple):
    """Pieces that one call computes. With one piece the call is dense; else it is packed, with the diagonal at the
    `corner` of each sequence."""
    pieces: Tuple[Piece, ...]
    corner: str  # "top-left" or "bottom-right"


def piece_of(q: Part, k: Part, mask: Mask) -> Optional[Piece]:
    """None where no query sees a key."""
    if q.sequence != k.sequence or not q.chunk.count or not k.chunk.count:
        return None
    step = q.chunk.step  # the keys' too: both are dealt out in one way
    apart = q.chunk.first - k.chunk.first + mask.shifts[q.sequence]
    lower = None if mask.left is None else -((mask.left - apart) // step)  # rounded up
    upper = None if mask.right is None else (apart + mask.right) // step  # rounded down
    first, last = -(q.chunk.count - 1), k.chunk.count - 1  # of j - i
    if (lower is not None and lower > last or upper is not None and upper < first or
            lower is not None and upper is not None and lower > upper):
        return None
    lower = None if lower is not None and lower <= first else lower
    upper = None if upper is not None and upper >= last else upper
    return Piece(q, k, lower, upper, apart // step, apart % step)


def pieces_of(queries: Sequence[Part], keys: Sequence[Part], mask: Mask) -> List[Piece]:
    by_sequence: Dict[int, List[Part]] = {}
    for part in keys:
        by_sequence.setdefault(part.sequence, []).append(part)
    return [piece for q in queries for k in by_sequence.get(q.sequence, ())
            for piece in (piece_of(q, k, mask),) if piece is not None]


def sees_any(queries: Sequence[Part], keys: Sequence[Part], mask: Mask) -> bool:
    return any(piece_of(q, k, mask) is not None for q in queries for k in keys if q.sequence == k.sequence)


def _together(first: Part, second: Part) -> Part:
    """Two parts that lie one after the other. Of the chunk only the count still means something."""
    return Part(first.begin, first.sequence, first.chunk._replace(count=first.chunk.count + second.chunk.count))


def merged(pieces: Sequence[Piece]) -> List[Piece]:
    """Fewer pieces that show the same pairs, where places in the whole do not matter (no ALiBi, no dropout): stretches of
    keys that lie one after the other, all but the last seen whole, become one; then stretches of queries that see the
    same keys whole."""
    by_keys: List[Piece] = []
    for piece in pieces:
        last = by_keys[-1] if by_keys else None
        if (last is not None and last.q == piece.q and last.k.end == piece.k.begin and
                last.lower is None and last.upper is None and piece.lower is None and
                (piece.upper is None or piece.upper >= -1)):
            upper = None if piece.upper is None else piece.upper + last.k.chunk.count
            by_keys[-1] = Piece(piece.q, _together(last.k, piece.k), None, upper, 0, 0)
        else:
            by_keys.append(piece)
    made: List[Piece] = []
    for piece in by_keys:
        for at, other in enumerate(made):
            if (other.k == piece.k and other.q.end == piece.q.begin and
                    other.lower == other.upper == piece.lower == piece.upper is None):
                made[at] = Piece(_together(other.q, piece.q), piece.k, None, None, 0, 0)
                break
        else:
            made.append(piece)
    return made


def cut(piece: Piece, row: int) -> Tuple[Piece, Piece]:
    """The piece of the rows before `row` with the keys that these see, and the piece of the others. It has no lower limit
    and an upper one."""
    assert piece.lower is None and piece.upper is not None
    (first, step, count), keys = piece.q.chunk, piece.k.chunk.count
    seen = min(max(row + piece.upper, 1), keys)
    upper = None if piece.upper + row >= keys - 1 else piece.upper + row
    return (piece._replace(q=piece.q._replace(chunk=Chunk(first, step, row)),
                           k=piece.k._replace(chunk=piece.k.chunk._replace(count=seen)),
                           upper=None if piece.upper >= seen - 1 else piece.upper),
            piece._replace(q=piece.q._replace(begin=piece.q.begin + row, chunk=Chunk(first + row * step, step, count - row)),
                           upper=upper, diagonal=piece.diagonal + row))


def _corner_key(piece: Piece, corner: str, has_alibi: bool) -> Tuple[Any, ...]:
    """Equal for pieces that a packed call with the diagonal in that corner can compute together."""
    moved = piece.k.chunk.count - piece.q.chunk.count if corner == "bottom-right" else 0
    return (None if piece.lower is None else piece.lower - moved, None if piece.upper is None else piece.upper - moved,
            (piece.diagonal - moved, piece.rest) if has_alibi else None)


def _grouped(pieces: Sequence[Piece], corner: str, has_alibi: bool) -> List[Group]:
    """Groups whose parts are in order and apart, as packed calls want them."""
    groups: Dict[Tuple[Any, ...], List[List[Piece]]] = {}
    for piece in pieces:
        rounds = groups.setdefault(_corner_key(piece, corner, has_alibi), [])
        for members in rounds:
            if members[-1].q.end <= piece.q.begin and members[-1].k.end <= piece.k.begin:
                members.append(piece)
                break
        else:
            rounds.append([piece])
    return [Group(tuple(members), corner) for rounds in groups.values() for members in rounds]


def groups_of(pieces: Sequence[Piece], is_packed: bool, has_alibi: bool, has_dropout: bool) -> List[Group]:
    """As few calls as can be."""
    if not has_alibi and not has_dropout:
        pieces = merged(pieces)
    if not is_packed or has_dropout or len(pieces) < 2:
        return [Group((piece,), "top-left") for piece in pieces]
    return min((_grouped(pieces, corner, has_alibi) for corner in ("top-left", "bottom-right")), key=len)
