#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of a Transformers model with Mica's attention beside eager and sdpa, in one process.

    python bench/transformers_speed.py --device cuda
    python bench/transformers_speed.py --device cuda --batch 1,4 --cache dynamic,static,compiled --json out/transformers.json
    python bench/transformers_speed.py --device cuda --batch 1,4 --cache dynamic,static --by-token
    python bench/transformers_speed.py --device cpu --layers 2 --prompt 512 --new-tokens 16
    for i in 0 1; do python bench/transformers_speed.py --cache compiled --turns turns,$i,2 --implementations ... & done

The model has the shape of Qwen3 0.6B with random weights, bf16: nothing is downloaded. Prefill is one forward pass
over the prompt, decode greedy generation after it with a dynamic cache, a static one, or a static one for which
Transformers compiles the model ("compiled": CUDA graphs); each implementation's logits are checked against the same
weights in fp32 (at most twice eager's error, or sdpa's where eager does not fit) before it is timed. Implementations
take turns; figures are medians. With --by-token they take turns by the token within each generation, which tells them apart on
a host whose speed drifts: decode is then the median of its steps. Processes may take turns as well (--turns): what they compile they compile at once, and then
only one of them runs. flash_attention_2 joins where Mica's drop-in is installed and there is a GPU."""

import argparse
import contextlib
import gc
import importlib.metadata
import json
import os
import pathlib
import random
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
    parser.add_argument("--batch", default="4", help="comma-separated")
    parser.add_argument("--cache", default="dynamic", help="comma-separated: dynamic, static, compiled")
    parser.add_argument("--prompt", type=int, default=4096, help="tokens of each prompt")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--implementations", default="", help="comma-separated (default: all that are there)")
    parser.add_argument("--by-token", action="store_true", help="implementations take turns by the token")
    parser.add_argument("--turns", metavar="FOLDER,I,N", help="this is process I of N, which meet in an empty folder")
    parser.add_argument("--json", help="also write the figures to this file")
    given = parser.parse_args()
    given.turns = Turns(*given.turns.split(",")) if given.turns else Turns()
    given.batches = [int(batch) for batch in given.batch.split(",")]
    given.caches = given.cache.split(",")
    if given.by_token and "compiled" in given.caches:
        parser.error("--by-token is given with a compiled cache, want dynamic or static: a compiled model has one attention")
    for cache in given.caches:
        if cache not in CACHES:
            parser.error(f"--cache is {cache}, want one of {', '.join(CACHES)}")
    return given


class Turns:
    """Of N processes that make the same samples, each makes its own while the others wait."""

    def __init__(self, folder="", index=0, count=1):
        self._folder, self._index, self._count, self._round = pathlib.Path(folder), int(index), int(count), 0

    def _wait_for(self, turn):
        while self._count > 1 and not (self._folder / str(turn)).exists():
            time.sleep(0.002)

    def _say(self, turn):
        if self._count > 1:
            (self._folder / str(turn)).touch()

    def meet(self):
        """Returns when all are here."""
        self._say(f"here{self._index}")
        for other in range(self._count):
            self._wait_for(f"here{other}")

    @contextlib.contextmanager
    def mine(self):
        """The next round's turn of this process."""
        turn = self._round * self._count + self._index
        if turn:
            self._wait_for(turn - 1)
        yield
        self._say(turn)
        self._round += 1


# By name, what generate is told.
CACHES = {
    "dynamic": {},
    "static": dict(cache_implementation="static", disable_compile=True),
    "compiled": dict(cache_implementation="static"),
}


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


def generate_seconds(model, ids, new_tokens, cache, device, **options):
    wait(device)
    start = time.perf_counter()
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, min_new_tokens=new_tokens,
                   do_sample=False, pad_token_id=0, eos_token_id=None, **CACHES[cache], **options)
    wait(device)
    return time.perf_counter() - start


class TokenTurns(transformers.StoppingCriteria):
    """Asked after every token, it notes how long the token took, and whose attention is next; it stops after so many."""

    def __init__(self, model, names, first, tokens, device):
        self._model, self._names, self._at, self._device, self._start = model, names, first, device, None
        self._last = first + tokens
        self.seconds = {name: [] for name in names}
        switch(model, self._whose())

    def _whose(self):
        return self._names[self._at % len(self._names)]

    def __call__(self, ids, scores, **kwargs):
        wait(self._device)
        if self._start is not None:  # the first is the prompt's
            self.seconds[self._whose()].append(time.perf_counter() - self._start)
        self._at += 1
        switch(self._model, self._whose())
        is_done = torch.full((ids.shape[0],), self._at >= self._last, device=ids.device)
        wait(self._device)
        self._start = time.perf_counter()
        return is_done


def may_share(names, cache):
    """Those that may take turns within a generation. With a static cache generate leaves the mask out unless the attention that
    it begins with is a flash function, which would read the whole cache without it."""
    if cache != "static":
        return [names]
    return [group for group in ([n for n in names if "flash" not in n], [n for n in names if "flash" in n]) if group]


