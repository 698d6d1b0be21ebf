# SPDX-License-Identifier: Apache-2.0
"""Random argument sets, legal and not, through the C interface itself: structs filled in by hand, no check of Python's before
it. Each plan is made and gives the formula's number, or is refused with MICA_ERROR_INVALID and a message that names the field."""

import ctypes
import random

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from draws import DRAWS, draw, formula  # noqa: E402
from mica import _abi, _library  # noqa: E402

TYPES = {torch.float32: _abi.FP32, torch.float16: _abi.FP16, torch.bool: _abi.BOOL}
CAUSAL = {False: _abi.CAUSAL_NONE, True: _abi.CAUSAL_BOTTOM_RIGHT, "bottom-right": _abi.CAUSAL_BOTTOM_RIGHT,
          "top-left": _abi.CAUSAL_TOP_LEFT}
library = _library.load()


def tensor(t, axes=None):
    """The description of a tensor; axes: where its own stand among the four."""
    axes = range(t.dim()) if axes is None else axes
    made = _abi.Tensor(dtype=TYPES[t.dtype])
    made.shape[:], made.stride[:] = [1] * 4, [1] * 4
    for axis, size, stride in zip(axes, t.shape, t.stride()):
        made.shape[axis], made.stride[axis] = size, stride
    return made


def describe(q, k, v, options):
    """(description, bindings, o, lse) of a legal call."""
    a, b = _abi.Attention(), _abi.Bindings()
    o, lse = torch.empty(*q.shape[:3], v.shape[3]), torch.empty(q.shape[0], q.shape[2], q.shape[1])
    for name, t in (("q", q), ("k", k), ("v", v), ("o", o), ("lse", lse)):
        setattr(a, name, tensor(t))
        setattr(b, name, t.data_ptr())
    causal = CAUSAL[options.get("causal", False)]
    a.mask.causal, a.mask.diagonal = causal, causal or _abi.DIAGONAL_BOTTOM_RIGHT
    left, right = options.get("window") or (None, None)
    unlimited = -1 if q.shape[1] % 2 else 1 << 40  # more keys than there can be say the same
    a.mask.window_left = unlimited if left is None else left
    a.mask.window_right = (-1 if causal else unlimited) if right is None else right
    a.attention_chunk = options.get("chunk", 0)
    a.score.scale, a.score.softcap = options.get("scale") or 0.0, options.get("softcap") or 0.0
    a.control.num_splits = options.get("num_splits", 0)
    a.dropout.probability = options.get("dropout", 0.0)
    if "mask" in options:
        a.mask.boolean, b.boolean_mask = tensor(options["mask"]), options["mask"].data_ptr()
    if "bias" in options:
        a.score.bias, b.bias = tensor(options["bias"]), options["bias"].data_ptr()
    if "sinks" in options:
        a.score.sinks, b.sinks = tensor(options["sinks"]), options["sinks"].data_ptr()
    if "alibi" in options:
        a.score.alibi, b.alibi = tensor(options["alibi"], axes=[1]), options["alibi"].data_ptr()
    return a, b, o, lse


def plan_of(a):
    plan = ctypes.c_void_p()
    status = library.c.mica_plan_create(ctypes.byref(a), _abi.FORWARD, ctypes.byref(plan))
    return status, plan


def run(a, b):
    """The status of a plan made and executed, with what it asks for."""
    status, plan = plan_of(a)
    if status != _abi.OK:
        assert not plan.value  # "On failure *plan is NULL"
        return status
    size = library.c.mica_plan_workspace(plan)
    space = ctypes.create_string_buffer(size + 64)
    b.workspace, b.workspace_bytes = (ctypes.addressof(space) + 63) // 64 * 64, size
    status = library.c.mica_execute(plan, ctypes.byref(b))
    library.c.mica_plan_destroy(plan)
    return status


def message():
    return library.c.mica_last_error().decode()


def set_path(struct, path, value):
    *outer, last = path.replace("]", "").replace("[", ".").split(".")
    for name in outer:
        struct = struct[int(name)] if name.isdigit() else getattr(struct, name)
    if last.isdigit():
        struct[int(last)] = value
    else:
        setattr(struct, last, value)


