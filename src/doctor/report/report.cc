// SPDX-License-Identifier: Apache-2.0
#include "doctor/report/report.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "doctor/facts/mangled.h"
#include "doctor/tables/tables.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

std::string abi_text(CxxAbi abi) {
  switch (abi) {
    case CxxAbi::kNew: return "new C++ ABI";
    case CxxAbi::kOld: return "old C++ ABI";
    case CxxAbi::kMixed: return "both C++ ABIs";
    default: return "C++ ABI not known";
  }
}

std::string or_unknown(const std::string& text, const char* otherwise = "not known") {
  return text.empty() ? otherwise : printable(text);
}

std::string version_or(const Version& version, const char* otherwise = "not known") {
  return version.known() ? version.text() : otherwise;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, value == double(int64_t(value)) ? "%.0f" : "%.1f", value);
  return text;
}

ReportSection machine_section(const HostFacts& host) {
  ReportSection out{"machine", {}};
  out.rows.emplace_back(
      "system", or_unknown(host.machine) + ", " + or_unknown(host.system) + ", kernel " + or_unknown(host.kernel));
  out.rows.emplace_back("C library", host.libc.empty() ? "none found"
                                                       : host.libc + " " + version_or(host.libc_version) +
                                                             (host.libc_path.empty() ? "" : "  " + host.libc_path));
  out.rows.emplace_back("libstdc++", host.libstdcxx_path.empty()
                                         ? "none found"
                                         : "GLIBCXX_" + version_or(host.glibcxx) + ", CXXABI_" +
                                               version_or(host.cxxabi) + "  " + printable(host.libstdcxx_path));
  std::string memory = format_bytes(host.memory_bytes) + ", " + format_bytes(host.memory_available_bytes) + " free";
  if (host.memory_limit_bytes)
    memory += "; limit of the control group (version " + std::to_string(host.cgroup_version) + ") " +
              format_bytes(*host.memory_limit_bytes) + ", " + format_bytes(host.memory_used_bytes) + " of it used";
  out.rows.emplace_back("memory", memory);
  out.rows.emplace_back("cores", number(host.cores_allowed) + " of " + std::to_string(host.cores));
  for (const DiskSpace& disk : host.disks)
    out.rows.emplace_back("disk", printable(disk.folder) + "  " + format_bytes(disk.free_bytes) + " free of " +
                                      format_bytes(disk.total_bytes));
  if (!host.loader.library_path.empty())
    out.rows.emplace_back("LD_LIBRARY_PATH", printable(joined(host.loader.library_path, ":")));
  for (const std::string& problem : host.problems) out.rows.emplace_back("problem", printable(problem));
  return out;
}

ReportSection cuda_section(const Survey& survey) {
  ReportSection out{"NVIDIA", {}};
  const DriverFacts& driver = survey.driver;
  out.rows.emplace_back(
      "driver",
      driver.version.known()
          ? driver.version.text() + ", CUDA up to " + version_or(driver.cuda) + "  " + printable(driver.found_in)
          : (driver.library.empty() ? "none found" : "version not known  " + driver.library));
  for (const std::string& folder : driver.compatibility) out.rows.emplace_back("cuda-compat", printable(folder));
  for (const FoundGpu& gpu : survey.gpus) {
    char id[16];
    std::snprintf(id, sizeof id, "10de:%04x", unsigned(gpu.device_id));
    out.rows.emplace_back("GPU", (gpu.name.empty() ? std::string(id) : printable(gpu.name)) + ", compute capability " +
                                     (gpu.capability ? gpu.capability->text() : "not known") + "  " +
                                     printable(gpu.place));
  }
  if (survey.gpus.empty()) out.rows.emplace_back("GPU", "none found");
  for (const Toolkit& toolkit : survey.toolkits)
    out.rows.emplace_back("toolkit",
                          version_or(toolkit.version) + "  " + printable(toolkit.folder) + "  (" + toolkit.found_by +
                              (toolkit.nvcc.empty() ? ", without nvcc" : "") +
                              (toolkit.is_first ? ", the first nvcc on PATH" : "") +
                              (toolkit.is_cuda_home && toolkit.found_by != "CUDA_HOME" ? ", CUDA_HOME" : "") + ")");
  if (survey.toolkits.empty()) out.rows.emplace_back("toolkit", "none found");
  return out;
}

ReportSection compiler_section(const Survey& survey) {
  ReportSection out{"compilers", {}};
  for (const Compiler& compiler : survey.compilers)
    out.rows.emplace_back(compiler.name,
                          version_or(compiler.version, "version not known") + "  " + printable(compiler.path) +
                              (compiler.cxx_abi == CxxAbi::kUnknown ? "" : "  " + abi_text(compiler.cxx_abi)) +
                              (compiler.is_first ? ", the first" : ""));
  if (survey.compilers.empty()) out.rows.emplace_back("C++", "none on PATH");
  out.rows.emplace_back("ninja", survey.ninja.empty() ? "none on PATH" : printable(survey.ninja));
  return out;
}

std::string torch_text(const TorchFacts& torch) {
  return "torch " + or_unknown(torch.version) + ", " +
         (torch.cuda_version.empty() ? "for the CPU" : "CUDA " + printable(torch.cuda_version)) + ", " +
         abi_text(torch.cxx_abi);
}

constexpr const char* kOfInterest[] = {"flash-attn",  "flash-attn-3", "flash-attn-4",  "mica-attention", "xformers",
                                       "torchvision", "torchaudio",   "transformers",  "vllm",           "triton",
                                       "deepspeed",   "bitsandbytes", "causal-conv1d", "mamba-ssm",      "numpy"};

