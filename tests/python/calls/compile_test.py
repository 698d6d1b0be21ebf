# SPDX-License-Identifier: Apache-2.0
"""torch.compile(fullgraph=True), torch.export and dispatch modes see the functions as ops."""

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import mica  # noqa: E402
from mica import _torch_ops  # noqa: E402

needs_ops = pytest.mark.skipif(not _torch_ops.AVAILABLE, reason="torch.compile wants PyTorch 2.4 or later")
BACKEND = "aot_eager"  # functionalises and differentiates; makes no code


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    if _torch_ops.AVAILABLE:
        torch.compiler.reset()


def qkv(device, rows=5, keys=7):
    return tuple(torch.randn(2, length, heads, 32, device=device, requires_grad=True)
                 for length, heads in ((rows, 4), (keys, 2), (keys, 2)))


def compare(function, tensors, leaves):
    """Eager and compiled: the same results and gradients."""
    compiled = torch.compile(function, fullgraph=True, backend=BACKEND)
    for got, want in zip(compiled(*tensors), function(*tensors)):
        torch.testing.assert_close(got, want)
    got, want = (torch.autograd.grad(sum(t.sin().sum() for t in f(*tensors)), leaves) for f in (compiled, function))
    for one, other in zip(got, want):
        torch.testing.assert_close(one, other)


@needs_ops
def test_attention(device):
    q, k, v = qkv(device)
    bias, sinks = torch.randn(1, 4, 5, 7, device=device, requires_grad=True), torch.randn(4, device=device)
    mask = torch.rand(5, 7, device=device) < 0.8

    def function(q, k, v, bias):
        return mica.attention(q * 2, k, v, causal=True, window=(3, None), chunk=5, mask=mask, bias=bias, sinks=sinks,
                              softcap=4.0, return_lse=True)

    compare(function, (q, k, v, bias), (q, k, v, bias))
    compare(lambda q, k, v: (mica.attention(q, k, v, causal="top-left"),), (q, k, v), (q, k, v))


@needs_ops
def test_varlen(device):
    q, k, v = (torch.randn(rows, heads, 32, device=device, requires_grad=True)
               for rows, heads in ((6, 4), (9, 2), (9, 2)))
    cu_q, cu_k = (torch.tensor(list(cu), dtype=torch.int32, device=device) for cu in ((0, 2, 6), (0, 3, 9)))
    compare(lambda q, k, v: mica.attention_varlen(q, k, v, cu_q, cu_k, causal=True, max_seqlen_q=4, return_lse=True),
            (q, k, v), (q, k, v))


@needs_ops
def test_cache_with_append_mutates_the_cache(device):
    def function(q, k, v, k_cache, v_cache, used):
        return mica.attention_with_cache(q, k_cache, v_cache, k=k, v=v, cache_seqlens=used, causal=True) + 1

    q, k, v = (t.detach() for t in qkv(device, rows=2, keys=2))
    used = torch.tensor([3, 1], dtype=torch.int32, device=device)
    caches = [torch.randn(2, 8, 2, 32, device=device) for _ in range(2)]
    others = [t.clone() for t in caches]
    compiled = torch.compile(function, fullgraph=True, backend=BACKEND)
    torch.testing.assert_close(compiled(q, k, v, *caches, used), function(q, k, v, *others, used))
    assert torch.equal(caches[0], others[0]) and torch.equal(caches[0][0, 3:5], k[0])
    # Without new keys, and with a number of keys.
    plain = torch.compile(lambda q, a, b: mica.attention_with_cache(q, a, b, cache_seqlens=4), fullgraph=True,
                          backend=BACKEND)
    torch.testing.assert_close(plain(q, *caches), mica.attention_with_cache(q, *caches, cache_seqlens=4))


@needs_ops
def test_paged_cache_with_rotary_lse_and_out(device):
    def function(q, k, v, k_pages, v_pages, used, table, cos, sin, out):
        return mica.attention_with_cache(q, k_pages, v_pages, k=k, v=v, cache_seqlens=used, block_table=table,
                                         rotary_cos=cos, rotary_sin=sin, causal=True, window=(9, 0), chunk=8, return_lse=True,
                                         out=out)

    q, k, v = (t.detach() for t in qkv(device, rows=2, keys=2))
    used = torch.tensor([3, 1], dtype=torch.int32, device=device)
    table = torch.tensor([[5, 0, 3], [1, 2, 4]], dtype=torch.int32, device=device)
    angle = torch.rand(12, 16, device=device)
    pages = [torch.randn(6, 4, 2, 32, device=device) for _ in range(2)]
    others, out = [t.clone() for t in pages], torch.empty_like(q)
    rest = used, table, angle.cos(), angle.sin()
    compiled = torch.compile(function, fullgraph=True, backend=BACKEND)
    got, want = compiled(q, k, v, *pages, *rest, out), function(q, k, v, *others, *rest, torch.empty_like(q))
    for one, other in zip((*got, *pages, out), (*want, *others, want[0])):
        torch.testing.assert_close(one, other)


