# SPDX-License-Identifier: Apache-2.0
"""Random calls on packed sequences and caches, with every option that may stand beside another: the formula's number, and
its gradients. On a GPU in the types that it computes in."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import mica  # noqa: E402
from call_draws import Cached, Packed  # noqa: E402
from draws import DRAWS, draw, formula  # noqa: E402

DRAWS_OF_EACH = 60
LARGEST = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}


def type_of(device, seed):
    return (torch.float32, torch.bfloat16, torch.float16)[seed % 3] if device == "cuda" or seed % 2 else torch.float32


def close(got, want, dtype, factor=1.0):
    largest = factor * LARGEST[dtype]
    torch.testing.assert_close(got.double(), want, rtol=largest, atol=largest * max(1.0, want.nan_to_num(0, 0, 0).abs().amax().item())
                               if want.numel() else 0.0)


@pytest.mark.parametrize("seed", range(DRAWS_OF_EACH))
def test_packed(device, seed):
    dtype = type_of(device, seed)
    call = Packed(seed, device, dtype)
    o, lse = mica.attention_varlen(call.q, call.k, call.v, *call.cu, return_lse=True, **call.given)
    want, want_lse = call.want(call.q, call.k, call.v, call.options)
    close(o, want, dtype)
    close(lse, want_lse, dtype)


@pytest.mark.parametrize("seed", range(1000, 1000 + DRAWS_OF_EACH // 2))
def test_gradients_of_packed(device, seed):
    dtype = type_of(device, seed)
    call = Packed(seed, device, dtype)
    learned = [name for name in ("bias", "sinks") if name in call.options]
    leaves = [call.q, call.k, call.v] + [call.options[name] for name in learned]
    copies = [t.detach().requires_grad_() for t in leaves]
    o = mica.attention_varlen(*copies[:3], *call.cu, **{**call.given, **dict(zip(learned, copies[3:]))})
    weight = torch.randn_like(o)
    got = torch.autograd.grad(o, copies, weight)
    doubles = [t.detach().double().requires_grad_() for t in leaves]
    want = call.want(*doubles[:3], {**call.options, **dict(zip(learned, doubles[3:]))})[0]
    wanted = torch.autograd.grad(want, doubles, weight.double(), allow_unused=True, materialize_grads=True) if want.requires_grad \
        else [torch.zeros_like(t) for t in doubles]
    for a, b in zip(got, wanted):
        close(a, b, dtype, 3)


@pytest.mark.parametrize("seed", range(DRAWS_OF_EACH))
def test_caches(device, seed):
    dtype = type_of(device, seed)
    call = Cached(seed, device, dtype)
    want, want_lse = call.want()
    o, lse = mica.attention_with_cache(call.q, *call.caches, return_lse=True, **call.given)
    close(o, want, dtype)
    close(lse, want_lse, dtype)


@pytest.mark.parametrize("seed", [seed for seed in range(DRAWS) if not draw(seed)[-1]])
def test_dense(device, seed):
    """What arrays/property_test.py asks of fp32 on the CPU, in the other types and on a GPU."""
    q, k, v, options, _ = draw(seed)
    dtype = (torch.bfloat16, torch.float16)[seed % 2]
    q, k, v = (t.to(device, dtype) for t in (q, k, v))
    options = {name: value.to(device) if torch.is_tensor(value) else value for name, value in options.items()}
    leaves = [q, k, v] + [options[name] for name in ("bias", "sinks") if name in options]
    results = []
    for kind in ("mica", "formula"):
        copies = [t.detach().to(t.dtype if kind == "mica" else torch.float64).requires_grad_() for t in leaves]
        given = {**options, **dict(zip([name for name in ("bias", "sinks") if name in options], copies[3:]))}
        o = mica.attention(*copies[:3], **given) if kind == "mica" else formula(*copies[:3], given)[0]
        results.append([o, *torch.autograd.grad(o.float().square().sum(), copies)])
    for got, want in zip(*results):
        close(got.detach(), want.detach().double(), dtype, 3)
