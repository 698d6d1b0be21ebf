# SPDX-License-Identifier: Apache-2.0
"""Random argument sets, legal and not, through NumPy and torch: each gives the number of the formula or is refused, as the
rules of draws.py say, and nothing else. Gradients of small fp32 cases against the formula in double."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
np = pytest.importorskip("numpy", reason="NumPy is not installed")

import mica  # noqa: E402
from draws import DRAWS, draw, formula  # noqa: E402


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
