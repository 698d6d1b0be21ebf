# SPDX-License-Identifier: Apache-2.0
"""Attention from the formula, in double, for one batch of dense tensors: what the tests compare with."""

import math

import torch


def visible(rows, keys, causal=False, window=(None, None), chunk=0, device="cpu", diagonal="bottom-right"):
    """(rows, keys): whether row i sees key j."""
    shift = 0 if (causal or diagonal) == "top-left" else keys - rows
    i = torch.arange(rows, device=device)[:, None] + shift
    j = torch.arange(keys, device=device)[None]
    seen = torch.ones(rows, keys, dtype=torch.bool, device=device)
    left, right = window or (None, None)
    if chunk:
        seen &= i // chunk == j // chunk
    if causal:
        seen &= j <= i
    if left is not None:
        seen &= j >= i - left
    if right is not None:
        seen &= j <= i + right
    return seen


def attention(q, k, v, *, causal=False, window=None, chunk=0, mask=None, bias=None, scale=None, softcap=0.0,
              alibi=None, sinks=None, diagonal="bottom-right", keep=None, dropout=0.0):
    """(o, lse) in double, differentiable. q (batch, rows, heads, dim); keep: what dropout left."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (t.double().transpose(1, 2) for t in (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)))
    rows, keys = q.shape[2], k.shape[2]
    score = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if softcap:
        score = softcap * torch.tanh(score / softcap)
    if alibi is not None:
        shift = 0 if (causal or diagonal) == "top-left" else keys - rows
        distance = (torch.arange(rows, device=q.device)[:, None] + shift -
                    torch.arange(keys, device=q.device)[None]).abs()
        score = score - alibi.double().reshape(-1, q.shape[1], 1, 1) * distance
    if bias is not None:
        score = score + bias.double()
    hidden = ~visible(rows, keys, causal, window, chunk, q.device, diagonal)
    if mask is not None:
        hidden = hidden | ~mask
    score = score.masked_fill(hidden, -math.inf)
    if sinks is not None:
        sink = sinks.double().reshape(1, -1, 1, 1).expand(q.shape[0], -1, rows, 1)
        score = torch.cat([score, sink], -1)
    lse = torch.logsumexp(score, -1)
    probability = torch.exp(score - lse.masked_fill(lse == -math.inf, 0.0)[..., None])[..., :keys]
    if keep is not None:
        probability = probability * keep / (1 - dropout)
    return (probability @ v).transpose(1, 2), lse
