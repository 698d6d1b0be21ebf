// SPDX-License-Identifier: Apache-2.0
// flash-attn's naming scheme for wheels.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "doctor/facts/mangled.h"
#include "doctor/read/wheel_name.h"
#include "support/version.h"

namespace doctor {

using namespace support;

// flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl, taken apart. What the name does not say is
// not known.
struct AttentionWheel {
  std::string file;     // as given, folders included
  std::string package;  // "flash-attn"
  std::string version;  // "2.8.3"
  Version cuda, torch;  // 12 (or 12.2, of "cu122"), 2.8
  CxxAbi cxx_abi = CxxAbi::kUnknown;
  std::string python, platform;                                 // tags as written
  std::vector<WheelTag> tags;                                   // all combinations
  std::string url;                                              // of published ones
  enum class Tried { kNo, kLoads, kFails } tried = Tried::kNo;  // a file at hand, judged by its symbols
  std::string failure;                                          // of kFails: why
  bool pretender = false;  // flash_attn itself, for any platform: nothing was compiled (Mica's drop-in is meant so)
};

// Styles: cu12torch2.8cxx11abiTRUE (upstream), cu128torch2.9, cu.12.8.torch.2.11, pt28cu128, no label at all; a
// variant's label at the end of the name is passed over. False if it is no wheel's name at all. A wheel of another
// package may have no "cu", "torch" and "cxx11abi" in it.
bool parse_attention_wheel(std::string_view file_name, AttentionWheel& out);

// Those that the tables list, upstream's and the community's, with their addresses.
// FlashAttention-3 is a package of its own, "flash-attn-3".
std::vector<AttentionWheel> published_wheels(std::string_view package = "flash-attn");

}  // namespace doctor
