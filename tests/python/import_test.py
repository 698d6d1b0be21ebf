# SPDX-License-Identifier: Apache-2.0
"""`import mica` is quick and brings nothing along."""

import os
import subprocess
import sys

from conftest import ROOT

import mica


def run(program):
    package = os.path.dirname(os.path.dirname(mica.__file__))
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True,
                          cwd=package).stdout


def test_imports_neither_torch_nor_numpy():
    assert run("import sys, mica; print([m for m in ('torch', 'numpy') if m in sys.modules])") == "[]\n"


def test_takes_less_than_50_ms():
    # Processor time: the machine may be busy with other things.
    program = "import time; begin = time.process_time(); import mica; print(time.process_time() - begin)"
    assert min(float(run(program)) for _ in range(3)) < 0.05


def test_version():
    assert mica.__version__.count(".") == 2
    if (ROOT / "CMakeLists.txt").exists():
        assert f"VERSION {mica.__version__}" in (ROOT / "CMakeLists.txt").read_text()
    assert set(mica.__all__) <= set(dir(mica))