@needs_ops
def test_varlen_of_pages(device):
    q = torch.randn(5, 4, 32, device=device)
    k, v = (torch.randn(4, 4, 2, 32, device=device) for _ in range(2))
    cu_q = torch.tensor([0, 2, 5], dtype=torch.int32, device=device)
    used = torch.tensor([3, 7], dtype=torch.int32, device=device)
    table = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32, device=device)

    def function(q, k, v):
        return mica.attention_varlen(q, k, v, cu_q, None, seqused_k=used, block_table=table, causal=True)

    compiled = torch.compile(function, fullgraph=True, backend=BACKEND)
    torch.testing.assert_close(compiled(q, k, v), function(q, k, v))


@needs_ops
def test_deterministic_follows_torch(device):
    """The switch stands in the graph, as it was when the graph was made; torch makes a new one when it is turned."""
    seen = []

    def backend(graph, inputs):
        (node,) = [node for node in graph.graph.nodes if "mica.attention" in str(node.target)]
        arguments = node.args[3 + len(_torch_ops.TENSORS):]
        seen.append(arguments[_torch_ops.NUMBER_NAMES.index("deterministic")])
        return graph.forward

    compiled = torch.compile(lambda *t: mica.attention(*t), fullgraph=True, backend=backend)
    for switch in (False, True):
        torch.use_deterministic_algorithms(switch)
        try:
            compiled(*qkv(device))
        finally:
            torch.use_deterministic_algorithms(False)
    assert seen == [False, True]


@needs_ops
def test_dropout_draws_anew(device):
    q, k, v = qkv(device, 32, 32)
    compiled = torch.compile(lambda *t: mica.attention(*t, dropout=0.5), fullgraph=True, backend=BACKEND)
    first, second = compiled(q, k, v), compiled(q, k, v)
    assert not torch.equal(first, second)
    v_ones = torch.ones_like(v).requires_grad_()
    o = compiled(q, k, v_ones)
    torch.testing.assert_close(torch.autograd.grad(o.sum(), v_ones)[0].sum(), o.sum().detach())
    seeded = torch.compile(lambda *t: mica.attention(*t, dropout=0.5, seed=3), fullgraph=True, backend=BACKEND)
    torch.testing.assert_close(seeded(q, k, v), mica.attention(q, k, v, dropout=0.5, seed=3))


@needs_ops
def test_autocast(device):
    def function(q, k, v):
        with torch.autocast(device, dtype=torch.bfloat16):
            return mica.attention(q, k, v)

    q, k, v = qkv(device)
    got = torch.compile(function, fullgraph=True, backend=BACKEND)(q, k, v)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, function(q, k, v))


@needs_ops
def test_dynamic_shapes_make_one_graph(device):
    count = 0

    def backend(graph, inputs):
        nonlocal count
        count += 1
        return graph.forward

    compiled = torch.compile(lambda q, k, v: mica.attention(q, k, v, causal=True), fullgraph=True, dynamic=True,
                             backend=backend)
    mica.attention(*qkv(device, 5, 7))  # the first call of a process loads a module, which a graph would see once
    with torch.no_grad():
        for rows in (5, 6, 9):
            q, k, v = qkv(device, rows, rows + 2)
            torch.testing.assert_close(compiled(q, k, v), mica.attention(q, k, v, causal=True))
    assert count == 1


@needs_ops
def test_ops_obey_torch(device):
    """PyTorch's own check of schema, fake implementation and autograd registration."""
    q, k, v = qkv(device)
    used = torch.tensor([3, 1], dtype=torch.int32, device=device)
    numbers = (1, 1, -1, -1, 0, 0, 0.0, 0.0, 0.0, 0, False, False, False, 0, 0)
    tensors = dict.fromkeys(_torch_ops.TENSORS)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.mica.attention.default, (q, k, v, *tensors.values(), *numbers, True),
                          test_utils=checks)
    tensors["seqused_k"] = used
    q, k, v = (t.detach() for t in (q, k, v))
    torch.library.opcheck(torch.ops.mica.attention_append.default,
                          (q[:, :2], k, v, k[:, :2].clone(), v[:, :2].clone(), None, None, *tensors.values(),
                           *numbers, False), test_utils=checks)


