# SPDX-License-Identifier: Apache-2.0
"""Few rows over keys on the CPU, in every head dimension that ends a vector elsewhere: against the formula in double."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import mica  # noqa: E402

TOLERANCES = {torch.float32: 4e-5, torch.bfloat16: 4e-2, torch.float16: 6e-3}
# Rows, query heads, key heads, keys: one key, odd numbers of them, more than a tile; one row up to as many as are streamed.
SHAPES = [(1, 2, 2, 63), (1, 4, 1, 65), (2, 7, 1, 300), (4, 2, 2, 1), (16, 2, 2, 130), (3, 4, 2, 17)]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("dim", [4, 24, 37, 40, 64, 72, 80, 88, 96, 112, 160])
def test_dimension(dim, dtype):
    generator = torch.Generator().manual_seed(dim)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    for rows, heads_q, heads_k, keys in SHAPES:
        q, k, v = normal(2, rows, heads_q, dim), normal(2, keys, heads_k, dim), normal(2, keys, heads_k, dim)
        wide_k, wide_v = (t.double().repeat_interleave(heads_q // heads_k, 2) for t in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), wide_k) / dim**0.5
        exact = torch.einsum("bhqk,bkhd->bqhd", torch.softmax(scores, -1), wide_v)
        error = (mica.attention(q, k, v).double() - exact).abs().max().item()
        assert error <= TOLERANCES[dtype], (rows, heads_q, heads_k, keys)
