// SPDX-License-Identifier: Apache-2.0
// What both kinds of blocks of backward by the copy engine share: their tiles, dS and the product dQ, and where dQ, dK
// and dV go.
//
// dS lies by queries, so that dQ is a product of rows: of 64 queries and the group's columns, or of the group's 64
// queries and all columns, or, where a tile is no multiple of 64 queries, transposed: dQ^T = K^T dS^T of its columns.
#pragma once

#include "cuda/kernels/parts/backward_drawn_sm90.h"
#include "device/kept_sums.cuh"
#include "device/ptx_scale.cuh"
#include "device/stat_rows_sm90.cuh"
#include "kernels/parts/backward_maps_sm90.cuh"

namespace mica {

// draws: key tiles, one after the other. variant: see BackwardTmaLoose.
template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, bool draws = false,
          u32 served = serves::PLAIN, int variant = 0>
struct BackwardTmaParts : BackwardMaps<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, served> {
  using Base = BackwardMaps<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, served>;
  using Base::batch_index;
  using Base::head_k;
  using Base::kConsumers;
  using Base::key_begin;
  using Base::kPaddedQk;
  using Base::kPaddedV;
  using Base::lane;
  using Base::maps;
  using Base::p;
  using Base::ring;
  using Base::room;
  using Base::sequence;
  using Base::smem_do;
  using Base::smem_ds;
  using Base::smem_k;
  using Base::smem_q;
  using Base::smem_v;
  using Base::stats;
  using typename Base::HeadTile;
  using typename Base::KTile;
  using typename Base::Operand;
  using typename Base::VTile;
  static constexpr bool goes_round = draws && (variant & kRoundVariant) != 0,
                        kIntegers = (variant & kIntegersVariant) != 0;
  static constexpr bool kHoldsValues = backward_holds_values(draws, dim_v);
  static constexpr int kKeyColumns = draws ? backward_drawn_key_columns(dim_qk) : 64;  // of a panel of K
  static constexpr bool kStatColumns = backward_row_has_stat_columns(tile_q, served == serves::PLAIN, goes_round);
  using DsTile = PanelTile<tile_k, tile_q>;  // dS, rows are queries
  static_assert(kConsumers == 2 && tile_k == 64 * kConsumers && kStatRowBytes == StatRows::kRowBytes);
  static constexpr bool kTransposed = backward_transposes_dq(tile_q), kRowsEach = tile_q == 64 * kConsumers;
  static_assert(kTransposed ? kPaddedQk == 64 * kConsumers : kRowsEach || tile_q == 64);
  // Whether rows of dS are scaled, by powers of two that lie in the row statistics, so that one number makes whole
  // numbers of all of a tile's dQ: there is no room for factors of rows, and queries are its columns.
  static constexpr bool kScalesRows = kIntegers && kTransposed;
  static_assert(!kScalesRows || (kStatColumns && Element::kDtype == MICA_BF16), "any power of two is one of bf16");
  static constexpr int kColumnsDQ = kTransposed ? tile_q
                                    : kRowsEach ? kPaddedQk
                                                : KTile::kPanels * kKeyColumns / kConsumers;  // of a product
  static constexpr int kBytesDQ = tile_q * dim_qk * 4;
  static constexpr bool kByColumns = draws && backward_dq_lies_by_columns(dim_qk, goes_round);
  static constexpr int kOwnBarrier = Base::kConsumerBarrier + 1;  // and the next: of each consumer alone
  static constexpr BackwardTmaSm90Layout kLayout =
      backward_tma_sm90_layout(tile_q, tile_k, dim_qk, dim_v, stages, draws);
  static constexpr BackwardRoom kRoom =
      backward_room(kLayout, kIntegers, kStatColumns, kHoldsValues, tile_q, tile_k, dim_v);
  static_assert(kLayout.stats - kLayout.ds == 2 * DsTile::kBytes && kLayout.ring - kLayout.dq == kBytesDQ);

  u32 smem_dq, keys_full, landed;
  const KeyPeers* peers = nullptr;  // of the last key tile that was dealt out

