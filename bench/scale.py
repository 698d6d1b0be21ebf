#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long attention over many GPUs takes, by layout: a model of measured piece times and of what links move.

    bench/scale.py                                  the table for 1M tokens on 8 to 1024 H200s
    bench/scale.py --plot docs/evidence/scale.svg   the same as a plot
    bench/scale.py --gloo 2                         gloo processes of this machine, measured and modelled

The forward pass of one layer: q, k and v lie spread over the ranks, K and V travel while pieces are computed. A piece
takes its floating-point operations at the measured rate, and not less than a launch; a step takes the longer of computing
and travelling. A link has a bandwidth each way and a latency. Ranks of a node are joined by one link, nodes by another: a
ring is as fast as its slowest hop, an all-to-all moves what leaves the node over the slow link.
"""

import argparse
import json
import math
import pathlib
import sys
import time
from typing import Any, Dict, List, NamedTuple, Optional

ROOT = pathlib.Path(__file__).resolve().parents[1]


LAUNCH = 20e-6  # seconds that the host takes for a piece
JOIN = 7.2e12  # bytes a second of an H200, counted as if each part were joined by itself: one pass takes four


class Link(NamedTuple):
    name: str
    bytes_per_second: float  # each way
    latency: float  # seconds a message


NVLINK = Link("NVLink", 450e9, 5e-6)
INFINIBAND = Link("InfiniBand", 50e9, 10e-6)


class Device(NamedTuple):
    """rate: floating-point operations a second of a large piece; ramp: operations at which a piece has half that rate;
    join: bytes a second at which partial results are joined."""
    name: str
    rate: float
    ramp: float
    launch: float
    join: float


class Problem(NamedTuple):
    tokens: int
    heads: int = 16
    key_heads: int = 16
    dim: int = 128
    batch: int = 1
    causal: bool = True
    element: int = 2  # bytes


class Estimate(NamedTuple):
    seconds: float
    computing: float  # of the busiest rank
    travelling: float  # of the slowest rank, were nothing computed
    note: str = ""

    @property
    def is_hidden(self) -> bool:
        return self.seconds < 1.05 * self.computing


def piece_seconds(device: Device, flops: float) -> float:
    return device.launch + (flops + device.ramp) / device.rate if flops else 0.0


def _pair_flops(p: Problem, rows: float, keys: float) -> float:
    return 4.0 * p.batch * p.heads * p.dim * rows * keys


def _ring_link(ranks: int, node: int, inside: Link, between: Link) -> Link:
    return inside if ranks <= node else between


def _pieces(layout: str, rank: int, step: int, ranks: int) -> List[float]:
    """The pieces of a rank in a step, in parts of (tokens / ranks)^2."""
    if layout == "ring":
        return [0.5] if step == 0 else [1.0] if step <= rank else []
    if layout == "stripe":
        return [0.5]
    # zigzag: a first half by itself, a second half with all before it; then both halves with one, or one with both
    return [0.125, 0.375] if step == 0 else [0.5]


def ring(device: Device, p: Problem, ranks: int, node: int, inside: Link, between: Link, layout: str) -> Estimate:
    local = p.tokens / ranks
    link = _ring_link(ranks, node, inside, between)
    keys_bytes = 2 * p.batch * local * p.key_heads * p.dim * p.element
    joins = p.batch * local * p.heads * p.dim * (8 + p.element) / device.join
    travel = link.latency + keys_bytes / link.bytes_per_second
    whole = _pair_flops(p, local, local)
    busiest = total = 0.0
    for rank in ({0, ranks - 1} if p.causal and layout == "ring" else {ranks - 1}):
        computing = seconds = 0.0
        for step in range(ranks):
            parts = _pieces(layout, rank, step, ranks) if p.causal else [1.0]
            step_seconds = sum(piece_seconds(device, part * whole) for part in parts) + (joins if step and parts else 0)
            computing += step_seconds
            seconds += max(step_seconds, travel if step + 1 < ranks else 0)
        busiest, total = max(busiest, computing), max(total, seconds)
    return Estimate(total, busiest, travel * (ranks - 1))


def all_to_all_seconds(bytes_of_rank: float, ranks: int, node: int, inside: Link, between: Link) -> float:
    """Each rank sends every other an equal part."""
    if ranks == 1:
        return 0.0
    part = bytes_of_rank / ranks
    near, far = min(ranks, node) - 1, max(0, ranks - node)
    return max(near * part / inside.bytes_per_second, far * part / between.bytes_per_second) + \
        inside.latency * math.ceil(math.log2(ranks)) + (between.latency * math.ceil(math.log2(ranks)) if far else 0)


def ulysses(device: Device, p: Problem, ranks: int, node: int, inside: Link, between: Link) -> Optional[Estimate]:
    if ranks > p.heads:
        return None
    local = p.tokens / ranks
    of_queries = p.batch * local * p.heads * p.dim * p.element
    of_keys = p.batch * local * max(p.key_heads, ranks) * p.dim * p.element
    travelling = all_to_all_seconds(2 * of_queries + 2 * of_keys, ranks, node, inside, between)
    flops = _pair_flops(p._replace(heads=p.heads // ranks), p.tokens, p.tokens) * (0.5 if p.causal else 1)
    computing = piece_seconds(device, flops)
    return Estimate(computing + travelling, computing, travelling)


def product(device: Device, p: Problem, ranks: int, node: int, inside: Link, between: Link) -> Optional[Estimate]:
    """Heads divided within a node, a zigzag ring between nodes."""
    columns = min(node, p.heads, ranks)
    if ranks <= columns:
        return None
    rows = ranks // columns
    local = p.tokens / ranks
    turned = p._replace(heads=p.heads // columns, key_heads=max(1, p.key_heads // columns))
    around = ring(device, turned, rows, 1, inside, between, "zigzag")
    bytes_turned = 2 * p.batch * local * (p.heads + max(p.key_heads, columns)) * p.dim * p.element
    turning = all_to_all_seconds(bytes_turned, columns, columns, inside, between)
    return Estimate(around.seconds + turning, around.computing, around.travelling + turning, f"{rows} x {columns}")


def gather(device: Device, p: Problem, ranks: int, node: int, inside: Link, between: Link) -> Estimate:
    """All keys first, then one call of the rank's rows; in order, so that the last rank has the most to do."""
    local = p.tokens / ranks
    link = _ring_link(ranks, node, inside, between)
    travelling = 2 * p.batch * (p.tokens - local) * p.key_heads * p.dim * p.element / link.bytes_per_second
    flops = _pair_flops(p, local, p.tokens - local / 2 if p.causal else p.tokens)
    computing = piece_seconds(device, flops)
    return Estimate(computing + travelling, computing, travelling)


