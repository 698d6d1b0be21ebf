// SPDX-License-Identifier: Apache-2.0
#include "doctor/judge/installed.h"

#include <algorithm>
#include <set>

#include "doctor/facts/facts.h"
#include "doctor/facts/gpu_rules.h"
#include "doctor/judge/imports/package_imports.h"
#include "doctor/judge/judge.h"
#include "doctor/judge/own_check.h"
#include "doctor/judge/torch_claim.h"
#include "doctor/read/inspect.h"
#include "doctor/read/metadata.h"
#include "doctor/read/python/outline.h"
#include "doctor/read/record.h"
#include "doctor/read/requirement.h"
#include "doctor/system/package.h"
#include "doctor/tables/cuda_releases.h"
#include "support/package_name.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

constexpr std::size_t kMostBinaries = 400;

struct PackageFiles {
  std::vector<std::string> binaries;  // paths in the target
  bool needs_torch = false;
  bool has_record = false;
  bool has_cute = false;          // flash_attn/cute is among its files
  std::vector<std::string> gone;  // extension modules that RECORD lists and that are not there
  TorchClaim claim;
};

// The checkout that an editable install (pip install -e) leads to; empty if it is none.
std::string editable_folder(const Files& files, const std::string& dist_info) {
  const std::string text = files.read(dist_info + "/direct_url.json", 1 << 16).value_or("");
  const std::size_t url = text.find("file://"), end = text.find('"', url == text.npos ? 0 : url);
  const bool is_editable = text.find("\"editable\": true") != text.npos || text.find("\"editable\":true") != text.npos;
  return is_editable && url != text.npos && end != text.npos ? text.substr(url + 7, end - url - 7) : "";
}

// Compiled modules of a checkout, where the import finds them: not what a build left behind.
void add_compiled(const Files& files, const std::string& folder, int depth, std::vector<std::string>& out) {
  for (const std::string& name : files.list(folder)) {
    const std::string path = folder + "/" + name;
    if (out.size() >= kMostBinaries) return;
    if (is_extension_name(name) || (name.ends_with(".so") && files.is_file(path))) {
      if (const auto real = files.resolve(path)) out.push_back(*real);
    } else if (depth > 0 && name[0] != '.' && name != "build" && name != "dist" && name != "__pycache__" &&
               name != "third_party" && name != "node_modules" && files.link(path).empty() && files.is_folder(path)) {
      add_compiled(files, path, depth - 1, out);
    }
  }
}

PackageFiles files_of(const Files& files, const InstalledPackage& package) {
  PackageFiles out;
  const std::string folder = package.site + "/" + package.dist_info;
  const Metadata metadata = parse_metadata(files.read(folder + "/METADATA", 4 << 20).value_or(""));
  out.claim = claimed_torch(metadata, package.version);
  for (const std::string& requirement : metadata.all("Requires-Dist")) {
    const Requirement parsed = parse_requirement(requirement);
    out.needs_torch |= normalised_package(parsed.name) == "torch" && !parsed.is_optional();
  }
  const auto record = files.read(folder + "/RECORD", 64 << 20);
  out.has_record = record.has_value();
  for (const RecordRow& row : parse_record(record.value_or(""), nullptr)) {
    const std::string name = base_name(row.path);
    const bool is_binary = name.ends_with(".so") || name.find(".so.") != name.npos;
    out.has_cute |= row.path.rfind("flash_attn/cute/", 0) == 0;
    if (!is_binary || out.binaries.size() >= kMostBinaries) continue;
    // A record is only text: what leads out of site-packages is left alone.
    if (const auto path = recorded_file(files, package, row.path))
      out.binaries.push_back(*path);
    else if (is_extension_name(name) && row.path[0] != '/' && row.path.find("..") == row.path.npos)
      out.gone.push_back(row.path);
  }
  constexpr int kDepth = 5;
  if (const std::string checkout = editable_folder(files, folder); !checkout.empty() && files.is_folder(checkout))
    add_compiled(files, checkout, kDepth, out.binaries);
  return out;
}

bool uses_torch(const Inspection& inspection, const std::string& path) {
  for (const Binary& binary : inspection.binaries)
    if (binary.path == path) {
      const BinaryFacts facts = facts_of(binary);
      return facts.uses_torch && !facts.torch_stable;
    }
  return false;
}

bool is_attention(const InstalledPackage& package) { return package.name == "flash-attn"; }

