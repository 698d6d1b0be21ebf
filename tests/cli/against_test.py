#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`mica check --against` with a package that computes the right thing and one that does not.

Usage: against_test.py MICA [unittest arguments]. Runs with the Python that has torch."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

MICA = ""
# In place of flash-attn: right, and one that forgets the mask.
RIGHT = '''
import torch
__version__ = "right"
def flash_attn_func(q, k, v, causal=False):
    mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1]) if causal else None
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2)
'''
WRONG = RIGHT.replace("if causal else None", "if False else None").replace('"right"', '"wrong"')


@unittest.skipUnless(importlib.util.find_spec("torch"), "torch is not in this Python")
class Against(unittest.TestCase):
    def check(self, text, package="flash_attn"):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "flash_attn.py").write_text(text)
            result = subprocess.run(
                [MICA, "check", "--against", package, "--python", sys.executable, "--device", "cpu", "--json"],
                capture_output=True, text=True, env={**os.environ, "PYTHONPATH": folder, "OMP_NUM_THREADS": "1"})
        self.assertIn(result.returncode, (0, 1), result.stderr)
        return result.returncode, json.loads(result.stdout)

    def test_right_and_silently_wrong(self):
        code, answer = self.check(RIGHT)
        self.assertEqual((code, answer["version"]), (0, "right"), answer)
        self.assertEqual([row["case"] for row in answer["rows"] if not row.get("equal")], [])
        code, answer = self.check(WRONG)
        self.assertEqual((code, answer["exit_code"]), (1, 1))
        differ = {row["case"].split(",")[0] for row in answer["rows"] if not row["equal"]}
        self.assertEqual(differ, {"causal", "longer keys", "grouped heads", "head dimension 96"})
        self.assertTrue(all(row["equal"] for row in answer["rows"] if row["case"].startswith(("plain", "one row"))))

    def test_what_does_not_import_is_explained(self):
        code, answer = self.check("import flash_attn_2_cuda")
        self.assertEqual(code, 1)
        self.assertIn("No module named 'flash_attn_2_cuda'", answer["failed"])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    MICA = os.path.abspath(sys.argv.pop(1))
    unittest.main()
