// SPDX-License-Identifier: Apache-2.0
// What the operating system knows: memory of this process and of the machine, this program once more.
#pragma once

#include <string>
#include <vector>

namespace cli {

// Bytes of this process that are resident now, exact to the page.
double resident_bytes();

// What may still be taken: the machine's available memory or the control group's limit, whichever is less.
double available_bytes();

struct ChildResult {
  int exit_code;  // 128 + signal if it was killed
  std::string output;
};
// Runs this same program with other arguments and collects its standard output.
ChildResult run_self(const std::vector<std::string>& arguments);

// The same, where its output is for whoever reads this program's: its exit code.
int show_self(const std::vector<std::string>& arguments);

bool stdout_is_terminal();

// Throws std::runtime_error, in one line, if the file cannot be written: better before the work than after it.
void require_writable(const std::string& path);

}  // namespace cli
