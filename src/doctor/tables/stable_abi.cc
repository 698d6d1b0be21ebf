// SPDX-License-Identifier: Apache-2.0
#include "doctor/tables/stable_abi.h"

#include <set>
#include <unordered_map>

#include "doctor/tables/names_of_minor.h"

namespace doctor {
namespace {

constexpr NamesOfMinor kStableAbi[] = {
#include "doctor/tables/cpython_abi3.inc"
};

const std::unordered_map<std::string_view, int>& stable_abi() {
  static const auto* table = [] {
    auto* out = new std::unordered_map<std::string_view, int>;
    for (const NamesOfMinor& row : kStableAbi) {
      std::string_view rest = row.names;
      for (std::size_t space; (space = rest.find(' ')) != rest.npos; rest.remove_prefix(space + 1))
        out->emplace(rest.substr(0, space), row.minor);
    }
    return out;
  }();
  return *table;
}

}  // namespace

bool is_stable_abi_family(std::string_view family) {
  static const auto* families = [] {
    auto* out = new std::set<std::string_view>;
    for (const auto& [name, minor] : stable_abi()) {
      const std::string_view plain = name.substr(name.starts_with("_"));
      out->insert(plain.substr(0, plain.find('_')));
    }
    return out;
  }();
  return families->count(family) > 0;
}

Version stable_abi_release(std::string_view name) {
  const auto found = stable_abi().find(name);
  return found == stable_abi().end() ? Version{} : Version{{3, found->second}};
}

}  // namespace doctor
