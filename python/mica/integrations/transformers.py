# SPDX-License-Identifier: Apache-2.0
"""Mica as an attention implementation of Hugging Face Transformers (4.57 and later).

    import mica.integrations.transformers
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="mica")

Causal masks, sliding windows, softcap and sinks run in the kernel. A padding mask goes in as (batch, 1, 1, keys); only
what is neither (a static cache, packed rows without cu_seq_lens, chunks, image tokens) becomes a mask of all pairs, as
for sdpa. NOTE: the name must not contain "flash": Transformers would take it for an implementation of its own.
"""
import importlib
import inspect
from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

import mica

NAME = "mica"


def _is_tracing() -> bool:
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return True
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


_known: Dict[str, bool] = {}


@getattr(torch.compiler, "assume_constant_result", lambda function: function)
def _names_its_windows(configuration_module: str) -> bool:
    """Whether the model hands its sliding window to the attention function. One that does not (PhiMoE, Qwen2-MoE)
    relies on the mask alone."""
    if configuration_module not in _known:
        try:
            modeling = importlib.import_module(configuration_module.replace("configuration_", "modeling_"))
            _known[configuration_module] = "sliding_window=" in inspect.getsource(modeling)
        except (ImportError, OSError, TypeError):
            return False
    return _known[configuration_module]


def _is_native_window(local_size: Optional[int], config: Any) -> bool:
    """Whether the kernel's window can stand for this mask; a mask of chunks has a size too, but is another thing."""
    if local_size is None:
        return True
    if config is None or getattr(config, "attention_chunk_size", None) == local_size:
        return False
    return getattr(config, "sliding_window", None) == local_size and _names_its_windows(type(config).__module__)


def mask(
    batch_size: int,
    *args: Any,
    kv_length: int,
    q_length: Optional[int] = None,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    cache_position: Optional[Tensor] = None,
    attention_mask: Optional[Tensor] = None,
    local_size: Optional[int] = None,
    allow_is_causal_skip: bool = True,
    config: Any = None,
    **kwargs: Any,
) -> Optional[Tensor]:
    """None: the kernel's causal mask and window say it all. (batch, 1, 1, kv_length): besides, keys that are padding.
    (batch, 1, q_length, kv_length): everything, in full.

    The first two need the last query to stand at the last key. Transformers 4.57 passes cache_position instead of
    q_length and q_offset, and allows a causal mask to be left out for no other cache than one of which this is true.
    """
    if cache_position is not None:
        rows, at_the_end = cache_position.shape[0], True
        positions = dict(cache_position=cache_position)
    else:
        rows = q_length
        known = isinstance(q_offset, int) and isinstance(kv_offset, int)
        at_the_end = known and q_offset + q_length == kv_offset + kv_length
        positions = dict(q_length=q_length, q_offset=q_offset)
    if allow_is_causal_skip and at_the_end and _is_native_window(local_size, config):
        if attention_mask is None:
            return None
        padding = attention_mask[:, -kv_length:].to(torch.bool)
        if padding.shape[-1] == kv_length:
            if not _is_tracing() and bool(padding.all()):
                return None
            if rows > 1:
                return padding[:, None, None, :]
    return ALL_MASK_ATTENTION_FUNCTIONS["sdpa"](
        batch_size,
        *args,
        kv_length=kv_length,
        kv_offset=kv_offset,
        attention_mask=attention_mask,
        local_size=local_size,
        allow_is_causal_skip=False,
        config=config,
        **positions,
        **kwargs,
    )


def _length(value: Any) -> Optional[int]:
    """A longest length, if it costs nothing to know: it is a hint."""
    return value if isinstance(value, int) else None


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Optional[Tensor],
    dropout: float = 0.0,
    scaling: Optional[float] = None,
    sliding_window: Optional[int] = None,
    softcap: Optional[float] = None,
    is_causal: Optional[bool] = None,
    s_aux: Optional[Tensor] = None,
    **kwargs: Any,
) -> Tuple[Tensor, None]:
    """query (batch, heads, rows, dim), key and value (batch, key heads, keys, dim) -> ((batch, rows, heads, dim),
    None).

    attention_mask: see mask(); one of floats is added to the scores. cu_seq_lens_q and cu_seq_lens_k (packed rows,
    batch 1) make the packed form of it, and then need no mask.
    """
    rows, keys = query.shape[2], key.shape[2]
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    if q.dtype != k.dtype or v.dtype != k.dtype:
        q, k = q.to(v.dtype), k.to(v.dtype)
    options = dict(scale=scaling, softcap=softcap, sinks=s_aux, dropout=dropout)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    side = None if sliding_window is None else sliding_window - 1
    native = dict(causal=causal, window=None if side is None else (side, None if causal else side))
    cu_q = kwargs.get("cu_seq_lens_q")
    if cu_q is not None and query.shape[0] == 1:
        lengths = {f"max_seqlen_{side}": _length(kwargs.get(f"max_length_{side}")) for side in "qk"}
        cu_k = kwargs.get("cu_seq_lens_k")
        cu_q, cu_k = (t.to(torch.int32) for t in (cu_q, cu_q if cu_k is None else cu_k))
        return mica.attention_varlen(q[0], k[0], v[0], cu_q, cu_k, **lengths, **native, **options).unsqueeze(0), None
    if attention_mask is None:
        return mica.attention(q, k, v, **native, **options), None
    if attention_mask.dim() == 2:
        attention_mask = attention_mask[:, None, None, :].to(torch.bool)
    attention_mask = attention_mask[..., :keys]
    if attention_mask.dtype != torch.bool:
        return mica.attention(q, k, v, bias=attention_mask, **options), None
    if attention_mask.shape[-2] == 1 and rows > 1:
        options.update(native)
    return mica.attention(q, k, v, mask=attention_mask, **options), None


def register(name: str = NAME) -> None:
    """Makes attn_implementation=name known. Importing this module does it for "mica"."""
    if "flash" in name or "/" in name:
        raise ValueError(f"name is {name!r}, want one without 'flash' and '/': those mean something to Transformers")
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)


register()
