// SPDX-License-Identifier: Apache-2.0
// The beginning of a kernel that may be dealt out before the one before it is done (plan/steps.h).
#pragma once

#include "device/ptx.cuh"
#include "kernels/params.h"

namespace mica {

// Whether a kernel of this architecture may.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kMayBeginEarly = false;
#else
constexpr bool kMayBeginEarly = true;
#endif

// Whether where a sequence's queries lie and how many they are stands in memory, which the kernel before may write.
MICA_DEVICE bool reads_query_lengths(const SequenceTable& t) { return t.cu_seqlens_q || t.seqused_q; }
// The same of its keys, or its queries: only without is a block's place known before it has waited.
MICA_DEVICE bool reads_lengths(const SequenceTable& t) {
  return reads_query_lengths(t) || t.cu_seqlens_k || t.seqused_k || t.cache_batch_idx || t.cache_leftpad;
}
// The sequence as it is before the wait: most often as it will be then. Its vectors are read past L1, where what was
// there too soon would be found again.
MICA_DEVICE Sequence guessed_sequence(const SequenceTable& t, i32 b) {
  return sequence_by(t, b, [](const i32* address) { return load_relaxed(address); });
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
