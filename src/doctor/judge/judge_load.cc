// SPDX-License-Identifier: Apache-2.0
// From what the loader says to why, and what to do.
#include "doctor/judge/judge_load.h"

#include <elf.h>

#include <algorithm>

#include "doctor/facts/cpython_abi.h"
#include "doctor/judge/judge_binary.h"
#include "doctor/read/python/outline.h"
#include "doctor/tables/torch_symbols.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

// Packages whose wheels say in their names which C++ ABI they are for.
bool names_its_abi(std::string_view file) {
  for (const char* prefix : {"flash_attn", "causal_conv1d", "selective_scan", "rotary_emb", "dropout_layer_norm"})
    if (file.starts_with(prefix)) return true;
  return false;
}

std::string import_error(const std::string& text) { return "ImportError: " + text; }

class LoadJudge {
 public:
  LoadJudge(const Binary& binary, const BinaryFacts& facts, Resolution result, const Environment& target)
      : binary_(binary), facts_(facts), target_(target), subject_(printable(binary.path)), result_(std::move(result)) {}

  const Resolution& result() const { return result_; }

  Verdict verdict() const {
    switch (result_.failure) {
      case LoadFailure::kNone: return loads();
      case LoadFailure::kMachine: return machine();
      case LoadFailure::kNotShared: return not_shared();
      case LoadFailure::kNeededMissing: return needed();
      case LoadFailure::kDamaged: return damaged();
      case LoadFailure::kExecutableStack: return executable_stack();
      case LoadFailure::kVersionMissing: return version();
      case LoadFailure::kPackedUnmarked:
      case LoadFailure::kNotRelocated: return packed_relocations();
      case LoadFailure::kCpuLevel: return cpu_level();
      case LoadFailure::kLoaderStops: return loader_stops();
      case LoadFailure::kStaticBlock: return static_block();
      case LoadFailure::kUndefinedSymbol: return symbol();
    }
    return loads();
  }

 private:
  Verdict make(VerdictCode code, std::string cause, std::string fix, std::vector<std::string> evidence = {}) const {
    return make_verdict({.code = code,
                         .subject = subject_,
                         .message = import_error(result_.message),
                         .cause = std::move(cause),
                         .fix = std::move(fix),
                         .evidence = std::move(evidence)});
  }

  std::string torch_text() const { return target_.torch ? "torch " + target_.torch->version : "no torch"; }
  std::string python_text() const {
    return target_.python ? "Python " + target_.python->version.text() : std::string("this Python");
  }

  Verdict loads() const {
    std::vector<std::string> evidence;
    for (const auto& [name, path] : result_.loaded)
      if (evidence.size() < 8) evidence.push_back(printable(name) + " => " + printable(path));
    return make_verdict({.code = "LOADS",
                         .subject = subject_,
                         .message = "loads" + (target_.name.empty() ? "" : " in " + target_.name),
                         .evidence = evidence});
  }

  Verdict machine() const {
    return make("ELF_MACHINE",
                "The file is for " + machine_name(binary_.elf) + ", the target is " + target_.machine + ".",
                "install the wheel for " + target_.machine, {"e_machine: " + machine_name(binary_.elf)});
  }

