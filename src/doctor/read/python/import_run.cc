// SPDX-License-Identifier: Apache-2.0
#include "doctor/read/python/import_run.h"

#include <algorithm>
#include <utility>

#include "doctor/read/python/condition.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

// Files are hostile: chains of imports and calls end here, and what lies beyond is taken to work.
constexpr int kMostDepth = 400;
constexpr std::size_t kMostStepsRun = 2'000'000;

struct Failure {
  ImportFailure kind = ImportFailure::kImportError;
  std::string module;  // that could not be imported; empty: Python code raised something by itself
};
using Outcome = std::optional<Failure>;
constexpr const char* kLibrary = "<library>";     // in place of a module: what ctypes or torch.ops opens
constexpr std::string_view kSystem = "<system>";  // before its name: a library that find_library does not find

bool is_part_of_if(StepKind kind) { return kind == StepKind::kElif || kind == StepKind::kElse; }

// Does a handler of this name catch it? Names in small letters are variables: they are taken to fit.
bool catches(const std::string& handler, const Failure& failure) {
  if (handler == "Exception" || handler == "BaseException" || handler[0] == '_' ||
      (handler[0] >= 'a' && handler[0] <= 'z'))
    return true;
  // What Python code raised by itself may be anything.
  if (failure.module.empty() || failure.module.starts_with(kSystem)) return true;
  switch (failure.kind) {
    case ImportFailure::kModuleNotFound: return handler == "ImportError" || handler == "ModuleNotFoundError";
    case ImportFailure::kImportError: return handler == "ImportError";
    case ImportFailure::kValueError: return handler == "ValueError";
    case ImportFailure::kOsError: return handler == "OSError" || handler == "EnvironmentError" || handler == "IOError";
    case ImportFailure::kRuntimeError: return handler == "RuntimeError";
    case ImportFailure::kNone:
    case ImportFailure::kProcessEnds: break;
  }
  return false;
}

bool catches(const Step& handler, const Failure& failure) {
  if (failure.kind == ImportFailure::kProcessEnds) return false;
  return handler.names.empty() || std::any_of(handler.names.begin(), handler.names.end(),
                                              [&](const std::string& name) { return catches(name, failure); });
}

class ImportRunner {
 public:
  ImportRunner(ModuleFinder& finder, std::pair<int, int> python) : finder_(finder), python_(python) {}

  void import_top(const std::string& module) {
    const Outcome failure = import_module(module);
    if (!failure) return;
    if (failure->module == kLibrary)
      out_.stops_at_library = true;
    else if (failure->module.starts_with(kSystem))
      out_.lacking.insert(failure->module.substr(kSystem.size()));
    else if (!failure->module.empty())
      out_.stopping.insert(failure->module);
  }

  ImportOutcome take() { return std::move(out_); }

 private:
  // Variables whose values are in the text.
  struct Values {
    std::map<std::string, std::vector<std::string>> words;  // "libpulse.so.0"; none: something else
    std::map<std::string, Truth> truths;                    // of `is_windows = os.name == "nt"`
  };

  // One run of a module's body, or of a function of it.
  struct Frame {
    const Outline& outline;
    std::map<std::string, Failure> held;  // variables that hold a failure that was caught
    bool is_certain = true;               // not below a condition that is not known
    bool is_certain_in_handler = false;   // the same, of the handler around it: what it handles is taken to happen
    bool is_caught = false;               // a failure of the library that is opened here stops nothing
    bool is_operator_caught = false;      // nor does an operator that is not there
    bool has_returned = false, may_have_returned = false;
    std::map<std::string, bool> found;  // variables that hold what find_library said: whether it found it
    std::string lacking;                // the last library of the system that it did not find
    bool asks_for_unknown = false;      // find_library was asked for one whose name is not in the text
    bool has_found = false;             // it found one: that is taken to be what is opened next (python-magic)
    Outcome passed_over;                // what a handler caught last, and did not raise again
    Values* values = nullptr;           // what its variables hold: the module's, or own_values
    Values own_values;
  };

