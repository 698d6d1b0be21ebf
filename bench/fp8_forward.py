#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""e4m3 forward from Python: its error against double, and its speed beside FlashAttention-3's where that is on the path.

    PYTHONPATH=flash-attention/hopper python bench/fp8_forward.py --json bench/results/fp8_forward_h200.json
    python bench/fp8_forward.py --device cpu --tokens 64 --keys 256 --rows 16       # a smoke test

Error: rms of the difference over rms of the result, against attention in double of the same e4m3 numbers; of normal data,
of data with outliers (one in a thousand ten times as large), and of v near 1, where every rounding shows. Speed: hidden
size 2048, the same number of tokens in every cell, tensors (batch, rows, heads, dim); medians by events, all calls of a
sample in flight, contenders take turns. A ratio is the peer's time over Mica's (above 1: Mica is faster). Exit codes: 0;
1 an error exceeds the peer's by more than 2 % (a draw of the data) or a result is wrong; 2 usage."""

import argparse
import datetime
import importlib.util
import json
import math
import os
import statistics
import sys
import time

from compare import commit
from torch_device import torch_device

HERE = os.path.dirname(os.path.abspath(__file__))
if importlib.util.find_spec("mica") is None:  # not installed: the package of this tree or bundle
    sys.path.insert(0, os.path.join(os.path.dirname(HERE), "python"))

HIDDEN, LENGTHS, DIMS = 2048, (512, 2048, 8192, 16384), (64, 128, 256)
MOST_ERROR = 0.1  # of a result that is right at all
MOST_OF_PEER = 1.02
CYCLES_AHEAD, CYCLES_OF_CALL = int(1e6), 400_000


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cpu, cuda or cuda:N")
    parser.add_argument("--lib", help="libmica.so; default: that of the package, or of this tree or bundle")
    parser.add_argument("--tokens", type=int, default=16384, help="of a cell; longer sequences are left out")
    parser.add_argument("--keys", type=int, default=16384, help="of the errors (default 16384)")
    parser.add_argument("--rows", type=int, default=1024, help="queries of the errors (default 1024)")
    parser.add_argument("--samples", type=int, default=9, help="samples of each contender (default 9)")
    parser.add_argument("--json", help="also write the figures to this file")
    return parser.parse_args()


def contenders(torch):
    """{name: function of q, k, v in e4m3, their factors or None, causal}."""
    from mica import fp8

    def by_mica(q, k, v, factors, causal):
        q_descale, k_descale, v_descale = factors or (None, None, None)
        return fp8.attention(q, k, v, causal=causal, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    found = {"mica": by_mica}
    if torch.cuda.is_available() and importlib.util.find_spec("flash_attn_interface"):
        import flash_attn_interface
        # A folder of that name on the path is a package without a file; Mica's drop-in says whose it is.
        if getattr(flash_attn_interface, "__file__", None) and "mica" not in (flash_attn_interface.__doc__ or "").lower():
            def by_peer(q, k, v, factors, causal):
                q_descale, k_descale, v_descale = factors or (None, None, None)
                result = flash_attn_interface.flash_attn_func(q, k, v, causal=causal, q_descale=q_descale,
                                                              k_descale=k_descale, v_descale=v_descale)
                return result[0] if isinstance(result, tuple) else result
            found["FLASH_ATTENTION_3"] = by_peer
    return found


def draw(torch, kind, shape, generator, device):
    x = torch.randn(*shape, generator=generator, device=device)
    if kind == "outliers":
        x = torch.where(torch.rand(*shape, generator=generator, device=device) < 1e-3, x * 10, x)
    return x


def errors_of(torch, calls, given, device):
    """[{data, dim, contender: error}]."""
    from mica import fp8
    generator = torch.Generator(device=device).manual_seed(0)
    heads, table = 2, []
    for kind in ("normal", "outliers", "v near 1"):
        for dim in DIMS:
            wide = [draw(torch, kind, (1, rows, heads, dim), generator, device) for rows in (given.rows, given.keys, given.keys)]
            if kind == "v near 1":
                wide[2] = 1 + 0.1 * wide[2]
            small, factors = zip(*(fp8.quantise(x, "tensor") for x in wide))
            factors = [f.expand(1, heads).contiguous() for f in factors]
            q, k, v = (x.float().double() * f.double()[0, 0] for x, f in zip(small, factors))
            scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * dim**-0.5
            exact = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
            cell = dict(data=kind, dim=dim)
            for name, call in calls.items():
                got = call(*small, factors, False).double()
                cell[name] = ((got - exact).pow(2).mean() / exact.pow(2).mean()).sqrt().item()
            table.append(cell)
            print(f"error, {kind}, d{dim}: " + ", ".join(f"{name} {cell[name]:.2e}" for name in calls), flush=True)
    return table


def milliseconds(torch, call, device, count):
    """Of one call: the median of `count`, by events (on the CPU by the clock)."""
    if device.type != "cuda":
        begin = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - begin)
    for _ in range(2):
        call()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
    # The GPU waits until the host has asked for all of them: short calls would show how long the host takes.
    torch.cuda._sleep(CYCLES_AHEAD + CYCLES_OF_CALL * count)
    for begin, end in events:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in events)


