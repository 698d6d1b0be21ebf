# SPDX-License-Identifier: Apache-2.0
"""mica.attention* inside what others write around it: compilers, exported programs, function transforms, autocast, inference
mode, layouts as modules make them, threads. Each is right or refused in a sentence."""

import copy
import io
import itertools
import pickle
import threading

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="no PyTorch 2.4 or later here")

import mica  # noqa: E402
from torch_truth_test import in_a_new_process  # noqa: E402

CU = torch.tensor([0, 4, 9], dtype=torch.int32)


def qkv(rows=9, batch=2, heads=4, dim=16):
    torch.manual_seed(0)
    return [torch.randn(batch, rows, heads, dim) for _ in range(3)]


def sdpa(q, k, v, **options):
    made = torch.nn.functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), **options)
    return made.transpose(1, 2)


def close(got, want, **tolerance):
    torch.testing.assert_close(got, want, **(tolerance or dict(rtol=1e-4, atol=1e-5)))


def leaves(*tensors):
    return [t.detach().clone().requires_grad_() for t in tensors]


def packed(q, k, v):
    return mica.attention_varlen(q * 1, k, v, CU, CU, causal=True)


def test_compiled_packed_calls_and_their_gradients():
    compiled = torch.compile(packed, fullgraph=True, backend="aot_eager")
    plain = [t[0] for t in qkv()]
    ours, theirs = leaves(*plain), leaves(*plain)
    o, want = compiled(*ours), packed(*theirs)
    close(o, want)
    o.square().sum().backward()
    want.square().sum().backward()
    for a, b in zip(ours, theirs):
        close(a.grad, b.grad)


class Layer(torch.nn.Module):
    def forward(self, q, k, v):
        return mica.attention(q, k, v, causal=True) + 1


def test_an_exported_program_runs_in_a_new_process(tmp_path):
    batch, rows = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("rows", min=2, max=512)
    shapes = {name: {0: batch, 1: rows} for name in "qkv"}
    program = torch.export.export(Layer(), tuple(qkv()), dynamic_shapes=shapes)
    others = qkv(rows=21, batch=3)
    close(program.module()(*others), sdpa(*others, is_causal=True) + 1)
    torch.export.save(program, tmp_path / "layer.pt2")
    torch.save((others, program.module()(*others)), tmp_path / "want.pt")
    in_a_new_process(f"""
import torch
import mica.integrations.export
others, want = torch.load("{tmp_path}/want.pt")
program = torch.export.load("{tmp_path}/layer.pt2")
torch.testing.assert_close(program.module()(*others), want)
""")


@pytest.mark.parametrize("dims", [(0, 0, 0), (0, None, None), (None, 0, 0), (1, 1, 1), (-1, -1, -1), (2, 0, 1), (0, 0, None)])
def test_vmap_over_any_axis(dims):
    torch.manual_seed(0)
    given = [torch.randn(2, 9, 4, 16) if d is None else torch.randn(3, 2, 9, 4, 16).movedim(0, d) for d in dims]
    made = torch.func.vmap(lambda q, k, v: mica.attention(q, k, v, causal=True), in_dims=dims)(*given)
    for i in range(3):
        close(made[i], sdpa(*(t if d is None else t.select(d, i) for t, d in zip(given, dims)), is_causal=True))


def test_vmap_of_packed_cached_and_biased_calls():
    q, k, v = qkv()
    x, cache, bias = torch.randn(3, 9, 4, 16), torch.randn(3, 2, 20, 4, 16), torch.randn(3, 2, 4, 9, 9)
    close(torch.func.vmap(lambda t: packed(t, t, t))(x), torch.stack([packed(t, t, t) for t in x]))
    close(torch.func.vmap(lambda b: mica.attention(q, k, v, bias=b))(bias),
          torch.stack([mica.attention(q, k, v, bias=b) for b in bias]))

    def decode(c):
        return mica.attention_with_cache(q[:, :1], c, c, cache_seqlens=7)

    close(torch.func.vmap(decode)(cache), torch.stack([decode(c) for c in cache]))


