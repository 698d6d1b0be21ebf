# SPDX-License-Identifier: Apache-2.0
"""Over ranks nothing is silently another thing than on one device."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import refusals  # noqa: E402


@pytest.mark.parametrize("function", [refusals.second_derivatives, refusals.sinks_alone, refusals.sinks_that_do_not_fit,
                                      refusals.after_a_refusal, refusals.owners_that_differ, refusals.decoding_otherwise,
                                      refusals.lengths_that_are_no_ints, refusals.negative_views])
def test_two_ranks(two, function):
    two.run(function)


@pytest.mark.skipif(not hasattr(torch, "float8_e4m3fn"), reason="this PyTorch has no e4m3")
def test_small_types(two):
    two.run(refusals.small_types)
