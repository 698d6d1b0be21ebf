# SPDX-License-Identifier: Apache-2.0
"""A fixed sample of what `make transformers-truth` runs: twelve model types, each with every case that it has."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from conftest import ROOT

pytest.importorskip("torch", reason="PyTorch is not installed")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", minversion="4.57", reason="no transformers 4.57 or later here")

import mica.integrations.transformers  # noqa: E402,F401

_path = next((ROOT / "tools").rglob("transformers_truth.py"))
_spec = importlib.util.spec_from_file_location("transformers_truth", _path)
truth = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(truth)

SAMPLE = {"qwen3": "works", "llama": "works", "gemma3_text": "works", "bart": "works", "whisper": "works",
          "siglip_vision_model": "works", "clip": "works", "internvl": "works", "qwen2_vl": "works",
          "wav2vec2": "works", "bloom": "refused", "falcon": "refused"}


# The sweep forks, which autograd's threads do not survive: so it starts from a process in which no test ran a backward pass.
EXAMINER = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("transformers_truth", sys.argv[1])
truth = importlib.util.module_from_spec(spec)
spec.loader.exec_module(truth)
import torch, transformers, mica.integrations.transformers
for line in sys.stdin:
    print("result " + json.dumps(truth.in_a_process(line.strip())), flush=True)
"""


@pytest.fixture(scope="module")
def examine():
    process = subprocess.Popen([sys.executable, "-c", EXAMINER, str(_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True)

    def ask(model_type):
        process.stdin.write(model_type + "\n")
        process.stdin.flush()
        for line in process.stdout:
            if line.startswith("result "):
                return json.loads(line[len("result "):])
        raise AssertionError("the examining process ended")

    yield ask
    process.stdin.close()
    process.wait()


@pytest.mark.parametrize("model_type", SAMPLE)
def test_a_model_of_the_sweep(model_type, examine):
    result = examine(model_type)
    word, why = truth.verdict_of(result)
    assert word == SAMPLE[model_type], f"{why} {result['cases']}"
    if word == "works":
        verdicts = [verdict for verdict, _ in result["cases"].values()]
        assert "forward" in result["cases"] and verdicts.count("right") >= 3 and result["calls"] > 0
