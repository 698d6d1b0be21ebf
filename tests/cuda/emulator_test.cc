// SPDX-License-Identifier: Apache-2.0
// The emulator itself: what it must get right, and the mistakes in a kernel that it must find. Compiled with
// -fsanitize=thread, as the kernels are (emulation/watch.cc).
#include "tests/cuda/emulator_test.h"

#include <cmath>
#include <vector>

namespace mica {
namespace {

using emulation::fence;
using emulation::open_fence;
using emulation::Schedule;

struct Params {
  const float* in;
  float* out;
};

template <void (*kernel)(Params)>
std::string run_as(u32 grid, u32 block, Params params, const Schedule& schedule = {}) {
  return run_with<kernel>(grid, block, 4096, params, schedule);
}

// out[thread] = in of the thread 33 before it, through shared memory.
template <bool with_barrier>
void pass_on(Params p) {
  float* floats = shared_floats();
  floats[threadIdx.x] = p.in[threadIdx.x];
  if (with_barrier) __syncthreads();
  p.out[threadIdx.x] = floats[(threadIdx.x + blockDim.x - 33) % blockDim.x];
}

TEST(Emulator, BarriersOrderAndTheirLackIsARace) {
  std::vector<float> in(128), out(128);
  for (int i = 0; i < 128; ++i) in[i] = float(i);
  for (const bool reversed : {false, true}) {
    EXPECT_EQ(run_as<pass_on<true>>(1, 128, {in.data(), out.data()}, {reversed, reversed}), "");
    for (int i = 0; i < 128; ++i) EXPECT_EQ(out[i], float((i + 95) % 128));
    EXPECT_TRUE(says(run_as<pass_on<false>>(1, 128, {in.data(), out.data()}, {reversed, reversed}), "a race"));
  }
}

// The same within a warp.
template <bool with_barrier>
void swap_neighbours(Params p) {
  float* floats = shared_floats();
  floats[threadIdx.x] = p.in[threadIdx.x];
  if (with_barrier) __syncwarp();
  p.out[threadIdx.x] = floats[threadIdx.x ^ 1];
}

TEST(Emulator, WarpsNeedTheirBarrierToo) {
  std::vector<float> in(64, 1.0f), out(64);
  EXPECT_EQ(run_as<swap_neighbours<true>>(1, 64, {in.data(), out.data()}), "");
  EXPECT_TRUE(says(run_as<swap_neighbours<false>>(1, 64, {in.data(), out.data()}), "a race"));
}

// Pairs of warps swap through shared memory; with_barrier: each pair at a named barrier of its own.
template <bool with_barrier>
void swap_warps(Params p) {
  float* floats = shared_floats();
  floats[threadIdx.x] = p.in[threadIdx.x];
  bool all = true;
  if (with_barrier) {
    barrier_sync(1 + i32(threadIdx.x) / 64, 64);
    all = barrier_all(1 + i32(threadIdx.x) / 64, 64, p.in[threadIdx.x] < 100.0f);
  }
  p.out[threadIdx.x] = floats[threadIdx.x ^ 32] * (all ? 1.0f : -1.0f);
}

TEST(Emulator, SomeWarpsMeetAtANamedBarrier) {
  std::vector<float> in(128), out(128);
  for (int i = 0; i < 128; ++i) in[i] = float(i);
  for (const bool reversed : {false, true}) {
    EXPECT_EQ(run_as<swap_warps<true>>(1, 128, {in.data(), out.data()}, {reversed, reversed}), "");
    for (int i = 0; i < 128; ++i) EXPECT_EQ(out[i], float(i ^ 32) * (i < 64 ? 1.0f : -1.0f));
    EXPECT_TRUE(says(run_as<swap_warps<false>>(1, 128, {in.data(), out.data()}, {reversed, reversed}), "a race"));
  }
}

// A pair that met says nothing about a third warp.
void read_past_the_pair(Params p) {
  float* floats = shared_floats();
  floats[threadIdx.x] = p.in[threadIdx.x];
  barrier_sync(1 + i32(threadIdx.x) / 64, 64);
  p.out[threadIdx.x] = floats[threadIdx.x ^ 64];
}

TEST(Emulator, ANamedBarrierIsForThoseWhoMeet) {
  std::vector<float> in(128), out(128);
  EXPECT_TRUE(says(run_as<read_past_the_pair>(1, 128, {in.data(), out.data()}), "a race"));
}

// out = in, 16 bytes a thread; the first thread of the block does not wait if asked.
template <bool forgets>
void copy_async(Params p) {
  const u32 address = shared_address(smem) + threadIdx.x * 16;
  cp_async_16(address, p.in + threadIdx.x * 4);
  cp_async_commit();
  if (!forgets || threadIdx.x != 0) cp_async_wait<0>();
  for (int e = 0; e < 4; ++e) p.out[threadIdx.x * 4 + e] = shared_floats()[threadIdx.x * 4 + e];
}

TEST(Emulator, CopiesArriveWhenTheyAreWaitedFor) {
  std::vector<float> in(128), out(128);
  for (int i = 0; i < 128; ++i) in[i] = float(i);
  EXPECT_EQ(run_as<copy_async<false>>(1, 32, {in.data(), out.data()}), "");
  EXPECT_EQ(out, in);
  EXPECT_EQ(run_as<copy_async<true>>(1, 32, {in.data(), out.data()}), "");
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_EQ(out[4], 4.0f);
}

// Two groups, of which only the older has been waited for.
void copy_in_groups(Params p) {
  const u32 address = shared_address(smem) + threadIdx.x * 32;
  for (int group = 0; group < 2; ++group) {
    cp_async_16(address + group * 16, p.in);
    cp_async_commit();
  }
  cp_async_wait<1>();
  if (threadIdx.x != 0) return;
  p.out[0] = shared_floats()[0];
  p.out[1] = shared_floats()[4];
}

TEST(Emulator, GroupsArriveInTurn) {
  std::vector<float> in(4, 7.0f), out(2);
  EXPECT_EQ(run_as<copy_in_groups>(1, 32, {in.data(), out.data()}), "");
  EXPECT_EQ(out[0], 7.0f);
  EXPECT_TRUE(std::isnan(out[1]));
}

void past_the_end(Params) {
  u32 r[4];
  ldmatrix_x4(r, shared_address(smem) + 4096 - 16 + threadIdx.x / 31 * 16);
}
void plainly_past_the_end(Params p) { p.out[0] = shared_floats()[1024 + threadIdx.x / 31]; }
void not_aligned(Params) { store_shared_4(shared_address(smem) + 2, 0); }

TEST(Emulator, BoundsAndAlignmentOfSharedMemory) {
  float out;
  EXPECT_TRUE(says(run_as<past_the_end>(1, 32, {}), "thread 31: an access outside shared memory"));
  EXPECT_TRUE(says(run_as<plainly_past_the_end>(1, 32, {nullptr, &out}), "an access outside shared memory"));
  EXPECT_TRUE(says(run_as<not_aligned>(1, 32, {}), "not aligned"));
}

void copy_plainly(Params p) { p.out[threadIdx.x] = p.in[threadIdx.x]; }

TEST(Emulator, FencedMemoryIsNotTouched) {
  std::vector<float> in(33), out(33);
  EXPECT_EQ(run_as<copy_plainly>(1, 32, {in.data(), out.data()}), "");
  fence(&in[31], 8);
  EXPECT_TRUE(says(run_as<copy_plainly>(1, 32, {in.data(), out.data()}), "thread 31: reads what it must not"));
  open_fence(&in[31], 8);
  fence(&out[0], 4);
  EXPECT_TRUE(says(run_as<copy_plainly>(1, 32, {in.data(), out.data()}), "thread 0: writes what it must not"));
  open_fence(&out[0], 4);
  EXPECT_EQ(run_as<copy_plainly>(1, 32, {in.data(), out.data()}), "");
}

void half_at_the_barrier(Params p) {
  if (threadIdx.x < 32) {
    __syncthreads();
    return;
  }
  p.out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, float(threadIdx.x), 1);
  if (threadIdx.x == 40) return;
  __syncwarp();
}
void different_things(Params p) {
  if (threadIdx.x < 16)
    p.out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
  else
    p.out[threadIdx.x] = __any_sync(0xffffffffu, true);
}
void wait_for_nobody(Params p) {
  while (load_acquire(reinterpret_cast<const i32*>(p.in)) == 0) __nanosleep(40);
}

TEST(Emulator, FindsThreadsThatWaitInVain) {
  std::vector<float> zeros(64), out(64);
  EXPECT_TRUE(says(run_as<half_at_the_barrier>(1, 64, {nullptr, out.data()}), "31 of 31 in __syncwarp"));
  EXPECT_EQ(out[33], 32.0f);
  EXPECT_TRUE(says(run_as<different_things>(1, 32, {nullptr, out.data()}), "this one in a vote"));
  EXPECT_TRUE(says(run_as<wait_for_nobody>(1, 32, {zeros.data(), nullptr}), "no thread of this block"));
}

// Blocks pass a number round, from the last to the first: none can end by itself.
void wait_for_the_next_block(Params p) {
  i32* counts = reinterpret_cast<i32*>(p.out);
  const u32 next = (blockIdx.x + 1) % gridDim.x;
  if (threadIdx.x == 0) {
    add_release(counts + blockIdx.x, 1);
    while (load_acquire(counts + next) == 0) __nanosleep(40);
    add_release(counts + gridDim.x, 1);
  }
  __syncthreads();
}

TEST(Emulator, BlocksThatRunAtOnceMayWaitForOneAnother) {
  for (const bool at_once : {true, false})
    for (const bool reversed : {false, true}) {
      std::vector<i32> counts(4, 0);
      const Params params = {nullptr, reinterpret_cast<float*>(counts.data())};
      const std::string report =
          emulation::run({"test", 3, 64, 4096, &params, 1, at_once},
                         emulation::Kernel<Params>::call<wait_for_the_next_block>, {reversed, reversed});
      if (at_once) {
        EXPECT_EQ(report, "");
        EXPECT_EQ(counts, (std::vector<i32>{1, 1, 1, 3}));
      } else {
        EXPECT_TRUE(says(report, "no thread of this block"));
      }
    }
}

// The first of three warpgroups gives registers up for the others, which start with 168.
template <int first, int others>
void deal_registers(Params) {
  if (threadIdx.x < 128)
    setmaxnreg_dec<first>();
  else
    setmaxnreg_inc<others>();
}

TEST(Emulator, WarpgroupsTakeWhatOthersGaveUp) {
  EXPECT_EQ((run_as<deal_registers<24, 240>>(1, 384, {})), "");
  EXPECT_TRUE((says(run_as<deal_registers<32, 240>>(1, 384, {}), "more registers")));
}

// C (16 x 8) = A (16 x 16) B^T, B (8 x 16), both bf16 in shared memory; in: A, then B, as floats.
void product(Params p) {
  u16* tile = reinterpret_cast<u16*>(smem);  // rows of 16 elements: A, then B twice
  for (u32 i = threadIdx.x; i < 32 * 16; i += 32) tile[i] = float_to_bf16(p.in[i < 24 * 16 ? i : i - 8 * 16]);
  __syncthreads();
  const u32 lane = threadIdx.x, base = shared_address(tile);
  u32 a[4], b[4];
  ldmatrix_x4(a, base + (lane % 16) * 32 + lane / 16 * 16);
  ldmatrix_x4(b, base + (16 + lane % 8 + lane / 16 * 8) * 32 + lane / 8 % 2 * 16);
  float c[4] = {};
  mma_m16n8k16<Bf16>(c, a, b[0], b[1]);
  for (u32 e = 0; e < 4; ++e) p.out[(lane / 4 + e / 2 * 8) * 8 + lane % 4 * 2 + e % 2] = c[e];
}

TEST(Emulator, TensorCores) {
  std::vector<float> in(24 * 16), out(16 * 8);
  for (size_t i = 0; i < in.size(); ++i) in[i] = float(int(i * 37 % 19) - 9);
  EXPECT_EQ(run_as<product>(1, 32, {in.data(), out.data()}), "");
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 8; ++column) {
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += in[row * 16 + k] * in[(16 + column) * 16 + k];
      EXPECT_EQ(out[row * 8 + column], sum) << row << ", " << column;
    }
}

