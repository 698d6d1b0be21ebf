# SPDX-License-Identifier: Apache-2.0
"""Tests of the Python package as it lies in this tree; with MICA_TEST_INSTALLED=1, of the one that is installed.

package/: what is installed, its types and its pages; arrays/: NumPy and numbers; calls/: torch tensors; dropins/: flash_attn;
models/: Transformers; over_ranks/: mica.distributed. No folder has the name of a package that a test may find missing:
Python would take it for that one."""

import os
import pathlib
import sys

import pytest
from over_ranks.fixtures import four, more, two  # noqa: F401

ROOT = pathlib.Path(__file__).resolve().parents[2]
if not os.environ.get("MICA_TEST_INSTALLED"):
    sys.path[:0] = [str(ROOT / "python" / name) for name in ("", "flash_attn", "flash_attn_interface", "ring_flash_attn")]


def cuda_missing() -> str:
    """"" if torch sees a GPU and the library has kernels for it, else why not."""
    import torch
    if not torch.cuda.is_available():
        return "no GPU that PyTorch can use"
    from mica import _abi, _library
    library = _library.load()
    if library.device_count(_abi.CUDA) == 0:
        return library.c.mica_last_error().decode()
    return ""


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    """Every test that asks for it runs on both; skipped, with the reason, where there is no GPU."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    if request.param == "cuda":
        reason = cuda_missing()
        if reason:
            pytest.skip(reason)
    return request.param
