// SPDX-License-Identifier: Apache-2.0
#include "conformance/memory.h"

#include <cstdlib>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#define MICA_HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MICA_HAS_ASAN 1
#endif
#endif
#ifdef MICA_HAS_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

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
  void fence(void* address, size_t bytes) override { ASAN_POISON_MEMORY_REGION(address, bytes); }
  void open_fence(void* address, size_t bytes) override { ASAN_UNPOISON_MEMORY_REGION(address, bytes); }
  const char* synchronise() override { return ""; }
};

}  // namespace

Memory& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace mica::conformance
