// SPDX-License-Identifier: Apache-2.0
#include "builder/slurm/slurm.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <thread>

#include "builder/slurm/nodes.h"
#include "builder/slurm/slurm_json.h"
#include "builder/slurm/slurm_script.h"
#include "doctor/verdict/code.h"
#include "support/bytes.h"
#include "support/durable.h"
#include "support/quote.h"
#include "support/text.h"

namespace builder {

using namespace support;

namespace {

constexpr double kPatienceSeconds = 900;  // with a controller that does not answer
constexpr std::size_t kLogBytes = 64 << 10, kLogLines = 30;

struct Said {
  int exit_code = 0;
  std::string output, errors;
  bool ok() const { return exit_code == 0; }
  // One line for a person: the program's own complaint.
  std::string complaint(const std::string& program) const {
    std::vector<std::string> lines;
    for (std::string line : support::split(errors.empty() ? output : errors, '\n')) {
      if (line.starts_with(program + ": ")) line.erase(0, program.size() + 2);
      if (line.starts_with("error: ")) line.erase(0, 7);
      if (!support::trimmed(line).empty() && lines.size() < 3) lines.emplace_back(support::trimmed(line));
    }
    if (lines.empty()) lines.push_back("exit code " + std::to_string(exit_code) + ", without a word");
    return program + ": " + support::printable(support::joined(lines, "; "));
  }
};

Said ask(std::vector<std::string> words, const std::string& folder = "",
         const std::vector<std::string>& without_variables = {}) {
  Said said;
  Variables variables = current_environment();
  for (const std::string& name : without_variables) variables.erase(name);
  variables["LC_ALL"] = "C";
  // NOTE: a user's own formats would change what these programs print.
  for (const char* name : {"SQUEUE_FORMAT", "SQUEUE_FORMAT2", "SQUEUE_STATES", "SQUEUE_USERS", "SQUEUE_PARTITION",
                           "SINFO_FORMAT", "SACCT_FORMAT", "SLURM_TIME_FORMAT"})
    variables.erase(name);
  const Ended ended =
      run_collected({std::move(words), variables, folder}, kSlurmAnswerSeconds, &said.output, &said.errors);
  said.exit_code = ended.exit_code;
  return said;
}

// The same for a program that may be missing.
Said ask_if_there(const std::vector<std::string>& words) {
  try {
    return ask(words);
  } catch (const ProcessError& e) {
    return {127, "", e.what()};
  }
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  for (const std::string& line : support::split(text, '\n'))
    if (!support::trimmed(line).empty()) out.emplace_back(support::trimmed(line));
  return out;
}

bool is_number(std::string_view text) {
  return !text.empty() && text.size() <= 18 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// "123" or "123;cluster", in the last line.
void read_id(const Said& said, Job* job) {
  const std::vector<std::string> lines = lines_of(said.output);
  const std::vector<std::string> parts = support::split(lines.empty() ? "" : lines.back(), ';');
  if (parts.empty() || !is_number(parts[0]))
    throw std::runtime_error("no job id in the answer of " + said.complaint("sbatch"));
  job->id = parts[0];
  if (parts.size() > 1) job->cluster = support::printable(parts[1], 100);
}

std::vector<std::string> with_cluster(std::vector<std::string> words, const Job& job) {
  if (!job.cluster.empty()) words.insert(words.begin() + 1, "--clusters=" + job.cluster);
  return words;
}

void check_folder(const std::string& folder) {
  if (folder.find_first_of("%\\\n") != std::string::npos)
    throw std::runtime_error("the job's folder is " + support::printable(folder) +
                             ", want one without % and \\: Slurm would fill them in");
}

Job submit_attempt(Job job) {
  const JobRequest& request = job.request;
  const std::string script = job_script(request);
  check_folder(request.folder);
  make_folders(request.folder);
  replace_file(request.folder + "/job.sh", script);
  job.submitted = seconds_since_1970();
  // Noted before, so that an interruption between sbatch and the next line leaves a trace.
  replace_file(request.folder + "/job.json", to_json(job));
  const Said said = ask({"sbatch", "--parsable", "job.sh"}, request.folder, overriding_variables(script));
  if (!said.ok()) throw std::runtime_error(said.complaint("sbatch"));
  read_id(said, &job);
  replace_file(request.folder + "/job.json", to_json(job));
  return job;
}

// The newest note of the job's own build.
std::optional<BuildState> build_state(const Job& job) {
  std::optional<BuildState> newest;
  std::error_code error;
  if (job.request.builds.empty()) return newest;
  for (std::filesystem::directory_iterator entry(job.request.builds, error), end; !error && entry != end;
       entry.increment(error)) {
    auto state = read_state(entry->path().string());
    if (state && state->target == job.request.target && state->python == job.request.python &&
        state->updated >= job.submitted && (!newest || newest->updated < state->updated))
      newest = std::move(state);
  }
  return newest;
}

struct Word {
  const char* state;
  JobPhase phase;
  JobEnd end;
};
constexpr Word kStates[] = {
    {"PENDING", JobPhase::kQueued, JobEnd::kNone},        {"CONFIGURING", JobPhase::kQueued, JobEnd::kNone},
    {"REQUEUED", JobPhase::kQueued, JobEnd::kNone},       {"REQUEUE_FED", JobPhase::kQueued, JobEnd::kNone},
    {"REQUEUE_HOLD", JobPhase::kQueued, JobEnd::kNone},   {"RESV_DEL_HOLD", JobPhase::kQueued, JobEnd::kNone},
    {"SUSPENDED", JobPhase::kQueued, JobEnd::kNone},      {"RUNNING", JobPhase::kRunning, JobEnd::kNone},
    {"COMPLETING", JobPhase::kRunning, JobEnd::kNone},    {"STAGE_OUT", JobPhase::kRunning, JobEnd::kNone},
    {"SIGNALING", JobPhase::kRunning, JobEnd::kNone},     {"STOPPED", JobPhase::kRunning, JobEnd::kNone},
    {"RESIZING", JobPhase::kRunning, JobEnd::kNone},      {"COMPLETED", JobPhase::kEnded, JobEnd::kSuccess},
    {"FAILED", JobPhase::kEnded, JobEnd::kFailed},        {"SPECIAL_EXIT", JobPhase::kEnded, JobEnd::kFailed},
    {"OUT_OF_MEMORY", JobPhase::kEnded, JobEnd::kMemory}, {"TIMEOUT", JobPhase::kEnded, JobEnd::kTime},
    {"DEADLINE", JobPhase::kEnded, JobEnd::kTime},        {"NODE_FAIL", JobPhase::kEnded, JobEnd::kNode},
    {"BOOT_FAIL", JobPhase::kEnded, JobEnd::kNode},       {"LAUNCH_FAILED", JobPhase::kEnded, JobEnd::kNode},
    {"PREEMPTED", JobPhase::kEnded, JobEnd::kPreempted},  {"CANCELLED", JobPhase::kEnded, JobEnd::kCancelled},
    {"REVOKED", JobPhase::kEnded, JobEnd::kCancelled},
};

// "CANCELLED by 1000" of sacct is CANCELLED.
void take_state(const std::string& text, JobStatus* status) {
  const std::string word = text.substr(0, text.find_first_of(" +"));
  status->state = support::printable(word, 40);
  for (const Word& known : kStates)
    if (word == known.state) {
      status->phase = known.phase;
      status->end = known.end;
      return;
    }
  status->problem = "Slurm calls the job \"" + status->state + "\", which is not known here";
}

std::string log_tail(const std::string& path) {
  try {
    support::FileSource file(path);
    const uint64_t size = std::min<uint64_t>(file.size(), kLogBytes);
    std::string text(size, '\0');
    const std::span<uint8_t> bytes(reinterpret_cast<uint8_t*>(text.data()), text.size());
    return file.read(file.size() - size, bytes) ? text : "";
  } catch (const support::ReadError&) {
    return "";
  }
}

int noted_exit_code(const Job& job) {
  try {
    const std::string text = support::read_text_file(job.request.folder + "/job-" + job.id + ".end", 64);
    const std::string_view code = support::trimmed(text);
    return is_number(code) && code.size() < 4 ? std::stoi(std::string(code)) : -1;
  } catch (const support::ReadError&) {
    return -1;
  }
}

std::optional<JobOutcome> noted_outcome(const Job& job) {
  try {
    return outcome_from_json(support::read_text_file(job.request.folder + "/job-" + job.id + ".json", 1 << 20));
  } catch (const support::ReadError&) {
    return std::nullopt;
  }
}

// What the log says about the end goes before a state that only says FAILED.
JobEnd end_by_log(const std::string& text) {
  struct Sign {
    const char* words;
    JobEnd end;
  };
  constexpr Sign kSigns[] = {
      {"exceeded memory limit", JobEnd::kMemory}, {"Exceeded job memory limit", JobEnd::kMemory},
      {"oom-kill event", JobEnd::kMemory},        {"oom_kill event", JobEnd::kMemory},
      {"Out Of Memory", JobEnd::kMemory},         {"DUE TO TIME LIMIT", JobEnd::kTime},
      {"DUE TO NODE FAILURE", JobEnd::kNode},     {"DUE TO PREEMPTION", JobEnd::kPreempted},
  };
  // A job that was put back into the queue goes on in the same log.
  const std::size_t start = text.rfind("\nmica: job ");
  for (const std::string& line : lines_of(start == text.npos ? text : text.substr(start))) {
    // Only Slurm's own lines count: a command may print anything.
    if (!is_slurms_own(line)) continue;
    for (const Sign& sign : kSigns)
      if (line.find(sign.words) != line.npos) return sign.end;
  }
  return JobEnd::kNone;
}

// False if Slurm does not know the job (any more).
bool ask_queue(const Job& job, JobStatus* status) {
  // --array: a line for each task, also of those that wait.
  const Said said = ask_if_there(with_cluster(
      {"squeue", "--noheader", "--array", "--states=all", "--jobs=" + job.id, "--format=%i|%T|%r|%N|%M|%L"}, job));
  for (const std::string& line : lines_of(said.output)) {
    const std::vector<std::string> fields = support::split(line, '|');
    if (fields.size() != 6 || fields[0] != job.id) continue;
    take_state(fields[1], status);
    status->reason = support::printable(fields[2], 100);
    status->node = support::printable(fields[3], 100);
    status->elapsed = support::printable(fields[4], 40);
    status->left = support::printable(fields[5], 40);
    return true;
  }
  const bool unknown = said.ok() || said.errors.find("Invalid job id") != std::string::npos;
  if (!unknown) status->problem = said.complaint("squeue");
  return !unknown;
}

// "JobState=FAILED Reason=NonZeroExitCode ... ExitCode=1:0": only these keys are looked for.
bool ask_control(const Job& job, JobStatus* status) {
  const Said said = ask_if_there(with_cluster({"scontrol", "--oneliner", "show", "job", job.id}, job));
  if (!said.ok()) return false;
  for (const std::string& word : support::split(said.output, ' ')) {
    if (word.starts_with("JobState=")) take_state(word.substr(9), status);
    if (word.starts_with("ExitCode=") && status->exit_code < 0) {
      const std::vector<std::string> parts = support::split(word.substr(9), ':');  // code:signal
      if (parts.size() == 2 && is_number(parts[0]) && is_number(parts[1]) && word.size() < 20)
        status->exit_code = parts[1] == "0" ? std::stoi(parts[0]) : 128 + std::stoi(parts[1]);
    }
  }
  return status->phase != JobPhase::kUnknown;
}

// Where a cluster keeps accounts, they remember longest.
bool ask_accounts(const Job& job, JobStatus* status) {
  const Said said = ask_if_there(
      with_cluster({"sacct", "--noheader", "--parsable2", "--allocations", "--jobs=" + job.id, "--format=State"}, job));
  const std::vector<std::string> lines = lines_of(said.output);
  if (!said.ok() || lines.empty()) return false;
  take_state(lines.back(), status);
  return status->phase != JobPhase::kUnknown;
}

}  // namespace

bool is_slurms_own(std::string_view line) {
  return line.starts_with("slurmstepd") || line.starts_with("slurmd") || line.starts_with("srun: ");
}

const char* phase_name(JobPhase phase) {
  constexpr const char* kNames[] = {"unknown", "queued", "running", "ended"};
  return kNames[int(phase)];
}

const char* end_name(JobEnd end) {
  constexpr const char* kNames[] = {"",     "success",   "failed",    "out of memory", "out of time",
                                    "node", "preempted", "cancelled", "forgotten"};
  return kNames[int(end)];
}

Job submit_job(const JobRequest& request) {
  Job job;
  job.request = request;
  return submit_attempt(std::move(job));
}

std::vector<Job> submit_array(const std::string& folder, std::vector<JobRequest> tasks) {
  check_folder(folder);
  std::vector<Job> jobs(tasks.size());
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    jobs[i].request = std::move(tasks[i]);
    jobs[i].request.folder = folder + "/" + std::to_string(i);
    jobs[i].submitted = seconds_since_1970();
    make_folders(jobs[i].request.folder);
    replace_file(jobs[i].request.folder + "/job.json", to_json(jobs[i]));
  }
  std::vector<JobRequest> requests;
  requests.reserve(jobs.size());
  for (const Job& job : jobs) requests.push_back(job.request);
  const std::string script = array_script(requests);
  replace_file(folder + "/array.sh", script);
  const Said said = ask({"sbatch", "--parsable", "array.sh"}, folder, overriding_variables(script));
  if (!said.ok()) throw std::runtime_error(said.complaint("sbatch"));
  Job whole;
  read_id(said, &whole);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].id = whole.id + "_" + std::to_string(i);
    jobs[i].cluster = whole.cluster;
    replace_file(jobs[i].request.folder + "/job.json", to_json(jobs[i]));
  }
  return jobs;
}

