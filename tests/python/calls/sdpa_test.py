# SPDX-License-Identifier: Apache-2.0
"""The plug-in under scaled_dot_product_attention: nothing changes before it is asked to, then Mica computes."""

import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
try:
    from torch.nn.attention import register_flash_attention_impl  # noqa: F401
except ImportError:
    pytest.skip("this PyTorch has no register_flash_attention_impl", allow_module_level=True)

import torch.nn.functional as F  # noqa: E402

from mica import _tensors  # noqa: E402
from mica.integrations import sdpa  # noqa: E402


@pytest.fixture
def calls(monkeypatch):
    """How often Mica ran, while the plug-in is active."""
    seen = {"forward": 0, "backward": 0}
    for name in seen:
        original = getattr(_tensors, name)

        def counted(*args, _name=name, _original=original, **kwargs):
            seen[_name] += 1
            return _original(*args, **kwargs)
        monkeypatch.setattr(_tensors, name, counted)
    torch.nn.attention.activate_flash_attention_impl(sdpa.NAME)
    yield seen
    torch.nn.attention.restore_flash_attention_impl()


def tensors(device, dtype, rows=17, keys=17):
    torch.manual_seed(0)
    shapes = ((2, 4, rows, 32), (2, 4, keys, 32), (2, 4, keys, 32))
    return [torch.randn(shape, device=device, dtype=dtype).requires_grad_() for shape in shapes]


def exact(q, k, v, causal=False, mask=None):
    q, k, v = (t.detach().double().requires_grad_() for t in (q, k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -math.inf)
    if mask is not None:
        scores = scores + mask
    return torch.softmax(scores, -1) @ v, (q, k, v)


def test_registered_but_not_active():
    assert sdpa.NAME in torch.nn.attention.list_flash_attention_impls()
    assert torch.nn.attention.current_flash_attention_impl() != sdpa.NAME


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_unchanged_code_runs_mica(device, calls, dtype, causal):
    if device == "cuda" and dtype == torch.float32:
        pytest.skip("PyTorch's flash backend takes no fp32 on CUDA")
    q, k, v = tensors(device, dtype)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    d_out = torch.randn_like(out)
    grads = torch.autograd.grad(out, (q, k, v), d_out)
    assert calls == {"forward": 1, "backward": 1}
    want, leaves = exact(q, k, v, causal)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(out.double(), want, rtol=tolerance, atol=tolerance)
    for got, right in zip(grads, torch.autograd.grad(want, leaves, d_out.double())):
        torch.testing.assert_close(got.double(), right, rtol=5 * tolerance, atol=5 * tolerance)


def test_cpu_masks_uneven_causal_and_double(calls):
    q, k, v = tensors("cpu", torch.float32, rows=5, keys=9)
    mask = torch.randn(5, 9)
    want, _ = exact(q, k, v, mask=mask)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    want, _ = exact(q, k, v, causal=True)  # SDPA's diagonal begins at the top left
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    assert calls["forward"] >= 1
    q, k, v = tensors("cpu", torch.float64)
    before = dict(calls)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    want, leaves = exact(q, k, v, True)
    torch.testing.assert_close(out, want)
    for got, right in zip(torch.autograd.grad(out.sum(), (q, k, v)), torch.autograd.grad(want.sum(), leaves)):
        torch.testing.assert_close(got, right)
    assert calls == before
    out = F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)
    whole = [t.detach()[:, :2].repeat_interleave(2, 1) for t in (k, v)]
    torch.testing.assert_close(out, exact(q, *whole)[0])
    (got,) = torch.autograd.grad(out.sum(), v)
    assert got.shape == v.shape and got[:, :2].abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cpu_heads_wider_than_any_kernel(calls, dtype):
    torch.manual_seed(0)
    leaves = [torch.randn(1, 2, 9, 600, dtype=dtype).requires_grad_() for _ in range(3)]
    out = F.scaled_dot_product_attention(*leaves, is_causal=True)
    want, exact_leaves = exact(*leaves, True)
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(out.double(), want, rtol=tolerance, atol=tolerance)
    d_out = torch.randn_like(out)
    for got, right in zip(torch.autograd.grad(out, leaves, d_out), torch.autograd.grad(want, exact_leaves, d_out.double())):
        torch.testing.assert_close(got.double(), right, rtol=5 * tolerance, atol=5 * tolerance)
    assert calls == {"forward": 0, "backward": 0}


