// SPDX-License-Identifier: Apache-2.0
#include "doctor/tables/cuda_releases.h"

#include <algorithm>

namespace doctor {
namespace {

// A driver branch, the CUDA it came with, and the PTX that CUDA writes.
struct ToolkitRelease {
  int driver, cuda_major, cuda_minor, ptx_major, ptx_minor;
};
constexpr ToolkitRelease kReleases[] = {
    {450, 11, 0, 7, 0}, {455, 11, 1, 7, 1}, {460, 11, 2, 7, 2}, {465, 11, 3, 7, 3}, {470, 11, 4, 7, 4},
    {495, 11, 5, 7, 5}, {510, 11, 6, 7, 6}, {515, 11, 7, 7, 7}, {520, 11, 8, 7, 8}, {525, 12, 0, 8, 0},
    {530, 12, 1, 8, 1}, {535, 12, 2, 8, 2}, {545, 12, 3, 8, 3}, {550, 12, 4, 8, 4}, {555, 12, 5, 8, 5},
    {560, 12, 6, 8, 5}, {565, 12, 7, 8, 6}, {570, 12, 8, 8, 7}, {575, 12, 9, 8, 8}, {580, 13, 0, 9, 0},
    {590, 13, 1, 9, 1}, {595, 13, 2, 9, 2}, {610, 13, 3, 9, 3},
};

struct ArchitectureRow {
  int sm;
  const char* first;    // nvcc that brought it
  const char* dropped;  // nvcc that no longer has it; "": still there
};
constexpr ArchitectureRow kArchitectures[] = {
    {50, "6.0", "13.0"}, {52, "6.5", "13.0"},   {53, "7.0", "13.0"}, {60, "8.0", "13.0"}, {61, "8.0", "13.0"},
    {62, "8.0", "13.0"}, {70, "9.0", "13.0"},   {72, "9.2", "13.0"}, {75, "10.0", ""},    {80, "11.0", ""},
    {86, "11.1", ""},    {87, "11.4", ""},      {88, "13.0", ""},    {89, "11.8", ""},    {90, "11.8", ""},
    {100, "12.8", ""},   {101, "12.8", "13.0"}, {103, "12.9", ""},   {110, "13.0", ""},   {120, "12.8", ""},
    {121, "12.9", ""},
};

struct HostCompilerRow {
  const char* cuda;  // from this release on
  int newest_gcc;
};
constexpr HostCompilerRow kHostCompilers[] = {{"11.0", 10}, {"11.4", 11}, {"12.0", 12},
                                              {"12.4", 13}, {"12.8", 14}, {"13.0", 15}};

}  // namespace

int newest_gcc_of_cuda(const Version& cuda) {
  int newest = 0;
  for (const HostCompilerRow& row : kHostCompilers)
    if (cuda.known() && cuda >= parse_version(row.cuda)) newest = row.newest_gcc;
  return newest;
}

std::optional<KnownArchitecture> known_architecture(int sm) {
  for (const ArchitectureRow& row : kArchitectures)
    if (row.sm == sm) return KnownArchitecture{sm, parse_version(row.first), parse_version(row.dropped)};
  return std::nullopt;
}

Version first_cuda_of(int sm) {
  Version out = {{11, 0}};
  for (const ArchitectureRow& row : kArchitectures)
    if (row.sm <= sm) out = std::max(Version{{11, 0}}, parse_version(row.first));
  return out;
}

Version driver_for_cuda(const Version& cuda) {
  for (const ToolkitRelease& r : kReleases)
    if (r.cuda_major == cuda.major_part() && r.cuda_minor == cuda.minor_part()) return {{r.driver}};
  return {};
}

Version cuda_for_driver(const Version& driver) {
  Version out;
  for (const ToolkitRelease& r : kReleases)
    if (driver.major_part() >= r.driver) out = {{r.cuda_major, r.cuda_minor}};
  return out;
}

Version cuda_for_ptx(const Version& isa) {
  for (const ToolkitRelease& r : kReleases)
    if (r.ptx_major == isa.major_part() && r.ptx_minor == isa.minor_part()) return {{r.cuda_major, r.cuda_minor}};
  return {};
}

bool driver_takes_ptx(const Version& driver, const Version& isa) {
  const ToolkitRelease& newest = kReleases[std::size(kReleases) - 1];
  if (isa > Version{{newest.ptx_major, newest.ptx_minor}}) return driver.major_part() > newest.driver;
  const Version cuda = cuda_for_driver(driver);
  return !cuda.known() || cuda_for_ptx(isa) <= cuda;
}

Version lowest_driver_of_major(int cuda_major) {
  for (const ToolkitRelease& r : kReleases)
    if (r.cuda_major == cuda_major) return {{r.driver}};
  return {};
}

}  // namespace doctor
