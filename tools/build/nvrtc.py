# SPDX-License-Identifier: Apache-2.0
"""NVRTC through ctypes: device source in, cubin or PTX out. Needs the pip package nvidia-cuda-nvrtc-cu12 and nothing else."""

import ctypes
import functools
import glob
import os
import sys
import sysconfig


class NvrtcMissing(RuntimeError):
    """No NVRTC library was found; the message says where one comes from."""


class CompileError(RuntimeError):
    """The compiler refused the source; `log` is what it said."""

    def __init__(self, name, log):
        super().__init__(f"{name} does not compile:\n{log}")
        self.log = log


def _candidates():
    named = os.environ.get("MICA_NVRTC")
    if named:
        yield named
    # sys.path too: while pip builds, what the build needs lies in a folder that pip added there.
    for root in dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path)):
        yield from sorted(glob.glob(os.path.join(root, "nvidia", "cuda_nvrtc", "lib", "libnvrtc.so.*")))


@functools.lru_cache(maxsize=None)
def library():
    """The loaded library. Its builtins lie beside it, which is where NVRTC looks for them."""
    for path in _candidates():
        try:
            loaded = ctypes.CDLL(path)
        except OSError as error:
            raise NvrtcMissing(f"{path} does not load: {error}") from error
        loaded.nvrtcGetErrorString.restype = ctypes.c_char_p
        return loaded
    raise NvrtcMissing("no libnvrtc: pip install nvidia-cuda-nvrtc-cu12, or set MICA_NVRTC to a libnvrtc.so")


def available():
    """None if NVRTC can be used, else the reason why not."""
    try:
        library()
    except NvrtcMissing as error:
        return str(error)
    return None


def version():
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


def _check(result):
    if result != 0:
        raise RuntimeError("nvrtc: " + library().nvrtcGetErrorString(result).decode())


def _strings(items):
    return (ctypes.c_char_p * len(items))(*[item.encode() for item in items])


def _fetch(program, size_function, data_function):
    size = ctypes.c_size_t()
    _check(size_function(program, ctypes.byref(size)))
    data = ctypes.create_string_buffer(max(size.value, 1))
    _check(data_function(program, data))
    return data.raw[: size.value]


def compile(source, name, options, headers):
    """Compiles one translation unit.

    source: the text. name: what messages call it. options: command-line options, such as --gpu-architecture=sm_80.
    headers: {name as in #include: text}; NVRTC reads no file of the machine unless an option says so.
    Returns (image, log): a cubin for sm_XX, PTX for compute_XX. Raises CompileError, or NvrtcMissing.
    """
    nvrtc = library()
    program = ctypes.c_void_p()
    _check(
        nvrtc.nvrtcCreateProgram(
            ctypes.byref(program),
            source.encode(),
            name.encode(),
            len(headers),
            _strings(list(headers.values())),
            _strings(list(headers.keys())),
        )
    )
    try:
        result = nvrtc.nvrtcCompileProgram(program, len(options), _strings(options))
        log = _fetch(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).rstrip(b"\0").decode()
        if result != 0:
            raise CompileError(name, log or nvrtc.nvrtcGetErrorString(result).decode())
        if any(option.startswith("--gpu-architecture=compute_") for option in options):
            return _fetch(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX), log
        return _fetch(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN), log
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
