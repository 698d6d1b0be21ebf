// SPDX-License-Identifier: Apache-2.0
#include "doctor/read/unpack/zstd.h"

#if MICA_DOCTOR_HAS_ZSTD
#include <zstd.h>

#include <algorithm>
#include <memory>
#endif

namespace doctor {

bool has_zstd() { return MICA_DOCTOR_HAS_ZSTD != 0; }

#if MICA_DOCTOR_HAS_ZSTD

std::vector<uint8_t> expand_zstd(std::span<const uint8_t> frame, std::size_t most) {
  constexpr int kMostWindowLog = 24;
  constexpr std::size_t kStep = 64 << 10;
  const std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> decoder(ZSTD_createDCtx(), &ZSTD_freeDCtx);
  if (!decoder || ZSTD_isError(ZSTD_DCtx_setParameter(decoder.get(), ZSTD_d_windowLogMax, kMostWindowLog))) return {};
  std::vector<uint8_t> plain;
  ZSTD_inBuffer in = {frame.data(), frame.size(), 0};
  while (plain.size() < most) {
    const std::size_t had = plain.size(), before = in.pos;
    plain.resize(std::min(most, had + kStep));  // not by what the frame claims
    ZSTD_outBuffer out = {plain.data() + had, plain.size() - had, 0};
    const std::size_t left = ZSTD_decompressStream(decoder.get(), &out, &in);
    plain.resize(had + out.pos);
    const bool is_stuck = out.pos == 0 && in.pos == before;
    if (ZSTD_isError(left) || left == 0 || is_stuck) break;
  }
  return plain;
}

#else

std::vector<uint8_t> expand_zstd(std::span<const uint8_t>, std::size_t) { return {}; }

#endif

}  // namespace doctor
