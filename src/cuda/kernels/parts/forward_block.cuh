// SPDX-License-Identifier: Apache-2.0
// What the forward kernels share: which queries and keys are a block's, where a key's row lies, and how a result
// leaves. A block owns tile_q queries of one head and loops over the key tiles that they see.
#pragma once

#include "device/attend.cuh"
#include "device/mma.cuh"
#include "device/shared_tile.cuh"
#include "kernels/options/features.cuh"
#include "kernels/params.h"

namespace mica {

template <class Element, int dim_v, int tile_q, int tile_k, u32 served>
struct ForwardBlock {
  static constexpr u32 kServed = served;
  static constexpr bool kJoinsHeads = (served & kFeatureJoinedHeads) != 0;
  const ForwardParams& p;
  Sequence sequence;
  Band band;
  i32 batch_index, head, split;
  i32 tile_row;     // first query of the block's tile
  TileRange tiles;  // of keys

  MICA_DEVICE bool has(u32 features) const { return (served & features) && (p.features & served & features); }

  // The query tile (of those of all heads if q is packed) and the head, or (batch, head) pair, of `heads` that have the
  // number `index`: sections of heads, then the query tiles of a section's heads, then its heads.
  struct Item {
    i32 tile_index, which;
  };
  MICA_DEVICE Item item_of(i32 index, i32 heads) const {
    // A division takes longer than to ask whether it is needed, and nothing is fetched before the last one.
    if (p.section_heads == 1 && p.tiles_q == 1) return {0, index};
    const i32 first_head = index / (p.section_heads * p.tiles_q) * p.section_heads;
    const i32 section_heads = min_of(p.section_heads, heads - first_head);
    index -= first_head * p.tiles_q;
    const i32 tile_index = section_heads == 1 ? index : index / section_heads;
    return {tile_index, first_head + index - tile_index * section_heads};
  }
  // The same of a batch whose sequences have as many query tiles each, the heaviest first: whose it is, and which tile.
  MICA_DEVICE i32 locate_evenly(i32 index) {
    const Item item = item_of(index, p.heads_q * p.batch);
    batch_index = p.heads_q == 1 ? item.which : item.which / p.heads_q;
    head = item.which - batch_index * p.heads_q;
    return heavy_first(item.tile_index, p.tiles_q, p.band.window_right < kUnlimited);
  }
  // Finds the block's work: `index` counts splits, then as item_of does. False if there is none.
  MICA_DEVICE bool locate(i32 index) {
    const i32 heads = p.packed_q ? p.heads_q : p.heads_q * p.batch;
    split = p.partial_o ? index / (heads * p.tiles_q) : 0;
    index -= split * (heads * p.tiles_q);
    i32 tile;
    if (p.packed_q) {
      const Item item = item_of(index, p.heads_q);
      const QueryTile found =
          find_packed_tile(p.sequences.cu_seqlens_q, p.batch, p.sequences.total_q, tile_q, item.tile_index);
      head = item.which;
      batch_index = found.batch;
      tile = found.tile;
    } else {
      tile = locate_evenly(index);
    }
    sequence = sequence_of(p.sequences, batch_index);
    tile_row = tile * tile_rows();
    if (tile_row >= sequence.slot_len_q) return false;
    band = served_band<served>(p.band, sequence.len_q, sequence.len_k);
    tiles = TileRange{0, 0, 0, 0};
    const i32 row_end = min_of(tile_row + tile_rows(), sequence.len_q);
    if (tile_row < row_end) tiles = tiles_of(tile_row, row_end);
    if (p.partial_o) {
      // What is touched is dealt out: a window keeps every split busy.
      const Range own = split_tiles(p.splits, tiles.end - tiles.begin, split);
      tiles.end = tiles.begin + own.end;
      tiles.begin += own.begin;
    }
    return true;
  }
  MICA_DEVICE bool joins_heads() const { return kJoinsHeads && p.joined_heads > 0; }
  // Rows of a consumer, which has 64 (Hopper's kernels), and of a tile. Boxes of joined heads may have fewer.
  MICA_DEVICE i32 consumer_rows() const { return kJoinsHeads ? p.joined_rows : 64; }
  MICA_DEVICE i32 tile_rows() const { return kJoinsHeads ? tile_q / 64 * p.joined_rows : tile_q; }
  // The row of the band that a row of the tile's head is.
  MICA_DEVICE i32 query_of(i32 row) const { return joins_heads() ? divided(row, p.by_joined_heads) : row; }
  // The key tiles of rows [row_begin, row_end), which are some.
  MICA_DEVICE TileRange tiles_of(i32 row_begin, i32 row_end) const {
    return key_tiles(band, query_of(row_begin), query_of(row_end - 1) + 1, tile_k);
  }
  MICA_DEVICE bool is_partly_hidden(i32 tile) const { return tile < tiles.full_begin || tile >= tiles.full_end; }

