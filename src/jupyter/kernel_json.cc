// SPDX-License-Identifier: Apache-2.0
#include "jupyter/kernel_json.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

namespace jupyter {
namespace {

using nlohmann::json;

constexpr std::size_t kMostWords = 1000;

json parsed(std::string_view text, const char* what) {
  const json out = json::parse(text, nullptr, false);
  if (out.is_discarded()) throw std::runtime_error(std::string(what) + " is not JSON");
  if (!out.is_object()) throw std::runtime_error(std::string(what) + " is no JSON object");
  return out;
}

std::string text_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::vector<std::string> texts_of(const json& object, const char* key) {
  std::vector<std::string> out;
  if (const auto found = object.find(key); found != object.end() && found->is_array())
    for (const json& item : *found)
      if (item.is_string() && out.size() < kMostWords) out.push_back(item.get<std::string>());
  return out;
}

}  // namespace

std::string kernel_json_text(std::string_view own, const std::string& display_name,
                             const std::map<std::string, std::string>& env) {
  json spec = parsed(own, "what ipykernel would write");
  spec["display_name"] = display_name;
  if (!env.empty()) spec["env"] = env;
  try {
    return spec.dump(1) + "\n";
  } catch (const json::exception&) {
    throw std::runtime_error("--env or --display-name holds bytes that are no UTF-8");
  }
}

bool same_kernel_json(std::string_view a, std::string_view b) {
  const json left = json::parse(a, nullptr, false), right = json::parse(b, nullptr, false);
  return !left.is_discarded() && !right.is_discarded() && left == right;
}

KernelAnswer parse_kernel_answer(std::string_view text) {
  const json answer = parsed(text, "the kernel's answer");
  KernelAnswer out;
  const auto started = answer.find("started");
  out.started = started != answer.end() && started->is_boolean() && started->get<bool>();
  out.error = text_of(answer, "error");
  out.words = texts_of(answer, "words");
  out.executable = text_of(answer, "executable");
  out.python_version = text_of(answer, "python");
  out.cuda = text_of(answer, "cuda");
  out.gpus = texts_of(answer, "gpus");
  if (const auto imports = answer.find("imports"); imports != answer.end() && imports->is_array())
    for (const json& item : *imports)
      if (item.is_object())
        out.imports.push_back({text_of(item, "module"), text_of(item, "version"), text_of(item, "error")});
  return out;
}

NotebookAnswer parse_notebook_answer(std::string_view text) {
  const json answer = parsed(text, "the notebook's answer");
  const auto number = [&](const char* name) {
    const auto found = answer.find(name);
    return found != answer.end() && found->is_number_integer() ? found->get<int>() : 0;
  };
  return {number("cells"),          number("failed_cell"),         text_of(answer, "kernel"),
          text_of(answer, "error"), text_of(answer, "first_line"), text_of(answer, "traceback")};
}

KernelProbe parse_kernel_probe(std::string_view text) {
  const json answer = parsed(text, "the Python's answer");
  KernelProbe out;
  out.error = text_of(answer, "error");
  out.resources = text_of(answer, "resources");
  if (const auto spec = answer.find("spec"); spec != answer.end() && spec->is_object()) {
    out.spec = spec->dump();
    out.has_ipykernel = true;
  }
  return out;
}

}  // namespace jupyter
