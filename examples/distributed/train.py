#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small causal language model whose sequences are spread over all ranks by mica.distributed.

    torchrun --nproc-per-node 2 examples/distributed/train.py --layout zigzag        # one node
    sbatch examples/distributed/train.slurm                                         # two nodes under Slurm

Every rank holds all weights and its part of the tokens. A rank's gradient of a weight is its tokens' share, so one
all-reduce (a sum) makes it whole. Rank 0 prints the loss of every step, which does not depend on the number of ranks.
"""

import argparse
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from mica import distributed


class Block(nn.Module):
    def __init__(self, width, heads, key_heads):
        super().__init__()
        self.heads, self.key_heads, self.dim = heads, key_heads, width // heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, (heads + 2 * key_heads) * self.dim, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, layout, seqlen):
        heads = self.qkv(self.norm1(x)).unflatten(-1, (-1, self.dim))
        q, k, v = heads.split([self.heads, self.key_heads, self.key_heads], 2)
        x = x + self.out(distributed.attention(q, k, v, causal=True, layout=layout, seqlen=seqlen).flatten(2))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, longest, vocabulary=64, width=64, layers=2, heads=4, key_heads=2):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width, heads, key_heads) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids, layout, seqlen):
        x = self.tokens(ids) + self.places(distributed.positions(seqlen, layout=layout, device=ids.device))
        for block in self.blocks:
            x = block(x, layout, seqlen)
        return self.head(x)


def text(step, batch, seqlen, vocabulary=64):
    """A made-up language: each token follows from the two before it, mostly. The same on every rank."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(0, vocabulary, (batch, seqlen + 1), generator=generator)
    for at in range(2, seqlen + 1):
        follows = (3 * ids[:, at - 1] + ids[:, at - 2]) % vocabulary
        ids[:, at] = torch.where(torch.rand(batch, generator=generator) < 0.9, follows, ids[:, at])
    return ids


def train(layout, steps, seqlen, batch=2, dtype=torch.float32, device="cpu"):
    """The loss of every step."""
    torch.manual_seed(0)
    model = Model(seqlen).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    for step in range(steps):
        ids = text(step, batch, seqlen).to(device)
        inputs, labels = (distributed.shard(t, layout=layout) for t in (ids[:, :-1], ids[:, 1:]))
        with torch.autocast(device, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            logits = model(inputs, layout, seqlen)
        loss = cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum") / (batch * seqlen)
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item())
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layout", default="zigzag", help="ring, zigzag, stripe or ulysses")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seqlen", type=int, default=256, help="tokens of a sequence, over all ranks")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--json", help="write the losses here")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    losses = train(given.layout, given.steps, given.seqlen, dtype=torch.bfloat16 if given.dtype == "bf16" else
                   torch.float32, device=device)
    if dist.get_rank() == 0:
        for step, loss in enumerate(losses):
            print(f"step {step:3d}  loss {loss:.6f}")
        if given.json:
            with open(given.json, "w") as file:
                json.dump(losses, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