def estimates(device: Device, p: Problem, ranks: int, node: int = 8, inside: Link = NVLINK,
              between: Link = INFINIBAND) -> Dict[str, Estimate]:
    made: Dict[str, Optional[Estimate]] = {
        layout: ring(device, p, ranks, node, inside, between, layout) for layout in ("ring", "zigzag", "stripe")}
    made["ulysses"] = ulysses(device, p, ranks, node, inside, between)
    made["ulysses x zigzag"] = product(device, p, ranks, node, inside, between)
    made["gather"] = gather(device, p, ranks, node, inside, between)
    return {layout: estimate for layout, estimate in made.items() if estimate is not None}


def best(of: Dict[str, Estimate]) -> str:
    return min(of, key=lambda layout: of[layout].seconds)


def device_of(path: pathlib.Path) -> Device:
    """From the committed results of whole calls: the rate of the longest, and the ramp that the shorter ones show."""
    data = json.loads(path.read_text())
    points = []  # (operations, operations a second) of a call
    for cell in data["cells"]:
        of = cell["problem"]
        if (of["pass"], of["dtype"], of["dim"], of["causal"]) == ("forward", "bf16", 128, "none"):
            flops = 4.0 * of["batch"] * of["heads_q"] * of["dim"] * of["seqlen_q"] * of["seqlen_k"]
            points.append((flops, cell["gflops"] * 1e9))
    rate = max(points)[1]
    ramps = [flops * (rate / reached - 1) for flops, reached in points if reached < 0.95 * rate]
    return Device("NVIDIA H200", rate, sum(ramps) / max(len(ramps), 1), LAUNCH, JOIN)