@needs_ops
def test_a_second_query_is_traced(device):
    q, k, v = qkv(device)
    qv = torch.randn(*q.shape[:-1], v.shape[-1], device=device)
    call = lambda *t: mica.attention_with_cache(*t[:3], qv=t[3], causal=True)  # noqa: E731
    given = [t.detach() for t in (q, k, v, qv)]
    torch.testing.assert_close(torch.compile(call, backend="aot_eager", fullgraph=True)(*given), call(*given))
    ends = [torch.tensor([0, t.shape[1], 2 * t.shape[1]], dtype=torch.int32, device=device) for t in (q, k)]
    given = [t[:2].flatten(0, 1) for t in given]
    call = lambda *t: mica.attention_varlen(*t[:3], *ends, qv=t[3], causal=True)  # noqa: E731
    torch.testing.assert_close(torch.compile(call, backend="aot_eager", fullgraph=True)(*given), call(*given))


@needs_ops
def test_export_and_fake_tensors(device):
    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return mica.attention(q, k, v, causal=True)

    inputs = tuple(t.detach() for t in qkv(device))
    program = torch.export.export(Layer(), inputs)
    assert "mica.attention" in str(program.graph)
    torch.testing.assert_close(program.module()(*inputs), Layer()(*inputs))
    from torch._subclasses import FakeTensorMode
    with FakeTensorMode() as mode:
        o = mica.attention(*(mode.from_tensor(t) for t in inputs))
    assert o.shape == (2, 5, 4, 32)


@needs_ops
def test_first_call_is_compiled_and_torch_came_after_mica():
    program = ("import mica, torch\n"
               "f = torch.compile(lambda q: mica.attention(q, q, q), fullgraph=True, backend='eager')\n"
               "q = torch.ones(1, 2, 1, 8)\n"
               "assert (f(q) == q).all()\n")
    package = os.path.dirname(os.path.dirname(mica.__file__))
    subprocess.run([sys.executable, "-c", program], check=True, cwd=package)


@needs_ops
@pytest.mark.skipif(not os.environ.get("MICA_TEST_ALL"), reason="20 s of code generation; MICA_TEST_ALL=1 runs it")
def test_inductor(device):
    q, k, v = qkv(device)

    def function(q, k, v):
        return mica.attention((q * 2).transpose(1, 2).contiguous().transpose(1, 2), k, v, causal=True).relu()

    compiled = torch.compile(function, fullgraph=True)
    torch.testing.assert_close(compiled(q, k, v), function(q, k, v))
    torch.testing.assert_close(*(torch.autograd.grad(f(q, k, v).sum(), (q, k, v)) for f in (compiled, function)))


def of_a_layer(q, k_caches, v_caches, k, v, lengths):
    return mica.attention_with_cache(q, k_caches[1], v_caches[1], k=k, v=v, cache_seqlens=lengths, causal=True)


def of_a_layer_by_the_dropin(q, k_caches, v_caches, k, v, lengths):
    import flash_attn
    return flash_attn.flash_attn_with_kvcache(q, k_caches[1], v_caches[1], k, v, cache_seqlens=lengths, causal=True)


@needs_ops
@pytest.mark.skipif(not os.environ.get("MICA_TEST_ALL"), reason="20 s of code generation; MICA_TEST_ALL=1 runs it")
@pytest.mark.parametrize("function", [of_a_layer, of_a_layer_by_the_dropin])
def test_inductor_writes_into_the_layer_that_is_meant_where_shapes_vary(device, function):
    pytest.importorskip("flash_attn", reason="the drop-in flash_attn is not installed")
    inductor = pytest.importorskip("torch._inductor.config")
    q, k, v = (torch.randn(2, 1, heads, 16, device=device) for heads in (4, 2, 2))
    if device == "cuda":
        q, k, v = (t.half() for t in (q, k, v))
    caches = torch.randn(2, 3, 2, 12, 2, 16, device=device, dtype=q.dtype)
    lengths = torch.tensor([3, 5], dtype=torch.int32, device=device)
    torch._dynamo.reset()
    with inductor.patch(force_disable_caches=True):  # whose entries may be older than this package
        compiled = torch.compile(function, dynamic=True, fullgraph=True)
        mine, others = caches.clone(), caches.clone()
        torch.testing.assert_close(compiled(q, *mine, k, v, lengths), function(q, *others, k, v, lengths))
    assert torch.equal(mine, others) and not torch.equal(mine[:, 1], caches[:, 1])
    assert torch.equal(mine[:, 0], caches[:, 0])


@needs_ops
@pytest.mark.skipif(not os.environ.get("MICA_TEST_ALL"), reason="20 s of code generation; MICA_TEST_ALL=1 runs it")
def test_seeds_that_change_under_inductor(device):
    q, k, v = (t.detach() for t in qkv(device))

    def function(seed):
        return mica.attention(q, k, v, dropout=0.4, seed=seed)

    compiled = torch.compile(function, fullgraph=True)
    for seed in (3, 4, -9, 2**40, 2**63 - 1):
        assert torch.equal(compiled(seed), function(seed))
