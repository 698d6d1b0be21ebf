// SPDX-License-Identifier: Apache-2.0
#include "doctor/system/outlook.h"

#include <unistd.h>

#include <filesystem>

#include "support/text.h"

namespace doctor {

using namespace support;

std::vector<std::string> Outlook::path() const {
  std::vector<std::string> folders;
  for (const std::string& folder : split(variable("PATH"), ':')) {
    if (folder.empty() || folder[0] != '/') continue;
    bool is_new = true;
    for (const std::string& known : folders) is_new &= known != folder;
    if (is_new && folders.size() < 500) folders.push_back(folder);
  }
  return folders;
}

std::vector<std::string> Outlook::on_path(const std::string& name) const {
  std::vector<std::string> found;
  for (const std::string& folder : path())
    if (const std::string file = join_path(folder, name); files.is_executable(file)) found.push_back(file);
  return found;
}

Outlook outlook_here() {
  Outlook out;
  for (char** variable = environ; variable && *variable; ++variable) {
    const std::string text = *variable;
    if (const std::size_t equals = text.find('='); equals != text.npos)
      out.variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  std::error_code error;
  out.folder = std::filesystem::current_path(error).string();
  return out;
}

}  // namespace doctor
