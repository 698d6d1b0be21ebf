# SPDX-License-Identifier: Apache-2.0
"""Reads src/cuda/kernels.def, the table of kernels. C++ reads the same file through its macros.

As a program it prints, for the rows whose name matches, one line of macros each, for builds that compile them otherwise.
Usage: tools/build/kernel_table.py [REGEX]
"""

import pathlib
import re
import sys

PATH = "src/cuda/kernels.def"
# What a row may set, in this order, and what it is when it does not.
FIELDS = {
    "dtype": "NONE",
    "keys": "NONE",
    "role": "",
    "targets": "",
    "served": "PLAIN",
    "dim_qk": 0,
    "dim_v": 0,
    "tile_q": 0,
    "tile_k": 0,
    "warps": 0,
    "stages": 0,
    "blocks": 0,
    "course": "ONE_TILE",
    "qv": 0,
    "cluster": 0,
    "variant": 0,
    "why_spill": "",
}
DTYPES = {"NONE": 0, "FP32": 1, "FP16": 2, "BF16": 3, "FP8_E4M3": 6}  # mica_dtype
COURSES = ("ONE_TILE", "ORDERED", "DRAWN", "HEADS")
SERVED = ("PLAIN", "SOFTCAP", "ALIBI", "PAIRS", "DROPOUT", "PAGED", "LARGE_PAGES", "CHUNK", "JOINED", "FULL")


class Row:
    """One kernel. `targets` is a list such as ["80", "86", "90", "ptx80"]; numbers are numbers, words as written."""

    def __init__(self, index, line, name, file, fields, target_sets):
        self.index, self.line, self.name, self.file = index, line, name, file
        for field, absent in FIELDS.items():
            setattr(self, field, fields.get(field, absent))
        for field, known in (("dtype", DTYPES), ("keys", DTYPES), ("served", SERVED), ("course", COURSES)):
            if getattr(self, field) not in known:
                raise SystemExit(f"{PATH}:{line}: {field} of {name} is {getattr(self, field)}, want one of {', '.join(known)}")
        if self.targets not in target_sets:
            raise SystemExit(f"{PATH}:{line}: {name} is for {self.targets or 'nothing'}, which no MICA_TARGETS names")
        self.targets = target_sets[self.targets]

    def macros(self):
        """How the kernel's source learns of its row."""
        return [
            f"-DMICA_KERNEL_NAME={self.name}",
            f'-DMICA_KERNEL_FILE="kernels/{self.file}.cuh"',
            f"-DMICA_DTYPE={DTYPES[self.dtype]}",
            *([] if self.keys == FIELDS["keys"] else [f"-DMICA_KEYS={DTYPES[self.keys]}"]),
            f"-DMICA_DIM_QK={self.dim_qk}",
            f"-DMICA_DIM_V={self.dim_v}",
            f"-DMICA_TILE_Q={self.tile_q}",
            f"-DMICA_TILE_K={self.tile_k}",
            f"-DMICA_WARPS={self.warps}",
            f"-DMICA_STAGES={self.stages}",
            f"-DMICA_BLOCKS={self.blocks}",
            f"-DMICA_FULL={int(self.served == 'FULL')}",
            f"-DMICA_SERVED=mica::serves::{self.served}",
            *([] if self.course == FIELDS["course"] else [f"-DMICA_COURSE={self.course}"]),
            *([f"-DMICA_QV={self.qv}"] if self.qv else []),
            *([f"-DMICA_CLUSTER={self.cluster}"] if self.cluster else []),
            *([f"-DMICA_VARIANT={self.variant}"] if self.variant else []),
        ]


def parse_fields(text, where):
    """{field: value} of `.warps = 4, .why_spill = "..."`."""
    fields = {}
    left = text.strip()
    while left:
        match = re.match(r'\.(\w+)\s*=\s*(?:"([^"]*)"|(\w+))\s*(?:,\s*(?=\S)|$)', left)
        if not match:
            raise SystemExit(f"{where}: want .field = value, got {left}")
        field, quoted, word = match.groups()
        if field not in FIELDS:
            raise SystemExit(f"{where}: no field is called {field}; there are {', '.join(FIELDS)}")
        value = word if quoted is None else quoted
        if isinstance(FIELDS[field], int):
            if not value.isdigit():
                raise SystemExit(f"{where}: {field} is {value}, want a number")
            value = int(value)
        fields[field] = value
        left = left[match.end() :]
    if list(fields) != [field for field in FIELDS if field in fields]:
        raise SystemExit(f"{where}: fields stand as {', '.join(fields)}, want the order {', '.join(FIELDS)}")
    return fields


def parse(text):
    rows, target_sets = [], {}
    text = re.sub(r"^[ \t]*//.*$", "", text, flags=re.M)  # lines keep their numbers
    calls = list(re.finditer(r'^(MICA_\w+)\(((?:[^()"]|"[^"]*")*)\)$', text, flags=re.M))
    if len(calls) != len(re.findall(r"MICA_\w+\(", text)):
        raise SystemExit(f"{PATH}: some row does not end: a bracket or a quote is missing")
    for call in calls:
        number = text.count("\n", 0, call.start()) + 1
        macro, arguments = call.group(1), call.group(2)
        first, second, rest = (arguments.split(",", 2) + ["", ""])[:3]
        first, second = first.strip(), second.strip()
        if macro == "MICA_TARGETS":
            target_sets[first] = second.strip('"').split()
            continue
        fields = parse_fields(rest, f"{PATH}:{number}")
        if macro == "MICA_KERNEL":
            kernels = [(first, second, fields)]
        elif macro == "MICA_KERNELS":
            kernels = [(f"{first}_{dtype.lower()}{second}", first, {"dtype": dtype, **fields}) for dtype in ("BF16", "FP16")]
        else:
            raise SystemExit(f"{PATH}:{number}: {macro}, want MICA_TARGETS, MICA_KERNEL or MICA_KERNELS")
        for name, file, values in kernels:
            if any(row.name == name for row in rows):
                raise SystemExit(f"{PATH}:{number}: {name} is there twice")
            rows.append(Row(len(rows), number, name, file, values, target_sets))
    return rows


def read(root):
    return parse((root / PATH).read_text())


def main():
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    for row in read(root):
        if re.search(sys.argv[1] if len(sys.argv) > 1 else "", row.name):
            print(row.name, *(macro.removeprefix("-D") for macro in row.macros()))


if __name__ == "__main__":
    main()
