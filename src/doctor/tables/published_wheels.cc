// SPDX-License-Identifier: Apache-2.0
#include "doctor/tables/published_wheels.h"

namespace doctor {

const std::vector<Release>& attention_releases() {
  static const std::vector<Release> releases = {
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

Version glibc_of_release(std::string_view version) {
  const Version v = parse_version(version);
  // 2.8.0 was the first to be built on Ubuntu 22.04.
  return v >= parse_version("2.8") ? parse_version("2.32") : Version{};
}

}  // namespace doctor
