// SPDX-License-Identifier: Apache-2.0
// Threads of execution that take turns on one host thread: each has a stack of its own and runs until it hands over.
#pragma once

#include <cstddef>
#include <memory>

namespace mica::emulation {

class Fiber {
 public:
  static constexpr size_t kStackBytes = 128 << 10;

  // The one that calls: it has the host thread's stack.
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // From the next hand_over on it runs `entry`, which must hand over at its end and never return.
  void prepare(void (*entry)());

  // Whether an address lies on its stack.
  bool owns(const void* address) const {
    const auto* at = static_cast<const std::byte*>(address);
    return at >= stack_.get() && at < stack_.get() + kStackBytes;
  }

  // Stops `from`, which is the one that calls, until somebody hands over to it again; runs `to` meanwhile.
  static void hand_over(Fiber& from, Fiber& to);

 private:
  void* stack_pointer_ = nullptr;
  std::unique_ptr<std::byte[]> stack_;
};

}  // namespace mica::emulation
