// SPDX-License-Identifier: Apache-2.0
// Failures in the words that people see, each with the code that explains it.
#pragma once

#include <vector>

namespace explain_cases {

struct Case {
  const char* name;
  const char* code;
  const char* text;       // lines; the message that matters may stand anywhere
  const char* says = "";  // a piece of the cause, the fix or the message
};

inline const std::vector<Case>& all() {
  static const std::vector<Case> cases = {
      // The loader.
      {"new_abi", "TORCH_CXX11_ABI",
       "Traceback (most recent call last):\n"
       "  File \"<stdin>\", line 1, in <module>\n"
       "  File \"/home/u/.venv/lib/python3.10/site-packages/flash_attn/__init__.py\", line 3, in <module>\n"
       "    from flash_attn.flash_attn_interface import (\n"
       "  File \"/home/u/.venv/lib/python3.10/site-packages/flash_attn/flash_attn_interface.py\", line 15, in "
       "<module>\n"
       "    import flash_attn_2_cuda as flash_attn_gpu\n"
       "ImportError: "
       "/home/u/.venv/lib/python3.10/site-packages/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined "
       "symbol: "
       "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
       "cxx11abiTRUE"},
      {"old_abi", "TORCH_CXX11_ABI",
       "ImportError: /usr/local/lib/python3.12/dist-packages/flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so: "
       "undefined "
       "symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs",
       "cxx11abiFALSE"},
      {"cufft_of_cuda_11", "CUDA_MAJOR",
       "OSError: libcufft.so.10: cannot open shared object file: No such file or directory",
       "of CUDA 11 are libcufft.so.10"},
      {"folder_for_a_library", "ELF_DAMAGED", "ImportError: libcuda.so.1: cannot read file data: Is a directory",
       "docker run --gpus all"},
      {"pickled_with_numpy_2", "NUMPY_ABI",
       "    data = pickle.load(f)\n"
       "ModuleNotFoundError: No module named 'numpy._core.multiarray'",
       "numpy>=2"},
      {"a_file_named_as_the_package", "PACKAGE_API",
       "  File \"/home/u/project/tokenizers.py\", line 1, in <module>\n"
       "ImportError: cannot import name 'Tokenizer' from partially initialized module 'tokenizers' (most likely due to "
       "a "
       "circular import) (/home/u/project/tokenizers.py)",
       "called as the package is"},
      {"cpu_level", "ELF_MACHINE", "ImportError: /opt/x/libfast.so: CPU ISA level is lower than required", "x86-64-v3"},
      {"mac_of_the_other_kind", "ELF_MACHINE",
       "ImportError: dlopen(/Users/u/x.so, 0x0002): tried: '/Users/u/x.so' (mach-o file, but is an incompatible "
       "architecture (have 'x86_64', need 'arm64'))"},
      {"link_time_cxx", "GLIBCXX_TOO_OLD",
       "ImportError: /opt/x/y.so: symbol _ZSt28__throw_bad_array_new_lengthv, version GLIBCXX_3.4.29 not defined in "
       "file libstdc++.so.6 with link time reference",
       "libstdcxx-ng"},
      {"link_time_private", "VERSION_MISSING",
       "python: /lib/x86_64-linux-gnu/libpthread.so.0: symbol __libc_vfork, version GLIBC_PRIVATE not defined in file "
       "libc.so.6 with link time reference",
       "GLIBC_PRIVATE"},
      {"old_abi_reference", "TORCH_CXX11_ABI",
       "ImportError: /opt/x/flash_attn_2_cuda.so: undefined symbol: _ZN3c106detail14torchCheckFailEPKcS2_jRKSs",
       "old C++ ABI"},
      {"set_device_int", "TORCH_SIGNATURE",
       "ImportError: /opt/conda/lib/python3.10/site-packages/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: "
       "undefined "
       "symbol: _ZN3c104cuda9SetDeviceEi",
       "SetDevice"},
      {"set_device_int8", "TORCH_SIGNATURE",
       "ImportError: /opt/conda/lib/python3.11/site-packages/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: "
       "undefined "
       "symbol: _ZN3c104cuda9SetDeviceEa",
       "2.7"},
      {"set_device_int8_bool", "TORCH_SIGNATURE", "ImportError: x.so: undefined symbol: _ZN3c104cuda9SetDeviceEab",
       "2.8"},
      {"check_implementation_int", "TORCH_SIGNATURE",
       "ImportError: "
       "/workspace/.venv/lib/python3.12/site-packages/flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so: undefined "
       "symbol: "
       "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib",
       "up to 2.9"},
      {"check_implementation_unsigned", "TORCH_SIGNATURE",
       "ImportError: x.so: undefined symbol: _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb", "2.10 and later"},
      {"operator_call", "TORCH_SIGNATURE",
       "ImportError: /usr/local/lib/python3.10/dist-packages/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: "
       "undefined "
       "symbol: "
       "_ZN2at4_ops5zeros4callEN3c108ArrayRefINS2_6SymIntEEENS2_8optionalINS2_10ScalarTypeEEENS6_INS2_6LayoutEEENS6_"
       "INS2_"
       "6DeviceEEENS6_IbEE",
       "optional"},
      {"symint", "TORCH_SIGNATURE",
       "ImportError: /x/flash_attn_2_cuda.so: undefined symbol: _ZNK3c106SymInt6sym_neERKS0_", "another version"},
      {"error_what", "TORCH_SIGNATURE", "ImportError: /x/vllm/_C.abi3.so: undefined symbol: _ZNK3c105Error4whatEv",
       "newer torch"},
      {"cow_storage", "TORCH_SIGNATURE",
       "ImportError: /x/a.so: undefined symbol: _ZN3c104impl3cow23materialize_cow_storageERNS_11StorageImplE", "2.12"},
      {"cudart_shadowed", "CUDA_LIBRARY_SHADOWED",
       "ImportError: /x/libc10_cuda.so: undefined symbol: cudaGetDriverEntryPointByVersion, version libcudart.so.12",
       "LD_LIBRARY_PATH"},
      {"nvjitlink_shadowed", "CUDA_LIBRARY_SHADOWED",
       "ImportError: /opt/conda/lib/python3.10/site-packages/torch/lib/../../nvidia/cusparse/lib/libcusparse.so.12: "
       "undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12",
       "libnvJitLink.so.12"},
      {"nccl_shadowed", "CUDA_LIBRARY_SHADOWED",
       "ImportError: /v/lib/python3.10/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: "
       "ncclCommWindowRegister",
       "older"},
      {"python_symbol", "PY_SYMBOL",
       "ImportError: /x/_C.cpython-310-x86_64-linux-gnu.so: undefined symbol: _PyThreadState_UncheckedGet", "CPython"},
      {"python_of_pybind11", "PY_SYMBOL",
       "ImportError: Python version mismatch: module was compiled for Python 3.9, but the interpreter version is "
       "incompatible: 3.11.7 (main, Oct 17 2026, 04:42:02) [GCC 12.2.0].",
       "built for (3.9)"},
      {"other_symbol", "UNDEFINED_SYMBOL", "ImportError: /x/libfoo.so: undefined symbol: _ZN3foo3barEv", "foo::bar()"},
      {"no_driver", "DRIVER_MISSING",
       "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory", "--gpus all"},
      {"cudart_major", "CUDA_MAJOR",
       "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory", ".so.12"},
      {"cublas_major", "CUDA_MAJOR",
       "OSError: libcublas.so.11: cannot open shared object file: No such file or directory", ".so.11"},
      {"c10_first", "NEEDED_MISSING",
       "ImportError: libc10.so: cannot open shared object file: No such file or directory", "import torch"},
      {"closed_library", "NEEDED_MISSING", "/x.so: cannot open shared object file: Permission denied",
       "namei -l /x.so"},
      {"other_library", "NEEDED_MISSING",
       "ImportError: libGL.so.1: cannot open shared object file: No such file or directory", "libGL.so.1"},
      {"glibc", "GLIBC_TOO_OLD",
       "ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.32' not found (required by "
       "/home/u/.venv/lib/python3.10/site-packages/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so)",
       "2.7.4.post1"},
      {"glibc_other", "GLIBC_TOO_OLD",
       "ImportError: /lib64/libc.so.6: version `GLIBC_2.34' not found (required by /x/site-packages/other/_C.so)",
       "manylinux_2_28"},
      {"glibc_quotes", "GLIBC_TOO_OLD",
       "ImportError: /lib64/libc.so.6: version ‘GLIBC_2.32’ not found (required by /x/flash_attn_2_cuda.so)"},
      {"glibcxx", "GLIBCXX_TOO_OLD",
       "ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by /x/a.so)",
       "libstdc++"},
      {"cxxabi", "GLIBCXX_TOO_OLD",
       "ImportError: /opt/conda/bin/../lib/libstdc++.so.6: version `CXXABI_1.3.15' not found (required by /x/a.so)"},
      {"other_version", "VERSION_MISSING",
       "ImportError: /usr/lib/libssl.so.1.1: version `OPENSSL_1_1_1' not found (required by /x/_ssl.so)",
       "OPENSSL_1_1_1"},
      {"version_not_needed", "VERSION_MISSING",
       "Inconsistency detected by ld.so: dl-version.c: 204: _dl_check_map_versions: Assertion `needed != NULL' failed!",
       "patchelf"},
      {"no_versions", "VERSION_MISSING",
       "Inconsistency detected by ld.so: dl-lookup.c: 107: check_match: Assertion `version->filename == NULL || ! "
       "_dl_name_match_p (version->filename, map)' failed!",
       "has none"},
      {"no_init", "SO_NO_PYINIT",
       "ImportError: dynamic module does not define module export function (PyInit_flash_attn_2_cuda)"},
      {"damaged", "ELF_DAMAGED", "ImportError: /x/flash_attn_2_cuda.so: invalid ELF header"},
      {"short", "ELF_DAMAGED", "OSError: /x/libtorch_cpu.so: file too short"},
      {"class", "ELF_MACHINE", "OSError: /usr/lib32/libc.so.6: wrong ELF class: ELFCLASS32"},
      {"tls", "STATIC_TLS", "ImportError: /x/libgomp-d22c30c5.so.1.0.0: cannot allocate memory in static TLS block",
       "LD_PRELOAD"},
      {"pages", "PAGE_SIZE", "ImportError: /x/libgomp-d22c30c5.so.1.0.0: ELF load command alignment not page-aligned",
       "65536"},
      {"pages_new", "PAGE_SIZE", "OSError: /x/a.so: ELF load command address/offset not page-aligned"},
      {"stack", "EXECUTABLE_STACK",
       "ImportError: libonnxruntime.so.1: cannot enable executable stack as shared object requires: Invalid argument"},
      {"numpy_core", "NUMPY_ABI", "ImportError: numpy.core.multiarray failed to import"},
      {"numpy", "NUMPY_ABI",
       "A module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.0.1 as it may crash. To support both 1.x "
       "and "
       "2.x\nversions of NumPy, modules must be compiled with NumPy 2.0."},
      // Installers.
      {"metadata_pip", "WHEEL_VERSION_MISMATCH",
       "Discarding file:///w/flash_attn-2.6.3%2Bcu123torch2.4cxx11abiFALSE-cp310-cp310-linux_x86_64.whl: Requested "
       "flash-attn==2.6.3+cu123torch2.4cxx11abifalse from "
       "file:///w/flash_attn-2.6.3%2Bcu123torch2.4cxx11abiFALSE-cp310-cp310-linux_x86_64.whl has inconsistent version: "
       "expected '2.6.3+cu123torch2.4cxx11abifalse', but metadata has '2.6.3'",
       "METADATA"},
      {"metadata_old_pip", "WHEEL_VERSION_MISMATCH",
       "has inconsistent version: filename has ‘2.0.9+cu121torch2.1cxx11abitrue’, but metadata has ‘2.0.9’"},
      {"metadata_uv", "WHEEL_VERSION_MISMATCH",
       "error: Failed to install: flash_attn-2.5.8+cu122torch2.3cxx11abifalse-cp310-cp310-linux_x86_64.whl\n"
       "  Caused by: Wheel version does not match filename: 2.5.8 != 2.5.8+cu122torch2.3cxx11abifalse"},
      {"tags", "WHEEL_TAG_PLATFORM",
       "ERROR: flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl is not a supported wheel on this "
       "platform.",
       "mica pick"},
      {"broken_zip", "WHEEL_ARCHIVE",
       "ERROR: Wheel 'flash-attn' located at /tmp/flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl is invalid."},
      {"cross_device", "BUILD_CROSS_DEVICE_LINK",
       "OSError: [Errno 18] Invalid cross-device link: "
       "'flash_attn-2.8.3+cu12torch2.6cxx11abiFALSE-cp310-cp310-linux_x86_64.whl' -> "
       "'/tmp/pip-wheel-x/flash_attn-2.8.3-cp310-cp310-linux_x86_64.whl'",
       "TMPDIR"},
      {"offline", "NETWORK", "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
       "access"},
      {"guess", "URL_GUESS_404",
       "Guessing wheel URL:  https://github.com/Dao-AILab/flash-attention/releases/download/v2.8.3/"
       "flash_attn-2.8.3+cu12torch2.9cxx11abiTRUE-cp312-cp312-linux_x86_64.whl\n"
       "Precompiled wheel not found. Building from source...",
       "mica pick"},
      {"uv_offline", "NETWORK",
       "error: Request failed after 3 retries\n"
       "  Caused by: Failed to fetch: `https://index.example/simple/flash-attn/`\n"
       "  Caused by: error sending request for url (https://index.example/simple/flash-attn/)\n"
       "  Caused by: client error (Connect)\n"
       "  Caused by: dns error: failed to lookup address information: Name or service not known"},
      {"uv_tags", "WHEEL_NONE_PUBLISHED",
       "  x No solution found when resolving dependencies:\n"
       "  `-> Because torch==2.1.0 has no wheels with a matching Python ABI tag (e.g., `cp313`) and you require "
       "torch==2.1.0, we can conclude that your requirements are unsatisfiable."},
      {"uv_no_version", "WHEEL_NONE_PUBLISHED",
       "  x No solution found when resolving dependencies:\n"
       "  `-> Because there is no version of flash-attn==2.9.0 and you require flash-attn==2.9.0, we can conclude that "
       "your requirements are unsatisfiable.",
       "mica pick"},
      {"uv_no_package", "WHEEL_NONE_PUBLISHED",
       "  `-> Because flash-attn-9 was not found in the package registry and you require flash-attn-9, we can conclude "
       "that your requirements are unsatisfiable."},
      {"poetry_no_file", "WHEEL_NONE_PUBLISHED", "Unable to find installation candidates for flash-attn (2.8.3)"},
      {"uv_path", "WHEEL_TAG_PLATFORM",
       "error: Failed to determine installation plan\n"
       "  Caused by: A path dependency is incompatible with the current platform: "
       "flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl"},
      {"uv_python", "WHEEL_REQUIRES_PYTHON",
       "  x No solution found when resolving dependencies:\n"
       "  `-> Because the current Python version (3.8.10) does not satisfy Python>=3.9 and flash-attn==2.8.3 depends "
       "on "
       "Python>=3.9, we can conclude that flash-attn==2.8.3 cannot be used.",
       "3.8.10"},
      {"pip_python", "WHEEL_REQUIRES_PYTHON",
       "ERROR: Package 'networkx' requires a different Python: 3.9.2 not in '>=3.10'", "3.9.2"},
      {"poetry_no_version", "WHEEL_NONE_PUBLISHED",
       "Because project depends on flash-attn (^2.9) which doesn't match any versions, version solving failed."},
      {"conda_no_package", "WHEEL_NONE_PUBLISHED",
       "PackagesNotFoundError: The following packages are not available from current channels:\n\n  - flash-attn=2.9"},
      {"other_hash", "WHEEL_ARCHIVE",
       "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated the package "
       "versions, please update the hashes."},
      {"no_distribution", "WHEEL_NONE_PUBLISHED",
       "ERROR: No matching distribution found for flash-attn==2.6.3+cu123torch2.4cxx11abifalse"},
      {"torch_replaced", "WHEEL_REQUIRES_TORCH_UNPINNED",
       "Installing collected packages: torch, flash-attn\n  Attempting uninstall: torch\n    Found existing "
       "installation: "
       "torch 2.6.0"},
      {"cute", "FLASH_ATTN_STALE_CUTE", "AttributeError: module 'cutlass.cute' has no attribute 'ThrMma'",
       "flash-attn-4"},
      {"cute_bare", "FLASH_ATTN_STALE_CUTE", "AttributeError: ThrMma"},
      {"cute_module", "FLASH_ATTN_STALE_CUTE", "ModuleNotFoundError: No module named 'flash_attn.cute'"},
      {"cute_below", "FLASH_ATTN_STALE_CUTE", "ModuleNotFoundError: No module named 'flash_attn.cute.interface'"},
      {"no_hopper", "MODULE_MISSING", "ModuleNotFoundError: No module named 'flash_attn_interface'",
       "FlashAttention-3"},
      {"no_extension", "MODULE_MISSING", "ModuleNotFoundError: No module named 'flash_attn_2_cuda'",
       "FLASH_ATTENTION_SKIP_CUDA_BUILD"},
      {"unpad", "FLASH_ATTN_API",
       "    hidden_states, indices, cu_seqlens, max_seqlen = unpad_input(x, mask)\nValueError: too many values to "
       "unpack "
       "(expected 4)",
       "five"},
      {"renamed", "FLASH_ATTN_API",
       "ImportError: cannot import name '_flash_attn_unpadded_forward' from 'flash_attn.flash_attn_interface' (/x.py)"},
      {"keyword", "FLASH_ATTN_API",
       "TypeError: flash_attn_varlen_func() got an unexpected keyword argument 'window_size'"},
      // Builds.
      {"isolation_packaging", "BUILD_ISOLATION",
       "  Getting requirements to build wheel did not run successfully.\n  exit code: 1\n  [20 lines of output]\n"
       "    File \"<string>\", line 14, in <module>\n  ModuleNotFoundError: No module named 'packaging'",
       "--no-build-isolation"},
      {"isolation_torch", "BUILD_ISOLATION",
       "  File \"/tmp/pip-build-env-1x/overlay/lib/python3.10/site-packages/setuptools/build_meta.py\", line 317\n"
       "    File \"<string>\", line 22, in <module>\nModuleNotFoundError: No module named 'torch'",
       "torch"},
      {"isolation_uv", "BUILD_ISOLATION",
       "  × Failed to download and build `flash-attn==2.8.3`\n  ╰─▶ Build backend failed to determine requirements\n"
       "      [stderr]\n      ModuleNotFoundError: No module named 'psutil'",
       "psutil"},
      {"torch_elsewhere", "TORCH_MISSING", "ModuleNotFoundError: No module named 'torch'"},
      {"cuda_home", "BUILD_NVCC_MISSING",
       "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root."},
      {"nvcc_not_found", "BUILD_NVCC_MISSING",
       "UserWarning: flash_attn was requested, but nvcc was not found.  Are you sure your environment has nvcc "
       "available?"},
      {"bare_metal", "BUILD_NVCC_MISSING", "NameError: name 'bare_metal_version' is not defined"},
      {"cuda_117", "BUILD_NVCC_TOO_OLD",
       "RuntimeError: FlashAttention is only supported on CUDA 11.7 and above.  Note: make sure nvcc has a supported "
       "version by running nvcc -V.",
       "11.7"},
      {"arch", "BUILD_ARCH_UNSUPPORTED_BY_NVCC",
       "FAILED: /tmp/x/flash_fwd_hdim128_bf16_sm80.o\n/usr/local/cuda/bin/nvcc -c x.cu\nnvcc fatal   : Unsupported gpu "
       "architecture 'compute_120'\nninja: build stopped: subcommand failed.",
       "compute_120"},
      {"mismatch", "BUILD_CUDA_MAJOR_MISMATCH",
       "RuntimeError:\nThe detected CUDA version (11.8) mismatches the version that was used to compile\nPyTorch "
       "(12.4). "
       "Please make sure to use the same CUDA versions.",
       "12.4"},
      {"oom", "BUILD_OOM",
       "[12/73] /usr/local/cuda/bin/nvcc -c flash_bwd_hdim256_fp16_sm80.cu\nFAILED: /tmp/x.o\nKilled\nninja: build "
       "stopped: subcommand failed.",
       "MAX_JOBS"},
      {"oom_cicc", "BUILD_OOM", "nvcc error   : 'cicc' died due to signal 9 (Kill signal)"},
      {"oom_cc1plus", "BUILD_OOM", "c++: fatal error: Killed signal terminated program cc1plus"},
      {"oom_ptxas", "BUILD_OOM", "ptxas fatal   : Memory allocation failure"},
      {"oom_setuptools", "BUILD_OOM", "error: command '/usr/local/cuda/bin/nvcc' failed with exit code 137"},
      {"no_cudart", "BUILD_HEADERS_MISSING",
       "/usr/bin/ld: cannot find -lcudart: No such file or directory\ncollect2: error: ld returned 1 exit status",
       "LIBRARY_PATH"},
      {"no_cuda", "BUILD_HEADERS_MISSING",
       "/usr/bin/ld: cannot find -lcuda\ncollect2: error: ld returned 1 exit status"},
      {"oom_shell", "BUILD_OOM", "/bin/sh: line 1: 31337 Killed                  /usr/local/cuda/bin/nvcc -c x.cu"},
      {"oom_slurm", "BUILD_OOM",
       "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=123.batch. Some of your processes may have been "
       "killed"},
      {"oom_kubernetes", "BUILD_OOM", "Last State: Terminated\n  Reason: OOMKilled\n  Exit Code: 137"},
      {"oom_cgroup", "BUILD_OOM", "Memory cgroup out of memory: Killed process 1234 (cc1plus) total-vm:8123456kB"},
      {"oom_make", "BUILD_OOM", "make[2]: *** [CMakeFiles/x.dir/build.make:76: x.o] Killed"},
      {"oom_docker", "BUILD_OOM", "The command '/bin/sh -c pip install flash-attn' returned a non-zero code: 137"},
      {"oom_python", "BUILD_OOM",
       "subprocess.CalledProcessError: Command '['ninja', '-v']' died with <Signals.SIGKILL: 9>."},
      {"oom_link", "BUILD_OOM", "collect2: fatal error: ld terminated with signal 9 [Killed]"},
      {"isolation_tail", "BUILD_ISOLATION",
       "      ModuleNotFoundError: No module named 'torch'\n      [end of output]\n\n"
       "  note: This error originates from a subprocess, and is likely not a problem with pip.",
       "--no-build-isolation"},
      {"isolation_poetry", "BUILD_ISOLATION",
       "  ChefBuildError\n\n  Backend operation failed: HookMissing('build_editable')\n"
       "  ModuleNotFoundError: No module named 'torch'"},
      {"nvcc_on_windows", "BUILD_NVCC_MISSING",
       "'nvcc' is not recognized as an internal or external command,\noperable program or batch file."},
      {"cl_on_windows", "BUILD_HOST_COMPILER",
       "'cl' is not recognized as an internal or external command,\noperable program or batch file.", "Visual Studio"},
      {"bitsandbytes_without_its_library", "VARIANT_MISSING",
       "AttributeError: 'NoneType' object has no attribute 'cquantize_blockwise_fp16_nf4'"},
      {"apex_softmax", "MODULE_MISSING",
       "ModuleNotFoundError: No module named 'scaled_upper_triang_masked_softmax_cuda'"},
      {"nvcc_of_zsh", "BUILD_NVCC_MISSING", "zsh: command not found: nvcc"},
      {"nvcc_in_german", "BUILD_NVCC_MISSING", "bash: nvcc: Kommando nicht gefunden."},
      {"nvcc_in_chinese", "BUILD_NVCC_MISSING", "bash: nvcc：未找到命令"},
      {"nvcc_of_cmake", "BUILD_NVCC_MISSING",
       "  Failed to find nvcc.\n\n  Compiler requires the CUDA toolkit.  Please set the CUDAToolkit_ROOT\n  variable."},
      {"oom_slurm_later", "BUILD_OOM",
       "slurmstepd: error: Detected 1 oom_kill event in StepId=123.batch. Some of the step tasks have been OOM Killed.",
       "--mem"},
      {"oom_srun", "BUILD_OOM", "srun: error: nid001277: tasks 1-3: Out Of Memory"},
      {"time_slurm", "JOB_OUT_OF_TIME",
       "slurmstepd: error: *** JOB 123 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***", "--time"},
      {"node_slurm", "JOB_NODE_FAILED",
       "slurmstepd: error: *** JOB 123 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG "
       "FOR DETAILS ***"},
      {"old_gcc", "BUILD_HOST_COMPILER",
       "RuntimeError: The current installed version of g++ (4.8.5) is less than the minimum required version by CUDA "
       "12.1 (6.0.0). Please make sure to use an adequate version of g++ (>=6.0.0, <13.0)."},
      {"new_gcc", "BUILD_HOST_COMPILER",
       "RuntimeError: The current installed version of x86_64-linux-gnu-g++ (13.2.0) is greater than the maximum "
       "required version by CUDA 11.8. Please make sure to use an adequate version of x86_64-linux-gnu-g++."},
      {"no_cxx17", "BUILD_HOST_COMPILER", "g++: error: unrecognized command line option '-std=c++17'", "c++17"},
      {"cmake_without_nvcc", "BUILD_NVCC_MISSING",
       "CMake Error at CMakeLists.txt:12 (project):\n  No CMAKE_CUDA_COMPILER could be found."},
      {"old_ptxas", "BUILD_ARCH_UNSUPPORTED_BY_NVCC",
       "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'", "TRITON_PTXAS_PATH"},
      {"no_libpython", "BUILD_HEADERS_MISSING", "/usr/bin/ld: cannot find -lpython3.10: No such file or directory",
       "python3-dev"},
      {"ninja_without_source", "BUILD_SOURCES_MISSING",
       "ninja: error: '/x/csrc/flash_fwd.cu', needed by '/x/build/flash_fwd.o', missing and no known rule to make it"},
      {"disk", "DISK_FULL", "OSError: [Errno 28] No space left on device"},
      {"debian_python", "PYTHON_MANAGED",
       "error: externally-managed-environment\n\n\xc3\x97 This environment is externally "
       "managed\n\xe2\x95\xb0\xe2\x94\x80> To "
       "install Python packages system-wide, try apt install\n    python3-xyz, where xyz is the package you are trying "
       "to install.",
       "-m venv"},
      {"uv_system", "PYTHON_MANAGED",
       "error: The interpreter at /usr is externally managed, and indicates the following:", "uv venv"},
      {"noexec_library", "FOLDER_NOEXEC",
       "ImportError: /tmp/torch_extensions/fused/fused.so: failed to map segment from shared object: Operation not "
       "permitted",
       "noexec"},
      {"noexec_old_glibc", "FOLDER_NOEXEC",
       "OSError: /scratch/env/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so: failed to map segment from "
       "shared "
       "object",
       "findmnt"},
      {"noexec_ninja", "FOLDER_NOEXEC",
       "PermissionError: [Errno 13] Permission denied: '/tmp/pip-build-env-5xk2/overlay/bin/ninja'", "TMPDIR"},
      {"gnu", "BUILD_HOST_COMPILER",
       "/usr/local/cuda/include/crt/host_config.h:143:2: error: #error -- unsupported GNU version! gcc versions later "
       "than "
       "13 are not supported!"},
      {"no_compiler", "BUILD_HOST_COMPILER", "error: command 'g++' failed: No such file or directory", "apt-get"},
      {"python_h", "BUILD_HEADERS_MISSING",
       "pybind11/detail/common.h:274:10: fatal error: Python.h: No such file or directory"},
      {"cuda_headers", "BUILD_HEADERS_MISSING",
       "ATen/cuda/CUDAContextLight.h:6:10: fatal error: cuda_runtime_api.h: No such file or directory"},
      {"cutlass", "BUILD_SOURCES_MISSING",
       "AssertionError: csrc/cutlass is missing, please use source checkout or run python setup.py install in a git "
       "tree"},
      {"ninja", "BUILD_NO_NINJA",
       "UserWarning: Attempted to use ninja as the BuildExtension backend but we could not find ninja.. Falling back "
       "to "
       "using the slow distutils backend."},
      {"no_arch", "BUILD_NO_ARCH",
       "  File \"torch/utils/cpp_extension.py\", line 1985, in _get_cuda_arch_flags\n    arch_list[-1] += '+PTX'\n"
       "IndexError: list index out of range"},
      // At run time.
      {"image", "FATBIN_ZSTD_OLD_DRIVER",
       "torch.AcceleratorError: CUDA error: device kernel image is invalid\nCUDA kernel errors might be asynchronously "
       "reported at some other API call",
       "550"},
      {"no_image", "GPU_NO_CODE",
       "RuntimeError: CUDA error: no kernel image is available for execution on the device\nCompile with "
       "`TORCH_USE_CUDA_DSA` to enable device-side assertions."},
      {"no_image_torch", "GPU_NO_CODE",
       "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation."},
      {"ptx", "PTX_TOO_NEW", "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain."},
      {"driver", "DRIVER_TOO_OLD",
       "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU "
       "driver"},
      {"compat_on_a_small_gpu", "DRIVER_TOO_OLD",
       "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted on "
       "non "
       "supported HW",
       "cuda/compat"},
      {"no_fabric_manager", "DRIVER_MISSING",
       "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
       "fabricmanager"},
      {"driver_that_slept", "DRIVER_MISSING",
       "UserWarning: CUDA initialization: CUDA unknown error - this may be due to an incorrectly set up environment, "
       "e.g. changing env variable CUDA_VISIBLE_DEVICES after program start.",
       "nvidia_uvm"},
      {"driver_not_loaded", "DRIVER_MISSING",
       "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
       "driver is installed and running.",
       "modprobe"},
      {"docker_without_runtime", "DRIVER_MISSING",
       "docker: Error response from daemon: Unknown runtime specified nvidia.", "nvidia-ctk"},
      {"gpu_memory_of_cuda", "GPU_OUT_OF_MEMORY", "RuntimeError: CUDA error: out of memory"},
      {"two_drivers", "DRIVER_MISSING",
       "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.54", "reboot"},
      {"docker_without_toolkit", "DRIVER_MISSING",
       "docker: Error response from daemon: could not select device driver \"\" with capabilities: [[gpu]].",
       "nvidia-ctk"},
      {"driver_of_a_container", "DRIVER_TOO_OLD",
       "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4, please update your driver to a "
       "newer "
       "version, or use an earlier cuda container"},
      {"no_gpu", "DRIVER_MISSING", "RuntimeError: Found no NVIDIA driver on your system. Please check"},
      {"ampere", "GPU_TOO_OLD", "RuntimeError: FlashAttention only supports Ampere GPUs or newer."},
      {"dtype", "FLASH_ATTN_DTYPE", "RuntimeError: FlashAttention only support fp16 and bf16 data type", "bfloat16"},
      {"gpu_memory", "GPU_OUT_OF_MEMORY",
       "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 "
       "GiB"},
      {"nms", "TORCH_SIGNATURE", "RuntimeError: operator torchvision::nms does not exist", "torchvision"},
      {"transformers", "FLASH_ATTN_NOT_SEEN",
       "ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following error: the "
       "package "
       "flash_attn seems to be not installed. Please refer to the documentation of "
       "https://huggingface.co/docs/transformers/perf_infer_gpu_one#flashattention-2 to install Flash Attention 2.",
       "sdpa"},
      {"transformers_short", "FLASH_ATTN_NOT_SEEN", "ValueError: FlashAttention2 is not installed"},
      {"cpu_build", "TORCH_CPU_BUILD", "AssertionError: Torch not compiled with CUDA enabled", "CPU"},
      {"bnb", "VARIANT_MISSING",
       "RuntimeError: Configured CUDA binary not found at /v/bitsandbytes/libbitsandbytes_cuda129.so", "bitsandbytes"},
      {"xformers_operator", "NO_OPERATOR",
       "NotImplementedError: No operator found for `memory_efficient_attention_forward` with inputs:", "kernels"},
      {"triton_ops", "PACKAGE_API", "ModuleNotFoundError: No module named 'triton.ops'", "3.2"},
      {"pandas", "PACKAGE_MISSING", "ModuleNotFoundError: No module named 'pandas'", "pip install pandas"},
      {"apex", "PACKAGE_MISSING", "ModuleNotFoundError: No module named 'apex'", "PyPI"},
      {"numpy_2", "NUMPY_ABI",
       "RuntimeError: module compiled against ABI version 0x2000000 but this version of numpy is 0x1000009",
       "numpy>=2"},
      {"pkg_resources", "PACKAGE_API", "ModuleNotFoundError: No module named 'pkg_resources'", "setuptools"},
      {"mamba_module", "MODULE_MISSING", "ModuleNotFoundError: No module named 'selective_scan_cuda'", "compiled part"},
      // Remedies.
      {"force_abi", "FOLK_REMEDY", "FLASH_ATTENTION_FORCE_CXX11_ABI=TRUE python -m build", "ABI"},
      {"skip_build", "FOLK_REMEDY", "export FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE", "py3-none-any"},
      {"force_build", "FOLK_REMEDY", "FLASH_ATTENTION_FORCE_BUILD=TRUE pip wheel .", "mica build"},
      {"skip_check", "FOLK_REMEDY", "export DS_SKIP_CUDA_CHECK=1", "DeepSpeed"},
      {"arch_list", "FOLK_REMEDY", "TORCH_CUDA_ARCH_LIST=8.0 python setup.py of flash-attn", "FLASH_ATTN_CUDA_ARCHS"},
      {"stubs", "FOLK_REMEDY", "export LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs:$LD_LIBRARY_PATH", "stubs"},
      {"link", "FOLK_REMEDY", "ln -s /usr/lib/libcudart.so.12 /usr/lib/libcudart.so.13", "name"},
      {"comment_out", "FOLK_REMEDY", "apex: You can try commenting out this check (at your own risk).", "minor"},
      // Only symptoms.
      {"symptom", "BUILD_FAILED",
       "  RuntimeError: Error compiling objects for extension\n  [end of output]\n  ERROR: Failed building wheel for "
       "flash-attn\nFailed to build flash-attn"},
      {"import_symptom", "IMPORT_FAILED",
       "RuntimeError: Failed to import transformers.models.llama.modeling_llama because of the following error (look "
       "up "
       "to see its traceback):"},
  };
  return cases;
}

struct NearMiss {
  const char* code;
  const char* text;  // looks much like a case of that code, and is none
};

inline const std::vector<NearMiss>& near_misses() {
  static const std::vector<NearMiss> misses = {
      {"TORCH_CXX11_ABI", "ImportError: x.so: undefined symbol: _ZN3c105ErrorC2EPKc"},
      {"TORCH_SIGNATURE", "ImportError: x.so: undefined symbol: _ZN5other4cuda9SetDeviceEa"},
      {"CUDA_LIBRARY_SHADOWED", "ImportError: x.so: undefined symbol: SSL_new, version OPENSSL_3.0.0"},
      {"PY_SYMBOL", "ImportError: x.so: undefined symbol: pyramid_build"},
      {"UNDEFINED_SYMBOL", "/usr/bin/ld: x.o: undefined reference to `foo::bar()'"},
      {"DRIVER_MISSING", "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory"},
      {"CUDA_MAJOR", "ImportError: libcufile.so.0: cannot open shared object file: No such file or directory"},
      {"NEEDED_MISSING", "cat: libGL.so.1: No such file or directory"},
      {"GLIBC_TOO_OLD", "ImportError: /l/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by /x/a.so)"},
      {"GLIBCXX_TOO_OLD", "ImportError: /lib64/libc.so.6: version `GLIBC_2.32' not found (required by /x/a.so)"},
      {"VERSION_MISSING", "ImportError: /lib64/libc.so.6: version `GLIBC_2.32' not found (required by /x/a.so)"},
      {"SO_NO_PYINIT", "SystemError: initialization of flash_attn_2_cuda raised unreported exception"},
      {"ELF_DAMAGED", "requests.exceptions.InvalidHeader: invalid header value"},
      {"ELF_MACHINE", "readelf: Error: wrong ELF section size"},
      {"STATIC_TLS", "OSError: [Errno 12] Cannot allocate memory"},
      {"PAGE_SIZE", "readelf: Error: the alignment is not a power of two"},
      {"EXECUTABLE_STACK", "ld: warning: x.o: missing .note.GNU-stack section implies executable stack"},
      {"NUMPY_ABI", "this NumPy 2.0.1 was compiled using gcc 12"},
      {"WHEEL_VERSION_MISMATCH", "Requested flash-attn from file:///w/a.whl has a version of 2.6.3"},
      {"WHEEL_REQUIRES_PYTHON", "Package 'networkx' requires another package: numpy not in the environment"},
      {"JOB_OUT_OF_TIME", "slurmstepd: error: *** JOB 123 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***"},
      {"JOB_NODE_FAILED",
       "slurmstepd: error: *** JOB 123 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***"},
      {"WHEEL_TAG_PLATFORM", "flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl is a supported wheel on this platform."},
      {"WHEEL_ARCHIVE", "Wheel 'flash-attn' located at /tmp/flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl is valid."},
      {"BUILD_CROSS_DEVICE_LINK", "OSError: [Errno 17] File exists: 'a.whl' -> '/tmp/b.whl'"},
      {"NETWORK", "urllib.error.HTTPError: HTTP Error 404: Not Found"},
      {"URL_GUESS_404", "Guessing wheel URL:  https://x/flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl\nRaw wheel path"},
      {"WHEEL_NONE_PUBLISHED", "Looking for a matching distribution for flash-attn==2.8.3"},
      {"WHEEL_REQUIRES_TORCH_UNPINNED",
       "  Attempting uninstall: torchmetrics\n    Found existing installation: torchmetrics 1.0"},
      {"FLASH_ATTN_STALE_CUTE", "AttributeError: module 'cutlass' has no attribute 'Tensor'"},
      {"MODULE_MISSING", "ModuleNotFoundError: No module named 'flash_attn_2_data'"},
      {"FLASH_ATTN_API", "    a, b = pairs(x)\nValueError: too many values to unpack (expected 2)"},
      {"BUILD_ISOLATION", "  File \"train.py\", line 3, in <module>\nModuleNotFoundError: No module named 'packaging'"},
      {"TORCH_MISSING", "ModuleNotFoundError: No module named 'torchmetrics'"},
      {"BUILD_NVCC_MISSING", "CUDA_HOME is set to /usr/local/cuda, nvcc was found there"},
      {"BUILD_NVCC_TOO_OLD", "FlashAttention is supported on CUDA 12.8; nvcc -V says 12.8"},
      {"BUILD_ARCH_UNSUPPORTED_BY_NVCC",
       "nvcc warning : Support for offline compilation for architectures prior to '<compute/sm/lto>_75' will be "
       "removed"},
      {"BUILD_CUDA_MAJOR_MISMATCH",
       "UserWarning: The detected CUDA version (12.6) has a minor version mismatch with the version that was used to "
       "compile PyTorch (12.4). Most likely this shouldn't be a problem."},
      {"BUILD_OOM", "slurmstepd: error: *** JOB 17 ON n CANCELLED AT 2026-11-15T07:46:29 ***\nTerminated"},
      {"DISK_FULL", "/dev/sda1        98G   97G   1G  99% /"},
      {"PYTHON_MANAGED", "If you wish to install a package, see /usr/share/doc/python3.12/README.venv"},
      {"FOLDER_NOEXEC", "tmpfs on /tmp type tmpfs (rw,nosuid,nodev,noexec,relatime)"},
      {"FOLDER_NOEXEC", "libx.so: failed to map segment from shared object: Cannot allocate memory"},
      {"BUILD_HOST_COMPILER", "gcc version 12.2.0 (Debian 12.2.0-14) is the host compiler"},
      {"BUILD_HEADERS_MISSING", "including Python.h from /usr/include/python3.12"},
      {"BUILD_SOURCES_MISSING", "Submodule path 'csrc/cutlass': checked out 'dc48179'"},
      {"BUILD_NO_NINJA", "Allowing ninja to set a default number of workers..."},
      {"BUILD_NO_ARCH",
       "  File \"train.py\", line 19, in <module>\n    x = words[-1]\nIndexError: list index out of range"},
      {"FATBIN_ZSTD_OLD_DRIVER", "CUDA error: an illegal memory access was encountered"},
      {"GPU_NO_CODE", "RuntimeError: CUDA error: device kernel image is invalid"},
      {"PTX_TOO_NEW", "ptxas info    : PTX was compiled for sm_80"},
      {"DRIVER_TOO_OLD", "NVIDIA-SMI 550.54.15   Driver Version: 550.54.15   CUDA Version: 12.4"},
      {"GPU_TOO_OLD", "RuntimeError: FlashAttention only support fp16 and bf16 data type"},
      {"GPU_OUT_OF_MEMORY",
       "RuntimeError: [enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"},
      {"FLASH_ATTN_DTYPE", "RuntimeError: FlashAttention only supports Ampere GPUs or newer."},
      {"FLASH_ATTN_NOT_SEEN", "You are attempting to use Flash Attention 2 without specifying a torch dtype."},
      {"TORCH_CPU_BUILD", "RuntimeError: Found no NVIDIA driver on your system."},
      {"VARIANT_MISSING", "bitsandbytes: Configured CUDA binary found"},
      {"NO_OPERATOR", "an operator was found for memory_efficient_attention_forward"},
      {"PACKAGE_API", "ModuleNotFoundError: No module named 'triton'"},
      {"PACKAGE_MISSING", "ModuleNotFoundError: No module named 'flash_attn'"},
      {"FOLK_REMEDY", "FLASH_ATTENTION_DISABLE_DROPOUT=TRUE"},
      {"BUILD_FAILED", "Successfully built flash-attn\nSuccessfully installed flash-attn-2.8.3"},
      {"IMPORT_FAILED", "WARNING: failed to import the settings of the editor"},
  };
  return misses;
}

}  // namespace explain_cases
