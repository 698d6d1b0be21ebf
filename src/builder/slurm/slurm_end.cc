// SPDX-License-Identifier: Apache-2.0
// What the end of a job means, and what a second try should ask for.
#include "builder/slurm/slurm_end.h"

#include <algorithm>

#include "builder/plan/parallel.h"
#include "builder/slurm/slurm.h"
#include "builder/slurm/slurm_script.h"
#include "doctor/explain/explain.h"
#include "support/bytes.h"
#include "support/quote.h"
#include "support/text.h"

namespace builder {

using namespace support;

namespace {

using doctor::make_verdict;
using doctor::Verdict;

struct Waiting {
  const char* reason;  // how Slurm's word begins
  const char* cause;
  const char* fix;
  bool for_ever;
};
constexpr Waiting kWaiting[] = {
    {"Resources", "The nodes that it could use are busy.", "wait, or ask for less memory or fewer cores", false},
    {"Priority", "Other jobs come first.", "wait", false},
    {"None", "Slurm has not looked at it yet.", "wait", false},
    {"BeginTime", "It was put back, after a node failed or was taken away.", "wait", false},
    {"ReqNodeNotAvail", "Nodes that it needs are reserved or out of service.",
     "wait, or choose another partition (sinfo lists them)", false},
    {"Nodes_required", "Nodes that it needs are out of service.", "choose another partition (sinfo lists them)", false},
    {"PartitionDown", "The partition takes no jobs now.", "choose another partition (sinfo lists them)", true},
    {"PartitionInactive", "The partition starts no jobs now.", "choose another partition (sinfo lists them)", true},
    {"PartitionTimeLimit", "It asks for more time than the partition allows.", "--time with less (sinfo -o '%P %l')",
     true},
    {"PartitionNodeLimit", "It asks for more than the partition has.", "choose another partition, or --mem with less",
     true},
    {"BadConstraints", "No node has what it asks for.", "check --gres, --mem and --partition (sinfo -o '%P %m %G')",
     true},
    {"InvalidAccount", "The account does not exist here.",
     "--account with yours (sacctmgr show associations user=$USER)", true},
    {"QOS", "A limit of the quality of service holds it back.", "wait for your other jobs to end, or ask for less",
     false},
    {"Assoc", "A limit of your account holds it back.", "wait for your other jobs to end, or ask for less", false},
    {"JobHeldUser", "It is held.", "scontrol release JOBID", true},
    {"JobHeldAdmin", "An administrator holds it.", "ask your administrator", true},
    {"launch_failed_requeued_held", "The node could not start it, and Slurm holds it.", "scontrol release JOBID", true},
};

std::vector<Verdict> explain_waiting(const Job& job, const JobStatus& status) {
  for (const Waiting& known : kWaiting)
    if (status.reason.starts_with(known.reason)) {
      Verdict verdict = make_verdict({.code = "JOB_WAITS",
                                      .subject = "job " + job.id,
                                      .message = status.state + " (" + status.reason + ")",
                                      .cause = known.cause,
                                      .fix = known.fix});
      if (known.for_ever) verdict.severity = doctor::Severity::kWarning;
      return {verdict};
    }
  return {make_verdict({.code = "JOB_WAITS",
                        .subject = "job " + job.id,
                        .message = status.state + " (" + status.reason + ")",
                        .cause = "Slurm gives this reason for not starting it yet.",
                        .fix = "scontrol show job " + job.id})};
}

// Slurm's own lines of the log.
std::vector<std::string> words_of_slurm(const JobStatus& status) {
  std::vector<std::string> out;
  for (const std::string& line : status.log)
    if (is_slurms_own(line) && std::find(out.begin(), out.end(), line) == out.end()) out.push_back(line);
  return out;
}

std::string whole_log(const Job& job) {
  try {
    return support::read_text_file(job.log(), 64 << 20);
  } catch (const support::ReadError&) {
    return "";
  }
}

std::string said(const JobStatus& status) {
  const std::vector<std::string> words = words_of_slurm(status);
  const std::string state = status.state.empty() ? "Slurm does not know the job any more" : status.state;
  if (words.empty()) return state;
  // The line that gives the reason, with its figures.
  for (const char* reason : {"exceeded memory limit", "oom", "DUE TO"})
    for (const std::string& line : words)
      if (line.find(reason) != line.npos) return state + ": " + line;
  return state + ": " + words.back();
}

// Why `mica build` made no wheel, as in "refused: no nvcc is here"; empty if it did not say.
std::string said_by_build(const JobStatus& status) {
  if (!status.outcome || (status.outcome->status != "refused" && status.outcome->status != "failed")) return "";
  return status.outcome->status + ": " + support::printable(status.outcome->error, 500);
}

std::string mebibytes(uint64_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + "M"; }

std::optional<Retry> retry_with_memory(const Job& job, uint64_t node_bytes) {
  Retry out{job.request, ""};
  const uint64_t asked = asked_memory_bytes(job.request);
  const uint64_t more = asked + asked / 2;
  if (asked > 0 && (node_bytes == 0 || more <= node_bytes)) {
    out.request.wishes.memory = mebibytes(more);
    out.why = "the job ran out of " + gigabytes(asked) + " of memory; asking for " + gigabytes(more);
    return out;
  }
  const int jobs = fewer_jobs(job.request.jobs);
  if (jobs == 0) return std::nullopt;
  out.request.jobs = jobs;
  out.request.cores = std::min(job.request.cores, std::max(1, jobs));
  // What there is, for fewer compilers.
  if (asked > 0) out.request.wishes.memory = mebibytes(node_bytes ? std::min(asked, node_bytes) : asked);
  out.why = "the job ran out of memory" + (asked ? " (" + gigabytes(asked) + ")" : std::string()) +
            (node_bytes ? ", and no node has " + gigabytes(more) : std::string()) + "; " + std::to_string(jobs) +
            (jobs == 1 ? " compiler" : " compilers") + " instead of " + std::to_string(job.request.jobs);
  return out;
}

}  // namespace

std::vector<Verdict> explain_job(const Job& job, const JobStatus& status) {
  const std::string subject = "job " + job.id;
  if (status.phase == JobPhase::kQueued) return explain_waiting(job, status);
  if (status.phase == JobPhase::kUnknown)
    return {make_verdict({.code = "CANNOT_TELL",
                          .subject = subject,
                          .message = status.problem,
                          .cause = "Slurm did not say where the job stands.",
                          .fix = "squeue --me; the job goes on meanwhile, if it was taken"})};
  if (status.phase == JobPhase::kRunning || status.end == JobEnd::kSuccess) return {};
  const uint64_t asked = asked_memory_bytes(job.request);
  const std::vector<std::string> words = words_of_slurm(status);
  const std::string log = job.log();
  switch (status.end) {
    case JobEnd::kMemory:
      return {make_verdict({.code = "JOB_OUT_OF_MEMORY",
                            .subject = subject,
                            .message = said(status),
                            .cause = support::counted(std::size_t(job.request.jobs), "compiler") +
                                     " at once took more than the " + (asked ? gigabytes(asked) : "memory") +
                                     " that the job had.",
                            .fix = "the same command with --mem and more, or with fewer --jobs",
                            .evidence = words})};
    case JobEnd::kTime:
      return {make_verdict({.code = "JOB_OUT_OF_TIME",
                            .subject = subject,
                            .message = said(status),
                            .cause = "The time that was asked for" +
                                     (job.request.wishes.time.empty() ? std::string(" by the partition's default")
                                                                      : " (" + job.request.wishes.time + ")") +
                                     " is over.",
                            .fix = "the same command with --time and more; it goes on from the files already built",
                            .evidence = words})};
    case JobEnd::kNode:
      return {make_verdict({.code = "JOB_NODE_FAILED",
                            .subject = subject,
                            .message = said(status),
                            .cause = "The node failed; the build had no part in it.",
                            .fix = "the same command again; it goes on from the files already built",
                            .evidence = words})};
    case JobEnd::kPreempted:
      return {make_verdict({.code = "JOB_NODE_FAILED",
                            .subject = subject,
                            .message = said(status),
                            .cause = "A job of higher priority took the node.",
                            .fix = "the same command again; it goes on from the files already built",
                            .evidence = words})};
    case JobEnd::kCancelled:
      return {make_verdict({.code = "JOB_CANCELLED",
                            .subject = subject,
                            .message = said(status),
                            .cause = "Someone ended it with scancel.",
                            .fix = "the same command again; it goes on from the files already built",
                            .evidence = words})};
    case JobEnd::kForgotten:
      return {make_verdict(
          {.code = "CANNOT_TELL",
           .subject = subject,
           .message = said(status),
           .cause = "The job is over, and neither its script nor its log says how it ended: it was killed, or "
                    "its node went away.",
           .fix = "read " + shell_quoted(log),
           .evidence = status.log})};
    default: break;
  }
  const std::string reason = said_by_build(status);
  std::vector<Verdict> out = {make_verdict(
      {.code = "JOB_FAILED",
       .subject = subject,
       .message =
           said(status) + (status.exit_code >= 0 ? ", exit code " + std::to_string(status.exit_code) : std::string()),
       .cause = reason.empty() ? "The command in the job failed." : "The build was " + reason,
       .fix = "read " + shell_quoted(log),
       .evidence = words})};
  // The log may hold the reason.
  const doctor::Explanation explanation = doctor::explain(whole_log(job));
  if (explanation.cause_found) out.insert(out.end(), explanation.verdicts.begin(), explanation.verdicts.begin() + 1);
  return out;
}

std::optional<Retry> retry_of(const Job& job, const JobStatus& status, uint64_t node_bytes) {
  if (status.phase != JobPhase::kEnded) return std::nullopt;
  switch (status.end) {
    case JobEnd::kMemory: return retry_with_memory(job, node_bytes);
    case JobEnd::kTime: {
      Retry out{job.request, "the job ran out of time; it goes on from the files already built"};
      if (const auto seconds = parse_slurm_seconds(job.request.wishes.time)) {
        out.request.wishes.time = slurm_time(*seconds * 2);
        out.why = "the job ran out of time (" + job.request.wishes.time + "); asking for " + out.request.wishes.time;
      }
      return out;
    }
    case JobEnd::kNode: return Retry{job.request, "the node failed; the same again"};
    case JobEnd::kPreempted: return Retry{job.request, "the node was taken away; the same again"};
    default: return std::nullopt;
  }
}

}  // namespace builder
