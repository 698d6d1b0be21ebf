// SPDX-License-Identifier: Apache-2.0
// NVIDIA's GPUs: which there are, and which one a PCI device id or a name stands for.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "doctor/tables/gpu_arch.h"

namespace doctor {

struct KnownGpu {
  ComputeCapability capability;
  const char* examples;  // "A100"
};
std::span<const KnownGpu> known_gpus();

// From tables of PCI device ids and of names.
std::optional<ComputeCapability> capability_of_device(int pci_device_id);
std::optional<ComputeCapability> capability_of_name(std::string_view name);

}  // namespace doctor
