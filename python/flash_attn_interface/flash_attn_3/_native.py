# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3's forward and backward on Mica, with every argument of upstream's compiled functions.

Keys are dense, packed (cu_seqlens_k), slots of a cache or its pages. New keys that are packed too, or turned by positions
of their own, are written into the cache by PyTorch, ahead of the attention; the usual ones by the kernel. Nothing here
waits for the device.
"""
from typing import Any, Dict, List, Optional, Tuple

import torch
from flash_attn._native import dense_rows, hint, numbers_of, vector
from mica import _tensors, _torch_ops, _tracing
from mica._autograd import final
from torch import Tensor

from ._fp8 import E4M3, as_bytes, factors_of


def rows_of(x: Tensor, cu_seqlens: Optional[Tensor]) -> Tuple[Tensor, Tensor, Tensor]:
    """(rows (n, heads, dim), the sequence of each, its place there). Packed rows outside the sequences repeat the nearest
    row of one, so that writing them changes nothing."""
    if cu_seqlens is None:
        batch, count = x.shape[:2]
        index = torch.arange(batch * count, device=x.device)
        return x.flatten(0, 1), index // max(count, 1), index % max(count, 1)
    index = torch.arange(x.shape[0], device=x.device)
    index = torch.minimum(torch.maximum(index, cu_seqlens[0].long()), (cu_seqlens[-1].long() - 1).clamp_min(0))
    sequence = torch.searchsorted(cu_seqlens[1:].long(), index, right=True).clamp_max(cu_seqlens.shape[0] - 2)
    return x.index_select(0, index), sequence, index - cu_seqlens.long()[sequence]


def turned(x: Tensor, cu_seqlens: Optional[Tensor], cos: Tensor, sin: Tensor, begin: Tensor, interleaved: bool,
           along: bool) -> Tensor:
    """x, each row turned by the angles of its position: that of its sequence (begin), and its place there if along."""
    rows, sequence, place = rows_of(as_bytes(x), cu_seqlens)
    rows = rows.view(x.dtype)
    at = (begin.long()[sequence] + (place if along else 0)).clamp(0, cos.shape[0] - 1)
    c, s = (t[at].float().unsqueeze(1) for t in (cos, sin))
    width = 2 * cos.shape[1]
    pairs = rows[..., :width].float()
    first, second = (pairs[..., 0::2], pairs[..., 1::2]) if interleaved else pairs.chunk(2, dim=-1)
    both = (first * c - second * s, first * s + second * c)
    made = torch.stack(both, dim=-1).flatten(-2) if interleaved else torch.cat(both, dim=-1)
    return torch.cat((as_bytes(made.to(x.dtype)), as_bytes(rows)[..., width:]), dim=-1).reshape(x.shape).view(x.dtype)


def check_new(batch: int, caches: Tuple[Tensor, Tensor], new: Tuple[Optional[Tensor], Optional[Tensor]],
              cu_seqlens_new: Optional[Tensor], used: Tensor) -> None:
    """Of new keys that PyTorch writes, what the kernel asks of its own: PyTorch would repeat an axis that is 1."""
    for name, other, x in (("k", "v", new[0]), ("v", "k", new[1])):
        if x is None:
            raise ValueError(f"{name} is None, want it together with {other}")
    k, axes = new[0], 4 if cu_seqlens_new is None else 3
    if k.dim() != axes:
        raise ValueError(f"k.shape is {tuple(k.shape)}, want {axes} axes (3 with cu_seqlens_k_new, else 4)")
    rows = (batch, k.shape[1]) if cu_seqlens_new is None else (k.shape[0],)
    for name, cache, x in zip("kv", caches, new):
        if x.shape != (*rows, *cache.shape[2:]):
            raise ValueError(f"{name}.shape is {tuple(x.shape)}, want {(*rows, *cache.shape[2:])}")
        if x.dtype is not cache.dtype:
            raise ValueError(f"{name} is {x.dtype}, want {cache.dtype} (= {name}_cache) with these options")
        if any(stride == 0 and size > 1 for stride, size in zip(cache.stride(), cache.shape)):
            raise ValueError(f"{name}_cache.stride() is {cache.stride()}, want no 0: what is written may not overlap itself")
    for name, lengths, count in (("cache_seqlens", used, batch), ("cu_seqlens_k_new", cu_seqlens_new, batch + 1)):
        if lengths is not None and lengths.shape != (count,):
            raise ValueError(f"{name}.shape is {tuple(lengths.shape)}, want ({count},)")


def counts_of(k: Tensor, cu_seqlens_new: Optional[Tensor], used: Tensor, capacity: int) -> List[int]:
    """How many new keys each sequence has, all of which must fit into the cache. For the CPU, where looking waits for
    nothing."""
    counts = [k.shape[1]] * used.shape[0]
    if cu_seqlens_new is not None:
        ends = cu_seqlens_new.tolist()
        if ends != sorted(ends) or ends[0] < 0 or ends[-1] > k.shape[0]:
            raise ValueError(f"cu_seqlens_k_new is {ends}, want 0 to {k.shape[0]} (= k.shape[0]), none below the one before")
        counts = [end - begin for begin, end in zip(ends, ends[1:])]
    for i, (length, count) in enumerate(zip(used.tolist(), counts)):
        if not 0 <= length <= capacity - count:
            raise ValueError(f"cache_seqlens[{i}] is {length}, want 0 to {capacity - count}")
    return counts


def check_places(used: Tensor, counts: List[int], page_size: int, slots: int, page_table: Optional[Tensor],
                 batch_idx: Optional[Tensor]) -> None:
    """That the slots and pages which new keys are written to are there: PyTorch would count negative ones from the end. For the
    CPU."""
    if batch_idx is not None:
        for i, slot in enumerate(batch_idx.tolist()):
            if not 0 <= slot < slots:
                raise ValueError(f"cache_batch_idx[{i}] is {slot}, want 0 to {slots - 1}")
    if page_table is None:
        return
    for i, (length, count, row) in enumerate(zip(used.tolist(), counts, page_table.tolist())):
        for at in range(length // page_size, -(-(length + count) // page_size) if count else 0):
            if not 0 <= row[at] < slots:
                raise ValueError(f"page_table[{i}][{at}] is {row[at]}, want 0 to {slots - 1}")


def check_tables(cos: Tensor, sin: Optional[Tensor], begin: Tensor, batch: int, head_dim: int,
                 counts: Optional[List[int]]) -> None:
    """Tables of angles for new keys that PyTorch writes. counts: the new keys of each sequence, where they are known."""
    if sin is None:
        raise ValueError("rotary_sin is None, want it together with rotary_cos")
    if cos.dim() != 2 or 2 * cos.shape[1] > head_dim:
        raise ValueError(f"rotary_cos.shape is {tuple(cos.shape)}, want two axes, the last at most {head_dim // 2} (half of q's)")
    if sin.shape != cos.shape:
        raise ValueError(f"rotary_sin.shape is {tuple(sin.shape)}, want {tuple(cos.shape)} (= rotary_cos.shape)")
    if begin.shape != (batch,):
        raise ValueError(f"rotary_seqlens.shape is {tuple(begin.shape)}, want ({batch},)")
    for i, (first, count) in enumerate(zip(begin.tolist(), counts) if counts is not None else ()):
        if first < 0:
            raise ValueError(f"rotary_seqlens[{i}] is {first}, want 0 or more")
        if first + count > cos.shape[0]:
            raise ValueError(f"rotary_cos.shape[0] is {cos.shape[0]}, want {first + count} or more: sequence {i} has {count} new "
                             f"keys from position {first} on")


def write_into_cache(caches: Tuple[Tensor, Tensor], new: Tuple[Tensor, Tensor], cu_seqlens_new: Optional[Tensor],
                     used: Tensor, page_table: Optional[Tensor], batch_idx: Optional[Tensor]) -> Tensor:
    """Writes the new rows of each sequence behind those in use, and returns how many are in use then."""
    batch = used.shape[0]
    if cu_seqlens_new is None:
        lengths = torch.full_like(used, new[0].shape[1])
    else:
        lengths = cu_seqlens_new[1:] - cu_seqlens_new[:-1]
    for cache, x in zip(caches, new):
        cache = as_bytes(cache)
        rows, sequence, place = rows_of(as_bytes(x), cu_seqlens_new)
        if rows.shape[0] == 0 or batch == 0:
            break
        at = used.long()[sequence] + place
        if page_table is None:
            at = at.clamp_max(cache.shape[1] - 1)
            slot = sequence if batch_idx is None else batch_idx.long()[sequence]
        else:
            at = at.clamp_max(page_table.shape[1] * cache.shape[1] - 1)
            slot = page_table.long()[sequence, at // cache.shape[1]]
            at = at % cache.shape[1]
        if cu_seqlens_new is not None:  # where no row belongs to a sequence, what is there stays
            rows = torch.where(cu_seqlens_new[-1] > cu_seqlens_new[0], rows, cache[slot, at])
        cache.index_put_((slot, at), rows)
    return used + lengths


def joined_keys(k: Tensor, v: Tensor) -> Tuple[Tensor, bool]:
    """(k and v side by side, whether v comes first). Where they lie side by side in memory, as the two parts of MLA's
    latent cache do, this is a view; else a copy."""
    if k.stride() == v.stride() and k.stride(-1) == 1 and k.untyped_storage().data_ptr() == v.untyped_storage().data_ptr():
        shape = (*k.shape[:-1], k.shape[-1] + v.shape[-1])
        if k.storage_offset() + k.shape[-1] == v.storage_offset():
            return k.as_strided(shape, k.stride(), k.storage_offset()), False
        if v.storage_offset() + v.shape[-1] == k.storage_offset():
            return v.as_strided(shape, v.stride(), v.storage_offset()), True
    return torch.cat((k, v), dim=-1), False


def joined(q: Tensor, k: Tensor, v: Tensor, qv: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
    """q.k + qv.v as one product of the joined features, which has a gradient."""
    if qv is None:
        return q, k
    keys, v_first = joined_keys(k, v)
    return torch.cat((qv, q) if v_first else (q, qv), dim=-1), keys


def scale_of(q: Tensor, qv: Optional[Tensor], softmax_scale: Optional[float]) -> float:
    """The default counts both features of a row."""
    features = q.shape[-1] + (0 if qv is None else qv.shape[-1])
    return features ** -0.5 if softmax_scale is None else softmax_scale


def forward(q: Tensor, k: Tensor, v: Tensor, k_new: Optional[Tensor] = None, v_new: Optional[Tensor] = None,
            qv: Optional[Tensor] = None, out: Optional[Tensor] = None, cu_seqlens_q: Optional[Tensor] = None,
            cu_seqlens_k: Optional[Tensor] = None, cu_seqlens_k_new: Optional[Tensor] = None,
            seqused_q: Optional[Tensor] = None, seqused_k: Optional[Tensor] = None,
            max_seqlen_q: Optional[int] = None, max_seqlen_k: Optional[int] = None,
            page_table: Optional[Tensor] = None, kv_batch_idx: Optional[Tensor] = None,
            leftpad_k: Optional[Tensor] = None, rotary_cos: Optional[Tensor] = None,
            rotary_sin: Optional[Tensor] = None, seqlens_rotary: Optional[Tensor] = None,
            softmax_scale: Optional[float] = None, causal: bool = False, window: Tuple[int, int] = (-1, -1),
            attention_chunk: int = 0, softcap: float = 0.0, rotary_interleaved: bool = False,
            num_splits: int = 0, descales: Tuple[Optional[Tensor], ...] = (None, None, None)) -> Tuple[Tensor, Tensor]:
    """(out, lse); k and v are written where k_new is given. An empty row has LSE -inf. descales: of q, k and v, fp32
    (batch, key heads), for those that are e4m3."""
    scale = scale_of(q, qv, softmax_scale)
    factors = factors_of(q, k, *descales, qv=qv) or {}
    cu_seqlens_q, cu_seqlens_k, cu_seqlens_k_new, seqused_q, seqused_k, kv_batch_idx, leftpad_k, page_table = (
        vector(x) for x in (cu_seqlens_q, cu_seqlens_k, cu_seqlens_k_new, seqused_q, seqused_k, kv_batch_idx, leftpad_k,
                            page_table))
    if page_table is not None and kv_batch_idx is not None:  # rows of the table, as slots of a cache
        page_table, kv_batch_idx = page_table.index_select(0, kv_batch_idx), None
    if k_new is not None and seqused_k is None:
        raise ValueError("seqused_k (cache_seqlens) is None, want the keys in use, behind which k is written")
    if rotary_cos is not None and k_new is None:
        raise ValueError("rotary_cos is given, want k with it: it turns q and the new keys")
    bound: Dict[str, Any] = dict(numbers_of(scale, causal, *window, softcap), chunk=attention_chunk)
    begin = seqused_k if seqlens_rotary is None else vector(seqlens_rotary)
    is_turned_small = rotary_cos is not None and q.dtype is E4M3
    by_kernel = cu_seqlens_k_new is None and begin is seqused_k and not is_turned_small
    if k_new is not None and by_kernel:
        bound.update(k_new=dense_rows(k_new), v_new=dense_rows(v_new), rotary_cos=dense_rows(rotary_cos),
                     rotary_sin=dense_rows(rotary_sin), rotary_interleaved=bool(rotary_interleaved))
    elif k_new is not None:
        batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
        check_new(batch, (k, v), (k_new, v_new), cu_seqlens_k_new, seqused_k)
        counts = None
        if seqused_k.device.type == "cpu" and not _tracing.is_traced(q):
            capacity = k.shape[1] if page_table is None else k.shape[1] * page_table.shape[1]
            counts = counts_of(k_new, cu_seqlens_k_new, seqused_k, capacity)
            check_places(seqused_k, counts, k.shape[1], k.shape[0], page_table, kv_batch_idx)
        if rotary_cos is not None:
            check_tables(rotary_cos, rotary_sin, begin, batch, q.shape[-1], counts)
            along = bool(causal) or max(window) >= 0 or attention_chunk > 0
            q = turned(q, cu_seqlens_q, rotary_cos, rotary_sin, begin, rotary_interleaved, along)
            k_new = turned(k_new, cu_seqlens_k_new, rotary_cos, rotary_sin, begin, rotary_interleaved, True)
        seqused_k = write_into_cache((k, v), (k_new, v_new), cu_seqlens_k_new, seqused_k, page_table, kv_batch_idx)
    o, lse, _ = _tensors.forward(
        dense_rows(q), k if k_new is not None else dense_rows(k), v if k_new is not None else dense_rows(v), out=out,
        lse=True, qv=dense_rows(qv), cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k if page_table is None else None,
        seqused_q=seqused_q, seqused_k=seqused_k, cache_batch_idx=kv_batch_idx, cache_leftpad=leftpad_k,
        block_table=page_table, max_seqlen_q=hint(max_seqlen_q), max_seqlen_k=hint(max_seqlen_k),
        num_splits=int(num_splits), **factors, **bound)
    return o, lse


def backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dq: Optional[Tensor],
             dk: Optional[Tensor], dv: Optional[Tensor], cu_seqlens_q: Optional[Tensor], cu_seqlens_k: Optional[Tensor],
             seqused_q: Optional[Tensor], seqused_k: Optional[Tensor], max_seqlen_q: Optional[int],
             max_seqlen_k: Optional[int], softmax_scale: Optional[float], causal: bool, window: Tuple[int, int],
             softcap: float, deterministic: bool, attention_chunk: int = 0) -> Tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv, written where those are given."""
    given = (dq, dk, dv)
    wanted = tuple(True if x is None or x.stride(-1) != 1 else x for x in given)
    made = _tensors.backward(
        *(dense_rows(x) for x in (dout, q, k, v, out)), lse.contiguous(), dq=wanted[0], dk=wanted[1], dv=wanted[2],
        cu_seqlens_q=vector(cu_seqlens_q), cu_seqlens_k=vector(cu_seqlens_k), seqused_q=vector(seqused_q),
        seqused_k=vector(seqused_k), max_seqlen_q=hint(max_seqlen_q), max_seqlen_k=hint(max_seqlen_k),
        deterministic=bool(deterministic), chunk=attention_chunk, **numbers_of(scale_of(q, None, softmax_scale), causal, *window, softcap))
    return tuple(m if x is None or x is m else x.copy_(m) for x, m in zip(given, made))


