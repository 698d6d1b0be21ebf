# SPDX-License-Identifier: Apache-2.0
"""torch.ops.flash_attn_3.{fwd, bwd, fwd_combine, get_scheduler_metadata}, with upstream's signatures, for CPUs and GPUs.

Results that are upstream's workspace (partial outputs, accumulators) are empty tensors here.
"""
from typing import Any, List, Optional, Tuple

import torch
from flash_attn._native import round_multiple
from torch import Tensor

from . import _native
from ._combine import combine

NAMESPACE = "flash_attn_3"


def _optional(kind: str, *names: str) -> List[str]:
    return [f"{kind}? {name}=None" for name in names]


def _written(*names: str) -> List[str]:
    return [f"Tensor({name}!)? {name}=None" for name in names]


def _plain(*names: str) -> List[str]:
    return [f"Tensor {name}" for name in names]


_WINDOW = ["bool is_causal=False", "int window_size_left=-1", "int window_size_right=-1"]
_LENGTHS = _optional("int", "max_seqlen_q", "max_seqlen_k")
_CONTROL = ["int num_splits=0", "bool? pack_gqa=None", "int sm_margin=0"]
# name -> arguments, results
SCHEMAS = {
    "fwd": (
        _plain("q", "k", "v") + _written("k_new", "v_new") + _optional("Tensor", "q_v") + _written("out") +
        _optional("Tensor", "cu_seqlens_q", "cu_seqlens_k", "cu_seqlens_k_new", "seqused_q", "seqused_k") + _LENGTHS +
        _optional("Tensor", "page_table", "kv_batch_idx", "leftpad_k", "rotary_cos", "rotary_sin", "seqlens_rotary",
                  "q_descale", "k_descale", "v_descale") +
        _optional("float", "softmax_scale") + _WINDOW +
        ["int attention_chunk=0", "float softcap=0.0", "bool is_rotary_interleaved=False"] +
        _optional("Tensor", "scheduler_metadata") + _CONTROL,
        "(Tensor(out!), Tensor, Tensor, Tensor)"),
    "bwd": (
        _plain("dout", "q", "k", "v", "out", "softmax_lse") + _written("dq", "dk", "dv") +
        _optional("Tensor", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k") + _LENGTHS +
        _optional("float", "softmax_scale") + _WINDOW +
        ["float softcap=0.0", "bool deterministic=False", "int sm_margin=0"],
        "(Tensor, Tensor, Tensor, Tensor, Tensor)"),
    "fwd_combine": (
        _plain("out_partial", "lse_partial") + _written("out") + _optional("ScalarType", "out_dtype"),
        "(Tensor(out!), Tensor)"),
    "get_scheduler_metadata": (
        [f"int {name}" for name in ("batch_size", "max_seqlen_q", "max_seqlen_k", "num_heads", "num_heads_k", "headdim",
                                    "headdim_v")] +
        ["ScalarType qkv_dtype", "Tensor seqused_k"] +
        _optional("Tensor", "cu_seqlens_q", "cu_seqlens_k", "cu_seqlens_k_new", "seqused_q", "leftpad_k") +
        ["int? page_size=None", "int max_seqlen_k_new=0"] + _WINDOW +
        ["int attention_chunk=0", "bool has_softcap=False"] + _CONTROL,
        "Tensor"),
}


def _empty(like: Tensor) -> Tensor:
    return like.new_empty((0,), dtype=torch.float32)


def fwd(q, k, v, k_new=None, v_new=None, q_v=None, out=None, cu_seqlens_q=None, cu_seqlens_k=None,
        cu_seqlens_k_new=None, seqused_q=None, seqused_k=None, max_seqlen_q=None, max_seqlen_k=None, page_table=None,
        kv_batch_idx=None, leftpad_k=None, rotary_cos=None, rotary_sin=None, seqlens_rotary=None, q_descale=None,
        k_descale=None, v_descale=None, softmax_scale=None, is_causal=False, window_size_left=-1, window_size_right=-1,
        attention_chunk=0, softcap=0.0, is_rotary_interleaved=False, scheduler_metadata=None, num_splits=0,
        pack_gqa=None, sm_margin=0) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """(out, lse, empty, empty)."""
    made, lse = _native.forward(
        q, k, v, k_new, v_new, q_v, out, cu_seqlens_q, cu_seqlens_k, cu_seqlens_k_new, seqused_q, seqused_k,
        max_seqlen_q, max_seqlen_k, page_table, kv_batch_idx, leftpad_k, rotary_cos, rotary_sin, seqlens_rotary,
        softmax_scale, is_causal, (window_size_left, window_size_right), attention_chunk, softcap,
        is_rotary_interleaved, num_splits, (q_descale, k_descale, v_descale))
    return made, lse, _empty(q), _empty(q)


def bwd(dout, q, k, v, out, softmax_lse, dq=None, dk=None, dv=None, cu_seqlens_q=None, cu_seqlens_k=None,
        seqused_q=None, seqused_k=None, max_seqlen_q=None, max_seqlen_k=None, softmax_scale=None, is_causal=False,
        window_size_left=-1, window_size_right=-1, softcap=0.0, deterministic=False,
        sm_margin=0) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Writes dq, dk and dv, and returns the row sums of dO * O, the LSE in log2 units, and three empty tensors."""
    _native.backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k,
                     max_seqlen_q, max_seqlen_k, softmax_scale, is_causal, (window_size_left, window_size_right), softcap,
                     deterministic)
    sums = (dout.float() * out.float()).sum(dim=-1).transpose(-1, -2)
    sums = torch.nn.functional.pad(sums, (0, round_multiple(sums.shape[-1], 128) - sums.shape[-1]))
    return sums, softmax_lse * 1.4426950408889634, _empty(q), _empty(q), _empty(q)


def get_scheduler_metadata(batch_size: int, max_seqlen_q: int, max_seqlen_k: int, num_heads: int, num_heads_k: int,
                           headdim: int, headdim_v: int, qkv_dtype: Any, seqused_k: Tensor, *_rest: Any,
                           **_more: Any) -> Tensor:
    """Mica schedules without it: an empty tensor that fwd takes."""
    return torch.empty(0, dtype=torch.int32, device=seqused_k.device)


def fwd_combine(out_partial: Tensor, lse_partial: Tensor, out: Optional[Tensor] = None,
                out_dtype: Optional[torch.dtype] = None) -> Tuple[Tensor, Tensor]:
    return combine(out_partial, lse_partial, out, out_dtype)


def _register() -> torch.library.Library:
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    functions = dict(fwd=fwd, bwd=bwd, fwd_combine=fwd_combine, get_scheduler_metadata=get_scheduler_metadata)
    for name, (arguments, results) in SCHEMAS.items():
        library.define(f"{name}({', '.join(arguments)}) -> {results}")
        library.impl(name, functions[name], "CompositeExplicitAutograd")
    return library


_library = _register()  # operators live as long as this does
