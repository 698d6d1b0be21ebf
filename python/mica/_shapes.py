# SPDX-License-Identifier: Apache-2.0
"""The checks of a real call for tensors without memory: what a kernel will refuse is refused while it is traced."""

from typing import Any, Dict, Optional

from torch import Tensor

from . import _abi
from ._caller import DTYPES, device_of, output_dtype
from ._describe import PACKED_BY, ROWS, Options, View, check_axes, dense_strides, describe, options, view_of
from ._library import load

_BINDINGS = {"mask": "boolean_mask"}  # the ops' names that are not those of the bindings


def _known(size: Any) -> Optional[int]:
    """A number, or the one that a symbol stands for in this trace; None where nobody knows."""
    if isinstance(size, int):
        return size
    node = getattr(size, "node", None)
    try:
        return int(node.hint) if node is not None and node.has_hint() else None
    except (AttributeError, RuntimeError, TypeError):
        return None


def _view(name: str, tensor: Tensor) -> Optional[View]:
    shape = tuple(_known(size) for size in tensor.shape)
    stride = tuple(_known(step) for step in tensor.stride())
    if None in shape or None in stride:
        return None
    if name in ROWS and shape and stride[-1] != 1:
        stride = dense_strides(shape)  # type: ignore[arg-type]  # it will be a copy
    return view_of(name, DTYPES.get(tensor.dtype), shape, stride, False, tensor.dtype)  # type: ignore[arg-type]


def check_by_shapes(q: Tensor, k: Tensor, v: Tensor, named: Dict[str, Any]) -> None:
    """Raises what the library would say of a call with such tensors, on the CPU, which runs every legal one."""
    tensors = {"q": q, "k": k, "v": v}
    tensors.update((_BINDINGS.get(name, name), value) for name, value in named.items() if isinstance(value, Tensor))
    tensors.pop("rng_state", None)
    device_of(tuple(tensors), tuple(tensors.values()), is_traced=True)
    views: Dict[str, View] = {}
    for name, tensor in tensors.items():
        if name in PACKED_BY:
            check_axes(name, tensor.dim(), PACKED_BY[name] in tensors)
        view = _view(name, tensor)
        if view is None:
            return
        views[name] = view
    numbers: Dict[str, Any] = {name: named[name] for name in Options.__slots__ if name in named}
    numbers.update((name, _known(numbers.get(name, 0)) or 0) for name in ("max_seqlen_q", "max_seqlen_k"))
    shape = (*views["q"].shape[:-1], views["v"].shape[-1])
    views["o"] = view_of("o", DTYPES.get(output_dtype(q)), shape, dense_strides(shape), False, q.dtype)
    load().plan(describe(views, options(**numbers), (_abi.CPU, 0)), _abi.FORWARD)

