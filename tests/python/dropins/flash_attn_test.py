# SPDX-License-Identifier: Apache-2.0
"""The drop-in flash_attn: values and gradients against the formula in double, and upstream's conventions."""

import inspect
import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
flash_attn = pytest.importorskip("flash_attn", reason="the drop-in flash_attn is not installed")

import reference  # noqa: E402

from flash_attn import (  # noqa: E402
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from flash_attn.flash_attn_interface import _get_block_size_n  # noqa: E402


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def leaf(*shape, device, dtype=torch.float32):
    return torch.randn(*shape, device=device, dtype=dtype).requires_grad_()


def within_twice_naive(got, naive, exact, floor):
    """The house rule: at most twice the error of plain attention in the same precision, and a floor."""
    error = (got.double() - exact).abs().max().item()
    assert error <= 2 * (naive.double() - exact).abs().max().item() + floor


def product(a, b):
    """a @ b rounded to their type; not every PyTorch multiplies halves on the CPU."""
    return (a.float() @ b.float()).to(a.dtype)


def naive(q, k, v, causal, window, softcap, alibi):
    """Plain attention in the tensors' own type."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (t.transpose(1, 2) for t in (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)))
    rows, keys = q.shape[2], k.shape[2]
    score = product(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    if softcap:
        score = torch.tanh(score.float() / softcap).to(score.dtype) * softcap
    if alibi is not None:
        distance = (torch.arange(rows)[:, None] + keys - rows - torch.arange(keys)).abs().to(q.device)
        score = score - (alibi[:, :, None, None] * distance).to(score.dtype)
    seen = reference.visible(rows, keys, causal, window, device=q.device)
    score = score.masked_fill(~seen, -math.inf)
    probability = torch.softmax(score.float(), -1).nan_to_num(0.0).to(v.dtype)
    return product(probability, v).transpose(1, 2)


CASES = {
    "plain": dict(),
    "causal": dict(causal=True),
    "window": dict(window=(5, 2)),
    "causal window": dict(causal=True, window=(7, None)),
    "softcap": dict(softcap=3.0, causal=True),
    "alibi": dict(alibi=True, causal=True),
    "alibi both sides": dict(alibi=True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("head_dim, rows, keys", [(64, 33, 47), (59, 21, 17)])
def test_values_and_gradients(device, dtype, case, head_dim, rows, keys):
    options = {**dict(causal=False, window=(None, None), softcap=0.0, alibi=None), **CASES[case]}
    q = leaf(2, rows, 4, head_dim, device=device, dtype=dtype)
    k, v = (leaf(2, keys, 2, head_dim, device=device, dtype=dtype) for _ in range(2))
    if options["alibi"]:
        options["alibi"] = torch.rand(2, 4, device=device) * 0.3
    window = tuple(-1 if side is None else side for side in options["window"])
    out = flash_attn_func(q, k, v, causal=options["causal"], window_size=window, softcap=options["softcap"],
                          alibi_slopes=options["alibi"])
    d_out = torch.randn_like(out)
    got = torch.autograd.grad(out, (q, k, v), d_out)
    leaves = [t.detach().double().requires_grad_() for t in (q, k, v)]
    exact, _ = reference.attention(*leaves, **options)
    exact_grads = torch.autograd.grad(exact, leaves, d_out.double())
    plain = naive(q, k, v, **options)
    plain_grads = torch.autograd.grad(plain, (q, k, v), d_out)
    assert out.dtype == dtype
    within_twice_naive(out, plain, exact, 2e-6)
    for one, other, right in zip(got, plain_grads, exact_grads):
        within_twice_naive(one, other, right, 2e-5)


def test_packed_forms_are_the_plain_one(device):
    qkv = leaf(2, 19, 3, 4, 32, device=device)
    d_out = torch.randn(2, 19, 4, 32, device=device)
    plain = flash_attn_func(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], causal=True)
    (want,) = torch.autograd.grad(plain, qkv, d_out)
    packed = flash_attn_qkvpacked_func(qkv, causal=True)
    (got,) = torch.autograd.grad(packed, qkv, d_out)
    assert torch.equal(plain, packed) and torch.equal(got, want)
    q, kv = leaf(2, 11, 4, 32, device=device), leaf(2, 19, 2, 2, 32, device=device)
    plain = flash_attn_func(q, kv[:, :, 0], kv[:, :, 1], window_size=(3, 4))
    packed = flash_attn_kvpacked_func(q, kv, window_size=(3, 4))
    d_out = torch.randn_like(plain)
    assert torch.equal(plain, packed)
    for got, want in zip(torch.autograd.grad(packed, (q, kv), d_out), torch.autograd.grad(plain, (q, kv), d_out)):
        assert torch.equal(got, want)


@pytest.mark.parametrize("heads", [2, 5])
def test_packed_forms_with_another_axis_in_its_place_are_refused(heads):
    """(batch, rows, heads, 3, dim): of five heads three would be taken for q, k and v."""
    with pytest.raises(ValueError, match=rf"qkv.shape is \(2, 19, {heads}, 3, 32\), want 3 as the third axis from the end"):
        flash_attn_qkvpacked_func(torch.randn(2, 19, heads, 3, 32))
    with pytest.raises(ValueError, match=r"kv.shape is \(2, 19, 3, 2, 32\), want 2 as the third axis from the end"):
        flash_attn_kvpacked_func(torch.randn(2, 11, 4, 32), torch.randn(2, 19, 3, 2, 32))


def lengths_to_cu(lengths, device):
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(device)


def test_varlen_is_dense_by_sequence_and_its_packed_forms_agree(device):
    lengths = (5, 0, 17, 9)
    cu = lengths_to_cu(lengths, device)
    qkv = leaf(sum(lengths), 3, 2, 32, device=device)
    d_out = torch.randn(sum(lengths), 2, 32, device=device)
    q, k, v = qkv.unbind(1)
    out, lse, softmax = flash_attn_varlen_func(q, k, v, cu, cu, 17, 17, causal=True, return_attn_probs=True)
    assert lse.shape == (2, sum(lengths)) and softmax.shape == (0,)
    (want,) = torch.autograd.grad(out, qkv, d_out)
    begin = 0
    for length in filter(None, lengths):
        part = slice(begin, begin + length)
        begin += length
        exact, exact_lse = reference.attention(*(t[None, part].detach() for t in (q, k, v)), causal=True)
        torch.testing.assert_close(out[part].double(), exact[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(lse[:, part].double(), exact_lse[0], rtol=1e-5, atol=1e-5)
    for packed in (flash_attn_varlen_qkvpacked_func(qkv, cu, 17, causal=True),
                   flash_attn_varlen_kvpacked_func(qkv[:, 0], qkv[:, 1:], cu, cu, 17, 17, causal=True)):
        (got,) = torch.autograd.grad(packed, qkv, d_out)
        assert torch.equal(packed, out) and torch.equal(got, want)


def test_the_longest_length_is_a_hint(device):
    cu = lengths_to_cu((30, 3), device)
    q, k, v = (torch.randn(33, 2, 32, device=device) for _ in range(3))
    want = flash_attn_varlen_func(q, k, v, cu, cu, 30, 30, causal=True)
    for hint in (1, 4096, torch.tensor(30), torch.tensor(30, device=device)):
        assert torch.equal(flash_attn_varlen_func(q, k, v, cu, cu, hint, hint, causal=True), want)


def test_an_empty_row_is_zero_with_lse_plus_infinity(device):
    q, k, v = leaf(1, 5, 2, 32, device=device), leaf(1, 3, 2, 32, device=device), leaf(1, 3, 2, 32, device=device)
    out, lse, softmax = flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert lse.shape == (1, 2, 5) and lse.dtype == torch.float32 and softmax.shape == (0,)
    assert (lse[:, :, :2] == math.inf).all() and lse[:, :, 2:].isfinite().all()
    assert (out[:, :2] == 0).all() and (out[:, 2:] != 0).any()
    d_q, d_k, d_v = torch.autograd.grad(out.sum(), (q, k, v))
    assert (d_q[:, :2] == 0).all() and all(g.isfinite().all() for g in (d_q, d_k, d_v))
    out, lse, _ = flash_attn_func(q, k[:, :0], v[:, :0], return_attn_probs=True)
    assert (out == 0).all() and (lse == math.inf).all()


def test_windows_may_be_tensors_and_causal_closes_the_right(device):
    q, k, v = (torch.randn(1, 20, 2, 32, device=device) for _ in range(3))
    want = flash_attn_func(q, k, v, window_size=(4, 3))
    assert torch.equal(flash_attn_func(q, k, v, window_size=torch.tensor([4, 3])), want)
    assert torch.equal(flash_attn_func(q, k, v, window_size=(torch.tensor(4), torch.tensor(3))), want)
    causal = flash_attn_func(q, k, v, causal=True, window_size=(4, 3))
    assert torch.equal(causal, flash_attn_func(q, k, v, window_size=(4, 0)))
    assert torch.equal(flash_attn_func(q, k, v, window_size=(1000, -1)), flash_attn_func(q, k, v))


def test_dropout_can_be_decoded_and_repeats_with_the_seed(device):
    p, rows, keys = 0.25, 40, 70
    q, k, v = (leaf(2, n, 3, 32, device=device) for n in (rows, keys, keys))
    torch.manual_seed(5)
    out, lse, s_dmask = flash_attn_func(q, k, v, p, causal=True, return_attn_probs=True)
    assert s_dmask.shape == (2, 3, 128, 128) and s_dmask.dtype == q.dtype
    s_dmask = s_dmask[:, :, :rows, :keys]
    seen = reference.visible(rows, keys, True, device=device)
    keep = s_dmask > 0
    assert abs(keep[:, :, seen].float().mean().item() - (1 - p)) < 0.02
    # |S| is exp(score - row maximum); blocks are wider than any row.
    assert _get_block_size_n(q.device, 32, True, True) >= keys and (s_dmask.abs().amax(-1) == 1).all()
    leaves = [t.detach().double().requires_grad_() for t in (q, k, v)]
    exact, exact_lse = reference.attention(*leaves, causal=True, keep=keep, dropout=p)
    torch.testing.assert_close(out.double(), exact, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-5, atol=1e-5)
    d_out = torch.randn_like(out)
    right = torch.autograd.grad(exact, leaves, d_out.double())
    for got, want in zip(torch.autograd.grad(out, (q, k, v), d_out), right):
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)
    torch.manual_seed(5)
    again = flash_attn_func(q, k, v, p, causal=True)
    torch.testing.assert_close(again, out, rtol=1e-5, atol=1e-6)  # S_dmask is made by another kernel: not bit for bit
    torch.manual_seed(5)
    assert torch.equal(flash_attn_func(q, k, v, p, causal=True), again)
    assert not torch.allclose(flash_attn_func(q, k, v, p, causal=True), out)


def test_varlen_dropout_can_be_decoded(device):
    cu = lengths_to_cu((7, 12), device)
    q, k, v = (torch.randn(19, 2, 32, device=device) for _ in range(3))
    out, _, s_dmask = flash_attn_varlen_func(q, k, v, cu, cu, 12, 12, 0.3, return_attn_probs=True)
    assert s_dmask.shape == (2, 2, 128, 128)
    for sequence, (begin, end) in enumerate(((0, 7), (7, 19))):
        length = end - begin
        keep = s_dmask[sequence : sequence + 1, :, :length, :length] > 0
        exact, _ = reference.attention(*(t[None, begin:end] for t in (q, k, v)), keep=keep, dropout=0.3)
        torch.testing.assert_close(out[begin:end].double(), exact[0], rtol=1e-4, atol=1e-5)


def test_softcap_with_dropout_is_refused_as_upstream(device):
    q = torch.randn(1, 4, 1, 32, device=device)
    with pytest.raises(RuntimeError, match="softcap is 30.0 with dropout 0.1"):
        flash_attn_func(q, q, q, 0.1, softcap=30.0)


def test_other_head_dims_strides_and_a_wider_value(device):
    q, k = torch.randn(1, 9, 2, 40, device=device), torch.randn(1, 9, 2, 40, device=device)
    v = torch.randn(1, 9, 2, 24, device=device)
    exact, _ = reference.attention(q, k, v)
    torch.testing.assert_close(flash_attn_func(q, k, v).double(), exact, rtol=1e-5, atol=1e-5)
    strided = torch.randn(1, 9, 2, 80, device=device)[..., ::2]
    exact, _ = reference.attention(strided, k, v)
    torch.testing.assert_close(flash_attn_func(strided, k, v).double(), exact, rtol=1e-5, atol=1e-5)


def test_padding_to_eight_changes_nothing(monkeypatch):
    """GPUs get odd head dimensions padded; here the CPU is made to."""
    from flash_attn import _autograd
    q, qkv = leaf(2, 9, 2, 59, device="cpu"), leaf(2, 9, 3, 2, 59, device="cpu")
    d_out = torch.randn(2, 9, 2, 59)

    def run():
        one, two = flash_attn_func(q, q, q, causal=True), flash_attn_qkvpacked_func(qkv, causal=True)
        return (one, two, *torch.autograd.grad((one, two), (q, qkv), (d_out, d_out)))

    want = run()
    monkeypatch.setattr(_autograd, "_wants_padding", lambda *tensors: True)
    for got, right in zip(run(), want):
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-5)


def test_gradient_through_the_lse_is_refused_not_dropped(device):
    q = leaf(1, 4, 1, 32, device=device)
    _, lse, _ = flash_attn_func(q, q, q, return_attn_probs=True)
    assert not lse.requires_grad


COMMON = ("dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, "
          "deterministic=False, return_attn_probs=False")
VARLEN = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"
SIGNATURES = {
    "flash_attn_func": f"q, k, v, {COMMON}",
    "flash_attn_qkvpacked_func": f"qkv, {COMMON}",
    "flash_attn_kvpacked_func": f"q, kv, {COMMON}",
    "flash_attn_varlen_func": f"q, k, v, {VARLEN}, {COMMON}, block_table=None",
    "flash_attn_varlen_qkvpacked_func": f"qkv, cu_seqlens, max_seqlen, {COMMON}",
    "flash_attn_varlen_kvpacked_func": f"q, kv, {VARLEN}, {COMMON}",
    "flash_attn_with_kvcache": "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, "
    "cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, "
    "window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0, "
    "return_softmax_lse=False",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_upstreams(name):
    parameters = inspect.signature(getattr(flash_attn, name)).parameters.values()
    assert ", ".join(str(p.replace(annotation=inspect.Parameter.empty)) for p in parameters) == SIGNATURES[name]


def test_the_version_tells_the_two_apart():
    import mica
    assert flash_attn.__version__ == f"2.8.3+mica{mica.__version__}"


def test_a_call_that_repeats_goes_straight_to_its_plan(device, monkeypatch):
    from flash_attn import _autograd
    q, k, v = (torch.randn(1, 4, 2, 32, device=device) for _ in range(3))
    want = [flash_attn_func(q, k, v, softmax_scale=0.3, causal=True) for _ in range(3)][0]
    other = flash_attn_func(q, k, v, softmax_scale=0.3)
    asked = []
    plain = _autograd._plain
    monkeypatch.setattr(_autograd, "_plain", lambda *given: asked.append(1) or plain(*given))
    assert torch.equal(flash_attn_func(q.clone(), k.clone(), v, softmax_scale=0.3, causal=True), want)
    assert not asked or torch.__version__ < "2.4"
    assert torch.equal(flash_attn_func(q, k, v, softmax_scale=0.3), other) and not torch.equal(other, want)
    longer = torch.cat((k, k), 1)
    flash_attn_func(q, longer, torch.cat((v, v), 1), softmax_scale=0.3, causal=True)  # another plan
    assert asked


def packed_apart(call):
    return lambda q, k, v: call(torch.stack((q, k, v), 2))


@pytest.mark.parametrize("call", [
    lambda q, k, v: flash_attn_func(q, k, v, causal=True), packed_apart(lambda qkv: flash_attn_qkvpacked_func(qkv, causal=True)),
    lambda q, k, v: flash_attn_varlen_func(*(t.flatten(0, 1) for t in (q, k, v)), *[torch.tensor([0, 6, 12], dtype=torch.int32)] * 2,
                                           6, 6, causal=True).unflatten(0, (2, 6))], ids=["apart", "packed", "varlen"])
def test_functional_transforms(call):
    func = pytest.importorskip("torch.func")
    q, k, v = (torch.randn(2, 6, 2, 16) for _ in range(3))
    leaf = q.clone().requires_grad_()
    want, = torch.autograd.grad(call(leaf, k, v).square().sum(), leaf)
    torch.testing.assert_close(func.grad(lambda q: call(q, k, v).square().sum())(q), want)
    mapped = func.vmap(lambda q: call(q, k, v))(torch.stack((q, 2 * q)))
    torch.testing.assert_close(mapped, torch.stack((call(q, k, v), call(2 * q, k, v))))
    with pytest.raises(NotImplementedError, match="^forward-mode differentiation"):
        func.jvp(lambda q: call(q, k, v), (q,), (q,))


def test_what_no_tangent_passes_through_says_so():
    func = pytest.importorskip("torch.func")
    q, k, v = (torch.randn(2, 6, 2, 16) for _ in range(3))
    for call in (lambda q: flash_attn_func(q, k, v, dropout_p=0.5, return_attn_probs=True)[0],
                 lambda q: flash_attn.flash_attn_with_kvcache(q, k, v)):
        with pytest.raises(NotImplementedError, match="^forward-mode differentiation"):
            func.jvp(call, (q,), (q,))


def test_lengths_that_are_no_tensor():
    q, k, v = (torch.randn(2, 6, 2, 16) for _ in range(3))
    want = flash_attn.flash_attn_with_kvcache(q, k, v, cache_seqlens=5)
    assert torch.equal(flash_attn.flash_attn_with_kvcache(q, k, v, cache_seqlens=[5, 5]), want)
    with pytest.raises(ValueError, match="^cache_seqlens is 5.0, want an int"):
        flash_attn.flash_attn_with_kvcache(q, k, v, cache_seqlens=5.0)


def test_lengths_and_tables_beyond_32_bits_do_not_wrap():
    q, k, v = (torch.randn(2, 6, 2, 16) for _ in range(3))
    cache = flash_attn.flash_attn_with_kvcache
    huge = torch.tensor([2**32 + 1, 1])
    for call, name in ((lambda: cache(q, k, v, cache_seqlens=huge), "cache_seqlens"),
                       (lambda: cache(q, k, v, cache_batch_idx=huge), "cache_batch_idx"),
                       (lambda: cache(q, k, v, cache_leftpad=huge, cache_seqlens=5), "cache_leftpad"),
                       (lambda: cache(q, k, v, block_table=huge[:, None], cache_seqlens=5), "block_table"),
                       (lambda: flash_attn.flash_attn_varlen_func(q[0], k[0], v[0], torch.tensor([0, 2**32 + 6]),
                                                                  torch.tensor([0, 6]), 6, 6), "cu_seqlens_q")):
        with pytest.raises(ValueError, match=rf"^{name}\[[01]\](\[0\])? is 2147483647, want"):
            call()


@pytest.mark.parametrize("packed, deterministic", [(False, False), (False, True), (True, False)])
def test_slopes_that_want_a_gradient_are_refused(device, packed, deterministic):
    q, k, v = (leaf(1, 3, 2, 8, device=device) for _ in range(3))
    options = dict(alibi_slopes=leaf(2, device=device), deterministic=deterministic)
    with pytest.raises(RuntimeError, match="alibi requires a gradient"):
        flash_attn_qkvpacked_func(torch.stack((q, k, v), 2), **options) if packed else flash_attn_func(q, k, v, **options)


@pytest.mark.skipif(torch.__version__ < "2.4", reason="torch.compile of the drop-in: PyTorch 2.4")
@pytest.mark.parametrize("packed, deterministic, varlen", [(False, False, False), (False, True, False), (True, False, False),
                                                           (False, True, True)])
def test_compiled_dropout_draws_at_every_call_and_the_same_again_for_a_checkpoint(device, packed, deterministic, varlen):
    q, k, v = (leaf(2, 33, 2, 16, device=device) for _ in range(3))
    cu_seqlens = torch.tensor([0, 33, 66], dtype=torch.int32, device=device)

    def attend(q, k, v):
        if packed:
            return flash_attn_kvpacked_func(q, torch.stack((k, v), 2), 0.5, deterministic=deterministic)
        if not varlen:
            return flash_attn_func(q, k, v, 0.5, deterministic=deterministic)
        rows = (x.flatten(0, 1) for x in (q, k, v))
        return flash_attn_varlen_func(*rows, cu_seqlens, cu_seqlens, 33, 33, 0.5, deterministic=deterministic).view(q.shape)

    def difference(q, k, v):
        return attend(q, k, v) - attend(q, k, v)

    def checkpointed(q, k, v):
        return torch.utils.checkpoint.checkpoint(attend, q, k, v, use_reentrant=False)

    torch._dynamo.reset()
    assert torch.compile(difference, backend="aot_eager_decomp_partition")(q, k, v).abs().max() > 0.1
    out = torch.compile(checkpointed, backend="aot_eager_decomp_partition")(q, k, v)
    d_out = torch.randn_like(out)
    (dv,) = torch.autograd.grad(out, v, d_out)
    torch.testing.assert_close((out * d_out).sum(), (v * dv).sum(), rtol=1e-4, atol=1e-3)  # out is linear in v