  Verdict needed() const {
    const std::string& library = result_.library;
    std::vector<std::string> evidence = {printable(base_name(result_.object)) + " needs " + printable(library)};
    for (const std::string& folder : result_.searched)
      if (evidence.size() < 8) evidence.push_back("not in " + printable(folder));
    if (result_.message.find("wrong ELF class") != result_.message.npos)
      return make("ELF_MACHINE",
                  "What is found under the name " + printable(library) + " is for another kind of machine than " +
                      target_.machine + ".",
                  "take the folder with the other machine's libraries out of LD_LIBRARY_PATH, and install " +
                      printable(library) + " for " + target_.machine,
                  evidence);
    if (is_torch_library(library)) {
      if (!target_.torch)
        return make("TORCH_MISSING", "It is built on torch, and this Python has none.",
                    "pip install torch, of the version that the wheel was built for", evidence);
      const bool for_cuda = library.find("cuda") != library.npos || library.find("nvrtc") != library.npos;
      if (for_cuda && target_.torch->cuda_version.empty())
        return make("CUDA_MAJOR", "It needs torch with CUDA, and " + torch_text() + " is a build without.",
                    "pip install torch --index-url https://download.pytorch.org/whl/cu" +
                        std::to_string(facts_.cuda_major > 0 ? facts_.cuda_major : 12) +
                        (facts_.cuda_major == 13 ? "0" : "8"),
                    evidence);
      if (subject_.find("site-packages/torch/") != subject_.npos)
        return make("NEEDED_MISSING", "It is a library of torch itself: the installation of torch is not whole.",
                    "python -m pip install --force-reinstall --no-deps torch==" + target_.torch->version, evidence);
      return make(
          "NEEDED_MISSING",
          "torch's own library is found only after torch was imported, or the release of torch here has it no more.",
          "import torch before the module; if you do: install the torch that the file was built for", evidence);
    }
    const int wanted = cuda_major_of(library);
    if (wanted > 0) {
      const int here = target_.torch ? parse_version(target_.torch->cuda_version).major_part() : 0;
      const std::string have = here > 0        ? torch_text() + " brings CUDA " + std::to_string(here)
                               : target_.torch ? torch_text() + " brings no CUDA"
                                               : "there is no torch that would bring it";
      return make(here == wanted ? Code::NEEDED_MISSING : Code::CUDA_MAJOR,
                  "It was built for CUDA " + std::to_string(wanted) + "; " + have + ".",
                  cuda_fix(library, wanted, here), evidence);
    }
    if (is_driver_library(library))
      return make("NEEDED_MISSING",
                  printable(library) + " comes with NVIDIA's driver, not with CUDA or a package; " +
                      (target_.driver.known() ? "the driver is here, and the library is in none of the places where "
                                                "the loader looks."
                                              : "there is no driver here."),
                  target_.driver.known()
                      ? "add the folder of the driver's libraries to LD_LIBRARY_PATH, or run sudo ldconfig"
                      : "run it where there is a GPU and its driver; in a container: docker run --gpus all ...",
                  evidence);
    return make("NEEDED_MISSING", "The library is in none of the places where the loader looks.",
                "install the package that has " + printable(library) + ", or add its folder to LD_LIBRARY_PATH",
                evidence);
  }

  Verdict damaged() const {
    if (result_.message.ends_with(" invalid")) return for_another_system();
    if (result_.message.ends_with("Is a directory"))
      return make("ELF_DAMAGED",
                  "What has the name of a library that it needs is a folder: a container was told to mount a file that "
                  "was not there, and made a folder of that name. The loader looks no further.",
                  "remove the folder and mount the file; the driver's libraries: docker run --gpus all ...",
                  {printable(base_name(result_.object)) + " needs " + printable(base_name(result_.library))});
    return make("ELF_DAMAGED",
                result_.message.ends_with("too short")
                    ? "A library that it needs has no bytes, or next to none: a copy or a download ended before it had "
                      "begun. The loader looks no further."
                    : "What has the name of a library that it needs is no library: a script for the linker, a pointer "
                      "of Git LFS, an error page. The loader looks no further.",
                "install the package that has the file again: python -m pip install --force-reinstall --no-deps "
                "--no-cache-dir PACKAGE",
                {printable(base_name(result_.object)) + " needs " + printable(base_name(result_.library))});
  }

  Verdict for_another_system() const {
    const bool is_itself = result_.library == result_.object;
    const std::string library = printable(base_name(result_.library));
    std::vector<std::string> evidence;
    if (!is_itself) evidence.push_back(printable(base_name(result_.object)) + " needs " + library);
    if (is_itself && result_.object_elf) evidence.push_back("EI_OSABI: " + os_abi_name(*result_.object_elf));
    return make("ELF_MACHINE",
                (is_itself ? std::string("It") : library + ", which it needs,") +
                    " is marked as made for another operating system; the loader looks no further.",
                "install the build for Linux", std::move(evidence));
  }

  Verdict cpu_level() const {
    const std::string object = printable(base_name(result_.object));
    return make("ELF_MACHINE",
                object + " was compiled for processors of " + result_.version +
                    " and says so in its header; here is one of " + target_.loader.hwcaps.front() + ".",
                "take a build for older processors, or one that is compiled here; on a cluster: a node with newer ones",
                {object + " asks for " + result_.version});
  }

