# SPDX-License-Identifier: Apache-2.0
"""Attention of a rank's queries to keys that go round the group, and the gradients that go round with them.

In step t a rank has the keys of the t-th rank before it. While it computes, they travel on to the next rank, as far as
any rank needs them and no further. In backward the gradients of keys follow one step behind their keys and go home from
the last rank that added to them.
"""

from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.autograd.function import Function

from .._autograd import final
from .._caller import output_dtype
from . import _compute
from ._compute import Call
from ._join import Joined, sink_gradient
from ._lanes import Lanes
from ._mail import Letter, Mail
from ._pieces import Group, Mask, Part, cut, groups_of, pieces_of, sees_any
from ._query_sums import QuerySums
from ._sum import Sum

KEYS, GRADIENTS = 1, 2  # tags of letters
LEAST_ROWS_CUT = 4096  # of a piece of the own keys, half of which is held back
TILE_ROWS = 768  # whole tiles of 64, 128, 192 or 256 rows


class Slot(NamedTuple):
    """Rows [begin, end) of a rank's keys, and where they begin in the keys of a turn."""
    begin: int
    end: int
    at: int


class Turn(NamedTuple):
    """Steps that are taken together. slots[n]: where the keys of steps[n] lie; length: of all of them."""
    steps: Tuple[int, ...]
    slots: Tuple[Tuple[Slot, ...], ...]
    length: int
    groups: Tuple[Group, ...]


class Own(NamedTuple):
    """Groups of the rank's own keys: what is computed first, while keys travel, and what is held back until behind the groups of
    the turn `last`."""
    first: Tuple[Group, ...]
    held_back: Tuple[Group, ...] = ()
    last: int = 0


class Route(NamedTuple):
    """A rank's way through the steps. turns: as forward takes them; own: the first of these, where lanes are used; steps:
    one by one, as backward takes them; hops[r]: how many steps the keys of rank r travel; lengths[r]: how many keys
    rank r has."""
    turns: Tuple[Turn, ...]
    own: Own
    steps: Tuple[Turn, ...]
    hops: Tuple[int, ...]
    lengths: Tuple[int, ...]


@lru_cache(maxsize=256)
def route_of(queries: Tuple[Tuple[Part, ...], ...], keys: Tuple[Tuple[Part, ...], ...], lengths: Tuple[int, ...],
             mask: Mask, rank: int, is_packed: bool, has_alibi: bool, has_dropout: bool, together: int = 1) -> Route:
    """queries, keys: the parts of every rank. together: how many steps after the first are one turn of forward."""
    size = len(keys)
    hops = []
    for owner in range(size):
        needed = (hop for hop in range(size - 1, 0, -1) if sees_any(queries[(owner + hop) % size], keys[owner], mask))
        hops.append(next(needed, 0))

    def groups_to(parts: Sequence[Part]) -> Tuple[Group, ...]:
        # The most keys first: the sum of their gradients begins with them.
        made = groups_of(pieces_of(queries[rank], parts, mask), is_packed, has_alibi, has_dropout)
        return tuple(sorted(made, key=_keys_of, reverse=True))

    def step_of(step: int) -> Turn:
        owner = (rank - step) % size
        return Turn((step,), ((Slot(0, lengths[owner], 0),),), lengths[owner], groups_to(keys[owner]))

    def turn_of(steps: Sequence[int]) -> Turn:
        """The first stretch of every rank, then the second: neighbours that a row sees alike become one piece."""
        at, slots, parts = 0, tuple([] for _ in steps), []  # type: ignore[var-annotated]
        owners = [(rank - step) % size for step in steps]
        here = [keys[owner] if step <= hops[owner] or step == 0 else () for step, owner in zip(steps, owners)]
        for number in range(max(map(len, here))):
            for of_step, some in zip(slots, here):
                if number < len(some):
                    part = some[number]
                    of_step.append(Slot(part.begin, part.end, at))
                    parts.append(part._replace(begin=at))
                    at += part.chunk.count
        return Turn(tuple(steps), tuple(map(tuple, slots)), at, groups_to(parts))
    steps = tuple(map(step_of, range(size)))
    turns = steps if together == 1 else (turn_of((0,)), *(
        turn_of(range(step, min(step + together, size))) for step in range(1, size, together)))
    return Route(turns, _own_of(turns), steps, tuple(hops), lengths)


