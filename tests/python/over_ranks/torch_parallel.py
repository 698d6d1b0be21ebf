# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own ways to spread attention: context_parallel and DTensors."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn import functional as F

import mica
from cases import close


def activated(function):
    """With "mica" under SDPA."""
    import mica.integrations.sdpa  # noqa: F401
    from torch.nn import attention
    attention.activate_flash_attention_impl("mica")
    try:
        return function()
    finally:
        attention.restore_flash_attention_impl()


def context_parallel(rank, size, balanced, causal):
    """As PyTorch's documentation has it."""
    from torch.distributed.tensor.experimental import context_parallel as parallel
    from torch.distributed.tensor.experimental._context_parallel import _attention as options
    options._cp_options.enable_load_balance = balanced
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("cp",))
    torch.manual_seed(0)
    whole = [torch.randn(2, 4, 16 * size, 16, requires_grad=True) for _ in range(3)]
    d_o = torch.randn(2, 4, 16 * size, 16)
    want = F.scaled_dot_product_attention(*whole, is_causal=causal)
    want.backward(d_o)
    buffers = [t.detach().clone() for t in whole] + [d_o.clone(), want.detach().clone()]
    buffers += [t.grad.clone() for t in whole]

    def run():
        with parallel(mesh, buffers=buffers, buffer_seq_dims=[2] * len(buffers)):
            local = [t.detach().clone().requires_grad_() for t in buffers[:3]]
            made = F.scaled_dot_product_attention(*local, is_causal=causal)
            made.backward(buffers[3])
            close("o", made, buffers[4], torch.float32)
            for name, t, gradient in zip("qkv", local, buffers[5:]):
                close(f"d{name}", t.grad, gradient, torch.float32)
    activated(run)


def dtensors(rank, size, is_compiled=False):
    """Batch, heads and rows divided; mica.attention and SDPA, each as one graph where they are compiled."""
    def compiled(function):
        torch._dynamo.reset()
        return torch.compile(function, backend="aot_eager", fullgraph=True)
    as_is = compiled if is_compiled else lambda function: function
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(0)
    whole = [torch.randn(2 * size + 1, 7 * size - 1, 2 * size, 16, requires_grad=True) for _ in range(3)]
    want, lse = mica.attention(*whole, causal=True, return_lse=True)
    want.sum().backward()
    for placement in (Replicate(), Shard(0), Shard(1), Shard(2)):
        placed = [distribute_tensor(t.detach(), mesh, [placement]).requires_grad_() for t in whole]
        if not is_compiled:  # PyTorch wants a gradient for every DTensor that a graph returns
            made_lse = mica.attention(*placed, causal=True, return_lse=True)[1]
            close(f"{placement} lse", made_lse.full_tensor(), lse, torch.float32)
        made = as_is(lambda q, k, v: mica.attention(q, k, v, causal=True))(*placed)
        close(f"{placement} o", made.full_tensor(), want, torch.float32)
        made.sum().backward()
        for name, t, reference in zip("qkv", placed, whole):
            close(f"{placement} d{name}", t.grad.full_tensor(), reference.grad, torch.float32)

    def run():
        heads_first = [t.detach().transpose(1, 2).contiguous() for t in whole]
        for placement in (Replicate(), Shard(0), Shard(1), Shard(2)):
            placed = [distribute_tensor(t, mesh, [placement]).requires_grad_() for t in heads_first]
            made = as_is(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))(*placed)
            close(f"sdpa {placement}", made.full_tensor().transpose(1, 2), want, torch.float32)
            made.sum().backward()
            for name, t, reference in zip("qkv", placed, whole):
                close(f"sdpa {placement} d{name}", t.grad.full_tensor().transpose(1, 2), reference.grad, torch.float32)
    activated(run)


def transformers_model(rank, size):
    """A model of Transformers under context_parallel as Accelerate's ParallelismConfig(cp_size=...) prepares it: its hooks
    take the mask away and ask for is_causal. Loss and gradients against the whole sequence on one rank."""
    import torch.distributed as dist
    from torch.distributed.tensor.experimental import context_parallel as parallel
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=64 * size, attn_implementation="sdpa")
    model = LlamaForCausalLM(config)
    ids = torch.randint(0, 64, (2, 16 * size + 1))
    buffers = [ids[:, :-1].clone(), ids[:, 1:].clone(), torch.arange(16 * size).repeat(2, 1)]

    def loss_of(inputs, labels, places):
        logits = model(input_ids=inputs, position_ids=places, use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / (ids.shape[0] * 16 * size)
        loss.backward()
        return loss.detach()
    want = loss_of(*buffers)
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    try:
        from accelerate.big_modeling import _attach_context_parallel_hooks
        _attach_context_parallel_hooks(model)
    except ImportError:
        for name, module in model.named_modules():
            if name.endswith("self_attn"):
                module.register_forward_pre_hook(
                    lambda _, args, named: (args, dict(named, attention_mask=None, is_causal=True)), with_kwargs=True)

    def run():
        mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("cp",))
        with parallel(mesh, buffers=buffers, buffer_seq_dims=[1, 1, 1]):
            loss = loss_of(*buffers)
        dist.all_reduce(loss)
        close("loss", loss, want, torch.float32)
        for (name, parameter), gradient in zip(model.named_parameters(), gradients):
            dist.all_reduce(parameter.grad)
            close(name, parameter.grad, gradient, torch.float32)
    activated(run)
