// SPDX-License-Identifier: Apache-2.0
#include "doctor/read/python/outline.h"

#include <algorithm>
#include <set>

#include "doctor/read/python/statements.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

constexpr std::size_t kMostSteps = 20'000, kMostBlocks = 60, kMostNames = 500, kMostCalls = 16, kMostWordBytes = 300;
constexpr std::size_t kMostAssignments = 2'000, kMostWords = 8;

bool begins(std::string_view text, std::string_view word) {
  return text.starts_with(word) && (text.size() == word.size() || !is_name_character(text[word.size()]));
}

std::string_view after(std::string_view text, std::string_view word) { return trimmed(text.substr(word.size())); }

// The first text in quotes behind `from`; empty if there is none before the bracket closes.
std::string_view quoted_after(std::string_view text, std::size_t from) {
  const std::size_t open = text.find('"', from), end = open == text.npos ? open : text.find('"', open + 1);
  return end == text.npos ? std::string_view() : text.substr(open + 1, end - open - 1);
}

// "libpulse.so.0" of CDLL("libpulse.so.0") and "pulse" of ffi.dlopen("pulse"): the whole of the first argument, and no
// path. Empty for others.
std::string_view library_by_name(std::string_view text, std::size_t open, bool is_of_cffi) {
  const std::string_view rest = trimmed(text.substr(open + 1));
  const std::size_t end = rest.starts_with('"') ? rest.find('"', 1) : rest.npos;
  if (end == rest.npos) return {};
  const std::string_view word = rest.substr(1, end - 1), behind = trimmed(rest.substr(end + 1));
  if (word.empty() || word.find_first_of("/{%*\\") != word.npos ||
      (!behind.starts_with(')') && !behind.starts_with(',')))
    return {};
  return word.find(".so") != word.npos || (is_of_cffi && word.find('.') == word.npos) ? word : std::string_view();
}

// What stands between the bracket at `open` and the next comma or the bracket that closes it.
std::string_view first_argument(std::string_view text, std::size_t open) {
  int depth = 0;
  bool is_quoted = false;
  for (std::size_t i = open; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') is_quoted = !is_quoted;
    if (is_quoted) continue;
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') --depth;
    if (depth == 0 || (depth == 1 && c == ',')) return trimmed(text.substr(open + 1, i - open - 1));
  }
  return {};
}

// "names" of `names` and `names[0]`; empty for other expressions.
std::string_view variable_of(std::string_view expression) {
  const std::string_view name = name_at(expression), rest = trimmed(expression.substr(name.size()));
  return rest.empty() || rest == "[0]" ? name : std::string_view();
}

// Does the expression ask which system this is, and so decide a condition that is asked later by its name?
bool asks_for_platform(std::string_view expression) {
  return expression.size() < kMostWordBytes && expression.find("==") != expression.npos &&
         (expression.starts_with("sys.platform") || expression.starts_with("os.name") ||
          expression.starts_with("platform.system()"));
}

// All texts in quotes.
std::vector<std::string> all_quoted(std::string_view text, std::size_t most) {
  std::vector<std::string> out;
  for (std::size_t open = text.find('"'); open != text.npos && out.size() < most;) {
    const std::size_t end = text.find('"', open + 1);
    if (end == text.npos) break;
    if (end > open + 1) out.emplace_back(text.substr(open + 1, end - open - 1));
    open = text.find('"', end + 1);
  }
  return out;
}

// "a.b" of ".b" in package a; the dots go up one package each after the first.
std::string absolute_name(std::string_view name, const std::string& package) {
  std::size_t dots = 0;
  while (dots < name.size() && name[dots] == '.') ++dots;
  if (dots == 0) return std::string(name);
  std::string base = package;
  for (std::size_t i = 1; i < dots; ++i) base = parent_module(base);
  const std::string_view rest = name.substr(dots);
  return rest.empty() ? base : base.empty() ? std::string(rest) : base + "." + std::string(rest);
}

class OutlineReader {
 public:
  explicit OutlineReader(Outline& out) : out_(out) {}

