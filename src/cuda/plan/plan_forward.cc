// SPDX-License-Identifier: Apache-2.0
// Forward: append and rotary, attention, the joining of splits, probs; whichever of them the problem needs.
#include "cuda/plan/plan_forward.h"

#include "core/heads_as_rows.h"
#include "cuda/argument_parts.h"
#include "cuda/few_rows.h"
#include "cuda/kernels/options/joined_splits.h"
#include "cuda/kernels/packed/packed_sm90.h"

namespace mica {
namespace {

// A kernel that reads V out of K has another one that stands in for it.
static_assert(sizeof(AppendParams) + sizeof(ForwardMapsParams) + sizeof(ForwardParams) + sizeof(CombineParams) +
                  sizeof(ProbsParams) + 5 * 16 <=
              Steps::kParamsBytes);

// Blocks of a kernel that take an item of work together.
i32 sharers_of(const KernelRow& row) { return max_of(row.cluster, 1); }

// How many heads' query tiles are dealt out together. One key head's where all tiles have the same work: whoever reads
// its keys does so at the same time. Under a causal mask several, the heaviest tiles of all of them first, so that the
// lighter ones even out: at least so many that few tiles of each are under way, which read the same keys soon after
// each other. Where L2 does not hold those, as many as it keeps beside what else goes through it: what is read from
// memory again takes power from the products. Sections of one size, the last of which has tiles enough: the heaviest
// ones of a small one would end alone. Packed: those of whole sequences of the mean length, as many as a warp has lanes
// at most; 0 where a sequence's tiles have the same work: then they go as they lie (packed_tiles_sm90.cuh). Heads of
// one tile each need no sections.
i32 section_heads(const Problem& p, const KernelRow& row, const Device& device, const ForwardParams& params) {
  constexpr i64 kMostSequences = 32, kTilesAtOnce = 8;
  const bool packed = params.packed_q == 1, has_parts = params.splits.num_splits > 1;
  if (!packed && params.tiles_q == 1) return 1;
  if (!packed && (p.window_right >= MICA_MAX_SEQLEN || p.joined_heads > 0)) return p.group;
  if (packed && !has_parts && !is_banded(p) && p.max_len_q > row.tile_q) return 0;
  // What is dealt out whole: a sequence where they are packed, else a key head.
  const i64 batch = max_of(p.batch, 1), units = packed ? batch : batch * p.heads_k;
  const i32 heads_of_unit = packed ? p.heads_q : p.group;
  const i64 keys = (p.vectors & MICA_CU_SEQLENS_K) && p.page_size == 0 ? p.total_k / batch : p.hint_len_k;
  const i64 bytes_of_unit =
      max_of<i64>((packed ? p.heads_k : 1) * keys * (p.dim_qk + p.dim_v) * dtype_bytes(p.dtype), 1);
  const i64 tiles_of_head = packed ? ceil_div<i64>(params.tiles_q, batch) : i64(params.tiles_q) * sharers_of(row);
  const i64 tiles_of_unit = tiles_of_head * heads_of_unit;
  const i64 kept = max_of<i64>(device.l2_bytes / 16 * 9 / bytes_of_unit, 1);
  i64 most = max_of<i64>(kept, device.num_sms / kTilesAtOnce / heads_of_unit);
  if (packed) {
    if (most * tiles_of_unit < device.num_sms) most = max_of(most, device.l2_bytes / 5 * 4 / bytes_of_unit);
    most = min_of(most, kMostSequences);
  }
  const auto evenly = [&](i64 at_most) { return ceil_div(units, ceil_div(units, at_most)); };
  i64 size = evenly(most);
  if (packed) return i32(size * heads_of_unit);
  if (size * bytes_of_unit > device.l2_bytes) size = evenly(kept);
  const auto ends_alone = [&] { return 8 * ((units - 1) % size + 1) * tiles_of_unit < 15 * i64(device.num_sms); };
  while (size < units && ends_alone()) ++size;
  return i32(size * heads_of_unit);
}

}  // namespace

bool can_overlap(const KernelChoice& choice, i32 index) {
  constexpr i32 kOverlapInCaptureVersion = 12030;
  const i32 image = find_image(choice.images, index, choice.device.arch);
  return Driver::instance().cuda_version() >= kOverlapInCaptureVersion && image >= 0 &&
         choice.images.images[image].arch >= 90 && !choice.images.images[image].is_ptx;
}

namespace {

// Queries of an item of work, and how many items there are.
i32 queries_of_tile(const KernelRow& row, const Problem& p) {
  if (row.cluster > 0) return row.cluster * row.tile_q;
  return row.traits.packs_heads ? decode_queries(row.tile_q, p.group) : joined_tile(row.tile_q, p);
}
i64 blocks_of(const KernelRow& row, const Problem& p, const ForwardParams& params) {
  const i32 head_tiles =
      row.traits.packs_heads ? decode_head_tiles(row.tile_q, p.group) * p.heads_k / params.section_heads : p.heads_q;
  return i64(params.tiles_q) * head_tiles * (params.packed_q == 1 ? 1 : p.batch);
}

// Up to how many splits the last block of a tile can join: it is alone with what combine's blocks share, so it must be
// little. 0: the kernel does not.
i32 most_joined_splits(const KernelChoice& choice, i32 index, const ForwardParams& params) {
  constexpr i32 kMostElements = 8192;
  const KernelRow& row = kernel_table().rows[index];
  if (!row.traits.joins_splits) return 0;
  const KernelImage& image = choice.images.images[find_image(choice.images, index, choice.device.arch)];
  if (image.arch != 90 || image.is_ptx) return 0;
  const i32 heads = min_of(params.group, row.tile_q), queries = decode_queries(row.tile_q, params.group);
  const i32 rows = heads * (params.packed_q ? queries : min_of(queries, choice.problem.max_len_q));
  const auto fits = [&](i32 splits) {
    return params.section_heads * rows * splits * row.dim_v <= kMostElements &&
           params.section_heads * joined_splits(splits, rows, row.dim_v).bytes <= row.traits.smem_bytes;
  };
  i32 most = kMostJoinedSplits;
  while (most > 0 && !fits(most)) --most;
  return most;
}

// Whether the splits of a tile are joined by its last block and not by combine, so that the call is one launch. Not
// where some SMs have a block more than others: without a combine in between the next call's blocks take the room that
// is left, and the rest of them come beside them (is_spread); blocks of few keys gain more than that. Batch-invariant:
// however many blocks there are.
bool last_block_joins(const KernelChoice& choice, i32 index, const ForwardParams& params) {
  constexpr i32 kFewKeys = 256;
  const KernelRow& row = kernel_table().rows[index];
  const i32 num_splits = params.splits.num_splits;
  if (num_splits <= 1 || num_splits > most_joined_splits(choice, index, params)) return false;
  const i64 sms = choice.device.num_sms, blocks = blocks_of(row, choice.problem, params) * num_splits;
  const bool leaves_room = !choice.problem.batch_invariant && blocks > sms && 16 * blocks < 15 * row.blocks * sms;
  return !(leaves_room && choice.problem.hint_len_k > i64(num_splits) * kFewKeys);
}

// Blocks that are not alike (uneven_ranges_of). They come one sequence after the other, and go by how many there are;
// what ranges_of does not cut they do not cut either.
UnevenRanges choose_uneven(const KernelChoice& choice, i32 index, const ForwardParams& params) {
  const Problem& p = choice.problem;
  const KernelRow& row = kernel_table().rows[index];
  const bool is_by_sequence = !params.packed_q && params.tiles_q <= kQueryTilesSideBySide;
  if (p.batch_invariant || p.num_splits > 0 || p.probs.dtype != MICA_NONE || !is_by_sequence)
    return {0, 1, 1, row.blocks};
  return uneven_ranges_of(row, p, choice.device, blocks_of(row, p, params), most_joined_splits(choice, index, params));
}

// The last step, which the kernel of row `index` makes, may begin before the one before it is done.
void let_overlap(Plan& plan, const KernelChoice& choice, i32 index) {
  Steps& steps = steps_of(plan);
  steps.step[steps.num_steps - 1].overlaps = kernel_table().rows[index].traits.waits && can_overlap(choice, index);
}

// Whether packed sequences are about as long as the longest is said to be, so that few tiles of a dense batch would be
// empty.
bool packs_evenly(const Problem& p) {
  const i64 rows = i64(p.batch) * p.hint_len_q;
  return is_packed_q(p) && p.total_q <= rows && 8 * p.total_q >= 7 * rows;
}

// Whether all of them are that long if it is right, so that a kernel knows where they are before it reads it. Keys that
// are not packed have a length that no hint changes: a shorter one would let a block take two long items as short ones.
// A dense batch has no hints.
bool is_one_length(const Problem& p) {
  return p.joined_heads == 0 && p.total_q == i64(p.batch) * p.hint_len_q && p.len_new == 0 && p.page_size == 0 &&
         (is_packed_k(p) ? p.total_k == i64(p.batch) * p.hint_len_k : p.hint_len_k == p.max_len_k) &&
         (p.vectors & ~u32(MICA_CU_SEQLENS_Q | MICA_CU_SEQLENS_K)) == 0;
}

// Whether a call's blocks ask for so much shared memory that one fewer of them shares an SM. The next call's blocks
// come as soon as there is room for them. Where there is room for some, the rest would come to those SMs that are done
// first, beside them; where there is none, each takes the place of one that is done. Short calls (kMostSteps key tiles)
// would lose by it, since a block takes long to begin.
bool is_spread(const Problem& p, const KernelRow& row, const Device& device, i64 blocks) {
  constexpr i32 kMostSteps = 3;
  return row.traits.roomy_smem_bytes > 0 && blocks <= i64(row.blocks - 1) * device.num_sms &&
         2 * blocks > i64(row.blocks) * device.num_sms && p.hint_len_k > kMostSteps * row.tile_k;
}

// The attention itself, by the kernel of row `index`.
mica_status add_forward(Plan& plan, const KernelChoice& choice, i32 index, const Splits& splits, When when,
                        bool joins_splits, const UnevenRanges& uneven = {}) {
  const Problem& p = plan.problem;
  const KernelRow& row = kernel_table().rows[index];
  WorkspaceLayout& layout = steps_of(plan).layout;
  ForwardParams params = forward_params(p, queries_of_tile(row, p), splits);
  if ((row.traits.cuts_boxes || row.cluster > 0) && splits.num_splits == 1) {
    if (packs_evenly(p)) {
      params.packed_q = kPackedEvenly;
      params.tiles_q = ceil_div(p.hint_len_q, row.tile_q);
    }
    if (params.packed_q != 1 && is_one_length(p)) {
      params.even_len_q = p.hint_len_q;
      params.even_len_k = p.hint_len_k;
    }
  }
  if (row.traits.pairs_heads) params.section_heads = heads_of_block(row, p, choice.device);
  params.first_sequences = uneven.first_sequences;
  params.first_splits = uneven.first_splits;
  const i64 blocks = blocks_of(row, p, params), first = blocks / max_of(p.batch, 1) * uneven.first_sequences;
  const i64 work = first * uneven.first_splits + (blocks - first) * splits.num_splits;
  params.work_items = i32(min_of<i64>(work, 0x7fffffff));
  if (layout.moves_lse) {
    params.lse_stride_batch = p.max_len_q;
    params.lse_stride_head = params.partial_rows;
    params.lse_stride_row = 1;
  }
  // A persistent kernel has as many blocks as run at once, each of which draws one query tile after the other.
  const i64 at_once = max_of<i64>(i64(choice.device.num_sms) * row.blocks / sharers_of(row), 1);
  const bool draws = row.traits.persistent && work > at_once && work < kMostDrawn;
  const i64 takers = draws ? at_once : work, grid = takers * sharers_of(row);
  const bool is_short = row.traits.cuts_boxes && p.hint_len_k <= kDrawnAhead * row.tile_k;
  // Short items are found far ahead: a block's first two are given. Where few blocks have a third, it is given, too:
  // each is on an SM of its own, and those who would draw it first may share one.
  const i64 given = is_short ? 2 * takers : takers;
  const bool has_few_more = is_short && row.blocks > 1 && work <= given + choice.device.num_sms;
  params.first_items = i32(has_few_more ? work : min_of<i64>(given, work));
  if (row.traits.persistent) params.section_heads = section_heads(p, row, choice.device, params);
  if (draws && (params.packed_q == 1 || params.first_items < params.work_items)) {
    params.work_epoch = 1;  // another one for each call
    layout.work_counter = layout.reserve(sizeof(u64));
  }
  if (joins_splits) {
    params.work_epoch = 1;
    layout.work_counter = layout.reserve(u64(p.heads_q) * params.partial_rows * sizeof(u64));
  }
  // Blocks that do not draw may be too many for it.
  layout.keeps_o =
      row.traits.kept_bytes > 0 && takers <= at_once && p.max_len_k > (row.traits.kept_from_tiles - 1) * row.tile_k;
  if (layout.keeps_o) layout.kept_o = layout.reserve(u64(grid) * row.traits.kept_bytes);
  mica_status status = MICA_OK;
  if (row.traits.uses_maps) {
    ForwardMapsParams mapped = {};
    status = forward_maps_params(params, p, row, mapped);
    if (status == MICA_OK)
      status = row.qv ? add_step(plan, StepKind::QV_MAPS, index, grid, QvMapsParams{mapped, rows_arg(p.qv)})
                      : add_step(plan, StepKind::FORWARD_MAPS, index, grid, mapped);
  } else if (row.qv) {
    status = add_step(plan, StepKind::QV, index, grid, QvParams{params, rows_arg(p.qv)});
  } else {
    status = add_step(plan, StepKind::FORWARD, index, grid, params);
  }
  if (status == MICA_OK) {
    Step& step = steps_of(plan).step[steps_of(plan).num_steps - 1];
    step.when = when;
    const i32 at_once_of_sm = uneven.first_sequences > 0 ? uneven.blocks_of_sm : blocks_of_sm(row, grid, choice.device);
    const bool is_roomy = row.traits.pairs_heads ? at_once_of_sm < row.blocks : is_spread(p, row, choice.device, grid);
    if (is_roomy) step.smem_bytes = u32(row.traits.roomy_smem_bytes);
    // MLA's blocks take a whole SM each: several rounds of them, or none that leaves a part, gain nothing by it.
    if (!row.traits.latent || (splits.num_splits > 1 && grid <= at_once)) let_overlap(plan, choice, index);
  }
  return status;
}

mica_status add_append(Plan& plan, const KernelChoice& choice) {
  const Problem& p = plan.problem;
  const AppendParams params = append_params(p);
  i64 blocks = i64(p.batch) * p.len_new;
  if (p.rotary_dim > 0) {
    steps_of(plan).layout.q_rotated =
        steps_of(plan).layout.reserve(u64(rows_of_head(p)) * params.q_rotated.stride_row * dtype_bytes(p.dtype));
    blocks += rows_of_head(p);
  }
  if (blocks == 0) return MICA_OK;
  const i32 index = find_kernel(Role::APPEND, choice);
  const mica_status status = add_step(plan, StepKind::APPEND, index, blocks, params);
  if (status == MICA_OK) let_overlap(plan, choice, index);
  return status;
}

}  // namespace

mica_status plan_forward(Plan& plan, const KernelChoice& choice, i32 index, i32 lse_heads) {
  const Problem& p = plan.problem;
  const KernelRow& row = kernel_table().rows[index];
  WorkspaceLayout& layout = steps_of(plan).layout;
  mica_status status = p.len_new > 0 ? add_append(plan, choice) : MICA_OK;
  const bool has_rows = p.batch > 0 && p.heads_q > 0 && rows_of_head(p) > 0;
  if (status != MICA_OK || !has_rows) return status;

  ForwardParams params = forward_params(p, queries_of_tile(row, p), Splits{1, 0});
  if (row.traits.pairs_heads) params.section_heads = heads_of_block(row, p, choice.device);
  const UnevenRanges uneven = choose_uneven(choice, index, params);
  params.splits =
      uneven.first_sequences > 0 ? Splits{uneven.num_splits, 0} : ranges_of(row, p, choice, blocks_of(row, p, params));
  plan.num_splits = params.splits.num_splits;
  layout.has_parts = plan.num_splits > 1;
  layout.moves_lse = !layout.has_parts && lse_heads > 1;
  const u64 partial_rows = u64(plan.num_splits) * p.heads_q * params.partial_rows;
  if (layout.has_parts || layout.moves_lse) layout.partial_lse = layout.reserve(partial_rows * sizeof(float));
  if (layout.has_parts) layout.partial_o = layout.reserve(partial_rows * p.dim_v * sizeof(float));

  const bool joins_splits = uneven.first_sequences > 0 || last_block_joins(choice, index, params);
  status = add_forward(plan, choice, index, params.splits, row.traits.v_in_k ? When::V_IN_K : When::ALWAYS,
                       joins_splits, uneven);
  if (status == MICA_OK && row.traits.v_in_k) {
    const i32 apart = find_principal_apart(choice);
    steps_of(plan).needs_v_in_k = apart < 0;
    if (apart >= 0) {
      const i32 tile_k = kernel_table().rows[apart].tile_k;
      const Splits splits = {params.splits.num_splits, ceil_div(params.splits.length_tiles * row.tile_k, tile_k)};
      status = add_forward(plan, choice, apart, splits, When::V_APART, false);
    }
  }
  if (status == MICA_OK && ((layout.has_parts && !joins_splits) || layout.moves_lse)) {
    const i32 combine = find_kernel(Role::COMBINE, choice);
    const i32 warps = kernel_table().rows[combine].warps;
    const i64 rows = params.partial_rows * p.heads_q;
    const i64 forward_sms = row.blocks == 1 ? blocks_of(row, p, params) * plan.num_splits : choice.device.num_sms;
    const i64 free_sms = max_of<i64>(choice.device.num_sms - forward_sms, 0);
    // Batch-invariant: by the splits alone, since sums go by it.
    const i32 team_warps =
        p.batch_invariant ? combine_team_warps(plan.num_splits, warps)
                          : team_of_combine(kernel_table().rows[combine], rows * ceil_div(p.dim_v, kCombineColumns),
                                            plan.num_splits, free_sms, choice.device);
    const i64 blocks =
        layout.has_parts ? combine_blocks(rows, p.dim_v, team_warps, warps) : ceil_div<i64>(rows, 32 * warps);
    status = add_step(plan, StepKind::COMBINE, combine, blocks, combine_params(params, p, team_warps, lse_heads));
    if (status == MICA_OK) let_overlap(plan, choice, combine);
  }
  const i64 probs_rows = i64(p.batch) * p.heads_q * p.probs.shape[2];
  if (status == MICA_OK && p.probs.dtype != MICA_NONE && probs_rows > 0) {
    const i32 probs = find_kernel(Role::PROBS, choice);
    status = add_step(plan, StepKind::PROBS, probs, ceil_div<i64>(probs_rows, kernel_table().rows[probs].warps),
                      probs_params(params, p));
  }
  return status;
}

}  // namespace mica
