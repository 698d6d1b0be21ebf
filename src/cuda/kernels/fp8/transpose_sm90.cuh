// SPDX-License-Identifier: Apache-2.0
// V to V^T for forward_fp8_sm90, in shared memory: what wgmma sums over must lie along rows where elements have 8 bits.
#pragma once

#include "device/cluster_copy_sm90.cuh"
#include "device/ptx_sm90.cuh"

namespace mica {

// A warp's part of a key tile of 128 keys: `chunks` times 16 columns. VTile, VtTile: PanelTiles of V as it came and of
// V^T.
template <class VTile, class VtTile, int chunks>
struct Fp8Transposer {
  static constexpr int kKeys = 32;                         // at a time
  static constexpr int kSteps = 4;                         // of 32 keys
  static constexpr int kAhead = 2;                         // steps that are read before the first is written
  static constexpr u32 kChunkBytes = 16 * kSteps * kKeys;  // of V^T
  static_assert(VtTile::kPanelBytes == VtTile::kBytes, "one panel of 128 keys");

  u32 from, to;  // V, and the warp's first row of V^T
  u32 first_chunk;
  i32 valid;  // keys; the rest becomes zeros: it may be NaN, which a probability of 0 does not make 0

  MICA_DEVICE bool ends() const { return valid < kSteps * kKeys; }

  // 32 keys x 16 columns at a time. ldmatrix gives lane l, of keys 8m to 8m + 7, the bytes (2t, 2c) (2t, 2c + 1)
  // (2t + 1, 2c) (2t + 1, 2c + 1) with t = l % 4, c = l / 4; of two such words one has column 2c of keys 2t, 2t + 1,
  // 8 + 2t, 8 + 2t + 1, the other column 2c + 1: these four keys stand at 4t of the 16, and columns 2c (2c + 1) are row
  // c (8 + c) of the 16.
  template <bool ends>
  MICA_DEVICE void chunk(int index) const {
    const i32 lane = threadIdx.x % 32;
    // Of chunk 0 and the first keys; chunks differ in bits 4 to 6 of V's addresses, keys in bits 5 and 6 of V^T's.
    const u32 row = (from + lane * 128 + (lane % 8 << 4)) ^ (first_chunk % 8 << 4);
    const u32 panel = (first_chunk + index) / 8 * VTile::kPanelBytes;
    const u32 transposed = to + index * kChunkBytes + lane % 16 * 128 + ((lane / 16 ^ lane % 8) << 4);
#pragma unroll
    for (int first = 0; first < kSteps; first += kAhead) {
      u32 r[kAhead][4];
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        ldmatrix_x4_trans(r[i], (row ^ index % 8 << 4) + panel + (first + i) * kKeys * 128);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if constexpr (ends) clear_past_end(r[i], valid - (first + i) * kKeys);
        const u32 words[4] = {byte_perm(r[i][0], r[i][1], 0x6420), byte_perm(r[i][0], r[i][1], 0x7531),
                              byte_perm(r[i][2], r[i][3], 0x6420), byte_perm(r[i][2], r[i][3], 0x7531)};
        stmatrix_x4(transposed ^ (first + i) << 5, words);
      }
    }
  }
  static MICA_DEVICE void clear_past_end(u32 (&r)[4], i32 valid) {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const i32 left = valid - (m * 8 + i32(threadIdx.x) % 4 * 2);
      r[m] = left <= 0 ? 0 : left == 1 ? r[m] & 0xffffu : r[m];
    }
  }

  // All of them; ready(first byte of V^T, bytes) is called when so many chunks are there, which wgmma and the copy
  // engine may read.
  template <int chunks_at_once, class Ready>
  MICA_DEVICE void run(Ready ready) const {
    static_assert(chunks % chunks_at_once == 0);
    ends() ? run<chunks_at_once, true>(ready) : run<chunks_at_once, false>(ready);
  }
  template <int chunks_at_once, bool ends, class Ready>
  MICA_DEVICE void run(Ready ready) const {
#pragma unroll
    for (int index = 0; index < chunks; ++index) {
      chunk<ends>(index);
      if ((index + 1) % chunks_at_once != 0) continue;
      fence_for_wgmma();
      __syncwarp();
      ready(to + (index + 1 - chunks_at_once) * kChunkBytes, chunks_at_once * kChunkBytes);
    }
  }
};

}  // namespace mica
