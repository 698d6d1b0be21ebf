# SPDX-License-Identifier: Apache-2.0
"""mica.attention, mica.attention_varlen, mica.attention_with_cache: what the arguments mean, for every kind of array.

The work is done by a face: mica._torch_face for torch tensors, mica._array_face for NumPy arrays and everything else
that speaks DLPack. A face is loaded when the first array of its kind arrives.
"""

import sys
from typing import Any, Dict, Optional, Tuple, Union

from .errors import InvalidArgument

Array = Any  # a torch.Tensor, a numpy.ndarray, or anything with __dlpack__
Window = Optional[Tuple[Optional[int], Optional[int]]]
Causal = Union[bool, str]

_faces: Dict[type, Any] = {}


def _face_of(q: Array) -> Any:
    kind = type(q)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(q, torch.Tensor):
        from . import _torch_face as face
    elif "torch.fx" in sys.modules and isinstance(q, sys.modules["torch.fx"].Proxy):
        from . import _fx_face as face
    else:
        from . import _array_face as face
    _faces[kind] = face
    return face


def attention(q: Array, k: Array, v: Array, *, causal: Causal = False, window: Window = None, chunk: int = 0,
              mask: Optional[Array] = None, bias: Optional[Array] = None, scale: Optional[float] = None,
              softcap: Optional[float] = None, alibi: Optional[Array] = None, sinks: Optional[Array] = None,
              dropout: float = 0.0, return_lse: bool = False, out: Optional[Array] = None,
              diagonal: Optional[str] = None, num_splits: int = 0, batch_invariant: bool = False,
              seed: Union[None, int, Array] = None) -> Any:
    """softmax(score(q, k) where visible) v, exactly, without ever holding all the scores.

    q is (batch, rows, heads, dim), k (batch, keys, key heads, dim), v (batch, keys, key heads, dim_v); the result is
    (batch, rows, heads, dim_v) with q's type. heads is a multiple of key heads: query head h reads key head
    h // (heads // key heads). fp32, fp16 or bf16; e4m3 (mica.fp8) gives bf16 and has no gradient.

    causal: False; True or 'bottom-right': row i sees key j if j <= i + keys - rows; 'top-left': if j <= i.
    window: (left, right): only keys from left before the diagonal to right after it, both inclusive; None: unlimited.
    chunk: positions are cut into chunks of so many, from key 0 on, and a row sees the keys of the chunk that its
        diagonal lies in (as Llama 4's local layers); 0: no chunks.
    mask: bool, broadcast to (batch, heads, rows, keys), True where visible.
    bias: added to the scores, broadcast likewise; fp32, fp16 or bf16.
    scale: of q.k; None: 1/sqrt(dim).
    softcap: scores become softcap * tanh(score / softcap).
    alibi: fp32 slopes, (heads,) or (batch, heads): -slope * |distance from the diagonal| is added.
    sinks: (heads,): a logit per head that takes its share of the probability and has no value.
    dropout: the probability of dropping a probability.
    return_lse: also return the natural logarithm of the sum of exp(scores), fp32 (batch, heads, rows).
    out: where to write the result.
    diagonal: 'bottom-right' (None means this) or 'top-left', for a window, chunks or ALiBi without causal.
    num_splits: into how many ranges of keys to split the work; 0: as many as suit the device.
    batch_invariant: the bits of a sequence do not depend on what else is in the batch.
    seed: of dropout, an int or an int64 array (seed, offset) on the device; None: drawn from torch's (NumPy's)
        generator.

    A row that sees nothing gives 0, and lse -inf. With torch tensors q, k, v, bias, sinks are differentiable, and so
    is lse.
    """
    return (_faces.get(type(q)) or _face_of(q)).attention(
        q, k, v, causal, window, chunk, mask, bias, scale, softcap, alibi, sinks, dropout, return_lse, out, diagonal,
        num_splits, batch_invariant, seed)


