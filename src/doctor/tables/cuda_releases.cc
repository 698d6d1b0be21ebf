// SPDX-License-Identifier: Apache-2.0
#include "doctor/tables/cuda_releases.h"

namespace doctor {
namespace {

// A driver branch, the CUDA it came with, and the PTX that CUDA writes.
struct Release {
  int driver, cuda_major, cuda_minor, ptx_major, ptx_minor;
};
constexpr Release kReleases[] = {
    {450, 11, 0, 7, 0}, {455, 11, 1, 7, 1}, {460, 11, 2, 7, 2}, {465, 11, 3, 7, 3}, {470, 11, 4, 7, 4},
    {495, 11, 5, 7, 5}, {510, 11, 6, 7, 6}, {515, 11, 7, 7, 7}, {520, 11, 8, 7, 8}, {525, 12, 0, 8, 0},
    {530, 12, 1, 8, 1}, {535, 12, 2, 8, 2}, {545, 12, 3, 8, 3}, {550, 12, 4, 8, 4}, {555, 12, 5, 8, 5},
    {560, 12, 6, 8, 5}, {565, 12, 7, 8, 6}, {570, 12, 8, 8, 7}, {575, 12, 9, 8, 8}, {580, 13, 0, 9, 0},
    {590, 13, 1, 9, 1},
};

}  // namespace

Version first_cuda_of(int sm) {
  if (sm >= 110 && sm < 120) return {{13, 0}};
  if (sm == 103 || sm == 121) return {{12, 9}};
  if (sm >= 100) return {{12, 8}};
  if (sm >= 89) return {{11, 8}};
  if (sm >= 87) return {{11, 4}};
  if (sm >= 86) return {{11, 1}};
  return {{11, 0}};
}

Version driver_for_cuda(const Version& cuda) {
  for (const Release& r : kReleases)
    if (r.cuda_major == cuda.major_part() && r.cuda_minor == cuda.minor_part()) return {{r.driver}};
  return {};
}

Version cuda_for_driver(const Version& driver) {
  Version out;
  for (const Release& r : kReleases)
    if (driver.major_part() >= r.driver) out = {{r.cuda_major, r.cuda_minor}};
  return out;
}

Version cuda_for_ptx(const Version& isa) {
  for (const Release& r : kReleases)
    if (r.ptx_major == isa.major_part() && r.ptx_minor == isa.minor_part()) return {{r.cuda_major, r.cuda_minor}};
  return {};
}

Version lowest_driver_of_major(int cuda_major) {
  for (const Release& r : kReleases)
    if (r.cuda_major == cuda_major) return {{r.driver}};
  return {};
}

}  // namespace doctor