  Outcome import_module(const std::string& name) {
    // Importing a.b.c imports a and a.b first.
    for (std::size_t dot = name.find('.');; dot = name.find('.', dot + 1)) {
      if (Outcome failure = import_one(name.substr(0, dot))) return failure;
      if (dot == name.npos) return {};
    }
  }

  Outcome import_one(const std::string& module) {
    if (module.empty()) return {};
    const auto [known, is_new] = done_.try_emplace(module);
    // One that is being imported counts as imported.
    if (!is_new) return known->second;
    out_.reached.insert(module);
    if (const std::optional<ImportFailure> compiled = finder_.compiled(module)) {
      if (*compiled != ImportFailure::kNone) known->second = Failure{*compiled, module};
      return known->second;
    }
    const Outline* outline = finder_.python(module);
    if (!outline && module.find('.') == module.npos)
      if (const std::string whole = finder_.own_module(module); !whole.empty())
        return done_[module] = import_one(whole);
    // Where nobody would catch it, it is to be installed yet.
    if (!outline && tries_ > 0 && module.find('.') == module.npos && finder_.is_absent(module))
      return known->second = Failure{ImportFailure::kModuleNotFound, module};
    if (!outline || depth_ >= kMostDepth) return {};
    ++depth_;
    running_.insert(module);
    Frame frame{*outline};
    frame.values = &globals_[outline];
    Outcome failure = run(frame, 0, outline->steps.size());
    running_.erase(module);
    --depth_;
    return done_[module] = std::move(failure);
  }

  Outcome import_step(const Step& step) {
    if (Outcome failure = import_module(step.name)) return failure;
    for (const std::string& name : step.names) {
      const std::string inner = step.name + "." + name;
      // Most names are no modules; those that are, are imported too.
      if (done_.count(inner) || finder_.compiled(inner) || finder_.python(inner))
        if (Outcome failure = import_one(inner)) return failure;
    }
    return {};
  }

  // A package that imports itself by its name has changed the path before, so as to find its compiled file: OpenCV
  // does.
  Outcome import_by_call(const std::string& name) {
    const std::string inner = name + "." + name.substr(name.rfind('.') + 1);
    if (running_.count(name) && finder_.compiled(inner)) return import_one(inner);
    return import_module(name);
  }

  // Its value, if that is in the text: of the function's variable, or of the module's.
  const std::vector<std::string>* words_of(const Frame& frame, const std::string& variable) {
    for (Values* values : {frame.values, &globals_[&frame.outline]})
      if (const auto found = values->words.find(variable); found != values->words.end()) return &found->second;
    return nullptr;
  }

  static void assign(Frame& frame, const std::string& name, std::vector<std::string> words) {
    if (!frame.is_certain) words.clear();
    frame.values->words.insert_or_assign(name, std::move(words));
  }

  void assign(Frame& frame, const Step& step) {
    if (step.variable.empty()) {
      frame.values->truths.erase(step.name);
      assign(frame, step.name, step.names);
    } else {
      frame.values->truths.insert_or_assign(step.name, truth_of(step.variable, python_));
    }
  }

  // `windows`, `not windows`
  Truth truth_of_variable(const Frame& frame, std::string_view condition) {
    condition = trimmed(condition);
    const bool is_negated = condition.starts_with("not ");
    if (is_negated) condition = trimmed(condition.substr(4));
    for (Values* values : {frame.values, &globals_[&frame.outline]})
      if (const auto found = values->truths.find(std::string(condition)); found != values->truths.end())
        return !is_negated || found->second == Truth::kUnknown ? found->second
               : found->second == Truth::kTrue                 ? Truth::kFalse
                                                               : Truth::kTrue;
    return Truth::kUnknown;
  }

