# SPDX-License-Identifier: Apache-2.0
"""Partial results joined, against the softmax of all. As a program, under TRITON_INTERPRET: by the GPU's kernel."""

import torch

from mica.distributed import _join


def check(joined, dtype=torch.float32):
    """Of (2, 5, 3, 4): nine parts, more than a kernel joins at once, of which some have a part of the rows, and a row that sees nothing."""
    torch.manual_seed(0)
    scores, values = torch.randn(2, 3, 5, 30).double(), torch.randn(2, 30, 3, 4).double()
    scores[0, 0, 0] = -float("inf")
    scores[0, 1, :, :4] = -float("inf")  # nothing in the first part
    scores[:, :, :2, 12:14] = scores[:, :, 3:, 14:20] = -float("inf")  # not among the rows of those parts
    sinks = torch.tensor([0.5, -float("inf"), 2.0])
    for begin, end, first, last in ((0, 4, 0, 5), (4, 5, 0, 5), (5, 12, 0, 5), (12, 14, 2, 5), (14, 20, 0, 3),
                                    (20, 25, 0, 5), (25, 26, 0, 5), (26, 28, 0, 5), (28, 30, 0, 5)):
        part = scores[..., first:last, begin:end]
        o = torch.einsum("bhqk,bkhd->bqhd", torch.nan_to_num(torch.softmax(part, -1)), values[:, begin:end])
        joined.add(_join.Part(first, last, o.to(dtype).contiguous(), torch.logsumexp(part, -1).float()))
    o, lse = joined.result(sinks)
    with_sink = torch.cat([scores, sinks.double()[None, :, None, None].expand(2, 3, 5, 1)], -1)
    want = torch.einsum("bhqk,bkhd->bqhd", torch.nan_to_num(torch.softmax(with_sink, -1))[..., :-1], values)
    assert o.dtype is dtype and torch.allclose(o.double(), want, atol=1e-6 if dtype is torch.float32 else 1e-2)
    assert torch.allclose(lse.double(), torch.logsumexp(with_sink, -1), atol=1e-5)


def main():
    from mica.distributed._join_kernel import join
    for dtype in (torch.float32, torch.bfloat16):
        joined = _join.Joined((2, 5, 3, 4), torch.device("cpu"), dtype)
        joined._kernel = join
        check(joined, dtype)
    print("ok")


if __name__ == "__main__":
    main()
