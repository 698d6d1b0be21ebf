# SPDX-License-Identifier: Apache-2.0
"""bench/scale.py: the model's limits, and its small end against gloo processes."""

import importlib.util
import os
import subprocess
import sys

import pytest
from conftest import ROOT

SCALE = ROOT / "bench/scale.py"
if not SCALE.exists():
    pytest.skip("bench/ is not here", allow_module_level=True)
spec = importlib.util.spec_from_file_location("scale", SCALE)
scale = importlib.util.module_from_spec(spec)
sys.modules["scale"] = scale
spec.loader.exec_module(scale)
DEVICE = scale.Device("a device", 5e14, 3e10, 2e-5, 3e12)
PROBLEM = scale.Problem(2**20)


def test_zigzag_halves_a_causal_ring():
    of = scale.estimates(DEVICE, PROBLEM, 64)
    assert 0.45 < of["zigzag"].seconds / of["ring"].seconds < 0.6


def test_no_layout_beats_dividing_the_work():
    for ranks in (8, 64, 1024):
        ideal = scale._pair_flops(PROBLEM, PROBLEM.tokens, PROBLEM.tokens) / 2 / DEVICE.rate / ranks
        for layout, estimate in scale.estimates(DEVICE, PROBLEM, ranks).items():
            assert estimate.seconds >= 0.99 * ideal, layout


def test_communication_hides_behind_long_pieces_alone():
    slow = scale.Link("slow", 1e9, 1e-4)
    assert not scale.ring(DEVICE, PROBLEM, 64, 1, slow, slow, "zigzag").is_hidden
    assert scale.ring(DEVICE, PROBLEM, 8, 8, scale.NVLINK, slow, "zigzag").is_hidden


def test_heads_bound_ulysses():
    assert "ulysses" in scale.estimates(DEVICE, PROBLEM, 16) and "ulysses" not in scale.estimates(DEVICE, PROBLEM, 32)


def test_the_page_has_the_table():
    page = ROOT / "docs/user/distributed.md"
    made = subprocess.run([sys.executable, str(SCALE)], capture_output=True, text=True, check=True).stdout
    assert made.rstrip() in page.read_text()


@pytest.mark.skipif(not os.environ.get("MICA_TEST_ALL"), reason="make test-all runs it")
def test_small_end():
    """Processes that share cores with others take longer than the model says, never much less."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    made = subprocess.run([sys.executable, str(SCALE), "--gloo", "2", "--gloo-tokens", "2048"], capture_output=True,
                          text=True, timeout=200)
    assert made.returncode == 0, made.stderr
    ratios = [float(line.split()[-1].rstrip("x")) for line in made.stdout.splitlines()]
    assert len(ratios) == 3 and all(0.5 < ratio < 3 for ratio in ratios), made.stdout
