// SPDX-License-Identifier: Apache-2.0
// Attention of a few query rows over a long cache, bound by reading K and V once. The query heads that share a key head
// are packed into the rows of one tile. A block owns a range of the keys; each of its warps loops over key tiles of its
// own, with its own ring of cp.async buffers and its own softmax, so that no barrier stands in the loop. At the end the
// warps join their partial results through shared memory. Keys and values may be e4m3 beside a Q of 16 bits: both
// products then are of fp16 where it is faster, which e4m3 becomes by one instruction for two elements. Rows of 64
// bytes are half of a line of memory: where those of two key heads lie side by side, a block takes both, each with half
// of its warps. Tiles of eight rows are columns of the products (options/packed_columns.cuh). On Hopper the last block
// of a tile may join the splits (ForwardParams::work_counter is not null).
#pragma once

#include "kernels/options/block_entries.cuh"
#include "kernels/options/packed_columns.cuh"
#include "kernels/options/page_walk.cuh"
#include "kernels/parts/key_operands.cuh"
#include "kernels/parts/packed_rows.cuh"

// Whether the last block of a tile can join the splits (joins_splits). Other images have nothing of it.
#if (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900) && !MICA_FULL && MICA_DIM_QK <= 128
#define MICA_JOINS_SPLITS 1
#include "kernels/options/split_joiner.cuh"
#else
#define MICA_JOINS_SPLITS 0
#endif

namespace mica {

// What is multiplied: fp16 also for bf16 queries, where an instruction makes it of e4m3.
template <class Element, bool as_fp16>
struct ProductOf {
  using Type = Element;
};
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
template <class Element>
struct ProductOf<Element, true> {
  using Type = Fp16;
};
#endif

template <class Element_, class Key, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, u32 served>
struct DecodeSm80 {
  using Element = Element_;
  // Up to eight rows are columns of the products.
  static constexpr bool kColumns = tile_q == 8;
  // Factors of queries and keys become part of a scale that each row has, and products may be of fp16.
  static constexpr bool kScalesRows =
      KeyOperands<Element, Key>::kIsE4m3 && served != serves::FULL && (kColumns || dim_qk <= 128);
  using Product = typename ProductOf<Element, kScalesRows>::Type;
  using Operands = KeyOperands<Product, Key>;
  using KTile = typename Operands::template Tile<dim_qk>;
  using VTile = typename Operands::template Tile<dim_v>;
  using Tile =
      PackedRows<Element, served | (Operands::kIsE4m3 && (served & kFeatureSmallPages) ? kFeaturePageFactors : 0u),
                 MICA_JOINS_SPLITS != 0>;
  using Parts = typename Tile::template Parts<warps, tile_q, decode_part_stride(dim_v)>;
  static constexpr bool kPairsHeads = decode_sm80_pairs_heads(Operands::kIsE4m3 ? 1 : 2, dim_qk);
  static constexpr DecodeSm80Layout kAt =
      decode_sm80_layout(tile_q, tile_k, dim_qk, dim_v, warps, stages, Operands::kIsE4m3 ? 1 : 2);
  static_assert(kAt.stage_v == tile_k * KTile::kRowBytes);
  static_assert(kAt.stage_factors - kAt.stage_v == tile_k * VTile::kRowBytes);
  static_assert((tile_q == 16 || kColumns) && (tile_k == 16 || tile_k == 32) && stages >= 2);
  static_assert(!kColumns || (served & ~(Operands::kIsE4m3 ? serves::LARGE_PAGES : serves::PAGED)) == 0);
  static_assert(32 % KTile::kChunks == 0 && 32 % VTile::kChunks == 0);

