# SPDX-License-Identifier: Apache-2.0
"""A model trained over ranks has the losses of one that is trained on one."""

import os
import subprocess
import sys

import pytest
import training
from over_ranks.ranks import Ranks

pytest.importorskip("torch", reason="PyTorch is not installed")
if not training.EXAMPLE.exists():
    pytest.skip("examples/ is not here", allow_module_level=True)
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2}
LAYOUTS = ("ring", "zigzag", "stripe", "ulysses")


def compare(ranks, layout, steps, seqlen, dtype):
    alone = Ranks(1)
    try:
        (want,) = alone.run(training.losses, layout, steps, seqlen, dtype)
    finally:
        alone.end()
    for got in ranks.run(training.losses, layout, steps, seqlen, dtype):
        for step, (a, b) in enumerate(zip(got, want)):
            assert abs(a - b) <= TOLERANCE[dtype] * abs(b), f"step {step}: {a} and not {b}"
    assert steps < 50 or want[-1] < want[0]


def test_two_ranks(two):
    compare(two, "zigzag", 4, 60, "float32")


@pytest.mark.skipif(not os.environ.get("MICA_TEST_ALL"), reason="make test-all runs it")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_fifty_steps(two, layout, dtype):
    compare(two, layout, 50, 128, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_fifty_steps_on_four_ranks(four, dtype):
    compare(four, "zigzag", 50, 120, dtype)


@pytest.mark.skipif(not os.environ.get("MICA_TEST_ALL"), reason="make test-all runs it")
def test_torchrun(tmp_path):
    """As a user starts it."""
    import mica
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([os.path.dirname(os.path.dirname(mica.__file__)),
                                                               os.environ.get("PYTHONPATH", "")]), OMP_NUM_THREADS="1")
    made = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                           str(training.EXAMPLE), "--steps", "3", "--seqlen", "64"], env=environment,
                          capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr
    assert made.stdout.count("loss") == 3
