// SPDX-License-Identifier: Apache-2.0
#include "cli/attention/flash_attn.h"

#include <optional>
#include <regex>
#include <utility>
#include <vector>

#include "cli/text.h"
#include "doctor/system/outlook.h"
#include "doctor/system/python_env.h"

namespace cli {
namespace {

std::vector<std::string> programs(const doctor::Outlook& outlook, const std::string& library) {
  std::vector<std::string> list;
  std::smatch parts;
  // A wheel's library: <prefix>/lib/python3.11/site-packages/mica/lib/libmica.so.0
  if (std::regex_match(library, parts, std::regex("(.+)/lib[^/]*/(python3[^/]*)/[^/]+-packages/mica/lib/[^/]+")))
    list.push_back(parts[1].str() + "/bin/" + parts[2].str());
  if (const std::string environment = outlook.variable("VIRTUAL_ENV"); !environment.empty())
    list.push_back(environment + "/bin/python");
  for (const char* name : {"python3", "python"})
    for (const std::string& path : outlook.on_path(name)) list.push_back(path);
  return list;
}

}  // namespace

nlohmann::json find_flash_attn(const doctor::Outlook& outlook, const std::string& library, const std::string& machine) {
  nlohmann::json found = {
      {"python", nullptr}, {"flash_attn", nullptr}, {"flash_attn_3", nullptr}, {"transformers", nullptr}};
  std::optional<doctor::PythonInstall> python;
  for (const std::string& program : programs(outlook, library))
    if ((python = doctor::read_python(outlook, program, machine))) break;
  if (!python) return found;
  found["python"] = {{"program", python->program}, {"version", python->facts.version.text()}, {"kind", python->kind}};
  for (const auto& [distribution, key] :
       {std::pair{"flash-attn", "flash_attn"}, std::pair{"flash-attn-3", "flash_attn_3"}})
    if (const doctor::InstalledPackage* package = python->package(distribution)) {
      const bool is_mica = package->version.find("+mica") != std::string::npos;
      found[key] = {{"version", package->version}, {"is_mica", is_mica}, {"site", package->site}};
    }
  if (const doctor::InstalledPackage* package = python->package("transformers"))
    found["transformers"] = package->version;
  return found;
}

std::string flash_attn_text(const nlohmann::json& found) {
  if (found["python"].is_null()) return "python     none found\n";
  const auto text = [](const nlohmann::json& value) { return value.get<std::string>(); };
  const nlohmann::json& python = found["python"];
  std::string lines = "python     " + text(python["version"]) + ", " + text(python["program"]) + "\n";
  if (found["flash_attn"].is_null()) lines += "flash_attn none in that Python\n";
  for (const auto& [key, name] :
       {std::pair{"flash_attn", "flash_attention_2"}, std::pair{"flash_attn_3", "flash_attention_3"}}) {
    const nlohmann::json& package = found[key];
    if (package.is_null()) continue;
    const bool is_mica = package["is_mica"];
    lines += std::string(key) + " " + text(package["version"]) + ", " +
             (is_mica ? "Mica's drop-in, in " : "upstream's, not Mica's, in ") + text(package["site"]) + "\n";
    if (is_mica && !found["transformers"].is_null())
      lines += "           registers its own function for " + std::string(name) + " with Transformers " +
               text(found["transformers"]) + ", unless MICA_TRANSFORMERS=off\n";
  }
  return lines;
}

}  // namespace cli
