// SPDX-License-Identifier: Apache-2.0
// Slurm jobs with programs of Slurm that the test wrote: scripts, odd answers, ends and second tries.
#include "builder/slurm/slurm.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "builder/slurm/job.h"
#include "builder/slurm/nodes.h"
#include "builder/slurm/slurm_end.h"
#include "builder/slurm/slurm_json.h"
#include "builder/slurm/slurm_script.h"
#include "support/bytes.h"
#include "tests/verdict_notes.h"

namespace builder {
namespace {

class Slurm : public testing::Test {
 protected:
  Slurm() {
    char name[] = "/tmp/mica_slurm_XXXXXX";
    folder_ = mkdtemp(name);
    std::filesystem::create_directory(folder_ + "/bin");
    path_ = getenv("PATH");
    setenv("PATH", (folder_ + "/bin:/usr/bin:/bin").c_str(), 1);
    program("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1");
    program("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1");
    request_.name = "mica flash-attn";
    request_.folder = folder_ + "/job";
    request_.words = {"mica", "build", "flash-attn"};
    request_.cores = 8;
    request_.jobs = 4;
    request_.job_bytes = uint64_t(7) << 30;
  }
  ~Slurm() override {
    setenv("PATH", path_.c_str(), 1);
    std::filesystem::remove_all(folder_);
  }
  void program(const std::string& name, const std::string& body) {
    write("bin/" + name, "#!/bin/sh\n" + body + "\n");
    chmod((folder_ + "/bin/" + name).c_str(), 0755);
  }
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(folder_ + "/" + name).parent_path());
    std::ofstream(folder_ + "/" + name) << text;
  }
  // squeue prints this line.
  void queue(const std::string& line) { program("squeue", "cat <<'END'\n" + line + "\nEND"); }
  void forgotten() { program("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"); }
  Job job() {
    Job out;
    out.request = request_;
    out.id = "17";
    return out;
  }
  JobStatus ended(JobEnd end) {
    JobStatus status;
    status.phase = JobPhase::kEnded;
    status.end = end;
    return status;
  }
  std::string refusal(const SlurmWishes& wishes) {
    try {
      check_wishes(wishes);
    } catch (const std::exception& e) {
      return e.what();
    }
    return "";
  }

  std::string folder_, path_;
  JobRequest request_;
};

TEST_F(Slurm, TheScript) {
  request_.wishes = {"gpu,long", "", "2-12:00:00", "gpu:h100:1", "lab"};
  request_.variables = {{"HOME_OF", "it's $HOME\n#SBATCH --mem=1"}};
  request_.work_folder = "/a b";
  request_.words = {"/opt/mica", "build", "a b", "$(rm -rf /)", "", "\n"};
  const std::string script = job_script(request_);
  for (const char* line :
       {"#!/bin/bash\n", "#SBATCH --job-name=mica_flash-attn\n", "#SBATCH --cpus-per-task=8\n",
        "#SBATCH --mem=33588M\n",  // 4 x 7 GiB x 1.1 + 2 GiB
        "#SBATCH --partition=gpu,long\n", "#SBATCH --time=2-12:00:00\n", "#SBATCH --gres=gpu:h100:1\n",
        "#SBATCH --account=lab\n", "#SBATCH --output=job-%j.log\n", "export HOME_OF='it'\\''s $HOME\n",
        "cd '/a b' || exit 2\n", "/opt/mica build 'a b' '$(rm -rf /)' '' '\n' --jobs 4 &\n"})
    EXPECT_NE(script.find(line), std::string::npos) << line << "\nin\n" << script;
  // What is asked for stands before the first command: nothing later is a directive.
  EXPECT_LT(script.rfind("\n#SBATCH --requeue"), script.find("job_folder="));
  request_.wishes.memory = "64G";
  EXPECT_NE(job_script(request_).find("#SBATCH --mem=65536M\n"), std::string::npos);
  request_.wishes.memory.clear();
  request_.job_bytes = 0;
  request_.variables.clear();
  EXPECT_EQ(job_script(request_).find("--mem="), std::string::npos) << "not known: the cluster's default";
  request_.variables = {{"A B", "c"}};
  EXPECT_THROW(job_script(request_), std::runtime_error);
}

