// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda.h"

#include <cstdio>
#include <type_traits>

#include "core/heads_as_rows.h"
#include "cuda/check.h"
#include "cuda/few_rows.h"
#include "cuda/plan/arguments_backward.h"
#include "cuda/plan/plan_backward.h"
#include "cuda/plan/plan_forward.h"

namespace mica {
namespace {

i32 device_count() {
  if (kernel_images().num_images == 0) {
    fail(MICA_ERROR_NO_DEVICE,
         "this build of Mica carries no GPU kernels; build it with -DMICA_CUDA=ON and the device compiler "
         "(pip install nvidia-cuda-nvrtc-cu12==12.9.86)");
    return 0;
  }
  const Driver& driver = Driver::instance();
  if (driver.device_count() == 0) fail(MICA_ERROR_NO_DEVICE, "%s", driver.problem());
  return driver.device_count();
}

void describe_device(i32 ordinal, char* text, size_t text_bytes) {
  const Driver& driver = Driver::instance();
  const Device& d = driver.device(ordinal);
  std::snprintf(text, text_bytes, "%s, sm_%d, driver %d.%d", d.name, d.arch, driver.cuda_version() / 1000,
                driver.cuda_version() % 1000 / 10);
}

// Names the kernel that came closest.
mica_status no_kernel(const KernelChoice& choice) {
  char best_text[160] = "there is none for this pass", text[160];
  const char* best_name = "the kernel table";
  i32 best_passed = -1;
  for (i32 index = 0; index < kernel_table().num_rows; ++index) {
    const KernelRow& row = kernel_table().rows[index];
    if (!is_principal(row.role, choice.problem.pass)) continue;
    const i32 passed = why_not(index, choice, text, sizeof text);
    if (passed <= best_passed) continue;
    best_passed = passed;
    best_name = row.name;
    std::snprintf(best_text, sizeof best_text, "%s", text);
  }
  return fail(MICA_ERROR_UNSUPPORTED, "no CUDA kernel can run this; the closest, %s: %s", best_name, best_text);
}

// The first forward kernel of Hopper's that takes the problem; -1: none.
i32 find_persistent_forward(const KernelChoice& choice) {
  char text[160];
  for (i32 index = 0; index < kernel_table().num_rows; ++index) {
    const KernelRow& row = kernel_table().rows[index];
    if (row.role != Role::FORWARD || !row.traits.persistent) continue;
    why_not(index, choice, text, sizeof text);
    if (!text[0]) return index;
  }
  return -1;
}

// The forward kernel that does better than kernel `index` for a problem of few rows, as it is or with its heads as
// rows; -1: none. forward becomes the problem that the kernel solves, lse_heads how many heads combine takes apart
// again.
i32 find_better(const KernelChoice& choice, i32 index, Problem& forward, i32& lse_heads) {
  const Problem& p = choice.problem;
  const KernelRow& row = kernel_table().rows[index];
  const i32 num_sms = choice.device.num_sms;
  const bool is_decode = row.role == Role::DECODE;
  if (p.num_splits > 1 || p.batch_invariant || (!is_decode && !wastes_tiles(row, p))) return -1;
  const auto find = [&] { return find_persistent_forward({forward, choice.device, choice.images, choice.pieces}); };
  const bool can_combine = find_kernel(Role::COMBINE, choice) >= 0;
  const bool in_one_axis = can_combine && heads_as_rows(p, forward, lse_heads);
  if (in_one_axis || (can_combine && heads_in_boxes(p, forward))) {
    const i32 other = find();
    if (other >= 0) {
      forward.num_splits = ranges_of_joined(kernel_table().rows[other], forward, choice, is_decode ? &row : nullptr);
      if (forward.num_splits == 0 && is_better_in_one_tile(forward, num_sms)) forward.num_splits = 1;
      if (p.num_splits == 1) forward.num_splits = min_of(forward.num_splits, 1);
      if (forward.num_splits > 0) return other;
    }
    if (in_one_axis) return -1;
  }
  lse_heads = 1;
  forward = p;
  return is_decode && is_better_in_one_tile(p, num_sms) ? find() : -1;
}

mica_status plan(Plan& plan) {
  // Sums in any order go by what else the GPU is at.
  if (plan.problem.pass == MICA_BACKWARD && plan.problem.batch_invariant) plan.problem.deterministic = 1;
  const KernelChoice choice = {plan.problem, Driver::instance().device(plan.device), kernel_images(), plan.pieces};
  i32 index = find_principal(choice);
  if (index < 0) return no_kernel(choice);
  i32 lse_heads = 1;
  if (plan.problem.pass == MICA_FORWARD) {
    Problem forward;
    i32 joined_lse_heads = 1;
    const i32 other = find_better(choice, index, forward, joined_lse_heads);
    if (other >= 0) {
      plan.problem = forward;
      index = other;
      lse_heads = joined_lse_heads;
    }
  }
  std::snprintf(plan.kernel, sizeof plan.kernel, "cuda/%s", kernel_table().rows[index].name);
  Steps& steps = steps_of(plan);
  steps.num_steps = 0;
  steps.params_used = 0;
  steps.layout = {};
  steps.needs_v_in_k = false;
  // A tensor map is made in a context, which the thread of an autograd engine need not have.
  const ScopedContext context(Driver::instance(), plan.device);
  if (context.status() != MICA_OK) return context.status();
  const mica_status status = plan.problem.pass == MICA_BACKWARD ? plan_backward(plan, choice, index)
                                                                : plan_forward(plan, choice, index, lse_heads);
  plan.workspace_bytes = steps.layout.bytes;
  return status;
}

mica_status plan_join(Plan& plan, const Parts& parts) {
  const KernelChoice choice = {plan.problem, Driver::instance().device(plan.device), kernel_images(), plan.pieces};
  const i32 index = find_kernel(Role::JOIN, choice);
  if (index < 0)
    return fail(MICA_ERROR_UNSUPPORTED, "k_prefix needs a kernel that joins two results, and none can run");
  Steps& steps = steps_of(plan);
  steps = {};
  steps.layout.parts = parts;
  const ScopedContext context(Driver::instance(), plan.device);
  if (context.status() != MICA_OK) return context.status();
  const i64 rows = plan.problem.total_q * plan.problem.heads_q;
  return rows == 0 ? MICA_OK
                   : add_step(plan, StepKind::JOIN, index, ceil_div<i64>(rows, kernel_table().rows[index].warps),
                              join_params(plan.problem));
}

template <class Params>
mica_status bind_step(Params& params, const Plan& plan, const mica_bindings& bindings) {
  if constexpr (std::is_void_v<decltype(bind(params, plan.problem, bindings, steps_of(plan).layout))>) {
    bind(params, plan.problem, bindings, steps_of(plan).layout);
    return MICA_OK;
  } else {
    return bind(params, plan.problem, bindings, steps_of(plan).layout);
  }
}

mica_status execute(const Plan& plan, const mica_bindings& bindings) {
  Driver& driver = Driver::instance();
  const Steps& steps = steps_of(plan);
  const ScopedContext context(driver, plan.device);
  if (context.status() != MICA_OK) return context.status();
  if (checks_device_memory())
    if (const mica_status status = check_device_memory(driver, plan, bindings); status != MICA_OK) return status;
  if (steps.needs_v_in_k && !v_lies_in_k(plan.problem, bindings))
    return fail(MICA_ERROR_UNSUPPORTED,
                "v is no part of k by its address, and no kernel but %s, which reads v out of k, can run this",
                plan.kernel);
  alignas(64) unsigned char params[Steps::kParamsBytes];
  void* arguments[] = {params};
  const auto stream = static_cast<cu::Stream>(bindings.stream);
  for (i32 i = 0; i < steps.num_steps; ++i) {
    const Step& s = steps.step[i];
    if (s.when != When::ALWAYS && (s.when == When::V_IN_K) != v_lies_in_k(plan.problem, bindings)) continue;
    std::memcpy(params, steps.params + s.params_offset, s.params_bytes);
    mica_status bound = MICA_OK;
    switch (s.kind) {
#define MICA_BIND(kind, Params) \
  case StepKind::kind: bound = bind_step(*reinterpret_cast<Params*>(params), plan, bindings); break;
      MICA_STEP_KINDS(MICA_BIND)
#undef MICA_BIND
    }
    if (bound != MICA_OK) return bound;
    const bool at_once = s.least_at_once > 0;
    const cu::LaunchAttribute attribute = {at_once ? cu::kCooperative : cu::kProgrammaticStreamSerialization, {1}};
    cu::LaunchConfig config = {s.grid, 1, 1, s.block, 1, 1, s.smem_bytes, stream, &attribute, at_once || s.overlaps};
    cu::Result launched = driver.api().cuLaunchKernelEx(&config, s.function, arguments, nullptr);
    // A stream may have fewer SMs than the GPU.
    while (at_once && launched == cu::kCooperativeLaunchTooLarge && config.grid_x > s.least_at_once) {
      --config.grid_x;
      launched = driver.api().cuLaunchKernelEx(&config, s.function, arguments, nullptr);
    }
    if (launched != cu::kSuccess) return driver.check(launched, "cuLaunchKernelEx");
  }
  return MICA_OK;
}

void list_kernels(const Problem& problem, i32 device, i32 pieces, KernelVisitor visit, void* context) {
  const KernelChoice choice = {problem, Driver::instance().device(device), kernel_images(), pieces};
  char name[64], text[160];
  for (i32 index = 0; index < kernel_table().num_rows; ++index) {
    const KernelRow& row = kernel_table().rows[index];
    if (!is_principal(row.role, problem.pass)) continue;
    why_not(index, choice, text, sizeof text);
    std::snprintf(name, sizeof name, "cuda/%s", row.name);
    visit(context, name, text);
  }
}

}  // namespace

const Backend& cuda_backend() {
  static constexpr Backend backend = {"cuda",    256,     device_count, describe_device, plan,
                                      plan_join, execute, execute,      list_kernels};
  return backend;
}

}  // namespace mica
