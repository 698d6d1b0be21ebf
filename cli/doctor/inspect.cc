// SPDX-License-Identifier: Apache-2.0
// `mica inspect`: what a wheel, a shared library, a cubin, a folder or an installed package is, and whether it agrees
// with itself.
#include "doctor/read/inspect.h"

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/doctor/judging.h"
#include "cli/process.h"
#include "cli/verbs.h"
#include "doctor/judge/judge.h"
#include "doctor/report/describe.h"
#include "doctor/report/inspection_json.h"
#include "doctor/system/package.h"
#include "doctor/verdict/verdict_json.h"
#include "support/package_name.h"
#include "support/text.h"

namespace cli {
namespace {

struct Options {
  std::vector<std::string> files;
  std::string python;
  bool json = false;
  bool all = false;
};

class Inspector {
 public:
  explicit Inspector(const Options& options) : options_(options), outlook_(doctor::outlook_here()) {}

  doctor::Inspection inspect(const std::string& given) {
    ProgressLine progress;
    if (const auto package = package_of(given)) return inspect_package(outlook_.files, *package, progress.callback());
    return doctor::inspect(given, progress.callback());
  }

 private:
  // What is no file is a name; a folder may be a package's.
  std::optional<doctor::InstalledPackage> package_of(const std::string& given) {
    const std::string path = support::join_path(outlook_.folder, given);
    if (access(given.c_str(), F_OK) == 0) return doctor::package_at(outlook_.files, path);
    if (!may_be_package(given)) return std::nullopt;
    if (!survey_) survey_ = doctor::survey(outlook_);
    const doctor::PythonInstall* python = wanted_python(*survey_, options_.python);
    const auto* package = python ? python->package(support::normalised_package(given)) : nullptr;
    if (!package) throw no_such_package(given, python);
    return *package;
  }

  const Options& options_;
  doctor::Outlook outlook_;
  std::optional<doctor::Survey> survey_;
};

int run(const Options& options) {
  nlohmann::json files = nlohmann::json::array();
  std::vector<doctor::Verdict> verdicts;
  const bool colour = stdout_is_terminal();
  Inspector inspector(options);
  for (const std::string& given : options.files) {
    try {
      const doctor::Inspection inspection = inspector.inspect(given);
      const std::vector<doctor::Verdict> found = doctor::judge(inspection);
      verdicts.insert(verdicts.end(), found.begin(), found.end());
      if (options.json) {
        files.push_back(doctor::as_json(inspection));
        continue;
      }
      std::printf("%s", doctor::describe(inspection, options.all).c_str());
      for (const doctor::Verdict& verdict : found) std::printf("%s", doctor::verdict_text(verdict, colour).c_str());
      if (options.files.size() > 1) std::printf("\n");
    } catch (const support::ReadError& e) {
      verdicts.push_back(unreadable(given, e));
      if (options.json)
        files.push_back({{"path", given}, {"error", e.what()}});
      else
        std::fprintf(stderr, "mica inspect: %s\n", support::printable(e.what(), 2000).c_str());
    }
  }
  const ExitCode code = exit_code(verdicts);
  if (options.json)
    std::printf("%s\n",
                nlohmann::json{{"files", files}, {"verdicts", doctor::as_json(verdicts)}, {"exit_code", int(code)}}
                    .dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
                    .c_str());
  return code;
}

}  // namespace

Verb inspect_verb(Command& app) {
  auto options = std::make_shared<Options>();
  Command* verb = app.add_subcommand("inspect", "What a wheel or a compiled file is; nothing of it is executed");
  verb->add_option("file", options->files, "wheels, shared libraries, cubins, fatbins, folders, installed packages")
      ->required();
  verb->add_option("--python", options->python, "look for packages by name in this Python");
  verb->add_flag("--json", options->json, "print JSON: files, and an array of verdicts");
  verb->add_flag("--all", options->all, "list every binary and every kind of GPU code container");
  verb->footer(
      "Exit code: 0 it agrees with itself, 1 it does not, 2 it cannot be read.\n"
      "Examples:\n"
      "  mica inspect flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl\n"
      "  mica inspect build/lib.linux-x86_64/flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so\n"
      "  mica inspect flash-attn --python ~/venv            an installed package, by its name\n"
      "  mica inspect --json .venv/lib/python3.12/site-packages/flash_attn");
  return {verb, [options] { return run(*options); }};
}

}  // namespace cli