  Outcome call(Frame& frame, const Step& step) {
    const std::string& name = step.name;
    if (name == "sys.exit")
      return frame.is_certain && !frame.may_have_returned && tries_ > 0
                 ? Outcome(Failure{ImportFailure::kImportError, ""})
                 : Outcome();
    const Outline* outline = &frame.outline;
    auto found = outline->functions.find(name);
    if (found == outline->functions.end()) {
      const std::string head = name.substr(0, name.find('.'));
      const auto other = outline->from_others.find(head);
      if (other == outline->from_others.end()) return {};
      const std::string whole = other->second + name.substr(head.size());
      outline = finder_.python(parent_module(whole));
      if (!outline) return {};
      found = outline->functions.find(whole.substr(whole.rfind('.') + 1));
      if (found == outline->functions.end()) return {};
    }
    const Step* key = &outline->steps[found->second];
    if (depth_ >= kMostDepth) return {};
    if (!calling_.insert(key).second) {
      // A function that tries one name, and then itself with those that are left: all of them were tried.
      const auto caught = frame.held.find("");
      return caught != frame.held.end() && caught->second.module.starts_with(kSystem) ? Outcome(caught->second)
                                                                                      : Outcome();
    }
    ++depth_;
    Frame inner{*outline, {}, frame.is_certain, false, frame.is_caught, frame.is_operator_caught};
    inner.values = &inner.own_values;
    if (!key->variable.empty()) {
      const std::vector<std::string>* words = words_of(frame, step.variable);
      inner.own_values.words[key->variable] = !step.names.empty() || !words ? step.names : *words;
    }
    Outcome failure = run(inner, found->second + 1, key->end);
    if (!inner.lacking.empty()) frame.lacking = inner.lacking;
    frame.has_found |= inner.has_found;
    --depth_;
    calling_.erase(key);
    return failure;
  }

  Outcome run(Frame& frame, std::size_t begin, std::size_t end) {
    const std::vector<Step>& steps = frame.outline.steps;
    for (std::size_t i = begin; i < end && !frame.has_returned;) {
      if (++steps_run_ > kMostStepsRun) return {};
      const Step& step = steps[i];
      std::size_t next = step.end;
      Outcome failure;
      switch (step.kind) {
        case StepKind::kImport: failure = import_step(step); break;
        case StepKind::kImportCall: failure = import_by_call(step.name); break;
        case StepKind::kCall: failure = call(frame, step); break;
        case StepKind::kAssign: assign(frame, step); break;
        case StepKind::kOpen:
          if (!frame.is_caught) out_.opened.insert(step.name);
          frame.asks_for_unknown |= is_unknown(frame, step);
          if (finder_.library_fails(frame.outline.package, step.name))
            failure = Failure{ImportFailure::kOsError, kLibrary};
          else if (frame.is_certain && !frame.may_have_returned)
            failure = open_by_name(frame, step);
          break;
        case StepKind::kFind: find(frame, step); break;
        case StepKind::kOperator:
          if (frame.is_certain && !frame.may_have_returned && !frame.is_operator_caught)
            out_.operators.insert(step.name);
          break;
        case StepKind::kRaise: failure = raised(frame, step); break;
        case StepKind::kHold:
          if (const auto held = frame.held.find(step.names[0]); held != frame.held.end())
            frame.held.insert_or_assign(step.name, held->second);
          break;
        case StepKind::kReturn: (frame.is_certain ? frame.has_returned : frame.may_have_returned) = true; break;
        case StepKind::kTry: failure = run_try(frame, i, end, next); break;
        case StepKind::kIf: failure = run_if(frame, i, end, next); break;
        case StepKind::kWith:
          failure = run(frame, i + 1, step.end);
          if (failure && step.name.find("suppress") != step.name.npos) failure.reset();
          break;
        case StepKind::kLoop: failure = run_loop(frame, step, i); break;
        case StepKind::kCase: failure = run_perhaps(frame, i + 1, step.end); break;
        case StepKind::kClass:
        case StepKind::kElse: failure = run(frame, i + 1, step.end); break;  // else of a loop
        case StepKind::kDef:
        case StepKind::kExcept:
        case StepKind::kElif:
        case StepKind::kFinally: break;
      }
      if (failure) return failure;
      i = std::max(next, i + 1);
    }
    return {};
  }

