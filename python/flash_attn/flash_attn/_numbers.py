# SPDX-License-Identifier: Apache-2.0
"""The plain numbers of both interfaces, flash_attn's and flash_attn_interface's: what is not one is refused by its name."""
from typing import Any, Tuple

from mica import _arguments
from torch import Tensor

number = _arguments.number


def window_of(window_size: Any) -> Tuple[int, int]:
    """(left, right), -1 where unlimited, from any pair of ints or a tensor of two."""
    if isinstance(window_size, Tensor):
        window_size = window_size.tolist()
    try:
        if isinstance(window_size, str):
            raise TypeError
        left, right = window_size
    except (TypeError, ValueError):
        raise ValueError(f"window_size is {window_size!r}, want (left, right), two ints, -1 for unlimited") from None
    return tuple(max(_arguments.integer(f"window_size's {side}", value), -1)
                 for side, value in (("left", left), ("right", right)))


def causal_of(causal: Any) -> bool:
    """Upstream has one diagonal, the bottom right: a word for another (mica.attention's 'top-left') would be taken for True."""
    if isinstance(causal, str):
        raise ValueError(f"causal is {causal!r}, want True or False: it is aligned to the bottom right")
    return bool(causal)


def chunk_of(attention_chunk: Any) -> int:
    chunk = _arguments.integer("attention_chunk", attention_chunk)
    if chunk < 0:
        raise ValueError(f"attention_chunk is {chunk}, want 0 (none) or more")
    return chunk
