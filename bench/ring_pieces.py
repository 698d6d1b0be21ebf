#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a ring costs without its communication: the pieces of all ranks, one after the other on one device, joined and
their gradients added up as mica.distributed does it, against the whole call. Checked before it is timed.

    bench/ring_pieces.py [--tokens 65536] [--ranks 8] [--heads 16] [--key-heads 16] [--dims 128,64]
                         [--together 2] [--json FILE]
"""

import argparse
import json
import statistics
import time

import torch

import mica
from mica.distributed import _pieces, _ring, functions
from mica.distributed._compute import Call

CASES = [("ring", False), ("ring", True), ("zigzag", True), ("stripe", True)]


class Post:
    """Stands for a rank's Mail: the other ranks' tensors are here already, and nothing is copied. The gradients of keys
    are handed on in the order in which the ranks are run."""
    follows_by_itself = True

    def __init__(self, ring, rank):
        self.rank, self.size, self.ring = rank, ring.size, ring
        self._hops, self._sums = ring.routes[rank].hops, ring.sums

    def start(self, sends, receives, tag):
        step = tag - _ring.GRADIENTS
        owner, comes = (self.rank - step) % self.size, (self.rank - 1 - step) % self.size
        made = [letter.tensor for letter in sends]
        if made:  # at home nothing came before, but here other ranks may have been run
            before = self._sums[owner] if step == 0 else None
            self._sums[owner] = made if before is None else [a.add_(b) for a, b in zip(before, made)]
        if step < self._hops[comes]:  # what follows the keys is received first, then what comes home
            if self._sums[comes] is None:
                self._sums[comes] = [torch.zeros_like(letter.tensor) for letter in receives[:2]]
            for letter, tensor in zip(receives, self._sums[comes]):
                letter.tensor.set_(tensor)
        return self

    def wait(self):
        pass


class Arrived(_ring.Travel):
    """Keys that have all come, and lie where a rank would have received them."""

    def send_on(self):
        return []

    def arrive(self, started):
        self._at += 1
        if self._at < len(self._turns):
            self.k, self.v = self._mail.ring.keys_of(self._rank, self._turns[self._at])


def once(function):
    """Milliseconds of one call."""
    if not torch.cuda.is_available():
        start = time.perf_counter()
        function()
        return 1e3 * (time.perf_counter() - start)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    function()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def in_turns(repeats, *functions):
    """The median of each. They take turns: a chip at its power limit owes some of its clock to what ran before."""
    times = [[once(function) for function in functions] for _ in range(repeats + 1)][1:]
    return [statistics.median(column) for column in zip(*times)]


def relative(got, want):
    return ((got.float() - want.float()).abs().max() / want.float().abs().max()).item()


def rounding(q, k, v, causal, *results):
    """The largest error of each result in some rows of the first head, against doubles."""
    rows = torch.arange(0, q.shape[1], max(q.shape[1] // 256, 1), device=q.device)
    q, k, v = (t[0, :, 0].double() for t in (q, k, v))
    scores = q[rows] @ k.T / q.shape[-1] ** 0.5
    if causal:
        scores.masked_fill_(torch.arange(k.shape[0], device=k.device) > rows[:, None], -float("inf"))
    want = torch.softmax(scores, -1) @ v
    return [(o[0, rows, 0].double() - want).abs().max().item() for o in results]


class Ring:
    """The ranks of a layout, run one after the other."""

    def __init__(self, layout, causal, size, together, *whole):
        self.length, self.size = whole[0].shape[1], size
        self.parts = functions._parts(layout, self.length, size)
        counts = tuple(sum(part.chunk.count for part in parts) for parts in self.parts)
        mask = _pieces.Mask(None, 0 if causal else None, (0,))
        self.routes = [_ring.route_of(self.parts, self.parts, counts, mask, rank, False, False, False, together)
                       for rank in range(size)]
        self.q, self.k, self.v, self.d_o = (self.shard(t) for t in whole)
        self.call = Call(0.0, 0.0, 0.0, False, False, 0, whole[0].shape[2], False)
        self.sums, self._keys = [None] * size, {}
        for rank, route in enumerate(self.routes):
            for turn in route.turns:
                self._keys[rank, turn.steps] = [self._laid_out(tensors, rank, turn) for tensors in (self.k, self.v)]

    def shard(self, tensor):
        return [torch.cat([tensor[:, p.chunk.first:p.chunk.first + p.chunk.count * p.chunk.step:p.chunk.step]
                           for p in parts], 1) for parts in self.parts]

    def whole(self, parts):
        made = torch.empty((parts[0].shape[0], self.length, *parts[0].shape[2:]), dtype=parts[0].dtype,
                           device=parts[0].device)
        for rank, tensor in enumerate(parts):
            for p in self.parts[rank]:
                made[:, p.chunk.first:p.chunk.first + p.chunk.count * p.chunk.step:p.chunk.step] = \
                    tensor[:, p.begin:p.end]
        return made

    def _laid_out(self, tensors, rank, turn):
        if len(turn.steps) == 1:
            return tensors[(rank - turn.steps[0]) % self.size]
        made = torch.empty_like(tensors[0][:, :1]).expand(-1, turn.length, -1, -1).contiguous()
        for step, slots in zip(turn.steps, turn.slots):
            for slot in slots:
                made[:, slot.at:slot.at + slot.end - slot.begin] = tensors[(rank - step) % self.size][:, slot.begin:slot.end]
        return made

    def keys_of(self, rank, turn):
        kept = self._keys.get((rank, turn.steps))
        owner = (rank - turn.steps[0]) % self.size
        return kept if kept is not None else (self.k[owner], self.v[owner])

    def post(self, rank):
        return Post(self, rank)

    def forward(self):
        return [_ring.forward(self.post(rank), self.routes[rank], self.call, self.q[rank], self.k[rank], self.v[rank],
                              None, None, None) for rank in range(self.size)]

    def backward(self, made):
        """The gradients of each rank's queries; those of keys are in sums."""
        self.sums[:] = [None] * self.size
        gradients = []
        for rank, (o, lse) in enumerate(made):
            dq, *home = _ring.backward(self.post(rank), self.routes[rank], self.call, self.d_o[rank], None,
                                       self.q[rank], self.k[rank], self.v[rank], o, lse, None, None, (True,) * 3)
            if self.routes[rank].hops[rank] == 0:
                self.sums[rank] = home
            gradients.append(dq.to(self.q[rank].dtype))
        return gradients


