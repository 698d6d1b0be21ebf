// SPDX-License-Identifier: Apache-2.0
#include "builder/run/project_name.h"

#include <regex>
#include <stdexcept>

#include "support/bytes.h"
#include "support/package_name.h"
#include "support/text.h"

#if MICA_BUILDER_HAS_TOML
#define TOML_ENABLE_FORMATTERS 0
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>
#endif

namespace builder {

using namespace support;

namespace {

std::string first_match(const std::string& text, const char* pattern) {
  std::smatch match;
  return std::regex_search(text, match, std::regex(pattern, std::regex::ECMAScript | std::regex::multiline))
             ? match[1].str()
             : "";
}

constexpr uint64_t kMostBytes = 1 << 20;  // of a file that says what a project is called

ProjectName parse_package_info(const std::string& text) {
  return {first_match(text, "^Name: *([A-Za-z0-9._-]+)"), first_match(text, "^Version: *([^ \r\n]+)")};
}

// A program, of which the usual spellings are known.
ProjectName parse_setup(const std::string& text) {
  ProjectName out{first_match(text, "^ *(?:PACKAGE_)?NAME *= *[\"']([A-Za-z0-9._-]+)[\"']"),
                  first_match(text, "[( ,]version *= *[\"']([^\"']+)[\"']")};
  if (out.package.empty()) out.package = first_match(text, "[( ,]name *= *[\"']([A-Za-z0-9._-]+)[\"']");
  return out;
}

}  // namespace

#if MICA_BUILDER_HAS_TOML
ProjectName parse_pyproject(std::string_view text, const std::string& path) {
  try {
    const toml::table file = toml::parse(text);
    ProjectName out;
    for (const char* table : {"project", "tool.poetry"}) {
      const auto at = file.at_path(table);
      if (out.package.empty()) out.package = normalised_package(at["name"].value_or(std::string()));
      if (out.version.empty()) out.version = at["version"].value_or(std::string());
    }
    return out;
  } catch (const toml::parse_error& error) {
    const toml::source_position& at = error.source().begin;
    throw std::runtime_error(path + ", line " + std::to_string(at.line) + ": " +
                             printable(std::string(error.description())));
  }
}
#else
// Built without toml++: the name of the archive, PKG-INFO or setup.py has to tell.
ProjectName parse_pyproject(std::string_view, const std::string&) { return {}; }
#endif

ProjectName read_project_name(const std::string& folder) {
  ProjectName out;
  const std::string project = folder + "/pyproject.toml";
  for (const ProjectName& told : {parse_package_info(text_or_nothing(folder + "/PKG-INFO", kMostBytes)),
                                  parse_pyproject(text_or_nothing(project, kMostBytes), project),
                                  parse_setup(text_or_nothing(folder + "/setup.py", kMostBytes))}) {
    if (out.package.empty()) out.package = normalised_package(told.package);
    if (out.version.empty()) out.version = told.version;
  }
  return out;
}

}  // namespace builder
