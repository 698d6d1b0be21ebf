// SPDX-License-Identifier: Apache-2.0
// The name and version that a source folder gives itself.
#pragma once

#include <string>
#include <string_view>

namespace builder {

struct ProjectName {
  std::string package;  // normalised; empty: not told
  std::string version;  // empty: not told, or computed by the build
};

// Of PKG-INFO, else pyproject.toml, else setup.py, as far as text tells. Throws std::runtime_error with one line if
// pyproject.toml is no TOML: no tool could build it.
ProjectName read_project_name(const std::string& folder);

// Of a pyproject.toml: [project], else [tool.poetry]. `path` is for the message.
ProjectName parse_pyproject(std::string_view text, const std::string& path);

}  // namespace builder