ReportSection python_section(const PythonInstall& python) {
  ReportSection out{"Python " + version_or(python.facts.version) + (python.facts.free_threaded ? "t" : "") + "  " +
                        printable(python.program),
                    {}};
  out.rows.emplace_back("found", python.kind + (python.is_active ? ", active" : "") + "  (" +
                                     printable(joined(python.found_by, ", ")) + ")");
  out.rows.emplace_back("SOABI", or_unknown(python.facts.soabi));
  out.rows.emplace_back("torch", python.torch ? torch_text(*python.torch) : "none");
  std::vector<std::string> packages;
  for (const char* name : kOfInterest)
    if (const InstalledPackage* package = python.package(name))
      packages.push_back(package->name + " " + package->version);
  if (!packages.empty()) out.rows.emplace_back("packages", printable(joined(packages, ", "), 1000));
  std::vector<std::string> libraries;
  for (const InstalledPackage& package : python.packages)
    if (package.name.rfind("nvidia-", 0) == 0) libraries.push_back(package.name.substr(7) + " " + package.version);
  if (!libraries.empty()) out.rows.emplace_back("nvidia", printable(joined(libraries, ", "), 1000));
  for (const std::string& problem : python.problems) out.rows.emplace_back("problem", printable(problem));
  return out;
}

std::string painted(const std::string& text, const char* code, bool colour) {
  return colour ? std::string("\033[") + code + "m" + text + "\033[0m" : text;
}

// What is said of many files in the same words is said once, and what stops an import before what does not.
std::vector<Verdict> told(const std::vector<Verdict>& verdicts) {
  constexpr std::size_t kMostNames = 4;
  struct Group {
    Verdict first;
    std::vector<std::string> others;
  };
  std::vector<Group> groups;
  std::map<std::string, std::size_t> known;
  for (const Verdict& verdict : verdicts) {
    // Load errors name the file itself; what differs beyond that is another finding.
    const std::string words =
        verdict.code.text() + "\n" + severity_name(verdict.severity) + "\n" + verdict.cause + "\n" + verdict.fix;
    const bool may_fold = !verdict.cause.empty() || verdict.code == "LOADS";
    const auto [it, is_new] = known.try_emplace(words, groups.size());
    if (is_new || !may_fold)
      groups.push_back({verdict, {}});
    else
      groups[it->second].others.push_back(base_name(verdict.subject));
  }
  std::vector<Verdict> out;
  for (Group& group : groups) {
    if (const std::size_t count = group.others.size()) {
      group.others.resize(std::min(count, kMostNames));
      group.first.evidence.push_back("and the same of " + counted(count, "other") + ": " + joined(group.others, ", ") +
                                     (count > kMostNames ? ", ..." : ""));
    }
    out.push_back(std::move(group.first));
  }
  std::stable_sort(out.begin(), out.end(), [](const Verdict& a, const Verdict& b) { return a.severity > b.severity; });
  return out;
}

ReportSection tables_section() {
  ReportSection out{"what it knows of others", {}};
  for (const AgingTable& table : aging_tables()) out.rows.emplace_back("as of " + std::string(table.as_of), table.what);
  return out;
}

}  // namespace

std::vector<ReportSection> describe(const Survey& survey) {
  std::vector<ReportSection> sections = {machine_section(survey.host), cuda_section(survey), compiler_section(survey)};
  for (const PythonInstall& python : survey.pythons) sections.push_back(python_section(python));
  sections.push_back(tables_section());
  return sections;
}

std::vector<ReportSection> describe(const Environment& environment) {
  ReportSection out{"target " + printable(environment.name), {}};
  out.rows.emplace_back("machine", or_unknown(environment.machine));
  out.rows.emplace_back("C library", environment.libc + " " + version_or(environment.libc_version));
  out.rows.emplace_back("libstdc++", "GLIBCXX_" + version_or(environment.glibcxx));
  out.rows.emplace_back("Python", environment.python ? version_or(environment.python->version) + "  " +
                                                           printable(environment.python->executable)
                                                     : "none");
  out.rows.emplace_back("torch", environment.torch ? torch_text(*environment.torch) : "none");
  out.rows.emplace_back("driver", version_or(environment.driver, "none"));
  for (const Gpu& gpu : environment.gpus)
    out.rows.emplace_back("GPU", printable(gpu.name) + ", compute capability " + gpu.capability.text());
  return {out, tables_section()};
}

std::string report_text(const std::vector<ReportSection>& sections, const std::vector<Judged>& judged, bool colour) {
  std::string out;
  for (const ReportSection& section : sections) {
    out += painted(section.title, "1", colour) + "\n";
    std::size_t width = 10;
    for (const auto& [label, text] : section.rows) width = std::max(width, std::min<std::size_t>(label.size(), 24));
    for (const auto& [label, text] : section.rows)
      out += "  " + label + std::string(width + 2 - std::min(width, label.size()), ' ') + text + "\n";
    out += "\n";
  }
  for (const Judged& item : judged) {
    out += painted(printable(item.subject), "1", colour) +
           (item.target.empty() ? "" : "  in " + printable(item.target)) + "\n";
    for (const Verdict& verdict : told(item.verdicts)) out += verdict_text(verdict, colour);
    if (item.verdicts.empty()) out += "  nothing to complain about\n";
    out += "\n";
  }
  if (!out.empty()) out.pop_back();
  return out;
}

}  // namespace doctor
