// SPDX-License-Identifier: Apache-2.0
// The verbs of the command, one file each.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "cli/exit_code.h"

namespace cli {

struct Verb {
  CLI::App* app;             // its flags; set when the verb was given
  std::function<int()> run;  // returns an ExitCode; throws std::exception with one line for kCannotTell
};

Verb info_verb(CLI::App& app);
Verb inspect_verb(CLI::App& app);
Verb plan_verb(CLI::App& app);
Verb check_verb(CLI::App& app);
Verb bench_verb(CLI::App& app);
Verb demo_verb(CLI::App& app);
Verb doctor_verb(CLI::App& app);
Verb explain_verb(CLI::App& app);
Verb jupyter_verb(CLI::App& app);
Verb pick_verb(CLI::App& app);
Verb build_verb(CLI::App& app);
Verb publish_verb(CLI::App& app);
Verb verify_verb(CLI::App& app);
Verb wheel_matrix_verb(CLI::App& app);

}  // namespace cli
