# SPDX-License-Identifier: Apache-2.0
"""What compare.py must know of a device: how to time on it, and which of PyTorch's backends are the peers."""

import contextlib
import math
import os
import random
import statistics
import time
from typing import NamedTuple

import torch

import mica_ctypes as mica

# On a GPU, in seconds: the shortest calls that may be at the power limit, and what such a chip takes to find its clock.
LEAST_HOT_CALL = 200e-6
SECONDS_TO_SETTLE = 0.05
# Samples that differ by less, the slowest over the fastest, are enough; else hot calls get so many times as many.
QUIET = 1.02
MORE_SAMPLES = 1.8
# One order after the other, in every cell another.
shuffle = random.Random(1).shuffle


class Care(NamedTuple):
    """What a contender's samples need: so many calls of its own before each, and more samples if it is hot."""
    settling: int
    is_hot: bool


class Times(NamedTuple):
    """In seconds, of a contender's run; settling: what ran before each sample."""
    median: float
    p10: float
    p90: float
    least: float
    most: float
    samples: int
    settling: float


class CpuDevice:
    backend, torch_device = mica.CPU, torch.device("cpu")
    default_suite = "cpu.json"
    default_peers = ["sdpa"]

    def __init__(self, library, threads):
        self.threads = threads or len(os.sched_getaffinity(0))
        torch.set_num_threads(self.threads)
        library.set_num_threads(self.threads)
        self.name = library.describe_device(mica.CPU)
        self._has_other_threads = "OpenMP" not in self.name

    def quiet(self):
        """PyTorch's idle threads stop spinning, where the library does not compute on them itself."""
        if self._has_other_threads:
            time.sleep(0.02)

    @staticmethod
    def stream():
        return None

    @staticmethod
    def peer(name):
        """A context in which PyTorch takes the backend of that name."""
        if name != "sdpa":
            raise ValueError(f"{name}: no peer on the CPU, want sdpa")
        return contextlib.nullcontext()

    @staticmethod
    def seconds(function, repetitions):
        begin = time.perf_counter()
        for _ in range(repetitions):
            function()
        return (time.perf_counter() - begin) / repetitions

    @staticmethod
    def wait():
        """For all that was asked of the device."""

    @staticmethod
    def care(seconds, quickest, repetitions, calls):
        return Care(1, False)

    @staticmethod
    def settle(function, calls):
        """Between two contenders: the other one's idle threads stop spinning, then this one's wake up."""
        time.sleep(0.02)
        for _ in range(calls):
            function()

    @staticmethod
    def matmul(dtype):
        """A product such as stands between two attentions of a model, about 0.1 GFLOP: PyTorch's threads spin after it."""
        kind = torch.bfloat16 if dtype == "bf16" else torch.float32
        a, b = torch.randn(256, 512, dtype=kind), torch.randn(512, 512, dtype=kind)
        return lambda: torch.mm(a, b)

    def facts(self):
        return {"device": self.name, "threads": self.threads}


class CudaDevice:
    backend = mica.CUDA
    default_suite = "cuda.json"
    default_peers = ["FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION"]

    def __init__(self, library, ordinal):
        torch.cuda.set_device(ordinal)
        torch.zeros(1, device="cuda")  # makes the primary context, which the library then uses
        self.torch_device = torch.device("cuda", ordinal)
        self.name = library.describe_device(mica.CUDA, ordinal)
        self._start, self._end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    @staticmethod
    def stream():
        return torch.cuda.current_stream().cuda_stream

    @staticmethod
    def peer(name):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        return sdpa_kernel(getattr(SDPBackend, name))

    def seconds(self, function, repetitions):
        # The device sleeps while the host queues the calls, so that launch overhead on the host is not timed.
        torch.cuda._sleep(int(2e6) + 100_000 * repetitions)
        self._start.record()
        for _ in range(repetitions):
            function()
        self._end.record()
        self._end.synchronize()
        return self._start.elapsed_time(self._end) * 1e-3 / repetitions

    @staticmethod
    def wait():
        torch.cuda.synchronize()

    @staticmethod
    def care(seconds, quickest, repetitions, calls):
        """Calls that may bring a chip to its power limit follow their own kind: there it owes some of its clock to whoever
        ran before, 5 to 10 % in calls of 1.4 ms on an H200, and finds its clock in about 50 ms. Short ones wait for memory
        and launches most of the time, and to whom takes half as long again as the quickest a few percent are nothing."""
        if quickest < LEAST_HOT_CALL * calls or seconds > 1.5 * quickest:
            return Care(repetitions if quickest >= 100e-6 * calls else 1, False)
        return Care(max(repetitions, math.ceil(SECONDS_TO_SETTLE / seconds)), True)

    @staticmethod
    def settle(function, calls):
        for _ in range(calls):
            function()

    @staticmethod
    def captured(function, calls):
        """So many calls as one CUDA graph, in the order in which they were made: what replays it."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                function()
        return graph.replay

    def facts(self):
        return {"device": self.name, "torch_cuda": torch.version.cuda}


def make_device(word, library, threads):
    if word == "cpu":
        return CpuDevice(library, threads)
    if word == "cuda" or word.startswith("cuda:"):
        return CudaDevice(library, int(word[5:] or 0))
    raise ValueError(f"--device is {word}, want cpu, cuda or cuda:N")


def interleaved_medians(device, contenders, samples, sample_seconds, cell_seconds, calls=1):
    """{name: Times} of contenders that make so many calls each. Mica and each peer take turns in an order drawn anew each
    time: a slow moment of the machine hits them all. Where samples of a hot one differ by more than QUIET, there are
    MORE_SAMPLES of all of these. A contender for which the cell's time does not suffice gets fewer samples, and at least one."""
    once = {name: device.seconds(function, 1) for name, function in contenders.items()}  # ran before, when it was checked
    quickest = min(once.values())
    repetitions, cares, affordable = {}, {}, {}
    for name, seconds in once.items():
        repetitions[name] = max(1, min(1000, round(sample_seconds / max(seconds, 1e-7))))
        cares[name] = device.care(seconds, quickest, repetitions[name], calls)
        turn = seconds * (cares[name].settling + repetitions[name])
        affordable[name] = max(1, int(cell_seconds / max(turn, 1e-9)))
    times = {name: [] for name in contenders}
    order = list(contenders)

    def take_turns(count, names):
        for _ in range(count):
            shuffle(order)
            for name in order:
                if name in names and len(times[name]) < affordable[name]:
                    device.settle(contenders[name], cares[name].settling)
                    times[name].append(device.seconds(contenders[name], repetitions[name]))

    hot = [name for name, care in cares.items() if care.is_hot]
    for name in hot:  # the chip was cold
        device.settle(contenders[name], cares[name].settling)
    take_turns(samples, contenders)
    if any(max(times[name]) > QUIET * min(times[name]) for name in hot):
        take_turns(math.ceil(samples * MORE_SAMPLES) - samples, hot)
    return {name: summary(values, cares[name].settling) for name, values in times.items()}