// Python files that import a compiled module which no file provides.
void judge_missing_module(const Survey& survey, const PythonInstall& python, const InstalledPackage& package,
                          const PackageFiles& found, std::vector<Verdict>& out) {
  const Files& files = survey.outlook.files;
  const std::string interface = files.read(package.site + "/flash_attn/flash_attn_interface.py").value_or("");
  if (!is_attention(package) || interface.find("flash_attn_2_cuda") == interface.npos) return;
  for (const std::string& path : found.binaries)
    if (base_name(path).rfind("flash_attn_2_cuda.", 0) == 0) return;
  for (const std::string& name : files.list(package.site))
    if (name == "flash_attn_2_cuda.py" || name.rfind("flash_attn_2_cuda.", 0) == 0) return;
  out.push_back(make_verdict(
      {.code = "MODULE_MISSING",
       .subject = package.name + " " + package.version,
       .message = "ModuleNotFoundError: No module named 'flash_attn_2_cuda'",
       .cause = "The Python files of flash-attn are installed, its compiled module is not: it was built with "
                "FLASH_ATTENTION_SKIP_CUDA_BUILD, or the wheel was a py3-none-any one.",
       .fix = python.pip() + " uninstall -y flash-attn, then install the wheel that mica pick names",
       .evidence = {package.site + "/flash_attn/flash_attn_interface.py imports it"}}));
}

// An extension module that an installer put there and that is there no more.
void judge_gone(const Survey& survey, const PythonInstall& python, const InstalledPackage& package,
                const PackageFiles& found, const Environment& target, std::vector<Verdict>& out) {
  if (found.gone.empty()) return;
  std::map<std::string, ImportFailure> compiled;
  for (const std::string& path : found.gone) compiled.emplace(module_of_path(path), ImportFailure::kModuleNotFound);
  const PackageImports imports(words_of_package(survey.outlook.files, package), compiled, {}, {}, true, target);
  for (const std::string& path : found.gone) {
    const std::string module = module_of_path(path);
    out.push_back(make_verdict({.code = "MODULE_MISSING",
                                .subject = package.name + " " + package.version,
                                .message = "ModuleNotFoundError: No module named '" + printable(module) + "'",
                                .cause = "RECORD lists " + printable(path) +
                                         ", and the file is not there: it was removed, or its "
                                         "copying was cut off.",
                                .fix = python.pip() + " install --force-reinstall --no-deps " + package.name,
                                .evidence = {printable(package.site) + "/" + printable(path) + " does not exist"}}));
    if (imports.is_known() && imports.part(module) != Part::kStops) out.back().severity = Severity::kWarning;
    if (out.size() > 20) return;
  }
}

void judge_cute(const PythonInstall& python, const InstalledPackage& package, const PackageFiles& found,
                std::vector<Verdict>& out) {
  const InstalledPackage* newer = python.package("flash-attn-4");
  if (!is_attention(package) || !newer || !found.has_cute) return;
  out.push_back(make_verdict(
      {.code = "FLASH_ATTN_STALE_CUTE",
       .subject = package.name + " " + package.version,
       .message = "AttributeError: module 'cutlass.cute' has no attribute 'ThrMma'",
       .cause = "This flash-attn brings an old flash_attn/cute, into which flash-attn-4 " + newer->version +
                " is installed too: which files win depends on the order of installation.",
       .fix = python.pip() + " uninstall -y flash-attn flash-attn-4 && " + python.pip() + " install flash-attn-4",
       .evidence = {"RECORD of " + package.dist_info + " lists flash_attn/cute/"}}));
}

void judge_torch_and_driver(const Survey& survey, const PythonInstall& python, std::vector<Judged>& out) {
  if (!python.torch) return;
  Judged judged{"torch " + python.torch->version, python.program, {}};
  const Version cuda = parse_version(python.torch->cuda_version);
  const Version least = cuda.known() ? lowest_driver_of_major(cuda.major_part()) : Version{};
  const Version& driver = survey.driver.version;
  if (least.known() && driver.known() && driver < least && survey.driver.compatibility.empty())
    judged.verdicts.push_back(
        make_verdict({.code = "DRIVER_TOO_OLD",
                      .subject = judged.subject,
                      .message = "CUDA driver version is insufficient for CUDA runtime version",
                      .cause = "CUDA " + std::to_string(cuda.major_part()) + " needs a driver of " + least.text() +
                               " or later; here it is " + driver.text() + ".",
                      .fix = "update the driver, or install a torch for an older CUDA: " + python.pip() +
                             " install torch --index-url https://download.pytorch.org/whl/cu126",
                      .evidence = {survey.driver.found_in + " says " + driver.text()}}));
  if (cuda.known() && !driver.known() && survey.driver.library.empty()) {
    judged.verdicts.push_back(
        make_verdict({.code = "DRIVER_MISSING",
                      .subject = judged.subject,
                      .message = "torch.cuda.is_available() is False here",
                      .cause = "torch has CUDA " + cuda.text() + ", and this machine has no NVIDIA driver.",
                      .fix = "run it where there is a GPU; in a container: docker run --gpus all ..."}));
    judged.verdicts.back().severity = Severity::kNote;
  }
  if (!judged.verdicts.empty()) out.push_back(std::move(judged));
}

