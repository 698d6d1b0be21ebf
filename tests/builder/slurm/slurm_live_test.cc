// SPDX-License-Identifier: Apache-2.0
// Jobs in a real Slurm; slurm_rig.py starts one and then this.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "builder/slurm/job.h"
#include "builder/slurm/slurm.h"
#include "builder/slurm/slurm_end.h"
#include "support/bytes.h"

namespace builder {
namespace {

class SlurmLive : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(getenv("SLURM_CONF")) << "run it by slurm_rig.py";
    char name[] = "/tmp/mica_slurm live_XXXXXX";  // with a blank
    folder_ = mkdtemp(name);
    request_.name = "mica live";
    request_.folder = folder_;
    request_.wishes.memory = "200M";
  }
  void TearDown() override {
    if (!HasFailure()) std::filesystem::remove_all(folder_);
  }
  Job submit(const std::string& script) {
    request_.words = {"bash", "-c", script, "bash"};
    return submit_job(request_);
  }
  // Follows at most a minute or two, and notes the phases.
  JobStatus follow(const Job& job) {
    int looks = 0;
    return follow_job(
        job,
        [&](const JobStatus& status) {
          const std::string phase = phase_name(status.phase);
          if (phases_.empty() || phases_.back() != phase) phases_.push_back(phase);
          return ++looks < 400;
        },
        0.3);
  }
  std::string text(const std::string& name) { return support::read_text_file(folder_ + "/" + name); }

  std::string folder_;
  JobRequest request_;
  std::vector<std::string> phases_;
};

TEST_F(SlurmLive, SubmitFollowSuccess) {
  request_.variables = {{"GREETING", "it's $HOME"}};
  const Job job = submit("echo \"$GREETING\"; pwd; sleep 2");
  EXPECT_FALSE(job.id.empty());
  const JobStatus status = follow(read_job(folder_));
  EXPECT_EQ(status.end, JobEnd::kSuccess) << status.state << status.problem;
  EXPECT_EQ(status.exit_code, 0);
  EXPECT_EQ(phases_.back(), "ended");
  EXPECT_NE(std::find(phases_.begin(), phases_.end(), "running"), phases_.end());
  EXPECT_NE(text("job-" + job.id + ".log").find("it's $HOME\n" + folder_ + "\n"), std::string::npos);
  EXPECT_TRUE(explain_job(job, status).empty());
  EXPECT_FALSE(retry_of(job, status, 0));
}

TEST_F(SlurmLive, AFailureAndItsWords) {
  const Job job = submit("echo 'ModuleNotFoundError: No module named '\"'torch'\"; exit 3");
  const JobStatus status = follow(job);
  EXPECT_EQ(status.end, JobEnd::kFailed);
  EXPECT_EQ(status.exit_code, 3);
  const auto verdicts = explain_job(job, status);
  ASSERT_FALSE(verdicts.empty());
  EXPECT_EQ(verdicts[0].code, "JOB_FAILED");
  EXPECT_NE(verdicts[0].message.find("exit code 3"), std::string::npos);
}