TEST_F(Slurm, TheScriptNotesHowItEnded) {
  for (const auto& [words, code] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"true"}, "0\n"}, {{"sh", "-c", "exit 7"}, "7\n"}, {{"/nowhere/x"}, "127\n"}}) {
    request_.words = words;
    write("job/job.sh", job_script(request_));
    Command command{{"bash", "job.sh"}, current_environment(), request_.folder};
    command.variables["SLURM_JOB_ID"] = "5";
    run_collected(command, 30, nullptr);
    EXPECT_EQ(support::read_text_file(request_.folder + "/job-5.end"), code);
  }
}

TEST_F(Slurm, EveryOtherWishOfASite) {
  JobRequest wanted = request_;
  wanted.wishes.qos = "long";
  wanted.wishes.constraint = "a100|h100";
  wanted.wishes.reservation = "maintenance";
  wanted.wishes.modules = {"gcc/12.2", "cuda/12.8"};
  wanted.wishes.lines = {"--exclusive", "--mail-user=ada@example.org"};
  const std::string script = job_script(wanted);
  for (const char* line :
       {"#SBATCH --qos=long\n", "#SBATCH --constraint=\"a100|h100\"\n", "#SBATCH --reservation=maintenance\n",
        "#SBATCH --exclusive\n", "#SBATCH --mail-user=ada@example.org\n"})
    EXPECT_NE(script.find(line), script.npos) << line;
  // The header ends with the first command; modules come before the build.
  EXPECT_LT(script.find("--exclusive"), script.find("job_folder="));
  EXPECT_LT(script.find("module load gcc/12.2"), script.find("module load cuda/12.8"));
  EXPECT_LT(script.find("module load cuda/12.8"), script.find("trap :"));
  // A second try has them too.
  Job job;
  job.id = "7";
  job.request = wanted;
  EXPECT_EQ(job_script(job_from_json(to_json(job), "job.json").request), script);
  for (const auto& [wishes, flag] :
       std::vector<std::pair<SlurmWishes, std::string>>{{{.qos = "a b"}, "--qos"},
                                                        {{.constraint = "$(reboot)"}, "--constraint"},
                                                        {{.modules = {"cuda; reboot"}}, "--module"},
                                                        {{.lines = {"--mem=1\nreboot"}}, "--sbatch"},
                                                        {{.lines = {"reboot"}}, "--sbatch"}}) {
    try {
      check_wishes(wishes);
      ADD_FAILURE() << flag << " was taken";
    } catch (const std::runtime_error& e) {
      EXPECT_TRUE(std::string(e.what()).starts_with(flag)) << e.what();
    }
  }
}

TEST(Nodes, TheGpusThatSlurmLists) {
  const auto types = parse_node_types(
      "gpu:a100:4(S:0-1)|ib,epyc|12\n(null)|cpu|200\ngpu:nvidia_h100_80gb_hbm3:8|ib|4\ngpu:2|rtx3090,old|3\ngpu:1|new|"
      "1\n");
  ASSERT_EQ(types.size(), 4u);
  EXPECT_EQ(types[0].gpu->text(), "8.0");
  EXPECT_EQ(types[0].nodes, 12);
  EXPECT_EQ(types[1].gpu->text(), "9.0");
  EXPECT_EQ(types[2].gpu->text(), "8.6");  // by a feature of the node
  EXPECT_FALSE(types[3].gpu);              // not guessed
}

