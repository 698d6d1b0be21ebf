# SPDX-License-Identifier: Apache-2.0
"""Bench suites: the same files that `mica bench` reads (cli/attention/suite.h says what they may hold).

Two keys of a case are for compare.py alone: "peers" (names of backends to compare with) and "beside" (options that turn the
case into another one, whose time by Mica is the yardstick; or "dense-rate", for packed sequences). Among the options of
"beside" may be "capacity": a cache with room for so many keys, of which it holds seqlen_k. And one option is: "latent",
V is the first dim_v columns of K, and its bytes count once."""

import itertools
import json

DEFAULTS = {
    "pass": "forward", "dtype": "bf16", "device": "cpu", "batch": 1, "seqlen_q": 1024, "seqlen_k": -1, "heads_q": 8,
    "heads_k": -1, "dim": 64, "dim_v": -1, "causal": "none", "window": [], "chunk": 0, "scale": 0.0,
    "softcap": 0.0, "alibi": False, "sinks": False, "bias": False, "mask": False, "dropout": 0.0, "varlen": [], "paged": 0,
    "append": 0, "rotary": 0, "splits": 0, "deterministic": False, "batch_invariant": False, "capacity": 0,
    "latent": False,
}
LIST_VALUED = ("window", "varlen", "peers")


class Case(dict):
    """A problem with every option, -1 resolved."""

    def __init__(self, options, peers=None, beside=None):
        unknown = set(options) - set(DEFAULTS)
        if unknown:
            raise ValueError(f"{', '.join(sorted(unknown))}: no such option of a problem")
        super().__init__({**DEFAULTS, **options})
        self.given, self.peers, self.beside = dict(options), peers, beside
        for name, other in (("seqlen_k", "seqlen_q"), ("heads_k", "heads_q"), ("dim_v", "dim")):
            if self[name] < 0:
                self[name] = self[other]

    @property
    def is_backward(self):
        return self["pass"] == "backward"

    @property
    def name(self):
        def pair(a, b):
            return f"{self[a]}" if self[a] == self[b] else f"{self[a]},{self[b]}"
        sequences = ([f"b{self['batch']}", "s" + pair("seqlen_q", "seqlen_k")] if not self["varlen"] else
                     [f"varlen{len(self['varlen'])}x{sum(self['varlen'])}"])
        words = [self["pass"], self["dtype"], *sequences, "h" + pair("heads_q", "heads_k"), "d" + pair("dim", "dim_v")]
        if self["causal"] != "none":
            words.append("causal" if self["causal"] == "bottom-right" else "causal-top-left")
        if self["window"]:
            words.append("window{},{}".format(*self["window"]))
        if self["chunk"]:
            words.append(f"chunk{self['chunk']}")
        words += [word for word in ("softcap", "alibi", "bias", "mask", "sinks", "dropout") if self[word]]
        words += [f"{word}{self[word]}" for word in ("paged", "append", "rotary", "splits", "capacity") if self[word]]
        words += [word.replace("_", "-") for word in ("deterministic", "batch_invariant") if self[word]]
        return " ".join(words)

    def visible_pairs(self):
        """Pairs (query, key) of one head, over all sequences, that causal, window and chunks leave visible."""
        if self["varlen"]:
            return sum(self._pairs_of(length, length) for length in self["varlen"])
        return self["batch"] * self._pairs_of(self["seqlen_q"], self["seqlen_k"])

    def _pairs_of(self, rows, keys):
        (left, right), chunk = self["window"] or (-1, -1), self["chunk"]
        if self["causal"] != "none":
            right = 0
        if left < 0 and right < 0 and not chunk:
            return rows * keys
        shift = 0 if self["causal"] == "top-left" else keys - rows
        pairs = 0
        for i in range(rows):
            begin = 0 if left < 0 else min(max(i + shift - left, 0), keys)
            end = keys if right < 0 else min(max(i + shift + right + 1, begin), keys)
            if chunk:
                first = (i + shift) // chunk * chunk
                begin, end = max(begin, first), min(end, first + chunk)
            pairs += max(end - begin, 0)
        return pairs

    def flops(self):
        per_pair = 6 * self["dim"] + 4 * self["dim_v"] if self.is_backward else 2 * (self["dim"] + self["dim_v"])
        return self["heads_q"] * self.visible_pairs() * per_pair

    def bytes(self):
        """What must be read or written at least once."""
        element = 4 if self["dtype"] == "fp32" else 2
        rows, keys = self["batch"] * self["seqlen_q"], self["batch"] * self["seqlen_k"]
        if self["varlen"]:
            rows = keys = sum(self["varlen"])
        of_query, of_key = self["dim"] + self["dim_v"], self["dim"] + (0 if self["latent"] else self["dim_v"])
        once = element * (of_query * rows * self["heads_q"] + of_key * keys * self["heads_k"])
        return 2 * once if self.is_backward else once

    def is_memory_bound(self):
        return self.flops() < 16 * self.bytes()

    def beside_case(self):
        return Case({**self.given, **self.beside})


def expand(options):
    """Every combination of a case's choices."""
    def choices(key, value):
        is_choice = isinstance(value, list) and (key not in LIST_VALUED or (value and isinstance(value[0], list)))
        return value if is_choice else [value]
    keys = sorted(options)
    for combination in itertools.product(*(choices(key, options[key]) for key in keys)):
        chosen = dict(zip(keys, combination))
        yield Case({k: v for k, v in chosen.items() if k not in ("peers", "beside")}, chosen.get("peers"),
                   chosen.get("beside"))


def load(path):
    with open(path) as file:
        suite = json.load(file)
    return suite["name"], [case for options in suite["cases"] for case in expand(options)]
