// SPDX-License-Identifier: Apache-2.0
// Jupyter's description of a kernel: a file kernel.json in a folder that has the kernel's name.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace doctor {

struct KernelSpec {
  std::vector<std::string> argv;  // the program that is the kernel, and its arguments
  std::string display_name, language;
  std::map<std::string, std::string> env;
};

// Throws std::runtime_error with one line that says what is wrong with it.
KernelSpec parse_kernel_spec(std::string_view text);

}  // namespace doctor
