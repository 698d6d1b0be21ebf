# SPDX-License-Identifier: Apache-2.0
"""A model trained over ranks has the losses of one that is trained on one."""

import json
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


def outside():
    """The environment of a program that imports this Mica and finds torchrun."""
    import mica
    package = os.path.dirname(os.path.dirname(mica.__file__))
    return dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join([package, os.environ.get("PYTHONPATH", "")]),
                PATH=os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))


@pytest.mark.skipif(not os.environ.get("MICA_TEST_ALL"), reason="make test-all runs it")
def test_torchrun():
    """As a user starts it."""
    made = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                           str(training.EXAMPLE), "--steps", "3", "--seqlen", "64"], env=outside(),
                          capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr
    assert made.stdout.count("loss") == 3


@pytest.mark.skipif(not os.environ.get("MICA_TEST_ALL"), reason="make test-all runs it")
def test_slurm(tmp_path):
    """examples/distributed/train.slurm as a job of two tasks, two processes each, of a Slurm that this test starts; its
    losses are those of one process."""
    rig = training.EXAMPLE.parents[2] / "tests/builder/slurm/slurm_rig.py"
    if not rig.exists():
        pytest.skip("tests/builder is not here")
    environment = dict(outside(), PROCESSES_PER_NODE="2", PYTHON=sys.executable)
    made = subprocess.run([sys.executable, str(rig), "--mib", "6000", "sbatch", "--wait", "--nodes=1", "--ntasks=2",
                           "--ntasks-per-node=2", "--overcommit", "--mem=6000", f"--output={tmp_path}/said",
                           str(training.EXAMPLE.with_suffix(".slurm")), "--steps", "3", "--seqlen", "64",
                           "--json", f"{tmp_path}/losses"], env=environment, cwd=training.EXAMPLE.parents[2],
                          capture_output=True, text=True, timeout=600)
    if made.returncode == 77:
        pytest.skip(made.stdout.strip().splitlines()[-1])
    said = (tmp_path / "said").read_text() if (tmp_path / "said").exists() else ""
    assert made.returncode == 0, made.stdout + made.stderr + said
    assert said.count("loss") == 3
    alone = Ranks(1)
    try:
        (want,) = alone.run(training.losses, "zigzag", 3, 64, "float32")
    finally:
        alone.end()
    assert json.loads((tmp_path / "losses").read_text()) == pytest.approx(want, rel=TOLERANCE["float32"])
