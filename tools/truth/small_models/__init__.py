# SPDX-License-Identifier: Apache-2.0
"""Models of the installed Transformers, made small from their configurations, and what to call them with."""
