// SPDX-License-Identifier: Apache-2.0
// Decode for Hopper where more rows share a key head than decode_sm80 takes at once: many query heads, or several
// queries (speculation). A block owns up to 64 rows and a range of the keys, which its two consumer warpgroups share
// out tile by tile, each with its own rings of K and V, its own softmax and its own O, so that neither waits for the
// other; at the end they join. Or it owns up to 128 rows, 64 for each warpgroup: both take every tile, from the rings
// in turn. Reading K and V is what takes time: products and softmax of a tile follow one another.
//
//   fetch      a warp each for K and V of each warpgroup: pages, or contiguous, by cp.async
//   consumer   wait K | S | softmax | wait V | O += P V | wait K of its next tile | ...
#pragma once

#include "device/ring_sm90.cuh"
#include "device/wgmma.cuh"
#include "kernels/options/page_pieces.cuh"
#include "kernels/parts/key_rows_sm90.cuh"
#include "kernels/parts/packed_rows.cuh"

namespace mica {

template <class Element_, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, u32 served>
struct DecodeSm90 {
  using Element = Element_;
  using Tile = PackedRows<Element, serves::SOFTCAP>;
  using QTile = PanelTile<dim_qk, tile_q>;
  using KTile = PanelTile<dim_qk, tile_k>;
  using VTile = PanelTile<dim_v, tile_k>;
  using Keys = KeyRows<tile_k>;
  static constexpr int kGroups = warps / 4 - 1;  // consumer warpgroups
  static constexpr int kGroupRows = 64;
  static constexpr bool kSharesRows = tile_q > kGroupRows;  // out among the warpgroups, and not the tiles
  using Parts = typename Tile::template Parts<kSharesRows ? 1 : kGroups, tile_q, decode_part_stride(dim_v)>;
  using Scores = float[tile_k / 8][4];
  using Place = RingPlace<stages>;
  static constexpr int kConsumers = 128 * kGroups;  // threads
  static constexpr int kConsumerBarrier = 1;        // named
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;
  static constexpr bool kInPages = served == serves::LARGE_PAGES;
  static constexpr bool kGuesses =
      kInPages && dim_qk == 64;  // lengths; wider heads gain nothing (docs/design/tuning.md)
  static_assert(kGroups == 2 && tile_q == (kSharesRows ? kGroups : 1) * kGroupRows && stages >= 2);

  const ForwardParams& p;
  Tile rows;
  TileRange tiles;
  Range own;                // of them
  u32 smem_q, tiles_first;  // K's stages and V's of each warpgroup
  SoftmaxState<FloatMath> state[2];
  float out[dim_v / 8][4];

  static constexpr DecodeSm90Layout kLayout = decode_sm90_layout(tile_q, tile_k, dim_qk, dim_v, warps, stages);
  static_assert(kLayout.tiles == QTile::kBytes && kLayout.group_v == stages * KTile::kBytes &&
                kLayout.group_bytes == stages * (KTile::kBytes + VTile::kBytes));
  MICA_DEVICE u32 k_stage(i32 group, i32 stage) const {
    return tiles_first + group * kLayout.group_bytes + stage * KTile::kBytes;
  }
  MICA_DEVICE u32 v_stage(i32 group, i32 stage) const {
    return tiles_first + group * kLayout.group_bytes + kLayout.group_v + stage * VTile::kBytes;
  }
  // is_v: 0 or 1.
  MICA_DEVICE Ring<stages> ring(i32 group, i32 is_v) const {
    return {smem_q + kLayout.rings + (2 * group + is_v) * Ring<stages>::kBytes};
  }

  MICA_DEVICE void run(u8* smem) {
    smem_q = shared_address(smem);
    tiles_first = smem_q + kLayout.tiles;
    if (threadIdx.x == 0)
      for (i32 group = 0; group < kGroups; ++group)
        for (i32 is_v = 0; is_v < 2; ++is_v) ring(group, is_v).init(32, kSharesRows ? 4 * kGroups : 4);
    __syncthreads();
    if constexpr (kGuesses) {
      if (!rows.guess_and_wait(tile_q, [&] { call_in(); })) return;
    } else {
      if (!rows.locate_and_wait(tile_q)) return;
      tiles = rows.touched(tile_k);
      own = rows.share_of(tiles);
    }
    const i32 warp = uniform_warp();
    if (warp < 4) {
      setmaxnreg_dec<kProducerRegisters>();
      if (warp % 2 == 0)
        produce<KTile>(warp / 2, 0, k_stage(warp / 2, 0), p.k, p.dim_qk);
      else
        produce<VTile>(warp / 2, 1, v_stage(warp / 2, 0), p.v, p.dim_v);
    } else {
      setmaxnreg_inc<kConsumerRegisters>();
      consume(smem, warp / 4 - 1, warp % 4 * 16 + (kSharesRows ? (warp / 4 - 1) * kGroupRows : 0));
    }
  }

