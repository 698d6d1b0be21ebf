# SPDX-License-Identifier: Apache-2.0
"""The drop-in's modules beside attention: padding, rotary, norms, losses, MHA."""

import importlib
import types

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("flash_attn", reason="the drop-in flash_attn is not installed")

import torch.nn.functional as F  # noqa: E402

from flash_attn import bert_padding  # noqa: E402
from flash_attn.layers import rotary  # noqa: E402
from flash_attn.losses.cross_entropy import CrossEntropyLoss  # noqa: E402
from flash_attn.modules.mha import MHA, get_alibi_slopes  # noqa: E402
from flash_attn.ops.activations import swiglu  # noqa: E402
from flash_attn.ops.triton.cross_entropy import cross_entropy_loss  # noqa: E402
from flash_attn.ops.triton.layer_norm import RMSNorm, layer_norm_fn, rms_norm_fn  # noqa: E402


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_unpad_and_pad_are_inverse_and_give_five_values(device):
    x = torch.randn(3, 5, 2, 4, device=device, requires_grad=True)
    mask = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 1, 1, 1, 1]], device=device)
    tokens, indices, cu_seqlens, longest, seqused = bert_padding.unpad_input(x, mask)
    assert indices.tolist() == [0, 1, 11, 12, 13, 14] and longest == 4 and isinstance(longest, int)
    assert cu_seqlens.tolist() == [0, 2, 2, 6] and cu_seqlens.dtype == torch.int32 and seqused.tolist() == [2, 0, 4]
    assert torch.equal(tokens, x.flatten(0, 1)[indices])
    back = bert_padding.pad_input(tokens, indices, 3, 5)
    assert torch.equal(back, x * mask[:, :, None, None])
    (grad,) = torch.autograd.grad(back.sum(), x)
    assert torch.equal(grad, mask[:, :, None, None].expand_as(x).float())


def test_one_row_of_every_sequence_is_padded_without_a_copy(device):
    rows, positions = torch.randn(3, 2, 4, device=device), torch.arange(4, dtype=torch.int32, device=device)[:-1]
    padded = bert_padding.pad_input(rows, positions, 3, 1)
    assert torch.equal(padded, rows[:, None]) and padded.data_ptr() == rows.data_ptr()
    # Anybody's own: read, and never the argument's memory.
    for others in (positions.long(), positions.long().flip(0), positions.flip(0)):
        padded = bert_padding.pad_input(rows, others, 3, 1)
        assert torch.equal(padded[others.long()], rows[:, None]) and padded.data_ptr() != rows.data_ptr()
    wanted = rows.clone().requires_grad_()
    padded = bert_padding.pad_input(wanted, positions, 3, 1)
    assert padded.data_ptr() != wanted.data_ptr()
    assert torch.equal(torch.autograd.grad(padded.sum(), wanted)[0], torch.ones_like(rows))
    assert bert_padding.pad_input(rows[:2], positions[:2], 3, 1).tolist() == [*rows[:2, None].tolist(), [[[0.0] * 4] * 2]]


def test_unpad_keeps_the_place_of_unused_tokens(device):
    x = torch.arange(8.0, device=device).reshape(2, 4, 1)
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]], device=device)
    unused = torch.tensor([[0, 0, 1, 0], [0, 1, 1, 0]], device=device)
    tokens, _, cu_seqlens, longest, seqused = bert_padding.unpad_input(x, mask, unused)
    assert tokens.flatten().tolist() == [0, 1, 2, 4, 5, 6] and cu_seqlens.tolist() == [0, 3, 6]
    assert longest == 3 and seqused.tolist() == [2, 1]


def test_unpad_concatenated_sequences(device):
    x = torch.arange(12.0, device=device).reshape(2, 6, 1)
    lengths = torch.tensor([[2, 3, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0]], device=device)
    tokens, indices, cu_seqlens, longest = bert_padding.unpad_input_for_concatenated_sequences(x, lengths)
    assert cu_seqlens.tolist() == [0, 2, 5, 11] and longest == 6
    assert tokens.flatten().tolist() == indices.tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]


