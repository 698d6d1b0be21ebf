# SPDX-License-Identifier: Apache-2.0
"""Where a view begins that an operator writes, under Inductor with shapes that vary.

PyTorch asks the graph for it (aten.sym_storage_offset), and Inductor up to 2.15 at least has no rule for that: it asks
a tensor of its own, which begins at 0. Then new keys for cache[layer] went to the first layer (pytorch#198068). What is
missing is registered here, as Inductor has it for sizes and strides; one that has the rule keeps its own.
"""

import sys
from typing import Any


def _begin(view: Any) -> Any:
    from torch._inductor.virtualized import V
    value = V.graph.current_node.meta["val"]
    return value.node.expr if hasattr(value, "node") else int(value)


def know_where_views_begin() -> None:
    """Called while an operator that writes is traced, by when Inductor is loaded if it is to compile the graph."""
    lowering: Any = sys.modules.get("torch._inductor.lowering")
    if lowering is None:
        return
    import torch
    rule = torch.ops.aten.sym_storage_offset.default
    if rule not in lowering.lowerings or rule in lowering.fallbacks:  # what asks a tensor of its own is such a fallback
        lowering.register_lowering(rule)(_begin)
        lowering.fallbacks.discard(rule)
