# SPDX-License-Identifier: Apache-2.0
"""mica.attention, attention_varlen and attention_with_cache with torch tensors, against the formula in double."""

import itertools
import pathlib
import re
import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import reference  # noqa: E402

import mica  # noqa: E402


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def close(got, want, tolerance=2e-5):
    tolerance = max(tolerance, 1e-4) if got.is_cuda else tolerance
    torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=tolerance)


def qkv(device, rows=5, keys=7, heads=4, key_heads=2, dim=32, dim_v=32, batch=2, dtype=torch.float32):
    return (torch.randn(batch, rows, heads, dim, device=device, dtype=dtype),
            torch.randn(batch, keys, key_heads, dim, device=device, dtype=dtype),
            torch.randn(batch, keys, key_heads, dim_v, device=device, dtype=dtype))


@pytest.mark.parametrize("options", [
    {}, {"causal": True}, {"causal": "top-left"}, {"causal": "bottom-right"}, {"window": (2, 1)},
    {"window": (None, 1)}, {"causal": True, "window": (2, 5)},
    {"chunk": 3}, {"causal": True, "chunk": 4, "window": (2, 0)}, {"scale": 0.3, "softcap": 2.0}], ids=str)
def test_options(device, options):
    q, k, v = qkv(device)
    o, lse = mica.attention(q, k, v, return_lse=True, **options)
    o_want, lse_want = reference.attention(q, k, v, **options)
    close(o, o_want)
    close(lse, lse_want)
    assert torch.equal(o, mica.attention(q, k, v, **options))
    assert o.dtype == q.dtype and o.device == q.device and not o.requires_grad


def test_top_left_diagonal_of_a_window_and_alibi(device):
    q, k, v = qkv(device)
    alibi = torch.rand(4, device=device)
    got = mica.attention(q, k, v, alibi=alibi, diagonal="top-left")
    close(got, reference.attention(q, k, v, alibi=alibi, diagonal="top-left")[0])
    close(mica.attention(q, k, v, alibi=alibi.expand(2, 4)), reference.attention(q, k, v, alibi=alibi)[0])


@pytest.mark.parametrize("shape", [(5, 7), (4, 5, 7), (2, 1, 1, 7), (2, 4, 5, 7)], ids=str)
def test_mask_and_bias_broadcast(device, shape):
    q, k, v = qkv(device)
    mask, bias = torch.rand(shape, device=device) < 0.7, torch.randn(shape, device=device)
    close(mica.attention(q, k, v, mask=mask, bias=bias), reference.attention(q, k, v, mask=mask, bias=bias)[0])


def test_a_row_that_sees_nothing(device):
    q, k, v = qkv(device, rows=9)
    o, lse = mica.attention(q, k, v, causal=True, return_lse=True)
    assert (o[:, :2] == 0).all() and (lse[..., :2] == -torch.inf).all() and torch.isfinite(lse[..., 2:]).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_types_and_other_value_dimension(device, dtype):
    q, k, v = qkv(device, rows=40, keys=70, dim=64, dim_v=24, dtype=dtype)
    o = mica.attention(q, k, v, causal=True)
    want, _ = reference.attention(q, k, v, causal=True)
    assert o.dtype == dtype and o.shape == (2, 40, 4, 24)
    close(o, want, 2e-2)


def test_strided_and_sparse_inputs(device):
    q, k, v = qkv(device, key_heads=4, rows=7)
    transposed = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    want = mica.attention(q, k, v)
    got = mica.attention(*transposed)
    close(got, want)
    assert got.stride() == transposed[0].stride()  # the layout follows q's
    sparse = torch.stack([q, q], -1)[..., 0]
    assert sparse.stride(-1) == 2
    close(mica.attention(sparse, k, v), want)
    close(mica.attention(q[:1].expand(2, -1, -1, -1), k, v)[0], want[0])


def test_out(device):
    q, k, v = qkv(device)
    out = torch.empty_like(q)
    assert mica.attention(q, k, v, out=out) is out
    close(out, mica.attention(q, k, v))
    wide = torch.empty(2, 5, 4, 32, device=device, dtype=torch.float32)
    o, lse = mica.attention(*(t.bfloat16() for t in (q, k, v)), out=wide, return_lse=True)
    assert o is wide and lse.shape == (2, 4, 5)
    with pytest.raises(ValueError, match="out is given while a gradient is wanted"):
        mica.attention(q.requires_grad_(), k, v, out=out)


