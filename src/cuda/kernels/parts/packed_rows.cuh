// SPDX-License-Identifier: Apache-2.0
// A tile whose rows are the query heads that share a key head, times a few queries: where its rows are, what their
// scores become, and how the partial results of several warps are joined and written. Fragments are 16 rows high: a
// lane holds rows `first + lane / 4` and the eighth after it.
#pragma once

#include "core/random.h"
#include "device/attend.cuh"
#include "device/mma.cuh"
#include "kernels/options/pairs.cuh"
#include "kernels/params.h"
#include "kernels/parts/overlap.cuh"

namespace mica {

// served: Feature bits. What changes scores is served as a whole (serves::FULL), softcap alone, or not at all.
// cuts_twice: the first sequences may have fewer splits than the rest (ForwardParams::first_sequences).
template <class Element, u32 served, bool cuts_twice = false>
struct PackedRows {
  static constexpr u32 kServed = served;
  static constexpr bool kFull = served == serves::FULL;
  using Stored = typename ElementTraits<Element>::Stored;
  using Math = typename MathOf<Element>::Math;
  struct Row {
    i32 query, head;
  };

  const ForwardParams& p;
  i32 batch_index, head_k, split;
  i32 own_splits;  // of the tile, where sequences differ
  Sequence sequence;
  Band band;
  i32 query_begin, head_begin, heads, rows;  // of the tile
  Row row[2];                                // of this lane
  Range keys[2];                             // that they see
  float slope_log2[2];
  PhiloxKey key;

  MICA_DEVICE bool has(u32 feature) const { return p.features & served & feature; }

  MICA_DEVICE i32 num_splits() const { return cuts_twice ? own_splits : p.splits.num_splits; }

  // The block's tile, as the grid in params.h says; of several key heads of a block that of its head `own`.
  MICA_DEVICE QueryTile place(i32 tile_q, i32 heads_of_block = 1, i32 own = 0) {
    const i32 queries = decode_queries(tile_q, p.group), head_tiles = decode_head_tiles(tile_q, p.group);
    const i32 heads_k = p.heads_q / p.group / heads_of_block;
    i32 index = blockIdx.x, tile = 0, sequences_before = 0;
    if constexpr (cuts_twice) {
      const i32 first_blocks = p.first_sequences * p.first_splits * p.tiles_q * head_tiles * heads_k;
      own_splits = p.splits.num_splits;
      if (index < first_blocks) {
        own_splits = p.first_splits;
      } else {
        index -= first_blocks;
        sequences_before = p.first_sequences;
      }
    }
    const bool is_few = !p.packed_q && p.tiles_q <= kQueryTilesSideBySide;
    if (is_few && p.tiles_q > 1) {
      tile = index % p.tiles_q;
      index /= p.tiles_q;
    }
    const i32 head_tile = index % head_tiles;
    index /= head_tiles;
    head_k = index % heads_k * heads_of_block + own;
    index /= heads_k;
    split = index % num_splits();
    index = index / num_splits() + sequences_before;
    head_begin = head_k * p.group + head_tile * tile_q;
    heads = min_of(tile_q, p.group - head_tile * tile_q);
    if (p.packed_q) return find_packed_tile(p.sequences.cu_seqlens_q, p.batch, p.sequences.total_q, queries, index);
    if (!is_few) {
      tile = index / p.batch;
      index -= tile * p.batch;
    }
    return QueryTile{index, heavy_first(tile, p.tiles_q, p.band.window_right < kUnlimited)};
  }
  // Takes a tile of a sequence; false if no row is there.
  MICA_DEVICE bool enter(i32 tile_q, const QueryTile& tile, const Sequence& s) {
    const i32 queries = decode_queries(tile_q, p.group);
    batch_index = tile.batch;
    sequence = s;
    band = band_of(p.band, sequence.len_q, sequence.len_k);
    query_begin = tile.tile * queries;
    rows = heads * min_of(queries, sequence.slot_len_q - query_begin);
    return query_begin < sequence.slot_len_q;
  }
  MICA_DEVICE bool locate(i32 tile_q, i32 heads_of_block = 1, i32 own = 0) {
    const QueryTile tile = place(tile_q, heads_of_block, own);
    return enter(tile_q, tile, sequence_of(p.sequences, tile.batch));
  }

