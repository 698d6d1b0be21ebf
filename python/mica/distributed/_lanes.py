# SPDX-License-Identifier: Apache-2.0
"""Two streams on which a GPU computes a rank's pieces in turn: while the last tiles of a piece leave multiprocessors idle,
the first of the next piece run there.

Tensors are allocated on the caller's stream. What a lane reads or writes is kept until the caller's stream has waited for
it, since memory that is let go may be given to whoever asks next on that stream.
"""

from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Iterator, List, NamedTuple, Optional, Tuple

import torch


@lru_cache(maxsize=None)
def _streams(device: torch.device) -> Tuple[Any, ...]:
    return torch.cuda.Stream(device), torch.cuda.Stream(device)


class _Begun(NamedTuple):
    """The number-th piece of work: when it is done (an event), and what it uses until then."""
    number: int
    done: Any
    kept: Tuple[Any, ...]


class Lanes:
    """Where they are not wanted, and on a CPU, everything is computed where the caller is."""

    def __init__(self, device: torch.device, are_wanted: bool) -> None:
        self._device = device
        self._streams = _streams(device) if are_wanted and device.type == "cuda" else ()
        self._begun: List[_Begun] = []
        self._caller: Any = None
        self.index = 0  # of the lane in use
        self.begun = 0  # pieces of work so far

    @property
    def count(self) -> int:
        return max(1, len(self._streams))

    @property
    def are_used(self) -> bool:
        return bool(self._streams)

    @contextmanager
    def on(self, *kept: Any) -> Iterator[None]:
        """A piece of work: the lane is the current stream. It begins when all that the caller's stream has now is done."""
        if not self._streams:
            yield
            return
        stream = self._streams[self.index]
        self._caller = torch.cuda.current_stream(self._device)
        stream.wait_event(self._caller.record_event())
        with torch.cuda.stream(stream):
            yield
            self._begun.append(_Begun(self.begun, stream.record_event(), kept))
        self.begun += 1

    @contextmanager
    def home(self) -> Iterator[None]:
        """Within a piece of work: the caller's stream is current, and the lane goes on after what that has now."""
        if not self._streams:
            yield
            return
        with torch.cuda.stream(self._caller):
            yield
        self._streams[self.index].wait_event(self._caller.record_event())

    def wait(self, before: Optional[int] = None) -> None:
        """The caller's stream waits for what was begun, or for the pieces of work whose number is smaller."""
        waited = [work for work in self._begun if before is None or work.number < before]
        for work in waited:
            torch.cuda.current_stream(self._device).wait_event(work.done)
        self._begun = self._begun[len(waited):]
