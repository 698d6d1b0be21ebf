# SPDX-License-Identifier: Apache-2.0
"""Reads src/cuda/kernels.def, the table of kernels. C++ reads the same file through its macros."""

import re

PATH = "src/cuda/kernels.def"
COLUMNS = ("name", "role", "file", "targets", "dtype", "dim_qk", "dim_v", "tile_q", "tile_k", "warps", "stages", "blocks", "variant")
DTYPES = {"NONE": 0, "FP32": 1, "FP16": 2, "BF16": 3}  # mica_dtype
VARIANTS = ("PLAIN", "SOFTCAP", "ALIBI", "PAIRS", "DROPOUT", "PAGED", "FULL")


class Row:
    """One kernel. `targets` is a list such as ["80", "86", "90", "ptx80"]; the other columns are as written."""

    def __init__(self, index, line, fields, why, target_sets):
        self.index = index
        self.line = line
        self.why = why
        for column, field in zip(COLUMNS, fields):
            setattr(self, column, field)
        for column in COLUMNS[5:12]:
            setattr(self, column, int(getattr(self, column)))
        for column, known in (("dtype", DTYPES), ("variant", VARIANTS)):
            if getattr(self, column) not in known:
                raise SystemExit(f"{PATH}:{line}: {column} of {self.name} is {getattr(self, column)}, want one of {', '.join(known)}")
        if self.targets not in target_sets:
            raise SystemExit(f"{PATH}:{line}: {self.name} is for {self.targets}, which no MICA_TARGETS names")
        self.targets = target_sets[self.targets]

    def macros(self):
        """How the kernel's source learns of its row."""
        return [
            f"-DMICA_KERNEL_NAME={self.name}",
            f'-DMICA_KERNEL_FILE="kernels/{self.file}.cuh"',
            f"-DMICA_DTYPE={DTYPES[self.dtype]}",
            f"-DMICA_DIM_QK={self.dim_qk}",
            f"-DMICA_DIM_V={self.dim_v}",
            f"-DMICA_TILE_Q={self.tile_q}",
            f"-DMICA_TILE_K={self.tile_k}",
            f"-DMICA_WARPS={self.warps}",
            f"-DMICA_STAGES={self.stages}",
            f"-DMICA_BLOCKS={self.blocks}",
            f"-DMICA_FULL={int(self.variant == 'FULL')}",
            f"-DMICA_SERVED=mica::serves::{self.variant}",
        ]


def parse(text):
    rows, target_sets, names = [], {}, set()
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if line.startswith("MICA_TARGETS("):
            match = re.fullmatch(r'MICA_TARGETS\(\s*(\w+)\s*,\s*"([^"]*)"\s*\)', line)
            if not match:
                raise SystemExit(f'{PATH}:{number}: want MICA_TARGETS(NAME, "80 86 ptx80") on one line')
            target_sets[match.group(1)] = match.group(2).split()
        elif line.startswith("MICA_KERNEL("):
            match = re.fullmatch(r'MICA_KERNEL\((.*),\s*"([^"]*)"\s*\)', line)
            fields = [field.strip() for field in match.group(1).split(",")] if match else []
            if len(fields) != len(COLUMNS):
                raise SystemExit(f'{PATH}:{number}: want MICA_KERNEL({", ".join(COLUMNS)}, "why") on one line')
            row = Row(len(rows), number, fields, match.group(2), target_sets)
            if row.name in names:
                raise SystemExit(f"{PATH}:{number}: {row.name} is there twice")
            names.add(row.name)
            rows.append(row)
    return rows


def read(root):
    return parse((root / PATH).read_text())