def test_gradients_of_everything(device):
    q, k, v = qkv(device, dim_v=16)
    bias, sinks = torch.randn(1, 4, 1, 7, device=device), torch.randn(4, device=device)
    mask = torch.rand(5, 7, device=device) < 0.8
    leaves = [t.requires_grad_() for t in (q, k, v, bias, sinks)]
    options = dict(causal=True, softcap=3.0, mask=mask)
    o, lse = mica.attention(q, k, v, bias=bias, sinks=sinks, return_lse=True, **options)
    o_want, lse_want = reference.attention(q, k, v, bias=bias, sinks=sinks, **options)
    weight = torch.randn_like(o)
    got = torch.autograd.grad((o * weight).sum() + lse.sin().sum(), leaves)
    want = torch.autograd.grad((o_want * weight).sum() + lse_want.sin().sum(), leaves)
    for one, other in zip(got, want):
        close(one, other, 1e-4)


@pytest.mark.parametrize("which", range(3))
def test_gradient_of_one_input_alone(device, which):
    tensors = qkv(device)
    leaf = tensors[which].requires_grad_()
    close(torch.autograd.grad(mica.attention(*tensors).sum(), leaf)[0],
          torch.autograd.grad(reference.attention(*tensors)[0].sum(), leaf)[0], 1e-4)


def test_gradient_through_lse_alone(device):
    q, k, v = qkv(device)
    q.requires_grad_()
    _, lse = mica.attention(q, k, v, return_lse=True)
    close(torch.autograd.grad(lse.sum(), q)[0],
          torch.autograd.grad(reference.attention(q, k, v)[1].sum(), q)[0], 1e-4)


def test_no_second_derivative(device):
    q, k, v = qkv(device)
    q.requires_grad_()
    first, = torch.autograd.grad(mica.attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="attention has no second derivative"):
        (first.sum() + q.sum()).backward()


def test_lse_is_made_only_where_needed(device):
    from mica import _torch_face
    q, k, v = qkv(device)
    mica.attention(q, k, v)
    assert _torch_face._plain.__globals__["entries"]
    assert all(entry.lse is None for entry in _torch_face._plain.__globals__["entries"].values())


