// SPDX-License-Identifier: Apache-2.0
// Runs a GPU kernel on the host, one thread block after the other, or two that reach each other's shared memory. Each
// thread of a block is a fiber; what a warp does together (products, ldmatrix, shuffles, votes) happens when its last
// lane arrives, what a block does together when its last thread does. The order of warps and blocks is fixed by
// Schedule, so that a run can be repeated.
//
// It is stricter than a GPU: shared memory starts as NaNs, what cp.async brings is NaN until its group is waited for
// and arrives only then, and every access to shared memory through device/ptx.cuh is checked for bounds, alignment and
// races (two threads, one of them writing, no barrier in between). Plain accesses are checked too in files that are
// compiled with -fsanitize=thread (see watch.cc). The copy engine is as late as it can be (copy_engine.cc), and what
// threads wrote must be fenced before it or wgmma reads it.
#pragma once

#include <cstddef>
#include <string>

#include "core/types.h"
#include "cuda/kernels/parts/tensor_map.h"

namespace mica::emulation {

constexpr u32 kSharedBytes = 227 << 10;

struct Schedule {
  bool blocks_reversed = false;
  bool warps_reversed = false;
};

struct Launch {
  const char* name;
  u32 grid, block, shared_bytes;
  const void* params;
  u32 cluster = 1;            // blocks that reach into one another: 1 or 2
  bool runs_at_once = false;  // all blocks: they may wait for one another
};

using Entry = void (*)(const void* params);
void add_kernel(const char* name, Entry entry, u32 cluster);
bool has_kernel(const char* name);

// "" or what was wrong: the first few things.
std::string run(const Launch& launch, Entry entry, const Schedule& schedule);
// The same for a kernel that was added.
std::string run(const Launch& launch, const Schedule& schedule);

// For files made from the rows of kernels.def.
template <class Params>
struct Kernel {
  template <void (*kernel)(Params)>
  static void call(const void* params) {
    Params own;
    __builtin_memcpy(&own, params, sizeof own);
    kernel(own);
  }
};

// What device/ptx.cuh is made of; called by the threads of a kernel.
enum class Access { kRead, kWrite, kReadByWgmma };
u32 shared_address(const void* pointer);
void* shared_pointer(u32 address, u32 bytes);  // checked; never null
void note_access(u32 address, u32 bytes, Access access);
void cp_async_16(u32 destination, const void* source, i32 source_bytes);
void cp_async_4(u32 destination, const void* source);
void cp_async_commit();
void cp_async_wait(int pending);
void sync_threads();
// A named barrier of `threads` threads; whether `predicate` held in all of them.
bool meet(i32 id, i32 threads, bool predicate);
void arrive_named(i32 id, i32 threads);
// Barriers in shared memory.
void mbarrier_init(u32 address, u32 arrivals);
void mbarrier_arrive(u32 address);
void mbarrier_arrive_expecting(u32 address, u32 bytes);
void mbarrier_wait(u32 address, u32 parity);
bool mbarrier_is_over(u32 address, u32 parity);
// Clusters of two: where the block of that rank has what this one has at a shared address; its barriers and memory
// there, of which races are not watched for; a box into both blocks, whose own barriers count its bytes; bytes of this
// block's memory into the other's; a barrier of both.
u32 shared_of_block(u32 address, u32 rank);
void mbarrier_arrive_remote(u32 remote);
void store_remote(u32 remote, u32 x);
void tma_load_multicast(u32 shared, const TensorMap& map, const i32 (&begin)[4], u32 barrier);
void copy_to_block(u32 remote, u32 shared, u32 bytes, u32 remote_barrier);
void sync_cluster();
// fence.proxy.async
void fence_proxy();
// The copy engine. begin: (column, row, head, slot) of the box.
void tma_prefetch(const TensorMap& map);
void tma_load(u32 shared, const TensorMap& map, const i32 (&begin)[4], u32 barrier);
void tma_load(u32 shared, const TensorMap& map, const i32 (&begin)[5], u32 barrier);
void tma_store(const TensorMap& map, const i32 (&begin)[4], u32 shared);
void bulk_load(u32 shared, const void* global, u32 bytes, u32 barrier);
void bulk_store(float* global, u32 shared, u32 bytes);
void bulk_reduce_add(float* global, u32 shared, u32 bytes);
void bulk_reduce_add_integers(float* global, u32 shared, u32 bytes);
void bulk_commit();
void bulk_wait();  // for what this thread committed
// The four warps of this thread's warpgroup wait for each other, the last one calls perform with its first thread's
// number. Orders nothing in memory.
void warpgroup_together(void (*perform)(u32 first_thread, void* context), void* context);
u32 thread_number();
// setmaxnreg: a thread of each warpgroup has this many registers from now on.
void set_registers(u32 registers);
void sync_warp();
void sleep();  // __nanosleep: somebody else must run for this thread to go on
// Waits for the 32 lanes of the warp; the last one calls perform with what each of them gave.
void together(const char* what, void* operands, void (*perform)(void* const (&operands)[32]));
// A plain access by a thread of a kernel, anywhere in memory.
void note_plain_access(const void* pointer, size_t bytes, Access access);

// Memory that no kernel may touch, checked for the accesses that note_plain_access sees.
void fence(const void* begin, size_t bytes);
void open_fence(const void* begin, size_t bytes);

}  // namespace mica::emulation
