// SPDX-License-Identifier: Apache-2.0
// From a request to the script that sbatch takes.
#include "builder/slurm/slurm_script.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <stdexcept>

#include "support/quote.h"
#include "support/text.h"

namespace builder {

using namespace support;

namespace {

constexpr uint64_t kMebi = 1 << 20, kGibi = 1 << 30;

bool only(std::string_view text, std::string_view signs) {
  return std::all_of(text.begin(), text.end(), [&](unsigned char c) {
    return (c < 128 && std::isalnum(c)) || signs.find(char(c)) != signs.npos;
  });
}

std::optional<uint64_t> number(std::string_view text) {
  if (text.empty() || text.size() > 12) return std::nullopt;
  uint64_t out = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    out = out * 10 + uint64_t(c - '0');
  }
  return out;
}

[[noreturn]] void refuse(const char* flag, const std::string& got, const char* want) {
  throw std::runtime_error(std::string(flag) + " is \"" + support::printable(got) + "\", want " + want);
}

// One word of letters, digits and few signs: nothing that sbatch would take apart.
std::string plain_name(const std::string& name) {
  std::string out;
  for (const char c : name.substr(0, 60)) out += only(std::string_view(&c, 1), "._-") ? c : '_';
  return out.empty() ? "mica" : out;
}

bool is_variable_name(const std::string& name) {
  return !name.empty() && only(name, "_") && !(name[0] >= '0' && name[0] <= '9');
}

// `module` is a function of the login shell, which a job's shell need not be: what defines it is looked for.
std::string load_modules(const std::vector<std::string>& modules) {
  if (modules.empty()) return "";
  std::string out =
      "if ! type module >/dev/null 2>&1; then\n"
      "  for init in \"$MODULESHOME/init/bash\" \"$LMOD_PKG/init/bash\" /etc/profile.d/lmod.sh "
      "/etc/profile.d/modules.sh "
      "/etc/profile.d/z00_lmod.sh /usr/share/lmod/lmod/init/bash /usr/share/modules/init/bash; do\n"
      "    if [ -r \"$init\" ]; then . \"$init\"; break; fi\n"
      "  done\n"
      "fi\n";
  for (const std::string& module : modules)
    out += "module load " + shell_quoted(module) + " || { echo \"mica: module load " + module +
           " failed on $(hostname)\"; exit 2; }\n";
  return out;
}

}  // namespace

std::optional<uint64_t> parse_slurm_memory(std::string_view text) {
  constexpr std::string_view kUnits = "KMGT";
  uint64_t unit = kMebi;
  const char last = text.empty() ? '0' : char(std::toupper(static_cast<unsigned char>(text.back())));
  if (const std::size_t power = kUnits.find(last); power != kUnits.npos) {
    unit = uint64_t(1) << (10 * (power + 1));
    text.remove_suffix(1);
  }
  const auto count = number(text);
  if (!count || *count > (uint64_t(1) << 60) / unit) return std::nullopt;
  return *count * unit;
}

