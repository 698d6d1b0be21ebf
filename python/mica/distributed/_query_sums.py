# SPDX-License-Identifier: Apache-2.0
"""dQ of several pieces for the same queries, summed where the GPU's kernels sum it: in a workspace that the pieces share
(mica_pieces). The statistics of the rows are made once, and dQ is written once, at the end."""

from typing import Any, Dict, NamedTuple, Tuple

import torch
from torch import Tensor

from .. import _abi
from .._caller import Entry
from .._describe import ROW_ALIGNMENT, options
from .._tensors import BACKWARD_BOUND
from ._sum import Sum

_DQ = BACKWARD_BOUND.index("dq")


class _Sums(NamedTuple):
    """Of one stretch of rows by one kernel: its first piece, and the memory with the sums."""
    call: Any
    numbers: Tuple[Any, ...]
    bound: Tuple[Any, ...]
    workspace: Tensor


class QuerySums:
    """Of a rank's rows. Its pieces are executed by run_of()(...); end() adds all of it to the Sum of dQ."""

    def __init__(self) -> None:
        self._sums: Dict[Tuple[int, int, str], _Sums] = {}

    @staticmethod
    def takes(*rows: Tensor) -> bool:
        """Whether these tensors' rows can be used by calls that share a workspace."""
        return rows[0].is_cuda and all(t.data_ptr() % ROW_ALIGNMENT == 0 for t in rows)

    def run_of(self, begin: int, end: int) -> Any:
        """What mica._tensors.backward runs a piece of rows [begin, end) by."""
        def run(call: Any, numbers: Tuple[Any, ...], bound: Tuple[Any, ...]) -> None:
            entry = self._find(call, numbers, bound, _abi.PIECES_NEXT)
            key = (begin, end, entry.plan.kernel)
            before = self._sums.get(key)
            if before is None or before.workspace.numel() < entry.workspace_bytes:
                if before is not None:  # too small for this piece: its sums stand beside the new ones
                    key = (begin, end, f"{key[2]} {len(self._sums)}")
                entry = self._find(call, numbers, bound, _abi.PIECES_FIRST)
                workspace = torch.empty(entry.workspace_bytes, dtype=torch.uint8, device=bound[0].device)
                before = self._sums[key] = _Sums(call, numbers, bound, workspace)
            call.again(entry.on(before.workspace), *bound)
        return run

    def end(self, dq: Sum) -> None:
        for (begin, end, _), sums in self._sums.items():
            room = dq.room(begin, end, False)
            bound = (*sums.bound[:_DQ], room, *sums.bound[_DQ + 1:])
            entry = self._find(sums.call, sums.numbers, bound, _abi.PIECES_END)
            sums.call.again(entry.on(sums.workspace), *bound)
            dq.add(begin, end, room)
        self._sums.clear()

    @staticmethod
    def _find(call: Any, numbers: Tuple[Any, ...], bound: Tuple[Any, ...], pieces: int) -> Entry:
        entry: Entry = call.find(options(*numbers, pieces=pieces), *bound)
        return entry
