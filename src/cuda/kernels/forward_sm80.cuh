// SPDX-License-Identifier: Apache-2.0
// Forward attention with mma.sync, ldmatrix and cp.async: A100, A10G, L4, RTX, and everything newer that has no kernel
// of its own. A block owns tile_q queries of one head and loops over the key tiles from the last to the first. Two
// blocks share an SM where they fit, so that one block's softmax runs beside the other's products.
//
// Warps form row_groups x column_groups. Up to 128 columns of V there is one column group: a warp does all of its rows,
// and P never leaves its registers. Beyond, the accumulators of 32 rows would not fit a warp, and with 16 rows every
// fragment of K and V that shared memory gives would serve half the products: where a tile has 64 keys two warps share
// 32 rows, each takes half of the keys in Q K^T and half of the columns in P V, and P passes between them through
// shared memory. Keys and values may be e4m3 beside a Q of 16 bits.
#pragma once

#include "kernels/parts/forward_block.cuh"
#include "kernels/parts/key_operands.cuh"

namespace mica {

template <class Element, class Key, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, u32 served>
struct ForwardSm80 : ForwardBlock<Element, dim_v, tile_q, tile_k, served> {
  using Base = ForwardBlock<Element, dim_v, tile_q, tile_k, served>;
  using Base::band;
  using Base::batch_index;
  using Base::head;
  using Base::key_row;
  using Base::p;
  using Base::sequence;
  using Base::tile_row;
  using Base::tiles;
  using Operands = KeyOperands<Element, Key>;
  static constexpr int kThreads = 32 * warps;
  static constexpr int kColumnGroups = forward_sm80_column_groups(tile_k, dim_v);
  static constexpr int kRowGroups = warps / kColumnGroups;
  static constexpr int kM = tile_q / (16 * kRowGroups);   // blocks of 16 rows of a warp
  static constexpr int kKeys = tile_k / kColumnGroups;    // of a warp's scores
  static constexpr int kColumns = dim_v / kColumnGroups;  // of a warp's output
  static constexpr int kStages = stages;                  // of K and V in shared memory
  static_assert(stages == 1 || stages == 2);
  static constexpr bool kFull = served != serves::PLAIN;
  static_assert(kM * 16 * kRowGroups == tile_q && kKeys % 32 == 0 && kColumns % 16 == 0);
  // Factors are multiplied where scores and P are a warp's own.
  static_assert(!Operands::kIsE4m3 || (kColumnGroups == 1 && stages == 2 && served == serves::FULL));

  using Scores = float[kM][kKeys / 8][4];
  using Output = float[kM][kColumns / 8][4];
  using QTile = SharedTile<dim_qk>;
  using KTile = typename Operands::template Tile<dim_qk>;
  using VTile = typename Operands::template Tile<dim_v>;
  using PTile = SharedTile<tile_k>;
  using KCopy = TileCopy<KTile::kColumns, tile_k, kThreads>;
  using VCopy = TileCopy<VTile::kColumns, tile_k, kThreads>;

  // Shared memory feeds ldmatrix at about the rate the tensor cores eat: as much of Q stays in registers, in steps of
  // 16 columns, as there is room for.
  static constexpr int kQSteps = dim_qk <= 64 ? dim_qk / 16 : 0;

  i32 row_begin;                          // first query of this warp's rows
  i32 row_group, column_group;            // of this warp
  u32 smem_k, smem_v;                     // stage 0
  u32 smem_p;                             // (tile_q, tile_k)
  float* row_exchange;                    // [kColumnGroups][tile_q]: what the warps of a row tell each other
  u32 q_address, k_lane, v_lane, p_lane;  // lane offsets for ldmatrix
  const u16* k_thread;                    // this thread's share of key tile 0
  const u16* v_thread;
  u32 k_shared_offset, v_shared_offset;
  u32 smem_factors;    // of e4m3: stages of (tile_k) factors of K, then of V
  KeyFactors factors;  // of e4m3
  u32 q_registers[kQSteps ? kQSteps : 1][kM][4];
  FeatureState<false, FloatMath, served> features;
  SoftmaxState<FloatMath> state[kM][2];
  Output out;

