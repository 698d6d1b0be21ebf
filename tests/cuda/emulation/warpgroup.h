// SPDX-License-Identifier: Apache-2.0
// wgmma on the host: products are put off until they are waited for, and read shared memory only then.
#pragma once

#include <vector>

#include "core/types.h"

namespace mica::emulation {

// One thread's part of c (64 x n) += a (64 x 16) b (16 x n), of e4m3 a (64 x 32) b (32 x n).
struct WgmmaPart {
  float* c;  // [n / 8][4]
  int n;
  i32 dtype;  // of a and b
  bool accumulate, a_is_shared;
  bool a_down, b_down;  // the summed index goes down the rows
  u32 a[4];             // where it is not shared
  u64 a_descriptor, b_descriptor;
};
// Of one thread.
struct WgmmaQueue {
  std::vector<WgmmaPart> open;                 // since the last commit
  std::vector<std::vector<WgmmaPart>> groups;  // committed, oldest first
};
void wgmma(const WgmmaPart& part);
void wgmma_commit();
void wgmma_wait(int pending);

}  // namespace mica::emulation