def measure(layout, causal, dim, heads, key_heads, tokens, size, together, device, repeats):
    dtype = torch.bfloat16
    q, k, v, d_o = (torch.randn(1, tokens, some, dim, device=device, dtype=dtype)
                    for some in (heads, key_heads, key_heads, heads))
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    o = mica.attention(*leaves, causal=causal)
    want = torch.autograd.grad(o, leaves, d_o, retain_graph=True)
    ring = Ring(layout, causal, size, together, q, k, v, d_o)
    made = ring.forward()
    got = [ring.whole([part for part, _ in made]), ring.whole(ring.backward(made))]
    got += [ring.whole([sums[at] for sums in ring.sums]) for at in (0, 1)]
    errors = dict(zip(("o", "dq", "dk", "dv"), (relative(a, b.detach()) for a, b in zip(got, (o, *want)))))
    assert max(errors.values()) < 2e-2, errors
    of_whole, of_ring = rounding(q, k, v, causal, o.detach(), got[0])
    assert of_ring <= 2 * of_whole + 1e-6, (of_ring, of_whole)
    del got, want
    with torch.no_grad():
        forward = in_turns(repeats, lambda: mica.attention(q, k, v, causal=causal), ring.forward)
    backward = in_turns(repeats, lambda: torch.autograd.grad(o, leaves, d_o, retain_graph=True),
                        lambda: ring.backward(made))
    return dict(layout=layout, causal=causal, dim=dim, heads=heads, key_heads=key_heads, tokens=tokens, pieces=size,
                steps_together=together,
                whole_forward_ms=forward[0], ring_forward_ms=forward[1], forward_ratio=forward[1] / forward[0],
                whole_backward_ms=backward[0], ring_backward_ms=backward[1], backward_ratio=backward[1] / backward[0],
                relative_errors=errors, rounding_of_whole=of_whole, rounding_of_ring=of_ring)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--key-heads", type=int, help="as many as heads, if not given")
    parser.add_argument("--together", type=int, default=2, help="steps that forward takes at a time")
    parser.add_argument("--cases", default="all", help="such as ring,zigzag")
    parser.add_argument("--dims", default="128,64")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", help="write the figures here")
    given = parser.parse_args()
    _ring.Travel = Arrived
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = dict(device=torch.cuda.get_device_name() if device == "cuda" else "cpu", torch=torch.__version__, rows=[])
    for dim in map(int, given.dims.split(",")):
        for layout, causal in CASES:
            if given.cases != "all" and layout not in given.cases.split(","):
                continue
            row = measure(layout, causal, dim, given.heads, given.key_heads or given.heads, given.tokens, given.ranks,
                          given.together, device, given.repeats)
            data["rows"].append(row)
            print(f"{layout:7s} d{dim} causal={causal}: forward {row['whole_forward_ms']:.1f} {row['ring_forward_ms']:.1f}"
                  f" ms ({row['forward_ratio']:.3f}x), backward {row['whole_backward_ms']:.1f} "
                  f"{row['ring_backward_ms']:.1f} ms ({row['backward_ratio']:.3f}x), rounding of o "
                  f"{row['rounding_of_whole']:.1e} {row['rounding_of_ring']:.1e}", flush=True)
            if given.json:
                with open(given.json, "w") as file:
                    json.dump(data, file, indent=1)


if __name__ == "__main__":
    main()
