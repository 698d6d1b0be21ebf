// SPDX-License-Identifier: Apache-2.0
// A small language for error messages, matched in linear time and without recursion (a log is hostile input):
//   a blank      one or more blanks or line breaks
//   '            any quotation mark, as loaders, shells and typographers write them
//   {name}       a word: up to the next blank, quotation mark, comma, semicolon or bracket; kept as `name`
//   {name*}      anything of the same line up to the text that follows it in the pattern
//   {name@}      a symbol of a linker, continued on the next lines if a terminal wrapped it
//   ...          at most 400 characters of anything
//   ^ and $      the beginning and the end of a line
// After ^ or a {name} at its beginning, a pattern continues with plain text, which is what the search looks for.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "doctor/explain/log_text.h"

namespace doctor {

struct Match {
  std::size_t begin = 0, end = 0;  // of the log's text
  std::map<std::string, std::string> captures;
};

// The first place at or after `from` where the pattern matches.
std::optional<Match> find_pattern(const LogText& log, std::string_view pattern, std::size_t from = 0);

}  // namespace doctor
