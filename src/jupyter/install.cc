// SPDX-License-Identifier: Apache-2.0
#include "jupyter/install.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <stdexcept>

#include "doctor/explain/explain.h"
#include "doctor/system/host.h"
#include "jupyter/asked.h"
#include "jupyter/kernels.h"
#include "jupyter/programs.h"
#include "support/bytes.h"
#include "support/durable.h"
#include "support/process.h"
#include "support/temporary_folder.h"
#include "support/text.h"

namespace jupyter {

using namespace support;

namespace {

using doctor::make_verdict;

constexpr const char* kLogos[] = {"logo-32x32.png", "logo-64x64.png", "logo-svg.svg"};

void check_request(const KernelRequest& request) {
  const auto refuse = [](const std::string& line) { throw std::runtime_error(line); };
  if (!is_kernel_name(request.name))
    refuse("--name is \"" + support::printable(request.name) +
           "\", want at most 100 letters, digits, dots, dashes and underscores");
  if (request.display_name.empty() || support::printable(request.display_name, 200) != request.display_name)
    refuse("--display-name is \"" + support::printable(request.display_name) +
           "\", want 1 to 200 bytes of UTF-8 without control characters");
  for (const auto& [name, value] : request.env)
    if (name.empty() || name.find_first_of("=\0 \n\t", 0, 5) != name.npos)
      refuse("--env " + support::printable(name) + "=...: want NAME=VALUE with a name without blanks");
}

doctor::PythonInstall python_of(const doctor::Outlook& outlook, const std::string& given) {
  doctor::Survey survey;
  survey.outlook = outlook;
  survey.host.machine = doctor::read_host(outlook).machine;
  const doctor::PythonInstall* python = doctor::find_python(survey, given);
  if (!python) throw std::runtime_error("--python " + support::printable(given) + " is no Python");
  return *python;
}

std::string existing_text(const std::string& path) {
  try {
    return support::read_text_file(path);
  } catch (const support::ReadError&) {
    return "";
  }
}

// What was put on disk, so that it can be taken back.
class Registration {
 public:
  Registration(std::string folder, std::string text) : folder_(std::move(folder)), text_(std::move(text)) {}

  // "new", "same" or "replaced".
  std::string write(const KernelRequest& request, const std::string& resources) {
    const std::string file = folder_ + "/kernel.json";
    std::error_code error;
    had_folder_ = std::filesystem::exists(folder_, error);
    make_folders(folder_);
    try {
      place_logos(resources);
      placed_ = place(request, file);
    } catch (...) {
      take_back();
      throw;
    }
    return placed_;
  }

  void take_back() {
    const std::string file = folder_ + "/kernel.json";
    if (placed_ == "replaced") replace_file(file, before_);
    if (placed_ == "new") unlink(file.c_str());
    for (const std::string& logo : logos_) unlink(logo.c_str());
    if (!had_folder_) rmdir(folder_.c_str());
  }

 private:
  // kernel.json makes the folder a kernel, so it comes last and in one step.
  std::string place(const KernelRequest& request, const std::string& file) {
    if (write_new_file(file, text_) == Placed::kNew) return "new";
    before_ = existing_text(file);
    if (same_kernel_json(before_, text_)) return "same";
    if (!request.replace) throw std::runtime_error(refusal(file));
    replace_file(file, text_);
    return "replaced";
  }

  std::string refusal(const std::string& file) const {
    std::string what = "a file that is no kernel.json";
    try {
      what = "a kernel that starts " + support::printable(doctor::parse_kernel_spec(before_).argv[0]);
    } catch (const std::exception&) {
    }
    return file + " is there already: " + what +
           ", or with other variables or another display name; --replace replaces it";
  }

  void place_logos(const std::string& resources) {
    for (const char* name : kLogos) {
      const std::string bytes = resources.empty() ? "" : existing_text(resources + "/" + name);
      const std::string path = folder_ + "/" + name;
      if (!bytes.empty() && write_new_file(path, bytes) == Placed::kNew) logos_.push_back(path);
    }
  }

  std::string folder_, text_, before_, placed_;
  std::vector<std::string> logos_;
  bool had_folder_ = false;
};

void judge_imports(const doctor::PythonInstall& python, KernelInstalled& out) {
  doctor::Environment target;
  target.python = python.facts;
  target.torch = python.torch;
  for (const KernelImport& item : out.answer.imports) {
    if (item.error.empty()) continue;
    const doctor::Explanation explanation = doctor::explain(item.error, &target);
    if (explanation.verdicts.empty())
      out.verdicts.push_back(
          make_verdict({.code = "IMPORT_FAILED", .subject = item.module, .message = support::printable(item.error)}));
    else
      out.verdicts.push_back(explanation.verdicts[0]);
    out.verdicts.back().subject = item.module;
    out.verdicts.back().severity = doctor::Severity::kError;  // it was seen to fail
  }
}

}  // namespace

KernelInstalled install_kernel(const doctor::Outlook& outlook, const KernelRequest& request) {
  check_request(request);
  const doctor::PythonInstall python = python_of(outlook, request.python);
  KernelInstalled out;
  out.python = python.program;
  out.name = support::lower(request.name);
  const std::string jupyter = request.prefix.empty()
                                  ? user_jupyter_folder(outlook)
                                  : support::join_path(outlook.folder, request.prefix) + "/share/jupyter";
  if (jupyter.empty()) throw std::runtime_error("HOME is not set, so --prefix DIR is wanted");
  out.folder = jupyter + "/kernels/" + out.name;

  constexpr double kProbeSeconds = 180;  // --timeout is for the kernel's start alone
  const Said probe_said = ask({python.program, "-c", kProbeProgram}, kProbeSeconds);
  if (probe_said.answer.empty())
    throw std::runtime_error("--python " + python.program + " cannot be asked: " + probe_said.why_not);
  const KernelProbe probe = parse_kernel_probe(probe_said.answer);
  if (!probe.has_ipykernel) {
    out.verdicts.push_back(
        make_verdict({.code = "JUPYTER_NO_IPYKERNEL",
                      .subject = python.program,
                      .message = support::printable(probe.error),
                      .cause = "A Python becomes a kernel of Jupyter by the package ipykernel, which is not "
                               "installed in this one. Nothing was written.",
                      .fix = ipykernel_command(outlook, python)}));
    return out;
  }

  Registration registration(out.folder, kernel_json_text(probe.spec, request.display_name, request.env));
  out.placed = registration.write(request, probe.resources);
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f", request.limit_seconds);
  Said said;
  try {
    const TemporaryFolder runtime(std::filesystem::temp_directory_path().string(), "mica-kernel-");
    said = ask({python.program, "-c", kStartProgram, jupyter + "/kernels", out.name, seconds, runtime.path()},
               request.limit_seconds + 10);
    out.answer = said.answer.empty() ? KernelAnswer{false, said.why_not} : parse_kernel_answer(said.answer);
  } catch (...) {
    registration.take_back();
    throw;
  }
  if (!out.answer.started) {
    registration.take_back();
    out.placed.clear();
    std::vector<std::string> evidence;
    for (const std::string& line : out.answer.words) evidence.push_back(support::printable(line));
    out.verdicts.push_back(make_verdict(
        {.code = "JUPYTER_KERNEL_DEAD",
         .subject = out.name,
         .message = support::printable(out.answer.error),
         .cause = "The kernel was registered and started, and did not answer. The registration was taken back.",
         .fix =
             "its own last lines are below; mica doctor --python " + python.program + " judges what is installed there",
         .evidence = evidence}));
    return out;
  }
  judge_imports(python, out);
  return out;
}

}  // namespace jupyter