TEST_F(SlurmLive, CancelReachesTheCommand) {
  const Job job = submit("trap 'echo stopping; exit 130' TERM; echo up; while :; do sleep 0.2; done");
  JobStatus status = look_at_job(job);
  for (int i = 0; i < 200 && (status.log.empty() || status.log.back() != "up"); ++i)
    usleep(200'000), status = look_at_job(job);
  EXPECT_EQ(status.phase, JobPhase::kRunning);
  cancel_job(job);
  status = follow(job);
  EXPECT_EQ(status.end, JobEnd::kCancelled) << status.state;
  EXPECT_NE(text("job-" + job.id + ".log").find("stopping"), std::string::npos);
  EXPECT_EQ(explain_job(job, status)[0].code, "JOB_CANCELLED");
  cancel_job(job);  // once more does no harm
}

TEST_F(SlurmLive, OutOfMemoryThenMoreOfIt) {
  // Takes 260 MB; 200 are allowed, and half as much again suffices.
  const std::string hungry = "exec python3 -c \"import time; x = b'1' * 250000000; time.sleep(6); print('enough')\"";
  request_.jobs = 2;
  Job job = submit(hungry);
  JobStatus status = follow(job);
  ASSERT_EQ(status.end, JobEnd::kMemory) << status.state << " " << text("job-" + job.id + ".log");
  const auto verdicts = explain_job(job, status);
  EXPECT_EQ(verdicts[0].code, "JOB_OUT_OF_MEMORY");
  EXPECT_NE(verdicts[0].message.find("exceeded memory limit"), std::string::npos) << verdicts[0].message;
  const uint64_t node = largest_node_bytes("build");
  EXPECT_GT(node, uint64_t(1) << 30);
  const auto retry = retry_of(job, status, node);
  ASSERT_TRUE(retry);
  EXPECT_EQ(retry->request.wishes.memory, "300M");
  job = resubmit_job(job, retry->request);
  EXPECT_EQ(job.attempt, 2);
  status = follow(read_job(folder_));
  EXPECT_EQ(status.end, JobEnd::kSuccess) << text("job-" + job.id + ".log");
  EXPECT_NE(text("job-" + job.id + ".log").find("enough"), std::string::npos);
}

TEST_F(SlurmLive, OutOfMemoryThenFewerCompilers) {
  // 150 MB for each of its jobs; the node has no more than what was asked for.
  request_.jobs = 4;
  Job job = submit("exec python3 -c \"import sys, time; x = b'1' * (150000000 * int(sys.argv[1])); time.sleep(6)\" $2");
  JobStatus status = follow(job);
  ASSERT_EQ(status.end, JobEnd::kMemory) << status.state;
  const auto retry = retry_of(job, status, uint64_t(200) << 20);
  ASSERT_TRUE(retry);
  EXPECT_EQ(retry->request.jobs, 2);
  job = resubmit_job(job, retry->request);
  status = follow(job);
  ASSERT_EQ(status.end, JobEnd::kMemory);
  const auto last = retry_of(job, status, uint64_t(200) << 20);
  ASSERT_TRUE(last);
  EXPECT_EQ(last->request.jobs, 1);
  job = resubmit_job(job, last->request);
  status = follow(job);
  EXPECT_EQ(status.end, JobEnd::kSuccess) << text("job-" + job.id + ".log");
  EXPECT_EQ(job.earlier.size(), 2u);
}

TEST_F(SlurmLive, OutOfTime) {
  request_.wishes.time = "0:01";  // Slurm rounds it up to a minute
  const Job job = submit("echo up; sleep 400");
  const JobStatus status = follow(job);
  EXPECT_EQ(status.end, JobEnd::kTime) << status.state;
  EXPECT_EQ(explain_job(job, status)[0].code, "JOB_OUT_OF_TIME");
  EXPECT_EQ(retry_of(job, status, 0)->request.wishes.time, "0-00:00:02");
}

TEST_F(SlurmLive, WaitsWithAReason) {
  request_.wishes.partition = "closed";
  const Job job = submit("true");
  JobStatus status = look_at_job(job);
  for (int i = 0; i < 50 && status.reason != "PartitionDown"; ++i) usleep(200'000), status = look_at_job(job);
  EXPECT_EQ(status.phase, JobPhase::kQueued);
  const auto verdicts = explain_job(job, status);
  EXPECT_EQ(verdicts[0].code, "JOB_WAITS");
  EXPECT_NE(verdicts[0].message.find("PartitionDown"), std::string::npos);
  cancel_job(job);
  EXPECT_EQ(follow(job).end, JobEnd::kCancelled);
}

TEST_F(SlurmLive, RefusedWithSlurmsWords) {
  const auto refusal = [&] {
    try {
      submit("true");
    } catch (const std::exception& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  request_.wishes.partition = "nowhere";
  EXPECT_NE(refusal().find("nvalid partition"), std::string::npos) << refusal();
  request_.wishes.partition.clear();
  request_.wishes.memory = "900G";
  EXPECT_NE(refusal().find("Memory specification can not be satisfied"), std::string::npos) << refusal();
  EXPECT_NE(look_at_job(read_job(folder_)).problem, "") << "no id";
}

TEST_F(SlurmLive, RememberedAfterSlurmForgot) {
  Job job = submit("true");
  EXPECT_EQ(follow(job).end, JobEnd::kSuccess);
  job.id = "999999";  // an id that Slurm never gave stands for one it has forgotten
  EXPECT_EQ(look_at_job(job).end, JobEnd::kForgotten);
  std::ofstream(folder_ + "/job-999999.end") << "0\n";
  EXPECT_EQ(look_at_job(job).end, JobEnd::kSuccess);
}

}  // namespace
}  // namespace builder
