// SPDX-License-Identifier: Apache-2.0
#include "api/plan.h"

#include <cstdlib>
#include <mutex>

#include "api/prefix.h"
#include "api/validate.h"
#include "base/pointers.h"
#include "base/status.h"
#include "cpu/cpu.h"
#include "cuda/cuda.h"

namespace mica {
namespace {

mica_status resolve(const mica_attention& a, mica_pass pass, Problem& problem, const Backend*& backend) {
  if (const mica_status status = validate(a, pass, problem); status != MICA_OK) return status;
  backend = find_backend(a.device.backend);
  if (!backend) return MICA_ERROR_INVALID;
  const i32 count = backend->device_count();
  if (count == 0) return MICA_ERROR_NO_DEVICE;
  if (a.device.ordinal < 0 || a.device.ordinal >= count)
    return fail(MICA_ERROR_NO_DEVICE, "device.ordinal is %d, want 0 to %d (backend %s)", a.device.ordinal, count - 1,
                backend->name);
  return MICA_OK;
}

// Free plans, linked through their own storage.
union FreePlan {
  FreePlan* next;
  Plan plan;
};
std::mutex free_mutex;
FreePlan* free_plans = nullptr;
int free_count = 0;
constexpr int kKeptPlans = 64;

}  // namespace

const Backend* find_backend(i32 backend) {
  if (backend == MICA_CPU) return &cpu_backend();
  if (backend == MICA_CUDA) return &cuda_backend();
  fail(MICA_ERROR_INVALID, "device.backend is %d, want MICA_CPU (0) or MICA_CUDA (1)", backend);
  return nullptr;
}

mica_status make_plan(const mica_attention& attention, mica_pass pass, Plan& plan) {
  plan.with_prefix = nullptr;
  const mica_status status = resolve(attention, pass, plan.problem, plan.backend);
  if (status != MICA_OK) return status;
  plan.device = attention.device.ordinal;
  plan.pieces = attention.control.pieces;
  plan.num_splits = 1;
  plan.workspace_bytes = 0;
  plan.kernel[0] = 0;
  const mica_status planned = plan.problem.k_prefix.dtype ? plan_with_prefix(plan) : plan.backend->plan(plan);
  plan.bound = tensors_of(plan.problem);
  return planned;
}

mica_status list_kernels(const mica_attention& attention, mica_pass pass, KernelVisitor visit, void* context) {
  Problem problem;
  const Backend* backend = nullptr;
  if (const mica_status status = resolve(attention, pass, problem, backend); status != MICA_OK) return status;
  backend->list_kernels(problem, attention.device.ordinal, attention.control.pieces, visit, context);
  return MICA_OK;
}

// NOTE: nobody waits for the list. Whoever finds it taken uses malloc; so does a child whose parent forked while
// another thread held it.
Plan* acquire_plan() {
  if (const std::unique_lock lock(free_mutex, std::try_to_lock); lock.owns_lock() && free_plans) {
    FreePlan* plan = free_plans;
    free_plans = plan->next;
    --free_count;
    return &plan->plan;
  }
  return static_cast<Plan*>(std::malloc(sizeof(FreePlan)));
}

void release_plan(Plan* plan) {
  FreePlan* freed = reinterpret_cast<FreePlan*>(plan);
  if (const std::unique_lock lock(free_mutex, std::try_to_lock); lock.owns_lock() && free_count < kKeptPlans) {
    freed->next = free_plans;
    free_plans = freed;
    ++free_count;
    return;
  }
  std::free(freed);
}

}  // namespace mica
