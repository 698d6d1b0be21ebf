# SPDX-License-Identifier: Apache-2.0
"""`make demo` stays quick: what its preset would compile is the library, for one instruction set, and the demo's few files.

Usage: demo_graph_test.py SOURCE. Exit status 77: skipped, the last line says why."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

# Two cores compile them in under a minute: 60 s of processor time, half of it for the kernels.
MOST_FILES = 40
ROOMS = re.compile(r"^(src/(api|base|cpu|cuda|support)/|src/CMakeFiles/mica_objects|cli/CMakeFiles/mica_demo)")


def main():
    source = pathlib.Path(sys.argv[1])
    if not shutil.which("ninja"):
        print("ninja is not installed")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["cmake", "--preset", "demo", "-B", folder, "--log-level=WARNING"], cwd=source, check=True,
                       stdout=subprocess.DEVNULL)
        plan = subprocess.run(["ninja", "-C", folder, "-n", "-v", "mica_demo"], check=True, text=True, capture_output=True)
        objects = re.findall(r" -o (\S+\.o) -c ", plan.stdout)
    assert objects, f"nothing would be compiled:\n{plan.stdout[-2000:]}"
    strangers = [name for name in objects if not ROOMS.match(name)]
    assert not strangers, f"the demo compiles what it does not need: {strangers}"
    assert len(objects) <= MOST_FILES, f"the demo compiles {len(objects)} files, want at most {MOST_FILES}"
    kernels = [name for name in objects if re.search(r"/isa_(?!list)\w+\.cc", name)]
    assert len(kernels) == 1, f"the demo compiles kernels for {kernels}, want one instruction set"
    print(f"{len(objects)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