  bool take(const Statement& statement) {
    while (!blocks_.empty() && blocks_.back().indent >= statement.indent) close_block();
    const std::string_view text = statement.text;
    if (!text.ends_with(":") || !open_block(statement.indent, text)) simple(text);
    return out_.steps.size() < kMostSteps && blocks_.size() < kMostBlocks;
  }

  void finish() {
    while (!blocks_.empty()) close_block();
    drop_idle();
  }

 private:
  struct Block {
    std::size_t indent;
    uint32_t step;
  };

  Step& add(StepKind kind, std::string_view name = {}) {
    Step& step = out_.steps.emplace_back();
    step.kind = kind;
    step.name = std::string(name.substr(0, kMostWordBytes));
    step.end = uint32_t(out_.steps.size());
    return step;
  }

  void close_block() {
    const uint32_t index = blocks_.back().step;
    blocks_.pop_back();
    Step& step = out_.steps[index];
    // A function inside another, or a method, is not what an import calls; but one that opens a library is for its
    // neighbours.
    if (step.kind == StepKind::kDef && !is_named_function(index) && !name_inner_function(index))
      out_.steps.resize(index + 1);
    out_.steps[index].end = uint32_t(out_.steps.size());
  }

  bool is_named_function(uint32_t index) const {
    const auto own = out_.functions.find(out_.steps[index].name);
    if (own != out_.functions.end() && own->second == index) return true;
    if (out_.steps[index].name != "__init__" || blocks_.empty()) return false;
    const auto made = out_.functions.find(out_.steps[blocks_.back().step].name);
    return made != out_.functions.end() && made->second == index;
  }

  // A function inside another one.
  bool name_inner_function(uint32_t index) {
    const bool is_inner = !blocks_.empty() && std::none_of(blocks_.begin(), blocks_.end(), [&](const Block& block) {
      return out_.steps[block.step].kind == StepKind::kClass;
    });
    const bool opens = std::any_of(out_.steps.begin() + index, out_.steps.end(),
                                   [](const Step& s) { return s.kind == StepKind::kOpen; });
    return is_inner && opens && out_.functions.emplace(out_.steps[index].name, index).second;
  }

  bool open_block(std::size_t indent, std::string_view text) {
    text = trimmed(text.substr(0, text.size() - 1));
    if (begins(text, "async")) text = after(text, "async");
    constexpr std::pair<const char*, StepKind> kHeads[] = {
        {"try", StepKind::kTry},         {"except", StepKind::kExcept}, {"else", StepKind::kElse},
        {"finally", StepKind::kFinally}, {"if", StepKind::kIf},         {"elif", StepKind::kElif},
        {"def", StepKind::kDef},         {"class", StepKind::kClass},   {"with", StepKind::kWith},
        {"for", StepKind::kLoop},        {"while", StepKind::kLoop},    {"match", StepKind::kCase},
        {"case", StepKind::kCase}};
    for (const auto& [word, kind] : kHeads) {
      if (!begins(text, word)) continue;
      const std::string_view rest = after(text, word);
      const uint32_t index = uint32_t(out_.steps.size());
      if (kind == StepKind::kExcept)
        handler(rest);
      else
        add(kind, kind == StepKind::kDef || kind == StepKind::kClass ? name_at(rest) : rest);
      if (kind == StepKind::kDef) {
        const std::string_view parameter = name_at(first_argument(rest, std::min(rest.find('('), rest.size())));
        out_.steps[index].variable = std::string(parameter.substr(0, kMostWordBytes));
        name_function(index);
      }
      blocks_.push_back({indent, index});
      if (kind == StepKind::kWith || kind == StepKind::kIf || kind == StepKind::kLoop) calls(rest);
      return true;
    }
    return false;
  }

