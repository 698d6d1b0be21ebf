// SPDX-License-Identifier: Apache-2.0
// `mica inspect`: what a wheel, a shared library, a cubin or a folder is, and whether it agrees with itself.
#include "doctor/inspect.h"

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/process.h"
#include "cli/verbs.h"
#include "doctor/describe.h"
#include "doctor/json.h"

namespace cli {
namespace {

struct Options {
  std::vector<std::string> files;
  bool json = false;
  bool all = false;
};

// A line on the terminal that is written over, for what takes longer than a blink.
class ProgressLine {
 public:
  doctor::Progress callback() {
    if (!isatty(STDERR_FILENO)) return {};
    return [this](std::string_view what, uint64_t done, uint64_t total) {
      const double now = now_seconds();
      if (now - begun_ < 0.5 || now - last_ < 0.1) return;
      last_ = now;
      shown_ = true;
      std::fprintf(stderr, "\r\033[K%3.0f%%  %.60s", total > 0 ? 100.0 * double(done) / double(total) : 0.0,
                   std::string(what).c_str());
    };
  }
  void clear() {
    if (shown_) std::fprintf(stderr, "\r\033[K");
    shown_ = false;
  }

 private:
  double begun_ = now_seconds(), last_ = 0;
  bool shown_ = false;
};

int run(const Options& options) {
  nlohmann::json files = nlohmann::json::array(), verdicts = nlohmann::json::array();
  int code = kOk;
  const bool colour = stdout_is_terminal();
  for (const std::string& path : options.files) {
    ProgressLine progress;
    try {
      const doctor::Inspection inspection = doctor::inspect(path, progress.callback());
      progress.clear();
      const std::vector<doctor::Verdict> found = doctor::judge(inspection);
      code = std::max(code, doctor::exit_code_of(found) ? int(kFailed) : int(kOk));
      if (options.json) {
        files.push_back(doctor::as_json(inspection));
        for (const doctor::Verdict& verdict : found) verdicts.push_back(doctor::as_json(verdict));
      } else {
        std::printf("%s", doctor::describe(inspection, options.all).c_str());
        for (const doctor::Verdict& verdict : found) std::printf("%s", doctor::verdict_text(verdict, colour).c_str());
        if (options.files.size() > 1) std::printf("\n");
      }
    } catch (const doctor::ReadError& e) {
      progress.clear();
      std::fprintf(stderr, "mica inspect: %s\n", e.what());
      code = kCannotTell;
      if (options.json) files.push_back({{"path", path}, {"error", e.what()}});
    }
  }
  if (options.json)
    std::printf("%s\n", nlohmann::json{{"files", files}, {"verdicts", verdicts}, {"exit_code", code}}
                            .dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
                            .c_str());
  return code;
}

}  // namespace

Verb inspect_verb(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("inspect", "What a wheel or a compiled file is; nothing of it is executed");
  verb->add_option("file", options->files, "wheels, shared libraries, cubins, fatbins, folders")->required();
  verb->add_flag("--json", options->json, "print JSON: files, and an array of verdicts");
  verb->add_flag("--all", options->all, "list every binary and every kind of GPU code container");
  verb->footer(
      "Exit code: 0 it agrees with itself, 1 it does not, 2 it cannot be read.\n"
      "Examples:\n"
      "  mica inspect flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl\n"
      "  mica inspect build/lib.linux-x86_64/flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so\n"
      "  mica inspect --json .venv/lib/python3.12/site-packages/flash_attn");
  return {verb, [options] { return run(*options); }};
}

}  // namespace cli
