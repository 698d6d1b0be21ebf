// SPDX-License-Identifier: Apache-2.0
#include "builder/slurm/nodes.h"

#include <algorithm>
#include <cctype>

#include "doctor/tables/gpus.h"
#include "support/process.h"
#include "support/text.h"

namespace builder {

using namespace support;

namespace {

// "nvidia_a100-sxm4-80gb" and "rtx3090" as NVIDIA spells them.
std::optional<doctor::ComputeCapability> capability_of_word(const std::string& word) {
  std::string name;
  for (const char c : word) {
    const char upper = c == '_' ? ' ' : char(std::toupper(static_cast<unsigned char>(c)));
    if (std::isdigit(static_cast<unsigned char>(upper)) && (name.ends_with("RTX") || name.ends_with("GTX")))
      name += ' ';
    name += upper;
  }
  return doctor::capability_of_name(name);
}

// "gpu:a100:4(S:0-1)" -> "a100"; empty where no type is given ("gpu:4").
std::string type_of(const std::string& gres) {
  for (const std::string& one : split(gres.substr(0, gres.find('(')), ',')) {
    const std::vector<std::string> parts = split(one, ':');
    if (parts.size() == 3 && parts[0] == "gpu") return parts[1];
  }
  return "";
}

}  // namespace

std::vector<NodeType> parse_node_types(const std::string& text) {
  std::vector<NodeType> out;
  for (const std::string& line : split(text, '\n')) {
    const std::vector<std::string> fields = split(line, '|');
    if (fields.size() != 3 || fields[0].find("gpu") == fields[0].npos) continue;
    NodeType type;
    type.gres = printable(std::string(trimmed(fields[0])), 200);
    type.features = printable(std::string(trimmed(fields[1])), 200);
    type.nodes = int(std::min(std::strtol(fields[2].c_str(), nullptr, 10), 1'000'000L));
    if (const std::string word = type_of(type.gres); !word.empty()) type.gpu = capability_of_word(word);
    // A site that gives its GPUs no type often gives its nodes a feature of that name.
    for (const std::string& feature : split(type.features, ','))
      if (!type.gpu) type.gpu = capability_of_word(feature);
    out.push_back(std::move(type));
  }
  return out;
}

std::vector<NodeType> node_types(const std::string& partition) {
  std::vector<std::string> words = {"sinfo", "--noheader", "--format=%G|%f|%D"};
  if (!partition.empty()) words.push_back("--partition=" + partition);
  Variables variables = current_environment();
  variables["LC_ALL"] = "C";
  std::string output, errors;
  try {
    if (!run_collected({words, variables, ""}, kSlurmAnswerSeconds, &output, &errors).ok()) return {};
  } catch (const ProcessError&) {
    return {};
  }
  return parse_node_types(output);
}

}  // namespace builder
