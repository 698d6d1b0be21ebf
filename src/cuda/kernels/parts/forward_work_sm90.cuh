// SPDX-License-Identifier: Apache-2.0
// How a persistent forward kernel of Hopper deals out its query tiles: one warp finds the next, tells the others
// through shared memory, and they take it. 64 of a tile's queries are a consumer's.
#pragma once

#include "device/cluster_sm90.cuh"
#include "device/work_ring_sm90.cuh"
#include "kernels/packed/packed_sm90.h"
#include "kernels/packed/packed_tiles_sm90.cuh"
#include "kernels/parts/forward_block.cuh"
#include "kernels/parts/overlap.cuh"

namespace mica {

// begins_ahead: finds a packed call's first tiles before the kernel before this one is done (300 instructions, which
// kernels of few callers are spared), and whoever writes results calls await_confirmation() before. packs: has packed
// calls at all. cluster: 2: blocks in pairs, which share their keys.
template <class Block, int tile_q, int tile_k, bool begins_ahead, bool packs = true, int cluster = 0>
struct ForwardWorkSm90 : Block {
  using Block::band;
  using Block::batch_index;
  using Block::head;
  using Block::p;
  using Block::sequence;
  using Block::split;
  using Block::tile_row;
  using Block::tiles;
  static constexpr int kConsumers = tile_q / 64;  // warpgroups
  static_assert(tile_q % 64 == 0);

  // A query tile as it is announced: Tile, for each consumer the range of key tiles that its 64 queries see among the
  // block's, Place.
  struct Tile {
    i32 index;  // < 0: there is no further one, and the rest is not there
    i32 row;    // tile_row
    i32 len_q, len_k;
    i32 keys_begin, keys_end;  // tiles of keys
    i64 lse_first;             // see ForwardBlock::lse_first
  };
  struct Place {
    Sequence sequence;
    i32 head, batch_index, split, unused;
  };
  // The parts of a Place, one after the other: those who fetch do without the third, which is told when it is known
  // whether the item is void.
  struct Begins {
    i64 q_begin, k_begin;
  };
  struct Lengths {
    i32 q_slot, k_slot, len_q, len_k;
  };
  struct Room {
    i32 slot_len_q, slot_len_k, leftpad, append_begin;
  };
  struct Which {
    i32 head, batch_index, split, unused;
  };
  static constexpr u32 kLengths = sizeof(Begins), kRoom = kLengths + sizeof(Lengths), kWhich = kRoom + sizeof(Room);
  static_assert(kWhich == sizeof(Sequence) && kWhich + sizeof(Which) == sizeof(Place));
  static constexpr u32 kOwn = sizeof(Tile), kPlace = kOwn + kConsumers * sizeof(TileRange);
  static constexpr u32 kItemBytes = kPlace + sizeof(Place);
  static_assert(kItemBytes == forward_sm90_item_bytes(tile_q));

  WorkRing<kItemBytes> work_ring;
  u32 nearly_done, confirmed;  // barriers; the second is the first of two, of each slot of the ring
  i32* lengths;                // room for those that are read ahead
  i32 slot_rows_q, slot_rows_k;
  i64 tile_lse_first;

