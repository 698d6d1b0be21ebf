# SPDX-License-Identifier: Apache-2.0
"""The floors that docs/design/numerics.md promises are those of src/conformance/tolerance.h."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TYPES = {"default": "fp32", "case MICA_FP16": "fp16", "case MICA_BF16": "bf16", "case MICA_FP8_E4M3": "e4m3"}


def number(text):
    power = re.fullmatch(r"(?:2\^|0x1p)(-\d+)", text)
    return 2.0 ** int(power[1]) if power else float(text)


def floors_of_the_code():
    text = (ROOT / "src/conformance/tolerance.h").read_text()
    rows = re.findall(r"(case \w+|default): return \{([^}]*)\};", text)
    return {TYPES[label]: [number(part.strip()) for part in parts.split(",")] for label, parts in rows}


def floors_of_the_page():
    text = (ROOT / "docs/design/numerics.md").read_text()
    rows = re.findall(r"^\| (\w+) \| (2\^-\d+) \| (2\^-\d+) \| (\S+) \|$", text, flags=re.M)
    return {name: [number(part) for part in parts] for name, *parts in rows}


class Floors(unittest.TestCase):
    def test_the_page_says_what_the_code_does(self):
        self.assertEqual(sorted(floors_of_the_code()), sorted(TYPES.values()))
        self.assertEqual(floors_of_the_page(), floors_of_the_code())


if __name__ == "__main__":
    unittest.main()
