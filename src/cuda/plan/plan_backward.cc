// SPDX-License-Identifier: Apache-2.0
// Backward: row statistics, the gradients of K and V with dQ summed in fp32, dQ in its own type.
#include "cuda/plan/plan_backward.h"

#include "cuda/backward_share.h"
#include "cuda/kernels/parts/backward_order.h"
#include "cuda/plan/arguments_backward.h"
#include "cuda/plan/plan_forward.h"

namespace mica {
namespace {

static_assert(sizeof(BackwardPrepareParams) + sizeof(BackwardMapsParams) + 2 * sizeof(BackwardFinishParams) +
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

// Blocks of the preparation: as many warps as have rows, chunks of keys or zeros of their own, up to several an SM.
i64 prepare_blocks(const BackwardPrepareParams& a, const KernelRow& row, const Device& device) {
  constexpr i64 kMostOfSm = 16, kZerosOfWarp = 32 * 4 * 4;
  const bool of_any_type = a.o_dtype != a.d_o_dtype || a.o_dtype == MICA_FP32 || a.unaligned || a.dim_v > 256;
  const i64 rows_of_warp = of_any_type ? 2 : a.dim_v <= 64 ? 16 : a.dim_v <= 128 ? 8 : 4;
  const i64 rows = ceil_div<i64>(a.stat_rows * a.heads_q, rows_of_warp);
  const i64 chunks = a.measures ? i64(a.batch) * a.heads_k * kNormChunks * row.warps : 0;
  const i64 zeros = ceil_div<i64>(a.first_zeros + a.other_zeros, kZerosOfWarp);
  return min_of<i64>(1 + ceil_div<i64>(max_of(rows + chunks, zeros), row.warps), kMostOfSm * device.num_sms);
}

Step& last_step(Plan& plan) { return steps_of(plan).step[steps_of(plan).num_steps - 1]; }
// It begins while the one before it ends.
void overlap(Plan& plan, const KernelChoice& choice, i32 index) {
  if (steps_of(plan).num_steps > 1) last_step(plan).overlaps = can_overlap(choice, index);
}

}  // namespace

mica_status plan_backward(Plan& plan, const KernelChoice& choice, i32 index) {
  const Problem& p = plan.problem;
  const KernelRow& row = kernel_table().rows[index];
  WorkspaceLayout& layout = steps_of(plan).layout;
  const i32 prepare = find_kernel(Role::BACKWARD_PREPARE, choice), finish = find_backward_finish(row);
  if (prepare < 0 || finish < 0)
    return fail(MICA_ERROR_UNSUPPORTED, "%s needs a step before or after it that this build does not carry", row.name);

  // Pieces that run at the same time draw from a counter each; they lie where every piece has them.
  const bool is_beside = plan.pieces == MICA_PIECES_BESIDE;
  const u64 counters = plan.pieces == MICA_PIECES_NONE ? 0 : layout.reserve(2 * sizeof(u64));
  BackwardParams params = backward_params(p, row);
  const i64 key_blocks = i64(params.tiles_k) * params.slices * p.heads_k * (params.packed_k ? 1 : p.batch);
  const bool whole_heads = row.course == Course::HEADS;
  const bool integers = plan.pieces == MICA_PIECES_NONE && key_blocks > 0 && sums_integers(row, p);
  const Problem shared = integers ? without_order(row, p) : p;
  // Pieces beside one another keep nothing but dQ's sums.
  const i32 most_query_parts = plan.pieces == MICA_PIECES_NONE ? kMostQueryParts : 1;
  const BackwardShare share = whole_heads ? share_heads(row, p, choice.device)
                                          : share_key_tiles(row, shared, choice.device, key_blocks, most_query_parts);
  const i32 parts = share.parts();
  if (!whole_heads) {
    params.section_heads = section_heads(row, shared, choice.device, parts);
    params.last_heads = last_heads(row, shared, choice.device, share);
    params.by_last_heads = divisor_of(max_of(params.last_heads, 1));
  }
  const i64 work_items = (whole_heads ? i64(p.heads_k) * p.batch : key_blocks) * parts;
  // A block may wait only for blocks that took their key tiles before it: drawn ones are in the order of their index.
  // Where they wait for one another, a stream may have fewer SMs than the GPU.
  const i32 in_round = integers ? 0 : round_tiles(row, p, choice.device);
  // So it is where blocks that share a key tile tell one another what units its sums have.
  const bool tells_peers = integers && row.course != Course::ORDERED && parts > kEitherOrder;
  const bool keys_in_turn =
      p.deterministic && !tells_peers && parts > (takes_parts_apart(row, shared) ? 1 : kEitherOrder);
  const bool has_several = work_items > choice.device.num_sms || in_round > 0 || tells_peers;
  const bool draws = row.course == Course::DRAWN && has_several && work_items < kMostDrawn;
  const i64 blocks = whole_heads || draws ? min_of<i64>(work_items, choice.device.num_sms) : work_items;
  const i64 query_blocks = i64(params.tiles_q) * p.heads_q * (params.packed_q ? 1 : p.batch);
  // Whole heads: of those that blocks are at, unless one key tile is all there is. Of packed sequences nobody knows
  // here how long one is.
  const i64 dq_slots = parts > 1 ? work_items / parts : blocks;
  const i64 kept_blocks = params.packed_q ? query_blocks : dq_slots * p.group * params.tiles_q;
  const i64 dq_blocks = !whole_heads ? query_blocks : params.tiles_k > 1 ? kept_blocks : 0;
  const i64 accumulator = p.dq.dtype ? dq_blocks * row.tile_q * params.dq_columns : 0;
  const u64 stat_bytes = u64(params.stat_rows) * p.heads_q * sizeof(float);
  layout.row_lse = layout.reserve(stat_bytes);
  layout.row_delta = layout.reserve(stat_bytes);
  if (p.d_o.dtype != p.dtype)
    layout.d_o = layout.reserve(u64(params.stat_rows) * params.d_o.stride_row * dtype_bytes(p.dtype));
  if (integers) {
    const u64 heads = u64(p.batch) * p.heads_k;
    layout.row_norm = layout.reserve(stat_bytes);
    layout.key_norms = layout.reserve(heads * kNormChunks * sizeof(KeyNorms));
    layout.head_norms = layout.reserve(heads * sizeof(KeyNorms));
  }
  // The semaphores of deterministic sums lie behind the accumulator, and are set to zero with it.
  const i64 semaphores =
      p.dq.dtype && p.deterministic && !whole_heads && !integers ? round_up<i64>(query_blocks * params.slices, 4) : 0;
  // Of several pieces, a later one adds to what the first left.
  const bool is_alone = plan.pieces == MICA_PIECES_NONE && key_blocks > 0;
  const bool stores_first = is_alone && stores_dq_first(row, shared);
  const bool has_turns = integers || (stores_first && !p.deterministic);  // else there are semaphores
  const i64 turns = has_turns ? round_up<i64>(query_blocks, 4) : 0;
  const i32 ahead = is_alone && !stores_first ? clears_ahead(row, shared, choice.device, params, parts) : 0;
  const i64 key_heads = round_up<i64>(i64(p.batch) * p.heads_k, 4);
  const i64 cleared = ahead > 0 ? key_heads : 0;
  // dQ of a head is converted when its blocks are done. That begins where a block has ended, since none leaves room
  // beside it, and so after the preparation, which clears the counts: if every SM has a block.
  const bool counts_done =
      is_alone && counts_heads(row, p) && work_items > choice.device.num_sms && can_overlap(choice, finish);
  const i64 done = counts_done ? key_heads : 0;
  // So do the sums of dK and dV where blocks share a key tile.
  const i64 dk_sums = parts > 1 && p.dk.dtype ? key_blocks * row.tile_k * row.dim_qk : 0;
  const i64 dv_sums = parts > 1 && p.dv.dtype ? key_blocks * row.tile_k * row.dim_v : 0;
  const i64 key_turns = keys_in_turn ? key_blocks * row.traits.key_semaphores : 0;
  const i64 key_semaphores = round_up<i64>(key_turns, 4);
  const i64 key_peers = tells_peers ? key_blocks * (row.tile_k / 16) * i64(sizeof(KeyPeers) / sizeof(float)) : 0;
  const i64 sums = accumulator + semaphores + turns + cleared + done + key_semaphores + dk_sums + dv_sums + key_peers;
  if (is_beside && sums != accumulator)
    return fail(MICA_ERROR_UNSUPPORTED, "control.pieces is %d (beside), want another: %s keeps more than dQ's sums",
                plan.pieces, row.name);
  layout.dq_accumulator = layout.reserve(u64(sums) * sizeof(float));
  layout.dq_semaphores = layout.dq_accumulator + u64(accumulator) * sizeof(float);
  layout.dq_turns = layout.dq_semaphores;
  layout.heads_cleared = layout.dq_turns + u64(semaphores + turns) * sizeof(float);
  layout.heads_done = layout.heads_cleared + u64(cleared) * sizeof(float);
  layout.key_semaphores = layout.heads_done + u64(done) * sizeof(float);
  layout.dk_accumulator = layout.key_semaphores + u64(key_semaphores) * sizeof(float);
  layout.dv_accumulator = layout.dk_accumulator + u64(dk_sums) * sizeof(float);
  layout.key_peers = layout.dv_accumulator + u64(dv_sums) * sizeof(float);

  const i32 tail_items = packed_tail(row, shared, choice.device);
  const bool takes_in_order = tail_items >= 0 && plan.pieces == MICA_PIECES_NONE && query_blocks > 0;
  if (takes_in_order) layout.packed_order = layout.reserve((2 * u64(p.batch) + 1) * sizeof(i32));

  // Of several pieces that share the workspace, the first makes the statistics; the others set to zero what is not
  // dQ's.
  const bool adds = plan.pieces == MICA_PIECES_NEXT || is_beside, ends = plan.pieces == MICA_PIECES_END;
  const bool is_piece = !ends && plan.pieces != MICA_PIECES_BEGIN;
  const bool has_keys = key_blocks > 0 && is_piece, writes_dq = plan.pieces == MICA_PIECES_NONE || ends;
  mica_status status = MICA_OK;
  if (query_blocks > 0 && !ends && !(adds && sums == accumulator)) {
    const bool leaves_sums = whole_heads || stores_first || adds;
    const i64 first_zeros = leaves_sums ? 0 : ahead > 0 ? accumulator / p.batch * (ahead / p.heads_k) : accumulator;
    BackwardPrepareParams prepared = backward_prepare_params(p, first_zeros, accumulator, sums);
    prepared.tile_k = takes_in_order ? row.tile_k : 0;
    prepared.measures = integers;
    status = add_step(plan, StepKind::BACKWARD_PREPARE, prepare,
                      prepare_blocks(prepared, kernel_table().rows[prepare], choice.device), prepared);
  }
  if (status == MICA_OK && has_keys && row.traits.uses_maps) {
    BackwardMapsParams mapped = {};
    status = backward_maps_params(params, p, row, mapped);
    mapped.backward.part_heads = share.part_heads;
    mapped.parts = parts;
    mapped.query_parts = share.query_parts;
    mapped.by_parts = divisor_of(parts > 1 && takes_parts_apart(row, shared) ? i32(key_blocks) : parts);
    mapped.by_query_parts = divisor_of(share.query_parts);
    mapped.work_items = i32(work_items);
    mapped.work_epoch = draws;  // another one for each call
    if (draws)
      layout.work_counter =
          plan.pieces == MICA_PIECES_NONE ? layout.reserve(sizeof(u64)) : counters + is_beside * sizeof(u64);
    mapped.whole_heads = whole_heads;
    mapped.stores_dq_first = stores_first;
    mapped.clears_ahead = ahead;
    mapped.head_items = params.tiles_k * parts;
    mapped.by_head_items = divisor_of(max_of(mapped.head_items, 1));
    mapped.counts_done = counts_done;
    mapped.takes_in_order = takes_in_order;
    mapped.tail_items = max_of(tail_items, 0);
    mapped.round_tiles = in_round;
    mapped.sums_integers = integers;
    mapped.tells_peers = tells_peers;
    if (status == MICA_OK) status = add_step(plan, StepKind::BACKWARD_MAPS, index, blocks, mapped);
    if (status == MICA_OK && (in_round > 0 || tells_peers))
      last_step(plan).least_at_once = u32(tells_peers ? parts : in_round);
    else
      overlap(plan, choice, index);
  } else if (status == MICA_OK && has_keys) {
    status = add_step(plan, StepKind::BACKWARD, index, key_blocks, params);
  }
  const bool finishes_dq = query_blocks > 0 && p.dq.dtype && writes_dq && !(whole_heads && key_blocks > 0);
  const bool finishes_keys = is_piece && dk_sums + dv_sums > 0;
  if (status == MICA_OK && finishes_dq) {
    BackwardFinishParams finished = backward_finish_params(p, params, row.tile_q);
    finished.stores_dq_first = stores_first;
    finished.dq_by_columns = row.traits.dq_by_columns;
    finished.dq_in_pairs = row.traits.dq_in_pairs;
    finished.sums_integers = integers;
    finished.counts_done = counts_done;
    finished.parts = finishes_keys ? parts : 1;
    finished.head_items = params.tiles_k * parts;
    status = add_step(plan, StepKind::BACKWARD_FINISH, finish, query_blocks, finished);
    // After the kernel that waits for the preparation itself: only then is that one done, too.
    if (row.traits.uses_maps && has_keys) overlap(plan, choice, finish);
  }
  if (status == MICA_OK && finishes_keys) {
    const i32 finish_keys = find_backward_finish({});
    BackwardFinishParams finished = backward_finish_keys_params(p, params, row, key_blocks);
    finished.tells_peers = tells_peers;
    finished.parts = parts;
    // Conversions of dQ that do not wait for all heads do not tell when they are done.
    finished.counts_done = counts_done || !finishes_dq;
    const i64 blocks = key_blocks * finished.of_keys * (i32(dk_sums > 0) + i32(dv_sums > 0));
    status = add_step(plan, StepKind::BACKWARD_FINISH, finish_keys, blocks, finished);
    overlap(plan, choice, finish_keys);
  }
  if (status == MICA_OK && p.d_bias.dtype && is_piece) {
    const i32 bias = find_kernel(Role::BACKWARD_BIAS, choice);
    const i64 blocks = bias_blocks(p.d_bias, kernel_table().rows[bias]);
    if (blocks > 0) status = add_step(plan, StepKind::BACKWARD_BIAS, bias, blocks, backward_bias_params(params, p));
  }
  if (status == MICA_OK && p.d_sinks.dtype && !adds && !ends && p.heads_q > 0)
    status = add_step(plan, StepKind::BACKWARD_SINKS, find_kernel(Role::BACKWARD_SINKS, choice), p.heads_q,
                      backward_sinks_params(p));
  return status;
}

}  // namespace mica
