// SPDX-License-Identifier: Apache-2.0
// Attention for Hopper where V is a part of K (MLA: one latent key head of 576 columns, of which 512 are V's as well),
// so that a key is fetched once. A block owns up to 64 rows (query heads times queries, as in decode) and a range of
// the keys, in pairs of tiles a and b. Two warpgroups own half of O's columns each; the first computes the scores of a,
// the second those of b, and each passes its probabilities on through shared memory:
//
//   fetch a   a0 | a1 | a2 | ...      two warps each, one for each half of V's columns: a half is free for the next
//   fetch b   b0 | b1 | b2 | ...      tile as soon as the warpgroup that owns these columns has taken it
//
//   first     S of a | softmax, pass on P | O += P V of a |                    | O += P V of b | S of the next a | ...
//   second    S of b |                    | O += P V of a | softmax, pass on P | O += P V of b | S of the next b | ...
//
// Both take a before b, so that both know the maximum that P refers to: the second warpgroup goes on from the maximum
// that the first one passes on with P, and the first from the second's. While one computes exponentials the other's
// products are under way.
//
// K is fetched by the copy engine where `Params` brings its map (ForwardMapsParams), all 64 keys of a tile are in use
// and lie in one piece; else by cp.async, with zeros past the last key.
//
// V may begin at any panel of 64 columns of K: panels of Q and K are fetched in rotated order, so that V's come first.
// With a second query (QvMapsParams) K is V and then K's own columns, up to 64, and Q is qv and then q.
#pragma once

#include "device/ring_sm90.cuh"
#include "device/tma.cuh"
#include "device/wgmma.cuh"
#include "kernels/options/features.cuh"
#include "kernels/parts/key_rows_sm90.cuh"
#include "kernels/parts/qv_rows.cuh"

namespace mica {

// Where the maps of V's panels and of the others are, if there are any.
MICA_DEVICE const MappedRows* v_map_of(const ForwardParams&) { return nullptr; }
MICA_DEVICE const MappedRows* v_map_of(const ForwardMapsParams& params) { return &params.k; }
MICA_DEVICE const MappedRows* v_map_of(const QvMapsParams& params) { return &params.maps.v; }
MICA_DEVICE const MappedRows* rest_map_of(const ForwardParams&) { return nullptr; }
MICA_DEVICE const MappedRows* rest_map_of(const ForwardMapsParams& params) { return &params.k; }
MICA_DEVICE const MappedRows* rest_map_of(const QvMapsParams& params) { return &params.maps.k; }

template <class Element_, class Params, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages,
          u32 served>
struct MlaSm90 {
  using Element = Element_;
  using Tile = PackedRows<Element, served & serves::SOFTCAP>;
  using QTile = PanelTile<dim_qk, tile_q>;
  using KTile = PanelTile<dim_qk, tile_k>;
  using PTile = PanelTile<tile_k, tile_q>;
  using Parts = typename Tile::template Parts<1, tile_q, decode_part_stride(dim_v)>;
  using Keys = KeyRows<tile_k>;
  using Scores = float[tile_k / 8][4];
  using Probabilities = u32[tile_k / 16][4];
  static constexpr int kColumns = dim_v / 2;   // of a warpgroup
  static constexpr int kHalf = kColumns / 64;  // panels of it
  static constexpr int kPanels = dim_qk / 64;  // V's, then the rest
  static constexpr int kVParts = dim_v / 128;  // panels arrive by two
  static constexpr int kParts = kVParts + 1;   // and what is not V's
  static constexpr int kRest = kPanels - 2 * kHalf;
  static_assert(warps == 12 && stages == 2 && tile_q == 64 && tile_k == 64 && kHalf % 2 == 0 && kRest == 1);
  static_assert(PTile::kBytes == KTile::kPanelBytes);
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;
  static constexpr int kConsumers = 256;  // threads
  static constexpr bool kHasMap = sizeof(Params) > sizeof(ForwardParams);
  static constexpr bool kIsApart = kHasQv<Params>;  // V and its query have tensors of their own
  // Named barriers: P of a, or of b, is there, with its maxima; all consumers.
  static constexpr int kReadyA = 1, kReadyB = 2, kAll = 3;

  static constexpr MlaSm90Layout kLayout = mla_sm90_layout(tile_q, tile_k, dim_qk, dim_v, stages);
  static_assert(kLayout.k == QTile::kBytes && kLayout.p - kLayout.k == stages * KTile::kBytes &&
                kLayout.barriers - kLayout.p == PTile::kBytes &&
                stages * (kParts + 2) * kBarrierBytes <= kLayout.row_floats - kLayout.barriers);

