#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mica beside PyTorch's scaled_dot_product_attention, in one process, on the same tensors.

    python bench/compare.py --device cpu
    python bench/compare.py --device cpu --threads 16 --filter bf16 --json out/cpu.json
    python bench/compare.py --device cpu --suite bench/suites/cpu_models.json --between matmul
    python bench/compare.py --device cuda --suite bench/suites/cuda.json
    PYTHONPATH=flash-attention/hopper python bench/compare.py --device cuda --peers CUDNN_ATTENTION,FLASH_ATTENTION_3
    python bench/compare.py --device cuda --filter 'forward.*d128' --kernels d128_q64,d128_careful
    python bench/compare.py --peak-memory

Every cell is checked against the formula in double before it is timed. Mica and its peers take turns; a ratio is the
peer's median time over Mica's (above 1: Mica is faster); "best" is that of the fastest peer. The JSON also has what making
the plan takes (plan_s) and the first call with what it loads (first_call_s). Exit codes: 0 all cells were right; 1 one was not; 2 usage."""

import argparse
import contextlib
import datetime
import functools
import json
import math
import os
import platform
import re
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--suite", help="JSON file (default: bench/suites/cpu.json or cuda.json)")
    parser.add_argument("--filter", default="", help="only cases whose name matches this regular expression")
    parser.add_argument("--peers", help="comma-separated, instead of the suite's and the device's own")
    parser.add_argument("--kernels", default="", help="comma-separated: time Mica's GPU kernels whose names contain each "
                        "of these beside the one it chooses itself")
    parser.add_argument("--threads", type=int, default=0, help="of both, on the CPU (default: all)")
    parser.add_argument("--samples", type=int, default=5, help="samples of each contender (default 5; of calls "
                        "at a GPU's power limit 1.8 times as many, where they differ)")
    parser.add_argument("--sample-seconds", type=float, default=None, help="about how long one sample takes")
    parser.add_argument("--cell-seconds", type=float, default=60,
                        help="a contender that needs longer for its samples gets fewer (default 60)")
    parser.add_argument("--between", choices=("nothing", "matmul"), default="nothing", help="CPU: what runs before each "
                        "call (matmul: contenders take turns call by call; the column alone is Mica after calls of its own, "
                        "over Mica after such a call and then a matmul; least: what that would be if the library itself were "
                        "not slower at all, by a call that computes nothing; inside: as alone, of the library's own "
                        "part, without Python's; cold: the same after other problems of Mica's that empty caches as the "
                        "matmul does, over after the matmul: what its threads cost, caches and Python aside; sdpa alone: as "
                        "alone, of SDPA's short calls)")
    parser.add_argument("--graph", action="store_true", help="GPU: time each contender inside a CUDA graph as well")
    parser.add_argument("--layout", choices=("bhsd", "bshd"), default="bhsd", help="order of the axes in memory")
    parser.add_argument("--lib", help="path of libmica.so (default: of the build tree)")
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--peak-memory", action="store_true", help="check the process's memory at length 32768 instead")
    return parser.parse_args()


def commit():
    """Of the tree or the bundle that this script lies in."""
    bundled = os.path.join(os.path.dirname(HERE), "COMMIT")
    if os.path.exists(bundled):
        with open(bundled) as file:
            return file.read().strip()[:12]
    try:
        return subprocess.run(["git", "-C", HERE, "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
                              check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def cpu_name():
    with open("/proc/cpuinfo") as file:
        text = file.read()
    if "model name" not in text.lower():  # Arm's: numbers, which lscpu has names for
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            text = subprocess.run(["lscpu"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE | re.IGNORECASE)
    return found.group(1) if found else platform.machine()


@contextlib.contextmanager
def only_kernels(name):
    """Plans made inside take only GPU kernels whose names contain this."""
    os.environ["MICA_CUDA_KERNELS"] = name
    try:
        yield
    finally:
        del os.environ["MICA_CUDA_KERNELS"]


def refuse_if_too_slow(case, device, peer, arguments):
    """A sixteenth of the work first: some of PyTorch's fallbacks would take minutes for one call."""
    from contenders import Inputs, TorchContender
    if peer in ("VARLEN", "FLASH_ATTENTION_3") or min(case["seqlen_q"], case["seqlen_k"]) < 1024 or case["varlen"]:
        return
    small = type(case)({**case.given, "seqlen_q": case["seqlen_q"] // 4, "seqlen_k": case["seqlen_k"] // 4})
    seconds = 16 * device.seconds(TorchContender(Inputs(small, device, arguments.layout), device, peer).run, 1)
    if seconds > arguments.cell_seconds:
        raise RuntimeError(f"one call would take about {seconds:.0f} s")


def dense_rate_seconds(case, device, library, arguments):
    """What the packed sequences would take if each ran at the rate of a dense batch of its length, as many tokens."""
    from contenders import Inputs, MicaContender
    total, seconds = sum(case["varlen"]), {}
    for length in sorted(set(case["varlen"])):
        batch = max(1, total // length)
        dense = type(case)({**case.given, "varlen": [], "batch": batch, "seqlen_q": length})
        run = MicaContender(Inputs(dense, device, arguments.layout), device, library).run
        run()
        samples = sorted(device.seconds(run, 3) for _ in range(arguments.samples))
        seconds[length] = samples[len(samples) // 2] / batch
    return sum(seconds[length] for length in case["varlen"])


@functools.lru_cache(maxsize=2)
def other_problems(device, library, dtype):
    """A step of Mica's own that leaves caches as CpuDevice.matmul does: forward with as many operations and bytes as it
    has, then backward in another type, so that other code has run last as well."""
    from contenders import Inputs, MicaContender
    from suites import Case
    kinds = [("forward", dtype), ("backward", "fp32" if dtype == "bf16" else "bf16")]
    first, second = (MicaContender(Inputs(Case({"pass": which, "dtype": kind, "seqlen_q": 256, "heads_q": 8, "dim": 64}),
                                          device, "bhsd"), device, library).run for which, kind in kinds)

    def run():
        first()
        second()
    return run


def measure(case, device, library, peers, arguments):
    """One cell: a dictionary for the JSON. "error" is there if it was wrong or could not be run."""
    from contenders import Inputs, MicaContender, check, torch_contender
    from devices import interleaved_medians, medians_between

    cell = {"case": case.name, "problem": dict(case)}
    inputs = Inputs(case, device, arguments.layout)
    try:
        contender = MicaContender(inputs, device, library)
        begin = time.perf_counter()
        result = contender.run()
        device.wait()
        cell["first_call_s"] = time.perf_counter() - begin  # with what is loaded for it
        cell["plan_s"] = min(MicaContender(inputs, device, library).plan_seconds for _ in range(3))
    except Exception as error:  # whatever goes wrong in one cell, the others are still worth seeing
        return {**cell, "error": f"mica: {error}"}
    cell.update(kernel=contender.plan.kernel, splits=contender.plan.splits, workspace=contender.plan.workspace_bytes)
    runs, peer_results, absent = {"mica": contender.run}, [], {}
    for peer in peers:
        try:
            refuse_if_too_slow(case, device, peer, arguments)
            other = torch_contender(inputs, device, peer, arguments.layout)
            peer_results.append(other.run())
            runs[peer] = other.run
        except Exception as error:
            absent[peer] = str(error).split("\n")[0]
    results = [result]
    for name in filter(None, arguments.kernels.split(",")):
        try:
            with only_kernels(name):
                other = MicaContender(inputs, device, library)
            results.append(other.run())
            runs[name] = other.run
        except Exception as error:
            absent[name] = str(error).split("\n")[0]
    if absent:
        cell["absent"] = absent
    for result in results:
        wrong, errors = check(inputs, result, peer_results)
        cell.setdefault("errors", errors)
        if wrong:
            return {**cell, "error": wrong}
    del result, results, peer_results
    if isinstance(case.beside, dict):
        yardstick = case.beside_case()
        runs["beside"] = MicaContender(Inputs(yardstick, device, arguments.layout), device, library).run
        cell["beside"] = yardstick.name
    default_seconds = 0.05 if device.torch_device.type == "cpu" else 0.02
    if arguments.between == "matmul":
        cool = other_problems(device, library, "bf16" if case["dtype"] == "bf16" else "fp32")
        empty = MicaContender(inputs, device, library)
        empty.compute_nothing()
        times = medians_between(device, runs, device.matmul(case["dtype"]),
                                (arguments.sample_seconds or 0.2) * arguments.samples,
                                lambda: contender.seconds_inside, empty.run, cool)
    else:
        times = interleaved_medians(device, runs, arguments.samples, arguments.sample_seconds or default_seconds,
                                    arguments.cell_seconds)
    mica = times["mica"].median
    if arguments.graph:
        replays = {name: device.captured(run, CALLS_IN_A_GRAPH) for name, run in runs.items()}
        in_graph = interleaved_medians(device, replays, arguments.samples, arguments.sample_seconds or default_seconds,
                                       arguments.cell_seconds, CALLS_IN_A_GRAPH)
        cell["graph_median_s"] = {name: t.median / CALLS_IN_A_GRAPH for name, t in in_graph.items()}
    for key, field in (("median_s", "median"), ("p10_s", "p10"), ("p90_s", "p90"), ("min_s", "least"), ("max_s", "most"),
                       ("samples", "samples"), ("settle_s", "settling")):
        cell[key] = {name: getattr(t, field) for name, t in times.items()}
    cell["gflops"], cell["gbytes_per_s"] = case.flops() / mica * 1e-9, case.bytes() / mica * 1e-9
    own = ("mica", "alone", "after", "inside", "alone inside", "after inside", "cold", "cold inside",
           "nothing alone", "nothing after",
           *(f"{name} {kind}" for name in runs for kind in ("alone", "after")))
    cell["ratio"] = {name: t.median / mica for name, t in times.items() if name not in own}
    if arguments.graph:
        cell["ratio"].update({name + IN_A_GRAPH: t / cell["graph_median_s"]["mica"]
                              for name, t in cell["graph_median_s"].items() if name != "mica"})
    for suffix in ("", IN_A_GRAPH):
        of_peers = [cell["ratio"][peer + suffix] for peer in peers if peer + suffix in cell["ratio"]]
        if of_peers and len(peers) > 1:
            cell["ratio"]["best" + suffix] = min(of_peers)
    if "inside" in times:
        cell["ratio"]["alone"] = times["alone"].median / times["after"].median
        cell["ratio"]["inside"] = times["alone inside"].median / times["after inside"].median
        if "nothing after" in times:
            cold = times["nothing after"].median - times["nothing alone"].median
            cell["ratio"]["least"] = times["alone"].median / (times["alone"].median + max(cold, 0))
            cell["ratio"]["cold"] = times["cold inside"].median / times["after inside"].median
        cell["ratio"].update({name + " alone": times[name + " alone"].median / times[name + " after"].median for name in peers
                              if name + " alone" in times})
    if case.beside == "dense-rate":
        cell["ratio"]["beside"] = dense_rate_seconds(case, device, library, arguments) / mica
    return cell


# Columns that compare a contender with itself, and what a call may take of its time alone; "longer" in the JSON's summary
# counts the cells that take more.
OF_ITSELF = ("alone", "least", "inside", "cold")
LONGER = 1.15

# So many that what starts a graph is little of it.
CALLS_IN_A_GRAPH = 16
IN_A_GRAPH = " in a graph"


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else float("nan")


class Report:
    """The table, a line at a time, and its last line: geometric means of the ratios."""

    def __init__(self, columns):
        self._columns = columns
        heads = ("g " + column if column.endswith(IN_A_GRAPH) else column for column in columns)
        print(f"{'case':56} {'mica':>10} {'rate':>12}" + "".join(f" {head[:11]:>11}" for head in heads))

    def add(self, cell, memory_bound):
        if "error" in cell:
            print(f"{cell['case']:56} not timed: {cell['error']}", flush=True)
            return
        ms = cell["median_s"]["mica"] * 1e3
        gflops = cell["gflops"]
        rate = f"{gflops:.0f} GFLOP/s" if gflops < 1e4 else f"{gflops / 1e3:.1f} TFLOP/s"
        if memory_bound:
            rate = f"{cell['gbytes_per_s']:.1f} GB/s"
        if cell["problem"]["latent"]:  # bound by either
            rate = f"{gflops / 1e3:.0f} T {cell['gbytes_per_s']:.0f} G"
        ratios = (f" {cell['ratio'][c]:10.2f}x" if c in cell["ratio"] else f" {'-':>11}" for c in self._columns)
        print(f"{cell['case']:56} {ms:7.3f} ms {rate:>12}" + "".join(ratios), flush=True)

    def finish(self, cells):
        means = {}
        for column in self._columns:
            values = [cell["ratio"][column] for cell in cells if column in cell.get("ratio", {})]
            if values:
                means[column] = {"geometric_mean": geometric_mean(values), "lowest": min(values), "cells": len(values)}
            if values and (column in OF_ITSELF or column.endswith(" alone")):
                means[column]["longer"] = sum(value * LONGER < 1 for value in values)
        for label in ("lowest", "geometric_mean"):
            cells_of = (f" {means[c][label]:10.2f}x" if c in means else f" {'-':>11}" for c in self._columns)
            print(f"{label.replace('_', ' '):80}" + "".join(cells_of))
        if any("longer" in mean for mean in means.values()):
            cells_of = (f" {means[c]['longer']:11}" if "longer" in means.get(c, {}) else f" {'-':>11}" for c in self._columns)
            print(f"{f'cells that take more than {LONGER} times as long':80}" + "".join(cells_of))
        return means


def write_json(figures, path):
    if path:
        with open(path, "w") as file:
            json.dump(figures, file, indent=1)
            file.write("\n")


def main():
    arguments = parse_arguments()
    import mica_ctypes
    if arguments.peak_memory:
        import peak_memory
        return peak_memory.main(mica_ctypes.find_library(arguments.lib), arguments.threads, arguments.json)
    import suites
    import torch
    from devices import make_device
    library = mica_ctypes.Library(arguments.lib)
    device = make_device(arguments.device, library, arguments.threads)
    if arguments.between == "matmul" and device.torch_device.type != "cpu":
        raise ValueError("--between matmul is for --device cpu: a GPU's work is queued")
    if arguments.graph and device.torch_device.type != "cuda":
        raise ValueError("--graph is for --device cuda")
    name, cases = suites.load(arguments.suite or os.path.join(HERE, "suites", device.default_suite))
    cases = [case for case in cases if re.search(arguments.filter, case.name)]
    if not cases:
        raise SystemExit("compare.py: no case is left")

    def peers_of(case):
        if arguments.peers is not None:
            return [peer for peer in arguments.peers.split(",") if peer]
        return device.default_peers if case.peers is None else case.peers

    columns = list(dict.fromkeys(peer for case in cases for peer in peers_of(case)))
    columns += ["best"] if len(columns) > 1 else []
    columns += filter(None, arguments.kernels.split(","))
    columns += [column + IN_A_GRAPH for column in columns] if arguments.graph else []
    if arguments.between == "matmul":
        columns += ["alone", "least", "inside", "cold", *(peer + " alone" for peer in device.default_peers)]
    columns += ["beside"] if any(case.beside is not None for case in cases) else []
    out = {**device.facts(), "cpu": cpu_name(), "machine": platform.machine(), "torch": torch.__version__,
           "version": library.version(), "commit": commit(), "suite": name, "layout": arguments.layout,
           "samples": arguments.samples, "between": arguments.between, "date": datetime.date.today().isoformat()}
    print(f"{device.name} ({out['cpu']}), PyTorch {torch.__version__}, Mica {out['version']}: ratios above 1 mean that "
          "Mica is faster\n")
    report, cells = Report(columns), []
    for case in cases:
        cells.append(measure(case, device, library, peers_of(case), arguments))
        report.add(cells[-1], case.is_memory_bound())
        if device.torch_device.type == "cuda":
            torch.cuda.empty_cache()
        write_json({**out, "cells": cells}, arguments.json)  # what is there so far, should it be stopped
    out["summary"], out["cells"] = report.finish(cells), cells
    write_json(out, arguments.json)
    return 1 if any("error" in cell for cell in cells) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ValueError, OSError, KeyError, re.error, json.JSONDecodeError, RuntimeError) as error:
        print(f"compare.py: {error}", file=sys.stderr)
        sys.exit(2)
