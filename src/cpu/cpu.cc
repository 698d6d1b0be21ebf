// SPDX-License-Identifier: Apache-2.0
// The CPU backend: which instruction sets this machine has, which kernel a plan takes, and the way into it.
#include "cpu/cpu.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/check_vectors.h"
#include "base/pointers.h"
#include "base/status.h"
#include "cpu/isa/isa.h"
#include "cpu/isa/isa_list.h"
#include "cpu/join.h"
#include "cpu/threads/threads.h"

namespace mica {
namespace {

static_assert(sizeof(CpuPlan) <= sizeof(Plan::backend_data) && alignof(CpuPlan) <= 16);

// The instruction set that MICA_CPU_ISA forces, as an index into the list: -1: none is forced, -2: unknown or absent
// (the message says which there are).
i32 forced_isa() {
  const char* wanted = std::getenv("MICA_CPU_ISA");
  if (!wanted || !*wanted) return -1;
  char names[128] = "";
  for (i32 i = 0; i < kNumIsas; ++i) {
    if (!kIsas[i].is_available()) continue;
    if (std::strcmp(kIsas[i].table().name, wanted) == 0) return i;
    std::snprintf(names + std::strlen(names), sizeof names - std::strlen(names), "%s%s", *names ? ", " : "",
                  kIsas[i].table().name);
  }
  fail(MICA_ERROR_INVALID, "MICA_CPU_ISA is \"%s\", want one of: %s", wanted, names);
  return -2;
}

// Every kernel, in order of preference. visit(kernel, why_not) returns whether to go on.
template <class Visit>
void visit_kernels(const Problem& problem, i32 forced, const Visit& visit) {
  for (i32 i = 0; i < kNumIsas; ++i) {
    const IsaTable& table = kIsas[i].table();
    for (i32 k = 0; k < table.num_kernels; ++k) {
      const IsaKernel& kernel = table.kernels[k];
      char why_not[128] = "";
      if (!kIsas[i].is_available())
        std::snprintf(why_not, sizeof why_not, "this CPU lacks %s", table.name);
      else if (forced >= 0 && i < forced)
        std::snprintf(why_not, sizeof why_not, "MICA_CPU_ISA is %s", kIsas[forced].table().name);
      else if (kernel.pass != problem.pass)
        std::snprintf(why_not, sizeof why_not, "the pass is %s", problem.pass == MICA_FORWARD ? "forward" : "backward");
      else
        kernel.why_not(problem, why_not, sizeof why_not);
      if (!visit(kernel, why_not)) return;
    }
  }
}

i32 device_count() { return 1; }

void describe_device(i32, char* text, size_t text_bytes) {
  const i32 forced = forced_isa();
  const char* name = "none";
  for (i32 i = kNumIsas - 1; i >= 0; --i)
    if (kIsas[i].is_available() && (forced < 0 || i == forced)) name = kIsas[i].table().name;
  char whose[128];
  describe_threads(whose, sizeof whose);
  std::snprintf(text, text_bytes, "%s, %d threads (%s)", name, num_threads(), whose);
}

mica_status make_plan(Plan& plan) {
  const i32 forced = forced_isa();
  if (forced == -2) return MICA_ERROR_INVALID;
  const IsaKernel* chosen = nullptr;
  char reason[192] = "no kernel was built";
  visit_kernels(plan.problem, forced, [&](const IsaKernel& kernel, const char* why_not) {
    if (!*why_not)
      chosen = &kernel;
    else if (kernel.pass == plan.problem.pass)
      std::snprintf(reason, sizeof reason, "%s: %s", kernel.name, why_not);
    return chosen == nullptr;
  });
  if (!chosen) return fail(MICA_ERROR_UNSUPPORTED, "no CPU kernel runs this problem (%s)", reason);
  CpuPlan cpu = {};
  cpu.kernel = chosen;
  if (const mica_status status = choose_threads(cpu.threads); status != MICA_OK) return status;
  plan.num_splits = 1;
  chosen->plan(plan.problem, cpu, plan.num_splits);
  cpu.sequences = sequence_shapes(plan.problem);
  plan.workspace_bytes = size_t(cpu.workspace_bytes);
  std::snprintf(plan.kernel, sizeof plan.kernel, "%s", chosen->name);
  std::memcpy(plan.backend_data, &cpu, sizeof cpu);
  return MICA_OK;
}

mica_status execute(const Plan& plan, const mica_bindings& x) {
  const CpuPlan& cpu = *std::launder(reinterpret_cast<const CpuPlan*>(plan.backend_data));
  CpuCall call = {};
  call.problem = &plan.problem;
  call.plan = &cpu;
  call.num_splits = plan.num_splits;
  call.x = &x;
  call.sequences = &cpu.sequences;
  SequenceTable sequences;
  if (plan.problem.vectors || plan.problem.page_size > 0) {
    sequences = sequence_table(plan.problem, x);
    if (const mica_status status = check_vectors(plan.problem, sequences); status != MICA_OK) return status;
    call.sequences = &sequences;
  }
  if (plan.problem.dropout > 0) {
    const bool in_memory = plan.problem.rng_from_memory;
    call.philox = philox_key(in_memory ? u64(x.rng_state[0]) : x.dropout_seed,
                             in_memory ? u64(x.rng_state[1]) : x.dropout_offset);
  }
  call.workspace = static_cast<char*>(x.workspace);
  cpu.kernel->execute(call);
  return MICA_OK;
}

void list_kernels(const Problem& problem, i32, i32, KernelVisitor visit, void* context) {
  visit_kernels(problem, forced_isa(), [&](const IsaKernel& kernel, const char* why_not) {
    visit(context, kernel.name, why_not);
    return true;
  });
}

}  // namespace

const Backend& cpu_backend() {
  static constexpr Backend backend = {"cpu",       64,      device_count, describe_device, make_plan, plan_join_on_cpu,
                                      join_on_cpu, execute, list_kernels};
  return backend;
}

}  // namespace mica