  static constexpr int kBlock = kColumns ? 16 : 8;  // keys of a fragment of scores, columns of V of one of sums
  static constexpr int kQWords = kColumns ? 2 : 4;  // of an operand of 16 columns of Q
  using Scores = float[tile_k / kBlock][4];
  // Lengths, and entries of the block table by lanes, where there are registers.
  static constexpr bool kGuesses =
      kMayBeginEarly && served != serves::FULL && (!Operands::kIsE4m3 || kColumns || dim_qk <= 128);
  static constexpr bool kByLanes = kGuesses && !Operands::kIsE4m3 && dim_qk <= 128;
  static constexpr bool kLargePages = served == serves::LARGE_PAGES;

  const ForwardParams& p;
  Tile rows;
  const u16* k_base;  // key 0, or page 0
  const u16* v_base;
  TileRange tiles;
  Range own;  // of them
  // Paged: where the next tiles to load are; by lanes, or of one tile, of which the lane has key lane % tile_k.
  BlockEntries<tile_k, warps> entries;
  PagedRow ahead;
  PageWalk<tile_k> walk;  // the same where pages hold pieces of tiles
  u32 ring, k_lane, v_lane, factors_lane;
  KeyFactors factors;  // of e4m3
  u32 q[dim_qk / 16][kQWords];
  float row_scale[2];  // from products to scores in log2 units
  SoftmaxState<FloatMath> state[2];
  float out[dim_v / kBlock][4];

  // The warps of a head; whether this one's is the second of two heads; this thread among those of its head.
  MICA_DEVICE i32 warps_of_head() const { return kPairsHeads && p.section_heads == 2 ? warps / 2 : warps; }
  MICA_DEVICE i32 own_head() const { return kPairsHeads && threadIdx.x / 32 >= warps_of_head() ? 1 : 0; }
  MICA_DEVICE u32 thread_of_head() const { return threadIdx.x - own_head() * warps_of_head() * 32; }

  // Rows that the lanes of a warp copy at once.
  template <class Shared>
  static constexpr int row_step() {
    return 32 / Shared::kChunks;
  }

  // Sends for a tile of tile_k rows. A lane copies one chunk of every kRowStep-th row; next_row(r), called for these
  // rows in their order, is the address of row r.
  template <class Shared, class NextRow>
  MICA_DEVICE void load_rows(u32 shared, i32 valid_rows, i32 valid_dim, NextRow next_row) {
    constexpr int kRowStep = row_step<Shared>();
    const i32 first = threadIdx.x % 32 / Shared::kChunks, chunk = threadIdx.x % Shared::kChunks;
    if (!Operands::kIsE4m3 && rows.has(kFeatureUnaligned)) {
#pragma unroll 1
      for (int r = first; r < tile_k; r += kRowStep) {
        const u16* from = next_row(r) + chunk * 8;
        u32 words[4] = {0, 0, 0, 0};
#pragma unroll
        for (int e = 0; e < 8; ++e)
          if (r < valid_rows && chunk * 8 + e < valid_dim) words[e / 2] |= u32(from[e]) << (e % 2 * 16);
        store_shared_16(shared + Shared::offset(r, chunk), words);
      }
      return;
    }
    const u32 destination = shared + Shared::offset(first, chunk);
    const i32 bytes = chunk * 8 < valid_dim ? 16 : 0;
#pragma unroll
    for (int i = 0; i < tile_k / kRowStep; ++i) {
      // first < kRowStep, and the swizzle takes some bits of the row: those of i flip bits of the address.
      const u32 to = (destination ^ (Shared::swizzle(i * kRowStep) << 4)) + i * kRowStep * Shared::kRowBytes;
      const u16* from = next_row(first + i * kRowStep) + chunk * 8;
      cp_async_16(to, from, i * kRowStep < valid_rows - first ? bytes : 0);
    }
  }

  // Rows of a tensor that is not paged.
  template <class Shared>
  MICA_DEVICE void load_dense(u32 shared, const u16* base, i64 stride_row, i32 tile, i32 valid_dim) {
    const i64 step = stride_row * row_step<Shared>();
    const u16* row = base + (tile * tile_k + i32(threadIdx.x % 32) / Shared::kChunks) * stride_row - step;
    load_rows<Shared>(shared, rows.sequence.len_k - tile * tile_k, valid_dim, [&](i32) { return row += step; });
  }

