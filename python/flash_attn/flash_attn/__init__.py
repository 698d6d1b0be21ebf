# SPDX-License-Identifier: Apache-2.0
"""flash_attn on Mica: the names, arguments and results of flash_attn 2.8.3, on every GPU, CPU, Python and PyTorch that
Mica runs on. `flash_attn.__version__` ends in +mica<version>, which tells the two apart."""
import mica

from flash_attn.flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

__version__ = f"2.8.3+mica{mica.__version__}"

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]