def test_vmap_and_dropout():
    q, k, v = qkv()
    same = torch.stack([q, q])

    def dropped(t):
        return mica.attention(t, k, v, dropout=0.5)

    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(dropped)(same)
    for randomness in ("same", "different"):
        made = torch.func.vmap(dropped, randomness=randomness)(same)
        assert torch.equal(made[0], made[1]) == (randomness == "same")


def test_aot_autograd():
    compile_ = pytest.importorskip("functorch.compile", reason="this PyTorch has no AOTAutograd")

    def squared(q, k, v):
        return mica.attention(q, k, v, causal=True).square()

    ours, theirs = leaves(*qkv()), leaves(*qkv())
    compile_.aot_function(squared, fw_compiler=compile_.nop, bw_compiler=compile_.nop)(*ours).sum().backward()
    squared(*theirs).sum().backward()
    for a, b in zip(ours, theirs):
        close(a.grad, b.grad)


def test_autocast():
    q, k, v = qkv()
    ours = leaves(q, k, v)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results = [mica.attention(*ours), mica.attention(q.bfloat16(), k, v), packed(q[0], k[0], v[0]),
                   torch.compile(mica.attention, fullgraph=True, backend="aot_eager")(q, k, v)]
        k_cache, v_cache = torch.zeros(2, 20, 4, 16), torch.zeros(2, 20, 4, 16)
        cached = mica.attention_with_cache(q[:, :1], k_cache, v_cache, k=k[:, :1], v=v[:, :1], cache_seqlens=0)
    assert all(t.dtype == torch.bfloat16 for t in results)
    close(results[0].float(), sdpa(q, k, v), rtol=2e-2, atol=2e-2)
    assert cached.dtype == torch.float32 and torch.equal(k_cache[:, 0], k[:, 0])  # a cache keeps its type
    results[0].float().sum().backward()
    assert all(t.grad.dtype == torch.float32 for t in ours)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32])
def test_autocast_leaves_what_sdpa_leaves(dtype):
    """Which is then refused, as without autocast, not rounded to bf16."""
    q, k, v = (t.to(dtype) for t in qkv())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for call in (mica.attention, lambda q, k, v: packed(q[0], k[0], v[0]),
                     torch.compile(mica.attention, fullgraph=True, backend="aot_eager")):
            with pytest.raises(Exception, match=f"dtype is (torch.)?{str(dtype)[6:]}, want"):
                call(q, k, v)


def test_inference_tensors():
    with torch.inference_mode():
        q, k, v = qkv()
        o = mica.attention(q, k, v)
        close(o, sdpa(q, k, v))
        assert o.is_inference()
    close(mica.attention(q, k, v), o.clone())
    with pytest.raises(RuntimeError, match="[Ii]nference"):
        mica.attention(q.clone().requires_grad_(), k, v)


def test_layouts_as_modules_make_them():
    torch.manual_seed(0)
    rows_first = [t.reshape(9, 2 * 4, 16).transpose(0, 1).view(2, 4, 9, 16).transpose(1, 2)
                  for t in torch.randn(9, 2, 3 * 64).chunk(3, -1)]  # as in torch.nn.MultiheadAttention
    of_one = torch.randn(2, 9, 3, 4, 16).unbind(2)
    last_axis_strided = [t.transpose(1, 3).contiguous().transpose(1, 3) for t in qkv()]
    every_second = [t[..., ::2] for t in qkv(dim=32)]
    shared = [t.expand(-1, -1, 4, -1) for t in qkv(heads=1)]
    for given in (rows_first, of_one, last_axis_strided, every_second, shared):
        close(mica.attention(*given), sdpa(*given))
        ours, theirs = leaves(*qkv()), leaves(*qkv())
        like = [lambda t, g=g: torch.empty_strided(t.shape, g.stride()).copy_(t) if 0 not in g.stride() else t for g in given]
        mica.attention(*(f(t) for f, t in zip(like, ours))).square().sum().backward()
        sdpa(*theirs).square().sum().backward()
        for a, b in zip(ours, theirs):
            close(a.grad, b.grad)


