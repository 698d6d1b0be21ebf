#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decode on caches of e4m3 beside the same caches in bf16, from Python: tokens of e4m3 for one of bf16.

    python bench/fp8_cache.py --json bench/results/fp8_cache_h200.json
    python bench/fp8_cache.py --filter d128 --layout bhsd
    python bench/fp8_cache.py --device cpu --shrink 64       # a smoke test

Queries are bf16, keys and values have a factor for each head. Every result is compared with the formula in double on what is
stored before it is timed. Calls are replayed in CUDA graphs (on the CPU they are timed by the clock); both kinds of cache take
turns, figures are medians. "bound" in a cell: a call of e4m3 takes 80 us or more, so that its beginning and end count little.
Exit codes: 0; 1 a result is wrong; 2 usage."""

import argparse
import datetime
import importlib.util
import json
import math
import os
import re
import statistics
import sys
import time

from compare import commit
from torch_device import torch_device

HERE = os.path.dirname(os.path.abspath(__file__))
if importlib.util.find_spec("mica") is None:  # not installed: the package of this tree or bundle
    sys.path.insert(0, os.path.join(os.path.dirname(HERE), "python"))

# batch, keys, query heads, key heads, columns, query rows, page size (0: none).
CASES = (
    (128, 4096, 32, 8, 64, 1, 0), (256, 2048, 16, 8, 64, 1, 0), (64, 8192, 64, 8, 64, 1, 0), (128, 32768, 4, 1, 64, 1, 0),
    (32, 16384, 32, 8, 64, 1, 0), (512, 1024, 32, 8, 64, 1, 0), (40, 8192, 32, 8, 64, 1, 0), (96, 4096, 24, 6, 64, 1, 0),
    (90, 4096, 24, 6, 64, 1, 0), (56, 4096, 40, 10, 64, 1, 0), (160, 2048, 40, 10, 64, 1, 0), (100, 3000, 64, 8, 64, 1, 0),
    (70, 2048, 64, 16, 64, 1, 0), (110, 12288, 8, 2, 64, 1, 0), (64, 4096, 32, 8, 64, 2, 0), (128, 4096, 32, 8, 64, 1, 64),
    (64, 4096, 32, 8, 128, 1, 0), (128, 8192, 32, 8, 128, 1, 0), (64, 8192, 64, 8, 128, 1, 0), (48, 6144, 24, 6, 128, 1, 0),
    (20, 8192, 32, 8, 128, 1, 0), (36, 4096, 36, 9, 128, 1, 0), (70, 4096, 32, 4, 128, 1, 0), (150, 4096, 8, 2, 128, 1, 0),
    (64, 4096, 32, 8, 128, 1, 64), (12, 8192, 16, 8, 256, 1, 0), (18, 4096, 40, 10, 256, 1, 0), (32, 4096, 32, 8, 256, 1, 0),
    (128, 4096, 32, 8, 64, 1, 16), (64, 4096, 32, 8, 128, 1, 16), (70, 4096, 32, 4, 128, 1, 64), (48, 6144, 24, 6, 128, 1, 256),
    (32, 4096, 32, 8, 256, 1, 64), (18, 4096, 40, 10, 256, 1, 64), (32, 4096, 32, 8, 256, 1, 16))
CALLS_IN_A_GRAPH, BOUND_SECONDS = 16, 80e-6
MOST_ERROR = 0.01  # of bf16 results, relative to the largest


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cpu, cuda or cuda:N")
    parser.add_argument("--lib", help="libmica.so; default: that of the package, or of this tree or bundle")
    parser.add_argument("--layout", choices=("bshd", "bhsd"), default="bshd", help="order of the axes of the caches in memory")
    parser.add_argument("--filter", default="", help="only cases whose name matches this regular expression")
    parser.add_argument("--samples", type=int, default=7, help="samples of each kind of cache (default 7)")
    parser.add_argument("--shrink", type=int, default=1, help="divide the numbers of keys and sequences by this")
    parser.add_argument("--json", help="also write the figures to this file")
    return parser.parse_args()


def name_of(case):
    batch, keys, heads_q, heads_k, dim, rows, page = case
    return (f"b{batch} s{rows},{keys} h{heads_q},{heads_k} d{dim}" + (" causal" if rows > 1 else "")
            + (f" paged{page}" if page else ""))


class Cell:
    """The tensors of a case, and a call for each kind of cache."""

    def __init__(self, torch, case, layout, device):
        batch, keys, heads_q, heads_k, dim, rows, page = case
        self._torch, self._causal, self._group = torch, rows > 1, heads_q // heads_k
        shape = (batch * -(-keys // page), page, heads_k, dim) if page else (batch, keys, heads_k, dim)
        self._q = torch.randn(batch, rows, heads_q, dim, dtype=torch.bfloat16, device=device)
        self._factors = [torch.full((1, heads_k), 1 / 64, device=device) for _ in range(2)]
        # Stored numbers both types have, so that both calls have the same result.
        self._e4m3 = [self._in_layout((torch.randn(shape, device=device) * 64).to(torch.float8_e4m3fn), layout, page)
                      for _ in range(2)]
        self._bf16 = [self._in_layout((t.float() / 64).to(torch.bfloat16), layout, page) for t in self._e4m3]
        self._pages = {}
        if page:
            table = torch.randperm(shape[0], device=device).reshape(batch, -1).to(torch.int32)
            self._pages = dict(block_table=table, cache_seqlens=torch.full((batch,), keys, dtype=torch.int32, device=device))
        self._keys = keys

    @staticmethod
    def _in_layout(tensor, layout, page):
        return tensor.transpose(1, 2).contiguous().transpose(1, 2) if layout == "bhsd" and not page else tensor

    def bf16(self):
        import mica
        if self._pages:
            return mica.attention_with_cache(self._q, *self._bf16, causal=self._causal, **self._pages)
        return mica.attention(self._q, *self._bf16, causal=self._causal)

    def e4m3(self):
        from mica import fp8
        k_descale, v_descale = self._factors
        if self._pages:
            return fp8.attention_with_cache(self._q, *self._e4m3, causal=self._causal, k_descale=k_descale,
                                            v_descale=v_descale, **self._pages)
        return fp8.attention(self._q, *self._e4m3, causal=self._causal, k_descale=k_descale, v_descale=v_descale)

    def error_of(self, got):
        """Of two sequences, the largest difference over the largest result in double."""
        torch, worst = self._torch, 0.0
        for index in {0, self._q.shape[0] - 1}:
            k, v = (self._sequence(t, index).double() for t in self._bf16)
            q = self._q[index].double().unflatten(1, (-1, self._group))  # rows, key heads, group, dim
            scores = torch.einsum("rhgd,khd->hgrk", q, k) * q.shape[-1] ** -0.5
            if self._causal:
                rows, keys = scores.shape[-2:]
                hidden = torch.ones(rows, keys, dtype=torch.bool, device=scores.device).triu(keys - rows + 1)
                scores.masked_fill_(hidden, -math.inf)
            exact = torch.einsum("hgrk,khd->rhgd", scores.softmax(-1), v).flatten(1, 2)
            worst = max(worst, ((got[index].double() - exact).abs().max() / exact.abs().max()).item())
        return worst

    def _sequence(self, cache, index):
        if not self._pages:
            return cache[index]
        return cache[self._pages["block_table"][index].long()].flatten(0, 1)[:self._keys]


def seconds_of(torch, replay, calls, device, least_seconds=0.02):
    """Of one call, by events around as many replays as take so long (on the CPU by the clock)."""
    if device.type != "cuda":
        begin = time.perf_counter()
        replay()
        return (time.perf_counter() - begin) / calls
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    count, seconds = 1, 0.0
    while True:
        begin.record()
        for _ in range(count):
            replay()
        end.record()
        torch.cuda.synchronize()
        seconds = begin.elapsed_time(end) * 1e-3
        if seconds >= least_seconds or count >= 64:
            return seconds / (count * calls)
        count *= 2


def captured(torch, call, device):
    """(what replays it, how many calls that is)"""
    if device.type != "cuda":
        return call, 1
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS_IN_A_GRAPH):
            call()
    return graph.replay, CALLS_IN_A_GRAPH


def measure(torch, case, given, device):
    cell = Cell(torch, case, given.layout, device)
    calls = {"e4m3": cell.e4m3, "bf16": cell.bf16}
    errors = {name: cell.error_of(call()) for name, call in calls.items()}
    if max(errors.values()) > MOST_ERROR:
        return dict(case=name_of(case), errors=errors, wrong=True)
    replays = {name: captured(torch, call, device) for name, call in calls.items()}
    times = {name: [] for name in calls}
    for sample in range(given.samples + 1):
        for name, (replay, count) in replays.items():
            seconds = seconds_of(torch, replay, count, device)
            if sample:  # the first warms up
                times[name].append(seconds)
    medians = {name: statistics.median(t) for name, t in times.items()}
    batch, keys, _, heads_k, dim, _, _ = case
    return dict(case=name_of(case), errors=errors, median_s=medians, ratio=medians["bf16"] / medians["e4m3"],
                gbytes_per_s=2e-9 * batch * keys * heads_k * dim / medians["e4m3"], bound=medians["e4m3"] >= BOUND_SECONDS)


def main():
    given = parse_arguments()
    device = torch_device(given.device)
    if given.lib:
        os.environ["MICA_LIBRARY"] = os.path.abspath(given.lib)
    import torch
    torch.manual_seed(0)
    cases = [(max(c[0] // given.shrink, 1), max(c[1] // given.shrink, c[5]), *c[2:]) for c in CASES
             if re.search(given.filter, name_of(c))]
    cells = []
    with torch.no_grad():
        for case in cases:
            cells.append(measure(torch, case, given, device))
            last = cells[-1]
            figures = ("wrong: " + str(last["errors"]) if "wrong" in last else
                       f"e4m3 {1e6 * last['median_s']['e4m3']:8.1f} us {last['gbytes_per_s']:6.0f} GB/s  "
                       f"bf16 {1e6 * last['median_s']['bf16']:8.1f} us  {last['ratio']:.2f}x")
            print(f"{last['case']:40} {figures}", flush=True)
            if device.type == "cuda":
                torch.cuda.empty_cache()
    ratios = [c["ratio"] for c in cells if c.get("bound")]
    summary = dict(cells=len(ratios), lowest=min(ratios), geometric_mean=math.exp(statistics.mean(map(math.log, ratios)))) \
        if ratios else {}
    if summary:
        print(f"{len(ratios)} cells of 80 us or more: lowest {summary['lowest']:.2f}x, mean {summary['geometric_mean']:.2f}x")
    if given.json:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        out = dict(device=name, torch=torch.__version__, commit=commit(), date=datetime.date.today().isoformat(),
                   layout=given.layout, samples=given.samples, summary=summary, cells=cells)
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump(out, file, indent=1)
            file.write("\n")
    return 1 if any("wrong" in c for c in cells) else 0


if __name__ == "__main__":
    sys.exit(main())