  struct Factors {
    float of_row[2];
  };

  const Params& params;
  const ForwardParams& p;
  Tile rows;
  TileRange tiles;
  Range own;    // of them
  i32 pairs;    // of tiles; the last b may be one too many, and is all hidden
  i32 v_panel;  // V's first panel in K
  u32 smem_q, smem_k, smem_p, barriers;
  float* maxima[2];  // (64), as of P of a and of b
  float* sums;       // (64), the second warpgroup's
  SoftmaxState<FloatMath> state[2];
  float out[kColumns / 8][4];

  MICA_DEVICE u32 full(i32 stage, i32 part) const { return barriers + (stage * kParts + part) * 8; }
  MICA_DEVICE u32 empty(i32 stage, i32 half) const { return barriers + (stages * kParts + stage * 2 + half) * 8; }
  MICA_DEVICE i32 tile_of(i32 pair, i32 stage) const { return own.begin + 2 * pair + stage; }
  // P of b takes the place of what is not V's in the stage of b.
  MICA_DEVICE u32 room_of_p(i32 stage) const {
    return stage == 0 ? smem_p : smem_k + KTile::kBytes + 2 * kHalf * KTile::kPanelBytes;
  }
  // The column in global memory of a panel's first.
  MICA_DEVICE i32 column_of(i32 panel) const {
    if constexpr (kIsApart) return panel < 2 * kHalf ? panel * 64 : 0;
    const i32 rotated = panel + v_panel;
    return (rotated < kPanels ? rotated : rotated - kPanels) * 64;
  }

  MICA_DEVICE void run(u8* smem) {
    if (!rows.locate_and_wait(tile_q)) return;
    tiles = rows.touched(tile_k);
    own = rows.share_of(tiles);
    pairs = ceil_div(own.end - own.begin, 2);
    v_panel = i32((static_cast<const u16*>(p.v.data) - static_cast<const u16*>(p.k.data)) / 64);
    smem_q = shared_address(smem);
    smem_k = smem_q + kLayout.k;
    smem_p = smem_q + kLayout.p;
    barriers = shared_address(smem + kLayout.barriers);
    maxima[0] = reinterpret_cast<float*>(smem + kLayout.row_floats);
    maxima[1] = maxima[0] + tile_q;
    sums = maxima[1] + tile_q;
    if (threadIdx.x == 0) {
      for (i32 stage = 0; stage < stages; ++stage) {
        for (i32 part = 0; part < kParts; ++part) mbarrier_init(full(stage, part), 32);
        for (i32 half = 0; half < 2; ++half) mbarrier_init(empty(stage, half), 4);
      }
      fence_for_wgmma();  // the copy engine counts at them
    }
    __syncthreads();
    const i32 warp = uniform_warp();
    if (warp < 4) {
      setmaxnreg_dec<kProducerRegisters>();
      produce(warp / 2, warp % 2);
    } else {
      setmaxnreg_inc<kConsumerRegisters>();
      if (warp < 8)
        consume<0>(smem);
      else
        consume<1>(smem);
    }
  }

  MICA_DEVICE explicit MlaSm90(const Params& given) : params(given), p(forward_of(given)), rows{forward_of(given)} {}

