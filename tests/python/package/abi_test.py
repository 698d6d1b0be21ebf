# SPDX-License-Identifier: Apache-2.0
"""The ctypes structs against include/mica/mica.h, as a C compiler lays it out."""

import ctypes
import os
import re
import shutil
import subprocess

import pytest
from conftest import ROOT

from mica import _abi, _library

INCLUDE = ROOT / "include"
STRUCTS = {"mica_device": _abi.Device, "mica_tensor": _abi.Tensor, "mica_mask": _abi.Mask, "mica_score": _abi.Score,
           "mica_sequences": _abi.Sequences, "mica_append": _abi.Append, "mica_dropout": _abi.Dropout,
           "mica_control": _abi.Control, "mica_gradients": _abi.Gradients, "mica_place": _abi.Place,
           "mica_quantisation": _abi.Quantisation,
           "mica_attention": _abi.Attention, "mica_bindings": _abi.Bindings}


def header_enums():
    text = re.sub(r"/\*.*?\*/", "", (INCLUDE / "mica/enums.h").read_text(), flags=re.S)
    return {name: int(value) for name, value in re.findall(r"\bMICA_(\w+) = (\d+)", text)}


def test_every_struct_of_the_header_is_mirrored():
    text = (INCLUDE / "mica/mica.h").read_text()
    assert set(re.findall(r"typedef struct (\w+) \{", text)) == set(STRUCTS)


def test_enums():
    assert header_enums() == {name: getattr(_abi, name) for name in header_enums()}
    assert len(header_enums()) > 20


def test_layout(tmp_path):
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if not compiler:
        pytest.skip("no C compiler here")
    lines = ["#include <mica/mica.h>", "#include <stdio.h>", "int main(void) {"]
    expected = []
    for c_name, mirror in STRUCTS.items():
        lines.append(f'printf("{c_name} %zu\\n", sizeof({c_name}));')
        expected.append(f"{c_name} {ctypes.sizeof(mirror)}")
        for field, *_ in mirror._fields_:
            lines.append(f'printf("{c_name}.{field} %zu %zu\\n", offsetof({c_name}, {field}), '
                         f'sizeof((({c_name}*)0)->{field}));')
            expected.append(f"{c_name}.{field} {getattr(mirror, field).offset} {getattr(mirror, field).size}")
    lines.append('printf("version %u unlimited %d\\n", MICA_ABI_VERSION, MICA_UNLIMITED);')
    expected.append(f"version {_abi.ABI_VERSION} unlimited {_abi.UNLIMITED}")
    source = tmp_path / "layout.c"
    source.write_text("\n".join(lines + ["return 0;", "}"]))
    subprocess.run([compiler, f"-I{INCLUDE}", str(source), "-o", str(tmp_path / "layout")], check=True)
    printed = subprocess.run([str(tmp_path / "layout")], check=True, capture_output=True, text=True).stdout
    assert printed.split("\n")[:-1] == expected


def test_library_accepts_the_struct_sizes():
    library = _library.load()
    assert library.c.mica_abi_version() == _abi.ABI_VERSION
    attention = _abi.Attention()
    attention.struct_bytes += 8
    with pytest.raises(ValueError, match="struct_bytes is"):
        library.plan(attention, _abi.FORWARD)
    attention.struct_bytes -= 8
    with pytest.raises(ValueError, match="q.dtype"):
        library.plan(attention, _abi.FORWARD)


def test_environment_variable_names_the_library(monkeypatch):
    path = _library.load().path
    monkeypatch.setenv("MICA_LIBRARY", path)
    assert _library.find() == os.path.abspath(path)
    monkeypatch.setenv("MICA_LIBRARY", os.path.dirname(path))
    assert _library.find() == os.path.abspath(path)
    monkeypatch.setenv("MICA_LIBRARY", "/nowhere/libmica.so")
    with pytest.raises(ImportError, match="MICA_LIBRARY is /nowhere/libmica.so"):
        _library.find()
