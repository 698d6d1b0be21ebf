// SPDX-License-Identifier: Apache-2.0
#include "doctor/explain/pattern.h"

#include <cxxabi.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace doctor {
namespace {

constexpr std::size_t kGapLimit = 400;
constexpr std::size_t kWordLimit = 4096;

// The length of a quotation mark at the beginning of s: ' ` " or one of the typographic ones (e2 80 98 to e2 80 9d).
std::size_t quote_length(std::string_view s) {
  if (s.empty()) return 0;
  if (s[0] == '\'' || s[0] == '`' || s[0] == '"') return 1;
  return s.size() >= 3 && s[0] == '\xe2' && s[1] == '\x80' && s[2] >= '\x98' && s[2] <= '\x9d' ? 3 : 0;
}

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n'; }
bool is_symbol_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '.';
}

// The plain text at the beginning of a pattern, with which a search can start.
std::string_view literal_head(std::string_view pattern) {
  return pattern.substr(0, std::min(pattern.find_first_of(" '{^$"), pattern.find("...")));
}

bool is_mangled(const std::string& symbol) { return symbol == "_" || symbol.rfind("_Z", 0) == 0; }

bool demangles(const std::string& symbol) {
  int status = -1;
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status),
                                                    std::free);
  return status == 0;
}

class Matcher {
 public:
  Matcher(const LogText& log, std::size_t begin) : log_(log), at_(begin) { match_.begin = begin; }

  bool run(std::string_view pattern) {
    while (!pattern.empty()) {
      const std::size_t length = step(pattern);
      if (length == 0) return false;
      pattern.remove_prefix(length);
    }
    match_.end = at_;
    return true;
  }
  Match take() { return std::move(match_); }

 private:
  std::string_view rest() const { return std::string_view(log_.text).substr(at_); }

  // Consumes one element of the pattern; returns its length there, 0 if the text does not match.
  std::size_t step(std::string_view pattern) {
    switch (pattern[0]) {
      case ' ': return blanks() ? 1 : 0;
      case '^': return log_.is_break(at_) || at_ == 0 ? 1 : 0;
      case '$': return at_ == log_.text.size() || log_.text[at_] == '\n' || log_.is_break(at_) ? 1 : 0;
      case '\'': {
        const std::size_t n = quote_length(rest());
        at_ += n;
        return n ? 1 : 0;
      }
      case '{': return capture(pattern);
      default: break;
    }
    if (pattern.substr(0, 3) == "...") return gap(pattern.substr(3)) ? 3 : 0;
    if (at_ >= log_.text.size() || log_.text[at_] != pattern[0]) return 0;
    ++at_;
    return 1;
  }

  bool blanks() {
    const std::size_t begin = at_;
    while (at_ < log_.text.size() && is_blank(log_.text[at_])) ++at_;
    return at_ > begin || (log_.joined && log_.is_break(at_));
  }

  // Moves to where the next literal of the pattern stands.
  bool gap(std::string_view next) {
    const std::string_view literal = literal_head(next);
    const std::size_t found = rest().substr(0, kGapLimit + literal.size()).find(literal);
    if (literal.empty() || found == std::string_view::npos) return false;
    at_ += found;
    return true;
  }

  std::size_t capture(std::string_view pattern) {
    const std::size_t close = pattern.find('}');
    std::string name(pattern.substr(1, close - 1));
    const char kind = name.back();
    if (kind == '*' || kind == '@') name.pop_back();
    std::string value;
    if (kind == '*') {
      value = line_until(pattern.substr(close + 1));
    } else if (kind == '@') {
      value = symbol();
    } else {
      value = word();
    }
    if (value.empty()) return 0;
    match_.captures[name] = std::move(value);
    return close + 1;
  }

  std::string word() {
    const std::size_t begin = at_;
    while (at_ < log_.text.size() && at_ - begin < kWordLimit && !is_blank(log_.text[at_]) && !quote_length(rest()) &&
           std::string_view(",;()[]").find(log_.text[at_]) == std::string_view::npos)
      ++at_;
    while (at_ > begin && (log_.text[at_ - 1] == '.' || log_.text[at_ - 1] == ':')) --at_;
    return log_.text.substr(begin, at_ - begin);
  }

