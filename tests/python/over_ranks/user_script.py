# SPDX-License-Identifier: Apache-2.0
"""What users of ring-flash-attention write, with their imports: local parts by hand, results against flash_attn's."""

import torch
import torch.distributed as dist
from flash_attn import flash_attn_func, flash_attn_qkvpacked_func, flash_attn_varlen_qkvpacked_func
from ring_flash_attn import (
    llama3_flash_attn_prepare_cu_seqlens,
    llama3_flash_attn_varlen_func,
    llama3_flash_attn_varlen_qkvpacked_func,
    ring_flash_attn_func,
    ring_flash_attn_kvpacked_func,
    ring_flash_attn_qkvpacked_func,
    ring_flash_attn_varlen_qkvpacked_func,
    stripe_flash_attn_qkvpacked_func,
    zigzag_ring_flash_attn_qkvpacked_func,
    zigzag_ring_flash_attn_varlen_qkvpacked_func,
)


def contiguous(x, rank, size, dim=1):
    return x.chunk(size, dim)[rank].detach().clone()


def zigzag(x, rank, size, dim=1):
    parts = x.chunk(2 * size, dim)
    return torch.cat([parts[rank], parts[2 * size - 1 - rank]], dim).detach().clone()


def striped(x, rank, size, dim=1):
    return x.unflatten(dim, (-1, size)).select(dim + 1, rank).detach().clone()


def compare(name, got, want, tolerance):
    error = (got.float() - want.float()).abs().max().item()
    assert error <= tolerance, f"{name}: off by {error}"


def dense(rank, size, dtype, tolerance):
    torch.manual_seed(0)
    qkv = torch.randn(2, 16 * size, 3, 4, 32, dtype=dtype, requires_grad=True)
    d_out = torch.randn(2, 16 * size, 4, 32, dtype=dtype)
    for function, local_of, causal in ((ring_flash_attn_qkvpacked_func, contiguous, True),
                                       (ring_flash_attn_qkvpacked_func, contiguous, False),
                                       (zigzag_ring_flash_attn_qkvpacked_func, zigzag, True),
                                       (stripe_flash_attn_qkvpacked_func, striped, True)):
        qkv.grad = None
        out, lse, _ = flash_attn_qkvpacked_func(qkv, causal=causal, return_attn_probs=True)
        out.backward(d_out)
        local = local_of(qkv, rank, size).requires_grad_()
        local_out, local_lse, nothing = function(local, dropout_p=0, causal=causal, window_size=(-1, -1),
                                                 alibi_slopes=None, deterministic=False, return_attn_probs=True)
        assert nothing is None
        local_out.backward(local_of(d_out, rank, size))
        name = f"{function.__name__} {dtype} {causal}"
        compare(f"{name} out", local_out, local_of(out, rank, size), tolerance)
        compare(f"{name} lse", local_lse, local_of(lse, rank, size, 2), tolerance)
        compare(f"{name} grad", local.grad, local_of(qkv.grad, rank, size), 4 * tolerance)
    q, k, v = (contiguous(t, rank, size) for t in qkv.detach().unbind(2))
    want = contiguous(flash_attn_func(*qkv.detach().unbind(2), causal=True, window_size=(5, 0)), rank, size)
    compare("window", ring_flash_attn_func(q, k, v, causal=True, window_size=(5, 0), group=dist.group.WORLD), want,
            tolerance)
    compare("kvpacked", ring_flash_attn_kvpacked_func(q, torch.stack((k, v), 2), causal=True, window_size=(5, 0)), want,
            tolerance)


