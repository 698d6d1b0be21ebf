# SPDX-License-Identifier: Apache-2.0
"""What is generated for a call can be read: by a command, by inspect and in a traceback."""

import inspect
import os
import subprocess
import sys
import traceback

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="no PyTorch 2.4 or later here")

import mica  # noqa: E402
import mica.source  # noqa: E402
from mica import _abi, _caller  # noqa: E402


def run(*names):
    package = os.path.dirname(os.path.dirname(mica.__file__))
    return subprocess.run([sys.executable, "-m", "mica.source", *names], capture_output=True, text=True, cwd=package)


def test_the_command_prints_what_runs():
    done = run("q", "k", "v", "o")
    assert done.returncode == 0, done.stderr
    title, text = done.stdout.split("\n", 1)
    assert title == "# <mica forward: q, k, v -> o>"
    compile(text, title, "exec")
    assert text == _caller._source(("q", "k", "v", "o"), ("o",), ())


def test_without_a_name_all_of_them():
    texts = mica.source.sources()
    assert {"<mica forward: q, k, v -> o>", "<mica forward: q, k, v -> o, lse>"} <= texts.keys()
    q = torch.zeros(1, 4, 2, 8)
    mica.attention(q, q, q, mask=torch.ones(4, 4, dtype=torch.bool))
    assert any("boolean_mask?" in title for title in mica.source.sources())


def test_inspect_and_tracebacks_show_the_lines():
    call = _caller.caller(_abi.FORWARD, ("q", "k", "v", "o"), ("o",))
    assert inspect.getsource(call).startswith("def call(options, q, k, v):\n")
    assert "return entry" in inspect.getsource(call.find) and "entry.device" in inspect.getsource(call.again)
    with pytest.raises(AttributeError) as error:
        call(None, 1, 2, 3)
    shown = "".join(traceback.format_exception(error.type, error.value, error.tb))
    assert "<mica forward: q, k, v -> o>" in shown and "device = q.get_device()" in shown


@pytest.mark.parametrize("names, says", [
    (("q", "keys"), "'keys' is no tensor of a call, want some of q, k, v, o, lse"),
    (("q", "k", "v"), "o is not among the tensors, want q, k, v and o at least")])
def test_what_is_no_call(names, says):
    done = run(*names)
    assert done.returncode == 2 and says in done.stderr and not done.stdout


def test_help():
    assert "python -m mica.source" in run("--help").stdout and run("--what").returncode == 2
