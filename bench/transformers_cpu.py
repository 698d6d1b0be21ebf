#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole Transformers models on the CPU with Mica's attention beside sdpa: tokens or images per second.

    python bench/transformers_cpu.py
    python bench/transformers_cpu.py --threads 2 --models encoder --json out/models.json

Random weights, bf16, nothing is downloaded: a language model of Qwen2.5 0.5B's shape (prefill of a prompt, then greedy
decode with a dynamic cache), vision towers of SigLIP so400m's (384 pixels) and SigLIP 2's (512 pixels), encoders of BERT
base's and ModernBERT base's. Each implementation's output is compared with the same weights in fp32 (at most twice sdpa's
error) before it is timed. They take turns; figures are medians. Exit codes: 0 all outputs were right; 1 one was not."""

import argparse
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch  # noqa: E402
import transformers  # noqa: E402

import mica  # noqa: E402
from compare import commit, cpu_name, geometric_mean  # noqa: E402
from transformers_speed import switch  # noqa: E402

IMPLEMENTATIONS = ("mica", "sdpa")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="language,vision,vision512,encoder,long_encoder",
                        help="comma-separated (default: all five)")
    parser.add_argument("--threads", type=int, default=0, help="default: all")
    parser.add_argument("--layers", type=int, default=0, help="of each model (default: as many as the real one has)")
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--json", help="also write the figures to this file")
    return parser.parse_args()


class Language:
    """Qwen2.5 0.5B: 14 query and 2 key heads of 64; a prompt of 4096 tokens."""
    batch, prompt, new_tokens = 1, 4096, 16

    def __init__(self, layers):
        config = transformers.Qwen2Config(
            vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=layers or 24,
            num_attention_heads=14, num_key_value_heads=2, rope_theta=1e6, tie_word_embeddings=True, eos_token_id=None,
            bos_token_id=None)
        self.model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
        self.ids = torch.randint(0, 151936, (self.batch, self.prompt))
        self._cache = None

    def output(self):
        return self.model(self.ids, logits_to_keep=64, use_cache=False).logits

    def parts(self):
        """{name: (what is timed, how many tokens or images one call makes, how many calls are a turn)}"""
        return {"prefill": (self._prefill, self.batch * self.prompt, 1), "decode": (self._step, self.batch, self.new_tokens)}

    def _prefill(self):
        self._cache = self.model(self.ids, logits_to_keep=1, use_cache=True).past_key_values

    def _step(self):
        """One token behind the prompt and what was decoded since."""
        made = self.model(self.ids[:, -1:], past_key_values=self._cache, logits_to_keep=1, use_cache=True)
        made.logits[:, -1].argmax(-1)


class Vision:
    """SigLIP so400m at 384 pixels: 729 tokens, 16 heads of 72."""
    batch, pixels, patch = 2, 384, 14

    def __init__(self, layers):
        config = transformers.SiglipVisionConfig(
            hidden_size=1152, intermediate_size=4304, num_hidden_layers=layers or 27, num_attention_heads=16,
            image_size=self.pixels, patch_size=self.patch)
        self.model = transformers.SiglipVisionModel._from_config(config, attn_implementation="sdpa")
        self.images = torch.randn(self.batch, 3, self.pixels, self.pixels)

    def output(self):
        return self.model(self.images.to(self.model.dtype)).last_hidden_state

    def parts(self):
        return {"images": (self.output, self.batch, 1)}


class Vision512(Vision):
    """SigLIP 2 so400m at 512 pixels: 1024 tokens."""
    pixels, patch = 512, 16


class Encoder:
    """BERT base: 12 heads of 64, passages of 512 tokens."""
    batch, length = 8, 512

    def __init__(self, layers):
        config = transformers.BertConfig(num_hidden_layers=layers or 12)
        self.model = transformers.BertModel._from_config(config, attn_implementation="sdpa")
        self.ids = torch.randint(0, config.vocab_size, (self.batch, self.length))

    def output(self):
        return self.model(self.ids).last_hidden_state

    def parts(self):
        return {"tokens": (self.output, self.batch * self.length, 1)}


class LongEncoder(Encoder):
    """ModernBERT base: 12 heads of 64, a document of 4096 tokens; two of three layers see 64 tokens to each side."""
    batch, length = 1, 4096

    def __init__(self, layers):
        config = transformers.ModernBertConfig(num_hidden_layers=layers or 22, reference_compile=False)
        self.model = transformers.ModernBertModel._from_config(config, attn_implementation="sdpa")
        self.ids = torch.randint(0, config.vocab_size, (self.batch, self.length))


MODELS = {"language": Language, "vision": Vision, "vision512": Vision512, "encoder": Encoder, "long_encoder": LongEncoder}


def errors_of(subject):
    """Largest error against fp32, by implementation."""
    switch(subject.model, "sdpa")
    exact, errors = subject.output().double(), {}
    subject.model.bfloat16()
    for name in IMPLEMENTATIONS:
        switch(subject.model, name)
        errors[name] = (subject.output().double() - exact).abs().max().item()
    return errors


def rates(subject, samples):
    """{part: {implementation: how many a second}}; a round of warming up, then turns. The median is that of calls."""
    parts = subject.parts()
    seconds = {part: {name: [] for name in IMPLEMENTATIONS} for part in parts}
    for sample in range(samples + 1):
        for name in IMPLEMENTATIONS:
            switch(subject.model, name)
            for part, (function, _, calls) in parts.items():
                for _ in range(calls):
                    begin = time.perf_counter()
                    function()
                    if sample:
                        seconds[part][name].append(time.perf_counter() - begin)
    return {part: {name: count / statistics.median(seconds[part][name]) for name in IMPLEMENTATIONS}
            for part, (_, count, _) in parts.items()}


def main():
    given = parse_arguments()
    torch.set_num_threads(given.threads or len(os.sched_getaffinity(0)))
    out = dict(cpu=cpu_name(), device=mica.devices("cpu")[0], threads=torch.get_num_threads(), torch=torch.__version__,
               transformers=transformers.__version__, commit=commit(), samples=given.samples, models={})
    print(f"{out['cpu']}, {out['threads']} threads, PyTorch {out['torch']}, Transformers {out['transformers']}, bf16\n")
    print(f"{'':22}{'mica':>10}{'sdpa':>10}{'ratio':>8}   a second")
    wrong, ratios = False, []
    for name in given.models.split(","):
        torch.manual_seed(0)
        subject = MODELS[name](given.layers)
        subject.model.eval()
        with torch.no_grad():
            errors = errors_of(subject)
            out["models"][name] = {"errors": errors}
            if not errors["mica"] <= 2 * errors["sdpa"]:
                print(f"{name}: off by {errors['mica']:.3g}, sdpa by {errors['sdpa']:.3g}")
                wrong = True
                continue
            out["models"][name]["rates"] = rates(subject, given.samples)
        for part, rate in out["models"][name]["rates"].items():
            ratios.append(rate["mica"] / rate["sdpa"])
            print(f"{name + ' ' + part:22}{rate['mica']:10.1f}{rate['sdpa']:10.1f}{ratios[-1]:7.2f}x", flush=True)
        if given.json:  # what is there so far, should it be stopped
            with open(given.json, "w") as file:
                json.dump(out, file, indent=1)
                file.write("\n")
    if ratios:
        print(f"{'geometric mean':42}{geometric_mean(ratios):7.2f}x")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
