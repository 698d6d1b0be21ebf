// SPDX-License-Identifier: Apache-2.0
#include "conformance/memory.h"

#include <cstdlib>
#include <cstring>

namespace mica::conformance {
namespace {

class HostMemory final : public Memory {
 public:
  mica_device device() const override { return {MICA_CPU, 0}; }
  void* stream() const override { return nullptr; }
  void* allocate(size_t bytes) override { return std::aligned_alloc(256, (bytes + 255) / 256 * 256); }
  void release(void* address) override { std::free(address); }
  void upload(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  const char* synchronise() override { return ""; }
};

}  // namespace

Memory& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace mica::conformance
