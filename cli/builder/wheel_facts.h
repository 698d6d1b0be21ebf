// SPDX-License-Identifier: Apache-2.0
// A wheel as a line of the matrix.
#pragma once

#include <span>

#include "builder/shelf/records.h"
#include "doctor/read/inspect.h"

namespace cli {

// From the file alone: package, version, Python, machine, architectures, ABI, and the status that the verdicts give.
builder::MatrixLine line_of_wheel(const doctor::Inspection& inspection, std::span<const doctor::Verdict> verdicts);

}  // namespace cli
