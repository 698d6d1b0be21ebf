# SPDX-License-Identifier: Apache-2.0
"""The plain arguments of mica.attention* as the numbers of the C interface."""

from functools import lru_cache
from typing import Any, Optional, Tuple

from . import _abi
from ._describe import Options, options, rounded_hint
from .errors import InvalidArgument

CAUSAL = {False: _abi.CAUSAL_NONE, None: _abi.CAUSAL_NONE, True: _abi.CAUSAL_BOTTOM_RIGHT,
          "bottom-right": _abi.CAUSAL_BOTTOM_RIGHT, "top-left": _abi.CAUSAL_TOP_LEFT}
DIAGONAL = {None: _abi.DIAGONAL_BOTTOM_RIGHT, "bottom-right": _abi.DIAGONAL_BOTTOM_RIGHT,
            "top-left": _abi.DIAGONAL_TOP_LEFT}


def window_of(window: Any) -> Optional[Tuple[Optional[int], Optional[int]]]:
    """(left, right) as plain ints or None, from any pair of int-like values; no window is None."""
    if window is None:
        return None
    try:
        left, right = window
        return (None if left is None else int(left), None if right is None else int(right))
    except (TypeError, ValueError):
        raise InvalidArgument(f"window is {window!r}, want (left, right), each an int or None") from None


def _limit(name: str, value: Optional[int]) -> int:
    if value is None:
        return _abi.UNLIMITED
    if value < 0:
        raise InvalidArgument(f"window's {name} is {value}, want 0 or more, or None for unlimited")
    return value


def normalise(causal: Any = False, window: Optional[Tuple[Optional[int], Optional[int]]] = None,
              scale: Optional[float] = None, softcap: Optional[float] = None, dropout: float = 0.0,
              diagonal: Optional[str] = None, num_splits: int = 0, batch_invariant: bool = False,
              deterministic: bool = False, rotary_interleaved: bool = False, max_seqlen_q: Optional[int] = None,
              max_seqlen_k: Optional[int] = None) -> Tuple:
    """The arguments of options(), or InvalidArgument for what the C interface could not even be asked."""
    if causal not in CAUSAL:
        raise InvalidArgument(f"causal is {causal!r}, want False, True, 'bottom-right' or 'top-left'")
    if diagonal not in DIAGONAL:
        raise InvalidArgument(f"diagonal is {diagonal!r}, want None, 'bottom-right' or 'top-left'")
    if scale is not None and scale == 0:
        raise InvalidArgument("scale is 0, want another number, or None for 1/sqrt(head dimension)")
    left, right = window or (None, None)
    window_left, window_right = _limit("left", left), _limit("right", right)
    return (CAUSAL[causal], CAUSAL[causal] if causal and diagonal is None else DIAGONAL[diagonal], window_left,
            _abi.UNLIMITED if causal else window_right, 0.0 if scale is None else float(scale), float(softcap or 0.0),
            float(dropout), num_splits, bool(deterministic), bool(batch_invariant), bool(rotary_interleaved),
            0 if max_seqlen_q is None else max_seqlen_q, 0 if max_seqlen_k is None else max_seqlen_k)


@lru_cache(maxsize=4096)
def numbers(*arguments: Any) -> Options:
    """normalise, as Options; positional arguments only, since they are the key."""
    for name, value in zip(("scale", "softcap", "dropout"), arguments[2:]):
        if hasattr(value, "__dlpack__"):  # an array would be a key by its identity, and its value may change
            raise InvalidArgument(f"{name} is a {type(value).__name__}, want a number")
    *most, max_seqlen_q, max_seqlen_k = normalise(*arguments)
    return options(*most, rounded_hint(max_seqlen_q), rounded_hint(max_seqlen_k))
