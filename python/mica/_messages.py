# SPDX-License-Identifier: Apache-2.0
"""The library's messages in the words of Python's callers: their arguments instead of the C interface's fields."""

import re

_FIELDS = [(re.compile(pattern), word) for pattern, word in (
    (r"sequences\.vectors lacks seqused_k, want it with append\.k_new", "seqused_k is None, want it with append.k_new"),
    (r"append\.(\w+) is absent", r"append.\1 is None"),
    (r"mask\.boolean\b|\bboolean_mask\b", "mask"), (r"mask\.(causal|diagonal)\b", r"\1"),
    (r"mask\.window_left", "window's left"), (r"mask\.window_right", "window's right"),
    (r"attention_chunk", "chunk"), (r"mask_last_keys", "tree.shape[-1]"),
    (r"quantisation\.per_page", "descale_per_page"), (r"quantisation\.", ""),
    (r"score\.(\w+)", r"\1"), (r"dropout\.probability", "dropout"), (r"control\.(\w+)", r"\1"),
    (r"sequences\.(max_seqlen_q|max_seqlen_k|block_table)", r"\1"), (r"sequences\.batch", "the batch"),
    (r"(bindings\.)?rng_state", "seed"), (r"append\.", ""), (r"bindings\.", ""),
    (r"\bo(?=\.(shape|dtype|stride)| overlaps| is )", "out"),
    (r"MICA_UNLIMITED( \(-1\))?", "None"), (r" \(0: 1/sqrt\(dim\)\)", ""),
)]
_CACHED = {"k_new": "k", "v_new": "v", "k": "k_cache", "v": "v_cache", "seqused_k": "cache_seqlens"}


def in_python(message: str) -> str:
    for pattern, word in _FIELDS:
        message = pattern.sub(word, message)
    return message


def of_a_cache(message: str, has_tree: bool = False) -> str:
    """The same for attention_with_cache, where k is what is new, and a tree is a mask to the library."""
    if has_tree:
        message = re.sub(r"^mask\b", "tree", message)
    fields = r"\b(k_new|v_new|seqused_k|[kv](?=[.,)]|$| is | overlaps| has ))"
    return re.sub(fields, lambda found: _CACHED[found[0]], message)