  // Rows in pages: each lane knows where one key is, the others ask it.
  template <class Shared>
  MICA_DEVICE void load_paged(u32 shared, const u16* base, i64 row_offset, i32 tile, i32 valid_dim) {
    load_rows<Shared>(shared, rows.sequence.len_k - tile * tile_k, valid_dim,
                      [&](i32 r) { return base + __shfl_sync(0xffffffffu, row_offset, r); });
  }

  // Rows in large pages: a piece of the tile is in one of them.
  template <class Shared>
  MICA_DEVICE void load_pieces(u32 shared, const u16* base, const RowsArg& tensor, i32 tile, i32 valid_dim) {
    constexpr int kRowStep = row_step<Shared>();
    const i64 first = threadIdx.x % 32 / Shared::kChunks * tensor.stride_row, step = tensor.stride_row * kRowStep;
    const u16* row = nullptr;
    i32 i = 0;
    load_rows<Shared>(shared, rows.sequence.len_k - tile * tile_k, valid_dim, [&](i32) {
      const bool begins = i * kRowStep % kPieceRows == 0;
      row = begins ? base + walk.offset(p.sequences, i * kRowStep / kPieceRows, tensor) + first : row + step;
      ++i;
      return row;
    });
  }

  // Rows of e4m3 that do not begin at 16 bytes.
  template <class Shared>
  MICA_DEVICE void load_bytes(u32 shared, const RowsArg& tensor, i32 tile, i32 valid_dim) {
    const i32 chunk = threadIdx.x % Shared::kChunks;
#pragma unroll 1
    for (i32 r = threadIdx.x % 32 / Shared::kChunks; r < tile_k; r += row_step<Shared>()) {
      const i32 key = tile * tile_k + r;
      store_bytes(shared + Shared::offset(r, chunk), rows.key_bytes(tensor, min_of(key, rows.sequence.len_k - 1)),
                  chunk * 16, key < rows.sequence.len_k ? valid_dim : 0);
    }
  }

  // Paged: fetches entries of the block table before they are needed, beginning with those of the first tile.
  MICA_DEVICE void begin_pages(i32 first) {
    if constexpr (kLargePages)
      walk.begin(p.sequences, rows.sequence, rows.batch_index, first);
    else if constexpr (kByLanes)
      entries.begin(p.sequences, rows.sequence, rows.batch_index, first);
    else
      look_ahead(first);
  }
  MICA_DEVICE void look_ahead(i32 tile) {
    const i32 key = min_of(tile * tile_k + i32(threadIdx.x % tile_k), rows.sequence.len_k - 1);
    ahead = paged_row(p.sequences, rows.sequence, rows.batch_index, key);
  }
  // Where the lane's key of the next tile is.
  MICA_DEVICE PagedRow next_page(i32 tile) {
    PagedRow here = ahead;
    if constexpr (kByLanes) {
      here = entries.row(p.sequences, rows.sequence, tile, threadIdx.x % tile_k);
      entries.advance(p.sequences, rows.sequence, rows.batch_index, tile);
    } else {
      look_ahead(tile + warps_of_head());
    }
    return here;
  }