def _own_of(turns: Sequence[Turn]) -> Own:
    """The tiles of pieces that are seen whole are all equally long, and the last ones leave multiprocessors idle. Behind such
    pieces come the short tiles below the own keys' diagonal, which fill these."""
    groups = turns[0].groups
    last = max((number for number, turn in enumerate(turns) if turn.groups), default=0)
    are_whole = all(piece.lower is None and piece.upper is None for group in turns[last].groups for piece in group.pieces)
    if last == 0 or not are_whole or not groups or len(groups[-1].pieces) > 1:
        return Own(groups)
    piece = groups[-1].pieces[0]
    if piece.lower is not None or piece.upper is None:
        return Own(groups)
    if len(groups) > 1:
        return Own(groups[:-1], groups[-1:], last)
    if piece.q.chunk.count < LEAST_ROWS_CUT:
        return Own(groups)
    early, late = cut(piece, piece.q.chunk.count // 2 // TILE_ROWS * TILE_ROWS)
    return Own((groups[0]._replace(pieces=(late,)),), (groups[0]._replace(pieces=(early,)),), last)


def _num_pieces(turns: Sequence[Turn]) -> int:
    return sum(len(turn.groups) for turn in turns)


def _keys_of(group: Group) -> int:
    return sum(piece.k.chunk.count for piece in group.pieces)


def steps_together(mail: Optional[Mail], batch: int) -> int:
    """Where letters follow one another without the host's doing, forward takes two steps at a time: its pieces are twice
    as long and half as many. With one sequence a stretch of keys is contiguous in the keys of both."""
    return 2 if mail is not None and mail.follows_by_itself and batch == 1 else 1


class Travel:
    """Keys and values on their way round, turn by turn."""

    def __init__(self, mail: Optional[Mail], route: Route, turns: Sequence[Turn], k: Tensor, v: Tensor) -> None:
        self._mail, self._route, self._turns, self._at = mail, route, turns, 0
        self.k, self.v = k, v
        self._size: int = 1 if mail is None else mail.size
        self._rank: int = 0 if mail is None else mail.rank
        self._next: Tuple[Tensor, ...] = ()

    def has(self, step: int) -> bool:
        """Whether this rank has keys in the step: its own, or some that came so far."""
        return step == 0 or step <= self._route.hops[(self._rank - step) % self._size]

    def send_on(self) -> List[Any]:
        """Starts the exchanges for the next turn; finish them with arrive()."""
        started: List[Any] = []
        self._next = ()
        if self._mail is None or self._at + 1 == len(self._turns):
            return started
        before, turn = self._turns[self._at:self._at + 2]
        here, there = (self.k, self.v), tuple(
            t.new_empty((t.shape[0], turn.length, *t.shape[2:])) for t in (self.k, self.v))
        going = before.slots[-1]  # where in `here` the keys lie that go on
        for step, coming in zip(turn.steps, turn.slots):
            goes_on = self.has(step - 1) and step <= self._route.hops[(self._rank - step + 1) % self._size]
            sends = [Letter(t[:, slot.at:slot.at + slot.end - slot.begin].contiguous(), (self._rank + 1) % self._size)
                     for t in here for slot in going if goes_on]
            receives = [Letter(t[:, slot.at:slot.at + slot.end - slot.begin], (self._rank - 1) % self._size)
                        for t in there for slot in coming if self.has(step)]
            if started and not self._mail.follows_by_itself:
                started.pop().wait()
            started.append(self._mail.start(sends, receives, KEYS))
            here, going = there, coming
        if any(map(self.has, turn.steps)):
            self._next = there
        return started

    @contextmanager
    def onward(self) -> Iterator[None]:
        """The keys of the next turn travel meanwhile. They arrive where the library refuses the call, too: nothing is left
        on its way that the group's next call would take for its own."""
        started = self.send_on()
        try:
            yield
        finally:
            self.arrive(started)

    def arrive(self, started: List[Any]) -> None:
        for exchange in started:
            exchange.wait()
        if self._next:
            self.k, self.v = self._next
        self._at += 1


def forward(mail: Optional[Mail], route: Route, call: Call, q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor],
            alibi: Optional[Tensor], rng_state: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
    """o in q's type (of e4m3: bf16) and lse, of this rank's rows."""
    joined = Joined((*q.shape[:-1], v.shape[-1]), q.device, output_dtype(q))
    lanes = Lanes(q.device, joined.waits and _num_pieces(route.turns) > 1)
    own = route.own if lanes.are_used else Own(route.turns[0].groups)
    travel = Travel(mail, route, route.turns, k, v)

    def compute(groups: Sequence[Group], some_k: Tensor, some_v: Tensor) -> None:
        for group in groups:
            lanes.index = lanes.begun % lanes.count
            part = _compute.forward(q, some_k, some_v, group, call, alibi, rng_state, lanes)
            if joined.is_full:
                lanes.wait()
            joined.add(part)
    for number, turn in enumerate(route.turns):
        with travel.onward():
            begun = lanes.begun
            compute(turn.groups if number else own.first, travel.k, travel.v)
            if number == own.last:
                compute(own.held_back, k, v)
            lanes.wait(begun)  # of the turn before: its keys' memory is free then
    lanes.wait()
    return joined.result(sinks)


class Homeward:
    """Gradients of keys that follow them round the ring and then go home."""

    def __init__(self, mail: Optional[Mail], route: Route, like: Tuple[Tensor, Tensor],
                 needs: Tuple[bool, bool]) -> None:
        self._mail, self._route, self._like, self._needs = mail, route, like, needs
        self._on_its_way: Any = None
        self._arriving: List[Optional[Tensor]] = [None, None]
        self.home: List[Optional[Tensor]] = [None, None]

    def _empty(self, at: int, owner: int) -> Optional[Tensor]:
        like = self._like[at]
        shape = (like.shape[0], self._route.lengths[owner], *like.shape[2:])
        return torch.empty(shape, dtype=torch.float32, device=like.device) if self._needs[at] else None

    def so_far(self) -> List[Optional[Tensor]]:
        """What the ranks before have added to the gradients of the keys that this rank has now."""
        if self._on_its_way is not None:
            self._on_its_way.wait()
        return self._arriving

    def send_on(self, step: int, made: List[Optional[Tensor]]) -> None:
        """`made`: the gradients of the keys of this step, this rank's share included."""
        if self._mail is None or self._mail.size == 1:
            self.home = made
            return
        mail, hops, size, rank = self._mail, self._route.hops, self._mail.size, self._mail.rank
        owner, comes = (rank - step) % size, (rank - 1 - step) % size
        sends: List[Letter] = []
        receives: List[Letter] = []
        self._arriving = [None, None]
        if step == 0 and hops[rank] == 0:
            self.home = made
        elif step <= hops[owner]:
            to = (rank + 1) % size if step < hops[owner] else owner
            sends = [Letter(t.contiguous(), to) for t in made if t is not None]
        if step < hops[comes]:
            self._arriving = [self._empty(at, comes) for at in (0, 1)]
            receives += [Letter(t, (rank - 1) % size) for t in self._arriving if t is not None]
        if step > 0 and step == hops[rank]:
            self.home = [self._empty(at, rank) for at in (0, 1)]
            receives += [Letter(t, (rank + step) % size) for t in self.home if t is not None]
        # Tags tell steps apart: with two ranks what follows the keys and what goes home come from the same rank.
        self._on_its_way = mail.start(sends, receives, GRADIENTS + step)


def backward(mail: Optional[Mail], route: Route, call: Call, d_o: Tensor, d_lse: Optional[Tensor], q: Tensor, k: Tensor,
             v: Tensor, o: Tensor, lse: Tensor, alibi: Optional[Tensor], rng_state: Optional[Tensor],
             needs: Tuple[bool, bool, bool]) -> Tuple[Optional[Tensor], ...]:
    """The gradients of q, k and v, None where not needed: in fp32, that of q maybe in q's type."""
    lanes = Lanes(q.device, _num_pieces(route.steps) > 1)
    query_sums = QuerySums() if q.is_cuda and _num_pieces(route.steps) > 1 else None
    sums_of_dq = [Sum(q, needs[0]) for _ in range(lanes.count)]  # what is not in query_sums, of each lane
    travel = Travel(mail, route, route.steps, k, v)
    homeward = Homeward(mail, route, (k, v), needs[1:])
    made: Dict[int, Tuple[Sum, Sum]] = {}  # of steps that wait for hand_on

    def hand_on(step: int) -> None:
        before, (dk, dv) = homeward.so_far(), made.pop(step)
        homeward.send_on(step, [dk.onto(before[0]), dv.onto(before[1])] if travel.has(step) else [None, None])

    # The gradients of a step travel while the next one is computed. Lanes add them up when that has begun, so that it
    # begins early; but not before the last one, behind which nothing more would hide them.
    last = max((step for step, turn in enumerate(route.steps) if turn.groups), default=0)
    for step, turn in enumerate(route.steps):
        with travel.onward():
            is_late = lanes.are_used and step < last
            if step > 0 and not is_late:
                lanes.wait()
                hand_on(step - 1)
            begun = lanes.begun
            lanes.index = step % lanes.count
            made[step] = Sum(travel.k, needs[1]), Sum(travel.v, needs[2])
            for group in turn.groups:
                _compute.backward(d_o, q, travel.k, travel.v, o, lse, d_lse, group, call, alibi, rng_state,
                                  (sums_of_dq[lanes.index], *made[step]), query_sums, lanes)
            if step > 0 and is_late:
                lanes.wait(begun)
                hand_on(step - 1)
    lanes.wait()
    hand_on(len(route.steps) - 1)
    dq = None if query_sums is None else query_sums.end(sums_of_dq, q)
    if dq is None:
        dq = sums_of_dq[0].onto(None)
        for one in sums_of_dq[1:]:
            dq = one.onto(dq)
    homeward.so_far()
    return dq, homeward.home[0], homeward.home[1]


class Attend(Function):
    """Attention of local queries to keys that go round, in torch's autograd graph."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], alibi: Optional[Tensor],
                rng_state: Optional[Tensor], mail: Optional[Mail], route: Route, call: Call) -> Any:
        o, lse = forward(mail, route, call, q, k, v, sinks, alibi, rng_state)
        ctx.save_for_backward(q, k, v, o, lse, sinks, alibi, rng_state)
        ctx.mail, ctx.route, ctx.call = mail, route, call
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx: Any, d_o: Optional[Tensor], d_lse: Optional[Tensor]) -> Any:
        q, k, v, o, lse, sinks, alibi, rng_state = ctx.saved_tensors
        # Other ranks may need this one's share even where nothing comes in here: zeros go the same way.
        d_o = torch.zeros_like(o) if d_o is None else d_o.resolve_neg()
        d_o = d_o if d_o.stride(-1) == 1 else d_o.contiguous()
        d_lse = None if d_lse is None else d_lse.resolve_neg()
        deterministic = torch.are_deterministic_algorithms_enabled()
        call = ctx.call._replace(deterministic=ctx.call.deterministic or deterministic)
        needs = ctx.needs_input_grad[:3]
        with torch.no_grad():
            made: Tuple[Optional[Tensor], ...] = (None, None, None)
            if any(needs):  # or else only the sinks need one
                made = backward(ctx.mail, ctx.route, call, d_o, d_lse, q, k, v, o, lse, alibi, rng_state, needs)
            results: List[Optional[Tensor]] = [None if t is None else t.to(like.dtype)
                                               for t, like in zip(made, (q, k, v))]
            results.append(sink_gradient(sinks, o, lse, d_o, d_lse) if ctx.needs_input_grad[3] else None)
        results = [t if t is None else final(t, q, k, v, d_o) for t in results]
        return (*results, None, None, None, None, None)
