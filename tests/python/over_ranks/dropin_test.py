# SPDX-License-Identifier: Apache-2.0
"""The drop-in ring_flash_attn: a user's script with its imports unchanged, and Transformers over ranks."""

import inspect

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("flash_attn", reason="the drop-in flash_attn is not installed")
ring_flash_attn = pytest.importorskip("ring_flash_attn", reason="the drop-in ring_flash_attn is not installed")

import user_script  # noqa: E402


def test_script(two):
    two.run(user_script.run)


def test_script_on_more_ranks(more):
    more.run(user_script.run)


def test_transformers(two):
    pytest.importorskip("transformers", minversion="4.57", reason="no transformers 4.57 or later here")
    two.run(user_script.hugging_face)


def test_names_and_arguments():
    arguments = ["q", "k", "v", "dropout_p", "softmax_scale", "causal", "window_size", "alibi_slopes", "deterministic",
                 "return_attn_probs", "group"]
    packed = arguments[:3] + ["cu_seqlens", "max_seqlen"] + arguments[3:]
    for layout in ("ring", "zigzag_ring", "stripe"):
        for name, want in ((f"{layout}_flash_attn", arguments), (f"{layout}_flash_attn_varlen", packed)):
            function = getattr(ring_flash_attn, f"{name}_func")
            assert function.__name__ == f"{name}_func" and list(inspect.signature(function).parameters) == want
            assert list(inspect.signature(getattr(ring_flash_attn, f"{name}_kvpacked_func")).parameters) == \
                ["q", "kv", *want[3:]]
            assert list(inspect.signature(getattr(ring_flash_attn, f"{name}_qkvpacked_func")).parameters) == \
                ["qkv", *want[3:]]
    assert "mica" in ring_flash_attn.__version__ and len(ring_flash_attn.__all__) == 24
