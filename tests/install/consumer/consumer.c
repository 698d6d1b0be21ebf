/* SPDX-License-Identifier: Apache-2.0
 * One query over one key: the output is that key's value. Five lines describe it, plan it, bind it and compute it. */
#include <mica/mica.h>
#include <stdio.h>

static unsigned char room[1 << 20] __attribute__((aligned(64)));

int main(void) {
  float q[8] = {1}, k[8] = {1}, v[8] = {1, 2, 3, 4, 5, 6, 7, 8}, o[8] = {0};

  mica_attention a = MICA_ATTENTION_INIT;
  mica_bindings x = {sizeof x, MICA_ABI_VERSION, q, k, v, o, .workspace = room, .workspace_bytes = sizeof room};
  mica_plan* plan;
  a.q = a.k = a.v = a.o = (mica_tensor){MICA_FP32, 0, {1, 1, 1, 8}, {8, 8, 8, 1}};
  if (mica_plan_create(&a, MICA_FORWARD, &plan) || mica_execute(plan, &x)) return puts(mica_last_error()), 1;

  printf("C, mica %s, %s: %g .. %g\n", mica_version(), mica_plan_kernel(plan), o[0], o[7]);
  mica_plan_destroy(plan);
  return o[0] == 1 && o[7] == 8 ? 0 : 1;
}