Job resubmit_job(const Job& before, const JobRequest& request) {
  Job job;
  job.request = request;
  job.request.folder = before.request.folder;
  job.attempt = before.attempt + 1;
  job.earlier = before.earlier;
  if (!before.id.empty()) job.earlier.push_back(before.id);
  return submit_attempt(std::move(job));
}

Job read_job(const std::string& folder) {
  const std::string path = folder + "/job.json";
  std::string text;
  try {
    text = support::read_text_file(path);
  } catch (const support::ReadError& e) {
    throw std::runtime_error("no job was submitted from " + folder + ": " + e.what());
  }
  Job job = job_from_json(text, path);
  job.request.folder = folder;
  return job;
}

JobStatus look_at_job(const Job& job) {
  JobStatus status;
  if (job.id.empty()) {
    status.problem = "the submission was interrupted before Slurm gave a job id (squeue --me shows whether it took it)";
    return status;
  }
  const std::string text = log_tail(job.log());
  for (std::string line : support::split(text, '\n')) {
    line.erase(line.find_last_not_of(" \t\r") + 1);  // the end only: verdicts are indented
    if (!line.empty()) status.log.push_back(support::printable(line));
  }
  if (status.log.size() > kLogLines) status.log.erase(status.log.begin(), status.log.end() - kLogLines);

  const bool known = ask_queue(job, &status);
  const bool seen = status.phase != JobPhase::kUnknown;
  status.exit_code = noted_exit_code(job);
  if (!known || status.phase == JobPhase::kEnded || !seen) {
    JobStatus closer = status;
    closer.problem.clear();
    if (ask_control(job, &closer) || (!known && ask_accounts(job, &closer))) status = closer;
  }
  // After Slurm was asked: what a job that has ended noted last is there.
  status.build = build_state(job);
  status.outcome = noted_outcome(job);
  if (!known && status.phase == JobPhase::kUnknown) {
    // Slurm has forgotten it: the script's own note and the log remain.
    status.phase = JobPhase::kEnded;
    status.problem.clear();
    status.end = status.exit_code == 0 ? JobEnd::kSuccess : status.exit_code > 0 ? JobEnd::kFailed : JobEnd::kForgotten;
  }
  if (status.phase == JobPhase::kEnded && (status.end == JobEnd::kFailed || status.end == JobEnd::kForgotten))
    if (const JobEnd end = end_by_log(text); end != JobEnd::kNone) status.end = end;
  // The build's own verdict, with one compiler left.
  if (status.end == JobEnd::kFailed && status.outcome)
    for (const std::string& code : status.outcome->codes)
      if (doctor::VerdictCode(doctor::Code::BUILD_OOM) == code) status.end = JobEnd::kMemory;
  return status;
}

