# SPDX-License-Identifier: Apache-2.0
"""Mica inside other libraries: mica.integrations.transformers, mica.integrations.sdpa, mica.integrations.export. Nothing is
imported by itself."""