def table(device: Device, p: Problem, counts: List[int]) -> str:
    layouts = ("ring", "zigzag", "stripe", "ulysses", "ulysses x zigzag", "gather")
    lines = [f"{p.tokens:,} tokens, {p.heads} heads of {p.dim}, {p.key_heads} of keys, "
             f"{'causal' if p.causal else 'not causal'}, forward, ms on {device.name}; * communication is not hidden",
             "GPUs   " + "".join(f"{layout:>19}" for layout in layouts) + "   take"]
    for ranks in counts:
        of = estimates(device, p, ranks)
        cells = []
        for layout in layouts:
            estimate = of.get(layout)
            text = "-" if estimate is None else f"{1e3 * estimate.seconds:.2f}{' ' if estimate.is_hidden else '*'}"
            cells.append(f"{text:>19}")
        lines.append(f"{ranks:5d}  " + "".join(cells) + f"   {best(of)}")
    return "\n".join(lines)


COLOURS = {"ring": "#888888", "zigzag": "#1f6feb", "stripe": "#8250df", "ulysses": "#bf8700",
           "ulysses x zigzag": "#1a7f37", "gather": "#cf222e"}


def plot(device: Device, p: Problem, counts: List[int]) -> str:
    """Times over GPUs, both logarithmic, as SVG; the dotted line is perfect division of the work."""
    width, height, left, top = 760, 420, 70, 50
    of = {ranks: estimates(device, p, ranks) for ranks in counts}
    seconds = [e.seconds for es in of.values() for e in es.values()]
    work = _pair_flops(p, p.tokens, p.tokens) * (0.5 if p.causal else 1)
    ideal = {ranks: work / device.rate / ranks for ranks in counts}
    low, high = math.log10(min(*seconds, *ideal.values())), math.log10(max(seconds))

    def x(ranks: int) -> float:
        return left + (width - left - 190) * (math.log2(ranks / counts[0]) / math.log2(counts[-1] / counts[0]))

    def y(value: float) -> float:
        return top + (height - top - 50) * (high - math.log10(value)) / (high - low)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
             f'font-size="12"><rect width="{width}" height="{height}" fill="white"/>',
             f'<text x="{left}" y="20" font-size="14">Forward of {p.tokens // 2**20}M tokens, {p.heads} heads of '
             f'{p.dim}, {p.key_heads} of keys, causal: modelled ms</text>',
             f'<text x="{left}" y="37" fill="#555">pieces as on {device.name}; 8 GPUs a node, NVLink 450 GB/s, '
             'InfiniBand 50 GB/s</text>']
    for exponent in range(math.floor(low), math.ceil(high) + 1):
        for digit in (1, 2, 5):
            value = digit * 10.0 ** exponent
            if low <= math.log10(value) <= high:
                parts.append(f'<line x1="{left}" x2="{x(counts[-1]):.0f}" y1="{y(value):.1f}" y2="{y(value):.1f}" '
                             f'stroke="#ddd"/><text x="{left - 8}" y="{y(value) + 4:.1f}" text-anchor="end">'
                             f'{1e3 * value:g}</text>')
    for ranks in counts:
        parts.append(f'<text x="{x(ranks):.1f}" y="{height - 25}" text-anchor="middle">{ranks}</text>')
    parts.append(f'<text x="{(left + x(counts[-1])) / 2:.0f}" y="{height - 6}" text-anchor="middle">GPUs</text>')
    points = " ".join(f"{x(ranks):.1f},{y(ideal[ranks]):.1f}" for ranks in counts)
    parts.append(f'<polyline points="{points}" fill="none" stroke="#000" stroke-dasharray="2 4"/>')
    for at, (layout, colour) in enumerate(COLOURS.items()):
        points = " ".join(f"{x(r):.1f},{y(of[r][layout].seconds):.1f}" for r in counts if layout in of[r])
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
                     f'<line x1="{width - 165}" x2="{width - 140}" y1="{70 + 20 * at}" y2="{70 + 20 * at}" '
                     f'stroke="{colour}" stroke-width="3"/><text x="{width - 134}" y="{74 + 20 * at}">{layout}</text>')
    parts.append(f'<line x1="{width - 165}" x2="{width - 140}" y1="190" y2="190" stroke="#000" stroke-dasharray="2 4"/>'
                 f'<text x="{width - 134}" y="194">no communication</text>')
    return "\n".join(parts) + "\n</svg>\n"


