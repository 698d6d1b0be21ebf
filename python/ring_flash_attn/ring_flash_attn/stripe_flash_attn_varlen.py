# SPDX-License-Identifier: Apache-2.0
"""Layout 'stripe' of mica.distributed for packed sequences, each spread over all ranks."""
from ._forms import packed_forms

(stripe_flash_attn_varlen_func, stripe_flash_attn_varlen_kvpacked_func,
 stripe_flash_attn_varlen_qkvpacked_func) = packed_forms("stripe", "stripe_flash_attn_varlen")
