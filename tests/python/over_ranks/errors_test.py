# SPDX-License-Identifier: Apache-2.0
"""A rank that differs, or is gone, is an error on the others within the group's time limit."""

import os
import time

import pytest
from ranks import Ranks

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def call(rank, size, differ):
    from mica import distributed
    given = dict(dtype=torch.float32, heads=4, layout="ring", causal=True, dim=16)
    if rank == 1:
        given.update(differ)
    q, k, v = (torch.randn(1, 8, given["heads"], given["dim"], dtype=given["dtype"]) for _ in range(3))
    distributed.attention(q, k, v, layout=given["layout"], causal=given["causal"])


def message(rank, size, differ):
    started = time.monotonic()
    with pytest.raises(Exception) as caught:
        call(rank, size, differ)
    return type(caught.value).__name__, str(caught.value), time.monotonic() - started


@pytest.mark.parametrize("differ, words", [
    ({"dtype": torch.bfloat16}, "dtype is torch.float32 on rank 0, but torch.bfloat16 on rank 1"),
    ({"heads": 2}, "heads is 4 on rank 0, but 2 on rank 1"), ({"dim": 32}, "dim is 16 on rank 0, but 32 on rank 1"),
    ({"layout": "zigzag"}, "layout is ring on rank 0, but zigzag on rank 1"),
    ({"causal": False}, "right is 0 on rank 0, but None on rank 1")])
def test_a_rank_that_differs_is_named_to_all(two, differ, words):
    for kind, text, _ in two.run(message, differ):
        assert kind == "InvalidArgument" and "do not make the same call" in text and words in text


def test_the_call_goes_on_after_an_error(two):
    two.run(call, {})


def checks(rank, size):
    """How often the ranks ask each other over three equal calls and a new one."""
    from mica.distributed import _agree
    asked = []
    gather, _agree.Mail.all_gather = _agree.Mail.all_gather, lambda self, t: (asked.append(1), gather(self, t))[1]
    try:
        _agree._agreed.clear()
        for _ in range(3):
            call(rank, size, {})
        before = len(asked)
        call(rank, size, {"heads": 4, "dim": 16})
        __import__("mica").distributed.attention(*(torch.randn(2, 8, 4, 16) for _ in range(3)))
        return before, len(asked)
    finally:
        _agree.Mail.all_gather = gather


def test_agreement_is_asked_once_for_each_new_shape(two):
    assert two.run(checks) == [(1, 2), (1, 2)]


def local(rank, size):
    from mica import distributed
    q = torch.randn(1, 8 + rank, 2, 16)
    with pytest.raises(Exception) as caught:
        distributed.attention(q, q, q, seqlen=20)
    return str(caught.value)


def test_rows_that_do_not_fit_the_layout_are_refused(two):
    first, second = two.run(local)
    assert "q has 8 rows on rank 0, want 10: layout 'ring' of 20 tokens over 2 ranks" in first
    assert "q has 9 rows on rank 1, want 10" in second


def dies(rank, size):
    from mica import distributed
    q, k, v = (torch.randn(1, 8, 4, 16) for _ in range(3))
    distributed.attention(q, k, v)
    if rank == 1:
        os._exit(3)
    with pytest.raises(distributed.Lost) as caught:
        for _ in range(3):
            distributed.attention(q, k, v)
    return str(caught.value)


def other_shape(rank, size):
    """One rank goes on with what was agreed, the other comes with something new."""
    from mica import distributed
    q, k, v = (torch.randn(1, 8, 4, 16) for _ in range(3))
    distributed.attention(q, k, v)
    with pytest.raises(distributed.Lost) as caught:
        distributed.attention(q, k, v, layout="zigzag" if rank else "ring")
    return str(caught.value)


@pytest.mark.parametrize("function", [dies, other_shape])
def test_a_rank_that_is_gone_or_elsewhere(function):
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    if function is other_shape and not os.environ.get("MICA_TEST_ALL"):
        pytest.skip("make test-all runs it")
    ranks = Ranks(2, seconds=8)
    try:
        results = ranks.results(function)
    finally:
        ranks.stop()
    for rank, (status, text) in enumerate(results):
        if function is dies and rank == 1:
            assert (status, text) == (None, 3)
        else:
            assert status and "A rank is gone" in text, text


def many_steps(rank, size, steps):
    """The resident memory in KiB after so many steps; every twentieth has another shape."""
    from mica import distributed
    for step in range(steps):
        q, k, v = (torch.randn(1, 8 + 2 * (step // 20 % 5), 2, 16, requires_grad=True) for _ in range(3))
        distributed.attention(q, k, v, causal=True, layout=("ring", "zigzag")[step % 2]).sum().backward()
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


@pytest.mark.skipif(not os.environ.get("MICA_TEST_ALL"), reason="make test-all runs it")
def test_nothing_leaks_over_many_steps(two):
    early = two.run(many_steps, 1000)
    for _ in range(9):
        late = two.run(many_steps, 1000)
    for before, after in zip(early, late):
        assert after - before < 8 * 1024, f"{before} KiB after 1,000 steps, {after} KiB after 10,000"
