# SPDX-License-Identifier: Apache-2.0
"""Which tokens a rank holds, which pieces see each other, and how partial results are joined; one process."""

import os
import random
import subprocess
import sys

import numpy
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import joining  # noqa: E402
from mica.distributed import _layout, _pieces, _ring, _ulysses, functions  # noqa: E402
from mica.distributed._join import Joined  # noqa: E402
from mica.errors import InvalidArgument  # noqa: E402


def tokens(chunks):
    return [chunk.first + n * chunk.step for chunk in chunks for n in range(chunk.count)]


@pytest.mark.parametrize("layout", _layout.LAYOUTS)
@pytest.mark.parametrize("length", [0, 1, 5, 24, 61])
def test_every_token_is_held_once(layout, length):
    for rows, columns in ((1, 1), (3, 1), (4, 2)):
        held = [tokens(_layout.chunks_of(layout, length, rows, row, columns, column))
                for row in range(rows) for column in range(columns)]
        assert sorted(sum(held, [])) == list(range(length))


def test_zigzag_takes_from_both_ends():
    assert tokens(_layout.chunks_of("zigzag", 8, 2, 0)) == [0, 1, 6, 7]
    assert tokens(_layout.chunks_of("stripe", 8, 2, 1)) == [1, 3, 5, 7]


@pytest.mark.parametrize("seed", range(40))
def test_pieces_show_the_pairs_that_the_mask_shows(seed):
    r = random.Random(seed)
    layout, size = r.choice(_layout.PLAIN), r.randint(1, 4)
    rows, keys = r.randint(0, 30), r.randint(0, 30)
    left, right = (r.choice([None, 0, r.randint(0, 12)]) for _ in range(2))
    mask = _pieces.Mask(left, right, (r.choice([0, keys - rows]),))
    for of_q in range(size):
        for of_k in range(size):
            parts = []
            for length, rank in ((rows, of_q), (keys, of_k)):
                at, mine = 0, []
                for chunk in _layout.chunks_of(layout, length, size, rank):
                    mine.append(_pieces.Part(at, 0, chunk))
                    at += chunk.count
                parts.append(mine)
            seen = set()
            for piece in _pieces.pieces_of(*parts, mask):
                pairs = [(i, j) for i in range(piece.q.chunk.count) for j in range(piece.k.chunk.count)
                         if (piece.lower is None or j - i >= piece.lower) and
                         (piece.upper is None or j - i <= piece.upper)]
                assert pairs  # a piece that shows nothing is none
                seen |= {(tokens([piece.q.chunk])[i], tokens([piece.k.chunk])[j]) for i, j in pairs}
            want = {(i, j) for part in parts[0] for i in tokens([part.chunk]) for other in parts[1]
                    for j in tokens([other.chunk])
                    if (left is None or j >= i + mask.shifts[0] - left) and
                    (right is None or j <= i + mask.shifts[0] + right)}
            assert seen == want


def pairs_of(pieces):
    """In rows of the two tensors."""
    made = [(piece.q.begin + i, piece.k.begin + j) for piece in pieces for i in range(piece.q.chunk.count)
            for j in range(piece.k.chunk.count) if (piece.lower is None or j - i >= piece.lower) and
            (piece.upper is None or j - i <= piece.upper)]
    assert len(made) == len(set(made))
    return set(made)


@pytest.mark.parametrize("layout", _layout.PLAIN)
def test_merged_pieces_show_the_same_pairs(layout):
    counts = []
    for size, length, left, right in ((1, 9, None, 0), (3, 30, None, 0), (3, 31, None, None), (4, 40, 7, 0)):
        parts = []
        for rank in range(size):
            at, mine = 0, []
            for chunk in _layout.chunks_of(layout, length, size, rank):
                mine.append(_pieces.Part(at, 0, chunk))
                at += chunk.count
            parts.append(mine)
        for of_q in parts:
            for of_k in parts:
                pieces = _pieces.pieces_of(of_q, of_k, _pieces.Mask(left, right, (0,)))
                fewer = _pieces.merged(pieces)
                assert pairs_of(fewer) == pairs_of(pieces)
                counts.append((len(pieces), len(fewer)))
    if layout == "zigzag":  # of a causal step: two calls with its own keys, else one
        assert (3, 2) in counts and (2, 1) in counts and (4, 1) in counts


