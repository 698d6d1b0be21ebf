# SPDX-License-Identifier: Apache-2.0
"""What only a GPU can show: graphs, streams, a host that waits for nothing, DLPack from its memory."""

import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from conftest import cuda_missing  # noqa: E402

import mica  # noqa: E402

if cuda_missing():
    pytest.skip(cuda_missing(), allow_module_level=True)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def half(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.float16)


def int32(*values):
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def cases():
    """name -> (call, its inputs). Each call gives one tensor."""
    q, k, v = half(2, 64, 4, 64), half(2, 96, 2, 64), half(2, 96, 2, 64)
    packed = half(100, 4, 64), half(130, 2, 64), half(130, 2, 64)
    cu_q, cu_k = int32(0, 40, 100), int32(0, 70, 130)
    one, k_new, v_new = half(2, 1, 4, 64), half(2, 1, 2, 64), half(2, 1, 2, 64)
    caches, used = (half(2, 4096, 2, 64), half(2, 4096, 2, 64)), int32(4000, 17)
    pages, table = (half(8, 32, 2, 64), half(8, 32, 2, 64)), int32(*range(8)).view(2, 4)
    short, bias, sinks = int32(100, 33), half(1, 4, 64, 96), half(4)

    def trained(q, k, v, d_o):
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        return torch.cat([g.flatten() for g in torch.autograd.grad(mica.attention(*leaves, causal=True), leaves, d_o)])

    return {
        "dense": (lambda *t: mica.attention(*t, causal=True), (q, k, v)),
        "features": (lambda *t: mica.attention(*t, bias=bias, sinks=sinks, window=(9, 9), softcap=9.0), (q, k, v)),
        "varlen": (lambda *t: mica.attention_varlen(*t, cu_q, cu_k, causal=True), packed),
        "split decode": (lambda *t: mica.attention_with_cache(*t, cache_seqlens=used), (one, *caches)),
        "append": (lambda *t: mica.attention_with_cache(t[0], *caches, k=t[1], v=t[2], cache_seqlens=used, causal=True),
                   (one, k_new, v_new)),
        "pages": (lambda *t: mica.attention_with_cache(*t, cache_seqlens=short, block_table=table), (one, *pages)),
        "gradient": (trained, (q, k, v, half(2, 64, 4, 64))),
        "dropout": (lambda *t: mica.attention(*t, dropout=0.5), (q, k, v)),
    }


NAMES = ("dense", "features", "varlen", "split decode", "append", "pages", "gradient", "dropout")


@pytest.fixture
def case(request):
    return cases()[request.param]


@pytest.mark.parametrize("case", NAMES, indirect=True)
def test_no_call_waits_for_the_device(case):
    call, inputs = case
    call(*inputs)  # the plan, and the kernel's image
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call(*inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("case", [name for name in NAMES if name != "dropout"], indirect=True)
def test_a_graph_replays_on_new_values(case):
    call, inputs = case
    call(*inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call(*inputs)
    graph.replay()
    first = captured.clone()
    torch.testing.assert_close(first, call(*inputs))
    for tensor in inputs:
        tensor.copy_(torch.randn_like(tensor))
    graph.replay()
    torch.testing.assert_close(captured, call(*inputs))
    assert not torch.equal(first, captured)


def test_a_graph_draws_new_dropout_bits_at_every_replay():
    q, k, v = half(2, 64, 4, 64), half(2, 96, 2, 64), torch.ones(2, 96, 2, 64, device="cuda", dtype=torch.float16)
    leaves = [t.requires_grad_() for t in (q, k, v)]

    def step():
        o = mica.attention(*leaves, dropout=0.5)
        return o, torch.autograd.grad(o.sum(), leaves[2])[0]

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, d_v = step()
    seen = []
    for _ in range(3):
        graph.replay()
        seen.append(o.detach().clone())
        # v is 1, so what was kept is summed alike by the forward and by the backward pass: the same bits in both.
        torch.testing.assert_close(d_v.float().sum(), o.float().sum(), rtol=1e-2, atol=1e-1)
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])


