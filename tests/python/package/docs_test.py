# SPDX-License-Identifier: Apache-2.0
"""docs/user/python.md: its examples run in order and print what it says. docs/user/attention.ipynb: its cells run."""

import contextlib
import io
import json
import re

import pytest
from conftest import ROOT

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("numpy", reason="NumPy is not installed")

import torch  # noqa: E402

import mica  # noqa: E402

if not (ROOT / "docs").is_dir():
    pytest.skip("docs/ is not here", allow_module_level=True)


@pytest.fixture(autouse=True)
def restored():
    threads = mica.get_num_threads()
    yield
    mica.set_num_threads(threads)


def run(code, scope, where):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, where, "exec"), scope)
    return printed.getvalue()


def test_python_md():
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 5):
        pytest.skip("the page compares with SDPA's enable_gqa, which PyTorch 2.5 brought")
    text = (ROOT / "docs/user/python.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```\n(?:```text\n(.*?)```\n)?", text, re.DOTALL)
    assert len(blocks) == text.count("```python") > 10
    scope = {"__name__": "docs"}
    for code, expected in blocks:
        assert run(code, scope, "docs/user/python.md") == expected, code


def test_notebook():
    notebook = json.loads((ROOT / "docs/user/attention.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 5
    scope = {"__name__": "notebook"}
    for cell in cells:
        expected = "".join("".join(output["text"]) for output in cell["outputs"])
        assert run("".join(cell["source"]), scope, "docs/user/attention.ipynb") == expected
