// SPDX-License-Identifier: Apache-2.0
// A GPU's memory, through the driver library opened at run time.
#include <dlfcn.h>

#include <cstdint>
#include <memory>
#include <string>

#include "conformance/memory.h"

namespace mica::conformance {
namespace {

// The few driver functions this needs, as the driver API's manual declares them.
struct CudaFunctions {
  int (*init)(unsigned);
  int (*device_get)(int*, int);
  int (*primary_context_retain)(void**, int);
  int (*context_set_current)(void*);
  int (*stream_create)(void**, unsigned);
  int (*stream_synchronize)(void*);
  int (*mem_alloc)(std::uint64_t*, size_t);
  int (*mem_free)(std::uint64_t);
  int (*copy_to_device)(std::uint64_t, const void*, size_t, void*);
  int (*copy_to_host)(void*, std::uint64_t, size_t, void*);
  int (*error_name)(int, const char**);
};

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

bool find_all(void* library, CudaFunctions& f) {
  return find(library, "cuInit", f.init) && find(library, "cuDeviceGet", f.device_get) &&
         find(library, "cuDevicePrimaryCtxRetain", f.primary_context_retain) &&
         find(library, "cuCtxSetCurrent", f.context_set_current) && find(library, "cuStreamCreate", f.stream_create) &&
         find(library, "cuStreamSynchronize", f.stream_synchronize) && find(library, "cuMemAlloc_v2", f.mem_alloc) &&
         find(library, "cuMemFree_v2", f.mem_free) && find(library, "cuMemcpyHtoDAsync_v2", f.copy_to_device) &&
         find(library, "cuMemcpyDtoHAsync_v2", f.copy_to_host) && find(library, "cuGetErrorName", f.error_name);
}

constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING: the default stream orders nothing for us

// Cases may run in several threads: each call makes the context current first. An error of the GPU sticks to its
// context, so that synchronise() sees it.
class CudaMemory final : public Memory {
 public:
  // "" or what is missing.
  std::string open(int ordinal) {
    ordinal_ = ordinal;
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library || !find_all(library, f_)) return "no usable libcuda.so.1";
    int device = 0;
    if (f_.init(0) || f_.device_get(&device, ordinal)) return "no GPU " + std::to_string(ordinal);
    if (f_.primary_context_retain(&context_, device) || f_.context_set_current(context_))
      return "the GPU gives no context";
    return f_.stream_create(&stream_, kNonBlocking) ? "the GPU gives no stream" : "";
  }

  mica_device device() const override { return {MICA_CUDA, ordinal_}; }
  void* stream() const override { return stream_; }
  void* allocate(size_t bytes) override {
    std::uint64_t address = 0;
    f_.context_set_current(context_);
    return f_.mem_alloc(&address, bytes ? bytes : 1) ? nullptr : reinterpret_cast<void*>(address);
  }
  void release(void* address) override {
    f_.context_set_current(context_);
    if (address) f_.mem_free(reinterpret_cast<std::uint64_t>(address));
  }
  void upload(void* to, const void* from, size_t bytes) override {
    f_.context_set_current(context_);
    if (bytes) f_.copy_to_device(reinterpret_cast<std::uint64_t>(to), from, bytes, stream_);
    f_.stream_synchronize(stream_);
  }
  void download(void* to, const void* from, size_t bytes) override {
    f_.context_set_current(context_);
    if (bytes) f_.copy_to_host(to, reinterpret_cast<std::uint64_t>(from), bytes, stream_);
    f_.stream_synchronize(stream_);
  }
  const char* synchronise() override {
    f_.context_set_current(context_);
    const int result = f_.stream_synchronize(stream_);
    const char* name = "unknown CUDA error";
    if (result) f_.error_name(result, &name);
    return result ? name : "";
  }

 private:
  CudaFunctions f_ = {};
  int ordinal_ = 0;
  void* context_ = nullptr;
  void* stream_ = nullptr;
};

}  // namespace

std::unique_ptr<Memory> cuda_memory(int ordinal, std::string* why_not) {
  // The library knows best why there is no GPU.
  if (ordinal >= mica_device_count(MICA_CUDA)) {
    *why_not = mica_device_count(MICA_CUDA) > 0 ? "no GPU " + std::to_string(ordinal) : mica_last_error();
    return nullptr;
  }
  auto memory = std::make_unique<CudaMemory>();
  *why_not = memory->open(ordinal);
  return why_not->empty() ? std::move(memory) : nullptr;
}

}  // namespace mica::conformance
