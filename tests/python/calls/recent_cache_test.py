# SPDX-License-Identifier: Apache-2.0
"""Calls on a cache that repeat another one take the short way, too, with the same results, refusals and side effects."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import flash_attn  # noqa: E402

import mica  # noqa: E402
from mica import _recent, _torch_face  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    _recent.recent_calls.clear()


@pytest.fixture
def questions(monkeypatch):
    """Notes every call that does not take the short way."""
    asked = []
    numbers = _torch_face.numbers
    monkeypatch.setattr(_torch_face, "numbers", lambda *given: asked.append(1) or numbers(*given))
    return asked


def cache(device, new=0, dtype=torch.float32, rows=2):
    """q, both caches, new keys and values, lengths."""
    q = torch.randn(2, rows, 4, 32, device=device, dtype=dtype)
    k, v = (torch.randn(2, 12, 2, 32, device=device, dtype=dtype) for _ in range(2))
    k_new, v_new = (torch.randn(2, new, 2, 32, device=device, dtype=dtype) if new else None for _ in range(2))
    return q, k, v, k_new, v_new, torch.tensor([5, 9], dtype=torch.int32, device=device)


def by_mica(q, k, v, k_new, v_new, lengths, **options):
    return mica.attention_with_cache(q, k, v, k=k_new, v=v_new, cache_seqlens=lengths, **options)


def by_drop_in(q, k, v, k_new, v_new, lengths, **options):
    return flash_attn.flash_attn_with_kvcache(q, k, v, k_new, v_new, cache_seqlens=lengths, **options)


def slowly(call, tensors, **options):
    """What the call gives that repeats no other, and the caches after it."""
    kept = dict(_recent.recent_calls)
    _recent.recent_calls.clear()
    tensors = [None if t is None else t.clone() for t in tensors]
    made = call(*tensors, **options)
    _recent.recent_calls.clear()
    _recent.recent_calls.update(kept)
    return made, tensors[1:3]


def same(got, want):
    for one, other in zip(got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,)):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("call", [by_mica, by_drop_in])
@pytest.mark.parametrize("new", [0, 2])
@pytest.mark.parametrize("has_lse", [False, True])
def test_the_short_way_does_the_same(device, questions, call, new, has_lse):
    options = {"causal": True, "return_lse" if call is by_mica else "return_softmax_lse": has_lse}
    for step in range(5):
        tensors = cache(device, new)
        tensors[5].add_(torch.tensor([step, -step], device=device))
        want, caches = slowly(call, tensors, **options)
        versions = [t._version for t in tensors[1:3]]
        questions.clear()
        same(call(*tensors, **options), want)
        same(tuple(tensors[1:3]), tuple(caches))
        assert all((t._version > version) == (new > 0) for t, version in zip(tensors[1:3], versions))
        assert not questions or step < 2 or not _recent._guard_is_right()
    assert len(_recent.recent_calls) == 1


@pytest.mark.parametrize("call", [by_mica, by_drop_in])
def test_what_differs_does_not_take_it(device, call):
    settled = cache(device)
    for _ in range(3):
        call(*settled)
    q, k, v, _, _, lengths = settled
    paged = [t.reshape(6, 4, 2, 32) for t in (k, v)]
    table = torch.arange(6, dtype=torch.int32, device=device).view(2, 3)
    order = torch.tensor([1, 0], dtype=torch.int32, device=device)
    slopes = torch.rand(4, device=device)
    wide = torch.randn(2, 12, 2, 64, device=device)
    cos, sin = (torch.rand(16, 8, device=device) for _ in range(2))
    for tensors, options in (
            (cache(device, 1), {}), (cache(device, rows=1), {}), (cache(device, dtype=torch.bfloat16), {}),
            ((q, k, v, None, None, None), {}), ((q, k, v, None, None, lengths.long()), {}),
            ((q, k, v, None, None, torch.stack([lengths, lengths], 1)[:, 0]), {}),
            ((q, *paged, None, None, lengths), {"block_table": table}), (settled, {"cache_batch_idx": order}),
            (settled, {"cache_leftpad": order}), (settled, {"causal": True}), (settled, {"num_splits": 2}),
            ((q, wide[..., :32], v, None, None, lengths), {}), ((q, k, k, None, None, lengths), {}),
            (cache(device, 1), {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": True}),
            (cache(device, 1), {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": False}),
            (settled, {"softcap": 1.5}), (settled, {"alibi" if call is by_mica else "alibi_slopes": slopes}),
            (settled, {"window": (3, 0)} if call is by_mica else {"window_size": (3, 0)}),
            (settled, {"scale" if call is by_mica else "softmax_scale": 0.3})):
        want, _ = slowly(call, tensors, **options)
        for _ in range(3):
            same(call(*(None if t is None else t.clone() for t in tensors), **options), want)
        same(call(*settled), slowly(call, settled)[0])


@pytest.mark.parametrize("call", [by_mica, by_drop_in])
def test_one_length_for_all(device, call):
    q, k, v, _, _, _ = cache(device)
    for length in (7, 7, 7, 5, 12):
        lengths = torch.full((2,), length, dtype=torch.int32, device=device)
        same(call(q, k, v, None, None, length), slowly(call, (q, k, v, None, None, lengths))[0])


@pytest.mark.parametrize("call", [by_mica, by_drop_in])
def test_refusals_name_the_same(call):
    tensors = cache("cpu")
    for _ in range(3):
        call(*tensors)
    tensors[5][1] = 99
    with pytest.raises(mica.InvalidArgument, match="cache_seqlens") as short:
        call(*tensors)
    _recent.recent_calls.clear()
    with pytest.raises(mica.InvalidArgument) as long:
        call(*tensors)
    assert str(short.value) == str(long.value)


def test_gradients_and_autocast(device):
    tensors = cache(device)
    for _ in range(3):
        by_mica(*tensors)
        by_drop_in(*tensors)
    leaf = tensors[0].clone().requires_grad_()
    with pytest.raises(mica.Unsupported):
        by_mica(leaf, *tensors[1:])
    for _ in range(3):
        assert not by_drop_in(leaf, *tensors[1:]).requires_grad
        same(by_drop_in(leaf, *tensors[1:]), by_drop_in(*tensors))
    halves = cache(device, dtype=torch.bfloat16)
    for _ in range(3):
        by_mica(*halves)
    with torch.autocast(device, dtype=torch.bfloat16):
        for _ in range(3):
            assert by_mica(tensors[0], *halves[1:]).dtype == torch.bfloat16
            assert by_mica(*halves).dtype == torch.bfloat16
    with torch.inference_mode():
        for _ in range(3):
            assert by_mica(*tensors).is_inference()
