/* SPDX-License-Identifier: Apache-2.0
 * Mica: exact attention behind one C interface. O = softmax(score(Q K^T) + mask) V, and its gradient.
 *
 *   describe (mica_attention) -> plan (mica_plan_create) -> bind pointers (mica_bindings) -> mica_execute
 *
 * A plan depends on the description alone, never on addresses or on values in memory: make it once, use it from any
 * thread, as often as you like. mica_execute allocates nothing, prints nothing and, on a GPU, synchronises nothing. */
#ifndef MICA_MICA_H
#define MICA_MICA_H

#include <stddef.h>
#include <stdint.h>

#include "mica/enums.h"

#if defined(_WIN32)
#define MICA_API
#else
#define MICA_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header; mica_version() is that of the library. */
#define MICA_VERSION_MAJOR 0
#define MICA_VERSION_MINOR 1
#define MICA_VERSION_PATCH 0
#define MICA_VERSION_NUMBER (MICA_VERSION_MAJOR * 10000 + MICA_VERSION_MINOR * 100 + MICA_VERSION_PATCH)
#define MICA_ABI_VERSION 1u
#define MICA_UNLIMITED (-1)

/* Limits of every backend; validation names the field that exceeds one. */
#define MICA_MAX_DIM_QK 576       /* head dimension of q and k */
#define MICA_MAX_DIM_V 512        /* head dimension of v and o */
#define MICA_MAX_SEQLEN 536870912 /* 2^29 rows in one sequence */

typedef struct mica_device {
  int32_t backend; /* mica_backend */
  int32_t ordinal; /* which device of that backend; 0 on the CPU */
} mica_device;

/* Strides count elements and may be 0 or negative for inputs. The last dimension of q, k, v, o and their gradients must
 * be dense (stride 1). A dimension of size 1 ignores its stride; in mask, bias, alibi it broadcasts. */
typedef struct mica_tensor {
  int32_t dtype;     /* mica_dtype; MICA_NONE: absent */
  int32_t alignment; /* bytes that the pointer is a multiple of: a power of two; 0: the element's size */
  int64_t shape[4];
  int64_t stride[4];
} mica_tensor;

/* Row i sees key j if  i + shift - window_left <= j <= i + shift + window_right  (shift: see mica_diagonal),
 * j is below the causal diagonal, the boolean mask, if any, is true at (batch, head, i, j), and i + shift and j are in
 * the same chunk, if there are chunks (mica_attention.attention_chunk). */
typedef struct mica_mask {
  int32_t causal;       /* mica_causal */
  int32_t diagonal;     /* mica_diagonal; must be named when a window, chunks or ALiBi come without causal */
  int64_t window_left;  /* keys before the diagonal, inclusive; MICA_UNLIMITED */
  int64_t window_right; /* keys after it, inclusive; MICA_UNLIMITED; causal makes it 0 */
  mica_tensor boolean;  /* MICA_BOOL (batch, hq, sq, sk), true where visible; 1 broadcasts */
} mica_mask;

/* score = softcap * tanh(scale * q.k / softcap) - alibi * |i + shift - j| + bias; with qv, q.k + qv.v for q.k */
typedef struct mica_score {
  float scale;       /* 0: 1 / sqrt(head dimension of q; of q and qv together) */
  float softcap;     /* 0: none */
  mica_tensor alibi; /* fp32 slopes (batch, hq, 1, 1); batch 1 broadcasts */
  mica_tensor bias;  /* fp32, fp16 or bf16 (batch, hq, sq, sk); 1 broadcasts */
  mica_tensor sinks; /* fp32, fp16 or bf16 (hq, 1, 1, 1): a logit per head that takes probability and has no value */
} mica_score;

/* Indices i and j count from the first row and first (not left-padded) key of each sequence. Keys in use:
 * seqused_k + appended keys - leftpad; without seqused_k the whole slot. */
typedef struct mica_sequences {
  uint32_t vectors;        /* mica_vectors, or'ed: what the bindings will carry */
  uint32_t reserved;       /* 0 */
  int64_t batch;           /* number of sequences; 0: q.shape[0] (packed q: must be given) */
  int64_t max_seqlen_q;    /* packed: the longest, a hint for scheduling; 0: unknown */
  int64_t max_seqlen_k;    /* the same for keys, packed or cached */
  mica_tensor block_table; /* int32 (batch, blocks, 1, 1): k and v are pages (pages, page_size, hk, dim) */
} mica_sequences;

