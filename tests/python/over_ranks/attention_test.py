# SPDX-License-Identifier: Apache-2.0
"""mica.distributed.attention and attention_varlen over ranks against one process."""

import cases
import pytest

LAYOUTS = ("ring", "zigzag", "stripe", "ulysses")
PACKED = ("gather", "ring", "zigzag", "stripe")
OPTIONS = [
    {}, {"causal": True}, {"causal": True, "dtype": "bfloat16"}, {"causal": True, "dtype": "float16", "dim_v": 24},
    {"causal": True, "window": (10, 0)}, {"window": (9, 5)}, {"window": (None, 5)},
    {"causal": True, "alibi": True, "sinks": True}, {"softcap": 3.0, "sinks": True, "scale": 0.5},
    {"causal": True, "dropout": 0.3, "seed": 5}, {"dropout": 0.5, "seed": 11, "window": (20, 20)},
]
SHAPES = [  # uneven and empty pieces, rows that see nothing
    {"causal": "top-left", "seqlen": 37, "seqlen_k": 61, "dropout": 0.2, "seed": 9},
    {"causal": True, "seqlen": 61, "seqlen_k": 37}, {"causal": True, "seqlen": 3}, {"seqlen": 1},
    {"window": (2, 2), "diagonal": "top-left", "seqlen": 40, "seqlen_k": 9},
]
BOTH_SIDES = [{"alibi": True, "window": (9, 5)}, {"alibi": True, "diagonal": "top-left", "seqlen": 30, "seqlen_k": 50}]
LENGTHS = ([20, 3, 0, 41], [64], [1, 1])


def dense(layout, size, some=OPTIONS + SHAPES + BOTH_SIDES):
    heads = {"heads": 2 * size, "key_heads": size} if layout == "ulysses" and "heads" not in some[0] else {}
    return [dict(heads, layout=layout, **case) for case in some if layout != "stripe" or case not in BOTH_SIDES]


def packed(layout, lengths):
    options = [{}, {"causal": True}, {"causal": True, "window": (7, 0)}, {"window": (7, 4)},
               {"causal": True, "dropout": 0.3, "seed": 3}, {"causal": True, "alibi": True, "sinks": True},
               {"causal": True, "dtype": "bfloat16"}]
    options += [{"alibi": True}] if layout != "stripe" else []
    return [dict(layout=layout, lengths=lengths, **case) for case in options]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_ranks(two, layout):
    two.run(cases.check_each, dense(layout, 2), [])


@pytest.mark.parametrize("layout", PACKED)
def test_two_ranks_packed(two, layout):
    two.run(cases.check_each, [], [case for lengths in LENGTHS for case in packed(layout, lengths)])


def test_key_heads_shared_by_ranks(two):
    two.run(cases.check_each, dense("ulysses", 2, [{"heads": 4, "key_heads": 1, "causal": True, "dtype": dtype}
                                                   for dtype in ("float32", "bfloat16")]), [])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_more_ranks(more, layout):
    more.run(cases.check_each, dense(layout, more.size), [])


@pytest.mark.parametrize("layout", ("ring", "zigzag", "stripe"))
def test_two_steps_together(more, layout):
    """As NCCL would, over gloo."""
    more.run(cases.check_together, [dict(case, batch=1) for case in dense(layout, more.size)])


@pytest.mark.parametrize("layout", PACKED)
def test_more_ranks_packed(more, layout):
    more.run(cases.check_each, [], [case for lengths in LENGTHS for case in packed(layout, lengths)])


PRODUCTS = [f"ulysses x {layout}" for layout in ("ring", "zigzag", "stripe")]


@pytest.mark.parametrize("shape", [(1, 2), (2, 1)])
def test_product_of_two_ranks(two, shape):
    two.run(cases.check_product, shape, [{"layout": layout, "causal": True, "sinks": True, "dropout": 0.2, "seed": 4,
                                          "seqlen": 61} for layout in PRODUCTS])


@pytest.mark.parametrize("layout", PRODUCTS)
def test_product_of_four_ranks(four, layout):
    some = OPTIONS + SHAPES + (BOTH_SIDES if "stripe" not in layout else [])
    four.run(cases.check_product, (2, 2), [dict(case, layout=layout) for case in some])


@pytest.mark.parametrize("dtype, causal, sinks", [("float32", True, False), ("bfloat16", False, True)])
def test_decode(two, dtype, causal, sinks):
    two.run(cases.check_decode, dtype, causal, sinks)


def test_decode_on_four_ranks(four):
    four.run(cases.check_decode, "float32", True, True)
