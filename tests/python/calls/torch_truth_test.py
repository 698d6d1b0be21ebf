# SPDX-License-Identifier: Apache-2.0
"""torch callers get the right number or a refusal: tracing, differentiation, packed rows, writing in place, modes."""

import os
import re
import subprocess
import sys
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import mica  # noqa: E402
import reference  # noqa: E402
from mica import _caller  # noqa: E402

OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 5)


def qkv(rows=7, keys=7, heads=4, key_heads=2, dim=8, requires_grad=False, batch=2):
    torch.manual_seed(0)
    shapes = ((batch, rows, heads, dim), (batch, keys, key_heads, dim), (batch, keys, key_heads, dim))
    return [torch.randn(shape, requires_grad=requires_grad) for shape in shapes]


def in_a_new_process(text):
    """Runs a script that sees the package as this process does; its output."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    made = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr[-2000:]
    return made.stdout


FIRST_CALLS = {
    "fake": """
with FakeTensorMode():
    f(*(torch.empty(2, 7, 4, 8, device=device) for _ in range(3)))
""",
    "make_fx": "make_fx(f)(q, q, q)",
    "export": """
class M(torch.nn.Module):
    def forward(self, q, k, v):
        return f(q, k, v)
torch.export.export(M(), (q, q.clone(), q.clone()))
""",
    "func": "torch.func.grad(lambda q: f(q, q, q).sum())(q)",
    "meta": "f(*(torch.empty(2, 7, 4, 8, device='meta') for _ in range(3)))",
}


@pytest.mark.parametrize("first", [first if first in ("export", "func") else pytest.param(first, marks=pytest.mark.skipif(
    not os.environ.get("MICA_TEST_ALL"), reason="make test-all runs it")) for first in FIRST_CALLS])
def test_a_first_call_under_tracing_breaks_no_later_call(first, device):
    out = in_a_new_process(f"""
import torch, mica
device = {device!r}
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
f = lambda q, k, v: mica.attention(q, k, v, causal=True)
torch.manual_seed(0)
q = torch.randn(2, 7, 4, 8, device=device)
{FIRST_CALLS[first]}
want = torch.nn.functional.scaled_dot_product_attention(*(q.transpose(1, 2),) * 3, is_causal=True).transpose(1, 2)
for _ in range(3):
    got = mica.attention(q, q, q, causal=True)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
x = q.clone().requires_grad_()
for _ in range(3):
    mica.attention(x, x, x, num_splits=3).sum().backward()
