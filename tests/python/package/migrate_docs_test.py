# SPDX-License-Identifier: Apache-2.0
"""docs/user/migrate.md: its examples run in order and print what the page says."""

import os
import re

import pytest
from conftest import ROOT

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("flash_attn", reason="the drop-in is not installed")

from docs_test import run  # noqa: E402

from mica import _torch_ops  # noqa: E402

PAGE = ROOT / "docs/user/migrate.md"
if not PAGE.is_file():
    pytest.skip("docs/ is not here", allow_module_level=True)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
NEEDS = ("mica.integrations.transformers", "mica.integrations.sdpa", "torch.compile")


def blocks():
    text = PAGE.read_text()
    found = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```\n", text, re.DOTALL)
    assert len(found) == text.count("```python") == 8
    return found


def run_blocks(need=None):
    """Those that need nothing more, and those that need this."""
    scope, ran = {"__name__": "docs"}, 0
    for code, expected in blocks():
        needs = [name for name in NEEDS if name in code]
        if needs in ([], [need]):
            assert run(code, scope, "docs/user/migrate.md") == expected, code
            ran += bool(needs)
    return ran


def test_examples():
    assert run_blocks() == 0


@pytest.mark.skipif(not _torch_ops.AVAILABLE, reason="torch.compile wants PyTorch 2.4 or later")
def test_compiled():
    assert run_blocks("torch.compile") == 1


def test_transformers():
    pytest.importorskip("transformers", minversion="4.57", reason="no transformers 4.57 or later here")
    assert run_blocks("mica.integrations.transformers") == 1


def test_sdpa():
    if not hasattr(torch.nn, "attention") or not hasattr(torch.nn.attention, "register_flash_attention_impl"):
        pytest.skip("this PyTorch has no register_flash_attention_impl")
    assert run_blocks("mica.integrations.sdpa") == 1
