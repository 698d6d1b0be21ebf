# SPDX-License-Identifier: Apache-2.0
"""mica._tensors: every binding of the C interface from torch tensors."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import reference  # noqa: E402

from mica import _abi, _tensors  # noqa: E402


def randn(*shape, device="cpu"):
    return torch.randn(*shape, device=device)


def close(got, want, tolerance=2e-5):
    tolerance = max(tolerance, 1e-4) if got.is_cuda else tolerance
    torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=tolerance)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_forward_and_backward_with_everything_dense(device):
    q, k, v = randn(2, 5, 4, 32, device=device), randn(2, 7, 2, 32, device=device), randn(2, 7, 2, 16, device=device)
    bias, sinks, alibi = randn(1, 4, 5, 7, device=device), randn(4, device=device), torch.rand(4, device=device)
    mask = torch.rand(2, 1, 5, 7, device=device) < 0.8
    numbers = dict(causal=_abi.CAUSAL_BOTTOM_RIGHT, window_left=4, scale=0.3, softcap=5.0)
    o, lse, _ = _tensors.forward(q, k, v, lse=True, mask=mask, bias=bias, sinks=sinks, alibi=alibi, **numbers)
    leaves = [t.detach().double().requires_grad_() for t in (q, k, v, bias, sinks)]
    o_want, lse_want = reference.attention(*leaves[:3], causal=True, window=(4, None), mask=mask, bias=leaves[3],
                                           scale=0.3, softcap=5.0, sinks=leaves[4], alibi=alibi)
    close(o, o_want)
    close(lse, lse_want)
    d_o, d_lse = torch.randn_like(o), torch.randn_like(lse)
    want = torch.autograd.grad((o_want, lse_want), leaves, (d_o.double(), d_lse.double()))
    got = _tensors.backward(d_o, q, k, v, o, lse, d_lse=d_lse, d_bias=True, d_sinks=True, mask=mask, bias=bias,
                            sinks=sinks, alibi=alibi, **numbers)
    for one, other in zip(got, want):
        close(one, other, 1e-4)
    assert _tensors.backward(d_o, q, k, v, o, lse, dk=False, dv=False, mask=mask, bias=bias, sinks=sinks,
                             alibi=alibi, **numbers)[1:] == (None,) * 4


def test_packed_is_dense_by_sequence(device):
    lengths_q, lengths_k = (3, 0, 5), (4, 2, 5)
    q, k, v = randn(8, 4, 32, device=device), randn(11, 2, 32, device=device), randn(11, 2, 32, device=device)
    cu_q = torch.tensor([0, 3, 3, 8], dtype=torch.int32, device=device)
    cu_k = torch.tensor([0, 4, 6, 11], dtype=torch.int32, device=device)
    o, lse, _ = _tensors.forward(q, k, v, lse=True, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, causal=1)
    assert lse.shape == (4, 8)
    for begin_q, rows, begin_k, keys in zip(cu_q.tolist(), lengths_q, cu_k.tolist(), lengths_k):
        if rows:
            o_want, lse_want = reference.attention(*(t[None] for t in (
                q[begin_q:begin_q + rows], k[begin_k:begin_k + keys], v[begin_k:begin_k + keys])), causal=True)
            close(o[begin_q:begin_q + rows], o_want[0])
            close(lse[:, begin_q:begin_q + rows], lse_want[0])


def test_paged_cache_with_append_and_rotary(device):
    page, table = 4, torch.tensor([[3, 1], [0, 2]], dtype=torch.int32, device=device)
    k, v = randn(4, page, 2, 32, device=device), randn(4, page, 2, 32, device=device)
    before = k.clone()
    used = torch.tensor([5, 2], dtype=torch.int32, device=device)
    q, k_new, v_new = (randn(2, 1, heads, 32, device=device) for heads in (4, 2, 2))
    angle = torch.rand(8, 16, device=device)
    o, _, _ = _tensors.forward(q, k, v, seqused_k=used, block_table=table, k_new=k_new, v_new=v_new, causal=1,
                            rotary_cos=angle.cos(), rotary_sin=angle.sin())
    changed = (k != before).flatten(2).any(-1)
    assert changed.nonzero().tolist() == [[0, 2], [1, 1]]
    close(v[1, 1], v_new[0, 0])

    def turn(x, position):
        cos, sin = angle[position].cos(), angle[position].sin()
        a, b = x[..., :16], x[..., 16:]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    close(k[1, 1], turn(k_new[0, 0], 5))
    for sequence, keys in ((0, 6), (1, 3)):
        pages = table[sequence].long()
        k_all, v_all = k[pages].flatten(0, 1)[None, :keys], v[pages].flatten(0, 1)[None, :keys]
        want, _ = reference.attention(turn(q[sequence:sequence + 1], keys - 1), k_all, v_all)
        close(o[sequence:sequence + 1], want)


def test_dropout_and_probs(device):
    q, k, v = (randn(1, 6, 2, 16, device=device) for _ in range(3))
    state = torch.tensor([7, 11], dtype=torch.int64, device=device)
    o, lse, _ = _tensors.forward(q, k, v, lse=True, dropout=0.5, rng_state=state)
    by_value, _, _ = _tensors.forward(q, k, v, dropout=0.5, seed=7, offset=11)
    assert torch.equal(o, by_value)
    probs = _tensors.forward(q, k, v, dropout=0.5, rng_state=state, probs=True)[2]
    keep = probs >= 0
    assert 0 < keep.sum() < keep.numel()
    close(o, reference.attention(q, k, v, keep=keep, dropout=0.5)[0])
    dq, dk, dv, _, _ = _tensors.backward(o, q, k, v, o, lse, dropout=0.5, rng_state=state)
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    want = torch.autograd.grad(reference.attention(*leaves, keep=keep, dropout=0.5)[0], leaves, o.double())
    for one, other in zip((dq, dk, dv), want):
        close(one, other, 1e-4)


def test_misaligned_rows_and_many_shapes_share_no_plan(device):
    for shift in (0, 1, 2):
        memory = randn(3 * 64 + 4, device=device)[shift:]
        q = memory[:64].view(1, 2, 2, 16)
        close(_tensors.forward(q, q, q)[0], reference.attention(q, q, q)[0])
    for rows in range(1, 600):
        q = randn(1, rows, 1, 1, device=device)
        assert _tensors.forward(q[:, :1], q, q)[0].shape == (1, 1, 1, 1)


@pytest.mark.parametrize("change, message", [
    (dict(k=torch.zeros(2, 7, 2, 16)), r"k.shape\[3\] is 16, want 32 \(= q.shape\[3\]\)"),
    (dict(seqused_k=torch.zeros(2, dtype=torch.int64)), "seqused_k.dtype is torch.int64, want int32"),
    (dict(seqused_k=torch.zeros(3, dtype=torch.int32)), r"seqused_k.shape\[0\] is 3, want 2 \(the batch is 2\)"),
    (dict(seqused_k=torch.zeros(4, dtype=torch.int32)[::2]), r"seqused_k.stride\[0\] is 2, want 1"),
    (dict(q=torch.zeros(2, 5, 4, 32).double()), "q.dtype is torch.float64, want float32"),
    (dict(bias=torch.zeros(1, 1, 1, 5, 7)), "bias has 5 axes, want at most 4"),
    (dict(rng_state=torch.zeros(2), dropout=0.5), "rng_state is torch.float32"),
])
def test_errors_name_the_field(change, message):
    arguments = dict(q=torch.zeros(2, 5, 4, 32), k=torch.zeros(2, 7, 2, 32), v=torch.zeros(2, 7, 2, 32))
    arguments.update(change)
    with pytest.raises(ValueError, match=message):
        _tensors.forward(**arguments)
