// SPDX-License-Identifier: Apache-2.0
// The emulator's clusters of two blocks: copies into both, barriers and words of the other one, and mistakes in a
// kernel that it must find.
#include <vector>

#include "device/cluster_copy_sm90.cuh"
#include "tests/cuda/emulator_test.h"
#include "tests/cuda/fake_tensor_map.h"

namespace mica {
namespace {

using emulation::Schedule;

constexpr u32 kRows = 64, kColumns = 64, kBoxRows = 16, kBoxBytes = kBoxRows * kColumns * 2,
              kSteps = kRows / (2 * kBoxRows);
// Bytes of shared memory: two boxes, barriers for full and empty, a word and its barrier.
constexpr u32 kFull = 2 * kBoxBytes, kEmpty = kFull + 8, kTold = kEmpty + 8, kWord = kTold + 8, kRoom = kWord + 8;

struct PairParams {
  TensorMap map;
  u16* out;    // of each block all rows, as they lie in shared memory
  u32* words;  // that each block was told
};

enum class Mistake {
  kNone,
  kOwnReadersAlone,  // let a box go, not those of the other block
  kReachesTooLate,   // into a block that may have ended
};

// Each block fetches every second box for both; warp 1 takes them out.
template <Mistake mistake>
void share_boxes(PairParams p) {
  const u32 room = shared_address(smem), rank = block_rank(), other = rank ^ 1;
  const u32 readers = mistake == Mistake::kOwnReadersAlone ? 1 : 2;
  if (threadIdx.x == 0) {
    mbarrier_init(room + kFull, 1);
    mbarrier_init(room + kEmpty, readers);
    mbarrier_init(room + kTold, 1);
    fence_barriers_for_cluster();
    fence_for_wgmma();
  }
  cluster_sync();
  if (threadIdx.x == 0) {
    store_remote(shared_of_block(room + kWord, other), 7 + rank);
    mbarrier_tell_remote(shared_of_block(room + kTold, other));
  }
  for (u32 step = 0; step < kSteps; ++step) {
    if (threadIdx.x == 0) {
      mbarrier_wait(room + kEmpty, ~step & 1);
      mbarrier_arrive_expecting(room + kFull, 2 * kBoxBytes);
      tma_load_multicast(room + rank * kBoxBytes, p.map, {0, i32((2 * step + rank) * kBoxRows), 0, 0}, room + kFull);
    }
    if (threadIdx.x >= 32) {
      mbarrier_wait(room + kFull, step & 1);
      for (u32 i = threadIdx.x - 32; i < kBoxBytes; i += 32)
        p.out[(rank * kSteps + step) * kBoxBytes + i] = reinterpret_cast<const u16*>(smem)[i];
      __syncwarp();
      if (threadIdx.x == 32) {
        mbarrier_arrive(room + kEmpty);
        if (readers == 2) mbarrier_arrive_remote(shared_of_block(room + kEmpty, other));
      }
    }
  }
  if (threadIdx.x == 0) {
    mbarrier_wait_cluster(room + kTold, 0);
    p.words[rank] = load_shared_4(room + kWord);
  }
  __syncwarp();
  cluster_end();
  if (mistake == Mistake::kReachesTooLate && rank == 1 && threadIdx.x == 0)
    mbarrier_arrive_remote(shared_of_block(room + kTold, 0));
}

template <Mistake mistake>
std::string run_pair(std::vector<u16>& out, u32 (&words)[2], const Schedule& order, u32 cluster = 2) {
  alignas(16) static u16 tensor[kRows * kColumns];
  for (u32 i = 0; i < kRows * kColumns; ++i) tensor[i] = u16(i);
  const std::uint64_t dims[] = {kColumns, kRows, 1, 1}, strides[] = {kColumns * 2, sizeof tensor, sizeof tensor};
  const u32 box[] = {kColumns, kBoxRows, 1, 1}, ones[] = {1, 1, 1, 1};
  PairParams params = {{}, nullptr, words};
  EXPECT_EQ(test::encode_tensor_map(&params.map, test::kMapBf16, 4, tensor, dims, strides, box, ones, 0,
                                    test::kMapSwizzle128, 2, 0),
            cu::kSuccess);
  out.assign(2 * kRows * kColumns, 0);
  params.out = out.data();
  return emulation::run({"test", 2, 64, kRoom, &params, cluster},
                        emulation::Kernel<PairParams>::template call<share_boxes<mistake>>, order);
}

TEST(Cluster, BlocksShareWhatEachFetches) {
  for (const Schedule& order : {Schedule{false, false}, Schedule{true, true}}) {
    std::vector<u16> out;
    u32 words[2] = {};
    EXPECT_EQ(run_pair<Mistake::kNone>(out, words, order), "");
    EXPECT_EQ(words[0], 8u);
    EXPECT_EQ(words[1], 7u);
    for (u32 block = 0; block < 2; ++block)
      for (u32 row = 0; row < kRows; ++row)
        for (u32 column = 0; column < kColumns; ++column)
          ASSERT_EQ(out[(block * kRows + row) * kColumns + (column / 8 ^ row % 8) * 8 + column % 8],
                    row * kColumns + column)
              << block << ", " << row << ", " << column;
  }
}

TEST(Cluster, FindsWhatAKernelForgot) {
  for (const Schedule& order : {Schedule{false, false}, Schedule{true, true}}) {
    std::vector<u16> out;
    u32 words[2] = {};
    EXPECT_TRUE(says(run_pair<Mistake::kOwnReadersAlone>(out, words, order), "of the other block still uses"));
    EXPECT_TRUE(says(run_pair<Mistake::kNone>(out, words, order, 1), "reaches into a block that is not there"));
  }
  std::vector<u16> out;
  u32 words[2] = {};
  EXPECT_TRUE(
      says(run_pair<Mistake::kReachesTooLate>(out, words, {true, true}), "reaches into a block that has ended"));
}

// Each block sends the other a box of its own words, twice, into the same place.
constexpr u32 kWords = 64, kSent = kWords * 4, kSentFull = 2 * kSent, kSentEmpty = kSentFull + 8,
              kSentRoom = kSentEmpty + 8;
enum class Slip {
  kNone,
  kNoFence,   // between its words and the copy
  kTooSoon,   // sends again while the other one may still read
  kToItself,  // not to the other block
};
struct SentParams {
  u32* out;  // what each block got, each time
};
template <Slip slip>
void send_words(SentParams p) {
  const u32 room = shared_address(smem), rank = block_rank(), to = slip == Slip::kToItself ? rank : rank ^ 1;
  if (threadIdx.x == 0) {
    mbarrier_init(room + kSentFull, 1);
    mbarrier_init(room + kSentEmpty, 1);
    fence_barriers_for_cluster();
    fence_for_wgmma();
  }
  cluster_sync();
  u32* words = reinterpret_cast<u32*>(smem);
  for (u32 step = 0; step < 2; ++step) {
    if (threadIdx.x < 32) {
      for (u32 i = threadIdx.x; i < kWords; i += 32) words[i] = 1000 * rank + 100 * step + i;
      if (slip != Slip::kNoFence) fence_for_wgmma();
      __syncwarp();
      if (threadIdx.x == 0) {
        mbarrier_arrive_expecting(room + kSentFull, kSent);
        if (slip != Slip::kTooSoon) mbarrier_wait(room + kSentEmpty, ~step & 1);
        copy_to_block(shared_of_block(room + kSent, to), room, kSent, shared_of_block(room + kSentFull, to));
      }
    } else {
      mbarrier_wait(room + kSentFull, step & 1);
      for (u32 i = threadIdx.x - 32; i < kWords; i += 32) p.out[(rank * 2 + step) * kWords + i] = words[kWords + i];
      __syncwarp();
      if (threadIdx.x == 32) mbarrier_arrive_remote(shared_of_block(room + kSentEmpty, rank ^ 1));
    }
    __syncthreads();
  }
  cluster_end();
}
template <Slip slip>
std::string run_senders(std::vector<u32>& out, const Schedule& order) {
  out.assign(4 * kWords, 0);
  SentParams params = {out.data()};
  return emulation::run({"test", 2, 64, kSentRoom, &params, 2},
                        emulation::Kernel<SentParams>::template call<send_words<slip>>, order);
}

TEST(Cluster, BlocksSendWhatTheyHave) {
  for (const Schedule& order : {Schedule{false, false}, Schedule{true, true}}) {
    std::vector<u32> out;
    EXPECT_EQ(run_senders<Slip::kNone>(out, order), "");
    for (u32 block = 0; block < 2; ++block)
      for (u32 step = 0; step < 2; ++step)
        for (u32 i = 0; i < kWords; ++i)
          ASSERT_EQ(out[(block * 2 + step) * kWords + i], 1000 * (1 - block) + 100 * step + i);
    EXPECT_TRUE(says(run_senders<Slip::kNoFence>(out, order), "without fence_for_wgmma after it"));
    EXPECT_TRUE(says(run_senders<Slip::kTooSoon>(out, order), "of the other block still uses"));
    EXPECT_TRUE(says(run_senders<Slip::kToItself>(out, order), "a copy between blocks that stays in one"));
  }
}

TEST(Cluster, AGridHasWholeOnes) {
  PairParams params = {};
  EXPECT_EQ(emulation::run({"test", 3, 64, kRoom, &params, 2},
                           emulation::Kernel<PairParams>::template call<share_boxes<Mistake::kNone>>, {}),
            "no whole clusters of one or two blocks");
}

}  // namespace
}  // namespace mica
