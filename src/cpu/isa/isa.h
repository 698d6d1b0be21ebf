// SPDX-License-Identifier: Apache-2.0
// What the dispatcher (cpu.cc) and the objects compiled per instruction set (isa_*.cc) agree on.
#pragma once

#include "base/backend.h"
#include "core/random.h"
#include "core/sequence.h"
#include "cpu/threads/threads.h"

namespace mica {

// A range of the workspace.
struct Region {
  i64 offset, bytes;
};

// Backward's part of a plan (see backward_plan.h).
struct BackwardPlan {
  static constexpr i32 kRowParts = 4;   // parts into which the row passes cut a sequence
  static constexpr i32 kMaxChunks = 8;  // of the keys of a sequence
  i32 tile_q, tile_k;
  i32 panel_tiles;  // key tiles of a panel
  i32 num_chunks;   // of the keys of each sequence
  i64 rows;         // padded query rows of one head
  i64 ld_dq;
  Region delta, reference;  // (heads_q, rows)
  Region sinks;             // (batch, heads_q, kRowParts)
  Region dq;                // (num_chunks, heads_q, rows, ld_dq); none where own_dq_rows are given
  // Where keys are not cut into chunks: the rows of a head's dQ in the scratch memory of the task that has all of it,
  // which are in a cache when they are needed again; 0: dq is where it is summed.
  i64 own_dq_rows;
};

// The CPU's part of a plan.
struct CpuPlan {
  const struct IsaKernel* kernel;
  Threads threads;
  i32 tile_q;         // query rows of a tile; with group packing a tile has tile_q * tile_heads rows
  i32 tile_heads;     // query heads of one group that share a tile
  i32 tile_k;         // keys
  i32 short_q;        // sequences of at most this many rows have their keys split
  i32 split_run;      // splits of a tile that one task does, one after the other
  Region scratch;     // a part of scratch_bytes for each thread that can have a task
  i64 scratch_bytes;  // per thread
  Region partial;     // results of splits: accumulator and state for each row, head and split
  Region counters;    // of each tile: how many of its splits are done, on a line of its own
  i64 workspace_bytes;
  SequenceTable sequences;  // where no vector or page is bound: every call's
  BackwardPlan backward;
};

// One execution, on one line of memory: other cores fetch it from the one that wrote it, while of the plan, which is
// the same in every call, each keeps a copy in its caches.
struct alignas(64) CpuCall {
  const Problem* problem;
  const CpuPlan* plan;
  const mica_bindings* x;
  const SequenceTable* sequences;
  char* workspace;
  i32 num_splits;
  PhiloxKey philox;
};
static_assert(sizeof(CpuCall) == 64);

struct IsaKernel {
  const char* name;  // "cpu/neon/forward"
  i32 pass;          // mica_pass
  // "" if the kernel can run the problem.
  void (*why_not)(const Problem& problem, char* text, size_t text_bytes);
  // Fills the CPU's plan (kernel and threads are set) and num_splits.
  void (*plan)(const Problem& problem, CpuPlan& plan, i32& num_splits);
  void (*execute)(const CpuCall& call);
};

struct IsaTable {
  const char* name;  // "neon"
  const IsaKernel* kernels;
  i32 num_kernels;
};

}  // namespace mica