TEST_F(Slurm, WishesThatAreNone) {
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal({"a,b-c", "64G", "90", "gpu:a100:2", "lab_1"}), "");
  EXPECT_NE(refusal({"a b", "", "", "", ""}).find("--partition is \"a b\""), std::string::npos);
  EXPECT_NE(refusal({"-p", "", "", "", ""}), "");
  EXPECT_NE(refusal({"", "lots", "", "", ""}).find("--mem is \"lots\""), std::string::npos);
  EXPECT_NE(refusal({"", "0", "", "", ""}), "");
  EXPECT_NE(refusal({"", "", "soon", "", ""}).find("--time is \"soon\""), std::string::npos);
  EXPECT_NE(refusal({"", "", "", "gpu;rm", ""}).find("--gres"), std::string::npos);
  EXPECT_NE(refusal({"", "", "", "", "a\n#SBATCH"}).find("--account"), std::string::npos);
}

TEST_F(Slurm, NumbersAsSlurmWritesThem) {
  EXPECT_EQ(parse_slurm_memory("64G"), uint64_t(64) << 30);
  EXPECT_EQ(parse_slurm_memory("800"), uint64_t(800) << 20);
  EXPECT_EQ(parse_slurm_memory("2t"), uint64_t(2) << 40);
  for (const char* bad : {"", "G", "-1G", "1.5G", "99999999999T", "1 G"}) EXPECT_FALSE(parse_slurm_memory(bad)) << bad;
  EXPECT_EQ(parse_slurm_seconds("90"), 5400u);
  EXPECT_EQ(parse_slurm_seconds("1:30"), 90u);
  EXPECT_EQ(parse_slurm_seconds("1:30:05"), 5405u);
  EXPECT_EQ(parse_slurm_seconds("1-12"), 129600u);
  EXPECT_EQ(parse_slurm_seconds("1-12:30"), 131400u);
  for (const char* bad : {"", ":", "1:2:3:4", "x", "1-", "-5", "UNLIMITED"})
    EXPECT_FALSE(parse_slurm_seconds(bad)) << bad;
  EXPECT_EQ(slurm_time(131405), "1-12:30:05");
}

TEST_F(Slurm, SubmitsAndIsFoundAgain) {
  program("sbatch", "echo \"$PWD $*\" >said; echo 'sbatch: a warning' >&2; echo '4711;rome'");
  request_.variables = {{"A", "b c"}};
  request_.wishes.time = "90";
  const Job job = submit_job(request_);
  EXPECT_EQ(job.id, "4711");
  EXPECT_EQ(job.cluster, "rome");
  EXPECT_EQ(support::read_text_file(request_.folder + "/said"), request_.folder + " --parsable job.sh\n");
  const Job again = read_job(request_.folder);
  EXPECT_EQ(again.id, "4711");
  EXPECT_EQ(again.cluster, "rome");
  EXPECT_EQ(again.request.words, request_.words);
  EXPECT_EQ(again.request.variables, request_.variables);
  EXPECT_EQ(again.request.wishes.time, "90");
  EXPECT_EQ(again.request.folder, request_.folder);
  EXPECT_EQ(again.log(), request_.folder + "/job-4711.log");
  program("sbatch", "echo 4712");
  const Job second = resubmit_job(again, again.request);
  EXPECT_EQ(second.attempt, 2);
  EXPECT_EQ(read_job(request_.folder).earlier, std::vector<std::string>({"4711"}));
}

// sbatch takes variables before the script's own lines: only those may stay that speak of something else.
TEST_F(Slurm, WhatIsAskedForGoesBeforeTheUsersVariables) {
  program("sbatch", "env | grep ^SBATCH_ | sort >said; echo 4711");
  const std::map<std::string, std::string> users = {{"SBATCH_ACCOUNT", "lab"},
                                                    {"SBATCH_PARTITION", "gpu"},
                                                    {"SBATCH_OUTPUT", "/home/ada/%j.out"},
                                                    {"SBATCH_NO_REQUEUE", "1"}};
  for (const auto& [name, value] : users) setenv(name.c_str(), value.c_str(), 1);
  request_.wishes.partition = "cpu";
  submit_job(request_);
  EXPECT_EQ(support::read_text_file(request_.folder + "/said"), "SBATCH_ACCOUNT=lab\n");
  request_.wishes.lines = {"--account other"};
  submit_array(folder_ + "/array", {request_});
  EXPECT_EQ(support::read_text_file(folder_ + "/array/said"), "");
  for (const auto& [name, value] : users) unsetenv(name.c_str());
}

