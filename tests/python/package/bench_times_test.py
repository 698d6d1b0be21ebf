# SPDX-License-Identifier: Apache-2.0
"""bench/devices.py gives calls at a GPU's power limit the samples and the company that they need."""

import collections
import sys

import pytest
from conftest import ROOT

pytest.importorskip("torch")
sys.path.append(str(ROOT / "bench"))  # behind: it has a ranks.py, as the tests over ranks do
import devices  # noqa: E402


class Chip(devices.CudaDevice):
    """Contenders are their seconds; every second sample of each takes `noise` times as long."""

    def __init__(self, noise):
        self.noise, self.events, self.samples = noise, [], collections.Counter()

    def seconds(self, function, repetitions):
        self.events.append((function, "timed", repetitions))
        self.samples[function] += 1
        return function * (1 if self.samples[function] % 2 else self.noise)

    def settle(self, function, calls):
        self.events.append((function, "settled", calls))


def times(noise, *contenders, **options):
    chip = Chip(noise)
    return devices.interleaved_medians(chip, {str(c): c for c in contenders}, 5, 0.02, 60, **options), chip.events


def test_hot_calls_that_differ_get_more_samples_after_50_ms_of_their_own():
    result, events = times(1.04, 1e-3, 1.1e-3, 3e-3)
    assert [t.samples for t in result.values()] == [9, 9, 5]  # who is far behind needs no more
    for contender in (1e-3, 1.1e-3):
        assert result[str(contender)].settling >= 0.05
        assert result[str(contender)].most / result[str(contender)].least == pytest.approx(1.04)
    after_first_calls = events[3:]
    assert [kind for _, kind, _ in after_first_calls[:2]] == ["settled"] * 2  # the chip was cold
    turns = after_first_calls[2:]
    for (settled, first, _), (timed, second, _) in zip(turns[::2], turns[1::2]):
        assert (first, second, settled) == ("settled", "timed", timed)


def test_hot_calls_that_agree_get_no_more():
    result, _ = times(1.01, 1e-3, 1.1e-3)
    assert [t.samples for t in result.values()] == [5, 5]


def test_short_calls_are_timed_at_once():
    result, _ = times(1.2, 20e-6, 30e-6)
    assert [(t.samples, round(t.settling * 1e6) <= 40) for t in result.values()] == [(5, True)] * 2
    result, _ = times(1.2, 320e-6, calls=16)  # a graph of them
    assert result["0.00032"].samples == 5


def test_the_order_is_another_in_every_cell():
    orders = set()
    for _ in range(8):
        _, events = times(1, 20e-6, 21e-6, 22e-6, 23e-6)
        orders.add(tuple(function for function, kind, _ in events[4:] if kind == "timed"))
    assert len(orders) == 8
