# SPDX-License-Identifier: Apache-2.0
"""What other projects take from the drop-in beside its public functions: the private four, the operators, the module
of the extension, torch.compile."""

import inspect
import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("flash_attn", reason="the drop-in flash_attn is not installed")

import flash_attn.flash_attn_interface as interface  # noqa: E402
import flash_attn_2_cuda  # noqa: E402

from flash_attn import (  # noqa: E402
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)

needs_operators = pytest.mark.skipif(not hasattr(torch.library, "custom_op"), reason="operators need PyTorch 2.4")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def tensors(device, rows=12, keys=20):
    shapes = ((2, rows, 4, 32), (2, keys, 2, 32), (2, keys, 2, 32))
    return tuple(torch.randn(*shape, device=device).requires_grad_() for shape in shapes)


def test_forward_and_backward_by_hand_as_ring_attention_does(device):
    q, k, v = tensors(device)
    out = flash_attn_func(q, k, v, causal=True)
    d_out = torch.randn_like(out)
    want = torch.autograd.grad(out, (q, k, v), d_out)
    arguments = inspect.getfullargspec(interface._flash_attn_forward).args
    assert arguments[:3] == ["q", "k", "v"] and arguments[-1] == "return_softmax"
    options = dict(dropout_p=0.0, softmax_scale=32**-0.5, causal=True, window_size_left=-1, window_size_right=-1,
                   softcap=0.0, alibi_slopes=None)
    made, lse, s_dmask, rng_state = interface._flash_attn_forward(q, k, v, **options, return_softmax=False)
    assert torch.equal(made, out) and lse.shape == (2, 4, 12) and s_dmask.shape == (0,)
    assert rng_state.shape == (2,) and rng_state.dtype == torch.int64
    grads = tuple(torch.empty_like(t) for t in (q, k, v))
    row_dots = interface._flash_attn_backward(d_out, q, k, v, made, lse, *grads, **options, deterministic=False)
    assert row_dots.shape == (2, 4, 128)
    torch.testing.assert_close(row_dots[..., :12], (d_out * out).sum(-1).transpose(1, 2))
    for got, right in zip(grads, want):
        assert torch.equal(got, right)


def test_varlen_by_hand_with_seqused_and_leftpad(device):
    q, k, v = (t.detach() for t in tensors(device))
    cu_q, cu_k = (torch.tensor([0, n, 2 * n], dtype=torch.int32, device=device) for n in (12, 20))
    used, pad = (torch.tensor(n, dtype=torch.int32, device=device) for n in ((20, 13), (0, 4)))
    out, lse, _, _ = interface._flash_attn_varlen_forward(
        q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), cu_q, cu_k, 12, 20, 0.0, 0.3, True, seqused_k=used,
        leftpad_k=pad)
    assert lse.shape == (4, 24)
    want = flash_attn_func(q[1:], k[1:, 4:13], v[1:, 4:13], softmax_scale=0.3, causal=True)
    torch.testing.assert_close(out[12:], want[0], rtol=1e-5, atol=1e-5)


def test_dropout_backward_wants_the_state_of_its_forward(device):
    q, k, v = (t.detach() for t in tensors(device))
    out, lse, _, rng_state = interface._flash_attn_forward(q, k, v, 0.3, 0.2, False, -1, -1, 0.0, None, False)
    arguments = (torch.ones_like(out), q, k, v, out, lse, None, None, None, 0.3, 0.2, False, -1, -1, 0.0, None, False)
    interface._flash_attn_backward(*arguments, rng_state)
    with pytest.raises(RuntimeError, match="rng_state is None"):
        interface._flash_attn_backward(*arguments)


def test_the_extensions_positional_arguments(device):
    q, k, v = (t.detach() for t in tensors(device, rows=25))
    out, lse, softmax, rng_state = flash_attn_2_cuda.fwd(
        q, k, v, None, None, 0.0, 32**-0.5, True, -1, -1, 0.0, False, None)
    assert torch.equal(out, flash_attn_func(q, k, v, causal=True)) and (lse[:, :, :5] == math.inf).all()
    given = torch.empty_like(q)
    assert flash_attn_2_cuda.fwd(q, k, v, given, None, 0.0, 0.1, False, -1, -1, 0.0, False, None)[0] is given
    dq, dk, dv, dots = flash_attn_2_cuda.bwd(
        out, q, k, v, out, lse, None, None, None, None, 0.0, 0.1, True, -1, -1, 0.0, False, None, None)
    assert dq.shape == q.shape and dk.shape == k.shape and dv.shape == v.shape and dots.shape == (2, 4, 128)
    out, lse = flash_attn_2_cuda.fwd_kvcache(
        q[:, :1], k, v, None, None, None, None, None, None, None, None, None, None, 0.2, True, -1, -1, 0.0, True, 0)
    assert torch.equal(out, flash_attn_with_kvcache(q[:, :1], k, v, softmax_scale=0.2, causal=True))
    with pytest.raises(RuntimeError, match="generator is given"):
        flash_attn_2_cuda.fwd(q, k, v, None, None, 0.1, 0.1, True, -1, -1, 0.0, False, torch.Generator())


