// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda.h"

#include <cassert>
#include <cstdio>
#include <utility>

#include "cuda/check.h"
#include "cuda/loader.h"
#include "cuda/steps.h"

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

mica_status load(i32 device, i32 index, cu::Function* function) {
  const KernelRow& row = kernel_table().rows[index];
  return KernelLoader::instance().load({device, index, row.name, row.smem_bytes}, function);
}

mica_status too_large(i64 blocks) {
  return fail(MICA_ERROR_UNSUPPORTED, "the problem makes %lld blocks of work, and a launch takes at most 2^31 - 1",
              blocks);
}

// Into how many ranges to cut the keys so that every SM has work.
Splits choose_splits_of(const Problem& p, const KernelChoice& choice, const KernelRow& row, i64 work_items) {
  constexpr i32 kMinTiles = 4, kMaxSplits = 128;
  constexpr i32 kInvariantKeys = 2048;  // batch-invariant: a split's length follows from nothing but the capacity
  const i32 num_tiles = ceil_div(max_of(p.max_len_k, 1), row.tile_k);
  if (p.num_splits > 0) return Splits{min_of(p.num_splits, num_tiles), 0};
  const bool can_split = row.role == Role::DECODE && find_kernel(Role::COMBINE, choice) >= 0 && !p.probs.dtype;
  if (!can_split) return Splits{1, 0};
  if (p.batch_invariant) {
    const i32 length = max_of(ceil_div(kInvariantKeys, row.tile_k), ceil_div(num_tiles, kMaxSplits));
    return Splits{ceil_div(num_tiles, length), length};
  }
  const i32 hint_tiles = ceil_div(max_of(p.hint_len_k, 1), row.tile_k);
  return Splits{choose_splits(work_items, hint_tiles, choice.device.num_sms * row.blocks, kMinTiles, kMaxSplits), 0};
}

WorkspaceLayout split_workspace(const Problem& p, const ForwardParams& params) {
  WorkspaceLayout layout = {};
  if (params.splits.num_splits <= 1) return layout;
  const u64 rows = u64(params.splits.num_splits) * p.heads_q * params.partial_rows;
  layout.partial_lse = 0;
  layout.partial_o = round_up<u64>(rows * 4, 256);
  layout.bytes = layout.partial_o + round_up<u64>(rows * p.dim_v * 4, 256);
  return layout;
}

mica_status plan_forward(Plan& plan, const KernelChoice& choice, i32 index) {
  const Problem& p = plan.problem;
  const KernelRow& row = kernel_table().rows[index];
  Steps& steps = steps_of(plan);
  const bool nothing_to_write = p.batch == 0 || p.heads_q == 0 || p.total_q == 0 || p.max_len_q == 0;
  if (nothing_to_write) return MICA_OK;
  cu::Function function;
  if (const mica_status status = load(plan.device, index, &function); status != MICA_OK) return status;
  ForwardParams params = forward_params(p, row, Splits{1, 0});
  const i64 blocks = i64(params.tiles_q) * p.heads_q * (params.packed_q ? 1 : p.batch);
  params.splits = choose_splits_of(p, choice, row, blocks);
  plan.num_splits = params.splits.num_splits;
  if (blocks * plan.num_splits > 0x7fffffff) return too_large(blocks * plan.num_splits);
  steps.layout = split_workspace(p, params);
  plan.workspace_bytes = steps.layout.bytes;
  steps.add(StepKind::FORWARD, function, row, u32(blocks * plan.num_splits), params);
  return MICA_OK;
}

