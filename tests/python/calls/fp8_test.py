# SPDX-License-Identifier: Apache-2.0
"""mica.fp8 against attention in double of what the stored elements stand for."""

import pytest
import torch

import mica
from mica import fp8

E4M3 = torch.float8_e4m3fn


def stored(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(E4M3)


def truth(q, k, v, factors=(1.0, 1.0, 1.0), causal=False, keys=None):
    """In double; factors broadcast to (batch, 1, key heads, 1)."""
    group = q.shape[2] // k.shape[2]
    wide = [torch.as_tensor(f, dtype=torch.float64) for f in factors]
    wide = [f if f.dim() == 0 else f.reshape(f.shape[0], 1, -1, 1) for f in wide]
    k, v = k.double() * wide[1], v.double() * wide[2]
    if keys is not None:
        k, v = k[:, :keys], v[:, :keys]
    q_factor = wide[0] if wide[0].dim() == 0 else wide[0].repeat_interleave(group, 2)
    k, v = (t.repeat_interleave(group, 2) for t in (k, v))
    score = torch.einsum("bihd,bjhd->bhij", q.double() * q_factor, k) / q.shape[3] ** 0.5
    if causal:
        rows, columns = score.shape[-2:]
        score = score.masked_fill(torch.ones(rows, columns).triu(columns - rows + 1).bool(), -float("inf"))
    return torch.einsum("bhij,bjhd->bihd", score.softmax(-1), v), score.logsumexp(-1)


@pytest.mark.parametrize("kind", ["none", "number", "head", "sequence"])
@pytest.mark.parametrize("causal", [False, True])
def test_all_of_e4m3(kind, causal):
    q, k, v = stored(2, 9, 4, 32), stored(2, 21, 2, 32, seed=1), stored(2, 21, 2, 48, seed=2)
    shape = {"head": (2,), "sequence": (2, 2)}.get(kind, ())
    given = [None if kind == "none" else 0.7 if kind == "number" else 0.5 + torch.rand(shape) for _ in range(3)]
    whole = [1.0 if f is None else f if isinstance(f, float) else f.reshape(-1, 2) for f in given]
    out, lse = fp8.attention(q, k, v, q_descale=given[0], k_descale=given[1], v_descale=given[2], causal=causal,
                             return_lse=True)
    expected, expected_lse = truth(q, k, v, whole, causal)
    assert out.dtype is torch.bfloat16 and lse.dtype is torch.float32
    torch.testing.assert_close(out.double(), expected, atol=2e-2, rtol=1e-2)
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-4, rtol=1e-4)
    into = torch.empty(out.shape, dtype=torch.float32)
    fp8.attention(q, k, v, q_descale=given[0], k_descale=given[1], v_descale=given[2], causal=causal, out=into)
    torch.testing.assert_close(into.double(), expected, atol=1e-5, rtol=1e-5)


def test_without_factors_the_plain_functions_do():
    q, k, v = (stored(1, 7, 2, 16, seed=n) for n in range(3))
    assert torch.equal(mica.attention(q, k, v), fp8.attention(q, k, v))
    assert torch.equal(mica.attention(q.bfloat16(), k, v), fp8.attention(q.bfloat16(), k, v))


