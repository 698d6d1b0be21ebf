# SPDX-License-Identifier: Apache-2.0
"""Calls of the library with torch tensors, at the least cost: one generated function per set of bound tensors.

caller(pass, names, made, optional) gives a function `call(options, *tensors)`. It looks up the plan by what the
tensors are (shape, stride, dtype, device, alignment) and by the options' identity, allocates the outputs, packs the
addresses into a mica_bindings of its own (bytes: nothing that another thread or a finalizer could write to) and
executes on the current stream. It is straight code, since a loop over names, a dictionary of tensors or a ctypes field
would each cost more than what it replaces.

call.find(options, *tensors) gives the plan alone, call.again(entry, *tensors) executes a plan that was found before. Of plain
calls, dense and packed, find may be given the entry of one with tensors of the same kind, like which a new one is made sooner.
What was generated can be read: `python -m mica.source`, inspect.getsource, a debugger, a traceback's lines.
"""

import copy
import ctypes
import linecache
import struct
import threading
from functools import lru_cache
from typing import Any, Callable, Dict, List, Optional, Protocol, Sequence, Tuple

import torch

from . import _abi
from ._allocate import filled, maker, workspace_maker
from ._describe import (BINDINGS, CALLED, PACKED_BY, ROW_ALIGNMENT, ROWS, TENSORS, Options, View, check_axes, dense_strides,
                        describe, fill_tensor, view_of)
from ._library import Plan, load
from .errors import InvalidArgument, NoDevice, NotDense

DTYPES = {torch.float32: _abi.FP32, torch.float16: _abi.FP16, torch.bfloat16: _abi.BF16, torch.bool: _abi.BOOL,
          torch.int32: _abi.INT32}
if hasattr(torch, "float8_e4m3fn"):
    DTYPES[torch.float8_e4m3fn] = _abi.FP8_E4M3
KEPT_PLANS = 512  # per caller; the oldest leaves first
VALUES = ("dropout_seed", "dropout_offset")  # bound by value, not by address
# Outputs that a call may allocate. Those with a name here have the layout that empty_like gives that tensor.
LIKE = {"o": "", "lse": "", "dq": "q", "dk": "k", "dv": "v", "d_bias": "bias", "d_sinks": "sinks"}
MADE_BY_ENTRY = ("o", "lse", "dq", "dk", "dv")  # the others, and packed gradients, are made as LIKE says


Key = Tuple[Any, ...]  # what a call is known by


class Entry:
    """A plan, and what makes its outputs and its workspace."""
    __slots__ = ("plan", "address", "workspace_bytes", "workspace", "options", "device", *MADE_BY_ENTRY, "makers",
                 "description", "of_q")

    def __init__(self, plan: Plan, options: Options, device: torch.device, makers: Dict[str, Callable[..., Any]],
                 description: _abi.Attention, of_q: View) -> None:
        self.plan, self.address, self.workspace_bytes = plan, plan.address, plan.workspace_bytes
        self.options, self.device = options, device.index if device.type == "cuda" else -1  # as get_device says it
        self.o, self.lse, self.dq, self.dk, self.dv = (makers.get(name) for name in MADE_BY_ENTRY)
        self.workspace = workspace_maker(plan.workspace_bytes, device)
        self.makers, self.description, self.of_q = makers, description, of_q  # for entries that are like this one

    def on(self, workspace: torch.Tensor) -> "Entry":
        """The same in this workspace, which several calls share. For rows whose alignment the plan was found by."""
        entry = copy.copy(self)
        entry.workspace = lambda: workspace
        return entry


class Caller(Protocol):
    """What caller() generates."""
    find: Callable[..., Entry]
    again: Callable[..., Any]

    def __call__(self, options: Options, *tensors: Any) -> Any: ...


def lse_shape(q: torch.Tensor) -> Tuple[int, ...]:
    """(batch, heads, rows), packed: (heads, rows)."""
    shape = q.shape
    return (shape[0], shape[2], shape[1]) if len(shape) == 4 else (shape[1], shape[0])


def output_dtype(q: torch.Tensor) -> torch.dtype:
    """q's, of 16 bits at least."""
    return torch.bfloat16 if q.element_size() == 1 else q.dtype


def makers_of(made: Sequence[str], given: Dict[str, torch.Tensor],
              is_packed: bool) -> Dict[str, Callable[[], torch.Tensor]]:
    """What makes o (laid out as q, where that leaves its rows dense), lse and gradients. Packed rows of no sequence stay
    empty."""
    q, v = given["q"], given["v"]
    makers: Dict[str, Callable[[], torch.Tensor]] = {}
    if "o" in made:
        shape = tuple(q.shape[:-1] + v.shape[-1:])
        stride = torch.empty_like(q).stride() if shape == tuple(q.shape) else ()
        makers["o"] = maker(shape, stride if stride and stride[-1] == 1 else dense_strides(shape), output_dtype(q),
                            q.device)
    if "lse" in made:
        shape = lse_shape(q)
        makers["lse"] = maker(shape, dense_strides(shape), torch.float32, q.device)
    if is_packed:
        empty = {"o": 0.0, "lse": -float("inf")}
        makers = {name: filled(make, empty[name]) for name, make in makers.items()}
    for name in set(made) & {"dq", "dk", "dv"}:
        like = given[LIKE[name]]
        makers[name] = maker(tuple(like.shape), torch.empty_like(like).stride(), like.dtype, like.device)
    return makers