std::optional<uint64_t> parse_slurm_seconds(std::string_view text) {
  uint64_t days = 0;
  const std::size_t dash = text.find('-');
  const bool has_days = dash != text.npos;
  if (has_days) {
    const auto count = number(text.substr(0, dash));
    if (!count || *count > 10'000) return std::nullopt;
    days = *count;
    text = text.substr(dash + 1);
  }
  std::vector<uint64_t> parts;
  for (const std::string& part : support::split(text, ':')) {
    const auto count = number(part);
    if (!count || *count > 100'000'000) return std::nullopt;
    parts.push_back(*count);
  }
  if (parts.empty() || parts.size() > 3) return std::nullopt;
  // MM, MM:SS, HH:MM:SS; D-HH, D-HH:MM, D-HH:MM:SS
  uint64_t seconds = 0;
  if (has_days || parts.size() == 3) {
    parts.resize(3);
    seconds = parts[0] * 3600 + parts[1] * 60 + parts[2];
  } else {
    parts.resize(2);
    seconds = parts[0] * 60 + parts[1];
  }
  return days * 86400 + seconds;
}

std::string slurm_time(uint64_t seconds) {
  char text[64];
  std::snprintf(text, sizeof text, "%llu-%02llu:%02llu:%02llu", static_cast<unsigned long long>(seconds / 86400),
                static_cast<unsigned long long>(seconds / 3600 % 24),
                static_cast<unsigned long long>(seconds / 60 % 60), static_cast<unsigned long long>(seconds % 60));
  return text;
}

void check_wishes(const SlurmWishes& wishes) {
  if (!only(wishes.partition, "._-,") || wishes.partition.starts_with("-"))
    refuse("--partition", wishes.partition, "names of partitions with commas between");
  if (!wishes.memory.empty() && parse_slurm_memory(wishes.memory).value_or(0) == 0)
    refuse("--mem", wishes.memory, "a number with K, M, G or T, such as 64G");
  if (!wishes.time.empty() && parse_slurm_seconds(wishes.time).value_or(0) == 0)
    refuse("--time", wishes.time, "minutes, HH:MM:SS or D-HH:MM:SS");
  if (!only(wishes.gres, "._-,:=/") || wishes.gres.starts_with("-"))
    refuse("--gres", wishes.gres, "what sbatch takes, such as gpu:1");
  if (!only(wishes.qos, "._-") || wishes.qos.starts_with("-")) refuse("--qos", wishes.qos, "the name of a quality");
  if (!only(wishes.constraint, "._-&|,[]()*:!") || wishes.constraint.starts_with("-"))
    refuse("--constraint", wishes.constraint, "features with & or | between, such as a100|h100");
  if (!only(wishes.reservation, "._-,") || wishes.reservation.starts_with("-"))
    refuse("--reservation", wishes.reservation, "the name of a reservation");
  for (const std::string& module : wishes.modules)
    if (module.empty() || !only(module, "._-/+") || module.starts_with("-"))
      refuse("--module", module, "the name of a module, such as cuda/12.8");
  for (const std::string& line : wishes.lines)
    if (!line.starts_with("-") || line.find_first_of("\n\r#") != line.npos)
      refuse("--sbatch", line, "one option as sbatch takes it, such as --exclusive");
  if (!only(wishes.account, "._-@") || wishes.account.starts_with("-"))
    refuse("--account", wishes.account, "the name of an account");
}

uint64_t asked_memory_bytes(const JobRequest& request) {
  if (!request.wishes.memory.empty()) return parse_slurm_memory(request.wishes.memory).value_or(0);
  if (request.job_bytes == 0) return 0;
  return uint64_t(std::max(1, request.jobs)) * (request.job_bytes + request.job_bytes / 10) + 2 * kGibi;
}

namespace {

// What the job asks of Slurm, up to the first command.
std::string asked(const JobRequest& request) {
  check_wishes(request.wishes);
  std::string out = "#!/bin/bash\n# Submit it from its own folder: the log is written there.\n";
  const auto ask = [&](const std::string& option, const std::string& value) {
    if (!value.empty()) out += "#SBATCH --" + option + "=" + value + "\n";
  };
  ask("job-name", plain_name(request.name));
  ask("nodes", "1");
  ask("ntasks", "1");
  ask("cpus-per-task", std::to_string(std::max(1, request.cores)));
  if (const uint64_t bytes = asked_memory_bytes(request)) ask("mem", std::to_string((bytes + kMebi - 1) / kMebi) + "M");
  ask("time", request.wishes.time);
  ask("partition", request.wishes.partition);
  ask("gres", request.wishes.gres);
  ask("account", request.wishes.account);
  ask("qos", request.wishes.qos);
  ask("constraint", request.wishes.constraint.empty() ? "" : "\"" + request.wishes.constraint + "\"");
  ask("reservation", request.wishes.reservation);
  for (const std::string& line : request.wishes.lines) out += "#SBATCH " + line + "\n";
  return out;
}

// Modules and the command, whose exit code is noted beside the log. `id` and `job_folder` are set.
std::string noted_run(const JobRequest& request, const std::string& command) {
  std::string out = "export MICA_BUILD_OUTCOME=\"$job_folder/job-$id.json\"\n";
  out += "rm -f \"$job_folder/job-$id.end\" \"$MICA_BUILD_OUTCOME\"\n";
  out += "echo \"mica: job $id on $(hostname)\"\n";
  for (const auto& [name, value] : request.variables) {
    if (!is_variable_name(name)) throw std::runtime_error("no variable can be called " + support::printable(name));
    out += "export " + name + "=" + shell_quoted(value) + "\n";
  }
  out += load_modules(request.wishes.modules);
  if (!request.work_folder.empty()) out += "cd " + shell_quoted(request.work_folder) + " || exit 2\n";
  // The shell outlives the signal that ends the command, to note how that went.
  out += "trap : TERM INT\n";
  out += command + "--jobs " + std::to_string(request.jobs) + " &\n";
  out += "command=$!\n";
  out += "wait $command; code=$?\n";
  out += "if kill -0 $command 2>/dev/null; then kill -TERM $command; wait $command; code=$?; fi\n";
  out += "echo $code >\"$job_folder/.job-$id.end\"\n";
  out += "mv \"$job_folder/.job-$id.end\" \"$job_folder/job-$id.end\"\n";
  out += "exit $code\n";
  return out;
}

std::string quoted_words(const JobRequest& request) {
  if (request.words.empty()) throw std::runtime_error("the job has no command");
  std::string out;
  for (const std::string& word : request.words) out += shell_quoted(word) + " ";
  return out;
}

// After a node's failure a job goes on from what is built.
constexpr const char* kGoesOn = "#SBATCH --open-mode=append\n#SBATCH --requeue\n";

}  // namespace

std::vector<std::string> overriding_variables(const std::string& script) {
  struct Pair {
    std::string_view option;
    const char* variable;
  };
  constexpr Pair kPairs[] = {
      {"job-name", "SBATCH_JOB_NAME"},
      {"output", "SBATCH_OUTPUT"},
      {"output", "SBATCH_ERROR"},
      {"array", "SBATCH_ARRAY_INX"},
      {"open-mode", "SBATCH_OPEN_MODE"},
      {"requeue", "SBATCH_REQUEUE"},
      {"requeue", "SBATCH_NO_REQUEUE"},
      {"mem", "SBATCH_MEM_PER_NODE"},
      {"mem", "SBATCH_MEM_PER_CPU"},
      {"mem", "SBATCH_MEM_PER_GPU"},
      {"time", "SBATCH_TIMELIMIT"},
      {"partition", "SBATCH_PARTITION"},
      {"gres", "SBATCH_GRES"},
      {"account", "SBATCH_ACCOUNT"},
      {"qos", "SBATCH_QOS"},
      {"constraint", "SBATCH_CONSTRAINT"},
      {"exclusive", "SBATCH_EXCLUSIVE"},
      {"reservation", "SBATCH_RESERVATION"},
  };
  constexpr std::string_view kBegin = "#SBATCH --";
  std::vector<std::string> out;
  for (const std::string& line : support::split(script, '\n')) {
    if (!line.starts_with(kBegin)) continue;
    const std::string option = line.substr(kBegin.size(), line.find_first_of("= ", kBegin.size()) - kBegin.size());
    for (const Pair& pair : kPairs)
      if (pair.option == option) out.emplace_back(pair.variable);
  }
  return out;
}

std::string job_script(const JobRequest& request) {
  return asked(request) + "#SBATCH --output=job-%j.log\n" + kGoesOn + "id=$SLURM_JOB_ID\njob_folder=$PWD\n" +
         noted_run(request, quoted_words(request));
}

std::string array_script(const std::vector<JobRequest>& tasks) {
  if (tasks.empty()) throw std::runtime_error("the array has no task");
  std::string out = asked(tasks[0]);
  out += "#SBATCH --array=0-" + std::to_string(tasks.size() - 1) + "\n";
  out += std::string("#SBATCH --output=%a/job-%A_%a.log\n") + kGoesOn;
  out += "id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID\njob_folder=$PWD/$SLURM_ARRAY_TASK_ID\n";
  out += "case $SLURM_ARRAY_TASK_ID in\n";
  for (std::size_t i = 0; i < tasks.size(); ++i)
    out += std::to_string(i) + ") set -- " + quoted_words(tasks[i]) + ";;\n";
  return out + "*) exit 2 ;;\nesac\n" + noted_run(tasks[0], "\"$@\" ");
}

}  // namespace builder