class Deterministic(torch.autograd.Function):
    """Attention whose gradient has the same bits every time, with lengths in use and chunks; the LSE has no gradient."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, window: Tuple[int, int],
                softcap: float, chunk: int, *sequences: Any) -> Tuple[Tensor, Tensor]:
        cu_q, cu_k, used_q, used_k, max_q, max_k = sequences
        out, lse = forward(q, k, v, None, None, None, None, cu_q, cu_k, None, used_q, used_k, max_q, max_k,
                           softmax_scale=scale, causal=causal, window=window, attention_chunk=chunk, softcap=softcap)
        ctx.save_for_backward(q, k, v, out, lse, cu_q, cu_k, used_q, used_k)
        ctx.numbers = (max_q, max_k, scale, causal, window, softcap, True, chunk)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor, _dlse: Any) -> Tuple[Any, ...]:
        q, k, v, out, lse, *sequences = ctx.saved_tensors
        with torch.no_grad():
            if _torch_ops.stand_for_several(dout):
                _, _, scale, causal, window, softcap, _, chunk = ctx.numbers
                named = dict(zip(("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k"), map(vector, sequences)))
                made = _torch_ops.backward_by_op(
                    dout, None, q, k, v, out, lse, (True, True, True, False, False), chunk=chunk, deterministic=True,
                    **named, **numbers_of(scale, causal, *window, softcap))[:3]
            else:
                made = backward(dout, q, k, v, out, lse, None, None, None, *sequences, *ctx.numbers)
        return (*(final(gradient, q, k, v, dout) for gradient in made), *(None,) * 11)