  // A library by its name alone, or by a variable that holds one, or several of which one is enough.
  Outcome open_by_name(Frame& frame, const Step& step) {
    std::vector<std::string> names = step.names;
    if (names.empty() && !step.variable.empty())
      if (const auto* words = words_of(frame, step.variable)) names = files_among(*words);
    if (!names.empty()) {
      if (std::any_of(names.begin(), names.end(), [&](const std::string& name) { return opens(name); })) return {};
      return Failure{ImportFailure::kOsError, std::string(kSystem) + names[0]};
    }
    if (is_unknown(frame, step) && !frame.is_caught) out_.perhaps_lacking.insert("");
    return {};
  }

  // A library whose name is not in the text. (What find_library said, if nothing, opens Python itself.)
  bool is_unknown(const Frame& frame, const Step& step) {
    const auto* words = step.variable.empty() ? nullptr : words_of(frame, step.variable);
    return step.name.empty() && !step.variable.empty() && !frame.found.count(step.variable) && !frame.has_found &&
           (!words || files_among(*words).empty()) && !brings_libraries(frame);
  }
  bool brings_libraries(const Frame& frame) {
    return finder_.brings_libraries(frame.outline.package.substr(0, frame.outline.package.find('.')));
  }

  // All of them, if each is a library's file name.
  static std::vector<std::string> files_among(const std::vector<std::string>& words) {
    const bool are_files = std::all_of(words.begin(), words.end(), [](const std::string& word) {
      return word.find(".so") != word.npos && word.find_first_of("/{%*\\") == word.npos;
    });
    return are_files ? words : std::vector<std::string>();
  }

  // A loop over names that are in the text runs; where one of the libraries opens, it ends there.
  Outcome run_loop(Frame& frame, const Step& step, std::size_t at) {
    const std::vector<Step>& steps = frame.outline.steps;
    const std::size_t in = step.name.find(" in ");
    const std::string variable(trimmed(std::string_view(step.name).substr(0, in)));
    if (in != step.name.npos) {
      const std::string_view over = trimmed(std::string_view(step.name).substr(in + 4));
      std::vector<std::string> words = literal_words(over);
      if (const auto* held = words_of(frame, std::string(over)); words.empty() && held) words = *held;
      words = files_among(words);
      const bool is_opened =
          std::any_of(steps.begin() + std::ptrdiff_t(at), steps.begin() + step.end, [&](const Step& s) {
            return (s.kind == StepKind::kOpen || s.kind == StepKind::kCall) && s.variable == variable;
          });
      if (is_opened && !words.empty() &&
          std::none_of(words.begin(), words.end(), [&](const std::string& name) { return opens(name); })) {
        assign(frame, variable, std::move(words));
        return run(frame, at + 1, step.end);
      }
      frame.values->words.erase(variable);
    }
    return run_perhaps(frame, at + 1, step.end);
  }

  // cffi asks find_library for what has no dot.
  bool opens(const std::string& name) {
    return name.find('.') == name.npos ? finder_.has_system_library(name) : finder_.opens_by_name(name);
  }

  void find(Frame& frame, const Step& step) {
    const auto* held = step.names.empty() && !step.variable.empty() ? words_of(frame, step.variable) : nullptr;
    const std::vector<std::string>& names = held ? *held : step.names;
    if (names.empty()) {
      frame.asks_for_unknown |= !brings_libraries(frame);
      return;
    }
    const bool is_there = std::any_of(names.begin(), names.end(),
                                      [&](const std::string& name) { return finder_.has_system_library(name); });
    frame.lacking = is_there ? "" : names[0];
    frame.has_found |= is_there;
    if (!step.name.empty()) frame.found[step.name] = is_there;
  }