  MICA_DEVICE void place_tiles(u8* smem) {
    room = smem;
    smem_k = shared_address(smem);
    smem_v = smem_k + kRoom.v;
    smem_q = smem_k + kLayout.q;
    smem_do = smem_k + kLayout.d_o;
    smem_ds = smem_k + kLayout.ds;
    smem_dq = smem_k + kLayout.dq;
    ring.barriers = smem_k + kLayout.ring;
    keys_full = smem_k + kLayout.keys_full;
    landed = smem_k + kLayout.landed;
    stats = reinterpret_cast<float*>(smem + kLayout.stats);
  }

  // The row statistics. One warp brings them, as columns of products or as they are; before the first, the selectors.
  MICA_DEVICE StatRows stat_rows() const { return {smem_k + kLayout.stats, smem_k + kLayout.selectors}; }
  MICA_DEVICE void begin_rows() const {
    if constexpr (kStatColumns) stat_rows().write_selectors(threadIdx.x % 32);
  }
  template <class WaitEmpty>
  MICA_DEVICE void bring_rows(const HeadTile& query, i32 stage, WaitEmpty wait_empty) const {
    if constexpr (kStatColumns) {
      const float inverse = -1.0f / p.score.scale_log2;  // a score's scale comes after its logarithm
      const u32 to = stat_rows().stage(stage, tile_q);
      this->bring_stats_of(query, wait_empty, [=](i32 row, float lse, float delta) {
        StatRows::write_row<kScalesRows>(to, row, lse * inverse, -delta);
      });
      fence_for_wgmma();
    } else {
      this->bring_stats_of(query, stage, wait_empty);
    }
  }
  MICA_DEVICE u64 rows_of(i32 stage) const {
    return plain_descriptor(stat_rows().stage(stage, tile_q), 0, StatRows::kCoreBytes);
  }
  // What may be read where nothing is made of it.
  MICA_DEVICE u64 no_rows() const { return plain_descriptor(stat_rows().selectors, 0, 0); }
  MICA_DEVICE void add_logarithms(float (&s)[tile_q / 8][4], u64 rows) const {
    if constexpr (kStatColumns) StatRows::add<tile_q>(s, stat_rows().selectors, rows);
  }
  template <int blocks>
  MICA_DEVICE void add_deltas(float (&dp)[blocks][4], u64 rows) const {
    if constexpr (kStatColumns) StatRows::add<8 * blocks>(dp, stat_rows().selectors + StatRows::kCoreBytes, rows);
  }
  // s becomes P.
  template <int blocks>
  MICA_DEVICE void weigh_scores(float (&s)[blocks][4], const float* lse) const {
    if constexpr (kStatColumns) {
#pragma unroll
      for (int i = 0; i < blocks * 4; ++i) s[i / 4][i % 4] = ex2_approx(s[i / 4][i % 4] * p.score.scale_log2);
    } else {
      this->probabilities(s, lse);
    }
  }
  // dP becomes dS. P is taken as it was rounded: its registers are needed.
  template <int blocks>
  MICA_DEVICE void differentiate_scores(float (&dp)[blocks][4], const u32 (&probability)[blocks / 2][4],
                                        const float* delta) const {
    if constexpr (kStatColumns) {
#pragma unroll
      for (int n = 0; n < blocks; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 x = unpack<Element>(probability[n / 2][n % 2 * 2 + half]);
          dp[n][2 * half] *= x.x;
          dp[n][2 * half + 1] *= x.y;
        }
    } else {
      this->gradients(dp, probability, delta, 0, 0, 0);
    }
  }

