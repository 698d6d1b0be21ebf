// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/emulation/emulator.h"

#include <cstring>
#include <map>
#include <utility>

#include "tests/cuda/emulation/block.h"
#include "tests/cuda/emulation/cuda_words.h"

alignas(1024) thread_local mica::u8 smem[mica::emulation::kSharedBytes];

namespace mica::emulation {
namespace {

struct AddedKernel {
  Entry entry;
  u32 cluster;
};
std::map<std::string, AddedKernel>& kernels() {
  static std::map<std::string, AddedKernel> all;
  return all;
}

// Fenced ranges by their begin.
std::map<const char*, const char*>& fences() {
  static std::map<const char*, const char*> all;
  return all;
}

}  // namespace

void add_kernel(const char* name, Entry entry, u32 cluster) { kernels()[name] = {entry, cluster}; }
bool has_kernel(const char* name) { return kernels().count(name) > 0; }

std::string run(const Launch& launch, Entry entry, const Schedule& schedule) {
  if (launch.shared_bytes > kSharedBytes || launch.block > kMaxThreads || launch.block % kWarp != 0)
    return "no GPU takes this launch";
  if (launch.cluster > 2 || launch.grid % launch.cluster != 0) return "no whole clusters of one or two blocks";
  if (launch.runs_at_once && launch.cluster != 1) return "clusters that run at once";
  if (launch.block > kShadowWarps * kWarp) return "more warps than the emulator watches";
  blockDim.x = launch.block;
  gridDim.x = launch.grid;
  const u32 together = launch.runs_at_once ? launch.grid : launch.cluster;
  for (u32 i = 0; i < launch.grid; i += together)
    Block::run(launch, entry, schedule, schedule.blocks_reversed ? launch.grid - together - i : i, together);
  const std::string report = block().take_report();
  return report.empty() ? "" : std::string(launch.name) + ": " + report;
}

std::string run(const Launch& launch, const Schedule& schedule) {
  const auto found = kernels().find(launch.name);
  if (found == kernels().end()) return std::string(launch.name) + " was not compiled for the emulation";
  Launch own = launch;
  own.cluster = found->second.cluster;
  return run(own, found->second.entry, schedule);
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

namespace {
void cp_async(u32 destination, const void* source, i32 source_bytes, u32 bytes) {
  if (reinterpret_cast<std::uintptr_t>(source) % bytes != 0)
    block().complain(bytes == 16 ? "cp.async from an address not at 16 bytes"
                                 : "cp.async from an address not at 4 bytes");
  std::memset(shared_pointer(destination, bytes), 0xff, bytes);
  note_access(destination, bytes, Access::kWrite);
  block().thread().open.push_back({destination, source, source_bytes, bytes});
}
}  // namespace
void cp_async_16(u32 destination, const void* source, i32 source_bytes) {
  cp_async(destination, source, source_bytes, 16);
}
void cp_async_4(u32 destination, const void* source) { cp_async(destination, source, 4, 4); }

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
      std::memcpy(shared_pointer(copy.destination, copy.bytes), bytes, copy.bytes);
      note_access(copy.destination, copy.bytes, Access::kWrite);
    }
  t.groups.erase(t.groups.begin(), t.groups.begin() + std::ptrdiff_t(done));
}

void fence_proxy() { block().fence(); }

void sync_threads() { block().sync_threads(); }
void arrive_named(i32 id, i32 threads) { block().arrive_named(u32(id), u32(threads)); }
bool meet(i32 id, i32 threads, bool predicate) { return block().meet(u32(id), u32(threads), predicate); }

void mbarrier_init(u32 address, u32 arrivals) {
  shared_pointer(address, 8);
  block().make(block().mbarrier(address), arrivals);
}
void mbarrier_arrive(u32 address) { block().arrive(block().mbarrier(address), 0); }
void mbarrier_arrive_expecting(u32 address, u32 bytes) { block().arrive(block().mbarrier(address), bytes); }
void mbarrier_wait(u32 address, u32 parity) { block().wait_for(block().mbarrier(address), parity); }
bool mbarrier_is_over(u32 address, u32 parity) {
  if (block().mbarrier(address).phases % 2 == parity) return false;
  mbarrier_wait(address, parity);  // takes over what its arrivals knew
  return true;
}

namespace {
constexpr u32 kRankBit = 1u << 24;  // of an address of the second block's memory; the first one's has the bit after it
}
u32 shared_of_block(u32 address, u32 rank) { return address | kRankBit << (rank == 0); }
// The address without the rank, where it is the other block's.
namespace {
bool is_of_peer(u32& remote) {
  const bool is_second = (remote & kRankBit) != 0;
  remote &= kRankBit - 1;
  return is_second != (blockIdx.x % 2 == 1);
}
}  // namespace
void mbarrier_arrive_remote(u32 remote) {
  if (is_of_peer(remote))
    block().arrive_at_peer(remote);
  else
    mbarrier_arrive(remote);
}
void store_remote(u32 remote, u32 x) {
  Block* at = is_of_peer(remote) ? block().peer() : &block();
  if (at && at->contains(remote, sizeof x)) std::memcpy(at->memory() + (remote - kSharedBase), &x, sizeof x);
}
void copy_to_block(u32 remote, u32 shared, u32 bytes, u32 remote_barrier) {
  if (!is_of_peer(remote) || !is_of_peer(remote_barrier))
    block().complain("a copy between blocks that stays in one");
  else
    block().send_to_peer(remote, shared, bytes, remote_barrier);
}
void sync_cluster() { block().sync_cluster(); }

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