  MICA_DEVICE const u16* query_tile() const {
    return static_cast<const u16*>(p.q.data) + head * p.q.stride_head +
           query_row_offset(sequence, tile_row, p.q.stride_batch, p.q.stride_row);
  }
  // The same of a q of e4m3.
  MICA_DEVICE const u8* query_bytes() const {
    return static_cast<const u8*>(p.q.data) + head * p.q.stride_head +
           query_row_offset(sequence, tile_row, p.q.stride_batch, p.q.stride_row);
  }
  MICA_DEVICE const u16* key_row(const RowsArg& tensor, i32 key) const {
    const u16* head_begin = static_cast<const u16*>(tensor.data) + (head / p.group) * tensor.stride_head;
    if constexpr (served & kFeaturePaged)
      return head_begin +
             key_row_offset(p.sequences, sequence, batch_index, key, tensor.stride_batch, tensor.stride_row);
    else
      return head_begin + sequence.k_slot * tensor.stride_batch + (sequence.k_begin + key) * tensor.stride_row;
  }

  // Hides what the band hides in a fragment of scores from query `row_begin` and key `first_key` on; called only for
  // tiles that are not full.
  template <int m_blocks, int n_blocks>
  MICA_DEVICE void mask(float (&scores)[m_blocks][n_blocks][4], i32 row_begin, i32 first_key) const {
    // Two loops, since what the rows of one head see is found before the loop over keys.
    if (joins_heads())
      mask_rows(scores, row_begin, first_key, [this](i32 row) { return divided(row, p.by_joined_heads); });
    else
      mask_rows(scores, row_begin, first_key, [](i32 row) { return row; });
  }
  template <int m_blocks, int n_blocks, class QueryOf>
  MICA_DEVICE void mask_rows(float (&scores)[m_blocks][n_blocks][4], i32 row_begin, i32 first_key,
                             QueryOf query) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < m_blocks; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Range keys = keys_of_row(band, query(row_begin + m * 16 + half * 8 + lane / 4));
        const i32 first = first_key + 2 * (lane % 4);
        hide_outside<n_blocks>(scores[m], half, keys.begin - first, keys.end - first);
      }
  }

  // A warp's rows from `first_row` of the tile on and columns from `first_column` on. The sums in `state` are those of
  // the whole row.
  template <int m_blocks, int n_blocks>
  struct Result {
    const SoftmaxState<FloatMath> (&state)[m_blocks][2];
    const float (&out)[m_blocks][n_blocks][4];
    i32 first_row, first_column;
    i32 row_end = kUnlimited;  // from here on they are another's

    MICA_DEVICE i32 row(int m, int half) const { return first_row + m * 16 + half * 8 + i32(threadIdx.x) % 32 / 4; }
    MICA_DEVICE i32 column(int n) const { return first_column + n * 8 + i32(threadIdx.x) % 4 * 2; }
  };

  // Normalises, and writes O and LSE, or the partial result of a split. memory: room for (tile_q, dim_v), of which a
  // warp touches its own rows and columns; nullptr: there is none, and rows are aligned.
  template <int m_blocks, int n_blocks, class Memory>
  MICA_DEVICE void finish(Memory memory, const Result<m_blocks, n_blocks>& r) const {
    float scale[m_blocks][2];
    finish_statistics(r, lse_first(), scale);
    finish_output(memory, r, scale);
  }
  // Its two halves: writes LSE and says by what O is to be multiplied; writes O.
  template <int m_blocks, int n_blocks>
  MICA_DEVICE void finish_statistics(const Result<m_blocks, n_blocks>& r, i64 lse_first,
                                     float (&scale)[m_blocks][2]) const {
    float lse[m_blocks][2];
    const bool sink = p.sinks && !p.partial_o;
    const float sink_log2 = sink ? load_as_float(p.sinks, head * p.sinks_stride, p.sinks_dtype) * kLog2E : 0.0f;
#pragma unroll
    for (int m = 0; m < m_blocks; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        SoftmaxState<FloatMath> s = r.state[m][half];
        if (tile_row + r.row(m, half) >= sequence.len_q) s = empty_state<FloatMath>();  // not in use: an empty row
        float shrink = 1.0f;
        if (sink) {
          const Merge<FloatMath> with_sink = merge_sink<FloatMath>(s, sink_log2);
          s = with_sink.state;
          shrink = with_sink.factor_a;
        }
        lse[m][half] = lse_log2<FloatMath>(s);
        scale[m][half] = normalizer<FloatMath>(s) * shrink;
        if constexpr (served & kFeatureDropout) scale[m][half] *= p.dropout.rescale;
      }
    if (p.partial_o)
      store_lse(p.partial_lse + lse_first, 1, 0, r, lse, 1.0f);
    else if (p.lse)
      store_lse(p.lse + lse_first, p.lse_stride_row, p.lse_stride_head, r, lse, kLn2);
  }
  // The tile's first row in LSE (of joined heads: their first), or among the partial results of its split.
  MICA_DEVICE i64 lse_first() const {
    if (p.partial_o) return partial_row();
    if (joins_heads()) return sequence.q_slot * p.lse_stride_batch + i64(head) * p.joined_heads * p.lse_stride_head;
    return sequence.q_slot * p.lse_stride_batch + head * p.lse_stride_head +
           (sequence.q_begin + tile_row) * p.lse_stride_row;
  }
  template <int m_blocks, int n_blocks, class Memory>
  MICA_DEVICE void finish_output(Memory memory, const Result<m_blocks, n_blocks>& r,
                                 const float (&scale)[m_blocks][2]) const {
    if (p.partial_o || has(kFeatureFp32Output))
      store_floats(r, scale);
    else if (has(kFeatureFp16Output))
      store_elements(r, scale);
    else
      store_output(memory, r, scale);
  }

  // The tile's first row in O, or among the partial results of its split, which are floats; and how far rows are apart.
  template <class To>
  MICA_DEVICE To* output_rows(i64& stride_row) const {
    stride_row = p.partial_o ? p.dim_v : p.o.stride_row;
    return p.partial_o ? reinterpret_cast<To*>(p.partial_o) + partial_row() * p.dim_v
                       : static_cast<To*>(p.o.data) + output_offset();
  }

 private:
  using OTile = SharedTile<dim_v>;

  // The tile's first row in O; of joined heads: their first.
  MICA_DEVICE i64 output_offset() const {
    if (joins_heads()) return sequence.q_slot * p.o.stride_batch + i64(head) * p.joined_heads * p.o.stride_head;
    return head * p.o.stride_head + query_row_offset(sequence, tile_row, p.o.stride_batch, p.o.stride_row);
  }
  // How far behind it a row of the tile is, in a tensor of such strides (parts have no stride_head).
  MICA_DEVICE i64 row_offset(i32 row, i64 stride_row, i64 stride_head) const {
    if (!joins_heads() || p.partial_o) return row * stride_row;
    const i32 query = query_of(tile_row + row);
    return query * stride_row + (tile_row + row - query * p.joined_heads) * stride_head;
  }

  // Whether a row of the tile is to be written.
  template <class Result>
  MICA_DEVICE bool is_there(const Result& r, i32 row) const {
    return tile_row + row < sequence.slot_len_q && (!kJoinsHeads || row < r.row_end);
  }

  // The tile's first row among the partial results of its split and head.
  MICA_DEVICE i64 partial_row() const {
    return (i64(split) * p.heads_q + head) * p.partial_rows + sequence.q_slot * i64(p.sequences.slot_len_q) +
           sequence.q_begin + tile_row;
  }

  // first: of the tile's first row.
  template <int m_blocks, int n_blocks>
  MICA_DEVICE void store_lse(float* first, i64 stride_row, i64 stride_head, const Result<m_blocks, n_blocks>& r,
                             const float (&lse)[m_blocks][2], float unit) const {
    if (r.first_column != 0 || threadIdx.x % 4 != 0) return;
#pragma unroll
    for (int m = 0; m < m_blocks; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (is_there(r, r.row(m, half)))
          first[row_offset(r.row(m, half), stride_row, stride_head)] = lse[m][half] * unit;
  }

  // O through shared memory, so that it leaves in pieces of 16 bytes; element by element where rows do not start at 16
  // bytes or dims are odd.
  template <int m_blocks, int n_blocks>
  MICA_DEVICE void store_output(u8* smem, const Result<m_blocks, n_blocks>& r,
                                const float (&scale)[m_blocks][2]) const {
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < m_blocks; ++m)
#pragma unroll
      for (int n = 0; n < n_blocks; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *reinterpret_cast<u32*>(smem + OTile::offset(r.row(m, half), r.first_column / 8 + n) + lane % 4 * 4) =
              pack<Element>(r.out[m][n][2 * half] * scale[m][half], r.out[m][n][2 * half + 1] * scale[m][half]);
    __syncwarp();
    u16* o = static_cast<u16*>(p.o.data) + output_offset();
    if (has(kFeatureUnaligned)) {
#pragma unroll 1
      for (int i = lane; i < 16 * m_blocks * n_blocks * 8; i += 32) {
        const i32 row = r.first_row + i / (n_blocks * 8), column = r.first_column + i % (n_blocks * 8);
        if (tile_row + row < sequence.slot_len_q && column < p.dim_v)
          o[row * p.o.stride_row + column] =
              *reinterpret_cast<const u16*>(smem + OTile::offset(row, column / 8) + column % 8 * 2);
      }
      return;
    }
    for (int i = lane; i < 16 * m_blocks * n_blocks; i += 32) {
      const i32 row = r.first_row + i / n_blocks, chunk = r.first_column / 8 + i % n_blocks;
      if (tile_row + row < sequence.slot_len_q && chunk * 8 < p.dim_v)
        *reinterpret_cast<uint4*>(o + row * p.o.stride_row + chunk * 8) =
            *reinterpret_cast<const uint4*>(smem + OTile::offset(row, chunk));
    }
  }

  // O without shared memory: the four lanes of a row trade so that each holds 16 bytes.
  template <int m_blocks, int n_blocks>
  MICA_DEVICE void store_output(decltype(nullptr), const Result<m_blocks, n_blocks>& r,
                                const float (&scale)[m_blocks][2]) const {
    static_assert(n_blocks % 4 == 0 && !(served & kFeatureUnaligned));
    const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
    u16* o = static_cast<u16*>(p.o.data) + output_offset();
#pragma unroll
    for (int m = 0; m < m_blocks; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const bool inside = is_there(r, r.row(m, half));
        u16* const row = o + row_offset(r.row(m, half), p.o.stride_row, p.o.stride_head);
#pragma unroll
        for (int n = 0; n < n_blocks; n += 4) {
          u32 word[4];
#pragma unroll
          for (int i = 0; i < 4; ++i)
            word[i] = pack<Element>(r.out[m][n + i][2 * half] * scale[m][half],
                                    r.out[m][n + i][2 * half + 1] * scale[m][half]);
          trade(word[0], word[1], odd, 1);
          trade(word[2], word[3], odd, 1);
          trade(word[0], word[2], upper, 2);
          trade(word[1], word[3], upper, 2);
          const i32 column = r.first_column + (n + i32(threadIdx.x) % 4) * 8;
          if (inside && column < p.dim_v)
            *reinterpret_cast<uint4*>(row + column) = make_uint4(word[0], word[1], word[2], word[3]);
        }
      }
  }
  // Between this lane and the one `distance` away: its second word against the other's first.
  static MICA_DEVICE void trade(u32& first, u32& second, bool is_other, int distance) {
    const u32 received = __shfl_xor_sync(0xffffffffu, is_other ? first : second, distance);
    (is_other ? first : second) = received;
  }

  // O in another type than it is computed with.
  template <int m_blocks, int n_blocks>
  MICA_DEVICE void store_elements(const Result<m_blocks, n_blocks>& r, const float (&scale)[m_blocks][2]) const {
#pragma unroll
    for (int m = 0; m < m_blocks; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (tile_row + r.row(m, half) >= sequence.slot_len_q) continue;
        const i64 first = output_offset() + r.row(m, half) * p.o.stride_row;
#pragma unroll
        for (int n = 0; n < n_blocks; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (r.column(n) + e < p.dim_v)
              store_float(p.o.data, first + r.column(n) + e, p.o_dtype, r.out[m][n][2 * half + e] * scale[m][half]);
      }
  }

  // O in fp32, or that of a split, normalised by itself: two lanes trade so that each holds 16 bytes; or, where rows
  // need not lie so, vectorised by 2 or a store for each element.
  template <int m_blocks, int n_blocks>
  MICA_DEVICE void store_floats(const Result<m_blocks, n_blocks>& r, const float (&scale)[m_blocks][2]) const {
    // Where keys are often cut into ranges, and rows aligned.
    constexpr bool kVectorisedBy4 = kJoinsHeads && n_blocks % 2 == 0;
    const i64 stride_row = p.partial_o ? p.dim_v : p.o.stride_row;
    float* first =
        p.partial_o ? p.partial_o + partial_row() * p.dim_v : static_cast<float*>(p.o.data) + output_offset();
    first += kVectorisedBy4 ? 0 : r.column(0);
    const bool vectorised_by_2 = p.dim_v % 2 == 0 && stride_row % 2 == 0 && reinterpret_cast<u64>(first) % 8 == 0;
#pragma unroll
    for (int m = 0; m < m_blocks; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const bool inside = is_there(r, r.row(m, half));
        float* to = first + row_offset(r.row(m, half), stride_row, p.o.stride_head);
        if constexpr (kVectorisedBy4)
          store_row_by_4(to, inside, r.out[m], scale[m][half], half, r.first_column);
        else if (inside)
          store_row(to, vectorised_by_2, r.out[m], scale[m][half], half, p.dim_v - r.column(0));
      }
  }
  template <int n_blocks>
  MICA_DEVICE void store_row_by_4(float* to, bool inside, const float (&out)[n_blocks][4], float scale, int half,
                                  i32 first_column) const {
    const bool odd = threadIdx.x & 1;
#pragma unroll
    for (int n = 0; n + 1 < n_blocks; n += 2) {
      float a[2] = {out[n][2 * half] * scale, out[n][2 * half + 1] * scale};
      float b[2] = {out[n + 1][2 * half] * scale, out[n + 1][2 * half + 1] * scale};
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float received = __shfl_xor_sync(0xffffffffu, odd ? a[e] : b[e], 1);
        (odd ? a[e] : b[e]) = received;
      }
      const i32 column = first_column + (n + odd) * 8 + i32(threadIdx.x) % 4 / 2 * 4;
      if (inside && column < p.dim_v) *reinterpret_cast<float4*>(to + column) = make_float4(a[0], a[1], b[0], b[1]);
    }
  }
  // columns: from this lane's first on.
  template <int n_blocks>
  static MICA_DEVICE void store_row(float* to, bool vectorised_by_2, const float (&out)[n_blocks][4], float scale,
                                    int half, i32 columns) {
#pragma unroll
    for (int n = 0; n < n_blocks; ++n) {
      if (n * 8 >= columns) continue;
      const float a = out[n][2 * half] * scale, b = out[n][2 * half + 1] * scale;
      if (vectorised_by_2) {
        *reinterpret_cast<float2*>(to + n * 8) = make_float2(a, b);
      } else {
        to[n * 8] = a;
        if (n * 8 + 1 < columns) to[n * 8 + 1] = b;
      }
    }
  }
};

}  // namespace mica
