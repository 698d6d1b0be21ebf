// SPDX-License-Identifier: Apache-2.0
#include "doctor/tables/gpu_arch.h"

namespace doctor {

std::string GpuArch::text(const char* prefix) const {
  return prefix + std::to_string(sm) + (suffix ? std::string(1, suffix) : "");
}

}  // namespace doctor
