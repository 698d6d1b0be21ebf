# SPDX-License-Identifier: Apache-2.0
"""What a call binds for tensors of a GPU, seen without one: ordinal, current stream, workspace, addresses."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from mica import _abi, _caller, errors  # noqa: E402
from mica._describe import options  # noqa: E402


class DeviceTensor:
    """As much of a CUDA tensor as a call looks at."""

    def __init__(self, shape, address, ordinal=3, dtype=torch.bfloat16):
        self.shape, self.dtype, self._address = torch.Size(shape), dtype, address
        self.device = torch.device("cuda", ordinal)

    def data_ptr(self):
        return self._address

    def get_device(self):
        return self.device.index

    def is_contiguous(self):
        return True

    def stride(self):
        return torch.empty(self.shape, device="meta").stride()

    def dim(self):
        return len(self.shape)

    def is_neg(self):
        return False


class Recorder:
    """A library that writes down what it was asked."""

    def __init__(self):
        self.c, self.plans, self.bound, self.workspace_bytes = self, [], [], 640

    def plan(self, attention, which):
        self.plans.append((which, attention))
        plan = type("Plan", (), {"address": 4096 + len(self.plans), "workspace_bytes": self.workspace_bytes})
        return plan

    def mica_execute(self, plan, bindings):
        assert len(bindings) == _abi.ctypes.sizeof(_abi.Bindings)
        self.bound.append((plan, _abi.Bindings.from_buffer_copy(bindings)))
        return 0

    def failure(self, status):
        return errors.Error(status)


@pytest.fixture
def library(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(_caller, "load", lambda: recorder)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda ordinal: 7000 + ordinal, raising=False)
    real = _caller.workspace_maker
    monkeypatch.setattr(_caller, "workspace_maker", lambda size, device: real(size, torch.device("cpu")))
    return recorder


def tensors(ordinal=3, address=0x10000):
    return [DeviceTensor((1, 4, 2, 64), address + 0x1000 * n, ordinal) for n in range(4)]


def test_stream_device_and_workspace(library):
    call = _caller.caller.__wrapped__(_abi.FORWARD, ("q", "k", "v", "o"))
    for ordinal in (3, 0):
        call(options(), *tensors(ordinal))
        which, attention = library.plans[-1]
        assert which == _abi.FORWARD
        assert (attention.device.backend, attention.device.ordinal) == (_abi.CUDA, ordinal)
        assert attention.q.dtype == _abi.BF16 and attention.q.alignment == 16
        assert list(attention.q.stride) == [512, 128, 64, 1]
        plan, bound = library.bound[-1]
        assert plan == 4096 + len(library.plans) and bound.stream == 7000 + ordinal
        assert (bound.q, bound.k, bound.v, bound.o) == (0x10000, 0x11000, 0x12000, 0x13000)
        assert bound.workspace_bytes == 640 and bound.workspace and bound.lse is None and bound.bias is None
        assert (bound.struct_bytes, bound.abi_version) == (_abi.ctypes.sizeof(_abi.Bindings), _abi.ABI_VERSION)
    assert len(library.plans) == 2


def test_one_plan_for_other_addresses_of_one_alignment(library):
    call = _caller.caller.__wrapped__(_abi.FORWARD, ("q", "k", "v", "o"))
    call(options(), *tensors(address=0x20000))
    call(options(), *tensors(address=0x90010))
    assert len(library.plans) == 1 and library.bound[-1][1].q == 0x90010
    call(options(), *tensors(address=0x90002))
    call(options(causal=1), *tensors(address=0x20000))
    assert len(library.plans) == 3
    assert library.plans[1][1].q.alignment == 0 and library.plans[2][1].mask.causal == 1


def test_plans_are_bounded(library):
    call = _caller.caller.__wrapped__(_abi.FORWARD, ("q", "k", "v", "o"))
    q, _, _, o = tensors()
    for keys in range(_caller.KEPT_PLANS + 10):
        k = DeviceTensor((1, keys + 1, 2, 64), 0x30000)
        call(options(), q, k, k, o)
    assert len(call.__globals__["entries"]) == _caller.KEPT_PLANS and len(library.plans) == _caller.KEPT_PLANS + 10


def test_tensors_of_two_gpus(library):
    call = _caller.caller.__wrapped__(_abi.FORWARD, ("q", "k", "v", "o"))
    q, k, v, o = tensors()
    call(options(), q, k, v, o)
    with pytest.raises(ValueError, match="v is on cuda:1, want cuda:3"):
        call(options(), q, k, DeviceTensor((1, 4, 2, 64), 0x12000, 1), o)
