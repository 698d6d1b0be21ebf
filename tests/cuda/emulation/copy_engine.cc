// SPDX-License-Identifier: Apache-2.0
// The copy engine. A load is as late as it can be: its destination is NaN from the request on, and the bytes come when
// no thread of the block can go on without them. A store reads its source when it is waited for.
#include "tests/cuda/emulation/copy_engine.h"

#include <cstdint>
#include <cstring>

#include "tests/cuda/emulation/block.h"
#include "tests/cuda/emulation/emulator.h"

namespace mica::emulation {
namespace {

constexpr u32 kChunk = 16, kRow = 128;  // bytes; of a swizzled row

// Its place in 1024 bytes: chunks of 16 bytes change places by the number of the row.
u32 swizzled(u32 address) { return address ^ (address >> 7 & 7) << 4; }

void write_shared(const BulkCopy& copy) {
  for (u32 i = 0; i < num_chunks(copy); ++i) {
    const BulkChunk chunk = chunk_of(copy, i);
    u8* to = static_cast<u8*>(shared_pointer(chunk.shared, kChunk));
    std::memset(to, 0, kChunk);
    if (chunk.first >= chunk.end) continue;
    std::memcpy(to + chunk.first, chunk.global + chunk.first, chunk.end - chunk.first);
    note_plain_access(chunk.global + chunk.first, chunk.end - chunk.first, Access::kRead);
  }
}

template <class Word>
void add_words(char* to, const u8* from) {
  for (u32 at = 0; at < kChunk; at += sizeof(Word)) {
    Word sum, x;
    std::memcpy(&sum, to + at, sizeof sum);
    std::memcpy(&x, from + at, sizeof x);
    sum += x;
    std::memcpy(to + at, &sum, sizeof sum);
  }
}

void write_global(const BulkCopy& copy) {
  for (u32 i = 0; i < num_chunks(copy); ++i) {
    const BulkChunk chunk = chunk_of(copy, i);
    if (chunk.first >= chunk.end) continue;
    const u8* from = static_cast<const u8*>(shared_pointer(chunk.shared, kChunk));
    note_plain_access(chunk.global + chunk.first, chunk.end - chunk.first, Access::kWrite);
    if (copy.adds == Adds::FLOATS) {
      add_words<float>(chunk.global, from);
    } else if (copy.adds == Adds::INTEGERS) {
      add_words<u32>(chunk.global, from);
    } else {
      std::memcpy(chunk.global + chunk.first, from + chunk.first, chunk.end - chunk.first);
    }
  }
}

// Rows of a swizzled box are 128 bytes apart, however short they are.
u32 row_bytes(const test::FakeTensorMap& map) {
  return map.swizzle == test::kMapSwizzle128 ? kRow : map.box[0] * map.element_bytes;
}
u32 bytes_of_room(const BulkCopy& copy) {
  return copy.global ? copy.bytes : copy.bytes / (copy.map.box[0] * copy.map.element_bytes) * row_bytes(copy.map);
}

}  // namespace

u32 num_chunks(const BulkCopy& copy) { return copy.bytes / kChunk; }

BulkChunk chunk_of(const BulkCopy& copy, u32 index) {
  if (copy.global) return {copy.shared + index * kChunk, copy.global + index * kChunk, 0, kChunk};
  const test::FakeTensorMap& map = copy.map;
  const u32 chunks_of_row = map.box[0] * map.element_bytes / kChunk;
  u32 row = index / chunks_of_row;
  const u32 plain = copy.shared + row * row_bytes(map) + index % chunks_of_row * kChunk;
  i64 offset = 0;
  bool inside = true;
  for (int axis = 1; axis < test::FakeTensorMap::kRank; ++axis) {
    const i64 at = i64(copy.begin[axis]) + row % map.box[axis];
    row /= map.box[axis];
    inside = inside && at >= 0 && at < i64(map.dims[axis]);
    offset += at * i64(map.strides[axis - 1]);
  }
  // Bytes of the row.
  const i64 begin = i64(copy.begin[0]) * map.element_bytes + index % chunks_of_row * kChunk;
  const i64 first = begin < 0 ? -begin : 0, end = i64(map.dims[0]) * map.element_bytes - begin;
  inside = inside && first < kChunk && end > 0;
  const std::uint64_t global = map.address + std::uint64_t(offset + begin);
  return {map.swizzle == test::kMapSwizzle128 ? swizzled(plain) : plain, reinterpret_cast<char*>(global),
          inside ? u32(first) : 0, inside ? u32(end < kChunk ? end : kChunk) : 0};
}

const char* broken_rule(const BulkCopy& copy) {
  if (copy.global) {
    if (copy.shared % kChunk || copy.bytes % kChunk || reinterpret_cast<std::uintptr_t>(copy.global) % kChunk)
      return "a bulk copy whose size or addresses are no multiples of 16";
    return "";
  }
  const bool is_swizzled = copy.map.swizzle == test::kMapSwizzle128;
  if (!copy.map.is_valid()) return "a tensor map that the driver did not make";
  if (is_swizzled && copy.map.box[0] * copy.map.element_bytes > kRow)
    return "a swizzled box whose rows are more than 128 bytes";
  if (copy.shared % (is_swizzled ? 8 * kRow : kRow))
    return is_swizzled ? "a swizzled box that is not at 1024 bytes of shared memory"
                       : "a box that is not at 128 bytes of shared memory";
  return "";
}

void Block::ask_load(const BulkCopy& copy, Mbarrier& barrier) {
  if (const char* broken = why_no_load(copy, barrier); broken[0])
    complain(broken);
  else
    start_load(copy, barrier, nullptr);
}

// Each block's part is late by itself.
void Block::ask_load_for_both(const BulkCopy& copy, u32 barrier) {
  ask_load(copy, mbarrier(barrier));
  Block* other = peer();
  if (!other) return;
  if (const char* broken = other->why_no_load(copy, other->mbarrier(barrier)); broken[0])
    complain(broken);
  else
    other->start_load(copy, other->mbarrier(barrier), &shadow_.peer_behind(current_ / kWarp));
}

// What is sent is read at once, and late in the other block.
void Block::send_to_peer(u32 to, u32 from, u32 bytes, u32 barrier) {
  Block* other = peer();
  if (!other) return;
  if (!contains(from, bytes)) {
    complain("a bulk copy from outside shared memory");
    return;
  }
  const u32 offset = from - kSharedBase;
  note(offset, bytes, Access::kRead);
  if (shadow_.is_unfenced(offset, bytes))
    complain("its bulk copy reads what a thread wrote without fence_for_wgmma after it");
  std::vector<char> sent(memory() + offset, memory() + offset + bytes);
  const BulkCopy copy = {to, sent.data(), bytes, Adds::NOTHING, {}, {}};
  if (const char* broken = other->why_no_load(copy, other->mbarrier(barrier)); broken[0])
    complain(broken);
  else
    other->start_load(copy, other->mbarrier(barrier), &shadow_.peer_behind(current_ / kWarp), std::move(sent));
}

const char* Block::why_no_load(const BulkCopy& copy, Mbarrier& barrier) {
  const char* broken = broken_rule(copy);
  if (!broken[0] && !contains(copy.shared, bytes_of_room(copy))) broken = "a bulk copy to outside shared memory";
  if (!broken[0] && barrier.arrivals == 0) broken = "a bulk copy for a barrier that nobody made";
  if (!broken[0] && shadow_.fences(barrier.maker) == barrier.maker_fences)
    broken = "a bulk copy for a barrier whose maker made no fence_for_wgmma";
  if (barrier.actor == 0 && num_load_actors_ < kShadowLoads) barrier.actor = kEngineWrites + num_load_actors_++;
  if (!broken[0] && barrier.actor == 0) broken = "more barriers that count bytes than the emulator watches";
  return broken;
}

// behind: what the other block of the cluster, which asks, has behind it of this one; null: this one asks.
void Block::start_load(const BulkCopy& copy, Mbarrier& barrier, const Clock* behind, std::vector<char> sent) {
  const char* race = nullptr;
  bool unfenced = false;
  for (u32 i = 0; i < num_chunks(copy); ++i) {
    const u32 offset = chunk_of(copy, i).shared - kSharedBase;
    unfenced |= shadow_.is_unfenced(offset, kChunk);
    const char* found = behind ? shadow_.note_for_peer(barrier.actor, offset, kChunk, *behind)
                               : shadow_.note_as(barrier.actor, offset, kChunk, true, current_);
    if (found) race = found;
    std::memset(memory() + offset, 0xff, kChunk);
  }
  if (race) complain((std::string("its bulk copy: ") + race).c_str());
  if (unfenced) complain("its bulk copy writes what a thread wrote without fence_for_wgmma after it");
  loads_.push_back({copy, &barrier, std::move(sent)});
}

bool Block::deliver() {
  if (loads_.empty()) return false;
  const BulkLoad load = std::move(warps_reversed_ ? loads_.back() : loads_.front());
  if (warps_reversed_)
    loads_.pop_back();
  else
    loads_.pop_front();
  write_shared(load.copy);
  load.barrier->bytes -= load.copy.bytes;
  load.barrier->delivered = true;
  end_phase_if_done(*load.barrier);
  return true;
}

void Block::ask_store(const BulkCopy& copy) {
  const char* broken = broken_rule(copy);
  if (!broken[0] && !contains(copy.shared, bytes_of_room(copy))) broken = "a bulk copy from outside shared memory";
  if (broken[0]) {
    complain(broken);
    return;
  }
  const char* race = nullptr;
  bool unfenced = false;
  for (u32 i = 0; i < num_chunks(copy); ++i) {
    const u32 offset = chunk_of(copy, i).shared - kSharedBase;
    unfenced |= shadow_.is_unfenced(offset, kChunk);
    if (const char* found = shadow_.note_as(kEngineReads + current_ / kWarp, offset, kChunk, false, current_))
      race = found;
  }
  if (race) complain((std::string("its bulk copy: ") + race).c_str());
  if (unfenced) complain("its bulk copy reads what a thread wrote without fence_for_wgmma after it");
  thread().open_stores.push_back(copy);
}

void Block::wait_for_stores() {
  for (const BulkCopy& copy : thread().stores) write_global(copy);
  thread().stores.clear();
  if (!thread().open_stores.empty()) return;
  Clock clock;
  shadow_.engine_done(kEngineReads + current_ / kWarp, clock);
  shadow_.take_over(current_ / kWarp, clock);
}

// When every thread has returned.
void Block::check_copies() {
  if (!loads_.empty()) complain("a bulk copy is under way to shared memory that nobody waits for any more");
  while (deliver()) {
  }
  for (const auto& [address, barrier] : mbarriers_) {
    if (barrier.bytes < 0) complain("a barrier never expected bytes that came");
    if (barrier.bytes > 0) complain("a barrier expects bytes that never came");
  }
}

void tma_prefetch(const TensorMap& map) {
  if (!test::decode_tensor_map(map).is_valid()) block().complain("a tensor map that the driver did not make");
}

namespace {

// g++ for aarch64 copies an argument to 16 bytes, whatever its type asks for: there an address says nothing.
#if defined(__aarch64__) && defined(__GNUC__) && !defined(__clang__)
constexpr std::uintptr_t kMapAlignment = 16;
#else
constexpr std::uintptr_t kMapAlignment = alignof(TensorMap);
#endif

template <u32 rank>
BulkCopy box(u32 shared, const TensorMap& map, const i32 (&begin)[rank]) {
  BulkCopy copy = {shared, nullptr, 0, Adds::NOTHING, test::decode_tensor_map(map), {}};
  for (u32 axis = 0; axis < rank; ++axis) copy.begin[axis] = begin[axis];
  if (copy.map.is_valid() && copy.map.rank != rank) block().complain("a box by other axes than its tensor map has");
  copy.bytes = copy.map.is_valid() ? copy.map.box_bytes() : 0;
  if (reinterpret_cast<std::uintptr_t>(&map) % kMapAlignment != 0)
    block().complain("a tensor map that is not at 64 bytes");
  return copy;
}

}  // namespace

void tma_load(u32 shared, const TensorMap& map, const i32 (&begin)[4], u32 barrier) {
  block().ask_load(box(shared, map, begin), block().mbarrier(barrier));
}
void tma_load(u32 shared, const TensorMap& map, const i32 (&begin)[5], u32 barrier) {
  block().ask_load(box(shared, map, begin), block().mbarrier(barrier));
}
void tma_load_multicast(u32 shared, const TensorMap& map, const i32 (&begin)[4], u32 barrier) {
  block().ask_load_for_both(box(shared, map, begin), barrier);
}
void tma_store(const TensorMap& map, const i32 (&begin)[4], u32 shared) { block().ask_store(box(shared, map, begin)); }
void bulk_load(u32 shared, const void* global, u32 bytes, u32 barrier) {
  char* from = static_cast<char*>(const_cast<void*>(global));
  block().ask_load({shared, from, bytes, Adds::NOTHING, {}, {}}, block().mbarrier(barrier));
}
void bulk_store(float* global, u32 shared, u32 bytes) {
  block().ask_store({shared, reinterpret_cast<char*>(global), bytes, Adds::NOTHING, {}, {}});
}
void bulk_reduce_add(float* global, u32 shared, u32 bytes) {
  block().ask_store({shared, reinterpret_cast<char*>(global), bytes, Adds::FLOATS, {}, {}});
}
void bulk_reduce_add_integers(float* global, u32 shared, u32 bytes) {
  block().ask_store({shared, reinterpret_cast<char*>(global), bytes, Adds::INTEGERS, {}, {}});
}
void bulk_commit() {
  Thread& t = block().thread();
  t.stores.insert(t.stores.end(), t.open_stores.begin(), t.open_stores.end());
  t.open_stores.clear();
}
void bulk_wait() { block().wait_for_stores(); }

}  // namespace mica::emulation
