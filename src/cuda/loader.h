// SPDX-License-Identifier: Apache-2.0
// Kernels on their way from the library's data to a device: each is loaded when the first plan of a device asks for it.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "cuda/driver.h"
#include "cuda/images.h"

namespace mica {

class KernelLoader {
 public:
  struct Wanted {
    i32 device;
    i32 row;           // of the kernel table
    const char* name;  // its entry
    i32 smem_bytes;    // dynamic shared memory that a launch will ask for
  };

  KernelLoader(Driver& driver, const ImageTable& images, i32 num_rows);

  // The process's one.
  static KernelLoader& instance();

  // Thread-safe; without a lock once it is loaded.
  mica_status load(const Wanted& wanted, cu::Function* function);

 private:
  mica_status load_slowly(const Wanted& wanted, cu::Function* function);

  Driver& driver_;
  const ImageTable& images_;
  const i32 num_rows_;
  std::mutex mutex_;
  std::unique_ptr<std::atomic<cu::Function>[]> functions_;  // (device, row)
  std::unique_ptr<cu::Library[]> libraries_;                // per image; a library serves every device
};

}  // namespace mica
