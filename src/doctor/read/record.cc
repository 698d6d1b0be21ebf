// SPDX-License-Identifier: Apache-2.0
// RECORD: a CSV of path, hash, size.
#include "doctor/read/record.h"

#include <charconv>

#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

// One line of CSV. False if a quote is left open.
bool read_row(std::string_view text, std::size_t& at, std::vector<std::string>& cells) {
  cells.assign(1, "");
  bool quoted = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted) {
      if (c == '"' && at + 1 < text.size() && text[at + 1] == '"')
        cells.back() += text[++at];
      else if (c == '"')
        quoted = false;
      else
        cells.back() += c;
    } else if (c == '"' && cells.back().empty()) {
      quoted = true;
    } else if (c == ',') {
      cells.emplace_back();
    } else if (c == '\n') {
      ++at;
      break;
    } else if (c != '\r') {
      cells.back() += c;
    }
  }
  return !quoted;
}

}  // namespace

std::vector<RecordRow> parse_record(std::string_view text, std::vector<std::string>* problems) {
  constexpr std::size_t kMaxRows = 1'000'000, kMaxProblems = 20;
  std::vector<RecordRow> out;
  std::vector<std::string> cells;
  const auto problem = [&](std::size_t line, const char* what) {
    if (problems && problems->size() < kMaxProblems)
      problems->push_back("RECORD, row " + std::to_string(line) + ": " + what);
  };
  std::size_t row_number = 0;
  for (std::size_t at = 0; at < text.size() && out.size() < kMaxRows;) {
    ++row_number;
    const bool whole = read_row(text, at, cells);
    if (cells.size() == 1 && cells[0].empty()) continue;
    if (!whole) problem(row_number, "a quote is left open");
    if (cells.size() != 3) {
      problem(row_number, "want path, hash and size");
      continue;
    }
    RecordRow row{cells[0], cells[1], std::nullopt};
    if (!cells[2].empty()) {
      uint64_t size = 0;
      const auto [end, error] = std::from_chars(cells[2].data(), cells[2].data() + cells[2].size(), size);
      if (error == std::errc() && end == cells[2].data() + cells[2].size())
        row.size = size;
      else
        problem(row_number, "the size is no number");
    }
    out.push_back(std::move(row));
  }
  return out;
}

}  // namespace doctor
