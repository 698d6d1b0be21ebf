# SPDX-License-Identifier: Apache-2.0
"""The version is Mica's, which stands in the CMakeLists.txt of the source tree."""
import pathlib
import re

from setuptools import setup

CMAKE = pathlib.Path(__file__).resolve().parents[2] / "CMakeLists.txt"
found = re.search(r"project\(mica VERSION ([0-9.]+)", CMAKE.read_text()) if CMAKE.is_file() else None
if not found:
    raise SystemExit(f"{CMAKE} has no project(mica VERSION ...): build this from Mica's source tree")
MICA = found.group(1)

setup(
    version=f"0.1.8+mica{MICA}",
    install_requires=[f"mica-attention=={MICA}", "torch"],
)
