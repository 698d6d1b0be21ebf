// SPDX-License-Identifier: Apache-2.0
// The code of a verdict: a row of verdicts.def. One that is no row does not compile.
#pragma once

#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

namespace doctor {

enum class Code {
#define MICA_VERDICT(code, severity, title) code,
#include "doctor/verdict/verdicts.def"
#undef MICA_VERDICT
};

constexpr std::string_view kCodeNames[] = {
#define MICA_VERDICT(code, severity, title) #code,
#include "doctor/verdict/verdicts.def"
#undef MICA_VERDICT
};

class VerdictCode {
 public:
  constexpr VerdictCode(Code code) : code_(code) {}
  consteval VerdictCode(const char* literal) : code_(row_of(literal)) {}

  constexpr operator Code() const { return code_; }
  constexpr std::string_view name() const { return kCodeNames[std::size_t(code_)]; }
  std::string text() const { return std::string(name()); }

  friend constexpr bool operator==(VerdictCode a, VerdictCode b) { return a.code_ == b.code_; }
  friend constexpr bool operator==(VerdictCode a, Code b) { return a.code_ == b; }
  // By its name, which may be any text.
  friend constexpr bool operator==(VerdictCode a, std::string_view name) { return a.name() == name; }
  friend constexpr bool operator==(VerdictCode a, const char* name) { return a.name() == name; }
  template <class Stream>
  friend Stream& operator<<(Stream& out, VerdictCode code) {
    out << code.name();
    return out;
  }

 private:
  static consteval Code row_of(std::string_view name) {
    for (std::size_t row = 0; row < std::size(kCodeNames); ++row)
      if (kCodeNames[row] == name) return Code(row);
    throw "no row of verdicts.def";  // the compiler stops here
  }

  Code code_;
};

}  // namespace doctor
