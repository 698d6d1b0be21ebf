/* SPDX-License-Identifier: Apache-2.0
 * A program that was compiled with the header of 0.1.0 (header_0_1/) runs with today's library: its structs are
 * shorter, and not a byte behind them is read, which would be a fault here. Prints what is wrong; exit status 1. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <mica/mica.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROWS = 40, HEADS = 2, DIM = 16, ELEMENTS = ROWS * HEADS * DIM };
static float q[ELEMENTS], k[ELEMENTS], v[ELEMENTS], o[ELEMENTS];

/* A copy that ends where the next page may not be touched. */
static void* at_the_edge(const void* bytes, size_t size) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char* pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED || size > page || mprotect(pages + page, page, PROT_NONE) != 0) exit(2);
  return memcpy(pages + page - size, bytes, size);
}

static int fails(const char* what) {
  printf("%s: %s\n", what, mica_last_error());
  return 1;
}

int main(void) {
  mica_attention a = MICA_ATTENTION_INIT;
  mica_bindings x = MICA_BINDINGS_INIT;
  mica_plan* plan;
  size_t bytes;
  int i;
  if (sizeof a != 1696) {
    printf("sizeof(mica_attention) is %zu, want 1696: this is not the header of 0.1.0\n", sizeof a);
    return 1;
  }
  for (i = 0; i < ELEMENTS; ++i) {
    q[i] = (float)(i % 7) - 3;
    k[i] = (float)(i % 5) - 2;
    v[i] = 1;
  }
  a.q = (mica_tensor){MICA_FP32, 0, {1, ROWS, HEADS, DIM}, {ELEMENTS, HEADS * DIM, DIM, 1}};
  a.k = a.v = a.o = a.q;
  a.mask.causal = MICA_CAUSAL_BOTTOM_RIGHT;
  if (mica_plan_create(at_the_edge(&a, sizeof a), MICA_FORWARD, &plan) != MICA_OK) return fails("plan");
  bytes = mica_plan_workspace(plan);
  x.q = q;
  x.k = k;
  x.v = v;
  x.o = o;
  x.workspace = aligned_alloc(64, (bytes + 64) / 64 * 64);
  x.workspace_bytes = bytes;
  if (mica_execute(plan, at_the_edge(&x, sizeof x)) != MICA_OK) return fails("execute");
  mica_plan_destroy(plan);
  free(x.workspace);
  for (i = 0; i < ELEMENTS; ++i)
    if (!(o[i] > 0.999f && o[i] < 1.001f)) {
      printf("o[%d] is %g, want 1: each row is a mean of ones\n", i, o[i]);
      return 1;
    }
  return 0;
}
