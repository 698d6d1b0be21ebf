// SPDX-License-Identifier: Apache-2.0
// Memory of the device that a problem runs on.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "conformance/memory.h"

namespace cli {

class DeviceMemory {
 public:
  // Throws std::runtime_error, with the library's or the driver's reason, where there is no such device.
  explicit DeviceMemory(mica_device device) {
    if (!mica_device_description(device)) throw std::runtime_error(mica_last_error());
    if (device.backend == MICA_CPU) return;
    std::string why_not;
    cuda_ = mica::conformance::cuda_memory(device.ordinal, &why_not);
    if (!cuda_) throw std::runtime_error(why_not);
  }
  mica::conformance::Memory& get() { return cuda_ ? *cuda_ : mica::conformance::host_memory(); }

 private:
  std::unique_ptr<mica::conformance::Memory> cuda_;
};

}  // namespace cli
