// SPDX-License-Identifier: Apache-2.0
#include "doctor/report/describe.h"

#include <elf.h>

#include <algorithm>
#include <cstdio>

#include "doctor/facts/facts.h"
#include "doctor/facts/gpu_rules.h"
#include "doctor/facts/mangled.h"
#include "doctor/read/cubin.h"
#include "doctor/read/wheel_name.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

constexpr std::size_t kFewBinaries = 12, kFewGroups = 6, kFewNames = 8;

std::string line(const char* label, const std::string& text) {
  char head[32];
  std::snprintf(head, sizeof head, "  %-11s", label);
  return head + text + "\n";
}

template <class Names>
std::string few(const Names& names, std::size_t most) {
  std::string out;
  for (std::size_t i = 0; i < names.size() && i < most; ++i) out += (i ? ", " : "") + printable(names[i]);
  if (names.size() > most) out += " and " + std::to_string(names.size() - most) + " more";
  return out;
}

std::string python_text(const BinaryFacts& facts) {
  std::string out;
  switch (facts.module.naming) {
    case ModuleNaming::kCpython: out = "module for " + printable(facts.module.soabi); break;
    case ModuleNaming::kAbi3:
      out = facts.module.free_threaded ? "module for the stable ABI of free-threaded Python"
                                       : "module for the stable ABI";
      break;
    default:
      if (facts.python.init_functions.empty() && facts.python.imports == 0) return "";
      out = facts.python.init_functions.empty() ? "no module" : "module for any name tag";
  }
  if (!facts.python.init_functions.empty()) out += ", exports " + few(facts.python.init_functions, 2);
  if (facts.python.imports > 0) {
    out += "; " + counted(facts.python.imports, "symbol") + " of CPython, ";
    out += !facts.python.beyond.empty()
               ? std::to_string(facts.python.beyond.size()) + " of them outside the stable ABI (" +
                     printable(facts.python.beyond[0]) + ")"
               : "all in the stable ABI of " + facts.python.limited.text();
  }
  return out;
}

std::string torch_text(const BinaryFacts& facts) {
  if (!facts.uses_torch) return "";
  if (facts.torch_stable) {
    std::string out = "stable ABI only";
    if (facts.torch_stable_need.torch.known())
      out += ", torch " + facts.torch_stable_need.torch.text() + " or later (" +
             printable(facts.torch_stable_need.symbol) + ")";
    return out;
  }
  std::string out = "internals: " + counted(facts.cxx_abi.torch_symbols, "symbol");
  if (facts.torch.first.known())
    out += "; torch " + facts.torch.first.text() + " or later (" + printable(facts.torch.first_symbol) + ")";
  if (facts.torch.last.known())
    out += "; torch " + facts.torch.last.text() + " or before (" + printable(facts.torch.last_symbol) + ")";
  return out;
}

std::string abi_text(const CxxAbiFacts& facts) {
  std::string out = cxx_abi_name(facts.abi);
  switch (facts.abi) {
    case CxxAbi::kOld: return out + " (_GLIBCXX_USE_CXX11_ABI=0): " + printable(facts.old_symbols[0]);
    case CxxAbi::kNew: return out + " (_GLIBCXX_USE_CXX11_ABI=1): " + printable(facts.new_symbols[0]);
    case CxxAbi::kMixed:
      return out + ": " + printable(facts.old_symbols[0]) + " and " + printable(facts.new_symbols[0]);
    default: return out;
  }
}

std::string gpu_text(const GpuFacts& gpu, bool all) {
  std::string out;
  std::size_t shown = 0;
  for (const GpuGroup& group : gpu.groups) {
    if (!all && shown++ == kFewGroups) {
      out += line("", "and " + std::to_string(gpu.groups.size() - kFewGroups) + " other kinds of containers");
      break;
    }
    std::vector<std::string> entries;
    Version toolkit;
    bool exact = false;
    for (const FatbinEntry& entry : group.entries) {
      if (entry.empty) continue;
      entries.push_back(entry_text(entry));
      const Version v = lowest_toolkit(entry);
      if (v.known() && (!toolkit.known() || toolkit < v)) {
        toolkit = v;
        exact = entry.toolkit.known() || entry.code == GpuCode::kPtx;
      }
    }
    std::string text = counted(group.containers, "container") + ": " + joined(entries, ", ");
    if (toolkit.known()) text += "; CUDA " + toolkit.text() + (exact ? "" : " or later");
    out += line(&group == &gpu.groups.front() ? "GPU code" : "", text);
  }
  if (gpu.empty_containers > 0)
    out += line("", counted(gpu.empty_containers, "container") + " without code (nvcc's link step adds one)");
  if (gpu.containers > 0) {
    if (!gpu.served.empty()) out += line("GPUs", gpu.served);
    if (!gpu.served_partly.empty()) out += line(gpu.served.empty() ? "GPUs" : "", "in part: " + gpu.served_partly);
    if (gpu.lowest_driver.known()) out += line("driver", gpu.lowest_driver.text() + " or later");
  }
  return out;
}

