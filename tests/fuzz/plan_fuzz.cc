// SPDX-License-Identifier: Apache-2.0
// libFuzzer over plan creation: any description must give a plan or a message, never a crash, a leak or a long wait.
// Half of the inputs are the bytes of a description; the others are edits of one that is valid.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "mica/mica.h"

namespace {

// Not assert: it must hold in every build.
void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "violated: %s; last error: %s\n", what, mica_last_error());
  std::abort();
}

struct Input {
  const uint8_t* data;
  size_t size;

  // Zeroes once the input is used up.
  template <class T>
  T take() {
    T value = {};
    const size_t bytes = size < sizeof value ? size : sizeof value;
    if (bytes > 0) std::memcpy(&value, data, bytes);
    data += bytes;
    size -= bytes;
    return value;
  }
};

mica_tensor tensor(int32_t dtype, int64_t a, int64_t b, int64_t c, int64_t d) {
  return {dtype, 0, {a, b, c, d}, {b * c * d, c * d, d, 1}};
}

// Valid descriptions, the options spread over them.
mica_attention valid(int kind, mica_pass pass) {
  mica_attention a = MICA_ATTENTION_INIT;
  const int32_t dtype = MICA_FP32 + kind % 3;
  const int64_t batch = 2, rows = 5, keys = 12, heads = 4, heads_k = 2, dim = 16;
  a.q = a.o = tensor(dtype, batch, rows, heads, dim);
  a.k = a.v = tensor(dtype, batch, keys, heads_k, dim);
  a.lse = tensor(MICA_FP32, batch, heads, rows, 1);
  switch (kind % 6) {
    case 0: a.mask.causal = MICA_CAUSAL_BOTTOM_RIGHT; break;
    case 1:
      a.mask.diagonal = MICA_DIAGONAL_TOP_LEFT;
      a.mask.window_left = 3;
      a.score.bias = tensor(MICA_FP32, 1, heads, rows, keys);
      a.score.sinks = tensor(MICA_FP32, heads, 1, 1, 1);
      break;
    case 2:  // packed
      a.q = a.o = tensor(dtype, 1, batch * rows, heads, dim);
      a.k = a.v = tensor(dtype, 1, batch * keys, heads_k, dim);
      a.lse = tensor(MICA_FP32, 1, heads, batch * rows, 1);
      a.sequences.vectors = MICA_CU_SEQLENS_Q | MICA_CU_SEQLENS_K;
      a.sequences.batch = batch;
      break;
    case 3:  // paged
      if (pass == MICA_BACKWARD) break;
      a.k = a.v = tensor(dtype, 7, 4, heads_k, dim);
      a.sequences.vectors = MICA_SEQUSED_K;
      a.sequences.block_table = tensor(MICA_INT32, batch, 3, 1, 1);
      break;
    case 4:  // append
      if (pass == MICA_BACKWARD) break;
      a.sequences.vectors = MICA_SEQUSED_K | MICA_CACHE_LEFTPAD;
      a.append.k_new = a.append.v_new = tensor(dtype, batch, 2, heads_k, dim);
      a.append.rotary_cos = a.append.rotary_sin = tensor(dtype, keys, dim / 2, 1, 1);
      break;
    case 5:
      a.dropout.probability = 0.25f;
      a.score.softcap = 30;
      a.mask.boolean = tensor(MICA_BOOL, 1, 1, rows, keys);
      break;
  }
  if (pass == MICA_BACKWARD) {
    a.gradients.d_o = a.gradients.dq = a.q;
    a.gradients.dk = a.gradients.dv = a.k;
  }
  return a;
}

void edit(mica_attention& a, Input& input) {
  const int64_t interesting[] = {
      0, 1, -1, 2, 16, 512, 577, 1 << 29, (1 << 29) + 1, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int64_t(1) << 48};
  while (input.size > 0) {
    // Most fields are 4 or 8 bytes on a multiple of 4.
    const size_t bytes = input.take<uint8_t>() % 2 ? 8 : 4;
    const size_t place = input.take<uint16_t>() % ((sizeof a - bytes) / 4 + 1) * 4;
    const uint8_t kind = input.take<uint8_t>();
    const int64_t value = kind % 2 ? input.take<int64_t>() : interesting[kind / 2 % 14];
    std::memcpy(reinterpret_cast<char*>(&a) + place, &value, bytes);
  }
}

void visit(void* context, const char* kernel, const char* why_not) {
  ++*static_cast<int*>(context);
  require(kernel && kernel[0] && why_not, "a kernel has a name and a reason");
}

void try_plan(const mica_attention& a, mica_pass pass) {
  mica_plan* plan = nullptr;
  const mica_status status = mica_plan_create(&a, pass, &plan);
  require((status == MICA_OK) == (plan != nullptr), "a plan comes with MICA_OK and only then");
  if (status != MICA_OK) require(mica_last_error()[0] != 0, "a failure has a message");
  if (plan) {
    require(mica_plan_kernel(plan)[0] != 0, "a plan names its kernel");
    require(mica_plan_splits(plan) >= 1, "a plan has at least one split");
    require(mica_plan_workspace(plan) < (size_t(1) << 62), "a workspace has a size");
    int kernels = 0;
    require(mica_list_kernels(&a, pass, visit, &kernels) == MICA_OK && kernels > 0, "what can be planned is listed");
  }
  mica_plan_destroy(plan);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input{data, size};
  const uint8_t kind = input.take<uint8_t>();
  const mica_pass pass = kind & 1 ? MICA_BACKWARD : MICA_FORWARD;
  if (kind & 2) {
    mica_attention a = input.take<mica_attention>();
    if (kind & 4) {
      a.struct_bytes = sizeof a;
      a.abi_version = MICA_ABI_VERSION;
      a.device = {MICA_CPU, 0};
    }
    try_plan(a, pass);
    return 0;
  }
  mica_attention a = valid(kind / 4, pass);
  if (input.size == 0) {
    mica_plan* plan = nullptr;
    require(mica_plan_create(&a, pass, &plan) == MICA_OK, "the descriptions that edits start from are valid");
    mica_plan_destroy(plan);
  }
  edit(a, input);
  try_plan(a, pass);
  return 0;
}