# Path of a field -> values that no description may have, whatever the rest of it says. The message must name the field.
WRONG = {
    "struct_bytes": [0, 8, 1 << 20], "abi_version": [0, 2],
    "q.dtype": [0, -1, 77, _abi.BOOL, _abi.INT32], "k.dtype": [_abi.BF16, 0], "o.dtype": [_abi.FP16],
    "q.alignment": [3, -1, 8192], "q.shape[1]": [-1, 1 << 60], "q.shape[3]": [0, 577], "v.shape[3]": [513, 0],
    "q.stride[3]": [0, 2, -1], "k.shape[1]": [-1, 1 << 60], "o.shape[1]": [1000], "lse.shape[2]": [1000],
    "mask.causal": [-1, 3, 99], "mask.diagonal": [-1, 3], "mask.window_left": [-2, -(1 << 40)],
    "mask.window_right": [-2], "attention_chunk": [-1, (1 << 29) + 1], "score.scale": [float("nan"), float("inf")],
    "score.softcap": [-1.0, float("nan"), float("inf")], "sequences.vectors": [0x40, 0xffffffff], "sequences.batch": [-1, 99],
    "sequences.reserved": [1], "dropout.probability": [1.0, -0.1, float("nan")], "control.num_splits": [-1, 257, 2**31 - 1],
    "control.deterministic": [2, -1], "control.batch_invariant": [2], "control.pieces": [-1, 4, 1], "append.reserved": [1],
    "device.backend": [-1, 7], "device.ordinal": [-1],
}


@pytest.mark.parametrize("seed", range(DRAWS))
def test_a_number_or_a_refusal(seed):
    q, k, v, options, why = draw(seed)
    if why in ("window", "scale", "num_splits", "causal", "dropout"):  # what ctypes itself would not take
        options, why = {name: value for name, value in options.items() if name != why}, ""
    a, b, o, lse = describe(q, k, v, options)
    status = run(a, b)
    if why:
        assert status == _abi.ERROR_INVALID, message()
        assert why.replace("mask.", "mask.boolean.") in message(), message()
        return
    assert status == _abi.OK, message()
    want, want_lse = formula(q, k, v, options)
    torch.testing.assert_close(o.double(), want, rtol=2e-4, atol=2e-5)
    torch.testing.assert_close(lse.double(), want_lse, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("seed", range(DRAWS))
def test_a_field_that_is_wrong(seed):
    rng = random.Random(1000 + seed)
    q, k, v, options, why = draw(seed)
    if why:
        options, (q, k, v) = {}, (torch.randn(2, 3, 2, 4) for _ in range(3))
    a, b, o, _ = describe(q, k, v, options)
    field = rng.choice(sorted(WRONG))
    value = rng.choice(WRONG[field])
    if field == "mask.window_right" and a.mask.causal:
        field, value = "mask.window_left", -2
    set_path(a, field, value)
    before = o.fill_(7.0).clone()
    status = run(a, b)
    assert status in (_abi.ERROR_INVALID, _abi.ERROR_NO_DEVICE), f"{field} = {value}: {message()}"
    assert field.split("[")[0].split(".")[-1] in message() or field.split("[")[0] in message(), f"{field} = {value}: {message()}"
    assert torch.equal(o, before)


@pytest.mark.parametrize("seed", range(0, DRAWS, 4))
def test_bindings_that_are_wrong(seed):
    """No pointer, one that is not aligned, a workspace that is short: refused, and nothing is written."""
    rng = random.Random(seed)
    q, k, v = (torch.randn(2, 40, 4, 8) for _ in range(3))
    a, b, o, _ = describe(q, k, v, dict(num_splits=3))
    status, plan = plan_of(a)
    assert status == _abi.OK
    size = library.c.mica_plan_workspace(plan)
    space = ctypes.create_string_buffer(size + 128)
    b.workspace, b.workspace_bytes = (ctypes.addressof(space) + 63) // 64 * 64, size
    field, value = rng.choice([("q", None), ("k", None), ("v", None), ("o", None), ("q", q.data_ptr() + 1),
                               ("o", o.data_ptr() + 2), ("o", k.data_ptr()), ("o", v.data_ptr() + 16),
                               ("struct_bytes", 3), ("abi_version", 0)] +
                              ([("workspace", None), ("workspace_bytes", size - 1)] if size else []))
    setattr(b, field, value)
    before = o.fill_(7.0).clone(), k.clone(), v.clone()
    assert library.c.mica_execute(plan, ctypes.byref(b)) == _abi.ERROR_INVALID, field
    assert field.split("_")[0] in message(), message()
    assert all(torch.equal(*pair) for pair in zip((o, k, v), before))
    library.c.mica_plan_destroy(plan)