def packed(rank, size, dtype, tolerance):
    torch.manual_seed(1)
    ends = [0, 8 * size, 12 * size, 24 * size]
    cu_seqlens = torch.tensor(ends, dtype=torch.int32)
    qkv = torch.randn(ends[-1], 3, 4, 32, dtype=dtype, requires_grad=True)
    d_out = torch.randn(ends[-1], 4, 32, dtype=dtype)
    out = flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, 12 * size, causal=True)
    out.backward(d_out)

    for function, local_of in ((ring_flash_attn_varlen_qkvpacked_func, contiguous),
                               (zigzag_ring_flash_attn_varlen_qkvpacked_func, zigzag)):
        def mine(x):
            return torch.cat([local_of(x[a:b], rank, size, 0) for a, b in zip(ends, ends[1:])])
        local = mine(qkv).requires_grad_()
        made = function(local, cu_seqlens // size, 12, causal=True)
        made.backward(mine(d_out))
        compare(function.__name__, made, mine(out), tolerance)
        compare(f"{function.__name__} grad", local.grad, mine(qkv.grad), 4 * tolerance)

    uneven = torch.tensor([0, 5, 5 + 7 * size, 24 * size], dtype=torch.int32)
    out = flash_attn_varlen_qkvpacked_func(qkv, uneven, 24 * size, causal=True)
    (gradient,) = torch.autograd.grad(out, qkv, d_out)
    cu_q, cu_k, max_q, max_k, local_k_slice = llama3_flash_attn_prepare_cu_seqlens(uneven, True, rank, size)
    for heads_k_stride in (1, 4):
        local = contiguous(qkv, rank, size, 0).requires_grad_()
        made = llama3_flash_attn_varlen_qkvpacked_func(local, cu_q, cu_k, max_q, max_k, heads_k_stride=heads_k_stride,
                                                       local_k_slice=local_k_slice, causal=True)
        made.backward(contiguous(d_out, rank, size, 0))
        compare("llama3", made, contiguous(out, rank, size, 0), tolerance)
        compare("llama3 grad", local.grad, contiguous(gradient, rank, size, 0), 4 * tolerance)
    cu_q, cu_k, max_q, max_k, local_k_slice = llama3_flash_attn_prepare_cu_seqlens(uneven, False, rank, size)
    want = flash_attn_varlen_qkvpacked_func(qkv, uneven, 24 * size)
    q, k, v = contiguous(qkv, rank, size, 0).unbind(1)
    compare("llama3 not causal", llama3_flash_attn_varlen_func(q, k, v, cu_q, cu_k, max_q, max_k, 2, local_k_slice),
            contiguous(want, rank, size, 0), tolerance)
    slopes = torch.tensor([0.4, 0.2, 0.1, 0.05])
    # Keys up to the ends of the sequences serve causal rows, too.
    for causal, with_causal in ((False, False), (True, True), (True, False)):
        cu_q, cu_k, max_q, max_k, local_k_slice = llama3_flash_attn_prepare_cu_seqlens(uneven, with_causal, rank, size)
        for options in (dict(window_size=(5, 3)), dict(window_size=(-1, 2)), dict(window_size=(4, -1)),
                        dict(alibi_slopes=slopes), dict(alibi_slopes=slopes, window_size=(7, 2)), dict(deterministic=True), {}):
            out = flash_attn_varlen_qkvpacked_func(qkv, uneven, 24 * size, causal=causal, **options)
            (gradient,) = torch.autograd.grad(out, qkv, d_out)
            for heads_k_stride in (1, 4):
                local = contiguous(qkv, rank, size, 0).requires_grad_()
                made = llama3_flash_attn_varlen_qkvpacked_func(local, cu_q, cu_k, max_q, max_k, heads_k_stride=heads_k_stride,
                                                               local_k_slice=local_k_slice, causal=causal, **options)
                made.backward(contiguous(d_out, rank, size, 0))
                compare(f"llama3, causal {causal}, {options}", made, contiguous(out, rank, size, 0), tolerance)
                compare(f"llama3 grad, causal {causal}, {options}", local.grad, contiguous(gradient, rank, size, 0),
                        4 * tolerance)


def run(rank, size):
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.bfloat16, 3e-2)):
        dense(rank, size, dtype, tolerance)
        packed(rank, size, dtype, tolerance)


def hugging_face(rank, size):
    """A tiny model over ranks with substitute_hf_flash_attn, against itself alone."""
    import os
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers
    from ring_flash_attn import substitute_hf_flash_attn, update_ring_flash_attn_params
    torch.manual_seed(0)
    config = transformers.Qwen2Config(vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2)
    config._attn_implementation = "eager"
    model = transformers.Qwen2ForCausalLM(config).eval()
    ends = [0, 7, 20 * size]
    ids = torch.randint(0, 64, (1, ends[-1]))
    places = torch.cat([torch.arange(b - a) for a, b in zip(ends, ends[1:])])[None]
    want = torch.cat([model(ids[:, a:b]).logits for a, b in zip(ends, ends[1:])], 1)
    loss = torch.nn.functional.cross_entropy(want[0].float(), ids[0])
    loss.backward()
    want_gradient = model.model.layers[0].self_attn.k_proj.weight.grad.clone()
    model.zero_grad()

    substitute_hf_flash_attn(dist.group.WORLD, heads_k_stride=1)
    update_ring_flash_attn_params(torch.tensor(ends, dtype=torch.int32), dist.group.WORLD)
    model.config._attn_implementation = "flash_attention_2"
    got = model(contiguous(ids, rank, size), position_ids=contiguous(places, rank, size)).logits
    compare("logits", got, contiguous(want, rank, size), 1e-4)
    loss = torch.nn.functional.cross_entropy(got[0].float(), contiguous(ids, rank, size)[0], reduction="sum")
    (loss / ids.numel()).backward()
    gradient = model.model.layers[0].self_attn.k_proj.weight.grad
    dist.all_reduce(gradient)
    compare("gradient", gradient, want_gradient, 1e-5)
    # A mask that says something is refused, not passed over.
    mask = torch.ones(1, 20, dtype=torch.int64)
    assert torch.equal(model(contiguous(ids, rank, size), attention_mask=mask,
                             position_ids=contiguous(places, rank, size)).logits, got)
    mask[0, 3] = 0
    try:
        model(contiguous(ids, rank, size), attention_mask=mask, position_ids=contiguous(places, rank, size))
    except ValueError as error:
        assert "attention_mask has zeros" in str(error), error
    else:
        raise AssertionError("padding was passed over")
    return transformers.__version__
