# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3's names: flash_attn_interface."""

import inspect
import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
fa3 = pytest.importorskip("flash_attn_interface", reason="the extra flash-attn-3 is not installed")

import flash_attn  # noqa: E402
import reference  # noqa: E402


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def close(got, want, tolerance=1e-5):
    torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("deterministic", [False, True])
def test_dense_with_lse_and_gradient(device, deterministic):
    q = torch.randn(2, 9, 4, 32, device=device, requires_grad=True)
    k, v = (torch.randn(2, 5, 2, 32, device=device, requires_grad=True) for _ in range(2))
    out, lse = fa3.flash_attn_func(q, k, v, causal=True, window_size=(3, -1), return_attn_probs=True,
                                   deterministic=deterministic)
    leaves = [t.detach().double().requires_grad_() for t in (q, k, v)]
    exact, exact_lse = reference.attention(*leaves, causal=True, window=(3, None))
    close(out, exact)
    assert (lse[:, :, :4] == -math.inf).all()
    close(lse, exact_lse)
    d_out = torch.randn_like(out)
    right = torch.autograd.grad(exact, leaves, d_out.double())
    for got, want in zip(torch.autograd.grad(out, (q, k, v), d_out), right):
        close(got, want, 1e-4)


def test_scale_and_causal_stand_where_dropout_stands_in_flash_attn(device):
    q = torch.randn(1, 6, 2, 32, device=device)
    close(fa3.flash_attn_func(q, q, q, 0.5, True), reference.attention(q, q, q, scale=0.5, causal=True)[0])
    assert list(inspect.signature(fa3.flash_attn_func).parameters)[3:6] == ["softmax_scale", "causal", "qv"]


def test_qv_adds_a_product_with_the_values(device):
    q, qv = torch.randn(1, 3, 4, 16, device=device), torch.randn(1, 3, 4, 32, device=device)
    k, v = torch.randn(1, 7, 1, 16, device=device), torch.randn(1, 7, 1, 32, device=device)
    want, _ = reference.attention(torch.cat((q, qv), -1), torch.cat((k, v), -1), v, causal=True)
    close(fa3.flash_attn_func(q, k, v, qv=qv, causal=True), want)
    close(fa3.flash_attn_with_kvcache(q, k, v, qv=qv, causal=True), want)
    packed = [t.flatten(0, 1) for t in (q, k, v)]
    ends = [torch.tensor([0, n], dtype=torch.int32, device=device) for n in (3, 7)]
    made = fa3.flash_attn_varlen_func(*packed, *ends, 3, 7, qv=qv.flatten(0, 1), causal=True, return_attn_probs=True)
    close(made[0][None], want)


def test_qv_has_a_gradient_and_else_joins_nothing(device, monkeypatch):
    q, qv = torch.randn(1, 3, 4, 16, device=device), torch.randn(1, 3, 4, 32, device=device)
    k, v = torch.randn(1, 7, 1, 16, device=device), torch.randn(1, 7, 1, 32, device=device)
    leaves = [t.double().requires_grad_() for t in (q, k, v, qv)]
    want, _ = reference.attention(torch.cat((leaves[0], leaves[3]), -1), torch.cat(leaves[1:3], -1), leaves[2])
    given = [t.detach().clone().requires_grad_() for t in (q, k, v, qv)]
    out = fa3.flash_attn_func(*given[:3], qv=given[3])
    d_out = torch.randn_like(out)
    for got, right in zip(torch.autograd.grad(out, given, d_out), torch.autograd.grad(want, leaves, d_out.double())):
        close(got, right, 1e-4)

    def refuse(*_, **__):
        raise AssertionError("joined")
    monkeypatch.setattr(torch, "cat", refuse)
    fa3.flash_attn_with_kvcache(q, k, v, qv=qv, cache_seqlens=5)
    close(fa3.flash_attn_func(q, k, v, qv=qv), want)


def test_packed_qkv_in_both_layouts(device):
    qkv = torch.randn(2, 6, 3, 2, 32, device=device)
    want, _ = reference.attention(*qkv.unbind(2))
    close(fa3.flash_attn_qkvpacked_func(qkv), want)
    close(fa3.flash_attn_qkvpacked_func(qkv.flatten(2, 3), num_heads_q=2), want)