def hops(layout, length, size, left, right):
    parts = tuple(tuple(_pieces.Part(0, 0, chunk) for chunk in _layout.chunks_of(layout, length, size, rank))
                  for rank in range(size))
    lengths = tuple(length // size for _ in range(size))
    return _ring.route_of(parts, parts, lengths, _pieces.Mask(left, right, (0,)), 0, False, False,
                          False).hops


def test_keys_travel_no_further_than_they_are_seen():
    assert hops("ring", 64, 4, None, None) == (3, 3, 3, 3)
    assert hops("ring", 64, 4, None, 0) == (3, 2, 1, 0)  # causal: never back to the ranks before
    assert hops("ring", 64, 4, 16, 0) == (1, 1, 1, 0)  # a window that ends in the next rank
    assert hops("ring", 64, 4, 0, 0) == (0, 0, 0, 0)


def pairs_by_token(turns, rank, size):
    """(row, owner of the key, key) in rows of the ranks' tensors."""
    made = set()
    for turn in turns:
        owner_at = {slot.at + n: ((rank - step) % size, slot.begin + n) for step, slots in zip(turn.steps, turn.slots)
                    for slot in slots for n in range(slot.end - slot.begin)}
        assert len(owner_at) == turn.length
        here = [(i, *owner_at[j]) for i, j in pairs_of(piece for group in turn.groups for piece in group.pieces)]
        assert not made & set(here)
        made |= set(here)
    return made


@pytest.mark.parametrize("layout", _layout.PLAIN)
def test_turns_of_several_steps_show_the_pairs_of_each(layout):
    for size, length, left, right in ((1, 9, None, 0), (3, 31, None, 0), (4, 40, None, None), (5, 37, 11, 0), (5, 3, None, 0)):
        parts = functions._parts(layout, length, size)
        lengths = tuple(sum(part.chunk.count for part in some) for some in parts)
        for rank in range(size):
            for together in (2, 3):
                route = _ring.route_of(parts, parts, lengths, _pieces.Mask(left, right, (0,)), rank, False, False, False,
                                       together)
                assert [step for turn in route.turns for step in turn.steps] == [*range(size)]
                want = pairs_by_token(route.steps, rank, size)
                assert pairs_by_token(route.turns, rank, size) == want


@pytest.mark.parametrize("layout", _layout.PLAIN)
def test_own_keys_held_back_show_the_same_pairs(layout, monkeypatch):
    monkeypatch.setattr(_ring, "LEAST_ROWS_CUT", 4)
    monkeypatch.setattr(_ring, "TILE_ROWS", 2)
    held_back = 0
    for size, length, left, right in ((1, 9, None, 0), (3, 31, None, 0), (4, 40, None, 3), (3, 31, None, -2), (4, 40, None, None),
                                      (5, 37, 11, 0)):
        parts = functions._parts(layout, length, size)
        lengths = tuple(sum(part.chunk.count for part in some) for some in parts)
        for rank in range(size):
            route = _ring.route_of.__wrapped__(parts, parts, lengths, _pieces.Mask(left, right, (0,)), rank, False, False,
                                               False, 2)
            first, last = ([*pairs_of(piece for group in groups for piece in group.pieces)] for groups in route.own[:2])
            want = pairs_of(piece for group in route.turns[0].groups for piece in group.pieces)
            assert len({*first, *last}) == len(first) + len(last) and {*first, *last} == {*want}
            held_back += bool(last)
            assert not last or right is not None
    assert bool(held_back) == (layout != "stripe")  # whose pieces all end with short tiles


def test_two_steps_are_fewer_pieces():
    parts = functions._parts("ring", 64, 8)
    route = _ring.route_of(parts, parts, (8,) * 8, _pieces.Mask(None, None, (0,)), 3, False, False, False, 2)
    assert [len(turn.groups) for turn in route.turns] == [1] * 5  # its own keys, three pairs, the last


def test_heads():
    assert _ulysses.heads_of(8, 4, 2).queries == ((0, 4), (4, 8))
    assert _ulysses.heads_of(6, 3, 2).keys == ((0, 1), (1, 3))  # whole groups, as even as can be
    assert _ulysses.heads_of(8, 2, 4) == (((0, 2), (2, 4), (4, 6), (6, 8)), ((0, 1), (0, 1), (1, 2), (1, 2)))
    with pytest.raises(InvalidArgument, match="q has 4 heads and k 2 for 3 ranks"):
        _ulysses.heads_of(4, 2, 3)


def test_joining_is_the_softmax_of_all():
    joining.check(Joined((2, 5, 3, 4), torch.device("cpu"), torch.float32))


def test_kernel_that_joins():
    """Triton's interpreter runs it on a CPU."""
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    if triton.__version__ < "3.1" and numpy.__version__ >= "2":
        pytest.skip("the interpreter of Triton 3.0 was compiled for NumPy 1: with NumPy 2 no kernel's store arrives")
    made = subprocess.run([sys.executable, joining.__file__], capture_output=True, text=True, timeout=300,
                          env=dict(os.environ, TRITON_INTERPRET="1", PYTHONPATH=os.pathsep.join(sys.path)))
    assert made.returncode == 0 and made.stdout == "ok\n", made.stdout + made.stderr


def test_unknown_layout_is_named():
    with pytest.raises(InvalidArgument, match="layout is 'rings', want one of 'ring'"):
        _layout.check_layout("rings")
