// SPDX-License-Identifier: Apache-2.0
#include "cli/attention/against/against.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "against_program.h"
#include "cli/exit_code.h"
#include "cli/text.h"
#include "doctor/explain/explain.h"
#include "doctor/system/survey.h"
#include "support/process.h"
#include "support/text.h"

namespace cli {
namespace {

constexpr double kMostSeconds = 1800;
constexpr const char* kMark = "\nmica-answer:";

nlohmann::json ask(const std::string& python, const AgainstOptions& options) {
  std::string output, errors;
  const support::Ended ended = support::run_collected(
      {{python, "-c", kAgainstProgram, options.package, options.device}, support::current_environment(), ""},
      kMostSeconds, &output, &errors);
  const std::size_t at = output.rfind(kMark);
  if (at != output.npos) {
    nlohmann::json answer = nlohmann::json::parse(output.substr(at + std::string(kMark).size()), nullptr, false);
    if (answer.is_object()) return answer;
  }
  // It died before it could answer.
  return {{"failed", errors + "\nended with exit code " + std::to_string(ended.exit_code)}};
}

int report_failure(const std::string& text, const AgainstOptions& options, const doctor::Environment& here) {
  std::printf("%s cannot be tried: %s\n", options.package.c_str(), doctor::likely_error_line(text).c_str());
  for (const doctor::Verdict& verdict : doctor::explain(text, &here).verdicts)
    std::printf("%s", doctor::verdict_text(verdict, isatty(STDOUT_FILENO)).c_str());
  return kFailed;
}

int report(const nlohmann::json& answer, const AgainstOptions& options) {
  Table table({"case", "", "worst", "difference", "bound"});
  int equal = 0, differ = 0, refused = 0;
  for (const nlohmann::json& row : answer.value("rows", nlohmann::json::array())) {
    const std::string name = row.value("case", "");
    if (row.contains("refused")) {
      ++refused;
      table.add({name, "not taken", support::printable(row.value("refused", ""), 100), "", ""});
      continue;
    }
    const bool is_equal = row.value("equal", false);
    (is_equal ? equal : differ)++;
    table.add({name, is_equal ? "equal" : "DIFFERS", row.value("worst", ""),
               format("%.2g", row.value("difference", 0.0)), format("%.2g", row.value("bound", 0.0))});
  }
  std::printf("%s %s, torch %s, on %s\n\n%s\n", options.package.c_str(), answer.value("version", "").c_str(),
              answer.value("torch", "").c_str(), answer.value("device", "").c_str(), table.text().c_str());
  std::printf(
      "%d equal, %d differ, %d not taken: output and gradients against the textbook's formula in double precision\n",
      equal, differ, refused);
  if (differ) return kFailed;
  return equal ? kOk : kCannotTell;
}

}  // namespace

int check_against(const AgainstOptions& options, bool json) {
  doctor::Survey survey = doctor::survey(doctor::outlook_here());
  const doctor::PythonInstall* python =
      options.python.empty() ? doctor::default_python(survey) : doctor::find_python(survey, options.python);
  if (!python)
    throw std::runtime_error(options.python.empty()
                                 ? "no Python is here; name one: --python PATH"
                                 : "--python is " + support::printable(options.python) + ", which is no Python");
  nlohmann::json answer = ask(python->program, options);
  const std::string failed = answer.value("failed", "");
  if (json) {
    const nlohmann::json rows = answer.value("rows", nlohmann::json::array());
    const auto count = [&](bool wanted) {
      return std::count_if(rows.begin(), rows.end(), [&](const auto& row) {
        return row.contains("equal") && row.value("equal", false) == wanted;
      });
    };
    const int code = !failed.empty() || count(false) ? kFailed : count(true) ? kOk : kCannotTell;
    answer["package"] = options.package;
    answer["python"] = python->program;
    answer["exit_code"] = code;
    std::printf("%s\n", answer.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    return code;
  }
  return failed.empty() ? report(answer, options) : report_failure(failed, options, environment_of(survey, python));
}

}  // namespace cli
