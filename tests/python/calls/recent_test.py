# SPDX-License-Identifier: Apache-2.0
"""A call that repeats another one takes the short way, and one that only looks like it does not."""

import gc
import weakref

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import reference  # noqa: E402

import mica  # noqa: E402
from mica import _recent  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    _recent.recent_calls.clear()


def qkv(device="cpu", rows=5, dtype=torch.float32):
    return [torch.randn(2, rows, 4, 32, device=device, dtype=dtype) for _ in range(3)]


def settle(tensors, **options):
    """Makes the call until it takes the short way."""
    for _ in range(3):
        mica.attention(*tensors, **options)
    (call,) = _recent.recent_calls.values()
    assert call.is_same(*tensors) == _recent._guard_is_right()
    return call


def close(got, tensors, **options):
    torch.testing.assert_close(got.double(), reference.attention(*tensors, **options)[0], rtol=1e-4, atol=1e-4)


def test_this_pytorch_has_the_guard():
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 4):
        pytest.skip("PyTorch before 2.4 may have none")
    assert _recent._guard_is_right()


def test_other_tensors_of_the_same_kind(device):
    settle(qkv(device), causal=True)
    for _ in range(2):
        tensors = qkv(device)
        close(mica.attention(*tensors, causal=True), tensors, causal=True)


@pytest.mark.parametrize("change", [
    lambda t: t[:, :3], lambda t: t.transpose(1, 2).contiguous().transpose(1, 2), lambda t: t[..., ::2],
    lambda t: torch.cat([t, t], 1), lambda t: torch.nn.Parameter(t), lambda t: t.clone().requires_grad_()],
    ids=["fewer keys", "other strides", "sparse rows", "more keys", "a parameter", "a gradient"])
@pytest.mark.parametrize("which", range(3))
def test_a_tensor_that_differs(device, change, which):
    tensors = qkv(device)
    settle(tensors)
    changed = list(tensors)
    for at in ((0, 1, 2) if change(tensors[0]).shape[-1] != 32 else (1, 2) if which else (0,)):
        changed[at] = change(tensors[at])
    o = mica.attention(*changed)
    close(o, changed)
    assert o.requires_grad == any(t.requires_grad for t in changed)


def test_addresses_that_are_not_aligned(device):
    call = settle(qkv(device))
    sizes = [t.numel() for t in qkv()]
    tensors = [torch.randn(size + 1, device=device)[1:].view(2, 5, 4, 32) for size in sizes]
    assert call.is_same(*tensors) == _recent._guard_is_right() and tensors[0].data_ptr() % 16
    close(mica.attention(*tensors), tensors)


def test_other_types_and_autocast(device):
    tensors = qkv(device)
    settle(tensors)
    assert mica.attention(*(t.bfloat16() for t in tensors)).dtype == torch.bfloat16
    with torch.autocast(device, dtype=torch.bfloat16):
        for _ in range(4):
            assert mica.attention(*tensors).dtype == torch.bfloat16
    assert mica.attention(*tensors).dtype == torch.float32


def test_grad_mode_and_inference_mode(device):
    leaves = [t.requires_grad_() for t in qkv(device)]
    settle(leaves)
    assert mica.attention(*leaves).requires_grad
    with torch.no_grad():
        for _ in range(3):
            assert not mica.attention(*leaves).requires_grad
    with torch.inference_mode():
        for _ in range(3):
            assert mica.attention(*leaves).is_inference()
    got = torch.autograd.grad(mica.attention(*leaves).sin().sum(), leaves)
    want = torch.autograd.grad(reference.attention(*leaves)[0].sin().sum(), leaves)
    for one, other in zip(got, want):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_a_gradient_of_one_alone_after_all_three(device):
    leaves = [t.requires_grad_() for t in qkv(device)]
    settle(leaves)
    q, k, v = (t.detach() for t in leaves)
    mica.attention(q, k.requires_grad_(), v).sum().backward()
    assert q.grad is None and k.grad is not None and v.grad is None


def test_dispatch_modes_and_transforms():
    from mica import _torch_ops
    if not _torch_ops.AVAILABLE:
        pytest.skip("tracing wants PyTorch 2.4 or later")
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen.append(str(function))
            return function(*args, **(kwargs or {}))

    tensors = qkv()
    settle(tensors)
    with Names() as names:
        mica.attention(*tensors)
    assert "mica.attention.default" in names.seen


def test_a_mode_within_itself_does_not_bar_the_short_way(monkeypatch):
    """PyTorch 2.4 goes on saying that there is a mode, as after every torch.compile."""
    from mica import _torch_face
    from torch._subclasses.fake_tensor import FakeTensorMode
    mode = FakeTensorMode()
    with mode, mode:
        pass
    tensors = qkv()
    settle(tensors)
    looked_up = []
    plain_call = _torch_face._plain_call
    monkeypatch.setattr(_torch_face, "_plain_call", lambda *given: looked_up.append(1) or plain_call(*given))
    mica.attention(*tensors)
    assert bool(looked_up) != _recent._guard_is_right()


