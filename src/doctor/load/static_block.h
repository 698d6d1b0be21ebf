// SPDX-License-Identifier: Apache-2.0
// The block for thread-local data that glibc sets aside when a program begins. What is opened later and reaches its
// data by a fixed distance from the thread's pointer (initial-exec) must find a place in what is left of it.
#pragma once

#include <cstdint>

#include "doctor/facts/environment.h"
#include "doctor/read/elf/elf.h"

namespace doctor {

class StaticBlock {
 public:
  // Data of the program and of what is loaded with it, one after the other, then the rest for all that comes later.
  void add(const ThreadData& data);
  void begin(const Environment& target);

  // A place for the data of what is opened later; false: there is none. What could do without (TLSDESC) gets a place
  // out of a share of its own.
  bool take(const ThreadData& data, bool can_do_without);

 private:
  bool is_known_ = false;
  uint64_t used_ = 0, size_ = 0, share_ = 0, align_ = 1;
};

}  // namespace doctor