  MICA_DEVICE void load(i32 tile, i32 stage, i32 end) {
    if (tile < end) {
      const u32 shared = ring + stage * kAt.stage_bytes;
      const RowsArg &k = Operands::in_words(p.k), &v = Operands::in_words(p.v);
      const i32 k_words = Operands::words(p.dim_qk), v_words = Operands::words(p.dim_v);
      if constexpr (kLargePages) {
        load_pieces<KTile>(shared, k_base, k, tile, k_words);
        load_pieces<VTile>(shared + kAt.stage_v, v_base, v, tile, v_words);
        walk.advance(p.sequences, rows.batch_index, warps_of_head());
      } else if (rows.has(kFeaturePaged)) {
        const PagedRow here = next_page(tile);
        if (rows.has(kFeaturePageFactors)) fetch_factors(shared + kAt.stage_factors, here);
        if (Operands::kIsE4m3 && rows.has(kFeatureUnaligned)) {
          load_bytes<KTile>(shared, p.k, tile, p.dim_qk);
          load_bytes<VTile>(shared + kAt.stage_v, p.v, tile, p.dim_v);
        } else {
          const i64 k_row = paged_row_offset(p.sequences, here, k.stride_batch, k.stride_row);
          const i64 v_row = paged_row_offset(p.sequences, here, v.stride_batch, v.stride_row);
          load_paged<KTile>(shared, k_base, k_row, tile, k_words);
          load_paged<VTile>(shared + kAt.stage_v, v_base, v_row, tile, v_words);
        }
      } else if (Operands::kIsE4m3 && rows.has(kFeatureUnaligned)) {
        load_bytes<KTile>(shared, p.k, tile, p.dim_qk);
        load_bytes<VTile>(shared + kAt.stage_v, p.v, tile, p.dim_v);
      } else {
        load_dense<KTile>(shared, k_base, k.stride_row, tile, k_words);
        load_dense<VTile>(shared + kAt.stage_v, v_base, v.stride_row, tile, v_words);
      }
    }
    cp_async_commit();  // an empty group too: the waits count groups
  }

  // The factors of a tile's keys: those of K, then those of V.
  MICA_DEVICE void fetch_factors(u32 shared, const PagedRow& own) const {
    if constexpr (Operands::kIsE4m3) {
      const i32 lane = threadIdx.x % 32, page = KeyFactors::page(p.sequences, own);
      if (lane >= tile_k) return;
      KeyFactors::fetch(shared + lane * 4, p.k_descale, page, rows.head_k);
      KeyFactors::fetch(shared + (tile_k + lane) * 4, p.v_descale, page, rows.head_k);
    }
  }

  MICA_DEVICE void find_factors() {
    factors = KeyFactors::find(p, rows.sequence, rows.batch_index, rows.head_k, rows.has(kFeaturePageFactors));
  }

  // Two neighbouring elements of a query row.
  MICA_DEVICE u32 load_q_pair(const u16* row, i32 column) const {
    if (!rows.has(kFeatureUnaligned)) return column < p.dim_qk ? *reinterpret_cast<const u32*>(row + column) : 0u;
    const u32 low = column < p.dim_qk ? row[column] : 0u;
    return column + 1 < p.dim_qk ? low | u32(row[column + 1]) << 16 : low;
  }

  // A row of a q of e4m3.
  MICA_DEVICE void load_q_bytes(int half, const u8* row, bool used) {
#pragma unroll
    for (int step = 0; step < dim_qk / 16; ++step) {
      const i32 column = step * 16 + threadIdx.x % 4 * 4;
      u32 four = 0, pairs[2];
      if (used && !rows.has(kFeatureUnaligned) && column < p.dim_qk) {
        four = *reinterpret_cast<const u32*>(row + column);
      } else if (used) {
#pragma unroll
        for (int e = 0; e < 4; ++e) four |= column + e < p.dim_qk ? u32(row[column + e]) << (8 * e) : 0u;
      }
      expand_e4m3<Product>(pairs, four);
      q[step][half] = pairs[0];
      q[step][half + kQWords / 2] = pairs[1];
    }
  }

