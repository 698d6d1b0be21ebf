// SPDX-License-Identifier: Apache-2.0
#include "doctor/read/python/condition.h"

#include <string>

#include "support/text.h"
#include "support/version.h"

namespace doctor {

using namespace support;

namespace {

Truth opposite(Truth truth) {
  return truth == Truth::kTrue ? Truth::kFalse : truth == Truth::kFalse ? Truth::kTrue : truth;
}

// (3, 10) of "(3, 10)" or "[3, 10]", or {3, -1} of "(3,)"; {-1, -1} for anything else.
std::pair<int, int> pair_in(std::string_view text) {
  text = trimmed(text);
  if (text.empty() || (text[0] != '(' && text[0] != '[')) return {-1, -1};
  const Version version = [&] {
    std::string numbers;
    for (const char c : text.substr(1)) {
      if (c >= '0' && c <= '9')
        numbers += c;
      else if (c == ',')
        numbers += '.';
      else if (c != ' ')
        break;
    }
    while (numbers.ends_with(".")) numbers.pop_back();
    return parse_version(numbers);
  }();
  if (!version.known()) return {-1, -1};
  return {version.major_part(), version.parts.size() > 1 ? version.minor_part() : -1};
}

// sys.version_info >= (3, 10), sys.version_info[0] == 2
Truth version_truth(std::string_view condition, std::pair<int, int> python) {
  std::string_view rest = trimmed(condition.substr(condition.find("version_info") + 12));
  if (rest.starts_with("[:2]")) rest = trimmed(rest.substr(4));
  const bool only_major = rest.starts_with("[0]") || rest.starts_with(".major");
  if (only_major) rest = trimmed(rest.substr(rest[0] == '[' ? 3 : 6));
  std::string_view sign;
  for (const char* word : {">=", "<=", "==", "!=", ">", "<"})
    if (rest.starts_with(word)) {
      sign = word;
      break;
    }
  if (sign.empty()) return Truth::kUnknown;
  const std::string_view right = trimmed(rest.substr(sign.size()));
  std::pair<int, int> other = only_major ? std::pair<int, int>{parse_version(right).major_part(), -1} : pair_in(right);
  if (other.first < 0) return Truth::kUnknown;
  // A tuple that is longer is greater: (3, 12, 1) > (3,), and version_info > (3, 11) holds in 3.11.0 too.
  const std::pair<int, int> here = only_major ? std::pair<int, int>{python.first, -1} : python;
  const int order = here < other ? -1 : here > other ? 1 : only_major ? 0 : 1;
  const bool equal = here == other;
  if (sign == ">=") return order >= 0 ? Truth::kTrue : Truth::kFalse;
  if (sign == "<") return order < 0 ? Truth::kTrue : Truth::kFalse;
  if (sign == ">") return order > 0 ? Truth::kTrue : Truth::kFalse;
  if (sign == "<=") return order < 0 || (only_major && equal) ? Truth::kTrue : Truth::kFalse;
  if (only_major) return (sign == "==") == equal ? Truth::kTrue : Truth::kFalse;
  return Truth::kUnknown;
}

// sys.platform == "win32", sys.platform.startswith("linux"), os.name == "nt", platform.system() == "Darwin"
Truth platform_truth(std::string_view condition) {
  const bool asks = condition.find("sys.platform") != condition.npos || condition.find("os.name") != condition.npos ||
                    condition.find("platform.system()") != condition.npos;
  if (!asks) return Truth::kUnknown;
  Truth truth = Truth::kUnknown;
  for (const char* word : {"\"win", "\"Win", "\"nt\"", "\"darwin", "\"Darwin", "\"cygwin", "\"aix", "\"java",
                           "\"emscripten", "\"ios", "\"android"})
    if (condition.find(word) != condition.npos) truth = Truth::kFalse;
  for (const char* word : {"\"linux", "\"Linux", "\"posix"})
    if (condition.find(word) != condition.npos) truth = Truth::kTrue;
  const bool negated = condition.find("!=") != condition.npos || condition.find(" not in ") != condition.npos;
  return negated ? opposite(truth) : truth;
}

}  // namespace

Truth truth_of(std::string_view condition, std::pair<int, int> python) {
  condition = trimmed(condition);
  const bool is_joined = condition.find(" and ") != condition.npos || condition.find(" or ") != condition.npos;
  if (!is_joined && condition.starts_with("not ")) return opposite(truth_of(condition.substr(4), python));
  if (is_joined && condition.find(" or ") == condition.npos) {
    // One false part is enough.
    Truth all = Truth::kTrue;
    for (std::size_t begin = 0; begin <= condition.size();) {
      const std::size_t end = std::min(condition.find(" and ", begin), condition.size());
      const Truth part = truth_of(condition.substr(begin, end - begin), python);
      if (part == Truth::kFalse) return Truth::kFalse;
      if (part == Truth::kGuard || all == Truth::kTrue) all = part;
      begin = end + 5;
    }
    return all;
  }
  for (const char* word : {"is_available", "device_count", "hasattr(", "find_spec", "is_installed", "has_module"})
    if (condition.find(word) != condition.npos) return Truth::kGuard;
  if (is_joined) return Truth::kUnknown;
  if (condition.find("TYPE_CHECKING") != condition.npos || condition.find("__main__") != condition.npos ||
      condition == "False" || condition == "0")
    return Truth::kFalse;
  if (condition == "True" || condition == "1") return Truth::kTrue;
  if (condition.find("version_info") != condition.npos) return version_truth(condition, python);
  // What is asked for by a variable of the environment is asked for by few.
  if (condition.starts_with("os.environ.get(") || condition.starts_with("os.getenv(") ||
      condition.find(" in os.environ") != condition.npos)
    return condition.find("!=") == condition.npos && condition.find(" not in ") == condition.npos ? Truth::kGuard
                                                                                                  : Truth::kUnknown;
  return platform_truth(condition);
}

}  // namespace doctor
