# SPDX-License-Identifier: Apache-2.0
"""At length 32768 the whole process stays within 3 times the bytes of its tensors, forward and backward.

Each measurement is a process of its own, without PyTorch: it holds Python, the tensors and the library."""

import ctypes
import json
import random
import struct
import subprocess
import sys
import time

LENGTH, HEADS, DIM = 32768, 8, 64
LIMIT = 3.0


def status_bytes(field):
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def bf16_table(count):
    """Normal values, cut to bf16."""
    generator = random.Random(1)
    floats = struct.pack(f"<{count}f", *(generator.gauss(0, 1) for _ in range(count)))
    return b"".join(floats[4 * n + 2:4 * n + 4] for n in range(count))


def child(library_path, threads, which):
    import mica_ctypes as mica
    library = mica.Library(library_path)
    library.set_num_threads(threads)
    shape, elements = (1, LENGTH, HEADS, DIM), LENGTH * HEADS * DIM
    table = bf16_table(65521)
    held, tensor_bytes = [], 0
    baseline = status_bytes("VmRSS")

    def memory(size, filled):
        nonlocal tensor_bytes
        buffer = ctypes.create_string_buffer(size + 64)
        address = -(-ctypes.addressof(buffer) // 64) * 64
        held.append(buffer)
        if filled:
            for done in range(0, size, len(table)):
                ctypes.memmove(address + done, table, min(len(table), size - done))
        return address

    def tensor(size, filled):
        nonlocal tensor_bytes
        tensor_bytes += size
        return memory(size, filled)

    a, x = mica.Attention(), mica.Bindings()
    a.q = a.k = a.v = a.o = mica.dense(mica.BF16, shape)
    a.lse = mica.dense(mica.FP32, (1, HEADS, LENGTH))
    a.mask.causal = mica.CAUSAL["bottom-right"]
    x.q, x.k, x.v = (tensor(2 * elements, True) for _ in range(3))
    x.o, x.lse = tensor(2 * elements, False), tensor(4 * HEADS * LENGTH, False)

    def run(kind):
        plan = library.plan(a, kind)
        x.workspace, x.workspace_bytes = memory(plan.workspace_bytes, False), plan.workspace_bytes
        begin = time.perf_counter()
        plan.execute(x)
        return plan, time.perf_counter() - begin

    plan, seconds = run(mica.FORWARD)
    if which == "backward":
        held.pop()  # forward's workspace
        g = a.gradients
        g.d_o, g.dq, g.dk, g.dv = a.o, a.q, a.k, a.v
        x.d_o = tensor(2 * elements, True)
        x.dq, x.dk, x.dv = (tensor(2 * elements, False) for _ in range(3))
        plan, seconds = run(mica.BACKWARD)
    used = status_bytes("VmHWM")
    print(json.dumps({"pass": which, "kernel": plan.kernel, "seconds": seconds, "tensor_bytes": tensor_bytes,
                      "workspace_bytes": plan.workspace_bytes, "process_bytes": used, "baseline_bytes": baseline,
                      "ratio": used / tensor_bytes}))


def main(library_path, threads, json_path):
    results = []
    for which in ("forward", "backward"):
        out = subprocess.run([sys.executable, __file__, library_path, str(threads), which], check=True,
                             capture_output=True, text=True).stdout
        r = json.loads(out)
        r["within_limit"] = r["ratio"] <= LIMIT
        results.append(r)
        print(f"{which:8} length {LENGTH}, {HEADS} heads of {DIM}, bf16, causal: tensors {r['tensor_bytes'] / 2**20:.0f} "
              f"MiB, process {r['process_bytes'] / 2**20:.0f} MiB = {r['ratio']:.2f}x (limit {LIMIT:.0f}x), "
              f"{r['seconds']:.1f} s, {r['kernel']}", flush=True)
    print(f"One head's matrix of scores alone would be {LENGTH * LENGTH * 4 / 2**30:.0f} GiB in fp32.")
    if json_path:
        with open(json_path, "w") as file:
            json.dump({"length": LENGTH, "heads": HEADS, "dim": DIM, "limit": LIMIT, "results": results}, file, indent=1)
            file.write("\n")
    return 0 if all(r["within_limit"] for r in results) else 1


if __name__ == "__main__":
    child(sys.argv[1], int(sys.argv[2]), sys.argv[3])
