// SPDX-License-Identifier: Apache-2.0
// The PyTorch of a Python: its version from text, its C++ ABI from its symbols.
#pragma once

#include <optional>

#include "doctor/system/python_env.h"

namespace doctor {

std::optional<TorchFacts> read_torch(const Files& files, const PythonInstall& python);

}  // namespace doctor