def test_varlen_with_seqused(device):
    q, k, v = (torch.randn(2, 8, 2, 32, device=device) for _ in range(3))
    cu = torch.tensor([0, 8, 16], dtype=torch.int32, device=device)
    used_q, used_k = (torch.tensor(n, dtype=torch.int32, device=device) for n in ((3, 8), (8, 5)))
    out = fa3.flash_attn_varlen_func(*(t.flatten(0, 1) for t in (q, k, v)), cu, cu, 8, 8, used_q, used_k, causal=True)
    close(out[:3], reference.attention(q[:1, :3], k[:1], v[:1], causal=True)[0][0])
    close(out[8:], reference.attention(q[1:], k[1:, :5], v[1:, :5], causal=True)[0][0])


@pytest.mark.parametrize("paged", [False, True])
def test_packed_queries_over_a_cache(device, paged):
    cache_k, cache_v = (torch.randn(2, 24, 1, 32, device=device) for _ in range(2))
    q = torch.randn(5, 2, 32, device=device)
    cu, used = (torch.tensor(n, dtype=torch.int32, device=device) for n in ((0, 1, 5), (24, 11)))
    options = dict(cache_seqlens=used, cu_seqlens_q=cu, max_seqlen_q=4, causal=True)
    if paged:
        pages = [t.reshape(6, 8, 1, 32) for t in (cache_k, cache_v)]
        table = torch.arange(6, dtype=torch.int32, device=device).reshape(2, 3)
        out = fa3.flash_attn_with_kvcache(q, *pages, page_table=table, **options)
    else:
        out = fa3.flash_attn_with_kvcache(q, cache_k, cache_v, **options)
    close(out[:1], reference.attention(q[None, :1], cache_k[:1], cache_v[:1], causal=True)[0][0])
    close(out[1:], reference.attention(q[None, 1:], cache_k[1:, :11], cache_v[1:, :11], causal=True)[0][0])


def test_rows_of_the_page_table_by_index(device):
    pages = [torch.randn(6, 8, 1, 32, device=device) for _ in range(2)]
    q = torch.randn(1, 2, 2, 32, device=device)
    table = torch.tensor([[0, 1], [5, 3], [2, 4]], dtype=torch.int32, device=device)
    index = torch.tensor([1], dtype=torch.int32, device=device)
    out = fa3.flash_attn_with_kvcache(q, *pages, page_table=table, cache_batch_idx=index, cache_seqlens=11, causal=True)
    k, v = (t[[5, 3]].flatten(0, 1)[None, :11] for t in pages)
    close(out, reference.attention(q, k, v, causal=True)[0])


def test_append_and_the_four_results(device):
    k_cache, v_cache = (torch.randn(2, 10, 2, 32, device=device) for _ in range(2))
    q, k = torch.randn(2, 1, 4, 32, device=device), torch.randn(2, 1, 2, 32, device=device)
    out, lse, *rest = fa3.flash_attn_with_kvcache(q, k_cache, v_cache, k, k, cache_seqlens=4, causal=True,
                                                  return_softmax_lse=True)
    assert torch.equal(k_cache[:, 4], k[:, 0]) and lse.shape == (2, 4, 1) and rest == [None, None]
    close(out, reference.attention(q, k_cache[:, :5], v_cache[:, :5])[0])


def test_combine(device):
    q, k, v = torch.randn(1, 3, 2, 32, device=device), *(torch.randn(1, 12, 2, 32, device=device) for _ in range(2))
    parts = [fa3.flash_attn_func(q, k[:, part], v[:, part], return_attn_probs=True)
             for part in (slice(0, 5), slice(5, 12))]
    empty = (torch.zeros_like(q), torch.full((1, 2, 3), -math.inf, device=device))
    outs, lses = zip(*parts, empty)
    out, lse = fa3.flash_attn_combine(torch.stack(outs), torch.stack(lses).transpose(-1, -2))
    exact, exact_lse = reference.attention(q, k, v)
    close(out, exact)
    close(lse.transpose(-1, -2), exact_lse)
    out, lse = fa3.flash_attn_combine(empty[0][None], empty[1].transpose(-1, -2)[None])
    assert (out == 0).all() and (lse == -math.inf).all()


