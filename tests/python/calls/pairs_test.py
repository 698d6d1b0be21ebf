# SPDX-License-Identifier: Apache-2.0
"""A mask or bias that is shorter than the longest packed or cached sequence: the library would take what is missing as hidden,
or 0, which nobody means. On the CPU it is refused, however the lengths are given and whoever looks on."""

from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import mica  # noqa: E402
from mica import fp8  # noqa: E402

BATCH, ROWS, CAPACITY = 2, 3, 10
Q, CACHE = torch.randn(BATCH, ROWS, 4, 16), torch.randn(BATCH, CAPACITY, 2, 16)
TABLE = torch.tensor([[0, 1], [1, 0]], dtype=torch.int32)
CU = torch.tensor([0, 2, BATCH * ROWS], dtype=torch.int32)  # sequences of 2 and 4 rows


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


# What a call on the cache is given, and the keys of its longest sequence.
CACHED = {
    "in use": (dict(cache_seqlens=int32(9, 3)), 9),
    "whole slots": (dict(), CAPACITY),
    "left padding": (dict(cache_seqlens=int32(9, 9), cache_leftpad=int32(4, 2)), 7),
    "left padding of whole pages": (dict(block_table=TABLE, cache_leftpad=int32(4, 2)), 2 * CAPACITY - 2),
    "left padding and new keys": (dict(cache_seqlens=int32(5, 8), cache_leftpad=int32(0, 4), k=CACHE[:, :2], v=CACHE[:, :2]), 7),
    "whole pages": (dict(block_table=TABLE), 2 * CAPACITY),
    "pages in use": (dict(block_table=TABLE, cache_seqlens=int32(12, 15)), 15),
}
# The same of packed rows on pages.
PAGED = {
    "whole pages": (dict(cu_seqlens_k=None), 2 * CAPACITY),
    "pages in use": (dict(cu_seqlens_k=None, seqused_k=int32(12, 15)), 15),
    "differences": (dict(cu_seqlens_k=int32(0, 13, 20)), 13),
}


def as_arrays(kind, given):
    if kind != "numpy":
        return given
    pytest.importorskip("numpy", reason="NumPy is not installed")
    return {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in given.items()}


class Looks(TorchDispatchMode):
    """Has calls go through torch's dispatcher."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["mask", "bias"])
@pytest.mark.parametrize("kind", ["torch", "looked at", "numpy", "e4m3"])
@pytest.mark.parametrize("case", CACHED)
def test_cached(case, kind, name):
    given, keys = CACHED[case]
    if kind == "e4m3" and not hasattr(torch, "float8_e4m3fn"):
        pytest.skip("this PyTorch has no e4m3")

    def call(width):
        pairs = torch.ones(1, 1, ROWS, width, dtype=torch.bool if name == "mask" else torch.float32)
        caches = [CACHE.to(torch.float8_e4m3fn) if kind == "e4m3" else CACHE.clone() for _ in range(2)]
        attend = fp8.attention_with_cache if kind == "e4m3" else mica.attention_with_cache
        with Looks() if kind == "looked at" else nullcontext():
            return attend(**as_arrays(kind, {"q": Q, "k_cache": caches[0], "v_cache": caches[1], name: pairs, **given}))

    call(keys)
    with pytest.raises(ValueError, match=rf"^{name}\.shape\[3\] is {keys - 1}, want 1 or (at least )?{keys} "):
        call(keys - 1)


@pytest.mark.parametrize("kind", ["torch", "looked at", "numpy"])
@pytest.mark.parametrize("case", PAGED)
def test_packed_rows_on_pages(case, kind):
    given, keys = PAGED[case]

    def call(rows, width):
        mask = torch.ones(rows, width, dtype=torch.bool)
        with Looks() if kind == "looked at" else nullcontext():
            return mica.attention_varlen(**as_arrays(kind, dict(q=Q.flatten(0, 1), k=CACHE, v=CACHE, cu_seqlens_q=CU, mask=mask,
                                                                block_table=TABLE, **given)))

    call(4, keys)
    for shape, axis, wanted in (((4, keys - 1), 1, keys), ((3, keys), 0, 4)):
        with pytest.raises(ValueError, match=rf"^mask\.shape\[{axis}\] is {wanted - 1}, want 1 or at least {wanted} "):
            call(*shape)


def test_lengths_that_are_no_vector_are_named():
    mask = torch.ones(ROWS, CAPACITY, dtype=torch.bool)
    for name in ("cache_seqlens", "cache_leftpad"):
        with pytest.raises(ValueError, match="has 2 axes, want 1"):
            mica.attention_with_cache(Q, CACHE, CACHE, mask=mask, **{name: int32(9, 3)[None]})
