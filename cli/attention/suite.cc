// SPDX-License-Identifier: Apache-2.0
#include "cli/attention/suite.h"

#include <fstream>
#include <sstream>
#include <stdexcept>

#include "default_suite.h"

namespace cli {
namespace {

bool is_choice(const std::string& key, const nlohmann::json& value) {
  if (!value.is_array()) return false;
  const bool valued_by_list = key == "window" || key == "varlen";
  return !valued_by_list || (!value.empty() && value[0].is_array());
}

// The first choice is resolved in every way, and each result expanded further.
void expand(const nlohmann::json& object, std::vector<ProblemSpec>& out) {
  for (const auto& [key, value] : object.items())
    if (is_choice(key, value)) {
      for (const auto& one : value) {
        nlohmann::json resolved = object;
        resolved[key] = one;
        expand(resolved, out);
      }
      return;
    }
  out.push_back(problem_from_json(object));
}

}  // namespace

Suite load_suite(const std::string& path) {
  std::string text = kDefaultSuite;
  if (!path.empty()) {
    std::ifstream in(path);
    std::stringstream all;
    if (!(all << in.rdbuf())) throw std::runtime_error("cannot read " + path);
    text = all.str();
  }
  const std::string where = path.empty() ? "the built-in suite" : path;
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw std::runtime_error(where + " is not JSON");
  if (!json.is_object() || !json.contains("cases") || !json["cases"].is_array())
    throw std::runtime_error(where + " is no suite: want an object with a list \"cases\"");
  for (const char* key : {"name", "about"})
    if (json.contains(key) && !json[key].is_string())
      throw std::runtime_error(where + ": \"" + key + "\" is " + json[key].dump() + ", want a text");
  Suite suite;
  suite.name = json.value("name", where);
  suite.about = json.value("about", "");
  for (const auto& object : json["cases"]) {
    if (!object.is_object()) throw std::runtime_error(where + ": a case is " + object.dump() + ", want an object");
    nlohmann::json problem = object;
    for (const char* for_compare_py : {"peers", "beside", "latent"}) problem.erase(for_compare_py);
    try {
      expand(problem, suite.cases);
    } catch (const std::runtime_error& e) {
      throw std::runtime_error(where + ": " + e.what());
    }
  }
  return suite;
}

}  // namespace cli