def test_autocast(device):
    q, k, v = qkv(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        o = mica.attention(q, k, v)
        with torch.autocast(device, enabled=False):
            assert mica.attention(q, k, v).dtype == torch.float32
    assert o.dtype == torch.bfloat16
    assert torch.equal(o, mica.attention(*(t.bfloat16() for t in (q, k, v))))
    q.requires_grad_()
    with torch.autocast(device, dtype=torch.bfloat16):
        mica.attention(q, k, v).sum().backward()
    assert q.grad.dtype == torch.float32


def test_autocast_of_packed_sequences_and_caches(device):
    q, k, v = qkv(device)
    cu = torch.tensor([0, 5], dtype=torch.int32, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        packed = mica.attention_varlen(q[0], k[0, :5], v[0, :5], cu, cu)
        cached = mica.attention_with_cache(q, k.bfloat16(), v.bfloat16())
        assert mica.attention_with_cache(q.bfloat16(), k, v).dtype == torch.float32  # a cache keeps its type
    assert packed.dtype == cached.dtype == torch.bfloat16
    close(packed, reference.attention(q[:1], k[:1, :5], v[:1, :5])[0][0], 3e-2)
    close(cached, reference.attention(q, k, v)[0], 3e-2)


def test_deterministic_follows_torch(device):
    from mica import _autograd
    q, k, v = qkv(device)
    q.requires_grad_()
    torch.use_deterministic_algorithms(True)
    try:
        first = torch.autograd.grad(mica.attention(q, k, v).sum(), q)[0]
        again = torch.autograd.grad(mica.attention(q, k, v).sum(), q)[0]
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(first, again)
    call, _ = _autograd._backward((), False, (True, False, False, False, False))
    assert any(key[0].deterministic for key in call.__globals__["entries"])


def test_dropout(device):
    q, k, v = qkv(device, rows=64, keys=64)
    same = mica.attention(q, k, v, dropout=0.3, seed=5)
    assert torch.equal(same, mica.attention(q, k, v, dropout=0.3, seed=5))
    assert torch.equal(same, mica.attention(q, k, v, dropout=0.3,
                                            seed=torch.tensor([5, 0], dtype=torch.int64, device=device)))
    assert torch.equal(mica.attention(q, k, v, dropout=0.3, seed=2**64 - 1),
                       mica.attention(q, k, v, dropout=0.3, seed=-1))
    torch.manual_seed(3)
    first, second = (mica.attention(q, k, v, dropout=0.3) for _ in range(2))
    torch.manual_seed(3)
    assert torch.equal(first, mica.attention(q, k, v, dropout=0.3)) and not torch.equal(first, second)
    # The gradient uses the forward's bits: with v = 1 each output is a sum of what was kept.
    v = torch.ones_like(v).requires_grad_()
    o = mica.attention(q, k, v, dropout=0.3)
    gradient, = torch.autograd.grad(o.sum(), v)
    close(gradient.sum(), o.sum(), 1e-4)


def test_checkpoint_repeats_dropout(device):
    from torch.utils.checkpoint import checkpoint
    q, k, v = (t.requires_grad_() for t in qkv(device, rows=32, keys=32))

    def gradients(function):
        torch.manual_seed(5)
        return torch.autograd.grad(function(q, k, v).square().sum(), (q, k, v))

    def layer(q, k, v):
        return mica.attention(q, k, v, causal=True, dropout=0.4)

    for got, want in zip(gradients(lambda *t: checkpoint(layer, *t, use_reentrant=False)), gradients(layer)):
        assert torch.equal(got, want)


def test_inference_mode_and_parameters(device):
    q, k, v = qkv(device)
    with torch.inference_mode():
        o = mica.attention(q, k, v)
    assert o.is_inference() and torch.equal(o, mica.attention(torch.nn.Parameter(q), k, v))


def pack(tensors):
    lengths = torch.tensor([0] + [t.shape[0] for t in tensors]).cumsum(0).int()
    return torch.cat(tensors), lengths.to(tensors[0].device)


def test_varlen_with_gradients(device):
    lengths = [(3, 5), (0, 2), (6, 6), (1, 4)]
    q, k, v = (pack([torch.randn(pair[side], heads, 32, device=device) for pair in lengths])
               for side, heads in ((0, 4), (1, 2), (1, 2)))
    (q, cu_q), (k, cu_k), (v, _) = q, k, v
    sinks = torch.randn(4, device=device)
    leaves = [t.requires_grad_() for t in (q, k, v, sinks)]
    o, lse = mica.attention_varlen(q, k, v, cu_q, cu_k, causal=True, sinks=sinks, return_lse=True, max_seqlen_q=6)
    pieces = [reference.attention(q[a:b][None], k[c:d][None], v[c:d][None], causal=True, sinks=sinks)
              for a, b, c, d in zip(cu_q.tolist(), cu_q.tolist()[1:], cu_k.tolist(), cu_k.tolist()[1:]) if b > a]
    o_want, lse_want = torch.cat([p[0][0] for p in pieces]), torch.cat([p[1][0] for p in pieces], 1)
    close(o, o_want)
    close(lse, lse_want)
    weight = torch.randn_like(o)
    for got, want in zip(torch.autograd.grad((o * weight).sum() + lse.sum(), leaves),
                         torch.autograd.grad((o_want * weight).sum() + lse_want.sum(), leaves)):
        close(got, want, 1e-4)


def test_varlen_seqused_and_pages(device):
    cu_q = torch.tensor([0, 2, 5], dtype=torch.int32, device=device)
    cu_k = torch.tensor([0, 8, 16], dtype=torch.int32, device=device)
    q, k, v = (torch.randn(rows, 2, 16, device=device) for rows in (5, 16, 16))
    used = torch.tensor([3, 7], dtype=torch.int32, device=device)
    o = mica.attention_varlen(q, k, v, cu_q, cu_k, seqused_k=used)
    for n, (a, b, keys) in enumerate(((0, 2, 3), (2, 5, 7))):
        want = reference.attention(q[a:b][None], k[None, 8 * n:8 * n + keys], v[None, 8 * n:8 * n + keys])[0]
        close(o[a:b], want[0])
    table = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32, device=device)
    paged = mica.attention_varlen(q, k.view(4, 4, 2, 16), v.view(4, 4, 2, 16), cu_q, cu_k, seqused_k=used,
                                  block_table=table)
    close(paged, o)


@pytest.mark.parametrize("is_paged", [False, True])
@pytest.mark.parametrize("as_int", [False, True])
def test_cache(device, is_paged, as_int):
    batch, capacity, new = 2, 12, 3
    k_cache, v_cache = (torch.randn(batch, capacity, 2, 32, device=device) for _ in range(2))
    q, k, v = (torch.randn(batch, new, heads, 32, device=device) for heads in (4, 2, 2))
    table = None
    if is_paged:
        table = torch.arange(6, dtype=torch.int32, device=device).view(2, 3)
        k_cache, v_cache = k_cache.view(6, 4, 2, 32), v_cache.view(6, 4, 2, 32)
    used = 5 if as_int else torch.full((batch,), 5, dtype=torch.int32, device=device)
    k_all = torch.cat([k_cache.view(batch, capacity, 2, 32)[:, :5], k], 1)
    v_all = torch.cat([v_cache.view(batch, capacity, 2, 32)[:, :5], v], 1)
    o, lse = mica.attention_with_cache(q, k_cache, v_cache, k=k, v=v, cache_seqlens=used, block_table=table,
                                       causal=True, return_lse=True)
    o_want, lse_want = reference.attention(q, k_all, v_all, causal=True)
    close(o, o_want)
    close(lse, lse_want)
    assert torch.equal(k_cache.view(batch, capacity, 2, 32)[:, 5:8], k)
    again = mica.attention_with_cache(q, k_cache, v_cache, cache_seqlens=8, block_table=table, causal=True)
    close(again, o)


def test_cache_slots_and_leftpad(device):
    k_cache, v_cache = (torch.randn(3, 8, 2, 16, device=device) for _ in range(2))
    q = torch.randn(2, 1, 2, 16, device=device)
    index = torch.tensor([2, 0], dtype=torch.int32, device=device)
    pad = torch.tensor([1, 3], dtype=torch.int32, device=device)
    o = mica.attention_with_cache(q, k_cache, v_cache, cache_seqlens=6, cache_batch_idx=index, cache_leftpad=pad)
    for n, (slot, first) in enumerate(((2, 1), (0, 3))):
        want = reference.attention(q[n:n + 1], k_cache[None, slot, first:6], v_cache[None, slot, first:6])[0]
        close(o[n:n + 1], want)


def test_cache_has_no_gradient(device):
    q, k, v = qkv(device)
    with torch.no_grad():
        assert not mica.attention_with_cache(q.requires_grad_(), k, v).requires_grad
    with pytest.raises(NotImplementedError, match="q requires a gradient"):
        mica.attention_with_cache(q, k, v)


@pytest.mark.parametrize("change, error, message", [
    (dict(causal="left"), ValueError, "causal is 'left', want False, True, 'bottom-right' or 'top-left'"),
    (dict(window=3), ValueError, r"window is 3, want \(left, right\)"),
    (dict(window=(-2, 0)), ValueError, "window's left is -2, want 0 to"),
    (dict(scale=0.0), ValueError, "scale is 0"),
    (dict(scale=torch.tensor(0.5)), ValueError, "scale is a Tensor, want a number"),
    (dict(dropout=1.5), ValueError, "dropout is 1.5"),
    (dict(k="a string"), TypeError, "k is a str, want a torch.Tensor"),
    (dict(mask=torch.zeros(5, 8, dtype=torch.bool)), ValueError, r"^mask.shape\[3\] is 8, want 1 or 7"),
    (dict(mask=torch.zeros(5, 7, dtype=torch.uint8)), ValueError, "mask.dtype is torch.uint8, want bool"),
    (dict(q=torch.zeros(5, 32)), ValueError, "q has 2 axes, want \\(batch"),
    (dict(q=torch.zeros(2, 5, 3, 32)), ValueError, r"k.shape\[2\] is 2, want a divisor of 3"),
    (dict(q=torch.zeros(2, 5, 4, 32).long()), ValueError, "q.dtype is torch.int64, want float32, float16"),
])
def test_errors(change, error, message):
    arguments = dict(zip("qkv", qkv("cpu")))
    arguments.update(change)
    with pytest.raises(error, match=message):
        mica.attention(**arguments)


def test_tensors_of_two_devices():
    q, k, v = qkv("cpu", rows=11)
    with pytest.raises(ValueError, match="k is on meta, want cpu"):
        mica.attention(q, k.to("meta"), v)


def test_threads_share_nothing(device):
    wrong = []

    def work(number):
        q, k, v = qkv(device, rows=number + 1)
        want = reference.attention(q, k, v, causal=True)[0]
        for _ in range(50):
            if not torch.allclose(mica.attention(q, k, v, causal=True).double(), want, atol=1e-4):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number % 3,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("batch, rows, keys", [(0, 5, 7), (2, 0, 7), (2, 5, 0)])
def test_empty_tensors(device, batch, rows, keys):
    q, k, v = (t.requires_grad_() for t in qkv(device, rows=rows, keys=keys, batch=batch))
    o, lse = mica.attention(q, k, v, causal=True, return_lse=True)
    assert o.shape == q.shape and lse.shape == (batch, 4, rows)
    assert (o == 0).all() and (lse == -torch.inf).all()
    gradients = torch.autograd.grad(o.sum() + lse.where(lse > 0, 0.0).sum(), (q, k, v))
    assert all(g.shape == t.shape and (g == 0).all() for g, t in zip(gradients, (q, k, v)))


def test_rows_of_no_sequence_of_four_axes(device):
    """Packed (1, rows, heads, dim) with out: its rows are the second axis."""
    q, k, v = (t[:1] for t in qkv(device, rows=6, keys=9))
    for begin in (0, 1):
        want = mica.attention_varlen(q[0], k[0], v[0], [begin, 4], [0, 9])
        out = torch.full_like(q, 7)
        mica.attention_varlen(q, k, v, [begin, 4], [0, 9], out=out)
        assert torch.equal(out[0], want) and (out[0, 4:] == 0).all() and (out[0, begin:4] != 0).any()


def test_no_sequences(device):
    q = torch.randn(0, 4, 32, device=device)
    cu_seqlens = torch.zeros(1, dtype=torch.int32, device=device)
    assert mica.attention_varlen(q, q, q, cu_seqlens, cu_seqlens).shape == (0, 4, 32)


@pytest.mark.parametrize("function", [mica.attention, mica.attention_varlen, mica.attention_with_cache])
def test_typed_and_documented(function):
    import inspect
    parameters = inspect.signature(function).parameters
    words = set(re.findall(r"[a-z_]+", function.__doc__ + mica.attention.__doc__))
    for name, parameter in parameters.items():
        assert parameter.annotation is not inspect.Parameter.empty and name in words, name
    package = pathlib.Path(mica.__file__).parent
    assert (package / "py.typed").is_file()  # without it a type checker looks at none of these


def test_a_defect_inside_is_not_hidden(monkeypatch):
    """An AttributeError of the package's own code comes out; it was taken for arrays of another library."""
    from mica import _torch_face
    tried = []

    def broken(*_):
        tried.append(1)
        raise AttributeError("'NoneType' object has no attribute 'shape'")

    for name in ("run_forward", "_plain_call", "_cached_call"):
        monkeypatch.setattr(_torch_face, name, broken)
    q = torch.randn(1, 4, 2, 8)
    for call in (lambda: mica.attention(q, q, q), lambda: mica.attention(q, q, q, bias=torch.zeros(1, 2, 4, 4)),
                 lambda: mica.attention_with_cache(q, q.clone(), q.clone())):
        tried.clear()
        with pytest.raises(AttributeError, match="has no attribute 'shape'"):
            call()
        assert len(tried) == 1


@pytest.mark.parametrize("axes", [2, 3, 4])
def test_a_tree_of_speculated_tokens(device, axes):
    q, cache_k, cache_v = (torch.randn(2, n, h, 32, device=device) for n, h in ((5, 4), (40, 2), (40, 2)))
    k, v = (torch.randn(2, 5, 2, 32, device=device) for _ in range(2))
    tree = torch.rand(*((2, 4, 5, 5)[4 - axes:] if axes != 3 else (2, 5, 5)), device=device) < 0.6
    used = torch.tensor([30, 0], dtype=torch.int32, device=device)
    out = mica.attention_with_cache(q, cache_k, cache_v, k=k, v=v, cache_seqlens=used, tree=tree)
    full = tree[:, None] if axes == 3 else tree.expand(2, 4, 5, 5)
    for b, n in enumerate((30, 0)):
        mask = torch.cat([torch.ones(4, 5, n, dtype=torch.bool, device=device), full[b].expand(4, 5, 5)], -1)
        want, _ = reference.attention(q[b:b + 1], cache_k[b:b + 1, :n + 5], cache_v[b:b + 1, :n + 5], mask=mask[None])
        torch.testing.assert_close(out[b:b + 1].double(), want, rtol=2e-5, atol=2e-5)


def test_a_tree_of_no_keys(device):
    """It hides nothing: all keys come before it."""
    q, k, v = qkv(device)
    tree = torch.ones(5, 0, dtype=torch.bool, device=device)
    want = mica.attention_with_cache(q, k, v, cache_seqlens=6)
    close(mica.attention_with_cache(q, k, v, cache_seqlens=6, tree=tree), want)
    arrays = (t.cpu().numpy() for t in (q, k, v))
    close(torch.from_numpy(mica.attention_with_cache(*arrays, cache_seqlens=6, tree=tree.cpu().numpy())), want.cpu())


def test_a_tree_that_is_none(device):
    q, cache = torch.randn(1, 5, 4, 32, device=device), torch.randn(1, 40, 2, 32, device=device)
    tree = torch.ones(5, 5, dtype=torch.bool, device=device)
    with pytest.raises(ValueError, match="tree is given with mask, want one of them"):
        mica.attention_with_cache(q, cache, cache, tree=tree, mask=torch.ones(5, 40, dtype=torch.bool, device=device))
    with pytest.raises(ValueError, match="tree has 1 axes, want"):
        mica.attention_with_cache(q, cache, cache, tree=tree[0])
    with pytest.raises(ValueError, match=r"tree.shape\[2\] is 3, want 1 or 5"):
        mica.attention_with_cache(q, cache, cache, tree=tree[:3])
    with pytest.raises(ValueError, match="tree.dtype is .*, want bool"):
        mica.attention_with_cache(q, cache, cache, tree=tree.float())
    with pytest.raises(ValueError, match="tree has 0 axes, want"):
        mica.attention_with_cache(*(t.cpu().numpy() for t in (q, cache, cache)), tree=tree.tolist())


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("options", [{}, {"causal": True, "sinks": 1, "softcap": 5.0, "scale": 0.2}], ids=str)
def test_a_second_query_for_the_values(device, options, paged):
    """q.k + qv.v, new keys included; qv's columns are not dense."""
    q, k, v = (torch.randn(2, 3, h, d, device=device) for h, d in ((4, 16), (1, 16), (1, 40)))
    qv = torch.randn(2, 3, 40, 4, device=device).transpose(2, 3)
    caches = [torch.randn(6, 8, 1, d, device=device) if paged else torch.randn(2, 24, 1, d, device=device) for d in (16, 40)]
    table = torch.tensor([[5, 0, 1], [2, 3, 4]], dtype=torch.int32, device=device) if paged else None
    options = dict(options)
    if "sinks" in options:
        options["sinks"] = torch.randn(4, device=device)
    o, lse = mica.attention_with_cache(q, *caches, k=k, v=v, cache_seqlens=[17, 2], block_table=table, qv=qv, return_lse=True,
                                       **options)
    for b, n in enumerate((20, 5)):
        keys, values = (cache[table[b].long()].flatten(0, 1)[None, :n] if paged else cache[b:b + 1, :n] for cache in caches)
        assert torch.equal(values[0, -3:], v[b])
        want, want_lse = reference.attention(torch.cat((q, qv), -1)[b:b + 1], torch.cat((keys, values), -1), values, **options)
        torch.testing.assert_close(o[b:b + 1].double(), want, rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(lse[b:b + 1].double(), want_lse, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("options", [{}, {"causal": True, "softcap": 5.0, "scale": 0.2}, {"bias": 1, "sinks": 1}], ids=str)
def test_a_second_query_of_packed_rows(device, options, paged):
    """An empty sequence and rows of none among them; qv's columns are not dense."""
    rows, keys = (3, 0, 5), (9, 4, 14)
    cu_q, cu_k = (torch.tensor([0, *itertools.accumulate(n)], dtype=torch.int32, device=device) for n in (rows, keys))
    q, qv = torch.randn(10, 4, 16, device=device), torch.randn(10, 24, 4, device=device).transpose(1, 2)
    k, v = (torch.randn(27, 2, d, device=device) for d in (16, 24))
    options = dict(options)
    if "bias" in options:
        options.update(bias=torch.randn(3, 4, 5, 14, device=device), sinks=torch.randn(4, device=device))
    where = {}
    stored = k, v
    if paged:
        pages = torch.tensor([[4, 0], [2, 2], [1, 3]], dtype=torch.int32, device=device)
        stored = tuple(torch.randn(5, 8, 2, t.shape[-1], device=device) for t in (k, v))
        for b, n in enumerate(keys):
            for mine, t in zip(stored, (k, v)):
                for at in range(n):
                    mine[pages[b, at // 8], at % 8] = t[cu_k[b] + at]
        where = dict(block_table=pages, seqused_k=cu_k.diff())
    o, lse = mica.attention_varlen(q, *stored, cu_q, cu_k, qv=qv, return_lse=True, **where, **options)
    for b in (0, 2):
        at, of = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        here = dict(options, bias=options["bias"][b:b + 1, :, :rows[b], :keys[b]]) if "bias" in options else options
        want, want_lse = reference.attention(torch.cat((q, qv), -1)[None, at], torch.cat((k, v), -1)[None, of], v[None, of], **here)
        torch.testing.assert_close(o[None, at].double(), want, rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(lse[None, :, at].double(), want_lse, rtol=2e-5, atol=2e-5)
    assert not o[8:].any() and (lse[:, 8:] == -float("inf")).all()
    if device == "cpu" and not paged:
        options = {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in options.items()}
        got = mica.attention_varlen(*(t.numpy() for t in (q, k, v, cu_q, cu_k)), qv=qv.numpy(), **options)
        assert torch.equal(torch.from_numpy(got), o)


def test_arrays_beside_packed_tensors():
    q, k, v = (torch.randn(n, 2, 16) for n in (3, 7, 7))
    for hints in ({}, dict(max_seqlen_q=3, max_seqlen_k=7)):
        want = mica.attention_varlen(q, k, v, [0, 3], [0, 7], **hints)
        assert torch.equal(mica.attention_varlen(q, k.numpy(), v.numpy(), [0, 3], [0, 7], **hints), want)


def test_packed_rows_beside_keys_that_are_not():
    q, k, v = torch.randn(6, 4, 16), torch.randn(2, 7, 2, 16), torch.randn(2, 7, 2, 16)
    want = mica.attention(q.unflatten(0, (2, 3)), k, v, causal=True).flatten(0, 1)
    for hints in ({}, dict(max_seqlen_q=3, max_seqlen_k=7)):
        torch.testing.assert_close(mica.attention_varlen(q, k, v, [0, 3, 6], None, causal=True, **hints), want)
        with pytest.raises(mica.InvalidArgument, match="q has 3 axes, want"):
            mica.attention_varlen(q, k, v, None, [0, 7, 14], **hints)


def test_a_second_query_of_arrays():
    q, k, v, qv = (torch.randn(2, n, h, d) for n, h, d in ((3, 4, 16), (9, 2, 16), (9, 2, 24), (3, 4, 24)))
    want = mica.attention_with_cache(q, k, v, qv=qv, causal=True)
    torch.testing.assert_close(want.double(), reference.attention(torch.cat((q, qv), -1), torch.cat((k, v), -1), v, causal=True)[0],
                               rtol=2e-5, atol=2e-5)
    got = mica.attention_with_cache(*(t.numpy() for t in (q, k, v)), qv=qv.numpy(), causal=True)
    assert torch.equal(torch.from_numpy(got), want)


@pytest.mark.parametrize("options, message", [
    (dict(qv=torch.ones(1, 3, 2, 24)), r"qv.shape\[3\] is 24, want 16 \(= v_cache.shape\[3\]\)"),
    (dict(qv=torch.ones(1, 3, 2, 16).half()), "qv.dtype is fp16, want fp32"),
    (dict(qv=torch.ones(1, 3, 2, 16), k_prefix=torch.ones(9, 2, 32), v_prefix=torch.ones(9, 2, 16)),
     "k_prefix is given with qv, want None"), (dict(qv=3), "qv is a int, want")])
def test_a_second_query_that_does_not_fit(options, message):
    q, k, v = torch.ones(1, 3, 2, 32), torch.ones(1, 7, 2, 32), torch.ones(1, 7, 2, 16)
    with pytest.raises((mica.InvalidArgument, TypeError), match=message):
        mica.attention_with_cache(q, k, v, **options)
    with pytest.raises(mica.Unsupported, match="qv requires a gradient"):
        mica.attention_with_cache(q, k, v, qv=torch.ones(1, 3, 2, 16, requires_grad=True))


@pytest.mark.parametrize("options, message", [
    (dict(qv=torch.ones(3, 2, 24)), r"qv.shape\[\d\] is 24, want 16"), (dict(qv=torch.ones(4, 2, 16)), r"qv.shape\[\d\] is 4, want 3"),
    (dict(qv=torch.ones(3, 2, 16).half()), "qv.dtype is fp16, want fp32"), (dict(qv=3), "qv is a int, want"),
    (dict(qv=torch.ones(3, 2, 16), dropout=0.5), "dropout is given with qv")])
def test_a_second_query_of_packed_rows_that_does_not_fit(options, message):
    q, k, v, lengths = torch.ones(3, 2, 32), torch.ones(7, 2, 32), torch.ones(7, 2, 16), ([0, 3], [0, 7])
    with pytest.raises((mica.InvalidArgument, mica.Unsupported, TypeError), match=message):
        mica.attention_varlen(q, k, v, *lengths, **options)
    for wanted in (dict(qv=torch.ones(3, 2, 16, requires_grad=True)), dict(qv=torch.ones(3, 2, 16), bias=torch.ones(1, 2, 3, 7, requires_grad=True))):
        with pytest.raises(mica.Unsupported, match="requires a gradient, and a call with qv has none"):
            mica.attention_varlen(q, k, v, *lengths, **wanted)


@pytest.mark.parametrize("options", [{}, {"causal": True, "sinks": 1, "softcap": 5.0, "scale": 0.2}, {"tree": 1}], ids=str)
def test_a_prefix_that_the_batch_shares(device, options):
    q, cache_k, cache_v = (torch.randn(3, n, h, 32, device=device) for n, h in ((4, 4), (20, 2), (20, 2)))
    k, v = (torch.randn(3, 4, 2, 32, device=device) for _ in range(2))
    prefix = [torch.randn(9, 2, 32, device=device) for _ in range(2)]
    used = torch.tensor([12, 0, 5], dtype=torch.int32, device=device)
    options = dict(options)
    if "sinks" in options:
        options["sinks"] = torch.randn(4, device=device)
    if "tree" in options:
        options["tree"] = torch.rand(3, 4, 4, device=device) < 0.5
    out = torch.empty_like(q)
    o, lse = mica.attention_with_cache(q, cache_k, cache_v, k=k, v=v, cache_seqlens=used, k_prefix=prefix[0],
                                       v_prefix=prefix[1], return_lse=True, out=out, **options)
    assert o is out
    tree = options.pop("tree", None)
    for b, n in enumerate((12, 0, 5)):
        keys, values = (torch.cat((shared, own[b, :n + 4]))[None] for shared, own in zip(prefix, (cache_k, cache_v)))
        mask = None
        if tree is not None:
            mask = torch.cat([torch.ones(4, 9 + n, dtype=torch.bool, device=device), tree[b]], -1)
        want, want_lse = reference.attention(q[b:b + 1], keys, values, mask=mask, **options)
        torch.testing.assert_close(o[b:b + 1].double(), want, rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(lse[b:b + 1].double(), want_lse, rtol=2e-5, atol=2e-5)


def test_a_prefix_is_one_call_of_the_library(device, monkeypatch):
    """In pages; with rows that are no single axis, and a prefix whose columns are not dense."""
    def refuse(*_):
        raise AssertionError("joined in Python")
    monkeypatch.setattr("mica._torch_face.attend_with_prefix", refuse)
    q = torch.randn(2, 3, 2, 4, 32, device=device)[:, :, 0]
    pages = [torch.randn(6, 8, 2, 32, device=device) for _ in range(2)]
    table = torch.tensor([[5, 0], [2, 3]], dtype=torch.int32, device=device)
    prefix = [torch.randn(2, 32, 9, device=device).permute(2, 0, 1) for _ in range(2)]
    out = mica.attention_with_cache(q, *pages, cache_seqlens=[11, 6], block_table=table, k_prefix=prefix[0], v_prefix=prefix[1])
    for b, n in enumerate((11, 6)):
        keys, values = (torch.cat((shared, cache[table[b].long()].flatten(0, 1)[:n]))[None] for shared, cache in zip(prefix, pages))
        torch.testing.assert_close(out[b:b + 1].double(), reference.attention(q[b:b + 1], keys, values)[0], rtol=2e-5, atol=2e-5)
    with pytest.raises(mica.Unsupported, match="k_prefix requires a gradient"):
        mica.attention_with_cache(q, *pages, block_table=table, k_prefix=prefix[0].requires_grad_(), v_prefix=prefix[1])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_rotary_turns_what_a_prefix_sees(device, causal, interleaved):
    """As one cache that begins with the prefix has it."""
    q, k, v = (torch.randn(2, 3, h, 32, device=device) for h in (4, 2, 2))
    shared = [torch.randn(5, 2, 32, device=device) for _ in range(2)]
    own = [torch.randn(2, 10, 2, 32, device=device) for _ in range(2)]
    used = torch.tensor([4, 0], dtype=torch.int32, device=device)
    angle = torch.rand(20, 8, device=device) * 6
    whole = [torch.cat([prefix[None].expand(2, -1, -1, -1), cache], 1).contiguous() for prefix, cache in zip(shared, own)]
    want = mica.attention_with_cache(q, *whole, k=k, v=v, cache_seqlens=used + 5, rotary_cos=angle.cos(), rotary_sin=angle.sin(),
                                     rotary_interleaved=interleaved, causal=causal)
    got = mica.attention_with_cache(q, *own, k=k, v=v, cache_seqlens=used, rotary_cos=angle[5:].cos(), rotary_sin=angle[5:].sin(),
                                    rotary_interleaved=interleaved, causal=causal, k_prefix=shared[0], v_prefix=shared[1])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options, message", [
    (dict(window=(3, 0)), "window is given with k_prefix, want none"), (dict(chunk=4), "chunk is given with k_prefix"),
    (dict(causal="top-left"), "causal is 'top-left' with k_prefix"),
    (dict(v_prefix=None), "v_prefix is None, want it together with k_prefix"),
    (dict(v_prefix=torch.ones(9, 1, 32)), r"v_prefix.shape\[1:\] is \(1, 32\), want \(2, 32\) \(= those of v_cache\)"),
    (dict(v_prefix=torch.ones(8, 2, 32)), r"v_prefix.shape\[0\] is 8, want 9 \(= k_prefix.shape\[0\]\)"),
    (dict(k_prefix=torch.ones(9, 2, 16)), r"k_prefix.shape\[1:\] is \(2, 16\), want \(2, 32\)"),
    (dict(k_prefix=torch.ones(9, 2, 32).half()), "k_prefix.dtype is torch.float16, want torch.float32"),
    (dict(batch_invariant=True), "batch_invariant is given with k_prefix, want none: the sequences are computed together"),
    (dict(out=torch.empty(1, 1, 4, 32)), r"out.shape\[1\] is 1, want 2"),
    (dict(k_prefix=torch.ones(1, 9, 2, 32)), "k_prefix has 4 axes, want"), (dict(k_prefix=3), "k_prefix is a int, want")])
def test_what_does_not_go_with_a_prefix(options, message):
    q, cache = torch.randn(1, 2, 4, 32), torch.randn(1, 8, 2, 32)
    given = {**dict(k_prefix=torch.ones(9, 2, 32), v_prefix=torch.ones(9, 2, 32)), **options}
    with pytest.raises(ValueError, match=message):
        mica.attention_with_cache(q, cache, cache, **given)
