// SPDX-License-Identifier: Apache-2.0
#include "cli/attention/flash_attn.h"

#include <optional>
#include <regex>
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
  nlohmann::json found = {{"python", nullptr}, {"flash_attn", nullptr}, {"transformers", nullptr}};
  std::optional<doctor::PythonInstall> python;
  for (const std::string& program : programs(outlook, library))
    if ((python = doctor::read_python(outlook, program, machine))) break;
  if (!python) return found;
  found["python"] = {{"program", python->program}, {"version", python->facts.version.text()}, {"kind", python->kind}};
  if (const doctor::InstalledPackage* package = python->package("flash-attn")) {
    const bool is_mica = package->version.find("+mica") != std::string::npos;
    found["flash_attn"] = {{"version", package->version}, {"is_mica", is_mica}, {"site", package->site}};
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
  if (const nlohmann::json& package = found["flash_attn"]; package.is_null())
    lines += "flash_attn none in that Python\n";
  else
    lines += "flash_attn " + text(package["version"]) + ", " +
             (package["is_mica"] ? "Mica's drop-in, in " : "upstream's, not Mica's, in ") + text(package["site"]) +
             "\n";
  if (const nlohmann::json& package = found["flash_attn"];
      !package.is_null() && package["is_mica"] && !found["transformers"].is_null())
    lines += "           registers its own function for flash_attention_2 with Transformers " +
             text(found["transformers"]) + ", unless MICA_TRANSFORMERS=off\n";
  return lines;
}

}  // namespace cli
