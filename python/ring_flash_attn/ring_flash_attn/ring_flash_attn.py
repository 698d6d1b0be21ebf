# SPDX-License-Identifier: Apache-2.0
"""Layout 'ring' of mica.distributed under ring-flash-attention's names."""
from ._forms import dense_forms

(ring_flash_attn_func, ring_flash_attn_kvpacked_func,
 ring_flash_attn_qkvpacked_func) = dense_forms("ring", "ring_flash_attn")
