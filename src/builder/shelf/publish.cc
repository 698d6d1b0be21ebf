// SPDX-License-Identifier: Apache-2.0
// Putting a wheel on the shelf.
#include "builder/shelf/publish.h"

#include <algorithm>
#include <filesystem>

#include "builder/shelf/shelf_files.h"
#include "builder/shelf/shelf_index.h"
#include "doctor/read/wheel.h"
#include "doctor/read/wheel_name.h"
#include "support/bytes.h"
#include "support/sha256.h"
#include "support/text.h"

namespace builder {

using namespace support;

namespace {

// Copies and hashes in one pass, so that the hash is that of the bytes that were written.
std::string copy_hashed(support::FileSource& from, const std::string& path, PendingFile& to) {
  support::Sha256 hash;
  std::vector<uint8_t> buffer(4 << 20);
  for (uint64_t offset = 0; offset < from.size();) {
    const std::span<uint8_t> piece(buffer.data(), std::size_t(std::min<uint64_t>(buffer.size(), from.size() - offset)));
    if (!from.read(offset, piece)) throw support::ReadError(path + ": changed while it was read");
    hash.update(piece);
    to.write(piece);
    offset += piece.size();
  }
  return hex(hash.digest());
}

WriteError other_file(const std::string& path) {
  return WriteError(path +
                    " is another file with the same name, and stays (give the wheel another build number or version, "
                    "or remove that file by hand)");
}

}  // namespace

void record_line(const std::string& folder, const MatrixLine& line) {
  // One file per wheel, node and time: nobody appends to a file that another node may write.
  std::string node = line.host + "-" + line.time;
  for (char& c : node)
    if (c == '/' || c == ':' || static_cast<unsigned char>(c) <= ' ') c = '_';
  make_shelf_folder(folder, "matrix");
  const std::string stem = folder + "/matrix/" + line.sha256.substr(0, 16) + "-" + node;
  // Another line of the same second (another Python on that node, a judgement right after an import) stays.
  std::string path = stem + ".json";
  const unsigned shared = shelf_permissions(folder);
  for (int n = 2; write_new_file(path, to_json_line(line) + "\n", shared) == Placed::kDifferent; ++n)
    path = stem + "-" + std::to_string(n) + ".json";
}

Published publish(const PublishRequest& request) {
  const std::string name = support::base_name(request.wheel);
  if (!doctor::parse_wheel_name(name))
    throw support::ReadError(request.wheel + ": no name of a wheel (want NAME-VERSION-PYTHON-ABI-PLATFORM.whl)");
  support::FileSource source(request.wheel);
  make_folders(request.folder);
  Published out;
  out.path = request.folder + "/" + name;
  {
    const unsigned shared = shelf_permissions(request.folder);
    PendingFile copy(out.path);
    copy.share(shared);
    out.sha256 = copy_hashed(source, request.wheel, copy);
    std::error_code error;
    if (std::filesystem::exists(out.path, error) && file_sha256(out.path) != out.sha256) throw other_file(out.path);
    Provenance provenance;
    provenance.wheel = name;
    provenance.sha256 = out.sha256;
    provenance.size = source.size();
    provenance.published_at = utc_time_now();
    provenance.published_by = user_and_host();
    provenance.mica_version = request.mica_version;
    provenance.verdicts = request.verdicts;
    provenance.build = request.build;
    out.provenance = provenance_path(request.folder, name, out.sha256);
    make_shelf_folder(request.folder, "provenance");
    write_new_file(out.provenance, to_json(provenance), shared);  // the first to publish these bytes stands
    out.placed = copy.place_new();
    if (out.placed == Placed::kDifferent) throw other_file(out.path);
  }
  try {
    if (request.line) {
      MatrixLine line = *request.line;
      line.wheel = name;
      line.sha256 = out.sha256;
      line.host = host_name();
      line.time = utc_time_now();
      record_line(request.folder, line);
    }
    rebuild_derived(request.folder);
  } catch (const std::runtime_error& e) {
    throw WriteError(out.path + " is there for --find-links, but not in the index: " + e.what() +
                     " (when that is mended, the same command again)");
  }
  return out;
}

}  // namespace builder
