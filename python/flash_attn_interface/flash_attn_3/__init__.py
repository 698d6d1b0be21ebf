# SPDX-License-Identifier: Apache-2.0
"""Upstream's package of this name holds its compiled operators; here flash_attn_3._C registers the same names on Mica."""
