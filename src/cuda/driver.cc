// SPDX-License-Identifier: Apache-2.0
#include "cuda/driver.h"

#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace mica {

Driver::Driver(const char* library_name) {
  if (open(library_name)) find_devices();
}

Driver& Driver::instance() {
  // Never destroyed: at process exit the driver may be gone before this library is.
  static Driver* driver = new Driver("libcuda.so.1");
  return *driver;
}

bool Driver::give_up(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(problem_, sizeof problem_, format, arguments);
  va_end(arguments);
  device_count_ = 0;
  return false;
}

bool Driver::open(const char* library_name) {
  void* library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* reason = dlerror();
    return give_up(
        "no NVIDIA driver: %s; install driver 525 or later (in a container: start it with the GPU, as --gpus all does)",
        reason ? reason : library_name);
  }
  const auto get_version = reinterpret_cast<cu::Result (*)(int*)>(dlsym(library, "cuDriverGetVersion"));
  if (!get_version || get_version(&cuda_version_) != cu::kSuccess)
    return give_up("%s is no NVIDIA driver: it does not tell its version; install driver 525 or later", library_name);
  const auto get = reinterpret_cast<cu::GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
  if (cuda_version_ < kMinCudaVersion || !get)
    return give_up("the NVIDIA driver is too old: it supports CUDA %d.%d, want 12.0; install driver 525 or later",
                   cuda_version_ / 1000, cuda_version_ % 1000 / 10);
  return find_functions(get);
}

bool Driver::find_functions(cu::GetProcAddress get) {
  struct Wanted {
    const char* symbol;
    int version;
    void** function;
  };
  const Wanted wanted[] = {
#define MICA_WANT(symbol, version, parameters) {#symbol, version, reinterpret_cast<void**>(&api_.symbol)},
      MICA_DRIVER_FUNCTIONS(MICA_WANT)
#undef MICA_WANT
  };
  for (const Wanted& w : wanted) {
    int found = 0;
    if (get(w.symbol, w.function, w.version, 0, &found) == cu::kSuccess && *w.function) continue;
    *w.function = nullptr;
    if (w.version <= kMinCudaVersion)
      return give_up("the NVIDIA driver (CUDA %d.%d) lacks %s; install driver 525 or later", cuda_version_ / 1000,
                     cuda_version_ % 1000 / 10, w.symbol);
  }
  return true;
}

bool Driver::find_devices() {
  const cu::Result started = api_.cuInit(0);
  if (started == cu::kStubLibrary)
    return give_up("libcuda.so.1 is the toolkit's stub, not a driver; take its folder out of LD_LIBRARY_PATH");
  if (started == cu::kSystemDriverMismatch || started == cu::kCompatNotSupported)
    return give_up(
        "the NVIDIA driver's library and its kernel module do not match (CUDA error %d); restart, or make "
        "the container use the host's libcuda.so.1",
        started);
  int count = 0;
  if (started == cu::kSuccess && api_.cuDeviceGetCount(&count) == cu::kSuccess && count == 0)
    return give_up("the NVIDIA driver shows no GPU; see nvidia-smi and CUDA_VISIBLE_DEVICES");
  if (started == cu::kNoDevice)
    return give_up("the NVIDIA driver finds no GPU; see nvidia-smi and CUDA_VISIBLE_DEVICES");
  if (started != cu::kSuccess) {
    const char *name = "", *text = "";
    api_.cuGetErrorName(started, &name);
    api_.cuGetErrorString(started, &text);
    return give_up("the NVIDIA driver does not start: cuInit gives %d (%s: %s); see nvidia-smi", started,
                   name ? name : "unknown error", text ? text : "");
  }
  devices_ = std::make_unique<Device[]>(count);
  contexts_ = std::make_unique<std::atomic<cu::Context>[]>(count);
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    Device& d = devices_[ordinal];
    int major = 0, minor = 0;
    const bool read =
        api_.cuDeviceGet(&d.handle, ordinal) == cu::kSuccess &&
        api_.cuDeviceGetName(d.name, sizeof d.name, d.handle) == cu::kSuccess &&
        api_.cuDeviceGetAttribute(&major, cu::kComputeMajor, d.handle) == cu::kSuccess &&
        api_.cuDeviceGetAttribute(&minor, cu::kComputeMinor, d.handle) == cu::kSuccess &&
        api_.cuDeviceGetAttribute(&d.num_sms, cu::kMultiprocessorCount, d.handle) == cu::kSuccess &&
        api_.cuDeviceGetAttribute(&d.max_smem_bytes, cu::kMaxSharedBytesPerBlock, d.handle) == cu::kSuccess &&
        api_.cuDeviceGetAttribute(&d.l2_bytes, cu::kL2CacheBytes, d.handle) == cu::kSuccess;
    if (!read) return give_up("the NVIDIA driver does not describe GPU %d; see nvidia-smi", ordinal);
    d.arch = major * 10 + minor;
  }
  device_count_ = count;
  return true;
}

