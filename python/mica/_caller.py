# SPDX-License-Identifier: Apache-2.0
"""Calls of the library with torch tensors, at the least cost: one generated function per set of bound tensors.

caller(pass, names) gives a function `call(options, *tensors)`. It looks up the plan by what the tensors are (shape,
stride, dtype, device, alignment) and by the options' identity, writes the pointers into bindings that are prefilled per
thread and per plan, and executes on the current stream. Unrolled into straight code, since a loop over names, a
dictionary of tensors or a ctypes field would each cost more than the call itself.
"""

import ctypes
import struct
import threading
from functools import lru_cache
from typing import Callable, Dict, FrozenSet, List, Sequence, Tuple

import torch

from . import _abi
from ._describe import BINDINGS, ROW_ALIGNMENT, ROWS, Options, View, describe, view_of
from ._library import Plan, load
from .errors import InvalidArgument, NoDevice

DTYPES = {torch.float32: _abi.FP32, torch.float16: _abi.FP16, torch.bfloat16: _abi.BF16, torch.bool: _abi.BOOL,
          torch.int32: _abi.INT32}
KEPT_PLANS = 512  # per thread and caller; the oldest leaves first
KEPT_WORKSPACE_BYTES = 1 << 20  # the CPU's workspace up to this size is kept per thread
VALUES = ("dropout_seed", "dropout_offset")  # bound by value, not by address


class Entry:
    """A plan with this thread's bindings for it."""
    __slots__ = ("plan", "address", "bindings", "bindings_address", "workspace_bytes", "workspace")

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.plan, self.address, self.workspace_bytes = plan, plan.address, plan.workspace_bytes
        self.bindings = _abi.Bindings()
        self.bindings_address = ctypes.addressof(self.bindings)
        size = self.workspace_bytes
        if device.type == "cuda":
            # From torch's allocator at every call, so that its rules about streams and graphs hold.
            self.workspace = lambda: torch.empty(size, dtype=torch.uint8, device=device)
        elif size <= KEPT_WORKSPACE_BYTES:
            self.workspace = kept_workspace
        else:
            self.workspace = lambda: torch.empty(size, dtype=torch.uint8)


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.tensor = torch.empty(KEPT_WORKSPACE_BYTES, dtype=torch.uint8, device="cpu")


_scratch = _Scratch()


def kept_workspace() -> torch.Tensor:
    return _scratch.tensor


class _Entries(threading.local):
    def __init__(self) -> None:
        self.of_key: Dict[tuple, Entry] = {}


def device_of(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> torch.device:
    device = tensors[0].device
    for name, tensor in zip(names, tensors):
        if tensor.device != device:
            raise InvalidArgument(f"{name} is on {tensor.device}, want {device} ({names[0]}'s)")
    if device.type not in ("cpu", "cuda"):
        raise NoDevice(f"{names[0]} is on {device}, want cpu or cuda")
    return device


def make_entry(which: int, names: Sequence[str], tensors: Sequence[torch.Tensor], given: Options) -> Entry:
    """Describes the tensors and makes the plan: all that need not be done at every call."""
    device = device_of(names, tensors)
    rows_aligned = all(tensor.data_ptr() % ROW_ALIGNMENT == 0 for name, tensor in zip(names, tensors) if name in ROWS)
    views: Dict[str, View] = {}
    for name, tensor in zip(names, tensors):
        if name == "rng_state":
            if tensor.dtype is not torch.int64 or tuple(tensor.shape) != (2,) or not tensor.is_contiguous():
                raise InvalidArgument(f"rng_state is {tensor.dtype} of {tuple(tensor.shape)}, want int64 of (2,)")
            views[name] = View(_abi.NONE, (2,), (1,))
        else:
            views[name] = view_of(name, DTYPES.get(tensor.dtype), tensor.shape, tensor.stride(), rows_aligned,
                                  tensor.dtype)
    where = (_abi.CUDA, device.index) if device.type == "cuda" else (_abi.CPU, 0)
    return Entry(load().plan(describe(views, given, where), which), device)


def _packer(names: Sequence[str]) -> struct.Struct:
    """Packs the addresses of these bindings, workspace, its size and the stream; what lies between becomes null."""
    form, at = "<", _abi.Bindings.q.offset
    for name in (*names, "workspace", "workspace_bytes", "stream"):
        offset = getattr(_abi.Bindings, name).offset
        form += f"{offset - at}xQ" if offset > at else "Q"
        at = offset + 8
    return struct.Struct(form)


def _source(names: Sequence[str], fresh: FrozenSet[str]) -> str:
    tensors = [name for name in names if name not in VALUES]
    known = [name for name in tensors if name not in fresh]
    lines: List[str] = [f"def call(options, {', '.join(names)}):"]
    lines += [f"    p_{name} = {name}.data_ptr()" for name in tensors]
    lines += ["    device = q.get_device()"]
    key = ", ".join(f"{name}.shape, {name}.stride(), {name}.dtype" +
                    ("" if name == "q" else f", {name}.get_device()") for name in known)
    addresses = " | ".join(f"p_{name}" for name in tensors if name in ROWS)
    lines += [f"    key = (options, device, {key}, ({addresses}) % {ROW_ALIGNMENT} == 0)",
              "    entry = entries.of_key.get(key)",
              "    if entry is None:",
              f"        entry = remember(entries.of_key, key, ({', '.join(tensors)},), options)",
              "    workspace = None",
              "    p_workspace = 0",
              "    if entry.workspace_bytes:",
              "        workspace = entry.workspace()",
              "        p_workspace = workspace.data_ptr()"]
    values = ", ".join(name if name in VALUES else f"p_{name}" for name in names)
    lines += [f"    pack(entry.bindings, {_abi.Bindings.q.offset}, {values}, p_workspace, entry.workspace_bytes,",
              "         raw_stream(device) if device >= 0 else 0)",
              "    status = execute(entry.address, entry.bindings_address)",
              "    if status:",
              "        raise failure(status)"]
    return "\n".join(lines) + "\n"


def _no_stream(device: int) -> int:
    raise NoDevice("this PyTorch has no CUDA")


@lru_cache(maxsize=None)
def caller(which: int, names: Tuple[str, ...], fresh: FrozenSet[str] = frozenset()) -> Callable[..., None]:
    """A function call(options, *tensors in the order of names) for one pass. names follow the order of mica_bindings.

    fresh: outputs that the caller has just allocated, with a layout that follows from the other tensors and the
    options; they need no place in the key."""
    order = [BINDINGS.index(name) for name in names]
    assert order == sorted(order) and names[0] == "q"
    library = load()
    tensors = tuple(name for name in names if name not in VALUES)

    def remember(of_key: Dict[tuple, Entry], key: tuple, given: Sequence[torch.Tensor], options: Options) -> Entry:
        entry = make_entry(which, tensors, given, options)
        if len(of_key) >= KEPT_PLANS:
            of_key.pop(next(iter(of_key)))
        of_key[key] = entry
        return entry

    scope = {"entries": _Entries(), "remember": remember, "pack": _packer(names).pack_into,
             "execute": library.c.mica_execute, "failure": library.failure,
             "raw_stream": getattr(torch._C, "_cuda_getCurrentRawStream", _no_stream)}
    exec(compile(_source(names, fresh), f"<mica call of {', '.join(names)}>", "exec"), scope)
    return scope["call"]