  // By one warp: its half of the columns of V in every tile of a stage, and the half 0 also what is not V's.
  MICA_DEVICE void produce(i32 stage, i32 half) const {
    if (pairs == 0) return;
    const RowsArg& values = kIsApart ? p.v : p.k;
    const u16* head = static_cast<const u16*>(values.data) + rows.head_k * values.stride_head;
    const u32 shared = smem_k + stage * KTile::kBytes;
    // Whether no tile lies in two pages.
    const bool tiles_are_whole =
        p.sequences.page_size == 0 || (p.sequences.page_size % tile_k == 0 && rows.sequence.leftpad % tile_k == 0);
    Keys ahead = Keys::find(rows, tile_of(0, stage));
    for (i32 pair = 0; pair < pairs; ++pair) {
      const i32 tile = tile_of(pair, stage);
      const PagedRow first = {clamp_to(ahead.at[0].entry, 0, p.sequences.slots_k - 1), ahead.at[0].row};
      const typename Keys::Offsets offsets = ahead.offsets(p.sequences, values);
      [[maybe_unused]] typename Keys::Offsets rest_offsets;
      if constexpr (kIsApart) rest_offsets = ahead.offsets(p.sequences, p.k);
      if (pair + 1 < pairs) ahead = Keys::find(rows, tile_of(pair + 1, stage));
      const i32 valid_keys = tile < own.end ? rows.sequence.len_k - tile * tile_k : 0;
      mbarrier_wait(empty(stage, half), (pair & 1) ^ 1);
      if constexpr (kHasMap) {
        if (valid_keys >= tile_k && tiles_are_whole) {
          ask(stage, half, __shfl_sync(0xffffffffu, first.entry, 0), __shfl_sync(0xffffffffu, first.row, 0));
          continue;
        }
      }
#pragma unroll
      for (int part = 0; part < kHalf / 2; ++part) {
        const i32 panel = half * kHalf + 2 * part;
        const i32 columns[2] = {column_of(panel), column_of(panel + 1)};
        Keys::fetch(shared + panel * KTile::kPanelBytes, head, offsets, columns, valid_keys,
                    kIsApart ? p.dim_v : p.dim_qk);
        cp_async_commit();
      }
      if (half == 0) {
        const i32 columns[kRest] = {column_of(2 * kHalf)};
        const u32 to = shared + 2 * kHalf * KTile::kPanelBytes;
        if constexpr (kIsApart)
          Keys::fetch(to, static_cast<const u16*>(p.k.data) + rows.head_k * p.k.stride_head, rest_offsets, columns,
                      valid_keys, key_columns(p));
        else
          Keys::fetch(to, head, offsets, columns, valid_keys, p.dim_qk);
        cp_async_commit();
        announce<2>(full(stage, 0));
        announce<1>(full(stage, 1));
        announce<0>(full(stage, kVParts));
      } else {
        announce<1>(full(stage, 2));
        announce<0>(full(stage, 3));
      }
    }
  }
  // The same by the copy engine, for keys that begin at a row of a slot (or page): one lane asks, all announce.
  MICA_DEVICE void ask(i32 stage, i32 half, i32 slot, i32 row) const {
    const bool asks = threadIdx.x % 32 == 0;
    const i32 parts = half == 0 ? kHalf / 2 + 1 : kHalf / 2;
    for (i32 n = 0; n < parts; ++n) {
      const i32 part = n == kHalf / 2 ? kVParts : half * (kHalf / 2) + n, panels = part == kVParts ? kRest : 2;
      if (asks) {
        mbarrier_arrive_expecting(full(stage, part), panels * KTile::kPanelBytes);
        for (i32 panel = 2 * part; panel < 2 * part + panels; ++panel) {
          const MappedRows& k = part == kVParts ? *rest_map_of(params) : *v_map_of(params);
          tma_load(smem_k + stage * KTile::kBytes + panel * KTile::kPanelBytes, k.map,
                   {column_of(panel), row, rows.head_k * k.head_step, slot * k.slot_step}, full(stage, part));
        }
      } else {
        mbarrier_arrive(full(stage, part));
      }
    }
  }
  template <int pending>
  static MICA_DEVICE void announce(u32 barrier) {
    cp_async_wait<pending>();
    fence_for_wgmma();
    mbarrier_arrive(barrier);
  }

  // By all consumers: four threads a row. Rows that are not in use become zeros.
  MICA_DEVICE void load_q() const {
    const i32 thread = threadIdx.x - 128, r = thread / 4;
    const typename Tile::Row where = rows.row_at(r);
    const bool used = where.query < rows.sequence.len_q;
    const u16* row = rows.q_row(where);
#pragma unroll 6
    for (i32 i = 0; i < QTile::kChunks / 4; ++i) {
      const i32 chunk = i * 4 + thread % 4, column = column_of(chunk / 8) + chunk % 8 * 8;
      const u16* from = row;
      i32 columns = p.dim_qk;
      if constexpr (kIsApart) {
        const bool is_value = chunk / 8 < 2 * kHalf;
        from = is_value ? qv_row(rows, params.qv, where) : row;
        columns = is_value ? p.dim_v : key_columns(p);
      }
      const bool inside = used && column < columns;
      cp_async_16(smem_q + QTile::offset(r, chunk), inside ? from + column : from, inside ? 16 : 0);
    }
    cp_async_commit();
    cp_async_wait<0>();
    fence_for_wgmma();
    barrier_sync(kAll, kConsumers);
  }

