# SPDX-License-Identifier: Apache-2.0
"""mica.attention* while torch.fx.symbolic_trace looks on: a call becomes a node of its graph."""

import inspect
from typing import Any, Callable

from . import functions


def _node_of(function: Callable[..., Any]) -> Callable[..., Any]:
    names = tuple(inspect.signature(function).parameters)
    positional = 5 if function is functions.attention_varlen else 3

    def call(*values: Any) -> Any:
        arguments = dict(zip(names, values))
        first = tuple(arguments.pop(name) for name in names[:positional])
        return first[0].tracer.create_proxy("call_function", function, first, arguments)

    return call


attention = _node_of(functions.attention)
attention_varlen = _node_of(functions.attention_varlen)
attention_with_cache = _node_of(functions.attention_with_cache)