@pytest.mark.parametrize("shapes, name", [(((2, 1, 1, 4), None), "lse_partial"), (((1, 1, 3, 4), None), "lse_partial"),
                                          (((2, 1, 3, 4), (5, 1, 3, 4, 8)), "out")])
def test_combine_repeats_nothing(device, shapes, name):
    lse, out = (None if shape is None else torch.randn(shape, device=device) for shape in shapes)
    with pytest.raises(ValueError, match=f"^{name}.shape is "):
        fa3.flash_attn_combine(torch.randn(2, 1, 3, 4, 8, device=device), lse, out=out)


def test_the_diagonal_has_no_name(device):
    """Nor is another one taken for it, where a call repeats an earlier one."""
    q, k = torch.randn(2, 3, 4, 8, device=device), torch.randn(2, 6, 4, 8, device=device)
    cu = torch.tensor([0, 3], dtype=torch.int32, device=device)
    calls = (lambda causal: fa3.flash_attn_func(q, k, k, causal=causal),
             lambda causal: fa3.flash_attn_func(q, k, k, causal=causal, deterministic=True, attention_chunk=2),
             lambda causal: fa3.flash_attn_varlen_func(q[0], k[0], k[0], cu, cu * 2, 3, 6, causal=causal),
             lambda causal: fa3.flash_attn_with_kvcache(q, k, k, causal=causal),
             lambda causal: flash_attn.flash_attn_func(q, k, k, causal=causal),
             lambda causal: flash_attn.flash_attn_varlen_func(q[0], k[0], k[0], cu, cu * 2, 3, 6, causal=causal),
             lambda causal: flash_attn.flash_attn_with_kvcache(q, k, k, causal=causal))
    for call in calls:
        for _ in range(3):
            call(True)
        with pytest.raises(ValueError, match="^causal is 'top-left', want True or False"):
            call("top-left")


def test_qv_takes_keys_of_any_strides(device):
    q, k, v, qv = (torch.randn(1, n, 2, 8, device=device) for n in (3, 5, 5, 3))
    apart = [torch.stack((x, x), -1)[..., 0] for x in (k, v)]
    assert torch.equal(fa3.flash_attn_func(q, *apart, qv=qv), fa3.flash_attn_func(q, k, v, qv=qv))


def test_combine_reads_nothing_of_a_part_without_keys(device):
    parts, lses = torch.randn(2, 1, 3, 2, 8, device=device), torch.randn(2, 1, 3, 2, device=device)
    parts[0, :, 1], lses[0, :, 1] = math.nan, -math.inf
    out, lse = fa3.flash_attn_combine(parts, lses)
    assert torch.equal(out[:, 1], parts[1, :, 1]) and torch.equal(lse[:, 1], lses[1, :, 1]) and out.isfinite().all()


