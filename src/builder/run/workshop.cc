// SPDX-License-Identifier: Apache-2.0
#include "builder/run/workshop.h"

#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include "builder/run/build_json.h"
#include "builder_driver.h"
#include "doctor/explain/explain.h"
#include "support/bytes.h"
#include "support/durable.h"
#include "support/temporary_folder.h"
#include "support/text.h"

namespace builder {

using namespace support;

namespace {

namespace fs = std::filesystem;

constexpr double kShortSeconds = 300;

// The line of a program's errors that tells most.
std::string telling_line(const std::string& text) {
  const std::string line = doctor::likely_error_line(text);
  if (!line.empty()) return support::printable(line);
  const std::vector<std::string> lines = support::split(std::string(support::trimmed(text)), '\n');
  return support::printable(lines.back());
}

// Distribution names of modules that are spelled otherwise are the same here: setuptools, wheel, packaging, ninja.
std::string requirement_of(const std::string& module, const std::string& torch_version) {
  // NOTE: torch before 2.5 imports pkg_resources, which later setuptools do not have.
  if (module == "setuptools" && support::parse_version(torch_version) < support::parse_version("2.5"))
    return "setuptools<80";
  return module;
}

}  // namespace

std::string run_or_throw(const Command& command, double limit_seconds, const std::string& what) {
  std::string output, errors;
  const Ended ended = run_collected(command, limit_seconds, &output, &errors);
  if (ended.stopped) throw std::runtime_error(what + ": stopped");
  if (!ended.ok()) throw std::runtime_error(what + ": " + telling_line(errors.empty() ? output : errors));
  return output;
}

std::string Workshop::source_root() const {
  std::error_code error;
  const std::string mark = path("source.root");
  if (!fs::exists(mark, error)) return "";
  return std::string(support::trimmed(support::read_text_file(mark)));
}

void Workshop::open() const {
  make_folders(folder);
  replace_file(path("driver.py"), kDriverSource);
}

Variables Workshop::variables(const Plan& plan) const {
  Variables out = current_environment();
  const auto prepend = [&](const char* name, const std::string& value) {
    out[name] = value + (out[name].empty() ? "" : ":" + out[name]);
  };
  prepend("PATH", support::folder_name(python));
  prepend("PATH", path("tools") + "/bin");
  if (plan.cuda && !plan.toolkit.folder.empty()) prepend("PATH", plan.toolkit.folder + "/bin");
  prepend("PYTHONPATH", path("tools"));
  for (const Setting& setting : plan.settings) {
    if (setting.removed)
      out.erase(setting.name);
    else
      out[setting.name] = setting.value;
  }
  out.erase("PYTHONHOME");  // also where nothing is planned yet
  return out;
}

Command Workshop::driver(std::vector<std::string> words, const Plan& plan) const {
  words.insert(words.begin(), {python, path("driver.py")});
  return {std::move(words), variables(plan), folder};
}

void Workshop::bring_source(const Source& source, const Plan& plan) const {
  if (!source_root().empty()) return;
  // Aside: the same command may have been given twice at the same moment (srun on several nodes), and who builds is
  // settled only when the source has been looked at.
  const TemporaryFolder aside(folder, "unpacking.");
  const std::string top = fs::canonical(aside.path()).string();
  std::string root = top;
  if (source.kind == SourceKind::kFolder) {
    copy_source_folder(source.path, top, source.work);
  } else {
    const std::string output =
        run_or_throw(driver({"unpack", source.path, top}, plan), kShortSeconds, "cannot unpack " + source.path);
    root = std::string(support::trimmed(output));
    if (!root.starts_with(top)) throw std::runtime_error("cannot unpack " + source.path + ": " + printable(root));
  }
  const std::string into = path("source");
  std::error_code taken;
  fs::rename(top, into, taken);
  if (taken) {
    for (int tenths = 0; tenths < 50 && source_root().empty(); ++tenths)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (!source_root().empty()) return;  // another start was first
    fs::remove_all(into);                // of a start that was killed before the next line
    fs::rename(top, into);
  }
  replace_file(path("source.root"), fs::canonical(into).string() + root.substr(top.size()) + "\n");
}

Command Workshop::pip(std::vector<std::string> words, const Plan& plan, const doctor::TorchFacts& torch) const {
  Command command = driver({}, plan);
  command.words = {python, "-m", "pip", "--version"};
  std::string ignored, program = python;
  if (!run_collected(command, kShortSeconds, &ignored, &ignored).ok()) {
    const std::string own = path("pip");
    program = own + "/bin/python";
    command.words = {python, "-m", "venv", own};
    run_or_throw(command, kShortSeconds, "this Python has no pip, and no environment with one can be made");
    command.variables["PYTHONPATH"] += ":" + support::folder_name(torch.folder);  // setup.py imports torch
  }
  words.insert(words.begin(), {program, "-m", "pip"});
  words.insert(words.begin() + 4, {"--disable-pip-version-check", "--no-input", "--no-deps"});
  command.words = std::move(words);
  return command;
}

Tools Workshop::look_at_tools(const Plan& plan, const doctor::TorchFacts& torch) const {
  std::vector<std::string> words = {"probe", source_root().empty() ? "-" : source_root()};
  for (const char* module : plan.recipe->imports) words.emplace_back(module);
  const Probe answer = parse_probe(run_or_throw(driver(words, plan), kShortSeconds, python + " does not start"));
  if (!answer.understood) throw std::runtime_error(python + " gives no answer that makes sense");
  Tools out;
  for (const auto& [module, version] : answer.modules) {
    if (version.empty())
      out.missing.push_back(requirement_of(module, torch.version));
    else
      out.versions[module] = version;
  }
  out.missing.insert(out.missing.end(), answer.requires_.begin(), answer.requires_.end());
  return out;
}

Tools Workshop::bring_tools(const Plan& plan, const doctor::TorchFacts& torch) const {
  const Tools before = look_at_tools(plan, torch);
  const std::vector<std::string>& missing = before.missing;
  if (missing.empty()) return before;
  Command install = pip({"install", "--upgrade", "--target", path("tools")}, plan, torch);
  install.words.insert(install.words.end(), missing.begin(), missing.end());
  std::error_code error;
  bool is_there = false;
  if (!wheels.empty() && fs::exists(wheels, error)) {
    Command without_network = install;
    without_network.words.insert(without_network.words.end(), {"--no-index", "--find-links", wheels});
    std::string ignored;
    is_there = run_collected(without_network, kPipFetchSeconds, &ignored, &ignored).ok();
  }
  const std::string names = support::joined(missing, ", ");
  if (!is_there)
    run_or_throw(
        install, kPipFetchSeconds,
        "cannot fetch " + names + ", which setup.py imports (without a network: put wheels into " + wheels + ")");
  const Tools after = look_at_tools(plan, torch);
  if (!after.missing.empty())
    throw std::runtime_error("setup.py needs " + support::joined(after.missing, ", ") + ", which cannot be had");
  return {missing, after.versions};
}

void Workshop::keep_tools(const Plan& plan, const doctor::TorchFacts& torch) const {
  const std::vector<std::string> missing = look_at_tools(plan, torch).missing;
  if (missing.empty()) return;
  Command keep = pip({"wheel", "--wheel-dir", wheels}, plan, torch);
  keep.words.insert(keep.words.end(), missing.begin(), missing.end());
  run_or_throw(keep, kPipFetchSeconds, "cannot fetch " + support::joined(missing, ", ") + ", which setup.py imports");
}

std::string fetch_package(const Source& source, const Workshop& workshop, const Plan& plan,
                          const doctor::TorchFacts& torch, const std::string& into) {
  make_folders(into);
  const auto fetched = [&]() -> std::string {
    std::string newest, package, version;
    fs::file_time_type newest_time{};
    for (const fs::directory_entry& entry : fs::directory_iterator(into)) {
      const std::string path = entry.path().string();
      if (!parse_archive_name(path, &package, &version) || package != source.package) continue;
      if (!source.version.empty() && version != source.version) continue;
      if (newest.empty() || entry.last_write_time() > newest_time) newest = path;
      newest_time = std::max(newest_time, entry.last_write_time());
    }
    return newest;
  };
  // A version that is named and here already needs no network.
  if (!source.version.empty())
    if (const std::string path = fetched(); !path.empty()) return path;
  // NOTE: pip runs setup.py for the metadata, in this environment and not in an empty one of its own.
  Command download = workshop.pip(
      {"download", "--no-build-isolation", "--no-binary", ":all:", "--dest", into, source.requirement}, plan, torch);
  if (*plan.recipe->skip) download.variables[plan.recipe->skip] = "TRUE";  // metadata needs no nvcc
  try {
    run_or_throw(download, kPipFetchSeconds, "cannot fetch the source of " + source.requirement);
  } catch (const std::runtime_error&) {
    if (fetched().empty()) throw;
  }
  const std::string path = fetched();
  if (path.empty()) throw std::runtime_error("the index has no source archive of " + source.requirement);
  return path;
}

}  // namespace builder
