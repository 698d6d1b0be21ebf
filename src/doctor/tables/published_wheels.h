// SPDX-License-Identifier: Apache-2.0
// Which wheels flash-attn's releases have.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "support/version.h"

namespace doctor {

using namespace support;

struct Release {
  const char* version;
  const char* glibc;  // the lowest that its wheels load with
  std::vector<const char*> machines, pythons, torches, cudas;
  std::vector<bool> abis;
  std::vector<std::pair<const char*, const char*>> without;  // torch, python: not built
  std::vector<const char*> also;                             // single files outside of the scheme
};

const std::vector<Release>& attention_releases();
// The glibc that wheels of this version need where their platform tag does not say; not known for unknown versions.
Version glibc_of_release(std::string_view version);

}  // namespace doctor