# Calls of up to so many seconds are warm again only after a few of them, and cheap enough for it; longer ones warm
# themselves.
SHORT_CALL = 1e-3
CALLS_TO_WARM_UP = 3
# Of turns that take longer, in seconds, there are fewer.
LONG_TURN = 1.0


def medians_between(device, contenders, between, cell_seconds, seconds_inside, nothing, cool):
    """The same as in a model: before each call something else has run. The contenders take turns call by call. What it
    does to Mica's calls by itself: "alone" are those that follow calls of Mica's own, "after" those that follow one and
    then something else (what the other contender leaves in the caches is not counted); one of both in each turn, so that a
    slow moment of the machine hits both. "sdpa alone" and "sdpa after" likewise, of short calls. "inside", "alone inside"
    and "after inside" are the library's own part of Mica's calls (seconds_inside() of the last one): the rest is the
    interpreter, whose code is cold after something else, whoever is called. Of short calls also "nothing alone" and
    "nothing after": nothing(), a call that computes nothing; "cold": Mica's after cool(), which is Mica's own as well and
    leaves caches as between() does."""
    once = {name: min(device.seconds(function, 1) for _ in range(2)) for name, function in contenders.items()}
    with_alone = [name for name in contenders if name == "mica" or once[name] < SHORT_CALL]
    turn = sum(once.values()) + 2 * sum(once[name] for name in with_alone) + 2 * len(contenders) * device.seconds(between, 3)
    turns = max(8 if turn < LONG_TURN else 3, min(200, int(cell_seconds / max(turn, 1e-6))))
    times = {name: [] for name in contenders}
    times.update({kind_name(name, kind): [] for name in with_alone for kind in ("alone", "after")})
    times.update({"inside": [], "alone inside": [], "after inside": []})
    is_short = once["mica"] < SHORT_CALL
    if is_short:
        times.update({"nothing alone": [], "nothing after": [], "cold": [], "cold inside": []})

    def take(name, kind=""):
        times[kind_name(name, kind)].append(device.seconds(contenders[name], 1))
        if name == "mica":
            times[f"{kind} inside".strip()].append(seconds_inside())

    def take_short():
        """Between calls of Mica's."""
        contenders["mica"]()
        cool()
        take("mica", "cold")
        for _ in range(CALLS_TO_WARM_UP):
            nothing()
        times["nothing alone"].append(device.seconds(nothing, 1))
        between()
        times["nothing after"].append(device.seconds(nothing, 1))

    for _ in range(turns):
        for name, function in contenders.items():
            between()
            take(name)
            if name not in with_alone:
                continue
            device.quiet()
            for _ in range(CALLS_TO_WARM_UP if once[name] < SHORT_CALL else 0):
                function()
            take(name, "alone")
            between()
            take(name, "after")
        if is_short:
            take_short()
    return {name: summary(values) for name, values in times.items()}


def kind_name(contender, kind):
    """Of Mica's calls: the kind's own name."""
    return (kind or contender) if contender == "mica" else f"{contender} {kind}".strip()


def summary(values, calls_to_settle=0):
    values, median = sorted(values), statistics.median(values)
    last = len(values) - 1
    return Times(median, values[round(0.1 * last)], values[round(0.9 * last)], values[0], values[-1], len(values),
                 calls_to_settle * median)