  MICA_DEVICE u32 leave_room() const { return kHoldsValues ? smem_k + kLayout.v : smem_v; }
  // How dK and dV leave: a warp's rows go through those of V, or rows of their own, from where the copy engine takes
  // them or lanes write them, or, where the next V is on its way, through rows of dS.
  enum class Leave : i32 { BY_COPY, THROUGH_V, THROUGH_DS };
  // dK and dV, to their sums or into their place.
  template <Leave leave>
  MICA_DEVICE void leave_keys(float (&dk)[1][dim_qk / 8][4], float (&dv)[1][dim_v / 8][4], i32 count,
                              i32 consumer) const {
    if (maps.parts > 1) {
      leave_sums<leave>(dk, dv, count, consumer);
    } else {
      leave_dv<leave>(dv, consumer);
      leave_dk<leave>(dk, consumer);
    }
  }
  template <Leave leave>
  MICA_DEVICE void leave_sums(const float (&dk)[1][dim_qk / 8][4], const float (&dv)[1][dim_v / 8][4], i32 count,
                              i32 consumer) const {
    if constexpr (kIntegers)
      if (maps.key_peers) {
        leave_integers(dk, dv, consumer);
        return;
      }
    constexpr bool kOneTile = leave != Leave::THROUGH_DS;  // at a time, and blocks may wait for each other
    if (count == 0) return;
    if constexpr (kOneTile) this->wait_key_semaphore();
    add_keys<dim_qk>(maps.dk_accumulator, dk, consumer);
    add_keys<dim_v>(maps.dv_accumulator, dv, consumer);
    if constexpr (kOneTile) this->release_key_semaphore();
  }
  template <Leave leave>
  MICA_DEVICE void leave_dv(float (&dv)[1][dim_v / 8][4], i32 consumer) const {
    // Its warps are done with V, by whose rows they leave.
    if constexpr (leave != Leave::THROUGH_DS && !kHoldsValues) barrier_sync(kOwnBarrier + consumer / 4, 128);
    if (p.dv.data) store<leave>(p.dv, maps.dv, p.dv_dtype, p.dim_v, dv, 1.0f, consumer);
  }
  template <Leave leave>
  MICA_DEVICE void leave_dk(float (&dk)[1][dim_qk / 8][4], i32 consumer) const {
    if (p.dk.data) store<leave>(p.dk, maps.dk, p.dk_dtype, p.dim_qk, dk, p.score.scale, consumer);
  }
  // 16 rows of dK or dV to their sums, where other blocks have the group's other heads. null: not wanted.
  template <int dim>
  MICA_DEVICE void add_keys(float* accumulator, const float (&x)[1][dim / 8][4], i32 consumer) const {
    if (!accumulator) return;
    float* to =
        accumulator + this->key_block() * (tile_k * dim) + dq_accumulator_index(dim, consumer, 0, threadIdx.x % 32);
#pragma unroll
    for (int n = 0; n < dim / 8; ++n) reduce_add_4(to + n * 128, x[0][n]);
  }
  // By a warp: the key tile at hand. No block may take two that wait for each other: all of the one before have told
  // before the next one is drawn.
  static constexpr i32 kPeersOfTile = tile_k / kWarpRows;
  MICA_DEVICE void find_peers() {
    peers = maps.key_peers ? maps.key_peers + this->key_block() * kPeersOfTile : nullptr;
  }
  MICA_DEVICE void await_peers() const {
    if (!peers) return;
    griddepcontrol_wait();  // which sets them to zero
    if (threadIdx.x % 32 < kPeersOfTile)
      while (load_acquire(&peers[threadIdx.x % 32].blocks) != maps.parts) __nanosleep(100);
    __syncwarp();
  }
  // The same in whole numbers, whose units the blocks that share a key tile know when all of them have told what their
  // largest are: 16 rows by a warp, through V's rows.
  MICA_DEVICE void leave_integers(const float (&dk)[1][dim_qk / 8][4], const float (&dv)[1][dim_v / 8][4],
                                  i32 consumer) const {
    const i64 block = this->key_block();
    KeyPeers* const own = maps.key_peers + block * kPeersOfTile + consumer;
    const i32 own_k = warp_max(largest_bits(dk[0])), own_v = warp_max(largest_bits(dv[0]));
    if (threadIdx.x % 32 == 0) {
      atomic_max(&own->largest_k, own_k);
      atomic_max(&own->largest_v, own_v);
      add_release(&own->blocks, 1);
      while (load_acquire(&own->blocks) != maps.parts) __nanosleep(20);
    }
    __syncwarp();
    if constexpr (!kHoldsValues) barrier_sync(kOwnBarrier + consumer / 4, 128);  // its warps are done with V
    const float largest_k = float_of(u32(load_acquire(&own->largest_k))),
                largest_v = float_of(u32(load_acquire(&own->largest_v)));
    add_integers<dim_qk, 0>(maps.dk_accumulator, block, dk[0], largest_k, consumer);
    add_integers<dim_v, dim_qk / 32 % VTile::kPanels>(maps.dv_accumulator, block, dv[0], largest_v, consumer);
  }
  template <int n_blocks>
  static MICA_DEVICE i32 largest_bits(const float (&x)[n_blocks][4]) {
    u32 largest = 0;  // no number has more of them than any other
#pragma unroll
    for (int n = 0; n < n_blocks; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) largest = max_of(largest, bits_of(fabsf(x[n][e])));
    return i32(largest);
  }
  // first_panel: of V, in whose rows the first 32 columns leave.
  template <int dim, int first_panel>
  MICA_DEVICE void add_integers(float* accumulator, i64 block, const float (&x)[dim / 8][4], float largest,
                                i32 consumer) const {
    constexpr int kBlocks = kWarpRows * 128 / 512;  // of 16 x 8, in the warp's rows of a panel of V
    static_assert(dim / 8 % kBlocks == 0);
    if (!accumulator) return;
    const i32 lane = threadIdx.x % 32;
    float* to = accumulator + block * (tile_k * dim) + dq_accumulator_index(dim, consumer, 0, 0);
    const bool whole = is_finite_bound(largest);
    const float scale = whole ? integers_scale(largest, spare_bits_of(maps.parts)) : 0.0f;
#pragma unroll
    for (int first = 0; first < dim / 8; first += kBlocks) {
      const u32 from = leave_room() + (first_panel + first / kBlocks) % VTile::kPanels * VTile::kPanelBytes +
                       consumer * (kWarpRows * 128);
      if (lane == 0) bulk_wait_read_but<VTile::kPanels - 1>();
      __syncwarp();
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
        u32 words[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float own = x[first + n][e];
          words[e] = whole ? u32(round_to_integer(own * scale)) : bits_of(own);
        }
        store_shared_16(from + n * 512 + lane * 16, words);
      }
      fence_for_wgmma();
      __syncwarp();
      if (lane == 0) {
        if (whole)
          bulk_reduce_add_integers_kept(to + first * 128, from, kBlocks * 512);
        else
          bulk_reduce_add_kept(to + first * 128, from, kBlocks * 512);
        bulk_commit();
      }
    }
  }
  // 16 rows of dK or dV by their warp.
  template <Leave leave, int n_blocks>
  MICA_DEVICE void store(const RowsArg& t, const MappedRows& mapped, i32 dtype, i32 dim, float (&x)[1][n_blocks][4],
                         float scale, i32 consumer) const {
    static_assert(kPaddedQk == kPaddedV);
    const i32 first_row = consumer * kWarpRows;
    if constexpr (leave == Leave::BY_COPY) {
      if (mapped.box_rows > 0 && sequence.leftpad == 0 && key_begin + first_row + kWarpRows <= sequence.slot_len_k) {
        send_rows(mapped, x, scale, first_row);
        return;
      }
    }
    if (key_begin == 0) this->template clear_leftpad<128 * kConsumers>(t, dtype, dim);
    if constexpr (leave == Leave::BY_COPY) settle_rows();
    __syncwarp();
    using Room = PanelTile<kPaddedV, kWarpRows>;
    if constexpr (leave == Leave::THROUGH_DS)
      this->template store_rows<Room>(smem_ds - smem_k + consumer * Room::kBytes, t, dtype, dim, x, scale, first_row, 0,
                                      0);
    else
      this->template store_rows<VTile>(leave_room() - smem_k, t, dtype, dim, x, scale, first_row, 0, first_row);
  }
  // The copy engine has read what this warp gave it.
  static MICA_DEVICE void settle_rows() {
    if (threadIdx.x % 32 == 0) bulk_wait_read();
    __syncwarp();
  }
  // The same by the copy engine, through V's rows.
  template <int n_blocks>
  MICA_DEVICE void send_rows(const MappedRows& mapped, const float (&x)[1][n_blocks][4], float scale,
                             i32 first_row) const {
    const i32 lane = threadIdx.x % 32;
    u32 words[n_blocks / 2][4];  // rounded while what left before is read
#pragma unroll
    for (int n = 0; n < n_blocks; n += 2)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&block)[4] = x[0][n + i / 2];
        words[n / 2][i] = pack<Element>(block[i % 2 * 2] * scale, block[i % 2 * 2 + 1] * scale);
      }
    settle_rows();