/* New keys and values, written into k and v (in place) at seqused_k, then attended to. Rotary turns q and k_new by the
 * position of their slot: q row i by seqused_k + i when causal, windowed or chunked, else by seqused_k. */
typedef struct mica_append {
  mica_tensor k_new; /* (batch, new rows, hk, dim) */
  mica_tensor v_new;
  mica_tensor rotary_cos; /* (positions, rotary_dim / 2, 1, 1), q's type or fp32 */
  mica_tensor rotary_sin;
  int32_t rotary_interleaved; /* 1: pairs (0,1) (2,3) ...; 0: pairs (0, r/2) (1, r/2 + 1) ... */
  int32_t reserved;           /* 0 */
} mica_append;

typedef struct mica_dropout {
  float probability;       /* of dropping; 0: none; the rest is scaled by 1 / (1 - probability) */
  int32_t rng_from_memory; /* 1: bindings.rng_state points to {seed, offset}; 0: by value */
} mica_dropout;

/* Backward on a GPU, piece by piece over the keys (mica_place) for the same queries: the pieces share a workspace, in
 * which the row statistics are made once and dQ is summed, and dQ is written at the end. All calls have the same q, o,
 * lse, d_o, scale and kernel (mica_plan_kernel), go to one stream, and the workspace is as large as the largest asks.
 * Pieces BESIDE may go to a second stream after BEGIN, and run at the same time as those of NEXT. */
typedef enum mica_pieces {
  MICA_PIECES_NONE = 0,  /* the call is the whole */
  MICA_PIECES_FIRST = 1, /* begins the sums; dq is not written */
  MICA_PIECES_NEXT = 2,  /* adds to them; dq is not written */
  MICA_PIECES_END = 3,   /* no piece: dq is written from the sums; dk and dv are not */
  MICA_PIECES_BEGIN = 4, /* no piece: begins the sums; dq, dk and dv are not written */
  MICA_PIECES_BESIDE = 5 /* as NEXT, on another stream; refused where kernels keep more than dQ's sums there */
} mica_pieces;

typedef struct mica_control {
  int32_t num_splits;      /* key ranges worked on apart and merged; 0: choose; 1: do not split */
  int32_t deterministic;   /* 1: the same bits on every run, gradients included */
  int32_t batch_invariant; /* 1: the bits of a sequence do not depend on the batch and its other sequences */
  int32_t pieces;          /* mica_pieces, backward on a GPU: dQ of several calls is summed in their workspace */
} mica_control;

/* Backward computes the gradients whose descriptions are present; q, k, v, o, lse and d_o are its inputs. */
typedef struct mica_gradients {
  mica_tensor d_o;
  mica_tensor d_lse; /* fp32, as lse; absent: no gradient comes in through lse */
  mica_tensor dq, dk, dv;
  mica_tensor d_bias;  /* the shape of bias, broadcast axes summed */
  mica_tensor d_sinks; /* (hq, 1, 1, 1) */
} mica_gradients;

/* Where the call lies in a larger one that is computed piece by piece, as several devices do. Zeros: it is the whole.
 * The diagonal moves by `shift`; the rest says which random bits dropout takes: those that the whole call would take at
 * row row_first + i * row_step, key key_first + j * key_step, sequence batch_first + b and head head_first + h. A
 * piece's o and lse are those of its keys alone; backward wants o and lse of the whole. */
typedef struct mica_place {
  int64_t shift;               /* added to the diagonal's, for causal, window and ALiBi; at most 2^28 either way */
  int64_t row_first, row_step; /* step 0 means 1 */
  int64_t key_first, key_step;
  int64_t batch_first;
  int64_t head_first, heads; /* heads of the whole; 0: q.shape[2] */
} mica_place;

/* Factors of e4m3 elements: what is stored times its factor is what is meant. Absent: 1. Append divides k_new and v_new
 * of 16 or 32 bits by them, rounds to nearest and saturates. A query head takes the factor of its key head. */
