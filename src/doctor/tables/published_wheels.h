// SPDX-License-Identifier: Apache-2.0
// Which wheels flash-attn's releases have.
#pragma once

#include <span>
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

// A row of community_wheels.inc, which has one table for each publisher beside upstream.
struct CommunityWheels {
  const char* name;      // "flash_attn-2.8.3+cu128torch2.9"
  const char* pythons;   // "cp310 cp311"
  const char* platform;  // tags
  const char* release;   // the folder of the download
};
std::span<const CommunityWheels> community_wheels();
extern const char* const kCommunityDownload;  // the address that those folders stand below

// The day up to which the tables above are complete.
extern const char* const kPublishedAsOf;
// The glibc that wheels of this version need where their platform tag does not say; not known for unknown versions.
Version glibc_of_release(std::string_view version);

}  // namespace doctor
