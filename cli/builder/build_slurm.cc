// SPDX-License-Identifier: Apache-2.0
#include "cli/builder/build_slurm.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "builder/plan/architectures.h"
#include "builder/plan/gather.h"
#include "builder/plan/parallel.h"
#include "builder/plan/recipe.h"
#include "builder/run/prepare.h"
#include "builder/slurm/job.h"
#include "builder/slurm/nodes.h"
#include "builder/slurm/slurm.h"
#include "builder/slurm/slurm_end.h"
#include "builder/slurm/slurm_script.h"
#include "cli/json_text.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "doctor/verdict/verdict_json.h"
#include "support/text.h"

namespace cli {
namespace {

namespace fs = std::filesystem;

constexpr int kInterrupted = 130;
constexpr int kUsualJobs = 4;  // where nobody says how many, or how much memory there is

std::string absolute(const std::string& path) {
  return path.empty() ? "" : fs::absolute(path).lexically_normal().string();
}

std::string jobs_folder(const builder::BuildRequest& request) {
  return absolute(request.work.empty() ? builder::default_work_folder() : request.work) + "/jobs";
}

std::string folder_name(const std::string& package) {
  std::string out = package.empty() ? "extension" : package;
  for (char& c : out)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.') c = '_';
  return out.substr(0, 100);
}

// As many compilers as the memory asked for holds.
int jobs_of(const builder::BuildRequest& request, const SlurmOptions& options, uint64_t job_bytes) {
  if (request.jobs > 0) return request.jobs;
  const uint64_t bytes = builder::parse_slurm_memory(options.wishes.memory).value_or(0);
  if (bytes == 0 || job_bytes == 0) return kUsualJobs;
  builder::JobRequest trial;
  trial.job_bytes = job_bytes;
  trial.jobs = 1;
  while (trial.jobs < 64) {
    ++trial.jobs;
    if (asked_memory_bytes(trial) > bytes) return trial.jobs - 1;
  }
  return trial.jobs;
}

builder::JobRequest job_request(const builder::BuildRequest& request, const SlurmOptions& options,
                                const builder::PreparedBuild& prepared) {
  builder::JobRequest job;
  job.name = "mica-" + folder_name(prepared.source.package);
  job.folder = jobs_folder(request) + "/" + folder_name(prepared.source.package);
  job.wishes = options.wishes;
  job.job_bytes = builder::recipe_of(prepared.source.package).job_bytes;
  job.jobs = jobs_of(request, options, job.job_bytes);
  job.cores = job.jobs;
  job.builds = prepared.request.work;
  // What was fetched here need not be fetched by a node that may have no network.
  job.target = prepared.source.path.empty() ? request.target : prepared.source.path;
  job.python = prepared.place.program;
  std::error_code error;
  const std::string self = fs::read_symlink("/proc/self/exe", error).string();
  job.words = {self.empty() ? "mica" : self, "build", job.target, "--no-progress"};
  const auto add = [&](const char* flag, const std::string& value) {
    if (!value.empty()) job.words.insert(job.words.end(), {flag, value});
  };
  add("--python", prepared.place.program);
  for (const std::string& file : request.target_files) add("--target", absolute(file));
  add("--arch", request.architectures);
  add("--conda-channel", absolute(request.conda_channel));
  job.out = prepared.request.out;
  job.publish = absolute(options.publish);
  add("--out", job.out);
  add("--work", prepared.request.work);
  add("--publish", job.publish);
  if (request.keep) job.words.push_back("--keep");
  if (request.allow_downloads) job.words.push_back("--allow-downloads");
  if (!request.fetches_toolchain) job.words.push_back("--no-fetch");
  return job;
}

class Follower {
 public:
  explicit Follower(const builder::Listener& listener) : listener_(listener) {}

