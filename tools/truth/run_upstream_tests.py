#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs flash-attention's own tests against Mica's drop-in, a sample of them: how many pass, which fail, and where.

    tools/truth/run_upstream_tests.py PATH [--sample 40] [--seed 0] [-k WORDS] [--seconds 60] [--json OUT]

PATH is upstream's tests/test_flash_attn.py, a checkout of the repository, the source distribution
(flash_attn-2.8.3.tar.gz from PyPI contains the tests), or, for FlashAttention-3, hopper/test_flash_attn.py of a checkout. The file has over 500,000 parameter sets: of every test function
--sample are drawn by --seed (0: all of them). The installed mica and flash_attn are tested; --tree takes those of this
source tree. --cpu runs on the CPU what fits there, by mapping the device "cuda": a rehearsal where there is no GPU.
With --large it draws what a GPU draws by the same seed (slow): does what failed on a GPU fail on the CPU as well?
Tests run in an order of the seed's, so that what --seconds leaves is a sample as well. Several processes may share a GPU
(--part 0/4, ...): a test that finds no memory there is tried again. Needs pytest, torch and einops.
"""
import argparse
import itertools
import json
import os
import pathlib
import random
import sys
import tarfile
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEST_FILE = "tests/test_flash_attn.py"


def test_file(path: pathlib.Path, folder: str) -> pathlib.Path:
    """The test file itself, extracted into `folder` if it lies in an archive."""
    if path.is_dir():
        path = path / TEST_FILE
    if path.suffixes[-2:] != [".tar", ".gz"]:
        if not path.is_file():
            raise SystemExit(f"{path} is not there, want upstream's {TEST_FILE}, a checkout or the source distribution")
        return path
    with tarfile.open(path) as archive:
        names = [n for n in archive.getnames() if n.endswith("/" + TEST_FILE)]
        if not names:
            raise SystemExit(f"{path} has no {TEST_FILE}, want the source distribution of flash-attn")
        copy = pathlib.Path(folder) / "test_flash_attn.py"
        member = archive.extractfile(names[0])
        if member is None:
            raise SystemExit(f"{names[0]} in {path} is no file")
        copy.write_bytes(member.read())
    return copy


def parameter_sets(marks) -> list:
    """All parameter sets of one test function as dictionaries, from its parametrize marks."""
    axes = []
    for mark in marks:
        names = mark.args[0]
        names = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
        axes.append([dict(zip(names, value if len(names) > 1 else (value,))) for value in mark.args[1]])
    return [{k: v for part in choice for k, v in part.items()} for choice in itertools.product(*axes)]


def failure(report) -> dict:
    """What a failed report says: the test's id, file:line where it failed, that line of source, and the error."""
    found = dict(id=report.nodeid.split("::", 1)[-1], where="", source="", error=str(report.longrepr).strip())
    entries = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", [])
    if entries and getattr(entries[-1], "reprfileloc", None):
        place, lines = entries[-1].reprfileloc, entries[-1].lines
        found["where"] = f"{pathlib.Path(place.path).name}:{place.lineno}"
        found["source"] = " ".join(line.strip("> ") for line in lines if not line.startswith("E "))
        found["error"] = " ".join(line[2:].strip() for line in lines if line.startswith("E "))
    return found


WORDS = ("passed", "failed", "upstream's own", "skipped")
# Tests that fail with FlashAttention-3 (0251105a) itself, by words of the error: counted apart.
UPSTREAMS_OWN = {
    "test_flash3_bw_compatibility": "flash_attn_3::bwd",  # an older schema, of eight results: it registers one of five
    "test_flash_attn_kvcache_nosplit_fp8": "Promotion for Float8 Types",  # the test subtracts bf16 from e4m3
}
# A test that found no memory, while others use the GPU: how often it is tried again, and after how many seconds.
TRIES, PAUSE = 6, 4


class Sampler:
    """A pytest plugin: draws parameter sets before pytest makes a test of every one, counts, keeps failures."""

    def __init__(self, sample: int, seed: int, fits, part: int, parts: int, seconds: float) -> None:
        self.sample, self.seed, self.fits, self.part, self.parts = sample, seed, fits, part, parts
        self.end = time.time() + seconds if seconds else None
        self.left_out = 0
        self.outcomes: dict = {}
        self.failures: list = []

    def pytest_generate_tests(self, metafunc):
        definition = metafunc.definition
        marks = list(definition.iter_markers("parametrize"))
        if not marks:
            return
        chosen = [p for p in parameter_sets(marks) if self.fits(p)]
        if self.sample and len(chosen) > self.sample:
            chosen = random.Random(f"{self.seed} {definition.name}").sample(chosen, self.sample)
        definition.own_markers[:] = [m for m in definition.own_markers if m.name != "parametrize"]
        names = list(chosen[0]) if chosen else list(parameter_sets(marks)[0])
        values = [tuple(p[n] for n in names) for p in chosen]
        metafunc.parametrize(names, values, ids=["-".join(f"{n}={v}" for n, v in zip(names, row)) for row in values])

    def pytest_collection_modifyitems(self, items):
        random.Random(self.seed).shuffle(items)
        items[:] = items[self.part::self.parts]

    def pytest_runtest_protocol(self, item, nextitem):
        from _pytest.runner import runtestprotocol

        if self.end is not None and time.time() > self.end:
            self.left_out += 1
            return True
        for attempt in range(TRIES):
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
            if attempt + 1 == TRIES or "OutOfMemoryError" not in "".join(str(r.longrepr) for r in reports if r.failed):
                break
            time.sleep(PAUSE)
            item._initrequest()
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        self.after_test()
        return True

    @staticmethod
    def after_test():
        import torch

        if torch.cuda.is_available():  # another process may want what this one no longer uses
            torch.cuda.empty_cache()

    def pytest_runtest_logreport(self, report):
        name, outcome = report.nodeid.split("::")[-1].split("[")[0], report.outcome
        if report.failed and UPSTREAMS_OWN.get(name, "\0") in str(report.longrepr):
            outcome = "upstream's own"
        if report.when == "call" or outcome != "passed":
            counts = self.outcomes.setdefault(name, {})
            counts[outcome] = counts.get(outcome, 0) + 1
        if outcome == "failed":
            self.failures.append(failure(report))


