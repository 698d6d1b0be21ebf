# SPDX-License-Identifier: Apache-2.0
"""What must not be silently another thing over ranks: second derivatives, types, refused calls."""

import time

import pytest
import torch

import mica
from mica import distributed


def parts(layout="ring"):
    """q, k and v of this rank, which need gradients, of (1, 8, 4, 16)."""
    generator = torch.Generator().manual_seed(1)
    whole = [torch.randn(1, 8, 4, 16, generator=generator) for _ in range(3)]
    return whole, [distributed.shard(t, layout=layout).requires_grad_() for t in whole]


def second_derivatives(rank, size):
    """Of attention they are refused, of unshard they are right; a loss without them would pass unnoticed."""
    for layout in ("ring", "ulysses", "gather"):
        _, (q, k, v) = parts()
        if layout == "gather":
            o = distributed.attention_varlen(q[0], k[0], v[0], [0, 8])
        else:
            o = distributed.attention(q, k, v, layout=layout)
        (gradient,) = torch.autograd.grad((o ** 2).sum(), k, create_graph=True)
        with pytest.raises(mica.Unsupported, match="no second derivative"):
            ((gradient ** 2).sum() + (k ** 3).sum()).backward()
    _, (_, k, _) = parts()
    (gradient,) = torch.autograd.grad((distributed.unshard(k) ** 2).sum(), k, create_graph=True)
    ((gradient ** 2).sum() + (k ** 3).sum()).backward()
    # The gradient is 2 * size * k, and each rank's loss sees its own part of the whole.
    torch.testing.assert_close(k.grad, 8 * size ** 2 * k.detach() + 3 * k.detach() ** 2)


def sinks_alone(rank, size):
    """Only the sinks need a gradient."""
    for layout in ("ring", "ulysses"):
        whole, local = parts(layout)
        sinks = [torch.arange(4.0).requires_grad_() for _ in range(2)]
        mica.attention(*whole, sinks=sinks[0], causal=True).sum().backward()
        distributed.attention(*(t.detach() for t in local), sinks=sinks[1], causal=True, layout=layout).sum().backward()
        torch.distributed.all_reduce(sinks[1].grad)
        torch.testing.assert_close(sinks[1].grad, sinks[0].grad)


def small_types(rank, size):
    """e4m3 makes bf16, as on one device."""
    for layout in ("ring", "zigzag", "ulysses"):
        whole = [t.to(torch.float8_e4m3fn) for t in parts(layout)[0]]
        local = [distributed.shard(t.float(), layout=layout).to(t.dtype) for t in whole]
        want = mica.attention(*whole, causal=True)
        got = distributed.attention(*local, causal=True, layout=layout)
        assert got.dtype == want.dtype == torch.bfloat16
        torch.testing.assert_close(got, distributed.shard(want, layout=layout), rtol=1e-2, atol=1e-2)
    whole = [t[0].to(torch.float8_e4m3fn) for t in parts()[0]]
    got = distributed.attention_varlen(*(t[8 // size * rank:8 // size * (rank + 1)] for t in whole), [0, 3, 8])
    want = mica.attention_varlen(*whole, [0, 3, 8], [0, 3, 8])
    torch.testing.assert_close(got, distributed.shard(want, dim=0), rtol=1e-2, atol=1e-2)


def sinks_that_do_not_fit(rank, size):
    _, (q, k, v) = parts()
    q, k, v = (t.detach() for t in (q, k, v))

    def with_cache(sinks):
        return distributed.attention_with_cache(q[:, :1], k.clone(), v.clone(), cache_seqlens=4, sinks=sinks)

    for call in (with_cache, lambda sinks: distributed.attention(q, k, v, sinks=sinks)):
        for sinks, words in ((torch.zeros(1), r"sinks is \(1,\), want \(4,\)"), (torch.zeros(1, 4), r"sinks is \(1, 4\)"),
                             (torch.zeros(4).double(), "sinks.dtype is torch.float64, want float32")):
            with pytest.raises(mica.InvalidArgument, match=words):
                call(sinks)
    with pytest.raises(mica.Unsupported, match="sinks requires a gradient"):
        with_cache(torch.zeros(4, requires_grad=True))
    with pytest.raises(mica.Unsupported, match="q requires a gradient"):
        distributed.attention_with_cache(q[:, :1].clone().requires_grad_(), k, v, cache_seqlens=4)


def owners_that_differ(rank, size):
    """The new keys would be written by two ranks, or by none."""
    q, k, v = (t.detach() for t in parts()[1])
    with pytest.raises(mica.InvalidArgument, match="owner is 0 on rank 0, but 1 on rank 1"):
        distributed.attention_with_cache(q[:, :1], k.clone(), v.clone(), k[:, :1], v[:, :1], cache_seqlens=3, owner=rank)


def lengths_that_are_no_ints(rank, size):
    """Nor do they spoil what is kept for the same numbers as ints."""
    q, k, v = (t.detach()[0] for t in parts()[1])
    for cuts in (torch.tensor([0.0, 3.0, 8.0]), [0, 3.0, 8], torch.tensor([[0, 3, 8]])):
        with pytest.raises(mica.InvalidArgument, match=r"^cu_seqlens_q\[[012]\] is .*, want an int"):
            distributed.attention_varlen(q, k, v, cuts)
    assert distributed.attention_varlen(q, k, v, [0, 3, 8]).shape == q.shape


def decoding_otherwise(rank, size):
    """Another diagonal than that of the newest tokens, and new values without new keys."""
    q, k, v = (t.detach() for t in parts()[1])
    for causal in ("top-left", "yes"):
        with pytest.raises(mica.InvalidArgument, match=f"causal is '{causal}', want True or False"):
            distributed.attention_with_cache(q[:, :2], k.clone(), v.clone(), cache_seqlens=3, causal=causal)
    for new, name in ((dict(v=v[:, :1]), "k"), (dict(k=k[:, :1]), "v")):
        with pytest.raises(mica.InvalidArgument, match=f"^{name} is None, want it together with"):
            distributed.attention_with_cache(q[:, :1], k.clone(), v.clone(), cache_seqlens=3, **new)


def negative_views(rank, size):
    """A gradient of the LSE that is negative only by a flag."""
    made = []
    for values in (torch.ones(1, 4, 8 // size, dtype=torch.cfloat).mul(1j).conj().imag, -torch.ones(1, 4, 8 // size)):
        _, (q, k, v) = parts()
        distributed.attention(q, k, v, return_lse=True)[1].backward(values)
        made.append(q.grad)
    assert torch.equal(*made) and made[0].any()


def after_a_refusal(rank, size):
    """The library refuses on every rank, whichever comes first; the keys of that call are not those of the next."""
    whole, local = parts()
    with torch.no_grad():
        want = distributed.shard(mica.attention(*whole, causal=True))
        for late in (0, 1, 0):
            if rank == late:
                time.sleep(0.3)
            with pytest.raises(mica.InvalidArgument, match="softcap is -1"):
                distributed.attention(*(t + 100 for t in local), causal=True, softcap=-1.0)
            torch.testing.assert_close(distributed.attention(*local, causal=True), want)