// Row statistics, then dK, dV and dQ's sums, then dQ itself.
mica_status plan_backward(Plan& plan, const KernelChoice& choice, i32 index) {
  const Problem& p = plan.problem;
  const KernelRow& row = kernel_table().rows[index];
  Steps& steps = steps_of(plan);
  const i32 prepare = find_kernel(Role::BACKWARD_PREPARE, choice), finish = find_backward_finish(row);
  if (prepare < 0 || finish < 0)
    return fail(MICA_ERROR_UNSUPPORTED, "%s needs a step before or after it that this build does not carry", row.name);
  cu::Function prepare_function, main_function, finish_function;
  for (const auto& [kernel, function] :
       {std::pair{prepare, &prepare_function}, std::pair{index, &main_function}, std::pair{finish, &finish_function}})
    if (const mica_status status = load(plan.device, kernel, function); status != MICA_OK) return status;

  const BackwardParams params = backward_params(p, row);
  const i64 key_blocks = i64(params.tiles_k) * p.heads_k * (params.packed_k ? 1 : p.batch);
  const i64 query_blocks = i64(params.tiles_q) * p.heads_q * (params.packed_q ? 1 : p.batch);
  if (key_blocks > 0x7fffffff || query_blocks > 0x7fffffff) return too_large(max_of(key_blocks, query_blocks));
  const i64 accumulator = p.dq.dtype ? query_blocks * row.tile_q * row.dim_qk : 0;
  const u64 stat_bytes = round_up<u64>(u64(params.stat_rows) * p.heads_q * 4, 256);
  steps.layout.row_lse = 0;
  steps.layout.row_delta = stat_bytes;
  steps.layout.dq_accumulator = 2 * stat_bytes;
  steps.layout.bytes = plan.workspace_bytes = 2 * stat_bytes + round_up<u64>(u64(accumulator) * 4, 256);

  if (query_blocks > 0)
    steps.add(StepKind::BACKWARD_PREPARE, prepare_function, kernel_table().rows[prepare],
              u32(choice.device.num_sms * 8), backward_prepare_params(p, accumulator));
  if (key_blocks > 0) steps.add(StepKind::BACKWARD, main_function, row, u32(key_blocks), params);
  if (query_blocks > 0 && p.dq.dtype)
    steps.add(StepKind::BACKWARD_FINISH, finish_function, kernel_table().rows[finish], u32(query_blocks),
              backward_finish_params(p, row));
  return MICA_OK;
}

mica_status plan(Plan& plan) {
  const KernelChoice choice = {plan.problem, Driver::instance().device(plan.device), kernel_images()};
  const i32 index = find_principal(choice);
  if (index < 0) return no_kernel(choice);
  std::snprintf(plan.kernel, sizeof plan.kernel, "cuda/%s", kernel_table().rows[index].name);
  Steps& steps = steps_of(plan);
  steps.num_steps = 0;
  steps.params_used = 0;
  steps.layout = {};
  return plan.problem.pass == MICA_BACKWARD ? plan_backward(plan, choice, index) : plan_forward(plan, choice, index);
}

mica_status execute(const Plan& plan, const mica_bindings& bindings) {
  Driver& driver = Driver::instance();
  const Steps& steps = steps_of(plan);
  const ScopedContext context(driver, plan.device);
  if (context.status() != MICA_OK) return context.status();
  if (checks_device_memory())
    if (const mica_status status = check_device_memory(driver, plan, bindings); status != MICA_OK) return status;
  alignas(16) unsigned char params[Steps::kParamsBytes];
  void* arguments[] = {params};
  const auto stream = static_cast<cu::Stream>(bindings.stream);
  for (i32 i = 0; i < steps.num_steps; ++i) {
    const Step& s = steps.step[i];
    std::memcpy(params, steps.params + s.params_offset, s.params_bytes);
    switch (s.kind) {
      case StepKind::FORWARD:
        bind_forward(*reinterpret_cast<ForwardParams*>(params), plan.problem, bindings, steps.layout);
        break;
      case StepKind::BACKWARD_PREPARE:
        bind_backward_prepare(*reinterpret_cast<BackwardPrepareParams*>(params), plan.problem, bindings, steps.layout);
        break;
      case StepKind::BACKWARD:
        bind_backward(*reinterpret_cast<BackwardParams*>(params), plan.problem, bindings, steps.layout);
        break;
      case StepKind::BACKWARD_FINISH:
        bind_backward_finish(*reinterpret_cast<BackwardFinishParams*>(params), plan.problem, bindings, steps.layout);
        break;
    }
    const cu::Result launched =
        driver.api().cuLaunchKernel(s.function, s.grid, 1, 1, s.block, 1, 1, s.smem_bytes, stream, arguments, nullptr);
    if (launched != cu::kSuccess) return driver.check(launched, "cuLaunchKernel");
  }
  return MICA_OK;
}

void list_kernels(const Problem& problem, i32 device, KernelVisitor visit, void* context) {
  const KernelChoice choice = {problem, Driver::instance().device(device), kernel_images()};
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
  static constexpr Backend backend = {"cuda", 256, device_count, describe_device, plan, execute, list_kernels};
  return backend;
}

}  // namespace mica
