// SPDX-License-Identifier: Apache-2.0
#include "doctor/facts/torch_range.h"

#include "doctor/facts/mangled.h"
#include "doctor/tables/torch_symbols.h"

namespace doctor {

TorchRange torch_range_of_imports(const ElfFile& elf) {
  TorchRange out;
  for (const ElfSymbol& symbol : elf.symbols) {
    if (symbol.defined || symbol.weak() || !is_torch_name(symbol.name)) continue;
    const TorchSignature* row = find_torch_signature(symbol.name);
    if (!row) continue;
    const Version first = parse_version(row->first), last = parse_version(row->last);
    if (first.known() && (!out.first.known() || out.first < first)) {
      out.first = first;
      out.first_symbol = symbol.name;
    }
    if (last.known() && (!out.last.known() || last < out.last)) {
      out.last = last;
      out.last_symbol = symbol.name;
    }
  }
  return out;
}

StableNeed stable_need_of_imports(const ElfFile& elf) {
  StableNeed out;
  for (const ElfSymbol& symbol : elf.symbols) {
    if (symbol.defined || symbol.weak() || !is_torch_stable_name(symbol.name)) continue;
    const Version release = stable_function_release(symbol.name);
    if (!release.known() || (out.torch.known() && release <= out.torch)) continue;
    out = {release, std::string(symbol.name)};
  }
  return out;
}

}  // namespace doctor
