# SPDX-License-Identifier: Apache-2.0
"""What `mica check --against` runs in the Python that has the package: its attention, forward and backward, beside the
textbook's formula in double precision. The command carries this file.

Usage: against.py PACKAGE DEVICE     PACKAGE: flash_attn, flash_attn_3, xformers or sdpa; DEVICE: auto, cuda or cpu
Prints one line of JSON. A result may be as far from the exact one as twice the textbook's formula in the same precision is,
and by one rounding of its largest number."""

import json
import sys
import traceback

# name, causal, query heads, key heads, queries, keys, head dimension
CASES = [("plain", False, 4, 4, 128, 128, 64), ("causal", True, 4, 4, 128, 128, 64), ("longer keys, causal", True, 4, 4, 65, 193, 64),
         ("grouped heads", False, 8, 2, 96, 96, 64), ("grouped heads, causal", True, 8, 2, 130, 130, 128),
         ("one row", False, 4, 4, 1, 257, 64), ("head dimension 96", True, 2, 2, 80, 80, 96)]


def textbook(q, k, v, causal):
    """[batch, rows, heads, dimension]; a causal row i of n sees the keys up to m - n + i."""
    import torch

    group = q.shape[2] // k.shape[2]
    q, k, v = (t.transpose(1, 2) for t in (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        rows, keys = scores.shape[-2:]
        hidden = torch.ones(rows, keys, dtype=torch.bool, device=q.device).triu(keys - rows + 1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return (torch.softmax(scores, -1) @ v).transpose(1, 2)


def package_of(name):
    """The package's attention, called as above, and its version."""
    import torch

    if name == "sdpa":
        def sdpa(q, k, v, causal):
            from torch.nn.attention.bias import causal_lower_right

            mask = causal_lower_right(q.shape[1], k.shape[1]) if causal else None
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1]).transpose(1, 2)

        return sdpa, torch.__version__
    if name == "xformers":
        import xformers
        from xformers.ops import memory_efficient_attention
        from xformers.ops.fmha.attn_bias import LowerTriangularFromBottomRightMask

        def xformers_attention(q, k, v, causal):
            group = q.shape[2] // k.shape[2]
            k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
            return memory_efficient_attention(q, k, v, attn_bias=LowerTriangularFromBottomRightMask() if causal else None)

        return xformers_attention, xformers.__version__
    if name == "flash_attn_3":
        import flash_attn_interface

        def flash_3(q, k, v, causal):
            out = flash_attn_interface.flash_attn_func(q, k, v, causal=causal)
            return out[0] if isinstance(out, tuple) else out

        return flash_3, getattr(flash_attn_interface, "__version__", "3")
    import flash_attn

    return (lambda q, k, v, causal: flash_attn.flash_attn_func(q, k, v, causal=causal)), flash_attn.__version__


def results(attention, tensors, gradient, causal):
    """Output and the three gradients, in double precision."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    out = attention(*leaves, causal)
    out.backward(gradient.to(out.dtype))
    return [t.double() for t in (out.detach(), *(leaf.grad for leaf in leaves))]


def compare(attention, case, dtype, device):
    import torch

    name, causal, heads_q, heads_k, rows, keys, dimension = case
    torch.manual_seed(7)
    shapes = [(2, rows, heads_q, dimension), (2, keys, heads_k, dimension), (2, keys, heads_k, dimension)]
    tensors = [torch.randn(shape, device=device).to(dtype) for shape in shapes]
    gradient = torch.randn(shapes[0], device=device).to(dtype)
    exact = results(textbook, [t.double() for t in tensors], gradient.double(), causal)
    plain = results(textbook, tensors, gradient, causal)
    got = results(attention, tensors, gradient, causal)
    row = {"case": f"{name}, {str(dtype).split('.')[-1]}", "worst": "", "times": 0.0}
    for part, g, p, e in zip(("output", "dQ", "dK", "dV"), got, plain, exact):
        bound = 2 * (p - e).abs().max().item() + torch.finfo(dtype).eps * e.abs().max().item()
        # NOTE: a NaN compares false with everything.
        times = (g - e).abs().max().item() / bound if torch.isfinite(g).all() else float("inf")
        if times >= row["times"]:
            row.update(worst=part, times=min(times, 1e9), difference=min((g - e).abs().nan_to_num(1e9).max().item(), 1e9), bound=bound)
    row["equal"] = row["times"] <= 1
    return row


def main(name, device):
    import torch

    attention, version = package_of(name)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    types = [torch.float16, torch.bfloat16] if device == "cuda" else [torch.float32, torch.bfloat16]
    rows = []
    for dtype in types:
        for case in CASES:
            try:
                rows.append(compare(attention, case, dtype, device))
            except Exception as error:  # it does not take the case: said, and no difference
                said = (str(error).splitlines() or [type(error).__name__])[0]
                rows.append({"case": f"{case[0]}, {str(dtype).split('.')[-1]}", "refused": f"{type(error).__name__}: {said}"[:300]})
    return {"version": str(version), "torch": torch.__version__, "device": device, "rows": rows}


if __name__ == "__main__":
    try:
        answer = main(*sys.argv[1:])
    except BaseException:  # an extension may end in anything
        answer = {"failed": traceback.format_exc()}
    print("\nmica-answer:" + json.dumps(answer), flush=True)
