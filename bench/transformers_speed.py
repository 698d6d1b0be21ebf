#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of a Transformers model with Mica's attention beside eager and sdpa, in one process.

    python bench/transformers_speed.py --device cuda
    python bench/transformers_speed.py --device cuda --prompt 16384 --batch 4 --json out/transformers.json
    python bench/transformers_speed.py --device cpu --layers 2 --prompt 512 --new-tokens 16

The model has the shape of Qwen3 0.6B with random weights, bf16: nothing is downloaded. Prefill is one forward pass
over the prompt, decode greedy generation after it with a dynamic cache; each implementation's logits are checked
against the same weights in fp32 (at most twice eager's error, or sdpa's where eager does not fit) before it is
timed. Implementations take turns; figures are medians. flash_attention_2 joins where Mica's drop-in is installed and
there is a GPU."""

import argparse
import gc
import importlib.metadata
import json
import os
import statistics
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch  # noqa: E402
import transformers  # noqa: E402

import mica  # noqa: E402
import mica.integrations.transformers  # noqa: E402, F401
from compare import commit  # noqa: E402


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cpu, cuda or cuda:N")
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=4096, help="tokens of each prompt")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--implementations", default="", help="comma-separated (default: all that are there)")
    parser.add_argument("--json", help="also write the figures to this file")
    return parser.parse_args()


def qwen3_06b(layers):
    return transformers.Qwen3Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=layers, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, rope_theta=1e6, tie_word_embeddings=True, max_position_embeddings=131072,
        eos_token_id=None, bos_token_id=None, dtype=torch.bfloat16)


def implementations(given, device):
    if given:
        return given.split(",")
    names = ["mica", "sdpa", "eager"]
    try:
        if device.startswith("cuda") and "mica" in importlib.metadata.version("flash-attn"):
            names.append("flash_attention_2")
    except importlib.metadata.PackageNotFoundError:
        pass
    return names


def switch(model, name):
    """The same weights with another attention."""
    model.set_attn_implementation(name)


def wait(device):
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def last_logits(model, ids):
    return model(ids, logits_to_keep=64, use_cache=False).logits.double()


def errors_of(model, names, ids):
    """Largest error of the last logits against fp32, by implementation; None where it does not fit into memory."""
    errors = {}
    switch(model, "sdpa")
    model.float()
    exact = last_logits(model, ids)
    model.bfloat16()
    for name in names:
        switch(model, name)
        try:
            errors[name] = (last_logits(model, ids) - exact).abs().max().item()
        except torch.cuda.OutOfMemoryError:
            errors[name] = None
        gc.collect()
    return errors


def prefill_seconds(model, ids, device):
    wait(device)
    start = time.perf_counter()
    model(ids, logits_to_keep=1, use_cache=False)
    wait(device)
    return time.perf_counter() - start


def generate_seconds(model, ids, new_tokens, device):
    wait(device)
    start = time.perf_counter()
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, min_new_tokens=new_tokens,
                   do_sample=False, pad_token_id=0, eos_token_id=None)
    wait(device)
    return time.perf_counter() - start


def measure(model, names, ids, given):
    """{implementation: {prefill, decode}} in tokens per second; a round of warming up, then turns."""
    prefill = {name: [] for name in names}
    whole = {name: [] for name in names}
    for sample in range(given.samples + 1):
        for name in names:
            switch(model, name)
            first = prefill_seconds(model, ids, given.device)
            total = generate_seconds(model, ids, given.new_tokens, given.device)
            if sample:
                prefill[name].append(first)
                whole[name].append(total)
    figures = {}
    for name in names:
        first, total = statistics.median(prefill[name]), statistics.median(whole[name])
        figures[name] = dict(
            prefill_tokens_per_second=ids.numel() / first,
            decode_tokens_per_second=ids.shape[0] * (given.new_tokens - 1) / max(total - first, 1e-9),
            samples=len(prefill[name]))
    return figures


def main():
    given = parse_arguments()
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(qwen3_06b(given.layers), attn_implementation="sdpa")
    model = model.to(torch.bfloat16).to(given.device).eval()
    ids = torch.randint(0, 151936, (given.batch, given.prompt), device=given.device)
    names = implementations(given.implementations, given.device)
    with torch.no_grad():
        errors = errors_of(model, names, ids)
        yardstick = errors.get("eager") or errors.get("sdpa")
        wrong = [n for n in names if errors[n] is not None and yardstick and errors[n] > 2 * yardstick]
        fitting = [n for n in names if errors[n] is not None and n not in wrong]
        figures = measure(model, fitting, ids, given)
    device = torch.cuda.get_device_name() if given.device.startswith("cuda") else "cpu"
    print(f"{device}, Qwen3 0.6B's shape, {given.layers} layers, bf16, batch {given.batch}, prompt {given.prompt}, "
          f"{given.new_tokens} new tokens; mica {mica.__version__}, transformers {transformers.__version__}, "
          f"torch {torch.__version__}")
    print(f"{'':20}{'prefill tok/s':>15}{'decode tok/s':>15}{'error':>10}")
    for name in names:
        error = "-" if errors[name] is None else f"{errors[name]:.4f}"
        if name in figures:
            prefill, decode = (figures[name][f"{part}_tokens_per_second"] for part in ("prefill", "decode"))
            print(f"{name:20}{prefill:>15.0f}{decode:>15.0f}{error:>10}")
        else:
            print(f"{name:20}{'wrong' if name in wrong else 'out of memory':>30}{error:>10}")
    if given.json:
        record = dict(device=device, commit=commit(), transformers=transformers.__version__, torch=torch.__version__,
                      layers=given.layers, batch=given.batch, prompt=given.prompt, new_tokens=given.new_tokens,
                      errors=errors, figures=figures)
        with open(given.json, "w") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
