// SPDX-License-Identifier: Apache-2.0
// `mica explain`: the first cause of a failure, from the text that it left.
#include "doctor/explain/explain.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/doctor/judging.h"
#include "cli/verbs.h"
#include "doctor/explain/log_text.h"
#include "doctor/system/environment_json.h"
#include "doctor/system/survey.h"
#include "doctor/verdict/verdict_json.h"

namespace cli {
namespace {

constexpr std::size_t kMostBytes = 64u << 20;  // that are read, of a file or of a pipe

struct Options {
  std::vector<std::string> words;
  std::string file, python, target;
  bool elsewhere = false, json = false;
};

// At most kMostBytes: of a longer file its beginning and its end, of a longer pipe its beginning.
std::string read_stream(std::FILE* stream, const std::string& name) {
  std::string text;
  char buffer[1 << 16];
  const auto read_up_to = [&](std::size_t most) {
    while (text.size() < most) {
      const std::size_t n = std::fread(buffer, 1, std::min(sizeof buffer, most - text.size()), stream);
      if (n == 0) return;
      text.append(buffer, n);
    }
  };
  const long half = kMostBytes / 2;
  const bool is_seekable = std::fseek(stream, 0, SEEK_END) == 0;
  const long size = is_seekable ? std::ftell(stream) : -1;
  std::clearerr(stream);
  if (is_seekable) std::rewind(stream);
  if (size > 2 * half) {
    read_up_to(half);
    if (std::fseek(stream, size - half, SEEK_SET) != 0)
      throw std::runtime_error(name + " cannot be read: " + std::strerror(errno));
  }
  read_up_to(kMostBytes);
  if (std::ferror(stream)) throw std::runtime_error(name + " cannot be read: " + std::strerror(errno));
  if (size > 2 * half)
    std::fprintf(stderr, "%s has %ld MB; its first and its last 32 MB were read\n", name.c_str(), size >> 20);
  else if (text.size() == kMostBytes)
    std::fprintf(stderr, "%s goes on; its first 64 MB were read\n", name.c_str());
  return text;
}

std::string text_of(const Options& options) {
  if (!options.words.empty()) {
    std::string text;
    for (const std::string& word : options.words) text += (text.empty() ? "" : " ") + word;
    return text;
  }
  if (options.file.empty() || options.file == "-") {
    if (isatty(STDIN_FILENO)) std::fprintf(stderr, "paste the text, then press Enter and Ctrl-D\n");
    return read_stream(stdin, "standard input");
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(options.file.c_str(), "rb"), std::fclose);
  if (!file) throw std::runtime_error("--file " + options.file + " cannot be read: " + std::strerror(errno));
  return read_stream(file.get(), "--file " + options.file);
}

doctor::Verdict not_known(const std::string& text) {
  const std::string line = doctor::likely_error_line(text);
  return doctor::make_verdict(
      {.code = "NOT_KNOWN",
       .message = "no known failure is in this text",
       .cause = "It is one that mica has no entry for, or the lines that name the cause are missing.",
       .fix = "collect the whole output, from the first line on, and try again:\n"
              "for an import: python -X faulthandler -c 'import torch, flash_attn' 2>&1 | mica explain\n"
              "for a build: pip install -v --no-build-isolation PACKAGE 2>&1 | tee build.log; mica explain --file "
              "build.log\n"
              "then report it with that text and with `mica doctor --json`",
       .evidence = line.empty() ? std::vector<std::string>{}
                                : std::vector<std::string>{"the line most like an error: " + line}});
}

// Where the text comes from: here unless said otherwise.
std::optional<doctor::Environment> target_of(const Options& options) {
  if (options.elsewhere) return std::nullopt;
  if (!options.target.empty()) return doctor::read_environment(options.target);
  doctor::Survey survey = doctor::survey(doctor::outlook_here());
  const doctor::PythonInstall* python = wanted_python(survey, options.python);
  doctor::Environment target = environment_of(survey, python);
  // Advice names the program that people start; a virtual environment's is a link to another one's.
  if (python) target.python->executable = python->program;
  return target;
}

int run(const Options& options) {
  const std::string text = text_of(options);
  const std::optional<doctor::Environment> target = target_of(options);
  // A target that is named is where it happened; else it may have happened anywhere.
  const bool is_named = !options.target.empty() || !options.python.empty();
  doctor::Explanation explanation = !target    ? doctor::explain(text)
                                    : is_named ? doctor::explain(text, &*target)
                                               : doctor::explain_pasted(text, *target);
  const bool is_known = !explanation.verdicts.empty();
  if (!is_known && !explanation.success_seen) explanation.verdicts.push_back(not_known(text));
  const bool is_success = explanation.success_seen && !explanation.cause_found;
  const int code = explanation.cause_found ? kFailed : is_success ? kOk : kCannotTell;
  if (options.json) {
    const nlohmann::json out = {{"verdicts", doctor::as_json(explanation.verdicts)},
                                {"cause_found", explanation.cause_found},
                                {"success_seen", explanation.success_seen},
                                {"exit_code", code}};
    std::printf("%s\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    const bool colour = isatty(STDOUT_FILENO);
    for (std::size_t i = 0; i < explanation.verdicts.size(); ++i) {
      if (i == 1) std::printf("\nalso in this text:\n");
      std::printf("%s", doctor::verdict_text(explanation.verdicts[i], colour).c_str());
    }
    if (is_success) std::printf("the text ends well: there is nothing to explain\n");
  }
  return code;
}

}  // namespace

Verb explain_verb(Command& app) {
  auto options = std::make_shared<Options>();
  Command* verb = app.add_subcommand("explain", "Why a build or an import failed, from its output");
  verb->add_option("text", options->words, "the error; without it, standard input is read");
  verb->add_option("--file", options->file, "a log");
  verb->add_option("--python", options->python, "the Python that it happened in, for the advice");
  verb->add_option("--target", options->target,
                   "the machine that it happened on, as mica doctor --export described it");
  verb->add_flag("--elsewhere", options->elsewhere, "it happened on another machine, of which nothing is known");
  verb->add_flag("--json", options->json, "print JSON");
  verb->footer(
      "Examples:\n"
      "  python -c 'import flash_attn' 2>&1 | mica explain\n"
      "  pip install flash-attn --no-build-isolation 2>&1 | tee build.log; mica explain --file build.log\n"
      "  mica explain \"undefined symbol: _ZN3c104cuda9SetDeviceEa\"\n"
      "Exit codes: 0 the text ends well; 1 it holds a known failure; 2 none that is known.");
  return {verb, [options] { return run(*options); }};
}

}  // namespace cli
