// SPDX-License-Identifier: Apache-2.0
// What a kernel is given: PODs that the host fills and the device reads, and the shared-memory sizes both must agree
// on.
#pragma once

#include "core/fp8.h"
#include "core/mask.h"
#include "core/random.h"
#include "core/schedule.h"
#include "core/score.h"
#include "core/sequence.h"
#include "cuda/kernels/parts/layouts_sm80.h"
#include "cuda/kernels/parts/layouts_sm90.h"
#include "cuda/kernels/parts/tensor_map.h"
#include "cuda/kernels/whole/dq_integers.h"

namespace mica {

// A tensor with q's axes. Strides count elements.
struct RowsArg {
  void* data;
  i64 stride_batch, stride_row, stride_head;
};

// A tensor over (batch, head, query, key): mask, bias. Outside its shape: hidden, or 0. Broadcast axes: stride
// 0.
struct PairsArg {
  void* data;  // null: absent
  i32 dtype;
  i32 rows, keys;       // shape[2], shape[3]; 2^31 - 1 where they broadcast
  i32 vectorised_by_2;  // keys 2n and 2n + 1 can be read at once
  i32 last_keys;        // it is about the last so many keys, and those before are visible; 0: it begins at key 0
  i64 stride_batch, stride_head, stride_row, stride_key;
};

struct DropoutArg {
  u64 seed, offset;
  const i64* rng_state;  // {seed, offset}; null: by value
  u32 threshold;         // core/random.h; 65536 when nothing is dropped
  float rescale;         // 1 / (1 - probability)
  DropoutPlace place;
};
MICA_HD PhiloxKey philox_key(const DropoutArg& d) {
  return d.rng_state ? philox_key(d.rng_state[0], d.rng_state[1]) : philox_key(d.seed, d.offset);
}

struct BandArg {
  i32 bottom_right, shift, window_left, window_right;
  i32 chunk;
  Divisor by_chunk;
  i32 chunk_phase;
};

// What a problem can need of a kernel beyond the band, the scale and sinks.
enum Feature : u32 {
  kFeatureSoftcap = 1,
  kFeatureAlibi = 2,
  kFeatureBias = 4,
  kFeatureBoolean = 8,
  kFeatureDropout = 16,
  kFeatureNegativeScale = 32,  // the largest product is not the largest score
  kFeaturePaged = 64,
  kFeatureSmallPages = 65536,  // pages that no box of 16 rows fits, or whose sequences do not begin with a page's
  kFeatureUnaligned = 128,     // a row of q, k, v or o does not start at 16 bytes, or a dim is not a multiple of 8
  kFeatureFp32Output = 256,
  kFeatureManyPairs = 512,       // a bias in fp32, or a bias beside a mask
  kFeatureApartCells = 1024,     // dropout at a place in a larger call that does not keep cells together (keeps_cells)
  kFeatureLastKeys = 4096,       // a boolean mask about the last keys
  kFeaturePageFactors = 8192,    // factors of e4m3 keys go by pages
  kFeatureE4m3Queries = 16384,   // q is e4m3 where the kernel computes with bf16
  kFeatureFp16Output = 32768,    // o is fp16 there
  kFeatureChunk = 2048,          // packed rows (parts/packed_rows.cuh) have it without asking
  kFeatureJoinedHeads = 131072,  // rows are those of several heads (Problem::joined_heads)
};

// The words of .served in kernels.def: the features that a row has.
namespace serves {
constexpr u32 PLAIN = 0;
constexpr u32 SOFTCAP = kFeatureSoftcap;
constexpr u32 ALIBI = kFeatureAlibi;
constexpr u32 SCORE = SOFTCAP | ALIBI;  // either, or both
constexpr u32 PAIRS = kFeatureBias | kFeatureBoolean;
constexpr u32 DROPOUT = kFeatureDropout;
constexpr u32 LARGE_PAGES = kFeaturePaged;
constexpr u32 PAGED = kFeaturePaged | kFeatureSmallPages;
constexpr u32 CHUNK = kFeatureChunk;
constexpr u32 JOINED = kFeatureJoinedHeads;
constexpr u32 FULL = ~u32(kFeatureJoinedHeads);  // which are for the copy engine
}  // namespace serves

// What a row of forward_sm90 has beside what it says: O in fp32, as for the parts of a split; joined heads, where tiles
// are of the size that few rows take, or keys in pages, and no option goes by the head or the row.
MICA_HD constexpr u32 forward_sm90_serves(u32 served, i32 tile_q, i32 blocks) {
  const bool joins_heads =
      served == serves::JOINED || ((served & ~serves::PAGED) == 0 && (served != 0 || (tile_q == 128 && blocks == 1)));
  return served | kFeatureFp32Output | (joins_heads ? u32(kFeatureJoinedHeads) : 0u);
}

// The band in a kernel that serves these features: to one that does not, chunks are known to be absent, and cost it no
// register.
template <u32 served>
MICA_HD Band served_band(const BandArg& arg, i32 len_q, i32 len_k) {
  Band band = band_of(arg, len_q, len_k);
  if constexpr (!(served & kFeatureChunk)) band.chunk = 0;
  return band;
}

struct ForwardParams {
  RowsArg q, k, v, o;
  float* lse;  // null: not wanted
  i64 lse_stride_batch, lse_stride_head, lse_stride_row;
  SequenceTable sequences;
  i32 batch, heads_q, group;
  i32 dim_qk, dim_v;
  i32 tiles_q;      // per head: ceil(max_len_q / tile_q), or packed_tile_count
  i32 work_items;   // query tiles in all; forward_sm90 may have fewer blocks
  i32 joined_rows;  // see Problem; 64 where heads are not joined
  i32 first_items;  // forward_sm90: so many of them, a block's first, its first two or all, need no draw
  // From which blocks draw further query tiles (device/work_ring_sm90.cuh); of decode_sm80 a word a tile, whose last
  // block joins the splits (device/last_block_sm90.cuh); null: neither.
  u64* work_counter;
  u64 work_epoch;
  // Of each sequence of a dense batch, or of a packed one if all are as long as the caller says; 0: they are not.
  i32 even_len_q, even_len_k;
  // (batch, query head) pairs whose tiles are dealt out together: their K and V stay in L2; decode_sm80: key heads that
  // a block takes side by side.
  i32 section_heads;
  i32 packed_q;
  i32 joined_heads;         // see Problem
  Divisor by_joined_heads;  // by 1 where there are none
  u32 features;             // Feature
  BandArg band;
  Score score;
  const void* sinks;  // (heads_q)
  i32 sinks_dtype;
  i64 sinks_stride;
  const float* alibi;
  i64 alibi_stride_batch, alibi_stride_head;
  PairsArg bias, boolean;
  DropoutArg dropout;
  // Split-KV: partial results (num_splits, batch, heads_q, rows, dim_v) fp32, and their LSE in log2 units.
  Splits splits;
  // decode_sm80: so many at the beginning have another number of splits, which is not larger; 0: none.
  i32 first_sequences, first_splits;
  float* partial_o;    // null: not split
  float* partial_lse;  // (num_splits, batch, heads_q, rows)
  i64 partial_rows;    // rows of one head: packed total, or batch slots' rows
  float* kept_o;       // forward_fp8_sm90: Fp8KeptSums, (blocks, tile_q, dim_v); null: none, as keys are few
  i32 o_dtype;
  Descale q_descale, k_descale, v_descale;  // of e4m3
};

// A tensor that the copy engine reads, and what a coordinate of an axis is multiplied by: 0 where the axis repeats
// itself.
struct MappedRows {
  TensorMap map;
  i64 rows;  // of a slot: past them the copy engine brings zeros
  i32 box_rows, head_step, slot_step;
};

// Forward by the copy engine.
struct ForwardMapsParams {
  ForwardParams forward;
  MappedRows q, k, v;
  MappedRows o;  // boxes of a warp's rows; box_rows 0: O does not leave by the copy engine
};
// Forward with a second query for the values (Problem::qv): dim_qk counts the columns of q and qv, which meet those of
// k and then of v.
struct QvParams : ForwardParams {
  RowsArg qv;
};
struct QvMapsParams {
  ForwardMapsParams maps;
  RowsArg qv;
};
// Rows of an accumulator that a warp of a warpgroup has.
constexpr i32 kWarpRows = 16;

// Backward loops, for one key tile, over the query tiles that see it. dQ is summed in fp32 in the workspace, a block of
// (tile_q, dq_columns) per query tile and head in the order of the fragments (see dq_accumulator_index), and converted
// at the end; the row statistics are made ready by backward_prepare.
struct BackwardParams {
  RowsArg q, k, v, d_o;
  RowsArg dk, dv;  // data null: not wanted
  i32 dk_dtype, dv_dtype;
  float* dq_accumulator;   // null: dQ is not wanted
  i32* dq_semaphores;      // how many key tiles have added to each block (slice) of it; null: they add in any order
  i32 dq_columns;          // the row's dim_qk; sliced: dim_qk in whole slices
  i32 slices;              // of the columns, which have blocks of their own
  const float* row_lse;    // log2 units, +inf for an empty row; (heads_q, rows)
  const float* row_delta;  // row sum of dO * O, less dLSE; likewise
  i64 stat_rows;           // rows of one head: packed total, or batch slots' rows
  SequenceTable sequences;
  i32 batch, heads_q, heads_k, group;
  i32 part_heads;  // query heads of a group that a block takes: all, or fewer where blocks share a key tile
  i32 dim_qk, dim_v;
  i32 tiles_q;  // per sequence slot; packed: of the whole
  i32 tiles_k;  // per head, likewise
  // Blocks take the first key tiles of so many heads, then the second ones and so on, before the next heads; of the
  // last heads all together, since under a causal mask the first key tiles have the most work.
  i32 section_heads, last_heads;
  Divisor by_tiles_k, by_heads_k, by_last_heads;  // a block is located before it can ask for anything
  i32 packed_q, packed_k;
  u32 features;  // Feature
  BandArg band;
  Score score;
  const float* alibi;
  i64 alibi_stride_batch, alibi_stride_head;
  PairsArg bias, boolean;
  DropoutArg dropout;
};

// What a block of backward takes: one key tile; one, and it adds to dQ in a fixed order among the blocks; key tiles
// that it draws one after the other (device/work_ring_sm90.cuh); all key tiles of a head, and then of the next.
enum class Course : i32 { ONE_TILE, ORDERED, DRAWN, HEADS };

// Backward by the copy engine.
struct BackwardMapsParams {
  BackwardParams backward;
  MappedRows q, k, v, d_o;
  MappedRows dk, dv;  // boxes of a warp's rows; box_rows 0: they do not leave by the copy engine
  i32 work_items;     // key tiles of all heads, or heads; there may be fewer blocks
  u64* work_counter;  // from which blocks draw further ones; null: none is left
  u64 work_epoch;
  // Packed keys: their sequences from the longest on, (batch); then where the key tiles of each begin among those of
  // all heads, and how many there are, (batch + 1). null: they are taken as they lie.
  const i32* packed_order;
  i32 takes_in_order;  // whether they are not null once bound
  i32 tail_items;      // of sequences that so few come after, the first key tiles of all heads come first
  // Blocks that share a key tile, and add to fp32 sums of dK and dV, (tile_k, dim) blocks as dQ has them; 1: none do.
  // query_parts of them have the same heads of the group, and each some of the queries.
  i32 parts, query_parts;
  Divisor by_parts, by_query_parts;
  float *dk_accumulator, *dv_accumulator;
  i32* key_semaphores;  // how many of them have added to (a place in) each block of these; null: in any order
  // A block takes whole heads: it writes dQ itself, and dq_accumulator has room for the heads that blocks are at. data
  // null: not wanted.
  i32 whole_heads;
  RowsArg dq;
  // For each tile of dQ's accumulator a word that counts the blocks that add to it (DqTurns): the first stores its
  // part, so that nobody sets the accumulator to zero. null: it is zero.
  u32* dq_turns;
  i32 stores_dq_first;  // whether it is not null once bound
  // Every block sets a part of dQ's accumulator to zero, to which blocks add that come `clears_ahead` key heads later;
  // the preparation does so for the first heads alone. 0: it does for all.
  i32 clears_ahead;
  i32 head_items;  // blocks of a key head
  Divisor by_head_items;
  i32* heads_cleared;  // how many parts of each key head are zero
  i32* heads_done;     // how many blocks of each key head have added all of their dQ; null: nobody asks
  i32 counts_done;     // whether it is not null once bound
  // dQ in whole numbers (dq_integers.h): what decides the scale of a row. Heads whose keys do not have one scale add
  // floats, one key tile after the other. null: dQ is summed in floats.
  const KeyNorms* key_norms;  // (batch, heads_k, kNormChunks)
  KeyNorms* head_norms;       // (batch, heads_k), for backward_finish
  const float* row_norm;      // of dO, (heads_q, rows)
  i32* dq_order;              // as dq_semaphores, for those heads; of others the words of dq_turns
  KeyPeers* key_peers;        // where blocks share key tiles: (key tile, its 16 rows)
  i32 sums_integers;          // whether they are not null once bound
  i32 tells_peers;            // key_peers likewise
  // In a fixed order without a mask: so many key tiles of a head begin at different queries, go round, and wait for one
  // another (backward_order.h). All blocks of the launch run at once, and are no fewer. 0: they do not.
  i32 round_tiles;
};

// One pass over dO and O: the row statistics; sums in the workspace are set to zero on the way.
struct BackwardPrepareParams {
  RowsArg o, d_o;
  i32 o_dtype, d_o_dtype;
  i32 unaligned;      // as kFeatureUnaligned, of o and d_o
  RowsArg converted;  // dO in q's type, in the workspace, when it comes in another; data null: not needed
  i32 converted_dtype;
  const float* lse;
  i64 lse_stride_batch, lse_stride_head, lse_stride_row;
  const float* d_lse;  // null: none
  i64 d_lse_stride_batch, d_lse_stride_head, d_lse_stride_row;
  float* row_lse;
  float* row_delta;
  i64 stat_rows;
  // Sums in the workspace that are set to zero: the first ones, and more from others_begin on. Multiples of 4.
  float* zeros;
  i64 first_zeros, others_begin, other_zeros;
  SequenceTable sequences;
  i32 batch, heads_q, dim_v;
  i32 packed_q;
  i32 rows_per_batch;  // rows of a dense slot; packed: of the whole
  i32* packed_order;   // for BackwardMapsParams, of tiles of tile_k keys and heads_k heads; null: not needed
  i32 heads_k, tile_k;
  // For sums in whole numbers, as BackwardMapsParams'; null: not needed.
  RowsArg k, v;
  i32 keys_dtype, dim_qk;
  float* row_norm;
  KeyNorms* key_norms;
  i32 measures;  // whether they are not null once bound
};

// A gradient that was summed in fp32.
struct SummedRows {
  RowsArg rows;
  const float* sums;
  i32 dtype;
  i32 unaligned;     // as kFeatureUnaligned
  i32 dim, columns;  // its own; of a block of the sums
  float scale;
};
// dQ from its accumulator to its type and strides; dK and dV likewise (of_keys).
struct BackwardFinishParams {
  SummedRows dq;  // or dK
  SummedRows dv;
  const u32* dq_turns;  // as BackwardMapsParams'; a tile to which nobody added is zero
  i32 stores_dq_first;
  SequenceTable sequences;
  i32 batch, heads_q;
  i32 tiles_q, packed_q;
  i32 tile_q;         // of a block of the accumulator
  i32 dq_by_columns;  // backward_dq_lies_by_columns
  i32 dq_in_pairs;    // dq_pair_index
  // dQ in whole numbers, as BackwardMapsParams'; null: in floats.
  const float *row_norm, *row_delta;
  const KeyNorms* head_norms;
  const u32* dq_parts;        // dq_order: how many parts a tile's sums have
  const KeyPeers* key_peers;  // where it is dK and dV
  i64 stat_rows;
  i32 sums_integers;  // whether they are not null once bound
  i32 tells_peers;    // key_peers likewise
  i32 parts;          // blocks that share a key tile
  // Converts heads whose blocks have added all of their dQ while others are still at work; null: when all are done.
  const i32* heads_done;
  i32 counts_done;  // whether it is not null once bound
  i32 head_items, group;
  // 0: dQ. Else dK and dV, whose rows and heads then stand here as q's: so many blocks are for each tile of a head, and
  // dV's come after dK's.
  i32 of_keys;
  i32 dk_blocks;
};

// The gradient of the sinks, from the row statistics.
struct BackwardSinksParams {
  const float* lse;
  i64 lse_stride_batch, lse_stride_head, lse_stride_row;
  const float* row_delta;  // (heads_q, rows)
  i64 stat_rows;
  const void* sinks;
  void* d_sinks;
  i32 sinks_dtype, d_sinks_dtype;
  i64 sinks_stride, d_sinks_stride;
  SequenceTable sequences;
  i32 batch;
};

// The gradient of the bias: (batch, heads, rows, keys), each either the problem's or 1, where it is summed.
struct BackwardBiasParams {
  BackwardParams backward;
  void* d_bias;
  i32 dtype;
  i32 batch, heads, rows, keys;
  i32 vectorised_by_8;  // neither rows nor keys are summed, and keys 8n to 8n + 7 can be written at once
  i64 stride_batch, stride_head, stride_row, stride_key;
};

// Bits that each pair brings to backward_sm90 through shared memory.
MICA_HD constexpr i32 backward_pair_bits(u32 served) {
  return served & serves::PAIRS ? 16 : served & kFeatureDropout ? 1 : 0;
}

constexpr i32 kMaxSplits = 256;

// Joins the partial results of a split forward, whose parameters it shares.
struct CombineParams {
  ForwardParams forward;
  i32 o_dtype;
  i32 team_warps;  // that share out the splits of a row
};
// A team takes so many columns of a row of one head; the grid has a place for each.
constexpr i32 kCombineColumns = 128;
MICA_HD constexpr i32 combine_team_warps(i32 num_splits, i32 warps) {
  constexpr i32 kSplitsOfWarp = 4;
  i32 team = 1;
  while (team < warps && team * kSplitsOfWarp < num_splits) team *= 2;
  return team;
}
MICA_HD constexpr i64 combine_blocks(i64 rows, i32 dim_v, i32 team_warps, i32 warps) {
  return ceil_div<i64>(rows * ceil_div(dim_v, kCombineColumns) * team_warps, warps);
}

// The softmax itself, for tests: fp32 (batch, heads_q, rows, keys). Forward's LSE is not read.
struct ProbsParams {
  ForwardParams forward;
  i32 dtype, keys_dtype;  // of q, and of k
  i32 rows, keys;
  float* probs;
  i64 stride_batch, stride_head, stride_row, stride_key;
};

// New rows into the cache; with rotary also the rotated queries.
struct AppendParams {
  RowsArg k, v, k_new, v_new;
  RowsArg q, q_rotated;
  const void* cos;  // (positions, rotary_dim / 2)
  const void* sin;
  i64 cos_stride_position, cos_stride_pair, sin_stride_position, sin_stride_pair;
  i32 rotary_dtype, rotary_dim, rotary_interleaved, rotary_positions;  // rotary_dim 0: none
  i32 rotate_along;  // query row i stands i after the first new key; 0: all of them with it
  SequenceTable sequences;
  i32 batch, heads_q, heads_k, dim_qk, dim_v, dtype;
  i32 quantises;  // the cache is e4m3, and k_new and v_new are not: they are divided by its factors
  i32 by_page;    // the factors' first axis
  Descale k_descale, v_descale;
};

// Decode packs the query heads that share a key head into the rows of a tile: row r is head r % heads of query r /
// heads. A tile takes `decode_queries` queries of up to tile_q heads; larger groups take `decode_head_tiles` tiles.
// Grid: decode_head_tiles * heads_k / section_heads * num_splits * (tiles_q * batch, or packed_tile_count when q is
// packed), with tiles_q = ceil(max_len_q / decode_queries); ForwardParams::tiles_q as the grid says. The first
// sequences' blocks may have another number of splits (ForwardParams::first_splits), and come before the others'.
// forward_wide_sm80, forward_fp32_sm80, decode_sm90 and mla_sm90 have the same grid, and one head a block.
// Up to so many query tiles of a head lie side by side, so that the keys which one reads are in L2 for the others.
constexpr i32 kQueryTilesSideBySide = 4;
MICA_HD constexpr i32 decode_queries(i32 tile_q, i32 group) { return group < tile_q ? tile_q / group : 1; }
MICA_HD constexpr i32 decode_head_tiles(i32 tile_q, i32 group) { return ceil_div(group, tile_q); }

}  // namespace mica