def grown(tensors, keys):
    """q as it was, and so many keys."""
    q, k, v = tensors
    return q, *(torch.randn(2, keys, *t.shape[2:], device=q.device, dtype=q.dtype).requires_grad_(t.requires_grad) for t in (k, v))


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_a_cache_that_grows_skips_the_questions(device, monkeypatch, needs_gradient):
    from mica import _torch_face
    tensors = [t.requires_grad_(needs_gradient) for t in qkv(device, rows=2)]
    settle(tensors, causal=True)
    looked_up = []
    plain_call = _torch_face._plain_call
    monkeypatch.setattr(_torch_face, "_plain_call", lambda *given: looked_up.append(1) or plain_call(*given))
    for keys in (7, 8, 9, 8, 3):
        for _ in range(3):
            tensors = grown(tensors, keys)
            o = mica.attention(*tensors, causal=True)
            close(o, tensors, causal=True)
            assert o.requires_grad == needs_gradient
            (call,) = _recent.recent_calls.values()
            assert call.is_same(*tensors) == _recent._guard_is_right()  # the shapes before came again: so will these
    assert bool(looked_up) != _recent._guard_is_right()
    if needs_gradient:
        got = torch.autograd.grad(mica.attention(*tensors, causal=True).sin().sum(), tensors)
        want = torch.autograd.grad(reference.attention(*tensors, causal=True)[0].sin().sum(), tensors)
        for one, other in zip(got, want):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_shapes_that_never_come_again_get_no_guard():
    tensors = qkv()
    settle(tensors)
    mica.attention(*grown(tensors, 6))  # taken to come again, as the shapes before did
    for keys in range(7, 12):
        mica.attention(*grown(tensors, keys))
        (call,) = _recent.recent_calls.values()
        assert call.guards_made == 0


def test_keys_that_grow_and_differ_otherwise(device):
    q, k, v = qkv(device)
    settle((q, k, v))
    longer = torch.randn(2, 9, 4, 32, device=device)
    shifted = torch.randn(longer.numel() + 1, device=device)[1:].view(2, 9, 4, 32)
    sparse = torch.randn(2, 9, 4, 64, device=device)[..., ::2]
    swapped = torch.randn(2, 4, 9, 32, device=device).transpose(1, 2)
    wider = torch.randn(2, 9, 4, 16, device=device)
    for keys, values in ((longer, shifted), (shifted, longer), (sparse, longer), (longer, sparse), (swapped, longer),
                         (longer, swapped), (longer, wider), (longer[:, :, :2], longer[:, :, 2:]), (longer[:, :0], longer[:, :0]),
                         (longer[:1].expand(2, 9, 4, 32), longer)):
        for _ in range(2):
            close(mica.attention(q, keys, values), (q, keys, values))
        mica.attention(q, k, v)
    with pytest.raises(mica.InvalidArgument, match="want"):
        mica.attention(q, longer, longer[:, :8].clone())
    close(mica.attention(q[:, :2], longer, swapped), (q[:, :2], longer, swapped))


def packed(device, lengths, rows=1, **kinds):
    """q, k, v, cu_seqlens_q and cu_seqlens_k of sequences with so many rows each and these numbers of keys."""
    q, k, v = (torch.randn(count, 4, 32, device=device, **kinds) for count in (rows * len(lengths), sum(lengths), sum(lengths)))
    cu = [torch.tensor([0, *each], device=device).cumsum(0).to(torch.int32) for each in ([rows] * len(lengths), lengths)]
    return q, k, v, *cu


def one_by_one(tensors, **options):
    q, k, v, cu_q, cu_k = tensors
    q, k, v = (t.tensor_split(cu[1:-1].tolist()) for t, cu in ((q, cu_q), (k, cu_k), (v, cu_k)))
    return torch.cat([reference.attention(*(t[None] for t in one), **options)[0][0] for one in zip(q, k, v)])


def test_packed_sequences_that_grow_skip_the_questions(device, monkeypatch):
    from mica import _torch_face
    questions = []
    lengths_of = _torch_face.lengths_of
    monkeypatch.setattr(_torch_face, "lengths_of", lambda *given: questions.append(1) or lengths_of(*given))
    for step, lengths in enumerate([[5, 9], [6, 10], [7, 11], [6, 10], [0, 12], [3, 3, 3], [4, 4, 4]]):
        for layer in range(3):
            tensors = packed(device, lengths)
            questions.clear()
            o = mica.attention_varlen(*tensors, max_seqlen_q=1, max_seqlen_k=max(lengths), causal=True)
            torch.testing.assert_close(o.double(), one_by_one(tensors, causal=True), rtol=1e-4, atol=1e-4)
            if _recent._guard_is_right() and (step in (1, 2, 3) or step and layer == 2):
                assert not questions or max(lengths) in (9, 12)  # a longest length beyond a power of two is another call


