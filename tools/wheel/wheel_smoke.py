#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Uses an installed wheel as a stranger would, inside the environment under test, and prints one line of JSON.

Attention forward and backward beside the formula written out in PyTorch (in NumPy, forward alone, where there is no
PyTorch); then the same under torch.compile and through flash_attn. With --import-only: how long `import mica` takes. Exit status 1 if anything is wrong.
"""

import json
import math
import os
import platform
import sys
import time

MAX_ERROR = {"float32": 1e-5, "bfloat16": 2e-2}


def import_only():
    started = time.process_time()  # of this process alone: others may keep the machine busy
    import mica
    milliseconds = (time.process_time() - started) * 1e3
    for name in ("torch", "numpy"):
        assert name not in sys.modules, "import mica imports " + name
    return {"import_ms": round(milliseconds, 2), "package": os.path.dirname(mica.__file__)}


def plain_attention(torch, q, k, v):
    """(batch, rows, heads, dim), causal from the bottom right, every matrix in full."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + k.shape[2] - q.shape[2])
    return (scores.masked_fill(hidden, -math.inf).softmax(-1) @ v).transpose(1, 2)


def with_torch(torch, device):
    import mica
    found = {"torch": torch.__version__, "cxx11_abi": bool(torch._C._GLIBCXX_USE_CXX11_ABI), "device": device}
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).replace("torch.", "")
        inputs = [torch.randn(shape).to(dtype) for shape in ((2, 40, 4, 64), (2, 70, 2, 64), (2, 70, 2, 64))]
        weight = torch.randn(2, 40, 4, 64).to(dtype)
        ours = [x.clone().to(device).requires_grad_() for x in inputs]
        plain = [x.double().requires_grad_() for x in inputs]
        out, want = mica.attention(*ours, causal=True), plain_attention(torch, *plain)
        assert out.dtype == dtype and out.device.type == device, out
        out.backward(weight.to(device))
        want.backward(weight.double())
        differences = [(out.cpu() - want).abs().max().item()]
        for ours_i, plain_i in zip(ours, plain):
            largest = plain_i.grad.abs().max().item()
            differences.append((ours_i.grad.cpu() - plain_i.grad).abs().max().item() / largest)
        found["error_" + name] = float("%.2g" % max(differences))
        assert max(differences) < MAX_ERROR[name], (name, differences)
    return found


def compiled(torch, device):
    """torch.compile in one graph: whether it gives what the plain call gives; None where this PyTorch cannot do it."""
    import mica
    from mica import _torch_ops
    if not _torch_ops.AVAILABLE:
        return None  # PyTorch before 2.4
    tensors = [torch.randn(2, 24, 4, 32, device=device, requires_grad=True) for _ in range(3)]

    def function(q, k, v):
        return mica.attention(q, k, v, causal=True).sin()

    try:
        traced = torch.compile(function, fullgraph=True, backend="aot_eager")
    except RuntimeError as error:
        if "not supported on Python" not in str(error):
            raise
        return None
    for got, want in zip(*(torch.autograd.grad(f(*tensors).sum(), tensors) for f in (traced, function))):
        torch.testing.assert_close(got, want)
    return True


def with_drop_in(torch, device):
    """The distribution flash-attn, where it was installed too."""
    try:
        import flash_attn
    except ImportError as error:
        if error.name != "flash_attn":
            raise
        return {}
    import mica
    q, k, v = (torch.randn(2, 24, heads, 64, device=device).bfloat16() for heads in (4, 2, 2))
    out, lse, _ = flash_attn.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert torch.equal(out, mica.attention(q, k, v, causal=True)) and lse.shape == (2, 4, 24), lse.shape
    return {"flash_attn": flash_attn.__version__}


def with_numpy(numpy):
    import mica
    random = numpy.random.default_rng(0)
    shapes = (2, 40, 4, 64), (2, 70, 4, 64), (2, 70, 4, 64)
    q, k, v = (random.standard_normal(shape, dtype=numpy.float32) for shape in shapes)
    out = mica.attention(q, k, v, causal=True)
    assert isinstance(out, numpy.ndarray) and out.dtype == numpy.float32, out
    scores = numpy.einsum("bihd,bjhd->bhij", q.astype(float), k) / math.sqrt(64)
    scores[..., numpy.triu(numpy.ones((40, 70), dtype=bool), 1 + 70 - 40)] = -numpy.inf
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    want = numpy.einsum("bhij,bjhd->bihd", weights / weights.sum(-1, keepdims=True), v)
    error = float(numpy.abs(out - want).max())
    assert error < MAX_ERROR["float32"], error
    assert all((one == out).all() for one in in_threads(lambda: mica.attention(q, k, v, causal=True)))
    return {"numpy": numpy.__version__, "error_numpy": float("%.2g" % error)}


def is_free_threaded():
    return not getattr(sys, "_is_gil_enabled", lambda: True)()


def in_threads(function, threads=4):
    """What the function gives in each of several threads that call it at once."""
    import concurrent.futures  # not above: the time of `import mica` is measured in this process
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        return [future.result() for future in [pool.submit(function) for _ in range(4 * threads)]]


def main():
    if sys.argv[1:] == ["--import-only"]:
        print(json.dumps(import_only()))
        return
    found = {"python": platform.python_version(), "libc": " ".join(platform.libc_ver()), "machine": platform.machine()}
    found["free_threaded"] = is_free_threaded()
    import mica
    found["mica"] = mica.__version__
    try:
        import numpy
        found.update(with_numpy(numpy))
    except ImportError:
        found["numpy"] = None
    try:
        import torch
    except ImportError:
        found["torch"] = None
    else:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        found.update(with_torch(torch, device), compiled=compiled(torch, device), **with_drop_in(torch, device))
    assert found["numpy"] or found["torch"], "neither NumPy nor PyTorch is here"
    assert is_free_threaded() == found["free_threaded"], "something brought the global lock back"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
