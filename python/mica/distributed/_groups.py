# SPDX-License-Identifier: Apache-2.0
"""The ranks of a call: a process group, or a DeviceMesh whose second dimension divides heads."""

from typing import Any, Dict, NamedTuple, Optional

import torch.distributed as dist

from ..errors import Error, InvalidArgument
from ._layout import is_product


class Ranks(NamedTuple):
    """rows: ranks round which keys go; columns: ranks among which heads are divided. A row of the mesh holds the tokens
    of one rank of the ring."""
    group: Any  # all of them
    size: int
    rank: int
    rows: int
    row: int
    row_group: Optional[Any]  # round which keys go
    columns: int
    column: int
    column_group: Optional[Any]  # among which heads are divided


def ranks_of(group: Any, layout: str) -> Ranks:
    if not dist.is_available() or not dist.is_initialized():
        raise Error("torch.distributed is not initialised, want init_process_group called first (as torchrun's "
                    "programs do)")
    mesh = group if hasattr(group, "mesh_dim_names") else None
    if is_product(layout):
        if mesh is None or mesh.ndim != 2:
            what = "a mesh of 1 dimension" if mesh is not None else f"a {type(group).__name__}"
            raise InvalidArgument(f"group is {what}, want a DeviceMesh of two dimensions for layout {layout!r}: keys "
                                  "go round along the first, heads are divided along the second")
        row, column = mesh.get_local_rank(0), mesh.get_local_rank(1)
        rows, columns = mesh.size(0), mesh.size(1)
        return Ranks(_flat_group(mesh), rows * columns, row * columns + column, rows, row, mesh.get_group(0), columns,
                     column, mesh.get_group(1))
    if mesh is not None:
        if mesh.ndim != 1:
            raise InvalidArgument(f"group is a mesh of {mesh.ndim} dimensions, want one for layout {layout!r}, or a "
                                  "layout such as 'ulysses x ring'")
        group = mesh.get_group()
    group = dist.group.WORLD if group is None else group
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    if rank < 0:
        raise InvalidArgument("group does not have this rank, want a group that does")
    if layout == "ulysses":
        return Ranks(group, size, rank, 1, 0, None, size, rank, group)
    return Ranks(group, size, rank, size, rank, group, 1, 0, None)


_flat: Dict[Any, Any] = {}


def _flat_group(mesh: Any) -> Any:
    """A group of all ranks of the mesh, made once."""
    ranks = mesh.mesh.flatten().tolist()
    if ranks == list(range(dist.get_world_size())):
        return dist.group.WORLD
    key = tuple(ranks)
    if key not in _flat:
        _flat[key] = mesh._flatten().get_group()
    return _flat[key]