mica_status Driver::report(cu::Result result, const char* call) const {
  const char *name = nullptr, *text = nullptr;
  api_.cuGetErrorName(result, &name);
  api_.cuGetErrorString(result, &text);
  return fail(result == cu::kOutOfMemory ? MICA_ERROR_OUT_OF_MEMORY : MICA_ERROR_DEVICE, "%s gives %d (%s: %s)", call,
              result, name ? name : "unknown error", text ? text : "");
}

mica_status Driver::report_loading(cu::Result result, const char* call, const char* what) const {
  const i32 major = cuda_version_ / 1000, minor = cuda_version_ % 1000 / 10;
  if (result >= cu::kStreamCaptureUnsupported && result <= cu::kStreamCaptureLast)
    return fail(MICA_ERROR_DEVICE,
                "%s cannot be loaded while a stream is captured (CUDA error %d, driver for CUDA %d.%d): make the plan "
                "once before the capture, or install a driver for CUDA 12.3 or later",
                what, result, major, minor);
  if (result == cu::kUnsupportedPtxVersion)
    return fail(MICA_ERROR_DEVICE,
                "%s has no machine code for this GPU, and its PTX is newer than the driver (CUDA %d.%d): install a "
                "driver for CUDA 12.9 or later",
                what, major, minor);
  char text[128];
  std::snprintf(text, sizeof text, "loading %s: %s", what, call);
  return report(result, text);
}

mica_status Driver::primary_context(i32 ordinal, cu::Context* context) {
  *context = contexts_[ordinal].load(std::memory_order_acquire);
  if (*context) return MICA_OK;
  const std::lock_guard lock(context_mutex_);
  *context = contexts_[ordinal].load(std::memory_order_relaxed);
  if (*context) return MICA_OK;
  const mica_status status = check_loading(api_.cuDevicePrimaryCtxRetain(context, devices_[ordinal].handle),
                                           "cuDevicePrimaryCtxRetain", "the primary context");
  if (status == MICA_OK) contexts_[ordinal].store(*context, std::memory_order_release);
  return status;
}

ScopedContext::ScopedContext(Driver& driver, i32 ordinal) : api_(driver.api()) {
  cu::Context wanted = nullptr, current = nullptr;
  status_ = driver.primary_context(ordinal, &wanted);
  if (status_ != MICA_OK) return;
  if (api_.cuCtxGetCurrent(&current) == cu::kSuccess && current == wanted) return;
  status_ = driver.check(api_.cuCtxPushCurrent(wanted), "cuCtxPushCurrent");
  pushed_ = status_ == MICA_OK;
}

ScopedContext::~ScopedContext() {
  cu::Context popped;
  if (pushed_) api_.cuCtxPopCurrent(&popped);
}

ScopedRelaxedCapture::ScopedRelaxedCapture(const Driver& driver) : api_(driver.api()) {
  if (driver.cuda_version() >= kLoadInCaptureVersion)
    exchanged_ = api_.cuThreadExchangeStreamCaptureMode(&mode_) == cu::kSuccess;
}

ScopedRelaxedCapture::~ScopedRelaxedCapture() {
  if (exchanged_) api_.cuThreadExchangeStreamCaptureMode(&mode_);
}

}  // namespace mica