// The 16-bit numbers of an 8 x 8 matrix, as a lane holds two of a row, and of the transposed one.
void transposed(Params p) {
  const u32 lane = threadIdx.x;
  const u32 pair = transpose_matrix((2 * lane) | (2 * lane + 1) << 16);
  p.out[2 * lane] = float(pair & 0xffff);
  p.out[2 * lane + 1] = float(pair >> 16);
}

TEST(Emulator, TransposedMatrix) {
  std::vector<float> out(64);
  EXPECT_EQ(run_as<transposed>(1, 32, {nullptr, out.data()}), "");
  for (int row = 0; row < 8; ++row)
    for (int column = 0; column < 8; ++column) EXPECT_EQ(out[row * 8 + column], float(column * 8 + row));
}

// Blocks add their number to the end of a list: the order in which they ran.
void list_blocks(Params p) {
  if (threadIdx.x == 0) p.out[int(p.out[0] += 1.0f)] = float(blockIdx.x);
}

TEST(Emulator, OrderOfBlocks) {
  std::vector<float> forwards(4), backwards(4);
  EXPECT_EQ(run_as<list_blocks>(3, 32, {nullptr, forwards.data()}), "");
  EXPECT_EQ(forwards, (std::vector<float>{3, 0, 1, 2}));
  EXPECT_EQ(run_as<list_blocks>(3, 32, {nullptr, backwards.data()}, {true, false}), "");
  EXPECT_EQ(backwards, (std::vector<float>{3, 2, 1, 0}));
}

}  // namespace
}  // namespace mica
