# SPDX-License-Identifier: Apache-2.0
# Code that can do without asks for this module inside try / except ImportError.
raise ImportError(
    "flash_attn.ops.rms_norm needs upstream's compiled extension dropout_layer_norm; "
    "flash_attn.ops.triton.layer_norm does without"
)
