// SPDX-License-Identifier: Apache-2.0
// The Python programs that are asked whether a kernel works.
#pragma once

#include <string>

namespace jupyter {

// The Python programs that are asked; they print one line each, kAnswerMark and JSON.
inline constexpr const char* kAnswerMark = "mica-kernel-answer:";
extern const char* const kProbeProgram;  // can this Python be a kernel
// Arguments: notebook, name of the kernel or "", seconds, a folder; runs its cells and says which one failed.
extern const std::string kNotebookProgram;
extern const std::string kStartProgram;  // arguments: folder of kernels, name, seconds; starts the kernel and asks it

}  // namespace jupyter
