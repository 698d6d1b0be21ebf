// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/fake_driver.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/driver_api.h"
#include "tests/cuda/fake_memory.h"
#include "tests/cuda/fake_tensor_map.h"

namespace mica::test {
namespace {

using namespace cu;

FakeDriver state;
std::mutex launch_mutex;
thread_local std::vector<void*> contexts;
thread_local int capture_mode = kCaptureGlobal;

// Any nonzero address makes a handle.
template <class Handle>
Handle handle(unsigned kind, unsigned index) {
  return reinterpret_cast<Handle>(std::uintptr_t(0x1000 * kind + index + 1));
}

// Kept for the life of the process, as handles are.
char* keep_name(const char* name) {
  static std::mutex mutex;
  static std::deque<std::string> names;
  const std::lock_guard lock(mutex);
  return names.emplace_back(name).data();
}

bool refused_by_capture() { return state.capturing && capture_mode != kCaptureRelaxed; }

Result cuInit(unsigned) { return state.init_result; }
Result cuGetErrorName(Result, const char** text) { return *text = "FAKE_ERROR", kSuccess; }
Result cuGetErrorString(Result, const char** text) { return *text = "as the test wanted", kSuccess; }
Result cuDeviceGetCount(int* count) { return *count = state.device_count, kSuccess; }
Result cuDeviceGet(Device* device, int ordinal) { return *device = 10 + ordinal, kSuccess; }
Result cuDeviceGetName(char* name, int bytes, Device device) {
  std::snprintf(name, bytes, "Fake GPU %d", device - 10);
  return kSuccess;
}
// Few, so that a block takes several tiles of a small problem.
int num_sms() {
  const char* wanted = std::getenv("MICA_EMULATED_SMS");
  return wanted ? std::atoi(wanted) : 100;
}
// Little, so that a small problem's keys come from memory.
int l2_bytes() {
  const char* wanted = std::getenv("MICA_EMULATED_L2");
  return wanted ? std::atoi(wanted) : 50 << 20;
}
Result cuDeviceGetAttribute(int* value, int attribute, Device device) {
  const int ordinal = device - 10;
  switch (attribute) {
    case kComputeMajor: *value = state.arch[ordinal] / 10; break;
    case kComputeMinor: *value = state.arch[ordinal] % 10; break;
    case kMultiprocessorCount: *value = num_sms(); break;
    case kMaxSharedBytesPerBlock: *value = state.max_smem_bytes[ordinal]; break;
    case kL2CacheBytes: *value = l2_bytes(); break;
    default: return kInvalidValue;
  }
  return kSuccess;
}
Result cuDevicePrimaryCtxRetain(Context* context, Device device) {
  if (refused_by_capture()) return kStreamCaptureUnsupported;
  ++state.retains;
  *context = handle<Context>(1, device);
  return kSuccess;
}
Result cuCtxGetCurrent(Context* context) {
  *context = contexts.empty() ? nullptr : static_cast<Context>(contexts.back());
  return kSuccess;
}
Result cuCtxPushCurrent(Context context) {
  ++state.pushes;
  contexts.push_back(context);
  return kSuccess;
}
Result cuCtxPopCurrent(Context* context) {
  if (contexts.empty()) return kInvalidContext;
  ++state.pops;
  *context = static_cast<Context>(contexts.back());
  contexts.pop_back();
  return kSuccess;
}
Result cuLibraryLoadData(Library* library, const void*, int*, void**, unsigned, int*, void**, unsigned) {
  if (refused_by_capture()) return kStreamCaptureUnsupported;
  if (state.load_result != kSuccess) return state.load_result;
  *library = handle<Library>(2, unsigned(state.loads++));
  return kSuccess;
}
Result cuLibraryUnload(Library) { return kSuccess; }
// A kernel is a copy of its name; a function of it is another.
Result cuLibraryGetKernel(Kernel* kernel, Library, const char* name) {
  if (state.get_kernel_result != kSuccess) return state.get_kernel_result;
  *kernel = reinterpret_cast<Kernel>(keep_name(name));
  return kSuccess;
}
Result cuKernelGetFunction(Function* function, Kernel kernel) {
  if (contexts.empty()) return kInvalidContext;
  ++state.functions;
  *function = reinterpret_cast<Function>(keep_name(reinterpret_cast<const char*>(kernel)));
  return kSuccess;
}
Result cuFuncSetAttribute(Function, int attribute, int value) {
  if (attribute == kMaxDynamicSharedBytes) state.max_dynamic_smem = value;
  return kSuccess;
}
Result cuFuncGetAttribute(int* value, int, Function) { return *value = 0, kSuccess; }
Result cuFuncLoad(Function) { return kSuccess; }
Result cuLaunchKernelEx(const LaunchConfig* config, Function function, void** arguments, void**) {
  if (contexts.empty()) return kInvalidContext;
  if (state.launch_result != kSuccess) return state.launch_result;
  ++state.launches;
  const std::lock_guard lock(launch_mutex);
  const auto has = [&](int id) {
    for (unsigned i = 0; i < config->num_attributes; ++i)
      if (config->attributes[i].id == id) return config->attributes[i].value.is_allowed != 0;
    return false;
  };
  state.last_launch = FakeLaunch{function,
                                 config->grid_x,
                                 config->block_x,
                                 config->shared_bytes,
                                 config->stream,
                                 contexts.back(),
                                 has(kProgrammaticStreamSerialization),
                                 has(kCooperative),
                                 {}};
  std::memcpy(state.last_launch.params, arguments[0], state.params_bytes);
  if (!state.run_kernel) return kSuccess;
  if (capture_launch(config->stream, function, state.last_launch, arguments[0])) return kSuccess;
  return state.run_kernel(reinterpret_cast<const char*>(function), state.last_launch, arguments[0]);
}
Result cuStreamIsCapturing(Stream, int* status) { return *status = state.capturing, kSuccess; }
Result cuThreadExchangeStreamCaptureMode(int* mode) {
  ++state.mode_exchanges;
  const int previous = capture_mode;
  capture_mode = *mode;
  *mode = previous;
  return kSuccess;
}
Result cuStreamSynchronize(Stream) { return ++state.synchronisations, kSuccess; }
// Device memory is host memory here, so that the test can look at it; page 0 stands for memory out of reach.
Result cuPointerGetAttribute(void* value, int, DevicePointer pointer) {
  if (pointer < 4096) return kInvalidValue;
  return *static_cast<DevicePointer*>(value) = pointer, kSuccess;
}
Result cuMemcpyDtoHAsync(void* to, DevicePointer from, size_t bytes, Stream) {
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return kSuccess;
}
Result cuMemsetD8Async(DevicePointer to, unsigned char value, size_t bytes, Stream) {
  std::memset(reinterpret_cast<void*>(to), value, bytes);
  return kSuccess;
}
Result cuTensorMapEncodeTiled(TensorMap* map, int type, std::uint32_t rank, void* address, const std::uint64_t* dims,
                              const std::uint64_t* strides, const std::uint32_t* box,
                              const std::uint32_t* element_strides, int interleave, int swizzle, int l2_promotion,
                              int fill) {
  return encode_tensor_map(map, type, rank, address, dims, strides, box, element_strides, interleave, swizzle,
                           l2_promotion, fill);
}
Result cuTensorMapReplaceAddress(TensorMap* map, void* address) { return replace_tensor_map_address(map, address); }

}  // namespace

extern "C" {

FakeDriver* mica_fake_driver() { return &state; }

void mica_fake_reset() {
  state.cuda_version = 12080;
  state.init_result = state.load_result = state.get_kernel_result = state.launch_result = kSuccess;
  state.device_count = 2;
  constexpr int kArch[] = {90, 86, 80, 80}, kSmemKiB[] = {227, 99, 163, 163};
  for (int ordinal = 0; ordinal < 4; ++ordinal) {
    state.arch[ordinal] = kArch[ordinal];
    state.max_smem_bytes[ordinal] = kSmemKiB[ordinal] << 10;
  }
  state.missing_symbol = nullptr;
  state.capturing = false;
  state.params_bytes = 0;
  state.run_kernel = nullptr;
  state.loads = state.functions = state.retains = state.pushes = state.pops = 0;
  state.launches = state.mode_exchanges = state.synchronisations = state.max_dynamic_smem = 0;
  state.last_launch = {};
}

void mica_fake_set_context(void* context) {
  contexts.clear();
  if (context) contexts.push_back(context);
}
void* mica_fake_context() { return contexts.empty() ? nullptr : contexts.back(); }

__attribute__((visibility("default"))) int cuDriverGetVersion(int* version) {
  *version = state.cuda_version;
  return 0;
}

__attribute__((visibility("default"))) int cuGetProcAddress_v2(const char* symbol, void** function, int cuda_version,
                                                               std::uint64_t, int* status) {
  *function = nullptr;
  *status = 1;
  if (cuda_version > state.cuda_version) return 0;
  if (state.missing_symbol && std::strcmp(symbol, state.missing_symbol) == 0) return 0;
#define MICA_FIND(name, version, parameters) \
  if (std::strcmp(symbol, #name) == 0) *function = reinterpret_cast<void*>(name);
  MICA_DRIVER_FUNCTIONS(MICA_FIND)
#undef MICA_FIND
  if (!*function) *function = find_memory_function(symbol);
  *status = *function ? 0 : 1;
  return 0;
}

}  // extern "C"

// An ordinary driver also for programs that never ask for the state.
[[maybe_unused]] const bool is_ready = (mica_fake_reset(), true);

}  // namespace mica::test
