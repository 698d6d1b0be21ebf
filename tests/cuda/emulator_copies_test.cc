// SPDX-License-Identifier: Apache-2.0
// The emulator's copy engine: tensor maps, barriers that count bytes, copies that are late, and the mistakes in a
// kernel that it must find.
#include <cmath>
#include <cstdint>
#include <iterator>
#include <vector>

#include "device/key_tile.cuh"
#include "device/tma_blocks.cuh"
#include "device/wgmma.cuh"
#include "tests/cuda/emulator_test.h"
#include "tests/cuda/fake_tensor_map.h"

namespace mica {
namespace {

using emulation::Schedule;

constexpr Schedule kOrders[] = {{false, false}, {true, true}};

// A tensor of 16-bit numbers: 20 rows of 40 columns, 2 heads, 1 slot, element (column, row, head) = a bf16 of its own.
constexpr u32 kColumns = 40, kRows = 20, kHeads = 2, kBoxRows = 16, kBoxBytes = kBoxRows * 128;
struct Tensor16 {
  alignas(16) u16 elements[kHeads * kRows * kColumns];
  u16& at(u32 column, u32 row, u32 head) { return elements[(head * kRows + row) * kColumns + column]; }
};
Tensor16 counted() {
  Tensor16 tensor;
  for (u32 i = 0; i < kHeads * kRows * kColumns; ++i) tensor.elements[i] = u16(0x3f00 + i);
  return tensor;
}

struct MapArguments {
  int type = test::kMapBf16;
  u32 rank = 4;
  std::uint64_t address = 4096;
  std::uint64_t dims[4] = {kColumns, kRows, kHeads, 1};
  std::uint64_t strides[3] = {kColumns * 2, kRows* kColumns * 2, kHeads* kRows* kColumns * 2};
  u32 box[4] = {64, kBoxRows, 1, 1}, element_strides[4] = {1, 1, 1, 1};
  int interleave = 0, swizzle = test::kMapSwizzle128, promotion = 2, fill = 0;
};
cu::Result encode(TensorMap* map, const MapArguments& a) {
  return test::encode_tensor_map(map, a.type, a.rank, reinterpret_cast<void*>(a.address), a.dims, a.strides, a.box,
                                 a.element_strides, a.interleave, a.swizzle, a.promotion, a.fill);
}
TensorMap map_of(const void* address, int swizzle = test::kMapSwizzle128) {
  TensorMap map;
  MapArguments a;
  a.address = reinterpret_cast<std::uintptr_t>(address);
  a.swizzle = swizzle;
  EXPECT_EQ(encode(&map, a), cu::kSuccess);
  return map;
}

TEST(TensorMaps, TheDriversRules) {
  const auto result_of = [](auto change) {
    TensorMap map;
    MapArguments a;
    change(a);
    return encode(&map, a);
  };
  EXPECT_EQ(result_of([](MapArguments&) {}), cu::kSuccess);
  EXPECT_EQ(result_of([](MapArguments& a) { a.strides[2] = 0; }), cu::kSuccess);  // one slot
  EXPECT_EQ(result_of([](MapArguments& a) { a.rank = 3; }), cu::kInvalidValue);
  EXPECT_EQ(result_of([](MapArguments& a) { a.rank = 6; }), cu::kInvalidValue);
  EXPECT_EQ(result_of([](MapArguments& a) { a.type = 20; }), cu::kInvalidValue);
  EXPECT_EQ(result_of([](MapArguments& a) { a.address = 4104; }), cu::kInvalidValue);
  EXPECT_EQ(result_of([](MapArguments& a) { a.dims[1] = 0; }), cu::kInvalidValue);
  EXPECT_EQ(result_of([](MapArguments& a) { a.strides[0] = 88; }), cu::kInvalidValue);
  EXPECT_EQ(result_of([](MapArguments& a) { a.strides[1] = 0; }), cu::kInvalidValue);
  EXPECT_EQ(result_of([](MapArguments& a) { a.strides[1] = std::uint64_t{1} << 40; }), cu::kInvalidValue);
  EXPECT_EQ(result_of([](MapArguments& a) { a.box[0] = 72; }), cu::kInvalidValue);
  EXPECT_EQ(result_of([](MapArguments& a) { a.box[1] = 257; }), cu::kInvalidValue);
  EXPECT_EQ(result_of([](MapArguments& a) { a.box[2] = 0; }), cu::kInvalidValue);
  EXPECT_EQ(result_of([](MapArguments& a) { a.element_strides[1] = 2; }), cu::kInvalidValue);
  EXPECT_EQ(result_of([](MapArguments& a) { a.interleave = 1; }), cu::kInvalidValue);
  EXPECT_EQ(result_of([](MapArguments& a) { a.fill = 1; }), cu::kInvalidValue);

  TensorMap map = {};
  EXPECT_EQ(test::replace_tensor_map_address(&map, nullptr), cu::kInvalidValue) << "nobody encoded it";
  ASSERT_EQ(encode(&map, {}), cu::kSuccess);
  EXPECT_EQ(test::replace_tensor_map_address(&map, reinterpret_cast<void*>(8200)), cu::kInvalidValue);
  EXPECT_EQ(test::replace_tensor_map_address(&map, reinterpret_cast<void*>(8208)), cu::kSuccess);
  EXPECT_EQ(test::decode_tensor_map(map).address, 8208u);
}

struct BoxParams {
  TensorMap map;
  TmaPlace place;
  u16* out;  // kBoxBytes as they lie in shared memory, or what the test says
};
constexpr u32 kRoom = 8192, kBarrier = kRoom - 64;  // bytes of shared memory; where the barriers begin

u32 barrier_at(u32 index) { return shared_address(smem) + kBarrier + index * 8; }
// By all threads.
template <bool with_fence = true>
void make_barrier(u32 arrivals) {
  if (threadIdx.x == 0) {
    mbarrier_init(barrier_at(0), arrivals);
    if (with_fence) fence_for_wgmma();
  }
  __syncthreads();
}

enum class Mistake {
  kNone,
  kNoFence,        // after the barrier was made
  kNoWait,         // a barrier of the block instead
  kNoExpectation,  // of the bytes
  kTooMuchExpected,
  kTwoLanes,     // ask for the same copy
  kNotAt1024,    // the box
  kTooSoon,      // the second box into the room of the first, which others still read
  kNobodyWaits,  // for the second
};

// Warp 0 asks for a box, warp 1 takes it out; then the same again from the rows below.
template <Mistake mistake>
void take_boxes(BoxParams p) {
  const u32 shared = shared_address(smem) + (mistake == Mistake::kNotAt1024 ? 512 : 0);
  make_barrier<mistake != Mistake::kNoFence>(1);
  if (threadIdx.x == 0) mbarrier_init(barrier_at(1), 32);
  __syncthreads();
  for (u32 step = 0; step < 2; ++step) {
    if (threadIdx.x < (mistake == Mistake::kTwoLanes ? 2 : 1)) {
      if (mistake != Mistake::kTooSoon && mistake != Mistake::kNoWait) mbarrier_wait(barrier_at(1), ~step & 1);
      if (threadIdx.x == 0) {
        if (mistake == Mistake::kNoExpectation)
          mbarrier_arrive(barrier_at(0));
        else
          mbarrier_arrive_expecting(barrier_at(0), kBoxBytes + (mistake == Mistake::kTooMuchExpected ? 16 : 0));
      }
      tma_load(shared, p.map, {p.place.column, p.place.row + i32(step * kBoxRows), p.place.head, 0}, barrier_at(0));
    }
    if (threadIdx.x >= 32 && !(mistake == Mistake::kNobodyWaits && step == 1)) {
      if (mistake != Mistake::kNoWait) mbarrier_wait(barrier_at(0), step);
      for (u32 i = threadIdx.x - 32; i < kBoxBytes / 2; i += 32)
        p.out[step * kBoxBytes / 2 + i] = reinterpret_cast<const u16*>(smem)[i];
      mbarrier_arrive(barrier_at(1));
    }
    if (mistake == Mistake::kNoWait) __syncthreads();
  }
}
template <Mistake mistake>
std::string run_boxes(Tensor16& tensor, TmaPlace place, std::vector<u16>& out, const Schedule& order = {}) {
  out.assign(kBoxBytes, 0);
  return run_with<take_boxes<mistake>>(1, 64, kRoom, BoxParams{map_of(tensor.elements), place, out.data()}, order);
}

TEST(CopyEngine, BoxesAreSwizzledAndZeroOutsideTheTensor) {
  Tensor16 tensor = counted();
  std::vector<u16> out;
  for (const TmaPlace place : {TmaPlace{0, 0, 0, 0}, TmaPlace{-3, -5, 1, 0}, TmaPlace{24, 7, 1, 0}})
    for (const Schedule& order : kOrders) {
      EXPECT_EQ(run_boxes<Mistake::kNone>(tensor, place, out, order), "");
      for (i32 row = 0; row < i32(2 * kBoxRows); ++row)
        for (i32 column = 0; column < 64; ++column) {
          const i32 in_box = row % i32(kBoxRows), chunk = column / 8 ^ in_box % 8;
          const u32 at = row / kBoxRows * kBoxBytes / 2 + in_box * 64 + chunk * 8 + column % 8;
          const i32 x = place.column + column, y = place.row + row;
          const bool inside = x >= 0 && x < i32(kColumns) && y >= 0 && y < i32(kRows);
          ASSERT_EQ(out[at], inside ? tensor.at(x, y, place.head) : 0) << row << ", " << column;
        }
    }
}

// Two pages of 16 rows, of 128 columns and two heads; a box has all columns of a page of a head.
constexpr u32 kPageRows = 16, kPageColumns = 128, kPageHeads = 2, kPages = 2, kPageBytes = kPageRows * kPageColumns * 2;
template <bool by_five_axes>
void take_page(BoxParams p) {
  make_barrier(1);
  if (threadIdx.x == 0) {
    mbarrier_arrive_expecting(barrier_at(0), kPageBytes);
    if (by_five_axes)
      tma_load_blocks(shared_address(smem), p.map, p.place.row, p.place.slot, barrier_at(0));
    else
      tma_load(shared_address(smem), p.map, {0, 0, p.place.row, p.place.slot}, barrier_at(0));
  }
  mbarrier_wait(barrier_at(0), 0);
  for (u32 i = threadIdx.x; i < kPageBytes / 2; i += 32) p.out[i] = reinterpret_cast<const u16*>(smem)[i];
}
TEST(CopyEngine, BlocksOfWholeRowsHaveTheirPanelsBesideEachOther) {
  alignas(16) static u16 cache[kPages * kPageRows * kPageHeads * kPageColumns];
  for (u32 i = 0; i < std::size(cache); ++i) cache[i] = u16(i);
  // Axes: column of a panel, row of a block, panel, block, head and page.
  const std::uint64_t dims[] = {64, 8, 2, 2, (kPages - 1) * kPageRows * kPageHeads + kPageHeads};
  const std::uint64_t row = kPageHeads * kPageColumns * 2, strides[] = {row, 128, 8 * row, kPageColumns * 2};
  const u32 box[] = {64, 8, 2, 2, 1}, ones[] = {1, 1, 1, 1, 1};
  TensorMap map;
  ASSERT_EQ(
      test::encode_tensor_map(&map, test::kMapBf16, 5, cache, dims, strides, box, ones, 0, test::kMapSwizzle128, 2, 0),
      cu::kSuccess);
  std::vector<u16> out(kPageBytes / 2);
  for (u32 page = 0; page < kPages; ++page)
    for (u32 head = 0; head < kPageHeads; ++head) {
      const TmaPlace place = {0, 0, 0, i32(page * kPageRows * kPageHeads + head)};
      EXPECT_EQ(run_with<take_page<true>>(1, 32, kRoom, BoxParams{map, place, out.data()}), "");
      using Tile = KeyTile<kPageColumns, kPageRows, true>;
      for (u32 r = 0; r < kPageRows; ++r)
        for (u32 c = 0; c < kPageColumns; ++c)
          ASSERT_EQ(out[Tile::offset(r, c / 8) / 2 + c % 8],
                    cache[((page * kPageRows + r) * kPageHeads + head) * kPageColumns + c])
              << r << ", " << c;
    }
  EXPECT_TRUE(says(run_with<take_page<false>>(1, 32, kRoom, BoxParams{map, {}, out.data()}), "by other axes"));
}

TEST(CopyEngine, FindsWhatAKernelForgot) {
  Tensor16 tensor = counted();
  std::vector<u16> out;
  for (const Schedule& order : kOrders) {
    EXPECT_TRUE(says(run_boxes<Mistake::kNoFence>(tensor, {}, out, order), "whose maker made no fence_for_wgmma"));
    EXPECT_TRUE(says(run_boxes<Mistake::kNoWait>(tensor, {}, out, order), "a race"));
    EXPECT_EQ(out[0], 0xffff) << "NaN: the copy is late";
    EXPECT_TRUE(says(run_boxes<Mistake::kNoExpectation>(tensor, {}, out, order), "a race: reads"));
    EXPECT_TRUE(says(run_boxes<Mistake::kTooMuchExpected>(tensor, {}, out, order), "0 arrivals and 16 bytes"));
    EXPECT_TRUE(says(run_boxes<Mistake::kTwoLanes>(tensor, {}, out, order), "its bulk copy: a race: writes"));
    EXPECT_TRUE(says(run_boxes<Mistake::kNotAt1024>(tensor, {}, out, order), "not at 1024 bytes of shared memory"));
    EXPECT_TRUE(says(run_boxes<Mistake::kTooSoon>(tensor, {}, out, order), "its bulk copy: a race: writes"));
    EXPECT_TRUE(says(run_boxes<Mistake::kNobodyWaits>(tensor, {}, out, order), "nobody waits for any more"));
  }
}

// Bytes that nobody expects are found at the end, too.
void never_expected(BoxParams p) {
  make_barrier(1);
  if (threadIdx.x == 0) {
    tma_load(shared_address(smem), p.map, p.place, barrier_at(0));
    mbarrier_arrive(barrier_at(0));
  }
}
void map_of_nobody(BoxParams p) {
  make_barrier(1);
  if (threadIdx.x != 0) return;
  tma_prefetch(p.map);
  mbarrier_arrive(barrier_at(0));
}
void past_the_room(BoxParams p) {
  make_barrier(1);
  if (threadIdx.x == 0) tma_load(shared_address(smem) + kRoom - 1024, p.map, p.place, barrier_at(0));
}

TEST(CopyEngine, BytesMapsAndBounds) {
  Tensor16 tensor = counted();
  const BoxParams params = {map_of(tensor.elements), {}, nullptr};
  EXPECT_TRUE(says(run_with<never_expected>(1, 32, kRoom, params), "never expected bytes that came"));
  EXPECT_TRUE(says(run_with<past_the_room>(1, 32, kRoom, params), "to outside shared memory"));
  EXPECT_TRUE(says(run_with<map_of_nobody>(1, 32, kRoom, BoxParams{}), "that the driver did not make"));
}

TEST(CopyEngine, FencedMemoryIsNotRead) {
  Tensor16 tensor = counted();
  std::vector<u16> out;
  emulation::fence(&tensor.at(0, 3, 0), 2);
  EXPECT_TRUE(says(run_boxes<Mistake::kNone>(tensor, {}, out), "reads what it must not"));
  emulation::open_fence(&tensor.at(0, 3, 0), 2);
}

struct RowParams {
  const float* in;
  float* out;
  u32 bytes;
};
// A row of bytes into shared memory; out of it, times two, and added to `out`.
template <bool with_fence, bool with_wait, bool overwrites>
void row_there_and_back(RowParams p) {
  make_barrier(1);
  if (threadIdx.x == 0) {
    mbarrier_arrive_expecting(barrier_at(0), p.bytes);
    bulk_load(shared_address(smem), p.in, p.bytes, barrier_at(0));
  }
  mbarrier_wait(barrier_at(0), 0);
  for (u32 i = threadIdx.x; i < p.bytes / 4; i += 32) shared_floats()[i] *= 2.0f;
  if (with_fence) fence_for_wgmma();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_reduce_add(p.out, shared_address(smem), p.bytes);
    bulk_commit();
  }
  if (overwrites && threadIdx.x == 0) shared_floats()[1] = 100.0f;
  if (with_wait && threadIdx.x == 0) bulk_wait_read();
}

TEST(CopyEngine, RowsOfBytesAndReductions) {
  alignas(16) float in[64], out[64];
  for (const Schedule& order : kOrders) {
    for (int i = 0; i < 64; ++i) {
      in[i] = float(i);
      out[i] = 1.0f;
    }
    const RowParams params = {in, out, 48 * 4};
    EXPECT_EQ((run_with<row_there_and_back<true, true, false>>(1, 32, kRoom, params, order)), "");
    for (int i = 0; i < 64; ++i) EXPECT_EQ(out[i], i < 48 ? 2.0f * float(i) + 1.0f : 1.0f);
    EXPECT_TRUE(says((run_with<row_there_and_back<false, true, false>>(1, 32, kRoom, params, order)),
                     "reads what a thread wrote without fence_for_wgmma"));
    EXPECT_TRUE(says((run_with<row_there_and_back<true, false, false>>(1, 32, kRoom, params, order)),
                     "returns while a bulk copy may still read"));
    out[1] = 0.0f;
    EXPECT_TRUE(says((run_with<row_there_and_back<true, true, true>>(1, 32, kRoom, params, order)),
                     "a race: writes what another thread reads"));
    EXPECT_EQ(out[1], 100.0f) << "the source is read late";
    EXPECT_TRUE(says((run_with<row_there_and_back<true, true, false>>(1, 32, kRoom, RowParams{in, out, 40}, order)),
                     "no multiples of 16"));
  }
}

// A box that a warp wrote, element i of the swizzled rows = i; with_wait: before another is written in its place.
template <bool with_wait, bool with_barrier>
void store_box(BoxParams p) {
  u16* room = reinterpret_cast<u16*>(smem);
  const auto fill = [&](u16 offset) {
    for (u32 i = threadIdx.x; i < kBoxBytes / 2; i += 32) {
      const u32 row = i / 64, column = i % 64;
      room[row * 64 + (column / 8 ^ row % 8) * 8 + column % 8] = u16(i + offset);
    }
  };
  fill(0);
  fence_for_wgmma();
  if (with_barrier) __syncwarp();
  if (threadIdx.x == 0) {
    tma_store(p.map, p.place, shared_address(smem));
    bulk_commit();
    if (with_wait) bulk_wait_read();
  }
  __syncthreads();
  fill(5000);
  if (!with_wait && threadIdx.x == 0) bulk_wait_read();
}

TEST(CopyEngine, StoresReadLateAndWriteInsideTheTensor) {
  for (const Schedule& order : kOrders) {
    Tensor16 tensor = counted();
    const BoxParams params = {map_of(tensor.elements), {8, 12, 1, 0}, nullptr};
    EXPECT_EQ((run_with<store_box<true, true>>(1, 32, kRoom, params, order)), "");
    Tensor16 want = counted();
    for (u32 row = 12; row < kRows; ++row)
      for (u32 column = 8; column < kColumns; ++column) want.at(column, row, 1) = u16((row - 12) * 64 + column - 8);
    EXPECT_EQ(std::vector<u16>(tensor.elements, std::end(tensor.elements)),
              std::vector<u16>(want.elements, std::end(want.elements)));
    EXPECT_TRUE(says((run_with<store_box<false, true>>(1, 32, kRoom, params, order)),
                     "a race: writes what another thread reads"));
    EXPECT_EQ(tensor.at(8, 12, 1), 5000);
    EXPECT_TRUE(says((run_with<store_box<true, false>>(1, 32, kRoom, params, order)), "a race"));
  }
}

struct FloatParams {
  const float* in;
  float* out;
};
// Warp 0 leaves something and goes on; warp 1 waits for it. backwards: warp 0 then reads what warp 1 wrote before.
template <bool backwards>
void leave_at_the_barrier(FloatParams p) {
  float* floats = shared_floats();
  floats[threadIdx.x] = p.in[threadIdx.x];
  if (threadIdx.x < 32) {
    barrier_arrive(2, 64);
    if (backwards) p.out[threadIdx.x] = floats[threadIdx.x + 32];
  } else {
    barrier_sync(2, 64);
    p.out[threadIdx.x] = floats[threadIdx.x - 32];
  }
}

TEST(CopyEngine, ArrivingIsNotWaiting) {
  std::vector<float> in(64), out(64);
  for (int i = 0; i < 64; ++i) in[i] = float(i);
  for (const Schedule& order : kOrders) {
    EXPECT_EQ((run_with<leave_at_the_barrier<false>>(1, 64, kRoom, FloatParams{in.data(), out.data()}, order)), "");
    for (int i = 32; i < 64; ++i) EXPECT_EQ(out[i], float(i - 32));
    EXPECT_TRUE(
        says((run_with<leave_at_the_barrier<true>>(1, 64, kRoom, FloatParams{in.data(), out.data()}, order)), "race"));
  }
}

// Four matrices whose element (row, column) is number matrix * 64 + row * 8 + column, each row of 8 in a row of its
// own.
template <bool transposed>
void store_matrices(BoxParams p) {
  const u32 lane = threadIdx.x;
  u32 r[4];
  for (u32 m = 0; m < 4; ++m) {
    const u32 first = m * 64 + lane / 4 * 8 + lane % 4 * 2;
    r[m] = first | (first + 1) << 16;
  }
  const u32 address = shared_address(smem) + lane * 16;
  if (transposed)
    stmatrix_x4_trans(address, r);
  else
    stmatrix_x4(address, r);
  __syncwarp();
  for (u32 i = lane; i < 256; i += 32) p.out[i] = reinterpret_cast<const u16*>(smem)[i];
}

TEST(CopyEngine, StoresMatrices) {
  std::vector<u16> out(256);
  const BoxParams params = {{}, {}, out.data()};
  EXPECT_EQ(run_with<store_matrices<false>>(1, 32, kRoom, params), "");
  for (u32 i = 0; i < 256; ++i) EXPECT_EQ(out[i], i);
  EXPECT_EQ(run_with<store_matrices<true>>(1, 32, kRoom, params), "");
  for (u32 i = 0; i < 256; ++i) EXPECT_EQ(out[i], i / 64 * 64 + i % 8 * 8 + i / 8 % 8);
}

// Ones times ones, 16 of them; A and B in 64 rows of 128 bytes. What matters is who wrote them, and whether it fenced.
template <bool with_fence>
void multiply_ones(FloatParams p) {
  u16* room = reinterpret_cast<u16*>(smem);
  for (u32 i = threadIdx.x; i < 64 * 64; i += 128) room[i] = float_to_bf16(1.0f);
  if (with_fence) fence_for_wgmma();
  __syncthreads();
  float c[4][4] = {};
  const u64 ones = matrix_descriptor(shared_address(smem), 16, 1024);
  wgmma_fence();
  Wgmma<Bf16, 32>::add(c, ones, ones, false);
  wgmma_commit();
  wgmma_wait<0>();
  p.out[threadIdx.x] = c[3][3];
}

TEST(CopyEngine, WhatThreadsWroteIsFencedForWgmma) {
  std::vector<float> out(128);
  const FloatParams params = {nullptr, out.data()};
  EXPECT_EQ(run_with<multiply_ones<true>>(1, 128, kRoom, params), "");
  EXPECT_EQ(out, std::vector<float>(128, 16.0f));
  EXPECT_TRUE(says(run_with<multiply_ones<false>>(1, 128, kRoom, params), "wgmma reads what a thread wrote without"));
}

}  // namespace
}  // namespace mica
