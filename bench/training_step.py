#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training step's attention from Python, forward and backward through torch.autograd, beside PyTorch's backends.

    python bench/training_step.py --json bench/results/training_step.json
    PYTHONPATH=flash-attention/hopper python bench/training_step.py --peers CUDNN_ATTENTION,FLASH_ATTENTION_3
    python bench/training_step.py --device cpu --tokens 64       # a smoke test

Wall time of steps that are queued one after the other, with one synchronization at the end of a sample: the host's time
counts where the GPU waits for it. Tensors lie (batch, rows, heads, dim); a peer that wants (batch, heads, rows, dim) gets
a view. Gradients are compared before anything is timed; contenders take turns in another order each time. A ratio is the
peer's median over Mica's (above 1: Mica is faster). Exit codes: 0; 1 gradients differ; 2 usage."""

import argparse
import datetime
import importlib.util
import json
import os
import platform
import random
import statistics
import sys
import time

from torch_device import torch_device

HERE = os.path.dirname(os.path.abspath(__file__))
if importlib.util.find_spec("mica") is None:  # not installed: the package of this tree or bundle
    sys.path.insert(0, os.path.join(os.path.dirname(HERE), "python"))

HIDDEN, LENGTHS, DIMS = 2048, (512, 2048), (64, 128, 256)
MOST_DIFFERENCE = 0.02  # of two right gradients in 16 bits, relative to the largest


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cpu, cuda or cuda:N")
    parser.add_argument("--peers", help="comma-separated (default: CUDNN_ATTENTION,FLASH_ATTENTION,FLASH_ATTENTION_3; "
                        "on the CPU: MATH)")
    parser.add_argument("--tokens", type=int, default=16384, help="rows of all sequences together (default 16384)")
    parser.add_argument("--samples", type=int, default=9, help="samples of each contender (default 9)")
    parser.add_argument("--sample-seconds", type=float, default=0.02, help="about how long one sample takes")
    parser.add_argument("--json", help="also write the figures to this file")
    return parser.parse_args()


def attention_of(name, torch, causal):
    """A function of q, k, v in (batch, rows, heads, dim)."""
    if name == "mica":
        import mica
        return lambda q, k, v: mica.attention(q, k, v, causal=causal)
    if name == "FLASH_ATTENTION_3":
        import flash_attn_interface
        if "mica" in (flash_attn_interface.__doc__ or "").lower():
            raise ValueError("flash_attn_interface is Mica's drop-in here")

        def call(q, k, v):
            result = flash_attn_interface.flash_attn_func(q, k, v, causal=causal)
            return result[0] if isinstance(result, tuple) else result
        return call
    from torch.nn.attention import SDPBackend, sdpa_kernel
    backend = getattr(SDPBackend, name)

    def call_sdpa(q, k, v):
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(
                q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal).transpose(1, 2)
    return call_sdpa


def difference(gradients, others):
    """The largest, relative to the largest value of its tensor."""
    return max(((a.float() - b.float()).abs().max() / b.float().abs().max()).item() for a, b in zip(gradients, others))


def measure(contenders, arguments, synchronize):
    """{name: median seconds of a step}."""
    def seconds(step, count):
        synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            step()
        synchronize()
        return (time.perf_counter() - begin) / count

    counts = {name: max(3, round(arguments.sample_seconds / max(seconds(step, 3), 1e-6)))
              for name, step in contenders.items()}
    times, order, shuffle = {name: [] for name in contenders}, list(contenders), random.Random(1).shuffle
    for _ in range(arguments.samples):
        shuffle(order)
        for name in order:
            times[name].append(seconds(contenders[name], counts[name]))
    return {name: statistics.median(values) for name, values in times.items()}


def make_cell(torch, device, arguments, peers, length, dim, causal):
    """One cell of the JSON: {"case", "median_s", "ratio", ...}."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    batch, heads = max(1, arguments.tokens // length), HIDDEN // dim
    generator = torch.Generator(device=device).manual_seed(length + dim)

    def rand():
        return torch.randn(batch, length, heads, dim, device=device, dtype=dtype, generator=generator)

    leaves, d_o = [rand().requires_grad_() for _ in range(3)], rand()
    cell = {"case": f"b{batch} s{length} h{heads} d{dim}{' causal' if causal else ''}", "absent": {}}
    contenders, first = {}, None
    for name in ("mica", *peers):
        try:
            attention = attention_of(name, torch, causal)

            def step(attention=attention):
                return torch.autograd.grad(attention(*leaves), leaves, d_o)
            gradients = step()
        except Exception as error:  # a peer that cannot run this is not measured
            if name == "mica":
                raise
            cell["absent"][name] = str(error).split("\n")[0]
            continue
        first = first or gradients
        if not difference(gradients, first) <= MOST_DIFFERENCE:
            cell["error"] = f"gradients of {name} differ by {difference(gradients, first):.3g} of the largest"
        contenders[name] = step
    if "error" in cell:
        return cell
    cell["median_s"] = measure(contenders, arguments, torch.cuda.synchronize if device.type == "cuda" else lambda: None)
    cell["ratio"] = {name: t / cell["median_s"]["mica"] for name, t in cell["median_s"].items() if name != "mica"}
    return cell


def main():
    arguments = parse_arguments()
    import torch

    import mica
    device = torch_device(arguments.device)
    default_peers = "CUDNN_ATTENTION,FLASH_ATTENTION,FLASH_ATTENTION_3" if device.type == "cuda" else "MATH"
    peers = [peer for peer in (arguments.peers or default_peers).split(",") if peer]
    lengths = [length for length in LENGTHS if length <= arguments.tokens] or [arguments.tokens]
    out = {"device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
           "torch": torch.__version__, "python": platform.python_version(), "version": mica.__version__,
           "layout": "bshd", "date": datetime.date.today().isoformat(), "cells": []}
    print(f"{out['device']}, PyTorch {out['torch']}, Mica {out['version']}: ratios above 1 mean that Mica is faster\n")
    print(f"{'forward and backward':32} {'mica':>10}" + "".join(f" {peer[:17]:>17}" for peer in peers))
    for dim in DIMS:
        for length in lengths:
            for causal in (False, True):
                cell = make_cell(torch, device, arguments, peers, length, dim, causal)
                out["cells"].append(cell)
                ratios = "".join(f" {cell['ratio'][p]:16.2f}x" if p in cell.get("ratio", {}) else f" {'-':>17}" for p in peers)
                print(f"{cell['case']:32} " + (cell.get("error") or f"{cell['median_s']['mica'] * 1e6:7.0f} us{ratios}"),
                      flush=True)
                if device.type == "cuda":
                    torch.cuda.empty_cache()
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(out, file, indent=1)
            file.write("\n")
    return 1 if any("error" in cell for cell in out["cells"]) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        print(f"training_step.py: {error}", file=sys.stderr)
        sys.exit(2)