  // What follows from lengths that are there already, or are guessed; what the fetching warps read first of the block
  // table is on its way into L2.
  MICA_DEVICE void call_in() {
    tiles = rows.touched(tile_k);
    own = rows.share_of(tiles);
    const i32 warp = uniform_warp();
    if (warp >= 4) return;
    PagePieces<tile_k, kGroups> pieces{p.sequences, p.k};
    pieces.call_in(rows.sequence, rows.batch_index, own.begin + warp / 2);
  }

  // Where the keys of one tile after the other are, and how they are fetched: found a tile ahead, or by pieces of
  // pages.
  template <class Shared, bool in_pages>
  struct KeySource {
    static constexpr int kPanels = Shared::kChunks / 8;
    const Tile& rows;
    const RowsArg& tensor;
    Keys ahead;
    typename Keys::Offsets offsets;
    i32 columns[kPanels];

    MICA_DEVICE KeySource(const Tile& rows, const RowsArg& tensor, i32 first) : rows(rows), tensor(tensor) {
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) columns[panel] = panel * 64;
      ahead = Keys::find(rows, first);
    }
    MICA_DEVICE void prepare(i32 tile, bool is_last) {
      offsets = ahead.offsets(rows.p.sequences, tensor);
      if (!is_last) ahead = Keys::find(rows, tile + kGroups);
    }
    MICA_DEVICE void fetch(u32 shared, const u16* head, i32 tile, i32 valid_dim) {
      Keys::fetch(shared, head, offsets, columns, rows.sequence.len_k - tile * tile_k, valid_dim);
    }
  };
  template <class Shared>
  struct KeySource<Shared, true> {
    PagePieces<tile_k, kGroups> pieces;

    MICA_DEVICE KeySource(const Tile& rows, const RowsArg& tensor, i32 first) : pieces{rows.p.sequences, tensor} {
      pieces.begin(rows.sequence, rows.batch_index, first);
    }
    MICA_DEVICE void prepare(i32, bool) {}
    MICA_DEVICE void fetch(u32 shared, const u16* head, i32 tile, i32 valid_dim) {
      pieces.template fetch<Shared::kChunks / 8>(shared, head, pieces.len_k - tile * tile_k, valid_dim);
      pieces.advance(tile);
    }
  };

  // By one warp: K or V of all tiles of a warpgroup, as many ahead as there are stages.
  template <class Shared>
  MICA_DEVICE void produce(i32 group, i32 is_v, u32 shared, const RowsArg& tensor, i32 valid_dim) const {
    constexpr int kAhead = stages - 1;
    const i32 first = own.begin + group, count = ceil_div(max_of(own.end - first, 0), kGroups);
    if (count == 0) return;
    const u16* head = static_cast<const u16*>(tensor.data) + rows.head_k * tensor.stride_head;
    const Ring<stages> stages_of = ring(group, is_v);
    KeySource<Shared, kInPages> keys(rows, tensor, first);
    Place place, arrived;
    for (i32 step = 0; step < count + kAhead; ++step) {
      if (step < count) {
        const i32 tile = first + step * kGroups;
        keys.prepare(tile, step + 1 == count);
        stages_of.wait_empty(place);
        keys.fetch(shared + place.stage * Shared::kBytes, head, tile, valid_dim);
        place.next();
      }
      cp_async_commit();
      if (step < kAhead) continue;
      cp_async_wait<kAhead>();
      fence_for_wgmma();
      mbarrier_arrive(stages_of.full(arrived.stage));
      arrived.next();
    }
  }