def test_e4m3(device):
    """Factors of e4m3 tensors apply, those of others are not looked at; the result is bfloat16."""
    q, k, v = (torch.randn(2, rows, heads, 64, device=device) for rows, heads in ((7, 4), (9, 2), (9, 2)))
    factors = [0.5 + torch.rand(2, 2, device=device) for _ in range(3)]
    small = [t.to(torch.float8_e4m3fn) for t in (q, k, v)]
    wide = [t.float() * f.repeat_interleave(t.shape[2] // 2, 1)[:, None, :, None] for t, f in zip(small, factors)]
    descales = dict(zip(("q_descale", "k_descale", "v_descale"), factors))
    exact, exact_lse = reference.attention(*wide, causal=True)
    out, lse = fa3.flash_attn_func(*small, causal=True, return_attn_probs=True, **descales)
    assert out.dtype is torch.bfloat16
    torch.testing.assert_close(out.double(), exact.double(), atol=0.1, rtol=0.1)
    torch.testing.assert_close(lse.double(), exact_lse.double(), atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(fa3.flash_attn_with_kvcache(*small, causal=True, **descales), out, atol=0.1, rtol=0.1)
    cu_q, cu_k = (torch.tensor([0, n, 2 * n], dtype=torch.int32, device=device) for n in (7, 9))
    packed = fa3.flash_attn_varlen_func(*(t.flatten(0, 1) for t in small), cu_q, cu_k, 7, 9, causal=True, **descales)
    torch.testing.assert_close(packed, out.flatten(0, 1), atol=0.1, rtol=0.1)
    over_cache = fa3.flash_attn_with_kvcache(small[0].flatten(0, 1), *small[1:], cu_seqlens_q=cu_q, max_seqlen_q=7,
                                             causal=True, **descales)
    torch.testing.assert_close(over_cache, packed, atol=0.1, rtol=0.1)
    assert torch.equal(fa3.flash_attn_func(q, k, v, q_descale=factors[0]), fa3.flash_attn_func(q, k, v))
    with pytest.raises(ValueError, match="qv is given with float8_e4m3fn keys, want None"):
        fa3.flash_attn_func(*small, qv=small[0])


def test_names_of_the_beta(device):
    """Upstream's test_attn_kvcache.py calls by them, and gets two results."""
    q, k, v = (torch.randn(2, n, 4, 64, device=device).to(torch.bfloat16) for n in (3, 9, 9))
    want = fa3.flash_attn_with_kvcache(q, k, v, cache_seqlens=7, causal=True, return_softmax_lse=True)
    got = fa3.flash_attn_with_kvcache(q, k, v, cache_seqlens=7, causal=True, return_softmax_lse=True, gqa_parallel=True,
                                      max_seqlen_k_hint=9)
    assert len(want) == 4 and len(got) == 2 and all(torch.equal(a, b) for a, b in zip(got, want))
    small, factor = [t.to(torch.float8_e4m3fn) for t in (q, k, v)], torch.tensor([2.0], device=device)
    of_heads = factor.expand(2, 4)
    want = fa3.flash_attn_with_kvcache(*small, cache_seqlens=7, q_descale=of_heads, v_descale=of_heads)
    got = fa3.flash_attn_with_kvcache(*small, cache_seqlens=7, gqa_parallel=False, descale_q=factor, descale_v=factor)
    assert torch.equal(got, want)
    with pytest.raises(TypeError, match="unexpected keyword argument 'gqa_parallell'"):
        fa3.flash_attn_with_kvcache(q, k, v, gqa_parallell=True)


def test_e4m3_that_requires_a_gradient(device):
    """As upstream: forward runs, backward says that there is none."""
    q, k, v = (torch.randn(2, 9, 4, 64, device=device).to(torch.float8_e4m3fn) for _ in range(3))
    want = fa3.flash_attn_func(q, k, v)
    out = fa3.flash_attn_func(q.requires_grad_(), k, v)
    assert torch.equal(out, want) and out.requires_grad
    with pytest.raises(RuntimeError, match="e4m3 has none"):
        out.float().sum().backward()
    out, lse = fa3.flash_attn_func(q, k, v, return_attn_probs=True)
    assert out.requires_grad and not lse.requires_grad
    with torch.no_grad():
        assert not fa3.flash_attn_func(q, k, v).requires_grad


@pytest.mark.parametrize("packed", (False, True))
@pytest.mark.parametrize("turned", (False, True))
def test_e4m3_cache_with_new_rows(device, packed, turned):
    """New rows of e4m3, packed or turned, go into the cache as those of bfloat16 do, rounded to e4m3."""
    e4m3 = torch.float8_e4m3fn
    q, k = torch.randn(2, 3, 4, 64, device=device).to(e4m3), torch.randn(2, 3, 2, 64, device=device).to(e4m3)
    caches = [torch.randn(2, 24, 2, 64, device=device).to(e4m3) for _ in range(2)]
    wide_caches = [c.bfloat16() for c in caches]
    used = torch.tensor([5, 20], dtype=torch.int32, device=device)
    options = dict(cache_seqlens=used, causal=True, softcap=20.0, return_softmax_lse=True)
    if turned:
        angles = torch.rand(24, 16, device=device)
        options.update(rotary_cos=angles.cos().bfloat16(), rotary_sin=angles.sin().bfloat16())
    if packed:
        q, k = q.flatten(0, 1), k.flatten(0, 1)
        cu = torch.tensor([0, 3, 6], dtype=torch.int32, device=device)
        options.update(cu_seqlens_q=cu, cu_seqlens_k_new=cu, max_seqlen_q=3)
    out, lse, *_ = fa3.flash_attn_with_kvcache(q, *caches, k, k, **options)
    exact, exact_lse, *_ = fa3.flash_attn_with_kvcache(q.bfloat16(), *wide_caches, k.bfloat16(), k.bfloat16(), **options)
    for cache, wide in zip(caches, wide_caches):
        torch.testing.assert_close(cache.float(), wide.float(), atol=2e-3, rtol=2**-3)
    torch.testing.assert_close(out, exact, atol=0.15, rtol=0.1)
    torch.testing.assert_close(lse, exact_lse, atol=0.05, rtol=0.05)
    factor = torch.full((2, 2), 0.5, device=device)
    made, *_ = torch.ops.flash_attn_3.fwd(q.view(2, 3, 4, 64), *caches, seqused_k=used + 3, v_descale=factor,
                                          is_causal=True)
    plain, *_ = torch.ops.flash_attn_3.fwd(q.view(2, 3, 4, 64), *caches, seqused_k=used + 3, is_causal=True)
    torch.testing.assert_close(made, plain * 0.5, atol=1e-2, rtol=1e-2)


def chunked(rows, keys, chunk, device):
    """(rows, keys), from the definition: the same chunk of positions."""
    place = torch.arange(rows, device=device)[:, None] + keys - rows
    return place // chunk == torch.arange(keys, device=device) // chunk


def test_chunks(device):
    q, k, v = torch.randn(2, 6, 4, 32, device=device), *(torch.randn(2, 13, 2, 32, device=device) for _ in range(2))
    want, _ = reference.attention(q, k, v, causal=True, mask=chunked(6, 13, 4, device))
    close(fa3.flash_attn_func(q, k, v, causal=True, attention_chunk=4), want)
    cu_q, cu_k = (torch.tensor(n, dtype=torch.int32, device=device) for n in ((0, 6, 12), (0, 13, 26)))
    used = torch.tensor([13, 7], dtype=torch.int32, device=device)
    packed = [t.flatten(0, 1) for t in (q, k, v)]
    out = fa3.flash_attn_varlen_func(*packed, cu_q, cu_k, 6, 13, None, used, causal=True, attention_chunk=4)
    close(out[:6], want[0])
    short, _ = reference.attention(q[1:], k[1:, :7], v[1:, :7], causal=True, mask=chunked(6, 7, 4, device))
    close(out[6:], short[0])
    out = fa3.flash_attn_with_kvcache(q, k, v, cache_seqlens=used, causal=True, attention_chunk=4)
    close(out[0], want[0])
    close(out[1], short[0])


@pytest.mark.parametrize("causal", [False, True])
def test_rotary_positions_of_their_own(device, causal):
    angles = torch.rand(40, 16, device=device)
    cos, sin = angles.cos(), angles.sin()
    caches = [torch.randn(2, 10, 2, 32, device=device) for _ in range(4)]
    q, k = torch.randn(2, 3, 4, 32, device=device), torch.randn(2, 3, 2, 32, device=device)
    lengths = torch.tensor([4, 6], dtype=torch.int32, device=device)
    options = dict(cache_seqlens=lengths, causal=causal)
    for cache, other in zip(caches[:2], caches[2:]):
        other.copy_(cache)
    own = fa3.flash_attn_with_kvcache(q, *caches[:2], k, k, None, cos, sin, rotary_seqlens=lengths, **options)
    close(own, fa3.flash_attn_with_kvcache(q, *caches[2:], k, k, None, cos, sin, **options))
    close(caches[0], caches[2])
    moved = fa3.flash_attn_with_kvcache(q, *caches[:2], k, k, None, cos, sin, rotary_seqlens=lengths + 20, **options)
    assert not torch.allclose(moved, own)
