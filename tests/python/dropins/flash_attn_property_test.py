# SPDX-License-Identifier: Apache-2.0
"""Random argument sets, legal and not, through the functions of flash_attn 2 and 3: each gives the number of the formula or
a refusal that names the argument, as the rules in draw() say, and nothing else."""

import random

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import flash_attn  # noqa: E402
import flash_attn_interface as flash_attn_3  # noqa: E402
import reference  # noqa: E402

DRAWS = 60
REFUSALS = (ValueError, RuntimeError, TypeError)  # NotImplementedError and mica.Error are RuntimeErrors

# Name -> (values that must be refused, what the message must have). Of both interfaces, of 2 and of 3 alone.
WRONG_OF_BOTH = {
    "window_size": ([(1.5, 0), "12", 3, (1, 2, 3), (2**40, 0), None], "window"),
    "softmax_scale": ([float("nan"), float("inf"), 1e-46, "1"], "scale"),
    "softcap": ([float("nan"), "1"], "softcap"),
}
WRONG_OF_2 = {**WRONG_OF_BOTH, "dropout_p": ([1.0, -0.1, float("nan"), "0.1"], "dropout")}
WRONG_OF_3 = {**WRONG_OF_BOTH, "num_splits": ([-1, 257, 1.5], "num_splits"), "attention_chunk": ([-3, 1.5], "attention_chunk")}
WRONG_TENSORS = {"k.shape": "dim", "v.shape": "keys", "heads": "heads", "type": "type", "axes": "axes"}


class Draw:
    """q (batch, rows, heads, dim), k, v, options common to both interfaces, and a name of what is wrong, or None."""

    def __init__(self, seed, wrong_options):
        rng = self.rng = random.Random(seed)
        torch.manual_seed(seed)
        self.batch, rows, keys = rng.choice([1, 2, 3]), rng.choice([1, 2, 5, 17]), rng.choice([1, 3, 5, 33])
        key_heads, dim = rng.choice([1, 2, 3]), rng.choice([4, 8, 20])
        heads = key_heads * rng.choice([1, 2])
        self.q = torch.randn(self.batch, rows, heads, dim)
        self.k, self.v = (torch.randn(self.batch, keys, key_heads, dim) for _ in range(2))
        self.options = dict(causal=rng.random() < 0.5)
        if rng.random() < 0.5:
            self.options["window_size"] = rng.choice([(-1, -1), (2, 0), (3, 1), (0, -1), (-1, 4), [2, 2]])
        if rng.random() < 0.3:
            self.options["softmax_scale"] = rng.choice([0.1, 1.0, -0.5])
        if rng.random() < 0.3:
            self.options["softcap"] = rng.choice([1.0, 30.0])
        self.wrong = self.message = None
        if rng.random() < 0.5:
            self.spoil(rng.choice([*wrong_options, *WRONG_TENSORS]), wrong_options)

    def spoil(self, wrong, wrong_options):
        self.wrong = wrong
        if wrong in wrong_options:
            values, self.message = wrong_options[wrong]
            self.options[wrong] = self.rng.choice(values)
        elif wrong == "k.shape":
            self.k, self.message = torch.randn(*self.k.shape[:-1], self.k.shape[-1] + 1), "k(_cache)?.shape"
        elif wrong == "v.shape":
            self.v, self.message = torch.cat([self.v, self.v[:, :1]], 1), "v(_cache)?.shape"
        elif wrong == "heads":
            self.k = self.v = torch.randn(*self.k.shape[:2], self.q.shape[2] + 1, self.k.shape[-1])
            self.message = "shape"
        elif wrong == "type":
            self.v, self.message = self.v.half(), "v(_cache)?.dtype"
        elif wrong == "axes":
            self.q, self.message = self.q[0, 0], "q"

    def want(self, q, k, v):
        """By the formula: (o, lse)."""
        left, right = (None if side < 0 else side for side in self.options.get("window_size", (-1, -1)))
        return reference.attention(q, k, v, causal=self.options["causal"], window=(left, right),
                                   scale=self.options.get("softmax_scale"), softcap=self.options.get("softcap", 0.0))


def close(got, want):
    torch.testing.assert_close(got.double(), want, rtol=2e-4, atol=2e-5)


def refused(function, draw, *arguments, **options):
    with pytest.raises(REFUSALS, match=draw.message):
        function(*arguments, **draw.options, **options)