std::string cubin_text(const Binary& binary) {
  const Cubin& cubin = *binary.cubin;
  std::string out =
      line("cubin", cubin.arch.text() + ", ABI " + std::to_string(cubin.abi) + ", " +
                        counted(cubin.kernels.size(), "kernel or function") + ", " + size_text(binary.size));
  if (cubin.toolkit.known())
    out += line("toolkit", "CUDA " + cubin.toolkit.text() +
                               (cubin.command_line.empty() ? "" : ", ptxas " + printable(cubin.command_line)));
  if (!cubin.kernels.empty()) out += line("kernels", few(cubin.kernels, kFewNames));
  FatbinContainer alone;
  alone.entries.push_back({GpuCode::kCubin,
                           2,
                           cubin.arch,
                           Compression::kNone,
                           {},
                           cubin.abi,
                           cubin.toolkit,
                           false,
                           false,
                           binary.size,
                           binary.size});
  const ServedGpus served = served_gpus({&alone, 1});
  if (!served.all.empty()) out += line("GPUs", served.all);
  out += line("driver", lowest_driver(alone.entries[0]).text() + " or later");
  return out;
}

std::string binary_text(const Binary& binary, bool all) {
  std::string out = printable(binary.path) + "\n";
  if (binary.cubin) return out + cubin_text(binary);
  const BinaryFacts facts = facts_of(binary);
  if (!binary.bare_fatbin) {
    const char* type = binary.elf.type == ET_DYN    ? (binary.elf.interpreter.empty() ? "shared library" : "program")
                       : binary.elf.type == ET_EXEC ? "program"
                       : binary.elf.type == ET_REL  ? "object file"
                                                    : "ELF file";
    out += line("ELF", machine_name(binary.elf) + " " + type + ", " + size_text(binary.size) +
                           (binary.elf.sections.empty() ? ", without section headers" : ""));
    if (!binary.elf.soname.empty()) out += line("soname", printable(binary.elf.soname));
    if (!binary.elf.needed.empty()) out += line("needs", few(binary.elf.needed, 40));
    if (!binary.elf.rpath.empty()) out += line("rpath", printable(binary.elf.rpath));
    if (!binary.elf.runpath.empty()) out += line("runpath", printable(binary.elf.runpath));
    if (facts.glibc.known()) out += line("glibc", facts.glibc.text("GLIBC_"));
    if (facts.glibcxx.known()) out += line("libstdc++", facts.glibcxx.text("GLIBCXX_"));
    out += line("C++ ABI", abi_text(facts.cxx_abi));
    if (const std::string text = python_text(facts); !text.empty()) out += line("Python", text);
    if (const std::string text = torch_text(facts); !text.empty()) out += line("torch", text);
    if (facts.cuda_major > 0) out += line("CUDA", std::to_string(facts.cuda_major) + " (" + facts.cuda_evidence + ")");
  }
  return out + gpu_text(facts.gpu, all);
}

std::string wheel_text(const Inspection& inspection) {
  const Wheel& wheel = *inspection.wheel;
  const bool is_installed = inspection.kind == FileKind::kPackage;
  std::string out = printable(is_installed ? inspection.path : wheel.file_name) + "\n";
  const std::string name = wheel.metadata.first("Name"), version = wheel.metadata.first("Version");
  out += line(is_installed ? "package" : "wheel",
              (name.empty() ? "no METADATA" : printable(name) + " " + printable(version)) + ", " +
                  size_text(wheel.size) + ", " + counted(wheel.entries.size(), "file") + ", " +
                  std::to_string(wheel.binaries.size()) + " compiled");
  if (wheel.name) {
    std::vector<std::string> tags;
    for (const WheelTag& tag : wheel.name->tags) tags.push_back(tag.text());
    out += line("tags", few(tags, kFewNames));
  }
  if (const std::string python = wheel.metadata.first("Requires-Python"); !python.empty())
    out += line("Python", printable(python));
  if (const auto needs = wheel.metadata.all("Requires-Dist"); !needs.empty())
    out += line("requires", few(needs, kFewNames));
  return out;
}

}  // namespace

std::string size_text(uint64_t bytes) {
  char text[32];
  if (bytes < 10'240)
    std::snprintf(text, sizeof text, "%llu bytes", static_cast<unsigned long long>(bytes));
  else if (bytes < (uint64_t(10) << 20))
    std::snprintf(text, sizeof text, "%.0f KiB", double(bytes) / 1024);
  else
    std::snprintf(text, sizeof text, "%.0f MiB", double(bytes) / 1024 / 1024);
  return text;
}

std::string describe(const Inspection& inspection, bool all) {
  std::string out;
  const std::vector<Binary>& binaries = binaries_of(inspection);
  if (inspection.wheel) out += wheel_text(inspection);
  if (inspection.kind == FileKind::kFolder)
    out += printable(inspection.path) + "\n" + line("folder", counted(binaries.size(), "compiled file"));
  for (std::size_t i = 0; i < binaries.size(); ++i) {
    if (!all && i == kFewBinaries) {
      out += "and " + std::to_string(binaries.size() - i) + " other compiled files (--all lists them)\n";
      break;
    }
    out += binary_text(binaries[i], all);
  }
  return out;
}

}  // namespace doctor