  Verdict packed_relocations() const {
    const bool is_unmarked = result_.failure == LoadFailure::kPackedUnmarked;
    const std::string object = printable(base_name(result_.object));
    Verdict verdict = make(
        "PACKED_RELOCATIONS",
        is_unmarked ? object +
                          " was linked with --pack-dyn-relocs=relr alone: glibc from 2.36 on wants a version of libc "
                          "beside it, which tells an older one that it cannot load the file."
                    : object + " has packed relocations (DT_RELR), which glibc knows from 2.36 on; here is " +
                          target_.libc_version.text() +
                          ". It is loaded without a word, and ends in a segmentation fault where it uses an address.",
        is_unmarked ? "link it with -Wl,-z,pack-relative-relocs, or without packed relocations"
                    : "link it without -Wl,-z,pack-relative-relocs and --pack-dyn-relocs=relr, or use a newer system",
        {object + " has DT_RELR" + (is_unmarked ? " and asks libc for no GLIBC_ABI_DT_RELR" : "")});
    if (!is_unmarked) verdict.message = result_.message;
    return verdict;
  }

  Verdict not_shared() const {
    const bool is_itself = result_.library.empty() || result_.library == result_.object;
    const std::string it = is_itself ? "It" : printable(base_name(result_.library)) + ", which it needs,";
    std::vector<std::string> evidence;
    if (!is_itself)
      evidence.push_back(printable(base_name(result_.object)) + " needs " + printable(base_name(result_.library)));
    if (result_.message.ends_with("dlopen()ed")) {
      evidence.push_back("DF_1_NOOPEN is set");
      return make(
          "NO_DLOPEN",
          it + " was linked with -z nodlopen: it is loaded with a program that is linked with it, and not later, "
               "as an import would.",
          "link it without -z nodlopen; for a while: export LD_PRELOAD=" + printable(result_.library),
          std::move(evidence));
    }
    if (result_.message.find("ELF load command") != result_.message.npos) {
      const std::string pages = std::to_string(target_.page_bytes >> 10) + " KiB";
      return make("PAGE_SIZE",
                  it + " is laid out for other pages of memory than the " + pages +
                      " of the kernel here: it was linked for smaller ones, or patchelf put its parts so.",
                  "a build for these pages (g++ -Wl,-z,max-page-size=" + std::to_string(target_.page_bytes) +
                      "; patchelf --page-size " + std::to_string(target_.page_bytes) +
                      " where it edits the file), or a kernel with pages of 4 KiB",
                  std::move(evidence));
    }
    const bool is_object_file = result_.message.ends_with("can be loaded");
    const bool is_empty = result_.message.find("object file has no") != result_.message.npos;
    return make("ELF_DAMAGED",
                it + (is_object_file ? " is an object file, not a shared library."
                      : is_empty ? " has nothing that could be loaded: debug information that was split off, or data."
                                 : " is a program, not a shared library: it is started, not imported."),
                is_object_file ? "link it: g++ -shared ..."
                : is_itself    ? "take the file that its package imports"
                               : "install the package that has the library again",
                std::move(evidence));
  }

  Verdict executable_stack() const {
    Verdict verdict = make("EXECUTABLE_STACK",
                           printable(base_name(result_.library)) + " asks for an executable stack, which glibc " +
                               target_.libc_version.text() + " gives to nothing that is opened later.",
                           "patchelf --clear-execstack " + printable(result_.library) +
                               ", or a newer build; for a while: export GLIBC_TUNABLES=glibc.rtld.execstack=2",
                           {stack_evidence(*result_.object_elf)});
    verdict.severity = Severity::kError;
    return verdict;
  }

  Verdict static_block() const {
    const std::string library = printable(base_name(result_.library));
    return make("STATIC_TLS",
                library +
                    " was compiled to have its thread-local data in the block that the loader sets aside when the "
                    "program begins (-ftls-model=initial-exec); what is left of it for libraries that are opened "
                    "later, 1664 bytes in all, has no place for them.",
                "export LD_PRELOAD=" + printable(result_.library) + " before Python is started; or build it with " +
                    "-ftls-model=global-dynamic",
                {library + " is asked for by relocations of the initial-exec model"});
  }

