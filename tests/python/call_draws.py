# SPDX-License-Identifier: Apache-2.0
"""Random calls on packed sequences and on caches, and the formula's answer, sequence by sequence, in double."""

import math
import random

import reference
import torch


def options_of(rng, batch, heads, rows, keys, device, dtype):
    """Options that all three functions have; mask and bias cover rows x keys, or broadcast."""
    options = {}
    if rng.random() < 0.5:
        options["causal"] = rng.choice([True, "top-left", "bottom-right"])
    elif rng.random() < 0.4:
        options["diagonal"] = rng.choice(["top-left", "bottom-right"])
    if rng.random() < 0.3:
        options["window"] = (rng.choice([0, 3, 40, None]), None if "causal" in options else rng.choice([0, 3, None]))
    if rng.random() < 0.25:
        options["chunk"] = rng.choice([1, 5, 16])
    if rng.random() < 0.3:
        options["scale"] = rng.choice([0.1, 1.0, -0.5])
    if rng.random() < 0.25:
        options["softcap"] = rng.choice([1.0, 30.0])
    if rng.random() < 0.2:
        options["alibi"] = torch.rand(*rng.choice([(heads,), (batch, heads)]), device=device)
    if rng.random() < 0.25:
        options["sinks"] = torch.randn(heads, device=device).to(rng.choice([torch.float32, dtype]))
    pairs = rng.choice([1, batch]), rng.choice([1, heads]), rng.choice([1, rows]), rng.choice([1, keys])
    if rng.random() < 0.2:
        options["mask"] = torch.rand(pairs, device=device) > 0.3
    if rng.random() < 0.2:
        options["bias"] = torch.randn(pairs, device=device).to(rng.choice([torch.float32, dtype]))
    if rng.random() < 0.3:
        options["num_splits"] = rng.choice([0, 1, 3])
    if rng.random() < 0.2:
        options["batch_invariant"] = True
    return options


def sizes_of(rng):
    """(heads, key heads, dim, dim of v)"""
    key_heads = rng.choice([1, 2, 3])
    dim = rng.choice([1, 8, 20, 64, 96, 128, 200])
    return key_heads * rng.choice([1, 2, 5]), key_heads, dim, rng.choice([dim, dim, 16, 64])


def want_of_sequence(b, q, k, v, options, tree=None, prefix=()):
    """(o, lse) of sequence b: q (rows, heads, dim), k and v of the keys in use."""
    rows, keys = q.shape[0], k.shape[0]
    given = {name: value for name, value in options.items() if name not in ("num_splits", "batch_invariant")}
    for name in ("mask", "bias"):
        if name in given:
            pairs = given[name]
            pairs = pairs[b if pairs.shape[0] > 1 else 0]
            given[name] = pairs.expand(-1, max(rows, pairs.shape[1]), max(keys, pairs.shape[2]))[None, :, :rows, :keys]
    if "alibi" in given and given["alibi"].dim() == 2:
        given["alibi"] = given["alibi"][b]
    if tree is not None:
        tree = tree[(None,) * (3 - tree.dim())] if tree.dim() < 3 else tree[b if tree.shape[0] > 1 else 0]
        tree = tree if tree.dim() == 3 else tree[None]
        width = min(keys, tree.shape[-1])
        seen = torch.ones(tree.shape[0], rows, keys, dtype=torch.bool, device=q.device)
        seen[:, :, keys - width:] = tree[:, :, tree.shape[-1] - width:]
        given["mask"] = seen[None]
    if len(prefix):
        seen = reference.visible(rows, keys, given.pop("causal", False), device=q.device)
        seen = seen & given.pop("mask", torch.ones(1, 1, rows, keys, dtype=torch.bool, device=q.device))
        given["mask"] = torch.cat([torch.ones(*seen.shape[:3], len(prefix[0]), dtype=torch.bool, device=q.device), seen], -1)
        k, v = torch.cat([prefix[0], k]), torch.cat([prefix[1], v])
    o, lse = reference.attention(q[None], k[None], v[None], **given)
    return o[0], lse[0]


