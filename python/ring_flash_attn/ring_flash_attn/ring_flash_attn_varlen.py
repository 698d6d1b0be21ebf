# SPDX-License-Identifier: Apache-2.0
"""Layout 'ring' of mica.distributed for packed sequences, each spread over all ranks."""
from ._forms import packed_forms

(ring_flash_attn_varlen_func, ring_flash_attn_varlen_kvpacked_func,
 ring_flash_attn_varlen_qkvpacked_func) = packed_forms("ring", "ring_flash_attn_varlen")
