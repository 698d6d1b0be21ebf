# SPDX-License-Identifier: Apache-2.0
# Code that can do without asks for this module inside try / except ImportError.
raise ImportError(
    "flash_attn.ops.fused_dense needs upstream's compiled extension fused_dense_lib; Mica's drop-in has none"
)
