// SPDX-License-Identifier: Apache-2.0
// Backward: row statistics, the gradients of K and V with dQ summed in fp32, dQ in its own type.
#include "cuda/steps.h"

namespace mica {
namespace {

static_assert(sizeof(BackwardPrepareParams) + sizeof(BackwardMapsParams) + 3 * sizeof(BackwardFinishParams) +
                      sizeof(BackwardSinksParams) + 6 * 16 <=
                  Steps::kParamsBytes &&
              sizeof(BackwardPrepareParams) + sizeof(BackwardMapsParams) + sizeof(BackwardFinishParams) +
                      sizeof(BackwardBiasParams) + sizeof(BackwardSinksParams) + 5 * 16 <=
                  Steps::kParamsBytes);

// A block per tile of dBias; an axis of size 1 has one tile.
i64 bias_blocks(const Tensor& d_bias, const KernelRow& row) {
  return d_bias.shape[0] * d_bias.shape[1] * ceil_div<i64>(d_bias.shape[2], row.tile_q) *
         ceil_div<i64>(d_bias.shape[3], row.tile_k);
}

// Query heads of a group that a block takes. With few key heads a block for each key tile would leave SMs without work:
// then several share one, and their dK and dV are added up. Not in a fixed order, and not where keys begin elsewhere
// than at the row of their tile.
i32 part_heads(const Problem& p, const BackwardParams& params, const KernelRow& row, i64 key_blocks,
               const KernelChoice& choice) {
  // Short sequences are cheap to begin with: to share one costs more there than an uneven last wave.
  constexpr i32 kShortKeys = 1024;
  constexpr u32 kElsewhere = MICA_CACHE_BATCH_IDX | MICA_CACHE_LEFTPAD;
  const i64 waves = p.hint_len_k <= kShortKeys ? 1 : 4, wanted = waves * choice.device.num_sms;
  if (!row.traits.shares_groups || p.deterministic || params.packed_k || (p.vectors & kElsewhere) ||
      params.tiles_q == 0 || key_blocks == 0 || key_blocks >= wanted)
    return p.group;
  return i32(ceil_div<i64>(p.group, min_of<i64>(p.group, ceil_div<i64>(wanted, key_blocks))));
}

// The step that was added last begins while the one before it ends.
void overlap(Plan& plan, const KernelChoice& choice, i32 index) {
  Steps& steps = steps_of(plan);
  if (steps.num_steps > 1) steps.step[steps.num_steps - 1].overlaps = can_overlap(choice, index);
}

}  // namespace

mica_status plan_backward(Plan& plan, const KernelChoice& choice, i32 index) {
  const Problem& p = plan.problem;
  const KernelRow& row = kernel_table().rows[index];
  WorkspaceLayout& layout = steps_of(plan).layout;
  const i32 prepare = find_kernel(Role::BACKWARD_PREPARE, choice), finish = find_backward_finish(row);
  if (prepare < 0 || finish < 0)
    return fail(MICA_ERROR_UNSUPPORTED, "%s needs a step before or after it that this build does not carry", row.name);

  const BackwardParams params = backward_params(p, row);
  const i64 key_blocks = i64(params.tiles_k) * params.slices * p.heads_k * (params.packed_k ? 1 : p.batch);
  const i32 heads_each = part_heads(p, params, row, key_blocks, choice);
  const i32 parts = max_of(ceil_div(p.group, max_of(heads_each, 1)), 1);
  const i64 query_blocks = i64(params.tiles_q) * p.heads_q * (params.packed_q ? 1 : p.batch);
  const i64 accumulator = p.dq.dtype ? query_blocks * row.tile_q * params.dq_columns : 0;
  const u64 stat_bytes = u64(params.stat_rows) * p.heads_q * sizeof(float);
  layout.row_lse = layout.reserve(stat_bytes);
  layout.row_delta = layout.reserve(stat_bytes);
  if (p.d_o.dtype != p.dtype)
    layout.d_o = layout.reserve(u64(params.stat_rows) * params.d_o.stride_row * dtype_bytes(p.dtype));
  // The turns of deterministic sums lie behind the accumulator, and are set to zero with it.
  const i64 turns = p.dq.dtype && p.deterministic ? round_up<i64>(query_blocks * params.slices, 4) : 0;
  // So do the sums of dK and dV where blocks share a key tile.
  const i64 dk_sums = parts > 1 && p.dk.dtype ? key_blocks * row.tile_k * row.dim_qk : 0;
  const i64 dv_sums = parts > 1 && p.dv.dtype ? key_blocks * row.tile_k * row.dim_v : 0;
  const i64 zeros = accumulator + turns + dk_sums + dv_sums;
  layout.dq_accumulator = layout.reserve(u64(zeros) * sizeof(float));
  layout.dq_turns = layout.dq_accumulator + u64(accumulator) * sizeof(float);
  layout.dk_accumulator = layout.dq_turns + u64(turns) * sizeof(float);
  layout.dv_accumulator = layout.dk_accumulator + u64(dk_sums) * sizeof(float);

  mica_status status = MICA_OK;
  if (query_blocks > 0)
    status = add_step(plan, StepKind::BACKWARD_PREPARE, prepare, i64(choice.device.num_sms) * 8,
                      backward_prepare_params(p, zeros));
  if (status == MICA_OK && key_blocks > 0 && row.traits.uses_maps) {
    BackwardMapsParams mapped = {};
    status = backward_maps_params(params, p, row, mapped);
    mapped.backward.part_heads = heads_each;
    mapped.parts = parts;
    mapped.work_items = i32(key_blocks * parts);
    // Blocks that go on to further key tiles fetch them while the last one is stored. In turns a block may wait only
    // for blocks before it.
    const bool goes_on = row.traits.persistent && !p.deterministic;
    const i64 blocks = goes_on ? min_of<i64>(mapped.work_items, choice.device.num_sms) : mapped.work_items;
    if (status == MICA_OK) status = add_step(plan, StepKind::BACKWARD_MAPS, index, blocks, mapped);
    overlap(plan, choice, index);
  } else if (status == MICA_OK && key_blocks > 0) {
    status = add_step(plan, StepKind::BACKWARD, index, key_blocks, params);
  }
  if (status == MICA_OK && query_blocks > 0 && p.dq.dtype) {
    status =
        add_step(plan, StepKind::BACKWARD_FINISH, finish, query_blocks, backward_finish_params(p, params, row.tile_q));
    // After the kernel that waits for the preparation itself: only then is that one done, too.
    if (row.traits.uses_maps && key_blocks > 0) overlap(plan, choice, finish);
  }
  for (const bool of_v : {false, true}) {
    if (status != MICA_OK || (of_v ? dv_sums : dk_sums) == 0) continue;
    KernelRow keys = row;
    keys.tile_q = row.tile_k;
    if (of_v) keys.dim_qk = row.dim_v;
    status = add_step(plan, StepKind::BACKWARD_FINISH, find_backward_finish(keys), key_blocks,
                      backward_finish_keys_params(p, params, row, of_v));
  }
  if (status == MICA_OK && p.d_bias.dtype) {
    const i32 bias = find_kernel(Role::BACKWARD_BIAS, choice);
    const i64 blocks = bias_blocks(p.d_bias, kernel_table().rows[bias]);
    if (blocks > 0) status = add_step(plan, StepKind::BACKWARD_BIAS, bias, blocks, backward_bias_params(params, p));
  }
  if (status == MICA_OK && p.d_sinks.dtype && p.heads_q > 0)
    status = add_step(plan, StepKind::BACKWARD_SINKS, find_kernel(Role::BACKWARD_SINKS, choice), p.heads_q,
                      backward_sinks_params(p));
  return status;
}

}  // namespace mica
