// SPDX-License-Identifier: Apache-2.0
// The shelf: a folder on shared storage that holds wheels for all nodes.
//
//   NAME.whl                           what pip --find-links reads
//   simple/PROJECT/index.html          what pip --index-url reads; made from what is there
//   provenance/NAME.whl.HASH16.json    where the wheel comes from; its name holds the wheel's hash
//   matrix/HASH16-NODE-TIME.json       one line each: where it works; -2, -3, ... where one second has several
//   matrix.jsonl                       those lines in one file; made from what is there
//   quarantine/                        what `mica verify --quarantine` set aside
//
// A wheel's name appears in one step when all of its bytes and its provenance are on disk. Derived files are replaced
// whole, and written again if something was added meanwhile: several publishers need no lock.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "builder/shelf/records.h"

namespace builder {

// Names of regular files in a folder, sorted; none if the folder is not there.
std::vector<std::string> file_names(const std::string& folder, std::string_view suffix);

// What is on a shelf is as open as the shelf's folder, whatever the umask of whoever publishes: all who may read that
// folder can install from it, all who may write there can publish beside others.
unsigned shelf_permissions(const std::string& shelf);
// A folder on the shelf, by its name there ("matrix"), likewise. Throws WriteError.
void make_shelf_folder(const std::string& shelf, const std::string& name);

std::string provenance_path(const std::string& shelf, const std::string& wheel, const std::string& sha256);
// All that are recorded for a wheel of this name.
std::vector<Provenance> provenances_of(const std::string& shelf, const std::string& wheel);

}  // namespace builder