def on_the_cpu():
    """A pytest plugin under which "cuda" means the CPU."""
    import types

    import pytest
    import torch
    from torch.overrides import TorchFunctionMode

    def moved(value):
        is_cuda = (isinstance(value, str) and value.startswith("cuda")) or (
            isinstance(value, torch.device) and value.type == "cuda"
        )
        return "cpu" if is_cuda else value

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*map(moved, args), **{k: moved(v) for k, v in (kwargs or {}).items()})

    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=1 << 40)

    class Plugin:
        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_call(self, item):
            with Mode():
                yield

    return Plugin()


def fits_the_cpu(parameters: dict) -> bool:
    """Small enough for a few cores, as far as the parameters say."""
    lengths = [v for k, v in parameters.items() if k.startswith("seqlen") and not isinstance(v, bool)]
    return max(lengths, default=0) <= 300 and parameters.get("d", 0) <= 128


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=pathlib.Path)
    parser.add_argument("--sample", type=int, default=40, help="parameter sets of each test function; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-k", dest="words", default="", help="pytest's selection by name")
    parser.add_argument("--seconds", type=float, default=0, help="no test begins after so many (default: no limit)")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="every N-th test, from the I-th on")
    parser.add_argument("--json", type=pathlib.Path, help="write the counts and the failures here")
    parser.add_argument("--tree", action="store_true", help="test this source tree, not what is installed")
    parser.add_argument("--cpu", action="store_true", help='rehearse on the CPU: the device "cuda" means the CPU')
    parser.add_argument("--large", action="store_true", help="with --cpu: draw from all sizes, as a GPU does")
    given = parser.parse_args()
    part, _, parts = given.part.partition("/")
    if not (part.isdigit() and parts.isdigit() and int(part) < int(parts)):
        parser.error(f"--part is {given.part}, want I/N with I from 0 to N-1")
    if given.tree:
        sys.path[:0] = [str(ROOT / "python" / name) for name in ("", "flash_attn", "flash_attn_interface")]
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # nothing is left in the checkout

    import flash_attn
    import pytest
    import torch

    if "mica" not in flash_attn.__version__:
        raise SystemExit(f"flash_attn is {flash_attn.__version__} at {flash_attn.__file__}, want Mica's drop-in")
    if not given.cpu and not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no GPU, want one (or --cpu for a rehearsal)")
    plugins = [Sampler(given.sample, given.seed, fits_the_cpu if given.cpu and not given.large else lambda _: True,
                       int(part), int(parts), given.seconds)]
    if given.cpu:
        plugins.append(on_the_cpu())
    start = time.time()
    with tempfile.TemporaryDirectory() as folder:
        file = test_file(given.path, folder)
        options = ["-q", "--tb=short", "--no-header", "-p", "no:cacheprovider", "--rootdir", folder, str(file)]
        status = pytest.main(options + (["-k", given.words] if given.words else []), plugins=plugins)
    outcomes = plugins[0].outcomes
    total = {word: sum(counts.get(word, 0) for counts in outcomes.values()) for word in WORDS}
    device = "cpu (rehearsal)" if given.cpu else torch.cuda.get_device_name()
    print(f"\nflash_attn {flash_attn.__version__}, torch {torch.__version__}, {device}, seed {given.seed}")
    for name, counts in outcomes.items():
        print(f"  {name}: " + ", ".join(f"{count} {word}" for word, count in sorted(counts.items())))
    for failed in plugins[0].failures:
        print(f"FAILED {failed['id']}\n  {failed['where']}: {failed['source']}\n  {failed['error'][:500]}")
    left_out = plugins[0].left_out
    print(", ".join(f"{total[word]} {word}" for word in total) + (f", {left_out} left out" if left_out else "") +
          f" in {time.time() - start:.0f} s")
    if given.json:
        record = dict(flash_attn=flash_attn.__version__, torch=torch.__version__, device=device, seed=given.seed,
                      sample=given.sample, part=given.part, total=total, left_out=left_out, tests=outcomes,
                      failures=plugins[0].failures)
        given.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if status == 1 and not total["failed"] else int(status)


if __name__ == "__main__":
    sys.exit(main())
