# SPDX-License-Identifier: Apache-2.0
"""Calls that a careful caller would not make: results over arguments, tensors of too few axes, rubbish in unused memory."""

import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import reference  # noqa: E402

import mica  # noqa: E402

NAN = math.nan


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def qkv(device, dtype, rows=70, keys=90, heads=4, key_heads=2, dim=64):
    shapes = ((2, rows, heads, dim), (2, keys, key_heads, dim), (2, keys, key_heads, dim))
    return [torch.randn(shape, device=device).to(dtype) for shape in shapes]


def close(got, want, dtype):
    tolerance = 2e-2 if dtype is not torch.float32 else 1e-3 if got.is_cuda else 1e-4
    torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_result_shifted_over_q_is_refused(device, dtype):
    q, k, v = qkv(device, dtype)
    memory = torch.cat([q.flatten(), q.new_zeros(64)])
    shifted = memory[64:].view_as(q)
    with pytest.raises(ValueError, match="^out overlaps q, want memory of its own"):
        mica.attention(memory[:-64].view_as(q), k, v, out=shifted)
    square = qkv(device, dtype, rows=4)[0]
    with pytest.raises(ValueError, match="^out overlaps q, want memory of its own"):
        mica.attention(square, k, v, out=square.transpose(1, 2))
    with pytest.raises(ValueError, match="^out overlaps q, want memory of its own"):
        mica.attention_with_cache(memory[:-64].view_as(q), k, v, cache_seqlens=80, out=shifted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows, heads, key_heads, dim", [(300, 4, 2, 64), (1, 8, 2, 128), (200, 2, 2, 256), (65, 2, 1, 512),
                                                         (3, 16, 1, 128)])
@pytest.mark.parametrize("splits", [0, 1, 3])
def test_a_result_in_the_very_place_of_q(device, dtype, rows, heads, key_heads, dim, splits):
    q, k, v = qkv(device, dtype, rows, 400, heads, key_heads, dim)
    want = reference.attention(q, k, v)[0]
    mica.attention(q, k, v, out=q, num_splits=splits)
    close(q, want, dtype)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_result_in_the_very_place_of_q_with_a_prefix(device, compiled):
    """The prefix is read after the sequences' own keys."""
    q, k, v = qkv(device, torch.float32, rows=2)
    prefix = [torch.randn(33, 2, 64, device=device) for _ in range(2)]
    want = torch.cat([reference.attention(q[b:b + 1], *(torch.cat((shared, own[b, :20]))[None] for shared, own in
                                                        zip(prefix, (k, v))))[0] for b in range(2)])

    def call(q, k, v):
        mica.attention_with_cache(q, k, v, cache_seqlens=20, k_prefix=prefix[0], v_prefix=prefix[1], out=q)
        return q

    if not compiled:
        with pytest.raises(ValueError, match="^out overlaps v_prefix, want memory of its own"):
            mica.attention_with_cache(q, k, v, cache_seqlens=20, k_prefix=prefix[0], v_prefix=prefix[1],
                                      out=prefix[1].flatten()[:q.numel()].view_as(q))
    torch._dynamo.reset()
    close((torch.compile(call, backend="aot_eager") if compiled else call)(q.clone(), k, v), want, torch.float32)


@pytest.mark.parametrize("name", ["bias", "sinks"])
def test_a_result_over_another_argument_is_refused(device, name):
    q, k, v = qkv(device, torch.float32, keys=64)
    out = torch.zeros_like(q)
    other = out.view(2, 4, 70, 64) if name == "bias" else out.flatten()[8:12]
    with pytest.raises(ValueError, match=f"^out overlaps {name}, want memory of its own"):
        mica.attention(q, k, v, out=out, **{name: other})


def test_an_lse_over_the_result_is_refused():
    numpy = pytest.importorskip("numpy", reason="NumPy is not installed")
    q, k, v = (numpy.ones((1, 6, 2, 8), "float32") for _ in range(3))
    out = numpy.zeros_like(q)
    with pytest.raises(ValueError, match="^out overlaps lse, want memory of its own"):
        mica.attention(q, k, v, out=out, return_lse=out.reshape(-1)[:12].reshape(1, 2, 6))


