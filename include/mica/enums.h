/* SPDX-License-Identifier: Apache-2.0
 * The enumerations of the C interface. Includes nothing, so that device code can read it too.
 * Every value is pinned: numbers are never reused or changed. */
#ifndef MICA_ENUMS_H
#define MICA_ENUMS_H

typedef enum mica_status {
  MICA_OK = 0,
  MICA_ERROR_INVALID = 1,       /* an argument is wrong; the message names the field */
  MICA_ERROR_UNSUPPORTED = 2,   /* legal, but no kernel of this backend runs it; the message says why */
  MICA_ERROR_NO_DEVICE = 3,     /* no such backend or device here; the message says what would help */
  MICA_ERROR_OUT_OF_MEMORY = 4, /* the host or the device could not give memory */
  MICA_ERROR_DEVICE = 5,        /* the driver reported an error */
  MICA_ERROR_INTERNAL = 6       /* a defect of this library */
} mica_status;

typedef enum mica_backend { MICA_CPU = 0, MICA_CUDA = 1 } mica_backend;

typedef enum mica_dtype {
  MICA_NONE = 0, /* the tensor is absent */
  MICA_FP32 = 1,
  MICA_FP16 = 2,
  MICA_BF16 = 3,
  MICA_BOOL = 4, /* one byte, nonzero is true */
  MICA_INT32 = 5,
  MICA_FP8_E4M3 = 6 /* 4 bits of exponent, 3 of mantissa, no infinities ("fn"); q, k and v only */
} mica_dtype;

typedef enum mica_pass { MICA_FORWARD = 0, MICA_BACKWARD = 1 } mica_pass;

/* Causal: key j is visible to query i if j <= i + shift.
 * BOTTOM_RIGHT: shift = keys - queries (the last query sees every key). TOP_LEFT: shift = 0. */
typedef enum mica_causal { MICA_CAUSAL_NONE = 0, MICA_CAUSAL_BOTTOM_RIGHT = 1, MICA_CAUSAL_TOP_LEFT = 2 } mica_causal;

/* Where the diagonal of a window and of ALiBi lies. FROM_CAUSAL is enough when causal is set. */
typedef enum mica_diagonal {
  MICA_DIAGONAL_FROM_CAUSAL = 0,
  MICA_DIAGONAL_BOTTOM_RIGHT = 1,
  MICA_DIAGONAL_TOP_LEFT = 2
} mica_diagonal;

/* The int32 vectors that the bindings will carry, in the backend's memory; a bit each. */
typedef enum mica_vectors {
  MICA_CU_SEQLENS_Q = 1,     /* [batch + 1] first row of each sequence in q; q is packed */
  MICA_CU_SEQLENS_K = 2,     /* [batch + 1] the same for k and v (paged: only their differences count) */
  MICA_SEQUSED_Q = 4,        /* [batch] rows of each query sequence that are in use */
  MICA_SEQUSED_K = 8,        /* [batch] keys in use, before append; also known as cache_seqlens */
  MICA_CACHE_BATCH_IDX = 16, /* [batch] which k.shape[0] slot a sequence uses */
  MICA_CACHE_LEFTPAD = 32    /* [batch] keys to skip at the start of each sequence */
} mica_vectors;

#endif
