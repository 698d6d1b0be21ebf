// SPDX-License-Identifier: Apache-2.0
// libFuzzer over ld.so.cache: any bytes give entries whose strings are whole, or a problem.
#include <cstdlib>

#include "doctor/facts/environment.h"
#include "doctor/load/loader_cache.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  support::MemorySource source(std::span<const uint8_t>(data, size));
  for (const char* machine : {"aarch64", "x86_64", "other"}) {
    std::vector<std::string> problems;
    const auto entries = doctor::read_loader_cache(source, machine, &problems);
    for (const auto& [name, path] : entries)
      if (name.empty() || path.empty() || name.size() > 4096 || path.size() > 4096) std::abort();
    // An entry takes 24 bytes of the file; there cannot be more than fit.
    if (entries.size() * 24 > size) std::abort();
  }
  return 0;
}