def turned_by_complex_numbers(x, cos, sin, positions, interleaved):
    """Rotation as multiplication of complex numbers, in double. positions: (batch, seqlen)."""
    half = cos.shape[-1]
    part = x[..., : 2 * half].double()
    pairs = part.unflatten(-1, (half, 2)) if interleaved else part.unflatten(-1, (2, half)).transpose(-1, -2)
    angle = torch.complex(cos.double(), sin.double())[positions][:, :, None]
    out = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * angle)
    out = out.flatten(-2) if interleaved else out.transpose(-1, -2).flatten(-2)
    return torch.cat((out, x[..., 2 * half :].double()), -1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("offsets", [0, 3, [2, 5]])
@pytest.mark.parametrize("rotary_dim", [16, 32])
def test_rotary_is_multiplication_of_complex_numbers(device, interleaved, offsets, rotary_dim):
    x = torch.randn(2, 7, 3, 32, device=device, requires_grad=True)
    angles = torch.rand(12, rotary_dim // 2, device=device) * 6
    cos, sin = angles.cos(), angles.sin()
    if isinstance(offsets, list):
        offsets = torch.tensor(offsets, dtype=torch.int32, device=device)
    positions = torch.arange(7, device=device) + torch.as_tensor(offsets, device=device).reshape(-1, 1).expand(2, 1)
    want = turned_by_complex_numbers(x, cos, sin, positions, interleaved)
    out = rotary.apply_rotary_emb(x, cos, sin, interleaved=interleaved, seqlen_offsets=offsets)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    d_out = torch.randn_like(out)
    (right,) = torch.autograd.grad(want, x, d_out.double())
    (got,) = torch.autograd.grad(out, x, d_out)
    torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-5)
    # In place, on a leaf that wants a gradient.
    leaf = x.detach().clone().requires_grad_()
    out = rotary.apply_rotary_emb(leaf, cos, sin, interleaved=interleaved, seqlen_offsets=offsets, inplace=True)
    torch.testing.assert_close(leaf.double(), want, rtol=1e-5, atol=1e-5)
    (got,) = torch.autograd.grad(out, leaf, d_out)
    torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-5)


def test_rotary_of_packed_sequences_and_of_packed_tensors(device):
    angles = torch.rand(10, 8, device=device)
    cos, sin = angles.cos(), angles.sin()
    x = torch.randn(11, 2, 32, device=device)
    cu_seqlens = torch.tensor([0, 4, 4, 11], dtype=torch.int32, device=device)
    offsets = torch.tensor([1, 0, 3], dtype=torch.int32, device=device)
    out = rotary.apply_rotary_emb(x, cos, sin, seqlen_offsets=offsets, cu_seqlens=cu_seqlens, max_seqlen=7)
    want = torch.cat([rotary.apply_rotary_emb(x[None, begin:end], cos, sin, seqlen_offsets=offset)[0]
                      for begin, end, offset in ((0, 4, 1), (4, 11, 3))])
    torch.testing.assert_close(out, want)
    qkv = torch.randn(2, 5, 3, 2, 32, device=device)
    want = torch.stack([rotary.apply_rotary_emb(t, cos, sin) for t in qkv.unbind(2)[:2]] + [qkv[:, :, 2]], 2)
    torch.testing.assert_close(rotary.apply_rotary_emb_qkv_(qkv.clone(), cos, sin), want)
    grouped = qkv.flatten(2, 3)  # two query heads, two key heads, two value heads
    turned = rotary.apply_rotary_emb_qkv_(grouped.clone(), cos, sin, num_heads_q=2)
    torch.testing.assert_close(turned, want.flatten(2, 3))
    kv = qkv[:, :, 1:].clone()
    assert rotary.apply_rotary_emb_kv_(kv, cos, sin).data_ptr() == kv.data_ptr()
    torch.testing.assert_close(kv, want[:, :, 1:])


@pytest.mark.parametrize("scale_base", [None, 512])
def test_rotary_embedding_keeps_differences_of_positions(device, scale_base):
    module = rotary.RotaryEmbedding(16, scale_base=scale_base, device=device)
    q, k = torch.randn(1, 1, 1, 16, device=device), torch.randn(1, 1, 1, 16, device=device)

    def score(at_q, at_k):
        qkv = torch.zeros(1, 20, 3, 1, 16, device=device)
        qkv[:, at_q, 0], qkv[:, at_k, 1] = q[:, 0], k[:, 0]
        turned = module(qkv)
        return (turned[0, at_q, 0] * turned[0, at_k, 1]).sum()

    torch.testing.assert_close(score(5, 2), score(19, 16), rtol=1e-4, atol=1e-4)
    ones = torch.ones(1, 4, 2, 16, device=device)
    alone, _ = module(ones, torch.stack((ones, ones), 2), seqlen_offset=3)
    assert alone.shape == (1, 4, 2, 16) and module._seq_len_cached == 20


