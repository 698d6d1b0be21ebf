// SPDX-License-Identifier: Apache-2.0
#include "doctor/known_failures.h"

namespace doctor {

std::span<const KnownFailure> known_loader_failures() {
  static const std::vector<KnownFailure> rows = {
      // What a C++ symbol of PyTorch means is refined by explain.cc, which reads the symbol.
      {"CUDA_LIBRARY_SHADOWED",
       Role::kCause,
       {"undefined symbol: {symbol@}, version {library@}"},
       {"undefined symbol: cu", "undefined symbol: __cu", "undefined symbol: __nv", "undefined symbol: nv",
        "version libcu", "version libnv"},
       "{symbol} is asked of {library}, and the copy of that library which was loaded is older than the one this file "
       "was linked with: an older CUDA on LD_LIBRARY_PATH, in ld.so.cache or in the conda environment stands before "
       "the one that PyTorch brings.",
       "unset LD_LIBRARY_PATH, or take the older CUDA's folders out of it; then {python} -c 'import torch'"},
      {"CUDA_LIBRARY_SHADOWED",
       Role::kCause,
       {"undefined symbol: nccl{symbol@}", "undefined symbol: cudnn{symbol@}", "undefined symbol: cusparse{symbol@}",
        "undefined symbol: cublas{symbol@}", "undefined symbol: nvjitlink{symbol@}"},
       {},
       "The CUDA library that was loaded is older than the one this file was linked with: an older copy on "
       "LD_LIBRARY_PATH, in ld.so.cache or in the conda environment stands before the one that PyTorch brings.",
       "unset LD_LIBRARY_PATH, or take the older CUDA's folders out of it; then {python} -c 'import torch'"},
      {"PY_SYMBOL",
       Role::kCause,
       {"undefined symbol: {symbol@}"},
       {"undefined symbol: Py", "undefined symbol: _Py"},
       "{symbol} belongs to CPython, and this interpreter does not have it: the extension was built for another "
       "version of Python.",
       "{pip} install --force-reinstall --no-deps the wheel whose cp tag is that of {python}"},
      {"TORCH_SIGNATURE",
       Role::kCause,
       {"undefined symbol: {symbol@}"},
       {},
       "Nothing that is loaded defines {symbol}.",
       "mica doctor FILE.so shows which library should have it"},
      {"DRIVER_MISSING",
       Role::kCause,
       {"libcuda.so.1: cannot open shared object file"},
       {},
       "libcuda.so.1 comes with the NVIDIA driver, not with CUDA or PyTorch, and there is none here: a login node, a "
       "container started without GPUs, or a machine without the driver.",
       "run it on a machine with a GPU; in a container: docker run --gpus all ..., or apptainer exec --nv ..."},
      {"CUDA_MAJOR",
       Role::kCause,
       {"libcudart.so.{major}: cannot open shared object file", "libcublas.so.{major}: cannot open shared object file",
        "libcublasLt.so.{major}: cannot open shared object file", "libnvrtc.so.{major}: cannot open shared object file",
        "libcusparse.so.{major}: cannot open shared object file",
        "libcusolver.so.{major}: cannot open shared object file", "libcufft.so.{major}: cannot open shared object file",
        "libcurand.so.{major}: cannot open shared object file"},
       {},
       "The file was built for the CUDA runtime whose library ends in .so.{major}, and neither PyTorch nor the system "
       "has that one loaded: PyTorch is for the CPU or for another CUDA major.",
       "mica pick names the wheel that fits this PyTorch; or install a PyTorch of that CUDA"},
      {"NEEDED_MISSING",
       Role::kCause,
       {"libc10.so: cannot open shared object file", "libc10_cuda.so: cannot open shared object file",
        "libtorch.so: cannot open shared object file", "libtorch_cpu.so: cannot open shared object file",
        "libtorch_cuda.so: cannot open shared object file", "libtorch_python.so: cannot open shared object file",
        "libtorch_cuda_cu.so: cannot open shared object file"},
       {},
       "The extension finds PyTorch's libraries only when PyTorch is loaded already: it was imported before torch, or "
       "the PyTorch here is a build without that library (one for the CPU has no libc10_cuda.so and no "
       "libtorch_cuda.so).",
       "write `import torch` before it; if that changes nothing: {python} -c 'import torch; "
       "print(torch.version.cuda)'"},
      {"NEEDED_MISSING",
       Role::kCause,
       {"ImportError: {library}: cannot open shared object file",
        "{library}: cannot open shared object file: No such file", "OSError: {library}: cannot open shared object"},
       {},
       "The file needs {library}, which is not on LD_LIBRARY_PATH, not in ld.so.cache and not beside it.",
       "install the package that has {library}, or add its folder to LD_LIBRARY_PATH; mica doctor FILE.so lists where "
       "it looked"},
      {"GLIBC_TOO_OLD",
       Role::kCause,
       {"version 'GLIBC_{version}' not found"},
       {},
       "The file was built on a system whose C library is newer than the one here; a C library cannot be replaced by "
       "pip. Official flash-attn wheels from 2.8.0 on need GLIBC_2.32 (Ubuntu 20.04 has 2.31, RHEL 8 has 2.28); "
       "2.7.4.post1 is the last one built on an older system.",
       "take a wheel made for an older glibc, build here ({pip} install flash-attn --no-build-isolation "
       "--no-binary flash-attn), or use a container of a newer system"},
      {"GLIBCXX_TOO_OLD",
       Role::kCause,
       {"version 'GLIBCXX_{version}' not found", "version 'CXXABI_{version}' not found"},
       {},
       "The libstdc++.so.6 that was loaded is older than the compiler that built the file. Often a newer one is there: "
       "conda's lib folder and the system's each have one, and the first to be loaded serves all.",
       "conda install -c conda-forge libstdcxx-ng, or start with LD_PRELOAD=$CONDA_PREFIX/lib/libstdc++.so.6"},
      {"VERSION_MISSING",
       Role::kCause,
       {"version '{version}' not found (required by"},
       {},
       "The library that was loaded does not define {version}: an older copy of it was found first.",
       "mica doctor FILE.so shows which copy is found, and where the other one is"},
      {"SO_NO_PYINIT",
       Role::kCause,
       {"dynamic module does not define module export function (PyInit_{module})",
        "dynamic module does not define init function (init{module})"},
       {},
       "The file is no extension of that name: it was renamed, or built for Python 2, or its PyInit_ function is "
       "hidden.",
       "do not rename compiled modules; install the package anew: {pip} install --force-reinstall --no-deps PACKAGE"},
      {"ELF_DAMAGED",
       Role::kCause,
       {"ImportError: {file}: invalid ELF header", ": invalid ELF header", "ImportError: {file}: file too short",
        ": file too short"},
       {},
       "The file is no library at all, or it was cut off while it was copied or downloaded.",
       "{pip} install --force-reinstall --no-deps --no-cache-dir PACKAGE"},
      {"ELF_MACHINE",
       Role::kCause,
       {"wrong ELF class: {class}", "cannot execute binary file: Exec format error"},
       {},
       "The file is for another kind of machine.",
       "take the wheel whose name ends in the output of `uname -m`"},
      {"STATIC_TLS",
       Role::kCause,
       {"cannot allocate memory in static TLS block"},
       {},
       "The loader has a small block for the thread-local data of libraries that are loaded late, and it is full.",
       "start Python with LD_PRELOAD set to the library that the message names, or import its package first"},
      {"EXECUTABLE_STACK",
       Role::kCause,
       {"cannot enable executable stack as shared object requires"},
       {},
       "The file asks for an executable stack, which this system (glibc 2.41 and later, or SELinux) refuses.",
       "install a newer build of the package; to repair a copy: patchelf --clear-execstack FILE.so"},
      {"NUMPY_ABI",
       Role::kCause,
       {"A module that was compiled using NumPy 1.x cannot be run in NumPy 2", "numpy.dtype size changed",
        "module compiled against ABI version {abi} but this version of numpy is {other}"},
       {},
       "The extension was compiled for another major version of NumPy.",
       "{pip} install 'numpy<2', or install a build of the extension made for NumPy 2"},
  };
  return rows;
}

}  // namespace doctor
