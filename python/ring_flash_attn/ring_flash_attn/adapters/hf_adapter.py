# SPDX-License-Identifier: Apache-2.0
"""Transformers' models over ranks: attn_implementation="flash_attention_2" attends over a group.

A model sees this rank's stretch of a stream of packed sequences (batch 1) with its position ids;
update_ring_flash_attn_params says before every batch where the sequences of the whole stream lie.
"""

from typing import Any, Dict, Optional, Tuple

import torch
from mica import distributed
from mica.errors import Error, InvalidArgument
from torch import Tensor

_stream: Dict[str, Any] = {"is_on": True}


def update_ring_flash_attn_params(cu_seqlens: Tensor, process_group: Any) -> None:
    """Where the sequences of the next batch lie in the whole stream."""
    _stream.update(cu_seqlens=tuple(cu_seqlens.tolist()), group=process_group)


def use_ring_attn(flag: bool) -> None:
    """False: models attend to what they are given, as without substitute_hf_flash_attn."""
    _stream["is_on"] = flag


def _attend(query: Tensor, key: Tensor, value: Tensor, attention_mask: Optional[Tensor], is_causal: bool, dropout: float,
            scaling: Optional[float], sliding_window: Optional[int], softcap: Optional[float],
            sinks: Optional[Tensor]) -> Tensor:
    """query (1, rows here, heads, dim), key and value likewise; the result too."""
    if "cu_seqlens" not in _stream:
        raise Error("nothing says where the sequences lie, want update_ring_flash_attn_params called before the model")
    if query.shape[0] != 1:
        raise InvalidArgument(f"the batch is {query.shape[0]}, want 1: packed sequences, one after the other")
    if attention_mask is not None and not attention_mask.all():
        raise InvalidArgument("attention_mask has zeros, want none, or all ones: a stream of packed sequences has no padding")
    # Transformers' sliding_window counts the token itself.
    window = None if sliding_window is None else (sliding_window - 1, 0 if is_causal else sliding_window - 1)
    made = distributed.attention_varlen(query[0], key[0], value[0], _stream["cu_seqlens"], group=_stream["group"],
                                        layout="gather", causal=is_causal, window=window, scale=scaling,
                                        softcap=softcap, dropout=dropout, sinks=sinks)
    return made.unsqueeze(0)


def _forward_of(before: Any) -> Any:
    def forward(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Optional[Tensor],
                dropout: float = 0.0, scaling: Optional[float] = None, sliding_window: Optional[int] = None,
                softcap: Optional[float] = None, is_causal: Optional[bool] = None, s_aux: Optional[Tensor] = None,
                **rest: Any) -> Tuple[Tensor, None]:
        if not _stream["is_on"]:
            return before(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling,
                          sliding_window=sliding_window, softcap=softcap, is_causal=is_causal, s_aux=s_aux, **rest)
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        made = _attend(*(t.transpose(1, 2) for t in (query, key, value)), attention_mask, bool(causal), dropout, scaling,
                       sliding_window, softcap, s_aux)
        return made, None
    return forward


def _old_forward_of(before: Any) -> Any:
    """For models that call Transformers' function themselves."""
    def forward(query_states: Tensor, key_states: Tensor, value_states: Tensor, attention_mask: Optional[Tensor],
                query_length: int, is_causal: bool, dropout: float = 0.0, position_ids: Optional[Tensor] = None,
                softmax_scale: Optional[float] = None, sliding_window: Optional[int] = None,
                use_top_left_mask: bool = False, softcap: Optional[float] = None, **rest: Any) -> Tensor:
        if not _stream["is_on"]:
            return before(query_states, key_states, value_states, attention_mask, query_length, is_causal, dropout,
                          position_ids, softmax_scale, sliding_window, use_top_left_mask, softcap, **rest)
        return _attend(query_states, key_states, value_states, attention_mask, is_causal, dropout, softmax_scale,
                       sliding_window, softcap, rest.get("s_aux"))
    return forward


def substitute_hf_flash_attn(process_group: Any, heads_k_stride: int) -> None:
    """From now on flash_attention_2 of Transformers 4.57 or 5 attends over the group. heads_k_stride is accepted and
    changes nothing: a rank fetches only keys that its rows see."""
    from transformers import modeling_flash_attention_utils as utils
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    _stream["group"] = process_group
    if "before" not in _stream:
        _stream["before"] = ALL_ATTENTION_FUNCTIONS["flash_attention_2"]
        utils._flash_attention_forward = _old_forward_of(utils._flash_attention_forward)
    ALL_ATTENTION_FUNCTIONS["flash_attention_2"] = _forward_of(_stream["before"])
