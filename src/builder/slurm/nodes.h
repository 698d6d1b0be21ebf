// SPDX-License-Identifier: Apache-2.0
// Which GPUs the nodes of a cluster have, by what Slurm lists.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "doctor/tables/gpu_arch.h"

namespace builder {

constexpr double kSlurmAnswerSeconds = 60;  // for one of Slurm's programs

struct NodeType {
  std::string gres, features;  // "gpu:a100:4", "ib,a100"
  int nodes = 0;
  std::optional<doctor::ComputeCapability> gpu;  // nothing: it has none, or its name is not known
};

// Lines of `sinfo --format=%G|%f|%D`, of nodes with a GPU.
std::vector<NodeType> parse_node_types(const std::string& text);
// Of a partition, or of all; empty where Slurm does not answer.
std::vector<NodeType> node_types(const std::string& partition);

}  // namespace builder
