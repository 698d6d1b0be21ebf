// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/emulation/emulator.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/cuda/emulation/cuda_words.h"
#include "tests/cuda/emulation/fiber.h"
#include "tests/cuda/emulation/shadow.h"

alignas(1024) thread_local mica::u8 smem[mica::emulation::kSharedBytes];

namespace mica::emulation {
namespace {

constexpr u32 kWarp = 32, kWarpgroup = 128, kMaxThreads = 1024, kNamedBarriers = 16;
// Shared memory does not start at address 0, so that an address that was never set is out of bounds.
constexpr u32 kSharedBase = 1024;
constexpr int kPatience = 1000;  // naps of a block's threads before it is given up

struct Copy {
  u32 destination;
  const void* source;
  i32 source_bytes;
};

struct Mbarrier {
  u32 arrivals = 0, pending = 0;
  u32 phases = 0;  // that are over
  Clock clock;     // what those who arrived did
};

struct Thread {
  Fiber fiber;
  std::vector<Copy> open;                 // cp.async since the last commit
  std::vector<std::vector<Copy>> groups;  // committed, oldest first
  const Mbarrier* waits_for = nullptr;
};

struct Warp {
  u32 ready = 0, live = 0;  // lanes that can run, lanes that have not returned
  u32 arrived = 0;          // lanes in the operation that the warp does together
  const char* what = "";    // which one
  void* operands[kWarp];
  u32 at_barrier = 0;
  u32 at_named[kNamedBarriers] = {};
  u32 in_warpgroup = 0;  // lanes in warpgroup_together
};

struct NamedBarrier {
  u32 arrived = 0;
  bool gathered = true, result = false;  // of the predicates: so far, and of the last meeting
};

class Block {
 public:
  void run(const Launch& launch, Entry entry, const Schedule& schedule, u32 index);
  std::string take_report() {
    complaints_ = 0;
    return std::exchange(report_, "");
  }

  void complain(const char* what) {
    if (++complaints_ > 4) return;
    char text[256];
    std::snprintf(text, sizeof text, "%sblock %u, thread %u: %s", report_.empty() ? "" : "\n", block_index_, current_,
                  what);
    report_ += text;
  }
  Thread& thread() { return threads_[current_]; }
  u32 lane() const { return current_ % kWarp; }
  Warp& warp() { return warps_[current_ / kWarp]; }
  void together(const char* what, void* operands, void (*perform)(void* const (&operands)[32]));
  void sync_threads();
  bool meet(u32 id, u32 threads, bool predicate);
  Mbarrier& mbarrier(u32 address) { return mbarriers_[address]; }
  void arrive(Mbarrier& barrier);
  void wait_for(const Mbarrier& barrier, u32 parity);
  void warpgroup_together(void (*perform)(u32 first_thread, void* context), void* context);
  u32 current() const { return current_; }
  void set_registers(u32 registers) { registers_[current_ / kWarpgroup] = registers; }
  void nap();
  void note(u32 offset, u32 bytes, Access access) {
    if (const char* race = shadow_.note(offset, bytes, access == Access::kWrite, current_)) complain(race);
  }
  void warp_synced() { shadow_.warp_synced(current_ / kWarp); }
  bool contains(u32 address, u32 bytes) const {
    return address >= kSharedBase && address - kSharedBase + bytes <= launch_->shared_bytes;
  }
  bool is_running() const { return running_; }

 private:
  static void start();
  void wait();
  void resume(u32 thread);
  void release_barrier();
  bool find_ready(u32* thread) const;

