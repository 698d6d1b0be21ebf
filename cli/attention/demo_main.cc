// SPDX-License-Identifier: Apache-2.0
// What `make demo` runs: `mica demo` as it is without flags, in a program that compiles in a minute with the library.
// Usage: mica_demo [file for the plot]
#include <cstdio>
#include <exception>

#include "cli/attention/demo.h"
#include "cli/exit_code.h"

int main(int argc, char** argv) {
  if (argc > 2) {
    std::fprintf(stderr, "mica_demo: got %d arguments, want at most one: the file for the plot\n", argc - 1);
    return cli::kCannotTell;
  }
  cli::DemoOptions options;
  if (argc == 2) options.plot = argv[1];
  try {
    return cli::run_demo(options, true).exact ? cli::kOk : cli::kFailed;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "mica_demo: %s\n", e.what());
    return cli::kCannotTell;
  }
}