def device_of(names: Sequence[str], tensors: Sequence[torch.Tensor], is_traced: bool = False) -> torch.device:
    device = tensors[0].device
    for name, tensor in zip(names, tensors):
        if tensor.device != device:
            raise InvalidArgument(f"{CALLED.get(name, name)} is on {tensor.device}, want {device} ({names[0]}'s)")
    if device.type not in ("cpu", "cuda") and not is_traced:
        raise NoDevice(f"{names[0]} is on {device}, want cpu or cuda")
    return device


def _plan(description: _abi.Attention, which: int, device: int) -> Plan:
    library = load()
    with _lock:
        if device < 0:
            library.follow_num_threads(torch.get_num_threads())
        return library.plan(description, which)


def make_entry(which: int, given: Dict[str, torch.Tensor], made: Sequence[str], options: Options) -> Entry:
    """Describes the tensors and makes the plan: all that need not be done at every call."""
    device = device_of(tuple(given), tuple(given.values()))
    for name in ("q", "k", "v"):
        check_axes(name, given[name].dim(), PACKED_BY[name] in given)
    for name, tensor in given.items():
        if name in SIGNED and tensor.is_neg():
            raise NotDense(f"{CALLED.get(name, name)} is a negative view, want its values")
    makers = makers_of(made, given, "cu_seqlens_q" in given)
    bound = dict(given)
    for name in made:
        bound[name] = torch.empty_like(bound[LIKE[name]]) if LIKE[name] else makers[name]()
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
    description = describe(views, options, where)
    plan = _plan(description, which, -1 if device.type == "cpu" else device.index)
    return Entry(plan, options, device, makers, description, views["q"])


def make_entry_like(which: int, like: Entry, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                    *lengths: torch.Tensor) -> Optional[Entry]:
    """An entry of another number of keys, with all else (classes, types, devices, axes) as it was: a third of the time of
    making one anew. None where there is more to it than that. lengths: cumulative ones, of rows and keys."""
    was = like.of_q
    if any(t.shape[0] != like.description.sequences.batch + 1 or not t.is_contiguous() for t in lengths):
        return None
    if (q.shape != was.shape or q.stride() != was.stride or was.alignment != ROW_ALIGNMENT or
            v.shape[-1] != like.description.v.shape[3] or (q.data_ptr() | k.data_ptr() | v.data_ptr()) % ROW_ALIGNMENT):
        return None
    description = _abi.Attention.from_buffer_copy(like.description)
    for name, dtype, tensor in (("k", description.k.dtype, k), ("v", description.v.dtype, v)):
        fill_tensor(description, name, view_of(name, dtype, tensor.shape, tensor.stride(), True, tensor.dtype))
    plan = _plan(description, which, like.device)
    return Entry(plan, like.options, q.device, like.makers, description, was)


# What may be negative by a flag alone; such a tensor's memory holds the opposite.
SIGNED = frozenset(TENSORS) - {"boolean_mask", "block_table"}


def _in_order(names: Sequence[str]) -> List[str]:
    """These names, workspace, its size and the stream, as mica_bindings has them."""
    return sorted((*names, "workspace", "workspace_bytes", "stream"), key=lambda name: getattr(_abi.Bindings, name).offset)


