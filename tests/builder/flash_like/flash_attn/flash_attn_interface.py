# SPDX-License-Identifier: Apache-2.0
# torch first: its libraries are those that the module needs.
import torch  # noqa: F401, I001
import flash_attn_2_cuda as flash_attn_gpu


def flash_attn_func(name):
    return flash_attn_gpu.greet(name)