cu = torch.tensor([0, 3, 7], dtype=torch.int32, device=device)
mica.attention_varlen(q[0], q[0], q[0], cu, cu, causal=True)
print("right")
""")
    assert out.strip().endswith("right")


def test_meta_tensors_give_meta_tensors():
    q, k, v = (t.to("meta") for t in qkv())
    mica.attention(*qkv())
    for _ in range(3):
        o, lse = mica.attention(q, k, v, return_lse=True)
        assert o.is_meta and o.shape == q.shape and lse.shape == (2, 4, 7)
    with pytest.raises(ValueError, match="k is on meta, want (cpu|cuda)"):
        mica.attention(qkv()[0], k, v)


@pytest.mark.parametrize("how", ["jvp", "jacfwd", "hessian", "forward_ad"])
@pytest.mark.parametrize("with_grad", [False, True])
def test_forward_mode_is_refused(how, with_grad):
    q, k, v = qkv(requires_grad=with_grad)
    for _ in range(3):
        mica.attention(q, k, v)
    with pytest.raises(NotImplementedError, match="forward-mode differentiation .* has no formula here, want"):
        if how == "jvp":
            torch.func.jvp(lambda x: mica.attention(x, k, v), (q,), (torch.ones_like(q),))
        elif how == "jacfwd":
            torch.func.jacfwd(lambda x: mica.attention(x, k, v).sum())(q)
        elif how == "hessian":  # forward over reverse
            torch.func.hessian(lambda x: mica.attention(x, k, v).sum())(q)
        else:
            with torch.autograd.forward_ad.dual_level():
                mica.attention(q, torch.autograd.forward_ad.make_dual(k, torch.ones_like(k)), v)


def want_grads(q, k, v, **options):
    leaves = [t.detach().double().requires_grad_() for t in (q, k, v)]
    o, lse = reference.attention(*leaves, **options)
    return torch.autograd.grad(o.square().sum(), leaves)


def test_torch_func_grad_vjp_jacrev_and_vmap():
    q, k, v = qkv()

    def loss(q, k, v):
        return mica.attention(q, k, v, causal=True).square().sum()

    want = want_grads(q, k, v, causal=True)
    for got, w in zip(torch.func.grad(loss, argnums=(0, 1, 2))(q, k, v), want):
        torch.testing.assert_close(got.double(), w, rtol=1e-4, atol=1e-5)
    _, pull = torch.func.vjp(loss, q, k, v)
    for got, w in zip(pull(torch.tensor(1.0)), want):
        torch.testing.assert_close(got.double(), w, rtol=1e-4, atol=1e-5)
    jacobian = torch.func.jacrev(lambda x: mica.attention(x, k, v, causal=True)[:1, :2, :1].sum(-1))(q)
    rows = [torch.autograd.grad(mica.attention(x, k, v, causal=True)[0, i, 0].sum(), x)[0]
            for i in range(2) for x in [q.clone().requires_grad_()]]
    torch.testing.assert_close(jacobian.flatten(0, 2), torch.stack(rows), rtol=1e-4, atol=1e-5)
    stacked = [torch.stack([t, t.flip(1), t * 0.5]) for t in (q, k, v)]
    per_sample = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(*stacked)
    for index in range(3):
        for got, w in zip(per_sample, want_grads(*(t[index] for t in stacked), causal=True)):
            torch.testing.assert_close(got[index].double(), w, rtol=1e-4, atol=1e-5)
    plain = torch.func.vmap(lambda q, k, v: mica.attention(q, k, v, causal=True))(*stacked)
    torch.testing.assert_close(plain[1], mica.attention(*(t[1] for t in stacked), causal=True))


@pytest.mark.parametrize("how", ["plain", "bias, sinks and lse", "packed", "dropout"])
def test_gradients_that_come_several_at_a_time(how):
    q, k, v = (t.requires_grad_() for t in qkv())
    leaves = [q, k, v]
    if how == "packed":
        cu = torch.tensor([0, 3, 7], dtype=torch.int32)
        made = [mica.attention_varlen(q[0], k[0], v[0], cu, cu, causal=True)]
    elif how == "bias, sinks and lse":
        leaves += [torch.randn(1, 4, 7, 7).requires_grad_(), torch.randn(4).requires_grad_()]
        made = mica.attention(q, k, v, bias=leaves[3], sinks=leaves[4], softcap=5.0, return_lse=True)
    else:
        made = [mica.attention(q, k, v, window=(2, 0), dropout=0.3 if how == "dropout" else 0.0)]
    several = [torch.randn(3, *x.shape) for x in made]
    got = torch.autograd.grad(made, leaves, several, is_grads_batched=True, retain_graph=True)
    for i in range(3):
        want = torch.autograd.grad(made, leaves, [x[i] for x in several], retain_graph=True)
        for one, right in zip(got, want):
            torch.testing.assert_close(one[i], right, rtol=1e-5, atol=1e-6)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.autograd.grad(made, leaves, several, is_grads_batched=True, create_graph=True)


def test_a_jacobian_in_one_pass():
    q, k, v = qkv()

    def few(x):
        return mica.attention(x, k, v, causal=True)[:1, :2, :1].sum(-1)

    one, all_at_once = (torch.autograd.functional.jacobian(few, q, vectorize=at_once) for at_once in (False, True))
    torch.testing.assert_close(all_at_once, one, rtol=1e-5, atol=1e-6)


def test_torch_func_with_bias_sinks_and_lse():
    q, k, v = qkv()
    bias, sinks = torch.randn(1, 4, 7, 7), torch.randn(4)

    def loss(bias, sinks):
        o, lse = mica.attention(q, k, v, bias=bias, sinks=sinks, return_lse=True)
        return o.square().sum() + lse.sum()

    got = torch.func.grad(loss, argnums=(0, 1))(bias, sinks)
    leaves = [t.double().requires_grad_() for t in (bias, sinks)]
    o, lse = reference.attention(q, k, v, bias=leaves[0], sinks=leaves[1])
    for a, b in zip(got, torch.autograd.grad(o.square().sum() + lse.sum(), leaves)):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)


def test_slopes_that_require_a_gradient_are_refused():
    q, k, v = qkv()
    slopes = torch.rand(4, requires_grad=True)
    with pytest.raises(NotImplementedError, match="alibi requires a gradient"):
        mica.attention(q, k, v, alibi=slopes, causal=True)
    with torch.no_grad():
        mica.attention(q, k, v, alibi=slopes, causal=True)


@pytest.mark.parametrize("which", ["q", "k_cache", "k", "bias", "sinks"])
def test_a_cache_with_a_gradient_is_refused(which):
    q, k, v = qkv(rows=1)
    tensors = dict(q=q, k_cache=k, v_cache=v, k=k[:, :1].clone(), v=v[:, :1].clone(), bias=torch.zeros(1, 4, 1, 7),
                   sinks=torch.zeros(4))
    tensors[which].requires_grad_()
    with pytest.raises(NotImplementedError, match=f"{which} requires a gradient.*no_grad"):
        mica.attention_with_cache(**tensors, cache_seqlens=3, causal=True)
    with torch.no_grad():
        mica.attention_with_cache(**tensors, cache_seqlens=3, causal=True)


CU = [0, 3, 5]


@pytest.mark.parametrize("compiled", [False, True])
def test_packed_rows_outside_every_sequence_are_zero(compiled):
    torch.manual_seed(0)
    cu = torch.tensor(CU, dtype=torch.int32)
    q, k, v = (torch.randn(9, 2, 8, requires_grad=True) for _ in range(3))
    rubbish = [torch.full((9, 2, 8), float("nan")) for _ in range(64)]
    del rubbish

    def f(q, k, v, cu):
        return mica.attention_varlen(q, k, v, cu, cu, causal=True, return_lse=True)

    if compiled:
        f = torch.compile(f, backend="aot_eager", fullgraph=True)
    o, lse = f(q, k, v, cu)
    assert (o[5:] == 0).all() and (lse[:, 5:] == -float("inf")).all()
    grads = torch.autograd.grad(o[:5].square().sum() + o[5:].sum(), (q, k, v))
    for grad in grads:
        assert (grad[5:] == 0).all() and grad[:5].abs().sum() > 0
    out = torch.full((9, 2, 8), float("nan"))
    with torch.no_grad():
        mica.attention_varlen(q, k, v, cu, cu, causal=True, out=out)
    assert torch.equal(out, o.detach())


@pytest.mark.parametrize("cu, match", [([0, 3, 10], r"cu_seqlens_q\[2\] is 10, want at most 9"),
                                       ([0, 5, 3], r"cu_seqlens_q\[2\] is 3, want at least 5"),
                                       ([-1, 5, 9], r"cu_seqlens_q\[0\] is -1, want 0"),
                                       ([], r"cu_seqlens_q.*0.*want 1 or more")])
def test_odd_cu_seqlens_are_refused(cu, match):
    """On a CPU; a GPU's are cut to the tensor: cuda_test.py."""
    x = torch.randn(9, 2, 8, device="cpu")
    cu = torch.tensor(cu, dtype=torch.int32, device="cpu")
    with pytest.raises(ValueError, match=match):
        mica.attention_varlen(x, x, x, cu, cu)


