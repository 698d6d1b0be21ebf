# SPDX-License-Identifier: Apache-2.0
"""dQ of several pieces for the same queries, summed where the GPU's kernels sum it: in a workspace that the pieces share
(mica_pieces). The statistics of the rows are made once, and dQ is written once, at the end."""

from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .. import _abi
from .._caller import Entry, kept_with_plans
from .._describe import ROW_ALIGNMENT, options
from .._tensors import BACKWARD_BOUND
from ..errors import Unsupported
from ._lanes import Lanes
from ._sum import Sum

_DQ = BACKWARD_BOUND.index("dq")
Bound = Tuple[Any, ...]


class _Sums(NamedTuple):
    """Of one stretch of rows: its first piece, by which kernel, and the memory with the sums."""
    call: Any
    numbers: Tuple[Any, ...]
    bound: Bound
    kernel: str
    workspace: Tensor


_refused = kept_with_plans()  # plans whose piece shares no workspace with one on another stream


class QuerySums:
    """Of a rank's rows. Its pieces are executed by run_of()(...); end() writes or adds up all of it. Pieces of both lanes
    have the same sums, but where kernels keep more than those in the workspace: there each lane has its own."""

    def __init__(self) -> None:
        self._sums: Dict[Tuple[int, int, str], _Sums] = {}

    @staticmethod
    def takes(*rows: Tensor) -> bool:
        """Whether these tensors' rows can be used by calls that share a workspace."""
        return rows[0].is_cuda and all(t.data_ptr() % ROW_ALIGNMENT == 0 for t in rows)

    def run_of(self, begin: int, end: int, lanes: Lanes) -> Any:
        """What mica._tensors.backward runs a piece of rows [begin, end) by."""
        def run(call: Any, numbers: Tuple[Any, ...], bound: Bound) -> None:
            entry, is_shared = self._entry(call, numbers, bound, lanes.index)
            kernel: str = entry.plan.kernel
            key = (begin, end, kernel if is_shared else f"{kernel}, lane {lanes.index}")
            before = self._sums.get(key)
            if before is None or before.workspace.numel() < entry.workspace_bytes:
                if before is not None:  # too small for this piece: its sums stand beside the new ones
                    key = (begin, end, f"{key[2]}, {len(self._sums)}")
                begins = self._find(call, numbers, bound, _abi.PIECES_BEGIN)
                with lanes.home():
                    workspace = torch.empty(max(entry.workspace_bytes, begins.workspace_bytes), dtype=torch.uint8,
                                            device=bound[0].device)
                    call.again(begins.on(workspace), *bound)
                before = self._sums[key] = _Sums(call, numbers, bound, kernel, workspace)
            call.again(entry.on(before.workspace), *bound)
        return run

    def _entry(self, call: Any, numbers: Tuple[Any, ...], bound: Bound, lane: int) -> Tuple[Entry, bool]:
        """The plan of a piece on the lane, and whether its sums may be the other lane's, too."""
        following = self._find(call, numbers, bound, _abi.PIECES_NEXT)
        if (following.address,) not in _refused:
            try:
                beside = self._find(call, numbers, bound, _abi.PIECES_BESIDE)
                return (beside if lane else following), True
            except Unsupported:
                _refused[(following.address,)] = True
        return following, False

    def end(self, sums_of_dq: Sequence[Sum], q: Tensor) -> Optional[Tensor]:
        """dQ in q's type where one workspace has all of it; else None, and it is added to the first of sums_of_dq."""
        dq = sums_of_dq[0]
        is_all = len(self._sums) == 1 and not any(one.has_any for one in sums_of_dq)
        for (begin, end, _), sums in self._sums.items():
            if is_all and end - begin == q.shape[1]:
                whole = torch.empty_like(q, memory_format=torch.contiguous_format)
                if self._write(sums, whole):
                    return whole
            room = dq.room(begin, end, False)
            self._write(sums, room)
            dq.add(begin, end, room)
        return None

    def _write(self, sums: _Sums, dq: Optional[Tensor]) -> bool:
        """False: for a dQ like this another kernel would be taken."""
        bound = (*sums.bound[:_DQ], dq, *sums.bound[_DQ + 1:])
        entry = self._find(sums.call, sums.numbers, bound, _abi.PIECES_END)
        if entry.plan.kernel != sums.kernel:
            return False
        sums.call.again(entry.on(sums.workspace), *bound)
        return True

    @staticmethod
    def _find(call: Any, numbers: Tuple[Any, ...], bound: Bound, pieces: int) -> Entry:
        entry: Entry = call.find(options(*numbers, pieces=pieces), *bound)
        return entry