TEST_F(Slurm, WhatSbatchRefuses) {
  const auto refusal_of = [&](const std::string& body) {
    program("sbatch", body);
    try {
      submit_job(request_);
    } catch (const std::exception& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(
      refusal_of("echo 'sbatch: error: invalid partition specified: x' >&2; "
                 "echo 'sbatch: error: Batch job submission failed: Invalid partition name specified' >&2; exit 1"),
      "sbatch: invalid partition specified: x; Batch job submission failed: Invalid partition name specified");
  EXPECT_EQ(refusal_of("exit 3"), "sbatch: exit code 3, without a word");
  for (const char* odd : {"", "echo no", "echo '-5'", "echo '12x'", "echo '../../etc'", "printf '\\000\\377'"})
    EXPECT_NE(refusal_of(odd).find("no job id"), std::string::npos) << odd;
  request_.folder = folder_ + "/100%j";
  EXPECT_NE(refusal_of("echo 5").find("want one without %"), std::string::npos);
  request_.folder = folder_ + "/job";
  std::filesystem::remove(folder_ + "/bin/sbatch");
  EXPECT_THROW(submit_job(request_), std::runtime_error);
  // What it left says that there is no id.
  const Job job = read_job(request_.folder);
  EXPECT_EQ(job.id, "");
  EXPECT_NE(look_at_job(job).problem.find("interrupted"), std::string::npos);
  EXPECT_THROW(cancel_job(job), std::runtime_error);
}

TEST_F(Slurm, FoldersWithoutAJob) {
  EXPECT_THROW(read_job(folder_ + "/nowhere"), std::runtime_error);
  for (const char* text : {"", "[]", "{}", "{\"id\": 5}", "\xff"}) {
    write("job/job.json", text);
    EXPECT_THROW(read_job(request_.folder), std::runtime_error) << text;
  }
  Job evil = job();
  evil.id = "1; rm";
  write("job/job.json", to_json(evil));
  EXPECT_THROW(read_job(request_.folder), std::runtime_error);
  evil = job();
  evil.request.wishes.account = "x\ny";
  write("job/job.json", to_json(evil));
  EXPECT_THROW(read_job(request_.folder), std::runtime_error);
}

TEST_F(Slurm, WhereItStands) {
  queue("17|PENDING|Resources||0:00|1:00:00");
  JobStatus status = look_at_job(job());
  EXPECT_EQ(status.phase, JobPhase::kQueued);
  EXPECT_EQ(status.reason, "Resources");
  const auto waiting = explain_job(job(), status);
  EXPECT_EQ(waiting[0].code, "JOB_WAITS");
  EXPECT_EQ(doctor::exit_code_of(waiting), 0);
  queue("17|RUNNING|None|node3|5:01|54:59");
  write("job/job-17.log", "one\ntwo \x1b[31mred\n\n[3/9] three\n");
  status = look_at_job(job());
  EXPECT_EQ(status.phase, JobPhase::kRunning);
  EXPECT_EQ(status.node, "node3");
  EXPECT_EQ(status.elapsed, "5:01");
  EXPECT_EQ(status.log, std::vector<std::string>({"one", "two \\x1b[31mred", "[3/9] three"}));
  EXPECT_TRUE(explain_job(job(), status).empty());
  expect_covered("JOB_WAITS", waiting, explain_job(job(), status));
  std::string long_log;
  for (int i = 0; i < 100'000; ++i) long_log += "line " + std::to_string(i) + "\n";
  write("job/job-17.log", long_log);
  EXPECT_EQ(look_at_job(job()).log.back(), "line 99999");
  EXPECT_EQ(look_at_job(job()).log.size(), 30u);
}

TEST_F(Slurm, JobsThatWillNeverStart) {
  queue("17|PENDING|PartitionTimeLimit||0:00|1:00:00");
  const auto verdicts = explain_job(job(), look_at_job(job()));
  EXPECT_EQ(verdicts[0].severity, doctor::Severity::kWarning);
  EXPECT_NE(verdicts[0].fix.find("--time"), std::string::npos);
}

TEST_F(Slurm, OddAnswersOfSqueue) {
  for (const char* line : {"", "17|RUNNING", "18|RUNNING|None|n|0|0", "|||||", "17|BAKING|None|n|0:00|0:00"}) {
    queue(line);
    const JobStatus status = look_at_job(job());
    EXPECT_NE(status.phase, JobPhase::kRunning) << line;
    EXPECT_NE(status.end, JobEnd::kSuccess) << line;
  }
  EXPECT_NE(look_at_job(job()).problem.find("BAKING"), std::string::npos);
  program("squeue", "head -c 3000000 /dev/urandom");
  look_at_job(job());
  program("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1");
  const JobStatus away = look_at_job(job());
  EXPECT_EQ(away.phase, JobPhase::kUnknown);
  EXPECT_NE(away.problem.find("Unable to contact"), std::string::npos);
  EXPECT_EQ(explain_job(job(), away)[0].code, "CANNOT_TELL");
}

TEST_F(Slurm, EndsThatSlurmNames) {
  const std::vector<std::tuple<std::string, JobEnd, std::string>> cases = {
      {"COMPLETED", JobEnd::kSuccess, ""},
      {"OUT_OF_MEMORY", JobEnd::kMemory, "JOB_OUT_OF_MEMORY"},
      {"TIMEOUT", JobEnd::kTime, "JOB_OUT_OF_TIME"},
      {"NODE_FAIL", JobEnd::kNode, "JOB_NODE_FAILED"},
      {"PREEMPTED", JobEnd::kPreempted, "JOB_NODE_FAILED"},
      {"CANCELLED", JobEnd::kCancelled, "JOB_CANCELLED"},
      {"FAILED", JobEnd::kFailed, "JOB_FAILED"},
  };
  std::vector<doctor::Verdict> before;  // of the case before: another end is the near miss
  for (const auto& [state, end, code] : cases) {
    queue("17|" + state + "|None|node3|5:01|0:00");
    const JobStatus status = look_at_job(job());
    EXPECT_EQ(status.phase, JobPhase::kEnded) << state;
    EXPECT_EQ(status.end, end) << state;
    const auto verdicts = explain_job(job(), status);
    EXPECT_EQ(verdicts.empty() ? "" : verdicts[0].code.text(), code) << state;
    if (!code.empty() && state != "PREEMPTED") expect_covered(code, verdicts, before);
    before = verdicts;
  }
}

TEST_F(Slurm, EndsThatOnlyTheLogNames) {
  queue("17|FAILED|JobLaunchFailure|vm|0:01|0:00");
  program("scontrol", "echo 'JobId=17 JobState=FAILED Reason=JobLaunchFailure ExitCode=0:9 RunTime=00:00:01'");
  const std::string memory = "slurmstepd-vm: error: StepId=17.batch exceeded memory limit (691 > 209), being killed\n";
  write("job/job-17.log", "mica: job 17 on vm\ncompiling\n" + memory);
  JobStatus status = look_at_job(job());
  EXPECT_EQ(status.end, JobEnd::kMemory);
  EXPECT_EQ(status.exit_code, 137);
  const auto verdicts = explain_job(job(), status);
  EXPECT_NE(verdicts[0].message.find("exceeded memory limit"), std::string::npos);
  EXPECT_NE(verdicts[0].cause.find("4 compilers"), std::string::npos);
  write("job/job-17.log", "echo exceeded memory limit\nslurmstepd is a word: exceeded\n");
  EXPECT_EQ(look_at_job(job()).end, JobEnd::kFailed) << "a compiler may print anything";
  write("job/job-17.log", memory + "mica: job 17 on vm2\nerror: no such file\n");
  EXPECT_EQ(look_at_job(job()).end, JobEnd::kFailed) << "that was before it was put back";
  for (const auto& [line, end] : std::vector<std::pair<std::string, JobEnd>>{
           {"slurmstepd: error: *** JOB 17 ON n CANCELLED AT 2026-11-15T07:46:29 DUE TO TIME LIMIT ***", JobEnd::kTime},
           {"slurmstepd: error: Detected 3 oom-kill event(s) in StepId=17.batch", JobEnd::kMemory},
           {"slurmstepd: error: *** JOB 17 ON n CANCELLED AT 2026 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***",
            JobEnd::kNode}}) {
    write("job/job-17.log", line + "\n");
    EXPECT_EQ(look_at_job(job()).end, end) << line;
  }
}

TEST_F(Slurm, AFailedBuildIsExplainedFromItsLog) {
  queue("17|FAILED|NonZeroExitCode|vm|0:01|0:00");
  write("job/job-17.end", "1\n");
  write("job/job-17.log",
        "RuntimeError: The detected CUDA version (12.1) mismatches the version that was used to compile "
        "PyTorch (13.0). Please make sure to use the same CUDA versions.\n");
  const JobStatus status = look_at_job(job());
  EXPECT_EQ(status.exit_code, 1);
  const auto verdicts = explain_job(job(), status);
  ASSERT_EQ(verdicts.size(), 2u);
  EXPECT_EQ(verdicts[0].code, "JOB_FAILED");
  EXPECT_EQ(verdicts[1].code, "BUILD_CUDA_MAJOR_MISMATCH");
}

TEST_F(Slurm, TheBuildsOwnWordsCount) {
  queue("17|FAILED|NonZeroExitCode|vm|0:01|0:00");
  write("job/job-17.end", "1\n");
  write("job/job-17.log",
        "mica: job 17 on vm\nrefused  as any command may say\nerror BUILD_OOM  x: as any command may say\n  fix  y\n");
  JobStatus status = look_at_job(job());
  EXPECT_EQ(status.log.back(), "  fix  y");
  EXPECT_EQ(status.end, JobEnd::kFailed);
  EXPECT_EQ(explain_job(job(), status)[0].cause, "The command in the job failed.");
  write("job/job-17.json",
        R"({"status": "refused", "error": "no nvcc is here", "verdicts": [{"code": "BUILD_NVCC_MISSING"}]})");
  status = look_at_job(job());
  EXPECT_EQ(explain_job(job(), status)[0].cause, "The build was refused: no nvcc is here");
  EXPECT_FALSE(retry_of(job(), status, 0));
  write("job/job-17.json", R"({"status": "failed", "error": "Killed", "verdicts": [{"code": "BUILD_OOM"}]})");
  status = look_at_job(job());
  EXPECT_EQ(status.end, JobEnd::kMemory) << "one compiler alone needs more";
  EXPECT_TRUE(retry_of(job(), status, 0));
}

TEST_F(Slurm, WhatSlurmHasForgotten) {
  forgotten();
  EXPECT_EQ(look_at_job(job()).end, JobEnd::kForgotten);
  EXPECT_EQ(explain_job(job(), look_at_job(job()))[0].code, "CANNOT_TELL");
  write("job/job-17.end", "0\n");
  EXPECT_EQ(look_at_job(job()).end, JobEnd::kSuccess);
  write("job/job-17.end", "3\n");
  EXPECT_EQ(look_at_job(job()).end, JobEnd::kFailed);
  write("job/job-17.end", "nonsense");
  EXPECT_EQ(look_at_job(job()).end, JobEnd::kForgotten);
  program("sacct", "echo 'CANCELLED by 1000'");
  EXPECT_EQ(look_at_job(job()).end, JobEnd::kCancelled) << "accounts remember";
}

TEST_F(Slurm, FollowsToTheEnd) {
  program("squeue", "n=$(cat " + folder_ + "/n 2>/dev/null || echo 0); echo $((n+1)) >" + folder_ +
                        "/n\ncase $n in 0) s=PENDING;; 1) echo 'cannot contact' >&2; exit 1;; 2) s=RUNNING;; *) "
                        "s=COMPLETED;; esac\necho \"17|$s|None|n|0:01|0:00\"");
  std::vector<std::string> seen;
  const JobStatus last = follow_job(
      job(), [&](const JobStatus& s) { return seen.push_back(phase_name(s.phase)), true; }, 0.1);
  EXPECT_EQ(seen, std::vector<std::string>({"queued", "unknown", "running", "ended"}));
  EXPECT_EQ(last.end, JobEnd::kSuccess);
  std::filesystem::remove(folder_ + "/n");
  EXPECT_EQ(follow_job(
                job(), [](const JobStatus&) { return false; }, 0.1)
                .phase,
            JobPhase::kQueued);
}

TEST_F(Slurm, Cancels) {
  program("scancel", "echo \"$*\" >" + folder_ + "/said");
  cancel_job(job());
  EXPECT_EQ(support::read_text_file(folder_ + "/said"), "17\n");
  program("scancel", "echo 'scancel: error: Kill job error on job id 17: Invalid job id specified' >&2; exit 1");
  cancel_job(job());
  program("scancel", "echo 'scancel: error: Kill job error on job id 17: Access/permission denied' >&2; exit 1");
  EXPECT_THROW(cancel_job(job()), std::runtime_error);
}

TEST_F(Slurm, SecondTries) {
  const uint64_t gibi = uint64_t(1) << 30;
  const auto memory = retry_of(job(), ended(JobEnd::kMemory), 0);
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->request.wishes.memory, "50381M") << "half as much again";
  EXPECT_EQ(memory->request.jobs, 4);
  // The largest node has no more: fewer compilers.
  const auto jobs = retry_of(job(), ended(JobEnd::kMemory), 36 * gibi);
  ASSERT_TRUE(jobs);
  EXPECT_EQ(jobs->request.jobs, 2);
  EXPECT_NE(job_script(jobs->request).find("\nmica build flash-attn --jobs 2 &\n"), std::string::npos);
  EXPECT_LE(asked_memory_bytes(jobs->request), 36 * gibi);
  EXPECT_NE(jobs->why.find("2 compilers instead of 4"), std::string::npos) << jobs->why;
  request_.jobs = 1;
  EXPECT_FALSE(retry_of(job(), ended(JobEnd::kMemory), 8 * gibi)) << "nothing is left to try";
  request_.wishes.time = "1:00:00";
  EXPECT_EQ(retry_of(job(), ended(JobEnd::kTime), 0)->request.wishes.time, "0-02:00:00");
  EXPECT_TRUE(retry_of(job(), ended(JobEnd::kNode), 0));
  for (const JobEnd end : {JobEnd::kSuccess, JobEnd::kFailed, JobEnd::kCancelled, JobEnd::kForgotten})
    EXPECT_FALSE(retry_of(job(), ended(end), 0)) << end_name(end);
  JobStatus running;
  running.phase = JobPhase::kRunning;
  EXPECT_FALSE(retry_of(job(), running, 0));
}

TEST_F(Slurm, TheLargestNode) {
  program("sinfo", "printf '64000\\n515000+\\nN/A\\n'");
  EXPECT_EQ(largest_node_bytes("x"), uint64_t(515000) << 20);
  program("sinfo", "exit 1");
  EXPECT_EQ(largest_node_bytes(""), 0u);
}

}  // namespace
}  // namespace builder