def test_packed_sequences_that_differ(device):
    def check(tensors, **options):
        o = mica.attention_varlen(*tensors, max_seqlen_q=2, max_seqlen_k=16, **options)
        torch.testing.assert_close(o.double(), one_by_one(tensors, **options), rtol=1e-4, atol=1e-4)
        return o

    settled = packed(device, [5, 9], 2)
    for _ in range(3):
        check(settled)
    q, k, v, cu_q, cu_k = settled
    wide = torch.randn(14, 4, 64, device=device)
    check((q, wide[..., ::2], v, cu_q, cu_k))
    check((q, k, torch.randn(14 * 128 + 1, device=device)[1:].view(14, 4, 32), cu_q, cu_k))
    check((q, k, v, cu_q.long(), cu_k))
    check((q, k, v, torch.stack([cu_q, cu_q], 1)[:, 0].contiguous(), cu_k))
    check((k, k, v, cu_k, cu_k), causal=True)
    check(packed(device, [4, 4, 6], 2))
    leaf = q.clone().requires_grad_()
    assert check((leaf, k, v, cu_q, cu_k)).requires_grad and not check(settled).requires_grad
    with torch.no_grad():
        assert not check((leaf, k, v, cu_q, cu_k)).requires_grad
    with torch.autocast(device, dtype=torch.bfloat16):
        assert mica.attention_varlen(*settled, max_seqlen_q=2, max_seqlen_k=16).dtype == torch.bfloat16
    unused = torch.cat([q, q])  # rows of no sequence
    for _ in range(3):
        assert not mica.attention_varlen(unused, k, v, cu_q, cu_k, max_seqlen_q=2, max_seqlen_k=16)[4:].any()
    with pytest.raises(mica.InvalidArgument):
        mica.attention_varlen(q, k, v, cu_q, cu_k[:2], max_seqlen_q=2, max_seqlen_k=16)
    check(settled)


def test_options_and_window_are_part_of_it(device):
    tensors = qkv(device, rows=9)
    settle(tensors, window=(3, 0))
    for options in ({}, {"window": (2, 0)}, {"window": (3, 0), "chunk": 2}, {"causal": "top-left"}, {"scale": 0.5}, {"softcap": 1.0}):
        close(mica.attention(*tensors, **options), tensors, **options)
    left = torch.tensor(3)
    close(mica.attention(*tensors, window=(left, 0)), tensors, window=(3, 0))
    left.fill_(1)
    close(mica.attention(*tensors, window=(left, 0)), tensors, window=(1, 0))


def test_the_same_tensor_thrice_and_foreign_arrays():
    q = torch.randn(1, 4, 2, 32)
    for _ in range(4):
        close(mica.attention(q, q, q), (q, q, q))
    (call,) = _recent.recent_calls.values()
    assert call.guards_made == 0
    numpy = pytest.importorskip("numpy", reason="NumPy is not installed")
    settled = [torch.randn(1, 4, 2, 32) for _ in range(3)]
    for _ in range(3):
        mica.attention(*settled)
    k = numpy.random.default_rng(0).standard_normal((1, 4, 2, 32), dtype=numpy.float32)
    close(mica.attention(q, k, settled[2]), (q, torch.from_numpy(k), settled[2]))


def test_guards_are_given_up_where_calls_alternate():
    plain, leaves = qkv(), [t.requires_grad_() for t in qkv()]
    mixed = [plain[0], plain[1], leaves[2].detach()], [plain[0], plain[1], torch.nn.Parameter(leaves[2].detach(), False)]
    for _ in range(_recent.MOST_GUARDS):
        for tensors in mixed:
            mica.attention(*tensors)
    (call,) = _recent.recent_calls.values()
    assert call.guards_made == (_recent.MOST_GUARDS if _recent._guard_is_right() else 0)


def test_it_keeps_no_tensor_and_is_bounded():
    tensors = qkv()
    settle(tensors)
    seen = [weakref.ref(t) for t in tensors]
    del tensors
    gc.collect()
    assert not any(ref() is not None for ref in seen)
    tensors = qkv()
    for n in range(_recent.KEPT + 5):
        mica.attention(*tensors, scale=1 + n)
    assert len(_recent.recent_calls) <= _recent.KEPT


def test_new_threads_make_new_plans():
    tensors, threads = qkv(), mica.get_num_threads()
    settle(tensors)
    try:
        mica.set_num_threads(1)
        assert not _recent.recent_calls
    finally:
        mica.set_num_threads(threads)
    close(mica.attention(*tensors), tensors)
