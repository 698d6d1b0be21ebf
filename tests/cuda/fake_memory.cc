// SPDX-License-Identifier: Apache-2.0
// The fake driver's memory, streams and graphs: what a test program asks for beside what the library does. Device
// memory is host memory; a launch is done when it returns; a captured one is kept and done when its graph is launched.
#include "tests/cuda/fake_memory.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace mica::test {
namespace {

struct Captured {
  void* function;
  FakeLaunch launch;
};
using Graph = std::vector<Captured>;

struct Stream {
  Graph* capturing = nullptr;
};

int cuCtxSetCurrent(void* context) {
  mica_fake_set_context(context);
  return 0;
}
// The host hands out pages when they are touched.
int cuMemGetInfo(size_t* free, size_t* total) {
  *free = *total = size_t{16} << 30;
  return 0;
}
int cuMemAlloc(std::uint64_t* address, size_t bytes) {
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  *address = reinterpret_cast<std::uintptr_t>(memory);
  return memory ? 0 : 2;
}
int cuMemFree(std::uint64_t address) {
  std::free(reinterpret_cast<void*>(address));
  return 0;
}
int cuMemcpyHtoD(std::uint64_t to, const void* from, size_t bytes) {
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return 0;
}
int cuMemcpyDtoH(void* to, std::uint64_t from, size_t bytes) {
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return 0;
}
int cuMemsetD8(std::uint64_t to, unsigned char value, size_t bytes) {
  std::memset(reinterpret_cast<void*>(to), value, bytes);
  return 0;
}
int cuStreamCreate(void** stream, unsigned) {
  *stream = new Stream;
  return 0;
}
int cuStreamDestroy(void* stream) {
  delete static_cast<Stream*>(stream);
  return 0;
}
int cuStreamBeginCapture(void* stream, int) {
  static_cast<Stream*>(stream)->capturing = new Graph;
  return 0;
}
int cuStreamEndCapture(void* stream, void** graph) {
  *graph = static_cast<Stream*>(stream)->capturing;
  static_cast<Stream*>(stream)->capturing = nullptr;
  return 0;
}
int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
  *executable = graph;
  return 0;
}
int cuGraphLaunch(void* graph, void*) {
  for (const Captured& c : *static_cast<const Graph*>(graph)) {
    const int result = mica_fake_driver()->run_kernel(static_cast<const char*>(c.function), c.launch, c.launch.params);
    if (result != 0) return result;
  }
  return 0;
}

}  // namespace

void* find_memory_function(const char* symbol) {
#define MICA_FIND(name) \
  if (std::strcmp(symbol, #name) == 0) return reinterpret_cast<void*>(name);
  MICA_FIND(cuCtxSetCurrent)
  MICA_FIND(cuMemGetInfo)
  MICA_FIND(cuMemAlloc)
  MICA_FIND(cuMemFree)
  MICA_FIND(cuMemcpyHtoD)
  MICA_FIND(cuMemcpyDtoH)
  MICA_FIND(cuMemsetD8)
  MICA_FIND(cuStreamCreate)
  MICA_FIND(cuStreamDestroy)
  MICA_FIND(cuStreamBeginCapture)
  MICA_FIND(cuStreamEndCapture)
  MICA_FIND(cuGraphInstantiateWithFlags)
  MICA_FIND(cuGraphLaunch)
#undef MICA_FIND
  return nullptr;
}

bool capture_launch(void* stream, const void* function, const FakeLaunch& launch, const void* params) {
  Stream* s = static_cast<Stream*>(stream);
  if (!s || !s->capturing) return false;
  constexpr size_t kParamsBytes = 3584;  // as much as the library's plans have room for
  s->capturing->push_back({const_cast<void*>(function), launch});
  std::memcpy(s->capturing->back().launch.params, params, kParamsBytes);
  return true;
}

}  // namespace mica::test
