#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mica.distributed on one GPU against one call: two processes that share it over gloo, whose keys go by pinned host memory,
then NCCL with one rank. Every layout with and without dropout, decode, DTensors (compiled too), PyTorch's context_parallel.

    bench/ranks.py --json FILE

Without a GPU all of it runs over gloo on the CPU. PyTorch's context_parallel is not tried over gloo on a GPU: there PyTorch
itself ends with a segmentation fault (2.11), whoever's kernels it calls. Exit status 1 where a result was wrong."""
import argparse
import contextlib
import datetime
import json
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

CUDA = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if CUDA else ("cpu", torch.float32)
ROWS = 8192 if CUDA else 256
TOLERANCE = 2e-2


def write(path, data):
    with open(path, "w") as file:
        json.dump(data, file, indent=1)
        file.write("\n")


def sync():
    if CUDA:
        torch.cuda.synchronize()


def relative(got, want):
    return ((got.detach().float() - want.detach().float()).abs().max() / want.detach().float().abs().max()).item()


def layouts(name, **more):
    import mica
    from mica import distributed
    torch.manual_seed(1)
    q, k, v, d_o = (torch.randn(1, ROWS, 8, 128, device=DEVICE, dtype=DTYPE) for _ in range(4))
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    o = mica.attention(*leaves, causal=True, **more)
    o.backward(d_o)
    local = [distributed.shard(t, layout=name).clone().requires_grad_() for t in (q, k, v)]
    times = []
    for _ in range(3):
        for t in local:
            t.grad = None
        sync()
        dist.barrier()
        start = time.perf_counter()
        made = distributed.attention(*local, layout=name, causal=True, **more)
        made.backward(distributed.shard(d_o, layout=name))
        sync()
        times.append(time.perf_counter() - start)
    pairs = (("o", made, o), *((f"d{n}", a.grad, b.grad) for n, a, b in zip("qkv", local, leaves)))
    return dict(layout=name, options=more, ms=1e3 * min(times),
                relative_errors={n: relative(got, distributed.shard(want.detach(), layout=name)) for n, got, want in pairs})


def decode():
    import mica
    from mica import distributed
    torch.manual_seed(2)
    rank, size, keys = dist.get_rank(), dist.get_world_size(), 4096 if CUDA else 64
    q = torch.randn(3, 1, 16, 128, device=DEVICE, dtype=DTYPE)
    k, v = (torch.randn(3, keys * size, 4, 128, device=DEVICE, dtype=DTYPE) for _ in range(2))
    new_k, new_v = (torch.randn(3, 1, 4, 128, device=DEVICE, dtype=DTYPE) for _ in range(2))
    used = keys * size - 5
    room = torch.full((3,), used, dtype=torch.int32, device=DEVICE)
    want = mica.attention_with_cache(q, k.clone(), v.clone(), k=new_k, v=new_v, cache_seqlens=room, causal=True)
    mine = slice(rank * keys, (rank + 1) * keys)
    have = keys if rank < size - 1 else keys - 5
    made = distributed.attention_with_cache(q, k[:, mine].clone(), v[:, mine].clone(), new_k, new_v,
                                            cache_seqlens=torch.full((3,), have, dtype=torch.int32, device=DEVICE), causal=True)
    return dict(layout="decode", relative_errors={"o": relative(made, want)})


def dtensors(compiled):
    import mica
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    torch.manual_seed(3)
    whole = [torch.randn(2, 512, 4, 64, device=DEVICE, dtype=DTYPE).requires_grad_() for _ in range(3)]
    o = mica.attention(*whole, causal=True)
    o.float().square().sum().backward()
    errors = {}
    for axis in (0, 1, 2):
        placed = [distribute_tensor(t.detach(), mesh, [Shard(axis)]).requires_grad_() for t in whole]
        call = torch.compile(lambda q, k, v: mica.attention(q, k, v, causal=True), fullgraph=True) if compiled else \
            (lambda q, k, v: mica.attention(q, k, v, causal=True))
        made = call(*placed)
        made.float().square().sum().backward()
        local = [t.to_local() for t in (made, *(p.grad for p in placed))]
        wants = [distribute_tensor(t.detach(), mesh, [Shard(axis)]).to_local() for t in (o, *(w.grad for w in whole))]
        errors[f"shard {axis}"] = max(relative(a, b) for a, b in zip(local, wants))
    return dict(layout="dtensors compiled" if compiled else "dtensors", relative_errors=errors)