  const Launch* launch_ = nullptr;
  Entry entry_ = nullptr;
  u32 block_index_ = 0, current_ = 0, num_warps_ = 0, live_ = 0, at_barrier_ = 0;
  int naps_ = 0, complaints_ = 0;
  bool warps_reversed_ = false, running_ = false;
  Fiber host_;
  std::unique_ptr<Thread[]> threads_ = std::make_unique<Thread[]>(kMaxThreads);
  Warp warps_[kMaxThreads / kWarp];
  u32 registers_[kMaxThreads / kWarpgroup] = {};  // of a thread of each warpgroup
  NamedBarrier named_[kNamedBarriers];
  std::map<u32, Mbarrier> mbarriers_;  // by address
  Shadow shadow_;
  std::string report_;
};

Block& block() {
  static Block* one = new Block;
  return *one;
}

void Block::start() {
  Block& b = block();
  b.entry_(b.launch_->params);
  Warp& w = b.warp();
  w.live &= ~(1u << b.lane());
  w.ready &= ~(1u << b.lane());
  --b.live_;
  b.release_barrier();
  b.wait();
}

void Block::run(const Launch& launch, Entry entry, const Schedule& schedule, u32 index) {
  launch_ = &launch;
  entry_ = entry;
  warps_reversed_ = schedule.warps_reversed;
  block_index_ = index;
  blockIdx.x = index;
  num_warps_ = launch.block / kWarp;
  live_ = launch.block;
  at_barrier_ = 0;
  naps_ = 0;
  std::fill(std::begin(named_), std::end(named_), NamedBarrier{});
  mbarriers_.clear();
  std::memset(smem, 0xff, launch.shared_bytes);
  shadow_.begin(launch.shared_bytes);
  for (u32 w = 0; w < num_warps_; ++w) {
    warps_[w] = Warp{};
    warps_[w].ready = warps_[w].live = ~0u;
  }
  for (u32 t = 0; t < launch.block; ++t) {
    threads_[t].open.clear();
    threads_[t].groups.clear();
    threads_[t].waits_for = nullptr;
    threads_[t].fiber.prepare(start);
  }
  // One block an SM: what the launch brings, in steps of 8. A warpgroup takes what others gave up, and waits for it.
  const u32 brought = 65536 / launch.block / 8 * 8, num_groups = launch.block / kWarpgroup;
  std::fill(std::begin(registers_), std::end(registers_), brought);
  current_ = warps_reversed_ ? (num_warps_ - 1) * kWarp : 0;
  threadIdx.x = current_;
  running_ = true;
  Fiber::hand_over(host_, threads_[current_].fiber);
  running_ = false;
  if (std::accumulate(registers_, registers_ + num_groups, 0u) > brought * num_groups)
    complain("its warpgroups take more registers than others gave up");
  if (live_ == 0) return;
  std::string waiting;
  for (u32 w = 0; w < num_warps_; ++w)
    if (warps_[w].live)
      waiting += (waiting.empty() ? "" : "; ") + ("warp " + std::to_string(w) + ": ") +
                 std::to_string(__builtin_popcount(warps_[w].at_barrier)) + " lanes at a barrier, " +
                 std::to_string(warps_[w].arrived) + " of " + std::to_string(__builtin_popcount(warps_[w].live)) +
                 " in " + (warps_[w].arrived ? warps_[w].what : "no common operation");
  complain(("stuck: " + waiting.substr(0, 180)).c_str());
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
  if (!find_ready(&next)) {
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

void Block::release_barrier() {
  if (at_barrier_ == 0 || at_barrier_ < live_) return;
  at_barrier_ = 0;
  shadow_.block_synced();
  for (u32 w = 0; w < num_warps_; ++w) {
    warps_[w].ready |= warps_[w].at_barrier;
    warps_[w].at_barrier = 0;
  }
}

void Block::sync_threads() {
  Warp& w = warp();
  w.ready &= ~(1u << lane());
  w.at_barrier |= 1u << lane();
  ++at_barrier_;
  release_barrier();
  wait();
}

bool Block::meet(u32 id, u32 threads, bool predicate) {
  if (id == 0 || id >= kNamedBarriers || threads % kWarp != 0 || threads > num_warps_ * kWarp) {
    complain("a named barrier that no GPU has");
    return predicate;
  }
  NamedBarrier& barrier = named_[id];
  warp().ready &= ~(1u << lane());
  warp().at_named[id] |= 1u << lane();
  barrier.gathered &= predicate;
  if (++barrier.arrived == threads) {
    u32 met = 0;
    for (u32 w = 0; w < num_warps_; ++w) {
      if (warps_[w].at_named[id]) met |= 1u << w;
      warps_[w].ready |= std::exchange(warps_[w].at_named[id], 0u);
    }
    shadow_.warps_met(met);
    barrier = {0, true, barrier.gathered};
  }
  wait();
  return barrier.result;
}

void Block::arrive(Mbarrier& barrier) {
  if (barrier.pending == 0) {
    complain("an arrival at a barrier that nobody made");
    return;
  }
  shadow_.hand_over(current_ / kWarp, barrier.clock);
  if (--barrier.pending > 0) return;
  barrier.pending = barrier.arrivals;
  ++barrier.phases;
  for (u32 t = 0; t < num_warps_ * kWarp; ++t)
    if (threads_[t].waits_for == &barrier) {
      threads_[t].waits_for = nullptr;
      warps_[t / kWarp].ready |= 1u << t % kWarp;
    }
}

void Block::wait_for(const Mbarrier& barrier, u32 parity) {
  while (barrier.phases % 2 == parity) {
    thread().waits_for = &barrier;
    warp().ready &= ~(1u << lane());
    wait();
  }
  shadow_.take_over(current_ / kWarp, barrier.clock);
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
  if (++naps_ > kPatience) {
    if (naps_ == kPatience + 1) complain("waits for something that no thread of this block does");
    warp().ready &= ~(1u << lane());  // for good
  }
  wait();
}

std::map<std::string, Entry>& kernels() {
  static std::map<std::string, Entry> all;
  return all;
}

// Fenced ranges by their begin.
std::map<const char*, const char*>& fences() {
  static std::map<const char*, const char*> all;
  return all;
}

}  // namespace

void add_kernel(const char* name, Entry entry) { kernels()[name] = entry; }
bool has_kernel(const char* name) { return kernels().count(name) > 0; }

std::string run(const Launch& launch, Entry entry, const Schedule& schedule) {
  if (launch.shared_bytes > kSharedBytes || launch.block > kMaxThreads || launch.block % kWarp != 0)
    return "no GPU takes this launch";
  if (launch.block > kShadowWarps * kWarp) return "more warps than the emulator watches";
  blockDim.x = launch.block;
  gridDim.x = launch.grid;
  for (u32 i = 0; i < launch.grid; ++i)
    block().run(launch, entry, schedule, schedule.blocks_reversed ? launch.grid - 1 - i : i);
  const std::string report = block().take_report();
  return report.empty() ? "" : std::string(launch.name) + ": " + report;
}

std::string run(const Launch& launch, const Schedule& schedule) {
  const auto found = kernels().find(launch.name);
  if (found == kernels().end()) return std::string(launch.name) + " was not compiled for the emulation";
  return run(launch, found->second, schedule);
}

u32 shared_address(const void* pointer) { return u32(static_cast<const u8*>(pointer) - smem) + kSharedBase; }

void* shared_pointer(u32 address, u32 bytes) {
  static u8 elsewhere[64];
  if (!block().contains(address, bytes)) {
    block().complain("an access outside shared memory");
    return elsewhere;
  }
  if (address % bytes != 0) block().complain("an access to shared memory that is not aligned");
  return smem + (address - kSharedBase);
}

void note_access(u32 address, u32 bytes, Access access) {
  if (block().contains(address, bytes)) block().note(address - kSharedBase, bytes, access);
}

void cp_async_16(u32 destination, const void* source, i32 source_bytes) {
  if (reinterpret_cast<std::uintptr_t>(source) % 16 != 0) block().complain("cp.async from an address not at 16 bytes");
  std::memset(shared_pointer(destination, 16), 0xff, 16);
  note_access(destination, 16, Access::kWrite);
  block().thread().open.push_back({destination, source, source_bytes});
}

void cp_async_commit() {
  Thread& t = block().thread();
  t.groups.push_back(std::move(t.open));
  t.open.clear();
}

void cp_async_wait(int pending) {
  Thread& t = block().thread();
  const size_t done = t.groups.size() > size_t(pending) ? t.groups.size() - size_t(pending) : 0;
  for (size_t g = 0; g < done; ++g)
    for (const Copy& copy : t.groups[g]) {
      u8 bytes[16] = {};
      if (copy.source_bytes > 0) {
        std::memcpy(bytes, copy.source, size_t(copy.source_bytes));
        note_plain_access(copy.source, size_t(copy.source_bytes), Access::kRead);
      }
      std::memcpy(shared_pointer(copy.destination, 16), bytes, 16);
      note_access(copy.destination, 16, Access::kWrite);
    }
  t.groups.erase(t.groups.begin(), t.groups.begin() + std::ptrdiff_t(done));
}

void sync_threads() { block().sync_threads(); }
bool meet(i32 id, i32 threads, bool predicate) { return block().meet(u32(id), u32(threads), predicate); }

void mbarrier_init(u32 address, u32 arrivals) {
  shared_pointer(address, 8);
  block().mbarrier(address) = {arrivals, arrivals, 0, {}};
}
void mbarrier_arrive(u32 address) { block().arrive(block().mbarrier(address)); }
void mbarrier_wait(u32 address, u32 parity) { block().wait_for(block().mbarrier(address), parity); }
bool mbarrier_is_over(u32 address, u32 parity) {
  if (block().mbarrier(address).phases % 2 == parity) return false;
  mbarrier_wait(address, parity);  // takes over what its arrivals knew
  return true;
}

void warpgroup_together(void (*perform)(u32 first_thread, void* context), void* context) {
  block().warpgroup_together(perform, context);
}
u32 thread_number() { return block().current(); }

void set_registers(u32 registers) { block().set_registers(registers); }

void sync_warp() {
  block().together("__syncwarp", nullptr, [](void* const(&)[32]) { block().warp_synced(); });
}

void sleep() { block().nap(); }

void together(const char* what, void* operands, void (*perform)(void* const (&operands)[32])) {
  block().together(what, operands, perform);
}

void note_plain_access(const void* pointer, size_t bytes, Access access) {
  if (!block().is_running() || block().thread().fiber.owns(pointer)) return;
  const auto address = static_cast<const char*>(pointer);
  const char* shared = reinterpret_cast<const char*>(smem);
  if (address >= shared && address < shared + kSharedBytes) {
    const u32 offset = u32(address - shared);
    if (!block().contains(offset + kSharedBase, u32(bytes)))
      block().complain("an access outside shared memory");
    else
      block().note(offset, u32(bytes), access);
    return;
  }
  auto next = fences().lower_bound(address + bytes);
  if (next == fences().begin()) return;
  --next;
  if (address < next->second)
    block().complain(access == Access::kRead ? "reads what it must not" : "writes what it must not");
}

void fence(const void* begin, size_t bytes) {
  const auto first = static_cast<const char*>(begin);
  if (bytes > 0) fences()[first] = first + bytes;
}
void open_fence(const void* begin, size_t bytes) {
  const auto first = static_cast<const char*>(begin);
  fences().erase(fences().lower_bound(first), fences().lower_bound(first + bytes));
}

}  // namespace mica::emulation
