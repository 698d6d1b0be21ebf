// SPDX-License-Identifier: Apache-2.0
// Kernels that run and hold what was replaced, on systems that the test makes; and a notebook's answer, judged.
#include "jupyter/running.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "jupyter/notebook.h"
#include "tests/doctor/fake_system.h"
#include "tests/verdict_notes.h"

namespace jupyter {
namespace {

constexpr const char* kHeld =
    "7f00-7f10 r-xp 00000000 fe:00 12 /venv/lib/python3.11/site-packages/flash_attn_2_cuda.so (deleted)\n"
    "7f10-7f20 r--p 00001000 fe:00 12 /venv/lib/python3.11/site-packages/flash_attn_2_cuda.so (deleted)\n"
    "7f20-7f30 r-xp 00000000 fe:00 13 /venv/lib/python3.11/site-packages/torch/lib/libc10.so\n"
    "7f30-7f40 rw-s 00000000 00:01 14 /memfd:shared (deleted)\n"
    "7f40-7f50 rw-s 00000000 00:01 15 /dev/shm/sem.1 (deleted)\n";

void add_process(FakeSystem& system, const std::string& id, const std::string& words, const std::string& maps) {
  std::string line = words;
  for (char& c : line)
    if (c == ' ') c = '\0';
  system.write("/proc/" + id + "/cmdline", line + '\0');
  system.write("/proc/" + id + "/maps", maps);
}

TEST(Running, AKernelThatHoldsAReplacedModule) {
  FakeSystem system;
  add_process(system, "41", "/venv/bin/python -m ipykernel_launcher -f /run/kernel-1.json", kHeld);
  add_process(system, "42", "/venv/bin/python train.py", kHeld);
  add_process(system, "43", "/venv/bin/python -m ipykernel_launcher -f /run/kernel-2.json", "");
  add_process(system, "44", "/venv/bin/python -m pip install ipykernel", kHeld);
  const std::vector<RunningKernel> kernels = running_kernels(system.outlook().files);
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0].process, 41);
  EXPECT_EQ(kernels[0].connection_file, "/run/kernel-1.json");
  EXPECT_EQ(kernels[0].replaced, std::vector<std::string>{"/venv/lib/python3.11/site-packages/flash_attn_2_cuda.so"});
  const auto verdicts = judge_running(kernels[0]);
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].code, doctor::Code::JUPYTER_KERNEL_OLD);
  EXPECT_NE(verdicts[0].fix.find("mica jupyter running --restart 41"), std::string::npos);
  expect_covered("JUPYTER_KERNEL_OLD", verdicts, judge_running(kernels[1]));  // one that holds nothing old
}

TEST(Running, AnotherUsersKernelIsNotSaidToHaveEnded) {
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && setuid(65534) != 0) _exit(7);
    if (kill(1, 0) == 0 || errno != EPERM) _exit(7);  // a user who may end everything
    RunningKernel kernel;
    kernel.process = 1;
    _exit(restart_kernel(kernel, 1).ended ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 7) GTEST_SKIP() << "no process here is another user's";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Running, OneThatEndsIsNotWaitedForAsAZombie) {
  RunningKernel kernel;
  kernel.process = fork();
  if (kernel.process == 0) {
    pause();
    _exit(0);
  }
  EXPECT_TRUE(restart_kernel(kernel, 0.5).ended);
  waitpid(kernel.process, nullptr, 0);
}

TEST(Notebook, TheCellThatFailedAndWhy) {
  NotebookRequest request;
  request.notebook = "/home/user/train.ipynb";
  NotebookAnswer answer = {4,
                           2,
                           "python3",
                           "ModuleNotFoundError: No module named 'flash_attn_2_cuda'",
                           "import flash_attn",
                           "ModuleNotFoundError: No module named 'flash_attn_2_cuda'"};
  const auto verdicts = judge_notebook(request, answer, {});
  ASSERT_GE(verdicts.size(), 2u);
  EXPECT_EQ(verdicts[0].code, doctor::Code::JUPYTER_CELL_FAILED);
  EXPECT_EQ(verdicts[0].subject, "train.ipynb, code cell 2");
  EXPECT_EQ(verdicts[1].code, doctor::Code::MODULE_MISSING);
  answer.failed_cell = 0;
  expect_covered("JUPYTER_CELL_FAILED", verdicts, judge_notebook(request, answer, {}));
}

}  // namespace
}  // namespace jupyter
