// SPDX-License-Identifier: Apache-2.0
// The thread block that runs: its threads as fibers, what they wait for, and what they left with the copy engine.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda/emulation/copy_engine.h"
#include "tests/cuda/emulation/emulator.h"
#include "tests/cuda/emulation/fiber.h"
#include "tests/cuda/emulation/shadow.h"
#include "tests/cuda/emulation/warpgroup.h"

namespace mica::emulation {

constexpr u32 kWarp = 32, kWarpgroup = 128, kMaxThreads = 1024, kNamedBarriers = 16;
// Shared memory does not start at address 0, so that an address that was never set is out of bounds.
constexpr u32 kSharedBase = 1024;

// cp.async
struct Copy {
  u32 destination;
  const void* source;
  i32 source_bytes;
  u32 bytes;
};

struct Mbarrier {
  u32 arrivals = 0, pending = 0;
  i64 bytes = 0;           // that are expected and have not come; below 0: came and were not expected
  u32 phases = 0;          // that are over
  u32 maker = 0;           // the thread that made it
  u16 maker_fences = 0;    // that it had made then
  u32 actor = 0;           // the copy engine's, when it writes for this barrier; 0: it never did
  bool delivered = false;  // something in this phase
  Clock clock;             // what those who arrived did
  Clock peer;              // and what the other block of the cluster had done before
};

struct BulkLoad {
  BulkCopy copy;
  Mbarrier* barrier;
  std::vector<char> sent;  // by the other block of the cluster: what copy.global points to
};

struct Thread {
  Fiber fiber;
  std::vector<Copy> open;                 // cp.async since the last commit
  std::vector<std::vector<Copy>> groups;  // committed, oldest first
  std::vector<BulkCopy> stores;           // bulk copies out of shared memory, committed
  std::vector<BulkCopy> open_stores;      // and not
  WgmmaQueue products;
  const Mbarrier* waits_for = nullptr;
};

struct Warp {
  u32 ready = 0, live = 0;  // lanes that can run, lanes that have not returned
  u32 arrived = 0;          // lanes in the operation that the warp does together
  const char* what = "";    // which one
  void* operands[kWarp];
  u32 at_barrier = 0, at_cluster = 0;
  u32 at_named[kNamedBarriers] = {};
  u32 in_warpgroup = 0;  // lanes in warpgroup_together
};

struct NamedBarrier {
  u32 arrived = 0;
  bool gathered = true, result = false;  // of the predicates: so far, and of the last meeting
  Clock clock;                           // what those did who arrived and went on
};

class Block {
 public:
  // A block, the two of a cluster, or all that run at once, to the end. index: of the first.
  static void run(const Launch& launch, Entry entry, const Schedule& schedule, u32 index, u32 count);
  std::string take_report() {
    complaints_ = 0;
    return std::exchange(report_, "");
  }

  void complain(const char* what);
  Thread& thread() { return threads_[current_]; }
  Thread& thread(u32 index) { return threads_[index]; }
  u32 lane() const { return current_ % kWarp; }
  Warp& warp() { return warps_[current_ / kWarp]; }
  u32 current() const { return current_; }
  bool is_running() const { return running_; }
  void set_registers(u32 registers) { registers_[current_ / kWarpgroup] = registers; }
  void together(const char* what, void* operands, void (*perform)(void* const (&operands)[32]));
  void warpgroup_together(void (*perform)(u32 first_thread, void* context), void* context);
  void nap();

  // barriers.cc
  void sync_threads();
  void warp_synced() { shadow_.warp_synced(current_ / kWarp); }
  bool meet(u32 id, u32 threads, bool predicate);
  void arrive_named(u32 id, u32 threads);
  Mbarrier& mbarrier(u32 address) { return mbarriers_[address]; }
  void make(Mbarrier& barrier, u32 arrivals);
  void arrive(Mbarrier& barrier, u32 bytes);
  void arrive_at_peer(u32 address);
  void sync_cluster();
  void wait_for(const Mbarrier& barrier, u32 parity);

  // Shared memory.
  void note(u32 offset, u32 bytes, Access access);
  bool contains(u32 address, u32 bytes) const {
    return address >= kSharedBase && address - kSharedBase + bytes <= launch_->shared_bytes;
  }
  void fence() { shadow_.fenced(current_); }
  // The other block of the cluster; null: complained of.
  Block* peer();
  // The block's memory, which lies elsewhere while the other one runs.
  u8* memory();

  // copy_engine.cc
  void ask_load(const BulkCopy& copy, Mbarrier& barrier);
  void ask_load_for_both(const BulkCopy& copy, u32 barrier);
  void send_to_peer(u32 to, u32 from, u32 bytes, u32 barrier);
  void ask_store(const BulkCopy& copy);
  void wait_for_stores();

 private:
  static void start();
  void begin(const Launch& launch, Entry entry, const Schedule& schedule, u32 index);
  bool go_on();  // until nobody can, or all that can have napped; false: nobody could
  void end();
  void release_cluster();
  void count_arrival(Mbarrier& barrier, u32 bytes);
  const char* why_no_load(const BulkCopy& copy, Mbarrier& barrier);
  void start_load(const BulkCopy& copy, Mbarrier& barrier, const Clock* behind, std::vector<char> sent = {});
  void wait();
  void resume(u32 thread);
  bool find_ready(u32* thread) const;
  void report_stuck();
  void release_barrier();
  bool is_named_barrier(u32 id, u32 threads);
  void complete(NamedBarrier& barrier, u32 id);
  void end_phase_if_done(Mbarrier& barrier);
  bool deliver();  // the next load, when nobody can go on without; false: there is none
  void check_copies();

  const Launch* launch_ = nullptr;
  Entry entry_ = nullptr;
  u32 block_index_ = 0, current_ = 0, num_warps_ = 0, live_ = 0, at_barrier_ = 0, at_cluster_ = 0, num_load_actors_ = 0;
  int naps_ = 0, complaints_ = 0;
  bool warps_reversed_ = false, running_ = false, has_begun_ = false;
  Block* peer_ = nullptr;     // of a cluster
  std::vector<u32> napping_;  // threads that wait for another block
  std::vector<u8> aside_;     // the block's memory while another one runs
  Fiber host_;
  std::unique_ptr<Thread[]> threads_ = std::make_unique<Thread[]>(kMaxThreads);
  Warp warps_[kMaxThreads / kWarp];
  u32 registers_[kMaxThreads / kWarpgroup] = {};  // of a thread of each warpgroup
  NamedBarrier named_[kNamedBarriers];
  std::map<u32, Mbarrier> mbarriers_;  // by address
  std::deque<BulkLoad> loads_;         // under way, oldest first
  Shadow shadow_;
  std::string report_;
};

Block& block();

}  // namespace mica::emulation