// A folder that Python imports and that no installer knows of.
void judge_copied_folder(const Survey& survey, const PythonInstall& python, std::vector<Judged>& out) {
  if (python.package("flash-attn") || python.package("flash-attn-4")) return;
  for (const std::string& site : python.facts.site_packages) {
    if (!survey.outlook.files.is_file(site + "/flash_attn/__init__.py")) continue;
    Judged judged{"flash_attn", python.program, {}};
    judged.verdicts.push_back(
        make_verdict({.code = "FLASH_ATTN_NOT_SEEN",
                      .subject = "flash_attn",
                      .message = "the package flash_attn seems to be not installed",
                      .cause = "The folder is there, but without the metadata that an installer writes, by which "
                               "transformers looks for it.",
                      .fix = "remove the folder, and " + python.pip() + " install the wheel that mica pick names",
                      .evidence = {site + "/flash_attn has no flash_attn-*.dist-info beside it"}}));
    out.push_back(std::move(judged));
    return;
  }
}

}  // namespace

Judged judge_package(const Survey& survey, const PythonInstall& python, const InstalledPackage& package,
                     const Environment& target) {
  Judged judged{package.name + " " + package.version, python.program, {}};
  const PackageFiles found = files_of(survey.outlook.files, package);
  judge_missing_module(survey, python, package, found, judged.verdicts);
  judge_gone(survey, python, package, found, target, judged.verdicts);
  judge_cute(python, package, found, judged.verdicts);
  if (found.needs_torch && !python.torch) {
    judged.verdicts.push_back(make_verdict({.code = "TORCH_MISSING",
                                            .subject = judged.subject,
                                            .message = "ModuleNotFoundError: No module named 'torch'",
                                            .cause = "The package needs torch, and this Python has none.",
                                            .fix = python.pip() + " install torch"}));
    return judged;
  }
  Inspection inspection;
  inspection.path = package.site;
  inspection.kind = FileKind::kFolder;
  inspection.words = [&] { return words_of_package(survey.outlook.files, package); };
  for (const std::string& path : found.binaries) {
    try {
      const std::size_t before = inspection.problems.size();
      const Files& files = survey.outlook.files;
      auto binary = read_binary(files.on_disk(files.resolve(path).value_or(path)), inspection.problems);
      if (!binary && inspection.problems.size() == before && is_extension_name(path))
        inspection.problems.push_back(
            no_library(path, survey.outlook.files.read(path, 1 << 12).value_or(std::string(1 << 12, ' ')).size()));
      if (!binary) continue;
      binary->path = path;  // as the target sees it
      inspection.binaries.push_back(std::move(*binary));
    } catch (const ReadError& e) {
      judged.verdicts.push_back(make_verdict({.code = "CANNOT_TELL", .subject = path, .message = e.what()}));
    }
  }
  if (!inspection.binaries.empty() || !inspection.problems.empty())
    for (Verdict& verdict : judge(inspection, target)) {
      if (uses_torch(inspection, verdict.subject)) doubt(found.claim, target, verdict);
      judged.verdicts.push_back(std::move(verdict));
    }
  if (python.torch)
    judge_own_check(package.name, package.version, inspection.binaries, *python.torch, python.pip(), judged.verdicts);
  return judged;
}

std::vector<Judged> judge_installed(const Survey& survey, const PythonInstall& python, const Environment& target) {
  std::vector<Judged> out;
  judge_torch_and_driver(survey, python, out);
  for (const InstalledPackage& package : python.packages) {
    // CUDA's libraries are opened by those that need them, and are judged with them.
    if (package.name.rfind("nvidia-", 0) == 0) continue;
    const PackageFiles found = files_of(survey.outlook.files, package);
    if (found.binaries.empty() && found.gone.empty() && !is_attention(package)) continue;
    Judged judged = judge_package(survey, python, package, target);
    // What has nothing to do with torch is told of only if something is wrong with it.
    const bool is_about_torch = found.needs_torch;
    if (!is_about_torch)
      std::erase_if(judged.verdicts, [](const Verdict& v) { return v.severity != Severity::kError; });
    if (is_about_torch || !judged.verdicts.empty()) out.push_back(std::move(judged));
  }
  judge_copied_folder(survey, python, out);
  return out;
}

}  // namespace doctor
