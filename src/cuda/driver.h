// SPDX-License-Identifier: Apache-2.0
// The NVIDIA driver, opened at run time: its functions, its devices, their primary contexts.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "core/types.h"
#include "cuda/driver_api.h"

namespace mica {

constexpr i32 kMinCudaVersion = 12000;        // driver 525
constexpr i32 kLoadInCaptureVersion = 12030;  // from here on a kernel may be loaded while a stream is captured

struct Device {
  cu::Device handle;
  i32 arch;  // 90 for compute capability 9.0
  i32 num_sms;
  i32 max_smem_bytes;  // of one block
  i32 l2_bytes;
  char name[96];
};

class Driver {
 public:
  // Opens the library and counts devices; whatever is missing ends up in problem().
  explicit Driver(const char* library_name);
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // The process's one, opened at the first call.
  static Driver& instance();

  // "" when there is at least one device; else what is missing and what would help.
  const char* problem() const { return problem_; }
  i32 device_count() const { return device_count_; }
  const Device& device(i32 ordinal) const { return devices_[ordinal]; }
  i32 cuda_version() const { return cuda_version_; }  // 12080 for 12.8
  const cu::Api& api() const { return api_; }

  // The primary context, which the CUDA runtime and PyTorch use too. Retained once and kept.
  mica_status primary_context(i32 ordinal, cu::Context* context);

  // Turns an error of the driver into a status; the message names the call and the error.
  mica_status check(cu::Result result, const char* call) const {
    return result == cu::kSuccess ? MICA_OK : report(result, call);
  }
  // The same for what a plan asks for, which a capture may forbid. `what`: what was to be loaded.
  mica_status check_loading(cu::Result result, const char* call, const char* what) const {
    return result == cu::kSuccess ? MICA_OK : report_loading(result, call, what);
  }

 private:
  mica_status report(cu::Result result, const char* call) const;
  mica_status report_loading(cu::Result result, const char* call, const char* what) const;
  bool open(const char* library_name);
  bool find_functions(cu::GetProcAddress get);
  bool find_devices();
  bool give_up(const char* format, ...) __attribute__((format(printf, 2, 3)));

  cu::Api api_;
  i32 cuda_version_ = 0;
  i32 device_count_ = 0;
  std::unique_ptr<Device[]> devices_;
  std::unique_ptr<std::atomic<cu::Context>[]> contexts_;
  std::mutex context_mutex_;
  char problem_[400] = "";
};

// Makes a device's primary context current for a scope, if it is not already; gives the caller's back at the end.
class ScopedContext {
 public:
  ScopedContext(Driver& driver, i32 ordinal);
  ~ScopedContext();
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;
  mica_status status() const { return status_; }

 private:
  const cu::Api& api_;
  mica_status status_;
  bool pushed_ = false;
};

// Lets this thread allocate and load while one of its streams is captured, where the driver allows that.
class ScopedRelaxedCapture {
 public:
  explicit ScopedRelaxedCapture(const Driver& driver);
  ~ScopedRelaxedCapture();
  ScopedRelaxedCapture(const ScopedRelaxedCapture&) = delete;
  ScopedRelaxedCapture& operator=(const ScopedRelaxedCapture&) = delete;

 private:
  const cu::Api& api_;
  int mode_ = cu::kCaptureRelaxed;
  bool exchanged_ = false;
};

}  // namespace mica
