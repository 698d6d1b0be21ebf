// SPDX-License-Identifier: Apache-2.0
// A wheel put on the shelf.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "builder/shelf/records.h"
#include "support/durable.h"

namespace builder {

using namespace support;

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

// Throws WriteError (another file of that name is there, disk full, read-only ...) or support::ReadError.
Published publish(const PublishRequest& request);

// One line of the matrix for a wheel that is on the shelf.
void record_line(const std::string& folder, const MatrixLine& line);

}  // namespace builder
