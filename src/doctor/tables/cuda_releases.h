// SPDX-License-Identifier: Apache-2.0
// CUDA releases: their drivers, their PTX, and the architectures that they brought.
#pragma once

#include <optional>

#include "support/version.h"

namespace doctor {

using namespace support;

Version driver_for_cuda(const Version& cuda);    // 12.4 -> 550; not known for a CUDA that is not in the table
Version cuda_for_driver(const Version& driver);  // 550.54 -> 12.4
Version cuda_for_ptx(const Version& isa);        // 8.4 -> 12.4
// Of PTX that is later than the table, only drivers that are later too count as able to read it.
bool driver_takes_ptx(const Version& driver, const Version& isa);
// The lowest driver that runs programs linked with this CUDA major: 12 -> 525.
Version lowest_driver_of_major(int cuda_major);

// Which releases of nvcc know an architecture.
struct KnownArchitecture {
  int sm;
  Version first;    // that has it
  Version dropped;  // that no longer has it; not known: all later ones have it
};
// Nothing for a number that is no architecture.
std::optional<KnownArchitecture> known_architecture(int sm);
// The major version of the newest g++ that its nvcc takes; 0: not known.
int newest_gcc_of_cuda(const Version& cuda);
// The CUDA that first knew an architecture, or the one before it in the table if that number is not there; at
// least 11.0, with which the table of drivers begins.
Version first_cuda_of(int sm);

}  // namespace doctor
