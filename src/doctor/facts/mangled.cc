// SPDX-License-Identifier: Apache-2.0
#include "doctor/facts/mangled.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace doctor {
namespace {

constexpr std::size_t kMaxExamples = 5;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

StringAbi string_abi_of(std::string_view name) {
  if (!name.starts_with("_Z")) return StringAbi::kNeutral;
  // Old: Ss (std::string), Si, So, Sd (streams), Sb (basic_string), St4list: in the new ABI all but the streams are
  // spelt out below std::__cxx11. Streams have one name in both and say nothing.
  bool is_old = false;
  for (std::size_t i = 2; i < name.size();) {
    if (is_digit(name[i])) {
      std::size_t length = 0;
      for (; i < name.size() && is_digit(name[i]); ++i)
        length = std::min<std::size_t>(length * 10 + std::size_t(name[i] - '0'), 1 << 20);
      const std::string_view identifier = name.substr(i, length);
      if (identifier == "__cxx11" || identifier == "cxx11") return StringAbi::kNew;
      i += std::min(length, name.size() - i);
      continue;
    }
    if (name[i] == 'S' && i + 1 < name.size()) {
      const char next = name[i + 1];
      if (next == 's' || next == 'b') is_old = true;
      if (next == 't' && name.substr(i + 2).starts_with("4list")) is_old = true;
      if (next == 't' && name.substr(i + 2).starts_with("12basic_string") &&
          !name.substr(i + 2).starts_with("12basic_stringstream"))
        is_old = true;
      // Substitutions: S_, S0_, SZ_ ...; two-letter ones: Sa, St and the like.
      i += 2;
      while (next != 't' && next != '_' && !(next >= 'a' && next <= 'z') && i < name.size() && name[i - 1] != '_') ++i;
      continue;
    }
    // Literals of integers (Lj5E) hold digits that are no lengths.
    if (name[i] == 'L' && i + 1 < name.size() && name[i + 1] >= 'a' && name[i + 1] <= 'z') {
      i += 2;
      while (i < name.size() && (is_digit(name[i]) || name[i] == 'n')) ++i;
      continue;
    }
    // T_, T0_, T1_: template parameters. A12_: arrays. Their digits are no lengths either.
    if ((name[i] == 'T' || name[i] == 'A') && i + 1 < name.size() && is_digit(name[i + 1])) {
      std::size_t end = i + 1;
      while (end < name.size() && is_digit(name[end])) ++end;
      if (end < name.size() && name[end] == '_') {
        i = end + 1;
        continue;
      }
    }
    ++i;
  }
  return is_old ? StringAbi::kOld : StringAbi::kNeutral;
}

bool is_torch_name(std::string_view name) {
  if (!name.starts_with("_Z")) return false;
  std::string_view rest = name.substr(2);
  for (const char* prefix : {"TI", "TV", "TS", "TT", "GV"})
    if (rest.starts_with(prefix)) {
      rest.remove_prefix(2);
      break;
    }
  if (rest.starts_with("N")) rest.remove_prefix(1);
  while (!rest.empty() && (rest[0] == 'K' || rest[0] == 'V' || rest[0] == 'R' || rest[0] == 'O')) rest.remove_prefix(1);
  for (const char* space : {"3c10", "2at", "5torch", "6caffe2"})
    if (rest.starts_with(space)) return true;
  // Functions of libtorch_python in no namespace: THPVariable_Wrap(at::Tensor).
  const std::size_t name_at = std::min(rest.find_first_not_of("0123456789"), rest.size());
  return name_at > 0 && rest.substr(name_at).starts_with("THP");
}

bool is_torch_stable_name(std::string_view name) {
  return name.starts_with("aoti_torch_") || name.starts_with("torch_");
}

namespace {

template <class Wanted>
CxxAbiFacts judge_symbols(const ElfFile& elf, Wanted wanted) {
  CxxAbiFacts out;
  for (const ElfSymbol& symbol : elf.symbols) {
    if (!wanted(symbol)) continue;
    out.torch_symbols += is_torch_name(symbol.name);
    const StringAbi abi = string_abi_of(symbol.name);
    if (abi == StringAbi::kNeutral) continue;
    auto& list = abi == StringAbi::kOld ? out.old_symbols : out.new_symbols;
    if (list.size() < kMaxExamples) list.emplace_back(symbol.name);
  }
  const bool has_old = !out.old_symbols.empty(), has_new = !out.new_symbols.empty();
  out.abi = has_old && has_new ? CxxAbi::kMixed : has_old ? CxxAbi::kOld : has_new ? CxxAbi::kNew : CxxAbi::kNeutral;
  return out;
}

}  // namespace

CxxAbiFacts cxx_abi_of_imports(const ElfFile& elf) {
  return judge_symbols(elf, [](const ElfSymbol& s) { return !s.defined && !s.weak() && is_torch_name(s.name); });
}

CxxAbiFacts cxx_abi_of_strings(const ElfFile& elf) {
  return judge_symbols(elf, [](const ElfSymbol& s) { return !s.defined && s.version.starts_with("GLIBCXX_"); });
}

CxxAbiFacts cxx_abi_of_exports(const ElfFile& elf) {
  CxxAbiFacts out = judge_symbols(elf, [](const ElfSymbol& s) { return s.defined && is_torch_name(s.name); });
  if (out.abi != CxxAbi::kMixed) return out;
  // A library may define a few symbols for callers of the other ABI: the constructors of c10::Error decide.
  std::size_t has_old = 0, has_new = 0;
  for (const ElfSymbol& symbol : elf.symbols) {
    if (!symbol.defined || !symbol.name.starts_with("_ZN3c105ErrorC")) continue;
    const StringAbi abi = string_abi_of(symbol.name);
    has_old += abi == StringAbi::kOld;
    has_new += abi == StringAbi::kNew;
  }
  if ((has_old > 0) != (has_new > 0)) out.abi = has_old > 0 ? CxxAbi::kOld : CxxAbi::kNew;
  return out;
}

const char* cxx_abi_name(CxxAbi abi) {
  switch (abi) {
    case CxxAbi::kUnknown: return "unknown";
    case CxxAbi::kNeutral: return "neutral";
    case CxxAbi::kOld: return "old";
    case CxxAbi::kNew: return "new";
    case CxxAbi::kMixed: return "mixed";
  }
  return "unknown";
}

std::string demangled(std::string_view name) {
  // A hostile name can make the demangler recurse without end.
  if (!name.starts_with("_Z") || name.size() > 4096) return std::string(name);
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(std::string(name).c_str(), nullptr, nullptr, &status), std::free);
  return status == 0 && text ? text.get() : std::string(name);
}

}  // namespace doctor
