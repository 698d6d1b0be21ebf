// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/judging.h"

#include <unistd.h>

#include <cstdio>

#include "cli/process.h"
#include "support/process.h"
#include "support/text.h"

namespace cli {

ExitCode exit_code(std::span<const doctor::Verdict> verdicts) {
  if (doctor::exit_code_of(verdicts)) return kFailed;
  for (const doctor::Verdict& verdict : verdicts)
    if (verdict.code == doctor::Code::CANNOT_TELL || verdict.code == doctor::Code::TORCH_OTHER_RELEASE)
      return kCannotTell;
  return kOk;
}

doctor::Verdict unreadable(const std::string& given, const std::exception& error) {
  return doctor::make_verdict({.code = "CANNOT_TELL",
                               .subject = support::printable(given),
                               .message = support::printable(error.what()),
                               .cause = "It was not looked at.",
                               .fix = "give a wheel, a compiled file, a folder or an installed package"});
}

const doctor::PythonInstall* wanted_python(doctor::Survey& survey, const std::string& named) {
  if (named.empty()) return default_python(survey);
  const doctor::PythonInstall* python = find_python(survey, named);
  if (!python) throw std::runtime_error("--python " + named + " is no Python");
  return python;
}

bool may_be_package(const std::string& given) {
  return given.find('/') == given.npos && !given.ends_with(".whl") && !given.ends_with(".so") &&
         access(given.c_str(), F_OK) != 0;
}

support::ReadError no_such_package(const std::string& given, const doctor::PythonInstall* python) {
  return support::ReadError(given + " is no file, and no package " +
                            (python ? "of " + python->program : std::string("(there is no Python here)")));
}

ProgressLine::ProgressLine() : begun_(support::monotonic_seconds()) {}

doctor::Progress ProgressLine::callback() {
  if (!isatty(STDERR_FILENO)) return {};
  return [this](std::string_view what, uint64_t done, uint64_t total) {
    const double now = support::monotonic_seconds();
    if (now - begun_ < 0.5 || now - last_ < 0.1) return;
    last_ = now;
    shown_ = true;
    std::fprintf(stderr, "\r\033[K%3.0f%%  %.60s", total > 0 ? 100.0 * double(done) / double(total) : 0.0,
                 support::printable(what).c_str());
  };
}

void ProgressLine::clear() {
  if (shown_) std::fprintf(stderr, "\r\033[K");
  shown_ = false;
}

}  // namespace cli
