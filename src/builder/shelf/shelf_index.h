// SPDX-License-Identifier: Apache-2.0
// What is made from the files on a shelf: its index and its matrix.
#pragma once

#include <string>
#include <vector>

#include "builder/shelf/records.h"

namespace builder {

// Makes simple/ and matrix.jsonl from what is there. Throws ReadError where no folder is.
void rebuild_derived(const std::string& folder);

// Every line there, oldest first. `path`: a shelf, a folder of finished builds, or a .jsonl file. Lines that are none
// are named in `problems`.
std::vector<MatrixLine> read_matrix(const std::string& path, std::vector<std::string>* problems);

}  // namespace builder
