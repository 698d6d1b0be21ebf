// SPDX-License-Identifier: Apache-2.0
#include "doctor/system/package.h"

#include <sys/stat.h>

#include <algorithm>

#include "doctor/read/metadata.h"
#include "doctor/read/record.h"
#include "doctor/read/wheel_name.h"
#include "support/package_name.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

constexpr uint64_t kMostRecordBytes = 64 << 20, kMostMetadataBytes = 4 << 20, kMostSourceBytes = 2 << 20;
constexpr std::size_t kMostSources = 5000;

std::vector<RecordRow> record_of(const Files& files, const InstalledPackage& package) {
  const std::string path = package.site + "/" + package.dist_info + "/RECORD";
  return parse_record(files.read(path, kMostRecordBytes).value_or(""), nullptr);
}

// "flash_attn-2.8.3.dist-info"; nothing if it is no such folder.
std::optional<InstalledPackage> package_of(const std::string& site, const std::string& dist_info) {
  constexpr std::string_view kEnding = ".dist-info";
  const std::size_t dash = dist_info.find('-');
  if (!dist_info.ends_with(kEnding) || dash + kEnding.size() >= dist_info.size()) return std::nullopt;
  return InstalledPackage{normalised_package(dist_info.substr(0, dash)),
                          dist_info.substr(dash + 1, dist_info.size() - kEnding.size() - dash - 1), site, dist_info};
}

// The name that the package's wheel had: from the folder's name and the tags of WHEEL.
WheelName name_of(const InstalledPackage& package, const Metadata& wheel) {
  WheelName name;
  name.distribution = package.dist_info.substr(0, package.dist_info.find('-'));
  name.version = package.version;
  const auto add = [](std::string& list, const std::string& part) {
    const std::vector<std::string> parts = split(list, '.');
    if (std::find(parts.begin(), parts.end(), part) == parts.end()) list += (list.empty() ? "" : ".") + part;
  };
  for (const std::string& text : wheel.all("Tag"))
    if (const auto parsed = parse_wheel_name("a-1-" + text + ".whl"))
      for (const WheelTag& tag : parsed->tags) {
        add(name.python, tag.python), add(name.abi, tag.abi), add(name.platform, tag.platform);
        name.tags.push_back(tag);
      }
  return name;
}

bool is_binary_name(const std::string& path) {
  const std::string name = base_name(path);
  return name.ends_with(".so") || name.find(".so.") != name.npos || name.ends_with(".cubin") ||
         name.ends_with(".fatbin");
}

}  // namespace

std::optional<std::string> recorded_file(const Files& files, const InstalledPackage& package, const std::string& row) {
  if (row.empty() || row[0] == '/') return std::nullopt;
  int depth = 0;
  for (const std::string& part : split(row, '/')) {
    depth += part == ".." ? -1 : part.empty() || part == "." ? 0 : 1;
    if (depth < 0) return std::nullopt;
  }
  // A file may be a link to a store of packages (uv's --link-mode symlink): Python follows it, too.
  const std::string path = join_path(package.site, row);
  const auto folder = files.resolve(folder_name(path));
  return folder && files.resolve(path) ? std::optional(*folder + "/" + base_name(path)) : std::nullopt;
}

std::optional<InstalledPackage> package_at(const Files& files, const std::string& folder) {
  const auto path = files.resolve(folder);
  if (!path || !files.is_folder(*path)) return std::nullopt;
  const std::string site = folder_name(*path), name = base_name(*path);
  if (auto package = package_of(site, name)) return package;
  for (const std::string& other : files.list(site)) {
    const auto package = package_of(site, other);
    if (!package) continue;
    const std::vector<RecordRow> record = record_of(files, *package);
    if (std::any_of(record.begin(), record.end(),
                    [&](const RecordRow& row) { return row.path.starts_with(name + "/"); }))
      return package;
  }
  return std::nullopt;
}

Inspection inspect_package(const Files& files, const InstalledPackage& package, const Progress& progress) {
  Inspection out;
  out.kind = FileKind::kPackage;
  out.path = package.site + "/" + package.dist_info;
  Wheel& wheel = out.wheel.emplace();
  wheel.file_name = package.dist_info;
  wheel.dist_info = package.dist_info;
  wheel.metadata = parse_metadata(files.read(out.path + "/METADATA", kMostMetadataBytes).value_or(""));
  wheel.wheel = parse_metadata(files.read(out.path + "/WHEEL", kMostMetadataBytes).value_or(""));
  wheel.name = name_of(package, wheel.wheel);
  wheel.record = record_of(files, package);
  // Python's own cache comes and goes.
  std::erase_if(wheel.record, [](const RecordRow& row) { return row.path.ends_with(".pyc"); });
  std::size_t done = 0;
  for (const RecordRow& row : wheel.record) {
    if (progress) progress(row.path, done++, wheel.record.size());
    struct stat status;
    const auto anywhere = files.resolve(join_path(package.site, row.path));
    if (!anywhere || stat(files.on_disk(*anywhere).c_str(), &status) != 0) continue;
    wheel.entries.push_back({row.path, uint64_t(status.st_size), uint64_t(status.st_size)});
    wheel.size += uint64_t(status.st_size);
    const auto path = recorded_file(files, package, row.path);
    if (!path) continue;
    if (row.path.ends_with(".py") && done < kMostSources) {
      const std::string source = files.read(*path, kMostSourceBytes).value_or("");
      collect_words(row.path, source, wheel.words);
      for (std::string& name : compiled_imports(source)) wheel.imports.push_back(std::move(name));
    }
    if (!is_binary_name(row.path)) continue;
    try {
      if (auto binary = read_binary(files.on_disk(*anywhere), wheel.problems)) {
        binary->path = row.path;
        wheel.binaries.push_back(std::move(*binary));
      } else if (is_extension_name(row.path) && status.st_size < 64) {
        wheel.problems.push_back(no_library(row.path, uint64_t(status.st_size)));
      }
    } catch (const ReadError& e) {
      wheel.problems.push_back(
          make_verdict({.code = "CANNOT_TELL", .subject = printable(row.path), .message = printable(e.what())}));
    }
  }
  return out;
}

PythonWords words_of_package(const Files& files, const InstalledPackage& package) {
  PythonWords out;
  std::size_t sources = 0;
  for (const RecordRow& row : record_of(files, package)) {
    if (!row.path.ends_with(".py")) continue;
    if (++sources > kMostSources) break;
    if (const auto path = recorded_file(files, package, row.path))
      collect_words(row.path, files.read(*path, kMostSourceBytes).value_or(""), out);
  }
  return out;
}

}  // namespace doctor
