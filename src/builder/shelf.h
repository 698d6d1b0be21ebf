// SPDX-License-Identifier: Apache-2.0
// The shelf: a folder on shared storage that holds wheels for all nodes.
//
//   NAME.whl                           what pip --find-links reads
//   simple/PROJECT/index.html          what pip --index-url reads; made from what is there
//   provenance/NAME.whl.HASH16.json    where the wheel comes from; its name holds the wheel's hash
//   matrix/HASH16-NODE.json            one line each: where it works
//   matrix.jsonl                       those lines in one file; made from what is there
//   quarantine/                        what `mica verify --quarantine` set aside
//
// A wheel's name appears in one step when all of its bytes and its provenance are on disk. Derived files are replaced
// whole, and written again if something was added meanwhile: several publishers need no lock.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "builder/durable.h"
#include "builder/records.h"

namespace builder {

struct PublishRequest {
  std::string wheel;   // path
  std::string folder;  // of the shelf; made if it is not there
  std::vector<doctor::Verdict> verdicts;
  std::string mica_version;
  std::string build;               // JSON text of the build's record; empty: the wheel comes from elsewhere
  std::optional<MatrixLine> line;  // wheel, sha256, host and time are filled in
};

struct Published {
  Placed placed = Placed::kNew;  // kNew or kSame
  std::string path, sha256, provenance;
};

// Throws WriteError (another file of that name is there, disk full, read-only ...) or doctor::ReadError.
Published publish(const PublishRequest& request);

// One line of the matrix for a wheel that is on the shelf.
void record_line(const std::string& folder, const MatrixLine& line);

// Makes simple/ and matrix.jsonl from what is there.
void rebuild_derived(const std::string& folder);

// Every line there, oldest first. `path`: a shelf, a folder of finished builds, or a .jsonl file. Lines that are none
// are named in `problems`.
std::vector<MatrixLine> read_matrix(const std::string& path, std::vector<std::string>* problems);

struct ShelfEntry {
  std::string wheel, sha256;
  uint64_t size = 0;
  std::vector<doctor::Verdict> verdicts;
  bool pretender = false;   // claims compiled code and holds none
  std::string quarantined;  // where it lies now
  bool bad() const { return doctor::exit_code_of(verdicts) != 0; }
};

struct ShelfReport {
  std::vector<ShelfEntry> entries;
  std::vector<doctor::Verdict> verdicts;  // of the folder itself
};

// What the doctor says of one wheel; it may throw doctor::ReadError.
using Judge = std::function<std::vector<doctor::Verdict>(const std::string& path)>;
ShelfReport verify(const std::string& folder, const Judge& judge, bool quarantine);

std::string normalised_project(std::string_view name);  // PEP 503: "flash_attn" -> "flash-attn"

}  // namespace builder