def test_autograd_classes_apply_in_upstreams_order(device):
    q, k, v = tensors(device)
    out = interface.FlashAttnFunc.apply(q, k, v, 0.0, None, True, (-1, -1), 0.0, None, False, False, True)
    assert torch.equal(out, flash_attn_func(q, k, v, causal=True)) and out.requires_grad


@needs_operators
def test_operators_pass_torchs_own_check(device):
    q, k, v = (t.detach() for t in tensors(device))
    forward = (q, k, v, 0.0, 0.2, True, -1, -1, 0.0, None, False)
    check = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.flash_attn._flash_attn_forward, forward, test_utils=check)
    out, lse, _, rng = torch.ops.flash_attn._flash_attn_forward(*forward)
    grads = tuple(torch.zeros_like(t) for t in (q, k, v))
    torch.library.opcheck(
        torch.ops.flash_attn._flash_attn_backward,
        (out, q, k, v, out, lse, *grads, 0.0, 0.2, True, -1, -1, 0.0, None, False, rng), test_utils=check)
    cu = torch.tensor([0, 12, 24], dtype=torch.int32, device=device)
    packed = (q.flatten(0, 1), *(t[:, :12].flatten(0, 1) for t in (k, v)))
    torch.library.opcheck(torch.ops.flash_attn._flash_attn_varlen_forward, (*packed, cu, cu, 12, 12, 0.0, 0.2, False),
                          test_utils=check)


@needs_operators
@pytest.mark.skipif(torch.__version__ < "2.4", reason="torch.compile of the drop-in: PyTorch 2.4")
def test_compiles_as_one_graph_with_gradients(device):
    q, k, v = tensors(device)
    kv = torch.stack((k.detach(), v.detach()), 2).requires_grad_()
    qkv = torch.randn(2, 9, 3, 4, 32, device=device, requires_grad=True)
    cu = torch.tensor([0, 4, 18], dtype=torch.int32, device=device)
    cases = {
        "plain": (lambda q, k, v: flash_attn_func(q, k, v, causal=True, window_size=(5, -1)), (q, k, v)),
        "kv": (lambda q, kv: flash_attn_kvpacked_func(q, kv, softcap=2.0), (q, kv)),
        "one tensor thrice": (lambda q: flash_attn_func(q, q, q), (q,)),
        "qkv": (lambda qkv: flash_attn_qkvpacked_func(qkv, causal=True), (qkv,)),
        "varlen": (lambda qkv: flash_attn_varlen_func(
            *qkv.flatten(0, 1).unbind(1), cu, cu, 14, 14, causal=True, deterministic=True), (qkv,)),
    }
    for name, (function, given) in cases.items():
        torch._dynamo.reset()
        want = function(*given)
        got = torch.compile(function, fullgraph=True, backend="aot_eager")(*given)
        d_out = torch.randn_like(want)
        torch.testing.assert_close(got, want, msg=name)
        for one, other in zip(torch.autograd.grad(got, given, d_out), torch.autograd.grad(want, given, d_out)):
            torch.testing.assert_close(one, other, msg=name)


@needs_operators
def test_fake_tensors_and_export_see_the_operators(device):
    from torch._subclasses import FakeTensorMode
    with FakeTensorMode():
        qkv = torch.randn(2, 9, 3, 4, 32, device=device, requires_grad=True)
        out, lse, _ = flash_attn_qkvpacked_func(qkv, return_attn_probs=True)
        out.sum().backward()
        assert out.shape == (2, 9, 4, 32) and lse.shape == (2, 4, 9) and qkv.grad.shape == qkv.shape
        assert flash_attn_with_kvcache(out.detach(), out.detach(), out.detach()).shape == out.shape

    class Module(torch.nn.Module):
        def forward(self, q, k, v):
            return flash_attn_func(q, k, v, causal=True)

    q, k, v = (t.detach() for t in tensors(device))
    exported = torch.export.export(Module(), (q, k, v))
    assert any("_flash_attn_forward" in str(node.target) for node in exported.graph.nodes)
    assert torch.equal(exported.module()(q, k, v), flash_attn_func(q, k, v, causal=True))


@needs_operators
def test_the_cache_function_compiles_and_still_writes_in_place(device):
    torch._dynamo.reset()
    caches = [torch.randn(2, 16, 2, 32, device=device) for _ in range(2)]
    other = [cache.clone() for cache in caches]
    q, new = torch.randn(2, 1, 4, 32, device=device), torch.randn(2, 1, 2, 32, device=device)
    lengths = torch.tensor([3, 15], dtype=torch.int32, device=device)

    def step(q, k_cache, v_cache, new, lengths):
        return flash_attn_with_kvcache(q, k_cache, v_cache, new, new, cache_seqlens=lengths, causal=True)

    got = torch.compile(step, fullgraph=True, backend="aot_eager")(q, *caches, new, lengths)
    assert torch.equal(got, step(q, *other, new, lengths))
    assert all(torch.equal(one, two) for one, two in zip(caches, other))
    assert torch.equal(caches[0][1, 15], new[1, 0])
