// SPDX-License-Identifier: Apache-2.0
// kernels.def as C++: which kernels there are, which of them can run a problem, and if not why.
#pragma once

#include <cstddef>

#include "core/problem.h"
#include "cuda/driver.h"
#include "cuda/images.h"
#include "cuda/kernels/params.h"
#include "mica/mica.h"

namespace mica {

// What a kernel does in a pass; the words of a row's .role.
enum class Role : i32 {
  APPEND,            // writes new keys and values into the cache, rotates q and k by their positions
  FORWARD,           // O and LSE, or their parts when the keys are split
  DECODE,            // the same for a few query rows
  COMBINE,           // joins the parts
  JOIN,              // joins the results of two calls
  PROBS,             // the softmax itself, for tests
  BACKWARD_PREPARE,  // the row sums of dO * O
  BACKWARD,          // dK, dV, and dQ in fp32
  BACKWARD_FINISH,   // dQ in its own type; dK and dV where several blocks added to them
  BACKWARD_BIAS,     // dBias, by computing dS again
  BACKWARD_SINKS,    // dSinks from the row sums
};

// The lengths that suit a row of several that could run: forward_sm90's tiles (docs/design/tuning.md).
enum class Lengths {
  ANY,
  MIDDLE,       // its tiles come through all queries in fewer rounds than those of 192, or are cheapest
  FEW_KEYS,     // one small key tile, or more where that is cheapest: several small blocks an SM
  ONE_TILE,     // one tile, or more where that is cheapest: two blocks an SM, one loads while the other computes
  FEW_QUERIES,  // up to two tiles that 192 queries a tile would waste, and many keys
  LONG,         // dense ones of many keys and queries: blocks in pairs
  SHORT,        // where that is cheapest: four consumers hide the beginning and the end of a tile
};

// What a kernel's file says about its rows.
struct KernelTraits {
  i32 smem_bytes = 0;        // dynamic shared memory of a block
  bool packs_heads = false;  // the query heads of a key head share a tile (decode_queries in kernels/params.h)
  i32 slice_width = 0;       // blocks share out the columns of the gradients, so many each; 0: they do not
  bool fixed_order = true;   // can add to dQ in a fixed order
  bool persistent = false;   // forward: a block takes one tile after the other where there are fewer blocks
  i32 least_queries = 0;     // of all query heads of a key head: it is slower with fewer
  i32 most_queries = 0;      // the same: it reads keys more than once with more; 0: any
  i32 least_keys = 0;        // it is slower with fewer
  bool divides_by_scale = false;
  // Key tiles of all sequences, for each SM: it is slower with fewer; the second where half of its rows are in use.
  i32 least_tiles_of_sm = 0, least_tiles_of_few_rows = 0;
  Lengths lengths = Lengths::ANY;
  bool v_in_k = false;  // reads V out of K: where they turn out to lie apart, another kernel must run
  bool latent = false;  // MLA's: a block fills an SM, its boxes are key tiles, and it fetches others by itself
  // What a block costs beside its key tiles, in key tiles; 0: splits fill one wave and no more, and a persistent kernel
  // is cut into splits only where the caller says so.
  i32 overhead_tiles = 0;
  bool dq_by_columns = false;  // backward_dq_lies_by_columns
  bool dq_in_pairs = false;    // dq_pair_index
  i32 key_semaphores = 1;      // of a key tile, whose sums blocks add to in a fixed order
  bool shares_groups = false;  // backward: several blocks can take a key tile, each some query heads of its group
  bool uses_maps = false;      // fetches by the copy engine, which has rules of its own (tensor_maps.h)
  bool wants_pages = false;    // finds every key by a block table
  bool waits = false;          // may be dealt out before the kernel before it is done (Step::overlaps)
  bool pairs_heads = false;    // a block can take two key heads
  bool joins_splits = false;   // the last block of a tile can join its splits, on Hopper
  bool page_blocks = false;    // whole rows of pages at once (kernels/parts/page_blocks_sm90.h)
  bool cuts_boxes = false;     // packed sequences: boxes end with the last row; tiles may be numbered evenly
  i32 roomy_smem_bytes = 0;    // what a launch asks for so that one block less shares an SM; 0: it never does
  // Forward: what a block keeps of O in the workspace where it goes through so many key tiles; 0: nothing.
  i32 kept_bytes = 0, kept_from_tiles = 0;
  u32 also_serves = 0;  // Feature bits that every row of the file has
};

// A row of kernels.def, which says what the fields are.
struct KernelRow {
  const char* name = nullptr;
  const char* file = nullptr;
  i32 dtype = MICA_NONE;
  i32 keys = MICA_NONE;
  Role role = {};
  const char* targets = "";
  u32 served = 0;  // Feature bits
  i32 dim_qk = 0, dim_v = 0;
  i32 tile_q = 0, tile_k = 0;
  i32 warps = 0, stages = 0, blocks = 0;
  Course course = Course::ONE_TILE;
  i32 qv = 0;
  i32 cluster = 0;
  i32 variant = 0;
  const char* why_spill = "";
  KernelTraits traits = {};
};

struct KernelTable {
  const KernelRow* rows;
  i32 num_rows;
};
const KernelTable& kernel_table();

// What the kernels are chosen for.
struct KernelChoice {
  const Problem& problem;
  const Device& device;
  const ImageTable& images;
  i32 pieces = MICA_PIECES_NONE;  // backward of several calls that share a workspace
};

// Rows of the tensor can be fetched 16 bytes at a time, at any dim that is a multiple of 16 bytes.
bool rows_are_aligned(const Tensor& tensor);

// Whether a kernel that fetches by the copy engine fetches the keys of these pages otherwise: in small boxes, or where
// boxes would not begin at a page's rows, that is slow or impossible.
bool fetches_rows(const Problem& p, const KernelRow& row);
// V is narrower than K and has its strides, so that it may be a part of K's columns; only the addresses tell.
bool v_can_lie_in_k(const Problem& problem);

// Feature bits (kernels/params.h) that a problem needs.
u32 features_of(const Problem& problem);

// Whether a row computes a pass as a whole, and not a step before or after.
bool is_principal(Role role, i32 pass);

// Writes "" when the row can run the problem on the device, else the first reason why not. Returns how many questions
// it got right, so that an error can name the row that came closest.
i32 why_not(i32 row, const KernelChoice& choice, char* text, size_t text_bytes);
// From how many keys on a row is fast enough for the problem.
i32 least_keys(const KernelRow& row, const Problem& problem);

// The first row of a role, or of the problem's pass, that can run. -1: none. find_principal_apart: of those that take V
// from anywhere.
i32 find_kernel(Role role, const KernelChoice& choice);
// The step after a backward kernel: reads the accumulator as that kernel's tiles lay it out; of {}, that of any tiles.
// -1: none.
i32 find_backward_finish(const KernelRow& backward);
i32 find_principal(const KernelChoice& choice);
i32 find_principal_apart(const KernelChoice& choice);

}  // namespace mica
