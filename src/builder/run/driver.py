# SPDX-License-Identifier: Apache-2.0
"""What `mica build` runs in the Python that the wheel is for. The command carries this file and writes it into the
build folder; nothing is installed into that Python, and no file of the project is edited.

Usage: driver.py probe FOLDER MODULE...  versions of modules and of ninja, missing build requirements, as JSON
       driver.py unpack ARCHIVE FOLDER   a source archive; prints the folder that holds setup.py or pyproject.toml
       driver.py build SETTINGS.json     the wheel, by the project's own build backend
       driver.py check SETTINGS.json     unpacks the wheel, imports its modules, compares results; prints JSON
"""

import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile

ABI = "_GLIBCXX_USE_CXX11_ABI"


def say(text):
    print(f"mica: {text}", flush=True)


def is_installed(requirement):
    """Whether a requirement of pyproject.toml is met, or is for another Python or system ("; python_version < '3.11'");
    markers and versions count only where packaging is there to judge."""
    try:
        from packaging.requirements import Requirement

        wanted = Requirement(requirement)
    except ImportError:
        wanted = None
    if wanted and wanted.marker is not None and not wanted.marker.evaluate():
        return True
    try:
        version = importlib.metadata.version(re.match(r"[A-Za-z0-9._-]*", requirement).group())
    except importlib.metadata.PackageNotFoundError:
        return False
    return wanted is None or wanted.specifier.contains(version, prereleases=True)


def version_of(module):
    """Of a module, or of the program ninja; empty where it is not there (or does not start)."""
    if module == "ninja":
        ninja = shutil.which("ninja")
        said = subprocess.run([ninja, "--version"], capture_output=True, text=True) if ninja else None
        return said.stdout.strip() if said and said.returncode == 0 else ""
    if importlib.util.find_spec(module) is None:
        return ""
    try:
        return importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def probe(folder, modules):
    here = {module: version_of(module) for module in modules}
    wanted = [] if folder == "-" else build_system_of(folder).get("requires", [])
    # torch is the one thing that must be there already, and setup.py's modules are counted above.
    missing = [r for r in wanted if not is_installed(r) and re.match(r"[\w.-]*", r).group() not in (*modules, "torch")]
    print(json.dumps({"modules": here, "requires": missing}))


def inside(folder, name):
    path = os.path.realpath(os.path.join(folder, name))
    return path == folder or path.startswith(folder + os.sep)


def unpack(archive, folder):
    folder = os.path.realpath(folder)
    os.makedirs(folder, exist_ok=True)
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as source:
            source.extractall(folder)  # drops "..", absolute names and links by itself
    else:
        with tarfile.open(archive) as source:
            if hasattr(tarfile, "data_filter"):
                source.extractall(folder, filter="data")
            else:
                for member in source:
                    link = os.path.join(os.path.dirname(member.name), member.linkname) if member.issym() else ""
                    plain = member.isfile() or member.isdir() or (member.issym() and inside(folder, link))
                    if not plain or not inside(folder, member.name):
                        sys.exit(f"{archive}: {member.name} would be written outside of the folder")
                    source.extract(member, folder)
    for path, folders, files in os.walk(folder):
        if "setup.py" in files or "pyproject.toml" in files:
            print(path)
            return
        folders.sort()
    sys.exit(f"{archive}: no setup.py or pyproject.toml in it")


def without_architectures(flags):
    """The flags less every choice of GPU architecture, as one word or two."""
    kept, skip = [], False
    for flag in flags:
        if skip:
            skip = False
            continue
        name = flag.strip("'\"")
        if name in ("-gencode", "--generate-code", "-arch", "--gpu-architecture", "-code", "--gpu-code"):
            skip = True
        elif not name.startswith(("-gencode=", "--generate-code=", "-arch=", "--gpu-architecture=", "-code=sm_")):
            kept.append(flag)
    return kept


def with_threads(flags, threads):
    """The number of nvcc's threads, where setup.py gives one: each takes as much memory as a compiler. In its place,
    since a command that changes is run again."""
    kept, after = [], ""
    for flag in flags:
        name = flag.strip("'\"")
        if after in ("-t", "--threads"):
            flag = str(threads)
        elif name.startswith(("-t=", "--threads=")):
            flag = f"{name.split('=')[0]}={threads}"
        kept.append(flag)
        after = name
    return kept


def without_abi(flags):
    return [flag for flag in flags if f"-D{ABI}=" not in flag]


class Forced:
    """The flags that every compiler command gets, whatever setup.py says."""

    def __init__(self, settings):
        self.abi = [] if settings.get("cxx_abi") is None else [f"-D{ABI}={settings['cxx_abi']}"]
        self.gencode = [f"-gencode={code}" for code in settings.get("gencode", [])]
        self.threads = settings.get("nvcc_threads", 1)

    def host(self, flags):
        return without_abi(flags) + self.abi if self.abi else list(flags)

    def device(self, flags):
        flags = with_threads(self.host(flags), self.threads)
        return without_architectures(flags) + self.gencode if self.gencode else flags

    def extension(self, extension):
        arguments = extension.extra_compile_args or []
        if isinstance(arguments, dict):
            arguments = dict(arguments)
            arguments["cxx"] = self.host(arguments.get("cxx", []))
            arguments["nvcc"] = self.device(arguments.get("nvcc", []))
        else:
            # One list goes to both compilers; nvcc's own words in it would stop the host's.
            arguments = {"cxx": self.host(arguments), "nvcc": self.device(arguments)}
        extension.extra_compile_args = arguments


