// SPDX-License-Identifier: Apache-2.0
#include "doctor/read/python/statements.h"

#include <algorithm>

#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

constexpr std::size_t kMostBytesOfStatement = 20'000, kMostBytesOfText = 200, kTabColumns = 8;

bool begins_with_word(std::string_view text, std::string_view word) {
  return text.starts_with(word) && (text.size() == word.size() || !is_name_character(text[word.size()]));
}

// Does a colon after this statement's head open a block?
bool opens_block(std::string_view text) {
  for (const char* word : {"if", "elif", "else", "try", "except", "finally", "for", "while", "with", "def", "class",
                           "async", "match", "case"})
    if (begins_with_word(text, word)) return true;
  return false;
}

class Scanner {
 public:
  Scanner(std::string_view source, const std::function<bool(const Statement&)>& action)
      : source_(source), action_(action) {}

  void run() {
    if (source_.starts_with("\xef\xbb\xbf")) at_ = 3;  // a byte order mark
    while (at_ < source_.size() && goes_on_) line();
    finish();
  }

 private:
  // One line of the file: either the next statement's, or one that belongs to the last.
  void line() {
    if (open_ == 0 && !joined_) begin_statement();
    joined_ = false;
    while (at_ < source_.size() && source_[at_] != '\n') {
      const char c = source_[at_];
      if (c == '#') {
        at_ = std::min(source_.find('\n', at_), source_.size());
      } else if (c == '"' || c == '\'') {
        quoted(c);
      } else if (c == '\\' && at_ + 1 < source_.size() && (source_[at_ + 1] == '\n' || source_[at_ + 1] == '\r')) {
        joined_ = true;
        ++at_;
      } else {
        take(c);
        ++at_;
      }
    }
    if (at_ < source_.size()) ++at_;
    add(' ');
    // A bracket that never closes must not swallow the rest of the file.
    if (out_.text.size() >= kMostBytesOfStatement) open_ = 0;
    if (open_ == 0 && !joined_) finish();
  }

  void begin_statement() {
    std::size_t columns = 0;
    for (; at_ < source_.size() && (source_[at_] == ' ' || source_[at_] == '\t' || source_[at_] == '\f'); ++at_)
      columns += source_[at_] == '\t' ? kTabColumns - columns % kTabColumns : 1;
    out_ = {columns, ""};
  }

  void add(char c) {
    if (c == '\r' || c == '\t' || c == '\f') c = ' ';
    if (c == ' ' && (out_.text.empty() || out_.text.back() == ' ')) return;
    if (out_.text.size() < kMostBytesOfStatement) out_.text += c;
  }

  void take(char c) {
    if (c == '(' || c == '[' || c == '{') ++open_;
    if ((c == ')' || c == ']' || c == '}') && open_ > 0) --open_;
    if (open_ == 0 && c == ';') {
      const std::size_t indent = out_.indent;
      finish();
      out_ = {indent, ""};
      return;
    }
    add(c);
    const bool is_walrus = at_ + 1 < source_.size() && source_[at_ + 1] == '=';
    if (c == ':' && open_ == 0 && !is_walrus && opens_block(out_.text) &&
        out_.text.find("lambda") == std::string::npos) {
      const std::size_t indent = out_.indent;
      finish();
      out_ = {indent + 1, ""};
    }
  }

  void quoted(char quote) {
    const std::string three(3, quote);
    const bool is_long = source_.substr(at_).starts_with(three);
    const std::size_t begin = at_ + (is_long ? 3 : 1);
    std::size_t end = begin;
    for (; end < source_.size(); ++end) {
      if (source_[end] == '\\')
        ++end;
      else if (is_long ? source_.substr(end).starts_with(three) : source_[end] == quote || source_[end] == '\n')
        break;
    }
    end = std::min(end, source_.size());
    const std::string_view text = source_.substr(begin, end - begin);
    const bool is_plain =
        text.size() <= kMostBytesOfText && std::all_of(text.begin(), text.end(), [](char c) {
          return is_name_character(c) || std::string_view("/-+*{}:").find(c) != std::string_view::npos;
        });
    add('"');
    if (is_plain)
      for (const char c : text) add(c);
    add('"');
    at_ = end;
    if (at_ < source_.size() && source_[at_] == quote) at_ += is_long ? 3 : 1;
  }

  void finish() {
    out_.text = std::string(trimmed(out_.text));
    if (!out_.text.empty() && goes_on_) goes_on_ = action_(out_);
    out_.text.clear();
  }

  std::string_view source_;
  const std::function<bool(const Statement&)>& action_;
  std::size_t at_ = 0;
  int open_ = 0;         // brackets
  bool joined_ = false;  // by a backslash
  bool goes_on_ = true;
  Statement out_;
};

}  // namespace

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         static_cast<unsigned char>(c) >= 128;
}

std::string_view name_at(std::string_view text) {
  return text.substr(0, std::size_t(std::find_if_not(text.begin(), text.end(), is_name_character) - text.begin()));
}

void each_statement(std::string_view source, const std::function<bool(const Statement&)>& action) {
  Scanner(source, action).run();
}

}  // namespace doctor
