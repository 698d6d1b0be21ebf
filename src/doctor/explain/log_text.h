// SPDX-License-Identifier: Apache-2.0
// A pasted error or a build log as text that can be searched: without terminal colours, frames and log prefixes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace doctor {

struct LogText {
  std::string text;                     // the cleaned lines, each ended by '\n' (joined: not those that are full)
  std::vector<std::size_t> line_begin;  // where each line begins in text
  std::vector<std::string> raw;         // the lines as they were given, without colours
  std::size_t columns = 0;              // of the longest of raw
  std::vector<bool> triples;            // of a long text: which three bytes stand in it anywhere, by their 24 bits
  bool joined = false;
  bool shortened = false;  // the middle of a very long log was left out

  // The number of the line, from 0, that holds text[offset].
  std::size_t line_of(std::size_t offset) const;
  // Whether a line ends before text[offset].
  bool is_break(std::size_t offset) const;
  // False only if `words` surely do not stand in the text: spares a search through a long one.
  bool may_hold(std::string_view words) const;
  // Whether a line is as long as the terminal was wide, by the longest of them: then it may go on in the next.
  bool is_full(std::size_t line) const { return raw[line].size() == columns && columns >= 40; }
};

// Takes at most kLogLimit bytes: of a longer log the first and the last half of that.
constexpr std::size_t kLogLimit = 16u << 20;
LogText read_log(std::string_view bytes);

// The same lines without the breaks after full ones: for text that a terminal wrapped in the middle of a word.
LogText join_lines(const LogText& log);

}  // namespace doctor
