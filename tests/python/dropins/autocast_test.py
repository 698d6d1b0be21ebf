# SPDX-License-Identifier: Apache-2.0
"""The drop-ins under torch.autocast: 16 bits stay what they are, as upstream has it, and fp32, which upstream refuses, becomes
autocast's type; with and without a gradient, packed and apart."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
fa2 = pytest.importorskip("flash_attn", reason="the drop-in is not installed")
fa3 = pytest.importorskip("flash_attn_interface", reason="the extra flash-attn-3 is not installed")

CU = torch.tensor([0, 2, 6], dtype=torch.int32)
CALLS = {
    "q, k, v": lambda x, **options: fa2.flash_attn_func(x, x, x, **options),
    "qkv": lambda x, **options: fa2.flash_attn_qkvpacked_func(x.unsqueeze(2).expand(1, 6, 3, 2, 8), **options),
    "kv": lambda x, **options: fa2.flash_attn_kvpacked_func(x, x.unsqueeze(2).expand(1, 6, 2, 2, 8), **options),
    "packed": lambda x, **options: fa2.flash_attn_varlen_func(x[0], x[0], x[0], CU, CU, 4, 4, **options),
    "FlashAttention-3": lambda x, **options: fa3.flash_attn_func(x, x, x, **options),
    "FlashAttention-3, packed": lambda x, **options: fa3.flash_attn_varlen_func(x[0], x[0], x[0], CU, CU, 4, 4, **options),
    "FlashAttention-3, qv": lambda x, **options: fa3.flash_attn_func(x, x, x, qv=x, **options),
}


@pytest.mark.parametrize("options", [dict(), dict(deterministic=True), dict(return_attn_probs=True)], ids=str)
@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_the_type_of_the_result(call, needs_gradient, options):
    wide = torch.randn(1, 6, 2, 8)
    for dtype, want in ((torch.float16, torch.float16), (torch.bfloat16, torch.bfloat16), (torch.float32, torch.bfloat16)):
        x = wide.to(dtype).requires_grad_(needs_gradient)
        plain = CALLS[call](x.to(want), **options)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            made = CALLS[call](x, **options)
        if options.get("return_attn_probs"):
            plain, made = plain[0], made[0]
        assert made.dtype is want and torch.equal(made, plain)
        if needs_gradient:
            made.sum().backward()
            assert x.grad.dtype is dtype
