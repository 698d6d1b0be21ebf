# SPDX-License-Identifier: Apache-2.0
"""Devices and threads."""

import pytest

import mica


def test_devices():
    assert len(mica.devices("cpu")) == 1 and "thread" in mica.devices("cpu")[0]
    assert mica.why_no_devices("cpu") == ""
    assert bool(mica.devices("cuda")) != bool(mica.why_no_devices("cuda"))
    with pytest.raises(ValueError, match="backend is 'tpu', want 'cpu' or 'cuda'"):
        mica.devices("tpu")


def test_threads_count_for_calls_that_were_planned_before():
    numpy = pytest.importorskip("numpy", reason="NumPy is not installed")
    from mica import _array_face
    before = mica.get_num_threads()
    q = numpy.ones((1, 2, 1, 8), "f")
    try:
        mica.attention(q, q, q)
        assert _array_face._local.plans
        mica.set_num_threads(1)
        assert mica.get_num_threads() == 1 and not _array_face._local.plans
        mica.attention(q, q, q)
        with pytest.raises(ValueError, match="num_threads is -1, want 0"):
            mica.set_num_threads(-1)
    finally:
        mica.set_num_threads(before)


def test_threads_with_torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from mica import _torch_face
    before = mica.get_num_threads()
    q = torch.ones(1, 2, 1, 8)
    try:
        mica.attention(q, q, q)
        mica.set_num_threads(1)
        assert not _torch_face._plain.__globals__["entries"]
        mica.attention(q, q, q)
        assert len(_torch_face._plain.__globals__["entries"]) == 1
    finally:
        mica.set_num_threads(before)
