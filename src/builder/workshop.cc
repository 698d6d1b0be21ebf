// SPDX-License-Identifier: Apache-2.0
#include "builder/workshop.h"

#include <filesystem>
#include <stdexcept>

#include "builder/build_json.h"
#include "builder/durable.h"
#include "builder_driver.h"
#include "doctor/bytes.h"
#include "doctor/explain.h"
#include "doctor/text.h"

namespace builder {
namespace {

namespace fs = std::filesystem;

constexpr double kShortSeconds = 300, kPipSeconds = 1800;

// The line of a program's errors that tells most.
std::string telling_line(const std::string& text) {
  const std::string line = doctor::likely_error_line(text);
  if (!line.empty()) return doctor::printable(line);
  const std::vector<std::string> lines = doctor::split(std::string(doctor::trimmed(text)), '\n');
  return doctor::printable(lines.back());
}

std::string run_or_throw(const Command& command, double limit_seconds, const std::string& what) {
  std::string output, errors;
  const Ended ended = run_collected(command, limit_seconds, &output, &errors);
  if (ended.stopped) throw std::runtime_error(what + ": stopped");
  if (!ended.ok()) throw std::runtime_error(what + ": " + telling_line(errors.empty() ? output : errors));
  return output;
}

// Distribution names of modules that are spelled otherwise are the same here: setuptools, wheel, packaging, ninja.
std::string requirement_of(const std::string& module, const std::string& torch_version) {
  // NOTE: torch before 2.5 imports pkg_resources, which later setuptools do not have.
  if (module == "setuptools" && doctor::parse_version(torch_version) < doctor::parse_version("2.5"))
    return "setuptools<80";
  return module;
}

}  // namespace

std::string Workshop::source_root() const {
  std::error_code error;
  const std::string mark = path("source.root");
  if (!fs::exists(mark, error)) return "";
  return std::string(doctor::trimmed(doctor::read_text_file(mark)));
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
  prepend("PATH", doctor::folder_name(python));
  prepend("PATH", path("tools") + "/bin");
  if (plan.cuda && !plan.toolkit.folder.empty()) prepend("PATH", plan.toolkit.folder + "/bin");
  prepend("PYTHONPATH", path("tools"));
  for (const Setting& setting : plan.settings) {
    if (setting.removed)
      out.erase(setting.name);
    else
      out[setting.name] = setting.value;
  }
  out["PYTHONUNBUFFERED"] = "1";
  out.erase("PYTHONHOME");
  return out;
}

Command Workshop::driver(std::vector<std::string> words, const Plan& plan) const {
  words.insert(words.begin(), {python, path("driver.py")});
  return {std::move(words), variables(plan), folder};
}

void Workshop::bring_source(const Source& source, const Plan& plan) const {
  if (!source_root().empty()) return;
  const std::string into = path("source");
  fs::remove_all(into);  // of a start that was interrupted here
  make_folders(into);
  std::string root = into;
  if (source.kind == SourceKind::kFolder) {
    copy_source_folder(source.path, into);
  } else {
    const std::string output =
        run_or_throw(driver({"unpack", source.path, into}, plan), kShortSeconds, "cannot unpack " + source.path);
    root = std::string(doctor::trimmed(output));
  }
  replace_file(path("source.root"), root + "\n");
}

std::vector<std::string> Workshop::bring_tools(const Plan& plan, const std::string& torch_version) const {
  const auto probe = [&] {
    std::vector<std::string> words = {"probe", source_root().empty() ? "-" : source_root()};
    for (const char* module : plan.recipe->imports) words.emplace_back(module);
    const Probe answer = parse_probe(run_or_throw(driver(words, plan), kShortSeconds, python + " does not start"));
    if (!answer.understood) throw std::runtime_error(python + " gives no answer that makes sense");
    std::vector<std::string> missing;
    for (const auto& [module, there] : answer.modules)
      if (module == "ninja" ? answer.ninja.empty() : !there) missing.push_back(requirement_of(module, torch_version));
    for (const std::string& requirement : answer.requires_) missing.push_back(requirement);
    return missing;
  };
  const std::vector<std::string> missing = probe();
  if (missing.empty()) return {};
  Command install = driver({}, plan);
  install.words = {python,       "-m",        "pip",      "install",     "--disable-pip-version-check",
                   "--no-input", "--no-deps", "--target", path("tools"), "--upgrade"};
  install.words.insert(install.words.end(), missing.begin(), missing.end());
  std::string ignored;
  Command ask = install;
  ask.words = {python, "-m", "pip", "--version"};
  if (!run_collected(ask, kShortSeconds, &ignored, &ignored).ok()) {
    // A Python without pip (uv makes such environments): one of its own, with the same version.
    const std::string own = path("pip");
    Command make = install;
    make.words = {python, "-m", "venv", own};
    run_or_throw(make, kShortSeconds, "this Python has no pip, and no environment with one can be made");
    install.words[0] = own + "/bin/python";
  }
  run_or_throw(install, kPipSeconds, "cannot fetch " + doctor::joined(missing, ", ") + ", which setup.py imports");
  const std::vector<std::string> still = probe();
  if (!still.empty())
    throw std::runtime_error("setup.py needs " + doctor::joined(still, ", ") + ", which cannot be had");
  return missing;
}

std::string fetch_package(const Source& source, const Workshop& workshop, const Plan& plan, const std::string& into) {
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
  Command download = workshop.driver({}, plan);
  // NOTE: pip runs setup.py for the metadata, in this environment and not in an empty one of its own.
  download.words = {workshop.python,
                    "-m",
                    "pip",
                    "download",
                    "--disable-pip-version-check",
                    "--no-input",
                    "--no-deps",
                    "--no-build-isolation",
                    "--no-binary",
                    ":all:",
                    "--dest",
                    into,
                    source.requirement};
  try {
    run_or_throw(download, kPipSeconds, "cannot fetch the source of " + source.requirement);
  } catch (const std::runtime_error&) {
    if (fetched().empty()) throw;
  }
  const std::string path = fetched();
  if (path.empty()) throw std::runtime_error("the index has no source archive of " + source.requirement);
  return path;
}

}  // namespace builder
