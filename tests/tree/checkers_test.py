#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The checkers must be able to complain: each is shown something wrong."""

import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parent.parent.parent / "tools" / "check"


def run(tool, *arguments):
    result = subprocess.run([sys.executable, TOOLS / tool, *arguments], capture_output=True, text=True)
    return result.returncode, result.stdout + result.stderr


class Python(unittest.TestCase):
    def check(self, tool, package, path, text):
        if importlib.util.find_spec(package) is None:
            self.skipTest(f"{package} is not installed")
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            subprocess.run(["git", "init", "-q", folder], check=True)
            for name in ("python/mica/__init__.py", "tools/a.py", "bench/b.py", "tests/c.py", path):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).touch()
            (root / path).write_text(text)
            subprocess.run(["git", "-C", folder, "add", "-A"], check=True)
            return run("python_checks.py", tool, root)

    def test_ruff_complains(self):
        status, output = self.check("ruff", "ruff", "tools/a.py", "import os\n")
        self.assertEqual(status, 1, output)
        self.assertIn("tools/a.py:1:", output)

    def test_types_complain(self):
        for path, text in (("tools/a.py", "number: int = 'word'\n"), ("python/mica/__init__.py", "def f(x):\n    return x\n")):
            status, output = self.check("types", "mypy", path, text)
            self.assertEqual(status, 1, output)
            self.assertIn(path + ":1:", output)

    def test_nothing_to_complain_of(self):
        for tool, package in (("ruff", "ruff"), ("types", "mypy")):
            status, output = self.check(tool, package, "tools/a.py", "number: int = 1\n")
            self.assertEqual(status, 0, output)


class Layers(unittest.TestCase):
    def check(self, path, line):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name in ("include/mica/mica.h", "include/mica/enums.h", "src/core/types.h", "src/core/mask.h",
                         "src/api/plan.h", "src/cpu/cpu.h", "src/cpu/isa.h", "src/cuda/device/ptx.cuh", path):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).touch()
            (root / path).write_text(line + "\n")
            return run("check_layers.py", root)

    def test_forbidden(self):
        for path, line in (
            ("src/core/score.h", "#include <cstdint>"),
            ("src/core/score.h", '#include "mica/mica.h"'),
            ("src/cpu/forward.h", '#include "api/plan.h"'),
            ("src/api/api.cc", '#include "cpu/isa.h"'),
            ("src/conformance/conformance.cc", '  #  include "core/mask.h"'),
            ("src/cuda/device/mma.cuh", '#include "core/mask.h"'),
            ("src/cuda/cuda.cc", '#include "device/ptx.cuh"'),
            ("cli/main.cc", "#include <core/types.h>"),
            ("src/base/status.cc", '#include "absent.h"'),
            ("src/base/status.cc", '#include "cpu/absent.h"'),
            ("src/support/text.cc", '#include "doctor/read/wheel.h"'),
            ("src/doctor/tables/gpus.cc", '#include "doctor/read/wheel.h"'),
            ("src/doctor/read/wheel.cc", '#include "doctor/judge/judge.h"'),
            ("src/doctor/judge/judge.cc", '#include "doctor/report/report.h"'),
            ("src/builder/plan/plan.cc", '#include "builder/run/build.h"'),
            ("src/jupyter/kernels.cc", '#include "builder/plan/plan.h"'),
            ("cli/doctor/pick.cc", '#include "builder/plan/plan.h"'),
        ):
            status, output = self.check(path, line)
            self.assertEqual(status, 1, f"{path} with {line}: {output}")
            self.assertIn(path + ":1:", output)

    def test_allowed(self):
        for path, line in (
            ("src/core/score.h", '#include "mica/enums.h"'),
            ("src/cpu/forward.h", "#include <cmath>"),
            ("src/api/api.cc", '#include "cpu/cpu.h"'),
            ("src/cuda/device/attend.cuh", '#include "core/mask.h"'),
            ("cli/main.cc", '#include "mica/mica.h"'),
            ("src/doctor/read/wheel.cc", '#include "doctor/verdict/verdict.h"'),
        ):
            status, output = self.check(path, line)
            self.assertEqual(status, 0, f"{path} with {line}: {output}")

    def test_crowded_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "src/base").mkdir(parents=True)
            for number in range(25):
                (pathlib.Path(folder) / f"src/base/{number}.h").touch()
            self.assertEqual(run("check_layers.py", folder)[0], 0)
            (pathlib.Path(folder) / "src/base/25.cc").touch()
            status, output = run("check_layers.py", folder)
            self.assertEqual(status, 1)
            self.assertIn("src/base: 26 source files", output)

    def test_table_of_the_docs(self):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "docs/design/architecture.md"
            page.parent.mkdir(parents=True)
            page.write_text("<!-- begin rooms (tools/check/check_layers.py --write) -->\nold\n<!-- end rooms -->\nrest\n")
            status, output = run("check_layers.py", folder)
            self.assertEqual(status, 1)
            self.assertIn("its table of rooms is not this one", output)
            self.assertEqual(run("check_layers.py", "--write", folder)[0], 0)
            self.assertEqual(run("check_layers.py", folder)[0], 0)
            self.assertIn("`src/doctor/judge`", page.read_text())
            self.assertTrue(page.read_text().endswith("<!-- end rooms -->\nrest\n"))


