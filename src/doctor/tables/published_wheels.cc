// SPDX-License-Identifier: Apache-2.0
#include "doctor/tables/published_wheels.h"

#include "doctor/tables/tables.h"

namespace doctor {

const std::vector<Release>& attention_releases() {
  // 2.8.3.post1 has the workflow of 2.8.3; 2.8.3.post2 the one after it, whose matrix these rows are.
  static const std::vector<Release> releases = {
      {"2.8.3.post2", "2.32", {"x86_64"}, {"3.10", "3.11", "3.12", "3.13"}, {"2.6"}, {"12"}, {false, true}, {}, {}},
      {"2.8.3.post2",
       "2.32",
       {"x86_64", "aarch64"},
       {"3.10", "3.11", "3.12", "3.13"},
       {"2.7", "2.8"},
       {"12"},
       {true},
       {},
       {}},
      {"2.8.3.post2",
       "2.32",
       {"x86_64", "aarch64"},
       {"3.10", "3.11", "3.12", "3.13"},
       {"2.9", "2.10"},
       {"12", "13"},
       {true},
       {},
       {}},
      {"2.8.3",
       "2.32",
       {"x86_64"},
       {"3.9", "3.10", "3.11", "3.12", "3.13"},
       {"2.4", "2.5", "2.6", "2.7", "2.8"},
       {"12"},
       {false, true},
       {{"2.4", "3.13"}},
       {"flash_attn-2.8.3+cu12torch2.9cxx11abiTRUE-cp312-cp312-linux_aarch64.whl"}},
  };
  return releases;
}

std::span<const CommunityWheels> community_wheels() {
  static constexpr CommunityWheels kRows[] = {
#include "doctor/tables/community_wheels.inc"
  };
  return kRows;
}

const char* const kCommunityDownload = "https://github.com/mjun0812/flash-attention-prebuild-wheels/releases/download/";
const char* const kPublishedAsOf = table_as_of("community_wheels.inc");

Version glibc_of_release(std::string_view version) {
  const Version v = parse_version(version);
  // 2.8.0 was the first to be built on Ubuntu 22.04.
  return v >= parse_version("2.8") ? parse_version("2.32") : Version{};
}

}  // namespace doctor