  // The same of a kernel that may have begun before the one before it is done (steps.h): from here on all that one
  // wrote is to be seen.
  MICA_DEVICE bool locate_and_wait(i32 tile_q, i32 heads_of_block = 1, i32 own = 0) {
    if (reads_lengths(p.sequences)) griddepcontrol_wait();
    const bool exists = locate(tile_q, heads_of_block, own);
    griddepcontrol_wait();
    return exists;
  }
  // The same for blocks that find room beside those of the kernel before. prepare() is what follows from the tile and
  // reads nothing that one may write. Lengths that it may write are taken to be there already; where they are not, all
  // is done again.
  template <class Prepare>
  MICA_DEVICE bool guess_and_wait(i32 tile_q, Prepare prepare, i32 heads_of_block = 1, i32 own = 0) {
    const SequenceTable& t = p.sequences;
    if (p.packed_q) griddepcontrol_wait();
    const QueryTile tile = place(tile_q, heads_of_block, own);
    Sequence s = guessed_sequence(t, tile.batch);
#pragma unroll 1
    for (bool waited = false;; waited = true) {
      const bool exists = enter(tile_q, tile, s);
      if (exists) prepare();
      if (waited) return exists;
      griddepcontrol_wait();
      if (!reads_lengths(t)) return exists;
      s = sequence_of(t, tile.batch);
      if (is_same(s, sequence)) return exists;
    }
  }

  // The key tiles that the tile's rows touch, and the split's share of them. What is touched is dealt out, not the
  // whole cache: a window keeps every split busy.
  MICA_DEVICE TileRange touched(i32 tile_k) const {
    const i32 query_end = min_of(query_begin + rows / heads, sequence.len_q);
    return query_begin < query_end ? key_tiles(band, query_begin, query_end, tile_k) : TileRange{0, 0, 0, 0};
  }
  MICA_DEVICE Range share_of(const TileRange& tiles) const {
    const Range own = split_tiles(Splits{num_splits(), p.splits.length_tiles}, tiles.end - tiles.begin, split);
    return Range{tiles.begin + own.begin, tiles.begin + own.end};
  }

