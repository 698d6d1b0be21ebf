#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the GPU images of the library: every row of src/cuda/kernels.def for every architecture it names.

The one compiler is NVRTC (pip install nvidia-cuda-nvrtc-cu12==12.9.86): no toolkit, no host compiler, no CUDA header.
Images are packed by zstd (pip install zstandard==0.25.0), most of them against another one, their base: the library unpacks
the base first.
An image is compiled again only when its source, a header it includes, its options or the compiler changed, and packed again
only when it, its base or the packer did.

With --out DIR writes what the library is linked with:
  images.bin      every image, packed, one after the other
  images.inc      the table of them: row, architecture, place in images.bin, base, resources
  images_digest.h names their content, and its size
  resources.json  registers, shared memory, spills, bytes and compile time (seconds of CPU) of every image
Exit status: 0 built, 1 a kernel failed, 77 there is no NVRTC or zstd on this machine (with --check: nothing else is done).
"""

import argparse
import collections
import hashlib
import json
import multiprocessing
import os
import pathlib
import re
import resource
import sys
import time

try:
    import zstandard
except ImportError:
    zstandard = None

import kernel_table
import nvrtc
import wheel_bytes

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = "kernels/parts/instance.cu"
INCLUDE_FOLDERS = ("src", "src/cuda", "include")
# 737: using-declarations that repeat a name of their own namespace, as they do where MICA_NS is mica.
OPTIONS = ["-std=c++20", "-default-device", "-diag-suppress=737", "--ptxas-options=-v"]
# Level 22 gains 0.02 % of 19 and takes a quarter longer. In the cache an image lies alone, at a level that takes no time.
PACK_LEVEL, CACHE_LEVEL = 19, 3
# The code for the first is nearly that for the second.
ALIKE = {"89": "86"}
# How many times an image's size its base's may be: the library unpacks both before the first call.
BASE_LIMIT = 1.25
# ptxas tells of lost overlap (wgmma serialised) and ignored register requests only by these.
FATAL_WARNINGS = re.compile(r"\(C75\d\d\)|\bwarning\b|serializ|setmaxnreg.*ignored", re.IGNORECASE)
SKIPPED = 77


def find_header(root, name):
    for folder in INCLUDE_FOLDERS:
        if (root / folder / name).is_file():
            return root / folder / name
    raise SystemExit(f"{name}: included, but not in " + ", ".join(INCLUDE_FOLDERS))


def read_headers(root, name, headers):
    """Adds {name as in #include: text} of `name` and everything it includes; system headers do not exist here."""
    if name in headers:
        return headers
    headers[name] = find_header(root, name).read_text()
    for included in re.findall(r'^\s*#\s*include\s+"([^"]+)"', headers[name], re.MULTILINE):
        read_headers(root, included, headers)
    return headers


def read_resources(log):
    """What ptxas -v says about the kernel and the functions it calls; PTX says nothing."""
    resources = {"registers": 0, "smem_static": 0, "stack": 0, "spill_stores": 0, "spill_loads": 0}
    for found in re.finditer(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log):
        for name, value in zip(("stack", "spill_stores", "spill_loads"), found.groups()):
            resources[name] = max(resources[name], int(value))
    used = re.search(r"Used (\d+) registers([^\n]*)", log)
    if used:
        shared = re.search(r"(\d+) bytes smem", used.group(2))
        resources["registers"] = int(used.group(1))
        resources["smem_static"] = int(shared.group(1)) if shared else 0
    return resources


def complaints(job, entry):
    """Why this image must not be shipped."""
    found = [line.strip() for line in entry["log"].splitlines() if FATAL_WARNINGS.search(line)]
    spilled = entry["spill_stores"] + entry["spill_loads"]
    if spilled and not job.row.why_spill:
        found.append(f"spills {spilled} bytes and its row does not say why")
    if not job.is_ptx and entry["registers"] == 0:
        found.append("ptxas did not say how many registers it takes")
    return found


class Job:
    """One row for one target ("80", "90a", "ptx80")."""

    def __init__(self, root, row, target, extra_options):
        self.row = row
        self.target = target
        self.is_ptx = target.startswith("ptx")
        architecture = "compute_" + target[3:] if self.is_ptx else "sm_" + target
        self.options = OPTIONS + [f"--gpu-architecture={architecture}"] + row.macros() + extra_options
        self.headers = read_headers(root, f"kernels/{row.file}.cuh", read_headers(root, SOURCE, {}))
        digest = hashlib.sha256()
        for part in [repr(nvrtc.version()), *self.options]:
            digest.update(part.encode() + b"\0")
        for name in sorted(self.headers):
            digest.update(name.encode() + b"\0" + self.headers[name].encode() + b"\0")
        self.key = digest.hexdigest()[:32]
        self.base = None  # another job

    @property
    def label(self):
        return f"{self.row.name} {self.target}"

    @property
    def packed_key(self):
        """Names what pack_job makes."""
        parts = (zstandard.__version__, PACK_LEVEL, self.key, self.base and self.base.key)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def compile_job(job, cache):
    """Compiles into the cache; returns (job label, error text or None)."""
    started = time.process_time()
    headers = dict(job.headers)
    source = headers.pop(SOURCE)
    try:
        image, log = nvrtc.compile(source, "instance.cu", job.options, headers)
    except nvrtc.CompileError as error:
        return job.label, error.log
    resources = read_resources(log)
    resources.update(bytes=len(image), seconds=round(time.process_time() - started, 2), log=log.strip())
    # Data first: a build that is cut short leaves no half entry.
    write_whole(cache / f"{job.key}.zst", zstandard.ZstdCompressor(CACHE_LEVEL).compress(image))
    write_whole(cache / f"{job.key}.json", json.dumps(resources).encode())
    return job.label, None


def write_whole(path, data):
    """No one who reads `path` sees a part of it."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    temporary.replace(path)


def read_image(job, cache):
    return zstandard.ZstdDecompressor().decompress((cache / f"{job.key}.zst").read_bytes())


def pool_of(processes, tasks):
    # spawn: a fork would copy whatever threads NVRTC keeps.
    return multiprocessing.get_context("spawn").Pool(min(processes, len(tasks)))


def compile_all(jobs, cache, processes):
    """Compiles what the cache lacks. Returns the number that failed."""
    missing = {job.key: job for job in jobs if not (cache / f"{job.key}.json").is_file()}
    if not missing:
        return 0
    failures = 0
    with pool_of(processes, missing) as pool:
        results = [pool.apply_async(compile_job, (job, cache)) for job in missing.values()]
        for done, (result, job) in enumerate(zip(results, missing.values()), 1):
            label, error = result.get()
            failures += error is not None
            print(f"[{done}/{len(missing)}] " + (f"{label}: FAILED\n{error}" if error else describe(job, cache)), flush=True)
    return failures


def choose_bases(jobs, cache):
    """An image's base is that of its row for ALIKE's target, or the bf16 twin of an fp16 row. Of those of a file and target that
    have neither, the one of middle size is the base of all that are not too small for it, then so among these. So a chain
    has at most three bases (kMaxBases in src/cuda/images.cc)."""
    named = {(job.row.name, job.target): job for job in jobs}
    alone = collections.defaultdict(list)
    for job in jobs:
        twin = job.row.name.replace("_fp16", "_bf16")
        job.base = named.get((job.row.name, ALIKE.get(job.target)))
        if not job.base and twin != job.row.name:
            job.base = named.get((twin, job.target))
        if not job.base:
            alone[job.row.file, job.target].append(job)
    for group in alone.values():
        sizes = {job: read_entry(job, cache)["bytes"] for job in group}
        left = sorted(group, key=sizes.get)
        while left:
            middle = left[len(left) // 2]
            for job in left:
                if job is not middle and sizes[middle] <= BASE_LIMIT * sizes[job]:
                    job.base = middle
            left = [job for job in left if job is not middle and not job.base]


def pack(image, base):
    """A frame with the image's size and checksum. The window holds the base and the image."""
    window = len(base) + len(image)
    parameters = zstandard.ZstdCompressionParameters.from_level(PACK_LEVEL, source_size=window, write_checksum=True)
    prefix = zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT) if base else None
    return zstandard.ZstdCompressor(compression_params=parameters, dict_data=prefix).compress(image)