class Packed:
    """attention_varlen(*tensors, *cu, **options), rows and keys before, between and behind its sequences among them."""

    def __init__(self, seed, device="cpu", dtype=torch.float32):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        batch = rng.choice([1, 2, 4])
        heads, key_heads, dim, dim_v = sizes_of(rng)
        lengths = [[rng.choice([0, 1, 7, 40, 150]) for _ in range(batch)] for _ in range(2)]
        first, last = rng.choice([0, 0, 3]), rng.choice([0, 0, 5])
        self.starts = [[(first if side == 0 else 0) + sum(of[:i]) for i in range(batch + 1)] for side, of in enumerate(lengths)]
        self.q, self.k, self.v = (torch.randn(n, h, d, device=device).to(dtype) for n, h, d in (
            (self.starts[0][-1] + last, heads, dim), (self.starts[1][-1], key_heads, dim), (self.starts[1][-1], key_heads, dim_v)))
        self.options = options_of(rng, batch, heads, max(*lengths[0], 1), max(*lengths[1], 1), device, dtype)
        self.used = [[n if rng.random() < 0.5 else n // 2 for n in of] for of in lengths]
        self.given = dict(self.options)
        for side, of, used in zip("qk", lengths, self.used):
            if rng.random() < 0.3:
                self.given[f"seqused_{side}"] = torch.tensor(used, dtype=torch.int32, device=device)
            else:
                used[:] = of
            if rng.random() < 0.3:
                self.given[f"max_seqlen_{side}"] = max(of)
        as_list = rng.random() < 0.3
        self.cu = [s if as_list else torch.tensor(s, dtype=torch.int32, device=device) for s in self.starts]

    def want(self, q, k, v, options):
        """(o, lse) of all rows, differentiable."""
        o = q.new_zeros(q.shape[0], q.shape[1], v.shape[2], dtype=torch.float64)
        lse = q.new_full((q.shape[1], q.shape[0]), -math.inf, dtype=torch.float64)
        for b, (begin_q, begin_k) in enumerate(zip(*(s[:-1] for s in self.starts))):
            rows, keys = self.used[0][b], self.used[1][b]
            at, of = slice(begin_q, begin_q + rows), slice(begin_k, begin_k + keys)
            if "sinks" in options:  # rows that are not used are empty ones, of which a sink is all
                lse[:, begin_q:self.starts[0][b + 1]] = options["sinks"].double()[:, None]
            o[at], lse[:, at] = want_of_sequence(b, q[at], k[of], v[of], options)
        return o, lse


def turned(x, cos, sin, positions, interleaved):
    """x (rows, heads, dim), its first columns turned by cos and sin (positions, pairs)."""
    pairs = cos.shape[1]
    cos, sin = (t.double()[positions][:, None] for t in (cos, sin))
    x = x.double().clone()
    first, second = ((slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if interleaved else
                     (slice(0, pairs), slice(pairs, 2 * pairs)))
    a, b = x[..., first].clone(), x[..., second].clone()
    x[..., first], x[..., second] = a * cos - b * sin, a * sin + b * cos
    return x


class Cached:
    """attention_with_cache(q, *caches, **given): slots or pages, new keys, rotary, left padding, trees, a shared prefix."""

    def __init__(self, seed, device="cpu", dtype=torch.float32):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        batch, rows, self.capacity = rng.choice([1, 2, 4]), rng.choice([1, 1, 2, 9]), rng.choice([16, 64, 300])
        heads, key_heads, dim, dim_v = sizes_of(rng)
        self.batch, self.rows, self.device = batch, rows, device

        def noise(*shape):
            return torch.randn(*shape, device=device).to(dtype)

        self.q, self.given = noise(batch, rows, heads, dim), {}
        self.page = rng.choice([1, 3, 16, 64]) if rng.random() < 0.4 else 0
        self.table = None
        if self.page:
            blocks = -(-self.capacity // self.page)
            self.capacity = blocks * self.page
            self.table = torch.randperm(batch * blocks + 2)[:batch * blocks].view(batch, blocks).to(device, torch.int32)
            self.given["block_table"] = self.table
            shape = batch * blocks + 2, self.page
        else:
            shape = batch + 2, self.capacity
            if rng.random() < 0.5:
                self.given["cache_batch_idx"] = torch.randperm(batch + 2)[:batch].to(device, torch.int32)
            else:
                shape = batch, self.capacity
        self.caches = [noise(*shape, key_heads, d) for d in (dim, dim_v)]
        self.new = rng.choice([rows, rows, 3]) if rng.random() < 0.5 else 0
        self.used = [rng.randint(0, self.capacity - self.new) for _ in range(batch)]
        how = rng.choice(["tensor", "tensor", "list", "int", "none"])
        if how == "int" or how == "none" and (self.new or self.page):
            self.used, how = [self.used[0]] * batch, "int"
        elif how == "none":
            self.used = [self.capacity] * batch
        if how != "none":
            self.given["cache_seqlens"] = (self.used[0] if how == "int" else list(self.used) if how == "list" else
                                           torch.tensor(self.used, dtype=torch.int32, device=device))
        self.leftpad = [0] * batch
        if rng.random() < 0.25:
            self.leftpad = [rng.randint(0, n) for n in self.used]
            self.given["cache_leftpad"] = torch.tensor(self.leftpad, dtype=torch.int32, device=device)
        self.options = options_of(rng, batch, heads, rows, self.capacity, device, dtype)
        if self.new:
            self.given.update(k=noise(batch, self.new, key_heads, dim), v=noise(batch, self.new, key_heads, dim_v))
            if rng.random() < 0.5 and dim >= 16:
                pairs = rng.choice([8, dim // 16 * 8])
                angle = torch.rand(self.capacity + rows, pairs, device=device) * 6
                self.given.update(rotary_cos=angle.cos().to(dtype), rotary_sin=angle.sin().to(dtype),
                                  rotary_interleaved=rng.random() < 0.5)
        self.tree, self.prefix = None, ()
        if rng.random() < 0.25:
            self.options.pop("mask", None)
            width = rng.choice([1, rows, 7])
            self.tree = torch.rand(*rng.choice([(), (batch,), (batch, heads)]), rows, width, device=device) > 0.4
            self.given["tree"] = self.tree
        if rng.random() < 0.2:
            for name in ("window", "chunk", "mask", "bias", "alibi", "diagonal", "batch_invariant"):
                self.options.pop(name, None)
            if self.options.get("causal") == "top-left":
                self.options["causal"] = True
            keys = rng.choice([1, 33])
            self.prefix = noise(keys, key_heads, dim), noise(keys, key_heads, dim_v)
            self.given.update(k_prefix=self.prefix[0], v_prefix=self.prefix[1])
        self.given.update(self.options)

    def want(self):
        """(o, lse) of every sequence; to be asked before the call, which writes into the caches."""
        turns = "rotary_cos" in self.given
        table = [self.given.get(f"rotary_{name}") for name in ("cos", "sin", "interleaved")]
        found = []
        for b, (used, pad) in enumerate(zip(self.used, self.leftpad)):
            slot = self.given["cache_batch_idx"][b] if "cache_batch_idx" in self.given else b
            q = self.q[b]
            kept = []
            for name, cache in zip("kv", self.caches):
                whole = cache[self.table[b].long()].flatten(0, 1) if self.page else cache[slot]
                parts = [whole[pad:used].double()]
                if self.new:
                    fresh = self.given[name][b].double()
                    if turns and name == "k":
                        at = used + torch.arange(self.new, device=self.device)
                        fresh = turned(fresh, *table[:2], at, table[2]).to(self.q.dtype).double()
                    parts.append(fresh)
                kept.append(torch.cat(parts))
            if turns:
                moves = any(self.options.get(name) for name in ("causal", "chunk")) or \
                    self.options.get("window", (None, None)) != (None, None)
                at = used + torch.arange(self.rows, device=self.device) * moves
                q = turned(q, *table[:2], at, table[2]).to(self.q.dtype)
            found.append(want_of_sequence(b, q, *kept, self.options, self.tree, self.prefix))
        return torch.stack([o for o, _ in found]), torch.stack([lse for _, lse in found])