typedef struct mica_quantisation {
  mica_tensor q_descale; /* fp32 (batch, hk, 1, 1), 1 broadcasts: a factor for each head and sequence, or one for all */
  mica_tensor k_descale; /* the same; with per_page (pages, hk, 1, 1) */
  mica_tensor v_descale;
  int32_t per_page; /* 1: factors of k and v go by pages of the block table, not by sequences */
  int32_t reserved; /* 0 */
} mica_quantisation;

/* Dense: q (batch, sq, hq, dim), k (slots, sk, hk, dim), v (slots, sk, hk, dim_v), o (batch, sq, hq, dim_v).
 * Packed (cu_seqlens): q (1, total_q, hq, dim), k (1, total_k, hk, dim), ... Paged: k (pages, page_size, hk, dim).
 * lse: fp32 (batch, hq, sq, 1), packed (1, hq, total_q, 1): natural logarithm, sink included, -inf for an empty row
 * (whose output is 0). Optional in forward. probs, for tests: fp32 (batch, hq, sq, sk), the softmax, negative where
 * dropped (packed or cached: sq, sk at least the longest). Rows past seqused_q are written as empty rows.
 * q, k and v have one type, or k and v are e4m3 (a quantised cache). o has q's type or fp32; where q is e4m3: fp16,
 * bf16 or fp32. e4m3 has no backward. */
typedef struct mica_attention {
  uint32_t struct_bytes; /* sizeof(mica_attention) */
  uint32_t abi_version;  /* MICA_ABI_VERSION */
  mica_device device;
  mica_tensor q, k, v, o, lse, probs;
  mica_mask mask;
  mica_score score;
  mica_sequences sequences;
  mica_append append;
  mica_dropout dropout;
  mica_control control;
  mica_gradients gradients;
  mica_place place;
  mica_quantisation quantisation;
  /* Positions are cut into chunks of so many, from key 0 on (of a piece: from key 0 of the whole), and row i, at
   * position i + shift, sees the keys of its own chunk alone; 0: no chunks. Without causal, mask.diagonal must be
   * named. */
  int64_t attention_chunk;
  /* mask.boolean is about the last so many keys of each sequence (= mask.boolean.shape[3]), and keys before them are
   * visible: a tree of speculated tokens needs no mask as wide as the cache. 0: its keys count from key 0. Forward
   * only. */
  int64_t mask_last_keys;
  /* Keys and values that come before those of every sequence, (1, prefix keys, hk, dim) and (1, prefix keys, hk,
   * dim_v) in q's type: read once for the whole batch, seen by every row. Masks and lengths are about k and v alone,
   * and the two results are joined by their LSE. Forward of dense q whose rows are evenly spaced over the batch;
   * without window, chunks, ALiBi, bias, dropout, rotary, probs, q of e4m3, seqused_q and batch_invariant. */
  mica_tensor k_prefix, v_prefix;
  /* A second query for the values, (batch, sq, hq, dim_v) in q's type, laid out as q is: the product is
   * q.k + qv.v, and score.scale 0 means 1 / sqrt(dim + dim_v). MLA's absorbed form, with its rotary part in q and k and
   * its latent in qv and v. dim + dim_v is at most MICA_MAX_DIM_QK; rotary turns q and k alone. Forward; without
   * dropout, probs, e4m3 and prefix. */
  mica_tensor qv;
} mica_attention;

/* mica_attention a = MICA_ATTENTION_INIT;  no mask, unlimited window, scale 1/sqrt(dim), CPU. */
#define MICA_ATTENTION_INIT                                                            \
  {                                                                                    \
    .struct_bytes = sizeof(mica_attention), .abi_version = MICA_ABI_VERSION, .mask = { \
      .window_left = MICA_UNLIMITED,                                                   \
      .window_right = MICA_UNLIMITED                                                   \
    }                                                                                  \
  }

