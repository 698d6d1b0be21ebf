// SPDX-License-Identifier: Apache-2.0
// `mica pick`: which wheel of flash-attn fits a Python, a torch and a machine.
#include "doctor/judge/pick.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/verbs.h"
#include "doctor/facts/mangled.h"
#include "doctor/judge/attention_wheel.h"
#include "doctor/judge/judge.h"
#include "doctor/read/inspect.h"
#include "doctor/system/environment_json.h"
#include "doctor/system/python_env.h"
#include "doctor/system/survey.h"
#include "doctor/tables/published_wheels.h"
#include "doctor/verdict/verdict_json.h"
#include "support/package_name.h"
#include "support/text.h"

namespace cli {
namespace {

struct Options {
  std::vector<std::string> places;   // wheels, folders, lists of names
  std::vector<std::string> indexes;  // saved pages with more names
  std::string python, torch, cuda, abi, machine, glibc, target;
  bool json = false;
};

constexpr std::size_t kMostNames = 100'000, kMostListBytes = std::size_t(64) << 20;

void add_name(const std::string& name, std::vector<doctor::AttentionWheel>& wheels) {
  doctor::AttentionWheel wheel;
  if (doctor::parse_attention_wheel(name, wheel) && wheels.size() < kMostNames) wheels.push_back(std::move(wheel));
}

// Names may stand anywhere in the lines: a list, the output of ls, a page of links.
void add_list(std::istream& list, const std::string& name, std::vector<doctor::AttentionWheel>& wheels) {
  std::string text;
  char buffer[1 << 16];
  while (list.read(buffer, sizeof buffer), list.gcount() > 0) {
    text.append(buffer, std::size_t(list.gcount()));
    if (text.size() > kMostListBytes) throw std::runtime_error(name + " has more than 64 MiB: no list of file names");
  }
  if (list.bad()) throw std::runtime_error(name + " cannot be read: want a list of file names, a folder or a wheel");
  std::replace_if(
      text.begin(), text.end(), [](char c) { return std::string_view("\"'<>(),;").find(c) != std::string_view::npos; },
      ' ');
  std::istringstream words(text);
  for (std::string word; words >> word;) add_name(word, wheels);
}

// The package itself, by its name: the published ones.
bool is_package(const std::string& place) {
  const std::string name = support::normalised_package(place);
  return (name == "flash-attn" || name == "flash-attn-3" || name == "flash-attention") &&
         access(place.c_str(), F_OK) != 0;
}

// A file at hand is judged by its symbols, for the environment that is here.
void try_files(const doctor::Environment& here, std::vector<doctor::AttentionWheel>& wheels) {
  for (doctor::AttentionWheel& wheel : wheels) {
    if (!wheel.package.starts_with("flash-attn") || wheel.pretender || access(wheel.file.c_str(), R_OK) != 0) continue;
    try {
      std::vector<doctor::Verdict> verdicts = judge(doctor::inspect(wheel.file), here);
      doctor::keep_to_the_import(verdicts);
      wheel.tried = doctor::AttentionWheel::Tried::kLoads;
      for (const doctor::Verdict& verdict : verdicts)
        if (verdict.severity == doctor::Severity::kError && wheel.failure.empty()) {
          wheel.tried = doctor::AttentionWheel::Tried::kFails;
          wheel.failure = verdict.code.text() + ": " + verdict.message;
        }
    } catch (const support::ReadError&) {
      // Left to its name.
    }
  }
}

std::vector<doctor::AttentionWheel> wheels_of(const Options& options) {
  namespace fs = std::filesystem;
  std::vector<doctor::AttentionWheel> wheels;
  if (options.places.empty()) wheels = doctor::published_wheels();
  for (const std::string& index : options.indexes) {
    std::ifstream page(index);
    if (!page) throw std::runtime_error("--index is " + index + ", which cannot be read: want a saved page of links");
    const std::size_t before = wheels.size();
    add_list(page, "--index " + index, wheels);
    if (wheels.size() == before) throw std::runtime_error("--index " + index + " names no wheel");
  }
  for (const std::string& place : options.places) {
    std::error_code error;
    if (is_package(place)) {
      const bool is_third = support::normalised_package(place) == "flash-attn-3";
      const auto published = doctor::published_wheels(is_third ? "flash-attn-3" : "flash-attn");
      wheels.insert(wheels.end(), published.begin(), published.end());
    } else if (place == "-") {
      add_list(std::cin, "standard input", wheels);
    } else if (fs::is_directory(place, error)) {
      std::vector<std::string> names;
      for (const auto& entry : fs::directory_iterator(place, error)) names.push_back(entry.path().string());
      if (error) throw std::runtime_error(place + " cannot be read: " + error.message());
      std::sort(names.begin(), names.end());
      for (const std::string& name : names) add_name(name, wheels);
    } else if (place.size() > 4 && place.substr(place.size() - 4) == ".whl") {
      add_name(place, wheels);
    } else {
      std::ifstream lines(place);
      if (!lines) throw std::runtime_error(place + " cannot be read: want a list of file names, a folder or a wheel");
      add_list(lines, place, wheels);
    }
  }
  return wheels;
}

support::Version version_of(const char* flag, const std::string& text, const char* example) {
  const support::Version version = support::parse_version(text);
  if (!version.known())
    throw std::runtime_error(std::string(flag) + " is " + support::printable(text) + ", want a version such as " +
                             example);
  return version;
}

bool is_version(const std::string& text) { return support::parse_version(text).parts.size() >= 2; }

// A target of which something is described is not mixed with what is installed here.
doctor::PickTarget start_target(const Options& options, std::optional<doctor::Environment>& environment) {
  if (!options.target.empty()) {
    environment = doctor::read_environment(options.target);
    return doctor::pick_target(*environment);
  }
  doctor::PickTarget target;
  const bool is_described = !options.torch.empty() || is_version(options.python) || !options.machine.empty();
  if (is_described && !options.python.empty() && !is_version(options.python))
    throw std::runtime_error("--python is " + support::printable(options.python) +
                             ", want a version such as 3.12 beside --torch or --machine");
  if (!is_described) {
    doctor::Survey survey = doctor::survey(doctor::outlook_here());
    const doctor::PythonInstall* python =
        options.python.empty() ? default_python(survey) : find_python(survey, options.python);
    if (!options.python.empty() && !python)
      throw std::runtime_error("--python is " + options.python + ", want a version such as 3.12 or a Python's path");
    environment = environment_of(survey, python);
    target = doctor::pick_target(*environment);
    if (python) target.interpreter = python->program;
    return target;
  }
  utsname system;
  if (uname(&system) == 0) target.machine = system.machine;
  return target;
}

// As wheels have it, where another name of it was given.
std::string machine_of(const std::string& given) {
  const std::string name = support::lower(given);
  return name == "amd64" || name == "x86-64" ? "x86_64" : name == "arm64" ? "aarch64" : name;
}

void describe_by_flags(const Options& options, doctor::PickTarget& target) {
  if (!options.machine.empty()) target.machine = machine_of(options.machine);
  if (is_version(options.python)) {
    target.free_threaded = options.python.back() == 't';
    target.python = version_of("--python", options.python, "3.12");
  }
  if (!options.torch.empty()) {
    target.torch = version_of("--torch", options.torch, "2.8.0+cu128");
    target.torch_unreleased = doctor::is_unreleased(options.torch);
    target.cxx_abi = doctor::usual_cxx_abi(options.torch, target.machine);
    if (const std::size_t cu = options.torch.find("+cu"); cu != std::string::npos && options.torch.size() >= cu + 5)
      target.cuda = version_of("--torch", options.torch.substr(cu + 3, 2), "2.8.0+cu128");
    target.torch_for_cpu = options.torch.find("+cpu") != std::string::npos;
  }
  if (!options.cuda.empty()) {
    target.torch_for_cpu = options.cuda == "none";
    target.cuda = target.torch_for_cpu ? support::Version{} : version_of("--cuda", options.cuda, "12.8");
    if (target.cuda.major_part() >= 100)
      throw std::runtime_error("--cuda is " + support::printable(options.cuda) + ", want a version such as 12.8");
  }
  if (!options.glibc.empty()) target.glibc = version_of("--glibc", options.glibc, "2.35");
  if (options.abi == "TRUE" || options.abi == "1") target.cxx_abi = doctor::CxxAbi::kNew;
  if (options.abi == "FALSE" || options.abi == "0") target.cxx_abi = doctor::CxxAbi::kOld;
}

nlohmann::json target_json(const doctor::PickTarget& target) {
  const auto text = [](const support::Version& v) { return v.known() ? nlohmann::json(v.text()) : nlohmann::json(); };
  nlohmann::json abi;
  if (target.cxx_abi == doctor::CxxAbi::kNew) abi = true;
  if (target.cxx_abi == doctor::CxxAbi::kOld) abi = false;
  return {{"python", text(target.python)},
          {"free_threaded", target.free_threaded},
          {"torch", text(target.torch)},
          {"cuda", target.torch_for_cpu ? nlohmann::json("none") : text(target.cuda)},
          {"cxx11abi", abi},
          {"machine", target.machine},
          {"glibc", text(target.glibc)}};
}

nlohmann::json candidate_json(const doctor::Candidate& candidate) {
  nlohmann::json differences = nlohmann::json::array();
  for (const doctor::Difference& d : candidate.differences)
    differences.push_back({{"what", d.what}, {"wheel", d.wheel}, {"here", d.here}, {"change", d.change}});
  return {{"file", candidate.wheel.file}, {"url", candidate.wheel.url}, {"differences", differences}};
}

void print_text(const doctor::PickTarget& target, const doctor::Pick& pick) {
  const auto text = [](const support::Version& v) { return v.known() ? v.text() : std::string("not known"); };
  const std::string abi = target.cxx_abi == doctor::CxxAbi::kNew   ? "TRUE"
                          : target.cxx_abi == doctor::CxxAbi::kOld ? "FALSE"
                                                                   : "not known";
  std::printf("target  Python %s%s, torch %s, CUDA %s, cxx11abi %s, %s, glibc %s\n\n", text(target.python).c_str(),
              target.free_threaded ? "t" : "", text(target.torch).c_str(),
              target.torch_for_cpu ? "none" : text(target.cuda).c_str(), abi.c_str(),
              target.machine.empty() ? "machine not known" : target.machine.c_str(), text(target.glibc).c_str());
  for (const doctor::Verdict& verdict : pick.verdicts)
    std::printf("%s", doctor::verdict_text(verdict, isatty(STDOUT_FILENO)).c_str());
}

int run(const Options& options) {
  std::optional<doctor::Environment> environment;
  doctor::PickTarget target = start_target(options, environment);
  describe_by_flags(options, target);
  std::vector<doctor::AttentionWheel> wheels = wheels_of(options);
  if (environment) try_files(*environment, wheels);
  const doctor::Pick pick = doctor::pick(target, wheels);
  const int code = !pick.unknown.empty() ? kCannotTell : pick.fits() ? kOk : kFailed;
  if (options.json) {
    nlohmann::json out = {{"target", target_json(target)},
                          {"published_as_of", doctor::kPublishedAsOf},
                          {"unknown", pick.unknown},
                          {"match", pick.fits() ? candidate_json(pick.candidates[0]) : nlohmann::json()},
                          {"nearest", nlohmann::json::array()},
                          {"verdicts", doctor::as_json(pick.verdicts)},
                          {"exit_code", code}};
    if (!pick.fits())
      for (std::size_t i = 0; i < std::min<std::size_t>(3, pick.candidates.size()); ++i)
        out["nearest"].push_back(candidate_json(pick.candidates[i]));
    std::printf("%s\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    print_text(target, pick);
    if (options.places.empty() || std::any_of(options.places.begin(), options.places.end(), is_package))
      std::printf(
          "\nchosen from %zu published wheels: upstream's up to 2.8.3.post2 and mjun0812's, as of %s; later ones are "
          "not in this list (--index FILE adds a saved page)\n",
          wheels.size(), doctor::kPublishedAsOf);
  }
  return code;
}

}  // namespace

Verb pick_verb(Command& app) {
  auto options = std::make_shared<Options>();
  Command* verb = app.add_subcommand("pick", "Which wheel of flash-attn fits");
  verb->add_option("from", options->places,
                   "wheels, folders or lists of names (- is standard input); without it, or with flash-attn, the "
                   "published ones");
  verb->add_option("--index", options->indexes, "a saved page of links (a release, an index) whose wheels count too");
  verb->add_option("--python", options->python,
                   "a Python's path, or a version as in 3.12 (3.13t: free-threaded); without it, the "
                   "active one");
  verb->add_option("--torch", options->torch, "as in 2.8.0+cu128");
  verb->add_option("--cuda", options->cuda, "that torch was built with, as in 12.8; none: for the CPU");
  verb->add_option("--abi", options->abi, "torch's C++ ABI: TRUE is the new one")->one_of({"TRUE", "FALSE", "1", "0"});
  verb->add_option("--machine", options->machine, "x86_64 or aarch64");
  verb->add_option("--target", options->target, "a machine that mica doctor --export described");
  verb->add_option("--glibc", options->glibc, "as in 2.35");
  verb->add_flag("--json", options->json, "print JSON");
  verb->footer(
      "Examples:\n"
      "  mica pick                                        for the active Python and its torch\n"
      "  mica pick --python 3.12 --torch 2.8.0+cu128 --machine x86_64\n"
      "  mica pick /srv/wheels --python 3.11 --torch 2.9.1+cu130\n"
      "  ls *.whl | mica pick - --json\n"
      "Exit codes: 0 one fits; 1 none does, and the nearest are shown; 2 too little is known of the target.");
  return {verb, [options] { return run(*options); }};
}

}  // namespace cli