@pytest.mark.parametrize("case", [name for name in NAMES if name != "dropout"], indirect=True)
def test_the_current_stream(case):
    """The inputs are written by a stream that is kept busy first: a call on another one would read what was there."""
    call, inputs = case
    want_inputs = [torch.randn_like(t) for t in inputs]
    kept = [t.clone() for t in inputs]
    for tensor, value in zip(inputs, want_inputs):
        tensor.copy_(value)
    want = call(*inputs).clone()
    for tensor, value in zip(inputs, kept):
        tensor.copy_(value)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        for tensor, value in zip(inputs, want_inputs):
            tensor.copy_(value)
        got = call(*inputs)
    side.synchronize()
    torch.testing.assert_close(got, want)


def test_the_other_gpu():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    q, k, v = (half(1, 8, 2, 64).to("cuda:1") for _ in range(3))
    with torch.cuda.device(0):
        o = mica.attention(q, k, v)
    assert o.device == q.device
    torch.testing.assert_close(o.cpu(), mica.attention(*(t.to("cuda:0") for t in (q, k, v))).cpu())


class Producer:
    """Nothing but DLPack."""

    def __init__(self, tensor):
        self._tensor = tensor

    def __dlpack__(self, **options):
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()


def test_dlpack_on_the_gpu():
    tensors = half(2, 64, 4, 64), half(2, 96, 2, 64), half(2, 96, 2, 64)
    want, lse_want = mica.attention(*tensors, causal=True, return_lse=True)
    out, lse = torch.empty_like(want), torch.empty_like(lse_want)
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mica.attention(*(Producer(t) for t in tensors), causal=True, out=Producer(out), return_lse=Producer(lse))
    torch.cuda.synchronize()
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(lse, lse_want)


@pytest.mark.parametrize("deterministic", [False, True])
def test_gradients_repeat_where_torch_wants_it(deterministic):
    """Many query heads add into one key head: the sum whose order a switch decides."""
    leaves = [t.requires_grad_() for t in (half(2, 512, 16, 64), half(2, 512, 1, 64), half(2, 512, 1, 64))]
    d_o = half(2, 512, 16, 64)
    torch.use_deterministic_algorithms(deterministic)
    try:
        runs = [torch.autograd.grad(mica.attention(*leaves, causal=True), leaves, d_o) for _ in range(5)]
    finally:
        torch.use_deterministic_algorithms(False)
    for run in runs[1:]:
        for one, other in zip(run, runs[0]):
            assert torch.equal(one, other) if deterministic else torch.allclose(one, other, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("odd, meant", [((0, 30, 110), (0, 30, 100)), ((0, 50, 30), (0, 50, 50)), ((-7, 50, 100), (0, 50, 100))])
def test_odd_cu_seqlens_are_cut_to_the_tensor(odd, meant):
    """They are not waited for, so not refused: what lies outside is cut off, and rows of no sequence are 0."""
    q, k, v = (half(100, 2, 64).requires_grad_() for _ in range(3))
    grad = half(100, 2, 64)
    results = []
    for cu in (int32(*odd), int32(*meant)):
        o, lse = mica.attention_varlen(q, k, v, cu, cu, max_seqlen_q=100, max_seqlen_k=100, return_lse=True)
        results.append((o, lse, *torch.autograd.grad(o, (q, k, v), grad)))
    for name, got, want in zip(("o", "lse", "dq", "dk", "dv"), *results):
        torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-3, msg=lambda text, name=name: f"{name}: {text}")
    o, _, *grads = results[0]
    assert all((t[meant[-1]:] == 0).all() and not t.isnan().any() for t in (o, *grads))


def test_lengths_that_the_kernel_before_writes():
    """A launch may begin before them: what it then reads of the lengths must not count."""
    rows, heads, dim = 900, 8, 64
    q, k, v = half(rows, heads, dim), half(rows, heads, dim), half(rows, heads, dim)
    lengths = [int32(0, 300, 500, 900), int32(0, 100, 640, 900), int32(0, 0, 450, 900)]
    nothing, other = torch.zeros_like(lengths[0]), half(2, 700, heads, dim)

    def call(cu):
        return mica.attention_varlen(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=rows, max_seqlen_k=rows)

    wanted = [call(cu) for cu in lengths]
    cu, found = lengths[0].clone(), []
    for i in range(60):
        torch.add(lengths[i % 3], nothing, out=cu)  # a kernel, not a copy
        if i % 2:
            mica.attention(other, other, other)  # it lets the next one begin at once, and waits itself
        found.append(call(cu))
    for i, result in enumerate(found):
        assert torch.equal(result, wanted[i % 3]), i
