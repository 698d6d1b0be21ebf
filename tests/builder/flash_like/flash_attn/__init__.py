# SPDX-License-Identifier: Apache-2.0
from flash_attn.flash_attn_interface import flash_attn_func  # noqa: F401

__version__ = "9.9"