  // A library of CUDA from pip is found by a file that looks into its folder, and by one that is opened after a torch
  // of that CUDA; by no other.
  std::string cuda_fix(const std::string& library, int wanted, int here) const {
    constexpr std::pair<const char*, const char*> kWheels[] = {{"libcudart", "cuda_runtime"},
                                                               {"libcublas", "cublas"},
                                                               {"libnvrtc", "cuda_nvrtc"},
                                                               {"libnvJitLink", "nvjitlink"},
                                                               {"libcupti", "cuda_cupti"}};
    const std::string cuda = "cu" + std::to_string(wanted), torch = "a torch for CUDA " + std::to_string(wanted);
    std::string install;
    bool looks_there = false;
    for (const auto& [prefix, name] : kWheels) {
      if (!library.starts_with(prefix)) continue;
      std::string wheel = std::string("nvidia-") + name + (wanted >= 13 ? "" : "-" + cuda);
      std::replace(wheel.begin(), wheel.end(), '_', '-');
      install = "pip install " + wheel;
      const std::string folder = "/" + (wanted >= 13 ? cuda : std::string(name)) + "/lib";
      for (const std::string& searched : result_.searched)
        looks_there |= searched.ends_with(folder) && searched.find("/nvidia/") != searched.npos;
    }
    if (here == wanted || (looks_there && !facts_.uses_torch)) return install;
    if (here > 0) return "take the wheel for cu" + std::to_string(here) + ", or " + torch;
    return "install " + torch + " and import it first, or add the folder of " + printable(library) +
           " to LD_LIBRARY_PATH";
  }

  Verdict version() const {
    const std::string& version = result_.version;
    std::vector<std::string> symbols;
    if (result_.object_elf)
      for (const ElfSymbol& symbol : result_.object_elf->symbols)
        if (!symbol.defined && symbol.version == version && symbols.size() < 5)
          symbols.push_back(printable(symbol.name));
    std::vector<std::string> evidence;
    evidence.reserve(symbols.size());
    for (const std::string& symbol : symbols) evidence.push_back(symbol + "@" + printable(version));
    const std::string who = symbols.empty() ? "" : " (" + joined(symbols, ", ") + ")";
    if (version.starts_with("GLIBC_")) {
      const bool usual = symbols.size() == 1 && symbols[0] == "__libc_single_threaded";
      return make("GLIBC_TOO_OLD",
                  "It was built on a newer system: it asks for " + printable(version) + who +
                      ", the C library here is " + target_.libc + " " + target_.libc_version.text() + "." +
                      (usual ? " That one symbol comes from std::shared_ptr of a newer libstdc++." : ""),
                  "use a wheel built in a manylinux image, run in a container with a newer system, or build it here "
                  "from source",
                  evidence);
    }
    if (version.starts_with("GLIBCXX_") || version.starts_with("CXXABI_"))
      return make("GLIBCXX_TOO_OLD",
                  "It was built with a newer g++: it asks for " + printable(version) + who + ", and " +
                      printable(result_.library) + " is older.",
                  "conda install -c conda-forge libstdcxx-ng, or remove the older libstdc++ from LD_LIBRARY_PATH",
                  evidence);
    if (const int wanted = cuda_major_of(version); wanted > 0)
      return make("CUDA_MAJOR", "It asks for CUDA " + std::to_string(wanted) + " of a library that is of another.",
                  "take the wheel for the CUDA of this torch", evidence);
    return make("VERSION_MISSING", "The library that is found is another than it was linked with.",
                "put the newer " + printable(base_name(result_.library)) + " first in the search path", evidence);
  }

  // No exception comes of it: Python ends in the middle of the import.
  Verdict loader_stops() const {
    const std::string library = printable(base_name(result_.library)), object = printable(base_name(result_.object));
    const bool is_gone = result_.message.find("dl-version.c") != result_.message.npos;
    Verdict verdict =
        make("VERSION_MISSING",
             (is_gone ? object + " asks for a version of " + library +
                            " and does not name it among the libraries that "
                            "it needs: its header was edited (patchelf --remove-needed)."
                      : "The " + library + " that is found has no versions at all: it is another build than the one " +
                            object + " was linked with, or a stand-in for it.") +
                 " The loader takes this for a mistake of its own and ends the process.",
             is_gone ? "patchelf --add-needed " + library + " " + printable(result_.object) + ", or a new build"
                     : "put the " + library + " that has versions first in the search path",
             {object + " asks for " + printable(result_.version) + " of " + library});
    verdict.message = result_.message;
    return verdict;
  }