  MICA_DEVICE void load_k(i32 tile, i32 stage) {
    if (this->has(kFeaturePageFactors)) fetch_factors(tile, stage);
    load_keys<KTile>(p.k, p.dim_qk, tile, smem_k + stage * tile_k * KTile::kRowBytes, k_thread, k_shared_offset);
  }
  MICA_DEVICE void load_v(i32 tile, i32 stage) {
    load_keys<VTile>(p.v, p.dim_v, tile, smem_v + stage * tile_k * VTile::kRowBytes, v_thread, v_shared_offset);
  }
  // thread: this thread's share of key tile 0; shared_offset: where it goes.
  template <class Shared>
  MICA_DEVICE void load_keys(const RowsArg& elements, i32 dim, i32 tile, u32 shared, const u16* thread,
                             u32 shared_offset) {
    using Copy = TileCopy<Shared::kColumns, tile_k, kThreads>;
    const i32 valid = sequence.len_k - tile * tile_k;
    const RowsArg& tensor = Operands::in_words(elements);
    const i32 valid_dim = Operands::words(dim);
    if (Operands::kIsE4m3 && this->has(kFeatureUnaligned))
      load_bytes<Shared>(shared, elements, tile, dim);
    else if (this->has(kFeaturePaged | kFeatureUnaligned))
      load_tile_by_rows<Shared::kColumns, tile_k, kThreads>(
          shared, [&](i32 row) { return key_row(tensor, tile * tile_k + row); }, !this->has(kFeatureUnaligned), valid,
          valid_dim);
    else if (Copy::kRegular && valid >= tile_k && valid_dim == Shared::kColumns)
      Copy::copy(shared + shared_offset, thread + tile * (tensor.stride_row * tile_k), tensor.stride_row);
    else
      load_tile<Shared::kColumns, tile_k, kThreads>(
          shared, thread - Copy::global_offset(tensor.stride_row) + tile * (tensor.stride_row * tile_k),
          tensor.stride_row, valid, valid_dim);
  }
  // Rows of e4m3 that do not begin at 16 bytes.
  template <class Shared>
  MICA_DEVICE void load_bytes(u32 shared, const RowsArg& tensor, i32 tile, i32 dim) {
#pragma unroll 1
    for (i32 index = threadIdx.x; index < tile_k * Shared::kChunks; index += kThreads) {
      const i32 row = index / Shared::kChunks, chunk = index % Shared::kChunks, key = tile * tile_k + row;
      const u8* head_begin = static_cast<const u8*>(tensor.data) + head / p.group * tensor.stride_head;
      const i64 offset = key_row_offset(p.sequences, sequence, batch_index, min_of(key, sequence.len_k - 1),
                                        tensor.stride_batch, tensor.stride_row);
      store_bytes(shared + Shared::offset(row, chunk), head_begin + offset, chunk * 16, key < sequence.len_k ? dim : 0);
    }
  }
  // The factors of a tile's keys, where they go by pages.
  MICA_DEVICE u32 stage_factors(i32 stage) const { return smem_factors + stage * 2 * tile_k * 4; }
  MICA_DEVICE void fetch_factors(i32 tile, i32 stage) const {
    if constexpr (Operands::kIsE4m3) {
      if (threadIdx.x >= tile_k) return;
      const i32 key = min_of(tile * tile_k + i32(threadIdx.x), sequence.len_k - 1);
      const i32 page = KeyFactors::page(p.sequences, paged_row(p.sequences, sequence, batch_index, key));
      const u32 shared = stage_factors(stage) + threadIdx.x * 4;
      KeyFactors::fetch(shared, p.k_descale, page, head / p.group);
      KeyFactors::fetch(shared + tile_k * 4, p.v_descale, page, head / p.group);
    }
  }
  // Scores times the factors of their keys; P times those of its values.
  MICA_DEVICE void multiply_scores(Scores& scores, i32 stage) const {
    if constexpr (Operands::kIsE4m3) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        if (this->has(kFeaturePageFactors))
          KeyFactors::multiply(scores[m], stage_factors(stage) + threadIdx.x % 4 * 8, factors.q);
        else
          scale(scores[m], factors.k * factors.q);
      }
    }
  }
  MICA_DEVICE void multiply_probabilities(Scores& probabilities, i32 stage) const {
    if constexpr (Operands::kIsE4m3) {
      if (!this->has(kFeaturePageFactors)) return;
#pragma unroll
      for (int m = 0; m < kM; ++m)
        KeyFactors::multiply(probabilities[m], stage_factors(stage) + tile_k * 4 + threadIdx.x % 4 * 8,
                             factors.v_inverse);
    }
  }
  MICA_DEVICE void load_q(u32 (&a)[4], int step, int m) const {
    ldmatrix_x4(a, QTile::step(q_address, step) + m * 16 * QTile::kRowBytes);
  }

  // The warps that share rows wait for each other; warps of other rows are not held up.
  MICA_DEVICE void meet() const { barrier_sync(1 + row_group, 32 * kColumnGroups); }

  // scores = Q K^T of this warp's keys of one key tile.
  MICA_DEVICE void gemm_qk(Scores& scores, i32 stage) {
    zero(scores);
    const u32 k_address = k_lane + stage * tile_k * KTile::kRowBytes;
    constexpr int kSteps = Operands::kSteps;
#pragma unroll
    for (int step = 0; step < dim_qk / 16 / kSteps; ++step) {
      u32 a[kSteps][kM][4];
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
#pragma unroll
        for (int m = 0; m < kM; ++m)
          if (step * kSteps + s < kQSteps)
            copy(a[s][m], q_registers[step * kSteps + s][m]);
          else
            load_q(a[s][m], step * kSteps + s, m);
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n)
        Operands::of_k(KTile::step(k_address, step) + n * 16 * KTile::kRowBytes, [&](int half, int s, u32 b0, u32 b1) {
#pragma unroll
          for (int m = 0; m < kM; ++m) mma_m16n8k16<Element>(scores[m][2 * n + half], a[s][m], b0, b1);
        });
    }
    multiply_scores(scores, stage);
  }

  // out += P V of one key tile and this warp's columns. P, rounded to the element type, is the A operand as it lies in
  // the registers, or comes from shared memory where other warps have part of it.
  MICA_DEVICE void gemm_pv(Scores& probabilities, i32 stage) {
    if constexpr (Operands::kIsE4m3 && kSplitsP<Element, served>) {
      if (this->has(kFeaturePageFactors)) {
#pragma unroll 1
        for (int part = 0; part < 2; ++part) {
          gemm_pv_as<Bf16>(probabilities, stage);
#pragma unroll
          for (int m = 0; m < kM; ++m) subtract_bf16(probabilities[m]);
        }
        return;
      }
    }
    gemm_pv_as<Element>(probabilities, stage);
  }
  // The same with P and V in type T.
  template <class T>
  MICA_DEVICE void gemm_pv_as(const Scores& probabilities, i32 stage) {
    const u32 v_address = v_lane + stage * tile_k * VTile::kRowBytes;
#pragma unroll
    for (int step = 0; step < tile_k / 16; ++step) {
      u32 a[kM][4];
#pragma unroll
      for (int m = 0; m < kM; ++m)
        if constexpr (kColumnGroups > 1)
          ldmatrix_x4(a[m], PTile::step(p_lane, step) + m * 16 * PTile::kRowBytes);
        else
          pack_a<T>(a[m], probabilities[m][2 * step], probabilities[m][2 * step + 1]);
#pragma unroll
      for (int n = 0; n < kColumns / 16 / Operands::kSteps; ++n)
        KeyOperands<T, Key>::of_v(VTile::step(v_address, n) + step * 16 * VTile::kRowBytes,
                                  [&](int block, u32 b0, u32 b1) {
#pragma unroll
                                    for (int m = 0; m < kM; ++m)
                                      mma_m16n8k16<T>(out[m][2 * Operands::kSteps * n + block], a[m], b0, b1);
                                  });
    }
  }
  // This warp's part of P into shared memory, for the others of its rows; what lay there was read before the block's
  // last barrier.
  MICA_DEVICE void share(const Scores& probabilities) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          store_shared_4(smem_p + PTile::offset(row_in_tile(m, half), column_group * (kKeys / 8) + n) + lane % 4 * 4,
                         pack<Element>(probabilities[m][n][2 * half], probabilities[m][n][2 * half + 1]));
  }

  // The first of this warp's keys of a tile.
  MICA_DEVICE i32 key_begin(i32 tile) const { return tile * tile_k + column_group * kKeys; }

  static constexpr int kScoreBlocks = kKeys / 8;

  MICA_DEVICE float score_scale() const { return kFull ? 1.0f : p.score.scale_log2; }

  // exp2(score - reference) of one row in place; returns this lane's part of their sum.
  MICA_DEVICE float exponentials(float (&scores)[kScoreBlocks][4], int half, float reference) const {
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kScoreBlocks; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = scores[n][2 * half + e];
        x = ex2_approx(fmaf(x, score_scale(), -reference));
        sum += x;
      }
    return sum;
  }

  // From scores to probabilities, relative to the maximum of the tiles before, in place: no maximum is taken (plain
  // kernels; the full ones would need every feature's code twice). False if
  // some row had no maximum yet, or if it rose so much that the tile must be done again, carefully. A row that needs no
  // care gets the same bits either way, so it does not depend on its neighbours.
  MICA_DEVICE bool softmax(Scores& scores) {
    float sum[kM][2], largest = 0;
    bool ready = true;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[m][half] = exponentials(scores[m], half, state[m][half].max);
        largest = fmaxf(largest, sum[m][half]);
        ready &= state[m][half].max != -infinity();
      }
    ready &= largest <= kLazyLimit;
    if constexpr (kColumnGroups > 1) {
      share(scores);
      ready = barrier_all(1 + row_group, 32 * kColumnGroups, ready);
    } else {
      ready = __all_sync(0xffffffffu, ready);
    }
    if (!ready) return false;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) state[m][half].sum += sum[m][half];
    return true;
  }

  // The same with the tile's maximum: rescales `out` where it rises.
  MICA_DEVICE void softmax_carefully(Scores& scores) {
    float tile_max[kM][2], factor[kM][2];
    bool rescale = false;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& largest = tile_max[m][half];
        largest = fmaxf(scores[m][0][2 * half], scores[m][0][2 * half + 1]);
#pragma unroll
        for (int n = 1; n < kScoreBlocks; ++n)
          largest = fmaxf(largest, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
        largest = quad_max(largest);
      }
    exchange(tile_max, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        factor[m][half] = absorb_lazily<FloatMath>(state[m][half], tile_max[m][half] * score_scale());
        rescale |= factor[m][half] != 1.0f;
        state[m][half].sum += exponentials(scores[m], half, reference_of<FloatMath>(state[m][half].max));
      }
    if (!__any_sync(0xffffffffu, rescale)) return;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) out[m][n][e] *= factor[m][e / 2];
  }

  // A value per row, from that of each column group. At most once between two barriers of the block.
  template <class Join>
  MICA_DEVICE void exchange(float (&value)[kM][2], Join join) const {
    if constexpr (kColumnGroups > 1) {
      if (threadIdx.x % 4 == 0)
#pragma unroll
        for (int m = 0; m < kM; ++m)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            row_exchange[column_group * tile_q + row_in_tile(m, half)] = value[m][half];
      meet();
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          value[m][half] = row_exchange[row_in_tile(m, half)];
#pragma unroll
          for (int group = 1; group < kColumnGroups; ++group)
            value[m][half] = join(value[m][half], row_exchange[group * tile_q + row_in_tile(m, half)]);
        }
    }
  }

  MICA_DEVICE void score(Scores& scores, i32 tile) {
    if constexpr (kFull) features.score(scores, p, band, batch_index, head, row_begin, key_begin(tile));
  }
  MICA_DEVICE void drop(Scores& probabilities, i32 tile) {
    if constexpr (kFull)
      if (this->has(kFeatureDropout))
        features.template for_each_dropped<kM, kKeys / 8>(p, batch_index, head, row_begin, key_begin(tile),
                                                          [&](int m, int n, int e) { probabilities[m][n][e] = 0.0f; });
  }

  // Key tile `tile`, the step-th from the last: K and V of it are on their way, those of the next tile are sent for.
  MICA_DEVICE void attend(i32 tile, i32 step) {
    const bool more = tile > tiles.begin;
    Scores scores;
    cp_async_wait<0>();
    __syncthreads();
    if constexpr (kStages == 2) {
      if (more) load_k(tile - 1, (step + 1) % 2);
      if (more) load_v(tile - 1, (step + 1) % 2);
      cp_async_commit();
      gemm_qk(scores, step % 2);
    } else {
      load_v(tile, 0);
      cp_async_commit();
      gemm_qk(scores, 0);
    }
    const bool partly_hidden = this->is_partly_hidden(tile);
    score(scores, tile);
    if (partly_hidden) this->mask(scores, row_begin, key_begin(tile));
    if (kFull || step == 0 || !softmax(scores)) {
      if (!kFull && step != 0) {
        gemm_qk(scores, step % kStages);
        score(scores, tile);
        if (partly_hidden) this->mask(scores, row_begin, key_begin(tile));
      }
      softmax_carefully(scores);
      drop(scores, tile);
      multiply_probabilities(scores, step % kStages);
      if constexpr (kColumnGroups > 1) {
        share(scores);
        meet();
      }
    }
    if constexpr (kStages == 1) {
      cp_async_wait<0>();
      __syncthreads();
      if (more) load_k(tile - 1, 0);
      cp_async_commit();
    }
    gemm_pv(scores, step % kStages);
  }

  MICA_DEVICE void run(u8* smem) {
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    row_group = warp % kRowGroups;
    column_group = warp / kRowGroups;
    if (!this->locate(blockIdx.x)) return;
    row_begin = tile_row + row_group * 16 * kM;

    const u32 smem_q = shared_address(smem);
    constexpr ForwardSm80Layout kAt =
        forward_sm80_layout(tile_q, tile_k, dim_qk, dim_v, kStages, Operands::kIsE4m3 ? 1 : 2);
    static_assert(kAt.v - kAt.k == kStages * tile_k * KTile::kRowBytes);
    static_assert(kAt.p - kAt.v == kStages * tile_k * VTile::kRowBytes);
    static_assert(kColumnGroups == 1 || kAt.row_exchange - kAt.p == tile_q * PTile::kRowBytes);
    smem_k = smem_q + kAt.k;
    smem_v = smem_q + kAt.v;
    smem_p = smem_q + kAt.p;
    row_exchange = reinterpret_cast<float*>(smem + kAt.row_exchange);
    smem_factors = smem_q + kAt.factors;
    if constexpr (Operands::kIsE4m3)
      factors = KeyFactors::find(p, sequence, batch_index, head / p.group, this->has(kFeaturePageFactors));
    q_address = smem_q + QTile::offset(row_group * 16 * kM + lane % 16, lane / 16);
    k_lane = smem_k + KTile::offset(column_group * kKeys + lane % 8 + lane / 16 * 8, lane / 8 % 2);
    v_lane = smem_v + VTile::offset(lane % 16, column_group * (kColumns / 8) + lane / 16);
    p_lane = smem_p + PTile::offset(row_group * 16 * kM + lane % 16, lane / 16);
    if constexpr (kFull) features.begin(p, batch_index, head);

    const RowsArg &k = Operands::in_words(p.k), &v = Operands::in_words(p.v);
    k_thread = key_row(k, 0) + KCopy::global_offset(k.stride_row);
    v_thread = key_row(v, 0) + VCopy::global_offset(v.stride_row);
    k_shared_offset = KCopy::shared_offset();
    v_shared_offset = VCopy::shared_offset();

#pragma unroll
    for (int m = 0; m < kM; ++m) state[m][0] = state[m][1] = empty_state<FloatMath>();
    zero(out);

    const i32 count = tiles.end - tiles.begin;
    if (count > 0) {
      const u16* q = this->query_tile();
      if constexpr (Operands::kIsE4m3)
        load_tile_in_order<Element, dim_qk, tile_q, kThreads>(
            smem_q, this->has(kFeatureE4m3Queries) ? static_cast<const void*>(this->query_bytes()) : q,
            this->has(kFeatureE4m3Queries), p.q.stride_row, !this->has(kFeatureUnaligned), sequence.len_q - tile_row,
            p.dim_qk);
      else if (this->has(kFeatureUnaligned))
        load_tile_by_rows<dim_qk, tile_q, kThreads>(
            smem_q, [&](i32 row) { return q + row * p.q.stride_row; }, false, sequence.len_q - tile_row, p.dim_qk);
      else
        load_tile<dim_qk, tile_q, kThreads>(smem_q, q, p.q.stride_row, sequence.len_q - tile_row, p.dim_qk);
      load_k(tiles.end - 1, 0);
      if constexpr (kStages == 2) load_v(tiles.end - 1, 0);
      cp_async_commit();
      if constexpr (kQSteps > 0) {
        cp_async_wait<0>();
        __syncthreads();
#pragma unroll
        for (int step = 0; step < kQSteps; ++step)
#pragma unroll
          for (int m = 0; m < kM; ++m) load_q(q_registers[step][m], step, m);
      }
      for (i32 step = 0; step < count; ++step) attend(tiles.end - 1 - step, step);
    }
    finish(smem);
  }

  MICA_DEVICE void finish(u8* smem) {
    float sum[kM][2];
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) sum[m][half] = quad_sum(state[m][half].sum);
    __syncthreads();  // every warp is done with Q, and with what was exchanged
    exchange(sum, [](float a, float b) { return a + b; });
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) state[m][half].sum = sum[m][half];
    if constexpr (Operands::kIsE4m3)
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        Operands::put_in_order(out[m]);
        scale(out[m], factors.v);
      }
    Base::template finish<kM, kColumns / 8>(smem, {state, out, row_group * 16 * kM, column_group * kColumns});
  }

  // Row of scores[m][.][2 * half] within the block's tile.
  MICA_DEVICE i32 row_in_tile(int m, int half) const {
    return row_group * 16 * kM + m * 16 + half * 8 + threadIdx.x % 32 / 4;
  }
};

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, MICA_BLOCKS)
    MICA_KERNEL_NAME(const __grid_constant__ mica::ForwardParams params) {
  extern __shared__ __align__(1024) mica::u8 smem[];
  using Kernel = mica::ForwardSm80<MICA_ELEMENT, MICA_KEY_ELEMENT, MICA_DIM_QK, MICA_DIM_V, MICA_TILE_Q, MICA_TILE_K,
                                   MICA_WARPS, MICA_STAGES, MICA_SERVED>;
  Kernel kernel{{params}};
  kernel.run(smem);
}
