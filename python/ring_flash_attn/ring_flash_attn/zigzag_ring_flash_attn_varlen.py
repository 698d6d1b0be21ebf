# SPDX-License-Identifier: Apache-2.0
"""Layout 'zigzag' of mica.distributed for packed sequences, each spread over all ranks."""
from ._forms import packed_forms

(zigzag_ring_flash_attn_varlen_func, zigzag_ring_flash_attn_varlen_kvpacked_func,
 zigzag_ring_flash_attn_varlen_qkvpacked_func) = packed_forms("zigzag", "zigzag_ring_flash_attn_varlen")
