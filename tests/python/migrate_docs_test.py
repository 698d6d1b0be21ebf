# SPDX-License-Identifier: Apache-2.0
"""docs/migrate.md: the old call, on the drop-in, and the new one give what the page says."""

import re

import pytest
from conftest import ROOT

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("flash_attn", reason="the drop-in is not installed")

from docs_test import run  # noqa: E402


def test_migrate_md():
    text = (ROOT / "docs/migrate.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```\n", text, re.DOTALL)
    assert len(blocks) == text.count("```python") == 4
    scope = {"__name__": "docs"}
    for code, expected in blocks:
        assert run(code, scope, "docs/migrate.md") == expected, code
