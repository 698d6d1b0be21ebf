# SPDX-License-Identifier: Apache-2.0
"""On whose threads the CPU backend computes in a process with PyTorch. Each test has a process of its own."""

import glob
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

BEGIN = """
import os, sys, threading
sys.path[:0] = {path!r}
import mica
"""


def run(program, **environment):
    text = BEGIN.format(path=sys.path) + program
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=100,
                          env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pytorchs_threads_once_it_is_loaded():
    out = run("""
print(mica.devices("cpu")[0])
import torch
torch.set_num_threads(3)
q = torch.randn(2, 300, 4, 64)
o = mica.attention(q, q, q)
print(mica.get_num_threads(), mica.devices("cpu")[0])
torch.set_num_threads(2)
assert torch.equal(mica.attention(q, q, q), o)
print(mica.get_num_threads())
""").splitlines()
    assert out[0].endswith("(its own: no OpenMP runtime is loaded)")
    assert out[1].startswith("3 ") and "3 threads (OpenMP, lib" in out[1]
    assert out[2] == "2"


def test_the_environment_keeps_to_the_own_pool():
    out = run("""
import torch
q = torch.randn(1, 300, 4, 64)
mica.attention(q, q, q)
print(mica.devices("cpu")[0])
""", MICA_CPU_THREADS_FROM="own")
    assert out.strip().endswith("(its own: MICA_CPU_THREADS_FROM is own)")


def test_a_wrong_word_is_refused():
    out = run("""
import torch
q = torch.randn(1, 3, 4, 64)
try:
    mica.attention(q, q, q)
except ValueError as error:
    print(error)
""", MICA_CPU_THREADS_FROM="tbb")
    assert out.strip() == 'MICA_CPU_THREADS_FROM is "tbb", want openmp or own'


def test_a_fork_after_pytorch_computed():
    out = run("""
import torch
torch.set_num_threads(2)
a = torch.randn(400, 400)
q, k = torch.randn(2, 300, 4, 64), torch.randn(2, 500, 4, 64)
o = mica.attention(q, q, q)
(a @ a).sum()
child = os.fork()
if child == 0:  # where PyTorch's own operators may wait for ever
    same = mica.attention(q, q, q).numpy().tobytes() == o.numpy().tobytes()  # by the plan of before
    mica.attention(q, k, k)                                                  # by a new one
    os._exit(0 if same and "this process is a fork" in mica.devices("cpu")[0] else 1)
print(os.waitpid(child, 0)[1], torch.equal(mica.attention(q, q, q), o))
""")
    assert out.split() == ["0", "True"]


def test_the_library_loaded_after_the_fork():
    out = run("""
import torch
torch.set_num_threads(2)
a, q = torch.randn(400, 400), torch.randn(2, 300, 4, 64)
(a @ a).sum()
child = os.fork()
if child == 0:
    mica.attention(q, q, q)
    os._exit(0 if "this process is a fork" in mica.devices("cpu")[0] else 1)
print(os.waitpid(child, 0)[1])
""")
    assert out.split() == ["0"]


def test_several_threads_at_once():
    out = run("""
import torch
torch.set_num_threads(2)
inputs = [torch.randn(2, 100 + 10 * n, 4, 64) for n in range(4)]
expected = [mica.attention(q, q, q) for q in inputs]
wrong = []
def work(n):
    for _ in range(10):
        if not torch.equal(mica.attention(inputs[n], inputs[n], inputs[n]), expected[n]):
            wrong.append(n)
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
print(wrong)
""")
    assert out.strip() == "[]"


def test_of_two_runtimes_pytorchs():
    other = next((path for pattern in ("/usr/lib/llvm-*/lib/libomp.so.5", "/usr/lib/*/libomp.so.5", "/usr/lib64/libomp.so")
                  for path in sorted(glob.glob(pattern))), None)
    if other is None:
        pytest.skip("LLVM's libomp is not installed")
    out = run(f"""
import ctypes
ctypes.CDLL({other!r})  # loaded first
mica.attention(*[__import__("numpy").ones((1, 8, 2, 16), "float32")] * 3)
print(mica.devices("cpu")[0])
import torch
q = torch.randn(1, 300, 4, 64)
mica.attention(q, q, q)
print(mica.devices("cpu")[0])
""").splitlines()
    assert f"(OpenMP, {os.path.basename(other)})" in out[0]
    assert "(OpenMP, libgomp" in out[1] or "(OpenMP, libiomp5" in out[1], out[1]
