#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command as a script sees it: exit codes, one line on stderr, JSON that parses, files that are written.

Usage: command_test.py MICA [unittest arguments]."""

import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import venv
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MICA = None


def run(*arguments, **environment):
    return subprocess.run([MICA, *arguments], capture_output=True, text=True, env={**os.environ, **environment})


def run_json(*arguments):
    result = run(*arguments, "--json")
    return result.returncode, json.loads(result.stdout)


class Usage(unittest.TestCase):
    def complains(self, *arguments, about):
        result = run(*arguments)
        self.assertEqual(result.returncode, 2, arguments)
        self.assertEqual(result.stdout, "")
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertIn(about, result.stderr)

    def test_bad_usage_gets_one_line(self):
        self.complains(about="want a verb")
        self.complains("planet", about="planet")
        self.complains("plan", "--sequence", "3", about="--sequence")
        self.complains("plan", "--dim", "wide", about="--dim")
        self.complains("plan", "--dtype", "fp8", about="fp8")
        self.complains("plan", "--causal=sideways", about="sideways")
        self.complains("plan", "--window", "3", about="--window")
        self.complains("plan", "--dim", "577", about="q.shape[3] is 577, want 1 to 576")
        self.complains("plan", "--heads-q", "6", "--heads-k", "4", about="k.shape[2] is 4")
        self.complains("plan", "--seqlen-q", str(2**62), about="2^48")
        self.complains("plan", "--device", "tpu", about="tpu")
        self.complains("plan", "--seqlen-k", "-5", about="seqlen_k is -5, want 0 or more")
        self.complains("plan", "--heads-k", "-3", about="heads_k is -3, want 1 or more")
        self.complains("plan", "--dim-v", "-7", about="dim_v is -7, want 1 or more")
        self.complains("plan", "--varlen", "5,-3", about="varlen is -3, want lengths of 0")
        self.complains("plan", "--paged", "-1", about="paged is -1, want a page size")
        self.complains("plan", "--append", "-3", about="append is -3, want 0 or more rows")
        self.complains("plan", "--append", "3", "--rotary", "5", about="rotary is 5, want an even dimension")
        self.complains("plan", "--splits", "-5", about="num_splits is -5, want 0 (choose) to 256")
        self.complains("plan", "--splits", str(2**40), about=f"splits is {2**40}, want 0 (choose) to 256")
        self.complains("plan", "--mask", "--seqlen-q", str(2**40), "--dim", "1", about="keys are more than 2^48")
        self.complains("plan", "--batch", str(2**62), "--seqlen-q", str(2**62), "--dim", "0", about="2^48 elements")
        # Counting the visible pairs of so many rows must not take for ever.
        self.complains("plan", "--seqlen-q", str(2**48), "--heads-q", "1", "--dim", "1", "--causal", about="q.shape[1]")
        self.complains("check", "--filter", "(", about="--filter: \"(\" is no regular expression")
        self.complains("check", "--filter", "plain", "--isa", "sse9", about='MICA_CPU_ISA is "sse9", want one of')
        self.complains("check", "--jobs", "-1", about="--jobs")
        self.complains("check", "--device", "cuda", "--filter", "plain", about="--device requires --against")
        self.complains("check", "--python", sys.executable, about="--python requires --against")
        self.complains("check", "--filter", "no such case", about="no case matches")
        self.complains("bench", "--suite", "/nowhere.json", about="/nowhere.json")
        self.complains("bench", "--filter", "no such case", about="no case of suite cpu matches")
        self.complains("bench", "--threads", "-3", about="num_threads is -3")
        self.complains("bench", "--output", "/nowhere/out.json", about="cannot write /nowhere/out.json")
        self.complains("demo", "--lengths", "0", about="a length is 0, want 1 to 4194304")
        self.complains("demo", "--lengths", "512,256", about="length 256 follows 512, want growing lengths")
        self.complains("demo", "--lengths", "64", "--heads", "0", about="heads is 0, want 1 to 65535")
        self.complains("demo", "--lengths", "64", "--dim", "513", about="dim is 513, want 1 to 512")
        self.complains("demo", "--lengths", "4194304", "--heads", "65535", "--dim", "512", about="are free")
        self.complains("demo", "--seconds", "-5", about="--seconds")
        self.complains("demo", "--lengths", "16", "--plot", "/nowhere/plot.svg", about="cannot write /nowhere/plot.svg")

    def test_an_answer_that_cannot_be_written_is_none(self):
        with open("/dev/full", "w") as full:
            for arguments in (["info"], ["plan", "--json"], ["check", "--list"], ["bench", "--list", "--json"]):
                result = subprocess.run([MICA, *arguments], stdout=full, stderr=subprocess.PIPE, text=True)
                self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
                self.assertIn("could not be written", result.stderr)

    def test_help(self):
        for verb in ([], ["info"], ["inspect"], ["plan"], ["check"], ["bench"], ["demo"], ["build"], ["publish"], ["verify"], ["matrix"]):
            result = run(*verb, "--help")
            self.assertEqual(result.returncode, 0)
            self.assertEqual(result.stderr, "")
            self.assertIn("Usage: mica", result.stdout)
            if verb:
                self.assertIn("Examples:", result.stdout)


class Info(unittest.TestCase):
    def test_json(self):
        code, info = run_json("info")
        self.assertEqual(code, 0)
        self.assertTrue(os.path.exists(info["library"]))
        self.assertGreaterEqual(info["threads"], 1)
        self.assertEqual([b["backend"] for b in info["backends"]], ["cpu", "cuda"])
        self.assertEqual(len(info["backends"][0]["devices"]), 1)
        chosen = sorted(t for s in info["instruction_sets"] for t in s["chosen_for"])
        self.assertEqual(chosen, ["bf16", "fp16", "fp32"])

    def test_which_flash_attn_is_active(self):
        with tempfile.TemporaryDirectory() as folder:
            venv.create(folder, symlinks=True, with_pip=False)
            environment = {"VIRTUAL_ENV": folder, "PYTHONPATH": ""}
            self.assertIn("flash_attn none", run("info", **environment).stdout)
            (site,) = pathlib.Path(folder).glob("lib/python3*/site-packages")
            transformers = site / "transformers-5.22.2.dist-info" / "METADATA"
            transformers.parent.mkdir()
            transformers.write_text("Metadata-Version: 2.4\nName: transformers\nVersion: 5.22.2\n")
            for version, whose in (("2.8.3", "upstream's"), ("2.8.3+mica0.1.0", "Mica's drop-in")):
                metadata = site / f"flash_attn-{version}.dist-info" / "METADATA"
                metadata.parent.mkdir()
                metadata.write_text(f"Metadata-Version: 2.4\nName: flash-attn\nVersion: {version}\n")
                said = run("info", **environment).stdout
                self.assertIn(f"flash_attn {version}, {whose}", said)
                self.assertEqual("MICA_TRANSFORMERS=off" in said, "mica" in version)
                found = json.loads(run("info", "--json", **environment).stdout)
                self.assertEqual((found["flash_attn"]["version"], found["flash_attn"]["is_mica"]), (version, "mica" in version))
                self.assertEqual(found["transformers"], "5.22.2")
                self.assertIsNone(found["flash_attn_3"])
                shutil.rmtree(metadata.parent)
            metadata = site / "flash_attn_3-3.0.0+mica0.1.0.dist-info" / "METADATA"
            metadata.parent.mkdir()
            metadata.write_text("Metadata-Version: 2.4\nName: flash_attn_3\nVersion: 3.0.0+mica0.1.0\n")
            said = run("info", **environment).stdout
            self.assertIn("flash_attn none", said)
            self.assertIn("flash_attn_3 3.0.0+mica0.1.0, Mica's drop-in", said)
            self.assertIn("function for flash_attention_3 with Transformers 5.22.2", said)

    def test_matrix_says_yes_or_why_not(self):
        code, rows = run_json("info", "--matrix")
        self.assertEqual(code, 0)
        by_option = {row["option"]: row for row in rows}
        self.assertEqual(by_option["head dimension"]["backward"], "")
        self.assertIn("append", by_option["append"]["backward"])


class Plan(unittest.TestCase):
    def test_json(self):
        code, plan = run_json("plan", "--seqlen-q", "1", "--seqlen-k", "8192", "--heads-q", "32", "--heads-k", "8")
        self.assertEqual(code, 0)
        self.assertEqual(plan["problem"]["heads_k"], 8)
        kernels = {k["kernel"]: k["why_not"] for k in plan["kernels"]}
        self.assertEqual(kernels[plan["plan"]["kernel"]], "")
        self.assertTrue(any(kernels.values()), "some kernel is for the other pass")

    def test_refusal_is_1_and_says_why(self):
        result = run("plan", "--pass", "backward", "--paged", "16")
        self.assertEqual(result.returncode, 1)
        self.assertIn("no gradient", result.stdout)
        code, plan = run_json("plan", "--pass", "backward", "--paged", "16")
        self.assertEqual(code, 1)
        self.assertEqual(plan["error"]["status"], "unsupported")

    def test_work_counts_visible_pairs(self):
        _, full = run_json("plan", "--seqlen-q", "100")
        _, causal = run_json("plan", "--seqlen-q", "100", "--causal")
        self.assertAlmostEqual(causal["gflop"] / full["gflop"], 5050 / 10000)

    def test_visible_pairs_of_every_band(self):
        for rows, keys, causal, window, chunk in itertools.product(
            (1, 3, 7),
            (1, 4, 9),
            ("none", "bottom-right", "top-left"),
            ([], [0, 0], [2, 1], [-1, 3], [4, -1], [2**62, 2**62]),
            (0, 3),
        ):
            if causal != "none" and window and window[1] > 0:
                continue  # causal hides what lies to the right
            left, right = [2**63 if side < 0 else side for side in window or [-1, -1]]
            right = 0 if causal != "none" else right
            shift = 0 if causal == "top-left" else keys - rows
            visible = sum(-left <= j - i - shift <= right and (not chunk or (i + shift) // chunk == j // chunk)
                          for i in range(rows) for j in range(keys))
            flags = ["--seqlen-q", str(rows), "--seqlen-k", str(keys), "--heads-q", "1", "--dim", "1"]
            flags += [f"--causal={causal}", *(["--window", ",".join(map(str, window))] if window else [])]
            flags += ["--chunk", str(chunk)]
            code, plan = run_json("plan", *flags)
            self.assertEqual((code, round(plan["gflop"] * 1e9)), (0, 4 * visible), flags)


class Check(unittest.TestCase):
    def test_one_case(self):
        code, out = run_json("check", "--filter", "^plain_fp32$")
        self.assertEqual((code, out["passed"], out["failed"]), (0, 1, 0))
        tensors = {c["tensor"] for c in out["cases"][0]["comparisons"]}
        self.assertLessEqual({"o", "lse", "dq", "dk", "dv"}, tensors)

    def test_list(self):
        code, cases = run_json("check", "--list", "--filter", "paged")
        self.assertEqual(code, 0)
        self.assertGreater(len(cases), 10)


class Bench(unittest.TestCase):
    def suite(self, *cases):
        file = tempfile.NamedTemporaryFile("w", suffix=".json")
        json.dump({"name": "small", "cases": cases}, file)
        file.flush()
        self.addCleanup(file.close)
        return file.name

    def test_every_kind_of_option_is_checked_and_timed(self):
        small = {"seqlen_q": 40, "heads_q": 4, "dim": 16}
        both = {**small, "pass": ["forward", "backward"]}
        path = self.suite(
            {**both, "dtype": ["fp32", "fp16", "bf16"], "heads_k": 2},
            {**both, "causal": ["bottom-right", "top-left"], "seqlen_k": 60},
            {**both, "window": [[5, 3], [-1, 2]], "softcap": 20, "alibi": True},
            {**both, "bias": True, "sinks": True, "mask": True, "batch": 2},
            {**both, "dropout": 0.2, "dim_v": 24}, {**both, "varlen": [10, 1, 40]},
            {**small, "paged": [7, 16], "batch": 2, "splits": 2},
            {**small, "append": 3, "rotary": 8, "causal": ["none", "bottom-right"]})
        code, out = run_json("bench", "--suite", path, "--seconds", "0")
        self.assertEqual([c["error"] for c in out["cases"] if "error" in c], [])
        self.assertEqual((code, len(out["cases"])), (0, 24))
        for case in out["cases"]:
            self.assertGreater(case["gflops"], 0)
            self.assertLessEqual(case["p10_s"], case["median_s"])

    def test_suites_expand_as_compare_py_expands_them(self):
        sys.path.insert(0, str(ROOT / "bench"))
        import suites
        for path in sorted((ROOT / "bench" / "suites").glob("*.json")):
            listed = [line.replace(" cuda", "") for line in run("bench", "--suite", str(path), "--list").stdout.split("\n")]
            self.assertEqual(listed[:-1], [case.name for case in suites.load(path)[1]], path)

    def test_list(self):
        code, cases = run_json("bench", "--list", "--filter", "backward bf16", "--device", "cuda:1")
        self.assertEqual((code, len(cases)), (0, 3))
        self.assertEqual({case["problem"]["device"] for case in cases}, {"cuda:1"})
        self.assertIn("backward bf16 b1 s1024 h8 d64", cases[0]["name"])

    def test_a_bad_suite_names_the_key(self):
        result = run("bench", "--suite", self.suite({"dimension": 64}))
        self.assertEqual(result.returncode, 2)
        self.assertIn('"dimension"', result.stderr)
        self.assertIn('"dim" is "64"', run("bench", "--suite", self.suite({"dim": "64"})).stderr)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            for text, about in (("{", "is not JSON"), ("[]", 'a list "cases"'), ('{"cases": [3]}', "a case is 3"),
                                ('{"name": 5, "cases": []}', '"name" is 5, want a text')):
                file.seek(0)
                file.truncate()
                file.write(text)
                file.flush()
                result = run("bench", "--suite", file.name)
                self.assertEqual((result.returncode, result.stdout), (2, ""))
                self.assertIn(about, result.stderr)


class Demo(unittest.TestCase):
    def test_table_and_plot(self):
        with tempfile.TemporaryDirectory() as folder:
            plot = os.path.join(folder, "plot.svg")
            # Two threads wherever this runs, since each has memory of its own; and time enough on any machine. (The
            # textbook's time is foretold from the length before, by the square: of a short one, a busy machine's.)
            some = ["--lengths", "512,1024", "--heads", "2", "--threads", "2", "--seconds", "86400"]
            code, out = run_json("demo", *some, "--plot", plot)
            self.assertEqual((code, out["exact"], len(out["rows"])), (0, True, 2))
            long = out["rows"][1]
            self.assertLess(long["tiled"]["largest_error"], 1e-5)
            self.assertLess(long["naive"]["largest_error"], 1e-5)
            # Two heads of 1024 x 1024 scores, in a process of its own.
            self.assertGreater(long["naive"]["extra_bytes"], 7e6)
            self.assertLess(long["tiled"]["extra_bytes"], 4e6)
            root = xml.etree.ElementTree.parse(plot).getroot()
            self.assertTrue(root.tag.endswith("svg"))


if __name__ == "__main__":
    MICA = sys.argv.pop(1)
    unittest.main()
