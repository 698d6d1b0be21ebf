# SPDX-License-Identifier: Apache-2.0
"""The ranks of the tests in this folder: two processes always, three and four in `make test-all`."""

import os

import pytest

from .ranks import Ranks


def _ranks(size):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    if size > 2 and not os.environ.get("MICA_TEST_ALL"):
        pytest.skip("make test-all runs it")
    return Ranks(size)


@pytest.fixture(scope="session")
def two():
    ranks = _ranks(2)
    yield ranks
    ranks.end()


@pytest.fixture(scope="session", params=[3, 4])
def more(request):
    ranks = _ranks(request.param)
    yield ranks
    ranks.end()


@pytest.fixture(scope="session")
def four():
    ranks = _ranks(4)
    yield ranks
    ranks.end()