def attention_varlen(q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array, *,
                     max_seqlen_q: Optional[int] = None, max_seqlen_k: Optional[int] = None,
                     causal: Causal = False, window: Window = None, chunk: int = 0, mask: Optional[Array] = None,
                     bias: Optional[Array] = None, scale: Optional[float] = None, softcap: Optional[float] = None,
                     alibi: Optional[Array] = None, sinks: Optional[Array] = None, dropout: float = 0.0,
                     return_lse: bool = False, out: Optional[Array] = None, diagonal: Optional[str] = None,
                     num_splits: int = 0, batch_invariant: bool = False, seed: Union[None, int, Array] = None,
                     seqused_q: Optional[Array] = None, seqused_k: Optional[Array] = None,
                     block_table: Optional[Array] = None, qv: Optional[Array] = None) -> Any:
    """attention of many sequences packed one after the other.

    q is (all rows, heads, dim), k and v (all keys, key heads, dim). cu_seqlens_q and cu_seqlens_k, int32 (batch + 1,)
    beginning with 0, say where each sequence begins. Lengths may be 0. lse is (heads, all rows).

    max_seqlen_q, max_seqlen_k: hints for scheduling; never needed for correctness.
    mask, bias: (batch, heads, longest rows, longest keys), indexed within each sequence.
    seqused_q, seqused_k: int32 (batch,): use only so many rows or keys of each sequence; rows not used give 0.
    block_table: int32 (batch, blocks): k and v are then pages (pages, page size, key heads, dim); no gradient.
    qv: (all rows, heads, dim_v): a second query, as in attention_with_cache; no gradient.

    The other arguments are those of attention.
    """
    return (_faces.get(type(q)) or _face_of(q)).attention_varlen(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, window, chunk, mask, bias, scale, softcap,
        alibi, sinks, dropout, return_lse, out, diagonal, num_splits, batch_invariant, seed, seqused_q, seqused_k,
        block_table, qv)


def attention_with_cache(q: Array, k_cache: Array, v_cache: Array, *, k: Optional[Array] = None,
                         v: Optional[Array] = None, cache_seqlens: Union[None, int, Array] = None,
                         block_table: Optional[Array] = None, cache_batch_idx: Optional[Array] = None,
                         cache_leftpad: Optional[Array] = None, rotary_cos: Optional[Array] = None,
                         rotary_sin: Optional[Array] = None, rotary_interleaved: bool = False,
                         causal: Causal = False, window: Window = None, chunk: int = 0, mask: Optional[Array] = None,
                         bias: Optional[Array] = None, scale: Optional[float] = None,
                         softcap: Optional[float] = None, alibi: Optional[Array] = None,
                         sinks: Optional[Array] = None, return_lse: bool = False, out: Optional[Array] = None,
                         diagonal: Optional[str] = None, num_splits: int = 0, batch_invariant: bool = False,
                         max_seqlen_k: Optional[int] = None, tree: Optional[Array] = None,
                         k_prefix: Optional[Array] = None, v_prefix: Optional[Array] = None,
                         qv: Optional[Array] = None) -> Any:
    """attention to a cache of keys and values, which may take up new ones first. For inference: it has no gradient.

    q is (batch, rows, heads, dim). k_cache and v_cache are (slots, capacity, key heads, dim); with block_table, int32
    (batch, blocks), they are pages (pages, page size, key heads, dim).

    cache_seqlens: an int or int32 (batch,): the keys in use, before the new ones. None: the whole capacity.
    k, v: (batch, new rows, key heads, dim): written into the caches in place, at cache_seqlens, then attended to.
    cache_batch_idx: int32 (batch,): which slot a sequence uses; None: its own number.
    cache_leftpad: int32 (batch,): keys to skip at the beginning of each sequence.
    rotary_cos, rotary_sin: (positions, rotary dim / 2): turn k and q by their positions, with k given. A query row i
        stands at cache_seqlens + i if causal, windowed or chunked, else at cache_seqlens.
    rotary_interleaved: turn the pairs (0, 1), (2, 3) ... instead of (0, r/2), (1, r/2 + 1) ...
    max_seqlen_k: a hint: no more keys than this are in use.
    tree: bool, (rows, n), (batch, rows, n) or (batch, heads, rows, n), instead of mask: which of the last n keys each row sees,
        as trees of speculated tokens want it; keys before them are visible.

    k_prefix, v_prefix: (prefix keys, key heads, dim), torch tensors: keys that all sequences share, ahead of their own; they
        are read once for the whole batch. Every row sees them all, so that there is no window, chunk, mask, bias or alibi
        with them. Rotary counts from a sequence's own cache: hand over tables that begin at the prefix's end.
    qv: (batch, rows, heads, dim_v): a second query, for the values: scores are of q.k + qv.v, and scale None means
        1/sqrt(dim + dim_v). MLA in its absorbed form, rotary part in q and k_cache, latent in qv and v_cache. dim + dim_v is at
        most 576.

    The other arguments are those of attention; the diagonal counts the keys in use, new ones included.
    """
    try:
        return (_faces.get(type(q)) or _face_of(q)).attention_with_cache(
            q, k_cache, v_cache, k, v, cache_seqlens, block_table, cache_batch_idx, cache_leftpad, rotary_cos,
            rotary_sin, rotary_interleaved, causal, window, chunk, mask, bias, scale, softcap, alibi, sinks, return_lse, out,
            diagonal, num_splits, batch_invariant, max_seqlen_k, tree, k_prefix, v_prefix, qv)
    except InvalidArgument as error:
        from ._messages import of_a_cache
        raise type(error)(of_a_cache(str(error), tree is not None)) from None
