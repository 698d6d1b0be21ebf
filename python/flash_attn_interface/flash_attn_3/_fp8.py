# SPDX-License-Identifier: Apache-2.0
"""e4m3 for the functions of flash_attn_interface."""
from typing import Any, Dict, Optional

import torch
from mica import fp8
from torch import Tensor

E4M3 = getattr(torch, "float8_e4m3fn", None)


def factors_of(q: Tensor, k: Tensor, q_descale: Any, k_descale: Any, v_descale: Any,
               **unwanted: Any) -> Optional[Dict[str, Any]]:
    """The factors of those tensors that are e4m3; None where none is, and then upstream looks at no factor either."""
    if k.dtype is not E4M3:
        return None
    for name, value in unwanted.items():
        if value is not None:
            raise ValueError(f"{name} is given with float8_e4m3fn keys, want None")
    return {"q_descale": q_descale if q.dtype is E4M3 else None, "k_descale": k_descale, "v_descale": v_descale}


def packed_queries(q: Tensor, k_cache: Tensor, v_cache: Tensor, cu_seqlens_q: Tensor, cache_seqlens: Any,
                   max_seqlen_q: Any, page_table: Optional[Tensor], options: Dict[str, Any]) -> Any:
    """Packed queries over a cache: its slots, or its pages, are the keys of a packed call."""
    batch, cu_seqlens_k = cu_seqlens_q.shape[0] - 1, None
    if page_table is None:
        cu_seqlens_k = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * k_cache.shape[1]
        k_cache, v_cache = k_cache[:batch].flatten(0, 1), v_cache[:batch].flatten(0, 1)
    return fp8.attention_varlen(q, k_cache, v_cache, cu_seqlens_q, cu_seqlens_k, max_seqlen_q=max_seqlen_q,
                                seqused_k=cache_seqlens, block_table=page_table, **options)
