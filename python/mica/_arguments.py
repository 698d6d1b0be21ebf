# SPDX-License-Identifier: Apache-2.0
"""The plain arguments of mica.attention* as the numbers of the C interface."""

import difflib
import operator
from functools import lru_cache
from typing import Any, Dict, Optional, Tuple

from . import _abi
from ._describe import LONGEST, Options, options, packed_hint, rounded_hint
from .errors import InvalidArgument

CAUSAL = {False: _abi.CAUSAL_NONE, None: _abi.CAUSAL_NONE, True: _abi.CAUSAL_BOTTOM_RIGHT,
          "bottom-right": _abi.CAUSAL_BOTTOM_RIGHT, "top-left": _abi.CAUSAL_TOP_LEFT}
DIAGONAL = {None: _abi.DIAGONAL_BOTTOM_RIGHT, "bottom-right": _abi.DIAGONAL_BOTTOM_RIGHT,
            "top-left": _abi.DIAGONAL_TOP_LEFT}


MOST_SPLITS = 256
_32_BITS = 2**31 - 1


def integer(name: str, value: Any) -> int:
    """A plain int of anything that is one (NumPy's integers are); a symbol of a tracer stays what it is."""
    if type(value) is int or hasattr(value, "node"):
        return value  # type: ignore[no-any-return]
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{name} is {value!r}, want an int") from None


def number(name: str, value: Any) -> float:
    if isinstance(value, (int, float)):
        return float(value)
    try:
        if isinstance(value, str):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{name} is {value!r}, want a number") from None


def fp32(name: str, value: float) -> float:
    """The number as the library gets it, unless that would be another one."""
    if value != 0 and abs(value) < 1.2e-38:
        raise InvalidArgument(f"{name} is {value!r}, want a number that fp32 can hold (1.2e-38 or more)")
    return value


def window_of(window: Any) -> Optional[Tuple[Optional[int], Optional[int]]]:
    """(left, right) as plain ints or None, from any pair of int-like values; no window is None."""
    if window is None:
        return None
    try:
        if isinstance(window, str):
            raise TypeError
        left, right = window
    except (TypeError, ValueError):
        raise InvalidArgument(f"window is {window!r}, want (left, right), each an int or None") from None
    return (None if left is None else integer("window's left", left),
            None if right is None else integer("window's right", right))


def _choice(name: str, value: Any, choices: Dict[Any, int], wanted: str) -> int:
    try:
        return choices[value]
    except (KeyError, TypeError):
        near = difflib.get_close_matches(str(value), [c for c in choices if isinstance(c, str)], 1)
        hint = f"; did you mean {near[0]!r}?" if near and isinstance(value, str) else ""
        raise InvalidArgument(f"{name} is {value!r}, want {wanted}{hint}") from None


def _limit(name: str, value: Optional[int]) -> int:
    if value is None:
        return _abi.UNLIMITED
    if not 0 <= value <= _32_BITS:
        raise InvalidArgument(f"window's {name} is {value}, want 0 to 2^31 - 1, or None for unlimited")
    return value


def normalise(causal: Any = False, window: Optional[Tuple[Optional[int], Optional[int]]] = None, chunk: int = 0,
              scale: Optional[float] = None, softcap: Optional[float] = None, dropout: float = 0.0,
              diagonal: Optional[str] = None, num_splits: int = 0, batch_invariant: bool = False,
              deterministic: bool = False, rotary_interleaved: bool = False, max_seqlen_q: Optional[int] = None,
              max_seqlen_k: Optional[int] = None, mask_last_keys: int = 0) -> Tuple[Any, ...]:
    """The arguments of options(), or InvalidArgument for what the C interface could not even be asked."""
    of_causal = _choice("causal", causal, CAUSAL, "False, True, 'bottom-right' or 'top-left'")
    of_diagonal = _choice("diagonal", diagonal, DIAGONAL, "None, 'bottom-right' or 'top-left'")
    if of_causal and diagonal is not None and of_diagonal != DIAGONAL["top-left" if causal == "top-left" else "bottom-right"]:
        raise InvalidArgument(f"diagonal is {diagonal!r} and causal is {causal!r}, want diagonal=None, or the alignment that causal "
                              "names")
    scale = 0.0 if scale is None else fp32("scale", number("scale", scale)) or _no_scale()
    softcap = 0.0 if softcap is None else fp32("softcap", number("softcap", softcap))
    dropout = number("dropout", dropout)
    num_splits = integer("num_splits", num_splits)
    if not 0 <= num_splits <= MOST_SPLITS:
        raise InvalidArgument(f"num_splits is {num_splits}, want 0 (chosen) to {MOST_SPLITS}")
    left, right = window or (None, None)
    window_left, window_right = _limit("left", left), _limit("right", right)
    chunk = integer("chunk", chunk)
    if not 0 <= chunk <= LONGEST:
        raise InvalidArgument(f"chunk is {chunk}, want 0 (no chunks) to 2^29")
    hints = [0 if value is None else integer(name, value)
             for name, value in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k))]
    return (of_causal, of_causal if causal and diagonal is None else of_diagonal, window_left,
            _abi.UNLIMITED if causal else window_right, chunk, mask_last_keys, scale, softcap, dropout, num_splits, bool(deterministic),
            bool(batch_invariant), bool(rotary_interleaved), *hints)


def _no_scale() -> float:
    raise InvalidArgument("scale is 0, want another number, or None for 1/sqrt(head dimension)")


def numbers(*arguments: Any) -> Options:
    """normalise, as Options; positional arguments only, since they are the key."""
    try:
        return _numbers(*arguments)
    except TypeError:  # what cannot be a key
        return _numbers.__wrapped__(*arguments)


@lru_cache(maxsize=4096)
def _numbers(*arguments: Any) -> Options:
    for name, value in zip(("scale", "softcap", "dropout"), arguments[3:]):
        if hasattr(value, "__dlpack__"):  # an array would be a key by its identity, and its value may change
            raise InvalidArgument(f"{name} is a {type(value).__name__}, want a number")
    *most, max_seqlen_q, max_seqlen_k = normalise(*arguments)
    return options(*most, rounded_hint(max_seqlen_q), rounded_hint(max_seqlen_k))


def numbers_of_packed(q: Any, k: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, *arguments: Any) -> Options:
    """numbers of a packed call, whose last two are the longest lengths."""
    made = numbers(*arguments)
    hints = tuple(packed_hint(int(length or 0), packed, cu_seqlens, made.batch_invariant) for length, packed, cu_seqlens in
                  ((arguments[-2], q, cu_seqlens_q), (arguments[-1], k, cu_seqlens_k)))
    if hints == (made.max_seqlen_q, made.max_seqlen_k):
        return made
    given = {name: getattr(made, name) for name in Options.__slots__}
    return options(*{**given, "max_seqlen_q": hints[0], "max_seqlen_k": hints[1]}.values())
