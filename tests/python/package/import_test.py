# SPDX-License-Identifier: Apache-2.0
"""`import mica` is quick and brings nothing along."""

import json
import os
import subprocess
import sys

from conftest import ROOT

import mica


def run(program):
    package = os.path.dirname(os.path.dirname(mica.__file__))
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True,
                          cwd=package).stdout


def test_imports_itself_and_a_little_of_the_standard_library():
    """What decides its time, since a time would decide by the machine's mood; docs/evidence/wheel-matrix.md has the times."""
    program = ("import json, sys; before = set(sys.modules); import mica; "
               "print(json.dumps({n: getattr(sys.modules[n], '__file__', None) for n in set(sys.modules) - before}))")
    modules = json.loads(run(program))
    own = {name for name in modules if name.split(".")[0] == "mica"}
    assert own == {"mica", "mica.errors", "mica.functions", "mica.runtime"}
    standard = os.path.dirname(os.__file__)
    others = {name: path for name, path in modules.items() if name not in own}
    assert not [n for n, path in others.items() if path and (not path.startswith(standard) or "-packages" in path)]
    assert not {"torch", "numpy", "ctypes", "inspect", "subprocess", "importlib.metadata"} & modules.keys()


def test_opens_the_library_at_the_first_call():
    program = ("import mica, os; maps = lambda: 'libmica' in open('/proc/self/maps').read(); "
               "before = maps(); mica.devices('cpu'); print(before, maps())")
    assert run(program) == "False True\n"


def test_version():
    assert mica.__version__.count(".") == 2
    if (ROOT / "CMakeLists.txt").exists():
        assert f"VERSION {mica.__version__}" in (ROOT / "CMakeLists.txt").read_text()
    assert set(mica.__all__) <= set(dir(mica))
