# SPDX-License-Identifier: Apache-2.0
"""Upstream's package of this name holds its compiled operators; here it only says that FlashAttention-3's functions
are there."""
