# SPDX-License-Identifier: Apache-2.0
"""Gradients of gradients, and several at a time. The drop-ins have no second derivative, and say so: a penalty on a
gradient would else count for nothing."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
fa2 = pytest.importorskip("flash_attn", reason="the drop-in is not installed")
fa3 = pytest.importorskip("flash_attn_interface", reason="the extra flash-attn-3 is not installed")

CU = torch.tensor([0, 2, 6], dtype=torch.int32)
CALLS = {
    "q, k, v": lambda x: fa2.flash_attn_func(x, x, x),
    "deterministic": lambda x: fa2.flash_attn_func(x, x, x, deterministic=True),
    "probabilities": lambda x: fa2.flash_attn_func(x, x, x, dropout_p=0.1, return_attn_probs=True)[0],
    "qkv": lambda x: fa2.flash_attn_qkvpacked_func(torch.stack((x, x, x), 2)),
    "packed kv": lambda x: fa2.flash_attn_varlen_kvpacked_func(x[0], torch.stack((x[0], x[0]), 1), CU, CU, 4, 4),
    "FlashAttention-3": lambda x: fa3.flash_attn_func(x, x, x),
    "FlashAttention-3, deterministic": lambda x: fa3.flash_attn_func(x, x, x, deterministic=True),
    "FlashAttention-3, deterministic chunks": lambda x: fa3.flash_attn_func(x, x, x, deterministic=True, attention_chunk=2),
}


@pytest.mark.parametrize("call", [name for name in CALLS if name != "probabilities"])
def test_gradients_that_come_several_at_a_time(call):
    x = torch.randn(1, 6, 2, 8, requires_grad=True)
    out = CALLS[call](x)
    several = torch.randn(3, *out.shape)
    (got,) = torch.autograd.grad(out, x, several, is_grads_batched=True, retain_graph=True)
    want = [torch.autograd.grad(out, x, one, retain_graph=True)[0] for one in several]
    torch.testing.assert_close(got, torch.stack(want), rtol=1e-5, atol=1e-6)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.autograd.grad(out, x, several, is_grads_batched=True, create_graph=True)


@pytest.mark.parametrize("loss", [lambda o: o.sum(), lambda o: o.square().sum()], ids=["linear", "square"])
@pytest.mark.parametrize("call", CALLS)
def test_a_penalty_on_the_gradient_is_refused(call, loss):
    x = torch.randn(1, 6, 2, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(CALLS[call](x)), x, create_graph=True)
    total = gradient.square().sum() + x.pow(3).sum()
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.autograd.grad(total, x)
