// SPDX-License-Identifier: Apache-2.0
// Which build works where: the lines of a shelf as rows for people, and as one HTML page.
#pragma once

#include <string>
#include <vector>

#include "builder/shelf/records.h"

namespace builder {

// Of lines about the same package, versions, machine and GPU the newest; sorted by those. What was found out before
// about the same bytes stays known: a mere judgement does not hide an import.
std::vector<MatrixLine> latest_lines(std::vector<MatrixLine> lines);

std::vector<std::string> matrix_headers();
std::vector<std::string> matrix_cells(const MatrixLine& line);  // one per header

// A page that needs no other file.
std::string matrix_html(const std::vector<MatrixLine>& lines);

}  // namespace builder