  std::string line_until(std::string_view next) {
    const std::string_view literal = literal_head(next);
    const std::string_view line = rest().substr(0, std::min(rest().find('\n'), kWordLimit));
    const std::size_t n = literal.empty() ? line.size() : line.find(literal);
    if (n == std::string_view::npos) return "";
    at_ += n;
    return std::string(line.substr(0, n));
  }

  // Whether a symbol that is `value` so far goes on after the break at text[i]. A line that is shorter than the longest
  // was not broken by the terminal, unless the symbol is cut in the middle of a name.
  bool continues_after(std::size_t i, const std::string& value) const {
    const std::size_t line = log_.line_of(i > 0 ? i - 1 : 0);
    if (log_.text[i] == '\n') ++i;
    const std::size_t begin = i;
    while (i < log_.text.size() && i - begin < kWordLimit && is_symbol_character(log_.text[i])) ++i;
    const std::string_view next = std::string_view(log_.text).substr(begin, i - begin);
    if (next.empty()) return false;
    const char after = i < log_.text.size() ? log_.text[i] : '\n';
    if (!is_mangled(value)) return log_.is_full(line) && after == ',';
    // A word of prose, not the rest of a mangled name: those have capitals, digits, or are the letters of types.
    const bool is_prose = next.size() > 2 && std::all_of(next.begin(), next.end(),
                                                         [](unsigned char c) { return std::islower(c) || c == '.'; });
    if (demangles(value)) return log_.is_full(line) && after != ' ' && !is_prose;
    return !is_prose || log_.is_full(line);
  }

  // The longest run of symbol characters that demangles, where each line break may or may not end it.
  std::string symbol() {
    std::string value, best;
    std::size_t best_end = at_;
    std::size_t i = at_;
    bool whole_line = false;  // a wrapped symbol fills the rest of its line
    for (; i < log_.text.size() && value.size() < kWordLimit; ++i) {
      const bool at_break = log_.text[i] == '\n' || (log_.joined && i > at_ && log_.is_break(i));
      if (at_break) {
        if (best.empty() || demangles(value)) best = value, best_end = i;
        if (!continues_after(i, value)) break;
        whole_line = true;
        if (log_.text[i] == '\n') continue;
      }
      if (!is_symbol_character(log_.text[i])) break;
      value += log_.text[i];
    }
    const bool ended_inside_line = i < log_.text.size() && log_.text[i] != '\n';
    if (best.empty() || (!is_mangled(value) && value != best && whole_line) ||
        (demangles(value) && !(whole_line && ended_inside_line && log_.text[i] == ' ')))
      best = value, best_end = i;
    while (!best.empty() && best.back() == '.') best.pop_back();  // "_ZN3c105ErrorC2E..." and the end of a sentence
    at_ = best_end;
    return best;
  }

  const LogText& log_;
  std::size_t at_;
  Match match_;
};

}  // namespace

std::optional<Match> find_pattern(const LogText& log, std::string_view pattern, std::size_t from) {
  const std::string_view text = log.text;
  // A word at the beginning is read backwards from the text that follows it: a search needs something to look for.
  std::string first_word;
  if (!pattern.empty() && pattern[0] == '{') {
    const std::size_t close = pattern.find('}');
    first_word = pattern.substr(1, close - 1);
    pattern.remove_prefix(close + 1);
  }
  const std::string_view literal = literal_head(pattern.substr(!pattern.empty() && pattern[0] == '^'));
  if (literal.empty() || !log.may_hold(literal)) return std::nullopt;
  while (from < text.size()) {
    // memmem stays linear where find() compares again and again.
    const void* place = memmem(text.data() + from, text.size() - from, literal.data(), literal.size());
    if (!place) return std::nullopt;
    const std::size_t found = static_cast<std::size_t>(static_cast<const char*>(place) - text.data());
    from = found + 1;
    Matcher matcher(log, found);
    if (!matcher.run(pattern)) continue;
    Match match = matcher.take();
    if (!first_word.empty()) {
      std::size_t begin = found;
      while (begin > 0 && found - begin < kWordLimit && !is_blank(text[begin - 1]) && !log.is_break(begin) &&
             !quote_length(text.substr(begin - 1)))
        --begin;
      if (begin == found) continue;
      match.captures[first_word] = text.substr(begin, found - begin);
      match.begin = begin;
    }
    return match;
  }
  return std::nullopt;
}

}  // namespace doctor
