# SPDX-License-Identifier: Apache-2.0
"""Prints the Python that Mica generates for calls with torch tensors: one set of functions per set of bound tensors.

Usage: python -m mica.source [NAME ...]

NAMEs are the tensors that are bound, named as in mica_bindings (include/mica/mica.h); the call makes those of o and lse that
are among them. As in
  python -m mica.source q k v o         what mica.attention(q, k, v) runs
  python -m mica.source q k v o lse bias
Without a name: all that `import mica` and a first call generate. In a running process inspect.getsource of a function in
<mica forward: ...> shows the same, as do a debugger and the lines of a traceback."""

import sys
from typing import Dict, Sequence

from .errors import InvalidArgument


def sources(names: Sequence[str] = ()) -> Dict[str, str]:
    """{name in a traceback: text}, of the forward call that binds these tensors; of none: all that there are."""
    from . import _abi
    from ._caller import caller, generated_sources
    from ._describe import BINDINGS
    if not names:
        from . import _torch_face  # noqa: F401  generates its own
        return generated_sources()
    unknown = [name for name in names if name not in BINDINGS]
    if unknown:
        raise InvalidArgument(f"{unknown[0]!r} is no tensor of a call, want some of {', '.join(BINDINGS)}")
    missing = [name for name in ("q", "k", "v", "o") if name not in names]
    if missing:
        raise InvalidArgument(f"{missing[0]} is not among the tensors, want q, k, v and o at least")
    bound = tuple(name for name in BINDINGS if name in names)
    call = caller(_abi.FORWARD, bound, tuple(name for name in ("o", "lse") if name in names))
    title = call.find.__code__.co_filename
    return {title: generated_sources()[title]}


def main(names: Sequence[str]) -> int:
    if any(name.startswith("-") for name in names):
        print(__doc__)
        return 0 if set(names) <= {"-h", "--help"} else 2
    try:
        found = sources(names)
    except InvalidArgument as error:
        print(f"mica.source: {error}", file=sys.stderr)
        return 2
    print("\n".join(f"# {title}\n{text}" for title, text in found.items()), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