  // Functions of the file, and the constructors of its classes.
  void name_function(uint32_t index) {
    const std::string& name = out_.steps[index].name;
    const Step* outer = blocks_.empty() ? nullptr : &out_.steps[blocks_.back().step];
    if (outer && outer->kind == StepKind::kClass && name == "__init__") {
      out_.functions.emplace(outer->name, index);
      return;
    }
    for (const Block& block : blocks_) {
      const StepKind kind = out_.steps[block.step].kind;
      if (kind == StepKind::kDef || kind == StepKind::kClass) return;
    }
    out_.functions.insert_or_assign(name, index);
  }

  // except (A, b.B) as e
  void handler(std::string_view rest) {
    const std::size_t as = rest.rfind(" as ");
    Step& step = add(StepKind::kExcept, as == rest.npos ? std::string_view() : name_at(trimmed(rest.substr(as + 4))));
    std::string list(rest.substr(0, as));
    std::erase_if(list, [](char c) { return c == '(' || c == ')' || c == '*'; });
    for (const std::string& part : split(list, ','))
      if (const std::string_view name = name_at(trimmed(part)); !name.empty() && step.names.size() < kMostNames)
        step.names.emplace_back(name.substr(name.rfind('.') + 1));
  }

  void simple(std::string_view text) {
    if (begins(text, "import")) {
      for (const std::string& part : split(after(text, "import"), ','))
        if (const std::string_view name = name_at(trimmed(part)); !name.empty()) add(StepKind::kImport, name);
    } else if (begins(text, "from")) {
      from(after(text, "from"));
    } else if (begins(text, "raise")) {
      const std::string_view what = after(text, "raise"), name = name_at(what);
      calls(what);
      add(StepKind::kRaise, what.size() == name.size() || what.substr(name.size()).starts_with(" from") ? name : "");
    } else if (begins(text, "return")) {
      calls(after(text, "return"));
      add(StepKind::kReturn);
    } else {
      hold(text);
      calls(text);
      assign(text);
    }
  }

  void assign(std::string_view text) {
    const std::string_view name = name_at(text), rest = trimmed(text.substr(name.size()));
    const std::size_t equals = rest.find('=');
    if (name.empty() || equals == rest.npos || equals > 2 || rest.substr(equals).starts_with("==")) return;
    // Of x += "y" and x: T = "y" the former gives something else.
    const std::string_view right = equals == 0 ? trimmed(rest.substr(1)) : std::string_view();
    std::vector<std::string> words = literal_words(right);
    const bool is_question = asks_for_platform(right);
    if (words.empty() && !is_question && !assigned_.count(std::string(name))) return;
    if (++assignments_ > kMostAssignments) return;
    assigned_.emplace(name);
    Step& step = add(StepKind::kAssign, name);
    step.names = std::move(words);
    if (is_question) step.variable = std::string(right);
  }

  void from(std::string_view text) {
    const std::size_t at = text.find(" import ");
    const std::size_t bracket = at == text.npos ? text.find(" import(") : at;
    if (bracket == text.npos) return;
    const std::string module = absolute_name(name_at(text), out_.package);
    if (module.empty()) return;
    Step& step = add(StepKind::kImport, module);
    std::string names(text.substr(bracket + 7));
    std::erase_if(names, [](char c) { return c == '(' || c == ')'; });
    for (const std::string& part : split(names, ',')) {
      const std::string_view name = name_at(trimmed(part));
      if (name.empty() || step.names.size() >= kMostNames) continue;
      step.names.emplace_back(name);
      const std::size_t as = part.find(" as ");
      const std::string_view local = as == part.npos ? name : name_at(trimmed(std::string_view(part).substr(as + 4)));
      if (out_.from_others.size() < kMostNames)
        out_.from_others.insert_or_assign(std::string(local), module + "." + std::string(name));
    }
  }

  // error = e, in the handler of e
  void hold(std::string_view text) {
    const std::size_t equals = text.find('=');
    if (equals == text.npos || blocks_.empty()) return;
    const std::string_view left = trimmed(text.substr(0, equals)), right = trimmed(text.substr(equals + 1));
    const Step& outer = out_.steps[blocks_.back().step];
    if (outer.kind != StepKind::kExcept || outer.name.empty() || right != outer.name || left != name_at(left)) return;
    const std::string held = outer.name;
    add(StepKind::kHold, left).names = {held};
  }