def pack_job(job, cache):
    packed = pack(read_image(job, cache), read_image(job.base, cache) if job.base else b"")
    write_whole(cache / f"{job.packed_key}.packed", packed)


def pack_all(jobs, cache, processes):
    """Packs what the cache lacks."""
    missing = {job.packed_key: job for job in jobs if not (cache / f"{job.packed_key}.packed").is_file()}
    if missing:
        with pool_of(processes, missing) as pool:
            pool.starmap(pack_job, [(job, cache) for job in missing.values()])


def cpu_seconds():
    """Of this process and the compiling ones, which have ended: how long a build takes whatever else the machine does."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def read_entry(job, cache):
    return json.loads((cache / f"{job.key}.json").read_text())


def describe(job, cache):
    entry = read_entry(job, cache)
    return (
        f"{job.label}: {entry['registers']} registers, {entry['smem_static']} B static smem, {entry['stack']} B stack, "
        f"{entry['spill_stores'] + entry['spill_loads']} B spilled, {entry['bytes']} B, {entry['seconds']} s"
    )


def refuse(jobs, cache):
    """Names every image that must not be shipped; returns how many."""
    refused = 0
    for job in jobs:
        wrong = complaints(job, read_entry(job, cache))
        refused += bool(wrong)
        for line in wrong:
            print(f"{job.label}: {line}", file=sys.stderr)
    return refused


def write_if_changed(path, data):
    if not path.is_file() or path.read_bytes() != data:
        path.write_bytes(data)


def write_outputs(jobs, cache, out):
    out.mkdir(parents=True, exist_ok=True)
    blob, lines, report = bytearray(), [], []
    places = {job: place for place, job in enumerate(jobs)}
    for job in jobs:
        entry = read_entry(job, cache)
        data = (cache / f"{job.packed_key}.packed").read_bytes()
        base = places[job.base] if job.base else -1
        number = int(re.sub(r"\D", "", job.target))
        specific = int(job.target[-1].isalpha())
        lines.append(
            f"{{{job.row.index}, {number}, {int(job.is_ptx)}, {specific}, {len(blob)}, {len(data)}, {entry['bytes']}, {base}, "
            f"{entry['registers']}, {entry['smem_static']}, {entry['spill_stores'] + entry['spill_loads']}, "
            f"{entry['stack']}}},  // {job.row.name}"
        )
        blob += data
        entry.pop("log")
        names = {"kernel": job.row.name, "target": job.target, "base": job.base and job.base.label, "why": job.row.why_spill}
        report.append({**names, "packed_bytes": len(data), **entry})
    if len(blob) > wheel_bytes.IMAGES:
        raise SystemExit(f"the images take {len(blob)} bytes packed, want at most {wheel_bytes.IMAGES}")
    header = "// Made by tools/build/build_kernels.py: row, architecture, is PTX, is for that architecture only, offset, packed bytes,\n"
    header += "// bytes, base, registers, static shared memory, spilled bytes, stack bytes.\n"
    write_if_changed(out / "images.bin", bytes(blob))
    write_if_changed(out / "images.inc", (header + "\n".join(lines) + "\n").encode())
    digest = f'#define MICA_IMAGES_DIGEST "{hashlib.sha256(blob).hexdigest()}"\n#define MICA_IMAGES_BYTES {len(blob)}\n'
    write_if_changed(out / "images_digest.h", digest.encode())
    compiler = ".".join(map(str, nvrtc.version()))
    document = {"compiler": f"nvrtc {compiler}", "packed_bytes": len(blob), "images": report}
    write_if_changed(out / "resources.json", (json.dumps(document, indent=1) + "\n").encode())


def write_depfile(root, jobs, path, target):
    """Ninja and make: the output depends on every file that was read."""
    names = {SOURCE} | {name for job in jobs for name in job.headers}
    files = [find_header(root, name) for name in sorted(names)]
    files += [root / kernel_table.PATH, *sorted(pathlib.Path(__file__).parent.glob("*.py"))]
    path.write_text(f"{target}: " + " ".join(str(file).replace(" ", "\\ ") for file in files) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the source tree")
    parser.add_argument("--arch", default="", help="only these, as in 80,86,90a,ptx80; default: all that a row names")
    parser.add_argument("--match", default="", help="only kernels whose name matches this regular expression")
    parser.add_argument("--cache", type=pathlib.Path, help="where images are kept; default: .cache/kernels of the tree")
    parser.add_argument("--out", type=pathlib.Path, help="write images.bin, images.inc and resources.json here")
    parser.add_argument("--save", type=pathlib.Path, help="write each image here, not packed, to look at")
    parser.add_argument("--depfile", type=pathlib.Path, help="write the files that the build depends on")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--lineinfo", action="store_true", help="keep line numbers, for a profiler")
    parser.add_argument("--check", action="store_true", help="only say which compiler would be used")
    parser.add_argument("--quiet", action="store_true", help="say nothing about images that are up to date")
    arguments = parser.parse_args()

    missing = nvrtc.available() or (None if zstandard else "no zstd: pip install zstandard==0.25.0")
    if missing:
        print(missing)
        return SKIPPED
    if arguments.check:
        print("%d.%d" % nvrtc.version())
        return 0

    cache = arguments.cache or arguments.root / ".cache" / "kernels"
    table = kernel_table.read(arguments.root)
    wanted = [re.sub(r"^sm_", "", arch) for arch in re.split(r"[,;\s]+", arguments.arch) if arch]
    extra = ["--generate-line-info"] if arguments.lineinfo else []
    jobs = [
        Job(arguments.root, row, target, extra)
        for row in table
        if re.search(arguments.match, row.name)
        for target in row.targets
        if not wanted or target in wanted
    ]
    cache.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    failures = compile_all(jobs, cache, arguments.jobs) or refuse(jobs, cache)
    if failures:
        print(f"{failures} of {len(jobs)} images failed", file=sys.stderr)
        return 1
    if not arguments.quiet:
        print(*(describe(job, cache) for job in jobs), sep="\n")
    if arguments.save:
        arguments.save.mkdir(parents=True, exist_ok=True)
        for job in jobs:
            suffix = "ptx" if job.is_ptx else "cubin"
            (arguments.save / f"{job.row.name}.{job.target}.{suffix}").write_bytes(read_image(job, cache))
    if arguments.out:
        choose_bases(jobs, cache)
        pack_all(jobs, cache, arguments.jobs)
        write_outputs(jobs, cache, arguments.out)
        if arguments.depfile:
            write_depfile(arguments.root, jobs, arguments.depfile, arguments.out / "images.inc")
    kernels = len({job.row.name for job in jobs})
    print(f"{len(jobs)} images of {kernels} kernels, {time.monotonic() - started:.1f} s, {cpu_seconds():.1f} s of CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