  template <int group>
  MICA_DEVICE void consume(u8* smem) {
    const i32 first_row = uniform_warp() % 4 * 16;
    rows.begin_rows(first_row);
    state[0] = state[1] = empty_state<FloatMath>();
    zero(out);
    if (pairs > 0) {
      load_q();
      Scores scores;
      gemm_qk(scores, group, 0);
      if constexpr (served & serves::SOFTCAP) {  // one attend: with softcap it is long
        for (i32 pair = 0; pair < pairs; ++pair) {
          attend(scores, pair, Group<group>());
          if (pair + 1 < pairs) gemm_qk(scores, group, pair + 1);
        }
      } else {
        for (i32 pair = 0; pair < pairs - 1; ++pair) {
          attend(scores, pair, Group<group>());
          gemm_qk(scores, group, pair + 1);
        }
        attend(scores, pairs - 1, Group<group>());
      }
    }
    finish<group>(smem, first_row);
  }
  template <int>
  struct Group {};

  // The first warpgroup: a from its own scores, b from what the other one passes on.
  MICA_DEVICE void attend(Scores& scores, i32 pair, Group<0>) {
    Probabilities probabilities;
    float largest[2];
    cap(scores);
    hide(scores, tile_of(pair, 0));
    find_largest(largest, scores);
    const Factors factors = absorb_own(scores, largest);
    round(probabilities, scores);
    pass_on(probabilities, 0);
    barrier_arrive(kReadyA, kConsumers);
    rescale(factors);
    gemm_own(probabilities, 0, 0);
    barrier_sync(kReadyB, kConsumers);
    const Factors later = absorb_other(1);
    finish_product();
    arrive_as_warp(empty(0, 0));
    rescale(later);
    gemm_other(1, 0);
    finish_product();
    arrive_as_warp(empty(1, 0));
  }
  // The second: a from what the first one passes on, b from its own scores.
  MICA_DEVICE void attend(Scores& scores, i32 pair, Group<1>) {
    Probabilities probabilities;
    float largest[2];
    cap(scores);
    hide(scores, tile_of(pair, 1));
    find_largest(largest, scores);
    barrier_sync(kReadyA, kConsumers);
    const Factors factors = absorb_other(0);
    rescale(factors);
    gemm_other(0, 1);
    const Factors later = absorb_own(scores, largest);
    round(probabilities, scores);
    pass_on(probabilities, 1);
    barrier_arrive(kReadyB, kConsumers);
    finish_before_wait(state[0].sum + state[1].sum);
    finish_product();
    arrive_as_warp(empty(0, 1));
    rescale(later);
    gemm_own(probabilities, 1, 1);
    finish_product();
    arrive_as_warp(empty(1, 1));
  }
  MICA_DEVICE void finish_product() {
    wgmma_wait<0>();
    wgmma_hold(out);
  }

  // scores = Q K^T of the tile of a stage, in the order in which the parts arrive.
  MICA_DEVICE void gemm_qk(Scores& scores, i32 stage, i32 pair) const {
    static_assert(kParts == 5);
    constexpr int kOrder[kParts] = {0, 2, 1, 3, 4};
    const u64 q = matrix_descriptor(made_anew(smem_q), 16, 1024);
    const u64 k = matrix_descriptor(made_anew(smem_k) + stage * KTile::kBytes, 16, 1024);
    wgmma_hold(scores);
#pragma unroll
    for (int n = 0; n < kParts; ++n) {
      mbarrier_wait(full(stage, kOrder[n]), pair & 1);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < (kOrder[n] == kVParts ? 4 * kRest : 8); ++i) {
        const int panel = 2 * kOrder[n] + i / 4;
        Wgmma<Element, tile_k>::add(scores, advance(q, panel * QTile::kPanelBytes + i % 4 * 32),
                                    advance(k, panel * KTile::kPanelBytes + i % 4 * 32), n + i > 0);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold(scores);
  }

  // The panels of a warpgroup's columns of V.
  MICA_DEVICE u64 v_descriptor(i32 stage, i32 half) const {
    return matrix_descriptor(made_anew(smem_k) + stage * KTile::kBytes + half * kHalf * KTile::kPanelBytes,
                             KTile::kPanelBytes, 1024);
  }
  // out += P V of a stage, begun: P from registers, or from where it was passed on.
  MICA_DEVICE void gemm_own(const Probabilities& probabilities, i32 stage, i32 half) {
    const u64 v = v_descriptor(stage, half);
    wgmma_hold(out);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < tile_k / 16; ++i)
      Wgmma<Element, kColumns>::add_transposed(out, probabilities[i], advance(v, i * 16 * 128));
    wgmma_commit();
  }
  MICA_DEVICE void gemm_other(i32 stage, i32 half) {
    const u64 a = matrix_descriptor(made_anew(room_of_p(stage)), 16, 1024), v = v_descriptor(stage, half);
    wgmma_hold(out);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < tile_k / 16; ++i)
      Wgmma<Element, kColumns>::add_b_transposed(out, advance(a, i * 32), advance(v, i * 16 * 128), 1);
    wgmma_commit();
  }

