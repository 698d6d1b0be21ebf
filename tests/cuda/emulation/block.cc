// SPDX-License-Identifier: Apache-2.0
// How a block's threads take turns.
#include "tests/cuda/emulation/block.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <numeric>
#include <utility>

#include "tests/cuda/emulation/cuda_words.h"

extern thread_local mica::u8 smem[];

namespace mica::emulation {
namespace {

constexpr int kPatience = 1000;  // naps of a block's threads before it is given up

}  // namespace

namespace {
Block* running_block = nullptr;
Block& block_of_rank(u32 rank) {
  static auto& all = *new std::deque<Block>;
  while (all.size() <= rank) all.emplace_back();
  return all[rank];
}
}  // namespace

Block& block() { return running_block ? *running_block : block_of_rank(0); }

Block* Block::peer() {
  if (peer_ && peer_->live_ > 0) return peer_;
  complain(peer_ ? "reaches into a block that has ended" : "reaches into a block that is not there");
  return nullptr;
}
u8* Block::memory() { return this == running_block ? smem : aside_.data(); }

void Block::complain(const char* what) {
  if (++complaints_ > 4) return;
  char text[512];
  std::snprintf(text, sizeof text, "%sblock %u, thread %u: %s", report_.empty() ? "" : "\n", block_index_, current_,
                what);
  report_ += text;
}

void Block::note(u32 offset, u32 bytes, Access access) {
  if (const char* race = shadow_.note(offset, bytes, access == Access::kWrite, current_)) complain(race);
  if (access == Access::kReadByWgmma && shadow_.is_unfenced(offset, bytes))
    complain("wgmma reads what a thread wrote without fence_for_wgmma after it");
}

void Block::start() {
  Block& b = block();
  b.entry_(b.launch_->params);
  if (!b.thread().stores.empty() || !b.thread().open_stores.empty())
    b.complain("returns while a bulk copy may still read shared memory");
  Warp& w = b.warp();
  w.live &= ~(1u << b.lane());
  w.ready &= ~(1u << b.lane());
  --b.live_;
  b.release_barrier();
  b.wait();
}

void Block::run(const Launch& launch, Entry entry, const Schedule& schedule, u32 index, u32 count) {
  for (u32 i = 0; i < count; ++i) {
    block_of_rank(i).begin(launch, entry, schedule, index + i);
    block_of_rank(i).peer_ = launch.cluster == 2 ? &block_of_rank(1 - i) : nullptr;
  }
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (u32 i = 0; i < count; ++i) goes_on |= block_of_rank(schedule.blocks_reversed ? count - 1 - i : i).go_on();
  }
  for (u32 i = 0; i < count; ++i) block_of_rank(i).end();
  running_block = nullptr;
  for (u32 i = 1; i < count; ++i) block_of_rank(0).report_ += block_of_rank(i).take_report();
}

void Block::begin(const Launch& launch, Entry entry, const Schedule& schedule, u32 index) {
  launch_ = &launch;
  entry_ = entry;
  warps_reversed_ = schedule.warps_reversed;
  block_index_ = index;
  has_begun_ = false;
  num_warps_ = launch.block / kWarp;
  live_ = launch.block;
  at_barrier_ = at_cluster_ = 0;
  naps_ = 0;
  napping_.clear();
  num_load_actors_ = 0;
  std::fill(std::begin(named_), std::end(named_), NamedBarrier{});
  mbarriers_.clear();
  loads_.clear();
  aside_.assign(launch.shared_bytes, 0xff);
  shadow_.begin(launch.shared_bytes);
  for (u32 w = 0; w < num_warps_; ++w) {
    warps_[w] = Warp{};
    warps_[w].ready = warps_[w].live = ~0u;
  }
  for (u32 t = 0; t < launch.block; ++t) {
    threads_[t].open.clear();
    threads_[t].groups.clear();
    threads_[t].stores.clear();
    threads_[t].open_stores.clear();
    threads_[t].products = {};
    threads_[t].waits_for = nullptr;
    threads_[t].fiber.prepare(start);
  }
  // One block an SM: what the launch brings, in steps of 8. A warpgroup takes what others gave up, and waits for it.
  std::fill(std::begin(registers_), std::end(registers_), 65536 / launch.block / 8 * 8);
  current_ = warps_reversed_ ? (num_warps_ - 1) * kWarp : 0;
}