def _gloo_rank(rank: int, size: int, folder: str, tokens: int, layouts: List[str], results: Any) -> None:
    sys.path.insert(0, str(ROOT / "python"))
    import torch
    import torch.distributed as dist

    import mica
    from mica import distributed
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size)
    heads, dim = 4, 64

    def timed(function, repeats=5):
        function()
        times = []
        for _ in range(repeats):
            dist.barrier()
            start = time.perf_counter()
            function()
            times.append(time.perf_counter() - start)
        return min(times)

    def tensors(rows):
        return [torch.randn(1, rows, heads, dim) for _ in range(3)]
    made = {}
    local = tensors(tokens // size)
    whole_piece = timed(lambda: mica.attention(*local))
    half_piece = timed(lambda: mica.attention(*local, causal=True))
    small = [t[:, :64].contiguous() for t in local]
    made["piece"], made["half"], made["launch"] = whole_piece, half_piece, timed(lambda: mica.attention(*small))
    peers = [(rank + 1) % size, (rank - 1) % size]
    empty = torch.empty_like(local[0])

    def exchange():
        works = [dist.irecv(empty, peers[1]), dist.isend(local[0], peers[0])]
        for work in works:
            work.wait()
    made["exchange"] = timed(exchange)
    o, other = torch.randn(1, tokens // size, heads, dim), torch.randn(1, tokens // size, heads, dim)
    share = torch.rand(1, tokens // size, heads, 1)
    made["join"] = timed(lambda: o.lerp_(other, share))
    for layout in layouts:
        made[layout] = timed(lambda layout=layout: distributed.attention(*local, causal=True, layout=layout))
    everywhere: List = [None] * size
    dist.all_gather_object(everywhere, made)
    if rank == 0:
        results.put({key: max(row[key] for row in everywhere) for key in made})
    dist.destroy_process_group()


def gloo(size: int, tokens: int) -> Dict[str, Dict[str, float]]:
    """Measured on this machine, and what the model says of the same pieces and the same link."""
    import multiprocessing
    import tempfile
    context = multiprocessing.get_context("spawn")
    layouts = ["ring", "zigzag", "stripe"]
    with tempfile.TemporaryDirectory() as folder:
        results = context.Queue()
        ranks = [context.Process(target=_gloo_rank, args=(rank, size, folder, tokens, layouts, results))
                 for rank in range(size)]
        for process in ranks:
            process.start()
        measured = results.get(timeout=300)
        for process in ranks:
            process.join()
    local = tokens // size
    p = Problem(tokens, 4, 4, 64, element=4)
    flops = _pair_flops(p, local, local)
    device = Device("this CPU", flops / max(measured["piece"] - measured["launch"], 1e-9), 0.0, measured["launch"],
                    p.heads * p.dim * local * 12 / max(measured["join"], 1e-9))
    link = Link("gloo", local * p.heads * p.dim * 4 / measured["exchange"], 100e-6)
    modelled = {layout: ring(device, p, size, size, link, link, layout).seconds for layout in layouts}
    return {layout: {"measured_ms": 1e3 * measured[layout], "modelled_ms": 1e3 * modelled[layout]}
            for layout in layouts}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=2**20)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--key-heads", type=int, default=8)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--measured", type=pathlib.Path, default=ROOT / "bench/results/h200_cuda_bshd.json",
                        help="whole calls, as bench/compare.py writes them")
    parser.add_argument("--plot", type=pathlib.Path)
    parser.add_argument("--gloo", type=int, metavar="RANKS")
    parser.add_argument("--gloo-tokens", type=int, default=4096)
    given = parser.parse_args()
    if given.gloo:
        for layout, row in gloo(given.gloo, given.gloo_tokens).items():
            ratio = row["measured_ms"] / row["modelled_ms"]
            print(f"{layout:8} measured {row['measured_ms']:8.2f} ms   modelled {row['modelled_ms']:8.2f} ms   "
                  f"{ratio:.2f}x")
        return 0
    device = device_of(given.measured)
    problem = Problem(given.tokens, given.heads, given.key_heads, given.dim)
    counts = [2**n for n in range(3, 11)]
    print(table(device, problem, counts))
    if given.plot:
        given.plot.write_text(plot(device, problem, counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
