// SPDX-License-Identifier: Apache-2.0
// One process at a time works in a build folder; without flock, which means nothing on many shared file systems.
#pragma once

#include <memory>
#include <string>

#include "builder/run/owner/heartbeat.h"

namespace builder {

class Claim {
 public:
  // Takes the folder unless a live process has it, and says that it lives until this is destroyed. Throws WriteError.
  explicit Claim(std::string folder);
  ~Claim();
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  bool held() const { return heartbeat_ != nullptr; }
  // Who has it if it is not held: "process 4711 on node7". Empty: who had it has just let go.
  const std::string& owner() const { return owner_; }

 private:
  std::string path_, owner_;
  std::unique_ptr<Heartbeat> heartbeat_;
};

}  // namespace builder