bool Block::go_on() {
  if (live_ == 0) return false;
  if (running_block != this) {
    if (running_block) std::memcpy(running_block->aside_.data(), smem, launch_->shared_bytes);
    std::memcpy(smem, aside_.data(), launch_->shared_bytes);
    running_block = this;
  }
  for (const u32 thread : std::exchange(napping_, {})) warps_[thread / kWarp].ready |= 1u << thread % kWarp;
  u32 next = current_;
  if (has_begun_)
    while (!find_ready(&next))
      if (!deliver()) return false;
  has_begun_ = true;
  current_ = next;
  blockIdx.x = block_index_;
  threadIdx.x = current_;
  running_ = true;
  Fiber::hand_over(host_, threads_[current_].fiber);
  running_ = false;
  return true;
}

void Block::end() {
  const u32 brought = 65536 / launch_->block / 8 * 8, num_groups = launch_->block / kWarpgroup;
  if (std::accumulate(registers_, registers_ + num_groups, 0u) > brought * num_groups)
    complain("its warpgroups take more registers than others gave up");
  if (live_ == 0)
    check_copies();
  else
    report_stuck();
}

void Block::report_stuck() {
  std::string waiting;
  for (u32 w = 0; w < num_warps_; ++w) {
    if (!warps_[w].live) continue;
    const Mbarrier* barrier = nullptr;
    for (u32 t = w * kWarp; t < (w + 1) * kWarp; ++t)
      if (threads_[t].waits_for) barrier = threads_[t].waits_for;
    waiting += (waiting.empty() ? "" : "; ") + ("warp " + std::to_string(w) + ": ") +
               std::to_string(__builtin_popcount(warps_[w].at_barrier)) + " lanes at a barrier, " +
               std::to_string(warps_[w].arrived) + " of " + std::to_string(__builtin_popcount(warps_[w].live)) +
               " in " + (warps_[w].arrived ? warps_[w].what : "no common operation");
    if (barrier)
      waiting += ", waits for " + std::to_string(barrier->pending) + " arrivals and " + std::to_string(barrier->bytes) +
                 " bytes";
  }
  complain(("stuck: " + waiting.substr(0, 400)).c_str());
}

// The rest of this warp first, then the other warps: one warp runs as far ahead as barriers let it.
bool Block::find_ready(u32* thread) const {
  const u32 own = current_ / kWarp;
  const u32 after = warps_[own].ready & ~((2u << (current_ % kWarp)) - 1);
  if (warps_[own].ready) {
    *thread = own * kWarp + u32(__builtin_ctz(after ? after : warps_[own].ready));
    return true;
  }
  for (u32 i = 0; i < num_warps_; ++i) {
    const u32 w = warps_reversed_ ? num_warps_ - 1 - i : i;
    if (!warps_[w].ready) continue;
    *thread = w * kWarp + u32(__builtin_ctz(warps_[w].ready));
    return true;
  }
  return false;
}

void Block::resume(u32 thread) {
  Fiber& from = threads_[current_].fiber;
  current_ = thread;
  threadIdx.x = thread;
  Fiber::hand_over(from, threads_[thread].fiber);
}

void Block::wait() {
  u32 next;
  while (!find_ready(&next)) {
    if (live_ > 0 && deliver()) continue;
    Fiber::hand_over(threads_[current_].fiber, host_);
    return;
  }
  if (next != current_) resume(next);
}

void Block::together(const char* what, void* operands, void (*perform)(void* const (&operands)[32])) {
  Warp& w = warp();
  if (w.arrived == 0) w.what = what;
  if (std::strcmp(w.what, what) != 0)
    complain((std::string("lanes of its warp are in ") + w.what + ", this one in " + what).c_str());
  w.operands[lane()] = operands;
  if (++w.arrived < kWarp) {
    w.ready &= ~(1u << lane());
    wait();
    return;
  }
  perform(w.operands);
  w.arrived = 0;
  w.ready = w.live;
  // Lane 0 goes on first, as it would have without this operation.
  if (lane() != 0) resume(current_ / kWarp * kWarp);
}

void Block::warpgroup_together(void (*perform)(u32 first_thread, void* context), void* context) {
  const u32 first = current_ / kWarp / 4 * 4;
  warp().ready &= ~(1u << lane());
  warp().in_warpgroup |= 1u << lane();
  bool all = true;
  for (u32 w = first; w < first + 4; ++w) all = all && warps_[w].in_warpgroup == ~0u;
  if (all) {
    perform(first * kWarp, context);
    for (u32 w = first; w < first + 4; ++w) warps_[w].ready |= std::exchange(warps_[w].in_warpgroup, 0u);
  }
  wait();
}

void Block::nap() {
  if (deliver()) naps_ = 0;
  if (++naps_ > kPatience) {
    if (naps_ == kPatience + 1) complain("waits for something that no thread of this block does");
    warp().ready &= ~(1u << lane());  // for good
  } else if (launch_->runs_at_once) {
    warp().ready &= ~(1u << lane());  // until the other blocks have had their turns
    napping_.push_back(current_);
  }
  wait();
}

}  // namespace mica::emulation
