// SPDX-License-Identifier: Apache-2.0
// Barriers of a block: of all threads, named ones of some warps, and those in shared memory.
#include <algorithm>

#include "tests/cuda/emulation/block.h"

namespace mica::emulation {

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

// Of a cluster: everybody knows then what both blocks did.
void Block::release_cluster() {
  Block& other = *peer_;
  if (at_cluster_ < live_ || other.at_cluster_ < other.live_) return;
  for (Block* b : {this, &other}) {
    b->at_cluster_ = 0;
    b->shadow_.block_synced();
    for (u32 w = 0; w < b->num_warps_; ++w) b->warps_[w].ready |= std::exchange(b->warps_[w].at_cluster, 0u);
  }
  shadow_.peer_synced(other.shadow_);
  other.shadow_.peer_synced(shadow_);
}

void Block::sync_cluster() {
  if (!peer()) return;
  Warp& w = warp();
  w.ready &= ~(1u << lane());
  w.at_cluster |= 1u << lane();
  ++at_cluster_;
  release_cluster();
  wait();
}

bool Block::is_named_barrier(u32 id, u32 threads) {
  if (id != 0 && id < kNamedBarriers && threads % kWarp == 0 && threads <= num_warps_ * kWarp) return true;
  complain("a named barrier that no GPU has");
  return false;
}

// Those who wait take over what everybody did, and go on.
void Block::complete(NamedBarrier& barrier, u32 id) {
  for (u32 w = 0; w < num_warps_; ++w)
    if (warps_[w].at_named[id]) shadow_.hand_over(w, barrier.clock);
  for (u32 w = 0; w < num_warps_; ++w) {
    if (warps_[w].at_named[id]) shadow_.take_over(w, barrier.clock);
    warps_[w].ready |= std::exchange(warps_[w].at_named[id], 0u);
  }
  barrier = {0, true, barrier.gathered, {}};
}

bool Block::meet(u32 id, u32 threads, bool predicate) {
  if (!is_named_barrier(id, threads)) return predicate;
  NamedBarrier& barrier = named_[id];
  warp().ready &= ~(1u << lane());
  warp().at_named[id] |= 1u << lane();
  barrier.gathered &= predicate;
  if (++barrier.arrived == threads) complete(barrier, id);
  wait();
  return barrier.result;
}

void Block::arrive_named(u32 id, u32 threads) {
  if (!is_named_barrier(id, threads)) return;
  NamedBarrier& barrier = named_[id];
  shadow_.hand_over(current_ / kWarp, barrier.clock);
  if (++barrier.arrived == threads) complete(barrier, id);
}

void Block::make(Mbarrier& barrier, u32 arrivals) {
  const u32 actor = barrier.actor;
  barrier = Mbarrier{};
  barrier.arrivals = barrier.pending = arrivals;
  barrier.maker = current_;
  barrier.maker_fences = shadow_.fences(current_);
  barrier.actor = actor;
}

void Block::arrive(Mbarrier& barrier, u32 bytes) {
  if (barrier.arrivals > 0 && barrier.pending > 0) {
    if (peer_)
      shadow_.hand_over(current_ / kWarp, barrier.clock, barrier.peer);
    else
      shadow_.hand_over(current_ / kWarp, barrier.clock);
  }
  count_arrival(barrier, bytes);
}

void Block::arrive_at_peer(u32 address) {
  Block* other = peer();
  if (!other) return;
  Mbarrier& barrier = other->mbarrier(address);
  if (barrier.arrivals > 0 && barrier.pending > 0)
    shadow_.hand_over_to_peer(current_ / kWarp, barrier.clock, barrier.peer);
  other->count_arrival(barrier, 0);
}

void Block::count_arrival(Mbarrier& barrier, u32 bytes) {
  constexpr u32 kMostBytes = (1u << 20) - 1;
  if (barrier.arrivals == 0 || barrier.pending == 0) {
    complain(barrier.arrivals == 0 ? "an arrival at a barrier that nobody made"
                                   : "one arrival more than the barrier counts");
    return;
  }
  if (bytes > kMostBytes) complain("a barrier that expects more bytes than it can count");
  barrier.bytes += bytes;
  --barrier.pending;
  end_phase_if_done(barrier);
}

void Block::end_phase_if_done(Mbarrier& barrier) {
  if (barrier.pending > 0 || barrier.bytes != 0) return;
  barrier.pending = barrier.arrivals;
  ++barrier.phases;
  if (std::exchange(barrier.delivered, false)) shadow_.engine_done(barrier.actor, barrier.clock);
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
  if (peer_)
    shadow_.take_over(current_ / kWarp, barrier.clock, barrier.peer);
  else
    shadow_.take_over(current_ / kWarp, barrier.clock);
}

}  // namespace mica::emulation
