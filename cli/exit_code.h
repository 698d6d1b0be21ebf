// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace cli {

// What `mica` returns to the shell.
enum ExitCode : int {
  kOk = 0,
  kFailed = 1,      // the answer is no: a case failed, no kernel runs the problem
  kCannotTell = 2,  // bad usage, or something was missing to find out
};

}  // namespace cli
