// SPDX-License-Identifier: Apache-2.0
#include "builder/run/source.h"

#include <algorithm>
#include <filesystem>
#include <regex>
#include <stdexcept>
#include <vector>

#include "builder/run/project_name.h"
#include "builder/shelf/shelf_files.h"
#include "support/durable.h"
#include "support/package_name.h"
#include "support/sha256.h"
#include "support/text.h"

namespace builder {

using namespace support;

namespace {

namespace fs = std::filesystem;

constexpr const char* kArchiveEnds[] = {".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip"};

bool is_left_over(const std::string& name) {
  return name == ".git" || name == "build" || name == "dist" || name == "__pycache__" || name == ".venv" ||
         name.ends_with(".egg-info");
}

// `mica build .` hands out into the project's own folder; the same command again is for the same source.
bool is_handed_out(const std::string& name) { return name.ends_with(".whl") || name.ends_with(".whl.build.json"); }

// Relative paths of all files, sorted. Links count as files, whatever they lead to.
std::vector<std::string> source_files(const std::string& folder, const std::string& work) {
  std::vector<std::string> out;
  fs::recursive_directory_iterator entry(folder, fs::directory_options::skip_permission_denied), end;
  for (; entry != end; ++entry) {
    const bool is_link = entry->is_symlink();
    if (!is_link && entry->is_directory()) {
      if (is_left_over(entry->path().filename().string()) || entry->path() == work) entry.disable_recursion_pending();
      continue;
    }
    if (entry.depth() == 0 && is_handed_out(entry->path().filename().string())) continue;
    if (is_link || entry->is_regular_file()) out.push_back(entry->path().lexically_relative(folder).string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

// The work folder, whether it is there yet or not, if it lies inside `folder`, whose path is canonical; else "".
std::string work_inside(const std::string& folder, const std::string& work) {
  if (work.empty()) return "";
  std::string path = fs::weakly_canonical(work).string();
  if (path.ends_with('/')) path.pop_back();  // it is not there, and was given so
  if (path == folder)
    throw std::runtime_error("--work is the source folder itself, " + folder +
                             ": builds there would be taken for source; give a folder of its own");
  return path.starts_with(folder + "/") ? path : "";
}

}  // namespace

bool parse_archive_name(std::string_view file_name, std::string* package, std::string* version) {
  std::string name = support::base_name(file_name);
  for (const char* end : kArchiveEnds) {
    if (!name.ends_with(end)) continue;
    name.resize(name.size() - std::string_view(end).size());
    const std::size_t dash = name.rfind('-');
    const bool has_version =
        dash != name.npos && dash + 1 < name.size() && name[dash + 1] >= '0' && name[dash + 1] <= '9';
    *package = normalised_package(name.substr(0, has_version ? dash : name.size()));
    *version = has_version ? name.substr(dash + 1) : "";
    return true;
  }
  return false;
}

Source parse_source(const std::string& text, const std::string& work) {
  Source out;
  out.text = text;
  std::error_code error;
  if (fs::is_directory(text, error)) {
    out.kind = SourceKind::kFolder;
    out.path = fs::canonical(text).string();
    if (!fs::exists(out.path + "/setup.py") && !fs::exists(out.path + "/pyproject.toml"))
      throw std::runtime_error(text + ": neither setup.py nor pyproject.toml is in that folder");
    const ProjectName project = read_project_name(out.path);
    out.package = project.package.empty() ? normalised_package(support::base_name(out.path)) : project.package;
    out.version = project.version;
    out.work = work_inside(out.path, work);
    out.sha256 = folder_sha256(out.path, out.work);
    return out;
  }
  if (text.ends_with(".whl"))
    throw std::runtime_error(text + ": a wheel is built already (mica doctor judges it, mica publish shares it)");
  if (parse_archive_name(text, &out.package, &out.version) || text.find('/') != text.npos || fs::exists(text, error)) {
    if (!fs::exists(text, error)) throw std::runtime_error(text + ": no such file or folder");
    if (out.package.empty() || !fs::is_regular_file(text, error))
      throw std::runtime_error(text + ": want a package, a source archive (.tar.gz, .zip) or a folder");
    out.kind = SourceKind::kArchive;
    out.path = fs::canonical(text).string();
    out.sha256 = file_sha256(out.path);
    return out;
  }
  std::smatch match;
  if (!std::regex_match(text, match, std::regex("([A-Za-z0-9][A-Za-z0-9._-]*)(==([A-Za-z0-9.!+_-]+))?")))
    throw std::runtime_error("'" + support::printable(text) +
                             "' is no package (want NAME or NAME==VERSION), no source archive and no folder");
  out.package = normalised_package(match[1].str());
  out.version = match[3].str();
  out.requirement = out.package + (out.version.empty() ? "" : "==" + out.version);
  return out;
}

std::string folder_sha256(const std::string& folder, const std::string& work) {
  support::Sha256 all;
  const auto add = [&](const std::string& text) {
    all.update({reinterpret_cast<const uint8_t*>(text.data()), text.size() + 1});  // with its final zero
  };
  for (const std::string& name : source_files(folder, work)) {
    const fs::path path = fs::path(folder) / name;
    add(name);
    add(fs::is_symlink(path) ? fs::read_symlink(path).string() : file_sha256(path.string()));
  }
  return hex(all.digest());
}

void copy_source_folder(const std::string& from, const std::string& to, const std::string& work) {
  for (const std::string& name : source_files(from, work)) {
    const fs::path target = fs::path(to) / name;
    fs::create_directories(target.parent_path());
    fs::copy(fs::path(from) / name, target, fs::copy_options::copy_symlinks | fs::copy_options::overwrite_existing);
  }
}

int count_cuda_files(const std::string& folder, const std::string& work) {
  int count = 0;
  for (const std::string& name : source_files(folder, work)) {
    if (!name.ends_with(".cu")) continue;
    bool foreign = false;
    const std::vector<std::string> parts = support::split(name, '/');
    for (std::size_t i = 0; i + 1 < parts.size(); ++i)
      foreign |= parts[i] == "cutlass" || parts[i].starts_with("third") || parts[i].starts_with("test") ||
                 parts[i].starts_with("example") || parts[i].starts_with("benchmark");
    count += !foreign;
  }
  return count;
}

}  // namespace builder
