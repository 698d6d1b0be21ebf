# SPDX-License-Identifier: Apache-2.0
"""Layout 'stripe' of mica.distributed under ring-flash-attention's names."""
from ._forms import dense_forms

(stripe_flash_attn_func, stripe_flash_attn_kvpacked_func,
 stripe_flash_attn_qkvpacked_func) = dense_forms("stripe", "stripe_flash_attn")