  // Rows past the last one repeat it: they are computed and not stored.
  MICA_DEVICE Row row_at(i32 r) const {
    const i32 last = min_of(r, rows - 1);
    return Row{query_begin + last / heads, head_begin + last % heads};
  }
  // The lane's rows as columns (options/packed_columns.cuh).
  MICA_DEVICE void begin_columns() {
#pragma unroll
    for (int i = 0; i < 2; ++i) keys[i] = keys_of_row(band, row_at(threadIdx.x % 4 * 2 + i).query);
  }
  MICA_DEVICE void begin_rows(i32 first) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Row r = row_at(first + half * 8 + threadIdx.x % 32 / 4);
      row[half] = r;
      keys[half] = keys_of_row(band, r.query);
      if (has(kFeatureAlibi))
        slope_log2[half] = p.alibi[batch_index * p.alibi_stride_batch + r.head * p.alibi_stride_head] * kLog2E;
    }
    if (has(kFeatureDropout)) key = philox_key(p.dropout);
  }

  // The first element of a row of q.
  MICA_DEVICE const Stored* q_row(Row r) const {
    return static_cast<const Stored*>(p.q.data) + r.head * p.q.stride_head +
           query_row_offset(sequence, r.query, p.q.stride_batch, p.q.stride_row);
  }
  // The same of a q of e4m3.
  MICA_DEVICE const u8* q_bytes(Row r) const {
    return static_cast<const u8*>(p.q.data) + r.head * p.q.stride_head +
           query_row_offset(sequence, r.query, p.q.stride_batch, p.q.stride_row);
  }
  // Key 0 of k or v (paged: page 0).
  MICA_DEVICE const Stored* key_base(const RowsArg& a) const {
    const i64 first = has(kFeaturePaged) ? 0 : sequence.k_slot * a.stride_batch + sequence.k_begin * a.stride_row;
    return static_cast<const Stored*>(a.data) + head_k * a.stride_head + first;
  }

  // The first byte of a key of the tile's head, of a tensor of e4m3.
  MICA_DEVICE const u8* key_bytes(const RowsArg& a, i32 key) const {
    return static_cast<const u8*>(a.data) + head_k * a.stride_head +
           key_row_offset(p.sequences, sequence, batch_index, key, a.stride_batch, a.stride_row);
  }

  // Calls function(score, half, key) for every score of the lane.
  template <int n_blocks, class Function>
  static MICA_DEVICE void for_each(float (&scores)[n_blocks][4], i32 key_begin, Function function) {
#pragma unroll
    for (int n = 0; n < n_blocks; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) function(scores[n][e], e / 2, key_begin + n * 8 + i32(threadIdx.x % 4) * 2 + e % 2);
  }
  // Calls function(row, line) for the lane's two rows of a tensor of pairs.
  template <int n_blocks, class Function>
  MICA_DEVICE void for_each_line(float (&scores)[n_blocks][4], const PairsArg& a, i32 key_begin,
                                 Function function) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      FragmentRow<n_blocks> fragment = {scores, half};
      const i32 first = key_begin + i32(threadIdx.x % 4) * 2;
      function(fragment, a.last_keys > 0 ? last_line_of(a, band, batch_index, row[half].head, row[half].query, first)
                                         : line_of(a, band, batch_index, row[half].head, row[half].query, first));
    }
  }

  // Products to scores in log2 units (without options: the softmax scales); the boolean mask hides.
  template <int n_blocks>
  MICA_DEVICE void score(float (&scores)[n_blocks][4], i32 key_begin) const {
    if (has(kFeatureSoftcap))
      for_each(scores, key_begin, [&](float& x, int, i32) { x = capped_score<Math>(p.score, x); });
    if constexpr (!kFull) return;
    if (!has(kFeatureSoftcap)) for_each(scores, key_begin, [&](float& x, int, i32) { x *= p.score.scale_log2; });
    if (has(kFeatureAlibi)) {
      // Distances are counted on in floats: turning each from an integer would cost as much as an exponential.
      const i32 first = key_begin + threadIdx.x % 4 * 2;
      const float distance[2] = {float(row[0].query + band.shift - first), float(row[1].query + band.shift - first)};
#pragma unroll
      for (int n = 0; n < n_blocks; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          scores[n][e] = add_alibi<FloatMath>(scores[n][e], slope_log2[e / 2], distance[e / 2] - float(n * 8 + e % 2));
    }
    if (has(kFeatureBias))
      for_each_line(scores, p.bias, key_begin,
                    [&](auto& fragment, const PairsLine& line) { add_bias_line(fragment, p.bias, line); });
    if (has(kFeatureBoolean))
      for_each_line(scores, p.boolean, key_begin,
                    [&](auto& fragment, const PairsLine& line) { hide_line(fragment, p.boolean, line); });
  }

  // Hides what the band hides; called only for tiles that are not full.
  template <int n_blocks>
  MICA_DEVICE void mask(float (&scores)[n_blocks][4], i32 key_begin) const {
    const i32 first = key_begin + threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      hide_outside<n_blocks>(scores, half, keys[half].begin - first, keys[half].end - first);
  }

  // From scores to probabilities in place; rescales `out` where a maximum rises.
  template <int n_blocks, int v_blocks>
  MICA_DEVICE void softmax(float (&scores)[n_blocks][4], SoftmaxState<FloatMath> (&state)[2],
                           float (&out)[v_blocks][4]) const {
    const float scale = kFull || has(kFeatureSoftcap) ? 1.0f : p.score.scale_log2;
    const float both[2] = {scale, scale};
    softmax(scores, state, out, both);
  }
  // The same of rows that have a scale each, above 0, that takes them to log2 units.
  template <int n_blocks, int v_blocks>
  MICA_DEVICE void softmax(float (&scores)[n_blocks][4], SoftmaxState<FloatMath> (&state)[2], float (&out)[v_blocks][4],
                           const float (&scale)[2]) const {
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float tile_max = -infinity();
#pragma unroll
      for (int n = 0; n < n_blocks; ++n)
        tile_max = fmaxf(tile_max, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
      factor[half] = absorb_lazily<FloatMath>(state[half], quad_max(tile_max) * scale[half]);
      const float reference = reference_of<FloatMath>(state[half].max);
#pragma unroll
      for (int n = 0; n < n_blocks; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = scores[n][2 * half + e];
          x = ex2_approx(fmaf(x, scale[half], -reference));
          state[half].sum += x;
        }
    }
    if (!__any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
    for (int n = 0; n < v_blocks; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) out[n][e] *= factor[e / 2];
  }

  // Dropped probabilities become 0; the sum has them already.
  template <int n_blocks>
  MICA_DEVICE void drop(float (&probabilities)[n_blocks][4], i32 key_begin) const {
    if (has(kFeatureDropout))
      for_each(probabilities, key_begin, [&](float& x, int half, i32 j) {
        const DropoutPlace& at = p.dropout.place;
        if (!is_kept(key, p.dropout.threshold, dropout_head(at, batch_index, row[half].head),
                     dropout_row(at, row[half].query), dropout_key(at, j)))
          x = 0.0f;
      });
  }

  // A partial result in shared memory: O (tile_q, stride), then maximum and sum of each row, for each of `parts`.
  template <int parts, int tile_q, int stride>
  struct Parts {
    static constexpr int kRows = tile_q, kStride = stride;
    float* out;
    float* states;
    MICA_DEVICE explicit Parts(u8* smem) : out(reinterpret_cast<float*>(smem)), states(out + parts * tile_q * stride) {}

    // 16 rows from first_row on, and the columns from `column` on, of one part.
    template <int v_blocks>
    MICA_DEVICE void store(int part, i32 first_row, i32 column, const SoftmaxState<FloatMath> (&state)[2],
                           const float (&fragment)[v_blocks][4]) const {
      const i32 lane = threadIdx.x % 32;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const i32 r = part * tile_q + first_row + half * 8 + lane / 4;
        const float sum = quad_sum(state[half].sum);
        if (column == 0 && lane % 4 == 0) {
          states[2 * r] = state[half].max;
          states[2 * r + 1] = sum;
        }
#pragma unroll
        for (int n = 0; n < v_blocks; ++n)
          *reinterpret_cast<float2*>(out + r * stride + column + n * 8 + lane % 4 * 2) =
              make_float2(fragment[n][2 * half], fragment[n][2 * half + 1]);
      }
    }
  };

  // Four columns of one row: the parts (`count` from `first` on) become one, and it is written as O or as the split's
  // partial result.
  template <int parts, int tile_q, int stride>
  MICA_DEVICE void join(const Parts<parts, tile_q, stride>& from, i32 r, i32 column, i32 first = 0,
                        i32 count = parts) const {
    SoftmaxState<FloatMath> joined = empty_state<FloatMath>();
    float x[4] = {0, 0, 0, 0};
    const Row where = row_at(r);
    if (where.query < sequence.len_q) {
#pragma unroll
      for (int part = 0; part < parts; ++part) {
        if (part >= count) break;
        const i32 part_row = (first + part) * tile_q + r;
        const auto both =
            merge<FloatMath>(joined, SoftmaxState<FloatMath>{from.states[2 * part_row], from.states[2 * part_row + 1]});
        const float4 y = *reinterpret_cast<const float4*>(from.out + part_row * stride + column);
        x[0] = x[0] * both.factor_a + y.x * both.factor_b;
        x[1] = x[1] * both.factor_a + y.y * both.factor_b;
        x[2] = x[2] * both.factor_a + y.z * both.factor_b;
        x[3] = x[3] * both.factor_a + y.w * both.factor_b;
        joined = both.state;
      }
    }
    // A row that is not in use is an empty row: the sink, if any, is all it has.
    const bool is_part = p.partial_o && (!cuts_twice || num_splits() > 1);
    if (p.sinks && !is_part) {
      const float sink = load_as_float(p.sinks, where.head * p.sinks_stride, p.sinks_dtype);
      const auto with_sink = merge_sink<FloatMath>(joined, sink * kLog2E);
#pragma unroll
      for (int e = 0; e < 4; ++e) x[e] *= with_sink.factor_a;
      joined = with_sink.state;
    }
    const float scale =
        normalizer<Math>(SoftmaxState<Math>{joined.max, joined.sum}) * (kFull ? p.dropout.rescale : 1.0f);
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] *= scale;
    const float lse = lse_log2<FloatMath>(joined);
    if (is_part)
      store_partial(where, column, x, lse);
    else
      store_output(where, column, x, lse);
  }

  MICA_DEVICE void store_partial(Row where, i32 column, const float (&x)[4], float lse) const {
    const i64 slot_row = (i64(split) * p.heads_q + where.head) * p.partial_rows +
                         sequence.q_slot * i64(p.sequences.slot_len_q) + sequence.q_begin + where.query;
    if (column == 0) p.partial_lse[slot_row] = lse;
    float* to = p.partial_o + slot_row * p.dim_v + column;
    if (!has(kFeatureUnaligned)) {
      if (column < p.dim_v) *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (column + e < p.dim_v) to[e] = x[e];
    }
  }

  MICA_DEVICE void store_output(Row where, i32 column, const float (&x)[4], float lse) const {
    if (p.lse && column == 0)
      p.lse[sequence.q_slot * p.lse_stride_batch + where.head * p.lse_stride_head +
            (sequence.q_begin + where.query) * p.lse_stride_row] = lse * kLn2;
    const i64 offset = where.head * p.o.stride_head + column +
                       query_row_offset(sequence, where.query, p.o.stride_batch, p.o.stride_row);
    if (!has(kFeatureUnaligned | kFeatureFp32Output | kFeatureFp16Output)) {
      if (column >= p.dim_v) return;
      Stored* to = static_cast<Stored*>(p.o.data) + offset;
      if constexpr (sizeof(Stored) == 4)
        *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
      else
        *reinterpret_cast<uint2*>(to) = make_uint2(pack<Element>(x[0], x[1]), pack<Element>(x[2], x[3]));
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (column + e < p.dim_v) store_float(p.o.data, offset + e, p.o_dtype, x[e]);
    }
  }
};

}  // namespace mica
