# SPDX-License-Identifier: Apache-2.0
"""Sizes that must fit each other in a way that their names do not tell: model type -> path in the configuration -> value."""

OVERRIDES = {
}