  bool operator()(const builder::Job& job, const builder::JobStatus& status) {
    std::string line = "job " + job.id + " " + builder::phase_name(status.phase);
    if (status.phase == builder::JobPhase::kRunning) line += " on " + status.node;
    if (status.phase == builder::JobPhase::kUnknown) line += ": " + status.problem;
    if (status.phase == builder::JobPhase::kQueued)
      for (const doctor::Verdict& verdict : builder::explain_job(job, status))
        line += ", " + verdict.message + ": " + verdict.cause +
                (verdict.severity == doctor::Severity::kNote ? "" : " " + verdict.fix);
    if (status.phase != builder::JobPhase::kEnded && line != last_) listener_.say(line);
    last_ = line;
    for (const std::string& words : new_lines(status.log)) listener_.say("  | " + words);
    if (status.phase == builder::JobPhase::kRunning && status.build) {
      const builder::BuildState& b = *status.build;
      const double left = b.files_done > 0 ? b.seconds / b.files_done * (b.files_total - b.files_done) : -1;
      if (b.phase == "building")
        listener_.progress({b.files_done, b.files_total, b.jobs, b.bytes, b.peak_bytes, b.seconds, left});
    }
    return true;
  }

 private:
  // The lines behind those that the last look saw at the end of the log.
  std::vector<std::string> new_lines(const std::vector<std::string>& log) {
    std::size_t known = std::min(log.size(), seen_.size());
    while (known > 0 &&
           !std::equal(log.begin(), log.begin() + std::ptrdiff_t(known), seen_.end() - std::ptrdiff_t(known)))
      --known;
    seen_ = log;
    return {log.begin() + std::ptrdiff_t(known), log.end()};
  }

