// SPDX-License-Identifier: Apache-2.0
#include "doctor/facts/facts.h"

#include <algorithm>

#include "doctor/facts/gpu_rules.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

constexpr std::size_t kMaxSymbols = 5;

bool same_kind(const FatbinEntry& a, const FatbinEntry& b) {
  return a.kind == b.kind && a.arch == b.arch && a.compression == b.compression && a.ptx_isa == b.ptx_isa &&
         a.cubin_abi == b.cubin_abi && a.empty == b.empty;
}

}  // namespace

std::string VersionFloor::text(std::string_view family) const {
  std::string out = std::string(family) + version.text();
  // One is enough to find the line that asks for it; the others are evidence.
  if (!symbols.empty()) out += " (" + printable(symbols[0], 100) + (symbols.size() > 1 ? " and others" : "") + ")";
  return out;
}

VersionFloor version_floor(const ElfFile& elf, std::string_view family) {
  VersionFloor out;
  std::string_view wanted;
  for (const VersionNeed& need : elf.version_needs) {
    auto version = version_after(family, need.version);
    if (need.version == "GLIBC_ABI_DT_RELR" && family == "GLIBC_") version = Version{{2, 36}};  // packed relocations
    if (!version || (out.known() && *version <= out.version)) continue;
    out.version = *version;
    out.library = printable(need.library);
    wanted = need.version;
  }
  for (const ElfSymbol& symbol : elf.symbols)
    if (!symbol.defined && !wanted.empty() && symbol.version == wanted && out.symbols.size() < kMaxSymbols)
      out.symbols.push_back(printable(symbol.name));
  return out;
}

int cuda_major_of(std::string_view library) {
  // Libraries whose own version is CUDA's (libcufft's is one behind).
  for (const char* name : {"libcudart", "libcublas", "libcublasLt", "libnvrtc", "libnvJitLink", "libcupti"}) {
    const std::string prefix = std::string(name) + ".so.";
    if (library.starts_with(prefix)) return parse_version(library.substr(prefix.size())).major_part();
  }
  return 0;
}

GpuFacts gpu_facts(const std::vector<FatbinContainer>& containers) {
  GpuFacts out;
  std::vector<FatbinContainer> full;
  for (const FatbinContainer& container : containers) {
    if (container.empty()) {
      ++out.empty_containers;
      continue;
    }
    ++out.containers;
    full.push_back(container);
    GpuGroup* group = nullptr;
    for (GpuGroup& g : out.groups)
      if (std::equal(g.entries.begin(), g.entries.end(), container.entries.begin(), container.entries.end(), same_kind))
        group = &g;
    if (!group) {
      if (out.groups.size() >= 1000) continue;
      group = &out.groups.emplace_back();
      group->entries = container.entries;
    }
    ++group->containers;
    for (const FatbinEntry& entry : container.entries) {
      const Version driver = lowest_driver(entry);
      if (entry.empty || entry.code == GpuCode::kPtx) continue;
      if (driver.known() && (!out.lowest_driver.known() || out.lowest_driver < driver)) out.lowest_driver = driver;
    }
  }
  // PTX alone decides where there is nothing else.
  if (!out.lowest_driver.known())
    for (const FatbinContainer& container : full)
      for (const FatbinEntry& entry : container.entries)
        if (const Version driver = lowest_driver(entry);
            driver.known() && !(driver <= out.lowest_driver && out.lowest_driver.known()))
          out.lowest_driver = driver;
  std::sort(out.groups.begin(), out.groups.end(),
            [](const GpuGroup& a, const GpuGroup& b) { return a.containers > b.containers; });
  const ServedGpus served = served_gpus(full);
  out.served = served.all;
  out.served_partly = served.some;
  return out;
}

BinaryFacts facts_of(const Binary& binary) {
  BinaryFacts out;
  const ElfFile& elf = binary.elf;
  out.glibc = version_floor(elf, "GLIBC_");
  out.glibcxx = version_floor(elf, "GLIBCXX_");
  out.cxxabi = version_floor(elf, "CXXABI_");
  out.cxx_abi = cxx_abi_of_imports(elf);
  out.python = python_abi_of(elf);
  out.module = parse_module_name(binary.path);
  std::size_t stable = 0;
  for (const ElfSymbol& symbol : elf.symbols)
    if (!symbol.defined && is_torch_stable_name(symbol.name)) ++stable;
  out.uses_torch = out.cxx_abi.torch_symbols > 0 || stable > 0;
  out.torch_stable = out.cxx_abi.torch_symbols == 0 && stable > 0;
  if (!out.uses_torch) out.cxx_abi = cxx_abi_of_strings(elf);
  out.torch = torch_range_of_imports(elf);
  out.torch_stable_need = stable_need_of_imports(elf);
  const auto see = [&](std::string_view library) {
    if (out.cuda_major != 0) return;
    out.cuda_major = cuda_major_of(library);
    if (out.cuda_major != 0) out.cuda_evidence = printable(library);
  };
  for (const std::string_view needed : elf.needed) see(needed);
  for (const VersionNeed& need : elf.version_needs) see(need.version);
  out.gpu = gpu_facts(binary.fatbins);
  return out;
}

const char* compression_name(Compression compression) {
  switch (compression) {
    case Compression::kNone: return "none";
    case Compression::kLz4: return "lz4";
    case Compression::kZstd: return "zstd";
    case Compression::kOther: return "other";
  }
  return "other";
}

std::string entry_text(const FatbinEntry& entry) {
  std::string out;
  switch (entry.code) {
    case GpuCode::kPtx: out = entry.arch.text("compute_") + " (PTX " + entry.ptx_isa.text() + ")"; break;
    case GpuCode::kCubin: out = entry.arch.text(); break;
    case GpuCode::kLtoIr: out = entry.arch.text("lto_"); break;
    case GpuCode::kOther: out = "kind " + std::to_string(entry.kind) + " for " + entry.arch.text(); break;
  }
  if (entry.compression != Compression::kNone) out += std::string(" ") + compression_name(entry.compression);
  if (entry.debug) out += " debug";
  return out;
}

}  // namespace doctor
