# SPDX-License-Identifier: Apache-2.0
"""docs/flash_attn.md: its examples run in order and print what it says."""

import re

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("numpy", reason="NumPy is not installed")
pytest.importorskip("flash_attn", reason="the drop-in flash_attn is not installed")
pytest.importorskip("transformers", minversion="4.57", reason="no transformers 4.57 or later here")
try:
    from torch.nn.attention import register_flash_attention_impl  # noqa: F401
except ImportError:
    pytest.skip("this PyTorch has no register_flash_attention_impl", allow_module_level=True)

from conftest import ROOT  # noqa: E402
from docs_test import run  # noqa: E402

PAGE = ROOT / "docs/flash_attn.md"


@pytest.mark.skipif(not PAGE.is_file(), reason="docs/ is not here")
def test_examples_print_what_the_page_says():
    text = PAGE.read_text()
    blocks = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```\n", text, re.DOTALL)
    assert len(blocks) == text.count("```python") == 4
    scope = {"__name__": "docs"}
    for code, expected in blocks:
        assert run(code, scope, "docs/flash_attn.md") == expected, code