def test_norms(device):
    x, residual, x1 = (torch.randn(3, 8, device=device, dtype=torch.bfloat16) for _ in range(3))
    weight, bias, weight1 = (torch.randn(8, device=device) for _ in range(3))
    total = (x.float() + x1.float() + residual.float())
    out, out1, kept = layer_norm_fn(x, weight, bias, residual=residual, x1=x1, weight1=weight1, prenorm=True,
                                    residual_in_fp32=True)
    torch.testing.assert_close(out, F.layer_norm(total, (8,), weight, bias, 1e-6).bfloat16())
    torch.testing.assert_close(out1, F.layer_norm(total, (8,), weight1, None, 1e-6).bfloat16())
    assert kept.dtype == torch.bfloat16 and torch.equal(kept, total.bfloat16())
    want = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6) * weight
    torch.testing.assert_close(rms_norm_fn(x, weight, None), want.bfloat16())
    module = RMSNorm(8, eps=1e-6, zero_centered_weight=True, device=device)
    torch.testing.assert_close(module(x.float()), rms_norm_fn(x.float(), torch.ones(8, device=device), None))
    ones = torch.ones(500, 8, device=device)
    _, mask, mask1 = layer_norm_fn(ones, weight, bias, dropout_p=0.3, return_dropout_mask=True)
    assert abs(mask.float().mean().item() - 0.7) < 0.05 and mask1 is None


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy(device, smoothing):
    logits = torch.randn(6, 11, device=device, requires_grad=True)
    labels = torch.tensor([3, 0, -100, 10, 7, 7], device=device)
    want = F.cross_entropy(logits * 1.5, labels, reduction="none", label_smoothing=smoothing)
    losses, z_losses = cross_entropy_loss(logits, labels, label_smoothing=smoothing, logit_scale=1.5)
    torch.testing.assert_close(losses, want)
    assert (z_losses == 0).all()
    module = CrossEntropyLoss(label_smoothing=smoothing, lse_square_scale=0.01, return_z_loss=True)
    loss, z_loss = module(logits, labels)
    right = F.cross_entropy(logits, labels, label_smoothing=smoothing)
    z = 0.01 * torch.logsumexp(logits, -1).square()[labels != -100].mean()
    torch.testing.assert_close(loss, right + z)
    torch.testing.assert_close(z_loss, z.detach())
    given = cross_entropy_loss(logits, labels, precomputed_lse=torch.logsumexp(logits, -1).detach())[0].sum()
    plain = F.cross_entropy(logits, labels, reduction="sum")
    for one, other in zip(torch.autograd.grad(given, logits), torch.autograd.grad(plain, logits)):
        torch.testing.assert_close(one, other)


def test_cross_entropy_with_an_lse_of_other_logits_or_shapes(device):
    logits, labels = torch.randn(5, 11, device=device), torch.randint(0, 11, (5,), device=device)
    lse = torch.logsumexp(logits, -1)
    loss = cross_entropy_loss(logits, labels, precomputed_lse=lse, logit_scale=0.3)[0]  # as upstream: not of these
    torch.testing.assert_close(loss, F.cross_entropy(0.3 * logits, labels, reduction="none"))
    with pytest.raises(ValueError, match="labels.shape"):
        cross_entropy_loss(logits, labels[:1])
    with pytest.raises(ValueError, match="precomputed_lse.shape"):
        cross_entropy_loss(logits, labels, precomputed_lse=lse[:1])


def test_norms_scale_rows_and_add_no_other_shapes(device):
    x, weight = torch.randn(3, 1, 8, device=device), torch.rand(8, device=device)
    scale = torch.rand(3, device=device)
    out, total = rms_norm_fn(x, weight, None, rowscale=scale, prenorm=True)
    torch.testing.assert_close(total, x * scale[:, None, None])
    assert out.shape == x.shape
    for name, given in (("rowscale", scale[:1]), ("residual", x[:1]), ("x1", torch.cat((x, x), 1))):
        with pytest.raises(ValueError, match=f"{name}.shape"):
            rms_norm_fn(x, weight, None, **{name: given})


