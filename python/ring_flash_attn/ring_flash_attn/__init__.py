# SPDX-License-Identifier: Apache-2.0
"""ring_flash_attn on Mica: the names, arguments and results of ring-flash-attention 0.1.8, on every device and every
torch.distributed backend that Mica runs on. `ring_flash_attn.__version__` ends in +mica<version>."""
import mica

from .adapters import substitute_hf_flash_attn, update_ring_flash_attn_params
from .llama3_flash_attn_varlen import (
    llama3_flash_attn_prepare_cu_seqlens,
    llama3_flash_attn_varlen_func,
    llama3_flash_attn_varlen_kvpacked_func,
    llama3_flash_attn_varlen_qkvpacked_func,
)
from .ring_flash_attn import (
    ring_flash_attn_func,
    ring_flash_attn_kvpacked_func,
    ring_flash_attn_qkvpacked_func,
)
from .ring_flash_attn_varlen import (
    ring_flash_attn_varlen_func,
    ring_flash_attn_varlen_kvpacked_func,
    ring_flash_attn_varlen_qkvpacked_func,
)
from .stripe_flash_attn import (
    stripe_flash_attn_func,
    stripe_flash_attn_kvpacked_func,
    stripe_flash_attn_qkvpacked_func,
)
from .stripe_flash_attn_varlen import (
    stripe_flash_attn_varlen_func,
    stripe_flash_attn_varlen_kvpacked_func,
    stripe_flash_attn_varlen_qkvpacked_func,
)
from .zigzag_ring_flash_attn import (
    zigzag_ring_flash_attn_func,
    zigzag_ring_flash_attn_kvpacked_func,
    zigzag_ring_flash_attn_qkvpacked_func,
)
from .zigzag_ring_flash_attn_varlen import (
    zigzag_ring_flash_attn_varlen_func,
    zigzag_ring_flash_attn_varlen_kvpacked_func,
    zigzag_ring_flash_attn_varlen_qkvpacked_func,
)

__version__ = f"0.1.8+mica{mica.__version__}"

__all__ = [name for name in dir() if name.endswith(("_func", "_cu_seqlens"))]
__all__ += ["substitute_hf_flash_attn", "update_ring_flash_attn_params"]
