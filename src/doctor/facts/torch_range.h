// SPDX-License-Identifier: Apache-2.0
// The releases of torch that have what a file imports.
#pragma once

#include <string>

#include "doctor/read/elf/elf.h"
#include "support/version.h"

namespace doctor {

using namespace support;

// The releases that have all symbols of the table that a file imports.
struct TorchRange {
  Version first, last;  // not known: open
  std::string first_symbol, last_symbol;
  bool contradictory() const { return first.known() && last.known() && last < first; }
};
TorchRange torch_range_of_imports(const ElfFile& elf);

// The torch that an import of the stable ABI needs at least; not known if nothing tells.
struct StableNeed {
  Version torch;
  std::string symbol;
};
StableNeed stable_need_of_imports(const ElfFile& elf);

}  // namespace doctor
