# SPDX-License-Identifier: Apache-2.0
"""Tensors between the ranks of a group, while something else is computed.

NCCL moves CUDA tensors on a stream of its own, gloo moves CPU tensors in threads of its own. Where the backend moves no
CUDA tensors (gloo), they go by pinned host memory: copied out on a stream of their own, sent by the CPU while the GPU
computes, copied back in.
"""

from functools import lru_cache
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import Error


class Lost(Error, RuntimeError):
    """A rank of the group is gone, or did not do what the others did."""


class Letter(NamedTuple):
    """A contiguous tensor, and the other rank (counted in the group)."""
    tensor: Tensor
    peer: int


def _guard(what: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise Lost(f"{what} failed: {reason}. A rank is gone, took longer than the group's time limit, or made another "
                   "call; every rank must call with the same layout, options, dtype and heads, and go backward if one "
                   "does") from error


@lru_cache(maxsize=None)
def _copy_stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)


def _pinned(like: Tensor) -> Tensor:
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)


class _OnItsWay:
    """What was started; wait() returns when the received tensors can be read (on a GPU: by its current stream)."""

    def __init__(self, works: Sequence[Any], kept: Sequence[Tensor], what: str) -> None:
        self._works, self._kept, self._what = works, kept, what

    def wait(self) -> None:
        for work in self._works:
            _guard(self._what, work.wait)
        self._works, self._kept = (), ()


class _Staged:
    """The same by way of the host. Nothing blocks before wait(), when the GPU has its kernels to work on."""

    def __init__(self, mail: "Mail", sends: Sequence[Letter], receives: Sequence[Letter], tag: int) -> None:
        self._mail, self._receives, self._tag = mail, receives, tag
        device = (*sends, *receives)[0].tensor.device
        self._stream = stream = _copy_stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        self._out: List[Letter] = []
        with torch.cuda.stream(stream):
            for letter in sends:
                host = _pinned(letter.tensor)
                host.copy_(letter.tensor, non_blocking=True)
                letter.tensor.record_stream(stream)
                self._out.append(Letter(host, letter.peer))
            self._copied = torch.cuda.Event()
            self._copied.record(stream)

    def wait(self) -> None:
        self._copied.synchronize()
        back = [Letter(_pinned(letter.tensor), letter.peer) for letter in self._receives]
        self._mail.start_direct(self._out, back, self._tag).wait()
        for letter, host in zip(self._receives, back):
            letter.tensor.copy_(host.tensor, non_blocking=True)  # on the current stream: whoever waits reads it there
        self._out = []


class Mail:
    """A group's post, for tensors of one kind of device."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self.group = group
        self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self._peers = [dist.get_global_rank(group, peer) for peer in range(self.size)] if self.size > 1 else [0]
        backend = str(dist.get_backend(group))
        self.is_staged = device.type == "cuda" and "nccl" not in backend
        self._in_batches = not self.is_staged and device.type == "cuda"
        # NCCL works through what it is given in order, so that what comes in one exchange can go on in the next.
        self.follows_by_itself = self._in_batches
        self.device = torch.device("cpu") if self.is_staged else device  # of what the backend moves by itself

    def start(self, sends: Sequence[Letter], receives: Sequence[Letter], tag: int = 0) -> Any:
        """Letters between two ranks arrive in the order in which they were sent. Empty ones are not sent."""
        sends = [letter for letter in sends if letter.tensor.numel()]
        receives = [letter for letter in receives if letter.tensor.numel()]
        if not sends and not receives:
            return _OnItsWay((), (), "")
        return (_Staged(self, sends, receives, tag) if self.is_staged else self.start_direct(sends, receives, tag))

    def start_direct(self, sends: Sequence[Letter], receives: Sequence[Letter], tag: int) -> Any:
        what = f"exchanging keys and values (rank {self.rank} of {self.size}: to {[s.peer for s in sends]}, from " \
               f"{[r.peer for r in receives]})"
        kept = [letter.tensor for letter in (*sends, *receives)]

        def start() -> Any:
            if self._in_batches:
                return dist.batch_isend_irecv(
                    [dist.P2POp(dist.isend, letter.tensor, self._peers[letter.peer], self.group) for letter in sends] +
                    [dist.P2POp(dist.irecv, letter.tensor, self._peers[letter.peer], self.group)
                     for letter in receives])
            return [dist.irecv(letter.tensor, self._peers[letter.peer], self.group, tag) for letter in receives] + \
                   [dist.isend(letter.tensor, self._peers[letter.peer], self.group, tag) for letter in sends]
        return _OnItsWay(_guard(what, start), kept, what)

    def all_to_all(self, flat: Tensor, counts_out: List[int], counts_in: List[int]) -> Tensor:
        """Elements counts_out[r] of `flat` go to rank r; the result has counts_in[r] elements of rank r."""
        if flat.element_size() == 1 and flat.dtype is not torch.uint8:  # e4m3 goes as bytes, which every backend takes
            return self.all_to_all(flat.view(torch.uint8), counts_out, counts_in).view(flat.dtype)
        made = torch.empty(sum(counts_in), dtype=flat.dtype, device="cpu" if self.is_staged else flat.device,
                           pin_memory=self.is_staged)
        sent = flat
        if self.is_staged:
            sent = _pinned(flat).copy_(flat)
        _guard(f"the all-to-all of {self.size} ranks",
               lambda: dist.all_to_all_single(made, sent, counts_in, counts_out, group=self.group))
        return made.to(flat.device, non_blocking=True) if self.is_staged else made

    def all_gather(self, tensor: Tensor) -> Tensor:
        """(ranks, *shape)."""
        here = tensor.cpu() if self.is_staged else tensor
        made = [torch.empty_like(here) for _ in range(self.size)]
        _guard(f"the all-gather of {self.size} ranks", lambda: dist.all_gather(made, here, group=self.group))
        return torch.stack(made).to(tensor.device)

    def broadcast(self, tensor: Tensor) -> Tensor:
        """What the first rank has."""
        if self.size == 1:
            return tensor
        here = tensor.cpu() if self.is_staged else tensor
        _guard(f"the broadcast to {self.size} ranks",
               lambda: dist.broadcast(here, self._peers[0], group=self.group))
        return here.to(tensor.device)


_offices: Dict[Any, Tuple[Any, Mail]] = {}


def mail_of(group: Optional[Any], device: torch.device) -> Mail:
    """The group's, kept as long as the group is the same."""
    group = dist.group.WORLD if group is None else group
    key = (id(group), device)
    kept: Optional[Tuple[Any, Mail]] = _offices.get(key)
    if kept is None or kept[0] is not group:
        if len(_offices) > 64:
            _offices.clear()
        kept = _offices[key] = (group, Mail(group, device))
    return kept[1]