  // Q as the operands of its products; a query that is not in use becomes zeros.
  MICA_DEVICE void load_q() {
    // As K's columns stand (key_operands.cuh).
    constexpr i32 kFirst = Operands::kIsE4m3 ? 4 : 2, kSecond = Operands::kIsE4m3 ? 2 : 8;
    const i32 column = threadIdx.x % 4 * kFirst;
#pragma unroll
    for (int half = 0; half < kQWords / 2; ++half) {
      const typename Tile::Row row = kColumns ? rows.row_at(threadIdx.x % 32 / 4) : rows.row[half];
      const u16* from = rows.q_row(row);
      const bool used = row.query < rows.sequence.len_q;
      row_scale[half] = p.score.scale_log2;
      if (Operands::kIsE4m3 && (p.features & kFeatureE4m3Queries)) {
        load_q_bytes(half, rows.q_bytes(row), used);
        continue;
      }
#pragma unroll
      for (int step = 0; step < dim_qk / 16; ++step) {
        q[step][half] = used ? load_q_pair(from, step * 16 + column) : 0u;
        q[step][half + kQWords / 2] = used ? load_q_pair(from, step * 16 + kSecond + column) : 0u;
      }
      if constexpr (Product::kDtype != Element::kDtype) row_scale[half] *= q_to_fp16(half);
    }
    if constexpr (kColumns && kScalesRows)
      rows_to_columns(row_scale, row_scale[0]);
    else if constexpr (kColumns)
      row_scale[1] = row_scale[0];
    if constexpr (kScalesRows) scale_rows(rows.has(kFeaturePageFactors) ? 1.0f : factors.k * factors.q);
  }
  // A row of bf16 times the power of two that brings its largest element to between 2^14 and 2^15, so that all that is
  // more than 2^-28 of it stays as it is. Returns the inverse.
  MICA_DEVICE float q_to_fp16(int half) {
    float largest = 0.0f;
#pragma unroll
    for (int step = 0; step < dim_qk / 16; ++step)
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const float2 x = unpack<Element>(q[step][half + kQWords / 2 * pair]);
        largest = fmaxf(largest, fmaxf(fabsf(x.x), fabsf(x.y)));
      }
    constexpr u32 kBias = 127, kWanted = 14;
    const u32 exponent = bits_of(quad_max(largest)) >> 23;
    const u32 shift = min_of(2 * kBias + kWanted - exponent, 2 * kBias - 1);  // of the power of two, with its bias
    const float factor = float_of(shift << 23);
#pragma unroll
    for (int step = 0; step < dim_qk / 16; ++step)
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        u32& word = q[step][half + kQWords / 2 * pair];
        const float2 x = unpack<Element>(word);
        word = pack<Product>(x.x * factor, x.y * factor);
      }
    return float_of((2 * kBias - shift) << 23);
  }
  // Scores times a factor of any sign. The scale stays above 0: by 0 or less what is hidden would not be hidden.
  MICA_DEVICE void scale_rows(float factor) {
    constexpr float kLeast = 1e-30f;
    const u32 flip = factor < 0.0f ? 0x80008000u : 0u;
#pragma unroll
    for (int step = 0; step < dim_qk / 16; ++step)
#pragma unroll
      for (int e = 0; e < kQWords; ++e) q[step][e] ^= flip;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float scale = row_scale[half] * fabsf(factor);
      row_scale[half] = scale < kLeast ? kLeast : scale;
    }
  }

  MICA_DEVICE void gemm_qk(Scores& scores, i32 stage) {
    zero(scores);
    const u32 k_address = k_lane + stage * kAt.stage_bytes;
#pragma unroll
    for (int step = 0; step < dim_qk / 16 / Operands::kSteps; ++step)
#pragma unroll
      for (int n = 0; n < tile_k / 16; ++n) {
        const u32 address = KTile::step(k_address, step) + n * 16 * KTile::kRowBytes;
        if constexpr (kColumns)
          Operands::of_k_as_rows(address, [&](int s, const u32(&a)[4]) {
            const auto& b = q[step * Operands::kSteps + s];
            mma_m16n8k16<Product>(scores[n], a, b[0], b[1]);
          });
        else
          Operands::of_k(address, [&](int half, int s, u32 b0, u32 b1) {
            mma_m16n8k16<Product>(scores[2 * n + half], q[step * Operands::kSteps + s], b0, b1);
          });
      }
    if constexpr (Operands::kIsE4m3) {
      if (rows.has(kFeaturePageFactors))
        KeyFactors::multiply(scores, factors_lane + stage * kAt.stage_bytes, factors.q);
      else if (!kScalesRows)
        scale(scores, factors.k * factors.q);
    }
  }

  // out += P V with both in type T.
  template <class T>
  MICA_DEVICE void gemm_pv_as(const Scores& probabilities, i32 stage) {
    const u32 v_address = v_lane + stage * kAt.stage_bytes;
#pragma unroll
    for (int step = 0; step < tile_k / 16; ++step) {
      u32 own[4];
      if constexpr (kColumns)
        pack_b<T>(own, probabilities[step]);
      else
        pack_a<T>(own, probabilities[2 * step], probabilities[2 * step + 1]);
#pragma unroll
      for (int n = 0; n < dim_v / 16 / Operands::kSteps; ++n) {
        const u32 address = VTile::step(v_address, n) + step * 16 * VTile::kRowBytes;
        if constexpr (kColumns)
          KeyOperands<T, Key>::of_v_as_rows(address, [&](int block, const u32(&a)[4]) {
            mma_m16n8k16<T>(out[Operands::kSteps * n + block], a, own[0], own[1]);
          });
        else
          KeyOperands<T, Key>::of_v(address, [&](int block, u32 b0, u32 b1) {
            mma_m16n8k16<T>(out[2 * Operands::kSteps * n + block], own, b0, b1);
          });
      }
    }
  }
  MICA_DEVICE void gemm_pv(Scores& probabilities, i32 stage) {
    if constexpr (Operands::kIsE4m3 && kSplitsP<Element, Tile::kServed>) {
      if (rows.has(kFeaturePageFactors)) {
#pragma unroll 1
        for (int part = 0; part < 2; ++part) {
          gemm_pv_as<Bf16>(probabilities, stage);
          subtract_bf16(probabilities);
        }
        return;
      }
    }
    if (Product::kDtype != Element::kDtype && rows.has(kFeaturePageFactors))
      gemm_pv_as<Bf16>(probabilities, stage);
    else
      gemm_pv_as<Product>(probabilities, stage);
  }

  // The key tiles of this warp: of the split's one for each warp of the head in turn.
  MICA_DEVICE void attend() {
    const i32 step = warps_of_head(), first = first_tile();
    if ((kLargePages || rows.has(kFeaturePaged)) && first < own.end) begin_pages(first);
#pragma unroll 1
    for (int s = 0; s < stages - 1; ++s) load(first + s * step, s, own.end);
    if constexpr (Operands::kIsE4m3 && kGuesses) find_factors();  // while the first keys are on their way
    load_q();
    i32 stage = 0;
    for (i32 tile = first; tile < own.end; tile += step) {
      cp_async_wait<stages - 2>();
      __syncwarp();  // every lane's part of this tile has arrived, and the tile before has been read
      load(tile + (stages - 1) * step, stage == 0 ? stages - 1 : stage - 1, own.end);
      Scores scores;
      gemm_qk(scores, stage);
      const bool is_full = tile >= tiles.full_begin && tile < tiles.full_end;
      if constexpr (kColumns) {
        if (!is_full) mask_columns(rows, scores, tile * tile_k);
        softmax_columns(scores, state, out, row_scale);
      } else {
        rows.score(scores, tile * tile_k);
        if (!is_full) rows.mask(scores, tile * tile_k);
        if constexpr (kScalesRows)
          rows.softmax(scores, state, out, row_scale);
        else
          rows.softmax(scores, state, out);
        rows.drop(scores, tile * tile_k);
      }
      if (Operands::kIsE4m3 && rows.has(kFeaturePageFactors))
        KeyFactors::multiply(scores, factors_lane + stage * kAt.stage_bytes + tile_k * 4, factors.v_inverse);
      gemm_pv(scores, stage);
      stage = stage == stages - 1 ? 0 : stage + 1;
    }
  }

  MICA_DEVICE i32 first_tile() const { return own.begin + i32(thread_of_head() / 32); }
  // What follows from the tile, before the kernel before this one is done.
  MICA_DEVICE void prepare() {
    if constexpr (kColumns)
      rows.begin_columns();
    else
      rows.begin_rows(0);
    tiles = rows.touched(tile_k);
    own = rows.share_of(tiles);
    if constexpr (kGuesses)
      if (rows.has(kFeaturePaged)) {
        entries.find_pieces(p.sequences, rows.sequence);
        if (first_tile() < own.end) entries.call_in(p.sequences, rows.sequence, rows.batch_index, first_tile());
      }
  }

