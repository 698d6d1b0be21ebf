# SPDX-License-Identifier: Apache-2.0
"""The two streams of a rank's pieces, with streams that only note what waits for what: the results are those of the whole,
neighbours may run side by side, and whoever reads a result has waited for it."""

import contextlib
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from conftest import ROOT  # noqa: E402
from mica.distributed import _compute, _join, _lanes, _ring, _sum  # noqa: E402

sys.path.insert(0, str(ROOT / "bench"))
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
    """`pieces`: the stream of each piece that ran, and the pieces that it had waited for. Whoever reads a sum or the joined
    result must have waited for all that went into it."""
    noted = {"pieces": [], "caller": Stream()}
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
        noted["pieces"].append((here, here.after))
        here.after |= {len(noted["pieces"]) - 1}

    def fill(whole):
        whole.pieces = {*getattr(whole, "pieces", ()), len(noted["pieces"]) - 1}

    def read(whole):
        assert getattr(whole, "pieces", set()) <= Stream.current.after
    for name in ("forward", "backward"):
        first(_compute._tensors, name, piece)
    for owner, reads in ((_join.Joined, "result"), (_sum.Sum, "onto")):
        first(owner, "add", fill)
        first(owner, reads, read)
    return noted


@pytest.mark.parametrize("layout, causal", ring_pieces.CASES)
def test_pieces_side_by_side(work, monkeypatch, layout, causal):
    import mica
    monkeypatch.setattr(_ring, "Travel", ring_pieces.Arrived)
    torch.manual_seed(1)
    q, k, v, d_o = (torch.randn(1, 80, 2, 16) for _ in range(4))
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    o = mica.attention(*leaves, causal=causal)
    want = torch.autograd.grad(o, leaves, d_o)
    ring = ring_pieces.Ring(layout, causal, 5, 2, q, k, v, d_o)
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