def test_sequences_that_begin_later_and_none_at_all_are_defined():
    x = torch.randn(9, 2, 8)
    later = torch.tensor([1, 3, 7], dtype=torch.int32)
    o = mica.attention_varlen(x, x, x, later, later)
    assert (o[:1] == 0).all() and (o[7:] == 0).all()
    torch.testing.assert_close(o[1:3], mica.attention(*(x[None, 1:3],) * 3)[0])
    none = torch.tensor([0], dtype=torch.int32)
    assert (mica.attention_varlen(x, x, x, none, none) == 0).all()


def test_out_and_append_bump_the_version_counter():
    q, k, v = qkv()
    out = torch.zeros_like(q)
    version = out._version
    mica.attention(q, k, v, out=out)
    assert out._version > version
    leaf = torch.randn_like(q, requires_grad=True)
    out = torch.zeros_like(q)
    product = leaf * out
    mica.attention(q, k, v, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    versions = k._version, v._version
    mica.attention_with_cache(q[:, :1], k, v, k=k[:, :1].clone(), v=v[:, :1].clone(), cache_seqlens=2, causal=True)
    assert k._version > versions[0] and v._version > versions[1]


def test_out_that_overlaps_keys_or_values_is_refused():
    q, k, v = qkv(key_heads=4)
    for out in (k, v):
        with pytest.raises(ValueError, match="out overlaps"):
            mica.attention(q, k, v, out=out)
    packed = torch.randn(2, 7, 4, 4, 8)  # slices of one tensor lie side by side
    q, k, v, out = packed.unbind(2)
    want = mica.attention(q, k, v)
    mica.attention(q, k, v, out=out)
    assert torch.equal(out, want)
    apart = torch.randn(2, 4, 4, 7, 8)  # (batch, which, heads, rows, dim)
    q, k, v, out = (t.transpose(1, 2) for t in apart.unbind(1))
    want = mica.attention(q, k, v)
    mica.attention(q, k, v, out=out)
    assert torch.equal(out, want)


def test_new_keys_that_lie_in_the_cache_are_refused():
    """They would be moved while they are read."""
    q, k, v = qkv(key_heads=4)
    with pytest.raises(ValueError, match="^k overlaps k_cache, want memory of its own"):
        mica.attention_with_cache(q[:, :1], k, v, k=k[:, 1:3], v=v[:, 1:3].clone(), cache_seqlens=2)
    with pytest.raises(ValueError, match="^v overlaps v_cache, want memory of its own"):
        mica.attention_with_cache(q[:, :1], k, v, k=k[:, 1:3].clone(), v=v[:, 1:3], cache_seqlens=2)


def test_two_caches_in_one_memory_are_refused_where_it_is_written():
    """The new values would be written over the new keys; keys that are the values too (MLA) are written with the same bits."""
    q, k, _ = qkv(key_heads=4)
    new = torch.randn_like(k[:, :1])
    with pytest.raises(ValueError, match="^v_cache overlaps k_cache, want memory of its own where new keys and values are written"):
        mica.attention_with_cache(q[:, :1], k, k, k=new, v=torch.randn_like(new), cache_seqlens=2)
    both = k.clone()
    got = mica.attention_with_cache(q[:, :1], both, both, k=new, v=new, cache_seqlens=2)
    torch.testing.assert_close(got, mica.attention_with_cache(q[:, :1], k.clone(), k.clone(), k=new, v=new, cache_seqlens=2))
    assert torch.equal(both[:, 2:3], new)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows, keys, dim", [(5, 9, 16), (70, 300, 64), (1, 900, 128)])
def test_large_scores(dtype, rows, keys, dim):
    """Softmax of what is large is that of differences, which fp32 still has."""
    torch.manual_seed(0)
    q, k, v = (torch.randint(-3, 4, (1, n, 2, dim), device="cpu").to(dtype) for n in (rows, keys, keys))  # no ties by rounding
    scores = torch.einsum("bihd,bjhd->bhij", q.double(), k.double())
    for power in (10, 21, 24, 29, 34, 60, 90):
        want = torch.einsum("bhij,bjhd->bihd", torch.softmax(scores * 2.0**power, -1), v.double())
        torch.testing.assert_close(mica.attention(q, k, v, scale=2.0**power).double(), want, atol=2e-2, rtol=1e-2)


def test_out_is_looked_at_where_something_looks_on():
    """There the result is copied into it: neither into another shape or type nor over a key."""
    from torch.utils.flop_counter import FlopCounterMode
    q, k, v = qkv(key_heads=4)
    with FlopCounterMode(display=False):
        for out, message in ((torch.empty(3, *q.shape), r"out.shape is \(3, "), (torch.empty_like(q).int(), "out.dtype is torch.int32"),
                             (k, "out overlaps k"), (v, "out overlaps v"), (q.cpu().numpy(), "out is a ndarray")):
            with pytest.raises(ValueError, match=message):
                mica.attention(q, k, v, out=out)
        packed = torch.randn(2, 7, 4, 4, 8)
        q, k, v, out = packed.unbind(2)
        want = mica.attention(q, k, v)
        mica.attention(q, k, v, out=out)
        assert torch.equal(out, want)


@pytest.mark.skipif(not hasattr(torch, "float8_e4m3fn"), reason="this PyTorch has no e4m3")
def test_e4m3_is_the_same_where_something_looks_on():
    q, k, v = (t.to(torch.float8_e4m3fn) for t in qkv())
    looked_on = torch.compile(mica.attention, backend="aot_eager", fullgraph=True)(q, k, v)
    assert looked_on.dtype is torch.bfloat16 and torch.equal(looked_on, mica.attention(q, k, v))
    wide, lengths = torch.randn(2, 1, 4, 8), torch.tensor([2, 0], dtype=torch.int32)
    wide = wide.bfloat16() if wide.is_cuda else wide  # a GPU has no kernel for fp32 beside e4m3
    new = torch.full((2, 1, 2, 8), 1000.0, dtype=wide.dtype)  # saturates
    found = []
    for call in (mica.attention_with_cache, torch.compile(mica.attention_with_cache, backend="aot_eager", fullgraph=True)):
        for autocast in (False, True):
            caches = k.clone(), v.clone()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                o = call(wide, *caches, k=new, v=new, cache_seqlens=lengths, causal=True)
            assert o.dtype is wide.dtype and caches[0][0, 2, 0, 0].item() == 448.0
            found.append((o, *(c.float() for c in caches)))
    for other in found[1:]:
        for a, b in zip(other, found[0]):
            assert torch.equal(a, b)


def test_negative_views_are_resolved():
    q, k, v = qkv()
    want = mica.attention(-q, k, v)
    for _ in range(3):
        mica.attention(q, k, v)
    torch.testing.assert_close(mica.attention(torch._neg_view(q), k, v), want)
    torch.testing.assert_close(mica.attention(q, torch._neg_view(k), v), want)
    bias = torch.randn(1, 4, 7, 7)
    torch.testing.assert_close(mica.attention(q, k, v, bias=torch._neg_view(bias)), mica.attention(q, k, v, bias=-bias))
    leaf = k.clone().requires_grad_()
    mica.attention(q, torch._neg_view(leaf), v).square().sum().backward()
    torch.testing.assert_close(leaf.grad.double(), -want_grads(q, -k, v)[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["k", "v", "rotary_cos", "rotary_sin", "qv", "k_prefix", "v_prefix"])
def test_negative_views_beside_a_cache_are_resolved(name):
    q, k_cache, v_cache = qkv()
    heads, dim = k_cache.shape[2:]
    given = {"k": k_cache[:, :2].clone(), "v": v_cache[:, :2].clone(), "rotary_cos": torch.randn(9, dim // 2),
             "rotary_sin": torch.randn(9, dim // 2)}
    if name == "qv":
        given = {"qv": torch.randn_like(q)}
    elif name.endswith("prefix"):
        given = {"k_prefix": torch.randn(3, heads, dim), "v_prefix": torch.randn(3, heads, dim)}
    found = []
    for value in (given[name], torch._neg_view(-given[name])):
        caches = k_cache.clone(), v_cache.clone()
        found.append((mica.attention_with_cache(q, *caches, **{**given, name: value}, cache_seqlens=4, causal=True), *caches))
    for got, want in zip(*found):
        torch.testing.assert_close(got, want)


def test_a_negative_view_is_no_result():
    q, k, v = qkv()
    with pytest.raises(ValueError, match="^out is a negative view, want its values"):
        mica.attention(q, k, v, out=torch._neg_view(torch.empty_like(q)))


def test_modes_see_the_op_on_the_fast_path():
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode
    q, k, v = qkv(requires_grad=True)
    for _ in range(4):
        mica.attention(q, k, v)
    seen = []

    class Spy(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Spy():
        mica.attention(q, k, v)
    assert any("mica.attention" in name for name in seen)
    debug_mode = pytest.importorskip("torch.utils._debug_mode") if torch.__version__ >= "2.9" else None
    if debug_mode:
        with debug_mode.DebugMode() as shown:
            mica.attention(q, k, v)
        assert "mica::attention" in shown.debug_string()
    with FlopCounterMode(display=False) as counter:
        mica.attention(q, k, v).sum().backward()
    forward = 2 * 2 * 4 * 7 * 7 * (8 + 8)
    assert counter.get_total_flops() == forward + forward * 5 // 2
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        mica.attention(q, k, v)
    assert "mica::attention" in [event.key for event in profiler.key_averages()]


@pytest.mark.skipif(OLD, reason="PyTorch has selective checkpointing by a policy since 2.5")
def test_selective_checkpointing_keeps_the_result():
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
    q, k, v = qkv(requires_grad=True)
    for _ in range(4):
        mica.attention(q, k, v)
    met = []

    def policy(ctx, op, *args, **kwargs):
        if "mica" in str(op):
            met.append(ctx.is_recompute)
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    out = checkpoint(lambda q: mica.attention(q * 2, k, v), q, use_reentrant=False,
                     context_fn=lambda: create_selective_checkpoint_contexts(policy))
    got = torch.autograd.grad(out.square().sum(), q)[0]
    assert met and False in met
    torch.testing.assert_close(got, torch.autograd.grad(mica.attention(q * 2, k, v).square().sum(), q)[0])


WRONG_CALLS = {
    "another head dimension": lambda q, k, v: mica.attention(q, k[..., :4], v),
    "heads that do not divide": lambda q, k, v: mica.attention(q[:, :, :3], k, v),
    "types that differ": lambda q, k, v: mica.attention(q, k.half(), v.half()),
    "a mask too short": lambda q, k, v: mica.attention(q, k, v, mask=torch.ones(1, 1, 7, 5, dtype=torch.bool)),
    "integers": lambda q, k, v: mica.attention(q.int(), k.int(), v.int()),
    "a scale beyond": lambda q, k, v: mica.attention(q, k, v, scale=1e38),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_refused_is_refused_under_tracing_too(name, dynamic):
    torch._dynamo.reset()
    q, k, v = qkv()
    with pytest.raises(ValueError) as eager:
        WRONG_CALLS[name](q, k, v)
    with pytest.raises(Exception, match=re.escape(str(eager.value))):
        make = torch.fx.experimental.proxy_tensor.make_fx(WRONG_CALLS[name],
                                                          tracing_mode="symbolic" if dynamic else "fake")
        make(q, k, v)


def test_compile_with_a_length_from_item():
    torch._dynamo.reset()
    x = torch.randn(9, 2, 8)
    cu = torch.tensor([0, 4, 9], dtype=torch.int32)

    def f(x, cu):
        longest = int((cu[1:] - cu[:-1]).max().item())
        return mica.attention_varlen(x, x, x, cu, cu, max_seqlen_q=longest, max_seqlen_k=longest, causal=True)

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        got = torch.compile(f, backend="aot_eager", fullgraph=True)(x, cu)
    torch.testing.assert_close(got, f(x, cu))


def test_jit_trace_and_fx():
    q, k, v = qkv()
    for _ in range(3):
        mica.attention(q, k, v)

    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return mica.attention(q * 2, k, v, causal=True, window=(3, 0))

    other = [t.flip(1) for t in (q, k, v)]
    want = Layer()(*other)
    torch.testing.assert_close(torch.jit.trace(Layer(), (q, k, v))(*other), want)
    torch.testing.assert_close(torch.fx.symbolic_trace(Layer())(*other), want)


@pytest.mark.skipif(OLD, reason="the compiled autograd of PyTorch 2.4 ends with an AssertionError of its own here")
def test_compiled_autograd():
    torch._dynamo.reset()
    q, k, v = qkv(requires_grad=True)
    want = torch.autograd.grad(mica.attention(q, k, v).square().sum(), (q, k, v))
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        mica.attention(q, k, v).square().sum().backward()
    for leaf, w in zip((q, k, v), want):
        torch.testing.assert_close(leaf.grad, w)


def test_jagged_nested_tensors():
    torch.manual_seed(0)
    parts = [torch.randn(n, 4, 8) for n in (3, 5, 2)]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    o = mica.attention(x, x, x, causal=True)
    assert o.is_nested and o.layout == torch.jagged
    for got, part in zip(o.unbind(), parts):
        torch.testing.assert_close(got, mica.attention(*(part[None],) * 3, causal=True)[0])
    o.values().square().sum().backward()
    assert x.grad is not None
    with pytest.raises(ValueError, match="mask.*nested"):
        mica.attention(x, x, x, mask=torch.ones(1, 1, 1, 1, dtype=torch.bool))


def test_nested_tensors_that_are_no_packed_rows():
    rows, other = torch.randn(2, 6, 4, 8), torch.randn(2, 6, 4, 8)
    begin, length = torch.tensor([1, 0]), torch.tensor([3, 4])
    with_holes = torch.nested.narrow(rows, 1, begin, length, layout=torch.jagged)
    with pytest.raises(ValueError, match=r"q is a jagged nested tensor with holes between its sequences, want q.contiguous"):
        mica.attention(with_holes, with_holes, with_holes)
    jagged, shifted = (torch.nested.nested_tensor([other[0, :a], other[1, :b]], layout=torch.jagged) for a, b in ((3, 5), (5, 3)))
    with pytest.raises(ValueError, match="v has sequences of other lengths than k"):
        mica.attention(jagged, jagged, shifted)
    again = torch.nested.nested_tensor([other[0, :3], other[1, :5]], layout=torch.jagged)
    want = mica.attention(jagged, jagged, jagged).values()
    torch.testing.assert_close(mica.attention(jagged, jagged, again).values(), want)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        strided = torch.nested.nested_tensor([other[0, :3], other[1, :5]])
    for _ in range(3):  # from then on torch's guard is asked first, which ended the process
        mica.attention(*(rows.clone() for _ in range(3)))
    for call in (lambda: mica.attention(strided, strided, strided), lambda: mica.attention_with_cache(jagged, rows, rows),
                 lambda: mica.attention_varlen(jagged, jagged, jagged, [0, 3, 8], [0, 3, 8])):
        with pytest.raises(ValueError, match="q is a nested tensor, want one with layout=torch.jagged"):
            call()


def test_dtensor_batch_and_head_sharding(tmp_path):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    if OLD:
        from torch.distributed._tensor import Replicate, Shard, distribute_tensor
    else:
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        q, k, v = qkv()
        want = mica.attention(q, k, v, causal=True)
        for placement in (Shard(0), Shard(1), Shard(2), Replicate()):
            leaves = [distribute_tensor(t, mesh, [placement]).requires_grad_() for t in (q, k, v)]
            o = mica.attention(*leaves, causal=True)
            assert o.placements == (placement,)
            torch.testing.assert_close(o.full_tensor(), want)
            o.sum().backward()
            assert leaves[0].grad.placements == (placement,)
        columns = [distribute_tensor(t, mesh, [Shard(3)]) for t in (q, k, v)]
        with pytest.raises(NotImplementedError, match=r"Shard\(3\).*want.*batch.*rows and keys.*heads"):
            mica.attention(*columns)
    finally:
        dist.destroy_process_group()


def test_thread_counts_are_honoured():
    out = in_a_new_process("""
import os
os.environ["OMP_NUM_THREADS"] = "1"
import torch, mica
q = torch.randn(1, 8, 2, 8)
mica.attention(q, q, q)
print(mica.get_num_threads())
torch.set_num_threads(3)
mica.attention(q, q, q)
print(mica.get_num_threads())
mica.set_num_threads(2)
torch.set_num_threads(4)
print(mica.get_num_threads())
""")
    assert out.split() == ["1", "3", "2"]
    out = in_a_new_process("""
import os
os.environ["OMP_NUM_THREADS"] = "1"
import numpy, mica
q = numpy.ones((1, 8, 2, 8), "float32")
mica.attention(q, q, q)
print(mica.get_num_threads())
""")
    assert out.split() == ["1"]


def plans_kept():
    return sum(len(entries) for entries in _caller._caches)


def test_a_length_that_all_sequences_have_is_said_as_it_is(monkeypatch):
    """Kernels run them as a dense batch if they know it. Others' is rounded, and so is that of a plan for any batch."""
    said, plan = [], _caller._plan

    def listen(description, which, device):
        said.append((description.sequences.max_seqlen_q, description.sequences.max_seqlen_k))
        return plan(description, which, device)

    monkeypatch.setattr(_caller, "_plan", listen)
    x, keys = torch.randn(99, 2, 24), torch.randn(45, 2, 24)
    even, of_keys, uneven = (torch.tensor(cu, dtype=torch.int32) for cu in
                             ((0, 33, 66, 99), (0, 15, 30, 45), (0, 43, 66, 99)))

    def call(**options):
        said.clear()
        mica.attention_varlen(x, keys, keys, cu_seqlens_k=of_keys, max_seqlen_k=15, **options)
        return said

    assert call(cu_seqlens_q=even, max_seqlen_q=33) == [(33, 15)]
    assert call(cu_seqlens_q=even, max_seqlen_q=33) == []
    assert call(cu_seqlens_q=uneven, max_seqlen_q=43) == [(64, 15)]
    assert call(cu_seqlens_q=even, max_seqlen_q=33, softcap=2.0, return_lse=True) == [(33, 15)]
    assert call(cu_seqlens_q=even, max_seqlen_q=33, batch_invariant=True) == [(64, 16)]


def test_a_new_hint_is_not_a_new_plan():
    x = torch.randn(90, 2, 8)
    cu = torch.tensor([0, 40, 90], dtype=torch.int32)
    mica.attention_varlen(x, x, x, cu, cu, max_seqlen_q=50, max_seqlen_k=50)
    before = plans_kept()
    for hint in range(51, 90):
        mica.attention_varlen(x, x, x, cu, cu, max_seqlen_q=hint, max_seqlen_k=hint)
    assert plans_kept() - before <= 2
