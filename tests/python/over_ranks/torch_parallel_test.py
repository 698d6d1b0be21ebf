# SPDX-License-Identifier: Apache-2.0
"""context_parallel and DTensors on Mica over ranks."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("torch.distributed.tensor", reason="this PyTorch has no DTensor")
attention = pytest.importorskip("torch.nn.attention")
if not hasattr(attention, "register_flash_attention_impl"):
    pytest.skip("this PyTorch has no register_flash_attention_impl", allow_module_level=True)

import torch_parallel  # noqa: E402


@pytest.mark.parametrize("balanced, causal", [(True, True), (False, True), (False, False)])
def test_context_parallel(two, balanced, causal):
    two.run(torch_parallel.context_parallel, balanced, causal)


def test_transformers_under_context_parallel(two):
    pytest.importorskip("transformers", minversion="4.57", reason="no transformers 4.57 or later here")
    two.run(torch_parallel.transformers_model)


def test_dtensors(two):
    two.run(torch_parallel.dtensors)


def test_compiled_dtensors(two):
    two.run(torch_parallel.dtensors, True)


def test_on_more_ranks(more):
    more.run(torch_parallel.context_parallel, True, True)
    more.run(torch_parallel.dtensors)
    more.run(torch_parallel.dtensors, True)
