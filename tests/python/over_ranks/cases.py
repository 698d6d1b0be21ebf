# SPDX-License-Identifier: Apache-2.0
"""One call over ranks against the same call on one: values, LSE and gradients."""

import torch

import mica
from mica import distributed
from mica.distributed import functions

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def close(name, got, want, dtype):
    """Against the largest of the wanted values, since a gradient is a sum of terms of that size."""
    got, want = got.float(), want.float()
    assert got.shape == want.shape, f"{name}: {tuple(got.shape)} and not {tuple(want.shape)}"
    both = torch.isinf(got) & torch.isinf(want) & (got == want)
    error = torch.where(both, torch.zeros_like(got), (got - want).abs())
    assert not torch.isnan(error).any(), f"{name}: NaN"
    size = want[torch.isfinite(want)].abs().max().item() if torch.isfinite(want).any() else 1.0
    largest = error.max().item() if error.numel() else 0.0
    assert largest <= TOLERANCE[dtype] * max(1.0, size), f"{name}: off by {largest:.3g} of {size:.3g}"


def tensors(shapes, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def per_head(case, heads, generator_seed=7):
    """sinks and alibi as the case wants them."""
    generator = torch.Generator().manual_seed(generator_seed)
    made = {}
    if case.pop("sinks", False):
        made["sinks"] = torch.randn(heads, generator=generator)
    if case.pop("alibi", False):
        made["alibi"] = 0.2 * torch.rand(heads, generator=generator)
    return made


def leaves(*given):
    return [t.detach().clone().requires_grad_() for t in given]


def check_dense(case, group=None):
    """The case's options; batch, seqlen, seqlen_k, heads, key_heads, dim, dim_v, dtype, layout beside them."""
    case = dict(case)
    layout, dtype = case.pop("layout"), getattr(torch, case.pop("dtype", "float32"))
    batch, seqlen = case.pop("batch", 2), case.pop("seqlen", 64)
    seqlen_k = case.pop("seqlen_k", seqlen)
    heads, key_heads = case.pop("heads", 4), case.pop("key_heads", 2)
    dim, dim_v = case.pop("dim", 16), case.pop("dim_v", 16)
    optional = per_head(case, heads)
    q, k, v, d_o, d_lse = tensors([(batch, seqlen, heads, dim), (batch, seqlen_k, key_heads, dim),
                                   (batch, seqlen_k, key_heads, dim_v), (batch, seqlen, heads, dim_v),
                                   (batch, heads, seqlen)], dtype, 3)
    d_lse = d_lse.float()
    name = f"{layout} {dtype} {case}"

    def shard(t, dim=1):
        return distributed.shard(t, group=group, layout=layout, dim=dim)

    whole_leaves = leaves(q, k, v)
    sinks = optional.get("sinks")
    whole_sinks = None if sinks is None else sinks.clone().requires_grad_()
    given = dict(case, alibi=optional.get("alibi"), return_lse=True)
    o, lse = mica.attention(*whole_leaves, sinks=whole_sinks, **given)
    seen = torch.isfinite(lse)
    (torch.sum(o.float() * d_o.float()) + torch.sum(torch.where(seen, lse, 0 * d_lse) * d_lse)).backward()

    local_leaves = leaves(*(shard(t) for t in (q, k, v)))
    local_sinks = None if sinks is None else sinks.clone().requires_grad_()
    local_o, local_lse = distributed.attention(*local_leaves, sinks=local_sinks, group=group, layout=layout,
                                               seqlen=seqlen, seqlen_k=seqlen_k, **given)
    local_seen, local_d_lse = torch.isfinite(local_lse), shard(d_lse, 2)
    (torch.sum(local_o.float() * shard(d_o).float()) +
     torch.sum(torch.where(local_seen, local_lse, 0 * local_d_lse) * local_d_lse)).backward()

    close(f"{name}: o", local_o, shard(o), dtype)
    close(f"{name}: lse", local_lse, shard(lse, 2), dtype)
    for which, local, whole in zip("qkv", local_leaves, whole_leaves):
        close(f"{name}: d{which}", local.grad, shard(whole.grad), dtype)
    if sinks is not None:
        total = local_sinks.grad.clone()
        torch.distributed.all_reduce(total)
        close(f"{name}: d_sinks", total, whole_sinks.grad, dtype)
    back = distributed.unshard(local_o.detach(), group=group, layout=layout, seqlen=seqlen)
    close(f"{name}: unshard", back, o, dtype)


def check_packed(case):
    """The same for packed sequences: case["lengths"], and lengths_k where the keys are others."""
    case = dict(case)
    layout, dtype = case.pop("layout"), getattr(torch, case.pop("dtype", "float32"))
    lengths = case.pop("lengths")
    lengths_k = case.pop("lengths_k", lengths)
    heads, key_heads, dim = case.pop("heads", 4), case.pop("key_heads", 2), case.pop("dim", 16)
    optional = per_head(case, heads)
    cu_q, cu_k = ([sum(ls[:n]) for n in range(len(ls) + 1)] for ls in (lengths, lengths_k))
    q, k, v, d_o = tensors([(cu_q[-1], heads, dim), (cu_k[-1], key_heads, dim), (cu_k[-1], key_heads, dim),
                            (cu_q[-1], heads, dim)], dtype, 5)
    name = f"packed {layout} {dtype} {lengths} {case}"

    def shard(t, cu, dim=0):
        if layout == "gather":
            return distributed.shard(t, layout="ring", dim=dim)
        return torch.cat([distributed.shard(t.narrow(dim, a, b - a), layout=layout, dim=dim)
                          for a, b in zip(cu, cu[1:])], dim)

    whole_leaves, local_leaves = leaves(q, k, v), leaves(shard(q, cu_q), shard(k, cu_k), shard(v, cu_k))
    given = dict(case, return_lse=True, **optional)
    o, lse = mica.attention_varlen(*whole_leaves, cu_q, cu_k, **given)
    (o.float() * d_o.float()).sum().backward()
    local_o, local_lse = distributed.attention_varlen(*local_leaves, cu_q, cu_k, layout=layout, **given)
    (local_o.float() * shard(d_o, cu_q).float()).sum().backward()
    close(f"{name}: o", local_o, shard(o, cu_q), dtype)
    close(f"{name}: lse", local_lse, shard(lse, cu_q, 1), dtype)
    for which, local, whole, cu in zip("qkv", local_leaves, whole_leaves, (cu_q, cu_k, cu_k)):
        close(f"{name}: d{which}", local.grad, shard(whole.grad, cu), dtype)


def check_together(rank, size, some):
    """With two steps in each turn of forward."""
    before, functions.steps_together = functions.steps_together, lambda mail, batch: 2
    try:
        check_each(rank, size, some, [])
    finally:
        functions.steps_together = before


def check_each(rank, size, dense, packed):
    for case in dense:
        check_dense(case)
    for case in packed:
        check_packed(case)


def check_product(rank, size, shape, cases):
    """On a mesh of this shape."""
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("ring", "ulysses"))
    for case in cases:
        check_dense(case, mesh)


