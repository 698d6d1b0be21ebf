// SPDX-License-Identifier: Apache-2.0
// flash-attn's naming scheme for wheels, and which ones its releases have.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "doctor/environment.h"
#include "doctor/wheel.h"

namespace doctor {

// flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl, taken apart. What the name does not say is
// not known.
struct AttentionWheel {
  std::string file;     // as given, folders included
  std::string package;  // "flash-attn"
  std::string version;  // "2.8.3"
  Version cuda, torch;  // 12 (or 12.2, of "cu122"), 2.8
  CxxAbi cxx_abi = CxxAbi::kUnknown;
  std::string python, platform;  // tags as written
  std::vector<WheelTag> tags;    // all combinations
  std::string url;               // of published ones
  bool pretender = false;  // flash_attn itself, for any platform: nothing was compiled (Mica's drop-in is meant so)
};

// False if it is no wheel's name at all. A wheel of another package may have no "cu", "torch" and "cxx11abi" in it.
bool parse_attention_wheel(std::string_view file_name, AttentionWheel& out);

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
std::vector<AttentionWheel> published_wheels();

}  // namespace doctor
