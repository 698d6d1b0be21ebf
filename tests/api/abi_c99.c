/* SPDX-License-Identifier: Apache-2.0
 * The interface as a C99 program sees it. */
#include <math.h>
#include <stdlib.h>

#include "mica/mica.h"

const char* c99_five_lines(float* largest_error);
const char* c99_bad_pass(void);

/* Two keys with equal scores: the output is the mean of their values. */
const char* c99_five_lines(float* largest_error) {
  float q[4] = {1, 2, 3, 4}, k[8] = {1, 0, 0, 0, 1, 0, 0, 0}, v[8] = {1, 2, 3, 4, 5, 6, 7, 8}, o[4] = {0};
  mica_attention a = MICA_ATTENTION_INIT;
  a.q = a.o = (mica_tensor){MICA_FP32, 0, {1, 1, 1, 4}, {4, 4, 4, 1}};
  a.k = a.v = (mica_tensor){MICA_FP32, 0, {1, 2, 1, 4}, {8, 4, 4, 1}};
  mica_plan* plan;
  if (mica_plan_create(&a, MICA_FORWARD, &plan) != MICA_OK) return mica_last_error();
  const size_t bytes = (mica_plan_workspace(plan) + 63) / 64 * 64;
  mica_bindings x = MICA_BINDINGS_INIT;
  x.q = q, x.k = k, x.v = v, x.o = o, x.workspace = aligned_alloc(64, bytes ? bytes : 64), x.workspace_bytes = bytes;
  const mica_status status = mica_execute(plan, &x);
  free(x.workspace);
  mica_plan_destroy(plan);
  if (status != MICA_OK) return mica_last_error();
  *largest_error = 0;
  for (int d = 0; d < 4; ++d) *largest_error = fmaxf(*largest_error, fabsf(o[d] - (float)(d + 3)));
  return "";
}

const char* c99_bad_pass(void) {
  mica_attention a = MICA_ATTENTION_INIT;
  mica_plan* plan;
  return mica_plan_create(&a, (mica_pass)7, &plan) == MICA_ERROR_INVALID && !plan ? mica_last_error() : "accepted";
}
