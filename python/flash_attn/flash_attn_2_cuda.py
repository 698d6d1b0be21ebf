# SPDX-License-Identifier: Apache-2.0
"""Stands where upstream's compiled module stands, with its five functions."""
from flash_attn._native import bwd, fwd, fwd_kvcache, varlen_bwd, varlen_fwd

__all__ = ["fwd", "varlen_fwd", "bwd", "varlen_bwd", "fwd_kvcache"]