  // The warp that finds the query tile that comes next, and tells the others.
  // The kernel before this one may still run (steps.h), and may be the one that writes the lengths. Where there are
  // none, the block's first tile is known without it.
  MICA_DEVICE void deal_out() {
    if constexpr (cluster == 2) {
      deal_out_pairs();
      return;
    }
    if constexpr (begins_ahead) {
      EvenItems items = {0, kNotDrawn, p.even_len_q == 0};
      if (!items.is_ahead && deal_out_even(items)) return;
      if (p.packed_q == kPackedEvenly) {
        deal_out_evenly(items);
        return;
      }
    }
    if (is_counted_here()) {
      if constexpr (packs) deal_out_packed();
      return;
    }
    const bool reads = reads_lengths(p.sequences);
    if constexpr (kFindsParts)
      if (!reads && is_one_part()) {
        deal_out_part();
        return;
      }
    if (reads) griddepcontrol_wait();
    // Gains in calls of up to four items a block, and nothing beyond.
    const bool is_hasty = p.work_items <= 4 * i32(gridDim.x);
    WorkCounter counter{p.work_counter, p.work_epoch, p.work_items, u32(p.first_items), is_hasty};
    u32 parity = 0;
    for (i32 work = i32(blockIdx.x); work >= 0; work = next_item(counter, work)) {
      if (!this->locate(work)) continue;
      work_ring.wait_empty();
      store_place();
      announce(work, true);
      await_end(parity);
    }
    announce_end();
  }
  // A pair of blocks has two query tiles of a head that follow one another, the second block the later one, and both go
  // through the keys that either of them sees: an item of the host is such a pair. The first block draws and tells the
  // other. Messages have four slots in the room for lengths: of message i nobody is told before the first block is done
  // with item i - 3, of whose keys the second one has brought half, so it has taken message i - 3, and i - 4 before it.
  static constexpr i32 kMessages = 4;
  static_assert(kMessages * (kBarrierBytes + 4) <= forward_sm90_lengths_bytes());
  u32 mail;  // the messages' barriers, then the messages
  MICA_DEVICE void init_mail() const {
    for (i32 i = 0; i < kMessages; ++i) mbarrier_init(mail + i * kBarrierBytes, 1);
  }
  // Where a consumer's 64 rows begin in the block's tile. Woven: those of a pair's blocks take turns, so that at a
  // diagonal both have about as many that see a key tile; not with two consumers, which lose by it (tuning.md).
  static constexpr bool kWoven = cluster == 2 && kConsumers == 3;
  MICA_DEVICE i32 group_row(i32 group) const { return kWoven ? group * 128 : group * this->consumer_rows(); }
  MICA_DEVICE void deal_out_pairs() {
    constexpr u64 kCountMask = (u64(1) << WorkCounter::kCountBits) - 1;
    const i32 rank = i32(block_rank()), pairs = i32(gridDim.x / 2);
    WorkCounter counter{p.work_counter, p.work_epoch, p.work_items, u32(pairs), true};
    RingPlace<kMessages> message;
    u32 parity = 0;
    split = 0;
    for (i32 work = i32(blockIdx.x / 2); work >= 0; message.next()) {
      const i32 first_row = this->locate_evenly(work) * (2 * tile_q);
      tile_row = first_row + rank * (kWoven ? 64 : tile_q);
      sequence = even_sequence();
      band = served_band<Block::kServed>(p.band, sequence.len_q, sequence.len_k);
      tiles = this->tiles_of(first_row, min_of(first_row + 2 * tile_q, sequence.len_q));
      work_ring.wait_empty();
      store_place();
      announce(work, false);
      const u32 told = mail + message.stage * kBarrierBytes;
      const u32 slot = mail + kMessages * kBarrierBytes + message.stage * 4;
      await_end(parity);  // by both, though the second is told: nobody arrives at a barrier that nobody waits for
      if (rank == 0) {
        if (!counter.has_drawn) griddepcontrol_wait();
        counter.ask();
        work = counter.answer();
        if (threadIdx.x % 32 == 0) {
          // Every pair draws once in vain, and the counter counts blocks.
          if (work < 0 && counter.counter && (counter.drawn & kCountMask) == u64(p.work_items + pairs - 1))
            store_relaxed(counter.counter, 0);
          store_remote(shared_of_block(slot, 1), u32(work));
          mbarrier_tell_remote(shared_of_block(told, 1));
        }
      } else {
        mbarrier_wait_cluster(told, message.parity);
        work = i32(load_shared_4(slot));
      }
    }
    announce_end();
  }
  // Short items are found far ahead, so that a block has its first two without a draw, which would wait behind what all
  // blocks ask for at once.
  MICA_DEVICE i32 next_item(WorkCounter& counter, i32 work) const {
    const i32 next = work + i32(gridDim.x);
    if (next < p.first_items) return next;
    if (!counter.has_drawn) griddepcontrol_wait();
    counter.ask();
    return counter.answer();
  }
  MICA_DEVICE bool is_counted_here() const { return packs && p.packed_q && !p.partial_o; }
  // A part of few rows, the only item of its block, whose place no vector tells. No key is asked for before it is
  // found, hence by few instructions that wait for each other: quotients, and each consumer's keys, by a lane each.
  // Where heads are joined: others are seldom as short.
  static constexpr bool kFindsParts = Block::kJoinsHeads && !(Block::kServed & kFeaturePaged);
  static constexpr i32 kMostParts = 128;  // times key tiles: fits into 32 bits
  MICA_DEVICE bool is_one_part() const {
    return p.partial_o && !p.packed_q && p.section_heads == 1 && p.splits.length_tiles == 0 &&
           p.splits.num_splits <= kMostParts && p.work_items <= i32(gridDim.x);
  }
  MICA_DEVICE void deal_out_part() {
    constexpr u32 kAll = 0xffffffffu;
    const i32 lane = i32(threadIdx.x) % 32;
    // How many query tiles a head has, a sequence, and all of them.
    const u32 index = blockIdx.x, of_head = p.tiles_q, of_sequence = of_head * p.heads_q, batch = p.batch;
    const u32 quotient = index / (lane == 0 ? of_head : lane == 1 ? of_sequence : of_sequence * batch);
    const u32 heads = __shfl_sync(kAll, quotient, 0), sequences = __shfl_sync(kAll, quotient, 1),
              splits = __shfl_sync(kAll, quotient, 2);
    split = i32(splits);
    batch_index = i32(sequences - splits * batch);
    head = i32(heads) - i32(sequences) * p.heads_q;
    tile_row =
        heavy_first(i32(index - heads * of_head), p.tiles_q, p.band.window_right < kUnlimited) * this->tile_rows();
    SequenceTable shapes = {};
    shapes.slot_len_q = p.sequences.slot_len_q;
    shapes.slot_len_k = p.sequences.slot_len_k;
    shapes.len_new = p.sequences.len_new;
    sequence = sequence_of(shapes, batch_index);
    band = served_band<Block::kServed>(p.band, sequence.len_q, sequence.len_k);
    // Of a consumer's rows, or in the other lanes of all.
    const i32 row = tile_row + (lane < kConsumers ? lane : 0) * this->consumer_rows();
    const i32 row_end = min_of(row + (lane < kConsumers ? this->consumer_rows() : this->tile_rows()), sequence.len_q);
    TileRange own = row < row_end ? this->tiles_of(row, row_end) : TileRange{0, 0, 0, 0};
    const i32 all_begin = __shfl_sync(kAll, own.begin, kConsumers), all_end = __shfl_sync(kAll, own.end, kConsumers);
    // Where the part begins, and in odd lanes where it ends.
    const i32 bound = all_begin + i32((splits + u32(lane & 1)) * u32(all_end - all_begin) / u32(p.splits.num_splits));
    tiles = TileRange{__shfl_sync(kAll, bound, 0), 0, 0, __shfl_sync(kAll, bound, 1)};
    own.begin = clamp_to(own.begin, tiles.begin, tiles.end);
    own.end = clamp_to(own.end, own.begin, tiles.end);
    store_place();
    work_ring.store(
        0, Tile{i32(index), tile_row, sequence.len_q, sequence.len_k, tiles.begin, tiles.end, this->lse_first()});
#pragma unroll
    for (int group = 0; group < kConsumers; ++group)
      work_ring.store(kOwn + group * sizeof(TileRange),
                      TileRange{__shfl_sync(kAll, own.begin, group), __shfl_sync(kAll, own.full_begin, group),
                                __shfl_sync(kAll, own.full_end, group), __shfl_sync(kAll, own.end, group)});
    work_ring.announce();
    announce_end();
  }
  // The same of packed sequences, whose items only the GPU can count. A loop of its own, which tells each part as soon
  // as it is found, since it takes more registers.
  // The block's first item is found by lengths that the kernel before this one may still change: when that one is done,
  // its queries, keys and values are asked for at once, and its results are written when the lengths have proved to be
  // the same. Else it is void.
  MICA_DEVICE void deal_out_packed() {
    WorkCounter counter{p.work_counter, p.work_epoch, kUnknown, gridDim.x, true};
    PackedTiles<tile_q> packed{p.section_heads / p.heads_q};
    SequenceTable table = p.sequences;
    bool is_ahead = read_ahead(table);
    u32 parity = 0;
    split = 0;
    for (i32 work = i32(blockIdx.x); work >= 0;) {
      const i32 batch = is_ahead ? min_of(p.batch, packed.at_once()) : p.batch;
      const PackedTile found = packed.find(table, batch, p.heads_q, work);
      if (!is_ahead && (found.batch < 0 || work >= p.tiles_q * p.heads_q)) {
        // Whatever cu_seqlens holds, there are not more than the host made room for.
        end_packed(counter, (found.batch < 0 ? min_of(found.tile, p.tiles_q) : p.tiles_q) * p.heads_q, work);
        break;
      }
      bool is_announced = false;
      if (found.batch >= 0) {
        head = found.head;
        batch_index = found.batch;
        tile_row = found.tile * tile_q;
        work_ring.wait_empty();
        sequence = sequence_of(table, batch_index);
        store_place();
        band = served_band<Block::kServed>(p.band, sequence.len_q, sequence.len_k);
        tiles = TileRange{0, 0, 0, 0};
        const i32 row_end = min_of(tile_row + tile_q, sequence.len_q);
        if (tile_row < row_end) tiles = this->tiles_of(tile_row, row_end);
        is_announced = !is_ahead || tiles.begin < tiles.end;  // without keys there is nothing to ask for ahead
        if (is_announced) announce(work, !is_ahead);
      }
      bool is_right = true;
      if (is_ahead) {
        is_ahead = false;
        is_right = confirm_lengths(table, is_announced) && is_announced;
        table = p.sequences;
        if (!is_right) packed = PackedTiles<tile_q>{p.section_heads / p.heads_q};
      }
      if (is_announced) await_end(parity);
      if (!is_right) continue;
      counter.ask();
      work = counter.answer();
    }
    announce_end();
  }
  // Where deal_out_evenly begins.
  static constexpr i32 kNotDrawn = -2;
  struct EvenItems {
    i32 work;   // 0: the block's first; else one that was drawn
    i32 drawn;  // the one after it; kNotDrawn: it is not known
    bool is_ahead;
    u32 parity = 0;
  };
  // The same of sequences that all have one length: a dense batch, or packed ones if what was said of them is right.
  // Where a block has many short items of few rows, which last no longer than to find them, the next one, and what an
  // item's place was taken for, are asked for before the item is told of, and looked at then: both are far away. Of few
  // items, or of longer ones, whoever asks so soon has one too many. False: it is not right, and the items are dealt
  // out again.
  MICA_DEVICE bool deal_out_even(EvenItems& items) {
    constexpr i32 kFewItems = 4;
    WorkCounter counter{p.work_counter, p.work_epoch, p.work_items, u32(p.first_items), true};
    split = 0;
    i32 before = -1;  // the sequence of the item before, if that one is not confirmed yet
    for (i32 work = i32(blockIdx.x); work >= 0;) {
      tile_row = this->locate_evenly(work) * this->tile_rows();
      sequence = even_sequence();
      band = served_band<Block::kServed>(p.band, sequence.len_q, sequence.len_k);
      tiles = this->tiles_of(tile_row, min_of(tile_row + this->tile_rows(), sequence.len_q));
      const EvenPart part = even_part(before);
      const i32 next = work + i32(gridDim.x);
      const bool is_given = next < p.first_items, draws = !is_long() && !is_given;
      const bool is_ahead = tile_q == 64 && counter.has_drawn && p.work_items > kFewItems * i32(gridDim.x);
      i32 found = part.begin;
      work_ring.wait_empty();
      if (is_ahead) {
        if (p.packed_q) found = *part.where;
        if (draws) counter.ask();
      }
      store_place();
      announce(work, false);
      if (is_given && (before < 0 || !p.packed_q)) {  // of two that are told of, neither needs to be confirmed yet
        before = batch_index;
        work = next;
        continue;
      }
      if (!is_ahead) {
        if (!counter.has_drawn) {
          if (p.packed_q) load_relaxed(part.where);  // in vain: then they are near when the kernel before is done
          griddepcontrol_wait();
        }
        if (p.packed_q) found = *part.where;
        if (draws) counter.ask();
      }
      const bool is_right = !p.packed_q || confirm_even(before, found == part.begin);
      await_end(items.parity);
      if (!is_right) {
        items.work = work < p.first_items ? 0 : work;
        items.drawn = draws ? counter.answer() : kNotDrawn;
        return false;
      }
      if (!draws && !is_given) counter.ask();
      work = is_given ? next : counter.answer();
      before = -1;
    }
    announce_end();
    return true;
  }
  // The same of packed sequences of about one length, whose items the host numbers as those of a dense call
  // (packs_evenly): a few are not there, and where a sequence is longer than was said, whoever has its last tile takes
  // those after it, too.
  MICA_DEVICE void deal_out_evenly(EvenItems& items) {
    WorkCounter counter{p.work_counter, p.work_epoch, p.work_items, u32(p.first_items), true};
    split = 0;
    i32 ahead = 0;  // items that are announced before the kernel before is done
    bool is_ahead = items.is_ahead;
    for (i32 work = items.work > 0 ? items.work : i32(blockIdx.x), rows_after = 0; work >= 0;) {
      const i32 tile = this->locate_evenly(work), next = work + i32(gridDim.x);
      tile_row = tile * tile_q + rows_after;
      sequence = is_ahead ? guessed_sequence(p.sequences, batch_index) : sequence_of(p.sequences, batch_index);
      band = served_band<Block::kServed>(p.band, sequence.len_q, sequence.len_k);
      tiles = TileRange{0, 0, 0, 0};
      const i32 row_end = min_of(tile_row + tile_q, sequence.len_q);
      if (tile_row < row_end) tiles = this->tiles_of(tile_row, row_end);
      const bool goes_on = tile + 1 == p.tiles_q && tile_row + tile_q < sequence.slot_len_q;
      const bool is_announced = is_ahead ? tiles.begin < tiles.end : tile_row < sequence.slot_len_q;
      if (is_announced) {
        work_ring.wait_empty();
        store_place();
        announce(work, !is_ahead);
        ahead += i32(is_ahead);
      }
      if (is_ahead) {
        if (is_announced && !goes_on && !is_long() && ahead < 2 && next < p.first_items) {
          work = next;
          continue;
        }
        is_ahead = false;
        griddepcontrol_wait();
        const bool is_right = confirm_items(ahead);
        if (is_announced) await_end(items.parity);
        if (!is_right) work = i32(blockIdx.x);
        if (!is_right || !is_announced) continue;
      } else if (is_announced) {
        await_end(items.parity);
      }
      rows_after = goes_on ? rows_after + tile_q : 0;
      if (goes_on) continue;
      if (next < p.first_items || items.drawn == kNotDrawn) {
        work = next_item(counter, work);
      } else {
        work = items.drawn;
        items.drawn = kNotDrawn;
      }
    }
    announce_end();
  }
  MICA_DEVICE Sequence even_sequence() const {
    Sequence s = {};
    s.len_q = s.slot_len_q = p.even_len_q;
    s.len_k = s.slot_len_k = s.append_begin = p.even_len_k;
    if (p.packed_q)
      s.q_begin = i64(batch_index) * p.even_len_q;
    else
      s.q_slot = batch_index;
    if (p.sequences.cu_seqlens_k)
      s.k_begin = i64(batch_index) * p.even_len_k;
    else
      s.k_slot = batch_index;
    return s;
  }
  // Where the item's sequence, and that of the item before (or -1), begin and end, and where they would by
  // even_sequence: four lanes for each, all at once.
  struct EvenPart {
    const i32* where;
    i32 begin;
  };
  MICA_DEVICE EvenPart even_part(i32 before) const {
    const i32 lane = i32(threadIdx.x) % 32, i = ((lane & 4) && before >= 0 ? before : batch_index) + (lane & 1);
    const bool is_key = (lane & 2) && p.sequences.cu_seqlens_k;
    const i32* begins = is_key ? p.sequences.cu_seqlens_k : p.sequences.cu_seqlens_q;
    return {begins + i, i * (is_key ? p.even_len_k : p.even_len_q)};
  }
  MICA_DEVICE bool confirm_even(i32 before, bool is_as_said) const {
    const bool is_right = __all_sync(0xffffffffu, is_as_said);
    const i32 last = work_ring.place.stage ^ 1;
    if (before >= 0) confirm(last ^ 1, is_right);
    confirm(last, is_right);
    return is_right;
  }
  // Whether the lengths of the first sequences, of which `table` then has a copy, are read before the kernel before
  // this one is done. Past L1, which does not see what that one writes.
  MICA_DEVICE bool read_ahead(SequenceTable& table) {
    if constexpr (begins_ahead)
      if (!table.seqused_q && !table.seqused_k && !table.cache_batch_idx && !table.cache_leftpad) {
        copy_lengths(table);
        return true;
      }
    griddepcontrol_wait();
    return false;
  }
  MICA_DEVICE void copy_lengths(SequenceTable& table) {
    for (i32 i = i32(threadIdx.x) % 32; i <= min_of(p.batch, kSequencesAhead); i += 32) {
      lengths[i] = load_relaxed(table.cu_seqlens_q + i);
      if (table.cu_seqlens_k) lengths[kSequencesAhead + 1 + i] = load_relaxed(table.cu_seqlens_k + i);
    }
    __syncwarp();
    table.cu_seqlens_q = lengths;
    if (table.cu_seqlens_k) table.cu_seqlens_k = lengths + kSequencesAhead + 1;
  }
  // Waits for the kernel before this one; whether what was read is right.
  MICA_DEVICE bool confirm_lengths(const SequenceTable& table, bool is_announced) {
    const SequenceTable& now = p.sequences;
    griddepcontrol_wait();
    bool is_same = true;
    for (i32 i = i32(threadIdx.x) % 32; i <= min_of(p.batch, kSequencesAhead); i += 32)
      is_same &= table.cu_seqlens_q[i] == now.cu_seqlens_q[i] &&
                 (!now.cu_seqlens_k || table.cu_seqlens_k[i] == now.cu_seqlens_k[i]);
    is_same = __all_sync(0xffffffffu, is_same);
    if (is_announced) confirm(0, is_same);
    return is_same;
  }
  // The same of the block's first items, by what was announced of them.
  MICA_DEVICE bool confirm_items(i32 items) const {
    bool is_right = true;
    __syncwarp();
    for (i32 item = 0; item < items; ++item) {
      const Place place = work_ring.template load_item<Place>(item, kPlace);
      is_right &= is_same(in_tensors(place.sequence), sequence_of(p.sequences, place.batch_index));
    }
    for (i32 item = 0; item < items; ++item) confirm(item, is_right);
    return is_right;
  }
  // The item in a slot is what it was taken for, and may be written, or it is not and has room for no rows: it is
  // computed, and nothing of it is written.
  MICA_DEVICE void confirm(i32 slot, bool is_right) const {
    if (!is_right) work_ring.store_item(slot, kPlace + kRoom, Room{0, 0, 0, 0});
    arrive_as_warp(confirmed + slot * kBarrierBytes);
  }
  // By consumers, before they write: of dense calls nothing is in doubt.
  MICA_DEVICE void await_confirmation() const {
    if constexpr (begins_ahead)
      if (p.packed_q) mbarrier_wait(confirmed + work_ring.place.stage * kBarrierBytes, work_ring.place.parity);
  }
  // Only whoever looks for an item that is not there knows how many there are: the counter did not, and is reset here.
  // Every block draws once in vain, also one whose first item is not there.
  static constexpr i32 kUnknown = 0x7fffffff;
  MICA_DEVICE void end_packed(WorkCounter& counter, i32 items, i32 work) const {
    if (!counter.counter) return;
    if (!counter.has_drawn) {
      counter.ask();
      work = counter.answer();
    }
    if (threadIdx.x % 32 == 0 && work == max_of(items, i32(gridDim.x)) + i32(gridDim.x) - 1)
      store_relaxed(counter.counter, 0);
  }
  MICA_DEVICE void store_place() const {
    work_ring.store(kPlace, Place{in_slots(sequence), head, batch_index, split, 0});
  }
  // Where the copy engine has the rows of a packed sequence (packed_sm90.h): a slot that ends with the tile's last row,
  // or the first one. Parts are whole tensors.
  MICA_DEVICE bool has_slots() const { return begins_ahead && !p.partial_o; }
  MICA_DEVICE Sequence in_slots(Sequence s) const {
    if (has_slots() && p.packed_q) {
      const i32 rows = min_of(s.slot_len_q - tile_row, slot_rows_q);
      s.q_slot = max_of(i32(s.q_begin) + tile_row + rows - slot_rows_q, 0);
      s.q_begin -= s.q_slot;
    }
    if (has_slots() && p.sequences.cu_seqlens_k) {
      s.k_slot = max_of(i32(s.k_begin) + s.len_k - slot_rows_k, 0);
      s.k_begin -= s.k_slot;
    }
    return s;
  }
  MICA_DEVICE Sequence in_tensors(Sequence s) const {
    if (has_slots() && p.packed_q) {
      s.q_begin += s.q_slot;
      s.q_slot = 0;
    }
    if (has_slots() && p.sequences.cu_seqlens_k) {
      s.k_begin += s.k_slot;
      s.k_slot = 0;
    }
    return s;
  }
  // A query tile whose place is stored; is_sure: it is what it is taken for.
  MICA_DEVICE void announce(i32 work, bool is_sure) {
    work_ring.store(0, Tile{work, tile_row, sequence.len_q, sequence.len_k, tiles.begin, tiles.end, this->lse_first()});
#pragma unroll 1
    for (i32 group = 0; group < kConsumers; ++group)
      work_ring.store(kOwn + group * sizeof(TileRange), own_tiles(tile_row + group_row(group)));
    if constexpr (begins_ahead)
      if (is_sure && p.packed_q) confirm(work_ring.place.stage, true);
    work_ring.announce();
  }
  MICA_DEVICE void announce_end() {
    work_ring.wait_empty();
    work_ring.store(0, Tile{-1, 0, 0, 0, 0, 0, 0});
    work_ring.announce();
  }
  // Until the next may be drawn.
  MICA_DEVICE void await_end(u32& parity) const {
    if (!is_long()) return;
    mbarrier_wait(nearly_done, parity);
    parity ^= 1;
  }
  // By the warp that asks for keys, after each of its steps.
  MICA_DEVICE void say_if_nearly_done(i32 step) const {
    if (is_long() && step == tiles.end - tiles.begin - 1 - kDrawnAhead) arrive_as_warp(nearly_done);
  }
  MICA_DEVICE bool is_long() const { return tiles.end - tiles.begin > kDrawnAhead; }
  // Of the block's key tiles those that a consumer's queries from `row` on see; none: an empty range at their end.
  MICA_DEVICE TileRange own_tiles(i32 row) const {
    if constexpr (kConsumers == 1) return tiles;
    const i32 row_end = min_of(row + this->consumer_rows(), band.len_q);
    TileRange range = row < row_end ? this->tiles_of(row, row_end) : TileRange{0, 0, 0, 0};
    range.begin = clamp_to(range.begin, tiles.begin, tiles.end);
    range.end = clamp_to(range.end, range.begin, tiles.end);
    return range;
  }

