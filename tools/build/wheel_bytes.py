# SPDX-License-Identifier: Apache-2.0
"""How large a wheel may be, and how much of that is left for the deflated images of GPU kernels."""

WHEEL = 25_000_000
BESIDE_IMAGES = 2_400_000  # the library's and the command's own code, the Python package: 2.38 MB deflated
IMAGES = WHEEL - BESIDE_IMAGES
