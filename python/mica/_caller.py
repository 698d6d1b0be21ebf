# SPDX-License-Identifier: Apache-2.0
"""Calls of the library with torch tensors, at the least cost: one generated function per set of bound tensors.

caller(pass, names, made, optional) gives a function `call(options, *tensors)`. It looks up the plan by what the
tensors are (shape, stride, dtype, device, alignment) and by the options' identity, allocates the outputs, packs the
addresses into a mica_bindings of its own (bytes: nothing that another thread or a finalizer could write to) and
executes on the current stream. It is straight code, since a loop over names, a dictionary of tensors or a ctypes field
would each cost more than what it replaces.

call.find(options, *tensors) gives the plan alone, call.again(entry, *tensors) executes a plan that was found before.
"""

import ctypes
import struct
import threading
from functools import lru_cache, partial
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from . import _abi
from ._describe import BINDINGS, ROW_ALIGNMENT, ROWS, Options, View, describe, view_of
from ._library import Plan, load
from .errors import InvalidArgument, NoDevice

DTYPES = {torch.float32: _abi.FP32, torch.float16: _abi.FP16, torch.bfloat16: _abi.BF16, torch.bool: _abi.BOOL,
          torch.int32: _abi.INT32}
KEPT_PLANS = 512  # per caller; the oldest leaves first
KEPT_WORKSPACE_BYTES = 1 << 20  # the CPU's workspace up to this size is kept per thread
VALUES = ("dropout_seed", "dropout_offset")  # bound by value, not by address
# Outputs that a call may allocate. Those with a name here have the layout that empty_like gives that tensor.
LIKE = {"o": "", "lse": "", "dq": "q", "dk": "k", "dv": "v", "d_bias": "bias", "d_sinks": "sinks"}


class Entry:
    """A plan, and what its outputs and workspace look like."""
    __slots__ = ("plan", "address", "workspace_bytes", "workspace", "options", "device", "o", "lse")

    def __init__(self, plan: Plan, options: Options, device: torch.device,
                 templates: Dict[str, Optional[torch.Tensor]]) -> None:
        self.plan, self.address, self.workspace_bytes = plan, plan.address, plan.workspace_bytes
        self.options, self.device = options, device.index if device.type == "cuda" else -1  # as get_device says it
        self.o, self.lse = templates.get("o"), templates.get("lse")
        size = self.workspace_bytes
        self.workspace: Callable[[], torch.Tensor]
        if device.type == "cuda":
            # From torch's allocator at every call, so that its rules about streams and graphs hold.
            self.workspace = partial(torch.empty_like, template((size,), torch.uint8, device))
        elif size <= KEPT_WORKSPACE_BYTES:
            self.workspace = kept_workspace
        else:
            self.workspace = lambda: torch.empty(size, dtype=torch.uint8, device="cpu")


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.tensor = torch.empty(KEPT_WORKSPACE_BYTES, dtype=torch.uint8, device="cpu")


_scratch = _Scratch()


def kept_workspace() -> torch.Tensor:
    return _scratch.tensor


def lse_shape(q: torch.Tensor) -> Tuple[int, ...]:
    """(batch, heads, rows), packed: (heads, rows)."""
    shape = q.shape
    return (shape[0], shape[2], shape[1]) if len(shape) == 4 else (shape[1], shape[0])


