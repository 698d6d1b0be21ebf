// SPDX-License-Identifier: Apache-2.0
#include "cuda/registry.h"

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda/backward_share.h"
#include "cuda/few_rows.h"
#include "cuda/kernels/options/joined_splits.h"
#include "cuda/kernels/packed/packed_sm90.h"
#include "cuda/kernels/pairs/fp8_layout_sm90.h"
#include "cuda/kernels/params.h"
#include "cuda/kernels/parts/backward_drawn_sm90.h"
#include "cuda/kernels/parts/page_blocks_sm90.h"
#include "cuda/tensor_maps.h"

namespace mica {
namespace {

// From so many keys on a kernel whose tiles have the higher rate is worth their costlier beginning and end.
constexpr i32 kLongKeys = 2049;
// The same where no block is short.
constexpr i32 kMiddleKeys = 1025;

constexpr i32 key_bytes(const KernelRow& r) { return dtype_bytes(r.keys == MICA_NONE ? r.dtype : r.keys); }

// One function per kernel file.
constexpr KernelTraits traits_of_forward_sm80(const KernelRow& r) {
  return {forward_sm80_layout(r.tile_q, r.tile_k, r.dim_qk, r.dim_v, r.stages, key_bytes(r)).bytes, false};
}
constexpr KernelTraits traits_of_forward_sm90(const KernelRow& r) {
  const Lengths lengths = r.cluster > 0                        ? Lengths::LONG
                          : r.tile_q == 64                     ? Lengths::FEW_KEYS
                          : r.tile_q == 256                    ? Lengths::SHORT
                          : r.tile_q == 128 && r.blocks == 2   ? Lengths::ONE_TILE
                          : r.tile_q == 128 && r.dim_qk == 64  ? Lengths::FEW_QUERIES
                          : r.tile_q == 128 && r.dim_qk == 128 ? Lengths::MIDDLE
                                                               : Lengths::ANY;
  return {
      .smem_bytes = forward_sm90_layout(r.tile_q, r.tile_k, r.dim_qk, r.dim_v, r.stages, r.blocks).bytes,
      .persistent = true,
      .lengths = lengths,
      .overhead_tiles = r.cluster > 0 ? 0 : 8,
      .uses_maps = true,
      .wants_pages = (r.served & kFeaturePaged) != 0,
      .waits = true,
      .page_blocks = reads_page_blocks((r.served & kFeaturePaged) != 0, (r.served & kFeatureSmallPages) != 0, r.dim_qk),
      .cuts_boxes = forward_sm90_cuts(r.served, r.cluster),
      .roomy_smem_bytes = r.blocks > 2 ? hopper_smem_bytes(r.blocks - 1) : 0,
      .also_serves = forward_sm90_features(forward_sm90_serves(r.served, r.tile_q, r.blocks), u32(kFeatureJoinedHeads),
                                           r.cluster)};
}
constexpr KernelTraits traits_of_forward_fp8_sm90(const KernelRow& r) {
  return {.smem_bytes = forward_fp8_pairs_sm90_layout(r.tile_q, r.tile_k, r.dim_qk, r.dim_v, r.stages, r.cluster).bytes,
          .persistent = true,
          .lengths = r.cluster > 0 ? Lengths::LONG : Lengths::ANY,
          .uses_maps = true,
          .waits = true,
          .kept_bytes = fp8_kept_bytes(r.tile_q, r.dim_v),
          .kept_from_tiles = kFp8KeptTiles + 1,
          .also_serves = kFeatureE4m3Queries | kFeatureFp16Output | kFeatureFp32Output};
}
constexpr KernelTraits traits_of_forward_wide_sm90(const KernelRow& r) {
  return {forward_wide_sm90_layout(r.tile_q, r.tile_k, r.dim_qk, r.dim_v, r.stages).bytes, false};
}
constexpr KernelTraits traits_of_forward_wide_sm80(const KernelRow& r) {
  return {forward_wide_sm80_layout(r.tile_q, r.tile_k, r.dim_qk, r.dim_v, r.warps, r.stages).bytes, true};
}
constexpr KernelTraits traits_of_decode_sm90(const KernelRow& r) {
  // Below them decode_sm80, or a tile of half the height, reads keys and values once, too.
  const i32 least_queries = r.tile_q > 64 ? r.tile_q / 2 + 1 : 17;
  KernelTraits traits = {decode_sm90_layout(r.tile_q, r.tile_k, r.dim_qk, r.dim_v, r.warps, r.stages).bytes, true};
  traits.least_queries = least_queries;
  if (r.tile_q == 64 && r.dim_qk == 64) {
    traits.least_tiles_of_sm = 7;
    traits.least_tiles_of_few_rows = 10;
  } else if (r.tile_q == 64 && r.dim_qk == 128) {
    traits.least_tiles_of_sm = 4;
    traits.least_tiles_of_few_rows = 12;
  }
  traits.overhead_tiles = r.dim_qk > 64 ? 8 : 4;
  traits.wants_pages = r.served == serves::LARGE_PAGES;
  traits.waits = true;
  traits.also_serves = kFeatureSoftcap;
  return traits;
}
constexpr KernelTraits traits_of_mla_sm90(const KernelRow& r) {
  KernelTraits traits = {mla_sm90_layout(r.tile_q, r.tile_k, r.dim_qk, r.dim_v, r.stages).bytes, true};
  traits.also_serves = serves::PAGED;
  traits.v_in_k = !r.qv;
  traits.latent = true;
  traits.overhead_tiles = 4;
  traits.waits = true;
  return traits;
}
constexpr KernelTraits traits_of_mla_tma_sm90(const KernelRow& r) {
  KernelTraits traits = traits_of_mla_sm90(r);
  traits.uses_maps = true;
  return traits;
}
constexpr KernelTraits traits_of_forward_fp32_sm80(const KernelRow& r) {
  return {forward_fp32_sm80_layout(r.tile_q, r.tile_k, r.dim_qk, r.dim_v).bytes, true};
}
constexpr KernelTraits traits_of_decode_sm80(const KernelRow& r) {
  KernelTraits traits = {
      decode_sm80_layout(r.tile_q, r.tile_k, r.dim_qk, r.dim_v, r.warps, r.stages, key_bytes(r)).bytes, true};
  traits.wants_pages = r.served == serves::LARGE_PAGES;
  if (r.keys == MICA_FP8_E4M3)
    traits.also_serves = traits.wants_pages ? kFeatureE4m3Queries : kFeatureE4m3Queries | kFeaturePageFactors;
  const bool counts_rounds = (r.keys == MICA_FP8_E4M3 && r.served != serves::FULL) || r.blocks == 1;
  if (counts_rounds) traits.overhead_tiles = r.tile_k == 16 ? 12 : 8;
  if (r.tile_q == 8) traits.most_queries = r.tile_q;
  traits.pairs_heads = decode_sm80_pairs_heads(key_bytes(r), r.dim_qk);
  if (traits.pairs_heads && r.blocks == 3) traits.roomy_smem_bytes = hopper_smem_bytes(r.blocks) + 128;
  traits.waits = true;
  traits.joins_splits = joins_splits(r.served == serves::FULL, r.dim_qk);
  return traits;
}
constexpr KernelTraits traits_of_backward_sm80(const KernelRow& r) {
  return {backward_sm80_layout(r.tile_q, r.tile_k, r.dim_qk, r.dim_v, r.stages).bytes, false};
}
constexpr KernelTraits traits_of_backward_sm90(const KernelRow& r) {
  return {backward_sm90_layout(r.tile_q, r.tile_k, r.dim_qk, r.dim_v, r.stages, backward_pair_bits(r.served)).bytes,
          false};
}
constexpr KernelTraits traits_of_backward_tma_sm90(const KernelRow& r) {
  // 80 queries have the higher rate, but registers for one key tile alone (docs/design/tuning.md).
  const i32 least_keys = r.course == Course::ONE_TILE ? kLongKeys : 0;
  const bool draws = r.course == Course::DRAWN, goes_round = draws && (r.variant & kRoundVariant),
             in_integers = r.course != Course::HEADS && (r.variant & kIntegersVariant);
  const bool has_columns = backward_row_has_stat_columns(r.tile_q, r.served == serves::PLAIN, goes_round);
  const BackwardTmaSm90Layout layout = backward_tma_sm90_layout(r.tile_q, r.tile_k, r.dim_qk, r.dim_v, r.stages, draws);
  return {.smem_bytes = backward_room(layout, in_integers, has_columns, backward_holds_values(draws, r.dim_v), r.tile_q,
                                      r.tile_k, r.dim_v)
                            .bytes,
          .fixed_order = true,
          .least_keys = least_keys,
          .divides_by_scale = has_columns,
          .dq_by_columns = draws && backward_dq_lies_by_columns(r.dim_qk, goes_round),
          .shares_groups = true,
          .uses_maps = true};
}
constexpr KernelTraits traits_of_backward_halves_sm90(const KernelRow& r) {
  const i32 factor_bytes = r.variant == kIntegersVariant ? backward_halves_factor_bytes(r.tile_q) : 0;
  return {
      .smem_bytes = backward_halves_sm90_layout(r.tile_q, r.tile_k, r.dim_qk, r.dim_v, r.stages).bytes + factor_bytes,
      .fixed_order = r.course == Course::ORDERED,
      .dq_in_pairs = r.variant == kIntegersVariant,
      .key_semaphores = backward_halves_places(r.warps / 4 - 1),
      .shares_groups = true,
      .uses_maps = true};
}
constexpr KernelTraits traits_of_backward_sliced_sm80(const KernelRow& r) {
  return {backward_sliced_sm80_layout(r.tile_q, r.tile_k, 64 * r.stages, dtype_bytes(r.dtype)).bytes, false,
          64 * r.stages};
}
constexpr KernelTraits traits_of_backward_prepare(const KernelRow&) { return {}; }
constexpr KernelTraits traits_of_backward_finish(const KernelRow&) { return {}; }
constexpr KernelTraits traits_of_backward_bias(const KernelRow& r) {
  return {backward_bias_layout(r.tile_q, r.tile_k, 64 * r.stages, dtype_bytes(r.dtype)).bytes};
}
constexpr KernelTraits traits_of_backward_sinks(const KernelRow&) { return {}; }
constexpr KernelTraits traits_of_append(const KernelRow&) {
  return {.waits = true, .also_serves = kFeatureJoinedHeads};
}
constexpr KernelTraits traits_of_combine(const KernelRow&) {
  return {.waits = true, .also_serves = kFeatureJoinedHeads};
}
constexpr KernelTraits traits_of_join(const KernelRow&) { return {}; }
constexpr KernelTraits traits_of_probs(const KernelRow&) { return {}; }

// The words that rows use.
namespace words {
using enum Role;
using enum Course;
using namespace serves;
constexpr i32 FP32 = MICA_FP32, FP16 = MICA_FP16, BF16 = MICA_BF16, FP8_E4M3 = MICA_FP8_E4M3;
#define MICA_TARGETS(name, architectures) constexpr const char* name = architectures;
#define MICA_KERNEL(...)
#define MICA_KERNELS(...)
#include "cuda/kernels.def"
#undef MICA_TARGETS
#undef MICA_KERNEL
#undef MICA_KERNELS
}  // namespace words

#define MICA_TARGETS(name, architectures)
#define MICA_KERNEL(row_name, row_file, ...)                             \
  [] {                                                                   \
    using namespace words;                                               \
    KernelRow row = {.name = #row_name, .file = #row_file, __VA_ARGS__}; \
    row.traits = traits_of_##row_file(row);                              \
    return row;                                                          \
  }(),
#define MICA_KERNELS(file, rest, ...)                              \
  MICA_KERNEL(file##_bf16##rest, file, .dtype = BF16, __VA_ARGS__) \
  MICA_KERNEL(file##_fp16##rest, file, .dtype = FP16, __VA_ARGS__)

// A row without a name ends the table.
constexpr KernelRow kRows[] = {
#include "cuda/kernels.def"
    {}};
#undef MICA_TARGETS
#undef MICA_KERNEL
#undef MICA_KERNELS

constexpr KernelTable kTable = {kRows, i32(sizeof kRows / sizeof kRows[0]) - 1};

const char* feature_name(u32 feature) {
  switch (feature) {
    case kFeatureSoftcap: return "softcap";
    case kFeatureAlibi: return "alibi";
    case kFeatureBias: return "bias";
    case kFeatureBoolean: return "boolean mask";
    case kFeatureDropout: return "dropout";
    case kFeatureNegativeScale: return "a negative scale";
    case kFeaturePaged: return "pages";
    case kFeatureSmallPages: return "pages of other sizes than multiples of 16 rows, or behind left padding";
    case kFeaturePageFactors: return "factors that go by pages";
    case kFeatureE4m3Queries: return "queries of e4m3";
    case kFeatureFp16Output: return "fp16 output";
    case kFeatureChunk: return "chunks";
    case kFeatureLastKeys: return "a mask of the last keys";
    case kFeatureManyPairs: return "an fp32 bias, or a bias beside a mask";
    case kFeatureUnaligned: return "rows that are not whole multiples of 16 bytes";
    case kFeatureFp32Output: return "fp32 output";
    case kFeatureJoinedHeads: return "heads as rows";
    case kFeatureApartCells: return "dropout of a piece that does not begin at row 16 m, key 32 n, or has steps";
    default: return "an option";
  }
}

const char* dtype_word(i32 dtype) {
  switch (dtype) {
    case MICA_FP32: return "fp32";
    case MICA_FP16: return "fp16";
    case MICA_BF16: return "bf16";
    case MICA_FP8_E4M3: return "e4m3";
    default: return "any type";
  }
}

// For tuning and tests: only kernels whose name contains this.
bool is_ruled_out(const char* name) {
  const char* wanted = std::getenv("MICA_CUDA_KERNELS");
  return wanted && wanted[0] && !std::strstr(name, wanted);
}

// The answer to one question after the other; the first "no" is kept.
class Questions {
 public:
  Questions(char* text, size_t bytes) : text_(text), bytes_(bytes) { text_[0] = 0; }
  i32 passed() const { return passed_; }
  // Returns whether to go on asking.
  bool ask(bool right, const char* format, ...) __attribute__((format(printf, 3, 4))) {
    if (right) {
      ++passed_;
      return true;
    }
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text_, bytes_, format, arguments);
    va_end(arguments);
    return false;
  }

 private:
  char* text_;
  size_t bytes_;
  i32 passed_ = 0;
};

constexpr i32 kUsualTile = 192;  // queries
constexpr i32 kNarrow = 64;      // head dimensions up to here have rows of their own
// Batch-invariant: tiles are chosen as if there were so many sequences, since sums go by them.
i64 sequences_of(const Problem& p) {
  constexpr i64 kInvariantBatch = 8;
  return p.batch_invariant ? kInvariantBatch : p.batch;
}
// Whether tiles of 192 queries would hold a quarter more rows than tiles of tile_q.
bool is_wasteful(i32 len_q, i32 tile_q) { return 4 * round_up(len_q, kUsualTile) >= 5 * round_up(len_q, tile_q); }
// Whether the rounds in which the SMs come through all query tiles hold so much fewer queries with tiles of tile_q that
// their lower rate is made up for: an eighth, or a tenth where a chunk of rows sees many more keys.
bool has_cheaper_rounds(const Problem& p, i32 tile_q, i32 num_sms) {
  constexpr i32 kManyKeys = 6145;
  const bool is_chunk = p.hint_len_k >= kManyKeys && p.hint_len_k >= 2 * i64(p.hint_len_q);
  const i64 parts = is_chunk ? 10 : 8;
  const auto queries_of_sm = [&](i32 tile) {
    const i64 tiles = sequences_of(p) * p.heads_q * ceil_div(p.hint_len_q, tile);
    return (tiles + num_sms - 1) / num_sms * tile;
  };
  return parts * queries_of_sm(tile_q) <= (parts - 1) * queries_of_sm(kUsualTile);
}

// What a kernel takes for sequences of up to kMostShortKeys keys, by a model that was fitted on an H200
// (docs/design/tuning.md, "Short sequences"): the SM with most query tiles makes one after the other, `blocks` of them
// at a time. Groups of 64 queries that a tile does not fill save half of their part.
struct ShortCost {
  i32 tile_q, tile_k, blocks;
  i32 key_ps, tile_ns;         // of a tile
  i32 round_key_ps, round_ns;  // of a round, in which all blocks of an SM have a tile
  i32 call_ns;
};
constexpr i32 kMostShortKeys = 2048;
// Heads of up to kNarrow columns; of up to kHasOwnRow, where the tiles of 64 and 128 queries of one block an SM are
// those of 128 columns. The first is the usual row.
constexpr ShortCost kNarrowCosts[] = {{192, 128, 1, 11790, 884, 0, 0, 7377},
                                      {256, 64, 1, 13770, 1389, 0, 0, 5634},
                                      {64, 80, 3, 2700, 649, 3360, 0, 5376},
                                      {128, 64, 2, 8390, 434, 1340, 0, 6906}};
constexpr i32 kHasOwnRow = 96;
constexpr ShortCost kWideCosts[] = {{192, 96, 1, 14330, 1938, 0, 0, 5718},
                                    {256, 48, 1, 19420, 2151, 0, 0, 5530},
                                    {128, 128, 1, 10340, 2111, 0, 0, 5291},
                                    {64, 80, 2, 90, 565, 12830, 852, 4948},
                                    {128, 48, 2, 9520, 975, 5570, 4, 5437}};

i64 short_cost(const ShortCost& cost, const Problem& p, i32 num_sms) {
  constexpr i32 kGroup = 64, kParts = 100, kUneven = 20;  // hundredths of a tile: under a mask their lengths differ
  const i32 len_q = max_of(p.hint_len_q, 1);
  const i32 tiles_of_head = ceil_div(len_q, cost.tile_q), groups = tiles_of_head * (cost.tile_q / kGroup);
  const i64 tiles = sequences_of(p) * p.heads_q * tiles_of_head;
  const i32 hidden = p.causal ? (len_q - min_of(len_q, cost.tile_q)) / 2 : 0;
  const i32 seen = max_of(p.hint_len_k - hidden, 1);
  const i64 keys = p.causal ? seen + cost.tile_k : round_up(seen, cost.tile_k);
  const i64 parts_of_sm = p.causal ? max_of<i64>(kParts * tiles / num_sms, kParts) + (tiles > num_sms ? kUneven : 0)
                                   : kParts * ceil_div<i64>(tiles, num_sms);
  const i64 rounds = ceil_div<i64>(parts_of_sm, kParts * cost.blocks);
  const i64 tile_ns = keys * cost.key_ps / 1000 * (groups + ceil_div(len_q, kGroup)) / (2 * groups) + cost.tile_ns;
  return cost.call_ns + parts_of_sm * tile_ns / kParts + rounds * (keys * cost.round_key_ps / 1000 + cost.round_ns);
}

bool is_short(const Problem& p) { return p.hint_len_k <= kMostShortKeys && max_of(p.dim_qk, p.dim_v) <= kHasOwnRow; }
// Whether the row is the cheapest of those for short sequences of p's columns.
bool is_cheapest(const KernelRow& row, const Problem& p, i32 num_sms) {
  const bool narrow = max_of(p.dim_qk, p.dim_v) <= kNarrow;
  if (narrow != (row.dim_qk <= kNarrow)) return false;
  const ShortCost* cheapest = nullptr;
  i64 least_ns = 0;
  const auto weigh = [&](const ShortCost& cost) {
    const i64 ns = short_cost(cost, p, num_sms);
    if (cheapest && ns >= least_ns) return;
    cheapest = &cost;
    least_ns = ns;
  };
  if (narrow)
    for (const ShortCost& cost : kNarrowCosts) weigh(cost);
  else
    for (const ShortCost& cost : kWideCosts) weigh(cost);
  return cheapest->tile_q == row.tile_q && cheapest->blocks == row.blocks;
}
// Whether tiles of 256 queries are cheaper than those of 192 for heads of few columns.
bool prefers_tall(const Problem& p, i32 num_sms) {
  return short_cost(kNarrowCosts[1], p, num_sms) <= short_cost(kNarrowCosts[0], p, num_sms);
}

// Tiles of 192 joined rows take keys that do not lie in pages.
bool is_for_tall_joined(const Problem& p, const Device& device) {
  return p.page_size == 0 && p.max_len_q > 2 * p.joined_rows && prefers_tall_joined(p, device);
}

// Whether blocks in pairs can take the problem, a dense one of which every row sees a key, and gain by it
// (docs/design/tuning.md); under a mask those of 128 columns do not. Where a head's tiles are odd, the last one has two
// SMs: without a mask if that makes no further round, and of many tiles. Tiles that leave a third of the SMs without
// work are better cut (ranges_of). Of e4m3 fewer keys suffice: V is transposed once for both blocks.
bool suits_pairs(const KernelRow& row, const Problem& p, const Device& device) {
  constexpr i32 kManyTiles = 42, kHasNoMask = 128;
  const bool is_e4m3 = row.dtype == MICA_FP8_E4M3;
  const i32 least_keys_of_sm = is_banded(p) ? (is_e4m3 ? 15 : 16) : is_e4m3 ? 3 : row.dim_qk > kHasNoMask ? 8 : 5;
  const bool is_plain =
      p.vectors == 0 && p.len_new == 0 && p.page_size == 0 && p.joined_heads == 0 && p.num_splits <= 1;
  const bool sees_keys = !is_banded(p) || (row.dim_qk > kHasNoMask && p.causal && p.window_left >= MICA_MAX_SEQLEN &&
                                           p.shift >= 0 && p.max_len_q <= p.max_len_k);
  const i32 num_sms = device.num_sms, of_head = ceil_div(p.max_len_q, row.tile_q);
  const i64 heads = i64(p.batch) * p.heads_q, tiles = heads * of_head, pairs = heads * ceil_div(of_head, 2);
  const bool is_even = is_banded(p) ? of_head % 2 == 0 || of_head >= kManyTiles
                                    : ceil_div<i64>(2 * pairs, num_sms) <= ceil_div(tiles, i64(num_sms));
  const bool fills_sms = is_e4m3 ? tiles > num_sms : 3 * tiles > 2 * num_sms;
  return is_plain && sees_keys && is_even && p.max_len_k >= least_keys_of_sm * num_sms && fills_sms;
}

// Of packed sequences the mean counts where there are gradients: blocks take the short ones, too. Batch-invariant: it
// goes by the other sequences.
i32 keys_of_sequence(const KernelRow& row, const Problem& p) {
  const bool counts_mean =
      row.role == Role::BACKWARD && (p.vectors & MICA_CU_SEQLENS_K) != 0 && p.batch > 0 && !p.batch_invariant;
  return counts_mean ? i32(min_of<i64>(p.total_k / p.batch, p.hint_len_k)) : p.hint_len_k;
}

// Whether the other row of backward's tiles gains (docs/design/tuning.md): key tiles that go round, or whole heads
// where the last tiles of a sequence have few rows or keys. Nobody knows where packed ones end.
bool suits_variant(const KernelRow& row, const Problem& p, const Device& device) {
  constexpr i32 kMostKeysOfNarrow = 4096, kMostKeys = 2048;
  if (row.course == Course::HEADS) {
    const i32 rows = p.max_len_q % row.tile_q, keys = p.max_len_k % row.tile_k;
    const bool has_few = (rows > 0 && rows <= backward_few_rows()) || (keys > 0 && keys <= row.tile_k / 2);
    return has_few && (p.vectors & (MICA_CU_SEQLENS_Q | MICA_CU_SEQLENS_K)) == 0;
  }
  const i32 keys = keys_of_sequence(row, p);
  const i64 tiles = sequences_of(p) * p.heads_k * ceil_div(keys, row.tile_k);
  if (row.variant & kIntegersVariant) return sums_integers(row, p) && suits_integers(row, p, device);
  if (p.deterministic) return round_tiles(row, p, device) > 0;
  // Between the two it was not timed in any order. Few key tiles are as fast in their order (64 columns) or, of many
  // keys, by 80 queries a tile.
  const bool is_narrow = row.dim_qk <= kNarrow, has_other = is_narrow || keys >= kMiddleKeys;
  return row.dim_qk % 64 == 0 && !is_banded(p) && keys <= (is_narrow ? kMostKeysOfNarrow : kMostKeys) &&
         (!has_other || tiles > device.num_sms);
}

bool suits(const KernelRow& row, const Problem& p, const Device& device) {
  const i32 num_sms = device.num_sms;
  constexpr i32 kFewKeys = 80, kLeastColumns = 48, kMostQueries = 256;
  const bool is_tall_joined = row.served == serves::JOINED;
  if (row.cluster > 0) return suits_pairs(row, p, device);
  if (row.variant > 0) return suits_variant(row, p, device);
  if (p.joined_heads > 0) return row.role != Role::FORWARD || is_tall_joined == is_for_tall_joined(p, device);
  if (is_tall_joined) return false;
  const bool is_cut = is_banded(p), narrow = row.dim_qk <= kNarrow;
  switch (row.traits.lengths) {
    case Lengths::ANY:
    case Lengths::LONG: return true;
    case Lengths::SHORT:
      if (narrow && p.hint_len_k <= kFewKeys) return prefers_tall(p, num_sms);
      return is_short(p) && is_cheapest(row, p, num_sms);
    case Lengths::MIDDLE:
      if (is_short(p)) return is_cheapest(row, p, num_sms);
      return p.dim_qk > kHasOwnRow && has_cheaper_rounds(p, row.tile_q, num_sms);
    case Lengths::FEW_QUERIES:
      return !is_cut && p.hint_len_q <= 2 * row.tile_q && p.hint_len_k >= kLongKeys &&
             is_wasteful(p.hint_len_q, row.tile_q);
    case Lengths::FEW_KEYS:
      // Where columns are few, many queries are better off with few tiles of 256, each of which reads the keys once.
      if (p.hint_len_k <= row.tile_k && (narrow || !is_short(p)))
        return p.dim_v >= kLeastColumns || p.hint_len_q <= kMostQueries || !prefers_tall(p, num_sms);
      return is_short(p) && is_cheapest(row, p, num_sms);
    case Lengths::ONE_TILE: {
      const bool is_one_tile = p.hint_len_q > row.tile_q / 2 && p.hint_len_q <= row.tile_q && p.hint_len_k > kFewKeys &&
                               p.hint_len_k <= row.tile_q;
      return is_one_tile || (is_short(p) && p.hint_len_k > kFewKeys && is_cheapest(row, p, num_sms));
    }
  }
  return false;
}

}  // namespace

// Without a mask every block is long enough for costlier beginnings from fewer keys on.
i32 least_keys(const KernelRow& row, const Problem& p) {
  const bool is_cut = p.window_right < MICA_MAX_SEQLEN || p.window_left < MICA_MAX_SEQLEN;
  return row.traits.least_keys == kLongKeys && !is_cut ? kMiddleKeys : row.traits.least_keys;
}

namespace {

// Kernels of e4m3 keys that compute with bf16 take queries of e4m3, too.
bool reads_queries(const KernelRow& row, const Problem& p) {
  return row.dtype == MICA_NONE || row.dtype == p.dtype ||
         (p.dtype == MICA_FP8_E4M3 && row.keys == MICA_FP8_E4M3 && row.dtype == MICA_BF16);
}
// What is beside the attention itself reads either type of keys.
bool reads_keys(const KernelRow& row, const Problem& p) {
  if (row.role == Role::APPEND || row.role == Role::COMBINE || row.role == Role::JOIN || row.role == Role::PROBS)
    return true;
  return p.k.dtype == (row.keys == MICA_NONE ? p.dtype : row.keys);
}

// What the fields of the row say about the problem.
bool ask_row(Questions& q, const KernelRow& row, const Problem& p, const Device& device) {
  const i32 num_sms = device.num_sms;
  constexpr float kLeastScale = 1e-20f;
  constexpr i32 kMostNarrow = 256;  // up to here there are kernels as fast that take V from anywhere
  const u32 packed = row.traits.packs_heads ? u32(kFeatureChunk) : 0u;
  const u32 missing = features_of(p) & ~(row.served | row.traits.also_serves | packed);
  return q.ask(reads_queries(row, p), "it computes with %s, not %s", dtype_word(row.dtype), dtype_word(p.dtype)) &&
         q.ask(reads_keys(row, p), "it reads keys of %s, and k.dtype is %s",
               row.keys == MICA_NONE ? "q's type" : dtype_word(row.keys), dtype_word(p.k.dtype)) &&
         q.ask(row.dim_qk == 0 || p.dim_qk <= row.dim_qk, "q.shape[3] is %d, want at most %d", p.dim_qk, row.dim_qk) &&
         q.ask(row.dim_v == 0 || p.dim_v <= row.dim_v, "v.shape[3] is %d, want at most %d", p.dim_v, row.dim_v) &&
         q.ask(!is_principal(row.role, p.pass) || (row.qv != 0) == (p.qv.dtype != MICA_NONE), "%s",
               row.qv ? "it wants qv" : "it does without qv") &&
         q.ask(!row.traits.latent || !row.qv || p.q.shape[3] <= row.dim_qk - row.dim_v,
               "q.shape[3] is %lld beside qv, want at most %d", (long long)p.q.shape[3], row.dim_qk - row.dim_v) &&
         q.ask(row.role != Role::DECODE || is_decode(row, p, num_sms),
               "%d queries of %d heads share a key head: too many for it", p.hint_len_q, p.group) &&
         q.ask(p.batch_invariant || i64(p.hint_len_q) * p.group >= row.traits.least_queries,
               "%d queries of %d heads share a key head: too few for it", p.hint_len_q, p.group) &&
         q.ask(!row.traits.most_queries || i64(p.hint_len_q) * p.group <= row.traits.most_queries,
               "%d queries of %d heads share a key head: too many for it", p.hint_len_q, p.group) &&
         q.ask(!row.traits.most_queries || !p.batch_invariant,
               "batch-invariant: more rows would have a tile of another height, and bits must not go by them") &&
         q.ask(has_enough_tiles(row, p, num_sms), "%d keys of %d sequences: too few for its blocks", p.hint_len_k,
               p.batch) &&
         q.ask(is_worth_its_height(row, p, device),
               "%d queries of %d heads share a key head: tiles of half the height do better", p.hint_len_q, p.group) &&
         q.ask(!row.traits.v_in_k || p.dim_qk > kMostNarrow, "q.shape[3] is %d, want more than %d", p.dim_qk,
               kMostNarrow) &&
         q.ask(!row.traits.v_in_k || v_can_lie_in_k(p),
               "v has as many columns as k or other strides: it is no part of k") &&
         q.ask(keys_of_sequence(row, p) >= least_keys(row, p), "%d keys: too few for it", keys_of_sequence(row, p)) &&
         q.ask(suits(row, p, device), "%d queries and %d keys: another tile suits them better", p.hint_len_q,
               p.hint_len_k) &&
         q.ask(!row.traits.divides_by_scale || std::fabs(p.scale) >= kLeastScale,
               "score.scale is %g: too small for it to divide by", double(p.scale)) &&
         q.ask(row.traits.fixed_order || !p.deterministic || !p.dq.dtype, "it cannot sum dQ in a fixed order") &&
         q.ask(!row.traits.wants_pages || p.page_size > 0, "it reads keys from pages, and there is no block table") &&
         q.ask(missing == 0, "its variant does without %s", feature_name(missing & (~missing + 1)));
}

// What there is to share out says.
bool ask_heads(Questions& q, const KernelRow& row, const KernelChoice& choice) {
  const bool wants_all = row.course != Course::HEADS && row.variant > 0 && choice.problem.deterministic;
  if (!q.ask(!wants_all || choice.pieces == MICA_PIECES_NONE,
             "what it does in a fixed order goes by all keys, and pieces of a call have one kernel"))
    return false;
  if (row.course != Course::HEADS) return true;
  if (!q.ask(choice.pieces == MICA_PIECES_NONE, "it keeps no sums of dQ for further pieces")) return false;
  const char* why = why_not_whole_heads(row, choice.problem, choice.device);
  return q.ask(!why[0], "%s", why);
}

// What the copy engine says about the tensors that the row fetches by it.
bool ask_maps(Questions& q, const KernelRow& row, const Problem& p) {
  if (!row.traits.uses_maps) return true;
  const struct {
    const char* name;
    const Tensor& tensor;
  } mapped[] = {{"q", p.q}, {"k", p.k}, {"v", p.v}, {"d_o", p.d_o}};
  for (const auto& [name, tensor] : mapped) {
    // Forward has no dO, and one of another type is read from the workspace.
    if (&tensor == &p.d_o && p.d_o.dtype != p.dtype) continue;
    if ((&tensor == &p.k || &tensor == &p.v) && fetches_rows(p, row)) continue;
    const bool in_blocks = row.traits.page_blocks && &tensor != &p.q;
    const bool is_joined = p.joined_heads > 0 && &tensor == &p.q;
    const char* why = in_blocks   ? why_no_block_map(rows_shape(tensor))
                      : is_joined ? why_no_joined_map(rows_shape(tensor))
                                  : why_no_map(rows_shape(tensor));
    if (!q.ask(!why[0], "it fetches %s by the copy engine, and %s", name, why)) return false;
  }
  return true;
}

// What the device and this build say.
bool ask_device(Questions& q, i32 index, const KernelChoice& choice) {
  const KernelRow& row = kTable.rows[index];
  const Device& device = choice.device;
  const i32 image = find_image(choice.images, index, device.arch);
  const i32 smem = row.traits.smem_bytes + (image < 0 ? 0 : choice.images.images[image].smem_static_bytes);
  const bool is_step = row.role != Role::FORWARD && row.role != Role::DECODE && row.role != Role::BACKWARD;
  return q.ask(is_step || !is_ruled_out(row.name), "the environment's MICA_CUDA_KERNELS rules it out") &&
         q.ask(image >= 0, "this build carries no image of it for sm_%d%s", device.arch,
               device.arch < 80 ? " (the first supported architecture is sm_80)" : "") &&
         q.ask(smem <= device.max_smem_bytes, "it takes %d bytes of shared memory, and a block of this GPU has %d",
               smem, device.max_smem_bytes);
}

// What the steps before and after it say.
bool ask_helpers(Questions& q, const KernelChoice& choice) {
  const Problem& p = choice.problem;
  return q.ask(p.len_new == 0 || find_kernel(Role::APPEND, choice) >= 0,
               "append needs a kernel of its own, and none can run") &&
         q.ask(p.num_splits <= 1 || find_kernel(Role::COMBINE, choice) >= 0,
               "splits need a kernel that joins them, and none can run") &&
         q.ask(p.probs.dtype == MICA_NONE || find_kernel(Role::PROBS, choice) >= 0,
               "probs need a kernel of their own, and none can run") &&
         q.ask(p.d_bias.dtype == MICA_NONE || find_kernel(Role::BACKWARD_BIAS, choice) >= 0,
               "gradients.d_bias needs a kernel of its own, and none can run") &&
         q.ask(p.d_sinks.dtype == MICA_NONE || find_kernel(Role::BACKWARD_SINKS, choice) >= 0,
               "gradients.d_sinks needs a kernel of its own, and none can run");
}

}  // namespace

const KernelTable& kernel_table() { return kTable; }

bool rows_are_aligned(const Tensor& t) {
  const i32 bytes = dtype_bytes(t.dtype);
  bool aligned = t.alignment % 16 == 0 && t.shape[3] * bytes % 16 == 0;
  for (int axis = 0; axis < 3; ++axis) aligned = aligned && t.stride[axis] * bytes % 16 == 0;
  return aligned;
}

namespace {
bool has_small_pages(const Problem& p) {
  constexpr i32 kLeastBox = 16;  // rows, below which lanes are faster (docs/design/tuning.md)
  return p.page_size > 0 && (p.page_size % kLeastBox != 0 || (p.vectors & MICA_CACHE_LEFTPAD));
}
}  // namespace
bool fetches_rows(const Problem& p, const KernelRow& row) { return has_small_pages(p) && !row.traits.latent; }

bool v_can_lie_in_k(const Problem& p) {
  bool same = p.dim_v < p.dim_qk;
  for (int axis = 0; axis < 3; ++axis) same = same && p.k.stride[axis] == p.v.stride[axis];
  return same;
}

u32 features_of(const Problem& p) {
  u32 features = 0;
  if (p.softcap > 0) features |= kFeatureSoftcap;
  if (p.alibi.dtype) features |= kFeatureAlibi;
  if (p.bias.dtype) features |= kFeatureBias;
  if (p.boolean.dtype) features |= kFeatureBoolean;
  if (p.bias.dtype == MICA_FP32 || (p.bias.dtype && p.boolean.dtype)) features |= kFeatureManyPairs;
  if (p.dropout > 0) features |= kFeatureDropout;
  if (p.dropout > 0 && !keeps_cells(p.dropout_place)) features |= kFeatureApartCells;
  if (p.scale < 0) features |= kFeatureNegativeScale;
  if (p.page_size > 0) features |= kFeaturePaged;
  if (has_small_pages(p)) features |= kFeatureSmallPages;
  if (p.descale_per_page) features |= kFeaturePageFactors;
  if (p.chunk > 0) features |= kFeatureChunk;
  if (p.joined_heads > 0) features |= kFeatureJoinedHeads;
  if (p.mask_last_keys > 0) features |= kFeatureLastKeys;
  const bool forward = p.pass == MICA_FORWARD;
  if (p.dtype == MICA_FP8_E4M3) features |= kFeatureE4m3Queries;
  if (forward && p.o.dtype == MICA_FP16 && p.dtype == MICA_FP8_E4M3) features |= kFeatureFp16Output;
  if (forward && p.o.dtype == MICA_FP32 && p.dtype != MICA_FP32) features |= kFeatureFp32Output;
  // A dO of another type is read from the workspace.
  const Tensor* rows = forward ? &p.o : p.d_o.dtype == p.dtype ? &p.d_o : &p.q;
  for (const Tensor* t : {&p.q, &p.qv, &p.k, &p.v, rows, &p.dk, &p.dv})
    if (t->dtype && !rows_are_aligned(*t)) features |= kFeatureUnaligned;
  return features;
}

bool is_principal(Role role, i32 pass) {
  if (pass == MICA_BACKWARD) return role == Role::BACKWARD;
  return role == Role::FORWARD || role == Role::DECODE;
}

i32 why_not(i32 index, const KernelChoice& choice, char* text, size_t text_bytes) {
  const KernelRow& row = kTable.rows[index];
  Questions q(text, text_bytes);
  // The device last: plans are made in a decode loop, and most rows fail the first questions.
  if (ask_row(q, row, choice.problem, choice.device) && ask_heads(q, row, choice) && ask_maps(q, row, choice.problem) &&
      ask_device(q, index, choice) && is_principal(row.role, choice.problem.pass))
    ask_helpers(q, choice);
  return q.passed();
}

i32 find_kernel(Role role, const KernelChoice& choice) {
  char text[160];
  for (i32 index = 0; index < kTable.num_rows; ++index) {
    if (kTable.rows[index].role != role) continue;
    why_not(index, choice, text, sizeof text);
    if (!text[0]) return index;
  }
  return -1;
}

i32 find_backward_finish(const KernelRow& backward) {
  for (i32 index = 0; index < kTable.num_rows; ++index) {
    const KernelRow& row = kTable.rows[index];
    if (row.role != Role::BACKWARD_FINISH) continue;
    const bool same =
        row.dim_qk == backward.dim_qk && row.tile_q == backward.tile_q && backward.traits.slice_width == 0;
    if (same || row.tile_q == 0) return index;
  }
  return -1;
}

namespace {
i32 find_principal(const KernelChoice& choice, bool v_apart) {
  char text[160];
  for (i32 index = 0; index < kTable.num_rows; ++index) {
    const KernelRow& row = kTable.rows[index];
    if (!is_principal(row.role, choice.problem.pass) || (v_apart && row.traits.v_in_k)) continue;
    why_not(index, choice, text, sizeof text);
    if (!text[0]) return index;
  }
  return -1;
}
}  // namespace
i32 find_principal(const KernelChoice& choice) { return find_principal(choice, false); }
i32 find_principal_apart(const KernelChoice& choice) { return find_principal(choice, true); }

}  // namespace mica
