# SPDX-License-Identifier: Apache-2.0
"""Really loading what the doctor has judged: single files, and packages by `import`."""

import json
import pathlib
import re
import subprocess
from typing import List, Sequence, Tuple
import zipfile

SKIPPED_FOLDERS = {"tests", "test", "docs", "examples", "benchmarks", "benchmark"}

# Loads files as Python would, each in a child of its own: torch first if it is there, then the module or the library.
LOADER = r"""
import ctypes, importlib.machinery, importlib.util, json, os, signal, sys
try:
    if sys.argv[1] == "torch":
        import torch
    problem = ""
except ImportError as e:
    problem = type(e).__name__ + ": " + str(e).split("\n")[0]
print("READY", flush=True)
for line in sys.stdin:
    how, first, path = json.loads(line)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(2, 1)  # a module may print what it likes
        signal.setitimer(signal.ITIMER_PROF, 120)  # of its own time: others may have the machine
        signal.alarm(1800)
        answer = problem
        try:
            name = os.path.basename(path)
            kept = [ctypes.CDLL(library) for library in first if not problem]
            if not problem and how == "by-name":
                sys.path.insert(0, os.path.dirname(path))
                importlib.import_module(name.split(".")[0])
            elif not problem and how == "by-path" and (".cpython-" in name or ".abi3." in name):
                module = name.split(".")[0]
                if module == "__init__":
                    module = os.path.basename(os.path.dirname(path))
                loader = importlib.machinery.ExtensionFileLoader(module, path)
                importlib.util.module_from_spec(importlib.util.spec_from_file_location(module, path, loader=loader))
            elif not problem:
                ctypes.CDLL(path)
            answer = answer or "LOADS"
        except (ImportError, OSError) as e:
            own = os.path.basename(path).split(".")[0]
            # What the loader says names the file (or, of a module that was not found, its name); what the module's own
            # code raises does not: it has been loaded then, and wants its package around it.
            by_file = e.path and not str(e).startswith("cannot import name") if isinstance(e, ImportError) else True
            loader_said = by_file or (isinstance(e, ModuleNotFoundError) and e.name == own)
            answer = type(e).__name__ + ": " + str(e).split("\n")[0] if loader_said else "LOADS"
        except Exception:
            answer = "LOADS"  # the loader did its part; the module wants its package around it
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    status = os.waitpid(child, 0)[1]  # before the answer is read: what a module has started may hold the pipe open
    os.set_blocking(read, False)
    try:
        answer = os.read(read, 65536)
    except BlockingIOError:
        answer = b""
    os.close(read)
    print(answer.decode() or "ended with status " + str(status), flush=True)
"""


# An import that Python code refuses by itself, with no other failure behind it (a version that it does not like, a package
# that wants another imported first), says so.
IN_PYTHON = "raised by Python code alone"
TRIED = """
import resource, sys, traceback
resource.setrlimit(resource.RLIMIT_CPU, (600, 600))  # seconds of its own: others may have the machine
try:
    import {module}
except ImportError as e:
    line = traceback.extract_tb(e.__traceback__)[-1].line or ""
    if line.startswith("raise") and not e.__cause__ and not e.__context__:
        print("raised by Python code alone", file=sys.stderr)
    raise
"""


class Loader:
    """A Python that has imported torch (or not) and loads what it is told to."""

    def __init__(self, python: pathlib.Path, with_torch: bool, folder: pathlib.Path) -> None:
        self.process = subprocess.Popen([str(python), "-c", LOADER, "torch" if with_torch else "bare"], cwd=folder,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout and self.process.stdout.readline() == "READY\n"

    def load(self, path: pathlib.Path, code: str, first: Sequence[pathlib.Path] = (), is_library: bool = False) -> str:
        """A module for another Python is one that the import system does not find by its name."""
        assert self.process.stdin and self.process.stdout
        request = ["by-name" if code == "SO_SOABI" else "as-library" if is_library else "by-path", [str(library) for library in first], str(path)]
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def top_modules(wheel: pathlib.Path) -> List[str]:
    """What a user of the wheel imports: packages and modules at its top that are not private."""
    with zipfile.ZipFile(wheel) as archive:
        placed = {re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", name): name for name in archive.namelist()}
        # A library that lies beside the packages is no module (libnetworkit.so).
        modules = [n for n in placed if "/" not in n and n.endswith(".so")
                   and (".cpython-" in n or ".abi3." in n or f"PyInit_{n.split('.')[0]}".encode() in archive.read(placed[n]))]
    tops = {n.split("/")[0] for n in placed if re.fullmatch(r"[^/]+/__init__\.(py|.*\.so)", n)}
    tops |= {n.split(".")[0] for n in placed if "/" not in n and n.endswith(".py")} | {n.split(".")[0] for n in modules}
    return sorted(t for t in tops if t.isidentifier() and not t.startswith("_") and t not in SKIPPED_FOLDERS)


def try_import(python: pathlib.Path, modules: Sequence[str], with_torch: bool, folder: pathlib.Path) -> Tuple[str, str]:
    """Each module in a process of its own. ("works", "") or ("fails" | "in Python", the last line of the first failure);
    "in Python": a name or a package that Python code did not find, which no compiled file has a part in."""
    for module in modules:
        program = ("import torch\n" if with_torch else "") + TRIED.format(module=module)
        try:
            tried = subprocess.run([str(python), "-c", program], capture_output=True, text=True, timeout=3600, cwd=folder,
                                   env={"PATH": "/usr/bin:/bin", "HOME": str(folder)})
        except subprocess.TimeoutExpired:
            return "fails", "ended after an hour"
        if tried.returncode == 0:
            continue
        lines = [line for line in tried.stderr.strip().splitlines() if re.match(r"[\w.]+(Error|Exception)\b", line)]
        words = (lines or [f"exit code {tried.returncode}"])[-1]
        absent = re.search(r"No module named '([\w.]+)", words)
        in_python = IN_PYTHON in tried.stderr or (absent and absent.group(1).split(".")[0] not in modules) or "cannot import name" in words or \
            words.startswith(("AttributeError", "NameError", "TypeError"))
        return "in Python" if in_python else "fails", words
    return "works", ""
