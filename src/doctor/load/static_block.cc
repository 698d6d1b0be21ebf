// SPDX-License-Identifier: Apache-2.0
#include "doctor/load/static_block.h"

#include <algorithm>

#include "doctor/load/tunables.h"

namespace doctor {

namespace {

// What glibc has kept free since 2.3, and of that the share for data that could be elsewhere, since 2.32.
constexpr uint64_t kSurplus = 1664, kShare = 512;
// Far above what a program has, far below an overflow: sizes are read from files.
constexpr uint64_t kMostBlockBytes = uint64_t(1) << 40;

uint64_t rounded_up(uint64_t bytes, uint64_t align) { return (bytes + align - 1) / align * align; }

uint64_t bounded(uint64_t bytes) { return std::min(bytes, kMostBlockBytes); }

}  // namespace

void StaticBlock::add(const ThreadData& data) {
  if (data.bytes == 0) return;
  const uint64_t align = std::max<uint64_t>(1, bounded(data.align));
  used_ = bounded(rounded_up(used_ + bounded(data.bytes), align));
  align_ = std::max(align_, align);
}

void StaticBlock::begin(const Environment& target) {
  // The thread's own record decides about the alignment where no data asks for more.
  const bool is_x86 = target.machine == "x86_64";
  is_known_ = target.libc == "glibc" && (is_x86 || target.machine == "aarch64");
  align_ = std::max<uint64_t>(align_, is_x86 ? 64 : 32);
  const bool has_share = !target.libc_version.known() || target.libc_version >= Version{{2, 32}};
  const auto tuned = tunable(target.loader.tunables, "glibc.rtld.optional_static_tls");
  share_ = has_share ? bounded(tuned.value_or(kShare)) : kSurplus;
  size_ = rounded_up(used_ + (has_share ? kSurplus - kShare + share_ : kSurplus), align_);
}

bool StaticBlock::take(const ThreadData& data, bool can_do_without) {
  if (!is_known_ || data.bytes == 0) return true;
  const uint64_t align = std::max<uint64_t>(1, bounded(data.align));
  const uint64_t used = rounded_up(used_ + bounded(data.bytes), align);
  if (align > align_ || used > size_ || (can_do_without && used - used_ > share_)) return false;
  if (can_do_without) share_ -= used - used_;
  used_ = used;
  return true;
}

}  // namespace doctor
