// SPDX-License-Identifier: Apache-2.0
#include "cli/text.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace cli {
namespace {

// Columns, not bytes: continuation bytes of UTF-8 take no place.
std::size_t columns_of(const std::string& s) {
  return std::size_t(std::count_if(s.begin(), s.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

Table::Table(std::vector<std::string> headers) {
  for (std::string& h : headers) {
    right_.push_back(!h.empty() && h[0] == '>');
    if (right_.back()) h.erase(0, 1);
  }
  rows_.push_back(std::move(headers));
}

void Table::add(std::vector<std::string> cells) {
  cells.resize(right_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::size_t> width(right_.size(), 0);
  for (const auto& row : rows_)
    for (std::size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], columns_of(row[c]));
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string pad(width[c] - columns_of(row[c]), ' ');
      line += (c ? "  " : "") + (right_[c] ? pad + row[c] : row[c] + pad);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string Table::markdown() const {
  const auto line = [](const std::vector<std::string>& cells) {
    std::string out = "|";
    for (const std::string& cell : cells) out += " " + cell + " |";
    return out + "\n";
  };
  std::string out = line(rows_[0]) + "|";
  for (const bool right : right_) out += right ? "---:|" : "---|";
  out += "\n";
  for (std::size_t r = 1; r < rows_.size(); ++r) out += line(rows_[r]);
  return out;
}

std::string format(const char* format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  std::string out(std::size_t(std::vsnprintf(nullptr, 0, format, arguments)), '\0');
  std::vsnprintf(out.data(), out.size() + 1, format, again);
  va_end(arguments);
  va_end(again);
  return out;
}

std::string format_bytes(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  for (; bytes >= 1023.5 && unit < 4; ++unit) bytes /= 1024;
  return format(unit == 0 || bytes >= 99.95 ? "%.0f %s" : (bytes >= 9.995 ? "%.1f %s" : "%.2f %s"), bytes, units[unit]);
}

std::string format_seconds(double seconds) {
  if (seconds >= 99.5) return format("%.0f s", seconds);
  if (seconds >= 1) return format("%.2f s", seconds);
  if (seconds >= 1e-3) return format("%.*f ms", seconds >= 0.0995 ? 0 : (seconds >= 0.00995 ? 1 : 2), seconds * 1e3);
  return format("%.*f us", seconds >= 99.5e-6 ? 0 : 1, seconds * 1e6);
}

}  // namespace cli