  // Every name( in the statement: libraries that are opened, modules that are imported by a call, functions.
  void calls(std::string_view text) {
    std::size_t found = 0;
    for (std::size_t at = text.find('('); at != text.npos && found < kMostCalls; at = text.find('(', at + 1)) {
      std::size_t begin = at;
      while (begin > 0 && is_name_character(text[begin - 1])) --begin;
      const std::string_view name = text.substr(begin, at - begin);
      if (name.empty() || (begin > 0 && text[begin - 1] == '"')) continue;
      ++found;
      const std::string_view last = name.substr(name.rfind('.') + 1), word = quoted_after(text, at);
      const std::string_view argument = first_argument(text, at);
      if (last == "import_module" || last == "__import__") {
        if (!word.empty() && word == name_at(word)) add(StepKind::kImportCall, absolute_name(word, out_.package));
      } else if ((last == "CDLL" || last == "PyDLL" || last == "LoadLibrary" || last == "load_library" ||
                  last == "dlopen") &&
                 !argument.empty() && argument != "None") {  // libraft.load_library() is another's function
        Step& step = add(StepKind::kOpen, word);
        step.variable = std::string(variable_of(argument).substr(0, kMostWordBytes));
        const std::string_view file = library_by_name(text, at, last == "dlopen");
        if (!file.empty() && last != "load_library") step.names = {std::string(file.substr(0, kMostWordBytes))};
      } else if (is_find_library(std::string(name))) {
        find(text, begin, word);
        out_.steps.back().variable = std::string(variable_of(argument).substr(0, kMostWordBytes));
      } else if ((last == "register_fake" || last == "impl_abstract") && word.find("::") != word.npos) {
        add(StepKind::kOperator, word);
      } else {
        Step& step = add(StepKind::kCall, name);
        step.names = literal_words(argument);
        step.variable = std::string(variable_of(argument).substr(0, kMostWordBytes));
      }
    }
  }

  bool is_find_library(const std::string& name) const {
    const auto other = out_.from_others.find(name);
    return name == "find_library" || name.ends_with(".find_library") ||
           (other != out_.from_others.end() && other->second == "ctypes.util.find_library");
  }

  // path = find_library("name"), or of each name in a loop around it.
  void find(std::string_view text, std::size_t call, std::string_view word) {
    std::vector<std::string> words;
    if (!word.empty()) words.emplace_back(word.substr(0, kMostWordBytes));
    for (auto block = blocks_.rbegin(); block != blocks_.rend() && words.empty(); ++block)
      if (const Step& outer = out_.steps[block->step]; outer.kind == StepKind::kLoop)
        words = all_quoted(outer.name, kMostWords);
    const std::string_view before = trimmed(text.substr(0, call));
    const std::string_view left = before.ends_with("=") ? trimmed(before.substr(0, before.size() - 1)) : "";
    add(StepKind::kFind, left == name_at(left) ? left : "").names = std::move(words);
  }

  bool is_known_call(const std::string& name) const {
    return name == "sys.exit" || out_.functions.count(name) || out_.from_others.count(name.substr(0, name.find('.')));
  }

  static bool continues(StepKind kind) {
    return kind == StepKind::kExcept || kind == StepKind::kElse || kind == StepKind::kFinally ||
           kind == StepKind::kElif;
  }

