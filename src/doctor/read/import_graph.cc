// SPDX-License-Identifier: Apache-2.0
#include "doctor/read/import_graph.h"

#include <algorithm>

#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

constexpr std::size_t kMostImportsOfFile = 2000, kMostModules = 50'000;

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

std::string_view word_at(std::string_view text) {
  return text.substr(0, std::size_t(std::find_if_not(text.begin(), text.end(), is_word) - text.begin()));
}

// Does what stands below this line run only sometimes, or may it fail without harm? The condition of an `if` is not
// known; only one that asks for a GPU, or for the reader of types, is taken as a guard.
bool is_guard(std::string_view line) {
  for (const char* word :
       {"try:", "except", "finally", "def ", "class ", "async def ", "with suppress", "with contextlib"})
    if (line.starts_with(word)) return true;
  if (!line.starts_with("if ") && !line.starts_with("elif ")) return false;
  for (const char* word : {"TYPE_CHECKING", "is_available", "__main__", "device_count", "hasattr", "find_spec"})
    if (line.find(word) != line.npos) return true;
  return false;
}

// The lines of a file, joined where brackets are open, without comments; each with its indentation.
template <class Action>
void each_statement(std::string_view source, Action action) {
  std::string pending;
  std::size_t indent = 0;
  int open = 0;             // brackets
  bool goes_on = false;     // after a backslash
  std::string_view quotes;  // inside a text of several lines
  for (std::size_t begin = 0; begin < source.size();) {
    const std::size_t end = std::min(source.find('\n', begin), source.size());
    std::string_view line = source.substr(begin, end - begin);
    begin = end + 1;
    if (!quotes.empty()) {
      const std::size_t close = line.find(quotes);
      if (close != line.npos) quotes = {};
      continue;
    }
    for (const std::string_view mark : {std::string_view("\"\"\""), std::string_view("'''")}) {
      const std::size_t first = line.find(mark);
      if (first == line.npos) continue;
      if (line.find(mark, first + 3) == line.npos) quotes = mark;
      line = line.substr(0, first);
      break;
    }
    line = line.substr(0, line.find('#'));
    const std::size_t blanks = std::min(line.find_first_not_of(" \t\r"), line.size());
    if (open == 0 && !goes_on) {
      if (trimmed(line).empty()) continue;
      pending.clear();
      indent = blanks;
    }
    pending += " ";
    pending += trimmed(line);
    for (const char c : line) open += (c == '(' || c == '[' || c == '{') - (c == ')' || c == ']' || c == '}');
    open = std::max(open, 0);
    goes_on = pending.ends_with("\\");
    if (goes_on) pending.pop_back();
    if ((open > 0 || goes_on) && pending.size() < 20'000) continue;
    open = 0;
    goes_on = false;
    action(indent, std::string_view(trimmed(pending)));
  }
}

// "pkg.ops" of "pkg.ops.nn" one level up.
std::string parent_of(std::string_view module) {
  const std::size_t dot = module.rfind('.');
  return std::string(dot == module.npos ? "" : module.substr(0, dot));
}

}  // namespace

std::string module_of_path(std::string_view path) {
  std::string out(path);
  const std::size_t slash = out.rfind('/');
  const std::size_t dot = out.find('.', slash == out.npos ? 0 : slash);
  if (dot != out.npos) out.resize(dot);
  if (out.ends_with("/__init__")) out.resize(out.size() - 9);
  std::replace(out.begin(), out.end(), '/', '.');
  return out;
}

void ImportGraph::add(std::string_view path, std::string_view source) {
  if (!path.ends_with(".py") || imports_.size() >= kMostModules) return;
  const std::string module = module_of_path(path);
  const std::string package = path.ends_with("/__init__.py") ? module : parent_of(module);
  std::vector<std::string>& out = imports_[module];
  const auto take = [&](std::string name) {
    if (!name.empty() && out.size() < kMostImportsOfFile) out.push_back(std::move(name));
  };
  struct Block {
    std::size_t indent;
    bool guarded;
  };
  std::vector<Block> blocks;
  bool sibling_guarded = false;
  each_statement(source, [&](std::size_t indent, std::string_view line) {
    while (!blocks.empty() && blocks.back().indent >= indent) {
      if (blocks.back().indent == indent) sibling_guarded = blocks.back().guarded;
      blocks.pop_back();
    }
    const bool inside_guard = !blocks.empty() && blocks.back().guarded;
    if (line.ends_with(":")) {
      const bool follows = line.starts_with("else") || line.starts_with("elif ");
      blocks.push_back({indent, inside_guard || is_guard(line) || (follows && sibling_guarded)});
      return;
    }
    if (inside_guard) return;
    if (line.starts_with("import ")) {
      for (const std::string& part : split(line.substr(7), ',')) take(std::string(word_at(trimmed(part))));
    } else if (line.starts_with("from ")) {
      const std::size_t at = line.find(" import ");
      if (at == line.npos) return;
      std::string from(word_at(trimmed(line.substr(5, at - 5))));
      std::size_t dots = 0;
      while (dots < from.size() && from[dots] == '.') ++dots;
      if (dots > 0) {
        std::string base = package;
        for (std::size_t i = 1; i < dots; ++i) base = parent_of(base);
        from = from.substr(dots).empty() ? base : base + "." + from.substr(dots);
      }
      take(from);
      std::string names(line.substr(at + 8));
      std::erase_if(names, [](char c) { return c == '(' || c == ')'; });
      for (const std::string& part : split(names, ','))
        if (const std::string name(word_at(trimmed(part))); !name.empty()) take(from + "." + name);
    }
  });
}

std::set<std::string> ImportGraph::reached() const {
  std::set<std::string> out;
  std::vector<std::string> waiting;
  const auto visit = [&](const std::string& name) {
    // Importing a.b.c imports a and a.b first.
    for (std::size_t dot = name.find('.');; dot = name.find('.', dot + 1)) {
      const std::string part = name.substr(0, dot);
      if (!part.empty() && out.insert(part).second) waiting.push_back(part);
      if (dot == name.npos) break;
    }
  };
  for (const auto& [module, names] : imports_)
    if (module.find('.') == module.npos && !module.starts_with("_") && module != "setup" && module != "conftest" &&
        !module.starts_with("test"))
      visit(module);
  while (!waiting.empty()) {
    const auto found = imports_.find(waiting.back());
    waiting.pop_back();
    if (found != imports_.end())
      for (const std::string& name : found->second) visit(name);
  }
  return out;
}

}  // namespace doctor
