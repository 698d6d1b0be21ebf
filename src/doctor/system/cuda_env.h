// SPDX-License-Identifier: Apache-2.0
// NVIDIA's driver, GPUs and toolkits, found without calling any of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "doctor/facts/environment.h"
#include "doctor/system/outlook.h"
#include "doctor/tables/gpu_arch.h"

namespace doctor {

struct DriverFacts {
  Version version;                         // 580.95.05; not known: none found
  Version cuda;                            // the highest it speaks
  std::string found_in;                    // the file that says so
  std::string library;                     // libcuda.so.1, where the loader would find it; empty if it would not
  std::vector<std::string> compatibility;  // folders with a libcuda of a newer toolkit (cuda-compat)
};

struct FoundGpu {
  std::string name, place;                      // "NVIDIA H100 80GB HBM3", "0000:1b:00.0"
  int device_id = 0;                            // of the PCI bus; 0 if not known
  std::optional<ComputeCapability> capability;  // nothing: an id that is not in the table
};

struct Toolkit {
  std::string folder;    // /usr/local/cuda-12.8, links followed
  std::string found_by;  // "CUDA_HOME", "PATH", "/usr/local", "conda", "pip"
  Version version;
  std::string nvcc;       // path; empty: libraries only
  int most_gcc = 0;       // the newest g++ that it takes, by its own header, else by the table; 0: not known
  bool is_first = false;  // its nvcc is the one that `nvcc` starts
  bool is_cuda_home = false;
};

DriverFacts read_driver(const Outlook& outlook, const LoaderFacts& loader);
std::vector<FoundGpu> read_gpus(const Outlook& outlook);
// `prefixes`: conda environments; `site_packages`: of the Pythons found.
std::vector<Toolkit> read_toolkits(const Outlook& outlook, const std::vector<std::string>& prefixes,
                                   const std::vector<std::string>& site_packages);
// The one that a build would take: CUDA_HOME, else nvcc on PATH, else /usr/local/cuda. nullptr: none.
const Toolkit* build_toolkit(const std::vector<Toolkit>& toolkits);

// "nvcc V13.0.88" and the like inside of the compiler's own file.
Version nvcc_version_in(std::string_view bytes);

}  // namespace doctor