def context_parallel(balanced):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel as parallel
    from torch.distributed.tensor.experimental._context_parallel import _attention as options
    from torch.nn import attention
    from torch.nn import functional as F
    import mica.integrations.sdpa  # noqa: F401
    options._cp_options.enable_load_balance = balanced
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),), mesh_dim_names=("cp",))
    torch.manual_seed(4)
    whole = [torch.randn(2, 4, 1024, 64, device=DEVICE, dtype=DTYPE, requires_grad=True) for _ in range(3)]
    d_o = torch.randn(2, 4, 1024, 64, device=DEVICE, dtype=DTYPE)
    want = F.scaled_dot_product_attention(*whole, is_causal=True)
    want.backward(d_o)
    buffers = [t.detach().clone() for t in whole] + [d_o.clone(), want.detach().clone()] + [t.grad.clone() for t in whole]
    attention.activate_flash_attention_impl("mica")
    try:
        with parallel(mesh, buffers=buffers, buffer_seq_dims=[2] * len(buffers)):
            local = [t.detach().clone().requires_grad_() for t in buffers[:3]]
            only = attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION) if CUDA else contextlib.nullcontext()
            with only:
                made = F.scaled_dot_product_attention(*local, is_causal=True)
                made.backward(buffers[3])
            errors = {"o": relative(made, buffers[4])}
            errors.update({f"d{n}": relative(t.grad, g) for n, t, g in zip("qkv", local, buffers[5:])})
    finally:
        attention.restore_flash_attention_impl()
    return dict(layout=f"context_parallel balanced={balanced}", relative_errors=errors)


def attempt(rows, label, function, *arguments, **named):
    try:
        row = function(*arguments, **named)
        row["of"] = label
        worst = max(row["relative_errors"].values())
        row["right"] = worst < TOLERANCE
        rows.append(row)
        said = f"{row['layout']} {row.get('options') or ''} " + (f"{row['ms']:.1f} ms " if "ms" in row else "") + \
            ("ok" if row["right"] else "WRONG") + f" {worst:.1e}"
    except Exception as error:  # whatever goes wrong in one, the others are still worth seeing
        said = f"{function.__name__} {arguments} FAILED {type(error).__name__}: {str(error)[:300]}"
        rows.append(dict(layout=function.__name__, of=label, right=False, error=said))
    if dist.get_rank() == 0:
        print(label, said, flush=True)


def both(rows, label):
    for layout in ("ring", "zigzag", "stripe", "ulysses"):
        for more in ({}, {"dropout": 0.1, "seed": 3}):
            attempt(rows, label, layouts, layout, **more)
    attempt(rows, label, decode)
    attempt(rows, label, dtensors, False)


def work(rank, size, folder, path):
    if CUDA:
        torch.cuda.set_device(0)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size,
                            timeout=datetime.timedelta(seconds=100))
    rows = []
    both(rows, "gloo x2")
    if not CUDA:
        for balanced in (False, True):
            attempt(rows, "gloo x2", context_parallel, balanced)
    if rank == 0:
        write(path, {"device": torch.cuda.get_device_name() if CUDA else "cpu", "torch": torch.__version__, "rows": rows})
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", required=True)
    path = parser.parse_args().json
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (2, folder, path), nprocs=2)
    with open(path) as file:
        data = json.load(file)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("nccl" if CUDA else "gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1,
                                timeout=datetime.timedelta(seconds=100), device_id=torch.device("cuda", 0) if CUDA else None)
        label = "nccl x1" if CUDA else "gloo x1"
        both(data["rows"], label)
        for balanced in (False, True):
            attempt(data["rows"], label, context_parallel, balanced)
        attempt(data["rows"], label, dtensors, True)
        write(path, data)
        dist.destroy_process_group()
    return 0 if all(row["right"] for row in data["rows"]) else 1


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "4")
    sys.exit(main())
