# SPDX-License-Identifier: Apache-2.0
"""Do all ranks mean the same call? Asked once for every new description; a rank that differs is named to all."""

import json
from collections import OrderedDict
from typing import Any, Dict, List, Tuple

import torch

from ..errors import InvalidArgument
from ._mail import Mail

BYTES = 1024  # of a description as it travels
KEPT = 4096

_agreed: "OrderedDict[Tuple[Any, ...], Any]" = OrderedDict()


def _differences(rows: List[Dict[str, Any]]) -> List[str]:
    found = []
    for name in rows[0]:
        values = [row.get(name) for row in rows]
        if any(value != values[0] for value in values):
            by_value: Dict[str, List[int]] = {}
            for rank, value in enumerate(values):
                by_value.setdefault(str(value), []).append(rank)
            found.append(f"{name} is " + ", but ".join(
                f"{value} on rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
                for value, ranks in by_value.items()))
    return found


def agree(mail: Mail, description: Dict[str, Any]) -> None:
    """Raises the same error on every rank of the group unless all descriptions are equal."""
    if mail.size == 1:
        return
    key = (id(mail), tuple(description.items()))
    if key in _agreed:
        return
    text = json.dumps({name: str(value) for name, value in description.items()}).encode()
    if len(text) > BYTES:
        raise InvalidArgument(f"the description of the call has {len(text)} bytes, want at most {BYTES}")
    mine = torch.tensor(list(text.ljust(BYTES)), dtype=torch.uint8, device=mail.device)
    rows = [json.loads(bytes(row).decode()) for row in mail.all_gather(mine).tolist()]
    found = _differences(rows)
    if found:
        raise InvalidArgument("the ranks of the group do not make the same call: " + "; ".join(found))
    _agreed[key] = mail  # kept: its id stays its own
    while len(_agreed) > KEPT:
        _agreed.popitem(last=False)
