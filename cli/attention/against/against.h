// SPDX-License-Identifier: Apache-2.0
// `mica check --against`: the attention of an installed package beside an exact one, forward and backward.
#pragma once

#include <string>

namespace cli {

struct AgainstOptions {
  std::string package;  // flash_attn, flash_attn_3, xformers or sdpa; empty: not asked for
  std::string python;   // program or prefix; empty: the active one
  std::string device = "auto";
};

// Returns an exit code: 0 equal, 1 a result differs or it does not import, 2 no case could be run.
int check_against(const AgainstOptions& options, bool json);

}  // namespace cli
