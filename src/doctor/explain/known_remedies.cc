// SPDX-License-Identifier: Apache-2.0
#include "doctor/explain/known_failures.h"

namespace doctor {

std::span<const KnownFailure> known_remedies() {
  static const std::vector<KnownFailure> rows = {
      {"FOLK_REMEDY",
       Role::kHint,
       {"FLASH_ATTENTION_FORCE_CXX11_ABI"},
       {},
       "FLASH_ATTENTION_FORCE_CXX11_ABI does not change PyTorch's C++ ABI, and a wheel that exists is not changed by "
       "it: "
       "it makes setup.py ask for the file named cxx11abiTRUE, or compile with the new ABI. Against a PyTorch of the "
       "old "
       "ABI that yields a file which does not load. It counts only where it is exactly TRUE; 1 is ignored.",
       "unset FLASH_ATTENTION_FORCE_CXX11_ABI; {python} -c 'import torch; print(torch._C._GLIBCXX_USE_CXX11_ABI)' says "
       "which ABI is right, mica pick names the wheel"},
      {"FOLK_REMEDY",
       Role::kHint,
       {"FLASH_ATTENTION_SKIP_CUDA_BUILD"},
       {},
       "FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE does not find a fitting wheel: where none is downloaded it installs a "
       "py3-none-any wheel without the compiled module, and the import fails later (No module named "
       "'flash_attn_2_cuda').",
       "unset FLASH_ATTENTION_SKIP_CUDA_BUILD; {pip} uninstall -y flash-attn; mica pick names a wheel that has it"},
      {"FOLK_REMEDY",
       Role::kHint,
       {"FLASH_ATTENTION_FORCE_BUILD"},
       {},
       "FLASH_ATTENTION_FORCE_BUILD=TRUE compiles here instead of downloading: for an hour or more, with nvcc, and for "
       "this PyTorch. That does cure a wrong wheel, if pip's cache is not used.",
       "mica build flash-attn says before it starts whether it can work here, and for how long"},
      {"FOLK_REMEDY",
       Role::kHint,
       {"DS_SKIP_CUDA_CHECK"},
       {},
       "DS_SKIP_CUDA_CHECK=1 removes DeepSpeed's question, not the difference: PyTorch's own check comes next and "
       "stops "
       "another major all the same; with another minor the build works with and without it.",
       "export CUDA_HOME to a toolkit of PyTorch's CUDA major (mica doctor lists them) and unset DS_SKIP_CUDA_CHECK"},
      {"FOLK_REMEDY",
       Role::kHint,
       {"TORCH_CUDA_ARCH_LIST"},
       {"flash-attn", "flash_attn"},
       "flash-attn's setup.py sets the architectures itself and does not read TORCH_CUDA_ARCH_LIST.",
       "export FLASH_ATTN_CUDA_ARCHS=\"80;90\""},
      {"FOLK_REMEDY",
       Role::kHint,
       {"/lib64/stubs", "/lib/stubs"},
       {"LD_LIBRARY_PATH"},
       "The stubs folder has an empty libcuda.so to link against. On LD_LIBRARY_PATH it stands before the driver's "
       "own: "
       "the import works and every call fails.",
       "export LD_LIBRARY_PATH=\"$(echo \"$LD_LIBRARY_PATH\" | tr : '\\n' | grep -v /stubs | paste -sd:)\""},
      {"FOLK_REMEDY",
       Role::kHint,
       {"ln -s {from*}libcudart.so.{one} {to*}libcudart.so.{other}", "ln -s {from*}libc10{rest*}.so"},
       {},
       "A link gives a library another name and no other contents: its version nodes and symbols stay those of the old "
       "one, and the loader asks for them next.",
       "rm the link, and install the build for this CUDA: mica pick"},
      {"FOLK_REMEDY",
       Role::kHint,
       {"commenting out this check"},
       {"apex"},
       "Commenting out apex's check helps where only the minor version of CUDA differs; with another major PyTorch's "
       "own "
       "check stops the build next.",
       "export CUDA_HOME to a toolkit of PyTorch's CUDA major (mica doctor lists them)"},
  };
  return rows;
}

}  // namespace doctor
