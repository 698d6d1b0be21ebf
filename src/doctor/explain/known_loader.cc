// SPDX-License-Identifier: Apache-2.0
#include "doctor/explain/known_failures.h"

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
       {"symbol {symbol@}, version {library@} not defined in file {file} with link time reference",
        "symbol {symbol@} version {library@} not defined in file {file} with link time reference",
        "undefined reference to '{symbol@}@lib{library@}'"},
       {"version libcu", "version libnv", "@libcu", "@libnv"},
       "{symbol} is asked of {library}, and the copy that is found first does not have it: two releases of CUDA lie "
       "side "
       "by side, an older one on LD_LIBRARY_PATH, in ld.so.cache or in the conda environment before the one that "
       "PyTorch "
       "or the toolkit brings.",
       "unset LD_LIBRARY_PATH, or take the older CUDA's folders out of it; then {python} -c 'import torch'; `ldconfig "
       "-p "
       "| grep libcublas` shows what the system has"},
      {"FOLDER_NOEXEC",
       Role::kCause,
       {"{file}: failed to map segment from shared object: Operation not permitted",
        "{file}: failed to map segment from shared object"},
       {},
       "{file} is there and was opened, and the kernel refused to map its code: the folder lies on a file system that "
       "is mounted noexec (/tmp, a home or a scratch file system often is).",
       "findmnt -T FILE -o TARGET,OPTIONS shows noexec; make the environment, or point what was unpacked there "
       "(TMPDIR, TORCH_EXTENSIONS_DIR, TRITON_CACHE_DIR), in a folder without it",
       {"shared object: Cannot allocate memory"}},
      {"FOLDER_NOEXEC",
       Role::kCause,
       {"[Errno 13] Permission denied: '{program}'"},
       {"/pip-build-env-"},
       "{program} was unpacked into the temporary folder and could not be started: that is mounted noexec.",
       "mkdir -p $HOME/tmp && TMPDIR=$HOME/tmp {pip} install {project} ...; findmnt -T /tmp -o TARGET,OPTIONS shows "
       "noexec"},
      {"CUDA_LIBRARY_SHADOWED",
       Role::kCause,
       {"cuDNN version incompatibility: PyTorch was compiled against",
        "cuDNN version mismatch: PyTorch was compiled against"},
       {},
       "PyTorch brings the cuDNN that it was compiled with, and another one was loaded: an older copy on "
       "LD_LIBRARY_PATH, in ld.so.cache or in the conda environment stands before it.",
       "unset LD_LIBRARY_PATH, or take the folder with the other libcudnn.so out of it; then {python} -c 'import "
       "torch; print(torch.backends.cudnn.version())'"},
      {"CUDA_MAJOR",
       Role::kCause,
       {"undefined symbol: cusparse{symbol@}"},
       {"csrgemm", "csrmm", "csrmv", "csr2dense", "csrsv"},
       "cusparse{symbol} left cuSPARSE in CUDA 11 or 12: the file was built for an older CUDA than the one that was "
       "loaded.",
       "{pip} install -U --force-reinstall --no-deps PACKAGE (a release for this CUDA), or build it again: mica build "
       "PACKAGE"},
      {"CUDA_LIBRARY_SHADOWED",
       Role::kCause,
       {"undefined symbol: _nvJitLink{symbol@}", "undefined symbol: nccl{symbol@}", "undefined symbol: cudnn{symbol@}",
        "undefined symbol: cusparse{symbol@}", "undefined symbol: cublas{symbol@}",
        "undefined symbol: nvjitlink{symbol@}"},
       {},
       "The CUDA library that was loaded is older than the one this file was linked with: an older copy on "
       "LD_LIBRARY_PATH, in ld.so.cache or in the conda environment stands before the one that PyTorch brings.",
       "unset LD_LIBRARY_PATH, or take the older CUDA's folders out of it; then {python} -c 'import torch'"},
      {"UNDEFINED_SYMBOL",
       Role::kCause,
       {"undefined symbol: iJIT_{symbol@}"},
       {},
       "conda's PyTorch takes this symbol from MKL, which has it up to 2024.0 only.",
       "conda install 'mkl<2024.1' (or take PyTorch from pip, which brings its own MKL)"},
      {"UNDEFINED_SYMBOL",
       Role::kCause,
       {"undefined symbol: numa_{symbol@}"},
       {},
       "numa_{symbol} belongs to libnuma, and the file was linked without naming it.",
       "apt-get install -y libnuma1, then LD_PRELOAD=libnuma.so.1 {python} ..."},
      {"UNDEFINED_SYMBOL",
       Role::kCause,
       {"undefined symbol: THP{symbol@}"},
       {},
       "THP{symbol} belongs to PyTorch's libtorch_python.so: the extension was imported before torch, or was built for "
       "another PyTorch.",
       "write `import torch` before it: {python} -c 'import torch, MODULE'; if it stays, build it again for this "
       "PyTorch"},
      {"GLIBCXX_TOO_OLD",
       Role::kCause,
       {"undefined symbol: _ZNSt{symbol@}", "undefined symbol: _ZNKSt{symbol@}", "undefined symbol: _ZSt{symbol@}",
        "undefined symbol: _ZTVNSt{symbol@}", "undefined symbol: _ZTINSt{symbol@}", "undefined symbol: __cxa_{symbol@}",
        "undefined reference to 'std::__throw_"},
       {},
       "The symbol belongs to the C++ library, libstdc++.so.6, and the copy that was loaded does not have it (the "
       "message names no version, which a newer linker would): conda's lib folder and the system's each have one, and "
       "the first to be loaded serves all.",
       "conda install -c conda-forge libstdcxx-ng, or start with LD_PRELOAD=$CONDA_PREFIX/lib/libstdc++.so.6 (outside "
       "conda: /usr/lib/x86_64-linux-gnu/libstdc++.so.6)"},
      {"UNDEFINED_SYMBOL",
       Role::kCause,
       {"undefined symbol: nvte_{symbol@}"},
       {},
       "nvte_{symbol} belongs to Transformer Engine's own library, which `import transformer_engine` opens before its "
       "extension: the extension was imported by itself, or the two are of different releases.",
       "{python} -c 'import torch, transformer_engine.pytorch'; if it stays: {pip} install --force-reinstall "
       "--no-build-isolation 'transformer-engine[pytorch]'"},
      // PyTorch's own library misses what another of its libraries has: two releases of it are mixed.
      {"TORCH_SIGNATURE",
       Role::kCause,
       {"torch/lib/libtorch{part}: undefined symbol: _Z{name@}", "torch/lib/libc10{part}: undefined symbol: _Z{name@}"},
       {},
       "The file is PyTorch's own, and so is the library that should have the symbol: libraries of two releases of "
       "PyTorch are mixed, by LD_LIBRARY_PATH (a libtorch that was unpacked elsewhere) or by an installation over "
       "another.",
       "unset LD_LIBRARY_PATH; if it stays: {pip} uninstall -y torch until nothing is left of it, then {pip} install "
       "--no-cache-dir torch"},
      {"PY_SYMBOL",
       Role::kCause,
       {"module was compiled for Python {version}, but the interpreter version is incompatible: {here}"},
       {},
       "pybind11 compares the Python that an extension was built for ({version}) with the one that imports it "
       "({here}), "
       "and stops. Where pip installed it all the same, the extension's file name does not say which Python it is for.",
       "{pip} install --force-reinstall --no-deps another release of the package, whose extension is for {python}; or "
       "an "
       "environment of Python {version}"},
      {"PY_SYMBOL",
       Role::kCause,
       {"undefined symbol: {symbol@}"},
       {"undefined symbol: Py", "undefined symbol: _Py"},
       "{symbol} belongs to CPython, and this interpreter does not have it: the extension was built for another "
       "version of Python.",
       "{pip} install --force-reinstall --no-deps the wheel whose cp tag is that of {python}"},
      {"TORCH_SIGNATURE",
       Role::kCause,
       {"undefined symbol: {symbol@}", "undefined symbol {symbol@}"},
       {"undefined symbol:", "undefined symbol _Z"},
       "Nothing that is loaded defines {symbol}.",
       "mica doctor FILE.so shows which library should have it"},
      // The same on macOS, whose names have one underscore more, and on Android.
      {"TORCH_SIGNATURE",
       Role::kCause,
       {"Symbol not found: _{symbol@}", "symbol not found in flat namespace '_{symbol@}'",
        "cannot locate symbol '{symbol@}'"},
       {"Symbol not found: __Z", "flat namespace '__Z", "cannot locate symbol \"_Z", "cannot locate symbol '_Z"},
       "Nothing that is loaded defines {symbol}.",
       "mica doctor FILE.so shows which library should have it"},
      {"DRIVER_MISSING",
       Role::kCause,
       {"libcuda.so.1: cannot open shared object file"},
       {},
       "libcuda.so.1 comes with the NVIDIA driver, not with CUDA or PyTorch, and there is none here: a login node, a "
       "container started without GPUs, or a machine without the driver.",
       "run it on a machine with a GPU; in a container: docker run --gpus all ..., or apptainer exec --nv ..."},
      // These libraries are numbered as CUDA is.
      {"CUDA_MAJOR",
       Role::kCause,
       {"libcudart.so.{major}: cannot open shared object file", "libcublas.so.{major}: cannot open shared object file",
        "libcublasLt.so.{major}: cannot open shared object file", "libnvrtc.so.{major}: cannot open shared object file",
        "libnvJitLink.so.{major}: cannot open shared object file",
        "libcupti.so.{major}: cannot open shared object file"},
       {},
       "The file was built for CUDA {major}, and neither PyTorch nor the system has that one loaded: PyTorch is for "
       "the "
       "CPU or for another CUDA major, or the package does without PyTorch and wants a toolkit on the machine.",
       "a wheel of the package for the CUDA that {python} -c 'import torch; print(torch.version.cuda)' prints (for "
       "flash-attn, mica pick names it); or a PyTorch of CUDA {major}, imported first; or the libraries alone: mica "
       "doctor lists the toolkits here, then export LD_LIBRARY_PATH=/usr/local/cuda-{major}/lib64"},
      {"CUDA_MAJOR",
       Role::kCause,
       {"libcusparse.so.{major}: cannot open shared object file",
        "libcusolver.so.{major}: cannot open shared object file", "libcufft.so.{major}: cannot open shared object file",
        "libcurand.so.{major}: cannot open shared object file"},
       {},
       "The file was built for a CUDA whose library ends in .so.{major}, and neither PyTorch nor the system has that "
       "one loaded: PyTorch is for the CPU or for another CUDA major. The number is not CUDA's: of CUDA 11 are "
       "libcufft.so.10, libcusolver.so.11 and libcusparse.so.11, of CUDA 12 libcufft.so.11, libcusolver.so.11 and "
       "libcusparse.so.12, of CUDA 13 libcufft.so.12, libcusolver.so.12 and libcusparse.so.12; libcurand.so.10 is of "
       "all three.",
       "mica pick names the wheel that fits this PyTorch; or install a PyTorch of that CUDA"},
      {"CUDA_MAJOR",
       Role::kCause,
       {"libtorch_hip.so: cannot open shared object file", "libc10_hip.so: cannot open shared object file",
        "libamdhip64.so.{major}: cannot open shared object file"},
       {},
       "The file was built for ROCm (AMD's GPUs), and the PyTorch here is a build for CUDA or for the CPU: two "
       "packages "
       "were taken from different indices.",
       "{pip} install --force-reinstall torch torchvision torchaudio in one command, from one index"},
      {"TORCH_SIGNATURE",
       Role::kCause,
       {"libtorch_cuda_cu.so: cannot open shared object file", "libtorch_cuda_cpp.so: cannot open shared object file"},
       {},
       "Only PyTorch from 1.8 to 1.13 had its CUDA code in two libraries of these names: the file was built for one of "
       "them, and another PyTorch is here, or none was imported before it.",
       "`import torch` before it, where {python} -c 'import torch; print(torch.__version__)' prints one of these; else "
       "{pip} install -U --force-reinstall --no-deps PACKAGE (a release for this PyTorch), or build it again: mica "
       "build PACKAGE"},
      {"NEEDED_MISSING",
       Role::kCause,
       {"libc10.so: cannot open shared object file", "libc10_cuda.so: cannot open shared object file",
        "libtorch.so: cannot open shared object file", "libtorch_cpu.so: cannot open shared object file",
        "libtorch_cuda.so: cannot open shared object file", "libtorch_python.so: cannot open shared object file"},
       {},
       "The extension finds PyTorch's libraries only when PyTorch is loaded already: it was imported before torch, or "
       "the PyTorch here is a build without that library (one for the CPU has no libc10_cuda.so and no "
       "libtorch_cuda.so).",
       "write `import torch` before it; if that changes nothing: {python} -c 'import torch; "
       "print(torch.version.cuda)'"},
      {"NEEDED_MISSING",
       Role::kCause,
       {"{library}: cannot open shared object file: Permission denied"},
       {},
       "{library} is there, and this user may not read it, or may not enter a folder above it.",
       "namei -l {library} shows which one; chmod a+rX of it (by its owner)"},
      {"BUILD_FAILED",
       Role::kSymptom,
       {"{library}: cannot open shared object file"},
       {"torch_extensions/"},
       "{library} is what PyTorch compiles at first use, and that failed: in an earlier run, or in another process "
       "that "
       "compiles it now. The compiler's words stand in the output of the first process",
       "rm -rf ~/.cache/torch_extensions, then run it with one process and 2>&1 | mica explain"},
      {"UNDEFINED_SYMBOL",
       Role::kCause,
       {"DLL load failed while importing {module}: The specified procedure could not be found"},
       {},
       "{module} is there, and so are the DLLs that it needs, but one of them has a function no more that {module} "
       "asks "
       "for: PyTorch or CUDA is of another release than the one that {module} was built for.",
       "{pip} install --force-reinstall --no-deps the wheel of {module} for the torch that {python} -c \"import torch; "
       "print(torch.__version__)\" prints"},
      {"NEEDED_MISSING",
       Role::kCause,
       {"DLL load failed while importing {module}: The specified module could not be found",
        "DLL load failed while importing {module}: {words*}"},
       {},
       "{module} is there, and a DLL that it needs is not found: Windows does not say which. Nearly always PyTorch or "
       "CUDA is of another release than the one that {module} was built for.",
       "{python} -c \"import torch, {module}\" (torch first); then {pip} install --force-reinstall --no-deps the wheel "
       "of {module} for the torch that {python} -c \"import torch; print(torch.__version__)\" prints"},
      // The same of ctypes on Windows, and of libraries that open others by their names.
      {"NEEDED_MISSING",
       Role::kCause,
       {"Could not find module '{library}' (or one of its dependencies)"},
       {},
       "{library} is not there, or a DLL that it needs is not found: Windows does not say which. Packages with GPU "
       "code "
       "want the DLLs of their CUDA on PATH.",
       "where cudart64_12.dll (or the release that the package was built for); then set PATH=%CUDA_PATH%\\bin;%PATH%, "
       "or {pip} install --force-reinstall --no-cache-dir the package's build for the CPU"},
      {"NEEDED_MISSING",
       Role::kCause,
       {"Unable to load any of...libcudnn_{part}", "nvrtc: error: failed to open libnvrtc-builtins{part}"},
       {},
       "A library of CUDA opens another of its own release by name, and did not find it: PyTorch brings both in "
       "site-packages/nvidia, where only what was loaded by PyTorch is found.",
       "`import torch` before it; or export LD_LIBRARY_PATH=$({python} -c 'import nvidia.cudnn as c, nvidia.cuda_nvrtc "
       "as n; print(c.__path__[0] + \"/lib:\" + n.__path__[0] + \"/lib\")')"},
      {"NEEDED_MISSING",
       Role::kCause,
       {"The {library} library was not found", "Unable to load {library}. Is it installed"},
       {"jaxlib", "jax_plugins"},
       "JAX opens CUDA's libraries by name, and {library} or one that it needs (cuSPARSE: libnvJitLink) was not found, "
       "or an older copy on LD_LIBRARY_PATH was.",
       "unset LD_LIBRARY_PATH; {pip} install -U 'jax[cuda12]' (cuda13 for a driver from 580 on)"},
      {"MODULE_MISSING",
       Role::kCause,
       {"Shared library with base name '{library}' not found"},
       {},
       "The Python files of the package are there, its library {library} is not: it was installed without compiling "
       "it, or a checkout of its source in the current folder is found first.",
       "cd to another folder and try again; then {pip} install --force-reinstall --no-cache-dir --no-deps PACKAGE"},
      // Classes of pybind11 are known by name to all modules of a process.
      {"PACKAGE_API",
       Role::kCause,
       {"generic_type: cannot initialize type '{type}': an object with that name is already defined",
        "generic_type: type '{type}' is already registered"},
       {},
       "Two compiled modules define {type}, and pybind11 lets only one of them: the same package is installed twice "
       "under different names (spconv and spconv-cu118), or two packages carry a copy of the same code.",
       "{pip} list | grep -i PACKAGE shows both: {pip} uninstall -y all of them, then {pip} install the one for this "
       "CUDA; for two packages: import them in different processes, or another release of one"},
      {"PACKAGE_API",
       Role::kCause,
       {"could not convert default argument...(type not registered yet?)"},
       {},
       "The module takes a class from another compiled module, and that one does not bring it in this form: the two "
       "were built for another release of each other, or with other compilers.",
       "{pip} install -U --force-reinstall both in one command (spconv: the same -cuNNN of spconv and cumm)"},
      {"NEEDED_MISSING",
       Role::kCause,
       {"ImportError: {library}: cannot open shared object file",
        "{library}: cannot open shared object file: No such file", "OSError: {library}: cannot open shared object",
        "{library}: cannot open shared object file"},
       {},
       "The file needs {library}, which is not on LD_LIBRARY_PATH, not in ld.so.cache and not beside it.",
       "install the package that has {library}, or add its folder to LD_LIBRARY_PATH; mica doctor FILE.so lists where "
       "it looked"},
      {"GLIBC_TOO_OLD",
       Role::kCause,
       {"version 'GLIBC_{version}' not found"},
       {"version 'GLIBC_{version}' not found (...flash_attn"},
       "The file was built on a system whose C library is newer than the one here; a C library cannot be replaced by "
       "pip. Official flash-attn wheels from 2.8.0 on need GLIBC_2.32 (Ubuntu 20.04 has 2.31, RHEL 8 has 2.28); "
       "2.7.4.post1 is the last one built on an older system.",
       "build it here, against this C library: mica build flash-attn; or {pip} install 'flash-attn==2.7.4.post1' "
       "--no-build-isolation; or a container of a newer system"},
      {"GLIBC_TOO_OLD",
       Role::kCause,
       {"version 'GLIBC_{version}' not found", "undefined reference to '{symbol@}@GLIBC_{version}'"},
       {},
       "The file was built on a system whose C library is newer than the one here: it asks for {version}. A C library "
       "cannot be replaced by pip.",
       "take a wheel for an older system (manylinux_2_28: the number is the C library's, `ldd --version` says the one "
       "here), often an older release; or build it here: {pip} install --force-reinstall --no-deps --no-binary :all: "
       "PACKAGE; or a container of a newer system"},
      {"GLIBCXX_TOO_OLD",
       Role::kCause,
       {"version 'GLIBCXX_{version}' not found", "version 'CXXABI_{version}' not found",
        "version GLIBCXX_{version} not defined in file", "version CXXABI_{version} not defined in file"},
       {},
       "The libstdc++.so.6 that was loaded is older than the compiler that built the file. Often a newer one is there: "
       "conda's lib folder and the system's each have one, and the first to be loaded serves all.",
       "conda install -c conda-forge libstdcxx-ng, or start with LD_PRELOAD=$CONDA_PREFIX/lib/libstdc++.so.6"},
      {"VERSION_MISSING",
       Role::kCause,
       {"version '{version}' not found (required by", "version {version} not defined in file {file} with link time"},
       {},
       "The library that was loaded does not define {version}, or not all of it: an older copy of it was found first.",
       "mica doctor FILE.so shows which copy is found, and where the other one is"},
      {"VERSION_MISSING",
       Role::kCause,
       {"Inconsistency detected by ld.so: dl-version.c: ..._dl_check_map_versions: Assertion"},
       {},
       "A compiled file asks for a version of a library that is not among those it needs: its header was edited "
       "(patchelf --remove-needed). The loader ends the process, and no exception comes of it.",
       "mica doctor FILE.so names the library; then patchelf --add-needed LIBRARY FILE.so, or a new build"},
      {"VERSION_MISSING",
       Role::kCause,
       {"Inconsistency detected by ld.so: dl-lookup.c: ...check_match: Assertion"},
       {},
       "A compiled file was linked with a library that has versions, and the copy that was loaded has none: another "
       "build, or a stand-in. glibc before 2.41 ends the process then, and no exception comes of it.",
       "mica doctor FILE.so names the library; put the copy that has versions first in the search path"},
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
       {"{file}: cannot read file data: Is a directory"},
       {},
       "What has the name of a library is a folder: a container was told to mount a file that was not there, and made "
       "a folder of that name.",
       "remove the folder and mount the file; the driver's libraries: docker run --gpus all ..."},
      {"ELF_DAMAGED",
       Role::kCause,
       {"ImportError: {file}: invalid ELF header", ": invalid ELF header", "ImportError: {file}: file too short",
        ": file too short"},
       {},
       "The file is no library at all, or it was cut off while it was copied or downloaded.",
       "{pip} install --force-reinstall --no-deps --no-cache-dir PACKAGE"},
      {"ELF_MACHINE",
       Role::kCause,
       {"wrong ELF class: {class}", "cannot execute binary file: Exec format error",
        "(mach-o file, but is an incompatible architecture"},
       {},
       "The file is for another kind of machine.",
       "take the wheel whose name ends in the output of `uname -m`"},
      {"ELF_MACHINE",
       Role::kCause,
       {"{file}: CPU ISA level is lower than required"},
       {},
       "The file was compiled for newer processors than the one here (x86-64-v3 means AVX2, v4 AVX-512), and says so "
       "in "
       "its header.",
       "take a build for older processors, or one of this machine: {pip} install --force-reinstall --no-deps "
       "--no-binary "
       ":all: PACKAGE; on a cluster: a node with newer processors (lscpu)"},
      {"STATIC_TLS",
       Role::kCause,
       {"{file}: cannot allocate memory in static TLS block", "cannot allocate memory in static TLS block",
        "cannot load any more object with static TLS"},
       {},
       "The loader has a small block for the thread-local data of libraries that are loaded late, and it is full.",
       "export LD_PRELOAD= the library that the message names, before Python is started; or import its package first"},
      {"PAGE_SIZE",
       Role::kCause,
       {"{file}: ELF load command alignment not page-aligned", "{file}: ELF load command address/offset not"},
       {},
       "The file is laid out for smaller pages of memory than the kernel has (`getconf PAGESIZE`: 65536 on many Arm "
       "servers), or patchelf put its parts so.",
       "take a build for pages of 64 KiB (g++ -Wl,-z,max-page-size=65536; patchelf --page-size 65536), often a newer "
       "release: {pip} install -U PACKAGE; or start a kernel with pages of 4 KiB"},
      {"EXECUTABLE_STACK",
       Role::kCause,
       {"cannot enable executable stack as shared object requires"},
       {},
       "The file asks for an executable stack, which this system (glibc 2.41 and later, or SELinux) refuses.",
       "install a newer build of the package; to repair a copy: patchelf --clear-execstack FILE.so"},
      {"NUMPY_ABI",
       Role::kCause,
       {"numpy.dtype size changed, may indicate binary incompatibility. Expected 88 from C header, got 96",
        "module compiled against ABI version 0x2000000 but this version of numpy is {other}"},
       {},
       "The extension was compiled for NumPy 2, and the NumPy here is 1.x.",
       "{pip} install 'numpy>=2'"},
      {"NUMPY_ABI",
       Role::kCause,
       {"numpy.ndarray size changed, may indicate binary incompatibility. Expected 88 from C header, got 80"},
       {},
       "The extension was compiled for NumPy 1.20 or later, and the NumPy here is older.",
       "{pip} install 'numpy>=1.20,<2'"},
      {"NUMPY_ABI",
       Role::kCause,
       {"module compiled against API version {abi} but this version of numpy is {other}"},
       {},
       "The extension was compiled for a newer NumPy (C interface {abi}) than the one here ({other}).",
       "{pip} install --upgrade numpy"},
      {"NUMPY_ABI",
       Role::kCause,
       {"A module that was compiled using NumPy 1.x cannot be run in NumPy 2",
        "numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got 88",
        "module compiled against ABI version 0x1000009 but this version of numpy is {other}"},
       {},
       "The extension was compiled for NumPy 1.x, and the NumPy here is 2.",
       "{pip} install 'numpy<2', or a newer release of the extension"},
      {"NUMPY_ABI",
       Role::kCause,
       {"needs NumPy {most} or less. Got NumPy {have}", "needs NumPy {most} or less"},
       {},
       "The package knows NumPy up to {most}, looks at the version itself, and stops.",
       "{pip} install 'numpy=={most}.*', or a newer release of the package that says it ({pip} install -U numba)"},
      {"NUMPY_ABI",
       Role::kCause,
       {"No module named 'numpy._core{rest}'", "No module named 'numpy._core'"},
       {},
       "numpy._core is the name that NumPy 2 gave to numpy.core: a module (or a pickled file) made with NumPy 2 is "
       "read "
       "with NumPy 1.",
       "{pip} install 'numpy>=2'"},
      {"NUMPY_ABI",
       Role::kSummary,
       {"RuntimeError: Numpy is not available", "numpy.core.multiarray failed to import",
        "numpy._core.multiarray failed to import", "numpy.dtype size changed",
        "module compiled against ABI version {abi} but this version of numpy is {other}"},
       {},
       "A compiled module could not use NumPy: it was made for another major version (PyTorch before 2.3 knows only "
       "NumPy 1.x), or NumPy is missing.",
       "{pip} install 'numpy<2', or a build of the module made for NumPy 2 ({pip} install -U torch)"},
  };
  return rows;
}

}  // namespace doctor
