// SPDX-License-Identifier: Apache-2.0
// The verbs of the command, one file each.
#pragma once

#include <functional>

#include "cli/exit_code.h"
#include "cli/flags.h"

namespace cli {

struct Verb {
  Command* app;              // its flags; set when the verb was given
  std::function<int()> run;  // returns an ExitCode; throws std::exception with one line for kCannotTell
};

Verb info_verb(Command& app);
Verb inspect_verb(Command& app);
Verb plan_verb(Command& app);
Verb check_verb(Command& app);
Verb bench_verb(Command& app);
Verb demo_verb(Command& app);
Verb doctor_verb(Command& app);
Verb explain_verb(Command& app);
Verb fix_verb(Command& app);
Verb jupyter_verb(Command& app);
Verb pick_verb(Command& app);
Verb build_verb(Command& app);
Verb publish_verb(Command& app);
Verb verify_verb(Command& app);
Verb wheel_matrix_verb(Command& app);

}  // namespace cli
