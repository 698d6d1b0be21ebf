# SPDX-License-Identifier: Apache-2.0
"""How large a wheel may be, and how much of that is left for the packed images of GPU kernels."""

WHEEL = 14_000_000  # 12.6 MB are taken
BESIDE_IMAGES = 3_150_000  # the library's and the command's own code, the Python package: 3.12 MB deflated
IMAGES = WHEEL - BESIDE_IMAGES