@lru_cache(maxsize=None)
def _one_element(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty(1, dtype=dtype, device=device)


def template(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of one element's memory: empty_like of it is dense, at half the cost of empty with all its arguments."""
    return _one_element(dtype, device).expand(tuple(shape))


def templates_of(made: Sequence[str], q: torch.Tensor, v: torch.Tensor) -> Dict[str, Optional[torch.Tensor]]:
    """What empty_like takes for o (None: q itself) and lse."""
    templates: Dict[str, Optional[torch.Tensor]] = {}
    if "o" in made:
        like_q = v.shape[-1] == q.shape[-1] and torch.empty_like(q).stride(-1) == 1
        templates["o"] = None if like_q else template(q.shape[:-1] + v.shape[-1:], q.dtype, q.device)
    if "lse" in made:
        templates["lse"] = template(lse_shape(q), torch.float32, q.device)
    return templates


def device_of(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> torch.device:
    device = tensors[0].device
    for name, tensor in zip(names, tensors):
        if tensor.device != device:
            raise InvalidArgument(f"{name} is on {tensor.device}, want {device} ({names[0]}'s)")
    if device.type not in ("cpu", "cuda"):
        raise NoDevice(f"{names[0]} is on {device}, want cpu or cuda")
    return device


def make_entry(which: int, given: Dict[str, torch.Tensor], made: Sequence[str], options: Options) -> Entry:
    """Describes the tensors and makes the plan: all that need not be done at every call."""
    device = device_of(tuple(given), tuple(given.values()))
    for name in ("q", "k", "v"):
        if given[name].dim() not in (3, 4):
            raise InvalidArgument(f"{name} has {given[name].dim()} axes, want 4, or 3 where it is packed")
    templates = templates_of(made, given["q"], given["v"])
    bound = dict(given)
    for name in made:
        like = bound[LIKE[name]] if LIKE[name] else templates[name]
        bound[name] = torch.empty_like(bound["q"] if like is None else like)
    rows_aligned = all(tensor.data_ptr() % ROW_ALIGNMENT == 0 for name, tensor in bound.items() if name in ROWS)
    views: Dict[str, View] = {}
    for name, tensor in bound.items():
        if name == "rng_state":
            if tensor.dtype is not torch.int64 or tuple(tensor.shape) != (2,) or not tensor.is_contiguous():
                raise InvalidArgument(f"rng_state is {tensor.dtype} of {tuple(tensor.shape)}, want int64 of (2,)")
            views[name] = View(_abi.NONE, (2,), (1,))
        else:
            views[name] = view_of(name, DTYPES.get(tensor.dtype), tensor.shape, tensor.stride(), rows_aligned,
                                  tensor.dtype)
    where = (_abi.CUDA, device.index) if device.type == "cuda" else (_abi.CPU, 0)
    return Entry(load().plan(describe(views, options, where), which), options, device, templates)


def _packer(names: Sequence[str]) -> struct.Struct:
    """Packs a whole mica_bindings: its first two fields, the addresses of these names, workspace, its size and the
    stream; what lies between becomes null."""
    form, at = "<II", _abi.Bindings.q.offset
    for name in (*names, "workspace", "workspace_bytes", "stream"):
        offset = getattr(_abi.Bindings, name).offset
        form += f"{offset - at}xQ" if offset > at else "Q"
        at = offset + 8
    return struct.Struct(form)


def _source(names: Sequence[str], made: Sequence[str], optional: Sequence[str]) -> str:
    """The text of find, call and again."""
    inputs = [name for name in names if name not in made]
    given = [name for name in inputs if name not in VALUES]
    addresses: List[str] = []
    key = []
    for name in given:
        # Most tensors are contiguous, and asking is cheaper than a tuple of strides.
        what = f"{name}.shape, {name}.is_contiguous() or {name}.stride(), {name}.dtype"
        what += "" if name == "q" else f", {name}.get_device()"
        if name in optional:
            addresses += [f"    p_{name} = 0 if {name} is None else {name}.data_ptr()"]
            key += [f"None if {name} is None else ({what})"]
        else:
            addresses += [f"    p_{name} = {name}.data_ptr()"]
            key += [what]
    rows = " | ".join(f"p_{name}" for name in given if name in ROWS)
    finding = ["    device = q.get_device()", *addresses,
               f"    key = (options, device, ({rows}) % {ROW_ALIGNMENT} == 0, {', '.join(key)})",
               "    entry = entry_of(key)",
               "    if entry is None:",
               f"        entry = remember(key, ({', '.join(given)},), options)"]
    running: List[str] = []
    for name in made:
        like = LIKE[name] or ("q if entry.o is None else entry.o" if name == "o" else f"entry.{name}")
        running += [f"    {name} = empty_like({like})", f"    p_{name} = {name}.data_ptr()"]
    values = ", ".join(name if name in VALUES else f"p_{name}" for name in names)
    running += ["    workspace_bytes = entry.workspace_bytes",
                "    p_workspace = 0",
                "    if workspace_bytes:",
                "        workspace = entry.workspace()",
                "        p_workspace = workspace.data_ptr()",
                f"    status = execute(entry.address, pack({ctypes.sizeof(_abi.Bindings)}, {_abi.ABI_VERSION}, {values},",
                "        p_workspace, workspace_bytes, raw_stream(device) if device >= 0 else 0))",
                "    if status:",
                "        raise failure(status)"]
    if made:
        running += [f"    return {', '.join(made)}"]
    arguments = ", ".join(inputs)
    return "\n".join([f"def find(options, {arguments}):", *finding, "    return entry",
                      f"def call(options, {arguments}):", *finding, *running,
                      f"def again(entry, {arguments}):", *addresses,
                      f"    if ({rows}) % {ROW_ALIGNMENT}:", f"        return call(entry.options, {arguments})",
                      "    device = entry.device", *running]) + "\n"


_lock = threading.Lock()  # taken where a plan is made, not where it is found
_caches: List[Dict[tuple, Any]] = []  # of every generated function, and what others made of their entries


def forget_plans() -> None:
    """Plans are made anew from now on."""
    with _lock:
        for entries in _caches:
            entries.clear()


def kept_with_plans() -> Dict[tuple, Any]:
    """A dictionary that forget_plans empties too."""
    with _lock:
        _caches.append({})
        return _caches[-1]


def _no_stream(device: int) -> int:
    raise NoDevice("this PyTorch has no CUDA")


@lru_cache(maxsize=None)
def caller(which: int, names: Tuple[str, ...], made: Tuple[str, ...] = (), optional: Tuple[str, ...] = ()) -> Callable:
    """A function call(options, *inputs) for one pass, which returns the tensors of `made`; its find and again are the
    two halves of it.

    names are all bindings, in the order of mica_bindings; the inputs are those that are not made, in that order. Those
    that are optional may be None."""
    order = [BINDINGS.index(name) for name in names]
    assert order == sorted(order) and names[0] == "q" and set(made) | set(optional) <= set(names)
    library = load()
    inputs = tuple(name for name in names if name not in made and name not in VALUES)

    entries: Dict[tuple, Entry] = kept_with_plans()

    def remember(key: tuple, tensors: Sequence[torch.Tensor], options: Options) -> Entry:
        given = {name: tensor for name, tensor in zip(inputs, tensors) if tensor is not None}
        entry = make_entry(which, given, made, options)
        with _lock:
            if len(entries) >= KEPT_PLANS:
                entries.pop(next(iter(entries)))
            entries[key] = entry
        return entry

    scope: Dict[str, Any] = dict(
        entries=entries, entry_of=entries.get, remember=remember, pack=_packer(names).pack,
        execute=library.c.mica_execute, failure=library.failure, empty_like=torch.empty_like,
        raw_stream=getattr(torch._C, "_cuda_getCurrentRawStream", _no_stream))
    exec(compile(_source(names, made, optional), f"<mica call of {', '.join(names)}>", "exec"), scope)
    scope["call"].find, scope["call"].again = scope["find"], scope["again"]
    return scope["call"]
