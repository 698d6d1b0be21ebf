# SPDX-License-Identifier: Apache-2.0
"""Random argument sets of mica.attention, legal and not, and the formula's answer: what the property tests draw from."""

import random

import reference
import torch

DRAWS = 120


def draw(seed):
    """(q, k, v, options, why it must be refused or "")."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    batch, rows, keys = rng.choice([1, 2, 3]), rng.choice([1, 2, 5, 17]), rng.choice([1, 3, 5, 33])
    key_heads = rng.choice([1, 2, 3])
    heads, dim, dim_v = key_heads * rng.choice([1, 2, 4]), rng.choice([1, 4, 8, 20]), rng.choice([4, 8, 12])
    q, k, v = (torch.randn(batch, n, h, d) for n, h, d in ((rows, heads, dim), (keys, key_heads, dim),
                                                           (keys, key_heads, dim_v)))
    options, why = {}, ""
    if rng.random() < 0.5:
        options["causal"] = rng.choice([True, "top-left", "bottom-right"])
    if rng.random() < 0.4:
        options["window"] = (rng.choice([0, 2, 40, None]), None if "causal" in options else rng.choice([0, 3, None]))
    if rng.random() < 0.2:
        options["chunk"] = rng.choice([1, 5, 16])
    if rng.random() < 0.3:
        options["scale"] = rng.choice([0.1, 1.0, -0.5])
    if rng.random() < 0.3:
        options["softcap"] = rng.choice([1.0, 30.0])
    if rng.random() < 0.3:
        options["mask"] = torch.rand(rng.choice([1, batch]), rng.choice([1, heads]), rng.choice([1, rows]), keys) > 0.3
    if rng.random() < 0.3:
        options["bias"] = torch.randn(1, rng.choice([1, heads]), rows, rng.choice([1, keys]))
    if rng.random() < 0.3:
        options["sinks"] = torch.randn(heads)
    if rng.random() < 0.3:
        options["alibi"] = torch.rand(heads)
    if rng.random() < 0.4:
        options["num_splits"] = rng.choice([0, 1, 3])
    wrong = rng.choice([None, None, "head dimension", "heads", "batch", "type", "mask", "window", "scale", "splits",
                        "causal", "sinks", "dropout", "keys"])
    if wrong == "head dimension":
        k, why = torch.randn(batch, keys, key_heads, dim + 1), "k.shape"
    elif wrong == "heads":
        q, why = torch.randn(batch, rows, heads + key_heads + 1, dim), "shape"
        why = "" if (heads + key_heads + 1) % key_heads == 0 else why
        for name in ("mask", "bias", "sinks", "alibi"):
            options.pop(name, None)
    elif wrong == "batch":
        k, v, why = k.repeat(2, 1, 1, 1), v.repeat(2, 1, 1, 1), "k.shape"
    elif wrong == "keys":
        v, why = torch.randn(batch, keys + 1, key_heads, dim_v), "v.shape"
    elif wrong == "type":
        v, why = v.half(), "v.dtype"
    elif wrong == "mask":
        options["mask"], why = torch.ones(1, 1, rows + 2, keys + 2, dtype=torch.bool), "mask.shape"
    elif wrong == "window":
        options["window"], why = rng.choice([(-1, 0), (1.5, 0), "12", (2**40, 0), 3]), "window"
    elif wrong == "scale":
        options["scale"], why = rng.choice([0.0, 1e-46, float("inf"), "1"]), "scale"
    elif wrong == "splits":
        options["num_splits"], why = rng.choice([-1, 257, 2**40, 1.5]), "num_splits"
    elif wrong == "causal":
        options["causal"], why = rng.choice(["left", 7, [True]]), "causal"
    elif wrong == "sinks":
        options["sinks"], why = torch.randn(heads + 1), "sinks"
    elif wrong == "dropout":
        options["dropout"], why = rng.choice([1.0, -0.1, 2.0]), "dropout"
    return q, k, v, options, why


def formula(q, k, v, options):
    given = {name: value for name, value in options.items() if name != "num_splits"}
    return reference.attention(q, k, v, **given)