  // `not path`, `path is None` and their opposites, of a variable that holds what find_library said.
  static Truth truth_of_found(const Frame& frame, std::string_view condition) {
    condition = trimmed(condition);
    const bool is_negated = condition.starts_with("not ");
    if (is_negated) condition = trimmed(condition.substr(4));
    const std::string_view name = condition.substr(0, condition.find(' '));
    const std::string_view rest = trimmed(condition.substr(name.size()));
    const auto found = frame.found.find(std::string(name));
    if (found == frame.found.end()) return Truth::kUnknown;
    const bool asks_for_none = rest == "is None" || rest == "== None";
    if (!asks_for_none && !rest.empty() && rest != "is not None" && rest != "!= None") return Truth::kUnknown;
    return found->second != (is_negated != asks_for_none) ? Truth::kTrue : Truth::kFalse;
  }

  Outcome run_perhaps(Frame& frame, std::size_t begin, std::size_t end) {
    const bool was_certain = std::exchange(frame.is_certain, false);
    const bool was_certain_in_handler = std::exchange(frame.is_certain_in_handler, false);
    Outcome failure = run(frame, begin, end);
    frame.is_certain = was_certain;
    frame.is_certain_in_handler = was_certain_in_handler;
    return failure;
  }

  Outcome raised(const Frame& frame, const Step& step) {
    if (const auto held = frame.held.find(step.name); !step.name.empty() && held != frame.held.end())
      return held->second;
    const auto caught = frame.held.find("");
    // In a handler it passes on what was caught.
    if (frame.is_certain_in_handler && caught != frame.held.end()) return caught->second;
    if (!frame.is_certain || frame.may_have_returned) {
      if (!frame.lacking.empty() || frame.asks_for_unknown)
        out_.perhaps_lacking.insert(frame.lacking);
      else if (frame.passed_over && frame.passed_over->module.starts_with(kSystem))
        out_.perhaps_lacking.insert(frame.passed_over->module.substr(kSystem.size()));
      return {};
    }
    if (!frame.lacking.empty()) return Failure{ImportFailure::kOsError, std::string(kSystem) + frame.lacking};
    // One after the other was tried, a failure was caught each time, and this is what is left.
    if (frame.passed_over) return frame.passed_over;
    // Where nobody would catch it, the text was misread: no package raises whenever it is imported.
    return tries_ > 0 ? Outcome(Failure{ImportFailure::kImportError, ""}) : Outcome();
  }

  Outcome run_try(Frame& frame, std::size_t at, std::size_t end, std::size_t& next) {
    const std::vector<Step>& steps = frame.outline.steps;
    std::vector<std::size_t> handlers;
    std::size_t otherwise = 0, at_last = 0;
    for (next = steps[at].end; next < end; next = steps[next].end) {
      const StepKind kind = steps[next].kind;
      if (kind == StepKind::kExcept)
        handlers.push_back(next);
      else if (kind == StepKind::kElse)
        otherwise = next;
      else if (kind == StepKind::kFinally)
        at_last = next;
      else
        break;
    }
    const bool was_caught = frame.is_caught, was_operator_caught = frame.is_operator_caught;
    const auto catch_all = [&](ImportFailure kind, bool& is_caught) {
      for (const std::size_t i : handlers)
        if (catches(steps[i], Failure{kind, "a library"})) {
          is_caught |= !passes_on(frame, i);
          return;
        }
    };
    catch_all(ImportFailure::kOsError, frame.is_caught);
    catch_all(ImportFailure::kRuntimeError, frame.is_operator_caught);
    ++tries_;
    Outcome failure = run(frame, at + 1, steps[at].end);
    --tries_;
    frame.is_caught = was_caught;
    frame.is_operator_caught = was_operator_caught;
    if (!failure) {
      if (otherwise) failure = run(frame, otherwise + 1, steps[otherwise].end);
    } else {
      for (const std::size_t i : handlers)
        if (catches(steps[i], *failure)) {
          failure = handle(frame, i, *failure);
          break;
        }
    }
    if (at_last)
      if (Outcome later = run(frame, at_last + 1, steps[at_last].end)) return later;
    return failure;
  }