@pytest.mark.parametrize("kind", ["torch", "numpy", "compiled"])
@pytest.mark.parametrize("which", range(3))
def test_three_axes_are_taken_for_packed_rows_alone(kind, which):
    """sdpa's (batch, rows, dim) would be read as (rows, heads, dim)."""
    tensors = qkv("cpu", torch.float32)
    tensors[which] = tensors[which][0]
    call = mica.attention
    if kind == "numpy":
        tensors = [t.numpy() for t in tensors]
    elif kind == "compiled":
        torch._dynamo.reset()
        call = torch.compile(call, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match=f"{'qkv'[which]} has 3 axes, want \\(batch, rows, heads, dim\\)"):
        call(*tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("splits", [0, 1, 4])
@pytest.mark.parametrize("is_paged", [False, True])
def test_rubbish_behind_the_keys_in_use(device, dtype, rows, splits, is_paged):
    """Caches are not initialised: what is not in use may be NaN, and pages that nobody uses any number."""
    lengths, page = (5, 133), 16
    q, _, _ = qkv(device, dtype, rows)
    caches = [torch.full((2, 160, 2, 64), NAN, device=device, dtype=dtype) for _ in range(2)]
    for cache in caches:
        for b, length in enumerate(lengths):
            cache[b, :length] = torch.randn(length, 2, 64, device=device)
    want = torch.cat([reference.attention(q[b:b + 1], *(c[b:b + 1, :length] for c in caches), causal=True)[0]
                      for b, length in enumerate(lengths)])
    options = dict(cache_seqlens=torch.tensor(lengths, dtype=torch.int32, device=device), causal=True, num_splits=splits)
    if is_paged:
        table = torch.randperm(20, device=device).to(torch.int32).view(2, 10)
        pages = [torch.full((20, page, 2, 64), NAN, device=device, dtype=dtype) for _ in caches]
        for cache, paged in zip(caches, pages):
            paged[table.long()] = cache.view(2, 10, page, 2, 64)
        table[0, 1:] = -1
        caches, options["block_table"] = pages, table
    close(mica.attention_with_cache(q, *caches, **options), want, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rubbish_in_the_next_sequence(device, dtype):
    q, k, v = (t[0] for t in qkv(device, dtype))
    k[50:], v[50:] = NAN, NAN
    cu_q, cu_k = (torch.tensor((0, end), dtype=torch.int32, device=device) for end in (30, 50))
    leaves = [t.requires_grad_() for t in (q, k, v)]
    o = mica.attention_varlen(*leaves, cu_q, cu_k, causal=True)
    close(o[:30], reference.attention(q[None, :30], k[None, :50], v[None, :50], causal=True)[0][0], dtype)
    for grad in torch.autograd.grad(o[:30].square().sum(), leaves):
        assert grad.isfinite().all()


CHANGED = {"k": lambda t: t.add_(1), "bias": torch.Tensor.zero_, "sinks": torch.Tensor.zero_, "alibi": torch.Tensor.zero_,
           "mask": torch.Tensor.logical_not_, "o": lambda t: t.add_(1), "lse": lambda t: t.add_(1)}


@pytest.mark.parametrize("name", CHANGED)
def test_what_backward_reads_is_not_changed_unnoticed(device, name):
    q, k, v = qkv(device, torch.float32, 6, 9)
    given = dict(bias=torch.randn(1, 4, 6, 9, device=device), sinks=torch.randn(4, device=device),
                 alibi=torch.rand(4, device=device), mask=torch.rand(1, 4, 6, 9, device=device) > 0.3)
    o, lse = mica.attention(q.requires_grad_(), k, v, return_lse=True, **given)
    loss = (o * 1).sum()
    with torch.no_grad():
        CHANGED[name](dict(given, k=k, o=o, lse=lse)[name])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def watched_by(watcher, call):
    """The call under autocast, a profiler, or with q of a class of its own."""
    if watcher == "autocast":
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return call(lambda q: q)
    if watcher == "profiler":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            return call(lambda q: q)
    return call(lambda q: q.as_subclass(Subclass))


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize("watcher", ["autocast", "profiler", "subclass"])
def test_arrays_beside_tensors_whoever_looks_on(watcher):
    pytest.importorskip("numpy", reason="NumPy is not installed")
    q, k, v = qkv("cpu", torch.float32, key_heads=4)
    packed = [t.flatten(0, 1) for t in (q, k, v)]
    starts = [0, 70, 140], [0, 90, 180]
    mask = torch.rand(70, 90) < 0.5
    second = torch.randn(2, 70, 4, 64)
    for arrays, tensors in (
            (lambda q: mica.attention(q, k.numpy(), v.numpy()), lambda q: mica.attention(q, k, v)),
            (lambda q: mica.attention(q, k, v, mask=mask.numpy()), lambda q: mica.attention(q, k, v, mask=mask)),
            (lambda q: mica.attention_varlen(q.flatten(0, 1), *(t.numpy() for t in packed[1:]), *starts, qv=second.flatten(0, 1).numpy()),
             lambda q: mica.attention_varlen(q.flatten(0, 1), *packed[1:], *starts, qv=second.flatten(0, 1))),
            (lambda q: mica.attention_with_cache(q, k.numpy(), v.numpy(), cache_seqlens=50, qv=second.numpy()),
             lambda q: mica.attention_with_cache(q, k, v, cache_seqlens=50, qv=second))):
        got, want = (watched_by(watcher, lambda wrapped: call(wrapped(q))) for call in (arrays, tensors))  # noqa: B023
        assert got.dtype is want.dtype and torch.equal(got, want)
    cache = torch.zeros(2, 2, 90, 4, 64)
    new = k[:, :1], v[:, :1]
    watched_by(watcher, lambda wrapped: mica.attention_with_cache(
        wrapped(q), cache[0].numpy(), cache[1].numpy(), k=new[0].numpy(), v=new[1].numpy(), cache_seqlens=7))
    assert torch.equal(cache[:, :, 7:8], torch.stack(new)) and torch.equal(cache[:, :, 8:], torch.zeros(2, 2, 82, 4, 64))


@pytest.mark.parametrize("kind", ["read-only", "big-endian"])
@pytest.mark.parametrize("which", ["k_cache", "v_cache"])
def test_arrays_that_cannot_take_up_new_keys(kind, which):
    pytest.importorskip("numpy", reason="NumPy is not installed")
    q, k, v = qkv("cpu", torch.float32, rows=1)
    caches = {"k_cache": k.numpy(), "v_cache": v.numpy()}
    caches[which] = caches[which].astype(">f4") if kind == "big-endian" else caches[which].copy()
    caches[which].flags.writeable = kind != "read-only"
    for _ in range(3):
        with pytest.raises(ValueError, match=f"^{which} is {kind}, want"):
            mica.attention_with_cache(q, **caches, k=k[:, :1].clone(), v=v[:, :1].clone(), cache_seqlens=7)


@pytest.mark.parametrize("watcher", ["nobody", "profiler", "subclass"])
def test_rotary_and_values_without_new_keys_are_refused_whoever_looks_on(watcher):
    q, k, v = qkv("cpu", torch.float32)
    table = torch.randn(100, 32)
    for given, said in (({"rotary_cos": table, "rotary_sin": table}, "rotary_cos is given, want k with it"),
                        ({"v": v[:, :1]}, "k is None, want it together with v"), ({"k": k[:, :1]}, "v is None, want it together with k")):
        def call(wrapped, given=given):
            return mica.attention_with_cache(wrapped(q), k, v, cache_seqlens=7, **given)
        with pytest.raises(ValueError, match=f"^{said}"):
            call(lambda q: q) if watcher == "nobody" else watched_by(watcher, call)


@pytest.mark.parametrize("watcher", ["nobody", "profiler", "subclass"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32])
def test_new_keys_of_another_type_are_refused_whoever_looks_on(watcher, dtype):
    q, k, v = qkv("cpu", torch.float32)
    new = k[:, :1].to(dtype)

    def call(wrapped):
        return mica.attention_with_cache(wrapped(q), k.clone(), v.clone(), k=new, v=new, cache_seqlens=7)
    with pytest.raises(ValueError, match=r"^k(_new)?\.dtype is .*, want f"):
        call(lambda q: q) if watcher == "nobody" else watched_by(watcher, call)


def test_no_tangent_of_rotary():
    q, k, v = qkv("cpu", torch.float32, rows=1)
    table = torch.randn(100, 32)

    def call(table):
        return mica.attention_with_cache(q, k, v, k=k[:, :1].clone(), v=v[:, :1].clone(), cache_seqlens=7, rotary_cos=table,
                                         rotary_sin=table)
    with pytest.raises(mica.Unsupported, match="^forward-mode differentiation"):
        torch.func.jvp(call, (table,), (table,))


@pytest.mark.parametrize("watcher", ["autocast", "profiler", "subclass"])
def test_what_is_no_array_is_refused_whoever_looks_on(watcher):
    q, k, v = qkv("cpu", torch.float32)
    for call, said in ((lambda q: mica.attention(q, [1.0], v), "k is a list"), (lambda q: mica.attention(q, k, None), "v is None"),
                       (lambda q: mica.attention_with_cache(q, "cache", v), "k_cache is a str"),
                       (lambda q: mica.attention_with_cache(q, k, v, k=[1.0], v=v[:, :1], cache_seqlens=3), "k is a list"),
                       (lambda q: mica.attention_with_cache(q, k, v, qv=[1.0]), "qv is a list")):
        with pytest.raises(TypeError, match=f"^{said}, want a torch.Tensor"):
            watched_by(watcher, lambda wrapped: call(wrapped(q)))  # noqa: B023


@pytest.mark.parametrize("call", [
    lambda q, k, v, out: mica.attention(q, k, v, out=out),
    lambda q, k, v, out: mica.attention_varlen(*(t[0] for t in (q, k, v)), [0, 70], [0, 90], out=out),
    lambda q, k, v, out: mica.attention_with_cache(q, k, v, out=out)], ids=["dense", "packed", "cached"])
def test_results_that_cannot_be_written_are_refused(call):
    q, k, v = qkv("cpu", torch.float32)
    for out, said in (([1.0], "out is a list, want a torch.Tensor"),
                      (torch.zeros_like(q).requires_grad_(), "out requires a gradient, .* want out.detach")):
        with pytest.raises(ValueError, match=said):
            call(q, k, v, out)


@pytest.mark.parametrize("name", ["mask", "bias", "alibi", "sinks"])
def test_sparse_tensors_are_refused_by_name(name):
    q, k, v = qkv("cpu", torch.float32)
    given = {"mask": torch.ones(70, 90, dtype=torch.bool), "bias": torch.ones(70, 90)}.get(name, torch.ones(4)).to_sparse()
    for attend in (mica.attention, mica.attention_with_cache):
        with pytest.raises(ValueError, match=f"^{name} is torch.sparse_coo, want torch.strided: {name}.to_dense"):
            attend(q, k, v, **{name: given})


def test_functionalize_takes_the_op():
    q, k, v = qkv("cpu", torch.float32)
    functionalize = pytest.importorskip("torch.func").functionalize
    assert torch.equal(functionalize(lambda q: mica.attention(q * 1, k, v, causal=True))(q), mica.attention(q, k, v, causal=True))


@pytest.mark.parametrize("dtype", ["int64", "uint32", "uint64"])
def test_lengths_beyond_32_bits_do_not_wrap(dtype):
    if not hasattr(torch, dtype):
        pytest.skip("this PyTorch has no such type")
    q = torch.randn(3, 2, 16)
    huge = torch.tensor([0, 2**32 - 1 if dtype == "uint32" else 2**32 + 3]).to(getattr(torch, dtype))
    with pytest.raises(ValueError, match=r"^cu_seqlens_q\[1\] is 2147483647, want at most 3"):
        mica.attention_varlen(q, q, q, huge, [0, 3])


def test_a_negative_view_beside_arrays_is_refused():
    pytest.importorskip("numpy", reason="NumPy is not installed")
    q, k, v = qkv("cpu", torch.float32)
    with pytest.raises(ValueError, match="^k is a negative view, want its values"):
        mica.attention(q.numpy(), torch._neg_view(k), v)
    with pytest.raises(ValueError, match="^out is a negative view, want its values"):
        mica.attention(q.numpy(), k, v, out=torch._neg_view(torch.empty_like(q)))
