# SPDX-License-Identifier: Apache-2.0
"""bench/host_cost.py runs; a call from Python stays as cheap as it was made."""

import json
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from conftest import ROOT  # noqa: E402

import mica  # noqa: E402


def test_script(tmp_path):
    script = ROOT / "bench/host_cost.py"
    if not script.exists():
        pytest.skip("bench/ is not here")
    out = tmp_path / "cost.json"
    subprocess.run([sys.executable, str(script), "--device", "cpu", "--calls", "2", "--samples", "1", "--json",
                    str(out)], check=True, capture_output=True)
    cases = {case["case"]: case for case in json.loads(out.read_text())["cases"]}
    assert len(cases) == 8 and cases["forward"]["ratio"] > 0 and cases["split decode"]["limit"] == 0.8


def test_a_call_costs_a_few_operators():
    """In units of this machine at this moment: the time of torch.empty_like, which every call needs once anyway."""
    q = torch.randn(1, 1, 1, 8)

    def seconds(function):
        best = float("inf")
        for _ in range(20):
            begin = time.thread_time()
            for _ in range(500):
                function()
            best = min(best, time.thread_time() - begin)
        return best

    with torch.no_grad():
        mica.attention(q, q, q, causal=True)
        unit = seconds(lambda: torch.empty_like(q))
        assert seconds(lambda: mica.attention(q, q, q, causal=True)) < 15 * unit