  // Calls of functions that are not known, and blocks that hold nothing, are of no use: most of a file is such. What
  // belongs together stays together: an empty handler catches too.
  void drop_idle() {
    std::vector<Step>& steps = out_.steps;
    std::vector<bool> keep(steps.size());
    // Variables that name a library somewhere, and those that are asked by a condition.
    std::set<std::string, std::less<>> asked;
    for (const Step& step : steps) {
      if (step.kind == StepKind::kOpen || step.kind == StepKind::kFind ||
          (step.kind == StepKind::kCall && is_known_call(step.name)))
        asked.insert(step.variable);
      if (step.kind == StepKind::kLoop)
        if (const std::size_t in = step.name.find(" in "); in != step.name.npos)
          asked.emplace(name_at(trimmed(std::string_view(step.name).substr(in + 4))));
      if (step.kind == StepKind::kAssign && !step.variable.empty()) asked.insert(step.name);
    }
    for (std::size_t i = steps.size(); i-- > 0;) {
      const Step& step = steps[i];
      if (step.kind < StepKind::kTry) {
        keep[i] = step.kind == StepKind::kCall     ? is_known_call(step.name)
                  : step.kind == StepKind::kAssign ? asked.count(step.name) > 0
                                                   : true;
        continue;
      }
      const auto holds_some = [&](std::size_t block) {
        const auto end = keep.begin() + std::ptrdiff_t(steps[block].end);
        return std::find(keep.begin() + std::ptrdiff_t(block + 1), end, true) != end;
      };
      keep[i] = holds_some(i);
      if (continues(step.kind)) continue;
      const auto next_of = [&](std::size_t block) {
        const std::size_t next = steps[block].end;
        return next < steps.size() && continues(steps[next].kind) ? next : steps.size();
      };
      for (std::size_t part = next_of(i); part < steps.size(); part = next_of(part)) keep[i] = keep[i] || keep[part];
      for (std::size_t part = next_of(i); part < steps.size(); part = next_of(part)) keep[part] = bool(keep[i]);
    }
    std::vector<uint32_t> moved(steps.size() + 1);
    std::vector<Step> kept;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      moved[i] = uint32_t(kept.size());
      if (keep[i]) kept.push_back(std::move(steps[i]));
    }
    moved[steps.size()] = uint32_t(kept.size());
    for (Step& step : kept) step.end = moved[step.end];
    for (auto it = out_.functions.begin(); it != out_.functions.end();)
      if (keep[it->second])
        it->second = moved[it->second], ++it;
      else
        it = out_.functions.erase(it);
    steps = std::move(kept);
    steps.shrink_to_fit();
  }

  Outline& out_;
  std::vector<Block> blocks_;
  std::set<std::string> assigned_;  // variables that hold a word somewhere
  std::size_t assignments_ = 0;
};

}  // namespace

std::vector<std::string> literal_words(std::string_view expression) {
  std::string_view rest = trimmed(expression);
  const bool is_list = rest.starts_with('(') || rest.starts_with('[');
  if (is_list) rest = trimmed(rest.substr(1));
  std::vector<std::string> out;
  while (rest.starts_with('"')) {
    const std::size_t end = rest.find('"', 1);
    if (end == rest.npos || end == 1 || end > kMostWordBytes || out.size() >= kMostWords) return {};
    out.emplace_back(rest.substr(1, end - 1));
    rest = trimmed(rest.substr(end + 1));
    if (!is_list) break;
    if (rest.starts_with(',')) rest = trimmed(rest.substr(1));
  }
  if (is_list ? rest != ")" && rest != "]" : !rest.empty()) return {};
  return out;
}

std::string parent_module(std::string_view module) {
  const std::size_t dot = module.rfind('.');
  return std::string(dot == module.npos ? "" : module.substr(0, dot));
}

std::string module_of_path(std::string_view path) {
  std::string out(path);
  const std::size_t slash = out.rfind('/');
  const std::size_t dot = out.find('.', slash == out.npos ? 0 : slash);
  if (dot != out.npos) out.resize(dot);
  if (out.ends_with("/__init__")) out.resize(out.size() - 9);
  std::replace(out.begin(), out.end(), '/', '.');
  return out;
}

Outline outline_of(std::string_view path, std::string_view source) {
  Outline out;
  const std::string module = module_of_path(path);
  out.package = path.ends_with("/__init__.py") ? module : parent_module(module);
  OutlineReader reader(out);
  each_statement(source, [&](const Statement& statement) { return reader.take(statement); });
  reader.finish();
  return out;
}

}  // namespace doctor