  // The other warps: the next tile, or false. What decides how often a loop runs is known to be the same in all lanes.
  MICA_DEVICE bool take_tile() {
    work_ring.wait_full();
    const Tile tile = work_ring.template load<Tile>(0);
    tile_row = warp_max(tile.row);
    tiles = TileRange{warp_max(tile.keys_begin), 0, 0, warp_max(tile.keys_end)};
    tile_lse_first = tile.lse_first;
    sequence.len_q = warp_max(tile.len_q);
    sequence.len_k = warp_max(tile.len_k);
    band = served_band<Block::kServed>(p.band, sequence.len_q, sequence.len_k);
    return warp_max(tile.index) >= 0;
  }
  static MICA_DEVICE TileRange uniform(const TileRange& t) {
    return {warp_max(t.begin), warp_max(t.full_begin), warp_max(t.full_end), warp_max(t.end)};
  }
  // Whose rows they are: read when it is needed, since registers are short.
  MICA_DEVICE void find_place() {
    const Place place = work_ring.template load<Place>(kPlace);
    sequence = place.sequence;
    head = place.head;
    batch_index = place.batch_index;
    split = place.split;
  }
  // The same for those who fetch what is not in pages.
  MICA_DEVICE void find_rows() {
    const Begins begins = work_ring.template load<Begins>(kPlace);
    const Lengths lengths_of = work_ring.template load<Lengths>(kPlace + kLengths);
    const Which which = work_ring.template load<Which>(kPlace + kWhich);
    sequence.q_begin = begins.q_begin;
    sequence.k_begin = begins.k_begin;
    sequence.q_slot = lengths_of.q_slot;
    sequence.k_slot = lengths_of.k_slot;
    head = which.head;
  }
};

}  // namespace mica