#if MICA_JOINS_SPLITS
  static_assert(joins_splits(served == serves::FULL, dim_qk));
  MICA_DEVICE SplitJoiner<Tile, tile_q, dim_v> joiner(u8* smem) const {
    return {p, rows, smem, own_head(), i32(thread_of_head()), warps_of_head()};
  }
#endif

  MICA_DEVICE void run(u8* smem) {
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    ring = shared_address(smem) + warp * kAt.ring_bytes;
    const i32 heads_of_block = kPairsHeads ? p.section_heads : 1;
    if constexpr (kGuesses) {
      const auto prepares = [&] { prepare(); };
      if (!rows.guess_and_wait(tile_q, prepares, heads_of_block, own_head())) return;
    } else {
      if (!rows.locate_and_wait(tile_q, heads_of_block, own_head())) return;
      prepare();
    }
#if MICA_JOINS_SPLITS
    joiner(smem).begin();
#endif
    k_base = rows.key_base(Operands::in_words(p.k));
    v_base = rows.key_base(Operands::in_words(p.v));
    k_lane = ring + KTile::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    v_lane = ring + kAt.stage_v + VTile::offset(lane % 16, lane / 16);
    factors_lane = ring + kAt.stage_factors + lane % 4 * 8;
    if constexpr (Operands::kIsE4m3 && !kGuesses) find_factors();
    state[0] = state[1] = empty_state<FloatMath>();
    zero(out);
    attend();

    if constexpr (!kColumns) Operands::put_in_order(out);
    if constexpr (Operands::kIsE4m3) scale(out, factors.v);
    cp_async_wait<0>();
    __syncthreads();  // the rings are free
    const Parts parts(smem);
    if constexpr (kColumns)
      store_columns<Operands::kIsE4m3>(parts, warp, state, out);
    else
      parts.store(warp, 0, 0, state, out);
    __syncthreads();
    for (i32 index = thread_of_head(); index < rows.rows * (dim_v / 4); index += 32 * warps_of_head())
      rows.join(parts, index / (dim_v / 4), index % (dim_v / 4) * 4, own_head() * warps_of_head(), warps_of_head());
#if MICA_JOINS_SPLITS
    joiner(smem).join_if_last();
#endif
  }
};

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, MICA_BLOCKS)
    MICA_KERNEL_NAME(const __grid_constant__ mica::ForwardParams params) {
  extern __shared__ __align__(1024) mica::u8 smem[];
  using Kernel = mica::DecodeSm80<MICA_ELEMENT, MICA_KEY_ELEMENT, MICA_DIM_QK, MICA_DIM_V, MICA_TILE_Q, MICA_TILE_K,
                                  MICA_WARPS, MICA_STAGES, MICA_SERVED>;
  Kernel kernel{params, {params}};
  mica::call_in_params(params);
  mica::griddepcontrol_launch_dependents();
  kernel.run(smem);
}