def check_decode(rank, size, dtype, causal, sinks):
    """A cache spread over ranks, unevenly, against one cache."""
    dtype = getattr(torch, dtype)
    lengths = [[3, 0], [0, 9], [5, 1], [7, 2]][:size]  # of each rank's part, for each sequence
    rows, owner = 3, 1
    q, k, v, new_k, new_v = tensors([(2, rows, 4, 16), (2, 60, 2, 16), (2, 60, 2, 24), (2, rows, 2, 16),
                                     (2, rows, 2, 24)], dtype, 8)
    given = dict(sinks=torch.tensor([0.5, -1.0, 2.0, 0.0])) if sinks else {}
    mine = [t[:, 15 * rank:15 * (rank + 1)].clone() for t in (k, v)]
    used = torch.tensor(lengths[rank], dtype=torch.int32)
    got, got_lse = distributed.attention_with_cache(q, *mine, new_k, new_v, cache_seqlens=used, owner=owner,
                                                    causal=causal, return_lse=True, **given)
    for b in range(2):
        order = [r for r in range(size) if r != owner] + [owner]  # the newest last
        whole = [torch.cat([t[b, 15 * r:15 * r + lengths[r][b]] for r in order] + [new[b]])[None]
                 for t, new in ((k, new_k), (v, new_v))]
        o, lse = mica.attention(q[b:b + 1], *whole, causal=causal, return_lse=True, **given)
        close("o", got[b:b + 1], o, dtype)
        close("lse", got_lse[b:b + 1], lse, dtype)
        if rank == owner:
            assert torch.equal(mine[0][b, lengths[rank][b]:lengths[rank][b] + rows], new_k[b])
    first = distributed._mail.mail_of(None, q.device).all_gather(got)
    assert all(torch.equal(first[0], other) for other in first)