def _packer(names: Sequence[str]) -> struct.Struct:
    """Packs a whole mica_bindings: its first two fields and what _in_order lists; the rest becomes null."""
    form, at = "<II", _abi.Bindings.q.offset
    for name in _in_order(names):
        offset = getattr(_abi.Bindings, name).offset
        form += f"{offset - at}xQ" if offset > at else "Q"
        at = offset + 8
    return struct.Struct(form + f"{ctypes.sizeof(_abi.Bindings) - at}x")


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
        what += f", {name}.is_neg()" if name in SIGNED else ""
        if name in optional:
            addresses += [f"    p_{name} = 0 if {name} is None else {name}.data_ptr()"]
            key += [f"None if {name} is None else ({what})"]
        else:
            addresses += [f"    p_{name} = {name}.data_ptr()"]
            key += [what]
    rows = " | ".join(f"p_{name}" for name in given if name in ROWS)
    finding = ["    device = q.get_device()", *addresses,
               f"    key = (options, device if device >= 0 else -threads(), ({rows}) % {ROW_ALIGNMENT} == 0, "
               f"{', '.join(key)})",
               "    entry = entry_of(key)",
               "    if entry is None:",
               f"        entry = remember(key, ({', '.join(given)},), options)"]
    running: List[str] = []
    for name in made:
        packed_by = {"dq": "cu_seqlens_q", "dk": "cu_seqlens_k", "dv": "cu_seqlens_k"}.get(name)
        make = f"entry.{name}()" if name in MADE_BY_ENTRY else f"empty_like({LIKE[name]})"
        if packed_by in names:  # packed rows of no sequence have no gradient
            make = f"zeros_like({LIKE[name]})"
        running += [f"    {name} = {make}", f"    p_{name} = {name}.data_ptr()"]
    plain = (*VALUES, "workspace_bytes", "stream")
    values = ", ".join(name if name in plain else f"p_{name}" for name in _in_order(names))
    running += ["    workspace_bytes = entry.workspace_bytes",
                "    p_workspace = 0",
                "    if workspace_bytes:",
                "        workspace = entry.workspace()",
                "        p_workspace = workspace.data_ptr()",
                "    stream = raw_stream(device) if device >= 0 else 0",
                f"    status = execute(entry.address, pack({ctypes.sizeof(_abi.Bindings)}, {_abi.ABI_VERSION}, {values}))",
                "    if status:",
                f"        raise failure(status, ({', '.join(given)},))"]
    if made:
        running += [f"    return {', '.join(made)}"]
    arguments = ", ".join(inputs)
    finding_like = [*finding[:-1], finding[-1].replace("options)", "options, like)")]
    return "\n".join([f"def find(options, {arguments}, like=None):", *finding_like, "    return entry",
                      f"def call(options, {arguments}):", *finding, *running,
                      f"def again(entry, {arguments}):", *addresses,
                      f"    if ({rows}) % {ROW_ALIGNMENT}:", f"        return call(entry.options, {arguments})",
                      "    device = entry.device", *running]) + "\n"


def _title(which: int, names: Sequence[str], made: Sequence[str], optional: Sequence[str]) -> str:
    """What a generated function has as its file's name, as in <mica forward: q, k, v, bias? -> o, lse>."""
    inputs = ", ".join(name + "?" if name in optional else name for name in names if name not in made)
    return f"<mica {'forward' if which == _abi.FORWARD else 'backward'}: {inputs} -> {', '.join(made) or 'None'}>"


def generated_sources() -> Dict[str, str]:
    """The texts generated so far in this process, by the names that tracebacks give them."""
    return dict(_sources)


_sources: Dict[str, str] = {}
_lock = threading.Lock()  # taken where a plan is made, not where it is found
_caches: List[Dict[Key, Any]] = []  # of every generated function, and what others made of their entries


def forget_plans() -> None:
    """Plans are made anew from now on."""
    with _lock:
        for entries in _caches:
            entries.clear()


def kept_with_plans() -> Dict[Key, Any]:
    """A dictionary that forget_plans empties too."""
    with _lock:
        _caches.append({})
        return _caches[-1]


def _no_stream(device: int) -> int:
    raise NoDevice("this PyTorch has no CUDA")


@lru_cache(maxsize=None)
def caller(which: int, names: Tuple[str, ...], made: Tuple[str, ...] = (), optional: Tuple[str, ...] = ()) -> Caller:
    """A function call(options, *inputs) for one pass, which returns the tensors of `made`; its find and again are the
    two halves of it.

    names are all bindings, in the order of mica_bindings; the inputs are those that are not made, in that order. Those
    that are optional may be None."""
    order = [BINDINGS.index(name) for name in names]
    assert order == sorted(order) and names[0] == "q" and set(made) | set(optional) <= set(names)
    library = load()
    inputs = tuple(name for name in names if name not in made and name not in VALUES)

    entries: Dict[Key, Entry] = kept_with_plans()

    def remember(key: Key, tensors: Sequence[torch.Tensor], options: Options, like: Optional[Entry] = None) -> Entry:
        entry = None if like is None else make_entry_like(which, like, *tensors)
        if entry is None:
            given = {name: tensor for name, tensor in zip(inputs, tensors) if tensor is not None}
            entry = make_entry(which, given, made, options)
        with _lock:
            if len(entries) >= KEPT_PLANS:
                entries.pop(next(iter(entries)))
            entries[key] = entry
        return entry

    def failure(status: int, tensors: Sequence[Any]) -> Exception:
        error = library.failure(status)
        try:
            given = {name: tensor for name, tensor in zip(inputs, tensors) if tensor is not None}
            device_of(tuple(given), tuple(given.values()))  # a key does not tell one device without memory from the CPU
        except (InvalidArgument, NoDevice) as better:
            return better
        return error

    scope: Dict[str, Any] = dict(
        entries=entries, entry_of=entries.get, remember=remember, pack=_packer(names).pack,
        execute=library.c.mica_execute, failure=failure, empty_like=torch.empty_like, zeros_like=torch.zeros_like,
        threads=torch.get_num_threads,
        raw_stream=getattr(torch._C, "_cuda_getCurrentRawStream", _no_stream))
    title, text = _title(which, names, made, optional), _source(names, made, optional)
    _sources[title] = text
    linecache.cache[title] = len(text), None, text.splitlines(keepends=True), title  # no file: it stays as it is
    exec(compile(text, title, "exec"), scope)
    call: Caller = scope["call"]
    call.find, call.again = scope["find"], scope["again"]
    return call