  // Missing symbols of torch, told apart: the other C++ ABI, another release, the stable interface.
  Verdict torch_symbol(const MissingSymbol& first, std::vector<std::string> evidence) const {
    const CxxAbi theirs = result_.object_elf ? cxx_abi_of_imports(*result_.object_elf).abi : CxxAbi::kUnknown;
    const CxxAbi ours = target_.torch ? target_.torch->cxx_abi : CxxAbi::kUnknown;
    const bool opposite =
        (theirs == CxxAbi::kOld && ours == CxxAbi::kNew) || (theirs == CxxAbi::kNew && ours == CxxAbi::kOld);
    if (opposite) {
      const char* flag = ours == CxxAbi::kNew ? "TRUE" : "FALSE";
      return make("TORCH_CXX11_ABI",
                  std::string("It was compiled with the ") + cxx_abi_name(theirs) +
                      " C++ ABI (_GLIBCXX_USE_CXX11_ABI=" + (theirs == CxxAbi::kNew ? "1" : "0") + "), " +
                      torch_text() + " with the " + cxx_abi_name(ours) + " one.",
                  names_its_abi(base_name(binary_.path))
                      ? std::string("take the wheel with cxx11abi") + flag + " in its name"
                      : "install the release that was made for torch " + torch_minor() +
                            " (torchvision and torchaudio: name torch and them in one pip install), or build it here "
                            "from source: pip install --no-build-isolation --no-binary :all: PACKAGE",
                  std::move(evidence));
    }
    const TorchSignature* row = find_torch_signature(first.name);
    if (row) evidence.push_back(std::string(row->what) + ": " + torch_range_text(*row));
    return make(
        "TORCH_SIGNATURE",
        row ? "It was built for " + torch_range_text(*row) + "; here is " + torch_text() + "."
            : "It was built for another release of torch than " + torch_text() + ": this one has no such function.",
        target_.torch ? "take the release that was made for torch " + torch_minor() +
                            ", or install the torch that it was made for"
                      : "install torch",
        std::move(evidence));
  }

  std::string torch_minor() const {
    const Version version = parse_version(target_.torch->version);
    return std::to_string(version.major_part()) + "." + std::to_string(version.minor_part());
  }

  Verdict symbol() const {
    const MissingSymbol& first = result_.missing[0];
    std::vector<std::string> evidence;
    if (const std::string readable = demangled(first.name); readable != first.name)
      evidence.push_back(printable(readable, 1000));
    if (result_.missing.size() > 1)
      evidence.push_back("and " + counted(result_.missing.size() - 1, "other") + " in " +
                         printable(base_name(result_.object)) + ", such as " + printable(result_.missing[1].name));
    if (is_torch_name(first.name)) return torch_symbol(first, std::move(evidence));
    if (is_torch_stable_name(first.name)) {
      const Version release = stable_function_release(first.name);
      return make("TORCH_STABLE_MIN",
                  "It uses torch's stable interface" +
                      (release.known() ? " of torch " + release.text() + " or later" : std::string()) + "; here is " +
                      torch_text() + ".",
                  "pip install 'torch>=" + (release.known() ? release.text() : std::string("2.10")) + "'",
                  std::move(evidence));
    }
    if (is_cpython_name(first.name))
      return make("PY_SYMBOL",
                  "It was built for another Python: " + python_text() + " has no " + printable(first.name) + ".",
                  "build or install it for " + python_text(), std::move(evidence));
    if (const int wanted = cuda_major_of(first.version); wanted > 0)
      return make("UNDEFINED_SYMBOL",
                  "The CUDA " + std::to_string(wanted) +
                      " library that is found is older than the one it was built with: an older copy comes first in "
                      "the search path.",
                  "remove the older CUDA from LD_LIBRARY_PATH", std::move(evidence));
    return make(
        "UNDEFINED_SYMBOL",
        "No library that it loads defines the symbol: one is missing from its link line, or is another release.",
        "build it again against what is installed here", std::move(evidence));
  }

  const Binary& binary_;
  const BinaryFacts& facts_;
  const Environment& target_;
  std::string subject_;
  Resolution result_;
};

// "pkg._C" of pkg/_C.cpython-312-x86_64-linux-gnu.so: in a wheel, or below a folder of packages.
std::string import_name(const Binary& binary, const Environment& target) {
  std::string_view path = binary.path;
  for (const char* scheme : {".data/platlib/", ".data/purelib/"})
    if (const std::size_t at = path.find(scheme); at != path.npos)
      path.remove_prefix(at + std::string_view(scheme).size());
  if (target.python)
    for (const std::string& site : target.python->site_packages)
      if (path.starts_with(site + "/")) path.remove_prefix(site.size() + 1);
  return path.starts_with("/") ? module_of_path(base_name(path)) : module_of_path(path);
}