class Summary(unittest.TestCase):
    def test_a_skipped_inner_test_is_a_skipped_test(self):
        sys.path.insert(0, str(TOOLS))
        import summary
        cases = {
            "whole": "Ran 3 tests in 0.1s\n\nOK\n",
            "partly": "Ran 3 tests in 0.1s\n\nOK (skipped=2)\n",
            "none": "Ran 3 tests in 0.1s\n\nOK (skipped=3)\n",
            "google": "[==========] 5 tests from 1 test suite ran. (3 ms total)\n[  PASSED  ] 4 tests.\n[  SKIPPED ] 1 test.\n",
        }
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "step.xml"
            path.write_text("<testsuite>" + "".join(
                f'<testcase name="{name}" status="run" time="1"><system-out>{text}</system-out></testcase>'
                for name, text in cases.items()) + "</testsuite>")
            step = summary.read_step(path)
        self.assertEqual(step["passed"], 3)  # "none" tested nothing
        self.assertEqual([name for name, _ in step["skipped"]], ["partly"] * 2 + ["none"] * 3 + ["google"])
        self.assertIn("3 of the 3 tests inside none", step["skipped"][-2][1])


class Symbols(unittest.TestCase):
    def build(self, folder, name, source, *options):
        path = pathlib.Path(folder) / name
        subprocess.run(["c++", "-x", "c++", "-", "-fPIC", "-o", path, *options], input=source, text=True, check=True)
        return path

    def test_library(self):
        good = ["-shared", "-nodefaultlibs", "-lc", "-Wl,-soname,libmica.so.0", "-Wl,-z,relro,-z,now,-z,noexecstack"]
        fine = 'extern "C" int mica_x() { return 0; }'
        for source, options, complaint in (
            (fine, [], None),
            ('extern "C" int other() { return 0; }', [], "exports other"),
            (fine, ["-Wl,--no-as-needed", "-lstdc++"], "needs libstdc++"),
            (fine, ["-Wl,-rpath,/somewhere"], "PATH"),
            (fine, ["-Wl,-z,execstack"], "executable stack"),
            (fine, ["-Wl,-z,lazy"], "-z now"),
            (fine, ["-Wl,-z,norelro"], "-z relro"),
            (fine, ["-Wl,-soname,libother.so"], "soname"),
        ):
            with tempfile.TemporaryDirectory() as folder:
                status, output = run("check_symbols.py", self.build(folder, "libmica.so", source, *good, *options))
                self.assertEqual(status, 0 if complaint is None else 1, output)
                if complaint:
                    self.assertIn(complaint, output)

    def test_program(self):
        """What the wheel's check asks of a command."""
        sys.path.insert(0, str(TOOLS))
        import check_symbols
        main = "int main() { return 0; }"
        for options, complaint in (
            (["-Wl,-rpath,$ORIGIN/../lib"], None),
            (["-Wl,-rpath,/somewhere"], "looks for libraries in /somewhere"),
            (["-Wl,--no-as-needed", "-lz"], "needs libz"),
            (["-Wl,-z,execstack"], "executable stack"),
        ):
            with tempfile.TemporaryDirectory() as folder:
                # C++ library inside, as in what is shipped.
                path = self.build(folder, "mica", main, "-static-libstdc++", "-static-libgcc", *options)
                found = list(check_symbols.check_program(path, own=[]))
                self.assertTrue(any(complaint in line for line in found) if complaint else not found, found)
                self.assertEqual(list(check_symbols.check_glibc(path, (99, 0))), [])
                self.assertIn("want at most GLIBC_2.0", " ".join(check_symbols.check_glibc(path, (2, 0))))

    def test_weak_symbols(self):
        library = 'extern "C" int mica_x() { return 0; }'
        good = ["-shared", "-nodefaultlibs", "-lc", "-Wl,-soname,libmica.so.0", "-Wl,-z,relro,-z,now,-z,noexecstack"]
        for source, complaint in (
            ("namespace mica_avx2 { inline int f() { return 1; } int (*g())() { return f; } }", None),
            ("namespace mica { inline int f() { return 1; } int (*g())() { return f; } }", "mica::f()"),
        ):
            with tempfile.TemporaryDirectory() as folder:
                built = self.build(folder, "libmica.so", library, *good)
                status, output = run("check_symbols.py", built, self.build(folder, "isa_avx2.cc.o", source, "-c"))
                self.assertEqual(status, 0 if complaint is None else 1, output)
                if complaint:
                    self.assertIn(complaint, output)


if __name__ == "__main__":
    unittest.main()
