// SPDX-License-Identifier: Apache-2.0
// `mica demo`, and `make demo` before the rest of the command is compiled: attention as the textbook writes it against
// attention in tiles, for growing lengths.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cli {

struct DemoOptions {
  std::vector<std::int64_t> lengths = {256, 512, 1024, 2048, 4096, 8192, 16384};
  std::int64_t heads = 4, dim = 64;
  bool causal = false;
  int threads = 0;
  double seconds = 60;
  std::string plot = "mica-demo.svg";
};

struct DemoMeasurement {
  double seconds, extra_bytes, error;
  std::string kernel;
};

struct DemoRow {
  std::int64_t length;
  double naive_formula_bytes;
  std::optional<DemoMeasurement> naive, tiled;
  std::string naive_why_not;
};

struct DemoOutcome {
  std::string machine;
  std::vector<DemoRow> rows;
  bool exact;  // every tiled result is the formula's, to rounding
};

// Measures, and writes the plot; is_table prints each row as soon as it is measured, and what the columns are. Throws
// std::runtime_error, in one line.
DemoOutcome run_demo(const DemoOptions& options, bool is_table);

}  // namespace cli
