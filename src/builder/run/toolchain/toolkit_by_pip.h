// SPDX-License-Identifier: Apache-2.0
// nvcc and CUDA's headers out of pip's packages, where no toolkit is here and nobody may install one.
#pragma once

#include <optional>
#include <string>

#include "builder/run/workshop.h"

namespace builder {

// The toolkit of torch's CUDA below `folder`, as far as pip has it: from CUDA 13 on. Before that its packages lack nvcc
// itself. `fetched_by` is empty if an earlier build left it there.
std::optional<Toolkit> toolkit_of_pip(const doctor::TorchFacts& torch, const std::string& folder);

// Brings it. `shop` gives Python and pip. Throws std::runtime_error.
Toolkit bring_toolkit(Toolkit toolkit, const doctor::TorchFacts& torch, const Workshop& shop);

}  // namespace builder
