# SPDX-License-Identifier: Apache-2.0
"""The drop-in's flash_attn_with_kvcache and paged varlen: in place, and against the formula on a gathered cache."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("flash_attn", reason="the drop-in flash_attn is not installed")

import reference  # noqa: E402

from flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache  # noqa: E402
from flash_attn.layers.rotary import apply_rotary_emb  # noqa: E402

BATCH, HEADS, HEADS_K, DIM, SLOTS = 3, 4, 2, 32, 40


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def ints(values, device):
    return torch.tensor(values, dtype=torch.int32, device=device)


def make_pages(cache, page_size):
    """(pages, page_size, heads, dim) in a shuffled order, and the block table that undoes it."""
    batch, slots = cache.shape[:2]
    blocks = -(-slots // page_size)
    padded = torch.nn.functional.pad(cache, (0, 0, 0, 0, 0, blocks * page_size - slots))
    order = torch.randperm(batch * blocks, device=cache.device)
    pages = torch.empty(batch * blocks, page_size, *cache.shape[2:], device=cache.device)
    pages[order] = padded.reshape(batch * blocks, page_size, *cache.shape[2:])
    return pages, order.reshape(batch, blocks).int()


def gather(pages, table, slots):
    return pages[table.long()].flatten(1, 2)[:, :slots]


@pytest.mark.parametrize("causal, window", [(True, (-1, -1)), (False, (-1, -1)), (False, (6, 2))])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("layout", ["dense", "pages of 16", "other slots", "left padding"])
def test_append_with_rotary(device, causal, window, interleaved, layout):
    rows = 3
    q = torch.randn(BATCH, rows, HEADS, DIM, device=device)
    k, v = (torch.randn(BATCH, rows, HEADS_K, DIM, device=device) for _ in range(2))
    slots = BATCH + 2 if layout == "other slots" else BATCH
    k_cache, v_cache = (torch.randn(slots, SLOTS, HEADS_K, DIM, device=device) for _ in range(2))
    seqlens = ints([0, 17, SLOTS - rows], device)
    angles = torch.rand(48, 8, device=device) * 6  # as long as the pages, which are whole
    cos, sin = angles.cos(), angles.sin()
    where, options, pads = torch.arange(BATCH), {}, [0] * BATCH
    if layout == "other slots":
        where = torch.tensor([4, 0, 2])
        options["cache_batch_idx"] = where.int().to(device)
    if layout == "left padding":
        pads = [0, 5, 30]
        options["cache_leftpad"] = ints(pads, device)
    k_want, v_want = k_cache.clone(), v_cache.clone()
    k_turned = apply_rotary_emb(k, cos, sin, interleaved, seqlen_offsets=seqlens)
    for b, (slot, length) in enumerate(zip(where.tolist(), seqlens.tolist())):
        k_want[slot, length : length + rows], v_want[slot, length : length + rows] = k_turned[b], v[b]
    if causal or window != (-1, -1):
        q_turned = apply_rotary_emb(q, cos, sin, interleaved, seqlen_offsets=seqlens)
    else:
        flat = apply_rotary_emb(q.flatten(1, 2).unsqueeze(1), cos, sin, interleaved, seqlen_offsets=seqlens)
        q_turned = flat.reshape(q.shape)
    if layout == "pages of 16":
        k_given, table = make_pages(k_cache, 16)
        v_given = torch.zeros_like(k_given)
        whole = torch.nn.functional.pad(v_cache, (0, 0, 0, 0, 0, 8))
        v_given[table.flatten().long()] = whole.reshape(-1, 16, HEADS_K, DIM)
        options["block_table"] = table
    else:
        k_given, v_given = k_cache, v_cache
    out, lse = flash_attn_with_kvcache(
        q, k_given, v_given, k, v, cos, sin, seqlens, causal=causal, window_size=window, rotary_interleaved=interleaved,
        return_softmax_lse=True, **options)
    if layout == "pages of 16":
        k_cache, v_cache = gather(k_given, table, SLOTS), gather(v_given, table, SLOTS)
    torch.testing.assert_close(k_cache, k_want, rtol=1e-5, atol=1e-5)
    assert torch.equal(v_cache, v_want)
    assert lse.shape == (BATCH, HEADS, rows)
    for b, (slot, length, pad) in enumerate(zip(where.tolist(), seqlens.tolist(), pads)):
        keys = slice(pad, length + rows)
        exact, exact_lse = reference.attention(
            q_turned[b : b + 1], k_want[slot : slot + 1, keys], v_want[slot : slot + 1, keys], causal=causal,
            window=tuple(None if side < 0 else side for side in window))
        torch.testing.assert_close(out[b].double(), exact[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(lse[b].double(), exact_lse[0], rtol=1e-4, atol=1e-4)


def test_lengths_as_int_tensor_or_none(device):
    q = torch.randn(BATCH, 2, HEADS, DIM, device=device)
    k_cache, v_cache = (torch.randn(BATCH, SLOTS, HEADS_K, DIM, device=device) for _ in range(2))
    whole = flash_attn_with_kvcache(q, k_cache, v_cache, causal=True)
    torch.testing.assert_close(whole, flash_attn_func(q, k_cache, v_cache, causal=True), rtol=1e-5, atol=1e-5)
    part = flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=9, causal=True)
    for lengths in (ints([9] * BATCH, device), torch.tensor([9] * BATCH, device=device)):
        assert torch.equal(flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=lengths, causal=True), part)
    want = flash_attn_func(q, k_cache[:, :9], v_cache[:, :9], causal=True)
    torch.testing.assert_close(part, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_splits", [0, 1, 3])
def test_splits_only_round_otherwise(device, num_splits):
    q = torch.randn(BATCH, 1, HEADS, DIM, device=device)
    k_cache, v_cache = (torch.randn(BATCH, 500, HEADS_K, DIM, device=device) for _ in range(2))
    lengths = ints([500, 1, 333], device)
    out = flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=lengths, num_splits=num_splits)
    for b, length in enumerate(lengths.tolist()):
        exact, _ = reference.attention(q[b : b + 1], k_cache[b : b + 1, :length], v_cache[b : b + 1, :length])
        torch.testing.assert_close(out[b].double(), exact[0], rtol=1e-5, atol=1e-5)


def test_an_odd_head_dimension_is_appended_without_a_copy_of_the_cache(device):
    q, k = torch.randn(1, 1, 2, 59, device=device), torch.randn(1, 1, 1, 59, device=device)
    k_cache, v_cache = torch.randn(1, 8, 1, 59, device=device), torch.randn(1, 8, 1, 59, device=device)
    address = k_cache.data_ptr()
    flash_attn_with_kvcache(q, k_cache, v_cache, k, k, cache_seqlens=4)
    assert k_cache.data_ptr() == address and torch.equal(k_cache[:, 4], k[:, 0]) and torch.equal(v_cache[:, 4], k[:, 0])


def test_a_cache_that_would_be_copied_is_refused(device):
    cache = torch.randn(1, 8, 1, 64, device=device)[..., ::2]
    with pytest.raises(ValueError, match=r"k_cache.stride\(-1\) is 2, want 1"):
        flash_attn_with_kvcache(torch.randn(1, 1, 1, 32, device=device), cache, cache)


@pytest.mark.parametrize("page_size", [1, 16, 256])
def test_varlen_over_pages(device, page_size):
    lengths_q, lengths_k = (3, 1, 7), (20, 9, 40)
    cache_k, cache_v = (torch.randn(BATCH, SLOTS, HEADS_K, DIM, device=device) for _ in range(2))
    pages_k, table = make_pages(cache_k, page_size)
    pages_v = torch.empty_like(pages_k)
    blocks = table.shape[1]
    pages_v[table.flatten().long()] = torch.nn.functional.pad(
        cache_v, (0, 0, 0, 0, 0, blocks * page_size - SLOTS)).reshape(-1, page_size, HEADS_K, DIM)
    q = torch.randn(sum(lengths_q), HEADS, DIM, device=device)
    cu_q, cu_k = (ints([0, *torch.tensor(n).cumsum(0).tolist()], device) for n in (lengths_q, lengths_k))
    out = flash_attn_varlen_func(q, pages_k, pages_v, cu_q, cu_k, 7, 40, causal=True, block_table=table)
    for b, (begin, rows, keys) in enumerate(zip(cu_q.tolist(), lengths_q, lengths_k)):
        exact, _ = reference.attention(
            q[None, begin : begin + rows], cache_k[b : b + 1, :keys], cache_v[b : b + 1, :keys], causal=True)
        torch.testing.assert_close(out[begin : begin + rows].double(), exact[0], rtol=1e-5, atol=1e-5)
