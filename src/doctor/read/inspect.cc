// SPDX-License-Identifier: Apache-2.0
#include "doctor/read/inspect.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "doctor/read/wheel_name.h"
#include "support/stopwatch.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxFolderFiles = 200'000;

bool may_be_binary(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.ends_with(".so") || name.find(".so.") != name.npos || name.ends_with(".cubin") ||
         name.ends_with(".fatbin") || name.ends_with(".fatbin.bin") || path.extension().empty();
}

// Binaries below a folder. Links are not followed: they could lead anywhere, and what they name is found by itself.
void read_folder(Inspection& out, const Progress& progress, const Stopwatch& stopwatch) {
  if (access(out.path.c_str(), R_OK | X_OK) != 0) throw ReadError(out.path + ": " + std::strerror(errno));
  std::vector<std::string> paths;
  std::error_code error;
  std::size_t files = 0;
  for (fs::recursive_directory_iterator it(out.path, fs::directory_options::skip_permission_denied, error), end;
       it != end && !error; it.increment(error)) {
    stopwatch.check();
    if (++files > kMaxFolderFiles) {
      out.problems.push_back(make_verdict({.code = "CANNOT_TELL",
                                           .subject = out.path,
                                           .message = "more than 200000 files: only the first were looked at"}));
      break;
    }
    if (it->is_symlink(error)) continue;
    if (it->is_directory(error) && access(it->path().c_str(), R_OK | X_OK) != 0)
      out.problems.push_back(make_verdict({.code = "CANNOT_TELL",
                                           .subject = it->path().string(),
                                           .message = "the folder cannot be read: what is in it was not looked at"}));
    if (!it->is_regular_file(error)) continue;
    if (may_be_binary(it->path())) paths.push_back(it->path().string());
  }
  if (error) throw ReadError(out.path + ": " + error.message());
  std::sort(paths.begin(), paths.end());
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (progress) progress(paths[i], i, paths.size());
    stopwatch.check();
    try {
      if (auto binary = read_binary(paths[i], out.problems)) out.binaries.push_back(std::move(*binary));
    } catch (const ReadError& e) {
      out.problems.push_back(make_verdict({.code = "CANNOT_TELL", .subject = paths[i], .message = e.what()}));
    }
  }
}

}  // namespace

Inspection inspect(const std::string& path, const Progress& progress, const ReadLimits& limits) {
  Inspection out;
  out.path = path;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    out.kind = FileKind::kFolder;
    read_folder(out, progress, Stopwatch(limits.seconds));
    return out;
  }
  FileSource source(path);
  uint8_t head[4] = {};
  source.read(0, std::span(head, std::min<uint64_t>(4, source.size())));
  const bool zip = head[0] == 'P' && head[1] == 'K';
  if (zip || path.ends_with(".whl")) {
    out.kind = FileKind::kWheel;
    try {
      out.wheel = read_wheel(source, path, progress, limits);
    } catch (const TimeError&) {
      throw;
    } catch (const ReadError& e) {
      // A wheel by its name, and broken: that is an answer.
      out.wheel.emplace();
      out.wheel->file_name = base_name(path);
      out.wheel->size = source.size();
      out.wheel->name = parse_wheel_name(path);
      out.wheel->problems.push_back(make_verdict({.code = "WHEEL_ARCHIVE",
                                                  .subject = out.wheel->file_name,
                                                  .message = printable(e.what()),
                                                  .cause = "The file is not a complete zip archive.",
                                                  .fix = "download it again"}));
    }
    return out;
  }
  auto binary = read_binary(source, path, out.problems);
  if (!binary && out.problems.empty()) {
    if (!is_extension_name(path)) throw ReadError(path + ": neither a wheel nor a shared library, cubin or fatbin");
    out.problems.push_back(no_library(path, source.size()));
  }
  if (binary) {
    out.kind = binary->cubin ? FileKind::kCubin : binary->bare_fatbin ? FileKind::kFatbin : FileKind::kElf;
    out.binaries.push_back(std::move(*binary));
  }
  return out;
}

const std::vector<Binary>& binaries_of(const Inspection& inspection) {
  return inspection.wheel ? inspection.wheel->binaries : inspection.binaries;
}

}  // namespace doctor