  // By all consumers: four threads a row. Rows that are not in use become zeros.
  MICA_DEVICE void load_q() const {
    const i32 thread = threadIdx.x - 128;
#pragma unroll 1
    for (i32 r = thread / 4; r < tile_q; r += kConsumers / 4) {
      const typename Tile::Row where = rows.row_at(r);
      const bool used = where.query < rows.sequence.len_q;
      const u16* row = rows.q_row(where);
#pragma unroll
      for (i32 i = 0; i < QTile::kChunks / 4; ++i) {
        const i32 chunk = i * 4 + thread % 4;
        const bool inside = used && chunk * 8 < p.dim_qk;
        cp_async_16(smem_q + QTile::offset(r, chunk), inside ? row + chunk * 8 : row, inside ? 16 : 0);
      }
    }
    cp_async_commit();
    cp_async_wait<0>();
    fence_for_wgmma();
    barrier_sync(kConsumerBarrier, kConsumers);
  }

  MICA_DEVICE void consume(u8* smem, i32 group, i32 first_row) {
    rows.begin_rows(first_row);
    state[0] = state[1] = empty_state<FloatMath>();
    zero(out);
    load_q();
    Place place;
    i32 source = kSharesRows ? 0 : group;
    for (i32 tile = own.begin + source; tile < own.end; tile += kSharesRows ? 1 : kGroups) {
      const Ring<stages> k_ring = ring(source, 0), v_ring = ring(source, 1);
      Scores scores;
      k_ring.wait_full(place);
      gemm_qk(scores, made_anew(smem_q) + (kSharesRows ? group * kGroupRows * 128 : 0), k_stage(source, place.stage));
      k_ring.release(place);
      rows.score(scores, tile * tile_k);
      if (tile < tiles.full_begin || tile >= tiles.full_end) rows.mask(scores, tile * tile_k);
      rows.softmax(scores, state, out);
      v_ring.wait_full(place);
      gemm_pv(scores, v_stage(source, place.stage));
      v_ring.release(place);
      if (!kSharesRows || source == kGroups - 1) place.next();
      if (kSharesRows) source = (source + 1) % kGroups;
    }
    barrier_sync(kConsumerBarrier, kConsumers);  // nobody reads Q, K and V any more
    const Parts parts(smem);
    parts.store(kSharesRows ? 0 : group, first_row, 0, state, out);
    barrier_sync(kConsumerBarrier, kConsumers);
    for (i32 index = threadIdx.x - 128; index < rows.rows * (dim_v / 4); index += kConsumers)
      rows.join(parts, index / (dim_v / 4), index % (dim_v / 4) * 4);
  }

  // scores = Q K^T of a tile.
  MICA_DEVICE void gemm_qk(Scores& scores, u32 q_address, u32 k_address) const {
    const u64 q = matrix_descriptor(q_address, 16, 1024), k = matrix_descriptor(k_address, 16, 1024);
    wgmma_hold(scores);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < dim_qk / 16; ++i)
      Wgmma<Element, tile_k>::add(scores, advance(q, i / 4 * QTile::kPanelBytes + i % 4 * 32),
                                  advance(k, i / 4 * KTile::kPanelBytes + i % 4 * 32), i > 0);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold(scores);
  }
  // out += P V of a tile.
  MICA_DEVICE void gemm_pv(const Scores& scores, u32 v_address) {
    const u64 v = matrix_descriptor(v_address, VTile::kPanelBytes, 1024);
    u32 probabilities[tile_k / 16][4];
#pragma unroll
    for (int i = 0; i < tile_k / 16; ++i) pack_a<Element>(probabilities[i], scores[2 * i], scores[2 * i + 1]);
    wgmma_hold(out);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < tile_k / 16; ++i)
      Wgmma<Element, dim_v>::add_transposed(out, probabilities[i], advance(v, i * 16 * 128));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold(out);
  }
};

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, 1)
    MICA_KERNEL_NAME(const __grid_constant__ mica::ForwardParams params) {
  extern __shared__ __align__(1024) mica::u8 smem[];
  using Kernel = mica::DecodeSm90<MICA_ELEMENT, MICA_DIM_QK, MICA_DIM_V, MICA_TILE_Q, MICA_TILE_K, MICA_WARPS,
                                  MICA_STAGES, MICA_SERVED>;
  Kernel kernel{params, {params}};
  mica::call_in_params(params);
  mica::griddepcontrol_launch_dependents();
  kernel.run(smem);
}
