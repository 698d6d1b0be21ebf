// SPDX-License-Identifier: Apache-2.0
// Symbols of torch that came, went or changed: from a name to the releases that have it.
#pragma once

#include <string>
#include <string_view>

#include "support/version.h"

namespace doctor {

using namespace support;

struct TorchSignature {
  const char* pattern;  // the whole mangled name, or its beginning if it ends in '*', or a part between two '*'
  const char* first;    // first release that has it; "" if not established
  const char* last;     // last one; "" if it is still there
  const char* what;     // in plain words
};

// The row that a symbol matches; nullptr if there is none.
const TorchSignature* find_torch_signature(std::string_view symbol);
// "torch 2.8 and later", "torch up to 2.9"
std::string torch_range_text(const TorchSignature& signature);

// The release that brought a function of the stable C interface; not known if it was there before 2.10 counted them.
Version stable_function_release(std::string_view name);
}  // namespace doctor
