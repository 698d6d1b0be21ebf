# SPDX-License-Identifier: Apache-2.0
"""Layout 'zigzag' of mica.distributed under ring-flash-attention's names."""
from ._forms import dense_forms

(zigzag_ring_flash_attn_func, zigzag_ring_flash_attn_kvpacked_func,
 zigzag_ring_flash_attn_qkvpacked_func) = dense_forms("zigzag", "zigzag_ring_flash_attn")