// Python looks for its own suffixes only.
void judge_suffix(const Binary& binary, const BinaryFacts& facts, const Environment& target,
                  std::vector<Verdict>& out) {
  if (!target.python || facts.module.naming == ModuleNaming::kNone || facts.module.naming == ModuleNaming::kPlain)
    return;
  const PythonFacts& python = *target.python;
  const std::string here = "Python " + python.version.text() + (python.free_threaded ? "t" : "");
  if (facts.module.naming == ModuleNaming::kAbi3) {
    // x.abi3t.so is looked for from 3.15 on, with the GIL and without; x.abi3.so only with it.
    if (facts.module.free_threaded && python.version.known() && python.version < Version{{3, 15}})
      out.push_back(make_verdict(
          {.code = "SO_SOABI",
           .subject = printable(binary.path),
           .message = "ModuleNotFoundError: No module named '" + printable(import_name(binary, target)) + "'",
           .cause = "Python looks for modules of the stable ABI without the GIL (.abi3t.so) from 3.15 on; here is " +
                    here + ".",
           .fix = "use Python 3.15 or later, or a wheel for cp3" + std::to_string(python.version.minor_part()) +
                  (python.free_threaded ? "t" : "")}));
    else if (python.free_threaded && !facts.module.free_threaded)
      out.push_back(make_verdict(
          {.code = "SO_SOABI",
           .subject = printable(binary.path),
           .message = "ModuleNotFoundError: No module named '" + printable(import_name(binary, target)) + "'",
           .cause = "Free-threaded Python does not load modules of the stable ABI with the GIL; here is " + here + ".",
           .fix = "use a Python with the GIL, or a wheel for cp3" + std::to_string(python.version.minor_part()) +
                  (python.version >= Version{{3, 15}} ? "t or abi3t" : "t")}));
    else if (facts.python.limited.known() && python.version.known() &&
             facts.python.limited > Version{{python.version.major_part(), python.version.minor_part()}})
      out.push_back(
          make_verdict({.code = "PY_ABI3_VIOLATION",
                        .subject = printable(binary.path),
                        .message = "uses " + printable(facts.python.limited_symbol) +
                                   ", which the stable ABI has from Python " + facts.python.limited.text() + " on",
                        .cause = "Here is " + here + ".",
                        .fix = "use Python " + facts.python.limited.text() + " or later",
                        .evidence = {printable(facts.python.limited_symbol)}}));
    return;
  }
  const bool same = python.soabi.empty()
                        ? facts.module.python == Version{{python.version.major_part(), python.version.minor_part()}} &&
                              facts.module.free_threaded == python.free_threaded
                        : facts.module.soabi == python.soabi;
  if (same) return;
  out.push_back(make_verdict(
      {.code = "SO_SOABI",
       .subject = printable(binary.path),
       .message = "ModuleNotFoundError: No module named '" + printable(import_name(binary, target)) + "'",
       .cause = "The file is for " + printable(facts.module.soabi) + ", " + here + " looks for " +
                (python.soabi.empty() ? "another suffix" : python.soabi) + ".",
       .fix = "install the package with this Python: " +
              (python.executable.empty() ? std::string("python") : python.executable) + " -m pip install ...",
       .evidence = {printable(facts.module.soabi)}}));
}

}  // namespace

bool is_torch_library(std::string_view name) {
  for (const char* prefix : {"libtorch.so", "libtorch_", "libc10.so", "libc10_", "libshm.so", "libcaffe2"})
    if (name.starts_with(prefix)) return true;
  return false;
}

bool is_driver_library(std::string_view name) {
  for (const char* prefix : {"libcuda.so.", "libnvidia-", "libnvcuvid.so.", "libnvoptix.so.", "libcudadebugger.so."})
    if (name.starts_with(prefix)) return true;
  return false;
}

ImportFailure import_failure(const Resolution& said) {
  return said.failure == LoadFailure::kNone ? ImportFailure::kNone
         : said.failure == LoadFailure::kLoaderStops || said.failure == LoadFailure::kNotRelocated
             ? ImportFailure::kProcessEnds
             : ImportFailure::kImportError;
}

std::optional<Resolution> judge_load(const Binary& binary, const BinaryFacts& facts, LoadSession& session,
                                     const PlacedFile& file, const std::vector<PlacedFile>& before_it,
                                     const Environment& target, std::vector<Verdict>& out) {
  if (binary.cubin || binary.bare_fatbin) return std::nullopt;
  const std::size_t before = out.size();
  judge_suffix(binary, facts, target, out);
  // A file that Python does not even look at is not loaded.
  if (std::any_of(out.begin() + std::ptrdiff_t(before), out.end(),
                  [](const Verdict& v) { return v.code == Code::SO_SOABI; }))
    return std::nullopt;
  const LoadJudge judge(binary, facts, session.open(file, before_it), target);
  out.push_back(judge.verdict());
  return judge.result();
}

}  // namespace doctor
