// SPDX-License-Identifier: Apache-2.0
// From a PCI device id, or a name, to a compute capability. NVIDIA gives each chip a block of ids.
#include "doctor/tables/gpus.h"

#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

constexpr KnownGpu kGpus[] = {
    {{5, 0}, "GTX 750, M2000"},
    {{5, 2}, "GTX 980, M60"},
    {{5, 3}, "Jetson Nano"},
    {{6, 0}, "P100"},
    {{6, 1}, "GTX 1080, P40"},
    {{6, 2}, "Jetson TX2"},
    {{7, 0}, "V100"},
    {{7, 2}, "Jetson Xavier"},
    {{7, 5}, "T4, RTX 2080"},
    {{8, 0}, "A100, A30"},
    {{8, 6}, "RTX 3090, A10, A40"},
    {{8, 7}, "Jetson Orin"},
    {{8, 9}, "RTX 4090, L4, L40S"},
    {{9, 0}, "H100, H200, GH200"},
    {{10, 0}, "B200, GB200"},
    {{10, 3}, "B300, GB300"},
    {{11, 0}, "Jetson Thor"},
    {{12, 0}, "RTX 5090, RTX PRO 6000"},
    {{12, 1}, "DGX Spark (GB10)"},
};

struct IdBlock {
  int begin, end;  // [begin, end)
  ComputeCapability capability;
};

constexpr IdBlock kIds[] = {
    {0x1340, 0x13c0, {5, 0}},   // GM107, GM108
    {0x13c0, 0x1480, {5, 2}},   // GM204, GM206
    {0x15f0, 0x1600, {6, 0}},   // GP100
    {0x17c0, 0x1800, {5, 2}},   // GM200
    {0x1b00, 0x1d80, {6, 1}},   // GP102 to GP108
    {0x1d80, 0x1e00, {7, 0}},   // GV100
    {0x1e00, 0x2000, {7, 5}},   // TU102 to TU106, TU117
    {0x2080, 0x2100, {8, 0}},   // GA100
    {0x2180, 0x2200, {7, 5}},   // TU116
    {0x2200, 0x2280, {8, 6}},   // GA102
    {0x2300, 0x2380, {9, 0}},   // GH100
    {0x2400, 0x2600, {8, 6}},   // GA103 to GA107
    {0x2680, 0x2900, {8, 9}},   // AD102 to AD107
    {0x2900, 0x2980, {10, 0}},  // GB100
    {0x2b80, 0x2c80, {12, 0}},  // GB202, GB203
    {0x2d00, 0x2e00, {12, 0}},  // GB206, GB207
    {0x2e00, 0x2e80, {12, 1}},  // GB10
    {0x2f00, 0x2f80, {12, 0}},  // GB205
    {0x3180, 0x3200, {10, 3}},  // GB110
};

struct NamePart {
  const char* part;
  ComputeCapability capability;
};

// The first part that a name holds decides.
constexpr NamePart kNames[] = {
    {"GB300", {10, 3}},
    {"B300", {10, 3}},
    {"GB200", {10, 0}},
    {"B200", {10, 0}},
    {"B100", {10, 0}},
    {"GH200", {9, 0}},
    {"H200", {9, 0}},
    {"H100", {9, 0}},
    {"H800", {9, 0}},
    {"H20", {9, 0}},
    {"GB10", {12, 1}},
    {"RTX PRO 6000", {12, 0}},
    {"RTX 50", {12, 0}},
    {"RTX 5090", {12, 0}},
    {"L40", {8, 9}},
    {"L20", {8, 9}},
    {"NVIDIA L4", {8, 9}},
    {"RTX 40", {8, 9}},
    {"Ada Generation", {8, 9}},
    {"A100", {8, 0}},
    {"A800", {8, 0}},
    {"A30", {8, 0}},
    {"A40", {8, 6}},
    {"A10", {8, 6}},
    {"A16", {8, 6}},
    {"A2", {8, 6}},
    {"RTX A", {8, 6}},
    {"RTX 30", {8, 6}},
    {"Orin", {8, 7}},
    {"Thor", {11, 0}},
    {"T4", {7, 5}},
    {"RTX 20", {7, 5}},
    {"Quadro RTX", {7, 5}},
    {"GTX 16", {7, 5}},
    {"V100", {7, 0}},
    {"TITAN V", {7, 0}},
    {"P100", {6, 0}},
    {"P40", {6, 1}},
    {"P4", {6, 1}},
    {"GTX 10", {6, 1}},
};

}  // namespace

std::optional<ComputeCapability> capability_of_device(int id) {
  for (const IdBlock& block : kIds)
    if (id >= block.begin && id < block.end) return block.capability;
  return std::nullopt;
}

std::optional<ComputeCapability> capability_of_name(std::string_view name) {
  for (const NamePart& row : kNames)
    if (name.find(row.part) != name.npos) return row.capability;
  return std::nullopt;
}

std::span<const KnownGpu> known_gpus() { return kGpus; }

}  // namespace doctor
