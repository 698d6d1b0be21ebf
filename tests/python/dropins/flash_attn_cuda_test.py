# SPDX-License-Identifier: Apache-2.0
"""The drop-in on a GPU: nothing waits for the device, CUDA graphs capture it, other streams and devices are respected."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("flash_attn", reason="the drop-in flash_attn is not installed")
from conftest import cuda_missing  # noqa: E402

if cuda_missing():
    pytest.skip(cuda_missing(), allow_module_level=True)

from flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache  # noqa: E402
from flash_attn.flash_attn_interface import _flash_attn_forward  # noqa: E402


def make(dtype=torch.bfloat16):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 64, 4, 64, device="cuda", dtype=dtype) for _ in range(3))
    return q, k, v, torch.tensor([0, 50, 128], dtype=torch.int32, device="cuda")


def calls(q, k, v, cu):
    """Every kind of call, as functions without arguments."""
    packed = [t.flatten(0, 1) for t in (q, k, v)]
    longest = torch.tensor(78, device="cuda")
    lengths = torch.tensor([10, 40], dtype=torch.int32, device="cuda")
    caches = [t.clone() for t in (k, v)]
    cu_pages = torch.tensor([0, 50, 114], dtype=torch.int32, device="cuda")
    table = torch.arange(8, dtype=torch.int32, device="cuda").reshape(2, 4)
    pages = [t.reshape(8, 16, 4, 64).clone() for t in (k, v)]
    one = q[:, :1]
    return {
        "dense": lambda: flash_attn_func(q, k, v, causal=True),
        "lse": lambda: flash_attn_func(q, k, v, causal=True, return_attn_probs=True)[1],
        "odd head dimension": lambda: flash_attn_func(q[..., :59], k[..., :59], v[..., :59]),
        "dropout": lambda: flash_attn_func(q, k, v, 0.2),
        "varlen, lengths on the device": lambda: flash_attn_varlen_func(*packed, cu, cu, longest, longest, causal=True),
        "varlen over pages": lambda: flash_attn_varlen_func(packed[0], *pages, cu, cu_pages, 78, 64, block_table=table),
        "cache": lambda: flash_attn_with_kvcache(one, *caches, one, one, cache_seqlens=lengths, causal=True),
        "pages": lambda: flash_attn_with_kvcache(one, *pages, one, one, cache_seqlens=lengths, block_table=table),
        "private": lambda: _flash_attn_forward(q, k, v, 0.0, 0.125, True, -1, -1, 0.0, None, False)[0],
    }


NAMES = list(calls(*make()))


@pytest.mark.parametrize("name", NAMES)
def test_no_call_waits_for_the_device(name):
    call = calls(*make())[name]
    call()  # plans are made and kernels loaded before
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "dropout"])
def test_graphs_capture_it(name):
    call = calls(*make())[name]
    want = call().clone()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    graph.replay()
    assert torch.equal(out, want)


def test_a_graph_draws_new_dropout_bits_at_every_replay():
    call = calls(*make())["dropout"]
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    graph.replay()
    first = out.clone()
    graph.replay()
    assert not torch.equal(out, first)


def test_gradients_on_another_stream():
    q, k, v, _ = make()
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    want = torch.autograd.grad(flash_attn_func(*leaves, causal=True, deterministic=True).sum(), leaves)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = torch.autograd.grad(flash_attn_func(*leaves, causal=True, deterministic=True).sum(), leaves)
    torch.cuda.current_stream().wait_stream(stream)
    assert all(torch.equal(one, other) for one, other in zip(got, want))
