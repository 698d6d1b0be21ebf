// SPDX-License-Identifier: Apache-2.0
#include "doctor/tables/torch_symbols.h"

#include <algorithm>

#include "doctor/tables/names_of_minor.h"

namespace doctor {
namespace {

// What public reports and released files establish, no more: an empty end is one that is not known.
constexpr TorchSignature kSignatures[] = {
    {"_ZN3c105ErrorC1ENS_14SourceLocationERKSs", "", "1.7", "c10::Error takes its text by reference"},
    {"_ZN3c105ErrorC2ENS_14SourceLocationERKSs", "", "1.7", "c10::Error takes its text by reference"},
    {"_ZN3c105ErrorC1ENS_14SourceLocationERKNSt7__cxx1112basic_string*", "", "1.7",
     "c10::Error takes its text by reference"},
    {"_ZN3c105ErrorC2ENS_14SourceLocationERKNSt7__cxx1112basic_string*", "", "1.7",
     "c10::Error takes its text by reference"},
    {"_ZN3c104cuda9SetDeviceEi", "", "2.2", "c10::cuda::SetDevice takes an int"},
    {"_ZN3c104cuda9SetDeviceEa", "", "2.7", "c10::cuda::SetDevice takes an int8"},
    {"_ZN3c104cuda9SetDeviceEab", "2.8", "", "c10::cuda::SetDevice takes an int8 and a bool"},
    {"_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib", "", "2.9",
     "c10_cuda_check_implementation takes an int line"},
    {"_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb", "2.10", "",
     "c10_cuda_check_implementation takes an unsigned line"},
    {"_ZN2at4_ops*N3c108optionalI*", "", "2.1", "operators take c10::optional"},
    {"_ZN2at4_ops*NS5_8optionalI*", "", "2.1", "operators take c10::optional"},
    {"_ZN2at4_ops*St8optionalI*", "2.2", "", "operators take std::optional"},
    {"_ZN3c104impl3cow23materialize_cow_storageERNS_11StorageImplE", "", "2.12",
     "copy-on-write storage is materialised by name"},
};

constexpr NamesOfMinor kStable[] = {
#include "doctor/tables/torch_stable.inc"
};

// Pieces between '*' must come in order; the first is a beginning, and without a final '*' the last is an end.
bool matches(std::string_view pattern, std::string_view name) {
  const std::size_t star = pattern.find('*');
  if (star == pattern.npos) return pattern == name;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  name.remove_prefix(star);
  pattern.remove_prefix(star + 1);
  while (!pattern.empty()) {
    const std::size_t next = std::min(pattern.find('*'), pattern.size());
    const std::size_t at = name.find(pattern.substr(0, next));
    if (at == name.npos) return false;
    name.remove_prefix(at + next);
    pattern.remove_prefix(std::min(next + 1, pattern.size()));
  }
  return true;
}

bool holds_word(std::string_view list, std::string_view word) {
  for (std::size_t at = list.find(word); at != list.npos; at = list.find(word, at + 1))
    if ((at == 0 || list[at - 1] == ' ') && at + word.size() < list.size() && list[at + word.size()] == ' ')
      return true;
  return false;
}

}  // namespace

const TorchSignature* find_torch_signature(std::string_view symbol) {
  for (const TorchSignature& row : kSignatures)
    if (matches(row.pattern, symbol)) return &row;
  return nullptr;
}

std::string torch_range_text(const TorchSignature& signature) {
  const std::string first = signature.first, last = signature.last;
  if (!first.empty() && !last.empty()) return "torch " + first + " to " + last;
  if (!first.empty()) return "torch " + first + " and later";
  return "torch up to " + last;
}

Version stable_function_release(std::string_view name) {
  if (name.empty() || name.find(' ') != name.npos) return {};
  for (const NamesOfMinor& row : kStable)
    if (holds_word(row.names, name)) return {{2, row.minor}};
  return {};
}

}  // namespace doctor