@pytest.mark.parametrize("x, options, message", [
    ((2, 8, 2, 16), {}, r"cos.shape\[0\] is 6, want 8"),
    ((2, 4, 2, 16), dict(seqlen_offsets=3), r"cos.shape\[0\] is 6, want 7"),
    ((2, 4, 2, 16), dict(seqlen_offsets=-1), "seqlen_offsets is -1"),
    ((2, 4, 2, 16), dict(seqlen_offsets=torch.tensor([1])), "seqlen_offsets.shape"),
    ((9, 1, 16), {}, "x.shape"),
    ((9, 1, 16), dict(cu_seqlens=torch.tensor([0, 9])), "or max_seqlen"),
    ((9, 1, 16), dict(cu_seqlens=torch.tensor([0, 2, 9]), max_seqlen=7), r"cos.shape\[0\] is 6, want 7"),
])
@pytest.mark.parametrize("inplace", [False, True])
def test_rotary_refuses_what_its_tables_do_not_reach(device, x, options, message, inplace):
    options = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in options.items()}
    tables = torch.rand(2, 6, 8, device=device)
    with pytest.raises(ValueError, match=message):
        rotary.apply_rotary_emb(torch.randn(*x, device=device), *tables, inplace=inplace, **options)


def test_rotary_outside_the_tables_turns_by_nothing(device):
    """To where a tensor of offsets leads, which is not looked at."""
    x, angles = torch.randn(2, 4, 2, 16, device=device), torch.rand(6, 8, device=device)
    out = rotary.apply_rotary_emb(x, angles.cos(), angles.sin(), seqlen_offsets=torch.tensor([-2, 4], device=device))
    assert torch.equal(out[0, :2], x[0, :2]) and torch.equal(out[1, 2:], x[1, 2:])
    torch.testing.assert_close(out[:1, 2:], rotary.apply_rotary_emb(x[:1, 2:], angles.cos(), angles.sin()))


@pytest.mark.parametrize("heads, num_heads_q", [(7, 2), (6, 8), (6, -2)])
def test_rotary_refuses_heads_that_do_not_add_up(device, heads, num_heads_q):
    with pytest.raises(ValueError, match="num_heads_q"):
        rotary.apply_rotary_emb_qkv_(torch.randn(2, 4, heads, 16, device=device), *torch.rand(2, 6, 8, device=device),
                                     num_heads_q=num_heads_q)


@torch.backends.mkldnn.flags(enabled=False)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rotary_dim", [8, 16])
def test_mha_fills_a_cache_by_parts_of_the_batch(device, causal, rotary_dim):
    module = MHA(64, 4, causal=causal, rotary_emb_dim=rotary_dim, layer_idx=0, device=device)
    x = torch.randn(4, 7, 64, device=device)
    cache = types.SimpleNamespace(key_value_memory_dict={}, max_batch_size=4, max_seqlen=16, lengths_per_sample=None,
                                  seqlen_offset=0, batch_size_offset=0)
    with torch.no_grad():
        for first in (0, 2):
            cache.batch_size_offset = first
            part = x[first : first + 2, :6]
            torch.testing.assert_close(module(part, inference_params=cache), module(part), rtol=1e-5, atol=1e-5)
        cache.seqlen_offset, cache.batch_size_offset = 6, 0
        torch.testing.assert_close(module(x[:, 6:], inference_params=cache), module(x)[:, 6:], rtol=1e-5, atol=1e-5)


def test_mha_refuses_what_it_would_not_look_at(device):
    x, cu_seqlens = torch.randn(10, 64, device=device), torch.tensor([0, 4, 10], dtype=torch.int32, device=device)
    packed = dict(cu_seqlens=cu_seqlens, max_seqlen=6)
    for module, given, message in (
            (MHA(64, 4), dict(x_kv=x[None]), "x_kv is given"),
            (MHA(64, 4), dict(mixer_subset=slice(1)), "mixer_subset is given"),
            (MHA(64, 4, rotary_emb_dim=16), packed, "cu_seqlens is given"),
            (MHA(64, 4, cross_attn=True), dict(x_kv=torch.cat((x, x)), **packed), "cu_seqlens_k is None")):
        with pytest.raises(ValueError, match=message):
            module.to(device)(x if "cu_seqlens" in given else x[None], **given)