  const builder::Listener& listener_;
  std::string last_;
  std::vector<std::string> seen_;
};

struct Result {
  builder::Job job;
  builder::JobStatus status;
  std::vector<doctor::Verdict> verdicts;
};

// Follows to the end, with second tries where they can help.
Result follow(builder::Job job, const SlurmOptions& options, const builder::Listener& listener) {
  Follower follower(listener);
  for (;;) {
    Result result;
    result.status = builder::follow_job(job, [&](const builder::JobStatus& status) { return follower(job, status); });
    result.job = job;
    if (result.status.phase != builder::JobPhase::kEnded) return result;
    result.verdicts = builder::explain_job(job, result.status);
    const auto retry = job.attempt > options.retries
                           ? std::nullopt
                           : retry_of(job, result.status, builder::largest_node_bytes(job.request.wishes.partition));
    if (!retry) return result;
    for (const doctor::Verdict& verdict : result.verdicts) listener.say(verdict.subject + ": " + verdict.message);
    job = builder::resubmit_job(job, retry->request);
    listener.say("again   job " + job.id + ": " + retry->why);
  }
}

bool succeeded(const Result& result) { return result.status.end == builder::JobEnd::kSuccess; }

// In the out folder, with the record of the build beside it; else where it was built.
std::string wheel_of(const Result& result) {
  const std::string built = succeeded(result) && result.status.build ? result.status.build->wheel : "";
  const std::string& out = result.job.request.out;
  if (built.empty() || out.empty()) return built;
  const std::string handed_out = out + "/" + support::base_name(built);
  std::error_code error;
  return fs::is_regular_file(handed_out, error) ? handed_out : built;
}

void print(const Result& result) {
  const builder::JobStatus& status = result.status;
  if (status.phase != builder::JobPhase::kEnded) {
    std::printf("job %s goes on without this terminal: mica build --slurm --attach follows it, --cancel ends it\n",
                result.job.id.c_str());
    return;
  }
  if (!succeeded(result)) {
    std::printf("job %s ended: %s\n", result.job.id.c_str(), builder::end_name(status.end));
    for (const doctor::Verdict& verdict : result.verdicts)
      std::printf("%s", doctor::verdict_text(verdict, false).c_str());
  }
  if (!wheel_of(result).empty()) std::printf("wheel    %s\n", wheel_of(result).c_str());
  std::printf("log      %s\n", result.job.log().c_str());
}

nlohmann::json as_json(const Result& result) {
  return {{"job", result.job.id},
          {"folder", result.job.request.folder},
          {"log", result.job.log()},
          {"attempts", result.job.attempt},
          {"phase", builder::phase_name(result.status.phase)},
          {"end", builder::end_name(result.status.end)},
          {"state", result.status.state},
          {"reason", result.status.reason},
          {"node", result.status.node},
          {"exit_code", result.status.exit_code},
          {"wheel", wheel_of(result)},
          {"published", succeeded(result) ? result.job.request.publish : ""},
          {"verdicts", doctor::as_json(result.verdicts)}};
}

void print_json(const nlohmann::json& out) {
  std::printf("%s\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

SlurmEnd finish(const Result& result, bool json) {
  if (json)
    print_json(as_json(result));
  else
    print(result);
  if (result.status.phase != builder::JobPhase::kEnded) return {kInterrupted, "", ""};
  const std::vector<std::string>& words = result.job.request.words;
  const auto python = std::find(words.begin(), words.end(), "--python");
  return {succeeded(result) ? kOk : kFailed, wheel_of(result), python + 1 < words.end() ? python[1] : ""};
}

// Tasks of an array, one after the other; the others go on meanwhile. One that fails ends none of them.
SlurmEnd finish_all(const std::vector<builder::Job>& jobs, const SlurmOptions& options, bool json,
                    const builder::Listener& listener) {
  nlohmann::json all = nlohmann::json::array();
  SlurmEnd out{kOk, "", ""};
  for (const builder::Job& job : jobs) {
    const Result result = follow(job, options, listener);
    if (json)
      all.push_back(as_json(result));
    else
      print(result);
    if (result.status.phase != builder::JobPhase::kEnded) return {kInterrupted, "", ""};
    if (!succeeded(result)) out.exit_code = kFailed;
  }
  if (json) print_json({{"tasks", all}, {"exit_code", out.exit_code}});
  return out;
}

// The tasks of an array that was submitted from this folder.
std::vector<builder::Job> read_tasks(const std::string& folder) {
  std::vector<builder::Job> out;
  std::error_code error;
  while (fs::exists(folder + "/" + std::to_string(out.size()) + "/job.json", error))
    out.push_back(builder::read_job(folder + "/" + std::to_string(out.size())));
  return out;
}

constexpr const char* kArray = "-array";  // behind the package in the name of an array's folder

// `--arch auto` on a cluster: the GPUs that its nodes have, as Slurm lists them.
void take_the_clusters_gpus(builder::BuildRequest& request, const SlurmOptions& options,
                            const builder::Listener& listener) {
  if (request.architectures != "auto" || !request.target_files.empty()) return;
  std::vector<doctor::ComputeCapability> gpus;
  std::vector<std::string> not_known;
  for (const builder::NodeType& type : builder::node_types(options.wishes.partition)) {
    if (type.gpu)
      gpus.push_back(*type.gpu);
    else
      not_known.push_back(type.gres);
  }
  const int lowest = builder::recipe_of(builder::parse_source(request.target).package).lowest_sm;
  std::erase_if(gpus, [&](const auto& gpu) { return gpu.major * 10 + gpu.minor < lowest; });
  for (const std::string& gres : not_known)
    listener.say("nodes with " + gres + ": Slurm does not say which GPU that is; --arch or --target do");
  if (gpus.empty()) return;
  const builder::FleetArchitectures fleet = builder::smallest_set(gpus);
  std::vector<std::string> names;
  for (const auto& gpu : fleet.exact) names.push_back(gpu.text());
  request.architectures = support::joined(names, ",");
  std::string line = "for the cluster's GPUs: exact for " + support::joined(names, ", ");
  for (const auto& [gpu, by] : fleet.compatible) line += "; " + gpu.text() + " runs the code of " + by.text();
  listener.say(line);
}

// "py311-torch2.8.0-cu128"; with a number where that is taken.
std::string label_of(const builder::BuildPlace& place, std::set<std::string>& taken) {
  const auto& version = place.python->facts.version;
  std::string label = "py" + std::to_string(version.major_part()) + std::to_string(version.minor_part()) +
                      (place.python->torch ? "-torch" + place.python->torch->version : "");
  for (char& c : label)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.') c = '-';
  std::string out = label;
  for (int i = 2; !taken.insert(out).second; ++i) out = label + "-" + std::to_string(i);
  return out;
}

// The source is fetched once; each Python has a plan, a build folder and a task of its own.
SlurmEnd run_array(const builder::BuildRequest& asked, const SlurmOptions& options, bool json,
                   const builder::Listener& listener) {
  std::vector<builder::JobRequest> tasks;
  std::string folder;
  std::set<std::string> labels;
  for (const std::string& python : options.pythons) {
    builder::BuildRequest request = asked;
    request.python = python;
    const std::string label = label_of(builder::look_around(python), labels);
    // Wheels for two torches have one name: each has a folder, and a shelf, of its own.
    request.out = (fs::path(asked.out) / label).string();
    SlurmOptions own = options;
    if (!options.publish.empty()) own.publish = (fs::path(options.publish) / label).string();
    const builder::PreparedBuild prepared =
        builder::prepare(request, options.print ? builder::Fetch::kNothing : builder::Fetch::kForAnotherNode, listener);
    for (const doctor::Verdict& verdict : prepared.plan.verdicts)
      if (verdict.severity == doctor::Severity::kError)
        listener.say("for " + prepared.place.program + " it could not be built here (" + verdict.code.text() +
                     "); the job's node decides");
    tasks.push_back(job_request(request, own, prepared));
    folder = tasks.back().folder + kArray;
  }
  if (options.print) {
    const std::string script = builder::array_script(tasks);
    if (json)
      print_json({{"script", script}, {"folder", folder}});
    else
      std::printf("%s", script.c_str());
    return {};
  }
  for (const builder::Job& job : read_tasks(folder)) {
    const builder::JobPhase phase = builder::look_at_job(job).phase;
    if (phase == builder::JobPhase::kQueued || phase == builder::JobPhase::kRunning)
      throw std::runtime_error("job " + job.id +
                               " builds it already: mica build --slurm --attach follows it, --cancel ends it");
  }
  std::error_code error;
  fs::remove_all(folder, error);
  const std::vector<builder::Job> jobs = builder::submit_array(folder, tasks);
  listener.say("array of " + support::counted(jobs.size(), "job") + " submitted from " + folder + ": " +
               support::counted(std::size_t(tasks[0].jobs), "compiler") + " and " +
               builder::gigabytes(asked_memory_bytes(tasks[0])) + " of memory for each");
  return finish_all(jobs, options, json, listener);
}

}  // namespace

void add_slurm_flags(Command& verb, SlurmOptions& options) {
  const char* group = "As a job of Slurm";
  Option* slurm = verb.add_flag("--slurm", options.slurm, "submit it as a job and follow that")->group(group);
  const auto add = [&](const char* name, std::string& value, const char* text, const char* type) {
    verb.add_option(name, value, text)->type_name(type)->group(group)->needs(slurm);
  };
  add("--partition", options.wishes.partition, "as sbatch takes it", "NAME");
  add("--mem", options.wishes.memory, "memory of the job (default: jobs times memory per job)", "SIZE");
  add("--time", options.wishes.time, "time limit of the job", "TIME");
  add("--gres", options.wishes.gres, "as sbatch takes it: gpu:1 lets the wheel be tried on a GPU", "LIST");
  add("--account", options.wishes.account, "as sbatch takes it", "NAME");
  add("--qos", options.wishes.qos, "as sbatch takes it", "NAME");
  add("--constraint", options.wishes.constraint, "as sbatch takes it", "LIST");
  add("--reservation", options.wishes.reservation, "as sbatch takes it", "NAME");
  verb.add_option("--module", options.wishes.modules, "loaded in the job before the build: cuda/12.8 (may be repeated)")
      ->type_name("NAME")
      ->group(group)
      ->expected(1)
      ->take_all()
      ->needs(slurm);
  verb.add_option("--sbatch", options.wishes.lines,
                  "any other option of sbatch, as in --sbatch=--exclusive (may be repeated)")
      ->type_name("OPTION")
      ->group(group)
      ->expected(1)
      ->take_all()
      ->needs(slurm);
  verb.add_option("--retries", options.retries, "second tries after too little memory or time, or a lost node")
      ->group(group)
      ->capture_default_str()
      ->range(0, 20)
      ->needs(slurm);
  verb.add_flag("--print", options.print, "only show the job's script (so does --dry-run)")->group(group)->needs(slurm);
  verb.add_flag("--cancel", options.cancel, "end the job of TARGET")->group(group)->needs(slurm);
}

std::string find_job_folder(const builder::BuildRequest& request) {
  std::string newest;
  fs::file_time_type when;
  std::error_code error;
  for (fs::directory_iterator entry(jobs_folder(request), error), end; !error && entry != end; entry.increment(error)) {
    std::error_code missing;
    const std::string name = entry->path().filename().string();
    const bool is_array = name.ends_with(kArray);
    const fs::file_time_type time = fs::last_write_time(entry->path() / (is_array ? "array.sh" : "job.json"), missing);
    const std::string wanted = request.target.empty() ? "" : folder_name(builder::parse_source(request.target).package);
    const bool fits = wanted.empty() || name == wanted || name == wanted + kArray;
    if (missing || !fits || (!newest.empty() && time <= when)) continue;
    newest = entry->path().string();
    when = time;
  }
  return newest;
}

SlurmEnd run_in_slurm(const builder::BuildRequest& asked, const SlurmOptions& options, bool attach, bool json,
                      const builder::Listener& listener) {
  builder::BuildRequest request = asked;
  builder::check_wishes(options.wishes);
  if (attach || options.cancel) {
    const std::string folder = find_job_folder(request);
    if (folder.empty())
      throw std::runtime_error("no job" + (request.target.empty() ? "" : " of " + request.target) + " was submitted");
    SlurmOptions calm = options;
    if (options.cancel) calm.retries = 0;
    if (const std::vector<builder::Job> tasks = read_tasks(folder); !tasks.empty()) {
      if (options.cancel)
        for (const builder::Job& task : tasks) builder::cancel_job(task);
      return finish_all(tasks, calm, json, listener);
    }
    builder::Job job = builder::read_job(folder);
    if (options.cancel) builder::cancel_job(job);
    return finish(follow(std::move(job), calm, listener), json);
  }
  if (request.target.empty()) throw std::runtime_error("want a package, a source archive or a folder");
  builder::Listener quiet = listener;
  if (options.print) quiet.say = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  take_the_clusters_gpus(request, options, quiet);
  if (options.pythons.size() > 1) return run_array(request, options, json, listener);
  const builder::PreparedBuild prepared =
      builder::prepare(request, options.print ? builder::Fetch::kNothing : builder::Fetch::kForAnotherNode, listener);
  const builder::JobRequest wanted = job_request(request, options, prepared);
  if (options.print) {
    const std::string script = builder::job_script(wanted);
    const nlohmann::json as_json = {{"script", script}, {"folder", wanted.folder}};
    std::printf("%s", json ? json_text(as_json).c_str() : script.c_str());
    return {};
  }
  for (const doctor::Verdict& verdict : prepared.plan.verdicts)
    if (verdict.severity == doctor::Severity::kError)
      listener.say("here it could not be built (" + verdict.code.text() + "); the job's node decides");
  std::error_code error;
  if (fs::exists(wanted.folder + "/job.json", error)) {
    const builder::Job running = builder::read_job(wanted.folder);
    const builder::JobPhase phase = builder::look_at_job(running).phase;
    if (phase == builder::JobPhase::kQueued || phase == builder::JobPhase::kRunning) {
      listener.say("job " + running.id + " builds it already");
      return finish(follow(running, options, listener), json);
    }
  }
  const builder::Job job = builder::submit_job(wanted);
  listener.say("job " + job.id + " submitted from " + wanted.folder + ": " +
               support::counted(std::size_t(wanted.jobs), "compiler") + ", " +
               builder::gigabytes(asked_memory_bytes(wanted)) + " of memory");
  return finish(follow(job, options, listener), json);
}

}  // namespace cli
