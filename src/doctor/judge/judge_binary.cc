// SPDX-License-Identifier: Apache-2.0
#include "doctor/judge/judge_binary.h"

#include <elf.h>

#include <algorithm>

#include "doctor/facts/mangled.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

void judge_python(const Binary& binary, const BinaryFacts& facts, std::vector<Verdict>& out) {
  const ModuleName& module = facts.module;
  const bool named = module.naming == ModuleNaming::kCpython || module.naming == ModuleNaming::kAbi3;
  const std::string wanted = "PyInit_" + module.module;
  const auto& found = facts.python.init_functions;
  if (named && !facts.python.is_module(module.module)) {
    const std::string other = found.empty() ? "" : printable(found[0].substr(found[0].find('_') + 1));
    Verdict verdict =
        make_verdict({.code = "SO_NO_PYINIT",
                      .subject = printable(binary.path),
                      .message = "dynamic module does not define module export function (" + printable(wanted) + ")",
                      .cause = found.empty() ? "It is named like a Python module and exports none."
                                             : "The file was renamed: it is the module " + other + ".",
                      .fix = found.empty() ? "load it with ctypes or torch.ops.load_library, if that is what it is for"
                                           : "give it the name " + other + " back"});
    for (std::size_t i = 0; i < found.size() && i < 3; ++i)
      verdict.evidence.push_back("exports " + printable(found[i]));
    // Without any symbol of Python it is a library for ctypes under a module's name.
    if (found.empty() && facts.python.imports == 0) verdict.severity = Severity::kNote;
    out.push_back(std::move(verdict));
  }
  if (module.naming == ModuleNaming::kAbi3 && !facts.python.beyond.empty()) {
    std::vector<std::string> evidence;
    for (std::size_t i = 0; i < facts.python.beyond.size() && i < 5; ++i)
      evidence.push_back("imports " + printable(facts.python.beyond[i]));
    out.push_back(make_verdict(
        {.code = "PY_ABI3_VIOLATION",
         .subject = printable(binary.path),
         .message =
             "named abi3 and imports " + counted(facts.python.beyond.size(), "symbol") + " outside the stable ABI",
         .cause = "It was not built with Py_LIMITED_API; it works only with the Python it was built with, if at all.",
         .fix = "build it with -DPy_LIMITED_API=0x03090000 and without pybind11's full API, or name it for one Python",
         .evidence = evidence}));
  }
}

// What glibc's loader takes is marked as of no system (System V) or of GNU; on 32-bit ARM it has rules of its own.
bool elf_is_foreign(const ElfFile& elf) {
  return elf.osabi != ELFOSABI_SYSV && elf.osabi != ELFOSABI_GNU && elf.machine != EM_ARM;
}

}  // namespace

std::string os_abi_name(const ElfFile& elf) {
  const std::string number = std::to_string(elf.osabi);
  switch (elf.osabi) {
    case ELFOSABI_NETBSD: return "NetBSD (" + number + ")";
    case ELFOSABI_SOLARIS: return "Solaris (" + number + ")";
    case ELFOSABI_FREEBSD: return "FreeBSD (" + number + ")";
    case ELFOSABI_OPENBSD: return "OpenBSD (" + number + ")";
    default: return number;
  }
}

std::string stack_evidence(const ElfFile& elf) {
  return elf.says_nothing_of_stack ? "without PT_GNU_STACK, which counts as RWE on " + machine_name(elf)
                                   : std::string("PT_GNU_STACK is RWE");
}

void judge_binary(const Binary& binary, const BinaryFacts& facts, std::vector<Verdict>& out) {
  if (binary.cubin || binary.bare_fatbin) return;
  judge_python(binary, facts, out);
  if (facts.cxx_abi.torch_symbols > 0 && facts.cxx_abi.abi == CxxAbi::kMixed)
    out.push_back(make_verdict({.code = "TORCH_CXX11_ABI",
                                .subject = printable(binary.path),
                                .message = "imports symbols of torch in both C++ ABIs: no torch has both",
                                .cause = "Parts of it were compiled with _GLIBCXX_USE_CXX11_ABI=0 and parts with 1.",
                                .fix = "build all of it with the value that torch.compiled_with_cxx11_abi() gives",
                                .evidence = {"old: " + printable(facts.cxx_abi.old_symbols[0]),
                                             "new: " + printable(facts.cxx_abi.new_symbols[0])}}));
  if (facts.torch.contradictory())
    out.push_back(
        make_verdict({.code = "TORCH_SIGNATURE",
                      .subject = printable(binary.path),
                      .message = "needs torch " + facts.torch.first.text() + " or later and torch " +
                                 facts.torch.last.text() + " or before",
                      .cause = "Parts of it were compiled for different releases of torch: no torch has all symbols.",
                      .fix = "clean the build folder and build it again",
                      .evidence = {printable(facts.torch.first_symbol), printable(facts.torch.last_symbol)}}));
  if (binary.elf.executable_stack && binary.elf.type == ET_DYN)
    out.push_back(
        make_verdict({.code = "EXECUTABLE_STACK",
                      .subject = printable(binary.path),
                      .message = "cannot enable executable stack as shared object requires: Invalid argument",
                      .cause = "A part of it (usually assembler without a .note.GNU-stack section) asks for an "
                               "executable stack; glibc 2.41 and later, and hardened kernels, refuse to load it.",
                      .fix = "patchelf --clear-execstack " + printable(base_name(binary.path)),
                      .evidence = {stack_evidence(binary.elf)}}));
  if (elf_is_foreign(binary.elf)) {
    Verdict verdict =
        make_verdict({.code = "ELF_MACHINE",
                      .subject = printable(binary.path),
                      .message = "ELF file OS ABI invalid",
                      .cause = "It is marked as made for another operating system: glibc's loader refuses it.",
                      .fix = "take the build for Linux",
                      .evidence = {"EI_OSABI: " + os_abi_name(binary.elf)}});
    verdict.severity = Severity::kWarning;
    out.push_back(std::move(verdict));
  }
  bool specific = false, family = false;
  for (const GpuGroup& group : facts.gpu.groups)
    for (const FatbinEntry& entry : group.entries) {
      specific = specific || (entry.arch.suffix == 'a' && !entry.empty);
      family = family || (entry.arch.suffix == 'f' && !entry.empty);
    }
  const auto archs_with = [&](char suffix) {
    std::vector<std::string> names;
    for (const GpuGroup& group : facts.gpu.groups)
      for (const FatbinEntry& entry : group.entries)
        if (entry.arch.suffix == suffix && std::find(names.begin(), names.end(), entry.arch.text()) == names.end())
          names.push_back(entry.arch.text());
    return joined(names, ", ");
  };
  if (specific)
    out.push_back(make_verdict(
        {.code = "GPU_ARCH_SPECIFIC_A",
         .subject = printable(binary.path),
         .message = archs_with('a') + " runs on exactly that GPU generation",
         .cause = "Code with the suffix a is not carried over to later GPUs, not even of the same major version."}));
  if (family)
    out.push_back(make_verdict({.code = "GPU_FAMILY_F",
                                .subject = printable(binary.path),
                                .message = archs_with('f') + " runs within its family",
                                .cause = "Code with the suffix f runs on later GPUs of the same family only."}));
}

}  // namespace doctor
