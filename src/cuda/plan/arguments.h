// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels of forward, and where every plan's workspace has its parts: what the description says is
// filled in when a plan is made, addresses when it is executed.
#pragma once

#include "base/backend.h"
#include "core/problem.h"
#include "cuda/kernels/params_join.h"
#include "cuda/registry.h"
#include "mica/mica.h"

namespace mica {

// Where the parts of a plan's workspace begin, in bytes.
struct WorkspaceLayout {
  bool has_parts;              // partial_o and partial_lse are there
  bool moves_lse;              // partial_lse alone: forward writes the LSE there
  u64 partial_o, partial_lse;  // split forward
  bool keeps_o;                // kept_o is there
  u64 kept_o;                  // forward of e4m3: what blocks keep of O
  Parts parts;                 // join
  u64 q_rotated;               // rotary
  u64 work_counter;            // persistent kernels that draw; splits that a last block joins, a word a tile
  u64 d_o;                     // backward, in q's type
  u64 row_lse, row_delta, dq_accumulator, dq_semaphores, dq_turns, key_semaphores;  // backward
  u64 row_norm, key_norms, head_norms, key_peers;                                   // where it sums whole numbers
  u64 heads_cleared, heads_done;                                                    // likewise
  u64 packed_order;                                                                 // backward, of packed sequences
  u64 dk_accumulator, dv_accumulator;  // backward, where blocks share a key tile
  u64 bytes;

  // Returns where `size` bytes begin.
  u64 reserve(u64 size) {
    const u64 begin = bytes;
    bytes += round_up<u64>(size, 256);
    return begin;
  }
};

// The counter that query tiles are drawn from has 24 bits, of which a draw in vain of every block is a part.
constexpr i64 kMostDrawn = (1 << 24) - (1 << 16);
// Another number for each call of the process: see WorkCounter and LastBlock.
u64 next_work_epoch();

// Forward. tile_q: queries of a tile.
ForwardParams forward_params(const Problem& problem, i32 tile_q, const Splits& splits);
void bind(ForwardParams& params, const Problem& problem, const mica_bindings& bindings, const WorkspaceLayout& layout);

// Whether V is a part of K's columns, from a whole panel of 64 on, given that it can be (registry.h).
bool v_lies_in_k(const Problem& problem, const mica_bindings& bindings);

// The same with maps for the copy engine, for the tiles of a row.
mica_status forward_maps_params(const ForwardParams& forward, const Problem& problem, const KernelRow& row,
                                ForwardMapsParams& params);
mica_status bind(ForwardMapsParams& params, const Problem& problem, const mica_bindings& bindings,
                 const WorkspaceLayout& layout);

// The same with a second query, whose rows the plan fills in.
void bind(QvParams& params, const Problem& problem, const mica_bindings& bindings, const WorkspaceLayout& layout);
mica_status bind(QvMapsParams& params, const Problem& problem, const mica_bindings& bindings,
                 const WorkspaceLayout& layout);

CombineParams combine_params(const ForwardParams& forward, const Problem& problem, i32 team_warps, i32 lse_heads);
void bind(CombineParams& params, const Problem& problem, const mica_bindings& bindings, const WorkspaceLayout& layout);

// parts: in the workspace of the whole.
JoinParams join_params(const Problem& problem);
void bind(JoinParams& params, const Problem& problem, const mica_bindings& bindings, const WorkspaceLayout& layout);

ProbsParams probs_params(const ForwardParams& forward, const Problem& problem);
void bind(ProbsParams& params, const Problem& problem, const mica_bindings& bindings, const WorkspaceLayout& layout);

AppendParams append_params(const Problem& problem);
void bind(AppendParams& params, const Problem& problem, const mica_bindings& bindings, const WorkspaceLayout& layout);

}  // namespace mica
