/* SPDX-License-Identifier: Apache-2.0 */
#include <mica/mica.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 1, ROWS = 1024, HEADS = 8, DIM = 64 };
static float q[BATCH * ROWS * HEADS * DIM], k[BATCH * ROWS * HEADS * DIM];
static float v[BATCH * ROWS * HEADS * DIM], o[BATCH * ROWS * HEADS * DIM];

int main(void) {
  mica_attention a = MICA_ATTENTION_INIT;
  a.q = (mica_tensor){MICA_FP32, 0, {BATCH, ROWS, HEADS, DIM}, {ROWS * HEADS * DIM, HEADS * DIM, DIM, 1}};
  a.k = a.v = a.o = a.q;
  a.mask.causal = MICA_CAUSAL_BOTTOM_RIGHT;
  mica_plan* plan; /* make it once, execute it as often as you like */
  mica_status status = mica_plan_create(&a, MICA_FORWARD, &plan);
  if (status == MICA_OK) {
    size_t bytes = mica_plan_workspace(plan);
    mica_bindings x = MICA_BINDINGS_INIT;
    x.q = q;
    x.k = k;
    x.v = v;
    x.o = o;
    x.workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
    x.workspace_bytes = bytes;
    status = mica_execute(plan, &x);
    mica_plan_destroy(plan);
    free(x.workspace);
  }
  if (status != MICA_OK) puts(mica_last_error());
  return status != MICA_OK;
}