def time_cells(torch, calls, given, device):
    """[{dim, length, causal, tflops: {contender}, ratio}]."""
    cells = []
    for dim in DIMS:
        for length in (n for n in LENGTHS if n <= given.tokens) if device.type == "cuda" else (given.tokens,):
            for causal in (False, True):
                batch, heads = given.tokens // length, HIDDEN // dim
                q, k, v = (torch.randn(batch, length, heads, dim, device=device).to(torch.float8_e4m3fn) for _ in range(3))
                times = {name: [] for name in calls}
                for _ in range(3):
                    for name, call in calls.items():
                        times[name].append(milliseconds(torch, lambda: call(q, k, v, None, causal), device, given.samples))
                flops = 4 * batch * heads * length * length * dim / (2 if causal else 1)
                cell = dict(dim=dim, length=length, causal=causal,
                            tflops={name: flops / statistics.median(t) / 1e9 for name, t in times.items()})
                if "FLASH_ATTENTION_3" in calls:
                    cell["ratio"] = cell["tflops"]["mica"] / cell["tflops"]["FLASH_ATTENTION_3"]
                cells.append(cell)
                print(f"d{dim} {length}{' causal' if causal else ''}: "
                      + ", ".join(f"{name} {rate:.0f}" for name, rate in cell["tflops"].items())
                      + (f", {cell['ratio']:.2f}x" if "ratio" in cell else ""), flush=True)
    return cells


def main():
    given = parse_arguments()
    device = torch_device(given.device)
    if given.lib:
        os.environ["MICA_LIBRARY"] = os.path.abspath(given.lib)
    import torch
    calls = contenders(torch)
    with torch.no_grad():
        errors = errors_of(torch, calls, given, device)
        cells = time_cells(torch, calls, given, device)
    summary = {}
    if "FLASH_ATTENTION_3" in calls:
        ratios = [cell["ratio"] for cell in cells]
        summary = dict(lowest=min(ratios), geometric_mean=math.exp(statistics.mean(map(math.log, ratios))))
        print(f"lowest {summary['lowest']:.3f}x, geometric mean {summary['geometric_mean']:.3f}x")
    if given.json:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        out = dict(device=name, torch=torch.__version__, commit=commit(), date=datetime.date.today().isoformat(),
                   tokens=given.tokens, samples=given.samples, summary=summary, errors=errors, cells=cells)
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump(out, file, indent=1)
            file.write("\n")
    worse = [e for e in errors if e["mica"] > MOST_ERROR or e["mica"] > MOST_OF_PEER * e.get("FLASH_ATTENTION_3", math.inf)]
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