/* Pointers into the memory of the plan's device. What the description calls absent is ignored. */
typedef struct mica_bindings {
  uint32_t struct_bytes; /* sizeof(mica_bindings) */
  uint32_t abi_version;  /* MICA_ABI_VERSION */
  const void* q;
  void* k; /* written only by append */
  void* v;
  void* o;    /* forward writes it, backward reads it */
  float* lse; /* likewise */
  float* probs;
  const void* boolean_mask;
  const void* bias;
  const float* alibi;
  const void* sinks;
  const int32_t* cu_seqlens_q;
  const int32_t* cu_seqlens_k;
  const int32_t* seqused_q;
  const int32_t* seqused_k;
  const int32_t* cache_batch_idx;
  const int32_t* cache_leftpad;
  const int32_t* block_table;
  const void* k_new;
  const void* v_new;
  const void* rotary_cos;
  const void* rotary_sin;
  uint64_t dropout_seed;
  uint64_t dropout_offset;
  const int64_t* rng_state; /* {seed, offset} */
  const void* d_o;
  const float* d_lse;
  void* dq;
  void* dk;
  void* dv;
  void* d_bias;
  void* d_sinks;
  void* workspace; /* 64-byte aligned on the CPU, 256 on a GPU */
  size_t workspace_bytes;
  void* stream; /* CUstream; ignored on the CPU */
  const float* q_descale;
  const float* k_descale;
  const float* v_descale;
  const void* k_prefix;
  const void* v_prefix;
  const void* qv;
} mica_bindings;

#define MICA_BINDINGS_INIT \
  { .struct_bytes = sizeof(mica_bindings), .abi_version = MICA_ABI_VERSION }

typedef struct mica_plan mica_plan;

/* Validates the whole description, chooses the kernel, loads it. On failure *plan is NULL. */
MICA_API mica_status mica_plan_create(const mica_attention* attention, mica_pass pass, mica_plan** plan);
MICA_API void mica_plan_destroy(mica_plan* plan);
MICA_API size_t mica_plan_workspace(const mica_plan* plan);
/* The kernel's name, such as "cpu/avx512/forward"; lives as long as the plan. */
MICA_API const char* mica_plan_kernel(const mica_plan* plan);
/* Into how many key ranges the plan splits the work at most (1: not at all). */
MICA_API int32_t mica_plan_splits(const mica_plan* plan);

/* Checks nulls, alignment, workspace size and that results have memory of their own (o may lie in q's very place).
 * The CPU also checks the values of the int32 vectors; a GPU clamps them. */
MICA_API mica_status mica_execute(const mica_plan* plan, const mica_bindings* bindings);

/* Calls visit for every kernel of the device's backend: why_not is "" for those that could run the problem, the first
 * of which a plan would take. */
typedef void (*mica_kernel_visitor)(void* context, const char* kernel, const char* why_not);
MICA_API mica_status mica_list_kernels(const mica_attention* attention, mica_pass pass, mica_kernel_visitor visit,
                                       void* context);

/* The message of this thread's last failed call; "" if none failed. */
MICA_API const char* mica_last_error(void);
MICA_API const char* mica_status_name(mica_status status);

MICA_API const char* mica_version(void); /* "major.minor.patch" */
MICA_API uint32_t mica_abi_version(void);

/* Devices of a backend: 0, with a message that says why and what would help, where there are none. */
MICA_API int32_t mica_device_count(mica_backend backend);
/* One line about a device, such as "NVIDIA H200, sm_90, driver 13.0" or "amx, 16 threads (OpenMP, libgomp.so.1)"; valid
 * until the thread's next call. NULL if there is no such device. */
MICA_API const char* mica_device_description(mica_device device);

/* Threads of the CPU backend for plans made after this call; 0: as many as the process may use, or as many as an OpenMP
 * runtime gives the calling thread, where the plan computes on one. */
MICA_API mica_status mica_set_num_threads(int32_t num_threads);
MICA_API int32_t mica_get_num_threads(void);

/* Whose threads a plan made now would compute on: "OpenMP, libgomp.so.1" where the process has loaded an OpenMP
 * runtime, "its own: ..." and why, or "the caller's pool"; valid until the thread's next call. The environment's
 * MICA_CPU_THREADS_FROM (openmp or own) decides otherwise. */
MICA_API const char* mica_threads_from(void);

/* The caller's own pool, for plans made after this call. run calls task(tasks, i) once for each i in [0, count), on any
 * threads, at the same time or one after another, and returns when all calls have returned; count is at most the number
 * of threads. It may be called from several threads at once, must not throw, and in a child of fork must still work.
 * run NULL: no pool of the caller's any more. */
typedef void (*mica_task)(void* tasks, int64_t index);
typedef void (*mica_run_tasks)(void* pool, int64_t count, mica_task task, void* tasks);
MICA_API mica_status mica_set_thread_pool(mica_run_tasks run, void* pool);

#ifdef __cplusplus
}
#endif
#endif
