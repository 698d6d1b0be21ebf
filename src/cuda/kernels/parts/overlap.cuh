// SPDX-License-Identifier: Apache-2.0
// The beginning of a kernel that may be dealt out before the one before it is done (plan/steps.h).
#pragma once

#include "device/ptx.cuh"
#include "kernels/params.h"

namespace mica {

// Whether where a sequence lies and how long it is stands in memory, which the kernel before may write: only without is
// a block's place known before it has waited.
MICA_DEVICE bool reads_lengths(const SequenceTable& t) {
  return t.cu_seqlens_q || t.cu_seqlens_k || t.seqused_q || t.seqused_k || t.cache_batch_idx || t.cache_leftpad;
}

// Parameters are far away when a block begins, and whoever reads them one after the other waits as often: each warp
// asks for some of their lines.
template <class Params>
MICA_DEVICE void call_in_params(const Params& params) {
  constexpr u32 kLine = 64;
#pragma unroll 1
  for (u32 at = threadIdx.x / 32 * kLine; at < sizeof params; at += blockDim.x / 32 * kLine) {
    const u32 word = *reinterpret_cast<const u32*>(reinterpret_cast<const u8*>(&params) + at);
    asm volatile("" ::"r"(word));
  }
}

}  // namespace mica
