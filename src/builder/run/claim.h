// SPDX-License-Identifier: Apache-2.0
// One process at a time works in a build folder; without flock, which means nothing on many shared file systems.
#pragma once

#include <string>

namespace builder {

class Claim {
 public:
  // Takes the folder unless a live process has it. Throws WriteError.
  explicit Claim(std::string folder);
  ~Claim();
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  bool held() const { return held_; }

 private:
  std::string path_;
  bool held_ = false;
};

}  // namespace builder