@pytest.mark.parametrize("seed", range(DRAWS))
@pytest.mark.parametrize("interface", [2, 3])
def test_dense(interface, seed):
    draw = Draw(seed, WRONG_OF_2 if interface == 2 else WRONG_OF_3)
    function = (flash_attn if interface == 2 else flash_attn_3).flash_attn_func
    if draw.wrong:
        return refused(function, draw, draw.q, draw.k, draw.v)
    o, lse = function(draw.q, draw.k, draw.v, return_attn_probs=True, **draw.options)[:2]
    want, want_lse = draw.want(draw.q, draw.k, draw.v)
    close(o, want)
    # NOTE: an empty row's LSE is upstream's: +inf in 2, -inf in 3.
    close(lse, want_lse.masked_fill(want_lse == -float("inf"), float("inf" if interface == 2 else "-inf")))


def packed(draw):
    """The same as sequences one after the other, some of them cut short; cu_seqlens of both, and the pieces."""
    pieces = []
    for b in range(draw.batch):
        rows, keys = (draw.rng.randint(0, t.shape[1]) for t in (draw.q, draw.k))
        pieces.append((draw.q[b, :rows], draw.k[b, :keys], draw.v[b, :keys]))
    q, k, v = (torch.cat(parts) for parts in zip(*pieces))
    cu_q, cu_k = (torch.tensor([0] + [len(piece[axis]) for piece in pieces]).cumsum(0, dtype=torch.int32) for axis in (0, 1))
    return q, k, v, cu_q, cu_k, pieces


@pytest.mark.parametrize("seed", range(DRAWS))
@pytest.mark.parametrize("interface", [2, 3])
def test_packed(interface, seed):
    draw = Draw(seed, WRONG_OF_2 if interface == 2 else {
        name: value for name, value in WRONG_OF_3.items() if name != "num_splits"})  # a hint without a meaning here
    function = (flash_attn if interface == 2 else flash_attn_3).flash_attn_varlen_func
    if draw.wrong in WRONG_TENSORS:
        draw = Draw(seed, {})
        draw.wrong = draw.rng.choice(["beyond", "falling", "batch", "float"])
        draw.q, draw.k, draw.v = (torch.randn(2, 4, 2, 8) for _ in range(3))
        draw.batch, draw.message = 2, "cu_seqlens"
    q, k, v, cu_q, cu_k, pieces = packed(draw)
    if draw.wrong == "beyond":
        cu_k = cu_k + torch.tensor([0, 0, 1], dtype=torch.int32)
    elif draw.wrong == "falling":
        cu_q = torch.tensor([0, len(q) + 1, len(q)], dtype=torch.int32)
    elif draw.wrong == "batch":
        cu_k = cu_k[:-1]
    elif draw.wrong == "float":
        cu_q = cu_q.float()
    longest = int(cu_q.float().diff().max().clamp(min=1)), max(1, int(cu_k.diff().max()))
    if draw.wrong:
        return refused(function, draw, q, k, v, cu_q, cu_k, *longest)
    o, lse = function(q, k, v, cu_q, cu_k, *longest, return_attn_probs=True, **draw.options)[:2]
    for at, piece in zip(cu_q.tolist(), pieces):
        want, want_lse = draw.want(*(t[None] for t in piece))
        close(o[at:at + len(piece[0])], want[0])
        close(lse[:, at:at + len(piece[0])],
              want_lse[0].masked_fill(want_lse[0] == -float("inf"), float("inf" if interface == 2 else "-inf")))


@pytest.mark.parametrize("seed", range(DRAWS))
@pytest.mark.parametrize("interface", [2, 3])
def test_cache(interface, seed):
    draw = Draw(seed, WRONG_OF_BOTH)
    function = (flash_attn if interface == 2 else flash_attn_3).flash_attn_with_kvcache
    used = torch.tensor([draw.rng.randint(0, draw.k.shape[1]) for _ in range(draw.batch)], dtype=torch.int32)
    if not draw.wrong and draw.rng.random() < 0.4:
        draw.wrong, draw.message = "cache_seqlens", "cache_seqlens"
        used = draw.rng.choice([used + draw.k.shape[1] + 1, used - draw.k.shape[1] - 1, torch.cat([used, used[:1]]),
                                used.float()])
    if draw.wrong:
        return refused(function, draw, draw.q, draw.k, draw.v, cache_seqlens=used)
    o = function(draw.q, draw.k, draw.v, cache_seqlens=used, **draw.options)
    for b, keys in enumerate(used.tolist()):
        close(o[b], draw.want(draw.q[b:b + 1], draw.k[b:b + 1, :keys], draw.v[b:b + 1, :keys])[0][0])
