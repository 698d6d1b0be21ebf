// SPDX-License-Identifier: Apache-2.0
#include "doctor/explain_symbol.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace doctor {
namespace {

// What changed in PyTorch, by a piece of the mangled name: who has it, and so whom the file was built for.
struct Drift {
  const char* piece;
  const char* story;
};

constexpr Drift kDrifts[] = {
    {"_ZN3c104cuda9SetDeviceEab",
     "c10::cuda::SetDevice has taken (int8, bool) since torch 2.8: the file was built for "
     "2.8 or later, and an older torch is installed."},
    {"_ZN3c104cuda9SetDeviceEa",
     "c10::cuda::SetDevice took (int8) until torch 2.7; 2.8 changed it: the file was built "
     "for 2.7 or earlier, and another torch is installed."},
    {"_ZN3c104cuda9SetDeviceEi",
     "c10::cuda::SetDevice took (int) in torch of about 2.1; later ones take another "
     "argument: the file was built for an old torch."},
    {"c10_cuda_check_implementationEiPKcS2_ib",
     "c10_cuda_check_implementation took (..., int, bool) until torch 2.9: the file was built for 2.9 or earlier, and "
     "2.10 or later is installed."},
    {"c10_cuda_check_implementationEiPKcS2_jb",
     "c10_cuda_check_implementation has taken (..., unsigned, bool) since torch 2.10: the file was built for 2.10 or "
     "later, and an older torch is installed."},
    {"materialize_cow_storage",
     "materialize_cow_storage was removed in torch 2.13: the file was built for 2.12 or "
     "earlier."},
    {"_ZNK3c105Error4whatEv",
     "c10::Error::what became a function of the library in a later torch: the file was built "
     "for a newer torch than the one installed."},
    {"8optionalI",
     "the signature has c10::optional or std::optional, which changed places after torch 2.1: the file "
     "was built for another torch."},
};

std::string demangle(const std::string& symbol) {
  int status = -1;
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status),
                                                    std::free);
  return status == 0 ? name.get() : "";
}

bool is_of_torch(const std::string& symbol) {
  for (const char* prefix :
       {"_ZN3c10", "_ZNK3c10", "_ZN2at", "_ZNK2at", "_ZN5torch", "_ZNK5torch", "_ZN5caffe2", "_ZTIN3c10", "_ZTVN3c10",
        "_ZTIN5torch", "_ZTVN5torch", "_ZTIN2at", "_ZTVN2at", "aoti_torch_", "torch_", "THP"})
    if (symbol.rfind(prefix, 0) == 0) return true;
  return false;
}

std::string describe_torch(const Environment* target) {
  return target && target->torch ? "torch " + target->torch->version : "the installed torch";
}

}  // namespace

void explain_symbol(const std::string& symbol, const Environment* target, Verdict& verdict) {
  const std::string name = demangle(symbol);
  if (!name.empty()) verdict.evidence.push_back("it is " + name);
  verdict.fix =
      "{pip} uninstall the package, then install the wheel that fits: for flash-attn, mica pick names it; for "
      "torchvision and the like, {pip} install -U torch torchvision torchaudio in one command";
  if (!is_of_torch(symbol)) {
    verdict.code = "UNDEFINED_SYMBOL";
    verdict.cause = "Nothing that is loaded defines " + (name.empty() ? symbol : name) + ".";
    verdict.fix = "mica doctor FILE.so shows which of its libraries should have it";
    return;
  }
  const CxxAbi installed = target && target->torch ? target->torch->cxx_abi : CxxAbi::kUnknown;
  const bool is_new = symbol.find("St7__cxx11") != symbol.npos || symbol.find("B5cxx11") != symbol.npos;
  const bool is_old = !is_new && (name.find("std::string") != name.npos || symbol.find("ESs") != symbol.npos);
  for (const Drift& drift : kDrifts)
    if (symbol.find(drift.piece) != symbol.npos && !is_new && !is_old) {
      verdict.cause = std::string("This belongs to PyTorch: ") + drift.story;
      return;
    }
  if ((is_new && installed != CxxAbi::kNew) || (is_old && installed != CxxAbi::kOld)) {
    verdict.code = "TORCH_CXX11_ABI";
    verdict.cause = std::string("The file was built with ") +
                    (is_new ? "the new C++ ABI (cxx11abiTRUE), and " : "the old C++ ABI (cxx11abiFALSE), and ") +
                    describe_torch(target) + " has " + (is_new ? "the old one" : "the new one") +
                    ". pip's PyTorch had the old one up to 2.5 and in 2.6.0 for cu118, cu124 and x86 CPUs; from 2.7 on "
                    "all have the new one, and so had NVIDIA's containers and conda-forge long before.";
    return;
  }
  verdict.cause = "This belongs to PyTorch, and " + describe_torch(target) +
                  " does not have it in that form: the file was built for another version of PyTorch.";
}

}  // namespace doctor