def force_flags(forced, build):
    """Two places in torch's build class: the extensions before it reads them, and the words of each command before
    the ninja file is written. The second sees what torch and setup.py added on the way."""
    build_extensions = build.BuildExtension.build_extensions

    def with_forced_flags(self):
        for extension in self.extensions:
            forced.extension(extension)
        build_extensions(self)

    build.BuildExtension.build_extensions = with_forced_flags
    compile_objects = getattr(build, "_write_ninja_file_and_compile_objects", None)
    if compile_objects is None:
        say("this torch has no ninja step to watch: the flags are set in the extensions alone")
        return
    signature = inspect.signature(compile_objects)

    def with_forced_words(*args, **kwargs):
        call = signature.bind(*args, **kwargs)
        words = call.arguments
        for name in ("cflags", "post_cflags", "cuda_cflags", "cuda_post_cflags"):
            if words.get(name) is None:
                continue
            flags = without_abi(words[name]) if forced.abi else list(words[name])
            if name.startswith("cuda"):
                flags = with_threads(flags, forced.threads)
                flags = without_architectures(flags) if forced.gencode else flags
            words[name] = flags
        if words.get("post_cflags") is not None:
            words["post_cflags"] = words["post_cflags"] + forced.abi
        if words.get("cuda_post_cflags"):
            words["cuda_post_cflags"] = words["cuda_post_cflags"] + forced.abi + forced.gencode
        return compile_objects(*call.args, **call.kwargs)

    build._write_ninja_file_and_compile_objects = with_forced_words


def refuse_downloads():
    """A ready wheel from the network is not what was asked for: to setup.py it looks as if there were none."""

    def refuse(url, *_, **__):
        url = getattr(url, "full_url", url)
        say(f"refused to download {url}: this builds from source")
        raise urllib.error.HTTPError(str(url), 404, "mica build downloads nothing while it compiles", None, None)

    urllib.request.urlopen = refuse
    urllib.request.urlretrieve = refuse


def build_system_of(folder):
    """The table [build-system] of pyproject.toml; empty for a project that has only a setup.py."""
    path = os.path.join(folder, "pyproject.toml")
    if not os.path.exists(path):
        return {}
    for module in ("tomllib", "tomli", "setuptools._vendor.tomli", "pip._vendor.tomli"):
        try:
            toml = importlib.import_module(module)
            break
        except ImportError:
            continue
    else:
        say("no reader of TOML is here: pyproject.toml is taken to name setuptools")
        return {}
    with open(path, "rb") as file:
        return toml.load(file).get("build-system", {})


def backend_of(folder):
    system = build_system_of(folder)
    for extra in system.get("backend-path", []):
        sys.path.insert(0, os.path.join(folder, extra))
    module, _, attributes = system.get("build-backend", "setuptools.build_meta:__legacy__").partition(":")
    backend = importlib.import_module(module)
    for attribute in filter(None, attributes.split(".")):
        backend = getattr(backend, attribute)
    return backend


def build_wheel(settings):
    os.chdir(settings["source"])
    if settings["refuse_downloads"]:
        refuse_downloads()
    # NOTE: setuptools before torch, since it replaces distutils at its import.
    import setuptools  # noqa: F401
    import torch
    import torch.utils.cpp_extension as cpp_extension

    if settings.get("cxx_abi") is not None and hasattr(torch._C, ABI):
        setattr(torch._C, ABI, bool(settings["cxx_abi"]))  # setup.py and torch add the flag by this
    force_flags(Forced(settings), cpp_extension)
    os.makedirs(settings["wheel_folder"], exist_ok=True)
    name = backend_of(settings["source"]).build_wheel(settings["wheel_folder"])
    say(f"built {name}")


def check(settings):
    folder = settings["folder"]
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(settings["wheel"]) as wheel:
        wheel.extractall(folder)
    sys.path.insert(0, folder)
    result = {"imported": [], "failed": "", "compared": None}
    try:
        import torch  # noqa: F401

        for module in settings["modules"]:
            importlib.import_module(module)
            result["imported"].append(module)
    except BaseException as error:  # an extension may end in anything
        result["failed"] = f"{type(error).__name__}: {error}"
    if not result["failed"] and settings.get("compare"):
        result["compared"] = compare_attention()
    print("\n" + json.dumps(result))


def compare_attention():
    """flash-attn against Mica, forward and backward, on one small case; else a word why not."""
    import torch

    if not torch.cuda.is_available():
        return "torch sees no GPU here"
    if importlib.util.find_spec("mica") is None:
        return "Mica's Python package is not in this Python"
    import mica
    from flash_attn import flash_attn_func

    torch.manual_seed(7)
    shape = (2, 128, 4, 64)  # batch, rows, heads, head dimension
    mine = [torch.randn(shape, device="cuda", dtype=torch.float16, requires_grad=True) for _ in range(3)]
    theirs = [tensor.detach().clone().requires_grad_() for tensor in mine]
    gradient = torch.randn(shape, device="cuda", dtype=torch.float16)
    outputs = [mica.attention(*mine, causal=True), flash_attn_func(*theirs, causal=True)]
    for output in outputs:
        output.backward(gradient)
    pairs = [tuple(outputs), *((a.grad, b.grad) for a, b in zip(mine, theirs))]
    worst = max((a.float() - b.float()).abs().max().item() for a, b in pairs)
    return {"largest_difference": worst, "bound": 2e-2, "equal": worst <= 2e-2}


def main():
    task, *arguments = sys.argv[1:]
    if task == "probe":
        probe(arguments[0], arguments[1:])
    elif task == "unpack":
        unpack(*arguments)
    else:
        with open(arguments[0]) as file:
            settings = json.load(file)
        {"build": build_wheel, "check": check}[task](settings)


if __name__ == "__main__":
    main()