#pragma unroll
    for (int n = 0; n < n_blocks; n += 2)
      stmatrix_x4(leave_room() + VTile::offset(first_row + lane % 16, n + lane / 16), words[n / 2]);
    fence_for_wgmma();
    __syncwarp();
    if (lane != 0) return;
#pragma unroll
    for (int panel = 0; panel < VTile::kPanels; ++panel)
      tma_store(mapped.map,
                {panel * 64, i32(sequence.k_begin) + key_begin + first_row, head_k * mapped.head_step,
                 sequence.k_slot * mapped.slot_step},
                leave_room() + panel * VTile::kPanelBytes + first_row * 128);
    bulk_commit();
  }

  // The scales of a step's rows of dS: read early, since others wait for dS.
  using Scales = u32[tile_q / 8];
  MICA_DEVICE void load_scales(Scales& scales, i32 stage) const {
    const u32 from = stat_rows().stage(stage, tile_q) + lane % 4 * 2 * StatRows::kRowBytes + StatRows::kBeside;
#pragma unroll
    for (int i = 0; i < tile_q / 8; ++i) scales[i] = load_shared_4(from + i * 8 * StatRows::kRowBytes);
  }
  // dS times its scales, which stays as it is for dK.
  template <int steps>
  MICA_DEVICE void share_scaled(u32 ds, i32 first_row, const u32 (&gradient)[steps][4], const Scales& scales) const {
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      u32 scaled[1][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) scaled[0][j] = multiply_bf16(gradient[i][j], scales[2 * i + j / 2]);
      share(ds + i * 16 * 128, first_row, scaled);
    }
  }
  template <int steps>
  MICA_DEVICE void share(u32 ds, i32 first_row, const u32 (&gradient)[steps][4]) const {
#pragma unroll
    for (int i = 0; i < steps; ++i)
      stmatrix_x4_trans(ds + DsTile::offset(i * 16 + i32(lane / 16 * 8 + lane % 8), first_row / 8 + i32(lane / 8 % 2)),
                        gradient[i]);
  }

  // Whether any of a consumer's keys exist: the last key tile of a sequence may leave the second consumer without one.
  MICA_DEVICE bool has_keys(i32 group) const { return key_begin + group * 64 < sequence.len_k; }
  // Zeros in the place of a consumer's dS, from a row on.
  template <int begin = 0>
  MICA_DEVICE void share_zeros(u32 ds, i32 first_row) const {
    const u32 zeros[(tile_q - begin) / 16][4] = {};
    share(ds + begin * 128, first_row, zeros);
  }

  // dQ of the group over all keys of the block, begun. adds: to what dq has.
  template <bool adds = false>
  MICA_DEVICE void gemm_dq(float (&dq)[kColumnsDQ / 8][4], u32 ds, i32 group) const {
    const u64 from_ds = matrix_descriptor(ds + (kRowsEach ? group * 64 * 128 : 0), 16, 1024);
    const i32 first_column = kTransposed ? group * 64 : kRowsEach ? 0 : group * kColumnsDQ;
    const u64 from_k =
        matrix_descriptor(smem_k + first_column / kKeyColumns * KTile::kPanelBytes + first_column % kKeyColumns * 2,
                          KTile::kPanelBytes, 1024);
    wgmma_hold(dq);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < tile_k / 16; ++i) {
      const u64 rows = advance(from_ds, i / 4 * DsTile::kPanelBytes + i % 4 * 32), k = advance(from_k, i * 16 * 128);
      if constexpr (kTransposed)
        Wgmma<Element, kColumnsDQ>::add_a_transposed(dq, k, rows, i > 0);
      else
        Wgmma<Element, kColumnsDQ>::add_b_transposed(dq, rows, k, adds || i > 0);
    }
    wgmma_commit();
  }

  // dQ to the thread that adds it. factors: by which rows of the tile, or all that is left of them, become whole
  // numbers; zeros: they are floats.
  template <int rings>
  MICA_DEVICE void hand_over(const float (&dq)[kColumnsDQ / 8][4], i32 group, i32 warp, const Ring<rings>& to_ring,
                             RingPlace<rings> place, const float* factors = nullptr) const {
    constexpr int kDim = kTransposed ? tile_q : dim_qk;
    const i32 row_block = kTransposed || kRowsEach ? group * 4 + warp : warp;
    const i32 column_block = kTransposed || kRowsEach ? 0 : group * (kColumnsDQ / 8);
    const u32 to = smem_dq + 4 * (kByColumns ? backward_dq_index_by_columns(tile_q, row_block, column_block, lane)
                                             : dq_accumulator_index(kDim, row_block, column_block, lane));
    constexpr u32 kStep = kByColumns ? tile_q / 16 * 512 : 512;
    float low = 0.0f, high = 0.0f;
    if constexpr (kIntegers) {
      const float* own = factors + (kRowsEach ? group * 64 : 0) + warp * 16 + lane / 4;
      low = kScalesRows ? factors[0] : own[0];
      high = kScalesRows ? low : own[8];
    }
    to_ring.wait_empty(place);
    if (kIntegers && low > 0.0f) {
      u32 unlike = 0;
#pragma unroll
      for (int n = 0; n < kColumnsDQ / 8; ++n)
        if (has_columns(group, warp, n)) store_shared_integers(to + n * kStep, dq[n], low, high, unlike);
      if (unlike & kExponentMask)
#pragma unroll
        for (int n = 0; n < kColumnsDQ / 8; ++n)
          if (has_columns(group, warp, n)) store_shared_large_integers(to + n * kStep, dq[n], low, high);
    } else {
#pragma unroll
      for (int n = 0; n < kColumnsDQ / 8; ++n)
        if (has_columns(group, warp, n)) store_shared_floats(to + n * kStep, dq[n]);
    }
    fence_for_wgmma();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(to_ring.full(place.stage));
  }
  // The nearest whole numbers, more by kOffsetBits. unlike: bits by which one that is too large differs.
  static MICA_DEVICE void store_shared_integers(u32 to, const float (&x)[4], float low, float high, u32& unlike) {
    u32 words[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      words[e] = bits_of(fmaf(x[e], e < 2 ? low : high, kOffset));
      unlike |= words[e] ^ kOffsetExponent;
    }
    store_shared_16(to, words);
  }
  static MICA_DEVICE void store_shared_large_integers(u32 to, const float (&x)[4], float low, float high) {
    u32 words[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) words[e] = u32(round_to_integer(x[e] * (e < 2 ? low : high))) + kOffsetBits;
    store_shared_16(to, words);
  }
  // Whether block n of a group's dQ has columns that exist: the second group's last ones are the rest of a panel.
  static MICA_DEVICE bool has_columns(i32 group, i32 warp, int n) {
    if constexpr (dim_qk % 64 == 0) return true;
    if constexpr (kTransposed) return group * 64 + warp * 16 < dim_qk;
    return (kRowsEach ? 0 : group * kColumnsDQ) + n * 8 < dim_qk;
  }
};

}  // namespace mica
