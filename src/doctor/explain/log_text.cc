// SPDX-License-Identifier: Apache-2.0
#include "doctor/explain/log_text.h"

#include <algorithm>
#include <cctype>

namespace doctor {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::size_t digits(std::string_view s) {
  std::size_t n = 0;
  while (n < s.size() && is_digit(s[n])) ++n;
  return n;
}

// Colours and cursor movements: ESC [ ... letter, ESC ] ... BEL.
std::string without_escapes(std::string_view line) {
  std::string out;
  out.reserve(line.size());
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\x1b') {
      if (static_cast<unsigned char>(line[i]) >= 0x20 || line[i] == '\t') out += line[i];
      continue;
    }
    if (i + 1 >= line.size()) break;
    if (line[++i] == '[') {
      while (i + 1 < line.size() && !(line[i + 1] >= '@' && line[i + 1] <= '~')) ++i;
      ++i;
    } else if (line[i] == ']') {
      while (i + 1 < line.size() && line[i + 1] != '\a') ++i;
      ++i;
    }
  }
  return out;
}

// Frames drawn around a traceback: U+2500 to U+257F are e2 94 80 to e2 95 bf.
bool is_frame(std::string_view s) { return s.size() >= 3 && s[0] == '\xe2' && (s[1] == '\x94' || s[1] == '\x95'); }

std::string_view trim(std::string_view s) {
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.front()))) s.remove_prefix(1);
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.back()))) s.remove_suffix(1);
  return s;
}

// The length of a date, a time, or both: "2026-05-01T12:00:00.123Z", "12:00:01,5".
std::size_t timestamp(std::string_view s) {
  std::size_t i = 0;
  const auto number = [&](std::size_t least, std::size_t most) {
    const std::size_t n = digits(s.substr(i));
    if (n < least || n > most) return false;
    i += n;
    return true;
  };
  const auto is = [&](char c) { return i < s.size() && s[i] == c && ++i; };
  if (!(number(4, 4) && (is('-') || is('/')) && number(1, 2) && (is('-') || is('/')) && number(1, 2))) {
    i = 0;
  } else if (!is('T')) {
    is(' ');
  }
  const std::size_t date = i;
  if (!(number(1, 2) && is(':') && number(2, 2) && is(':') && number(2, 2))) return date;
  if (is('.') || is(',')) i += digits(s.substr(i));
  is('Z');
  return i;
}

// The length of what a logger, a launcher or a frame put before the line itself; 0 if nothing is left to take away.
std::size_t prefix_length(std::string_view s) {
  if (is_frame(s)) return 3;
  if (s.rfind("> ", 0) == 0 || s.rfind("| ", 0) == 0) return 2;  // quoted mail, a plain frame
  if (const std::size_t n = timestamp(s)) return n;
  if (s.size() > 2 && s[0] == '#' && is_digit(s[1])) {  // docker build: "#12 34.56 "
    const std::size_t n = 1 + digits(s.substr(1));
    const std::size_t m = n < s.size() && s[n] == ' ' ? digits(s.substr(n + 1)) : 0;
    if (m && n + 1 + m < s.size() && s[n + 1 + m] == '.') return n + 2 + m + digits(s.substr(n + 2 + m));
  }
  if (!s.empty() && (s[0] == '[' || s[0] == '(')) {  // [rank0]:  [INFO]  (worker pid=123)
    const std::size_t end = s.find(s[0] == '[' ? ']' : ')');
    if (end != s.npos && end < 60) {
      const std::string_view inside = s.substr(1, end - 1);
      const bool is_tag = inside.rfind("rank", 0) == 0 || inside.find("pid=") != s.npos || timestamp(inside) > 0 ||
                          inside == "INFO" || inside == "ERROR" || inside == "WARNING" || inside == "DEBUG";
      if (is_tag) return end + 1 + (end + 1 < s.size() && s[end + 1] == ':');
    }
  }
  for (const std::string_view level : {"ERROR ", "WARNING ", "INFO ", "DEBUG ", "CRITICAL "})
    if (s.substr(0, level.size()) == level && timestamp(s.substr(level.size()))) return level.size();
  if (const std::size_t n = digits(s); n > 0 && n <= 4 && s.substr(n, 2) == ": ") return n + 2;  // srun --label
  return 0;
}

std::string_view clean(std::string_view line) {
  line = trim(line);
  while (const std::size_t n = prefix_length(line)) line = trim(line.substr(n));
  while (line.size() >= 3 && is_frame(line.substr(line.size() - 3))) line = trim(line.substr(0, line.size() - 3));
  return line;
}

constexpr std::size_t kLongText = 256u << 10;

std::size_t triple_at(std::string_view s, std::size_t i) {
  const auto byte = [&](std::size_t at) { return std::size_t(static_cast<unsigned char>(s[at])); };
  return byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
}

void note_triples(LogText& log) {
  if (log.text.size() < kLongText) return;
  log.triples.assign(1u << 24, false);
  for (std::size_t i = 0; i + 3 <= log.text.size(); ++i) log.triples[triple_at(log.text, i)] = true;
}

void add_line(LogText& log, std::string_view line) {
  log.raw.push_back(without_escapes(line));
  log.columns = std::max(log.columns, log.raw.back().size());
  log.line_begin.push_back(log.text.size());
  log.text += clean(log.raw.back());
  log.text += '\n';
}

void add_lines(LogText& log, std::string_view bytes) {
  while (!bytes.empty()) {
    // A carriage return ends a line too: progress bars draw over it.
    const std::size_t end = std::min(bytes.find_first_of("\r\n"), bytes.size());
    add_line(log, bytes.substr(0, end));
    const bool both = bytes.substr(end, 2) == "\r\n";
    bytes.remove_prefix(std::min(bytes.size(), end + (both ? 2 : 1)));
  }
}

}  // namespace

std::size_t LogText::line_of(std::size_t offset) const {
  const auto next = std::upper_bound(line_begin.begin(), line_begin.end(), offset);
  return next == line_begin.begin() ? 0 : static_cast<std::size_t>(next - line_begin.begin()) - 1;
}

bool LogText::is_break(std::size_t offset) const {
  return std::binary_search(line_begin.begin(), line_begin.end(), offset);
}

bool LogText::may_hold(std::string_view words) const {
  if (triples.empty()) return true;
  for (std::size_t i = 0; i + 3 <= words.size(); ++i)
    if (!triples[triple_at(words, i)]) return false;
  return true;
}

LogText read_log(std::string_view bytes) {
  LogText log;
  if (bytes.size() <= kLogLimit) {
    add_lines(log, bytes);
  } else {
    log.shortened = true;
    add_lines(log, bytes.substr(0, kLogLimit / 2));
    add_lines(log, bytes.substr(bytes.size() - kLogLimit / 2));
  }
  note_triples(log);
  return log;
}

LogText join_lines(const LogText& log) {
  LogText out;
  out.joined = true;
  out.shortened = log.shortened;
  out.raw = log.raw;
  out.columns = log.columns;
  for (std::size_t i = 0; i < log.line_begin.size(); ++i) {
    out.line_begin.push_back(out.text.size());
    const std::size_t end = i + 1 < log.line_begin.size() ? log.line_begin[i + 1] : log.text.size();
    out.text.append(log.text, log.line_begin[i], end - (log.is_full(i) ? 1 : 0) - log.line_begin[i]);
  }
  note_triples(out);
  return out;
}

}  // namespace doctor