@torch.backends.mkldnn.flags(enabled=False)  # some of its builds multiply fp32 in bf16 for some shapes
def test_mha_with_and_without_cache(device):
    module = MHA(64, 4, num_heads_kv=2, causal=True, rotary_emb_dim=16, layer_idx=0, device=device)
    x = torch.randn(2, 10, 64, device=device)
    whole = module(x)
    whole.sum().backward()
    assert module.Wqkv.weight.grad.isfinite().all()
    cache = types.SimpleNamespace(key_value_memory_dict={}, max_batch_size=2, max_seqlen=16, lengths_per_sample=None,
                                  seqlen_offset=0)
    with torch.no_grad():
        first = module(x[:, :6], inference_params=cache)
        cache.seqlen_offset = 6
        second = module(x[:, 6:], inference_params=cache)
    torch.testing.assert_close(torch.cat((first, second), 1), whole, rtol=1e-5, atol=1e-5)
    # Packed, the same sequences without rotary.
    plain = MHA(64, 4, causal=True, use_alibi=True, device=device)
    cu_seqlens = torch.tensor([0, 10, 20], dtype=torch.int32, device=device)
    torch.testing.assert_close(plain(x.flatten(0, 1), cu_seqlens=cu_seqlens, max_seqlen=10), plain(x).flatten(0, 1))


@pytest.mark.skipif(not hasattr(torch.compiler, "is_exporting"), reason="this PyTorch does not say that it exports")
@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_rotary_turns(strict):
    module = MHA(64, 4, num_heads_kv=2, causal=True, rotary_emb_dim=16)
    x = torch.randn(2, 5, 64)
    for _ in range(2):  # the second time its tables are there
        exported = torch.export.export(module, (x,), strict=strict).module()
        torch.testing.assert_close(exported(x), module(x))

    class InPlace(torch.nn.Module):
        def forward(self, x, cos, sin):
            rotary.apply_rotary_emb(x, cos, sin, inplace=True)
            return x.sum(0)

    given = torch.randn(2, 5, 4, 16), *torch.rand(2, 5, 8)
    mine, others = (tuple(t.clone() for t in given) for _ in range(2))
    torch.testing.assert_close(torch.export.export(InPlace(), given, strict=strict).module()(*mine), InPlace()(*others))
    torch.testing.assert_close(mine, others)


def test_rotary_in_place_is_traced_in_training_and_under_torch_func():
    cos, sin = torch.rand(2, 5, 8)

    def loss(x):
        q, kv = (2 * x).split((4, 4), dim=2)
        q, kv = rotary.apply_rotary_emb(1 * q, cos, sin, inplace=True), (1 * kv).unflatten(2, (2, 2))
        return (q.square() * cos.sum()).sum() + rotary.apply_rotary_emb_kv_(kv, cos, sin).pow(3).sum()

    x = torch.randn(2, 5, 8, 16, requires_grad=True)
    (want,) = torch.autograd.grad(loss(x), x)
    torch.testing.assert_close(torch.func.grad(loss)(x.detach()), want)
    torch._dynamo.reset()
    module = MHA(64, 4, num_heads_kv=2, causal=True, rotary_emb_dim=16)
    rows = torch.randn(2, 5, 64, requires_grad=True)
    (want,) = torch.autograd.grad(module(rows).square().sum(), rows)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(torch.autograd.grad(compiled(rows).square().sum(), rows)[0], want)


def test_alibi_slopes_of_the_paper():
    assert get_alibi_slopes(8) == [2.0**-i for i in range(1, 9)]
    assert get_alibi_slopes(12) == get_alibi_slopes(8) + get_alibi_slopes(16)[0:8:2]


def test_swiglu(device):
    x, y = torch.randn(4, device=device), torch.randn(4, device=device)
    torch.testing.assert_close(swiglu(x, y), F.silu(x) * y)


@pytest.mark.parametrize("name", ["fused_dense", "layer_norm", "rms_norm"])
def test_what_needs_another_extension_says_so(name):
    with pytest.raises(ImportError, match="compiled extension"):
        importlib.import_module(f"flash_attn.ops.{name}")