def test_an_out_that_is_not_dense_is_refused_by_its_name():
    with pytest.raises(ValueError, match=r"out\.stride\[3\] is 2, want 1"):
        mica.attention(*qkv(), out=torch.empty(2, 9, 4, 32)[..., ::2])


@pytest.mark.parametrize("batch, rows, keys", [(0, 9, 9), (2, 0, 9), (2, 9, 0)])
def test_nothing_gives_nothing(batch, rows, keys):
    q, k, v = leaves(torch.randn(batch, rows, 4, 16), torch.randn(batch, keys, 4, 16), torch.randn(batch, keys, 4, 16))
    o, lse = mica.attention(q, k, v, return_lse=True)
    assert o.shape == q.shape and (o == 0).all() and (lse == -float("inf")).all()
    o.sum().backward()
    assert all((t.grad == 0).all() for t in (q, k, v))


@pytest.mark.parametrize("given", [(2, 3, 0, 16), (2, 3, 4, 0)])
def test_no_heads_and_no_features_are_refused(given):
    with pytest.raises(ValueError, match=r"q\.shape\[[23]\] is 0"):
        mica.attention(*(torch.randn(*given) for _ in range(3)))


def test_a_gradient_for_some_of_the_inputs():
    tensors = [*qkv(), torch.randn(2, 4, 9, 9), torch.randn(4)]

    def loss(q, k, v, bias, sinks):
        return mica.attention(q, k, v, bias=bias, sinks=sinks, causal=True).square().sum()

    every = leaves(*tensors)
    loss(*every).backward()
    for wanted in itertools.product((False, True), repeat=5):
        some = [t.detach().clone().requires_grad_(want) for t, want in zip(tensors, wanted)]
        result = loss(*some)
        assert result.requires_grad == any(wanted)
        if any(wanted):
            result.backward()
        for mine, whole, want in zip(some, every, wanted):
            assert (mine.grad is not None) == want
            if want:
                close(mine.grad, whole.grad)


def test_there_is_no_second_derivative():
    q, k, v = qkv()

    def loss(t):
        return mica.attention(t, k, v).square().sum()

    x, = leaves(q)
    gradient, = torch.autograd.grad(loss(x), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivative"):
        gradient.sum().backward()
    with pytest.raises(NotImplementedError, match="second derivative"):
        torch.func.grad(lambda t: torch.func.grad(loss)(t).sum())(q)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    gradient, = torch.autograd.grad(compiled(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward|second derivative"):
        gradient.sum().backward()


def test_results_and_errors_are_copied_and_pickled():
    q, k, v = qkv()
    o = mica.attention(q, k, v)
    assert torch.equal(copy.deepcopy(o), o) and torch.equal(pickle.loads(pickle.dumps(o)), o)
    with_a_gradient = mica.attention(*leaves(q, k, v))
    stored = io.BytesIO()
    torch.save(with_a_gradient, stored)
    stored.seek(0)
    assert torch.equal(torch.load(stored), with_a_gradient)
    with pytest.raises(mica.InvalidArgument) as caught:
        mica.attention(q, k[..., :8], v)
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is type(caught.value) and str(again) == str(caught.value)


def test_many_threads_and_replicas():
    wrong = []

    def work(i):
        for j in range(20):
            given = leaves(*qkv(rows=3 + (i + j) % 7))
            o = mica.attention(*given, causal=True)
            o.sum().backward()
            if not torch.allclose(o, sdpa(*given, is_causal=True), atol=1e-5):
                wrong.append((i, j))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    close(torch.nn.DataParallel(Layer())(*qkv()), Layer()(*qkv()))  # on a CPU: the module itself


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_tensors_without_plain_memory_are_refused_by_name(name):
    given = dict(zip("qkv", qkv()))
    with pytest.raises(ValueError, match=rf"{name} is torch.sparse_coo, want torch.strided"):
        mica.attention(**{**given, name: given[name].to_sparse()})
    with pytest.raises(ValueError, match=r"is on (meta|cpu), want (cpu|meta)"):
        mica.attention(**{**given, name: given[name].to("meta")})
