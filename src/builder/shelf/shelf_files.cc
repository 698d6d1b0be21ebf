// SPDX-License-Identifier: Apache-2.0
#include "builder/shelf/shelf_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "support/bytes.h"
#include "support/durable.h"

namespace builder {

using namespace support;

namespace fs = std::filesystem;

std::vector<std::string> file_names(const std::string& folder, std::string_view suffix) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code ignored;
    if (name.ends_with(suffix) && entry->is_regular_file(ignored)) names.push_back(name);
  }
  // Half a list would make an index that lacks wheels.
  if (error && error != std::errc::no_such_file_or_directory) throw support::ReadError(folder + ": " + error.message());
  std::sort(names.begin(), names.end());
  return names;
}

unsigned shelf_permissions(const std::string& shelf) {
  // Not the sticky bit: everybody replaces the index.
  constexpr mode_t kKept = S_ISGID | 0777;
  struct stat found;
  return stat(shelf.c_str(), &found) == 0 ? found.st_mode & kKept : 0;
}

void make_shelf_folder(const std::string& shelf, const std::string& name) {
  const std::string path = shelf + "/" + name;
  make_folders(path);
  const mode_t wanted = shelf_permissions(shelf);
  struct stat found;
  if (stat(path.c_str(), &found) == 0 && found.st_uid == geteuid() && (wanted & ~found.st_mode))
    chmod(path.c_str(), (found.st_mode & 07777) | wanted);  // where this fails, the next writer is told
}

std::string provenance_path(const std::string& shelf, const std::string& wheel, const std::string& sha256) {
  return shelf + "/provenance/" + wheel + "." + sha256.substr(0, 16) + ".json";
}

std::vector<Provenance> provenances_of(const std::string& shelf, const std::string& wheel) {
  std::vector<Provenance> out;
  const std::string folder = shelf + "/provenance";
  for (const std::string& name : file_names(folder, ".json")) {
    // NAME.whl.HASH16.json
    if (name.size() != wheel.size() + 22 || !name.starts_with(wheel + ".")) continue;
    try {
      const std::string path = folder + "/" + name;
      Provenance provenance = provenance_from_json(support::read_text_file(path), path);
      if (provenance.wheel == wheel) out.push_back(std::move(provenance));
    } catch (const std::exception&) {
      // Unreadable: the same as not recorded, which verify reports.
    }
  }
  return out;
}

}  // namespace builder