def test_a_scale_of_zero_and_rows_hidden_by_the_least_number(calls):
    q, k, v = tensors("cpu", torch.float32, rows=5, keys=9)
    mean = v.double().mean(2, keepdim=True).expand(*q.shape[:3], v.shape[-1])
    out = F.scaled_dot_product_attention(q, k, v, scale=0.0)
    torch.testing.assert_close(out.double(), mean, rtol=1e-5, atol=1e-5)
    assert all(grad.abs().max() < 1e-6 for grad in torch.autograd.grad(out.square().sum(), (q, k)))
    hidden = torch.full((5, 9), torch.finfo(torch.float32).min)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=hidden)
    torch.testing.assert_close(out.double(), mean, rtol=1e-5, atol=1e-5)
    assert calls == {"forward": 2, "backward": 1}


@pytest.mark.parametrize("dtype, dim", [(torch.float64, 32), (torch.float32, 600)])
def test_rows_hidden_by_the_least_number_without_a_kernel(calls, dtype, dim):
    torch.manual_seed(0)
    leaves = [torch.randn(1, 2, rows, dim, dtype=dtype).requires_grad_() for rows in (5, 9, 9)]
    hidden = torch.zeros(5, 9, dtype=dtype)
    hidden[2], hidden[3], hidden[4, :4] = torch.finfo(dtype).min, -math.inf, torch.finfo(dtype).min
    given = torch.nan_to_num(hidden, neginf=-1e30)  # what softmax makes the mean of, in the row that sees nothing
    out = F.scaled_dot_product_attention(*leaves, attn_mask=hidden)
    want = exact(*leaves, mask=given)[0].detach()
    want[:, :, 2], want[:, :, 3] = leaves[2].detach().double().mean(2), 0.0
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    d_v = torch.autograd.grad(out.sum(), leaves[2])[0].double().sum(2)
    torch.testing.assert_close(d_v, torch.full_like(d_v, 4.0), rtol=1e-5, atol=1e-5)  # a row's probabilities sum to 1
    assert calls == {"forward": 0, "backward": 0}


def test_restore_gives_pytorch_its_own_back(calls):
    torch.nn.attention.restore_flash_attention_impl()
    q, k, v = tensors("cpu", torch.float32)
    F.scaled_dot_product_attention(q, k, v)
    assert calls["forward"] == 0
    torch.nn.attention.activate_flash_attention_impl(sdpa.NAME)
    F.scaled_dot_product_attention(q, k, v)
    assert calls["forward"] == 1


def test_compiled_code_runs_mica(device, calls):
    torch._dynamo.reset()
    q, k, v = (t.detach() for t in tensors(device, torch.bfloat16))
    compiled = torch.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True) * 2,
                             backend="aot_eager", fullgraph=True)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        out = compiled(q, k, v)
    assert calls["forward"] == 1
    torch.testing.assert_close(out.double(), 2 * exact(q, k, v, True)[0], rtol=2e-2, atol=2e-2)


def test_varlen_attn_runs_mica(calls):
    if not torch.cuda.is_available():
        pytest.skip("torch.nn.attention.varlen is for CUDA")
    from torch.nn.attention.varlen import varlen_attn
    q, k, v = (t.detach().transpose(1, 2).flatten(0, 1) for t in tensors("cuda", torch.bfloat16))
    cu = torch.tensor([0, 17, 34], dtype=torch.int32, device="cuda")
    out = varlen_attn(q, k, v, cu, cu, 17, 17)
    assert calls["forward"] == 1
    want, _ = exact(*tensors("cuda", torch.bfloat16))
    torch.testing.assert_close(out.double(), want.transpose(1, 2).flatten(0, 1), rtol=2e-2, atol=2e-2)