def measure_by_token(model, names, ids, cache, given):
    """The figures of measure(). A length of a dynamic cache that sdpa meets for the first time takes it longer (cuDNN makes a
    plan): it meets them all before any is timed. Of the tokens of a sample each group makes its share, so that all have as
    many."""
    def generate(group, first, tokens):
        turns = TokenTurns(model, group, first, tokens, given.device)
        generate_seconds(model, ids, given.new_tokens, cache, given.device,
                         stopping_criteria=transformers.StoppingCriteriaList([turns]))
        return turns.seconds

    prefill = {name: [] for name in names}
    steps = {name: [] for name in names}
    for name in names:
        generate([name], 0, given.new_tokens if name == "sdpa" and cache == "dynamic" else min(given.new_tokens, 8))
    for sample in range(given.samples):
        for group in may_share(names, cache):
            tokens = max(given.new_tokens * len(group) // len(names), len(group) + 1)
            for name, seconds in generate(group, sample, tokens).items():
                steps[name] += seconds
    # One takes 30 ms, and a host's speed changes faster than that.
    for sample in range(1 + (max(given.samples, 15) if given.device.startswith("cuda") else given.samples)):
        for name in random.sample(names, len(names)):
            switch(model, name)
            seconds = prefill_seconds(model, ids, given.device)
            if sample:  # the first warms up
                prefill[name].append(seconds)
    return {name: dict(prefill_tokens_per_second=ids.numel() / statistics.median(prefill[name]),
                       decode_tokens_per_second=ids.shape[0] / statistics.median(steps[name]),
                       samples=len(prefill[name]), steps=len(steps[name])) for name in names}


def measure(model, names, ids, cache, given):
    """{implementation: {prefill, decode}} in tokens per second; a round of warming up, then turns."""
    prefill = {name: [] for name in names}
    whole = {name: [] for name in names}
    for sample in range(given.samples + 1):
        if sample == 1:
            given.turns.meet()
        with given.turns.mine() if sample else contextlib.nullcontext():
            for name in names:
                switch(model, name)
                first = prefill_seconds(model, ids, given.device)
                # A compiled model is one of this length of the cache: its first calls compile and record.
                few = not sample and cache != "compiled"
                total = generate_seconds(model, ids, min(given.new_tokens, 8) if few else given.new_tokens, cache,
                                         given.device)
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


def run_batch(model, names, batch, given):
    """Yields the record of one batch as it grows by the figures of each cache; its errors first."""
    ids = torch.randint(0, 151936, (batch, given.prompt), device=given.device)
    errors = errors_of(model, names if "sdpa" in names else [*names, "sdpa"], ids)
    yardstick = errors.get("eager") or errors.get("sdpa")
    wrong = [n for n in names if errors[n] is not None and yardstick and errors[n] > 2 * yardstick]
    fitting = [n for n in names if errors[n] is not None and n not in wrong]
    record = dict(errors=errors, wrong=wrong, figures={})
    for cache in given.caches:
        record["figures"][cache] = (measure_by_token if given.by_token else measure)(model, fitting, ids, cache, given)
        report(f"batch {batch}, {cache}", names, record, record["figures"][cache])
        yield record


def report(title, names, record, figures):
    print(f"{title:20}{'prefill tok/s':>15}{'decode tok/s':>15}{'of sdpa':>16}{'error':>10}")
    for name in names:
        error = "-" if record["errors"][name] is None else f"{record['errors'][name]:.4f}"
        if name not in figures:
            print(f"{name:20}{'wrong' if name in record['wrong'] else 'out of memory':>30}{error:>26}")
            continue
        parts = [figures[name][f"{part}_tokens_per_second"] for part in ("prefill", "decode")]
        ratios = "-"
        if "sdpa" in figures:
            sdpa = [figures["sdpa"][f"{part}_tokens_per_second"] for part in ("prefill", "decode")]
            ratios = " ".join(f"{x / y:.2f}x" for x, y in zip(parts, sdpa))
        print(f"{name:20}{parts[0]:>15.0f}{parts[1]:>15.0f}{ratios:>16}{error:>10}", flush=True)


def main():
    given = parse_arguments()
    torch.manual_seed(0)
    with torch.device(given.device):
        model = transformers.AutoModelForCausalLM.from_config(qwen3_06b(given.layers), attn_implementation="sdpa")
    model = model.to(torch.bfloat16).eval()
    names = implementations(given.implementations, given.device)
    device = torch.cuda.get_device_name() if given.device.startswith("cuda") else "cpu"
    print(f"{device}, Qwen3 0.6B's shape, {given.layers} layers, bf16, prompt {given.prompt}, "
          f"{given.new_tokens} new tokens; mica {mica.__version__}, transformers {transformers.__version__}, "
          f"torch {torch.__version__}", flush=True)
    record = dict(device=device, commit=commit(), transformers=transformers.__version__, torch=torch.__version__,
                  layers=given.layers, prompt=given.prompt, new_tokens=given.new_tokens, by_token=given.by_token, runs={})
    with torch.no_grad():
        for batch in given.batches:
            for run in run_batch(model, names, batch, given):
                record["runs"][f"batch_{batch}"] = run
                save(record, given.json)
    return 1 if any(run["wrong"] for run in record["runs"].values()) else 0


def save(record, path):
    if path:
        with open(path, "w") as file:
            json.dump(record, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    sys.exit(main())
