// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/gpu.h"

#include <dlfcn.h>

#include "mica/mica.h"

namespace mica::test {
namespace {

using GetProcAddress = int (*)(const char*, void**, int, std::uint64_t, int*);

struct Finder {
  GetProcAddress get = nullptr;
  std::string missing;

  // version: the CUDA version that brought the signature.
  template <class Function>
  void operator()(const char* name, int version, Function& function) {
    void* found = nullptr;
    int status = 0;
    if (get(name, &found, version, 0, &status) != 0 || !found) missing += std::string(" ") + name;
    function = reinterpret_cast<Function>(found);
  }
};

}  // namespace

Gpu& Gpu::instance() {
  static Gpu gpu;
  return gpu;
}

Gpu::Gpu() : problem_(open()) {}

std::string Gpu::open() {
  if (mica_device_count(MICA_CUDA) == 0) return mica_last_error();
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  Finder find;
  find.get = library ? reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2")) : nullptr;
  if (!find.get) return "libcuda.so.1 has no cuGetProcAddress_v2";
  find("cuInit", 2000, f_.init);
  find("cuDeviceGet", 2000, f_.device_get);
  find("cuDevicePrimaryCtxRetain", 7000, f_.primary_context_retain);
  find("cuCtxSetCurrent", 4000, f_.context_set_current);
  find("cuMemGetInfo", 3020, f_.mem_get_info);
  find("cuMemAlloc", 3020, f_.mem_alloc);
  find("cuMemFree", 3020, f_.mem_free);
  find("cuMemcpyHtoD", 3020, f_.copy_to_device);
  find("cuMemcpyDtoH", 3020, f_.copy_to_host);
  find("cuMemsetD8", 3020, f_.memset_bytes);
  find("cuStreamCreate", 2000, f_.stream_create);
  find("cuStreamDestroy", 4000, f_.stream_destroy);
  find("cuStreamSynchronize", 2000, f_.stream_synchronize);
  find("cuStreamBeginCapture", 10010, f_.begin_capture);
  find("cuStreamEndCapture", 10000, f_.end_capture);
  // By the name alone: a driver may still give cuGraphInstantiate with the five arguments it once had.
  find("cuGraphInstantiateWithFlags", 11040, f_.graph_instantiate);
  find("cuGraphLaunch", 10000, f_.graph_launch);
  find("cuGetErrorName", 6000, f_.error_name);
  if (!find.missing.empty()) return "the driver lacks" + find.missing;
  int device = 0;
  if (f_.init(0) || f_.device_get(&device, 0)) return "no GPU 0";
  if (f_.primary_context_retain(&context_, device) || f_.context_set_current(context_))
    return "the GPU gives no context";
  return "";
}

size_t Gpu::free_bytes() const {
  size_t free = 0, total = 0;
  return f_.mem_get_info(&free, &total) == 0 ? free : 0;
}

void* Gpu::allocate(size_t bytes) const {
  Address address = 0;
  return f_.mem_alloc(&address, bytes) == 0 ? reinterpret_cast<void*>(address) : nullptr;
}

void Gpu::upload(void* to, const void* from, size_t bytes) const {
  f_.copy_to_device(reinterpret_cast<Address>(to), from, bytes);
  f_.stream_synchronize(nullptr);  // the tests' streams do not wait for this one
}
void Gpu::download(void* to, const void* from, size_t bytes) const {
  f_.copy_to_host(to, reinterpret_cast<Address>(from), bytes);
}
void Gpu::fill(void* to, unsigned char value, size_t bytes) const {
  f_.memset_bytes(reinterpret_cast<Address>(to), value, bytes);
  f_.stream_synchronize(nullptr);
}

void* Gpu::create_stream() const {
  constexpr unsigned kNonBlocking = 1;
  void* stream = nullptr;
  return f_.stream_create(&stream, kNonBlocking) == 0 ? stream : nullptr;
}

std::string Gpu::synchronise(void* stream) const {
  const int result = f_.stream_synchronize(stream);
  const char* name = "unknown CUDA error";
  if (result) f_.error_name(result, &name);
  return result ? name : "";
}

void* Gpu::end_capture(void* stream) const {
  void *graph = nullptr, *executable = nullptr;
  if (f_.end_capture(stream, &graph) || !graph) return nullptr;
  return f_.graph_instantiate(&executable, graph, 0) == 0 ? executable : nullptr;
}

}  // namespace mica::test
