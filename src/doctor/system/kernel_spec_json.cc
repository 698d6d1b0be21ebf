// SPDX-License-Identifier: Apache-2.0
#include "doctor/system/kernel_spec_json.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

namespace doctor {
namespace {

using nlohmann::json;

constexpr std::size_t kMostWords = 1000;

std::string text_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

KernelSpec parse_kernel_spec(std::string_view text) {
  const json spec = json::parse(text, nullptr, false);
  if (spec.is_discarded()) throw std::runtime_error("kernel.json is not JSON");
  if (!spec.is_object()) throw std::runtime_error("kernel.json is no JSON object");
  const auto argv = spec.find("argv");
  if (argv == spec.end() || !argv->is_array() || argv->empty())
    throw std::runtime_error("argv is missing, want a list of words");
  if (argv->size() > kMostWords)
    throw std::runtime_error("argv has " + std::to_string(argv->size()) + " words, want at most 1000");
  KernelSpec out;
  for (const json& word : *argv) {
    if (!word.is_string() || word.get_ref<const std::string&>().find('\0') != std::string::npos)
      throw std::runtime_error("argv[" + std::to_string(out.argv.size()) + "] is no text");
    out.argv.push_back(word.get<std::string>());
  }
  if (out.argv[0].empty()) throw std::runtime_error("argv[0] is empty, want a program");
  out.display_name = text_of(spec, "display_name");
  out.language = text_of(spec, "language");
  if (const auto env = spec.find("env"); env != spec.end() && !env->is_null()) {
    if (!env->is_object()) throw std::runtime_error("env is no JSON object");
    for (const auto& [name, value] : env->items()) {
      if (!value.is_string()) throw std::runtime_error("env has a value that is no text");
      out.env.emplace(name, value.get<std::string>());
    }
  }
  return out;
}

}  // namespace doctor
