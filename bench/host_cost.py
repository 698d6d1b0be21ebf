#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The host's time per call from Python, beside PyTorch's scaled_dot_product_attention in the same process.

    python bench/host_cost.py --device cuda --json bench/results/host_cost.json
    python bench/host_cost.py --device cpu       # a smoke test: a CPU's call includes the computation

On a GPU the device is kept asleep while the calls are queued, so that only the host is timed. Mica and SDPA take turns;
each figure is the median of the samples. Exit codes: 0; 1 a ratio is above its limit (GPU only); 2 usage."""

import argparse
import contextlib
import datetime
import importlib.util
import json
import os
import platform
import statistics
import sys
import time

from torch_device import torch_device

HERE = os.path.dirname(os.path.abspath(__file__))
if importlib.util.find_spec("mica") is None:  # not installed: the package of this tree or bundle
    sys.path.insert(0, os.path.join(os.path.dirname(HERE), "python"))

LIMITS = {"forward": 0.55, "forward, autograd": 1.0, "split decode": 0.8}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cpu, cuda or cuda:N")
    parser.add_argument("--calls", type=int, default=100, help="calls of a sample (default 100)")
    parser.add_argument("--samples", type=int, default=15, help="samples of each contender (default 15)")
    parser.add_argument("--json", help="also write the figures to this file")
    return parser.parse_args()


class Clock:
    """Times the queueing of calls, with a device that has not begun to work on them."""

    def __init__(self, torch, device):
        self._torch, self._is_cuda = torch, device.type == "cuda"

    def seconds_per_call(self, function, calls):
        if self._is_cuda:
            self._torch.cuda.synchronize()
            self._torch.cuda._sleep(100_000 * calls)  # about 50 us a call: longer than any of them takes the host
        begin = time.perf_counter()
        for _ in range(calls):
            function()
        seconds = time.perf_counter() - begin
        if self._is_cuda:
            self._torch.cuda.synchronize()
        return seconds / calls


def make_cases(torch, mica, device):
    """name -> (context, Mica's call, SDPA's call or None)."""
    sdpa = torch.nn.functional.scaled_dot_product_attention
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    rows, keys = (128, 8192) if device.type == "cuda" else (4, 64)

    def rand(*shape):
        return torch.randn(*shape, device=device, dtype=dtype)

    q, k, v = (rand(1, rows, 8, 64) for _ in range(3))
    d_o = torch.randn_like(q)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    by_head = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    leaves_by_head = [t.clone().requires_grad_() for t in by_head]
    d_by_head = torch.randn_like(by_head[0])
    one, k_long, v_long = rand(1, 1, 16, 128), rand(1, keys, 16, 128), rand(1, keys, 16, 128)
    long_by_head = [t.transpose(1, 2).contiguous() for t in (one, k_long, v_long)]
    used = torch.full((1,), keys - 1, dtype=torch.int32, device=device)
    k_new, v_new = rand(1, 1, 16, 128), rand(1, 1, 16, 128)
    packed = [t[0] for t in (q, k, v)]
    cu = torch.tensor([0, rows], dtype=torch.int32, device=device)
    grad, no_grad = torch.enable_grad, torch.no_grad
    return {
        "forward": (no_grad, lambda: mica.attention(q, k, v, causal=True), lambda: sdpa(*by_head, is_causal=True)),
        "forward, lse": (no_grad, lambda: mica.attention(q, k, v, causal=True, return_lse=True), None),
        "forward, autograd": (grad, lambda: mica.attention(*leaves, causal=True),
                              lambda: sdpa(*leaves_by_head, is_causal=True)),
        "forward and backward": (
            grad, lambda: torch.autograd.grad(mica.attention(*leaves, causal=True), leaves, d_o),
            lambda: torch.autograd.grad(sdpa(*leaves_by_head, is_causal=True), leaves_by_head, d_by_head)),
        "split decode": (no_grad, lambda: mica.attention(one, k_long, v_long), lambda: sdpa(*long_by_head)),
        "varlen": (no_grad, lambda: mica.attention_varlen(*packed, cu, cu, causal=True), None),
        "cache": (no_grad, lambda: mica.attention_with_cache(one, k_long, v_long, cache_seqlens=used), None),
        "cache with append": (no_grad, lambda: mica.attention_with_cache(one, k_long, v_long, k=k_new, v=v_new,
                                                                         cache_seqlens=used, causal=True), None),
    }


def splits_of_decode(mica, keys, device):
    """How many ranges of keys the decode's plan has, from the C interface: the case must split to be what it says."""
    from mica import _abi, _library
    a = _abi.Attention()
    a.device.backend, a.device.ordinal = (_abi.CUDA, device.index or 0) if device.type == "cuda" else (_abi.CPU, 0)
    for tensor, rows in ((a.q, 1), (a.o, 1), (a.k, keys), (a.v, keys)):
        tensor.dtype, tensor.alignment = _abi.BF16 if device.type == "cuda" else _abi.FP32, 16
        tensor.shape[:], tensor.stride[:] = (1, rows, 16, 128), (rows * 2048, 2048, 128, 1)
    return _library.load().plan(a, _abi.FORWARD).splits


def measure(clock, context, contenders, arguments):
    """{name: median seconds per call}, the contenders taking turns."""
    times = {name: [] for name in contenders}
    with context():
        for function in contenders.values():
            for _ in range(20):
                function()
        for _ in range(arguments.samples):
            for name, function in contenders.items():
                times[name].append(clock.seconds_per_call(function, arguments.calls))
    return {name: statistics.median(values) for name, values in times.items()}


def main():
    arguments = parse_arguments()
    import torch

    import mica
    device = torch_device(arguments.device)
    clock, rows, failed = Clock(torch, device), [], []
    splits = splits_of_decode(mica, 8192 if device.type == "cuda" else 64, device)
    print(f"{torch.cuda.get_device_name(device) if device.type == 'cuda' else platform.machine()}, PyTorch "
          f"{torch.__version__}, Python {platform.python_version()}, Mica {mica.__version__}; decode in {splits} "
          "splits\n")
    print(f"{'call':24} {'mica':>9} {'sdpa':>9} {'ratio':>7} {'limit':>6}")
    for name, (context, ours, theirs) in make_cases(torch, mica, device).items():
        contenders = {"mica": ours, **({} if theirs is None else {"sdpa": theirs})}
        seconds = measure(clock, context, contenders, arguments)
        row = {"case": name, **{f"{who}_us": value * 1e6 for who, value in seconds.items()}}
        if theirs is not None:
            row["ratio"] = seconds["mica"] / seconds["sdpa"]
        if name in LIMITS:
            row["limit"] = LIMITS[name]
            if row["ratio"] > row["limit"]:
                failed.append(name)
        rows.append(row)
        print(f"{name:24} {row['mica_us']:6.1f} us " +
              (f"{row['sdpa_us']:6.1f} us {row['ratio']:6.2f}x" if "ratio" in row else f"{'-':>9} {'-':>7}") +
              (f" {row['limit']:5.2f}x" if "limit" in row else ""), flush=True)
    if arguments.json:
        out = {"device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
               "torch": torch.__version__, "python": platform.python_version(), "version": mica.__version__,
               "date": datetime.date.today().isoformat(), "calls": arguments.calls, "samples": arguments.samples,
               "decode_splits": splits, "cases": rows}
        with open(arguments.json, "w") as file:
            json.dump(out, file, indent=1)
            file.write("\n")
    if failed and device.type == "cuda":
        print("above the limit: " + ", ".join(failed))
        return 1
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
