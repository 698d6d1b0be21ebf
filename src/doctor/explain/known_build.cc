// SPDX-License-Identifier: Apache-2.0
#include "doctor/explain/known_failures.h"

namespace doctor {
namespace {

// What shows that a missing module was missed by a build, not by a program.
const std::vector<const char*> kBuild = {"setup.py",
                                         "build_wheel",
                                         "pip-build-env",
                                         "build dependencies",
                                         "requirements to build wheel",
                                         "build-isolation",
                                         "build isolation",
                                         "Failed to build",
                                         "Failed building wheel",
                                         "Failed to download and build",
                                         "metadata-generation-failed",
                                         "get_requires_for_build",
                                         "declare it as a build dependency",
                                         "This error originates from the build backend",
                                         "ChefBuildError",
                                         "bdist_wheel"};

constexpr const char* kIsolationCause =
    "setup.py imports {module}, but the installer builds in an empty environment of its own, which does not have it. "
    "What setup.py says it needs is read too late.";
constexpr const char* kIsolationFix =
    "{pip} install packaging wheel setuptools psutil ninja, then {pip} install {project} --no-build-isolation (uv: uv "
    "pip install --no-build-isolation {project})";

}  // namespace

std::span<const KnownFailure> known_build_failures() {
  static const std::vector<KnownFailure> rows = {
      {"BUILD_ISOLATION", Role::kCause, {"No module named '{module}'"}, kBuild, kIsolationCause, kIsolationFix},
      // The last line of what pip shows of a build, where no more was pasted.
      {"BUILD_ISOLATION",
       Role::kCause,
       {"No module named '{module}' [end of output]"},
       {},
       kIsolationCause,
       kIsolationFix},
      // Without any line around it: these are the modules that a setup.py of this world imports first.
      {"BUILD_ISOLATION",
       Role::kCause,
       {"No module named 'packaging'", "No module named 'psutil'", "No module named 'wheel'", "No module named 'ninja'",
        "No module named 'setuptools'"},
       {},
       "A setup.py that imports the module at its top (flash-attn's does) was run by an installer that builds in an "
       "empty "
       "environment of its own, or in a Python that never had it; that it is installed elsewhere does not help.",
       "{pip} install packaging wheel setuptools psutil ninja, then {pip} install {project} --no-build-isolation",
       {"File \"", "line "}},
      {"TORCH_MISSING",
       Role::kCause,
       {"No module named 'torch'"},
       {},
       "This Python has no PyTorch: it is installed in another environment.",
       "{pip} install torch, or start the Python that has it (mica doctor lists them)"},
      {"BUILD_NVCC_MISSING",
       Role::kCause,
       {"sh: {line}: :{path*}/bin/nvcc: not found", "sh: line {line}: :{path*}/bin/nvcc: No such file",
        "No such file or directory: ':{path*}/bin/nvcc'"},
       {},
       "CUDA_HOME is one folder, and here it begins with a colon (:{path}): it was set as a list is, from a variable "
       "that was empty.",
       "export CUDA_HOME={path} PATH={path}/bin:$PATH, and put the same in ~/.bashrc in place of "
       "CUDA_HOME=$CUDA_HOME:{path}"},
      {"BUILD_NVCC_MISSING",
       Role::kCause,
       {"CUDA_HOME environment variable is not set",
        "CUDA_HOME does not exist, unable to compile CUDA op",
        "MissingCUDAException",
        "nvcc was not found",
        "name 'bare_metal_version' is not defined",
        "[Errno 2] No such file or directory: '{path*}/bin/nvcc'",
        "nvcc: command not found",
        "nvcc: not found",
        "nvcc not found at",
        "No CMAKE_CUDA_COMPILER could be found",
        "Failed to find nvcc",
        "Unable to find nvcc",
        "CUDA_TOOLKIT_ROOT_DIR not found or specified",
        "command not found: nvcc",
        "nvcc' is not recognized as a",
        "nvcc: Kommando nicht gefunden",
        "nvcc: commande introuvable",
        "nvcc: orden no encontrada",
        "nvcc: 未找到命令",
        "nvcc：未找到命令"},
       {},
       "The source is compiled with nvcc, and none was found: PyTorch's own CUDA libraries do not bring it.",
       "mica doctor lists the toolkits here: export CUDA_HOME=/usr/local/cuda PATH=/usr/local/cuda/bin:$PATH; none? "
       "mica build {project} --install brings an nvcc by pip where PyTorch is for CUDA 13 (before: conda install -c "
       "nvidia "
       "cuda-toolkit); on a cluster whose toolkits are modules: mica build {project} --slurm --module cuda --install; "
       "or a "
       "ready wheel: mica pick"},
      {"BUILD_NVCC_TOO_OLD",
       Role::kCause,
       {"FlashAttention is only supported on CUDA {minimum} and above",
        "FlashAttention-3 is only supported on CUDA {minimum} and above"},
       {},
       "The first nvcc that is found is older than {minimum}. Often a newer toolkit is there, and CUDA_HOME or PATH "
       "names the old one.",
       "export CUDA_HOME=/usr/local/cuda-12.8 PATH=$CUDA_HOME/bin:$PATH (mica doctor lists the toolkits here), or use "
       "{pip} install 'nvidia-cuda-nvcc-cu12'"},
      {"BUILD_NO_ARCH",
       Role::kCause,
       {"Unsupported gpu architecture 'compute_'", "Unsupported gpu architecture 'compute_N'",
        "Unsupported gpu architecture 'compute_native'"},
       {},
       "The build asked for the GPU of this machine and got no number: none is visible to it, or its CMake (before "
       "3.24) does not know `native`.",
       "export TORCH_CUDA_ARCH_LIST=\"8.0;9.0\" (the GPUs it shall run on; with CMake: "
       "-DCMAKE_CUDA_ARCHITECTURES=\"80;90\") and {pip} install {project} --no-build-isolation"},
      {"BUILD_ARCH_UNSUPPORTED_BY_NVCC",
       Role::kCause,
       {"Unsupported gpu architecture 'compute_2{rest}'", "Unsupported gpu architecture 'compute_3{rest}'"},
       {},
       "nvcc no longer knows this architecture: compute_2x left CUDA in 9.0, compute_30 in 11.0, compute_35 and "
       "compute_37 in 12.0. The project's list of architectures is older than the toolkit.",
       "leave it out: export TORCH_CUDA_ARCH_LIST=\"8.0;9.0\" (with CMake: -DCMAKE_CUDA_ARCHITECTURES=\"80;90\"; else "
       "delete its -gencode in setup.py or the Makefile), then {pip} install {project} --no-build-isolation"},
      {"BUILD_ARCH_UNSUPPORTED_BY_NVCC",
       Role::kCause,
       {"Unsupported gpu architecture '{arch}'", "unsupported gpu architecture '{arch}'",
        "Value '{arch}' is not defined for option 'gpu-architecture'",
        "Unknown CUDA arch ({arch}) or GPU not supported"},
       {},
       "nvcc (or this PyTorch's list) does not know {arch}: it is too old for it (compute_86 needs CUDA 11.1, "
       "compute_89 "
       "and compute_90 need 11.8, compute_100 and compute_120 need 12.8, compute_110 needs 13.0), or so new that it "
       "dropped it.",
       "mica doctor lists the toolkits here: export CUDA_HOME to a newer one; or leave the architecture out: export "
       "TORCH_CUDA_ARCH_LIST=\"8.0;8.6\" (flash-attn: FLASH_ATTN_CUDA_ARCHS=\"80;90\") and {pip} install {project} "
       "--no-build-isolation"},
      {"BUILD_ARCH_UNSUPPORTED_BY_NVCC",
       Role::kCause,
       {"Value '{arch}' is not defined for option 'gpu-name'"},
       {},
       "ptxas does not know {arch}: it is older than the GPU. Triton brings a ptxas of its own, and takes another "
       "where "
       "it is told to.",
       "{pip} install -U triton (with the torch that goes with it); or export "
       "TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas "
       "of a newer toolkit (mica doctor lists the toolkits here)"},
      {"BUILD_CUDA_MAJOR_MISMATCH",
       Role::kCause,
       // The second as later releases print it, with the numbers behind the words.
       {"The detected CUDA version ({nvcc}) mismatches the version that was used to compile PyTorch ({torch})",
        "The detected CUDA version (%s) mismatches the version that was used to compilePyTorch (%s). Please make sure "
        "to "
        "use the same CUDA versions.', '{nvcc}', '{torch}'"},
       {},
       "nvcc is of CUDA {nvcc}, PyTorch was compiled with {torch}: the majors must agree.",
       "export CUDA_HOME=/usr/local/cuda-{torch} PATH=/usr/local/cuda-{torch}/bin:$PATH (mica doctor lists the "
       "toolkits "
       "here; any of that major serves), or install the PyTorch of nvcc's CUDA"},
      {"BUILD_OOM",
       Role::kCause,
       {"died due to signal 9",
        "^Killed$",
        "line {number}: {pid} Killed",
        "Killed signal terminated program",
        "internal compiler error: Killed (program",
        "oom-kill",
        "Out of memory: Killed process",
        "exceeded memory limit",
        "virtual memory exhausted",
        "Exceeded job memory limit",
        "cc1plus: out of memory",
        "returned non-zero exit status 137",
        "exit code: 137",
        "exit code: -9",
        "failed with exit code 137",
        "ptxas fatal : Memory allocation failure",
        "c++: fatal error: Killed",
        "g++: fatal error: Killed",
        "LLVM ERROR: out of memory",
        "oom_kill event",
        "task {number}: Out Of Memory",
        "tasks {numbers}: Out Of Memory",
        "OOMKilled",
        "out of memory: Killed process",
        "died with <Signals.SIGKILL",
        "returned a non-zero code: 137",
        "*** [...] Killed",
        "terminated with signal 9 [Killed]",
        "final link failed: memory exhausted"},
       {},
       "The system ended the compiler because memory ran out. Each nvcc thread takes about 5 GB, and setup.py counts "
       "the memory of the whole machine, not the limit of the container or the job.",
       "MAX_JOBS=1 NVCC_THREADS=1 {pip} install {project} --no-build-isolation, or more memory (docker -m, sbatch "
       "--mem)"},
      {"JOB_OUT_OF_TIME",
       Role::kCause,
       {"CANCELLED AT {when} DUE TO TIME LIMIT"},
       {},
       "Slurm ended the job at its time limit.",
       "sbatch --time=8:00:00 (sinfo -o '%P %l' shows what each partition allows); a build: mica build {project} "
       "--slurm "
       "--time 8:00:00 goes on where it was ended"},
      {"JOB_NODE_FAILED",
       Role::kCause,
       {"CANCELLED AT {when} DUE TO NODE FAILURE"},
       {},
       "The node of the job failed: nothing in the text before it is the reason.",
       "submit it again (sbatch --requeue does so by itself); sinfo -R says what is known of the node"},
      {"DISK_FULL",
       Role::kCause,
       {"No space left on device", "[Errno 28]", "Disk quota exceeded"},
       {},
       "The disk or the quota is full; a build of flash-attn takes several GB in the temporary folder.",
       "TMPDIR=/path/with/space {pip} install ... --no-cache-dir; df -h and quota -s show what is left"},
      {"BUILD_HOST_COMPILER",
       Role::kCause,
       {"unsupported GNU version! gcc versions later than {most} are not supported",
        "The current installed version of {compiler} ({version}) is greater than the maximum required version",
        "The current installed version of {compiler} ({version}) is less than the minimum required version",
        "unsupported clang version", "You need GCC {least} or later", "#error C++17 or later compatible compiler",
        "#error -- unsupported GNU version"},
       {},
       "nvcc works with a range of host compilers, and the g++ that it found is outside of it.",
       "install a g++ inside the range and export CC=gcc-12 CXX=g++-12 NVCC_PREPEND_FLAGS='-ccbin g++-12'"},
      {"BUILD_HOST_COMPILER",
       Role::kCause,
       {"unrecognized command line option '-std={standard}'", "unrecognized command-line option '-std={standard}'"},
       {},
       "The g++ that compiles is too old to know {standard}: C++17 came with g++ 8, C++20 with 11.",
       "g++ --version, then a newer one: apt-get install -y g++-12 (or: conda install -c conda-forge gxx_linux-64=12) "
       "and "
       "export CC=gcc-12 CXX=g++-12 NVCC_PREPEND_FLAGS='-ccbin g++-12'"},
      {"BUILD_HOST_COMPILER",
       Role::kCause,
       {"parameter packs not expanded with"},
       {},
       "nvcc 11.5 (Ubuntu 22.04's nvidia-cuda-toolkit, /usr/bin/nvcc) cannot read the headers of g++ 11. Often a newer "
       "toolkit is there, and this one is found first.",
       "export CUDA_HOME=/usr/local/cuda PATH=/usr/local/cuda/bin:$PATH (mica doctor lists the toolkits here); with "
       "nvcc "
       "11.5: apt-get install -y g++-10 and export CC=gcc-10 CXX=g++-10 NVCC_PREPEND_FLAGS='-ccbin g++-10'"},
      {"BUILD_HOST_COMPILER",
       Role::kCause,
       {"exception specification is incompatible with that of previous function '{function}'"},
       {"mathcalls.h", "math_functions.h"},
       "The C library's headers and CUDA's both declare {function}, and not in the same way: glibc has cospi, sinpi "
       "and "
       "their like since 2.41, rsqrt since 2.42, and this CUDA toolkit is older than that.",
       "build against an older glibc: conda install -c conda-forge gxx_linux-64 'sysroot_linux-64<2.41' and export "
       "NVCC_PREPEND_FLAGS=\"-ccbin $CXX\"; or in a container of a distribution before it (Ubuntu 24.04: docker run "
       "-it "
       "--gpus all nvidia/cuda:12.8.1-devel-ubuntu24.04); or with a newer CUDA toolkit, where there is one"},
      {"BUILD_HOST_COMPILER",
       Role::kCause,
       {"fatal error: {header}: No such file or directory"},
       {"fatal error: filesystem: No", "fatal error: charconv: No", "fatal error: optional: No",
        "fatal error: variant: No", "fatal error: string_view: No", "fatal error: concepts: No",
        "fatal error: span: No", "fatal error: ranges: No", "fatal error: format: No"},
       "<{header}> is a header of the C++ library itself, and the g++ that compiles is too old to have it: optional, "
       "variant and string_view came with g++ 7, filesystem and charconv with 8, concepts, span and ranges with 10, "
       "format with 13.",
       "g++ --version, then a newer one: apt-get install -y g++-12 (or: conda install -c conda-forge gxx_linux-64=12) "
       "and "
       "export CC=gcc-12 CXX=g++-12 NVCC_PREPEND_FLAGS='-ccbin g++-12'"},
      {"BUILD_HOST_COMPILER",
       Role::kCause,
       {"Cannot open include file: 'corecrt.h'", "Cannot open include file: 'stddef.h'",
        "Cannot open include file: 'io.h'", "Error checking compiler version for cl: {words*}",
        "Cannot find compiler 'cl.exe' in PATH", "cl' is not recognized as an internal or external command",
        "unsupported Microsoft Visual Studio version"},
       {},
       "On Windows the compiler is Visual Studio's cl.exe, with the Windows SDK; it is not found, or its release is "
       "outside of nvcc's range. Its paths are set only in its own prompt.",
       "install \"Desktop development with C++\" of the Visual Studio Build Tools (with a Windows SDK), open \"x64 "
       "Native "
       "Tools Command Prompt\", then set DISTUTILS_USE_SDK=1 && {pip} install {project} --no-build-isolation"},
      {"BUILD_HOST_COMPILER",
       Role::kCause,
       {"Failed to find C compiler. Please specify via CC environment variable"},
       {},
       "Triton compiles a small C file at first use and finds no compiler on PATH.",
       "apt-get install -y gcc (or: conda install -c conda-forge gcc_linux-64), then export CC=gcc; on Windows: {pip} "
       "install -U triton-windows"},
      {"BUILD_HOST_COMPILER",
       Role::kCause,
       {"unable to execute '{compiler}': No such file", "command '{compiler}' failed: No such file",
        "error: [Errno 2] No such file or directory: '{compiler}'", "{compiler}: command not found",
        "nvcc fatal : Cannot find compiler '{compiler}'"},
       {"g++", "gcc", "c++", "clang", "cl.exe"},
       "The host compiler is missing.",
       "apt-get install -y g++ (or: conda install -c conda-forge gxx_linux-64)"},
      {"BUILD_HEADERS_MISSING",
       Role::kCause,
       {"Python.h: No such file or directory", "cannot find -lpython{version}"},
       {},
       "Python's header files are missing: distributions ship them in a package of their own.",
       "apt-get install -y python3-dev (of the same version as {python})"},
      {"BUILD_HEADERS_MISSING",
       Role::kCause,
       {"cudnn.h: No such file or directory", "Could not find cudnn_LIBRARY using the following names",
        "Could not find CUDNN", "cudnn_version.h: No such file"},
       {},
       "The headers and the linker's name of cuDNN are not where the build looks: PyTorch brings cuDNN's library for "
       "running, below site-packages/nvidia/cudnn.",
       "{pip} install nvidia-cudnn-cu12 && export CUDNN_PATH=$({python} -c 'import nvidia.cudnn as c; "
       "print(c.__path__[0])') CPATH=$CUDNN_PATH/include:$CPATH LIBRARY_PATH=$CUDNN_PATH/lib:$LIBRARY_PATH"},
      {"BUILD_HEADERS_MISSING",
       Role::kCause,
       {"fatal error: THC/{header}", "fatal error: 'THC/{header}'", "fatal error: TH/{header}",
        "fatal error: 'TH/{header}'", "Cannot open include file: 'THC/{header}'"},
       {},
       "THC is PyTorch's old interface for CUDA, and its headers left PyTorch with 1.11: the source is of before that.",
       "a newer release of the project ({pip} install -U {project} --no-build-isolation), or an environment with the "
       "PyTorch it was written for: {pip} install 'torch<1.11'"},
      {"BUILD_FAILED",
       Role::kCause,
       {"error: 'AT_CHECK' was not declared in this scope", "identifier 'AT_CHECK' is undefined",
        "error: 'THC{name}' was not declared in this scope", "identifier 'THC{name}' is undefined"},
       {},
       "The source uses what PyTorch no longer has: AT_CHECK became TORCH_CHECK in 1.5, and all names of THC left with "
       "1.11.",
       "a newer release of the project ({pip} install -U {project} --no-build-isolation); in a checkout of it: sed -i "
       "s/AT_CHECK/TORCH_CHECK/g in its .cpp and .cu files; or an environment with the PyTorch it was written for"},
      {"BUILD_HEADERS_MISSING",
       Role::kCause,
       {"fatal error: torch/{header}", "fatal error: 'torch/{header}'", "fatal error: ATen/{header}",
        "fatal error: 'ATen/{header}'", "fatal error: c10/{header}"},
       {},
       "PyTorch's headers are not where the compiler looks: the Python that builds has no PyTorch (pip builds in an "
       "environment of its own), or one older than the header.",
       "{python} -c 'import torch; print(torch.__version__, torch.utils.cmake_prefix_path)', then {pip} install "
       "{project} --no-build-isolation with the same Python"},
      {"BUILD_SOURCES_MISSING",
       Role::kCause,
       {"cutlass/{header}: No such file or directory", "cute/{header}: No such file or directory"},
       {},
       "The source comes without CUTLASS: it is a submodule, and archives of the repository leave it out. (A package "
       "that compiles at first use, as flashinfer does, was packed without it.)",
       "in a checkout: git submodule update --init --recursive; a package: {pip} install --force-reinstall "
       "--no-cache-dir --no-deps {project}"},
      {"BUILD_HEADERS_MISSING",
       Role::kCause,
       {"nvshmem.h: No such file or directory", "nvshmemx.h: No such file or directory"},
       {},
       "The source is built on NVSHMEM, and its headers are not where the build looks: NVSHMEM_DIR names no folder, or "
       "one without an include (flashinfer's copy has the libraries only).",
       "{pip} install nvidia-nvshmem-cu12 && export NVSHMEM_DIR=$({python} -c 'import nvidia.nvshmem as n; "
       "print(n.__path__[0])'), then {pip} install --no-build-isolation {project}"},
      {"BUILD_HEADERS_MISSING",
       Role::kCause,
       {"{header}.h: No such file or directory", "{header}.cuh: No such file or directory"},
       {"cuda", "cusparse", "cublas", "cusolver", "curand", "cufft", "nvrtc", "nvToolsExt", "nv/target", "thrust"},
       "A header of the CUDA toolkit is missing: the toolkit is not whole, as some conda and pip packages are.",
       "conda install -c nvidia cuda-toolkit, or the distribution's whole toolkit, and export CUDA_HOME to it (mica "
       "doctor lists the toolkits here)"},
      {"BUILD_FAILED",
       Role::kCause,
       {"nvlink error : Undefined reference to '{symbol_of_gpu}' in '{object}'",
        "nvlink error : Undefined reference to '{symbol_of_gpu}'"},
       {},
       "The linker for GPU code finds {symbol_of_gpu} in none of the objects and libraries that it was given: the "
       "library "
       "that has it is missing from the link, or was built without that part (nvshmemi_ibgda... is in an NVSHMEM with "
       "IBGDA only).",
       "names that begin with nvshmem: {pip} install -U nvidia-nvshmem-cu12 && export NVSHMEM_DIR=$({python} -c "
       "'import "
       "nvidia.nvshmem as n; print(n.__path__[0])'); others: rm -rf build and {pip} install --no-cache-dir "
       "--no-build-isolation {project}"},
      {"BUILD_FAILED",
       Role::kCause,
       {"A single input file is required for a non-link phase when an outputfile is specified"},
       {},
       "nvcc took a piece of an option for a second file: a path with a blank in it (Program Files, a user's name) "
       "stands "
       "in the command without quotation marks, or a variable of flags ends in one that wants a value.",
       "move what has the blank in its path, or name it by a link without one (mklink /J C:\\cuda \"%CUDA_PATH%\" && "
       "set "
       "CUDA_HOME=C:\\cuda); code that is compiled at first use: export TORCH_EXTENSIONS_DIR to a folder without one"},
      {"BUILD_FAILED",
       Role::kSummary,
       {"Could not open input file '{folder*}tmpxft_{rest}'", "Could not open input file {folder*}tmpxft_{rest}"},
       {},
       "nvcc hands files from one of its programs to the next by way of a temporary folder, and one was gone: the "
       "folder is full or is being cleaned, or the program before was ended (memory), often with several builds at "
       "once.",
       "df -h /tmp; then TMPDIR=/path/with/space MAX_JOBS=1 {pip} install --no-build-isolation {project}"},
      {"BUILD_HEADERS_MISSING",
       Role::kCause,
       {"cannot find -lcuda{rest}", "cannot find -lnvrtc", "cannot find -lcublas{rest}", "cannot find -lcudart",
        "cannot find -lcuda"},
       {},
       "The linker finds no library of CUDA: the toolkit is not whole, or its libraries lie in a folder that is not "
       "looked into (lib64/stubs has -lcuda).",
       "export LIBRARY_PATH=$CUDA_HOME/lib64:$CUDA_HOME/lib64/stubs; if they are not there: conda install -c nvidia "
       "cuda-toolkit"},
      {"BUILD_SOURCES_MISSING",
       Role::kCause,
       {"csrc/cutlass is missing"},
       {},
       "The source comes without CUTLASS: it is a submodule, and archives of the repository leave it out.",
       "git submodule update --init csrc/cutlass in a git checkout, or {pip} download --no-binary :all: flash-attn"},
      {"BUILD_SOURCES_MISSING",
       Role::kCause,
       {"ninja: error: '{file}', needed by '{object}', missing and no known rule to make it"},
       {},
       "The build wants to compile {file}, which is not there: the checkout lacks a submodule, the archive leaves the "
       "file out, or the build folder is of another place or release of the source.",
       "git submodule update --init --recursive in the checkout, rm -rf build, and {pip} install {project} "
       "--no-build-isolation --no-cache-dir"},
      {"BUILD_NO_NINJA",
       Role::kHint,
       {"could not find ninja", "Ninja is required to load C++ extensions", "ninja: command not found",
        "Falling back to using the slow distutils backend"},
       {},
       "Without ninja the files are compiled one after the other, for hours.",
       "{pip} install ninja (if it is there: {pip} install --force-reinstall ninja, and `ninja --version` must work)"},
      // Any other header, last of those.
      {"BUILD_HEADERS_MISSING",
       Role::kSummary,
       {"fatal error: {header}: No such file or directory", "fatal error: '{header}' file not found"},
       {},
       "The compiler finds no {header}, which the source includes: it belongs to a library whose development files are "
       "not installed, or to a submodule that the checkout was made without.",
       "in a checkout: git submodule update --init --recursive; a library of the system: apt-get install -y apt-file "
       "&& "
       "apt-file update && apt-file search {header} names its package"},
      {"BUILD_HOST_COMPILER",
       Role::kSummary,
       {"[WinError 2] The system cannot find the file specified", "[WinError 2]"},
       {"build_ext", "cpp_extension", "setup.py", "Failed to build", "BuildExtension"},
       "The build started a program that is not on PATH: on Windows that is Visual Studio's cl.exe, or nvcc. Their "
       "paths are set only in their own prompts.",
       "install \"Desktop development with C++\" of the Visual Studio Build Tools and the CUDA toolkit, open \"x64 "
       "Native "
       "Tools Command Prompt\", check `where cl nvcc`, then set DISTUTILS_USE_SDK=1 && {pip} install {project} "
       "--no-build-isolation"},
      {"BUILD_NO_ARCH",
       Role::kCause,
       {"Unknown compute capability. Specify the target compute capabilities in the {variable} environment variable",
        "Unknown compute capability. Ensure PyTorch with CUDA support is installed"},
       {},
       "No GPU is visible to the build (a login node, docker build, a PyTorch for the CPU), and it was not told what "
       "to "
       "compile for.",
       "export TCNN_CUDA_ARCHITECTURES=\"80;90\" TORCH_CUDA_ARCH_LIST=\"8.0;9.0\" (the GPUs it shall run on), then "
       "{pip} "
       "install --no-build-isolation {project}"},
      {"BUILD_NO_ARCH",
       Role::kCause,
       {"IndexError: list index out of range"},
       {"_get_cuda_arch_flags", "arch_list[-1] += '+PTX'"},
       "No GPU is visible to the build and TORCH_CUDA_ARCH_LIST is not set, so it does not know what to compile for.",
       "export TORCH_CUDA_ARCH_LIST=\"8.0;9.0\" (the GPUs it shall run on) and build again"},
  };
  return rows;
}

}  // namespace doctor
