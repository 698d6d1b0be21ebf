# SPDX-License-Identifier: Apache-2.0
"""Gradients of stretches of rows, added up in fp32 with as few passes over memory as can be."""

from typing import Iterator, List, Optional, Tuple

import torch
from torch import Tensor


class Sum:
    """Of the gradient of `like`, (batch, rows, heads, dim). Who computes a stretch asks for room() and then calls add():
    what comes first to its rows lies in its place already."""

    def __init__(self, like: Tensor, is_needed: bool) -> None:
        self._like, self._is_needed = like, is_needed
        self._whole: Optional[Tensor] = None
        self._filled: List[Tuple[int, int]] = []  # stretches of _whole that have values; they do not overlap

    @property
    def has_any(self) -> bool:
        return bool(self._filled)

    def _gaps(self, begin: int, end: int) -> Iterator[Tuple[int, int]]:
        """Of [begin, end), what has no values yet."""
        for first, last in sorted(self._filled):
            if begin < min(first, end):
                yield begin, min(first, end)
            begin = max(begin, last)
        if begin < end:
            yield begin, end

    def _rows(self, begin: int, end: int) -> Tensor:
        if self._whole is None:
            self._whole = torch.empty(self._like.shape, dtype=torch.float32, device=self._like.device)
        return self._whole[:, begin:end]

    def room(self, begin: int, end: int, is_partly: bool) -> Optional[Tensor]:
        """A tensor for a gradient of rows [begin, end); None: not needed. is_partly: not every row will be written, and
        those that are not count as 0."""
        if not self._is_needed:
            return None
        if [*self._gaps(begin, end)] == [(begin, end)]:
            room = self._rows(begin, end)
        else:
            room = torch.empty((self._like.shape[0], end - begin, *self._like.shape[2:]), dtype=torch.float32,
                               device=self._like.device)
        return room.zero_() if is_partly else room

    def add(self, begin: int, end: int, part: Optional[Tensor]) -> None:
        """What was computed into the room."""
        if part is None:
            return
        gaps = [*self._gaps(begin, end)]
        if gaps != [(begin, end)]:
            for first, last in gaps:
                self._rows(first, last).zero_()
            self._rows(begin, end).add_(part)
        self._filled += gaps

    def onto(self, before: Optional[Tensor]) -> Optional[Tensor]:
        """The sum, added to what there was before (which is written into), if anything was."""
        if not self._is_needed:
            return None
        if before is None:
            for begin, end in self._gaps(0, self._like.shape[1]):
                self._rows(begin, end).zero_()
            return self._rows(0, self._like.shape[1])
        for begin, end in self._filled:
            before[:, begin:end].add_(self._rows(begin, end))
        return before