JobStatus follow_job(const Job& job, const std::function<bool(const JobStatus&)>& tell, double seconds_between) {
  double silent = 0;
  for (;;) {
    JobStatus status = look_at_job(job);
    const bool go_on = !tell || tell(status);
    silent = status.phase == JobPhase::kUnknown ? silent + seconds_between : 0;
    if (status.phase == JobPhase::kEnded || !go_on || job.id.empty() || silent > kPatienceSeconds) return status;
    for (double waited = 0; waited < seconds_between && !stop_requested(); waited += 0.1)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (stop_requested()) return status;
  }
}

void cancel_job(const Job& job) {
  if (job.id.empty()) throw std::runtime_error("the job has no id; squeue --me shows whether Slurm took it");
  const Said said = ask(with_cluster({"scancel", job.id}, job));
  const bool is_over = said.errors.find("Invalid job id") != std::string::npos ||
                       said.errors.find("already completing or completed") != std::string::npos;
  if (!said.ok() && !is_over) throw std::runtime_error(said.complaint("scancel"));
}

uint64_t largest_node_bytes(const std::string& partition) {
  std::vector<std::string> words = {"sinfo", "--noheader", "--format=%m"};
  if (!partition.empty()) words.push_back("--partition=" + partition);
  const Said said = ask_if_there(words);
  uint64_t most = 0;
  // "515000+" where nodes differ: the least of them, and then the others' own lines.
  for (std::string line : lines_of(said.output)) {
    if (line.ends_with("+")) line.pop_back();
    if (is_number(line) && line.size() < 12) most = std::max<uint64_t>(most, std::stoull(line));
  }
  return said.ok() ? most << 20 : 0;
}

}  // namespace builder