  // With softcap products become scores in log2 units; else the exponentials scale them.
  MICA_DEVICE void cap(Scores& scores) const {
    if (!rows.has(kFeatureSoftcap)) return;
#pragma unroll
    for (int n = 0; n < tile_k / 8; n += 4) FeatureState<false>::template cap<16>(scores[n], p.score);
  }
  MICA_DEVICE float scale() const { return rows.has(kFeatureSoftcap) ? 1.0f : p.score.scale_log2; }
  MICA_DEVICE void hide(Scores& scores, i32 tile) const {
    const bool is_there = tile < own.end;
    if (is_there && tile >= tiles.full_begin && tile < tiles.full_end) return;
    const i32 first = tile * tile_k + i32(threadIdx.x % 4) * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      hide_outside<tile_k / 8>(scores, half, rows.keys[half].begin - first, is_there ? rows.keys[half].end - first : 0);
  }
  MICA_DEVICE void find_largest(float (&largest)[2], const Scores& scores) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float both[2] = {-infinity(), -infinity()};
#pragma unroll
      for (int n = 0; n < tile_k / 8; ++n)
        both[n % 2] = fmaxf(both[n % 2], fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
      largest[half] = quad_max(fmaxf(both[0], both[1])) * scale();
    }
  }
  // From scores to probabilities in place; returns by what `out` must be multiplied.
  MICA_DEVICE Factors absorb_own(Scores& scores, const float (&largest)[2]) {
    const float scale = this->scale();
    Factors factors;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      factors.of_row[half] = absorb_lazily<FloatMath>(state[half], largest[half]);
      const float reference = reference_of<FloatMath>(state[half].max);
      float sum[2] = {0.0f, 0.0f};
#pragma unroll
      for (int n = 0; n < tile_k / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = scores[n][2 * half + e];
          x = ex2_approx(fmaf(x, scale, -reference));
          sum[e] += x;
        }
      state[half].sum += sum[0] + sum[1];
    }
    return factors;
  }
  // The maximum that the other warpgroup's P refers to becomes this one's.
  MICA_DEVICE Factors absorb_other(i32 stage) {
    Factors factors;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      factors.of_row[half] = absorb<FloatMath>(state[half], maxima[stage][row_of_lane() + half * 8]);
    return factors;
  }
  // The first of the lane's rows.
  static MICA_DEVICE i32 row_of_lane() { return i32(threadIdx.x) / 32 % 4 * 16 + i32(threadIdx.x) % 32 / 4; }

  MICA_DEVICE void rescale(const Factors& factors) {
    if (!__any_sync(0xffffffffu, factors.of_row[0] != 1.0f || factors.of_row[1] != 1.0f)) return;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) out[n][e] *= factors.of_row[e / 2];
  }

  static MICA_DEVICE void round(Probabilities& probabilities, const Scores& scores) {
#pragma unroll
    for (int i = 0; i < tile_k / 16; ++i) pack_a<Element>(probabilities[i], scores[2 * i], scores[2 * i + 1]);
  }
  // P and its maxima to where the other warpgroup takes them from.
  MICA_DEVICE void pass_on(const Probabilities& probabilities, i32 stage) const {
    const i32 lane = threadIdx.x % 32, row = row_of_lane();
    const u32 room = room_of_p(stage);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (lane % 4 == 0) maxima[stage][row + half * 8] = state[half].max;
#pragma unroll
      for (int n = 0; n < tile_k / 8; ++n)
        store_shared_4(room + PTile::offset(row + half * 8, n) + lane % 4 * 4, probabilities[n / 2][n % 2 * 2 + half]);
    }
    fence_for_wgmma();
  }

  template <int group>
  MICA_DEVICE void finish(u8* smem, i32 first_row) {
    const i32 lane = threadIdx.x % 32;
    if constexpr (group == 1) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float sum = quad_sum(state[half].sum);
        if (lane % 4 == 0) sums[row_of_lane() + half * 8] = sum;
      }
    }
    barrier_sync(kAll, kConsumers);  // nobody reads K any more
    if constexpr (group == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (lane % 4 == 0) state[half].sum += sums[row_of_lane() + half * 8];
    }
    const Parts parts(smem + QTile::kBytes);
    parts.store(0, first_row, group * kColumns, state, out);
    barrier_sync(kAll, kConsumers);
    for (i32 index = threadIdx.x - 128; index < rows.rows * (dim_v / 4); index += kConsumers)
      rows.join(parts, index / (dim_v / 4), index % (dim_v / 4) * 4);
  }
};

}  // namespace mica
