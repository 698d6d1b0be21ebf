# SPDX-License-Identifier: Apache-2.0
"""Models of other libraries over ranks."""
from .hf_adapter import substitute_hf_flash_attn, update_ring_flash_attn_params, use_ring_attn

__all__ = ["substitute_hf_flash_attn", "update_ring_flash_attn_params", "use_ring_attn"]