def test_packed():
    q, k, v = stored(9, 2, 32), stored(13, 1, 32, seed=1), stored(13, 1, 32, seed=2)
    factor = torch.tensor([[0.5], [1.5]])
    out = fp8.attention_varlen(q, k, v, [0, 4, 9], [0, 6, 13], k_descale=factor, v_descale=factor, causal=True)
    for b, (rows, keys) in enumerate(((slice(0, 4), slice(0, 6)), (slice(4, 9), slice(6, 13)))):
        one = factor[b:b + 1]
        expected, _ = truth(q[None, rows], k[None, keys], v[None, keys], (1.0, one, one), True)
        torch.testing.assert_close(out[None, rows].double(), expected, atol=2e-2, rtol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("paged", [False, True])
def test_cache_takes_up_what_is_new(dtype, paged):
    batch, heads, size, dim = 2, 2, 8, 32
    q, new_k, new_v = (torch.randn(batch, 3, heads * 2 if n == 0 else heads, dim).to(dtype) for n in range(3))
    slots = 8 if paged else batch
    k_cache, v_cache = (stored(slots, size if paged else 32, heads, dim, seed=n) for n in range(2))
    table = torch.tensor([[6, 1, 3, 0], [2, 7, 5, 4]], dtype=torch.int32) if paged else None
    factors = [0.5 + torch.rand(slots if paged else batch, heads) for _ in range(2)]
    before = k_cache.view(torch.uint8).clone()
    out = fp8.attention_with_cache(q, k_cache, v_cache, k=new_k, v=new_v, cache_seqlens=20, block_table=table,
                                   k_descale=factors[0], v_descale=factors[1], descale_per_page=paged, causal=True)
    whole = []
    for cache, new, factor in ((k_cache, new_k, factors[0]), (v_cache, new_v, factors[1])):
        wide = cache.double() * factor.double()[:, None, :, None]
        if paged:
            wide = wide[table.long()].flatten(1, 2)
            factor = factor[table.long()[:, 2]]  # rows 20 to 22 are in the third page
        whole.append(wide)
        # Half a unit in the last place of e4m3, or of its smallest numbers.
        away = (wide[:, 20:23] - new.double()).abs()
        assert (away <= new.double().abs() * 2**-4 + factor.double()[:, None, :, None] * 2**-10 + 1e-9).all()
    assert (k_cache.view(torch.uint8) != before).sum() <= batch * 3 * heads * dim
    expected, _ = truth(q, *whole, causal=True, keys=23)
    torch.testing.assert_close(out.double(), expected, atol=2e-2, rtol=2e-2)
    assert out.dtype is dtype


def test_quantise():
    x = torch.randn(2, 5, 3, 16)
    x[0, 0, 1, 0] = 1000.0
    for per, shape in (("tensor", (1, 1)), ("head", (1, 3)), ("sequence", (2, 3))):
        small, factor = fp8.quantise(x, per)
        assert small.dtype is E4M3 and tuple(factor.shape) == shape
        back = small.float() * factor[:, None, :, None]
        assert ((back - x).abs() <= x.abs() * 2**-4 + factor[:, None, :, None] * 2**-10).all()
    queries, factor = fp8.quantise(torch.randn(2, 5, 6, 16), "sequence", key_heads=3)
    assert tuple(factor.shape) == (2, 3) and queries.float().abs().amax((1, 3)).reshape(2, 3, 2).amax(2).eq(448).all()
    with pytest.raises(mica.InvalidArgument, match="key_heads is 4, want a divisor of 6"):
        fp8.quantise(torch.randn(2, 5, 6, 16), key_heads=4)
    zeros, factor = fp8.quantise(torch.zeros(1, 2, 1, 4))
    assert not zeros.float().any() and torch.isfinite(factor).all()


Q, K, V = stored(2, 3, 4, 16), stored(2, 5, 2, 16, seed=1), stored(2, 5, 2, 16, seed=2)


@pytest.mark.parametrize("call, message", [
    (lambda: fp8.attention(Q, K, V, q_descale=torch.ones(3, 2)), r"q_descale.shape\[0\] is 3, want 1 or 2 \(the batch\)"),
    (lambda: fp8.attention(Q, K, V, k_descale=torch.ones(2, 4)), r"k_descale.shape\[1\] is 4, want 1 or 2"),
    (lambda: fp8.attention(Q, K, V, v_descale=torch.ones(2, 2).double()), "v_descale is torch.float64 of 2 axes, want"),
    (lambda: fp8.attention(Q, K, V, v_descale="x"), "v_descale is 'x', want a number"),
    (lambda: fp8.attention(Q.float(), K, V, q_descale=1.0), "q_descale is given and q.dtype is fp32, want e4m3"),
    (lambda: fp8.attention(Q.float(), K.float(), V.float(), k_descale=1.0), "k_descale is given and k.dtype is fp32"),
    (lambda: fp8.attention(Q, K.float(), V), r"k.dtype is fp32, want e4m3 \(= q.dtype\)"),
    (lambda: fp8.attention_with_cache(Q, K, V, descale_per_page=True, k_descale=1.0),
     "descale_per_page is 1, want block_table with it"),
    (lambda: fp8.attention(Q, K, V, v_descale="1"), "v_descale is '1', want a number"),
    (lambda: fp8.attention(Q, K, V, v_descale=1e-46), "v_descale is 1e-46, want a number that fp32 can hold"),
    (lambda: fp8.attention(Q.float().numpy(), K, V), "q is a ndarray, want a torch.Tensor"),
    (lambda: fp8.attention_with_cache(Q, K, V, cache_seqlens=2**40), "cache_seqlens is 1099511627776, want an int of 32 bits"),
    (lambda: fp8.attention_with_cache(Q, K, V, cache_seqlens=5, mask=torch.ones(3, 4, dtype=torch.bool)),
     r"mask.shape\[1\] is 4, want 1 or at least 5"),
    (lambda: fp8.quantise(torch.ones(2, 2).numpy()), "x is a ndarray, want a torch.Tensor"),
    (lambda: fp8.quantise(torch.ones(2, 2)), "x has 2 axes, want 4"),
    (lambda: fp8.quantise(torch.ones(2, 2, 2, 2), "page"), "per is 'page', want 'tensor', 'head' or 'sequence'"),
])
def test_bad_inputs(call, message):
    with pytest.raises(mica.InvalidArgument, match=message):
        call()


def test_factors_that_are_negative_views():
    q, k, v = torch.randn(1, 3, 2, 16), stored(1, 5, 2, 16), stored(1, 5, 2, 16, seed=1)
    with pytest.raises(ValueError, match="^k_descale is a negative view, want its values"):
        fp8.attention(q, k, v, k_descale=torch._neg_view(torch.rand(2)))


def test_no_tangent():
    from torch.autograd import forward_ad
    q, k, v = torch.randn(1, 3, 2, 16), stored(1, 5, 2, 16), stored(1, 5, 2, 16, seed=1)
    with forward_ad.dual_level(), pytest.raises(mica.Unsupported, match="^forward-mode differentiation"):
        fp8.attention(forward_ad.make_dual(q, torch.ones_like(q)), k, v)


def test_no_gradient_of_slopes():
    q, k, v = torch.randn(1, 3, 2, 16), stored(1, 5, 2, 16), stored(1, 5, 2, 16, seed=1)
    with pytest.raises(mica.Unsupported, match="^alibi requires a gradient, and e4m3 has none"):
        fp8.attention(q, k, v, alibi=torch.rand(2, requires_grad=True))


def test_no_gradient():
    q = torch.randn(1, 3, 2, 16, requires_grad=True)
    k, v = (stored(1, 5, 2, 16, seed=n) for n in range(2))
    with pytest.raises(mica.Unsupported, match="q requires a gradient, and e4m3 has none; want it under torch.no_grad"):
        fp8.attention(q, k, v)
    with torch.no_grad():
        assert not fp8.attention(q, k, v).requires_grad
    out = mica.attention(q, k, v)
    with pytest.raises(mica.Unsupported, match="k.dtype is e4m3, which has no backward"):
        out.sum().backward()