  Outcome handle(Frame& frame, std::size_t handler, const Failure& failure) {
    const Step& step = frame.outline.steps[handler];
    const auto outer = frame.held;
    frame.held.insert_or_assign("", failure);
    if (!step.name.empty()) frame.held.insert_or_assign(step.name, failure);
    ++tries_;
    const bool was_certain = std::exchange(frame.is_certain_in_handler, true);
    Outcome out = run(frame, handler + 1, step.end);
    frame.is_certain_in_handler = was_certain;
    --tries_;
    // What Python code raises here by itself, it raises because of this.
    if (out && out->module.empty()) out = failure;
    if (!out) frame.passed_over = failure;
    frame.held.erase("");
    if (const auto caught = outer.find(""); caught != outer.end()) frame.held.insert(*caught);
    return out;
  }

  // Would this handler, reached with a failure, end in one? A run on a copy, which changes nothing else.
  bool passes_on(const Frame& frame, std::size_t handler) {
    const std::vector<Step>& steps = frame.outline.steps;
    for (std::size_t i = handler + 1; i < steps[handler].end; i = std::max<std::size_t>(steps[i].end, i + 1)) {
      if (steps[i].kind == StepKind::kRaise) return true;
      if (steps[i].kind != StepKind::kCall) continue;
      if (steps[i].name == "sys.exit") return true;
      const auto function = frame.outline.functions.find(steps[i].name);
      if (function == frame.outline.functions.end()) continue;
      const std::size_t end = steps[function->second].end;
      for (std::size_t j = function->second + 1; j < end; j = std::max<std::size_t>(steps[j].end, j + 1))
        if (steps[j].kind == StepKind::kRaise) return true;
    }
    return false;
  }

  Outcome run_if(Frame& frame, std::size_t at, std::size_t end, std::size_t& next) {
    const std::vector<Step>& steps = frame.outline.steps;
    bool is_decided = false, is_open = false;  // one branch ran for certain; one may have run
    std::size_t branch = at;
    Outcome failure;
    do {
      const Step& step = steps[branch];
      Truth truth = step.kind == StepKind::kElse ? Truth::kTrue : truth_of(step.name, python_);
      if (truth == Truth::kUnknown) truth = truth_of_found(frame, step.name);
      if (truth == Truth::kUnknown) truth = truth_of_variable(frame, step.name);
      if (truth == Truth::kGuard) {
        is_open = is_decided =
            true;  // a question for a GPU: neither branch is certain, nor what follows a return there
        for (std::size_t i = branch + 1; i < step.end; i = std::max<std::size_t>(steps[i].end, i + 1))
          frame.has_returned |= steps[i].kind == StepKind::kReturn;
      }
      if (!is_decided && truth != Truth::kFalse && !failure)
        failure = truth == Truth::kTrue && !is_open ? run(frame, branch + 1, step.end)
                                                    : run_perhaps(frame, branch + 1, step.end);
      is_decided |= truth == Truth::kTrue;
      is_open |= truth == Truth::kUnknown;
      next = branch = step.end;
    } while (branch < end && is_part_of_if(steps[branch].kind));
    return failure;
  }

  ModuleFinder& finder_;
  std::pair<int, int> python_;
  ImportOutcome out_;
  std::map<std::string, Outcome> done_;
  std::set<std::string> running_;  // modules whose bodies run
  std::set<const Step*> calling_;
  std::map<const Outline*, Values> globals_;
  int depth_ = 0, tries_ = 0;  // calls and imports, and try statements, around the step that runs
  std::size_t steps_run_ = 0;
};

}  // namespace

ImportOutcome run_imports(const std::vector<std::string>& top_modules, ModuleFinder& finder,
                          std::pair<int, int> python) {
  ImportRunner runner(finder, python);
  for (const std::string& module : top_modules) runner.import_top(module);
  return runner.take();
}

}  // namespace doctor
