# SPDX-License-Identifier: Apache-2.0
"""The two streams of a rank's pieces, with streams that only note what waits for what: the results are those of the whole,
neighbours may run side by side, and whoever reads a result has waited for it."""

import contextlib
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from conftest import ROOT  # noqa: E402
from mica.distributed import _compute, _join, _lanes, _ring, _sum  # noqa: E402

sys.path.append(str(ROOT / "bench"))  # behind: it has a ranks.py, too
ring_pieces = pytest.importorskip("ring_pieces", reason="bench/ is not here")


class Event:
    def __init__(self, after):
        self.after = after


class Stream:
    """after: all work that what comes next on this stream waits for."""
    current = None

    def __init__(self):
        self.after = frozenset()

    def wait_event(self, event):
        self.after |= event.after

    def record_event(self):
        return Event(self.after)

    @contextlib.contextmanager
    def use(self):
        before, Stream.current = Stream.current, self
        yield
        Stream.current = before


@pytest.fixture
def work(monkeypatch):
    """`pieces`: the stream of each piece that ran, and what it had waited for. A piece must have waited for the keys that came;
    whoever reads a sum or the joined result, or adds to a sum, for all that went into it before."""
    noted = {"pieces": [], "caller": Stream(), "keys": set()}
    streams = Stream(), Stream()
    Stream.current = noted["caller"]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: Stream.current)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream.use())
    monkeypatch.setattr(_join.Joined, "waits", True)
    begin = _lanes.Lanes.__init__

    def wanted(self, device, are_wanted):
        begin(self, device, False)
        self._streams = streams if are_wanted else ()
    monkeypatch.setattr(_lanes.Lanes, "__init__", wanted)

    def first(owner, name, act):
        function = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, **named: (act(given[0]), function(*given, **named))[1])

    def piece(_):
        here = Stream.current
        assert noted["keys"] <= here.after
        noted["pieces"].append((here, here.after))
        here.after |= {len(noted["pieces"]) - 1}

    def fill(whole):
        if isinstance(whole, _sum.Sum) or whole.is_full:
            read(whole)
        whole.pieces = {*getattr(whole, "pieces", ()), len(noted["pieces"]) - 1}

    def read(whole):
        assert getattr(whole, "pieces", set()) <= Stream.current.after
    for name in ("forward", "backward"):
        first(_compute._tensors, name, piece)
    for owner, reads in ((_join.Joined, "result"), (_sum.Sum, "onto")):
        first(owner, "add", fill)
        first(owner, reads, read)

    class Arrived(ring_pieces.Arrived):
        """Keys that come on the caller's stream, into memory that those before the last turn's have left."""

        def __init__(self, *given):
            super().__init__(*given)
            self._first = self._begin = len(noted["pieces"])
            self.come()

        def come(self):
            noted["keys"].add(f"keys {len(noted['keys'])}")
            noted["caller"].after |= noted["keys"]

        def arrive(self, started):
            assert {*range(self._first, self._begin)} <= noted["caller"].after
            self._begin = len(noted["pieces"])
            super().arrive(started)
            self.come()
    monkeypatch.setattr(_ring, "Travel", Arrived)
    return noted


@pytest.fixture(params=[False, True], ids=["whole", "held-back"])
def is_held_back(request, monkeypatch):
    """Whether own keys of so few rows are cut too."""
    if request.param:
        monkeypatch.setattr(_ring, "LEAST_ROWS_CUT", 4)
        monkeypatch.setattr(_ring, "TILE_ROWS", 2)
    _ring.route_of.cache_clear()
    yield request.param
    _ring.route_of.cache_clear()


def test_a_full_join_waits(work, monkeypatch):
    """One part at most: when the next comes, it is read."""
    monkeypatch.setattr(_join, "MOST_PARTS", 1)
    q, k, v = (torch.randn(1, 80, 2, 16) for _ in range(3))
    ring = ring_pieces.Ring("ring", False, 5, 1, q, k, v, v)
    for rank in range(5):
        _ring.forward(ring.post(rank), ring.routes[rank], ring.call, ring.q[rank], ring.k[rank], ring.v[rank], None, None, None)


def test_home(work):
    """What a piece of work asks of the caller's stream comes after all that is there, and the lane goes on after it."""
    lanes = _lanes.Lanes(torch.device("cpu"), True)
    with lanes.on():
        with lanes.home():
            assert Stream.current is work["caller"]
            Stream.current.after |= {"made at home"}
        assert Stream.current is not work["caller"] and "made at home" in Stream.current.after


@pytest.mark.parametrize("layout, causal", ring_pieces.CASES)
def test_pieces_side_by_side(work, is_held_back, layout, causal):
    import mica
    torch.manual_seed(1)
    q, k, v, d_o = (torch.randn(1, 80, 2, 16) for _ in range(4))
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    o = mica.attention(*leaves, causal=causal)
    want = torch.autograd.grad(o, leaves, d_o)
    ring = ring_pieces.Ring(layout, causal, 5, 2, q, k, v, d_o)
    assert any(route.own.held_back for route in ring.routes) == (layout == "zigzag" or
                                                                 layout == "ring" and causal and is_held_back)
    beside = []
    made, gradients = [], []

    def pieces_of(function):
        """Runs one rank; its pieces that did not wait for the one before, of how many."""
        first = len(work["pieces"])
        result = function()
        mine = work["pieces"][first:]
        if len(mine) > 1:
            assert all(stream is not work["caller"] for stream, _ in mine)
            beside.append((sum(at - 1 not in after for at, (_, after) in enumerate(mine[1:], first + 1)), len(mine)))
        assert {*range(first, first + len(mine))} <= work["caller"].after
        return result

    for rank in range(5):
        made.append(pieces_of(lambda: _ring.forward(ring.post(rank), ring.routes[rank], ring.call, ring.q[rank], ring.k[rank],
                                                    ring.v[rank], None, None, None)))
    assert sum(few for few, _ in beside) == sum(all_of - 1 for _, all_of in beside)  # all but the first
    assert torch.allclose(ring.whole([part for part, _ in made]), o.detach(), atol=1e-5)
    beside.clear()
    for rank, (part, lse) in enumerate(made):
        dq, *home = pieces_of(lambda: _ring.backward(ring.post(rank), ring.routes[rank], ring.call, ring.d_o[rank], None,
                                                     ring.q[rank], ring.k[rank], ring.v[rank], part, lse, None, None,
                                                     (True,) * 3))
        gradients.append(dq)
        if ring.routes[rank].hops[rank] == 0:
            ring.sums[rank] = home
    assert sum(few for few, _ in beside) >= 5  # not before the last step
    assert torch.allclose(ring.whole(gradients), want[0], atol=1e-5)
    for at in (0, 1):
        assert torch.allclose(ring.whole([sums[at] for sums in ring.sums]), want[1 + at], atol=1e-5)
