// SPDX-License-Identifier: Apache-2.0
#include "doctor/explain/explain_symbol.h"

#include "doctor/facts/mangled.h"
#include "doctor/tables/torch_symbols.h"

namespace doctor {
namespace {

std::string describe_torch(const Environment* target) {
  return target && target->torch ? "torch " + target->torch->version : "the installed torch";
}

// Whom a file that asks for this symbol was built for, where that is known.
std::string built_for(const std::string& symbol, const std::string& name) {
  if (const TorchSignature* row = find_torch_signature(symbol))
    return std::string(row->what) + " in " + torch_range_text(*row);
  if (name.find("c10::optional<") != name.npos) return "c10::optional stands in signatures of torch up to 2.1";
  if (symbol == "_ZNK3c105Error4whatEv") return "c10::Error::what is a function of the library in newer torch only";
  return "";
}

bool is_ffmpeg_name(const std::string& symbol) {
  for (const char* prefix : {"av_", "avcodec_", "avformat_", "avfilter_", "avio_", "swr_", "sws_"})
    if (symbol.starts_with(prefix)) return true;
  return false;
}

}  // namespace

void explain_symbol(const std::string& symbol, const Environment* target, Verdict& verdict) {
  const std::string name = demangled(symbol);
  // Constructors have parameters; without them their name is cut off too, though it demangles.
  const bool is_abridged =
      symbol.rfind("_Z", 0) == 0 && (name == symbol || symbol.ends_with("C1E") || symbol.ends_with("C2E"));
  if (name != symbol) verdict.evidence.push_back("it is " + name);
  verdict.fix =
      "{pip} uninstall -y PACKAGE, then install the wheel that fits: for flash-attn, mica pick names it; for "
      "torchvision and the like, {pip} install -U torch torchvision torchaudio in one command; what has no wheel: mica "
      "build PACKAGE. (`import torch` must stand before the import: by itself that alone gives such an error, too)";
  if (is_torch_stable_name(symbol)) {
    const Version release = stable_function_release(symbol);
    verdict.code = "TORCH_STABLE_MIN";
    verdict.cause = symbol + " is of torch's stable interface" +
                    (release.known() ? ", from torch " + release.text() + " on" : "") + ", and " +
                    describe_torch(target) + " is older than that: the file was built for a newer one.";
    verdict.fix = release.known() ? "{pip} install 'torch>=" + release.text() + "', or an older release of the package"
                                  : "{pip} install -U torch and the package in one command";
    return;
  }
  if (!is_torch_name(symbol)) {
    verdict.code = "UNDEFINED_SYMBOL";
    verdict.cause = "Nothing that is loaded defines " + name + ".";
    verdict.fix = "mica doctor FILE.so shows which of its libraries should have it";
    if (is_ffmpeg_name(symbol)) {
      verdict.cause +=
          " It is FFmpeg's: the file was compiled with the headers of a newer FFmpeg than the one whose libraries are "
          "found (av_channel_layout... came with 5.1), or two of them are installed.";
      verdict.fix =
          "one FFmpeg for the build and the run: conda install -c conda-forge 'ffmpeg>=6,<8', then {pip} install "
          "--force-reinstall --no-cache-dir PACKAGE (a checkout: rm -rf build first)";
    }
    if (symbol.starts_with("__cudaRegisterLinkedBinary_")) {
      verdict.cause +=
          " Its files were compiled as relocatable GPU code (nvcc -rdc=true), and the step in which nvcc links that "
          "code did not take place or left a file out: g++ alone linked them.";
      verdict.fix =
          "rm -rf build *.egg-info in its checkout and {pip} install --no-cache-dir --no-build-isolation PACKAGE; in "
          "its setup.py the extension needs CUDAExtension(..., dlink=True) and every .cu file in it";
    }
    if (symbol.rfind("_Z", 0) == 0) {
      verdict.cause +=
          " It is no symbol of PyTorch, of CUDA or of the C++ library, so that it belongs to the extension "
          "itself or to a library of the same project: a part of it was not compiled (another GPU or "
          "another option), or files of two builds stand side by side.";
      verdict.fix =
          "{pip} uninstall -y PACKAGE until nothing is left of it, rm -rf build *.egg-info in its checkout, and "
          "{pip} install --no-cache-dir --no-build-isolation PACKAGE";
    }
    return;
  }
  const CxxAbi installed = target && target->torch ? target->torch->cxx_abi : CxxAbi::kUnknown;
  const StringAbi abi = string_abi_of(symbol);
  const bool is_new = abi == StringAbi::kNew, is_old = abi == StringAbi::kOld;
  if ((is_new && installed != CxxAbi::kNew) || (is_old && installed != CxxAbi::kOld)) {
    verdict.code = "TORCH_CXX11_ABI";
    verdict.cause = std::string("The file was built with ") +
                    (is_new ? "the new C++ ABI (cxx11abiTRUE), and " : "the old C++ ABI (cxx11abiFALSE), and ") +
                    describe_torch(target) + " has " + (is_new ? "the old one" : "the new one") +
                    ". pip's PyTorch had the old one up to 2.5 and in 2.6.0 for cu118, cu124 and x86 CPUs; from 2.7 on "
                    "all have the new one, and so had NVIDIA's containers and conda-forge long before.";
    return;
  }
  if (is_abridged && abi == StringAbi::kNeutral) {
    verdict.cause =
        "This belongs to PyTorch, and the name is cut off, so that it does not show what differs: either the "
        "file was built with the other C++ ABI (the whole name then has __cxx11 or Ss in it), or for another "
        "version of PyTorch than " +
        describe_torch(target) + ".";
    verdict.fix =
        "{python} -c 'import torch, MODULE' 2>&1 | mica explain, with the whole name; or mica doctor PACKAGE, "
        "which reads the file; the cure is the same: for flash-attn the wheel that mica pick names";
    return;
  }
  const std::string made_for = built_for(symbol, name);
  verdict.cause = "This belongs to PyTorch, and " + describe_torch(target) +
                  " does not have it in that form: the file was built for another version" +
                  (made_for.empty() ? "." : " (" + made_for + ").");
}

}  // namespace doctor
