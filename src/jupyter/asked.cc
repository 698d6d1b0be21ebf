// SPDX-License-Identifier: Apache-2.0
#include "jupyter/asked.h"

#include "doctor/explain/explain.h"
#include "jupyter/programs.h"
#include "support/process.h"
#include "support/text.h"

namespace jupyter {

using namespace support;

namespace {

// The JSON behind the last line that begins with the mark; empty if there is none.
std::string marked(const std::string& output) {
  const std::string mark = std::string("\n") + kAnswerMark;
  const std::string text = "\n" + output;
  const std::size_t at = text.rfind(mark);
  if (at == text.npos) return "";
  const std::size_t begin = at + mark.size();
  return text.substr(begin, text.find('\n', begin) - begin);
}

}  // namespace

Said ask(const std::vector<std::string>& words, double limit_seconds) {
  std::string output, errors;
  const Ended ended = run_collected({words, current_environment(), ""}, limit_seconds, &output, &errors);
  Said said{marked(output), ""};
  if (!said.answer.empty()) return said;
  const std::string line = doctor::likely_error_line(errors);
  said.why_not = ended.signal ? "it was ended by signal " + std::to_string(ended.signal) +
                                    (ended.seconds >= limit_seconds ? ", since it took too long" : "")
                              : "it ended with exit code " + std::to_string(ended.exit_code);
  if (!line.empty()) said.why_not += ": " + support::printable(line);
  return said;
}

}  // namespace jupyter
