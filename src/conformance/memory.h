// SPDX-License-Identifier: Apache-2.0
// The memory behind the bindings' pointers: the same cases run on every backend through this.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "mica/mica.h"

namespace mica::conformance {

class Memory {
 public:
  virtual ~Memory() = default;
  virtual mica_device device() const = 0;
  virtual void* stream() const = 0;
  // At least 256-byte aligned; null when there is no memory.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* address) = 0;
  // Both finish before they return.
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  virtual void download(void* to, const void* from, size_t bytes) = 0;
  // Between upload and download nobody may touch these bytes; where the machine can tell a read from the outside
  // (the address sanitizer on the host), it does.
  virtual void fence(void* /*address*/, size_t /*bytes*/) {}
  virtual void open_fence(void* /*address*/, size_t /*bytes*/) {}
  // Waits for what mica_execute started; returns "" or what the device says went wrong.
  virtual const char* synchronise() = 0;
};

// The host's memory, for the CPU backend.
Memory& host_memory();

// A GPU's, with a stream of its own. Null where there is none: why_not says why.
std::unique_ptr<Memory> cuda_memory(int ordinal, std::string* why_not);

}  // namespace mica::conformance
