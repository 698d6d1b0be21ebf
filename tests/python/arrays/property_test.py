# SPDX-License-Identifier: Apache-2.0
"""Random argument sets, legal and not, through NumPy, torch and the drop-in: each gives the number of the formula or is
refused, as the rules below say, and nothing else. Gradients of small fp32 cases against the formula in double."""

import random

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
np = pytest.importorskip("numpy", reason="NumPy is not installed")

import mica  # noqa: E402
import reference  # noqa: E402

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


def as_numpy(value):
    return value.numpy() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("seed", range(DRAWS))
def test_a_number_or_a_refusal(seed):
    q, k, v, options, why = draw(seed)
    for convert in (lambda value: value, as_numpy):
        arguments = [convert(t) for t in (q, k, v)]
        given = {name: convert(value) for name, value in options.items()}
        if why:
            with pytest.raises(ValueError, match=why):
                mica.attention(*arguments, **given)
            continue
        got, lse = mica.attention(*arguments, return_lse=True, **given)
        want, want_lse = formula(q, k, v, options)
        torch.testing.assert_close(torch.as_tensor(got).double(), want, rtol=2e-4, atol=2e-5)
        torch.testing.assert_close(torch.as_tensor(lse).double(), want_lse, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("seed", range(0, DRAWS, 3))
def test_gradients_of_small_cases(seed):
    q, k, v, options, why = draw(seed)
    if why:
        options, (q, k, v) = {}, (torch.randn(1, 3, 2, 4) for _ in range(3))
    leaves = [q, k, v] + [options[name] for name in ("bias", "sinks") if name in options]
    results = []
    for kind in ("mica", "formula"):
        dtype = torch.float32 if kind == "mica" else torch.float64
        copies = [t.detach().clone().to(dtype).requires_grad_() for t in leaves]
        given = dict(options)
        given.update(zip([name for name in ("bias", "sinks") if name in options], copies[3:]))
        o = mica.attention(*copies[:3], **given) if kind == "mica" else formula(*copies[:3], given)[0]
        results.append(torch.autograd.grad(o.square().sum(), copies))
    for got, want in zip(*results):
        torch.testing.assert_close(got.double(), want, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("seed", range(0, DRAWS, 4))
def test_the_drop_in_agrees(seed):
    flash_attn = pytest.importorskip("flash_attn", reason="the drop-in flash_attn is not installed")
    q, k, v, options, why = draw(seed)
    given = {name: value for name, value in options.items() if name in ("scale", "softcap", "alibi")}
    is_causal = "causal" in options and options["causal"] in (True, "bottom-right")
    arguments = dict(softmax_scale=given.get("scale"), softcap=given.get("softcap", 0.0), causal=is_causal,
                     alibi_slopes=given.get("alibi"))
    if why and why.split(".")[0] in ("k", "v", "shape"):
        with pytest.raises((ValueError, RuntimeError)):
            flash_attn.flash_attn_func(q, k, v, **arguments)
    elif not why:
        want = mica.attention(q, k, v, causal=is_causal, **given)
        torch.testing.assert_close(flash_attn.flash_attn_func(q, k, v, **arguments), want)
