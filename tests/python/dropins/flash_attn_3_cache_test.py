# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3's flash_attn_with_kvcache in every combination of its arguments, sequence by sequence against the
formula; torch.ops.flash_attn_3."""

import random

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
fa3 = pytest.importorskip("flash_attn_interface", reason="the extra flash-attn-3 is not installed")

import reference  # noqa: E402

HEADS, HEADS_K, DIM, CAPACITY, PAGE = 4, 2, 16, 24, 4


def close(got, want, tolerance=2e-5):
    torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=tolerance)


def turn(row, angle, interleaved):
    """(heads, dim) turned by the angles of one position."""
    half = angle.shape[0]
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    made = row.clone().double()
    c, s, x, y = angle.double().cos(), angle.double().sin(), made[:, first].clone(), made[:, second].clone()
    made[:, first], made[:, second] = x * c - y * s, x * s + y * c
    return made


def cumulative(lengths, device):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=device)


@pytest.mark.parametrize("draw", range(40))
def test_every_combination(device, draw):
    rng = random.Random(draw)
    torch.manual_seed(draw)
    packed_q, new, packed_new, leftpad, paged, rotary, own_positions, with_qv, causal, side_by_side = (
        rng.random() < 0.5 for _ in range(10))
    by_index = rng.random() < 0.4
    chunk = rng.choice([0, 5, 9])
    interleaved = rng.random() < 0.5
    window = rng.choice([(-1, -1), (-1, -1), (6, 2)])
    dim_v = 32 if with_qv else DIM
    batch, slots = 3, 5
    rows = [rng.randint(0, 4) for _ in range(batch)] if packed_q else [3] * batch
    counts = [rng.randint(0, 4) for _ in range(batch)] if packed_new else [2] * batch
    used = [rng.randint(1, CAPACITY - 5) for _ in range(batch)]
    pads = [rng.randint(0, n - 1) for n in used] if leftpad else [0] * batch
    make = lambda *shape: torch.randn(*shape, device=device)  # noqa: E731
    vector = lambda values: torch.tensor(values, dtype=torch.int32, device=device)  # noqa: E731

    # Caches as (slots, capacity, ...), laid out as slots or as pages; K and V apart or side by side.
    both = make(slots, CAPACITY, HEADS_K, DIM + dim_v)
    dense = both[..., :DIM], both[..., DIM:]
    place = rng.sample(range(slots), batch) if by_index else list(range(batch))
    pages = CAPACITY // PAGE
    order = torch.randperm(slots * pages)
    stored = both.reshape(slots * pages, PAGE, HEADS_K, -1)[order] if paged else both.clone()
    table = order.argsort().reshape(slots, pages).to(device=device, dtype=torch.int32) if paged else None
    caches = stored[..., :DIM], stored[..., DIM:]
    if not side_by_side:
        caches = tuple(t.contiguous() for t in caches)
    if not by_index:
        table, caches = (table[:batch].contiguous(), caches) if paged else (None, tuple(t[:batch] for t in caches))

    q = [make(n, HEADS, DIM) for n in rows]
    qv = [make(n, HEADS, dim_v) for n in rows] if with_qv else None
    k = [make(n, HEADS_K, DIM) for n in counts]
    v = [make(n, HEADS_K, dim_v) for n in counts]
    angles = torch.rand(64, DIM // 2 if rng.random() < 0.5 else DIM // 4, device=device)
    begin = [n // 2 for n in used] if own_positions else used
    arguments = dict(cache_seqlens=vector(used), causal=causal, window_size=window, attention_chunk=chunk,
                     num_splits=rng.choice([0, 1, 3]))
    gather = lambda parts, packed: torch.cat(parts) if packed else torch.stack(parts)  # noqa: E731
    if packed_q:
        arguments.update(cu_seqlens_q=cumulative(rows, device), max_seqlen_q=max(rows))
    if with_qv:
        arguments.update(qv=gather(qv, packed_q))
    if new:
        arguments.update(k=gather(k, packed_new), v=gather(v, packed_new))
        if packed_new:
            arguments.update(cu_seqlens_k_new=cumulative(counts, device))
        if rotary:
            arguments.update(rotary_cos=angles.cos(), rotary_sin=angles.sin(), rotary_interleaved=interleaved)
            if own_positions:
                arguments.update(rotary_seqlens=vector(begin))
    if leftpad:
        arguments.update(cache_leftpad=vector(pads))
    if paged:
        arguments.update(page_table=table)
    if by_index:
        arguments.update(cache_batch_idx=vector(place))
    out, lse, *_ = fa3.flash_attn_with_kvcache(gather(q, packed_q), *caches, return_softmax_lse=True, **arguments)

    along = causal or window != (-1, -1) or chunk > 0
    first = 0
    for b in range(batch):
        keys, values = (t[place[b]].double().clone() for t in dense)
        rows_of_q = q[b].double()
        end = used[b]
        if new:
            end += counts[b]
            for i in range(counts[b]):
                keys[used[b] + i] = turn(k[b][i], angles[begin[b] + i], interleaved) if rotary else k[b][i].double()
                values[used[b] + i] = v[b][i].double()
            if rotary:
                rows_of_q = torch.stack([turn(row, angles[begin[b] + (i if along else 0)], interleaved)
                                         for i, row in enumerate(q[b])] or [rows_of_q]).reshape(rows_of_q.shape)
            page_of = table[place[b] if by_index else b].long() if paged else None
            for cache, right in zip(caches, (keys, values)):
                now = cache[page_of].flatten(0, 1) if paged else cache[place[b]]
                close(now, right)
        seen_k, seen_v = keys[pads[b]:end], values[pads[b]:end]
        if with_qv:
            rows_of_q, seen_k = torch.cat((rows_of_q, qv[b].double()), -1), torch.cat((seen_k, seen_v), -1)
        want, want_lse = reference.attention(
            rows_of_q[None], seen_k[None], seen_v[None], causal=causal, chunk=chunk,
            window=tuple(None if side < 0 else side for side in window))
        got = out[first:first + rows[b]] if packed_q else out[b]
        close(got, want[0])
        close(lse[:, first:first + rows[b]] if packed_q else lse[b], want_lse[0])
        first += rows[b]


def test_a_latent_cache_is_not_copied(device, monkeypatch):
    from flash_attn_3 import _native
    cache = torch.randn(2, 9, 1, 48, device=device)
    keys, v_first = _native.joined_keys(cache[..., 32:], cache[..., :32])
    assert v_first and keys.data_ptr() == cache.data_ptr() and torch.equal(keys, cache)
    keys, v_first = _native.joined_keys(cache[..., :16], cache[..., 16:])
    assert not v_first and keys.data_ptr() == cache.data_ptr() and torch.equal(keys, cache)
    keys, _ = _native.joined_keys(cache[..., :16].contiguous(), cache[..., 16:])
    assert torch.equal(keys, cache) and keys.data_ptr() != cache.data_ptr()


def test_the_operators(device):
    q, k, v = (torch.randn(2, n, h, 32, device=device) for n, h in ((5, 4), (9, 2), (9, 2)))
    out, lse, *_ = torch.ops.flash_attn_3.fwd(q, k, v, is_causal=True, attention_chunk=4)
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    want, want_lse = reference.attention(*leaves, causal=True, chunk=4)
    close(out, want)
    close(lse, want_lse)
    out, lse, *_ = torch.ops.flash_attn_3.fwd(q, k, v, is_causal=True)
    want, _ = reference.attention(*leaves, causal=True)
    d_out = torch.randn_like(out)
    grads = [torch.empty_like(t) for t in (q, k, v)]
    sums, *_ = torch.ops.flash_attn_3.bwd(d_out, q, k, v, out, lse, *grads, is_causal=True, deterministic=True)
    for got, right in zip(grads, torch.autograd.grad(want, leaves, d_out.double())):
        close(got, right, 1e-4)
    close(sums[:, :, :5], (d_out * out).sum(-1).transpose(1, 2))
    used = torch.tensor([3, 9], dtype=torch.int32, device=device)
    assert torch.ops.flash_attn_3.get_scheduler_metadata(2, 5, 9, 4, 2, 32, 32, q.dtype, used).numel() == 0
    parts, lses = torch.stack((out, torch.zeros_like(out))), torch.stack((lse, torch.full_like(lse, -float("inf"))))
    joined, _ = torch.ops.flash_attn_3.fwd_combine(parts, lses.transpose(-1, -2))
    close(joined, out)


@pytest.mark.parametrize("chunk", [0, 4])
def test_deterministic_with_lengths_in_use(device, chunk):
    q, k, v = (torch.randn(2, 8, 2, 32, device=device, requires_grad=True) for _ in range(3))
    cu = torch.tensor([0, 8, 16], dtype=torch.int32, device=device)
    used = torch.tensor([8, 5], dtype=torch.int32, device=device)
    out = fa3.flash_attn_varlen_func(*(t.flatten(0, 1) for t in (q, k, v)), cu, cu, 8, 8, None, used, causal=True,
                                     attention_chunk=chunk, deterministic=True)
    leaves = [t[1:].detach().double().requires_grad_() for t in (q, k, v)]
    want, _ = reference.attention(leaves[0], leaves[1][:, :5], leaves[2][:, :5], causal=True, chunk=chunk)
    close(out[8:], want[0])
    d_out = torch.randn(16, 2, 32, device=device)
    for got, right in zip(torch.autograd.grad(out, (q, k, v), d_out),
                          torch.autograd.grad(want, leaves, d_out[None, 8:].double())):
        close(got[1:], right, 1e-4)


def test_what_is_missing_is_named(device):
    q, cache = torch.randn(1, 2, 2, 32, device=device), torch.randn(1, 9, 2, 32, device=device)
    cu = torch.tensor([0, 2], dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match=r"seqused_k \(cache_seqlens\) is None, want the keys in use"):
        fa3.flash_attn_with_kvcache(q, cache, cache.clone(), q[0], q[0], cu_seqlens_k_new=cu)
    with pytest.raises(ValueError, match="rotary_cos is given, want k with it"):
        fa3.flash_attn_with_kvcache(q[0], cache, cache, cu_seqlens_q=cu, rotary_cos=cache[0, :, 0], rotary_sin=cache[0, :, 0],
                                    cache_seqlens=3)


INT = torch.int32
# What is wrong with new keys that PyTorch writes -> (the arguments that differ, what the message must have).
WRONG_NEW = {
    "heads": (dict(k=torch.ones(6, 1, 16), v=torch.ones(6, 1, 16)), "k.shape"),
    "dim": (dict(v=torch.ones(6, 2, 1)), "v.shape"),
    "rows": (dict(v=torch.ones(5, 2, 16)), "v.shape"),
    "type": (dict(k=torch.ones(6, 2, 16).half()), "k is torch.float16"),
    "no v": (dict(v=None), "v is None"),
    "sequences": (dict(cu_seqlens_k_new=torch.tensor([0, 6], dtype=INT)), "cu_seqlens_k_new.shape"),
    "lengths": (dict(cache_seqlens=torch.tensor([2], dtype=INT)), "cache_seqlens.shape"),
    "no sin": (dict(rotary_sin=None), "rotary_sin is None"),
    "sin": (dict(rotary_sin=torch.ones(24, 1)), "rotary_sin.shape"),
    "wide": (dict(rotary_cos=torch.ones(24, 12), rotary_sin=torch.ones(24, 12)), "rotary_cos.shape"),
    "positions": (dict(rotary_seqlens=torch.tensor([1], dtype=INT)), "rotary_seqlens.shape"),
}
# The same of what lengths hold, which is looked at on the CPU.
WRONG_NUMBERS = {
    "too many": (dict(cache_seqlens=torch.tensor([2, CAPACITY - 3], dtype=INT)), r"cache_seqlens\[1\] is 21, want 0 to 20"),
    "negative": (dict(cache_seqlens=torch.tensor([-1, 2], dtype=INT)), r"cache_seqlens\[0\] is -1"),
    "more than rows": (dict(cu_seqlens_k_new=torch.tensor([0, 2, 8], dtype=INT)), "cu_seqlens_k_new is"),
    "decreasing": (dict(cu_seqlens_k_new=torch.tensor([0, 4, 2], dtype=INT)), "cu_seqlens_k_new is"),
    "short table": (dict(rotary_seqlens=torch.tensor([0, CAPACITY - 3], dtype=INT)), r"rotary_cos.shape\[0\] is 24, want 25"),
    "before it": (dict(rotary_seqlens=torch.tensor([-1, 0], dtype=INT)), r"rotary_seqlens\[0\] is -1"),
    "slot": (dict(cache_batch_idx=torch.tensor([0, -1], dtype=INT)), r"cache_batch_idx\[1\] is -1, want 0 to 1"),
    "page": (dict(page_table=torch.tensor([[0], [-1]], dtype=INT)), r"page_table\[1\]\[0\] is -1, want 0 to 1"),
    "wrapped page": (dict(page_table=torch.tensor([[2**32], [1]])), r"page_table\[0\]\[0\] is 2147483647, want 0 to 1"),
}


@pytest.mark.parametrize("wrong", [*WRONG_NEW, *WRONG_NUMBERS])
def test_new_keys_that_do_not_fit_are_refused_and_nothing_is_written(device, wrong):
    if wrong in WRONG_NUMBERS and device != "cpu":
        pytest.skip("a GPU's lengths are not looked at, which would wait for it")
    differs, message = {**WRONG_NEW, **WRONG_NUMBERS}[wrong]
    given = dict(k=torch.ones(6, 2, 16), v=torch.ones(6, 2, 16), cu_seqlens_k_new=torch.tensor([0, 2, 6], dtype=INT),
                 cache_seqlens=torch.tensor([2, 3], dtype=INT), rotary_cos=torch.ones(24, 8), rotary_sin=torch.ones(24, 8),
                 rotary_seqlens=torch.tensor([1, 3], dtype=INT))
    given = {name: None if x is None else x.to(device) for name, x in {**given, **differs}.items()}
    caches = [torch.zeros(2, CAPACITY, HEADS_K, DIM, device=device) for _ in range(2)]
    with pytest.raises(ValueError, match=message):
        fa3.flash_attn_with_kvcache(torch.ones(2, 3, HEADS, DIM, device=device), *caches, **given)
    assert not any(cache.any() for cache in caches)


def test_packed_new_keys_may_begin_behind_others(device):
    q, k, v = (torch.randn(*shape, device=device) for shape in ((1, 1, HEADS, DIM), (4, HEADS_K, DIM), (4, HEADS_K, DIM)))
    caches = [torch.randn(1, CAPACITY, HEADS_K, DIM, device=device) for _ in range(2)]
    want = [torch.cat((cache[:, :5], x[None, 2:], cache[:, 7:]), 1) for cache, x in zip(caches, (k, v))]
    vector = lambda *values: torch.tensor(values, dtype=INT, device=device)  # noqa: E731
    out = fa3.flash_attn_with_kvcache(q, *caches, k=k, v=v, cu_seqlens_k_new=vector(2, 4), cache_seqlens=vector(5))
    assert all(torch.equal(cache, wanted) for cache, wanted in zip(caches, want))
    close(out, reference.attention(q, *(x[:, :7] for x in want))[0])


@pytest.mark.parametrize("begin", [0, 2])
def test_packed_new_keys_of_which_none_is_of_a_sequence(device, begin):
    q, new = torch.randn(2, 1, HEADS, DIM, device=device), torch.randn(3, HEADS_K, DIM, device=device)
    caches = [torch.randn(2, CAPACITY, HEADS_K, DIM, device=device) for _ in range(2)]
    want = [cache.clone() for cache in caches]
    vector = lambda *values: torch.tensor(values, dtype=INT, device=device)  # noqa: E731
    out = fa3.flash_attn_with_kvcache(q, *caches, k=new, v=new, cu_seqlens_k_new=vector(*[begin] * 3), cache_seqlens=vector(5, 7))
    assert all(torch.equal(cache, wanted) for cache, wanted in zip(caches, want))
    assert torch.equal(out, fa3.flash_attn_with_kvcache(q, *want, cache_seqlens=vector(5, 7)))


def test_a_cache_that_overlaps_itself_is_not_written(device):
    cache = torch.zeros(1, CAPACITY, HEADS_K, DIM, device=device).expand(2, -1, -1, -1)
    new = torch.ones(4, HEADS_K, DIM, device=device)
    vector = lambda *values: torch.tensor(values, dtype=INT, device=device)  # noqa: E731
    with pytest.raises(ValueError, match="k_cache.stride"):
        fa3.flash_attn_with_kvcache(torch.ones(2, 3, HEADS, DIM, device=device), cache, cache, k=new, v=new,
                                    cu_seqlens_k_new=vector(0, 2, 4), cache_seqlens=vector(2, 3))
    assert not cache.any()
